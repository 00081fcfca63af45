#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
gpt2_medium.py in a cgroup whose limit of memory is below what it takes in memory: weights, gradients and two moments
of 1.3 GiB each. The kernel kills it with torch's AdamW, and not with nvswap's.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
from promises import PACKAGE, TOP, Skip, main, promise

sys.path.insert(0, os.path.join(TOP, "bench", "support"))
from cgroup import Cgroup  # noqa: E402

GIB = 1 << 30
# The run in memory, without a limit, and what the drive holds at most.
NEEDED, STORED = 8 * GIB, 7 * GIB
LIMITS = {"state": 4 * GIB, "all": 3 * GIB}


def limited(limit):
    try:
        return Cgroup(limit)
    except OSError as error:
        raise Skip(f"no memory cgroup can be made here: {error}") from error


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
        cgroup = limited(limit)
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
