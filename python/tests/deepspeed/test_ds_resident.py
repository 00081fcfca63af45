#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of ZeRO-3 jobs that have only the optimizer state on NVMe, and parameters in memory."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from jobs import configuration, job  # noqa: E402
from promises import main, promise  # noqa: E402

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


main()
