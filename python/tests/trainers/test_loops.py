#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Loops on top of DeepSpeed, started by the launchers that people use, have the losses and weights of the same
job with device cpu, all digits. `make check-all` runs each on one rank and two, with the swappers and the step.
"""


from trainer_jobs import accelerate, deepspeed, depths, is_as_in_memory
from promises import main, promise


@promise
def a_loop_of_accelerate_with_its_plugin_trains_saves_and_loads(directory):
    is_as_in_memory(directory, "accelerate", depths((1, "swappers")), auto=False)


@promise
def a_loop_that_accelerate_launches_trains_saves_and_loads(directory):
    is_as_in_memory(directory, "accelerate", depths((2, "step")), launcher=accelerate, auto=False)


@promise
def two_engines_that_deepspeed_launches_train_one_with_experts(directory):
    is_as_in_memory(directory, "engine", depths((2, "step")), launcher=deepspeed, auto=False)


main()
