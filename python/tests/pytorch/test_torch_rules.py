#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nvswap.torch.SGD, Adagrad and Lion beside torch.optim's and Lion's formula. Needs torch."""

import copy
import errno
import inspect

import torch

from promises import main, promise, raises, settings
import nvswap
import nvswap.torch

SGDS = [dict(momentum=0.9), dict(), dict(momentum=0.9, weight_decay=0.1, dampening=0.5),
        dict(momentum=0.8, nesterov=True, weight_decay=0.1), dict(momentum=0.9, maximize=True)]
ADAGRADS = [dict(), dict(lr_decay=0.1, weight_decay=0.1, eps=1e-6),
            dict(initial_accumulator_value=0.25, maximize=True)]
ALL = [*((nvswap.torch.SGD, torch.optim.SGD, options) for options in SGDS),
       *((nvswap.torch.Adagrad, torch.optim.Adagrad, options) for options in ADAGRADS)]


class LionOfTorch(torch.optim.Optimizer):
    """As its authors and DeepSpeed's cpu_lion have it."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, maximize=False):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], group["lr"]
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                moment, gradient = state["exp_avg"], -parameter.grad if group["maximize"] else parameter.grad
                update = moment * beta1 + gradient * (1 - beta1)
                parameter.mul_(1 - lr * group["weight_decay"]).add_(update.sign(), alpha=-lr)
                moment.mul_(beta2).add_(gradient, alpha=1 - beta2)


LIONS = [(nvswap.torch.Lion, LionOfTorch, options) for options in (
    dict(), dict(weight_decay=0.5, betas=(0.8, 0.9)), dict(maximize=True))]
PART = {nvswap.torch.SGD: "momentum_buffer", nvswap.torch.Adagrad: "sum", nvswap.torch.Lion: "exp_avg"}


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype))
            for shape in ((64, 40), (40,), (3000,))]


def groups(params):
    return [{"params": params[:2]}, {"params": params[2:], "lr": 0.02, "weight_decay": 0.3}]


def stepped(pairs, steps):
    """The same steps of optimizers of equal parameters, with one that has no gradients at first."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        gradients = [torch.randn(each.shape, generator=generator) for each in pairs[0][0]]
        for params, optimizer in pairs:
            for parameter, gradient in zip(params[bool(step < 2):], gradients[bool(step < 2):]):
                parameter.grad = gradient.to(parameter.dtype, copy=True)
            optimizer.step()
            optimizer.zero_grad()


def are_near(first, second):
    for one, other in zip(first, second):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-6), (one - other).abs().max()


def made(directory, kind, dtype=torch.float32, **options):
    params = parameters(dtype)
    return params, kind(groups(params), lr=0.01, config=settings(directory), **options)


@promise
def each_rule_steps_as_that_of_torch(directory):
    for ours, theirs, options in [*ALL, *LIONS]:
        second = parameters()
        first, optimizer = made(directory, ours, **options)
        beside = (second, theirs(groups(second), lr=0.01, **options))
        stepped([(first, optimizer), beside], range(2 if theirs is LionOfTorch else 0, 6))
        are_near(first, second)
        assert {each.optimizer.info()["rule"] for each in optimizer.stores} == {ours.__name__.lower()}
        optimizer.close()


@promise
def the_settings_of_a_rule_have_the_defaults_of_torch(directory):
    for ours, theirs in ((nvswap.torch.SGD, torch.optim.SGD), (nvswap.torch.Adagrad, torch.optim.Adagrad)):
        optimizer = ours(parameters(), config=settings(directory))
        due = theirs(parameters()).defaults
        assert optimizer.defaults == due, (optimizer.defaults, due)
        optimizer.close()


@promise
def each_optimizer_has_the_arguments_of_torchs_and_is_none_of_another_rule(_):
    own = ["config", "offloaded", "shard"]
    for ours, theirs in ((nvswap.torch.AdamW, torch.optim.AdamW), (nvswap.torch.Adam, torch.optim.Adam),
                         (nvswap.torch.SGD, torch.optim.SGD), (nvswap.torch.Adagrad, torch.optim.Adagrad)):
        found, due = (inspect.signature(each).parameters for each in (ours, theirs))
        adam = issubclass(ours, nvswap.torch.AdamW)
        assert set(found) == {*due, *own, *(["state"] if adam else [])}, (ours, set(found) ^ set(due))
        assert [each for each in found if found[each].kind is not inspect.Parameter.KEYWORD_ONLY] == \
            [each for each in due if due[each].kind is not inspect.Parameter.KEYWORD_ONLY], ours
        assert all(found[each].default == due[each].default for each in due), ours
        assert adam == (ours.__name__ in ("AdamW", "Adam"))
    assert not issubclass(nvswap.torch.Lion, nvswap.torch.AdamW)


@promise
def an_unknown_number_of_a_group_is_an_error_that_has_the_known_ones(_):
    rule = nvswap.GroupRule("sgd", 1)
    error = raises(TypeError, lambda: rule.set(0, momentun=0.9))
    assert "momentun" in str(error) and "momentum, dampening" in str(error), error


@promise
def state_goes_to_torch_and_back(directory):
    for ours, theirs, options in ALL:
        first, optimizer = made(directory, ours, **options)
        stepped([(first, optimizer)], range(3))
        second = [torch.nn.Parameter(each.detach().clone()) for each in first]
        of_torch = theirs(groups(second), lr=0.5, **options)
        of_torch.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        stepped([(first, optimizer), (second, of_torch)], range(3, 5))
        are_near(first, second)
        if options.get("momentum", 1):
            for number, parameter in enumerate(second):
                are_near([optimizer.state_dict()["state"][number][PART[ours]]],
                         [of_torch.state[parameter][PART[ours]]])
        third, resumed = made(directory, ours, **options)
        resumed.load_state_dict(of_torch.state_dict())
        for own, other in zip(third, second):
            own.data.copy_(other.data)
        stepped([(third, resumed), (second, of_torch)], range(5, 8))
        are_near(third, second)
        optimizer.close()
        resumed.close()


@promise
def state_that_nvswap_saved_continues_with_the_same_bits(directory):
    for dtype in (torch.float32, torch.bfloat16):
        for ours, _, options in (ALL[2], ALL[6], LIONS[1]):
            first, optimizer = made(directory, ours, dtype, **options)
            stepped([(first, optimizer)], range(3))
            saved = copy.deepcopy(optimizer.state_dict())
            second, resumed = made(directory, ours, dtype, **options)
            for own, other in zip(second, first):
                own.data.copy_(other.data)
            resumed.load_state_dict(saved)
            stepped([(first, optimizer), (second, resumed)], range(3, 6))
            assert all(map(torch.equal, first, second))
            optimizer.close()
            resumed.close()


@promise
def an_offloaded_module_is_stepped_by_each_rule(directory):
    for ours, options in ((nvswap.torch.SGD, SGDS[0]), (nvswap.torch.Adagrad, {}), (nvswap.torch.Lion, {})):
        modules = []
        for offloads in (True, False):
            torch.manual_seed(1)
            module = torch.nn.Linear(64, 64)
            offloaded = nvswap.torch.offload(module, settings(directory)) if offloads else None
            optimizer = ours(module.parameters(), lr=0.01, config=settings(directory), offloaded=offloaded, **options)
            for _ in range(3):
                module(torch.linspace(-1, 1, 640).view(10, 64)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            optimizer.close()
            if offloaded is not None:
                offloaded.load()
                offloaded.engine.close()
            modules.append(module)
        assert all(map(torch.equal, modules[0].parameters(), modules[1].parameters()))


@promise
def a_kept_store_is_continued_by_its_own_rule_alone(directory):
    params = parameters()
    optimizer = nvswap.torch.Lion(params, config=settings(directory, keep=True))
    stepped([(params, optimizer)], range(2, 5))
    optimizer.commit()
    optimizer.close()
    for other in (nvswap.torch.AdamW, nvswap.torch.SGD):
        raises(nvswap.Error, lambda other=other: other(parameters(), config=settings(directory, keep=True)),
               errno.ESTALE)
    again = parameters()
    optimizer = nvswap.torch.Lion(again, config=settings(directory, keep=True))
    assert all(map(torch.equal, again, params))
    optimizer.close()


@promise
def a_format_that_a_rule_does_not_have_is_refused_by_its_key(directory):
    for ours in (nvswap.torch.SGD, nvswap.torch.Adagrad, nvswap.torch.Lion):
        for state in ("split", "bf16", "8bit"):
            error = raises(nvswap.Error, lambda ours=ours, state=state: ours(
                parameters(), config=settings(directory, optimizer_state=state)), errno.ENOTSUP)
            assert 'set it to "fp32"' in str(error) and error.tensor == "nvswap.optimizer_state", error


@promise
def settings_out_of_bounds_are_errors(directory):
    for ours, options in ((nvswap.torch.SGD, dict(momentum=-1)), (nvswap.torch.SGD, dict(nesterov=True)),
                          (nvswap.torch.SGD, dict(momentum=0.9, dampening=0.5, nesterov=True)),
                          (nvswap.torch.SGD, dict(differentiable=True)), (nvswap.torch.SGD, dict(lr=-1)),
                          (nvswap.torch.Adagrad, dict(eps=-1)), (nvswap.torch.Adagrad, dict(lr_decay=-1)),
                          (nvswap.torch.Lion, dict(betas=(1, 0.9))), (nvswap.torch.Lion, dict(betas=(0.9,))),
                          (nvswap.torch.Lion, dict(weight_decay="x"))):
        raises(nvswap.Error, lambda ours=ours, options=options: ours(
            parameters(), config=settings(directory), **options), errno.EINVAL)
    raises(nvswap.Error, lambda: nvswap.torch.Adagrad(
        [{"params": parameters(), "initial_accumulator_value": 1}], config=settings(directory)), errno.EINVAL)
    _, optimizer = made(directory, nvswap.torch.SGD, momentum=0.9)
    saved = torch.optim.Adam(parameters())
    for parameter in saved.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    saved.step()
    state = saved.state_dict()
    state["param_groups"] = optimizer.state_dict()["param_groups"]
    raises(nvswap.Error, lambda: optimizer.load_state_dict(state), errno.EINVAL)
    optimizer.close()


main()
