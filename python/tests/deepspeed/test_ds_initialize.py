#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What deepspeed.initialize refuses at each depth, in one process."""

import errno
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import one_rank  # noqa: E402, F401
import deepspeed  # noqa: E402
import torch  # noqa: E402
from jobs import configuration  # noqa: E402
from promises import main, promise, raises  # noqa: E402

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
def with_the_step_a_ratio_of_the_state_is_on_the_drive(directory):
    on_drive = {}
    for ratio in (0, 0.4, 1):
        engine = initialized(configuration(directory, dtype="fp32", depth="step",
                                           optimizer={"ratio": ratio}))
        on_drive[ratio] = engine.optimizer._store.stats()["tensor_bytes"]
        engine.destroy()
    state = 12 * sum(parameter.ds_numel for parameter in engine.module.parameters())
    assert on_drive[0] == 0 and 0.4 * state <= on_drive[0.4] < 0.7 * state <= on_drive[1], on_drive


main()
