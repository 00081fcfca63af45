#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make mutate` on a tree of one source, with a build and tests that fail or take too long."""

import argparse
import os
import pathlib
import sys
import tempfile

import checks
import mutate

BUILD = pathlib.Path(os.environ.get("BUILD", "build"))

PLACE = (pathlib.Path("src/base/one.c"), 0, "boundary", "a < b", "a <= b")


def tree_of(directory, name, build="true", test="true"):
    tree = directory / name
    for folder in ("src/base", "tests/base"):
        (tree / folder).mkdir(parents=True)
    (tree / "src/base/one.c").write_text("a < b\n")
    (tree / "tests/base/test_one.c").touch()
    (tree / "Makefile").write_text(f"build/nvswap:\nbuild/tests/base/test_one:\n\t@{build}\n")
    (tree / "tests/run").write_text(f"#!/bin/sh\n{test}\n")
    (tree / "tests/run").chmod(0o755)
    return tree


def limits_of(seconds=None, build_seconds=None):
    return mutate.Limits(argparse.Namespace(seconds=seconds, build_seconds=build_seconds))


def a_failure_without_a_change_names_the_test(directory):
    tree = tree_of(directory, "failing", test="echo noise; echo 'failed: test_one: a_promise'; exit 1")
    why = limits_of().measure("base", tree)
    return why == "the tests of base fail without a change: failed: test_one: a_promise"


def a_build_that_takes_too_long_is_said(directory):
    why = limits_of(build_seconds=0.2).measure("base", tree_of(directory, "slow", build="sleep 60"))
    return why == "the tests of base do not build without a change: took longer than 0.2 s"


def a_build_that_fails_says_why(directory):
    tree = tree_of(directory, "broken", build="echo no such thing; false")
    return "no such thing" in limits_of().measure("base", tree)


def limits_come_from_the_unchanged_code_or_the_options(directory):
    tree = tree_of(directory, "measured", test="sleep 0.2")
    measured, given = limits_of(), limits_of(seconds=7, build_seconds=50)
    return not measured.measure("base", tree) and not given.measure("base", tree) and \
        measured.test_s["base"] >= 0.2 * mutate.SLOWER + mutate.SPARE_S and \
        measured.build_s >= mutate.SPARE_S and given.test_s["base"] == 7 and given.build_s == 50


def a_change_that_builds_too_long_is_an_outcome_and_taken_back(directory):
    tree = tree_of(directory, "changed", build="grep -q '<=' src/base/one.c && sleep 60 || true")
    limits = limits_of(build_seconds=0.5)
    return not limits.measure("base", tree) and \
        mutate.fate(tree, PLACE, limits) == "build too slow" and \
        (tree / "src/base/one.c").read_text() == "a < b\n"


def a_change_is_seen_or_unseen(directory):
    seen = tree_of(directory, "seen", test="! grep -q '<=' src/base/one.c")
    unseen, limits = tree_of(directory, "unseen"), limits_of()
    return not limits.measure("base", seen) and mutate.fate(seen, PLACE, limits) == "seen" and \
        mutate.fate(unseen, PLACE, limits) == "UNSEEN"


TESTS = [
    a_failure_without_a_change_names_the_test,
    a_build_that_takes_too_long_is_said,
    a_build_that_fails_says_why,
    limits_come_from_the_unchanged_code_or_the_options,
    a_change_that_builds_too_long_is_an_outcome_and_taken_back,
    a_change_is_seen_or_unseen,
]

if __name__ == "__main__":
    (BUILD / "tmp").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD / "tmp") as temporary:
        sys.exit(checks.run(TESTS, pathlib.Path(temporary)))
