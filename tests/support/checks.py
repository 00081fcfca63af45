# SPDX-License-Identifier: Apache-2.0
"""How tests in Python are counted: a function each, which says whether its promise holds, or why it
can't be tested here."""


def run(tests, *arguments):
    """The exit status."""
    status = 0
    for test in tests:
        result = test(*arguments)
        if isinstance(result, str):
            print(f"skip {test.__name__}: {result}", flush=True)
        else:
            print(f"{'ok' if result else 'not ok'} {test.__name__}", flush=True)
            status |= not result
    return int(status)
