#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make mutate` on a tree of one source, with a build and tests that fail or take too long."""

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


def a_failure_without_a_change_names_the_test(directory):
    tree = tree_of(directory, "failing", test="echo noise; echo 'failed: test_one: a_promise'; exit 1")
    return mutate.measure("base", tree, {}) == "the tests of base fail without a change: failed: test_one: a_promise"


def a_build_that_fails_says_why(directory):
    tree = tree_of(directory, "broken", build="echo no such thing; false")
    return "no such thing" in mutate.measure("base", tree, {})


def limits_come_from_the_unchanged_code(directory):
    tree, limits = tree_of(directory, "measured", test="sleep 0.2"), {}
    return not mutate.measure("base", tree, limits) and limits["build"] >= mutate.SPARE_S and \
        limits["base"] >= 0.2 * mutate.SLOWER + mutate.SPARE_S


def a_change_is_seen_or_unseen_or_builds_too_long_and_is_taken_back(directory):
    for due, build, test in (("seen", "true", "! grep -q '<=' src/base/one.c"), ("UNSEEN", "true", "true"),
                             ("build too slow", "grep -q '<=' src/base/one.c && sleep 60", "true")):
        tree = tree_of(directory, due, build=build, test=test)
        if mutate.fate(tree, PLACE, {"build": 0.5 if "sleep" in build else 60, "base": 60}) != due or \
                (tree / "src/base/one.c").read_text() != "a < b\n":
            return False
    return True


TESTS = [
    a_failure_without_a_change_names_the_test,
    a_build_that_fails_says_why,
    limits_come_from_the_unchanged_code,
    a_change_is_seen_or_unseen_or_builds_too_long_and_is_taken_back,
]

if __name__ == "__main__":
    (BUILD / "tmp").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD / "tmp") as temporary:
        sys.exit(checks.run(TESTS, pathlib.Path(temporary)))
