#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nvswap.torch on a GPU: losses, the device's memory, and seconds of a step beside torch's."""

import gc
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gpu import promise  # noqa: E402
from promises import main, settings  # noqa: E402
import torch  # noqa: E402

import nvswap  # noqa: E402
import nvswap.torch  # noqa: E402

DEVICE = "cuda"
WIDTH, LAYERS, ROWS, STEPS = 2048, 12, 512, 6
LAYER_BYTES = 2 * 4 * WIDTH * 2 * WIDTH


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.first = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.second = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, data):
        return data + self.second(torch.nn.functional.gelu(self.first(self.norm(data))))


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(*(Block() for _ in range(LAYERS)))


def configured(directory):
    config = settings(directory)
    config["zero_optimization"]["offload_param"].update(buffer_size=WIDTH * 2 * WIDTH + 4096, buffer_count=6)
    config["zero_optimization"]["sub_group_size"] = WIDTH * 2 * WIDTH
    config["zero_optimization"]["offload_optimizer"].update(pipeline_read=True, pipeline_write=True)
    config["aio"] = {"block_size": 1 << 20, "queue_depth": 32, "thread_count": 1}
    return config


def trained(name, module, optimizer, forward=None):
    """Losses, and the most bytes of the device; prints the seconds of a step."""
    torch.cuda.reset_peak_memory_stats()
    losses, seconds = [], []
    for step in range(STEPS):
        data = torch.rand(ROWS, WIDTH, generator=torch.Generator().manual_seed(step)).to(DEVICE)
        begin = time.monotonic()
        loss = (forward or module)(data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.monotonic() - begin)
    peak = torch.cuda.max_memory_allocated()
    print(f"# {name}: {statistics.median(seconds[1:]):.3f} s a step, at most {peak >> 20} MiB of the device",
          flush=True)
    return losses, peak


def of_torch():
    module = model().to(DEVICE)
    return trained("torch", module, torch.optim.AdamW(module.parameters(), lr=1e-3))


def close(one, other):
    assert torch.allclose(torch.tensor(one), torch.tensor(other), rtol=1e-3), (one, other)


@promise
def an_optimizer_on_the_drive_has_the_losses_of_torch(directory):
    expected, _ = of_torch()
    module = model().to(DEVICE)
    optimizer = nvswap.torch.AdamW(module.parameters(), lr=1e-3, config=configured(directory))
    found, _ = trained("nvswap.torch.AdamW", module, optimizer)
    optimizer.close()
    close(found, expected)


@promise
def an_offloaded_module_has_the_losses_of_one_on_the_gpu_in_less_memory(directory):
    module = model().to(DEVICE)
    optimizer = nvswap.torch.AdamW(module.parameters(), lr=1e-3, config=configured(directory + "/"))
    expected, most = trained("parameters on the device", module, optimizer)
    optimizer.close()
    del optimizer, module
    gc.collect()
    for layers in (2, 6):
        module = model()
        offloaded = nvswap.torch.offload(module, configured(directory), device=DEVICE,
                                         device_memory=layers * LAYER_BYTES)
        optimizer = nvswap.torch.AdamW(module.parameters(), lr=1e-3, config=configured(directory),
                                       offloaded=offloaded)
        found, peak = trained(f"parameters on the drive, {layers} of {LAYERS} layers on the device", module,
                              optimizer)
        optimizer.close()
        gc.collect()
        offloaded.load()
        offloaded.engine.close()
        close(found, expected)
        assert peak < most - (LAYERS - layers - 2) * LAYER_BYTES, (peak, most)


@promise
def saved_tensors_on_the_drive_give_the_same_gradients_in_less_memory(directory):
    results = []
    for saves in (False, True):
        module = model().to(DEVICE)
        data = torch.rand(16 * ROWS, WIDTH, generator=torch.Generator().manual_seed(1)).to(DEVICE)
        torch.cuda.reset_peak_memory_stats()
        if saves:
            saved = nvswap.torch.saved_on_nvme(configured(directory), memory=256 << 20)
            with saved:
                loss = module(data).square().mean()
        else:
            loss = module(data).square().mean()
        loss.backward()
        results.append(([each.grad.clone() for each in module.parameters()],
                        torch.cuda.max_memory_allocated()))
        del loss
    (expected, most), (found, peak) = results
    assert all(map(torch.equal, found, expected))
    assert saved.written and saved.read and peak < most
    print(f"# saved tensors: {most >> 20} MiB in the device's memory, {peak >> 20} MiB with the drive; "
          f"waited {saved.waited:.2f} s", flush=True)


@promise
def a_parked_model_frees_the_gpu_and_goes_on(directory):
    module = model().to(DEVICE)
    data = torch.rand(ROWS, WIDTH).to(DEVICE)
    expected, before = module(data), torch.cuda.memory_allocated()
    parked = nvswap.torch.park(module, configured(directory))
    assert torch.cuda.memory_allocated() < before - LAYERS * LAYER_BYTES // 2
    parked.unpark()
    assert torch.equal(module(data), expected)


@promise
def copies_and_io_go_on_beside_computation(directory):
    """A forward that computes for long takes less than computing and copying in turn."""
    module, data = model(), torch.rand(64 * ROWS, WIDTH).to(DEVICE)
    offloaded = nvswap.torch.offload(module, configured(directory), device=DEVICE,
                                     device_memory=4 * LAYER_BYTES)
    with torch.no_grad():
        expected = module(data)
        profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        with profile:
            assert torch.equal(module(data), expected)
            torch.cuda.synchronize()
    spans = {True: [], False: []}
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            spans["Memcpy HtoD" in event.name].append((event.time_range.start, event.time_range.end))
    beside = sum(max(0, min(end, other_end) - max(begin, other_begin))
                 for begin, end in spans[True] for other_begin, other_end in spans[False])
    copied = sum(end - begin for begin, end in spans[True])
    print(f"# {copied / 1e3:.1f} ms of copies to the device, {beside / 1e3:.1f} ms of them beside kernels",
          flush=True)
    assert copied and beside > copied / 4
    gc.collect()
    offloaded.load()
    offloaded.engine.close()


main()
