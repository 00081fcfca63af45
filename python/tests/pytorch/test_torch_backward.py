#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nvswap.torch: what the backward of an offloaded module needs of its forward. Needs torch."""

import concurrent.futures
import contextlib
import errno
import gc

import torch

from promises import main, promise, raises, settings
import nvswap
import nvswap.torch


@contextlib.contextmanager
def offloaded_to(directory, module):
    """The module with its parameters on the drive within the block."""
    offloaded = nvswap.torch.offload(module, settings(directory))
    yield offloaded
    gc.collect()
    offloaded.load()
    offloaded.engine.close()


@promise
def a_change_of_what_the_backward_needs_is_an_error(directory):
    class Changes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, data, harmful=True):
            result = torch.sigmoid(torch.relu_(self.linear(data)))
            return result.mul_(2) if harmful else result.add(1).mul_(2)

    module = Changes()
    with offloaded_to(directory, module):
        module(torch.ones(4, 4), False).sum().backward()
        assert "inplace" in str(raises(RuntimeError, module(torch.ones(4, 4)).sum().backward))


@promise
def a_backward_of_a_forward_before_the_last_step_is_an_error(directory):
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    with offloaded_to(directory, module) as offloaded:
        optimizer = nvswap.torch.AdamW(module.parameters(), config=settings(directory),
                                       offloaded=offloaded)
        loss = module(torch.ones(2, 4)).sum()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        optimizer.step()
        error = raises(RuntimeError, loss.backward)
        assert "parameter 2.weight, of shape [4, 4]," in str(error), error
        module(torch.ones(2, 4)).sum().backward()
        del loss
        optimizer.close()


@promise
def a_backward_after_a_step_of_other_parameters_has_its_gradients(directory):
    module, data = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(2))), torch.ones(2, 4)
    with offloaded_to(directory, module) as offloaded:
        optimizer = nvswap.torch.AdamW(module[1].parameters(), config=settings(directory),
                                       offloaded=offloaded)
        module[1](data).sum().backward()
        loss = module[0](data).square().sum()
        optimizer.step()
        loss.backward()
        assert module[0].weight.grad.abs().sum() > 0
        del loss
        optimizer.close()


@promise
def a_part_of_a_parameter_is_the_same_part_in_the_backward(directory):
    class Parts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(48.0).view(6, 8))

        def forward(self, data):
            return (data * self.weight[1:5, 3:6] * self.weight.t()[2:5, 2:6].t()).sum()

    def gradient_of(module):
        data = torch.ones(4, 3, requires_grad=True)
        module(data).backward()
        return data.grad, module.weight.grad

    expected, module = gradient_of(Parts()), Parts()
    with offloaded_to(directory, module):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(gradient_of(module), expected))


@promise
def a_parameter_that_is_seen_as_another_type_is_the_same_in_the_backward(directory):
    class Complex(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(24.0).view(4, 3, 2))

        def forward(self, data):
            return (torch.view_as_complex(self.weight)[1:].t() * data).abs().sum()

    def gradient_of(module):
        data = torch.ones(3, 3, dtype=torch.complex64, requires_grad=True)
        module(data).backward()
        return data.grad, module.weight.grad

    expected, module = gradient_of(Complex()), Complex()
    with offloaded_to(directory, module):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(gradient_of(module), expected))


class Drops(torch.autograd.Function):
    """Adds a parameter, and gives it no gradient."""

    @staticmethod
    def forward(_context, data, parameter):
        return data + parameter

    @staticmethod
    def backward(_context, gradient):
        return gradient, None


@promise
def a_backward_may_give_a_parameter_no_gradient(directory):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.linear = torch.nn.Linear(4, 4)
            self.dropped = torch.nn.Parameter(torch.ones(4))

        def forward(self, data):
            return Drops.apply(torch.tanh(self.linear(data)), self.dropped)

    def trained(module, optimizer):
        for _ in range(3):
            data = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
            penalty, = torch.autograd.grad(module(data).sum(), data, create_graph=True)
            penalty.square().sum().backward()
            module(data).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    expected, module = Model(), Model()
    trained(expected, torch.optim.AdamW(expected.parameters(), lr=0.01))
    with offloaded_to(directory, module) as offloaded:
        optimizer = nvswap.torch.AdamW(module.parameters(), config=settings(directory), lr=0.01,
                                       offloaded=offloaded)
        trained(module, optimizer)
        optimizer.close()
    for ours, theirs in zip(module.parameters(), expected.parameters()):
        assert torch.allclose(ours, theirs, atol=1e-6)


@contextlib.contextmanager
def trained_in_threads(directory):
    """An offloaded module of two layers, its optimizer, and a thread."""
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    with offloaded_to(directory, module) as offloaded, \
            concurrent.futures.ThreadPoolExecutor(1) as other:
        optimizer = nvswap.torch.AdamW(module.parameters(), config=settings(directory),
                                       offloaded=offloaded)
        yield module, optimizer, lambda call: other.submit(call).result()
        optimizer.close()


def loss_of(module, within=lambda: None):
    """Of the second layer, whose backward comes before `within`, and the first."""
    hidden = module[0](torch.ones(2, 4))
    hidden.register_hook(lambda _: within())
    return module[1](hidden).sum()


@promise
def a_backward_beside_one_of_another_thread_is_refused(directory):
    with trained_in_threads(directory) as (module, optimizer, in_thread):
        loss_of(module).backward()
        alone = optimizer.stores[0].optimizer.sum_squares()
        optimizer.zero_grad()
        beside = loss_of(module)

        def refused():
            for call in (beside.backward, lambda: module(torch.ones(2, 4))):
                error = in_thread(lambda call=call: raises(nvswap.Error, call, errno.EBUSY))
                assert "one thread at a time" in str(error)

        loss_of(module, refused).backward()
        assert optimizer.stores[0].optimizer.sum_squares() == alone
        in_thread(beside.backward)
        assert optimizer.stores[0].optimizer.sum_squares() == 4 * alone


@promise
def a_backward_runs_in_all_threads_that_torch_gives_it(directory):
    """As with nodes of a GPU; here another thread says that it runs the same backward."""
    with trained_in_threads(directory) as (module, _, in_thread):
        current, results = torch._C._current_graph_task_id, []

        def same_backward():
            task = current()
            torch._C._current_graph_task_id = lambda: task
            results.append(in_thread(lambda: module(torch.ones(2, 4))))
            torch._C._current_graph_task_id = current

        loss_of(module, same_backward).backward()
        assert len(results) == 1
        results.clear()


@promise
def a_backward_beside_a_forward_of_another_thread_is_refused(directory):
    with trained_in_threads(directory) as (module, _, in_thread):
        loss = loss_of(module)
        hook = module[0].register_forward_hook(
            lambda *_: in_thread(lambda: raises(nvswap.Error, loss.backward, errno.EBUSY)) and None)
        torch.nn.Sequential(module)(torch.ones(2, 4))
        hook.remove()


@promise
def a_backward_that_failed_hinders_no_other_thread(directory):
    def fail():
        raise KeyError("hook")

    with trained_in_threads(directory) as (module, _, in_thread):
        error = raises(KeyError, loss_of(module, fail).backward)
        in_thread(lambda: loss_of(module).backward())
        del error


main()
