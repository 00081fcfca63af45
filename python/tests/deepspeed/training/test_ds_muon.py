#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Depth "step" with DeepSpeed's Muon: losses are those of state in memory, also after a drive's error, and checkpoints go
between both. State in memory is stepped and loaded by DeepSpeed's own classes, with nvswap's ops.
"""

import glob
import os

from jobs import below, configuration, half, job
from promises import main, promise

os.environ["DS_ACCELERATOR"] = "cpu"
import torch  # noqa: E402

SIZE = {"width": 64, "steps": 4}
PARAMS = {"lr": 2e-3, "adam_lr": 1e-3, "momentum": 0.9, "weight_decay": 0.1}


def muon(directory=None, dtype="bf16", momentum_in_memory=False, accumulation=2, clipping=1.0, param=None, **params):
    """A job whose state is on the drive if there is a directory, in several sub-groups of Muon's matrices."""
    config = configuration(directory, "nvme" if directory else "cpu", dtype, "step", param=param, zero={
        "sub_group_size": 20000, "reduce_scatter": False, "save_muon_momentum_buffer_in_memory": momentum_in_memory})
    config["optimizer"] = {"type": "Muon", "params": {**PARAMS, **params}}
    config["gradient_accumulation_steps"], config["gradient_clipping"] = accumulation, clipping
    return half(config) if dtype == "fp16" else config


@promise
def muon_has_the_losses_of_three_ranks_whose_sizes_do_not_divide(directory):
    kind, settings = {"accumulation": 4, "clipping": 0.1}, {"ranks": 3, "width": 52, "steps": 3}
    assert job(muon(directory, **kind), **settings) == job(muon(**kind), **settings)


@promise
def muon_in_fp16_skips_the_steps_that_overflow(directory):
    settings = {**SIZE, "steps": 6, "fp16_by_torch": True}
    assert job(muon(directory, "fp16"), **settings) == job(muon(dtype="fp16"), **settings)


@promise
def a_step_of_muon_that_the_drive_failed_is_finished_by_calling_it_again(directory):
    """On one rank, where the other waits for it: writes of momentum, writes of master weights, reads of momentum. Until
    then each rank refuses to read state."""
    losses = job(muon(), **SIZE)
    for momentum_in_memory, param, fault in ((False, False, {"failing_rank": 1}),
                                             (True, {"max_in_cpu": 0}, {"failing_rank": 1}),
                                             (False, False, {"failing_rank": 0, "failing_reads": True})):
        config = muon(directory, momentum_in_memory=momentum_in_memory, param=param)
        assert job(config, **SIZE, failing=1, read_unfinished=True, limit_s=60, **fault) == losses, (
            momentum_in_memory, fault)


@promise
def jobs_with_muon_go_on_exactly_and_exchange_checkpoints_with_state_in_memory(directory):
    for dtype, momentum_in_memory in (("bf16", False), ("fp32", True)):
        def kind(drive=None, in_memory=momentum_in_memory, dtype=dtype, **params):
            return muon(drive and below(directory, drive), dtype, in_memory, **params)

        saved, theirs = (os.path.join(directory, dtype + name) for name in ("saved", "theirs"))
        losses = job(kind("a"), **SIZE, save_steps=[2], checkpoint=saved)
        assert losses == job(kind(), **SIZE, save_steps=[2], checkpoint=theirs), dtype
        settings, later = {**SIZE, "load_step": 2, "seed": 2}, [each[2 * 2:] for each in losses]
        # With other settings and weights, which the checkpoints replace. DeepSpeed loads no momentum that it keeps in
        # memory.
        for config, checkpoint in ((kind("b", lr=0.5), saved), (kind("c", lr=0.5), theirs),
                                   (kind(in_memory=False, lr=0.5), saved)):
            assert job(config, **settings, checkpoint=checkpoint) == later, (dtype, checkpoint)
        _check_alike(saved, theirs)


def _check_alike(*folders):
    """Checkpoints of two jobs have the same state."""
    found = []
    for folder in folders:
        path, = glob.glob(os.path.join(folder, "step2", "*zero_pp_rank_1_*optim_states.pt"))
        found.append(torch.load(path, weights_only=False)["optimizer_state_dict"])
    own, theirs = (each["optimizer_state_dict"] for each in found)
    assert own["param_groups"] == theirs["param_groups"]
    assert len(own["state"]) > 2 and own["state"].keys() == theirs["state"].keys()
    pairs = list(zip(*(each["fp32_flat_groups"] for each in found)))
    for number, state in theirs["state"].items():
        assert own["state"][number].keys() == state.keys()
        pairs += [(own["state"][number][key], value) for key, value in state.items()]
    for one, other in pairs:
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other)) and type(one) is type(other)
        assert not torch.is_tensor(one) or one.dtype == other.dtype


main()
