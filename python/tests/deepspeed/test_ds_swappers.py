#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Depth "swappers": a ZeRO-3 job of DeepSpeed as released, whose swappers are nvswap's."""

import os
import re
import resource
import signal
import subprocess

from jobs import (
    await_step, configuration, in_memory, job, left_behind, outputs_of, results_of, start)
from promises import Skip, main, promise

DEPTH = {"depth": "swappers"}


@promise
def losses_of_two_ranks_in_bf16_are_those_in_memory(directory):
    assert job(configuration(directory, **DEPTH), whole_exit=True) == in_memory()


@promise
def losses_of_two_ranks_in_fp32_are_those_in_memory(directory):
    assert job(configuration(directory, dtype="fp32", **DEPTH)) == in_memory("fp32")


@promise
def losses_of_three_ranks_whose_sizes_do_not_divide_are_those_in_memory(directory):
    assert job(configuration(directory, **DEPTH), ranks=3, width=116, steps=3) == \
        in_memory(ranks=3, width=116, steps=3)


@promise
def four_buffers_are_enough_for_both_pipelines(directory):
    config = configuration(directory, optimizer={"buffer_count": 4, "pipeline_read": True,
                                                 "pipeline_write": True}, **DEPTH)
    assert job(config) == in_memory()


@promise
def one_buffer_that_is_smaller_than_a_partition_is_enough(directory):
    config = configuration(directory, optimizer={"buffer_count": 1, "fast_init": True},
                           param={"buffer_count": 1, "buffer_size": 10000}, **DEPTH)
    assert job(config) == in_memory()


@promise
def ranks_read_ahead_the_same_where_one_alone_finds_no_room_in_its_pool(directory):
    for depth in ("swappers", "step"):
        config = configuration(directory, depth=depth,
                               param={"buffer_count": 8, "buffer_size": 5000, "max_in_cpu": 60000})
        for outside in (None, 1):
            assert job(config, outside=outside, timeout=100) == in_memory(), (depth, outside)


@promise
def a_large_persistent_parameter_is_swapped(directory):
    zero = {"stage3_param_persistence_threshold": 30000, "stage3_model_persistence_threshold": 10**9}
    config = configuration(directory, zero=zero, **DEPTH)
    assert job(config) == in_memory()


@promise
def losses_with_parameters_that_some_or_all_steps_leave_unused_are_those_in_memory(directory):
    zero = {"sub_group_size": 5000}
    for dtype in ("bf16", "fp32"):
        config = configuration(directory, dtype=dtype, zero=zero, **DEPTH)
        assert job(config, unused=True) == in_memory(dtype, tuple(zero.items()), unused=True)


@promise
def gradients_weights_and_states_can_be_read_and_changed(directory):
    for pipelined in (False, True):
        config = configuration(directory, optimizer={"pipeline_read": pipelined}, **DEPTH)
        assert job(config, steps=3, inspect=True) == in_memory(steps=3, inspect=True)


@promise
def two_jobs_on_one_path_do_not_meet(directory):
    jobs = [start(configuration(directory, **DEPTH), steps=3) for _ in range(2)]
    assert [[result["losses"] for result in results_of(processes)] for processes in jobs] == \
        [[losses[:6] for losses in in_memory()]] * 2


@promise
def a_full_drive_ends_all_ranks_with_an_error_that_names_the_path(directory):
    if os.geteuid():
        raise Skip("mounting a small file system needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", directory], check=True)
    try:
        processes = start(configuration(directory, **DEPTH))
        outputs = outputs_of(processes)
        assert all(process.returncode for process in processes)
        errors = [line for output in outputs for line in output.splitlines() if "ENOSPC" in line]
        assert errors and all(directory in line for line in errors), outputs[0][-3000:]
        assert not left_behind(directory)
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


@promise
def a_failed_write_ends_all_ranks_with_an_error_that_names_parameter_path_and_offset(directory):
    processes = start(configuration(directory, **DEPTH), steps=1000)
    await_step(processes[1])
    resource.prlimit(processes[1].pid, resource.RLIMIT_FSIZE, (8192, 8192))
    output = outputs_of(processes)[1]
    assert all(process.returncode for process in processes)
    found = re.search(r"Error: (\S+)( to \S+)? \((\S+)\): writing (.+?) at offset \d+ failed: .*EFBIG",
                      output)
    assert found and found[3].startswith(("parameter.", "optimizer.")), output[-3000:]
    assert re.match(r"(tokens|places|blocks\.\d\.\w+|norm|head)\.(weight|bias)$", found[1]), found[0]
    assert found[4].startswith(f"{directory}/nvswap/rank"), found[4]


@promise
def when_one_rank_is_killed_all_end_and_the_next_job_takes_its_store(directory):
    processes = start(configuration(directory, **DEPTH), steps=1000)
    await_step(processes[1])
    processes[1].kill()
    outputs_of(processes)
    assert processes[0].returncode not in (0, -signal.SIGKILL), processes[0].returncode
    assert not [path for path in left_behind(directory) if "rank0" in path]
    job(configuration(directory, **DEPTH), steps=1, whole_exit=True)
    assert not left_behind(directory), left_behind(directory)


main()
