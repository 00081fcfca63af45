#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nvswap.torch.AdamW: closures, gradients and weights piece by piece. Needs torch."""

import copy
import errno
import gc
import pickle
import resource
import weakref

import torch

from promises import main, promise, raises, settings
import nvswap
import nvswap.torch


def small_groups(directory, **more):
    """Settings that cut a parameter into groups of 1536 elements at most."""
    config = settings(directory, **more)
    config["zero_optimization"]["sub_group_size"] = 1536
    return config


def linear(dtype=torch.float32):
    torch.manual_seed(1)
    return torch.nn.Linear(64, 64).to(dtype)


def trained(module, optimizer):
    data = torch.linspace(-1, 1, 640).view(10, 64).to(module.weight.dtype)
    for _ in range(3):
        module(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def weights_of(module, offloaded):
    """Copies, after the end of the offload."""
    gc.collect()
    offloaded.load()
    offloaded.engine.close()
    return [parameter.detach().clone() for parameter in module.parameters()]


def store_of(optimizer):
    """The nvswap.Optimizer of one that has a single store."""
    store, = optimizer.stores
    return store.optimizer


def steps_of(optimizer):
    return store_of(optimizer).step_count


def step_of(module, optimizer):
    module(torch.ones(1, 64)).sum().backward()
    return optimizer.step


@promise
def an_offloaded_module_and_its_optimizer_are_freed_when_they_are_dropped(directory):
    def used():
        module, config = linear(), settings(directory)
        offloaded = nvswap.torch.offload(module, config)
        optimizer = nvswap.torch.AdamW(module.parameters(), config=config, offloaded=offloaded)
        trained(module, optimizer)
        return weakref.ref(module), weakref.ref(optimizer)

    # The second opens the stores of the first.
    for _ in range(2):
        module, optimizer = used()
        gc.collect()
        assert module() is None and optimizer() is None


@promise
def a_module_whose_optimizer_was_dropped_can_have_another(directory):
    module, config = linear(), settings(directory)
    offloaded = nvswap.torch.offload(module, config)
    for _ in range(2):
        optimizer = nvswap.torch.AdamW(module.parameters(), config=config, lr=0.01, offloaded=offloaded)
        trained(module, optimizer)
        assert steps_of(optimizer) == 3
        del optimizer
        gc.collect()
    offloaded.load()
    offloaded.engine.close()


@promise
def a_setting_that_is_out_of_bounds_is_refused_by_its_name(directory):
    nan = float("nan")
    for setting, value, named in (
            ("lr", nan, "lr is nan"), ("lr", -1, "lr is -1"), ("lr", float("inf"), "lr is inf"),
            ("eps", -1, "eps is -1"), ("weight_decay", nan, "weight_decay is nan"),
            ("betas", (0.9, 1), "beta2 is 1"), ("betas", (0.9,), "betas are two numbers")):
        error = raises(nvswap.Error, lambda setting=setting, value=value: nvswap.torch.AdamW(
            linear().parameters(), config=settings(directory), **{setting: value}), errno.EINVAL)
        assert named in str(error), error


@promise
def a_step_that_would_not_reach_the_parameters_is_refused(directory):
    module, config = linear(), settings(directory)
    before = nvswap.torch.AdamW(module.parameters(), config=config, lr=0.01)
    offloaded = nvswap.torch.offload(module, config)
    assert "has become another" in str(raises(nvswap.Error, step_of(module, before), errno.EINVAL))
    before.close()
    offloaded.load()
    offloaded.engine.close()


@promise
def a_module_that_was_loaded_back_is_trained_on_by_its_optimizer(directory):
    module, theirs, config = linear(), linear(), settings(directory)
    offloaded = nvswap.torch.offload(module, config)
    optimizer = nvswap.torch.AdamW(module.parameters(), config=config, lr=0.01, offloaded=offloaded)
    trained(module, optimizer)
    gc.collect()
    offloaded.load()
    trained(module, optimizer)
    optimizer.close()
    offloaded.engine.close()
    in_memory = torch.optim.AdamW(theirs.parameters(), lr=0.01)
    trained(theirs, in_memory)
    trained(theirs, in_memory)
    for found, expected in zip(module.parameters(), theirs.parameters()):
        assert torch.allclose(found, expected, atol=1e-6)


@promise
def an_offloaded_module_has_one_optimizer_at_a_time(directory):
    module, config = linear(), settings(directory)
    offloaded = nvswap.torch.offload(module, config)

    def made():
        return nvswap.torch.AdamW(module.parameters(), config=config, lr=0.01, offloaded=offloaded)

    first = made()
    raises(nvswap.Error, made, errno.EBUSY)
    first.close()
    trained(module, made())


@promise
def a_parameter_of_several_groups_is_stepped_as_in_memory(directory):
    ours, theirs = linear(), linear()
    offloaded = nvswap.torch.offload(ours, settings(directory))
    with_store = nvswap.torch.AdamW(ours.parameters(), config=small_groups(directory), lr=0.01,
                                    offloaded=offloaded)
    assert len(store_of(with_store).groups) == 4
    in_memory = torch.optim.AdamW(theirs.parameters(), lr=0.01)
    trained(ours, with_store)
    trained(theirs, in_memory)
    with_store.close()
    for found, expected in zip(weights_of(ours, offloaded), theirs.parameters()):
        assert torch.allclose(found, expected, atol=1e-6)


@promise
def offloaded_weights_of_16_bits_are_taken_from_a_kept_store(directory):
    first, second = linear(torch.bfloat16), linear(torch.bfloat16)
    torch.nn.init.zeros_(second.weight)
    results = []
    for module in (first, second):
        offloaded = nvswap.torch.offload(module, settings(directory))
        optimizer = nvswap.torch.AdamW(module.parameters(), config=small_groups(directory, keep=True),
                                       lr=0.01, offloaded=offloaded)
        if module is first:
            trained(module, optimizer)
        optimizer.close()
        results.append(weights_of(module, offloaded))
    assert all(torch.equal(*pair) for pair in zip(*results))
    assert results[0][0].any()


@promise
def a_commit_makes_the_steps_before_it_durable(directory):
    steps = []
    for commit in (True, False):
        module = linear()
        optimizer = nvswap.torch.AdamW(module.parameters(), config=settings(directory, keep=True), lr=0.01)
        steps.append(steps_of(optimizer))
        trained(module, optimizer)
        if commit:
            optimizer.commit()
        store_of(optimizer).abandon()
    optimizer = nvswap.torch.AdamW(module.parameters(), config=settings(directory, keep=True), lr=0.01)
    assert [*steps, steps_of(optimizer)] == [0, 3, 3]
    optimizer.close()


@promise
def an_optimizer_is_not_copied_or_pickled(directory):
    optimizer = nvswap.torch.AdamW(linear().parameters(), config=settings(directory))
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        assert "state_dict()" in str(raises(TypeError, lambda copied=copied: copied(optimizer)))
    optimizer.close()


@promise
def a_closure_has_gradients_and_its_loss_is_returned(directory):
    module = linear()
    before = module.weight.clone()
    optimizer = nvswap.torch.AdamW(module.parameters(), config=settings(directory), lr=0.01)

    def closure():
        loss = module(torch.ones(64)).sum()
        loss.backward()
        return loss

    with torch.no_grad():
        loss = optimizer.step(closure)
    assert loss.item() != 0 and not module.weight.equal(before)
    optimizer.close()


@promise
def zero_grad_drops_gradients_of_offloaded_parameters(directory):
    module = linear()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    offloaded = nvswap.torch.offload(module, settings(directory))
    optimizer = nvswap.torch.AdamW(module.parameters(), config=settings(directory), lr=0.01,
                                   weight_decay=0, offloaded=offloaded)
    module(torch.ones(64)).sum().backward()
    optimizer.zero_grad()
    optimizer.step()
    optimizer.close()
    assert all(torch.equal(*pair) for pair in zip(weights_of(module, offloaded), before))


@promise
def a_gradient_in_another_order_of_elements_is_stepped_as_in_memory(directory):
    gradient, weights = torch.arange(-2048.0, 2048).view(64, 64).t(), []
    for make in (lambda parameters: nvswap.torch.AdamW(parameters, config=small_groups(directory), lr=0.01),
                 lambda parameters: torch.optim.AdamW(parameters, lr=0.01)):
        module = linear()
        optimizer = make([module.weight])
        module.weight.grad = gradient
        optimizer.step()
        weights.append(module.weight.detach())
    assert torch.allclose(*weights, atol=1e-6)


def two_parts():
    """Two layers; the first is trained in each step, the other in some."""
    torch.manual_seed(1)
    return torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(2))


def trained_in_parts(module, optimizer, steps):
    for step in steps:
        loss = module[0](torch.ones(64)).square().mean()
        if step in (3, 4, 8):
            loss = loss + module[1](torch.ones(64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def parts_as_torch():
    module = two_parts()
    trained_in_parts(module, torch.optim.AdamW(module.parameters(), lr=0.01), range(9))
    return list(module.parameters())


@promise
def a_parameter_counts_the_steps_in_which_it_has_gradients(directory):
    for offloads in (False, True):
        module = two_parts()
        offloaded = nvswap.torch.offload(module, settings(directory)) if offloads else None
        optimizer = nvswap.torch.AdamW(module.parameters(), config=small_groups(directory), lr=0.01,
                                       offloaded=offloaded)
        trained_in_parts(module, optimizer, range(9))
        optimizer.close()
        found = weights_of(module, offloaded) if offloads else module.parameters()
        for ours, theirs in zip(found, parts_as_torch()):
            assert torch.allclose(ours, theirs, atol=1e-6), offloads


@promise
def a_step_whose_weights_were_not_written_is_counted(directory):
    def fail(*_, **__):
        raise KeyError("swap_in")

    module = two_parts()
    offloaded = nvswap.torch.offload(module, settings(directory))
    optimizer = nvswap.torch.AdamW(module.parameters(), config=settings(directory), offloaded=offloaded)
    swap_in = offloaded.engine.swap_in
    module[0](torch.ones(64)).sum().backward()
    offloaded.engine.swap_in = fail
    raises(KeyError, optimizer.step)
    offloaded.engine.swap_in = swap_in
    assert [number for number, state in optimizer.state_dict()["state"].items()
            if state["step"] == 1] == [0, 1]
    optimizer.close()
    weights_of(module, offloaded)


@promise
def a_step_that_failed_is_finished_by_a_later_call(directory):
    def layer():
        torch.manual_seed(1)
        return torch.nn.Linear(512, 1024)

    def stepped(optimizer):
        """Whether the step is finished; writes that failed behind are told of by later calls."""
        try:
            optimizer.step()
        except nvswap.Error as error:
            assert error.errno == errno.EFBIG, error
        return not store_of(optimizer).info()["unfinished"]

    module, theirs = layer(), layer()
    optimizer = nvswap.torch.AdamW(module.parameters(), config=settings(directory), lr=0.01)
    for each in (module, theirs):
        each(torch.ones(512)).square().mean().backward()
    torch.optim.AdamW(theirs.parameters(), lr=0.01).step()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        assert not stepped(optimizer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    # Some of the state is that of this step, and some of the one before.
    for torn in (optimizer.state_dict, optimizer.consolidate_state_dict):
        assert raises(nvswap.Error, torn).errno == errno.EBUSY
    assert any(stepped(optimizer) for _ in range(9))
    assert {state["step"].item() for state in optimizer.state_dict()["state"].values()} == {1}
    optimizer.close()
    for ours, other in zip(module.parameters(), theirs.parameters()):
        assert torch.allclose(ours, other, atol=1e-6)


@promise
def a_state_dict_has_the_steps_of_each_parameter(directory):
    def opened():
        return nvswap.torch.AdamW(module.parameters(), config=small_groups(directory, keep=True), lr=0.01)

    module = two_parts()
    first = opened()
    trained_in_parts(module, first, range(5))
    state = first.state_dict()
    first.close()
    second = opened()
    second.load_state_dict(state)
    assert second.state_dict() == state
    trained_in_parts(module, second, range(5, 9))
    for ours, theirs in zip(module.parameters(), parts_as_torch()):
        assert torch.allclose(ours, theirs, atol=1e-6)
    steps = [state["step"].item() for state in second.state_dict()["state"].values()]
    assert steps == [9, 9, 3, 3]
    raises(nvswap.Error, lambda: second.load_state_dict(state), errno.ESTALE)
    second.close()


@promise
def parameters_of_another_module_than_the_offloaded_one_are_refused(directory):
    module, other, config = linear(), linear(), settings(directory)
    offloaded = nvswap.torch.offload(module, config)
    error = raises(nvswap.Error, lambda: nvswap.torch.AdamW(
        other.parameters(), config=config, offloaded=offloaded), errno.EINVAL)
    assert "no parameter is of the module of `offloaded`" in str(error)
    both = [*other.parameters(), *module.parameters()]
    optimizer = nvswap.torch.AdamW(both, config=config, offloaded=offloaded)
    before = other.weight.detach().clone()
    other(module(torch.ones(1, 64))).sum().backward()
    optimizer.step()
    assert not torch.equal(before, other.weight)
    weights = weights_of(module, offloaded)
    assert not torch.equal(weights[0], linear().weight)


main()
