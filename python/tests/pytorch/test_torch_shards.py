#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nvswap.torch.AdamW whose state two ranks share. Needs torch."""

import copy
import errno
import os
import resource
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint.state_dict as dcp_state
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from promises import main, promise, raises, settings
from torch_ranks import groups_of, model, on_ranks, trained
import nvswap
import nvswap.torch


def place_of(directory, name):
    """A directory that all ranks use."""
    path = os.path.join(directory, name)
    os.makedirs(path, exist_ok=True)
    return path


def pair(directory, dtype=torch.float32, ours=None, **more):
    """Two equal models under DistributedDataParallel: the state of the first one is divided."""
    first, second = (DistributedDataParallel(model(dtype)) for _ in range(2))
    return ((first, (ours or nvswap.torch.AdamW)(
        groups_of(first), lr=0.01, config=settings(place_of(directory, "shards"), **more), shard=True)),
            (second, nvswap.torch.AdamW(groups_of(second), lr=0.01,
                                        config=settings(place_of(directory, "whole"), **more))))


def numel_of(optimizer):
    return sum(group.numel for store in optimizer.stores for group in store.optimizer.groups)


def assert_equal(first, second):
    for ours, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(ours, theirs), (ours - theirs).abs().max()


def close(*optimizers):
    for optimizer in optimizers:
        optimizer.close()


@on_ranks
def ranks_that_share_the_state_step_as_one_to_the_bit(rank, directory):
    for dtype, bucket in ((torch.float32, 1 << 20), (torch.bfloat16, 1 << 20), (torch.float32, 300)):
        with mock.patch("nvswap.torch.optim.ranks._BUCKET_BYTES", bucket):
            (ours, own), (theirs, whole) = pair(directory, dtype)
            for module, optimizer in ((ours, own), (theirs, whole)):
                schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
                for step in range(5):
                    trained(module, optimizer, rank, [step], clip=0.1)
                    schedule.step()
                    if step == 2:
                        with torch.no_grad():
                            module.module[0].weight.mul_(0.5)
        assert_equal(ours, theirs)
        assert 0 < numel_of(own) < 0.6 * numel_of(whole)
        assert all(own.state[each]["step"] == 5 for each in ours.parameters())
        close(own, whole)


@on_ranks
def shares_are_clipped_by_the_configuration_by_the_norm_of_all(rank, directory):
    found = []
    for name, shard in (("shards", True), ("whole", None)):
        module, config = DistributedDataParallel(model()), settings(place_of(directory, name))
        config["gradient_clipping"] = 0.05
        optimizer = nvswap.torch.AdamW(groups_of(module), lr=0.01, eps=1e-3, config=config, shard=shard)
        trained(module, optimizer, rank)
        found.append(list(module.parameters()))
        close(optimizer)
    assert all(torch.allclose(ours, theirs, atol=1e-6) for ours, theirs in zip(*found))


@on_ranks
def parameters_that_are_added_and_unfrozen_are_shared_too(rank, directory):
    (ours, own), (theirs, whole) = pair(directory)
    close(own, whole)
    for module, name, shard in ((ours, "shards", True), (theirs, "whole", None)):
        first, norm, last = module.module[0], module.module[2], module.module[3]
        norm.weight.requires_grad_(False)
        optimizer = nvswap.torch.Adam([{"params": [*first.parameters(), *norm.parameters()]}], lr=0.01,
                                      config=settings(place_of(directory, name)), shard=shard)
        for step in range(9):
            if step == 3:
                optimizer.add_param_group({"params": list(last.parameters()), "lr": 0.02})
            if step == 6:
                norm.weight.requires_grad_(True)
            trained(DistributedDataParallel(module.module), optimizer, rank, [step])
        if shard:
            assert {own.steps for own in optimizer._sets} == {9, 6, 3}
        close(optimizer)
    assert_equal(ours, theirs)


@on_ranks
def a_grad_scaler_scales_and_skips_steps_of_shares(rank, directory):
    (ours, own), (theirs, whole) = pair(directory)
    for module, optimizer in ((ours, own), (theirs, whole)):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        for step in range(5):
            data = torch.randn(4, 16, generator=torch.Generator().manual_seed(step + 10 * rank))
            scaler.scale(module(data).square().mean() * (float("inf") if step == 2 else 1)).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert {state["step"].item() for state in own.state.values()} == {4}
    close(own, whole)
    assert_equal(ours, theirs)


@on_ranks
def a_consolidated_state_dict_continues_exactly_on_any_number_of_ranks(rank, directory):
    for keep in (False, True):
        (ours, own), (theirs, whole) = pair(directory, torch.bfloat16, keep=keep)
        trained(ours, own, rank, range(3))
        trained(theirs, whole, rank, range(3))
        raises(nvswap.Error, lambda own=own: own.consolidate_state_dict(2), errno.EINVAL)
        own.consolidate_state_dict(to=1)
        state = own.state_dict()
        assert rank == 1 or keep or any("exp_avg" not in each for each in state["state"].values())
        saved, weights = [state], copy.deepcopy(ours.state_dict())
        dist.broadcast_object_list(saved, 1)
        # An optimizer that has all of the state, and one that has a share.
        for shard in (None, True):
            again = DistributedDataParallel(model(torch.bfloat16))
            again.load_state_dict(weights)
            other = nvswap.torch.AdamW(groups_of(again), lr=0.01, shard=shard,
                                       config=settings(place_of(directory, f"again{shard}{keep}")))
            other.load_state_dict(saved[0])
            trained(again, other, rank, range(3, 6))
            if shard is None:
                trained(ours, own, rank, range(3, 6))
            assert_equal(again, ours)
            close(other)
        # A step was taken since.
        assert keep or any("exp_avg" not in each for each in own.state_dict()["state"].values())
        close(own, whole)


@on_ranks
def the_share_of_another_rank_is_refused(rank, directory):
    (ours, own), (_, whole) = pair(directory)
    trained(ours, own, rank, range(2))
    saved = [own.state_dict()]
    own.load_state_dict(saved[0])
    dist.broadcast_object_list(saved, 0)
    # Rank 0 hears of it too.
    for optimizer in (own, whole) if rank else (own,):
        error = raises(nvswap.Error, lambda optimizer=optimizer: optimizer.load_state_dict(saved[0]), errno.EINVAL)
        assert "consolidate_state_dict" in str(error)
    close(own, whole)


@on_ranks
def a_distributed_checkpoint_of_shares_continues_on_another_number_of_ranks(rank, directory):
    (ours, own), (_, whole) = pair(directory, torch.bfloat16)
    trained(ours, own, rank, range(3))
    weights, state = dcp_state.get_state_dict(ours, own)
    path = os.path.join(directory, "checkpoint")
    dcp.save({"weights": weights, "state": state}, checkpoint_id=path)
    expected = trained(ours, own, rank, range(3, 6))
    # One rank has all, as have two that share nothing.
    for shard in (True, None):
        again = DistributedDataParallel(model(torch.bfloat16))
        other = nvswap.torch.AdamW(groups_of(again), lr=0.01, shard=shard,
                                   config=settings(place_of(directory, str(shard))))
        weights, state = dcp_state.get_state_dict(again, other)
        dcp.load({"weights": weights, "state": state}, checkpoint_id=path)
        dcp_state.set_state_dict(again, other, model_state_dict=weights, optim_state_dict=state)
        assert trained(again, other, rank, range(3, 6)) == expected
        close(other)
    assert_equal(again, ours)
    close(own, whole)


@on_ranks
def kept_shares_resume_on_as_many_ranks(rank, directory):
    (ours, own), (theirs, whole) = pair(directory, torch.bfloat16, keep=True)
    trained(theirs, whole, rank)
    trained(ours, own, rank, range(3))
    own.commit()
    saved = [own.state_dict() if rank == 0 else None]
    close(own, whole)
    dist.broadcast_object_list(saved, 0)
    config = settings(place_of(directory, "shards"), keep=True)
    again = DistributedDataParallel(model(torch.bfloat16))
    for shard in (None, dist.new_subgroups(1)[0]):
        error = raises(nvswap.Error, lambda shard=shard: nvswap.torch.AdamW(
            groups_of(again), lr=0.01, config=config, shard=shard), errno.ESTALE)
        assert shard is None or "as many as before" in str(error)
    own = nvswap.torch.AdamW(groups_of(again), lr=0.01, config=config, shard=True)
    # All ranks have the weights of the stores.
    assert_equal(again, ours)
    own.load_state_dict(saved[0])
    trained(again, own, rank, range(3, 5))
    close(own)
    assert_equal(again, theirs)


@on_ranks
def kept_shares_of_different_steps_are_refused_on_all_ranks(rank, directory):
    (ours, own), (_, whole) = pair(directory, keep=True)
    trained(ours, own, rank, range(2))
    own.commit()
    trained(ours, own, rank, range(2, 3))
    if rank:
        own.stores[0].optimizer.abandon()
    close(own, whole)
    dist.barrier()
    error = raises(nvswap.Error, lambda: nvswap.torch.AdamW(
        groups_of(ours), config=settings(place_of(directory, "shards"), keep=True), shard=True), errno.ESTALE)
    assert "[2, 3]" in str(error), error


@on_ranks
def a_step_that_fails_on_one_rank_is_an_error_of_all_and_is_finished_together(rank, directory):
    def layers():
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 512))

    def backward(module):
        module(torch.full((512,), float(rank))).square().mean().backward()

    ours, theirs = DistributedDataParallel(layers()), DistributedDataParallel(layers())
    own = nvswap.torch.AdamW(ours.parameters(), lr=0.01, config=settings(place_of(directory, "shards")), shard=True)
    whole = nvswap.torch.AdamW(theirs.parameters(), lr=0.01, config=settings(place_of(directory, "whole")))
    for _ in range(2):
        backward(theirs)
        whole.step()
        whole.zero_grad()
    backward(ours)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    error = raises(nvswap.Error, own.step, errno.EFBIG)
    assert ("rank 1 has failed" in str(error)) == (rank == 0)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "without a closure" in str(raises(nvswap.Error, lambda: own.step(lambda: None), errno.EINVAL))
    for _ in range(9):
        try:
            own.step()
            break
        except nvswap.Error as again:  # Writes that failed behind are told of by later calls.
            assert again.errno == errno.EFBIG, again
    own.zero_grad()
    backward(ours)
    own.step()
    assert {state["step"].item() for state in own.state.values()} == {2}
    assert_equal(ours, theirs)
    close(own, whole)


@on_ranks
def what_fails_on_one_rank_before_a_step_is_an_error_of_all(rank, directory):
    ours = DistributedDataParallel(model())
    config = settings(place_of(directory, "shards") if rank == 0 else os.path.join(directory, "none"))
    error = raises(nvswap.Error, lambda: nvswap.torch.AdamW(ours.parameters(), config=config, shard=True),
                   errno.ENOENT)
    assert ("rank 1 has failed" in str(error)) == (rank == 0)
    # The rank that could has left nothing open.
    config = settings(place_of(directory, "shards"), keep=True)
    own = nvswap.torch.AdamW(groups_of(ours)[:1], config=config, shard=True)
    trained(ours, own, rank, range(1))

    def fail():
        raise KeyError("closure")

    before = [each.detach().clone() for each in ours.parameters()]
    error = raises((KeyError, nvswap.Error), lambda: own.step(fail if rank else lambda: None))
    assert isinstance(error, KeyError) if rank else "KeyError" in str(error)
    if rank:
        ours.module[0].weight.data = torch.empty(0)
    error = raises(nvswap.Error, own.step, errno.EINVAL)
    assert "has become another" in str(error)
    if rank:
        ours.module[0].weight.data = before[0].clone()
    assert all(map(torch.equal, before, ours.parameters()))
    trained(ours, own, rank, range(1, 2))
    close(own)


@on_ranks
def ranks_with_gradients_of_other_parameters_are_told_so(rank, directory):
    module = model()
    module[0].bias.requires_grad_(False)
    own = nvswap.torch.AdamW(module.parameters(), config=settings(place_of(directory, "shards")), shard=True)
    for parameter in module.parameters():
        if parameter.requires_grad or rank == 0:
            parameter.grad = torch.ones_like(parameter)
    error = raises(nvswap.Error, own.step, errno.EINVAL)
    assert "gradients of the same parameters" in str(error)
    module[0].bias.grad = torch.ones(65)
    own.step()
    assert len(own.state) == 5
    close(own)


@on_ranks
def state_that_can_not_be_shared_is_refused(_, directory):
    module = model()
    offloaded = nvswap.torch.offload(module, settings(directory))
    error = raises(nvswap.Error, lambda: nvswap.torch.AdamW(
        module.parameters(), config=settings(directory), offloaded=offloaded, shard=True), errno.EINVAL)
    assert "leave it out" in str(error)
    offloaded.load()
    offloaded.engine.close()
    sharded = fully_shard(model())
    error = raises(nvswap.Error, lambda: nvswap.torch.AdamW(
        sharded.parameters(), config=settings(directory), shard=True), errno.EINVAL)
    assert "fully_shard" in str(error)
    error = raises(nvswap.Error, lambda: nvswap.torch.AdamW(
        module.parameters(), config=settings(directory), shard="ranks"), errno.EINVAL)
    assert "process group" in str(error)


@on_ranks
def ranks_share_the_state_of_each_rule_and_step_as_one_to_the_bit(rank, directory):
    for number, (kind, options) in enumerate(((nvswap.torch.SGD, {"momentum": 0.9}), (nvswap.torch.Adagrad, {}),
                                              (nvswap.torch.Lion, {}))):
        def made(name, number=number, kind=kind, options=options, **more):
            module = DistributedDataParallel(model())
            config = settings(place_of(directory, f"{name}{number}"))
            return module, kind(module.parameters(), lr=0.01, config=config, **options, **more)

        first, second, third = made("shares", shard=True), made("whole"), made("resumed", shard=True)
        for pair_of in (first, second):
            trained(*pair_of, rank, range(3))
        assert_equal(first[0], second[0])
        assert numel_of(first[1]) < numel_of(second[1])
        third[1].load_state_dict(second[1].state_dict())
        third[0].load_state_dict(second[0].state_dict())
        for pair_of in (first, second, third):
            trained(*pair_of, rank, range(3, 5))
        assert_equal(first[0], second[0])
        assert_equal(third[0], second[0])
        first[1].consolidate_state_dict()
        if rank == 0:
            whole, own = first[1].state_dict()["state"], second[1].state_dict()["state"]
            assert all(torch.equal(whole[each][part], own[each][part]) for each in own for part in own[each])
        close(first[1], second[1], third[1])


@promise
def a_share_needs_a_process_group(directory):
    error = raises(nvswap.Error, lambda: nvswap.torch.AdamW(
        model().parameters(), config=settings(directory), shard=True), errno.EINVAL)
    assert "init_process_group" in str(error)


main()
