# SPDX-License-Identifier: Apache-2.0
"""torch_loop.py VARIANT DIRECTORY: a training loop of plain PyTorch on the host, float32, with its optimizer's
state, its parameters or what autograd saves in memory or on the drive. Prints seconds of a step (the median), the
most memory that the loop had beside the interpreter, and the loss, as JSON.

Variants of the state: memory, nvswap, offload (parameters on the drive too), deepspeed (ZeRO-3 of one rank with its
own ops, both on the drive). Of what is saved, in a model of few weights: saved-memory, saved-cpu (torch's
save_on_cpu), saved-nvme (a quarter of it in memory)."""
import contextlib
import json
import os
import resource
import statistics
import sys
import time

import torch

# Here, so that what they take in memory is the interpreter's.
import nvswap.torch
if sys.argv[1] == "deepspeed":
    import deepspeed

STEPS = 6
# Weights, or activations, for the most part: some 100 million elements.
STATE = {"layers": 6, "width": 2048, "rows": 64}
SAVED = {"layers": 24, "width": 512, "rows": 2048}
SAVED_BYTES = 24 * 2048 * (2 * 512 + 2 * 2048) * 4


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.first = torch.nn.Linear(width, 4 * width if width < 2048 else 2 * width)
        self.second = torch.nn.Linear(self.first.out_features, width)

    def forward(self, data):
        return data + self.second(torch.nn.functional.gelu(self.first(self.norm(data))))


def config_of(directory, **more):
    block = {"device": "nvme", "nvme_path": directory, "pin_memory": True}
    return {
        "train_batch_size": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "zero_optimization": {
            "stage": 3, "stage3_param_persistence_threshold": 0, "sub_group_size": 8 << 20, **more,
            "offload_param": dict(block, buffer_count=8, buffer_size=(8 << 20) + 8192, max_in_cpu=0),
            "offload_optimizer": dict(block, buffer_count=12, pipeline_read=True, pipeline_write=True)},
        "aio": {"block_size": 1 << 20, "queue_depth": 32, "intra_op_parallelism": 1,
                "single_submit": False, "overlap_events": True}}


def module_of(shape):
    torch.manual_seed(1)
    return torch.nn.Sequential(*(Block(shape["width"]) for _ in range(shape["layers"])))


def loop_of_deepspeed(shape, directory):
    """A function that takes a step with some data and returns the loss."""
    # Its own swapper ends a run that has more parameters in memory than buffers.
    config = config_of(directory, stage3_prefetch_bucket_size=0, stage3_max_reuse_distance=0,
                       stage3_max_live_parameters=0)
    os.environ.update(LOCAL_RANK="0", GLOO_SOCKET_IFNAME="lo")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    with deepspeed.zero.Init(config_dict_or_path=config):
        module = module_of(shape)
    engine = deepspeed.initialize(model=module, config=config)[0]

    def stepped(data):
        loss = engine(data).square().mean()
        engine.backward(loss)
        engine.step()
        return loss
    return stepped


def loop_of(variant, shape, directory):
    """As that of DeepSpeed."""
    module, saved = module_of(shape), contextlib.nullcontext()
    if variant == "saved-cpu":
        saved = torch.autograd.graph.save_on_cpu()
    elif variant == "saved-nvme":
        saved = nvswap.torch.saved_on_nvme(directory, memory=SAVED_BYTES // 4)
    offloaded = nvswap.torch.offload(module, config_of(directory)) if variant == "offload" else None
    if variant in ("nvswap", "offload"):
        optimizer = nvswap.torch.AdamW(module.parameters(), lr=1e-4, config=config_of(directory),
                                       offloaded=offloaded)
    else:
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)

    def taken(data):
        with saved:
            loss = module(data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss
    return taken


def main():
    variant, directory = sys.argv[1:]
    shape = SAVED if variant.startswith("saved") else STATE
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = loop_of_deepspeed(shape, directory) if variant == "deepspeed" else loop_of(variant, shape, directory)
    seconds = []
    for number in range(STEPS):
        data = torch.randn(shape["rows"], shape["width"],
                           generator=torch.Generator().manual_seed(number))
        started = time.monotonic()
        loss = step(data).item()
        seconds.append(time.monotonic() - started)
    print(json.dumps({
        # The first ones make the state and learn the order.
        "step_s": statistics.median(seconds[2:]), "loss": loss,
        "peak_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}), flush=True)


if __name__ == "__main__":
    main()
