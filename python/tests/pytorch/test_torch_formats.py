#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Formats of state in nvswap.torch.AdamW and Adam, chosen by `state`. Needs torch."""

import copy
import errno
import os

import torch
import torch.distributed as dist

from promises import main, promise, raises, settings
from torch_ranks import groups_of, model, on_ranks, trained
import nvswap
import nvswap.torch

STATES = "fp32", "split", "bf16", "8bit"
PACKED = STATES[1:]


def small_groups(directory, **more):
    """Settings that cut a parameter into groups of 768 elements at most."""
    config = settings(directory, **more)
    config["zero_optimization"]["sub_group_size"] = 768
    config["zero_optimization"]["offload_optimizer"]["buffer_count"] = 8
    return config


def opened(module, directory, state, kind=nvswap.torch.AdamW, **more):
    return kind(groups_of(module), lr=0.01, config=small_groups(directory, **more), state=state)


def info_of(optimizer):
    store, = optimizer.stores
    return store.optimizer.info()


def run_of(directory, state, dtype=torch.bfloat16, kind=nvswap.torch.AdamW):
    """Losses, weights and what the optimizer says of itself."""
    module = model(dtype)
    optimizer = opened(module, directory, state, kind)
    losses, info = trained(module, optimizer, 0, range(10)), info_of(optimizer)
    optimizer.close()
    return losses, copy.deepcopy(module.state_dict()), info


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@promise
def split_computes_the_losses_of_fp32_and_bf16_and_8bit_repeat(directory):
    for kind in nvswap.torch.AdamW, nvswap.torch.Adam:
        due, weights, info = run_of(directory, None, kind=kind)
        assert (info["state"], info["step_bytes"], info["split_numel"]) == ("fp32", 24, 0)
        assert due[-1] < 0.9 * due[0]
        for state, nbytes in zip(PACKED, (20, 12, 8.125)):
            losses, found, info = run_of(directory, state, kind=kind)
            # Weights in memory are a part of their masters.
            assert (info["state"], info["step_bytes"], info["split_numel"]) == (state, nbytes, info["numel"])
            again, same, _ = run_of(directory, state, kind=kind)
            assert losses == again and abs(losses[-1] - due[-1]) < 0.05 * due[0], (state, losses, due)
            assert_equal(found, same)
            if state == "split":
                assert losses == due
                assert_equal(found, weights)


@promise
def masters_of_float32_and_float16_weights_have_4_bytes_in_each_format(directory):
    for dtype in torch.float32, torch.float16:
        due, weights, _ = run_of(directory, "fp32", dtype)
        for state, nbytes in zip(PACKED, (24, 16, 12.125)):
            losses, found, info = run_of(directory, state, dtype)
            assert (info["state"], info["step_bytes"], info["split_numel"]) == (state, nbytes, 0)
            assert losses == due or state != "split"
            if state == "split":
                assert_equal(found, weights)


@promise
def state_is_chosen_before_that_of_the_configuration(directory):
    for state, chosen in (None, "bf16"), ("8bit", "8bit"), ("fp32", "fp32"):
        optimizer = opened(model(), directory, state, optimizer_state="bf16")
        assert info_of(optimizer)["state"] == chosen
        optimizer.close()
    error = raises(nvswap.Error, lambda: opened(model(), directory, "int8"), errno.EINVAL)
    assert '"split"' in str(error)
    group = nvswap.Group("g", numel=8)
    with nvswap.Optimizer(settings(directory), [group], state="8bit") as optimizer:
        assert optimizer.info()["state"] == "8bit"
    error = raises(nvswap.Error, lambda: nvswap.Optimizer(settings(directory), [group], state=8), errno.EINVAL)
    assert "state is one of fp32, split, bf16, 8bit" in str(error)


@promise
def a_state_dict_of_any_format_is_float32_and_comes_back(directory):
    for state in STATES:
        module = model(torch.bfloat16)
        optimizer = opened(module, directory, state)
        trained(module, optimizer, 0, range(4))
        saved, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(module.state_dict())
        for values in saved["state"].values():
            assert {"exp_avg", "exp_avg_sq", "master", "step"} == set(values)
            assert all(value.dtype == torch.float32 for value in values.values())
        due = trained(module, optimizer, 0, range(4, 8))
        optimizer.close()
        # Into the same format, and by the one of fp32 back to it.
        for through in (), ("fp32",):
            values = saved
            for kind in *through, state:
                module = model(torch.bfloat16)
                module.load_state_dict(weights)
                optimizer = opened(module, directory, kind)
                optimizer.load_state_dict(values)
                values = copy.deepcopy(optimizer.state_dict())
                if kind == state:
                    assert trained(module, optimizer, 0, range(4, 8)) == due, (state, through)
                optimizer.close()
            for number, each in saved["state"].items():
                assert_equal(each, values["state"][number])
        # torch's own takes it.
        theirs = torch.optim.AdamW(groups_of(module))
        theirs.load_state_dict(saved)


@promise
def a_kept_store_goes_on_in_its_format_and_another_is_refused(directory):
    for state in "fp32", "bf16", "8bit":
        place = os.path.join(directory, state)
        os.makedirs(place)
        module = model(torch.bfloat16)
        for steps in range(3), range(3, 6):
            optimizer = opened(module, place, state, keep=True)
            losses = trained(module, optimizer, 0, steps)
            optimizer.close()
        due = trained_at_once(directory, state)
        assert losses == due[3:], (state, losses, due)
        other = "bf16" if state == "8bit" else "8bit"
        error = raises(nvswap.Error, lambda place=place, other=other: opened(
            model(torch.bfloat16), place, other, keep=True), errno.ESTALE)
        assert f'"{state}"' in str(error)
        with nvswap.Optimizer(small_groups(place, keep=True)) as optimizer:
            assert (optimizer.info()["state"], optimizer.info()["step"]) == (state, 6)


def trained_at_once(directory, state):
    """The losses of six steps with whole masters, as a kept store has them."""
    place, module = os.path.join(directory, state + "-once"), model(torch.bfloat16)
    os.makedirs(place)
    optimizer = opened(module, place, state, keep=True)
    losses = trained(module, optimizer, 0, range(6))
    optimizer.close()
    return losses


@on_ranks
def ranks_that_share_the_state_compute_the_same_bits_in_each_format(rank, directory):
    found = {}
    for state in STATES:
        module = model(torch.bfloat16)
        optimizer = nvswap.torch.AdamW(groups_of(module), lr=0.01, shard=True, state=state,
                                       config=small_groups(directory))
        # All ranks have the gradients of rank 0.
        losses = trained(module, optimizer, 0, range(4))
        assert all(store.optimizer.info()["state"] == state for store in optimizer.stores)
        optimizer.consolidate_state_dict(to=0)
        saved, weights = [optimizer.state_dict()], copy.deepcopy(module.state_dict())
        assert rank or all(value.dtype == torch.float32 for values in saved[0]["state"].values()
                           for value in values.values())
        dist.broadcast_object_list(saved, 0)
        due = trained(module, optimizer, 0, range(4, 8))
        optimizer.close()
        # One that has all of the state, and one that has a share.
        for shard in None, True:
            again = model(torch.bfloat16)
            again.load_state_dict(weights)
            other = nvswap.torch.AdamW(groups_of(again), lr=0.01, shard=shard, state=state,
                                       config=small_groups(directory))
            other.load_state_dict(saved[0])
            # Random bits depend on the rank and the number of a group.
            assert trained(again, other, 0, range(4, 8)) == due or not (shard or state in ("fp32", "split"))
            other.close()
        found[state] = losses + due
    assert found["split"] == found["fp32"]


main()
