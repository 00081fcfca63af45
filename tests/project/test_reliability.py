#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/reliability.md names a test for every promise, and each of these tests exists and runs."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reliability.md"
SOURCES = {path.name: path for folder in ("tests", "python/tests")
           for path in (ROOT / folder).rglob("test_*.*")}


def is_run(source, name):
    """Whether a program defines and lists the test, or a script contains or composes its name."""
    text = source.read_text()
    if source.suffix == ".c":
        return len(re.findall(rf"\b{name}\b", text)) > 1
    made = [re.sub(r"\$(\{\w+\}|\d)", "~", word) for word in re.findall(r"[\w${}]+", text)]
    return any(re.fullmatch(word.replace("~", r"\w+"), name) for word in made
               if re.fullmatch(r"[\w~]+", word) and word != "~")


def wrong_with(promise, tests):
    named = re.findall(r"`(test_\w+\.(?:c|sh|py)): ([^`]+)`", tests)
    if not named:
        return [f"no test is named for: {promise}"]
    missing = []
    for file, name in named:
        source = SOURCES.get(file)
        if not source:
            missing.append(f"{file} is not there, for: {promise}")
        elif not is_run(source, name):
            missing.append(f"{file} does not run {name}, for: {promise}")
    return missing


def main():
    rows = [line.strip().strip("|").split("|") for line in PAGE.read_text().splitlines()
            if line.startswith("| ") and not line.startswith("| ---")]
    promises = [(cells[0].strip(), cells[-1]) for cells in rows
                if cells[-1].strip() != "shown by"]
    wrong = [what for promise, tests in promises for what in wrong_with(promise, tests)]
    print("\n".join(wrong))
    good = len(promises) >= 30 and not wrong
    print(f"{'ok' if good else 'not ok'} every promise names a test that is run")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
