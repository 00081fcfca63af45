#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/reliability.md names a test for every promise, each of these tests exists and runs, and the page says
truly which promises `make check` and `make check-deepspeed` show, and which are left to `make check-all`. With
--write it gets what is true."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from runs import left_by, left_of  # noqa: E402

PAGE = ROOT / "docs/reliability.md"
SOURCES = {path.name: path for folder in ("tests", "python/tests")
           for path in (ROOT / folder).rglob("test_*.*")}


def is_run(source, name):
    """Whether a program defines the test, or a script contains or composes its name."""
    text = source.read_text()
    if source.suffix == ".c":
        return bool(re.search(rf"^TEST(_WITH)?\({name}\b", text, re.M))
    made = [re.sub(r"\$(\{\w+\}|\d)", "~", word) for word in re.findall(r"[\w${}]+", text)]
    return any(re.fullmatch(word.replace("~", r"\w+"), name) for word in made
               if re.fullmatch(r"[\w~]+", word) and word != "~")


def named_in(tests):
    return re.findall(r"`(test_\w+\.(?:c|sh|py)): ([^`]+)`", tests)


def where_shown(tests, rows):
    """In which run a promise is shown, as the page says it."""
    left = [{None, name} & set(left_of(SOURCES[file], rows))
            for file, name in named_in(tests) if file in SOURCES]
    return "check-all" if all(left) else "check, more in check-all" if any(left) else "check"


def wrong_with(promise, where, tests, rows):
    named = named_in(tests)
    if not named:
        return [f"no test is named for: {promise}"]
    missing, shown = [], where_shown(tests, rows)
    if where != shown:
        missing.append(f"the column \"in\" says {where}, and it is {shown}, for: {promise}")
    for file, name in named:
        source = SOURCES.get(file)
        if not source:
            missing.append(f"{file} is not there, for: {promise}")
        elif not is_run(source, name):
            missing.append(f"{file} does not run {name}, for: {promise}")
    return missing


def write():
    """Puts the run in which each promise is shown into the page."""
    rows, lines = left_by("check"), []
    for line in PAGE.read_text().splitlines():
        cells = line.strip("|").split(" | ")
        if line.startswith("| ") and not line.startswith("| ---") and cells[-1].strip() != "shown by":
            line = f"| {cells[0].strip()} | {where_shown(cells[-1], rows)} | {cells[-1].strip()} |"
        lines.append(line)
    PAGE.write_text("\n".join(lines) + "\n")


def main():
    if sys.argv[1:] == ["--write"]:
        write()
    lines = [line.strip().strip("|").split(" | ") for line in PAGE.read_text().splitlines()
            if line.startswith("| ") and not line.startswith("| ---")]
    promises = [(cells[0].strip(), cells[1], cells[-1]) for cells in lines
                if cells[-1].strip() != "shown by"]
    rows = left_by("check")
    wrong = [what for promise in promises for what in wrong_with(*promise, rows)]
    print("\n".join(wrong))
    good = len(promises) >= 30 and not wrong
    print(f"{'ok' if good else 'not ok'} every promise names a test that is run")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
