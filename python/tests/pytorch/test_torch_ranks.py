#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nvswap.torch on two ranks, and on a device that stands in for a GPU. Needs torch."""

import contextlib
import copy
import gc
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint.state_dict as dcp_state
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import parallel
from torch.nn.parallel import DistributedDataParallel

from promises import main, promise, raises, settings
from torch_ranks import RANKS, groups_of, model, on_ranks, trained
from stand_in import host_as_device
import nvswap
import nvswap.torch

def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def assert_as_torch(rank, directory, wrap, clip=None):
    """Trains a wrapped model with nvswap's optimizer as with torch's, and returns both."""
    ours, theirs = wrap(model()), wrap(model())
    own = nvswap.torch.AdamW(groups_of(ours), lr=0.01, eps=1e-4, config=settings(directory))
    torchs = torch.optim.AdamW(groups_of(theirs), lr=0.01, eps=1e-4)
    found, expected = (trained(ours, own, rank, clip=clip), trained(theirs, torchs, rank, clip=clip))
    assert torch.allclose(torch.tensor(found), torch.tensor(expected), atol=1e-5), (found, expected)
    for one, other in zip(ours.parameters(), theirs.parameters()):
        assert torch.allclose(whole(one), whole(other), atol=1e-5)
    return ours, own


def sharded(module):
    for part in module:
        if next(part.parameters(), None) is not None:
            fully_shard(part)
    return fully_shard(module)


@on_ranks
def data_parallel_ranks_step_as_with_torch(rank, directory):
    _, own = assert_as_torch(rank, directory, DistributedDataParallel)
    own.close()


@on_ranks
def an_offloaded_module_is_trained_under_data_parallel(rank, directory):
    def wrap(module):
        with torch.no_grad():  # Those of rank 0 count.
            module[0].weight += rank
        return torch.nn.Sequential(torch.nn.Identity(), module)

    results, weights = [], []
    for offloads in (False, True):
        for device in ((), (sys.modules["nvswap.torch.offload"], nvswap.torch.state)):
            outer = wrap(model())
            with host_as_device(*device) if device else contextlib.nullcontext():
                offloaded = nvswap.torch.offload(
                    outer, settings(directory), device="cpu", smallest=100) if offloads else None
                optimizer = nvswap.torch.AdamW(groups_of(outer), lr=0.01, config=settings(directory),
                                               offloaded=offloaded)
                parallel_module = DistributedDataParallel(outer)
                results.append(trained(parallel_module, optimizer, rank))
                optimizer.close()
                if offloaded:
                    gc.collect()
                    offloaded.load()
                    offloaded.engine.close()
            weights.append(list(outer.parameters()))
    assert results[0] == results[1] == results[2] == results[3], results
    assert all(map(torch.equal, weights[0], weights[2])) and all(map(torch.equal, weights[0], weights[3]))
    # The one that was loaded is trained in memory, by either.
    trained(parallel_module, torch.optim.AdamW(outer.parameters()), rank)
    for each in outer.parameters():
        highest, lowest = each.detach().clone(), each.detach().clone()
        dist.all_reduce(highest, dist.ReduceOp.MAX)
        dist.all_reduce(lowest, dist.ReduceOp.MIN)
        assert torch.equal(highest, lowest)
    trained(DistributedDataParallel(outer), torch.optim.AdamW(outer.parameters()), rank)


@on_ranks
def a_zero_redundancy_optimizer_gives_each_rank_a_share_of_the_state(rank, directory):
    ours, theirs = DistributedDataParallel(model()), DistributedDataParallel(model())
    own = ZeroRedundancyOptimizer(groups_of(ours), nvswap.torch.AdamW, lr=0.01, eps=1e-4,
                                  config=settings(directory))
    torchs = torch.optim.AdamW(groups_of(theirs), lr=0.01, eps=1e-4)
    for module, optimizer in ((ours, own), (theirs, torchs)):
        trained(module, optimizer, rank)
    for one, other in zip(ours.parameters(), theirs.parameters()):
        assert torch.allclose(one, other, atol=1e-5)
    held = sum(group.numel for group in own.optim.stores[0].optimizer.groups)
    assert held < 0.6 * sum(each.numel() for each in ours.parameters())
    own.consolidate_state_dict(0)
    if rank == 0:
        states = own.state_dict()["state"]
        assert len(states) == 5 and all("exp_avg_sq" in state for state in states.values())
    own.optim.close()


@on_ranks
def clipping_by_the_configuration_is_refused_for_shards(_, directory):
    module, config = sharded(model()), settings(directory)
    config["gradient_clipping"] = 1.0
    error = raises(nvswap.Error, lambda: nvswap.torch.AdamW(module.parameters(), config=config))
    assert "clip_grad_norm_" in str(error)


@on_ranks
def fully_sharded_ranks_step_their_shards_as_with_torch(rank, directory):
    ours, own = assert_as_torch(rank, directory, sharded, clip=0.1)
    held = sum(group.numel for group in own.stores[0].optimizer.groups)
    assert held == sum(each.to_local().numel() for each in ours.parameters())
    assert held < 0.6 * sum(each.numel() for each in ours.parameters())
    own.close()


@on_ranks
def the_first_state_of_adagrad_is_sharded_as_its_parameters(rank, directory):
    module = sharded(model())
    optimizer = nvswap.torch.Adagrad(module.parameters(), initial_accumulator_value=0.25, config=settings(directory))
    state = optimizer.state_dict()
    for number, parameter in enumerate(module.parameters()):
        first = state["state"][number]["sum"]
        assert first.placements == parameter.placements and first.shape == parameter.shape
        assert first.to_local().shape == parameter.to_local().shape and (first.to_local() == 0.25).all()
    optimizer.load_state_dict(state)
    optimizer.close()


@on_ranks
def tensor_parallel_ranks_step_their_shards_as_with_torch(rank, directory):
    mesh = init_device_mesh("cpu", (RANKS,))

    def wrap(module):
        module[0] = torch.nn.Linear(16, 64)
        module[2] = torch.nn.Identity()
        module[3] = torch.nn.Linear(64, 16, bias=False)
        torch.manual_seed(3)
        for each in module.parameters():
            torch.nn.init.uniform_(each, -0.1, 0.1)
        return parallel.parallelize_module(
            module, mesh, {"0": parallel.ColwiseParallel(), "3": parallel.RowwiseParallel()})

    # All ranks see the same data.
    _, own = assert_as_torch(0, directory, wrap)
    own.close()


@on_ranks
def a_distributed_checkpoint_of_shards_continues_exactly(rank, directory):
    ours = sharded(model())
    own = nvswap.torch.AdamW(groups_of(ours), lr=0.01, config=settings(directory))
    trained(ours, own, rank, range(3))
    weights, state = dcp_state.get_state_dict(ours, own)
    path = os.path.join(directory, "checkpoint")
    dcp.save({"weights": weights, "state": state}, checkpoint_id=path)
    expected = trained(ours, own, rank, range(3, 6))
    own.close()
    again = sharded(model())
    other = nvswap.torch.AdamW(groups_of(again), lr=0.01, config=settings(directory))
    weights, state = dcp_state.get_state_dict(again, other)
    dcp.load({"weights": weights, "state": state}, checkpoint_id=path)
    dcp_state.set_state_dict(again, other, model_state_dict=weights, optim_state_dict=state)
    assert trained(again, other, rank, range(3, 6)) == expected
    other.close()


@promise
def parameters_on_a_device_step_as_in_host_memory(directory):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        results = []
        for stand_in in (contextlib.nullcontext([]), host_as_device(nvswap.torch.state)):
            module = model(dtype)
            with stand_in as log:
                own = nvswap.torch.AdamW(groups_of(module), lr=0.01, config=settings(directory))
                trained(module, own, 0)
                with torch.no_grad():
                    module[0].weight[0] = 0.5
                trained(module, own, 0)
            results.append((list(module.parameters()), copy.deepcopy(own.state_dict())))
            own.close()
        # Each gradient has one buffer in host memory; each step waits once, before weights are copied.
        assert log.count("pinned") == 5 and log.count("synchronize") == 10 and "copy" in log
        assert log.index("synchronize") < log.index("copy")
        (first, state), (second, other) = results
        assert all(map(torch.equal, first, second))
        for number, values in state["state"].items():
            assert all(value.equal(other["state"][number][name]) for name, value in values.items())


@promise
def weights_of_a_device_come_from_a_kept_store(directory):
    with host_as_device(nvswap.torch.state):
        module = model(torch.bfloat16)
        own = nvswap.torch.AdamW(groups_of(module), lr=0.01, config=settings(directory, keep=True))
        trained(module, own, 0)
        own.close()
        again = model(torch.bfloat16)
        other = nvswap.torch.AdamW(groups_of(again), lr=0.01, config=settings(directory, keep=True))
        other.close()
    assert all(map(torch.equal, module.parameters(), again.parameters()))


main()
