# SPDX-License-Identifier: Apache-2.0
"""Reads tests/runs, the list of what `make check`, `make asan` and `make tsan` leave to `make check-all`."""

import fnmatch
import pathlib
import re

LIST = pathlib.Path(__file__).resolve().parents[1] / "runs"


def base(program):
    """The program as tests/runs names it, by its path below tests/ or python/tests/: "store/test_store" for
    one in C, "cli/test_cli.sh" for a script."""
    return re.sub(r"^(.*/)?tests/|\.c$", "", str(program))


def left_by(run):
    """Returns (program pattern, test or None) of each row that names this run."""
    rows = [line.partition("#")[0].split() for line in LIST.read_text(encoding="ascii").splitlines()]
    names = [row[0].partition(":") for row in rows if row and run in row[1:]]
    return [(pattern, test or None) for pattern, _, test in names]


def left_of(program, rows):
    """Returns the tests of a program that these rows leave out; None among them stands for the program."""
    return [test for pattern, test in rows if fnmatch.fnmatch(base(program), pattern)]
