#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What deepspeed.initialize does with keys of the store at each depth, or refuses, in one process."""

import errno
import gc
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import one_rank  # noqa: E402, F401
import deepspeed  # noqa: E402
import torch  # noqa: E402
from jobs import configuration  # noqa: E402
from promises import main, promise, raises, settings  # noqa: E402

import nvswap  # noqa: E402

WIDTH = 600  # DeepSpeed's own swappers leave tensors of less than 1 MiB in memory


def layers():
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))


def initialized(config):
    """An engine of a module that zero.Init has made."""
    with deepspeed.zero.Init(config_dict_or_path=config):
        module = layers()
    return deepspeed.initialize(model=module, model_parameters=module.parameters(), config=config)[0]


@promise
def a_ratio_is_refused_by_the_swappers_whose_state_is_all_on_the_drive(directory):
    for ratio in (0, 0.5):
        config = configuration(directory, dtype="fp32", depth="swappers", optimizer={"ratio": ratio})
        error = raises(OSError, lambda config=config: initialized(config), errno.ENOTSUP)
        assert error.tensor == "offload_optimizer.ratio" and '"step"' in str(error), error


@promise
def parameters_that_zero_init_partitioned_without_a_configuration_are_refused(directory):
    for depth in ("swappers", "step"):
        for optimizer in (None, {"device": "cpu"}):
            config = configuration(directory, dtype="fp32", depth=depth, optimizer=optimizer)
            with deepspeed.zero.Init():
                module = layers()
            error = raises(OSError, lambda config=config, module=module: deepspeed.initialize(
                model=module, model_parameters=module.parameters(), config=config), errno.EINVAL)
            assert "config_dict_or_path" in str(error) and error.tensor == "offload_param", error
            # Parameters that stay in memory need none.
            with deepspeed.zero.Init():
                module = layers()
            config["zero_optimization"]["offload_param"]["max_in_cpu"] = 10 ** 9
            deepspeed.initialize(model=module, model_parameters=module.parameters(),
                                 config=config)[0].destroy()


@promise
def with_the_step_a_ratio_of_the_state_is_on_the_drive(directory):
    on_drive = {}
    for ratio in (0, 0.4, 1):
        engine = initialized(configuration(directory, dtype="fp32", depth="step",
                                           optimizer={"ratio": ratio}))
        on_drive[ratio] = engine.optimizer._store.stats()["tensor_bytes"]
        engine.destroy()
    state = 12 * sum(parameter.ds_numel for parameter in engine.module.parameters())
    assert on_drive[0] == 0 and 0.4 * state <= on_drive[0.4] < 0.7 * state <= on_drive[1], on_drive


@promise
def a_rollback_without_a_kept_store_is_refused(directory):
    for depth in ("swappers", "step"):
        for param in (None, False):
            config = configuration(directory, depth=depth, param=param, nvswap={"rollback": True})
            error = raises(OSError, lambda config=config: initialized(config), errno.EINVAL)
            assert error.tensor == "nvswap.rollback", error


@promise
def of_a_job_that_keeps_its_store_the_parameters_are_kept_alone(directory):
    for depth in ("swappers", "step"):
        for rollback in (False, True):
            engine = initialized(configuration(directory, dtype="fp32", depth=depth,
                                               nvswap={"keep": True, "rollback": rollback}))
            engine.destroy()
            del engine
            gc.collect()
            assert os.listdir(f"{directory}/nvswap") == ["rank0"], (depth, os.listdir(directory))
        with nvswap.Engine(settings(directory, read_only=True)) as store:
            assert all(each.name.startswith("parameter.") for each in store.stored())
        shutil.rmtree(f"{directory}/nvswap")


main()
