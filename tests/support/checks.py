# SPDX-License-Identifier: Apache-2.0
"""Runs and counts tests in Python. Each is a function that returns whether it passes, or raises the
reason to skip it."""


def run(tests, *arguments):
    """Returns the exit status."""
    status = 0
    for test in tests:
        result = test(*arguments)
        if isinstance(result, str):
            print(f"skip {test.__name__}: {result}", flush=True)
        else:
            print(f"{'ok' if result else 'not ok'} {test.__name__}", flush=True)
            status |= not result
    return int(status)
