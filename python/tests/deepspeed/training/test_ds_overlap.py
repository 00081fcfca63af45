#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps that go on behind the next forward, in jobs of two ranks."""

import json
import os
import re

from jobs import configuration, half, in_memory, job, outputs_of, results_of, start
from promises import main, promise


HOST = {"device": "cpu"}
ZERO = {"sub_group_size": 100000}  # several sub-groups


def overlapped(directory, dtype="bf16", param=False, zero=None, **more):
    """With param False the parameters are where the job computes."""
    return configuration(directory, dtype=dtype, depth="step", param=param, zero={**ZERO, **(zero or {})},
                         nvswap={"overlap_step": True, **more})


def expected(dtype="bf16", zero=None, **settings):
    return in_memory(dtype, tuple({**ZERO, **(zero or {})}.items()), **settings)


@promise
def losses_are_those_in_memory_wherever_the_parameters_are(directory):
    for dtype in ("bf16", "fp32"):
        for param in (False, HOST):
            assert job(overlapped(directory, dtype, param)) == expected(dtype), (dtype, param)


@promise
def losses_with_persistent_parameters_and_a_part_of_the_state_in_memory_are_those_in_memory(directory):
    zero = {"stage3_param_persistence_threshold": 1000}
    for more in ({}, {"optimizer_max_in_cpu": 100000}):
        config = overlapped(directory, zero=zero, **more)
        config["zero_optimization"]["offload_optimizer"]["ratio"] = 0.6
        assert job(config) == expected(zero=zero), more


@promise
def losses_in_fp16_with_overflows_are_those_in_memory(directory):
    settings = {"steps": 8, "fp16_by_torch": True}
    assert job(half(overlapped(directory, "fp16")), **settings) == \
        job(half(configuration(None, "cpu", "fp16", zero=ZERO)), **settings)


@promise
def evaluation_and_gathered_parameters_after_a_step_see_its_weights(directory):
    def seen(config):
        return [(result["losses"], result["seen"]) for result in results_of(start(config, evaluated=True))]

    there = seen(configuration(None, "cpu", zero=ZERO))
    for param in (False, HOST):
        assert seen(overlapped(directory, param=param)) == there, param


@promise
def gradients_weights_and_states_are_read_and_changed_as_in_memory(directory):
    def seen(config):
        return job(config, steps=3, inspect=True)

    assert seen(overlapped(directory)) == seen(configuration(None, "cpu", zero=ZERO))


@promise
def a_checkpoint_right_after_a_step_has_that_step(directory):
    checkpoint = os.path.join(directory, "checkpoint")
    config = overlapped(directory)
    whole = job(config, steps=4, save_steps=[2], checkpoint=checkpoint, universal=checkpoint + "u",
                universal_step=3)
    assert whole == expected(steps=4)
    assert job(config, steps=4, load_step=2, checkpoint=checkpoint) == [losses[4:] for losses in whole]
    config["checkpoint"] = {"load_universal": True}
    assert job(config, steps=4, load_step=3, checkpoint=checkpoint + "u") == [losses[6:] for losses in whole]


@promise
def states_that_go_to_the_drive_after_a_step_have_its_weights(directory):
    assert job(overlapped(directory, param_nvme_path=directory), states_steps=[2, 4]) == expected()


@promise
def a_fault_behind_the_forward_raises_on_all_ranks_and_the_next_forward_finishes_the_step(directory):
    for param, rank in ((False, 1), (HOST, None)):
        config = overlapped(directory, param=param)
        processes = start(config, failing_behind=2, failing_rank=rank)
        outputs = outputs_of(processes)
        losses = [json.loads(re.search("RESULT (.*)", output)[1])["losses"] for output in outputs]
        assert losses == expected(), (param, outputs[0][-3000:])
        failed = [re.search("FAILED (.*)", output)[1] for output in outputs]
        assert all("File too large" in text and directory in text for text in failed), failed
        if rank is not None:
            own = failed[rank].rpartition(" [")[0]
            assert failed[1 - rank] == f"rank {rank} could not make the step: {own} [EIO]", failed


@promise
def the_first_layers_compute_while_the_state_of_the_last_is_updated(directory):
    """The gate lets the last sub-group's tiles end only after the first block's forward, so a job in which a step or
    that forward waited for all tiles would not end."""
    path = os.path.join(directory, "trace{rank}.json")
    assert job(overlapped(directory, param=HOST), steps=4, gated=path) == expected(steps=4)
    for rank in range(2):
        with open(path.format(rank=rank), encoding="utf-8") as file:
            events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
        tiles = [event for event in events if event["name"].startswith("tile ")]
        forwards = [event for event in events if event["name"] == "first block"]
        assert len(forwards) == 8, len(forwards)
        # The first micro batch of each step but the first.
        for forward in forwards[2::2]:
            end = forward["ts"] + forward["dur"]
            assert any(tile["ts"] < end < tile["ts"] + tile["dur"] for tile in tiles), forward


@promise
def what_has_no_exact_way_is_refused(directory):
    nvme = overlapped(directory, param={"max_in_cpu": 0})
    swappers = configuration(directory, depth="swappers", nvswap={"overlap_step": True})
    of_torch = overlapped(directory)
    of_torch["optimizer"] = {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}}
    of_torch["zero_force_ds_cpu_optimizer"] = False
    del of_torch["nvswap"]["deepspeed"]  # an optimizer without a rule has the swappers then
    in_memory_alone = overlapped(directory)
    in_memory_alone["zero_optimization"]["offload_optimizer"] = HOST
    for config, reason in ((nvme, "nvswap.overlap_step: offload_param on nvme"),
                           (swappers, "nvswap.overlap_step: the step is DeepSpeed's own"),
                           (of_torch, "nvswap.overlap_step: the optimizer is AdamW, and nvswap's are DeepSpeedCPUAdam"),
                           (in_memory_alone, "nvswap.overlap_step: optimizer state is not on nvme")):
        for output in outputs_of(start(config, steps=1)):
            assert reason in output, output[-3000:]


main()
