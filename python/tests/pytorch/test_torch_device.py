#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nvswap.torch.offload with a device that stands in for a GPU. Needs torch."""

import collections
import contextlib
import errno
import gc
import sys

import torch
import torch.utils.checkpoint

from promises import child, main, promise, raises, settings
from stand_in import host_as_device
import nvswap
import nvswap.torch

WIDTH = 64
LAYER_BYTES = 4 * (WIDTH * WIDTH + WIDTH)


class Tied(torch.nn.Module):
    """A language model whose last layer has the weights of the first, with checkpoints and a buffer."""

    def __init__(self, checkpoints=True):
        super().__init__()
        self.tokens = torch.nn.Embedding(50, WIDTH)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.norm = torch.nn.BatchNorm1d(WIDTH)
        self.head = torch.nn.Linear(WIDTH, 50, bias=False)
        self.head.weight = self.tokens.weight
        self._checkpoints = checkpoints

    def forward(self, tokens):
        data = self.tokens(tokens)
        for number, layer in enumerate(self.layers):
            if self._checkpoints and number % 2:
                data = data + torch.utils.checkpoint.checkpoint(layer, torch.tanh(data), use_reentrant=False)
            else:
                data = data + torch.nn.functional.gelu(layer(data))
        return self.head(self.norm(data))


def tied(checkpoints=True):
    torch.manual_seed(1)
    return Tied(checkpoints)


def layers(count=6, bias=True):
    """The first one has the last name."""
    torch.manual_seed(1)
    return torch.nn.Sequential(collections.OrderedDict(
        (str(count - number), torch.nn.Linear(WIDTH, WIDTH, bias)) for number in range(count)))


@contextlib.contextmanager
def on_device(module, directory, **more):
    """A module that is offloaded and computes on the stand-in; gives that with the stand-in's log."""
    config = settings(directory)
    # A pool of two layers.
    config["zero_optimization"]["offload_param"]["buffer_size"] = LAYER_BYTES // 7
    with host_as_device(sys.modules["nvswap.torch.offload"], nvswap.torch.state) as log:
        offloaded = nvswap.torch.offload(module, config, device="cpu", **more)
        yield offloaded, log
        gc.collect()
        offloaded.load()
        offloaded.engine.close()


def copies_of(offloaded):
    return offloaded.engine._shared.copies[offloaded.device]


def trained(module, directory, offloaded=None, clip=None, steps=3):
    optimizer = nvswap.torch.AdamW(module.parameters(), lr=0.01, config=settings(directory),
                                   offloaded=offloaded)
    generator, losses = torch.Generator().manual_seed(2), []
    for _ in range(steps):
        for _ in range(2):
            tokens = torch.randint(50, (8,), generator=generator)
            loss = torch.nn.functional.cross_entropy(module(tokens), tokens) / 2
            loss.backward()
            losses.append(loss.item())
        if clip:
            losses.append(torch.nn.utils.clip_grad_norm_(module.parameters(), clip).item())
        optimizer.step()
        optimizer.zero_grad()
    state = {name: value.clone() for values in optimizer.state_dict()["state"].values()
             for name, value in values.items()}
    optimizer.close()
    return losses, state


@promise
def a_module_on_a_device_trains_as_in_memory_to_the_bit(directory):
    for clip, memories in ((None, (0, 4 * LAYER_BYTES, 1 << 20)), (0.1, (4 * LAYER_BYTES,))):
        expected = tied()
        losses, state = trained(expected, directory, clip=clip)
        for memory in memories:
            module = tied()
            with on_device(module, directory, device_memory=memory) as (offloaded, log):
                found, other = trained(module, directory, offloaded, clip)
            if clip is None:
                assert found == losses
            else:  # A norm is summed in another order.
                assert torch.allclose(torch.tensor(found), torch.tensor(losses), atol=1e-6)
            if clip is None:
                assert all(value.equal(other[name]) for name, value in state.items())
                assert all(map(torch.equal, module.parameters(), expected.parameters()))
            assert "wait_event" in log and "pinned" in log


@promise
def saved_tensors_and_weights_of_a_device_go_to_the_drive_together(directory):
    expected = tied(checkpoints=False)
    losses, _ = trained(expected, directory)
    module = tied(checkpoints=False)
    with host_as_device(nvswap.torch.activations), \
            on_device(module, directory, device_memory=4 * LAYER_BYTES) as (offloaded, _):
        saved = nvswap.torch.saved_on_nvme(directory, memory=0, smallest=1)
        forward = module.forward
        module.forward = lambda tokens: _within(saved, forward, tokens)
        found, _ = trained(module, directory, offloaded)
        module.forward = forward
        assert saved.written and saved.read
    assert found == losses


def _within(saved, forward, tokens):
    with saved:
        return forward(tokens)


@promise
def copies_on_a_device_stay_within_their_budget(directory):
    memory, most = 4 * LAYER_BYTES, []
    module = layers(12)
    with on_device(module, directory, device_memory=memory) as (offloaded, log):
        copies = copies_of(offloaded)
        for layer in module:
            layer.register_forward_hook(lambda *_: most.append(copies.held))
        for _ in range(3):
            module(torch.ones(2, WIDTH)).sum().backward()
            most.append(copies.held)
        assert 3 * LAYER_BYTES <= max(most) <= memory and {"behind", "synchronize"} <= set(log)
    # What one module needs is there beyond any budget.
    with on_device(module, directory, device_memory=1) as (offloaded, _):
        assert module(torch.ones(2, WIDTH)).isfinite().all()
        assert copies_of(offloaded).held <= 2 * LAYER_BYTES


@promise
def a_device_keeps_what_it_needs_next(directory):
    module, data = layers(), torch.ones(2, WIDTH)
    expected = module(data)
    with on_device(module, directory, device_memory=100 * LAYER_BYTES) as (_, log), torch.no_grad():
        module(data)
        copied = log.count("copy")
        assert copied == 6
        assert torch.equal(module(data), expected)
        assert log.count("copy") == copied
    # Two modules are left to be computed with; of the rest, those that are needed first stay.
    with on_device(module, directory, device_memory=6 * LAYER_BYTES) as (_, log), torch.no_grad():
        module(data)
        before = log.count("copy")
        for _ in range(4):
            assert torch.equal(module(data), expected)
        assert log.count("copy") - before <= 4 * 3, log.count("copy") - before
    # In a step those are needed first and last.
    module = layers(10, bias=False)
    with on_device(module, directory, device_memory=6 * LAYER_BYTES) as (_, log):
        for _ in range(3):
            before = log.count("copy")
            module(data).sum().backward()
        assert log.count("copy") - before <= 12, log.count("copy") - before


@promise
def a_step_makes_copies_on_a_device_anew(directory):
    module, data = layers(), torch.ones(2, WIDTH)
    module[0].requires_grad_(False)
    with on_device(module, directory, device_memory=100 * LAYER_BYTES) as (offloaded, log):
        optimizer = nvswap.torch.AdamW(module.parameters(), config=settings(directory), offloaded=offloaded)
        before = module(data)
        before.sum().backward()
        optimizer.step()
        del log[:]
        assert not torch.equal(module(data), before)
        # The frozen one is there.
        assert log.count("copy") == 5
        optimizer.close()


@promise
def buffers_and_small_parameters_stay_on_the_device(directory):
    module = tied()
    with on_device(module, directory, smallest=WIDTH + 1) as (offloaded, _):
        assert set(offloaded.engine) == {"tokens.weight", *(f"layers.{i}.weight" for i in range(6))}
        assert module.layers[0].bias.isfinite().all()
        raises(nvswap.Error, module.layers[0].weight.isfinite, errno.EINVAL)
        found = trained(module, directory, offloaded)
    assert found[0] == trained(tied(), directory)[0]
    error = raises(nvswap.Error, lambda: nvswap.torch.offload(
        module, settings(directory), smallest=1 << 20), errno.EINVAL)
    assert "no parameter has 1048576 elements" in str(error)
    with torch.device("meta"):
        meta = torch.nn.Linear(WIDTH, WIDTH)
    offloaded = nvswap.torch.offload(
        meta, settings(directory), smallest=WIDTH + 1,
        initialize=lambda name, tensor: tensor.fill_(2.0 if name == "bias" else 0.0))
    assert meta(torch.ones(WIDTH)).tolist() == [2.0] * WIDTH and meta.bias.tolist() == [2.0] * WIDTH
    offloaded.load()
    offloaded.engine.close()


@promise
def a_kept_store_has_all_gradients_of_a_device_however_its_optimizer_ends(directory):
    def closed(held):
        held[0].close()

    def dropped(held):
        held.clear()

    def dropped_in_a_cycle(held):
        held[0].itself = held[0]
        held.clear()
        gc.collect()

    config, norms, theirs = settings(directory, keep=True), [], layers()
    for _ in range(2):
        theirs(torch.ones(WIDTH)).square().sum().backward()
    expected = torch.tensor([each.grad.norm() for each in theirs.parameters()])
    for end in (closed, dropped, dropped_in_a_cycle):
        module = layers()
        with on_device(module, directory) as (offloaded, _):
            held = [nvswap.torch.AdamW(module.parameters(), config=config, offloaded=offloaded)]
            for _ in range(2):
                module(torch.ones(WIDTH)).square().sum().backward()
            assert held[0].stores[0]._arriving
            end(held)
            again = nvswap.torch.AdamW(module.parameters(), config=config, offloaded=offloaded)
            norms.append([each.grad.norm().item() for each in module.parameters()])
            again.zero_grad()
            again.close()
    child("""
import contextlib, os, sys, torch, nvswap.torch
from promises import settings
from stand_in import host_as_device
directory = os.environ["DIRECTORY"]
stack = contextlib.ExitStack()
stack.enter_context(host_as_device(sys.modules["nvswap.torch.offload"], nvswap.torch.state))
torch.manual_seed(1)
module = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6)))
offloaded = nvswap.torch.offload(module, settings(directory), device="cpu")
own = nvswap.torch.AdamW(module.parameters(), config=settings(directory, keep=True), offloaded=offloaded)
for _ in range(2):
    module(torch.ones(64)).square().sum().backward()
assert own.stores[0]._arriving
""", directory)
    module = layers()
    with on_device(module, directory) as (offloaded, _):
        again = nvswap.torch.AdamW(module.parameters(), config=config, offloaded=offloaded)
        norms.append([each.grad.norm().item() for each in module.parameters()])
        again.close()
    assert len(norms) == 4
    for found in norms:
        assert torch.allclose(torch.tensor(found), expected), (found, expected)


@promise
def an_engine_that_is_in_use_is_not_closed_and_goes_on(directory):
    module = layers(2)
    with on_device(module, directory) as (offloaded, _):
        expected = module(torch.ones(WIDTH))
        with offloaded.engine.pinned("1.weight"):
            raises(nvswap.Error, offloaded.engine.close, errno.EBUSY)
        assert torch.equal(module(torch.ones(WIDTH)), expected)
        copies = copies_of(offloaded)
    assert not copies.held


@promise
def copies_that_have_ended_leave_the_pool_to_others(directory):
    module, other = layers(4), torch.nn.Linear(WIDTH, WIDTH)
    expected = module.state_dict()
    with on_device(module, directory, device_memory=8 * LAYER_BYTES) as (offloaded, _):
        more = nvswap.torch.offload(torch.nn.ModuleDict({"other": other}), None, engine=offloaded.engine)
        for _ in range(2):
            module(torch.ones(WIDTH))
            assert all(map(torch.equal, module.state_dict().values(), expected.values()))
            module(torch.ones(WIDTH))
            assert other(torch.ones(WIDTH)).isfinite().all()
        gc.collect()
        more.load()


@promise
def a_fault_of_the_drive_amid_a_copy_to_a_device_is_an_error(directory):
    module = layers(2)
    with on_device(module, directory, device_memory=0) as (offloaded, _):
        swap_in = offloaded.engine.swap_in

        def failing(names, **more):
            if "1.weight" in names:
                raise nvswap.Error(errno.EIO, "the drive failed")
            return swap_in(names, **more)

        offloaded.engine.swap_in = failing
        raises(nvswap.Error, lambda: module(torch.ones(WIDTH)), errno.EIO)
        offloaded.engine.swap_in = swap_in
        assert module(torch.ones(WIDTH)).isfinite().all()
        raises(nvswap.Error, module[1].weight.isfinite, errno.EINVAL)


main()
