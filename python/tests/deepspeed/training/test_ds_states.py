#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""engine.offload_states() to the drive and reload_states(), of all stages of ZeRO, in one process and on two ranks."""

import errno
import glob
import os

import one_rank  # noqa: F401
import deepspeed
import numpy
import torch
from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum, OffloadStateTypeEnum
from jobs import configuration, fell, job
from promises import main, promise, raises

import nvswap
from nvswap.torch.park import Parked, StorageInPlace

WIDTH = 1024


def config_of(stage, directory, dtype="bf16"):
    """Of a job whose states are in memory."""
    config = configuration(None, "none", dtype, param=False, nvswap={"param_nvme_path": directory},
                           zero={"stage": stage})
    config["optimizer"]["params"]["torch_adam"] = True
    return config


def engine_of(config):
    torch.manual_seed(1)
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=config["zero_optimization"]["stage"] == 3):
        module = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    return deepspeed.initialize(model=module, model_parameters=module.parameters(), config=config)[0]


def train(engine, micro_batches):
    losses = []
    for number in micro_batches:
        data = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(number))
        loss = engine(data.to(engine.module[0].weight.dtype)).float().square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@promise
def states_of_each_stage_go_to_the_drive_and_come_back_to_the_bit(directory):
    for stage in (1, 2, 3):
        for dtype in ("bf16", "fp32"):
            ours, theirs = (engine_of(config_of(stage, directory, dtype)) for _ in range(2))
            # Also amid accumulation.
            for steps in (range(3), range(3, 6)):
                assert train(ours, steps) == train(theirs, steps)
                before = resident()
                ours.offload_states(device=OffloadDeviceEnum.nvme)
                # Two moments and the masters; most of it are the system's.
                assert before - resident() > 0.7 * 3 * 12 * WIDTH * WIDTH, (stage, dtype, before - resident())
                ours.reload_states()
            assert train(ours, range(6, 9)) == train(theirs, range(6, 9))
            for engine in (ours, theirs):
                engine.destroy()
    assert not os.listdir(directory)


@promise
def some_of_the_states_go_to_the_drive(directory):
    for stage in (2, 3):
        engine = engine_of(config_of(stage, directory))
        train(engine, range(2))
        sizes = []
        for include in ([OffloadStateTypeEnum.optim_states], [OffloadStateTypeEnum.hp_params], None):
            engine.offload_states(include=include, device=OffloadDeviceEnum.nvme)
            sizes.append(engine.nvswap_states.nbytes)
            engine.reload_states()
        weights = 3 * (WIDTH * WIDTH + WIDTH)
        assert 8 * weights <= sizes[0] <= 8 * weights + 100 and 4 * weights <= sizes[1] <= 4 * weights + 100, sizes
        assert sizes[2] >= sum(sizes[:2]) + 2 * weights, sizes
        engine.destroy()


@promise
def an_engine_whose_states_are_on_the_drive_refuses_what_needs_them(directory):
    engine = engine_of(config_of(3, directory))
    train(engine, range(2))
    engine.offload_states(device=OffloadDeviceEnum.nvme)
    for call in (lambda: engine(torch.ones(2, WIDTH)), lambda: engine.module(torch.ones(2, WIDTH)), engine.step,
                 lambda: engine.save_checkpoint(directory),
                 lambda: engine.offload_states(device=OffloadDeviceEnum.nvme), engine.offload_states):
        assert "on the drive" in str(raises(nvswap.Error, call, errno.EINVAL))
    engine.reload_states()
    engine.reload_states()
    train(engine, range(2))
    engine.destroy()


@promise
def states_that_the_drive_lost_are_an_error_and_stay_there(directory):
    engine = engine_of(config_of(2, directory))
    train(engine, range(2))
    engine.offload_states(device=OffloadDeviceEnum.nvme)
    # Files without a name: through the process's descriptors.
    for descriptor in glob.glob("/proc/self/fd/*"):
        if os.path.exists(descriptor) and os.readlink(descriptor).startswith(directory) and os.path.isfile(descriptor):
            size = os.stat(descriptor).st_size
            with open(descriptor, "r+b", buffering=0) as file:
                for at in range(0, size, 4096):
                    os.pwrite(file.fileno(), b"damage", at)
    raises(nvswap.Error, engine.reload_states, errno.EBADMSG)
    assert "on the drive" in str(raises(nvswap.Error, engine.step, errno.EINVAL))
    engine.destroy()


@promise
def an_engine_without_a_path_keeps_its_states(directory):
    config = config_of(2, directory)
    del config["nvswap"]["param_nvme_path"]
    engine = engine_of(config)
    os.environ.pop("NVSWAP_CONFIG", None)
    assert "NVSWAP_CONFIG" in str(raises(
        nvswap.Error, lambda: engine.offload_states(device=OffloadDeviceEnum.nvme), errno.EINVAL))
    train(engine, range(2))
    engine.destroy()


@promise
def states_of_an_engine_with_offload_param_are_refused(directory):
    engine = engine_of(configuration(None, "cpu", nvswap={"param_nvme_path": directory}))
    error = raises(nvswap.Error, lambda: engine.offload_states(device=OffloadDeviceEnum.nvme), errno.EINVAL)
    assert "offload_param" in str(error), error
    train(engine, range(2))
    engine.destroy()


@promise
def a_job_of_two_ranks_whose_states_were_on_the_drive_has_the_same_losses(directory):
    for stage in (2, 3):
        config = config_of(stage, directory)
        expected = job(config, whole=stage < 3)
        assert fell(expected)
        assert job(config, whole=stage < 3, states_steps=[2, 4]) == expected
    assert not os.listdir(directory)


@promise
def states_beside_an_optimizer_on_the_drive_go_there_too(directory):
    config = configuration(directory, "nvme", param=False, depth="step", nvswap={"param_nvme_path": directory})
    assert job(config, ranks=1, states_steps=[2]) == job(config, ranks=1)


@promise
def states_that_deepspeed_has_offloaded_to_the_host_go_to_the_drive(directory):
    config = configuration(None, "cpu", param=False, nvswap={"param_nvme_path": directory})
    ours, theirs = (engine_of(config) for _ in range(2))
    assert train(ours, range(4)) == train(theirs, range(4))
    ours.offload_states(device=OffloadDeviceEnum.nvme)
    assert ours.nvswap_states.nbytes > 3 * 14 * WIDTH * WIDTH
    ours.reload_states()
    assert train(ours, range(4, 8)) == train(theirs, range(4, 8))
    for engine in (ours, theirs):
        engine.destroy()


@promise
def memory_that_is_not_torch_s_can_not_be_parked_in_place(directory):
    tensor = torch.from_numpy(numpy.ones(5000))
    error = raises(nvswap.Error, lambda: Parked({"states": tensor}, directory, StorageInPlace), errno.EINVAL)
    assert "tensor states lies in memory that torch has not allocated" in str(error), error
    assert tensor.eq(1).all()


main()
