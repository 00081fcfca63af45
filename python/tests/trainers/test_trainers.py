#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Trainers on top of DeepSpeed, started by the launchers that people use, have the losses and weights of the same
job with device cpu, all digits. `make check-all` runs each on one rank and two, with the swappers and the step.
"""

import glob
import os

from trainer_jobs import depths, in_memory, is_as_in_memory, run, same_weights
from promises import main, promise


@promise
def the_trainer_of_transformers_trains_evaluates_and_gathers(directory):
    is_as_in_memory(directory, "trainer", depths((2, "step"), (1, "swappers")))


@promise
def the_trainer_of_transformers_resumes(directory):
    reference, losses = in_memory("trainer", 2)
    run(directory, "trainer", "step", 2)
    first, = glob.glob(os.path.join(directory, "checkpoint-2"))
    again = run(os.path.join(directory, "resumed"), "trainer", "step", 2, resume=first)
    assert [each for each in again if each[0] > 2] == [each for each in losses if each[0] > 2]
    assert same_weights(os.path.join(directory, "resumed"), reference)


@promise
def lora_of_peft_is_trained(directory):
    is_as_in_memory(directory, "lora", depths((2, "step")))


@promise
def the_sft_trainer_of_trl_trains(directory):
    is_as_in_memory(directory, "sft", depths((1, "step")))


main()
