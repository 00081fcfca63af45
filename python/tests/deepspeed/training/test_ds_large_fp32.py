#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""20 million parameters for 50 steps (large.py) in float32, at each depth."""


from jobs import fell
from large import in_memory, on_drive
from promises import main, promise


@promise
def fifty_steps_of_a_large_model_have_the_losses_of_those_in_memory(directory):
    expected = in_memory("fp32")
    assert fell(expected)
    for depth in ("ops", "swappers", "step"):
        assert on_drive(directory, "fp32", depth) == expected, depth


main()
