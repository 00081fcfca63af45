#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The depth: what DeepSpeed's JSON file says about how much of it nvswap replaces."""

import errno
import math
import os
import pathlib
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from promises import main, promise, raises  # noqa: E402

os.environ["DS_ACCELERATOR"] = "cpu"
import nvswap.deepspeed  # noqa: E402

nvswap.deepspeed.install()

import torch  # noqa: E402
from deepspeed.runtime.config import DeepSpeedConfig  # noqa: E402

from nvswap.deepspeed import depth  # noqa: E402


def read(**block):
    return DeepSpeedConfig({"train_batch_size": 1, "nvswap": block})


@promise
def step_is_the_depth_of_a_configuration_without_one(_):
    DeepSpeedConfig({"train_batch_size": 1})
    assert depth.choice().depth == "step"
    read(verify=True)
    assert depth.choice().depth == "step" and depth.choice().document["nvswap"] == {"verify": True}


@promise
def what_nvswap_does_not_read_may_be_anything(directory):
    offload = {"device": "nvme", "nvme_path": pathlib.Path(directory), "pin_memory": "true",
               "buffer_size": "262144"}
    DeepSpeedConfig({
        "train_batch_size": 1, "steps_per_print": math.inf, "nvswap": {"verify": True},
        "tokens": {1, 2}, torch.float16: torch.float16, "hook": print, "weights": torch.ones(2),
        "zero_optimization": {"stage": 3, "offload_param": offload, "reduce_bucket_size": "auto"}})
    document = depth.choice().document
    assert document["zero_optimization"]["offload_param"] == {
        "device": "nvme", "nvme_path": directory, "pin_memory": True, "buffer_size": 262144}
    with nvswap.Config(document) as config:
        assert config["offload_param.nvme_path"] == directory and config["nvswap.verify"] is True


@promise
def a_wrong_depth_is_refused_with_the_depths_that_there_are(_):
    error = raises(OSError, lambda: read(deepspeed="swapers"), errno.EINVAL)
    assert '"ops", "swappers" or "step"' in str(error)


@promise
def each_configuration_puts_the_classes_of_its_depth_in_place(_):
    from deepspeed.runtime.zero import stage3

    read(deepspeed="ops")
    theirs = stage3.DeepSpeedZeroOptimizer_Stage3, stage3.PartitionedOptimizerSwapper
    for name, replaced in (("step", (True, False)), ("swappers", (True, True)),
                           ("ops", (False, False))):
        read(deepspeed=name)
        ours = stage3.DeepSpeedZeroOptimizer_Stage3, stage3.PartitionedOptimizerSwapper
        assert tuple(each.__module__.startswith("nvswap.") for each in ours) == replaced, name
    assert ours == theirs


@promise
def an_unknown_key_of_the_block_is_refused_with_the_nearest(_):
    assert "verify" in str(raises(OSError, lambda: read(verfy=True), errno.EINVAL))


@promise
def installing_again_changes_nothing(_):
    before = DeepSpeedConfig.__init__
    nvswap.deepspeed.install()
    assert DeepSpeedConfig.__init__ is before


main()
