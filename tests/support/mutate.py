#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Changes the code in one place at a time, builds it, runs the tests of the changed layer, and lists the
changes that no test saw. It works in a copy below the build directory and never writes to the tree.
The seed determines the changes: the same seed, count, layers and sources give the same list.
"""

import argparse
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("BUILD", "build"))
LAYERS = ("base", "trace", "config", "topo", "aio", "pool", "memory", "store", "swap", "optim",
          "checkpoint", "cli")
# A change may make a build or a test slower than the unchanged code, which measures the machine.
SLOWER = 5
SPARE_S = 60  # also what a build takes if there was nothing to build without a change

# A change, and what it applies to: each match on a line of a function's body is one place.
CHANGES = (
    ("negate", re.compile(r"\b(if|while) \((?P<at>.+)\)(?= \{$|$)"), lambda text: f"!({text})"),
    ("off by one", re.compile(r"(?P<at> [+-] 1)\b(?!\.)"), lambda text: ""),
    ("boundary", re.compile(r" (?P<at><=|>=|<|>) "),
     lambda text: text[:-1] if text.endswith("=") else text + "="),
    ("equality", re.compile(r" (?P<at>==|!=) "), lambda text: "!=" if text == "==" else "=="),
    ("and, or", re.compile(r" (?P<at>&&|\|\|) (?!$)"), lambda text: "||" if text == "&&" else "&&"),
    ("no call", re.compile(r"^\t+(?P<at>[a-z]\w+\(.*\);)$"), lambda text: ";"),
    ("no result", re.compile(r"\breturn (?P<at>[a-z]\w*);$"), lambda text: "0"),
    ("constant", re.compile(r"(?<![\w.\"])(?P<at>[1-9]\d*)u?\b(?![\w.\"])"),
     lambda text: str(int(text) + 1)),
)
# What must hold, messages, and the release of memory at a failure change nothing that a test can see.
SKIPPED = re.compile(r"assert|_error|error_|fail\(|say\(|log_|printf|strerror|check\(|/\*|^\t+\*|case |#|\"")


def body_lines(text):
    """Yields (index, line) of the lines in functions' bodies, without comments and initializers."""
    in_function = in_comment = False
    for index, line in enumerate(text.splitlines()):
        if line.startswith("{"):
            in_function = True
        elif line.startswith("}"):
            in_function = False
        elif "/*" in line or in_comment:
            in_comment = "*/" not in line
        elif in_function and line.startswith("\t") and not SKIPPED.search(line):
            yield index, line


def is_balanced(text):
    depth = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            return False
    return depth == 0


def places(layer):
    """Yields each place of a layer, with its line and the changed one."""
    for path in sorted((ROOT / "src" / layer).rglob("*.c")):
        for index, line in body_lines(path.read_text()):
            for name, pattern, change in CHANGES:
                for match in pattern.finditer(line):
                    if name in ("negate", "no call") and not is_balanced(match["at"]):
                        continue
                    changed = line[:match.start("at")] + change(match["at"]) + line[match.end("at"):]
                    yield path.relative_to(ROOT), index, name, line, changed


def copy_tree(tree):
    """Copies what git tracks, and new files that it does not ignore."""
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                           cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    for name in filter(None, names.decode().split("\0")):
        source, target = ROOT / name, tree / name
        if not source.is_file():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != source.read_bytes():
            shutil.copyfile(source, target)
            shutil.copymode(source, target)


def tests_of(layer, tree):
    programs = sorted((tree / "tests" / layer).rglob("test_*.c"))
    return ["build/" + str(path.relative_to(tree).with_suffix("")) for path in programs]


def run(command, tree, seconds, **environment):
    """Returns why the command failed, or None; None for seconds is no limit. With a limit the command and
    what it started are killed at its end."""
    with subprocess.Popen(command, cwd=tree, env=dict(os.environ, **environment), text=True,
                          errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          start_new_session=seconds is not None) as process:
        try:
            output = process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"took longer than {seconds:g} s"
        except KeyboardInterrupt:
            if seconds is not None:
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode == 0:
        return None
    # Lines of tests/run name the tests; else the last lines tell.
    failed = [line for line in output.splitlines() if line.startswith("failed: ")]
    return "\n".join(failed or output.splitlines()[-20:]) or f"exited with {process.returncode}"


def build(tree, programs, seconds):
    """Warnings are no errors: a change may leave a variable unused."""
    return run(["make", f"-j{os.cpu_count()}", "BUILD=build", "WERROR=", "build/nvswap", *programs],
               tree, seconds)


def test(tree, programs, seconds):
    """Ends with the first program that fails: after a change that makes calls hang, each takes long."""
    per_run = os.cpu_count() or 1
    for first in range(0, len(programs), per_run):
        why = run(["tests/run", *programs[first:first + per_run]], tree, None, BUILD="build",
                  TEST_TIMEOUT=str(seconds), AT_LENGTH="1")
        if why:
            return why
    return None


def measure(layer, tree, limits):
    """Builds and tests without a change; returns why that fails, or None. Sets the seconds that a build and a
    test program of the layer may take, by the time that this takes."""
    programs, begin = tests_of(layer, tree), time.monotonic()
    why = build(tree, programs, None)
    built = time.monotonic()
    if why:
        return f"the tests of {layer} do not build without a change: {why}"
    why = test(tree, programs, 3600)
    if why:
        return f"the tests of {layer} fail without a change: {why}"
    limits["build"] = max(limits.get("build", 0), round(SLOWER * (built - begin)) + SPARE_S)
    limits[layer] = round(SLOWER * (time.monotonic() - built)) + SPARE_S
    return None


def fate(tree, place, limits):
    """Makes the change in the copy, and takes it back whatever happens."""
    path, index, _, _, changed = place
    original = (tree / path).read_text()
    lines = original.splitlines()
    lines[index] = changed
    layer = path.parts[1]
    programs = tests_of(layer, tree)
    try:
        (tree / path).write_text("\n".join(lines) + "\n")
        why = build(tree, programs, limits["build"])
        if why:
            return "build too slow" if why.startswith("took longer") else "does not build"
        return "seen" if test(tree, programs, limits[layer]) else "UNSEEN"
    finally:
        (tree / path).write_text(original)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--only", metavar="LAYER[,LAYER]", default=",".join(LAYERS),
                        help="folders of src/ (all)")
    parser.add_argument("--count", type=int, default=100, help="places to change (100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print the changes and make none")
    options = parser.parse_args()
    options.only = options.only.split(",")
    for layer in options.only:
        if layer not in LAYERS:
            parser.error(f"no layer {layer}; there are {', '.join(LAYERS)}")
    return options


def show(place, what):
    path, index, name, line, changed = place
    print(f"{what:<14} {path}:{index + 1}: {name}", flush=True)
    if what in ("UNSEEN", "listed"):
        print(f"    - {line.strip()}\n    + {changed.strip()}", flush=True)


def main():
    options = parse()
    found = [place for layer in options.only for place in places(layer)]
    chosen = random.Random(options.seed).sample(found, min(options.count, len(found)))
    if options.list:
        for place in chosen:
            show(place, "listed")
        return 0
    tree = ROOT / BUILD / "mutate"
    copy_tree(tree)
    fates, limits = [], {}
    for layer in sorted({place[0].parts[1] for place in chosen}):
        why = measure(layer, tree, limits)
        if why:
            sys.exit(why)
    for place in chosen:
        fates.append(fate(tree, place, limits))
        show(place, fates[-1])
    print(f"seed {options.seed}: {len(fates)} changes, {fates.count('seen')} seen, "
          f"{fates.count('UNSEEN')} unseen, {fates.count('does not build')} do not build, "
          f"{fates.count('build too slow')} built for longer than {limits['build']} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
