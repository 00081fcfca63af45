#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Depth "step": the ZeRO-3 step of DeepSpeed by nvswap's optimizer."""

import os
import re
import resource
import signal
import subprocess

from jobs import (
    await_step, configuration, fell, half, in_memory, job, left_behind, outputs_of, results_of, start)
from promises import Skip, main, promise


DEPTH = {"depth": "step"}


@promise
def a_small_model_is_trained(directory):
    zero = {"sub_group_size": 100}
    found = job(configuration(directory, depth="step", zero=zero), width=4, steps=2)
    assert found == in_memory(zero=tuple(zero.items()), width=4, steps=2)


@promise
def losses_of_two_ranks_in_bf16_are_those_in_memory(directory):
    losses = job(configuration(directory, **DEPTH), whole_exit=True)
    assert fell(losses)
    assert losses == in_memory()


@promise
def losses_of_two_ranks_in_fp32_are_those_in_memory(directory):
    """The default depth, too: the configuration names none."""
    config = configuration(directory, dtype="fp32")
    del config["nvswap"]
    assert job(config) == in_memory("fp32")


@promise
def a_job_trains_with_state_in_fewer_bytes_and_repeats(directory):
    """DeepSpeed keeps no array of weights, so masters are whole, and split is fp32."""
    def losses(state):
        config = configuration(directory, **DEPTH)
        config["nvswap"]["optimizer_state"] = state
        return job(config)

    assert losses("split") == in_memory()
    for state in "bf16", "8bit":
        found = losses(state)
        assert fell(found) and found == losses(state), state


@promise
def losses_of_three_ranks_whose_sizes_do_not_divide_are_those_in_memory(directory):
    assert job(configuration(directory, **DEPTH), ranks=3, width=116, steps=3) == \
        in_memory(ranks=3, width=116, steps=3)


@promise
def losses_with_parameters_on_the_host_are_those_in_memory(directory):
    assert job(configuration(directory, param={"device": "cpu"}, **DEPTH)) == in_memory()


@promise
def losses_with_some_parameters_on_the_host_are_those_in_memory(directory):
    zero = {"stage3_param_persistence_threshold": 30000, "stage3_model_persistence_threshold": 10**9}
    config = configuration(directory, param={"max_in_cpu": 60000}, zero=zero, **DEPTH)
    assert job(config) == in_memory(zero=tuple(zero.items()))


@promise
def a_step_that_the_drive_failed_is_finished_by_calling_it_again(directory):
    for param in (False, {"max_in_cpu": 10**9}):
        config = configuration(directory, param=param, **DEPTH)
        assert job(config, ranks=1, failing=2) == in_memory(ranks=1), param


@promise
def a_step_that_failed_on_one_rank_is_finished_by_calling_it_again_on_all(directory):
    for param in (False, {"max_in_cpu": 0}):
        config = configuration(directory, param=param, **DEPTH)
        assert job(config, failing=2, failing_rank=1) == in_memory(), param


@promise
def new_weights_that_the_drive_failed_are_written_by_calling_step_again(directory):
    """Without writes of state, which stays in memory."""
    config = configuration(directory, nvswap={"optimizer_max_in_cpu": 10**9}, **DEPTH)
    assert job(config, failing=2, failing_rank=1, steps=4) == in_memory(steps=4)


@promise
def a_step_in_fp16_that_is_finished_has_its_loss_scale(directory):
    settings = {"steps": 8, "fp16_by_torch": True}
    config = half(configuration(directory, dtype="fp16", **DEPTH))
    assert job(config, failing=4, failing_rank=0, **settings) == \
        job(half(configuration(None, "cpu", "fp16")), **settings)


@promise
def a_job_goes_on_after_an_exception_amid_a_step_as_in_memory(directory):
    for depth in ("step", "swappers"):
        config = configuration(directory, depth=depth)
        assert job(config, raising=2) == in_memory(raising=2), depth


@promise
def losses_in_fp16_with_overflows_are_those_in_memory(directory):
    settings = {"steps": 8, "fp16_by_torch": True}
    losses = job(half(configuration(directory, dtype="fp16", **DEPTH)), **settings)
    assert losses == job(half(configuration(None, "cpu", "fp16")), **settings)


@promise
def each_group_of_parameters_has_its_own_learning_rate_and_decay(directory):
    assert job(configuration(directory, **DEPTH), steps=3, decay=True) == \
        in_memory(steps=3, decay=True)


@promise
def gradients_weights_and_states_are_read_and_changed_as_in_memory(directory):
    def seen(config):
        return [(result["losses"], result["seen"])
                for result in results_of(start(config, steps=3, inspect=True))]

    assert seen(configuration(directory, **DEPTH)) == seen(configuration(None, "cpu"))


@promise
def a_job_goes_on_from_its_checkpoint_also_with_state_in_memory(directory):
    checkpoint = os.path.join(directory, "checkpoint")
    config = configuration(directory, **DEPTH)
    whole = job(config, steps=4, save_steps=[2], checkpoint=checkpoint)
    for resumed in (config, configuration(None, "cpu")):
        assert job(resumed, steps=4, load_step=2, checkpoint=checkpoint) == \
            [losses[4:] for losses in whole]


@promise
def with_the_optimizer_on_the_host_the_step_is_that_of_deepspeed(directory):
    del directory
    for depth in ("step", "swappers"):
        assert job(configuration(None, "cpu", depth=depth), steps=2) == in_memory(steps=2)


@promise
def an_optimizer_without_a_rule_is_refused(directory):
    config = configuration(directory, **DEPTH)
    config["optimizer"] = {"type": "SGD", "params": {"lr": 1e-3}}
    config.update(zero_force_ds_cpu_optimizer=False, zero_allow_untested_optimizer=True)
    for output in outputs_of(start(config, ranks=1, steps=1)):
        assert "the optimizer is SGD, and nvswap's are DeepSpeedCPUAdam, DeepSpeedCPULion, DeepSpeedCPUAdagrad" \
            in output, output[-3000:]
        assert 'use "nvswap": {"deepspeed": "swappers"}' in output, output[-3000:]


@promise
def the_default_is_the_swappers_for_an_optimizer_without_a_rule(directory):
    sgd = {"optimizer": {"type": "SGD", "params": {"lr": 1e-3, "momentum": 0.9}},
           "zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True}
    config = {**configuration(directory), **sgd, "nvswap": {}}
    losses = job({**configuration(None, "cpu"), **sgd})
    checkpoint = os.path.join(directory, "saved")
    assert job(config, save_steps=[2], checkpoint=checkpoint) == losses
    assert job(config, load_step=2, checkpoint=checkpoint) == [each[4:] for each in losses]
    for output in outputs_of(start(config, steps=1)):
        assert re.search("the optimizer is SGD, and nvswap's are DeepSpeedCPU.*, so this job has nvswap's swappers",
                         output), output[-3000:]


@promise
def a_drive_too_small_for_the_state_ends_all_ranks_with_an_error_that_names_the_path(directory):
    if os.geteuid():
        raise Skip("mounting a small file system needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", directory], check=True)
    try:
        processes = start(configuration(directory, param={"device": "cpu"}, **DEPTH))
        outputs = outputs_of(processes)
        assert all(process.returncode for process in processes)
        errors = [line for output in outputs for line in output.splitlines() if "ENOSPC" in line]
        assert errors and all(directory in line for line in errors), outputs[0][-3000:]
        assert not left_behind(directory)
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


@promise
def a_failed_write_of_state_ends_all_ranks_with_an_error_that_names_parameter_path_and_offset(directory):
    processes = start(configuration(directory, param={"device": "cpu"}, **DEPTH), steps=1000)
    await_step(processes[1])
    resource.prlimit(processes[1].pid, resource.RLIMIT_FSIZE, (8192, 8192))
    output = outputs_of(processes)[1]
    assert all(process.returncode for process in processes)
    found = re.search(r"Error: from (\S+) on \(group\d+\+\d+ .+?\): writing (.+?) at offset \d+ failed: "
                      ".*EFBIG", output)
    assert found and found[2].startswith(f"{directory}/nvswap/rank"), output[-3000:]
    assert re.match(r"(tokens|places|blocks\.\d\.\w+|norm|head)\.(weight|bias)$", found[1]), found[0]


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
