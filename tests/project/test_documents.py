#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every command line in the README, docs/, examples/ and the manual pages runs and exits with 0, and every
block of C in the README and docs/ compiles unchanged; those with a main function run and exit with 0.

Each block of commands is a bash script, run in a copy of the tree's layout under the build
directory. Paths that a reader replaces are replaced by directories and files made here. Commands
that run for as long as an option, a default or a job file says are shortened by SHORTER; for the
complete "nvswap bench" line, the forecast of --dry-run must come to at most a minute on a drive of 1 GB/s.

Only a run of `make check-all` measures as much as that. In other runs, "nvswap bench" and "nvswap replay"
get --dry-run, except that a line whose file a later line reads runs on less data; and each "nvswap tune"
but the first gets --help, before which the command reads all other options."""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

import checks

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = (ROOT / os.environ.get("BUILD", "build")).resolve()
FLAGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include",
         *shlex.split(os.environ.get("SANITIZE_FLAGS", ""))]
READER_WAITS_S = 60
# Ends a hang; long enough for a busy machine.
LIMIT_S = 600

NOT_RUN = {
    "make demo": "test_demo.sh runs it",
    "make setup": "installs packages",
    "make check": "runs all tests, this one too",
    "make test": "runs tests",
}
SHORTER = (
    (r"(nvswap tune)\b(?!.*--time)", r"\1 --time 10s --working-set 64m --queue-depth-max 8"),
    (r"(nvswap bench)\b(?=.*\.ini)", r"\1 --runtime 1s --size 64m"),
    (r"--runtime \d\w*", "--runtime 1s"),
    (r"--max-latency \S+", "--max-latency 10s"),  # any drive meets this limit, even when busy
)
TUNE = r"^(\S*nvswap tune)\b([^#]*?)( +#.*)?$"
# All that lets it end soon: a choice need not be a good one.
TUNE_SOON = "--time 3s --tolerance 50 --working-set 64m --queue-depth-max 4 --block-size-max 1m"
# Paths outside the tree that are not replaced must not be written to.
OUTSIDE = r"(?<![\w./}])/(?:usr|etc|opt|var|home|root)\b"
DRIVES = r"(?<![\w./])/(?:mnt/\w+|data|path/on/the/nvme)\b"
COMMAND = r"(?:\$ )?(?:nvswap|build/nvswap|make|cc|python3|mkdir|export|\./\w+) "


def blocks_of_markdown(text):
    for kind, block in re.findall(r"^```(sh|console|ini|)\n(.*?)^```", text, re.M | re.S):
        if kind == "ini":
            yield f"cat >job.ini <<END\n{block}END\nnvswap bench job.ini\n"
        if not re.match(COMMAND, block):
            continue
        if block.startswith("$ "):  # a session: lines without a prompt are output
            block = "".join(re.findall(r"^\$ (.*\n)", block, re.M))
        yield block


def blocks_of_manual(text):
    for lines in re.findall(r"(?:^\.Dl .*\n)+|^\.EX\n(?:.*\n)+?(?=\.EE)", text, re.M):
        plain = re.sub(r'^\.(?:EX\n|Dl "?(.*?)"?$)', r"\1", lines, flags=re.M)
        block = plain.replace(r"\e", "\\").replace(r"\-", "-")
        if re.match(COMMAND, block):
            yield block


def documents():
    """Yields each document's name, directory to run in, and blocks. The README installs nvswap."""
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md")),
                 ROOT / "examples/README.md"):
        where = "examples" if path.parent.name == "examples" else "."
        yield path.relative_to(ROOT), where, list(blocks_of_markdown(path.read_text()))
    for path in (BUILD / "nvswap.1", BUILD / "man/libnvswap.3"):
        yield path.name, ".", list(blocks_of_manual(path.read_text()))


def make_tree(top):
    """Makes the files of a built tree's root, and the reader's own ones."""
    for entry in ROOT.iterdir():
        if entry.name in ("docs", "examples", "config"):
            shutil.copytree(entry, top / entry.name)
        elif entry.name not in ("build", ".git"):
            (top / entry.name).symlink_to(entry)
    (top / "build/nvme").mkdir(parents=True)
    for entry in BUILD.iterdir():
        if entry.name not in ("tmp", "nvme"):
            (top / "build" / entry.name).symlink_to(entry)
    shutil.copy(ROOT / "config/zero3_nvme.json", top / "ds_config.json")
    shutil.copy(ROOT / "examples/train_loop.c", top / "program.c")
    (top / "home").mkdir()
    # The Python that has the packages of scripts/setup.
    (top / "bin").mkdir()
    (top / "bin/python3").symlink_to("/usr/bin/python3")


def as_run_here(block, top):
    def drive(match):
        path = top / "drives" / match[0].strip("/").replace("/", "-")
        path.mkdir(parents=True, exist_ok=True)
        return str(path)

    lines = [re.sub(DRIVES, drive, line) for line in block.replace("\\\n", " ").splitlines()
             if not any(line.startswith(command) for command in NOT_RUN)]
    return "\n".join(lines)


def shortened(script):
    for pattern, replacement in SHORTER:
        script = re.sub(pattern, replacement, script)
    return script


class Everyday:
    """Changes scripts so that they check the options of each line and measure next to nothing."""

    def __init__(self):
        self.tuned = False

    def shortened(self, script):
        lines = script.splitlines()
        return "\n".join(self.line(line, "\n".join(lines[i + 1:])) for i, line in enumerate(lines))

    def line(self, line, later):
        made = re.findall(r" --(?:trace|output) (\S+)", line)
        if any(name in later for name in made):
            return re.sub(TUNE, rf"\1 {TUNE_SOON}\2\3", self.on_less_data(line))
        if re.match(TUNE, line) and not self.tuned:
            self.tuned = True
            return re.sub(TUNE, rf"\1 {TUNE_SOON}\2\3", line)
        line = re.sub(TUNE, r"\1\2 --help\3", line)
        return re.sub(r"^(\S*nvswap (?:bench|replay))\b", r"\1 --dry-run", line)

    @staticmethod
    def on_less_data(line):
        line = re.sub(r"--runtime \d\w*", "--runtime 100ms", line)
        line = re.sub(r"--size \d\w*", "--size 8m", line)
        if "--scale" not in line:
            line = re.sub(r"(--model \S+)", r"\1 --scale 0.1", line)
        return line if "--runtime" in line else re.sub(r"(nvswap bench)\b", r"\1 --loops 1", line)


def environment(top):
    home = top / "home"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return {**kept, "BUILD": "build", "HOME": str(home), "PATH": f"{top}/build:{top}/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(top / "python"), "PKG_CONFIG_PATH": f"{home}/.local/lib/pkgconfig"}


def ends_well(script, where, top):
    with subprocess.Popen(["bash", "-euxo", "pipefail", "-c", script], cwd=top / where,
                          env=environment(top), stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          start_new_session=True) as process:
        try:
            output = process.communicate(timeout=LIMIT_S)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output = process.communicate()[0] + f"did not end within {LIMIT_S} s\n"
    if process.returncode:
        print(output)
    return process.returncode == 0


def ends_in_time(script, where, top):
    """Checks what the command forecasts, at the rate of a drive of 1 GB/s. Files made by earlier lines
    of the script exist."""
    for line in re.findall(r"^\S*nvswap bench[^#\n]*", script, re.M):
        line = re.sub(r"--output \S+", "", line)
        plan = subprocess.run(f"{line} --dry-run --output-format json", shell=True, cwd=top / where,
                              env=environment(top), stdout=subprocess.PIPE)
        if plan.returncode:
            return False
        seconds = sum((job["read_bytes"] + job["write_bytes"]) / 1e9 + job.get("seconds", 0)
                      for job in json.loads(plan.stdout)["jobs"])
        if seconds > READER_WAITS_S:
            print(f"takes {seconds:.0f} s on a drive of 1 GB/s: {line}")
            return False
    return True


def passes(script, where, top, shorten):
    outside = re.search(OUTSIDE, script.replace(str(top), ""))
    if outside:
        print(f"{outside[0]} is outside of the tree: {script}")
    return (not outside and ends_well(shorten(script), where, top)
            and ends_in_time(script, where, top))


def why_not(script):
    if os.environ.get("SANITIZE_FLAGS") and re.search(r"^cc ", script, re.M):
        return "a program of the reader's is not built with sanitizers"
    return None


def succeeds(command, directory):
    done = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=120, check=False)
    if done.returncode:
        print(done.stdout)
    return done.returncode == 0


def write_config(directory):
    """Writes the example configuration, with a directory made here instead of the drive."""
    config = json.loads((ROOT / "config/zero3_nvme.json").read_text())
    for block in ("offload_param", "offload_optimizer"):
        offload = config["zero_optimization"].get(block)
        if offload:
            offload |= {"nvme_path": str(directory), "buffer_count": 2, "buffer_size": 1 << 22}
    (directory / "ds_config.json").write_text(json.dumps(config))


def program_works(name, block, directory):
    source = directory / f"{name}.c"
    source.write_text(block)
    compiler = shlex.split(os.environ.get("CC", "gcc"))
    if not re.search(r"\bmain\(", block):
        return succeeds([*compiler, *FLAGS, "-Wno-unused-function", "-c", source, "-o", "/dev/null"],
                        directory)
    return (succeeds([*compiler, *FLAGS, source, "-o", directory / name, f"-L{BUILD}", "-lnvswap",
                      f"-Wl,-rpath,{BUILD}"], directory)
            and succeeds([directory / name], directory))


def programs():
    """Yields whether each block of C of the README and docs/ compiles as it stands and, where it has a main
    function, exits with 0."""
    with tempfile.TemporaryDirectory(prefix="programs.", dir=BUILD / "tmp") as directory:
        write_config(pathlib.Path(directory))
        for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
            for number, block in enumerate(re.findall(r"^```c\n(.*?)^```", path.read_text(), re.M | re.S)):
                name = f"{path.stem}_{number + 1}".replace("-", "_").lower()
                yield name, program_works(name, block, pathlib.Path(directory))


def main():
    status, seen = 0, set()
    shorten = shortened if checks.AT_LENGTH else Everyday().shortened
    (BUILD / "tmp").mkdir(exist_ok=True)
    with (tempfile.TemporaryDirectory(prefix="documents.", dir=BUILD / "tmp") as directory,
          tempfile.TemporaryDirectory() as links):
        # The documents do not quote paths, so run in a path without blanks, wherever the checkout
        # is.
        top = pathlib.Path(links) / "documents"
        top.symlink_to(directory)
        make_tree(top)
        for document, where, blocks in documents():
            for block in blocks:
                script = as_run_here(block, top)
                if not script.strip() or (where, script) in seen:
                    continue
                seen.add((where, script))
                first = block.replace("\\\n", " ").splitlines()[0]
                name = f"{document}: {' '.join(first.split())}"
                reason = why_not(script)
                if reason:
                    print(f"skip {name}: {reason}", flush=True)
                    continue
                good = passes(script, where, top, shorten)
                print(f"{'ok' if good else 'not ok'} {name}", flush=True)
                status |= not good
    for name, good in programs():
        print(f"{'ok' if good else 'not ok'} {name}_compiles_as_it_stands")
        status |= not good
    if len(seen) < 10:
        print(f"not ok blocks of commands are found: {len(seen)}")
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
