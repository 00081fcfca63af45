#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
gpt2_medium.py in a cgroup whose limit of memory is below what it takes in memory: weights, gradients and two moments
of 1.3 GiB each. The kernel kills it with torch's AdamW, and not with nvswap's.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
from promises import PACKAGE, Skip, main, promise

GIB = 1 << 30
# The run in memory, without a limit, and what the drive holds at most.
NEEDED, STORED = 8 * GIB, 7 * GIB
LIMITS = {"state": 4 * GIB, "all": 3 * GIB}


def mounted(kind, option=""):
    """Where a file system is mounted."""
    with open("/proc/self/mountinfo", encoding="ascii") as file:
        for line in file:
            fields, (found, _, options) = (part.split() for part in line.split(" - "))
            if found == kind and (not option or option in options.split(",")):
                return fields[4]
    raise Skip(f"no {kind} is mounted")


class Cgroup:
    """A new one with a limit: in v1 below this process's own, in v2, where that may have no children, beside it."""

    def __init__(self, limit):
        with open("/proc/self/cgroup", encoding="ascii") as file:
            own = dict(line.rstrip().split(":")[1:] for line in file)
        name = f"nvswap-test-{os.getpid()}"
        if "memory" in own:
            self.path = os.path.join(mounted("cgroup", "memory") + own["memory"], name)
            maximum, self._peak = "memory.limit_in_bytes", "memory.max_usage_in_bytes"
            self._kills, swap = "memory.oom_control", ("memory.memsw.limit_in_bytes", limit)
        else:
            self.path = os.path.join(os.path.dirname(mounted("cgroup2") + own[""]), name)
            maximum, self._peak = "memory.max", "memory.peak"
            self._kills, swap = "memory.events", ("memory.swap.max", 0)
        try:
            os.mkdir(self.path)
            self._write(maximum, limit)
            with contextlib.suppress(FileNotFoundError):  # The kernel may be without swap.
                self._write(*swap)
        except OSError as error:
            self.remove()
            raise Skip(f"no memory cgroup can be made here: {error}") from error

    def _write(self, name, value):
        with open(os.path.join(self.path, name), "r+", encoding="ascii") as file:
            file.write(str(value))

    def enter(self):
        """Moves this process there."""
        self._write("cgroup.procs", 0)

    def peak(self):
        """The most bytes that it had, the page cache of its files too."""
        with open(os.path.join(self.path, self._peak), encoding="ascii") as file:
            return int(file.read())

    def kills(self):
        """How many processes the kernel has killed for the limit."""
        with open(os.path.join(self.path, self._kills), encoding="ascii") as file:
            return int(re.search(r"^oom_kill (\d+)", file.read(), re.M)[1])

    def remove(self):
        """Once its processes are gone, which the kernel notices after a moment."""
        for _ in range(100):
            with contextlib.suppress(FileNotFoundError):
                try:
                    os.rmdir(self.path)
                except OSError:
                    time.sleep(0.1)
                    continue
            return


def run(variant, directory, cgroup):
    """Its status, and what it has printed as JSON."""
    done = subprocess.run(
        [sys.executable, os.path.join(HERE, "gpt2_medium.py"), variant, directory],
        preexec_fn=cgroup.enter, stdout=subprocess.PIPE, text=True, check=False,
        env=dict(os.environ, PYTHONPATH=PACKAGE, HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES=""))
    return done.returncode, json.loads(done.stdout or "null")


def check_room(directory):
    with open("/proc/meminfo", encoding="ascii") as file:
        available = int(re.search(r"MemAvailable: *(\d+)", file.read())[1]) << 10
    for what, free, needed in (("memory", available, NEEDED), ("space", shutil.disk_usage(directory).free, STORED)):
        if free < needed:
            raise Skip(f"needs {needed // GIB} GiB of {what}, and {free / GIB:.1f} are free")


@promise
def gpt2_medium_trains_and_generates_under_a_limit_at_which_torch_is_killed(directory):
    check_room(directory)
    for variant, limit in (("memory", 64 * GIB), ("memory", LIMITS["state"]), *LIMITS.items()):
        cgroup = Cgroup(limit)
        try:
            status, printed = run(variant, directory, cgroup)
            print(f"{variant}: exit status {status}, {cgroup.peak() / GIB:.2f} of {limit / GIB:.0f} GiB", printed)
            if variant == "memory" and limit in LIMITS.values():
                assert status == -signal.SIGKILL and cgroup.kills() > 0, status
                continue
            assert status == 0 and cgroup.kills() == 0, status
        finally:
            cgroup.remove()
        if variant == "memory":
            expected = printed
            assert expected["losses"][-1] < expected["losses"][0], expected
        assert printed["written"] == expected["written"]
        # Adam's rounding differs.
        assert all(abs(a - b) < 1e-4 for a, b in zip(printed["losses"], expected["losses"])), (printed, expected)


main()
