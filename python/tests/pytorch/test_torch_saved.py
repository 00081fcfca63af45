#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nvswap.torch.saved_on_nvme and checkpoint: what autograd saves, on the drive. Needs torch."""

import errno
import gc
import json
import os
from unittest import mock

import torch
import torch.utils.checkpoint

from promises import child, main, promise, raises, settings
from stand_in import host_as_device
import nvswap
import nvswap.torch

KIB = 1024


def model(layers=6, width=128):
    torch.manual_seed(1)
    return torch.nn.Sequential(*(
        torch.nn.Sequential(torch.nn.LayerNorm(width), torch.nn.Linear(width, 4 * width), torch.nn.GELU(),
                            torch.nn.Dropout(0.1), torch.nn.Linear(4 * width, width)) for _ in range(layers)))


def gradients(module, forward=None, steps=2):
    """Losses and gradients of some steps; `forward` calls the module."""
    result = []
    for step in range(steps):
        torch.manual_seed(step)
        data = torch.randn(64, 128, requires_grad=True)
        loss = (forward or (lambda each: each(data)))(module) if forward is None else forward(module, data)
        loss = loss.square().mean()
        loss.backward()
        result += [loss.detach(), data.grad, *(each.grad for each in module.parameters())]
        module.zero_grad()
    return result


@promise
def tensors_are_written_within_the_forward_and_read_within_the_backward(directory):
    config, trace, module = nvswap.Config(settings(directory)), nvswap.Trace(), model()
    config.set_trace(trace)
    saved = nvswap.torch.saved_on_nvme(config, memory=300 * KIB, smallest=1)
    with trace.span("forward"), saved:
        loss = module(torch.ones(64, 128, requires_grad=True)).square().mean()
    with trace.span("backward"):
        loss.backward()
    trace.write(directory + "/trace.json")
    with open(directory + "/trace.json", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    slices = [event for event in events if event.get("ph") == "X"]
    for part, kind in (("forward", "write"), ("backward", "read")):
        span = next(each for each in slices if each["name"] == part)
        within_it = [each for each in slices if each["name"].startswith(kind) and span["ts"] <= each["ts"]
                     and each["ts"] + each["dur"] <= span["ts"] + span["dur"]]
        assert within_it, (part, [each["name"] for each in slices])
    del loss, saved
    gc.collect()
    trace.close()


@promise
def a_graph_that_is_dropped_gives_its_memory_back(directory):
    saved, module = nvswap.torch.saved_on_nvme(settings(directory), memory=1 << 20, smallest=1), model()
    with saved:
        output = module(torch.ones(64, 128, requires_grad=True))
    assert saved.held
    del output
    gc.collect()
    assert saved.held == 0
    saved.close()


@promise
def a_checkpoint_takes_use_reentrant_as_false_alone(directory):
    with nvswap.torch.saved_on_nvme(settings(directory), smallest=1):
        data = torch.ones(8, requires_grad=True)
        nvswap.torch.checkpoint(torch.sin, data, use_reentrant=False).sum().backward()
        assert torch.equal(data.grad, torch.cos(data))
        raises(nvswap.Error, lambda: nvswap.torch.checkpoint(torch.sin, data, use_reentrant=True), errno.EINVAL)


def within(saved):
    def forward(module, data):
        with saved:
            return module(data)
    return forward


def same(first, second):
    return all(map(torch.equal, first, second))


@promise
def gradients_are_those_of_memory_to_the_bit(directory):
    expected = gradients(model())
    for memory in (0, 100 * KIB, 1 << 20, 1 << 30):
        for dtype in (None, torch.bfloat16):
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                wanted = expected if dtype is None else gradients(model())
                saved = nvswap.torch.saved_on_nvme(directory, memory=memory, smallest=KIB)
                assert same(gradients(model(), within(saved), 3)[:len(wanted)], wanted)
        assert bool(saved.written) == (memory < 1 << 30)
        saved.close()
    # Nothing is left in memory or on the drive.
    gc.collect()
    assert not os.listdir(directory)


@promise
def what_is_written_counts_towards_the_write_budget_of_the_path(directory):
    config = settings(directory)
    config["nvswap"] = {**config.get("nvswap", {}), "write_budget": "10G"}
    counted = 0
    for _ in range(2):
        saved = nvswap.torch.saved_on_nvme(config, memory=0, smallest=KIB)
        gradients(model(), within(saved))
        saved.close()
        assert os.listdir(directory) == ["nvswap"] and os.listdir(directory + "/nvswap") == ["written"]
        with open(directory + "/nvswap/written", encoding="ascii") as file:
            before, counted = counted, int(file.read().split()[0])
        assert before + saved.written <= counted < before + 2 * saved.written, (before, saved.written, counted)
    with open(directory + "/nvswap/written", "w", encoding="ascii") as file:
        file.write(f"{10 << 30:020} bytes written\n")
    saved = nvswap.torch.saved_on_nvme(config, memory=0, smallest=KIB)
    error = raises(nvswap.Error, lambda: gradients(model(), within(saved)), errno.EDQUOT)
    assert "nvswap.write_budget is 10 GiB" in str(error), error


@promise
def memory_holds_the_newest_up_to_the_budget(directory):
    memory = 600 * KIB
    saved, most = nvswap.torch.saved_on_nvme(directory, memory=memory, smallest=KIB), []
    pack, unpack = saved.pack, saved.unpack

    def watched(call):
        def watching(*args):
            result = call(*args)
            most.append(saved.held)
            return result
        return watching

    saved.pack, saved.unpack = watched(pack), watched(unpack)
    gradients(model(), within(saved))
    assert memory // 4 < max(most) <= memory + 128 * KIB
    # What was still in memory was not read.
    assert 0 < saved.read <= saved.written
    with saved:
        pass
    assert saved.written - saved.read < 2 * memory


@promise
def what_the_drive_has_not_taken_in_time_stays_in_memory_up_to_a_second_bound(directory):
    wait, waits = nvswap.Engine.wait, []

    def slow(engine, name, timeout=None):
        """A drive that has done nothing before somebody waits for it."""
        if timeout == 0:
            raise nvswap.Error(errno.EAGAIN, "on its way")
        waits.append(name)
        return wait(engine, name, timeout)

    expected = gradients(model())
    memory, storage = 200 * KIB, 128 * KIB
    for most_memory in (None, 500 * KIB, 1 << 30):
        saved = nvswap.torch.saved_on_nvme(directory, memory=memory, most_memory=most_memory, smallest=KIB)
        held, waits_in_forward, pack = [], [], saved.pack

        def watched(tensor, saved=saved, held=held, waits_in_forward=waits_in_forward, pack=pack):
            waits.clear()
            handle = pack(tensor)
            waits_in_forward.extend(waits)
            held.append(saved.held)
            return handle

        saved.pack = watched
        with mock.patch.object(nvswap.Engine, "wait", slow):
            assert same(gradients(model(), within(saved)), expected)
        assert max(held) <= (most_memory or memory)
        assert saved.exceeded == max(0, max(held) - memory)
        assert bool(waits_in_forward) == (most_memory != 1 << 30)
        assert (saved.exceeded > storage) == (most_memory is not None)
        saved.close()
    error = raises(nvswap.Error, lambda: nvswap.torch.saved_on_nvme(directory, memory=2, most_memory=1), errno.EINVAL)
    assert "most_memory" in str(error)


@promise
def what_fits_into_the_budget_is_not_written(directory):
    saved = nvswap.torch.saved_on_nvme(
        settings(os.path.join(directory, "missing")), memory=1 << 30, smallest=1)
    gradients(model(), within(saved))
    assert saved.written == saved.read == 0 and saved.waited == 0


@promise
def a_shared_storage_is_written_once_and_weights_are_not(directory):
    saved = nvswap.torch.saved_on_nvme(directory, memory=0, smallest=KIB)

    class Views(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(64, 64))

        def forward(self, data):
            data = data * 2
            # Each product saves views of the one storage, and the weight.
            return (data[:32] @ self.weight).sum() + (data.t()[:, :64] @ self.weight.t()).sum() + (
                data * data.view(64, 64)).sum()

    module, data = Views(), torch.randn(64, 64)
    loss = within(saved)(module, data)
    assert saved.written == 64 * 64 * 4
    loss.backward()
    found, module.weight.grad = module.weight.grad, None
    module(data).backward()
    assert found.equal(module.weight.grad)


@promise
def a_graph_is_used_twice_and_dropped_unused(directory):
    saved = nvswap.torch.saved_on_nvme(directory, memory=0, smallest=KIB)
    module, data = model(), torch.randn(64, 128)
    module.eval()
    for _ in range(3):
        within(saved)(module, data)
    gc.collect()
    loss = within(saved)(module, data).square().mean()
    loss.backward(retain_graph=True)
    first = [each.grad.clone() for each in module.parameters()]
    loss.backward()
    assert all(torch.equal(each.grad, 2 * one) for each, one in zip(module.parameters(), first))
    del loss
    gc.collect()
    with saved:
        torch.ones(KIB, requires_grad=True).exp()
    # Space on the drive is used again: five forwards have that of one, and of the one beside it.
    sizes = sum(tensor.nbytes for tensor in map(saved._engine.__getitem__, saved._engine))
    assert 0 < sizes <= 2 * saved.written / 4, (sizes, saved.written)
    assert saved.held == 0


@promise
def a_backward_never_computes_with_what_was_changed_in_place(directory):
    for memory in (0, 1 << 30):
        saved = nvswap.torch.saved_on_nvme(directory, memory=memory, smallest=1)
        data = torch.randn(2000, requires_grad=True)
        with saved:
            middle = data.exp()
            result = middle.sum()
        middle.detach().mul_(2)
        with saved:
            other = middle.detach().requires_grad_().exp().sum()
        other.backward()
        if memory:
            assert "modified by an inplace operation" in str(raises(RuntimeError, result.backward))
        else:
            # The drive has what was saved.
            result.backward()
            assert data.grad.equal(data.detach().exp())


@promise
def a_fault_names_the_module(directory):
    module, data = model(), torch.randn(64, 128)
    saved = nvswap.torch.saved_on_nvme(settings(directory, verify=True), memory=0, smallest=KIB)
    loss = within(saved)(module, data).sum()
    for descriptor in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{descriptor}"
        if os.path.exists(path) and os.readlink(path).startswith(directory) and os.stat(path).st_size > 1 << 20:
            with open(path, "r+b", buffering=0) as file:
                for at in range(0, os.stat(path).st_size, 4096):
                    file.seek(at)
                    file.write(b"damage")
    error = raises(nvswap.Error, loss.backward, errno.EBADMSG)
    assert "what module 5." in str(error) and "has saved for the backward" in str(error), error
    saved = nvswap.torch.saved_on_nvme(directory, memory=0, smallest=KIB)
    with mock.patch.object(nvswap.Engine, "wait", side_effect=nvswap.Error(errno.ENOSPC, "no space")):
        error = raises(nvswap.Error, lambda: within(saved)(module, data), errno.ENOSPC)
    assert "what module 0." in str(error), error
    for call in ("register", "store_from"):
        with mock.patch.object(nvswap.Engine, call, side_effect=nvswap.Error(errno.ENOSPC, "no space")):
            error = raises(nvswap.Error, lambda: within(saved)(module, data), errno.ENOSPC)
        assert "what module 0." in str(error), error
    # It can be used again.
    assert same(gradients(model(), within(saved)), gradients(model()))


@promise
def a_compiled_module_saves_on_the_drive_and_has_the_gradients_of_memory(directory):
    def compiled(way):
        module = model()
        if way == "layers":
            for number, layer in enumerate(module):
                module[number] = torch.compile(layer, backend="aot_eager")
        elif way == "in place":
            module.compile(backend="aot_eager")
        return torch.compile(module, backend="aot_eager") if way == "whole" else module

    for way in ("whole", "layers", "in place"):
        torch.compiler.reset()
        saved = nvswap.torch.saved_on_nvme(settings(directory), memory=300 * KIB, smallest=KIB)
        found = gradients(compiled(way), within(saved))
        assert saved.written and saved.held == 0
        torch.compiler.reset()
        assert same(found, gradients(compiled(way))), way
        saved.close()


@promise
def checkpoints_have_their_inputs_on_the_drive(directory):
    def checkpointed(checkpoint):
        def forward(module, data):
            for layer in module:
                data = checkpoint(layer, data)
            return data
        return forward

    expected = gradients(model(), checkpointed(
        lambda layer, data: torch.utils.checkpoint.checkpoint(layer, data, use_reentrant=False)))
    assert same(expected, gradients(model()))
    saved = nvswap.torch.saved_on_nvme(directory, memory=0, smallest=KIB)

    def forward(module, data):
        with saved:
            return checkpointed(nvswap.torch.checkpoint)(module, data)

    assert same(gradients(model(), forward), expected)
    # The inputs of the layers, of two steps, and nothing within the layers.
    assert 2 * 5 * 64 * 128 * 4 <= saved.written <= 2 * 8 * 64 * 128 * 4, saved.written
    with mock.patch.dict(os.environ, NVSWAP_CONFIG=directory):
        assert same(gradients(model(), checkpointed(nvswap.torch.checkpoint)), expected)


@promise
def an_offloaded_module_has_what_it_saves_on_the_drive_too(directory):
    module = model()
    offloaded = nvswap.torch.offload(module, settings(directory))
    saved = nvswap.torch.saved_on_nvme(settings(directory), memory=0, smallest=KIB)
    torch.manual_seed(0)
    data = torch.randn(64, 128)
    loss = within(saved)(module, data).square().mean()
    loss.backward()
    found = [each.grad.clone() for each in module.parameters()]
    assert saved.written > 6 * 64 * 512 * 4
    del loss
    gc.collect()
    offloaded.load()
    offloaded.engine.close()
    module.zero_grad()
    torch.manual_seed(0)
    module(torch.randn(64, 128)).square().mean().backward()
    assert same(found, [each.grad for each in module.parameters()])


@promise
def what_a_device_saves_goes_through_host_memory(directory):
    expected = gradients(model())
    for memory in (0, 600 * KIB):
        with host_as_device(nvswap.torch.activations) as log:
            saved = nvswap.torch.saved_on_nvme(directory, memory=memory, smallest=KIB)
            assert same(gradients(model(), within(saved)), expected)
        # Each copy waits for what the present stream has computed.
        assert log.count("wait_stream") == log.count("copy") > 10
        assert log.count("pinned") > log.count("copy")


@promise
def peak_memory_is_that_of_the_budget(directory):
    peaks = {}
    for memory in (64 << 20, 2 << 30):
        peaks[memory] = int(child(f"""
import os, threading, torch, nvswap.torch

def peak():  # of this process alone: ru_maxrss begins with that of the one that started it
    with open("/proc/self/status") as file:
        return int(file.read().partition("VmHWM:")[2].split()[0])

torch.set_num_threads(1)
saved = nvswap.torch.saved_on_nvme(os.environ["DIRECTORY"], memory={memory})
data = torch.ones(1 << 22, requires_grad=True)
start = peak()
with saved:
    result = data
    for _ in range(80):
        result = result.sin()
result.sum().backward()
print(peak() - start)
""", directory))
    # 80 tensors of 16 MiB, in KiB. The budget has company: the tensors at hand, those whose write nobody waits
    # for, and what the allocator has not given back yet.
    assert peaks[2 << 30] > 1100 * KIB, peaks
    assert peaks[64 << 20] < 600 * KIB, peaks


main()
