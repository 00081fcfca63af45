#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""20 million parameters for 50 steps (large.py) in bfloat16; `make soak-deepspeed` has the other depths."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from jobs import fell  # noqa: E402
from large import in_memory, on_drive  # noqa: E402
from promises import main, promise  # noqa: E402


@promise
def fifty_steps_of_a_large_model_have_the_losses_of_those_in_memory(directory):
    losses = on_drive(directory, "bf16", "step")
    assert fell(losses)
    assert losses == in_memory("bf16")


main()
