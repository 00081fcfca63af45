#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""20 million parameters for 50 steps (large.py) in bfloat16; `make soak-deepspeed` has the other depths."""


from jobs import fell
from large import in_memory, on_drive
from promises import main, promise


@promise
def fifty_steps_of_a_large_model_have_the_losses_of_those_in_memory(directory):
    losses = on_drive(directory, "bf16", "step")
    assert fell(losses)
    assert losses == in_memory("bf16")


main()
