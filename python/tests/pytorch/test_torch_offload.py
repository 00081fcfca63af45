#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nvswap.torch: training with parameters and optimizer state on the drive. Needs torch."""

import copy
import errno
import gc
import io
import os
import shutil
import threading
from unittest import mock

import torch
import torch.utils.checkpoint

from promises import child, main, promise, raises, settings
import nvswap
import nvswap.torch


def model():
    torch.manual_seed(1)
    layers = [torch.nn.Embedding(100, 256)]
    for _ in range(8):
        layers += [torch.nn.Linear(256, 256), torch.nn.LayerNorm(256), torch.nn.GELU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(256, 100))


def losses(module, optimizer, steps=5):
    generator = torch.Generator().manual_seed(2)
    result = []
    for _ in range(steps):
        for _ in range(2):
            tokens = torch.randint(100, (8, 16), generator=generator, device="cpu")
            output = module(tokens)
            loss = torch.nn.functional.cross_entropy(output.flatten(0, 1), tokens.flatten()) / 2
            loss.backward()
            result.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return result


def in_memory(directory):
    module = model()
    optimizer = nvswap.torch.AdamW(module.parameters(), config=settings(directory + "/"), lr=0.01)
    result = losses(module, optimizer)
    optimizer.close()
    return result, module


@promise
def a_module_is_trained_in_memory_whatever_the_default_device_is(directory):
    wanted, weights = in_memory(directory)
    for offload in (False, True):
        module = model()
        with torch.device("meta"):
            offloaded = nvswap.torch.offload(module, settings(directory)) if offload else None
            optimizer = nvswap.torch.AdamW(module.parameters(), config=settings(directory + "/"), lr=0.01,
                                           offloaded=offloaded)
            found = losses(module, optimizer)
            optimizer.close()
            if offloaded:
                offloaded.load()
                offloaded.engine.close()
        assert found == wanted
        assert all(map(torch.equal, module.parameters(), weights.parameters()))


@promise
def adamw_gives_the_losses_of_torch_within_rounding(directory):
    ours, _ = in_memory(directory)
    module = model()
    theirs = losses(module, torch.optim.AdamW(module.parameters(), lr=0.01))
    assert all(abs(a - b) < 1e-4 for a, b in zip(ours, theirs)), (ours, theirs)
    assert ours[-1] < ours[0]


@promise
def adamw_has_the_settings_of_its_group(directory):
    def trained(make):
        module = model()
        optimizer = make([{"params": list(module.parameters()), "lr": 0.1, "weight_decay": 0.5,
                           "betas": (0.5, 0.6), "eps": 1e-3}])
        return losses(module, optimizer), optimizer

    ours, optimizer = trained(lambda groups: nvswap.torch.AdamW(groups, config=settings(directory)))
    theirs, _ = trained(torch.optim.AdamW)
    # Other settings differ in the first digit from the second step on.
    assert all(abs(a - b) < 1e-3 * a for a, b in zip(ours, theirs)), (ours, theirs)
    optimizer.close()
    groups = [{"params": list(model().parameters()), "amsgrad": True}]
    error = raises(nvswap.Error, lambda: nvswap.torch.AdamW(groups, config=settings(directory)),
                   errno.EINVAL)
    assert "amsgrad" in str(error)


@promise
def a_state_dict_goes_with_the_state_of_its_step_alone(directory):
    def opened(module, lr, keep=True):
        return nvswap.torch.AdamW(module.parameters(), config=settings(directory, keep=keep), lr=lr)

    straight, module = model(), model()
    whole = opened(straight, 1e-3, False)
    expected = losses(straight, whole, 2) + losses(straight, whole, 2)
    whole.close()
    first = opened(module, 0.01)
    first.param_groups[0]["lr"] = 1e-3
    found, middle = losses(module, first, 2), first.state_dict()
    first.close()
    second = opened(module, 0.5)
    second.load_state_dict(middle)
    assert second.param_groups[0]["lr"] == 1e-3
    assert found + losses(module, second, 2) == expected
    raises(nvswap.Error, lambda: second.load_state_dict(middle), errno.ESTALE)
    second.close()


@promise
def a_kept_store_gives_its_weights_to_parameters_in_memory_and_on_the_drive(directory):
    for offloaded in (False, True):
        place = os.path.join(directory, str(offloaded))
        os.mkdir(place)

        def opened(module):
            weights = nvswap.torch.offload(module, settings(place)) if offloaded else None
            return weights, nvswap.torch.AdamW(module.parameters(), config=settings(place, keep=True),
                                               lr=0.01, offloaded=weights)

        def closed(weights, optimizer):
            optimizer.close()
            if weights is not None:
                weights.load()
                weights.engine.close()

        straight, first, second = model(), model(), model()
        torch.nn.init.zeros_(second[1].weight)
        both = opened(straight)
        expected = losses(straight, both[1], 2) + losses(straight, both[1], 2)
        closed(*both)
        shutil.rmtree(os.path.join(place, "nvswap"))
        both = opened(first)
        found = losses(first, both[1], 2)
        closed(*both)
        both = opened(second)
        assert found + losses(second, both[1], 2) == expected
        closed(*both)


@promise
def the_configuration_clips_offloaded_gradients(directory):
    data = torch.linspace(-9, 9, 64).view(4, 16)

    class Clipping(torch.optim.AdamW):
        def step(self, closure=None):
            torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.1)
            super().step(closure)

        def close(self):
            pass

    def make():
        return torch.nn.Linear(16, 16)

    def clipped(clipping):
        return trained(directory, make, data=data, eps=1.0, clipping=clipping)

    theirs = trained(directory, make, lambda module: Clipping(module.parameters(), lr=0.01, eps=1),
                     data)
    ours = clipped(0.1)
    assert all(abs(a - b) < 1e-5 * a for a, b in zip(ours, theirs)), (ours, theirs)
    assert abs(clipped(0.0)[1] - theirs[1]) > 1e-3 * theirs[1]


@promise
def adamw_names_the_parameter_that_it_refuses(directory):
    def refused(call):
        return str(raises(nvswap.Error, call, errno.EINVAL))

    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Embedding(4, 2, sparse=True))
    parameters = list(module.named_parameters())
    optimizer = nvswap.torch.AdamW(parameters, config=settings(directory))
    module[1](torch.tensor([1, 2])).sum().backward()
    assert "parameter 1.weight, of shape [4, 2], has sparse gradients" in refused(optimizer.step)
    optimizer.close()
    module.zero_grad()
    offloaded = nvswap.torch.offload(module[1], settings(directory))
    optimizer = nvswap.torch.AdamW(module.parameters(), config=settings(directory), offloaded=offloaded)
    loss = module[1](torch.tensor([1, 2])).sum()
    assert "parameter weight, of shape [4, 2], has sparse gradients" in refused(loss.backward)
    optimizer.close()
    parameters = [torch.nn.Parameter(torch.ones(3, device="meta"))]
    assert "parameter 0, of shape [3], is on meta" in refused(
        lambda: nvswap.torch.AdamW(parameters, config=settings(directory)))
    parameters = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2, 3).t())]
    assert "parameter 1, of shape [3, 2], is not contiguous: make it so" in refused(
        lambda: nvswap.torch.AdamW(parameters, config=settings(directory)))
    for dtype in (torch.float64, torch.complex64):
        parameters = [("weight", torch.nn.Parameter(torch.ones(3, dtype=dtype)))]
        message = refused(lambda: nvswap.torch.AdamW(parameters, config=settings(directory)))
        assert f"parameter weight, of shape [3], is {dtype}: " in message and "torch.optim" in message, message


@promise
def a_model_larger_than_its_pool_trains_with_the_losses_of_memory(directory):
    expected, reference = in_memory(directory)
    module = model()
    size = sum(parameter.numel() for parameter in module.parameters())
    config = settings(directory)
    config["zero_optimization"]["offload_param"].update(buffer_count=2, buffer_size=131072)
    config["zero_optimization"]["stage3_max_live_parameters"] = 200000
    config["zero_optimization"]["offload_param"]["max_in_cpu"] = 0
    offloaded = nvswap.torch.offload(module, config)
    assert offloaded.engine.pool()[1] < 2 * size
    optimizer = nvswap.torch.AdamW(module.parameters(), config=config, lr=0.01, offloaded=offloaded)
    assert losses(module, optimizer) == expected
    assert offloaded.engine.stats()["pool"]["used_max"] < 2 * size
    assert offloaded.engine.stats()["swapped_in"] > 8 * size
    optimizer.close()
    offloaded.load()
    gc.collect()
    offloaded.engine.close()
    for ours, theirs in zip(module.parameters(), reference.parameters()):
        assert torch.equal(ours, theirs)


class Reads(torch.nn.Module):
    """Reads parameters of its children without calling them."""

    def __init__(self):
        super().__init__()
        self.tables = torch.nn.ParameterList(torch.randn(16, 16) / 4 for _ in range(2))
        self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, data):
        for table in self.tables:
            data = torch.tanh(data @ table)
        data = self.layer(self.attention(data, data, data)[0])
        return torch.nn.functional.linear(data, self.linear.weight, self.linear.bias)


def trained(directory, make, optimizer=None, data=torch.linspace(-1, 1, 96).view(1, 6, 16),
            eps=1e-8, clipping=0.0):
    """Losses of a module in memory, or of one that is offloaded to the directory."""
    torch.manual_seed(1)
    module, result = make(), []
    config = settings(directory)
    config["gradient_clipping"] = clipping
    offloaded = None if optimizer else nvswap.torch.offload(module, config)
    optimizer = optimizer(module) if optimizer else nvswap.torch.AdamW(
        module.parameters(), config=config, lr=0.01, eps=eps, offloaded=offloaded)
    for _ in range(4):
        loss = module(data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        result.append(loss.item())
    module.eval()
    with torch.no_grad():
        result.append(module(data).square().mean().item())
    optimizer.close()
    if offloaded:
        offloaded.load()
        offloaded.engine.close()
    return result


def the_same_as_in_memory(directory, make):
    ours = trained(directory, make)
    theirs = trained(directory, make, lambda module: nvswap.torch.AdamW(
        module.parameters(), config=settings(directory + "/"), lr=0.01))
    assert ours == theirs, (ours, theirs)
    assert ours[-1] < ours[0]


@promise
def a_forward_may_read_the_parameters_of_other_modules(directory):
    the_same_as_in_memory(directory, Reads)


@promise
def a_parameter_may_have_any_shape(directory):
    class Shapes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0))
            self.none = torch.nn.Parameter(torch.empty(0))
            self.linear = torch.nn.Linear(16, 16)

        def forward(self, data):
            return self.linear(data) * self.scale

    the_same_as_in_memory(directory, Shapes)


@promise
def frozen_parameters_are_left_alone_and_cost_no_state(directory):
    def frozen():
        module = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
        module[0].weight.requires_grad_(False)
        return module

    the_same_as_in_memory(directory, frozen)
    torch.manual_seed(1)
    module = frozen()
    before = module[0].weight.clone()
    trained(directory, lambda: module)
    assert module[0].weight.equal(before)
    optimizer = nvswap.torch.AdamW(module.parameters(), config=settings(directory))
    assert len(optimizer.stores[0].optimizer.groups) == 3
    optimizer.close()


@promise
def a_state_dict_has_the_weights(directory):
    module = torch.nn.Sequential(model(), torch.nn.BatchNorm1d(4))
    expected = copy.deepcopy(module.state_dict())
    offloaded = nvswap.torch.offload(module, settings(directory))
    found = torch.nn.ModuleDict({"whole": module}).state_dict()
    assert found.keys() == {f"whole.{name}" for name in expected}
    assert all(found[f"whole.{name}"].equal(tensor) for name, tensor in expected.items())
    # With a prefetch and a graph that needs the tensors in progress.
    output = module[0](torch.zeros(1, 4, dtype=torch.long))
    assert module[0].state_dict()["1.weight"].equal(expected["0.1.weight"])
    del output
    gc.collect()
    offloaded.load()
    offloaded.engine.close()
    module.load_state_dict({name: tensor + 1 for name, tensor in expected.items()})
    assert module.state_dict()["0.1.weight"].equal(expected["0.1.weight"] + 1)


@promise
def an_offloaded_module_loads_a_state_dict(directory):
    torch.manual_seed(7)
    other, outer = model(), torch.nn.Sequential(model())
    wanted = {f"0.{name}": tensor for name, tensor in other.state_dict().items()}
    offloaded = nvswap.torch.offload(outer, settings(directory))
    results = []
    for module, own in ((outer, offloaded), (torch.nn.Sequential(model()), None)):
        optimizer = nvswap.torch.AdamW(module.parameters(), config=settings(directory + "/"), lr=0.01,
                                       offloaded=own)
        found = losses(module, optimizer, 2)
        assert str(module.load_state_dict(wanted)) == "<All keys matched successfully>"
        assert all(tensor.equal(wanted[name]) for name, tensor in module.state_dict().items())
        results.append(found + losses(module, optimizer, 2))
        optimizer.close()
    assert results[0] == results[1]
    missing = dict(list(wanted.items())[1:], more=torch.ones(1))
    keys = outer.load_state_dict(missing, strict=False)
    assert keys.missing_keys == ["0.0.weight"] and keys.unexpected_keys == ["more"]
    error = raises(RuntimeError, lambda: outer.load_state_dict(dict(wanted, **{"0.0.weight": torch.ones(1)})))
    assert "size mismatch" in str(error)
    error = raises(nvswap.Error, lambda: outer.load_state_dict(wanted, assign=True), errno.EINVAL)
    assert "leave assign out" in str(error)
    raises(nvswap.Error, outer[0][1].weight.isfinite, errno.EINVAL)
    gc.collect()
    offloaded.load()
    offloaded.engine.close()


@promise
def a_parameter_of_two_names_in_a_module_loads_a_state_dict(directory):
    module = torch.nn.Linear(8, 8)
    module.again = module.weight
    wanted = {name: each + 1 for name, each in module.state_dict().items()}
    offloaded = nvswap.torch.offload(module, settings(directory))
    module.load_state_dict(wanted)
    raises(nvswap.Error, module.weight.isfinite, errno.EINVAL)
    assert all(each.equal(wanted[name]) for name, each in module.state_dict().items())
    offloaded.load()
    offloaded.engine.close()
    assert module.again is module.weight and module.weight.equal(wanted["weight"])


@promise
def a_state_dict_is_not_loaded_amid_a_forward(directory):
    data, errors = torch.ones(1, 8), []

    class Loads(torch.nn.Module):
        def forward(self, data):
            errors.append(raises(nvswap.Error, lambda: module.load_state_dict(wanted), errno.EBUSY))
            return data

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.loads = torch.nn.Linear(8, 8), Loads()

        def forward(self, data):
            return data @ self.inner.weight.T + self.loads(self.inner.bias)

    module = Outer()
    wanted, expected = copy.deepcopy(module.state_dict()), module.inner(data)
    offloaded = nvswap.torch.offload(module, settings(directory))
    assert torch.allclose(module(data), expected) and "while a forward computes with it" in str(errors[0])
    module.load_state_dict(wanted)
    gc.collect()
    offloaded.load()
    offloaded.engine.close()


@promise
def an_offloaded_module_is_converted_in_the_store(directory):
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    outer, data = torch.nn.Sequential(module), torch.arange(8.0).view(2, 4)
    module[0].bias.grad = torch.ones(4)
    offloaded = nvswap.torch.offload(module, settings(directory))
    expected = copy.deepcopy(module.state_dict())
    for change in (module.float, module.cpu, lambda: module.to(torch.float32)):
        assert change() is module
        assert module(data).equal(torch.nn.functional.batch_norm(torch.nn.functional.linear(
            data, expected["0.weight"], expected["0.bias"]), None, None, expected["1.weight"],
            expected["1.bias"], True))
    for change, dtype in ((outer.bfloat16, torch.bfloat16), (module.double, torch.float64),
                          (lambda: module.to(torch.float16), torch.float16)):
        change()
        expected = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor
                    for name, tensor in expected.items()}
        found = module.state_dict()
        assert all(tensor.equal(expected[name]) for name, tensor in found.items() if "weight" in name)
        assert module[1].running_mean.dtype is module[0].bias.grad.dtype is module[0].weight.dtype is dtype
        raises(nvswap.Error, module[0].weight.isfinite, errno.EINVAL)
        assert offloaded.engine["0.weight"].nbytes == 16 * dtype.itemsize
        output = module(data.to(dtype))
        assert output.dtype is dtype
        output.sum().backward()
        del output
    optimizer = nvswap.torch.AdamW(module.parameters(), config=settings(directory), offloaded=offloaded)
    error = raises(nvswap.Error, module.float, errno.EINVAL)
    assert "make the optimizer after that" in str(error)
    optimizer.close()
    error = raises(nvswap.Error, lambda: module.to("meta"), errno.EINVAL)
    assert "give offload() the device=" in str(error)
    gc.collect()
    offloaded.load()
    offloaded.engine.close()
    assert module.double()(data.double()).dtype is torch.float64


@promise
def a_conversion_that_fails_leaves_the_weights(directory):
    module = torch.nn.Linear(4, 4)
    expected = module.weight.clone()
    offloaded = nvswap.torch.offload(module, settings(directory))
    with offloaded.engine.pinned("weight"):
        raises(nvswap.Error, module.half, errno.EBUSY)
    assert set(offloaded.engine) == {"weight", "bias"}
    gc.collect()
    with mock.patch.object(offloaded.engine, "rename", side_effect=nvswap.Error(errno.ENOMEM, "no memory")):
        raises(nvswap.Error, module.half, errno.ENOMEM)
    assert module.half().state_dict()["weight"].equal(expected.half())
    assert module(torch.ones(4, dtype=torch.float16)).isfinite().all()
    offloaded.load()
    assert module.weight.equal(expected.half())
    offloaded.engine.close()


@promise
def a_module_larger_than_the_pool_is_refused_by_name(directory):
    large = torch.nn.Linear(1024, 1024)
    before = large.weight.clone()
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), large)
    config = settings(directory)
    config["zero_optimization"]["offload_param"]["buffer_size"] = 1024 * 1024 // 4
    config["zero_optimization"]["offload_param"]["max_in_cpu"] = 0
    error = raises(nvswap.Error, lambda: nvswap.torch.offload(module, config), errno.E2BIG)
    assert "module 1 has parameters of 4198400 bytes" in str(error) and "whole pool" in str(error)
    assert large.weight.equal(before) and module[0].weight.isfinite().all()
    tables = torch.nn.ParameterList(torch.ones(512, 1024) for _ in range(3))
    offloaded = nvswap.torch.offload(torch.nn.ModuleList([tables]), config)
    offloaded.load()
    offloaded.engine.close()


@promise
def forwards_that_need_more_than_the_pool_together_are_refused_by_name(directory):
    script = """
import os, torch
import nvswap.torch
from promises import raises, settings
class Calls(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(350, 350))
        self.inner = torch.nn.Linear(350, 350)
    def forward(self, data):
        return self.inner(data @ self.weight)
for module, data, names in (
        (torch.nn.MultiheadAttention(250, 2), [torch.ones(2, 250)] * 3, "MultiheadAttention, out_proj"),
        (Calls(), [torch.ones(350)], "Calls, inner")):
    config = settings(os.environ["DIRECTORY"])
    config["zero_optimization"]["offload_param"].update(buffer_count=1, buffer_size=225000)
    offloaded = nvswap.torch.offload(module, config)
    for _ in range(2):
        error = raises(nvswap.Error, lambda: module(*data), 7)
        assert f"of {names}, and the pool of" in str(error), error
    offloaded.load()
    offloaded.engine.close()
"""
    child(script, directory, 20)


@promise
def an_offload_that_fails_leaves_the_module_as_it_was(directory):
    class Failure(Exception):
        pass

    def fail(_name, _tensor):
        raise Failure

    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, device="meta"))
    before = module[0].weight.clone()
    raises(Failure, lambda: nvswap.torch.offload(module, settings(directory), initialize=fail))
    assert module[0].weight.equal(before)
    assert module[0](torch.ones(4)).isfinite().all()
    # The store is free again.
    nvswap.torch.offload(module[0], settings(directory)).engine.abandon()


@promise
def a_store_that_fails_amid_an_offload_leaves_the_module_as_it_was(directory):
    with torch.device("meta"):
        meta = torch.nn.Linear(4, 4)
    module = torch.nn.Sequential(meta, *(torch.nn.Linear(4, 4) for _ in range(2)))
    before = module[1].weight.clone()
    with nvswap.Engine(settings(directory), arrays="torch") as engine:
        engine.store_from = failing_at(3, engine.store_from)
        engine.load_to = failing_at(1, engine.load_to)
        error = raises(nvswap.Error, lambda: nvswap.torch.offload(
            module, settings(directory), engine=engine, initialize=lambda *_: None), errno.EIO)
        assert str(error) == "injected [EIO]"
        assert not len(engine)
    assert module[1].weight.equal(before) and module[0].weight.is_meta
    assert module[1:](torch.ones(4)).isfinite().all()


def failing_at(n, call):
    """Fails in the n-th call."""
    calls = iter(range(1, 100))

    def fails(*arguments):
        if next(calls) == n:
            raise nvswap.Error(errno.EIO, "injected")
        return call(*arguments)

    return fails


@promise
def an_offload_that_fails_leaves_no_tensor_in_the_callers_engine(directory):
    def fail(_name, tensor):
        tensor.fill_(1)
        try:
            raise KeyError("first")
        except KeyError:
            raise ZeroDivisionError from None

    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, device="meta"))
    with nvswap.Engine(settings(directory), arrays="torch") as engine:
        engine.register("own", "F32", 4)
        for _ in range(2):
            raises(ZeroDivisionError, lambda: nvswap.torch.offload(
                module, settings(directory), engine=engine, initialize=fail))
            assert list(engine) == ["own"]
        with engine.step():
            pass


@promise
def an_offload_that_fails_leaves_a_kept_store_as_it_was(directory):
    config = settings(directory, keep=True)
    nvswap.torch.offload(torch.nn.Linear(4, 4), config).engine.close()
    with nvswap.Engine(config) as engine:
        before = engine.stored()
    module = torch.nn.Linear(4, 4)
    module.bias = torch.nn.Parameter(torch.empty(4, device="meta"))
    raises(nvswap.Error, lambda: nvswap.torch.offload(module, config), errno.EINVAL)
    with nvswap.Engine(config) as engine:
        assert len(before) == 2 and engine.stored() == before


def two_modules():
    torch.manual_seed(1)
    first = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(2)))
    return first, torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(8, 8)))


@promise
def modules_of_one_engine_are_trained_as_in_memory_in_its_steps(directory):
    modules, data = two_modules(), torch.ones(2, 8)
    plain = copy.deepcopy(modules)
    with nvswap.Engine(settings(directory), arrays="torch") as engine:
        begin, begun = engine._begin_step, []
        engine._begin_step = lambda: begun.append(begin())
        offloaded = [nvswap.torch.offload(each, settings(directory), engine=engine)
                     for each in modules]
        for _ in range(3):
            for first, second in modules, plain:
                second(first(data)).square().sum().backward()
        for each, other in zip(modules, plain):
            for one, two in zip(each.parameters(), other.parameters()):
                assert one.grad.equal(two.grad)
        assert len(begun) == 3
        # Forwards alone, of one module and of both.
        for each in (*modules, *modules, modules[1]):
            each(data)
        assert len(begun) == 6
        gc.collect()
        for each in offloaded:
            for call in engine.step_begin, engine.step_end, engine.step().__enter__:
                error = raises(nvswap.Error, call, errno.EBUSY)
                assert "offloaded module" in str(error)
            each.load()
            each.load()
        with engine.step():
            pass
        assert modules[1](modules[0](data)).equal(plain[1](plain[0](data)))


@promise
def a_forward_within_one_of_another_module_of_the_engine_has_its_parameters(directory):
    class Outer(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.eye(8))
            self.inner = [inner]

        def forward(self, data):
            return self.inner[0](data @ self.weight) + self.inner[0][0][0].bias

    inner = two_modules()[1]
    outer, data = Outer(inner), torch.ones(2, 8)
    plain = copy.deepcopy(outer)
    with nvswap.Engine(settings(directory), arrays="torch") as engine:
        offloaded = [nvswap.torch.offload(each, settings(directory), engine=engine)
                     for each in (outer, inner)]
        for _ in range(2):
            for each in outer, plain:
                each(data).square().sum().backward()
        assert outer.weight.grad.equal(plain.weight.grad)
        assert inner[0][0].bias.grad.equal(plain.inner[0][0][0].bias.grad)
        gc.collect()
        for each in offloaded:
            each.load()


@promise
def a_module_is_not_offloaded_to_an_engine_amid_a_step_of_the_program(directory):
    module = torch.nn.Linear(4, 4)
    with nvswap.Engine(settings(directory), arrays="torch") as engine:
        with engine.step():
            error = raises(nvswap.Error, lambda: nvswap.torch.offload(
                module, settings(directory), engine=engine), errno.EBUSY)
            assert "end it before" in str(error) and not len(engine)
        offloaded = nvswap.torch.offload(module, settings(directory), engine=engine)
        module(torch.ones(4))
        # A module that is gone leaves the steps to the program.
        del module, offloaded, error
        gc.collect()
        with engine.step():
            pass


@promise
def an_offloaded_module_is_not_given_other_memory(directory):
    module, data = torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.ones(4)
    expected = module(data)
    offloaded = nvswap.torch.offload(module, settings(directory))
    for each in module, module[0]:
        for call in each.share_memory, lambda each=each: each.to_empty(device="cpu"):
            error = raises(nvswap.Error, call, errno.EINVAL)
            assert "can't be given other memory" in str(error)
        each.float().to("cpu").to(memory_format=torch.contiguous_format)
    assert module(data).equal(expected)
    gc.collect()
    offloaded.load()
    offloaded.engine.close()
    module.share_memory()


@promise
def a_load_that_fails_leaves_the_module_offloaded(directory):
    module, data = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(2))), torch.ones(4)
    expected = module(data)
    offloaded = nvswap.torch.offload(module, settings(directory))
    offloaded.engine.load_to = failing_at(2, offloaded.engine.load_to)
    module(data)
    raises(nvswap.Error, offloaded.load, errno.EIO)
    assert module(data).equal(expected)
    assert module.state_dict()["0.weight"].isfinite().all()
    gc.collect()
    offloaded.load()
    assert module(data).equal(expected) and module[1].weight.isfinite().all()
    offloaded.engine.close()
    offloaded = nvswap.torch.offload(module, settings(directory))
    offloaded.engine.close()
    raises(nvswap.ClosedError, offloaded.load)
    raises(nvswap.ClosedError, module.state_dict)
    raises(nvswap.ClosedError, lambda: module(data))


@promise
def what_reads_a_parameter_outside_of_forwards_is_refused(directory):
    class Recomputes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, data):
            return torch.utils.checkpoint.checkpoint(
                lambda data: torch.tanh(data @ self.linear.weight), data, use_reentrant=False)

    module = Recomputes()
    offloaded = nvswap.torch.offload(module, settings(directory))
    loss = module(torch.ones(4, 4)).sum()
    assert "linear.weight" in str(raises(nvswap.Error, loss.backward, errno.EINVAL))
    raises(nvswap.Error, lambda: copy.deepcopy(module), errno.EINVAL)
    del loss
    gc.collect()
    offloaded.load()
    offloaded.engine.close()
    for compute in (torch.nn.utils.weight_norm, torch.nn.utils.parametrizations.weight_norm,
                    lambda module: torch.nn.utils.prune.l1_unstructured(module, "weight", 2)):
        named = torch.nn.Sequential(torch.nn.ReLU(), compute(torch.nn.Linear(4, 4)))
        error = raises(nvswap.Error, lambda named=named: nvswap.torch.offload(
            named, settings(directory)), errno.EINVAL)
        assert "module 1 " in str(error)


@promise
def several_threads_may_run_forwards(directory):
    module, data = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(2))), torch.ones(16)
    expected, failures = module(data), []
    offloaded = nvswap.torch.offload(module, settings(directory))

    def run():
        for _ in range(100):
            try:
                if not module(data).equal(expected):
                    failures.append("another result")
            except nvswap.Error as error:
                failures.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[:3]
    offloaded.load()
    offloaded.engine.close()


@promise
def a_forward_leaves_a_parameter_that_another_has_pinned(directory):
    module, seen = torch.nn.Linear(4, 4), []
    offloaded = nvswap.torch.offload(module, settings(directory))

    def within(*_):
        seen.append(module.weight.untyped_storage()._cdata)
        if len(seen) == 1:
            thread = threading.Thread(target=lambda: module(torch.ones(4)))
            thread.start()
            thread.join()
            seen.append(module.weight.untyped_storage()._cdata)

    forward = torch.nn.functional.linear
    torch.nn.functional.linear = lambda *arguments: (within(), forward(*arguments))[1]
    module(torch.ones(4))
    torch.nn.functional.linear = forward
    assert len(seen) == 3 and len(set(seen)) == 1
    gc.collect()
    offloaded.load()
    offloaded.engine.close()


@promise
def several_threads_finish_the_weights_of_one_tensor(directory):
    module = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    offloaded = nvswap.torch.offload(module, settings(directory))
    optimizer = nvswap.torch.AdamW(module.parameters(), config=settings(directory), offloaded=offloaded)
    data = torch.randn(8, 512)
    for _ in range(3):
        torch.nn.functional.mse_loss(module(data), data).backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.close()
    offloaded.load()
    offloaded.engine.close()


@promise
def parameters_on_the_meta_device_are_made_in_the_pool(directory):
    with torch.device("meta"):
        module = model()

    def initialize(_name, tensor):
        tensor.fill_(0.01)

    offloaded = nvswap.torch.offload(module, settings(directory), initialize=initialize)
    output = module(torch.zeros(1, 4, dtype=torch.long))
    assert output.isfinite().all()
    del output
    offloaded.load()
    assert all((parameter == 0.01).all() for parameter in module.parameters())
    offloaded.engine.close()


@promise
def buffers_on_the_meta_device_are_made_in_memory(directory):
    with torch.device("meta"):
        module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    values = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).state_dict()
    offloaded = nvswap.torch.offload(module, settings(directory),
                                     initialize=lambda name, tensor: tensor.copy_(values[name]))
    assert module(torch.rand(3, 4)).isfinite().all() and module[1].num_batches_tracked == 1
    offloaded.load()
    offloaded.engine.close()
    with torch.device("meta"):
        module = torch.nn.BatchNorm1d(4, affine=False)
    module.weight = torch.nn.Parameter(torch.ones(4))
    error = raises(nvswap.Error, lambda: nvswap.torch.offload(module, settings(directory)), errno.EINVAL)
    assert "running_mean is on the meta device" in str(error)


@promise
def one_directory_serves_any_number_of_modules_and_optimizers(directory):
    modules = [torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Linear(10, 1)) for _ in range(2)]
    offloaded = [nvswap.torch.offload(module, directory) for module in modules]
    more = torch.nn.Linear(10, 10)
    optimizers = [*(nvswap.torch.AdamW(module.parameters(), config=directory, offloaded=own)
                    for module, own in zip(modules, offloaded)),
                  nvswap.torch.AdamW(more.parameters(), config=directory)]
    for module, optimizer in zip([*modules, more], optimizers):
        module(torch.ones(3, 10)).sum().backward()
        optimizer.step()
    error = raises(nvswap.Error, lambda: nvswap.torch.AdamW(modules[0].parameters(), config=directory))
    assert "as offloaded=" in str(error)
    error = raises(nvswap.Error, lambda: nvswap.torch.park(modules[0], directory), errno.EINVAL)
    assert "on the drive already" in str(error)
    for optimizer in optimizers:
        optimizer.close()
    gc.collect()
    for own in offloaded:
        own.load()
        own.engine.close()
    assert not os.listdir(directory)
    error = raises(nvswap.Error, lambda: nvswap.torch.AdamW(more.parameters(), config="/proc/self"))
    assert "no directory can be made below /proc/self" in str(error)


@promise
def autocast_keeps_no_copies_of_offloaded_parameters(directory):
    module, within, functional = torch.nn.Linear(16, 16), [], torch.nn.functional.linear
    offloaded = nvswap.torch.offload(module, settings(directory))

    def linear(*args):
        within.append(torch.is_autocast_cache_enabled())
        return functional(*args)

    with mock.patch.object(torch.nn.functional, "linear", linear), torch.autocast("cpu", torch.bfloat16):
        assert module(torch.ones(16)).dtype is torch.bfloat16
    assert within == [False] and torch.is_autocast_cache_enabled()
    gc.collect()
    offloaded.load()
    offloaded.engine.close()


@promise
def tied_parameters_on_the_meta_device_stay_tied_and_frozen(directory):
    with torch.device("meta"):
        module = torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(3)))
        module[2].weight = module[0].weight
        module[1].weight.requires_grad_(False)
    offloaded = nvswap.torch.offload(module, settings(directory), initialize=lambda name, tensor:
                                     tensor.fill_(2 if name == "0.weight" else 3))
    assert (module(torch.ones(4)) == 8 * 12 * 8).all()
    assert module[0].weight is module[2].weight
    assert [each.weight.requires_grad for each in module] == [True, False, True]
    gc.collect()
    offloaded.load()
    offloaded.engine.close()


@promise
def a_parameter_stays_until_the_last_forward_that_has_it_ends(directory):
    class Shares(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 4))
            self.inner = torch.nn.Linear(4, 4)
            self.inner.weight = self.weight

        def forward(self, data):
            weight = self.weight
            return self.inner(data) @ weight

    module, data = Shares(), torch.ones(4)
    expected = module(data)
    offloaded = nvswap.torch.offload(module, settings(directory))
    assert torch.equal(module(data), expected)
    gc.collect()
    offloaded.load()
    offloaded.engine.close()


@promise
def a_module_is_as_before_when_it_is_loaded(directory):
    module = torch.nn.Linear(4, 6)
    module.weight = torch.nn.Parameter(torch.arange(24.0).view(4, 6).t())
    before = copy.deepcopy(module)
    engine = nvswap.Engine(settings(directory))
    offloaded = nvswap.torch.offload(module, settings(directory), engine=engine)
    assert torch.equal(module(torch.ones(4)), before(torch.ones(4)))
    offloaded.load()
    assert all(torch.equal(*each) for each in zip(copy.deepcopy(module).parameters(),
                                                  before.parameters()))
    with engine.step():
        pass
    engine.close()


@promise
def an_offload_that_fails_leaves_the_callers_engine_open(directory):
    module = torch.nn.Linear(4, 4)
    module.numbers = torch.nn.Parameter(torch.ones(3, dtype=torch.long), requires_grad=False)
    with nvswap.Engine(settings(directory)) as engine:
        error = raises(nvswap.Error, lambda: nvswap.torch.offload(
            module, settings(directory), engine=engine), errno.EINVAL)
        assert "parameter numbers is torch.int64" in str(error)
        assert not engine.closed


@promise
def what_can_not_work_is_refused(directory):
    class Returns(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(10))

        def forward(self, within):
            return within(self.weight[2:])

    module = Returns()
    offloaded = nvswap.torch.offload(module, settings(directory))
    for within in (lambda weight: weight, lambda weight: {"a": [(1, weight)]}):
        raises(nvswap.Error, lambda within=within: module(within), errno.EINVAL)
    outer = torch.nn.Sequential(module)
    error = raises(nvswap.Error, lambda: nvswap.torch.offload(outer, settings(directory + "/o")))
    assert "module 0 is offloaded already" in str(error)
    tied = torch.nn.Module()
    tied.weight = module.weight
    error = raises(nvswap.Error, lambda: nvswap.torch.offload(tied, None, engine=offloaded.engine))
    assert "parameter weight is offloaded already" in str(error)
    raises(nvswap.Error, module.weight.isfinite, errno.EINVAL)
    assert module.weight.shape == (10,)
    gc.collect()
    offloaded.load()
    offloaded.engine.close()
    with torch.device("meta"):
        meta = torch.nn.Linear(3, 3)
    raises(nvswap.Error, lambda: nvswap.torch.offload(meta, settings(directory)), errno.EINVAL)
    with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
        raises(ValueError, lambda: file.pwrite(torch.zeros(4, 4).t()[1:]))
        raises(ValueError, lambda: file.pwrite(torch.zeros(4, device="meta")))
        raises(ValueError, lambda: file.pwrite(torch.ones(4, dtype=torch.complex64).conj()))
        assert file.pwrite(torch.ones(100, dtype=torch.bfloat16)).wait() == 200


@promise
def elements_that_are_not_in_memory_can_not_be_used_in_silence(directory):
    module = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 1))
    wanted, kinds = copy.deepcopy(module), [type(each) for each in module.parameters()]
    offloaded = nvswap.torch.offload(module, settings(directory))
    weight, data = module[0].weight, torch.ones(2, 16)

    def set_data():
        weight.data = torch.ones(16, 16)

    for use in (lambda: weight + 1, lambda: data @ weight, weight.norm, weight.clone, lambda: weight[0], weight.tolist,
                lambda: weight.detach().numpy(), lambda: weight.data.mul_(2), lambda: weight.T.sum(),
                lambda: torch.nn.init.normal_(weight), lambda: torch.stack([weight]),
                lambda: torch.equal(weight, weight), lambda: torch.nn.functional.linear(input=data, weight=weight),
                lambda: copy.deepcopy(weight),
                lambda: torch.save(dict(module.named_parameters()), io.BytesIO()), set_data,
                lambda: torch.ones(16, 16).copy_(weight), lambda: weight.type(torch.float16),
                lambda: torch.optim.swa_utils.get_ema_multi_avg_fn()(
                    [torch.ones(16, 16)], [weight], 1)):
        error = raises(nvswap.Error, use, errno.EINVAL)
        assert "parameter 0.weight is not in memory" in str(error) and "load()" in str(error)
    assert repr(weight) == f"{weight}" == "0.weight: torch.float32 of [16, 16] on cpu, not in memory"
    # What needs no elements is as in memory.
    like = wanted[0].weight
    for of in ("shape", "dtype", "device", "requires_grad", "is_leaf", "grad", "ndim", "nbytes", "layout", "is_meta"):
        assert getattr(weight, of) == getattr(like, of), of
    assert weight.numel() == 256 and weight.size(0) == len(weight) == 16 and weight.is_floating_point()
    assert weight.type() == like.type() and weight.new_tensor([1.0]).item() == 1 and "shape" in dir(weight)
    assert weight.data.dtype is weight.detach().dtype is torch.float32 and torch.zeros_like(weight).sum() == 0
    assert isinstance(weight, torch.nn.Parameter) and module.requires_grad_() is module
    torch.optim.AdamW(module.parameters()).zero_grad()
    hook = weight.register_hook(lambda grad: 2 * grad)
    module(data).sum().backward()
    wanted(data).sum().backward()
    hook.remove()
    assert torch.equal(weight.grad, 2 * wanted[0].weight.grad) and torch.equal(module[0].bias.grad, wanted[0].bias.grad)
    assert torch.nn.utils.clip_grad_norm_(module.parameters(), 1) > 1
    (grad,) = torch.autograd.grad(module(data).sum(), [module[0].bias])
    assert torch.equal(grad, wanted[0].bias.grad)
    del grad
    gc.collect()
    offloaded.load()
    offloaded.engine.close()
    assert [type(each) for each in module.parameters()] == kinds
    assert all(map(torch.equal, module.parameters(), wanted.parameters()))


@promise
def a_trace_or_an_export_of_an_offloaded_module_is_refused(directory):
    data = torch.ones(2, 16)
    for outer in (torch.nn.Identity(), None):
        module = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU())
        offloaded = nvswap.torch.offload(module, settings(directory))
        traced = module if outer is None else torch.nn.Sequential(outer, module)
        for call in (torch.jit.trace, lambda module, data: torch.export.export(module, (data,))):
            error = raises(nvswap.Error, lambda call=call, traced=traced: call(traced, data), errno.EINVAL)
            assert "can't be traced or exported" in str(error)
        assert torch.equal(torch.compile(module, backend="eager")(data), module(data))
        gc.collect()
        offloaded.load()
        offloaded.engine.close()
        assert torch.jit.trace(traced, data)(data).isfinite().all()


@promise
def an_offloaded_module_is_neither_transformed_nor_scripted(directory):
    script = """
import os, torch
import nvswap.torch
from promises import raises, settings
module, data = torch.nn.Linear(4, 4), torch.ones(4)
expected = module(data)
offloaded = nvswap.torch.offload(module, settings(os.environ["DIRECTORY"]))
def total(data):
    return module(data).sum()
for call in (lambda: torch.func.grad(total)(data), lambda: torch.func.jvp(total, (data,), (data,)),
             lambda: torch.vmap(module)(data.view(1, 4)), lambda: torch.func.vjp(total, data),
             lambda: torch.func.jacrev(total)(data)):
    error = raises(nvswap.Error, call, 22)
    assert "can't be called in a transform of torch.func" in str(error)
for whole in (module, torch.nn.Sequential(module)):
    assert "can't be scripted" in str(raises(nvswap.Error, lambda: torch.jit.script(whole), 22))
assert torch.equal(module(data), expected)
offloaded.load()
offloaded.engine.close()
assert torch.func.grad(total)(data).isfinite().all()
assert torch.equal(torch.jit.script(module)(data), expected)
"""
    child(script, directory)


@promise
def distributed_data_parallel_comes_after_offload(directory):
    parallel, data = torch.nn.parallel.DistributedDataParallel, torch.ones(2, 16)
    torch.distributed.init_process_group("gloo", f"file://{directory}/ranks", rank=0, world_size=1)
    for outside in (lambda module: module, lambda module: torch.nn.Sequential(torch.nn.Identity(), module)):
        module = torch.nn.Linear(16, 16)
        before = parallel(outside(module))
        for whole in (before, torch.nn.Sequential(before)):
            assert "call offload() first" in str(raises(
                nvswap.Error, lambda whole=whole: nvswap.torch.offload(whole, settings(directory)),
                errno.EINVAL))
        offloaded = nvswap.torch.offload(module, settings(directory))
        assert "call offload() first" in str(raises(nvswap.Error, lambda before=before: before(data),
                                                    errno.EINVAL))
        assert "smallest=N" in str(raises(nvswap.Error, lambda outside=outside, module=module: parallel(
            outside(module)), errno.EINVAL))
        # It may be called within another one that does not train it.
        outer = torch.nn.Linear(16, 16)
        outer.register_forward_hook(lambda *_, module=module: module(data))
        assert torch.equal(parallel(outer)(data), module(data))
        gc.collect()
        offloaded.load()
        offloaded.engine.close()
        parallel(outside(module))(data)
    torch.distributed.destroy_process_group()


@promise
def fully_sharded_data_parallel_can_not_be_offloaded(directory):
    from torch.distributed.fsdp import FullyShardedDataParallel
    torch.distributed.init_process_group("gloo", f"file://{directory}/ranks", rank=0, world_size=1)
    module = torch.nn.Sequential(torch.nn.Identity(), FullyShardedDataParallel(
        torch.nn.Linear(4, 4), device_id=torch.device("cpu")))
    expected = module(torch.ones(4))
    error = raises(nvswap.Error, lambda: nvswap.torch.offload(module, settings(directory)),
                   errno.EINVAL)
    assert "module 1 is a FullyShardedDataParallel" in str(error)
    assert torch.equal(module(torch.ones(4)), expected)
    torch.distributed.destroy_process_group()


main()
