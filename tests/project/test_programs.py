#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every block of C in the README and docs/ compiles unchanged, and those with a main function run
and exit with 0."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = (ROOT / os.environ.get("BUILD", "build")).resolve()
FLAGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include",
         *shlex.split(os.environ.get("SANITIZE_FLAGS", ""))]


def blocks():
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for number, block in enumerate(re.findall(r"^```c\n(.*?)^```", path.read_text(), re.M | re.S)):
            yield f"{path.stem}_{number + 1}".replace("-", "_").lower(), block


def succeeds(command, directory):
    done = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=120, check=False)
    if done.returncode:
        print(done.stdout)
    return done.returncode == 0


def write_config(directory):
    """Returns the example configuration, with a directory made here instead of the drive."""
    config = json.loads((ROOT / "config/zero3_nvme.json").read_text())
    for block in ("offload_param", "offload_optimizer"):
        offload = config["zero_optimization"].get(block)
        if offload:
            offload |= {"nvme_path": str(directory), "buffer_count": 2, "buffer_size": 1 << 22}
    (directory / "ds_config.json").write_text(json.dumps(config))


def works(name, block, directory):
    source = directory / f"{name}.c"
    source.write_text(block)
    compiler = shlex.split(os.environ.get("CC", "gcc"))
    if not re.search(r"\bmain\(", block):
        return succeeds([*compiler, *FLAGS, "-Wno-unused-function", "-c", source, "-o", "/dev/null"],
                        directory)
    return (succeeds([*compiler, *FLAGS, source, "-o", directory / name, f"-L{BUILD}", "-lnvswap",
                      f"-Wl,-rpath,{BUILD}"], directory)
            and succeeds([directory / name], directory))


def main():
    status = 0
    (BUILD / "tmp").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="programs.", dir=BUILD / "tmp") as directory:
        directory = pathlib.Path(directory)
        write_config(directory)
        for name, block in blocks():
            good = works(name, block, directory)
            print(f"{'ok' if good else 'not ok'} {name}_compiles_as_it_stands")
            status |= not good
    return status


if __name__ == "__main__":
    sys.exit(main())
