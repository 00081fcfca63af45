#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The depth: what DeepSpeed's JSON file says about how much of it nvswap replaces."""

import errno
import logging
import math
import os
import pathlib

from promises import main, promise, raises

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


def warnings_of(document):
    """What the logger of nvswap gets while DeepSpeed reads a configuration, and the error of that."""
    said, logger, error = [], logging.getLogger("nvswap"), None
    logger.addFilter(said.append)
    try:
        DeepSpeedConfig({"train_batch_size": 1, **document})
    except Exception as refused:  # DeepSpeed's own too
        error = refused
    logger.filters.clear()
    return [record.getMessage() for record in said], error


@promise
def blocks_in_the_wrong_place_are_warned_of_and_refused_if_strict(directory):
    offload = {"device": "nvme", "nvme_path": directory}
    zero = {"stage": 3, "offload_param": offload}
    for document, named, refused in (
            ({"AIO": {"block_size": 1 << 20}, "zero_optimization": zero}, "`aio`", False),
            ({"zero_optimization": {**zero, "aio": {}}}, "zero_optimization.aio", True),
            ({"zero_optimization": {**zero, "nvme_path": directory}}, "zero_optimization.nvme_path", True),
            ({"zero_optimization": {"stage": 3, "offload_optimiser": offload}}, "`offload_optimizer`", True)):
        said, error = warnings_of(document)
        assert len(said) == 1 and named in said[0] and bool(error) == refused, (said, error)
        said, error = warnings_of({**document, "nvswap": {"strict": True}})
        # Where DeepSpeed refuses the block itself, the log says where it belongs.
        assert error and named in str(said if refused else error), (said, error)
    assert warnings_of({"zero_optimization": zero, "steps_per_print": math.inf}) == ([], None)


@promise
def a_format_of_state_that_a_depth_does_not_have_is_warned_of(directory):
    on_drive, in_memory = {"device": "nvme", "nvme_path": directory}, {"device": "cpu"}
    for depth, offload in (("ops", on_drive), ("swappers", on_drive), ("step", in_memory)):
        said, error = warnings_of({"zero_optimization": {"stage": 3, "offload_optimizer": offload},
                                   "nvswap": {"deepspeed": depth, "optimizer_state": "8bit"}})
        assert error is None and [each for each in said if "nvswap.optimizer_state has no effect" in each], (said, error)


@promise
def a_key_of_aio_that_deepspeed_reads_past_is_warned_of_and_refused_if_strict(directory):
    document = {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": directory}},
                "aio": {"block_size": 131072, "enabled": True, "_comment": "as measured"}}
    said, error = warnings_of(document)
    assert error is None and len(said) == 2 and "aio.enabled" in said[0] and "aio._comment" in said[1], (said, error)
    assert depth.choice().document["aio"] == {"block_size": 131072}
    said, error = warnings_of({**document, "nvswap": {"strict": True}})
    assert error and "aio.enabled" in str(error), error


@promise
def an_offload_block_outside_of_zero_optimization_is_warned_of_and_refused_if_strict(directory):
    for name in ("offload_param", "offload_optimizer"):
        document = {"zero_optimization": {"stage": 3}, name: {"device": "nvme", "nvme_path": directory}}
        said, error = warnings_of(document)
        assert len(said) == 1 and f"{name} is not in `zero_optimization`" in said[0] and error is None, (said, error)
        said, error = warnings_of({**document, "nvswap": {"strict": True}})
        assert error and f"{name} is not in `zero_optimization`" in str(error), error


@promise
def a_path_that_only_a_shell_would_read_is_refused_as_the_configuration_is_read(_):
    # DeepSpeed takes "auto" for a key that is left out.
    for path, says in (("~/nvme", "~/nvme"), ("$HOME/x", "$HOME/x"), ("${SCRATCH}", "${SCRATCH}"),
                       ("none", "is no path"), ("auto", "is not set")):
        offload = {"device": "nvme", "nvme_path": path}
        for name in ("step", "swappers", "ops"):
            _, error = warnings_of({"zero_optimization": {"stage": 3, "offload_optimizer": offload},
                                    "nvswap": {"deepspeed": name}})
            assert getattr(error, "errno", None) == errno.EINVAL and says in str(error), (path, name, error)


@promise
def a_wrong_depth_is_refused_with_the_depths_that_there_are(_):
    error = raises(OSError, lambda: read(deepspeed="swapers"), errno.EINVAL)
    assert '"ops", "swappers" or "step"' in str(error)


@promise
def each_configuration_puts_the_classes_of_its_depth_in_place(_):
    from deepspeed.runtime.zero import stage3

    read(deepspeed="ops")
    theirs = stage3.DeepSpeedZeroOptimizer_Stage3, stage3.PartitionedOptimizerSwapper
    for name, replaced in (("step", (True, True)), ("swappers", (True, True)),
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
