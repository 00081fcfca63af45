#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nvswap.torch.AdamW in place of torch.optim.AdamW in loops that people have. Needs torch."""

import copy
import errno
import os
from unittest import mock

import torch
import torch.distributed.checkpoint.state_dict as dcp

from promises import main, promise, raises, settings
import nvswap
import nvswap.torch


def model(dtype=torch.float32):
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Embedding(50, 32), torch.nn.Linear(32, 32), torch.nn.LayerNorm(32),
        torch.nn.GELU(), torch.nn.Linear(32, 50)).to(dtype)


def decayed(module):
    """The groups that most scripts have: weights are decayed, biases and norms are not."""
    parameters = list(module.parameters())
    return [{"params": [each for each in parameters if each.dim() > 1], "weight_decay": 0.3},
            {"params": [each for each in parameters if each.dim() <= 1], "weight_decay": 0.0,
             "lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-6}]


def loss_of(module, seed):
    tokens = torch.randint(50, (4, 8), generator=torch.Generator().manual_seed(seed))
    output = module(tokens)
    return torch.nn.functional.cross_entropy(output.flatten(0, 1).float(), tokens.flatten())


def trained(module, optimizer, steps=range(6), before_step=None, after=None):
    losses = []
    for step in steps:
        loss = loss_of(module, step)
        loss.backward()
        if before_step:
            before_step(step)
        optimizer.step()
        optimizer.zero_grad()
        if after:
            after(step)
        losses.append(loss.item())
    return losses


def pair(directory, dtype=torch.float32, groups=decayed, ours=None, theirs=None, **more):
    """Two equal models, each with its optimizer: that of nvswap is made first."""
    ours, theirs = ours or nvswap.torch.AdamW, theirs or torch.optim.AdamW
    first, second = model(dtype), model(dtype)
    return ((first, ours(groups(first), lr=0.01, config=settings(directory), **more)),
            (second, theirs(groups(second), lr=0.01, **more)))


def assert_close(first, second, atol=1e-5):
    for ours, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=atol), (ours - theirs).abs().max()


def clamp_data(module):
    for parameter in module.parameters():
        parameter.data.clamp_(-0.02, 0.02)


def change_data(module):
    module[1].weight.data[3:].fill_(0.25)


def give_data(module):
    module[1].weight.data = torch.full((32, 32), 0.125, dtype=module[1].weight.dtype)


def halve_as_one_vector(module):
    vector = torch.nn.utils.parameters_to_vector(module.parameters())
    torch.nn.utils.vector_to_parameters(vector * 0.5, module.parameters())


@promise
def a_change_of_the_data_of_a_weight_counts_in_the_next_step(directory):
    for change in (clamp_data, change_data, give_data, halve_as_one_vector):
        (first, ours), (second, _) = pair(directory)
        trained(first, ours, range(2))
        change(first)
        # Its masters begin as the changed weights.
        second.load_state_dict(first.state_dict())
        other = nvswap.torch.AdamW(decayed(second), lr=0.01, config=settings(directory))
        other.load_state_dict(ours.state_dict())
        assert trained(first, ours, range(2, 5)) == trained(second, other, range(2, 5))
        for own, like in zip(first.parameters(), second.parameters()):
            assert torch.equal(own, like)
        ours.close()
        other.close()


@promise
def a_change_of_the_data_of_a_weight_of_16_bits_counts_in_the_next_step(directory):
    for change in (clamp_data, change_data, give_data, halve_as_one_vector):
        module = model(torch.bfloat16)
        optimizer = nvswap.torch.AdamW(module.parameters(), lr=1e-3, config=settings(directory))
        trained(module, optimizer, range(2))
        before = module[1].weight.detach().clone()
        change(module)
        changed = module[1].weight.detach().clone()
        trained(module, optimizer, range(2, 3))
        assert (changed - before).abs().max() > 0.05
        assert (module[1].weight - changed).abs().max() < 0.01
        optimizer.close()


@promise
def each_group_is_stepped_by_its_own_settings(directory):
    for name, more in (("AdamW", {}), ("Adam", {"weight_decay": 0.2}), ("AdamW", {"maximize": True}),
                       ("AdamW", {"foreach": True}), ("AdamW", {"fused": True}),
                       ("Adam", {"decoupled_weight_decay": True})):
        (ours, own), (theirs, torchs) = pair(
            directory, ours=getattr(nvswap.torch, name), theirs=getattr(torch.optim, name), **more)
        trained(ours, own)
        trained(theirs, torchs)
        own.close()
        assert_close(ours, theirs)
        # Each setting counts: without it the weights differ.
        assert not torch.allclose(ours[1].weight, model()[1].weight, atol=1e-3)


@promise
def a_setting_by_position_is_that_of_torch(directory):
    parameters = [torch.nn.Parameter(torch.ones(3))]
    own = nvswap.torch.AdamW(parameters, 0.5, (0.1, 0.2), 1e-3, 0.25, config=settings(directory))
    theirs = torch.optim.AdamW(parameters, 0.5, (0.1, 0.2), 1e-3, 0.25)
    assert own.state_dict() == theirs.state_dict()
    own.close()
    for config in ({}, {"config": None}):
        error = raises(nvswap.Error, lambda config=config: nvswap.torch.AdamW(parameters, **config))
        assert "config=" in str(error)
    error = raises(nvswap.Error, lambda: nvswap.torch.AdamW(
        parameters, settings(directory), config=settings(directory)), errno.EINVAL)
    assert "config=" in str(error)


@promise
def a_directory_is_configuration_enough(directory):
    expected = trained(*pair(directory)[0])
    for config in (directory, None):
        if config is None:
            os.environ["NVSWAP_CONFIG"] = directory
        try:
            module = model()
            offloaded = nvswap.torch.offload(module, config)
            own = nvswap.torch.AdamW(decayed(module), lr=0.01, config=config, offloaded=offloaded)
        finally:
            os.environ.pop("NVSWAP_CONFIG", None)
        assert trained(module, own) == expected
        own.close()
        offloaded.load()
        offloaded.engine.close()


@promise
def schedulers_change_rates_and_momentum(directory):
    for make in (lambda each: torch.optim.lr_scheduler.OneCycleLR(each, 0.05, total_steps=8),
                 lambda each: torch.optim.lr_scheduler.LambdaLR(each, lambda step: 1 / (1 + step)),
                 lambda each: torch.optim.lr_scheduler.CosineAnnealingLR(each, 5)):
        (ours, own), (theirs, torchs) = pair(directory)
        for module, optimizer in ((ours, own), (theirs, torchs)):
            scheduler = make(optimizer)
            trained(module, optimizer, after=lambda _, scheduler=scheduler: scheduler.step())
        own.close()
        assert_close(ours, theirs)


@promise
def settings_that_are_changed_in_a_group_count_from_the_next_step(directory):
    (ours, own), (theirs, torchs) = pair(directory)
    for module, optimizer in ((ours, own), (theirs, torchs)):
        trained(module, optimizer, range(3))
        optimizer.param_groups[0].update(weight_decay=2.0, betas=(0.5, 0.5), lr=torch.tensor(0.02))
        trained(module, optimizer, range(3, 6))
    assert_close(ours, theirs)
    own.param_groups[1]["eps"] = -1.0
    loss_of(ours, 0).backward()
    before = [parameter.detach().clone() for parameter in ours.parameters()]
    assert "eps is -1" in str(raises(nvswap.Error, own.step, errno.EINVAL))
    assert all(map(torch.equal, before, ours.parameters()))
    own.close()


@promise
def settings_that_are_not_supported_are_refused(directory):
    for name in ("amsgrad", "capturable", "differentiable"):
        error = raises(nvswap.Error, lambda name=name: nvswap.torch.AdamW(
            model().parameters(), config=settings(directory), **{name: True}), errno.EINVAL)
        assert f"{name} is not supported" in str(error), error


def grown(directory, add):
    """Both optimizers, trained before and after `add` has given them more parameters."""
    def groups(module):
        return decayed(module[1:3])

    (ours, own), (theirs, torchs) = pair(directory, groups=groups)
    for module, optimizer in ((ours, own), (theirs, torchs)):
        trained(module, optimizer, range(3))
        add(module, optimizer)
        trained(module, optimizer, range(3, 7))
    return (ours, own), (theirs, torchs)


def add_last(module, optimizer):
    optimizer.add_param_group({"params": list(module[4].parameters()), "lr": 0.03})


@promise
def a_group_that_is_added_later_is_stepped_from_then_on(directory):
    (ours, own), (theirs, _) = grown(directory, add_last)
    assert_close(ours, theirs)
    steps = [state["step"].item() for state in own.state.values()]
    assert sorted(steps) == [4, 4, 7, 7, 7, 7]
    assert raises(nvswap.Error, lambda: own.add_param_group(
        {"params": [torch.nn.Parameter(torch.ones(2, device="meta"))]}), errno.EINVAL)
    assert raises(ValueError, lambda: add_last(ours, own))
    assert len(own.param_groups) == 3
    before = sum(store.optimizer.stats()["drive_written_bytes"] for store in own.stores)
    trained(ours, own, range(1))
    written = sum(store.optimizer.stats()["drive_written_bytes"] for store in own.stores) - before
    assert own.result["io"]["drive_written_bytes"] == written > 0 and len(own.stores) == 2
    first, step = own.stores[0], type(own.stores[0]).step

    def stepped(store, sum_squares):
        result = step(store, sum_squares)
        if store is first:
            raise OSError(errno.EIO, "the new weights could not be written")
        return result

    with mock.patch.object(type(first), "step", stepped):
        assert raises(OSError, lambda: trained(ours, own, range(1))).errno == errno.EIO
        before = own.stores[1].optimizer.stats()["drive_written_bytes"]
        own.step()
    written = own.stores[1].optimizer.stats()["drive_written_bytes"] - before
    assert own.result["io"]["drive_written_bytes"] == written  # of what the step knows, and nothing of another one
    own.close()


@promise
def clipping_by_the_configuration_goes_by_the_gradients_of_all_stores(directory):
    config, module, theirs = settings(directory), model(), model()
    config["gradient_clipping"] = 0.01
    own = nvswap.torch.AdamW(module[1:3].parameters(), lr=0.01, eps=1e-3, config=config)
    torchs = torch.optim.AdamW(theirs[1:3].parameters(), lr=0.01, eps=1e-3)
    for each, optimizer in ((module, own), (theirs, torchs)):
        add_last(each, optimizer)
    trained(module, own)
    trained(theirs, torchs, before_step=lambda _: torch.nn.utils.clip_grad_norm_(
        theirs[1:].parameters(), 0.01))
    own.close()
    assert_close(module, theirs)


@promise
def parameters_are_frozen_and_unfrozen(directory):
    def frozen(module, is_frozen):
        for parameter in module[1].parameters():
            parameter.requires_grad_(not is_frozen)

    (ours, own), (theirs, torchs) = (None, None), (None, None)
    modules = model(), model()
    for module in modules:
        frozen(module, True)
    ours, theirs = modules
    own = nvswap.torch.AdamW(decayed(ours), lr=0.01, config=settings(directory))
    torchs = torch.optim.AdamW(decayed(theirs), lr=0.01)
    before = ours[1].weight.detach().clone()
    for module, optimizer in ((ours, own), (theirs, torchs)):
        trained(module, optimizer, range(2))
        assert torch.equal(module[1].weight, before)
        frozen(module, False)
        trained(module, optimizer, range(2, 5))
        frozen(module, True)
        trained(module, optimizer, range(5, 7))
    own.close()
    assert_close(ours, theirs)


def stepped(state_dict):
    return {number: {name: value.clone() for name, value in state.items()}
            for number, state in state_dict["state"].items()}


@promise
def a_state_dict_continues_exactly_in_nvswap_and_closely_in_torch(directory):
    for dtype in (torch.float32, torch.bfloat16):
        (ours, own), _ = pair(directory, dtype)
        trained(ours, own, range(3))
        path = os.path.join(directory, "state.pt")
        torch.save({"model": ours.state_dict(), "optimizer": own.state_dict()}, path)
        expected = trained(ours, own, range(3, 7))
        own.close()
        for order in ("model", "optimizer"), ("optimizer", "model"):
            (again, other), (theirs, torchs) = pair(directory, dtype)
            trained(again, other, range(5))
            saved = torch.load(path, mmap=True)
            for name in order:
                {"model": again, "optimizer": other}[name].load_state_dict(saved[name])
            assert trained(again, other, range(3, 7)) == expected
            other.close()
            assert all(map(torch.equal, ours.parameters(), again.parameters()))
            # Theirs has no master of 16-bit weights and steps in 16 bits.
            if dtype == torch.float32:
                theirs.load_state_dict(saved["model"])
                torchs.load_state_dict(saved["optimizer"])
                trained(theirs, torchs, range(3, 7))
                assert_close(ours, theirs)


def threads_and_descriptors():
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def layers(dtype, count=24):
    torch.manual_seed(1)
    return torch.nn.Sequential(*(torch.nn.Linear(16, 16, bias=False) for _ in range(count))).to(dtype)


def added_one_by_one(module, optimizer):
    """Takes a step after every third layer that is added; returns the most threads and descriptors."""
    most = (0, 0)
    for number, layer in enumerate(module):
        if number:
            optimizer.add_param_group({"params": layer.parameters(), "lr": 0.01 + number / 1000})
        if number % 3 == 2:
            module(torch.ones(16, dtype=layer.weight.dtype)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        most = tuple(map(max, most, threads_and_descriptors()))
    return most


@promise
def parameters_that_are_added_one_by_one_take_few_threads_and_descriptors(directory):
    for dtype in (torch.float32, torch.bfloat16):
        found = {}
        # Kept stores are not merged, and give the weights to compare with.
        for keep in (False, True):
            place = os.path.join(directory, f"{keep}{dtype}")
            os.mkdir(place)
            module, before = layers(dtype), threads_and_descriptors()
            with nvswap.Optimizer(settings(place, keep=keep), {"alone": torch.ones(256)}):
                of_one = [now - then for now, then in zip(threads_and_descriptors(), before)]
            place = os.path.join(place, "added")
            os.mkdir(place)
            optimizer = nvswap.torch.AdamW(module[0].parameters(), lr=0.01, config=settings(place, keep=keep))
            first = threads_and_descriptors()
            most = [now - then for now, then in zip(added_one_by_one(module, optimizer), first)]
            # Those of a few stores; kept ones have no workers and ring of their own.
            bounds = [23 * (alone - 1) if keep else 8 * alone for alone in of_one]
            assert all(added <= bound for added, bound in zip(most, bounds)), (of_one, most)
            found[keep] = list(module.parameters())
            steps = [int(state["step"]) for state in optimizer.state.values()]
            assert steps == [8 - number // 3 for number in range(24)], steps
            optimizer.close()
            assert threads_and_descriptors()[1] == before[1]
        assert all(map(torch.equal, found[False], found[True]))


@promise
def a_state_dict_that_has_no_room_on_the_drive_says_where_and_how_much(directory):
    module = model()
    optimizer = nvswap.torch.AdamW(module.parameters(), lr=0.01, config=settings(directory))
    trained(module, optimizer, range(1))
    with mock.patch("os.posix_fallocate", side_effect=OSError(errno.ENOSPC, "no space")):
        error = raises(nvswap.Error, optimizer.state_dict, errno.ENOSPC)
    assert f"{directory} can't have a file of {4 * 50 * 32} bytes for a state_dict()" in str(error), error
    assert "free some space there" in str(error) and error.path == directory, error
    trained(module, optimizer, range(1, 2))
    optimizer.close()


@promise
def stores_that_can_not_be_merged_stay_as_they_are(directory):
    def refuse(config, parameters, *more):
        if len(parameters) > 1:
            raise nvswap.Error(errno.ENOSPC, "no space")
        return state(config, parameters, *more)

    state, found = nvswap.torch.optim.optimizer.State, []
    for opened in (state, refuse):
        module = layers(torch.float32, 9)
        with mock.patch.object(nvswap.torch.optim.optimizer, "State", opened):
            optimizer = nvswap.torch.AdamW(module[0].parameters(), lr=0.01, config=settings(directory))
            added_one_by_one(module, optimizer)
        assert (len(optimizer.stores) == 9) == (opened is refuse)
        optimizer.close()
        found.append(list(module.parameters()))
    assert all(map(torch.equal, *found))


@promise
def offloaded_parameters_that_are_unfrozen_one_by_one_take_few_stores(directory):
    module, theirs = layers(torch.float32, 12), layers(torch.float32, 12)
    for each in (module, theirs):
        each[1:].requires_grad_(False)
        place = nvswap.torch.offload(each, settings(directory)) if each is module else None
        own = nvswap.torch.AdamW(each.parameters(), lr=0.01, config=settings(directory), offloaded=place)
        for number in range(12):
            each[number].requires_grad_(True)
            each(torch.ones(16)).square().sum().backward()
            own.step()
            own.zero_grad()
            assert len(own.stores) <= 6
        assert [int(state["step"]) for state in own.state.values()] == list(range(12, 0, -1))
        if place:
            end(own, place)
        else:
            own.close()
    assert all(map(torch.equal, module.parameters(), theirs.parameters()))


@promise
def a_state_dict_of_torch_is_continued(directory):
    (ours, own), (theirs, torchs) = pair(directory)
    trained(theirs, torchs, range(3))
    ours.load_state_dict(theirs.state_dict())
    own.load_state_dict(torchs.state_dict())
    trained(ours, own, range(3, 7))
    trained(theirs, torchs, range(3, 7))
    assert_close(ours, theirs)
    own.close()
    for change in ("exp_avg_sq", "max_exp_avg_sq"):
        wrong = copy.deepcopy(torchs.state_dict())
        del wrong["state"][0]["exp_avg_sq"]
        if change != "exp_avg_sq":
            wrong["state"][0][change] = torch.zeros(3)
        (_, own), _ = pair(directory)
        raises(nvswap.Error, lambda wrong=wrong: own.load_state_dict(wrong), errno.EINVAL)
        assert not own.state
        own.close()


@promise
def what_has_no_state_in_a_state_dict_starts_anew(directory):
    (ours, own), (theirs, torchs) = pair(directory)
    empty, weights = torchs.state_dict(), copy.deepcopy(theirs.state_dict())
    trained(ours, own, range(3))
    assert own.state and own.state_dict()["state"]
    ours.load_state_dict(weights)
    own.load_state_dict(empty)
    assert not own.state and own.state_dict() == empty
    trained(ours, own)
    trained(theirs, torchs)
    own.close()
    assert_close(ours, theirs)


@promise
def state_dicts_of_groups_that_were_added_are_continued(directory):
    for keep in (False, True):
        place = os.path.join(directory, str(keep))
        os.mkdir(place)
        module = model()
        config = settings(place, keep=keep)
        own = nvswap.torch.AdamW(decayed(module[1:3]), lr=0.01, config=config)
        trained(module, own, range(3))
        add_last(module, own)
        trained(module, own, range(3, 5))
        saved = copy.deepcopy(own.state_dict()), copy.deepcopy(module.state_dict())
        # With a kept store, the state is of this commit.
        own.commit()
        if keep:
            own.close()
            again = model()
            other = nvswap.torch.AdamW(decayed(again[1:3]), lr=0.01, config=config)
        else:
            expected = trained(module, own, range(5, 8))
            own.close()
            again = model()
            other = nvswap.torch.AdamW(decayed(again[1:3]), lr=0.01, config=config)
        other.add_param_group({"params": list(again[4].parameters()), "lr": 0.03})
        again.load_state_dict(saved[1])
        other.load_state_dict(saved[0])
        assert trained(again, other, range(5, 8)) == expected
        other.close()


@promise
def weights_that_the_program_changes_are_stepped_from_there(directory):
    def change(module):
        def changed(step):
            with torch.no_grad():
                if step == 1:
                    module[1].weight.mul_(0.5)
                if step == 3:
                    module[2].bias[1:3] = 0.25
        return changed

    (ours, own), (theirs, torchs) = pair(directory)
    trained(ours, own, after=change(ours))
    trained(theirs, torchs, after=change(theirs))
    own.close()
    assert_close(ours, theirs)


@promise
def elements_that_the_program_leaves_keep_the_bits_of_their_master(directory):
    parameter = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    own = nvswap.torch.AdamW([parameter], lr=1e-3, weight_decay=0.0, config=settings(directory))
    # Each step is half of what a bfloat16 can tell apart: the master alone has it.
    for step in range(4):
        parameter.grad = torch.ones_like(parameter)
        own.step()
        with torch.no_grad():
            parameter[0] = 4.0
    assert parameter[0] == 4 and (parameter[1:] < 1).all()
    master = own.state_dict()["state"][0]["master"]
    assert torch.allclose(master[1:], torch.tensor(1 - 4e-3), atol=1e-5)
    assert torch.allclose(master[0], torch.tensor(4 - 3e-3), atol=1e-5)
    own.close()


@promise
def gradients_are_clipped_in_the_usual_place(directory):
    for clip in (lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 0.01),
                 lambda parameters: torch.nn.utils.clip_grad_value_(parameters, 1e-3)):
        (ours, own), (theirs, torchs) = pair(directory)
        for module, optimizer in ((ours, own), (theirs, torchs)):
            for group in optimizer.param_groups:
                group["eps"] = 1e-3
            trained(module, optimizer,
                    before_step=lambda _, module=module: clip(list(module.parameters())))
        own.close()
        assert_close(ours, theirs)


def scaled(module, optimizer, backward):
    """Trains with a GradScaler and clipping; returns the scale at the end."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    for step in range(6):
        backward(module, step, scaler.scale)
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return scaler.get_scale()


@promise
def a_grad_scaler_scales_and_skips(directory):
    def backward(module, step, scale):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(module, step)
        scale(loss).backward()
        if step == 3:
            module[1].bias.grad[0] = float("inf")

    (ours, own), (theirs, torchs) = pair(directory)
    assert scaled(ours, own, backward) == scaled(theirs, torchs, backward)
    assert {state["step"].item() for state in own.state.values()} == {5}
    own.close()
    assert_close(ours, theirs)


def offloaded_pair(directory, dtype=torch.float32):
    """The first model's parameters are on the drive."""
    ours, theirs = model(dtype), model(dtype)
    offloaded = nvswap.torch.offload(ours, settings(directory))
    own = nvswap.torch.AdamW(decayed(ours), lr=0.01, config=settings(directory), offloaded=offloaded)
    torchs = torch.optim.AdamW(decayed(theirs), lr=0.01)
    for group in own.param_groups + torchs.param_groups:
        group["eps"] = 1e-3
    return (ours, own, offloaded), (theirs, torchs)


def end(own, offloaded):
    own.close()
    offloaded.load()
    offloaded.engine.close()


@promise
def gradients_in_the_store_are_clipped_in_the_usual_place(directory):
    (ours, own, offloaded), (theirs, torchs) = offloaded_pair(directory)
    norms = []
    for module, optimizer in ((ours, own), (theirs, torchs)):
        norms.append([])
        for step in range(5):
            for half in range(2):
                (loss_of(module, 2 * step + half) / 2).backward()
                # Clipped twice, with more gradients between.
                norms[-1].append(torch.nn.utils.clip_grad_norm_(
                    module.parameters(), 0.05, foreach=bool(half) or None).item())
            norms[-1].append(module[1].weight.grad.norm().item())
            optimizer.step()
            optimizer.zero_grad()
    assert torch.allclose(*map(torch.tensor, norms), rtol=1e-4)
    end(own, offloaded)
    assert_close(ours, theirs)


@promise
def a_grad_scaler_scales_and_skips_gradients_in_the_store(directory):
    def backward(module, step, scale):
        scale(loss_of(module, step) * (float("inf") if step == 3 else 1)).backward()

    (ours, own, offloaded), (theirs, torchs) = offloaded_pair(directory)
    assert scaled(ours, own, backward) == scaled(theirs, torchs, backward)
    assert {state["step"].item() for state in own.state.values()} == {5}
    end(own, offloaded)
    assert_close(ours, theirs)


@promise
def gradients_that_are_set_to_none_are_dropped_from_the_store(directory):
    (ours, own, offloaded), (theirs, torchs) = offloaded_pair(directory)
    for module, optimizer in ((ours, own), (theirs, torchs)):
        for step in range(4):
            loss_of(module, 10 + step).backward()
            module.zero_grad()
            if step != 2:
                loss_of(module, step).backward()
            optimizer.step()
            module.zero_grad()
    assert {state["step"].item() for state in own.state.values()} == {3}
    loss_of(ours, 1).backward()
    ours[1].weight.grad = None
    assert "optimizer.zero_grad()" in str(raises(nvswap.Error, own.step, errno.EINVAL))
    own.zero_grad(set_to_none=False)
    own.step()
    end(own, offloaded)
    assert_close(ours, theirs)


@promise
def what_a_gradient_in_the_store_has_not_is_refused(directory):
    (ours, own, offloaded), _ = offloaded_pair(directory)
    loss_of(ours, 0).backward()
    gradient = ours[1].weight.grad
    assert gradient.shape == ours[1].weight.shape and "StoredGradient" in repr(gradient)
    for call in (gradient.sum, gradient.clone, lambda: gradient.norm(1), lambda: gradient.mul_(gradient.shape),
                 lambda: gradient + 1, lambda: torch.linalg.vector_norm(gradient, 2, 0)):
        raises((nvswap.Error, TypeError), call)
    own.step()
    assert ours[1].weight.grad is None
    assert "was dropped" in str(raises(nvswap.Error, gradient.norm, errno.EINVAL))
    end(own, offloaded)


@promise
def distributed_checkpoints_have_the_state(directory):
    (ours, own), (again, other) = pair(directory)
    trained(ours, own, range(3))
    model_state, state = dcp.get_state_dict(ours, own)
    model_state, state = copy.deepcopy((model_state, state))
    # Asking for the state is no step.
    assert {each["step"].item() for each in own.state.values()} == {3}
    expected = trained(ours, own, range(3, 6))
    own.close()
    again = model()
    other = nvswap.torch.AdamW(decayed(again), lr=0.01, config=settings(directory))
    dcp.set_state_dict(again, other, model_state_dict=model_state, optim_state_dict=state)
    assert trained(again, other, range(3, 6)) == expected
    other.close()


@promise
def hooks_of_steps_are_called(directory):
    (ours, own), _ = pair(directory)
    called = []
    own.register_step_pre_hook(lambda *_: called.append("before"))
    own.register_step_post_hook(lambda *_: called.append("after"))
    trained(ours, own, range(2))
    assert called == ["before", "after"] * 2
    own.close()


@promise
def a_backward_after_a_step_that_changed_its_weights_is_an_error(directory):
    (ours, own), (theirs, torchs) = pair(directory)
    for module, optimizer in ((ours, own), (theirs, torchs)):
        loss = loss_of(module, 0)
        loss.backward(retain_graph=True)
        optimizer.step()
        assert "modified by an inplace operation" in str(raises(RuntimeError, loss.backward))
    own.close()


main()
