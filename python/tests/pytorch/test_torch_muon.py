#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nvswap.torch.Muon beside torch.optim's, and its Newton-Schulz beside float64. Needs torch with Muon."""

import copy
import errno
from unittest import mock

import torch

from promises import main, promise, raises, settings
import nvswap
import nvswap.torch
from nvswap.torch.optim.muon import zeropower

torch.set_num_threads(1)
SHAPES = ((64, 40), (30, 128), (50, 50), (1, 7))
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
OPTIONS = [dict(), dict(nesterov=False, weight_decay=0.0), dict(adjust_lr_fn="match_rms_adamw", momentum=0.8),
           dict(adjust_lr_fn="original", ns_steps=3, ns_coefficients=(2.0, -1.5, 0.5), eps=1e-5)]


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def groups(params):
    return [{"params": params[:2]}, {"params": params[2:], "lr": 0.05}]


def of_torch_in_float32():
    """torch's Newton-Schulz with another type alone."""
    return mock.patch.object(torch.Tensor, "bfloat16", lambda tensor: tensor.clone())


def stepped(pairs, steps):
    for step in steps:
        for params, optimizer in pairs:
            generator = torch.Generator().manual_seed(step)
            for parameter in params:
                parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            optimizer.step()


@promise
def muon_steps_as_torchs_would_in_float32_to_the_bit_and_as_torchs_within_bfloat16(directory):
    for options in OPTIONS:
        params, exact, theirs = (parameters() for _ in range(3))
        optimizer = nvswap.torch.Muon(groups(params), lr=0.02, config=settings(directory), **options)
        in_float32 = torch.optim.Muon(groups(exact), lr=0.02, **options)
        of_torch = torch.optim.Muon(groups(theirs), lr=0.02, **options)
        with of_torch_in_float32():
            stepped([(params, optimizer), (exact, in_float32)], range(5))
        stepped([(theirs, of_torch)], range(5))
        assert all(map(torch.equal, params, exact)), options
        for ours, other, first in zip(params, theirs, parameters()):
            # Of five updates whose elements are of 8 bits.
            assert (ours - other).norm() < 0.02 * (other - first).norm(), options
        for number, parameter in enumerate(exact):
            buffer = in_float32.state[parameter]["momentum_buffer"]
            assert torch.equal(optimizer.state_dict()["state"][number]["momentum_buffer"], buffer)
        optimizer.close()


@promise
def newton_schulz_in_float32_agrees_with_float64(directory):
    del directory
    generator = torch.Generator().manual_seed(3)
    for shape in ((256, 256), (512, 64), (64, 512), (300, 1), (1, 300)):
        for scale in (1e-12, 1.0, 1e12):
            matrix = torch.randn(shape, generator=generator) * scale
            exact = zeropower(matrix.double(), COEFFICIENTS, 5, 1e-7)
            error = (zeropower(matrix, COEFFICIENTS, 5, 1e-7) - exact).abs().max() / exact.abs().max()
            assert error < 2e-5, (shape, scale, error)
            assert scale < 1 or 0.5 < torch.linalg.svdvals(exact)[0] < 1.3
    # Of an ill-conditioned matrix.
    u, _, v = torch.linalg.svd(torch.randn(200, 200, generator=generator, dtype=torch.float64))
    matrix = u @ torch.diag(torch.logspace(0, -8, 200, dtype=torch.float64)) @ v
    exact = zeropower(matrix, COEFFICIENTS, 5, 1e-7)
    assert (zeropower(matrix.float(), COEFFICIENTS, 5, 1e-7) - exact).norm() < 1e-3 * exact.norm()
    assert not zeropower(torch.zeros(3, 4), COEFFICIENTS, 5, 1e-7).any()


@promise
def one_batch_and_four_micro_batches_of_it_step_alike(directory):
    weights = []
    for batches in (1, 4):
        torch.manual_seed(1)
        module = torch.nn.Linear(32, 16, bias=False)
        optimizer = nvswap.torch.Muon(module.parameters(), lr=0.02, config=settings(directory))
        for step in range(3):
            # Sums of whole numbers are exact.
            generator = torch.Generator().manual_seed(step)
            data = torch.randint(-8, 9, (16, 32), generator=generator).float()
            wanted = torch.randint(-8, 9, (16, 16), generator=generator).float()
            optimizer.zero_grad()
            for part, factors in zip(data.chunk(batches), wanted.chunk(batches)):
                (module(part) * factors).sum().backward()
            optimizer.step()
        weights.append(module.weight.detach().clone())
        optimizer.close()
    assert torch.equal(*weights)


@promise
def a_step_of_muon_reads_and_writes_4_bytes_an_element(directory):
    for dtype, nbytes in ((torch.float32, 4), (torch.bfloat16, 8)):
        params = parameters(dtype)
        optimizer = nvswap.torch.Muon(params, config=settings(directory))
        stepped([(params, optimizer)], range(3))
        wanted = nbytes * sum(each.numel() for each in params)
        io = optimizer.result["io"]
        assert io["read_bytes"] == io["written_bytes"] == wanted <= io["drive_written_bytes"], io
        optimizer.close()


@promise
def state_of_muon_goes_to_torch_and_back(directory):
    theirs = parameters()
    of_torch = torch.optim.Muon(groups(theirs), lr=0.02)
    with of_torch_in_float32():
        stepped([(theirs, of_torch)], range(3))
        ours = [torch.nn.Parameter(each.detach().clone()) for each in theirs]
        optimizer = nvswap.torch.Muon(groups(ours), config=settings(directory))
        optimizer.load_state_dict(of_torch.state_dict())
        stepped([(theirs, of_torch), (ours, optimizer)], range(3, 6))
        assert all(map(torch.equal, ours, theirs))
        again = [torch.nn.Parameter(each.detach().clone()) for each in theirs]
        of_torch = torch.optim.Muon(groups(again))
        of_torch.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        stepped([(again, of_torch), (ours, optimizer)], range(6, 8))
        assert all(map(torch.equal, ours, again))
    optimizer.close()


@promise
def weights_of_16_bits_are_stepped_in_float32_by_muon(directory):
    params = parameters(torch.bfloat16)
    masters = [torch.nn.Parameter(each.detach().float()) for each in params]
    optimizer = nvswap.torch.Muon(params, lr=1e-4, config=settings(directory))
    in_float32 = nvswap.torch.Muon(masters, lr=1e-4, config=settings(directory))
    for step in range(20):
        stepped([(params, optimizer)], (step,))
        for parameter, master in zip(params, masters):
            master.grad = parameter.grad.float()
        in_float32.step()
    for number, (parameter, master) in enumerate(zip(params, masters)):
        assert torch.equal(optimizer.state_dict()["state"][number]["master"], master)
        assert torch.equal(parameter, master.bfloat16())
    optimizer.close()
    in_float32.close()


@promise
def muon_and_adamw_share_an_offloaded_module(directory):
    modules = []
    for offloads in (False, True):
        torch.manual_seed(1)
        module = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 20))
        offloaded = nvswap.torch.offload(module, settings(directory)) if offloads else None
        others = [each for each in module.parameters() if each.ndim != 2]
        optimizers = [nvswap.torch.Muon([each for each in module.parameters() if each.ndim == 2], lr=0.02,
                                        config=settings(directory), offloaded=offloaded),
                      nvswap.torch.AdamW(others, lr=0.01, config=settings(directory), offloaded=offloaded)]
        if offloads:
            for kind in (nvswap.torch.AdamW, nvswap.torch.SGD):
                raises(nvswap.Error, lambda kind=kind: kind(others, config=settings(directory), offloaded=offloaded),
                       errno.EBUSY)
        for step in range(4):
            data = torch.randn(5, 20, generator=torch.Generator().manual_seed(step))
            for _ in range(2):
                (module(data) - 1).square().sum().backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
            module.zero_grad()
        for optimizer in optimizers:
            optimizer.close()
        modules.append({name: value.clone() for name, value in module.state_dict().items()})
    assert all(torch.allclose(value, modules[1][name], rtol=1e-5, atol=1e-6) for name, value in modules[0].items())
    offloaded.load()
    offloaded.engine.close()


@promise
def the_settings_of_muon_have_the_defaults_of_torch(directory):
    optimizer = nvswap.torch.Muon(parameters(), config=settings(directory))
    assert optimizer.defaults == torch.optim.Muon(parameters()).defaults
    optimizer.close()


@promise
def what_muon_can_not_step_is_an_error(directory):
    for options in (dict(lr=-1), dict(weight_decay=-1), dict(momentum=-0.1), dict(ns_steps=100),
                    dict(ns_coefficients=(1, 2)), dict(adjust_lr_fn="none")):
        raises(nvswap.Error, lambda options=options: nvswap.torch.Muon(
            parameters(), config=settings(directory), **options), errno.EINVAL)
    for shape in ((5,), (2, 3, 4), ()):
        error = raises(nvswap.Error, lambda shape=shape: nvswap.torch.Muon(
            [torch.nn.Parameter(torch.zeros(shape))], config=settings(directory)), errno.EINVAL)
        assert "AdamW" in str(error)


main()
