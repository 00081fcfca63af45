#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a job says of its stores and its I/O."""

import os
import re

from jobs import configuration, outputs_of, start
from promises import child, main, promise


def said(config, **settings):
    """The lines of each rank."""
    return [re.findall(r"nvswap: (.*)", output) for output in outputs_of(start(config, **settings))]


@promise
def the_first_rank_tells_at_its_end_what_was_moved(directory):
    moved = r"\d+\.\d MiB read and \d+\.\d MiB written in \d+\.\d s of I/O, \d+\.\d [MG]iB/s"
    drive = r"; the drive was given [1-9]\d*\.\d MiB"
    steps = (r"; in [5-6] steps, \d+ % of it hidden behind computation, \d+\.\d s waited for" + drive +
             r", \d+\.\d MiB in each step")
    for depth, end in (("step", steps), ("swappers", drive)):
        first, other = said(configuration(directory, depth=depth))
        assert other == []
        assert len(first) == 3, first
        assert re.fullmatch(r"parameters: the first step took \d+\.\d s and learned the order of its [1-9]\d* reads; "
                            "from the next on they are read ahead", first[0]), first
        lines = sorted(first[1:])
        assert re.fullmatch(f"optimizer state: {moved}{end}", lines[0]), lines
        assert re.fullmatch(f"parameters: {moved}{steps}", lines[1]), lines


@promise
def the_filling_of_optimizer_state_is_told_up_to_its_total(directory):
    totals = set()
    for depth in ("step", "swappers"):
        lines, _ = said(configuration(directory, depth=depth), progress_pause_s=0)
        filled = [re.fullmatch(r"optimizer state: (\d+\.\d MiB) of (\d+\.\d MiB) in the store", line) for line in lines]
        filled = [match.groups() for match in filled if match]
        assert filled and (depth == "step" or filled[-1][0] == filled[-1][1]), (depth, filled)
        totals |= {total for _, total in filled}
    assert len(totals) == 1, totals


@promise
def a_key_turns_it_off(directory):
    assert said(configuration(directory, depth="step", nvswap={"progress": False})) == [[], []]


@promise
def a_store_that_is_filled_for_long_is_told_of_every_five_seconds(directory):
    lines = child("""
import os
os.environ["DS_ACCELERATOR"] = "cpu"
from unittest import mock
from nvswap.deepspeed import depth, progress
depth.choose({})
with mock.patch("deepspeed.comm.get_rank", lambda: 0):
    for now in range(0, 12):
        with mock.patch("time.monotonic", lambda: now):
            progress.report_fill(progress.STATE, now << 30, 20 << 30)
            progress.report_fill(progress.PARAMETERS, now << 20)
""", directory)
    assert re.findall(r"nvswap: (.*)", lines) == [
        "optimizer state: 5.0 GiB of 20.0 GiB in the store", "parameters: 5.0 MiB in the store",
        "optimizer state: 10.0 GiB of 20.0 GiB in the store", "parameters: 10.0 MiB in the store"]


@promise
def the_end_is_told_also_when_the_process_group_is_gone(directory):
    lines = child("""
import os
os.environ["DS_ACCELERATOR"] = "cpu"
from unittest import mock
from nvswap.deepspeed import depth, progress
depth.choose({})
io = dict.fromkeys(("read_bytes", "written_bytes", "drive_written_bytes", "hidden_ns", "stall_ns"), 1 << 20)
with mock.patch("deepspeed.comm.get_rank", lambda: 0):
    progress.record_step(progress.STATE, {**io, "io_ns": 2 << 20}, {"drive_written_bytes": 3 << 20})
""", directory)
    assert re.fullmatch(r"(?s).*nvswap: optimizer state: .* in 1 steps, .*; the drive was given 3.0 MiB, 1.0 MiB in each "
                        r"step\n", lines), lines


main()
