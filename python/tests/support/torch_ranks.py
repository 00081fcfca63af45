# SPDX-License-Identifier: Apache-2.0
"""Tests that several ranks of torch.distributed run together, each in a process of its own. Needs torch."""

import multiprocessing
import os
import traceback

import torch
import torch.distributed as dist

from promises import promise

RANKS = 2


def _run(rank, function, directory, failed):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{directory}/group", rank=rank,
                                world_size=RANKS)
        function(rank, directory)
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        failed.value = 1
        raise


def on_ranks(function):
    """Registers a test whose function each of two ranks calls, in a process of its own."""
    def run(directory):
        context = multiprocessing.get_context("fork")
        failed = context.Value("i", 0)
        processes = [context.Process(target=_run, args=(rank, function, directory, failed))
                     for rank in range(RANKS)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
        late = [process for process in processes if process.is_alive()]
        for process in late:
            process.kill()
            process.join()
        assert not failed.value and not late and not any(process.exitcode for process in processes)

    run.__name__ = function.__name__
    return promise(run)


def model(dtype=torch.float32):
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(16, 65), torch.nn.GELU(), torch.nn.LayerNorm(65),
                               torch.nn.Linear(65, 16, bias=False)).to(dtype)


def groups_of(module):
    parameters = list(module.parameters())
    return [{"params": [each for each in parameters if each.dim() > 1], "weight_decay": 0.3},
            {"params": [each for each in parameters if each.dim() <= 1], "lr": 0.02, "weight_decay": 0}]


def trained(module, optimizer, rank, steps=range(5), clip=None):
    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(10 * step + rank)
        data = torch.randn(4, 16, generator=generator).to(next(module.parameters()).dtype)
        loss = module(data).float().square().mean()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
