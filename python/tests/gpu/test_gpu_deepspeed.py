#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ZeRO-3 jobs of DeepSpeed (support/job.py) on one GPU, with parameters and optimizer on NVMe: each
depth has the losses of the same job with both in host memory."""

import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gpu import promise, register, unregister  # noqa: E402
from jobs import configuration, free_port, results_of  # noqa: E402
from promises import PACKAGE, TOP, main, settings  # noqa: E402
import torch  # noqa: E402

from nvswap.deepspeed.ops import aio_handle, deepspeed_memcpy  # noqa: E402
from nvswap.deepspeed.swappers.store import open_engine  # noqa: E402

DEPTHS = ("ops", "swappers", "step")
STEPS, SAVED = 6, 3
NUMEL = 1 << 20
WINDOW = 2  # micro batches of a step


def start(config, environment=(), **more):
    """Starts a job of one rank on the GPU; `more` goes to job.py."""
    setting = {"nvswap": True, "width": 128, "layers": 2, "heads": 4, "steps": STEPS, "backend": "nccl",
               "deterministic": True, "config": config, **more}
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "DS_ACCELERATOR": "cuda"}
    path = os.pathsep.join(filter(None, (os.path.abspath(PACKAGE), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, os.path.join(TOP, "python/tests/support/job.py"), json.dumps(setting)],
        env={**os.environ, **variables, "PYTHONPATH": path, **dict(environment)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def results(jobs):
    """What jobs that run beside each other, or the ranks of one, report."""
    return results_of(list(jobs))


def losses(jobs):
    return [result["losses"] for result in results(jobs)]


def folder(directory, *names):
    path = os.path.join(directory, *names)
    os.makedirs(path, exist_ok=True)
    return path


def on_nvme(directory, depth, **blocks):
    return configuration(folder(directory, depth), depth=depth, **blocks)


def in_memory(**blocks):
    return configuration(None, "cpu", **blocks)


@promise
def losses_in_bf16_are_those_of_state_in_host_memory(directory):
    wanted, *found = losses([start(in_memory()),
                             *(start(on_nvme(directory, depth)) for depth in DEPTHS)])
    assert float.fromhex(wanted[-1]) < float.fromhex(wanted[0]) - 0.3
    assert found == [wanted] * len(DEPTHS), (wanted, found)


def two_ranks(config):
    """NCCL wants a GPU for each rank; gloo takes tensors of one."""
    environment = {"WORLD_SIZE": "2", "LOCAL_SIZE": "2", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    return [start(config, dict(environment, RANK=rank), backend="gloo") for rank in "01"]


@promise
def losses_of_two_ranks_on_one_gpu_are_those_of_state_in_host_memory(directory):
    jobs = [two_ranks(config) for config in (in_memory(), *(on_nvme(directory, depth) for depth in DEPTHS))]
    wanted, *found = map(losses, jobs)
    assert found == [wanted] * len(DEPTHS), (wanted, found)


@promise
def losses_in_fp32_are_those_of_state_in_host_memory(directory):
    wanted, *found = losses([start(in_memory(dtype="fp32")),
                             *(start(on_nvme(directory, depth, dtype="fp32")) for depth in DEPTHS)])
    assert found == [wanted] * len(DEPTHS), (wanted, found)


@promise
def losses_in_fp16_are_those_of_state_in_host_memory(directory):
    configs = [in_memory(dtype="fp16"), *(on_nvme(directory, depth, dtype="fp16") for depth in DEPTHS)]
    for config in configs:
        config["fp16"] = {"enabled": True, "initial_scale_power": 20}
    wanted, *found = losses(map(start, configs))
    assert found == [wanted] * len(DEPTHS), (wanted, found)


@promise
def a_pool_that_is_too_small_or_not_registered_changes_no_loss(directory):
    small = {"buffer_count": 1, "buffer_size": 10000}
    ways = {"small": {"param": small, "optimizer": {"buffer_count": 1, "fast_init": True}},
            "unregistered": {"param": {"pin_memory": False}, "optimizer": {"pin_memory": False}}}
    wanted, *found = losses([start(in_memory()), *(
        start(on_nvme(os.path.join(directory, way), depth, **blocks))
        for way, blocks in ways.items() for depth in ("swappers", "step"))])
    assert found == [wanted] * 4, (wanted, found)


@promise
def overlapped_communication_pipelines_and_persistent_parameters_change_no_loss(directory):
    zero = {"overlap_comm": True, "stage3_param_persistence_threshold": 30000,
            "stage3_model_persistence_threshold": 10**9}
    pipelined = {"pipeline_read": True, "pipeline_write": True}
    wanted, *found = losses([start(in_memory(zero=zero)), *(
        start(on_nvme(directory, depth, zero=zero, optimizer=pipelined)) for depth in ("swappers", "step"))])
    assert found == [wanted] * 2, (wanted, found)


@promise
def tensors_that_deepspeed_pins_by_the_op_are_registered(directory):
    native = {"DS_PIN_MEMORY_BACKEND": "native"}
    wanted, *found = losses([start(in_memory()), start(in_memory(), native),
                             *(start(on_nvme(directory, depth), native) for depth in DEPTHS)])
    assert found == [wanted] * (1 + len(DEPTHS)), (wanted, found)


@promise
def gradients_weights_and_states_can_be_read_and_changed(directory):
    wanted, *found = results([start(in_memory(), steps=3, inspect=True), *(
        start(on_nvme(directory, depth), steps=3, inspect=True) for depth in ("swappers", "step"))])
    assert all((each["losses"], each["seen"]) == (wanted["losses"], wanted["seen"]) for each in found)


@promise
def a_job_goes_on_from_its_checkpoint_with_the_same_losses(directory):
    kinds = [(depth, dtype) for depth in ("swappers", "step") for dtype in ("bf16", "fp32")]
    paths = [folder(directory, depth + dtype) for depth, dtype in kinds]
    configs = [on_nvme(path, depth, dtype=dtype) for path, (depth, dtype) in zip(paths, kinds)]
    saving = losses(start(config, checkpoint=f"{path}/saved", save_steps=[SAVED])
                    for path, config in zip(paths, configs))
    going_on = losses(start(config, checkpoint=f"{path}/saved", load_step=SAVED)
                      for path, config in zip(paths, configs))
    assert going_on == [each[SAVED * WINDOW:] for each in saving], (saving, going_on)


def with_one_block_on_nvme(directory):
    """Configurations with parameters on the GPU, or one of the blocks in host memory."""
    return [on_nvme(os.path.join(directory, "parameters_on_gpu"), "swappers", param=False),
            on_nvme(os.path.join(directory, "parameters_on_gpu"), "step", param=False),
            on_nvme(os.path.join(directory, "parameters_on_host"), "swappers", param={"device": "cpu"}),
            on_nvme(os.path.join(directory, "parameters_on_host"), "step", param={"device": "cpu"}),
            on_nvme(os.path.join(directory, "state_on_host"), "step", optimizer={"device": "cpu"}),
            on_nvme(os.path.join(directory, "half"), "step", optimizer={"ratio": 0.5})]


@promise
def one_block_on_nvme_changes_no_loss(directory):
    configs = [in_memory(), on_nvme(os.path.join(directory, "parameters_on_gpu"), "ops", param=False),
               *with_one_block_on_nvme(directory)]
    wanted, *found = losses(map(start, configs))
    assert found == [wanted] * len(found), (wanted, found)


@promise
def a_job_with_one_block_on_nvme_goes_on_from_its_checkpoint_with_the_same_losses(directory):
    configs = list(enumerate(with_one_block_on_nvme(directory)))
    saving = losses(start(config, checkpoint=f"{directory}/{number}", save_steps=[SAVED])
                    for number, config in configs)
    going_on = losses(start(config, checkpoint=f"{directory}/{number}", load_step=SAVED)
                      for number, config in configs)
    assert going_on == [each[SAVED * WINDOW:] for each in saving], (saving, going_on)


@promise
def a_job_goes_on_from_a_universal_checkpoint_with_the_same_losses(directory):
    depths = ("swappers", "step")
    configs = [on_nvme(directory, depth) for depth in depths]
    saving = losses(start(config, universal=f"{directory}/{depth}/saved", universal_step=SAVED)
                    for depth, config in zip(depths, configs))
    for config in configs:
        config["checkpoint"] = {"load_universal": True}
    going_on = losses(start(config, checkpoint=f"{directory}/{depth}/saved", load_step=SAVED)
                      for depth, config in zip(depths, configs))
    assert going_on == [each[SAVED * WINDOW:] for each in saving], (saving, going_on)


def fill_and_copy(engine, value):
    """Writes and reads a tensor again, and copies it to the GPU."""
    if "tensor" not in engine:
        engine.register("tensor", "F32", NUMEL)
    with engine.pinned("tensor", "w") as tensors:
        tensors["tensor"].copy_(torch.full((NUMEL,), value, device="cuda"))
    engine.swap_out("tensor")
    engine.wait(["tensor"])
    with engine.pinned("tensor") as tensors:
        found = tensors["tensor"].to("cuda", non_blocking=True)
        assert (found == value).all()
        return tensors["tensor"].is_pinned()


@promise
def the_pool_of_the_swappers_is_registered_until_its_engine_closes(directory):
    addresses = set()
    for value in range(4):
        engine = open_engine(settings(directory), "param", 0)
        addresses.add(engine.pool()[0])
        assert fill_and_copy(engine, float(value))
        engine.close()
    # Where memory is mapped again, the GPU must not see the pages from before.
    assert len(addresses) < 4


@promise
def a_pool_that_can_not_be_registered_is_used_and_leaves_no_error(directory):
    config = settings(directory)
    config["zero_optimization"]["offload_param"]["pin_memory"] = False
    engine = open_engine(config, "param", 0)
    assert not fill_and_copy(engine, 1.0)
    address, nbytes = engine.pool()
    assert register(address, nbytes) == 0
    engine.register_pool()
    assert fill_and_copy(engine, 2.0)
    assert unregister(address) == 0
    assert not fill_and_copy(engine, 3.0)
    engine.close()


@promise
def the_ops_transfer_tensors_of_the_gpu(directory):
    handle, path = aio_handle(block_size=1 << 16), os.path.join(directory, "file")
    wanted = torch.rand(1 << 20, device="cuda")
    for source in (wanted, wanted.view(1024, -1).t()):
        found = torch.zeros_like(source)
        handle.async_pwrite(source, path, 0)
        assert handle.wait() == 1
        handle.async_pread(found, path, 0)
        assert handle.wait() == 1 and torch.equal(found, source)
        assert handle.pwrite(source, path, True, False) == 1
    locked = handle.new_cpu_locked_tensor(wanted.numel(), wanted)
    assert locked.device.type == "cpu" and handle.is_pinned(locked) and not handle.is_pinned(wanted)
    deepspeed_memcpy(locked, wanted)
    assert torch.equal(locked.cuda(), wanted)


main()
