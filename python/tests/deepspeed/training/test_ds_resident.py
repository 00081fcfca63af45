#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of ZeRO-3 jobs that have only the optimizer state on NVMe, or only parameters."""

import os
import subprocess
import sys

from jobs import configuration, job, outputs_of, start
from promises import main, promise

WITHOUT_BLOCK, ON_CPU = False, {"device": "cpu"}


def goes_on(directory, loads, **settings):
    """Jobs that begin with other weights, and load what a job has saved after its first step, have its
    losses; `loads` are arguments of load_checkpoint."""
    part = os.path.join(directory, str(len(os.listdir(directory))))
    os.mkdir(part)
    config, saved, universal = configuration(part, **settings), *(
        os.path.join(part, name) for name in ("saved", "universal"))
    losses = job(config, steps=3, save_steps=[1, 3], checkpoint=saved, universal=universal,
                 universal_step=1)
    of_universal = dict(config, checkpoint={"load_universal": True})
    for load in loads:
        # Without its moments the step after the load is another one.
        steps = 2 if load else 3
        for loading, checkpoint in ((config, saved), (of_universal, universal)):
            again = job(loading, steps=steps, load_step=1, checkpoint=checkpoint, seed=2, load=load)
            assert again == [each[2:2 * steps] for each in losses], (settings, load, checkpoint)


@promise
def a_job_goes_on_exactly_with_the_step_and_parameters_in_memory(directory):
    for dtype in ("bf16", "fp32"):
        for param in (WITHOUT_BLOCK, ON_CPU):
            goes_on(directory, [{}], depth="step", dtype=dtype, param=param)


@promise
def a_job_goes_on_exactly_with_the_swappers_and_parameters_in_memory(directory):
    for param in (WITHOUT_BLOCK, ON_CPU):
        goes_on(directory, [{}], depth="swappers", param=param)


@promise
def weights_alone_are_loaded_to_parameters_in_memory(directory):
    alone = [{"load_optimizer_states": False}, {"load_module_only": True}]
    for depth in ("step", "swappers"):
        for param in (WITHOUT_BLOCK, ON_CPU):
            goes_on(directory, alone, depth=depth, param=param)


@promise
def a_job_with_only_parameters_on_nvme_goes_on_exactly(directory):
    for depth, max_in_cpu in (("step", 0), ("swappers", 100000)):
        saved = os.path.join(directory, depth)
        config = configuration(directory, depth=depth, optimizer={"device": "cpu"},
                               param={"max_in_cpu": max_in_cpu})
        losses = job(config, steps=3, save_steps=[1], checkpoint=saved)
        subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder",
                        os.path.join(saved, "step1"), "--output_folder", os.path.join(saved, "whole")],
                       check=True, stdout=subprocess.DEVNULL)
        of_universal = dict(config, checkpoint={"load_universal": True})
        for loading, tag in ((config, "step1"), (of_universal, "whole")):
            again = job(loading, steps=3, load_step=1, tag=tag, checkpoint=saved, seed=2)
            assert again == [each[2:] for each in losses], (depth, tag)
    for output in outputs_of(start(config, steps=1, universal=saved)):
        assert "save_universal: no optimizer state is on NVMe" in output, output[-3000:]


@promise
def a_job_with_only_parameters_on_nvme_has_the_settings_of_each_parameter_group(directory):
    config, saved = configuration(directory, depth="step"), os.path.join(directory, "saved")
    losses = job(config, steps=3, universal=saved, universal_step=1, decay=True)
    config = configuration(directory, depth="step", optimizer={"device": "cpu"})
    config.update(checkpoint={"load_universal": True},
                  optimizer={"type": "AdamW", "params": {"lr": 0.5, "weight_decay": 0.3}})
    again = job(config, steps=3, load_step=1, checkpoint=saved, seed=2, decay=True)
    assert again == [each[2:] for each in losses]


main()
