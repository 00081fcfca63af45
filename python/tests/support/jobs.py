# SPDX-License-Identifier: Apache-2.0
"""Runs job.py, a ZeRO-3 job of DeepSpeed as released, in a process for each rank."""

import contextlib
import functools
import json
import os
import random
import socket
import statistics
import sys

from promises import BUILD
from ranks import Rank

PORTS = (10000, 32000)  # below those of ip_local_port_range


def configuration(directory, device="nvme", dtype="bf16", depth="ops", param=None, optimizer=None,
                  zero=None, nvswap=None, bf16=None):
    """A ds_config with everything that can be offloaded on the device. `param`, `optimizer`, `zero`,
    `nvswap` and `bf16` are keys to change in their blocks; with False for `param` it has no block."""
    block = {"device": device, "pin_memory": True}
    if device == "nvme":
        block["nvme_path"] = directory
    result = {
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
        "zero_optimization": {
            "stage": 3, "stage3_param_persistence_threshold": 0, "sub_group_size": 300000,
            "offload_param": dict(block, buffer_count=8, buffer_size=1000000, max_in_cpu=0)
            if device == "nvme" else dict(block),
            "offload_optimizer": dict(block, buffer_count=8) if device == "nvme" else dict(block)},
        "nvswap": {"deepspeed": depth, **(nvswap or {})},
        "aio": {"block_size": 262144, "queue_depth": 16, "intra_op_parallelism": 1,
                "single_submit": False, "overlap_events": True}}
    result["zero_optimization"].update(zero or {})
    result["zero_optimization"]["offload_param"].update(param or {})
    if param is False:
        del result["zero_optimization"]["offload_param"]
    result["zero_optimization"]["offload_optimizer"].update(optimizer or {})
    if dtype == "bf16":
        result["bf16"] = {"enabled": True, **(bf16 or {})}
    return result


def half(config):
    """The configuration in fp16, with a loss scale that overflows at first."""
    config["fp16"] = {"enabled": True, "initial_scale_power": 22, "hysteresis": 1, "loss_scale_window": 2}
    return config


def below(directory, name):
    """Makes that directory, and returns its path."""
    path = os.path.join(directory, name)
    os.makedirs(path, exist_ok=True)
    return path


def free_port():
    """Not one that the kernel gives to others: it is free until a job listens."""
    while True:
        port = random.randrange(*PORTS)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("", port))
            return port


def start(config, ranks=2, width=128, steps=6, nodes=1, python=sys.executable, **more):
    """Starts the processes, the same number on each node, by an interpreter; `more` goes to job.py, and
    "whole_exit" to rank_server.py."""
    setting = json.dumps({"nvswap": True, "width": width, "layers": 2, "heads": 4, "steps": steps,
                          "config": config, **more})
    processes, of_node, port = [], ranks // nodes, free_port()
    for rank in range(ranks):
        processes.append(Rank(setting, {
            "RANK": str(rank), "LOCAL_RANK": str(rank % of_node), "WORLD_SIZE": str(ranks),
            "LOCAL_SIZE": str(of_node), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo"}, os.path.join(BUILD, "python"), python))
    return processes


def await_step(process):
    """Waits until a job has taken its second step."""
    while not process.stdout.readline().startswith("STEP 1"):
        assert process.poll() is None


def outputs_of(processes, timeout=300):
    """What each process printed, once all have ended."""
    try:
        return [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()


def results_of(processes, timeout=300):
    """What each rank reports."""
    results, failed = [], []
    for rank, (process, output) in enumerate(zip(processes, outputs_of(processes, timeout))):
        lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
        if not lines or process.returncode:
            failed.append(f"rank {rank}, exit status {process.returncode}: {output[-3000:]}")
        else:
            results.append(json.loads(lines[0][len("RESULT "):]))
    assert not failed, "\n".join(failed)
    return results


def job(config, timeout=300, **settings):
    """The losses of each rank, all digits; with `inspect`, what the job has seen too."""
    return [(result["losses"], result["seen"]) if settings.get("inspect") else result["losses"]
            for result in results_of(start(config, **settings), timeout)]


@functools.lru_cache(maxsize=None)
def in_memory(dtype="bf16", zero=(), **settings):
    """The losses of the same job with device cpu; `zero` is pairs of keys and values."""
    return job(configuration(None, "cpu", dtype, zero=dict(zero)), **settings)


def fell(losses):
    """Whether each rank's mean loss is 0.5 lower in the last quarter of its batches than in the first."""
    for of_rank in losses:
        values, quarter = [float.fromhex(loss) for loss in of_rank], len(of_rank) // 4
        if statistics.mean(values[-quarter:]) > statistics.mean(values[:quarter]) - 0.5:
            return False
    return True


def left_behind(directory):
    """Files of stores; DeepSpeed makes empty folders beside them."""
    return [os.path.join(folder, name) for folder, _, names in os.walk(directory)
            for name in names]
