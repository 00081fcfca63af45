#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A ZeRO-3 job of DeepSpeed as released (job.py), with parameters and optimizer on NVMe."""


from jobs import configuration, fell, in_memory, job
from promises import main, promise


@promise
def losses_of_two_ranks_in_bf16_are_those_in_memory(directory):
    losses = job(configuration(directory), whole_exit=True)
    assert fell(losses)
    assert losses == in_memory()


@promise
def losses_of_two_ranks_in_fp32_are_those_in_memory(directory):
    assert job(configuration(directory, dtype="fp32")) == in_memory("fp32")


@promise
def losses_of_three_ranks_whose_sizes_do_not_divide_are_those_in_memory(directory):
    assert job(configuration(directory), ranks=3, width=116, steps=3) == \
        in_memory(ranks=3, width=116, steps=3)


main()
