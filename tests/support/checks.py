# SPDX-License-Identifier: Apache-2.0
"""Runs and counts tests in Python. Each is a function that returns whether it passes, or raises the
reason to skip it."""

import inspect
import os

# A run of `make check-all`.
AT_LENGTH = bool(os.environ.get("AT_LENGTH"))


def run(tests, *arguments):
    """Runs those that tests/run does not leave to `make check-all`; returns the exit status."""
    status, left_out = 0, os.environ.get("LEFT_OUT", "").split()
    for test in tests:
        if test.__name__ in left_out:
            continue
        result = test(*arguments)
        if isinstance(result, str):
            print(f"skip {test.__name__}: {result}", flush=True)
        else:
            print(f"{'ok' if result else 'not ok'} {test.__name__}", flush=True)
            status |= not result
    return int(status)


def run_all(module, argument, value):
    """Runs the functions of a module (its globals()) that take one argument of that name, in their order."""
    return run([test for test in list(module.values()) if inspect.isfunction(test) and
                list(inspect.signature(test).parameters) == [argument]], value)
