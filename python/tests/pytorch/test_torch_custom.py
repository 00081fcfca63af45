#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nvswap.torch.CustomOptimizer: rules of a program, with their state on the drive. Needs torch."""

import contextlib
import copy
import errno
import os
from unittest import mock

import torch
import torch.distributed.checkpoint.state_dict as dcp_state
from torch.distributed.fsdp import fully_shard

from promises import child, main, promise, raises, settings
from stand_in import host_as_device
from torch_ranks import model, on_ranks, trained
import nvswap
import nvswap.torch

torch.set_num_threads(1)
SHAPES = ((64, 40), (40,), (3000,), ())


class Adam(nvswap.torch.CustomOptimizer):
    """As torch.optim.Adam of one tensor computes it."""

    elementwise = True

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, **more):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps), **more)

    def states(self, parameter, group):
        return {"exp_avg": torch.float32, "exp_avg_sq": torch.float32}

    def update(self, weights, gradient, state, group, step):
        beta1, beta2 = group["betas"]
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (state["exp_avg_sq"].sqrt() / (1 - beta2 ** step) ** 0.5).add_(group["eps"])
        weights.addcdiv_(state["exp_avg"], root, value=-group["lr"] / (1 - beta1 ** step))


class WholeAdam(Adam):
    elementwise = False


class Factored(nvswap.torch.CustomOptimizer):
    """After Adafactor: rows and columns of the second moment, a first one of 16 bits, and a count."""

    def __init__(self, params, lr=1e-2, config=None):
        super().__init__(params, dict(lr=lr), config)

    def states(self, parameter, group):
        shape = tuple(parameter.shape)
        return {"rows": (torch.float32, shape[:-1]), "columns": (torch.float64, shape[-1:]), "first": torch.bfloat16,
                "count": (torch.int64, ()), "last": (torch.float32, (2, *shape))}

    def update(self, weights, gradient, state, group, step):
        self.rule(weights, gradient, state, group["lr"])
        assert state["count"] == step

    @staticmethod
    def rule(weights, gradient, state, lr):
        square = gradient.square() + 1e-30
        state["rows"] = state["rows"] * 0.9 + square.mean(-1) * 0.1
        state["columns"].lerp_(square.mean(0 if gradient.dim() else ()).double(), 0.1)
        state["count"] += 1
        second = state["rows"].unsqueeze(-1) * state["columns"].float() / state["rows"].mean()
        state["last"] = torch.stack([state["last"][1], gradient])
        state["first"].copy_(state["first"] * 0.9 + gradient / second.sqrt().add(1e-3))
        weights.sub_(state["first"].float(), alpha=lr)


class NoState(nvswap.torch.CustomOptimizer):
    elementwise = True

    def states(self, parameter, group):
        return {}

    def update(self, weights, gradient, state, group, step):
        weights.sub_(gradient, alpha=group["lr"])


def parameters(dtype=torch.float32, shapes=SHAPES):
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def groups(params):
    return [{"params": params[:2]}, {"params": params[2:], "lr": 0.02}]


def small(directory, elements=1000, **more):
    """Pieces and runs of few elements."""
    config = settings(directory, **more)
    config["zero_optimization"]["sub_group_size"] = elements
    return config


def give_gradients(params, step, skipped=()):
    generator = torch.Generator().manual_seed(step)
    for number, parameter in enumerate(params):
        gradient = torch.randn(parameter.shape, generator=generator)
        parameter.grad = None if number in skipped else gradient.to(parameter.dtype)


def stepped(pairs, steps):
    """The same steps of optimizers of equal parameters, with one that has no gradients at first."""
    for step in steps:
        for params, optimizer in pairs:
            give_gradients(params, step, skipped=(0,) if step < 2 else ())
            optimizer.step()


def same(first, second):
    return all(map(torch.equal, first, second))


def state_of(optimizer):
    return {number: {name: value.clone() for name, value in each.items()}
            for number, each in optimizer.state_dict()["state"].items()}


def same_state(first, second):
    return first.keys() == second.keys() and all(
        first[number].keys() == second[number].keys() and all(
            torch.equal(first[number][name], second[number][name]) for name in first[number]) for number in first)


@promise
def a_rule_in_a_few_lines_steps_as_torchs_in_whole_tensors_and_in_pieces(directory):
    theirs = parameters()
    beside = torch.optim.Adam(groups(theirs), lr=0.01, foreach=False)
    ours = []
    for kind, config in ((WholeAdam, settings(directory)), (Adam, settings(directory)), (Adam, small(directory))):
        params = parameters()
        ours.append((params, kind(groups(params), lr=0.01, config=config)))
    stepped([(theirs, beside), *ours], range(6))
    for params, optimizer in ours:
        assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in zip(params, theirs))
        state = optimizer.state_dict()["state"]
        for number, parameter in enumerate(theirs):
            assert state[number]["step"] == beside.state[parameter]["step"]
            for name in ("exp_avg", "exp_avg_sq"):
                assert torch.allclose(state[number][name], beside.state[parameter][name], rtol=1e-5, atol=1e-7)
        assert all(each.keys() == {"step"} for each in optimizer.state.values())
    # Pieces have the bits of the whole.
    assert same(ours[0][0], ours[1][0]) and same(ours[0][0], ours[2][0])
    for _, optimizer in ours:
        optimizer.close()
        assert optimizer.closed


@promise
def states_have_any_types_and_shapes(directory):
    shapes = ((64, 40), (7, 300), (5, 4))
    first, second = parameters(shapes=shapes), parameters(shapes=shapes)
    optimizer = Factored(groups(first), config=settings(directory))
    states = [{"rows": torch.zeros(each.shape[:-1]), "columns": torch.zeros(each.shape[-1:], dtype=torch.float64),
               "first": torch.zeros_like(each, dtype=torch.bfloat16), "count": torch.zeros((), dtype=torch.int64),
               "last": torch.zeros(2, *each.shape)} for each in second]
    for step in range(5):
        for params in (first, second):
            give_gradients(params, step)
        optimizer.step()
        with torch.no_grad():
            for parameter, state, lr in zip(second, states, (0.01, 0.01, 0.02)):
                Factored.rule(parameter, parameter.grad, state, lr)
    assert same(first, second)
    for _ in range(2):
        assert same_state(state_of(optimizer), {number: {**state, "step": torch.tensor(5.0)}
                                                for number, state in enumerate(states)})
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.close()


@promise
def a_rule_without_state_moves_no_bytes(directory):
    params = parameters()
    optimizer = NoState(params, {"lr": 0.5}, settings(directory))
    before = [each.detach().clone() for each in params]
    for step in range(2):
        give_gradients(params, step)
        optimizer.step()
        before = [each - parameter.grad * 0.5 for each, parameter in zip(before, params)]
        assert optimizer.result["io"]["read_bytes"] == optimizer.result["io"]["written_bytes"] == 0
    assert all(torch.allclose(a, b) for a, b in zip(params, before))
    optimizer.close()


@promise
def a_step_reads_and_writes_each_state_once(directory):
    elements = sum(each.numel() for each in parameters())
    for dtype, nbytes in ((torch.float32, 8), (torch.bfloat16, 12)):
        for config in (settings(directory), small(directory)):
            params = parameters(dtype)
            optimizer = Adam(params, config=config)
            for step in range(4):
                give_gradients(params, step)
                before = optimizer.engine.stats()["drive_written_bytes"]
                optimizer.step()
                io = optimizer.result["io"]
                assert io["written_bytes"] == nbytes * elements, (io, elements)
                assert io["read_bytes"] == (nbytes * elements if step else 0), (io, elements)
                assert io["drive_written_bytes"] == optimizer.engine.stats()["drive_written_bytes"] - before
                assert io["written_bytes"] <= io["drive_written_bytes"] <= io["written_bytes"] + 25 * 4096
            optimizer.close()


@promise
def weights_of_16_bits_are_stepped_in_float32_and_from_what_the_program_makes_of_them(directory):
    for dtype in (torch.bfloat16, torch.float16):
        params = parameters(dtype)
        masters = [each.detach().float() for each in params]
        optimizer = WholeAdam(params, lr=1e-5, config=settings(directory))
        beside = torch.optim.Adam(masters, lr=1e-5, foreach=False)
        for step in range(30):
            give_gradients(params, step)
            for master, parameter in zip(masters, params):
                master.grad = parameter.grad.float()
            if step == 10:
                with torch.no_grad():
                    params[0].mul_(0.5)
                    masters[0].copy_(params[0])
                params[2].data[:7] = 3
                masters[2][:7] = 3
            optimizer.step()
            beside.step()
        state = optimizer.state_dict()["state"]
        for number, (parameter, master) in enumerate(zip(params, masters)):
            assert torch.allclose(state[number]["master"], master, rtol=1e-5, atol=1e-6)
            assert torch.equal(parameter, state[number]["master"].to(dtype))
        optimizer.close()


@promise
def state_that_is_saved_continues_with_the_same_bits_and_goes_to_torch_and_back(directory):
    for dtype in (torch.float32, torch.bfloat16):
        first = parameters(dtype)
        optimizer = Adam(groups(first), lr=0.01, config=small(directory))
        stepped([(first, optimizer)], range(3))
        saved = copy.deepcopy(optimizer.state_dict())
        second = [torch.nn.Parameter(each.detach().clone()) for each in first]
        resumed = Adam(groups(second), lr=0.5, config=small(directory))
        stepped([(second, resumed)], range(1))
        for own, other in zip(second, first):
            own.data.copy_(other.data)
        resumed.load_state_dict(saved)
        stepped([(first, optimizer), (second, resumed)], range(3, 6))
        assert same(first, second) and same_state(state_of(optimizer), state_of(resumed))
        optimizer.close()
        resumed.close()
    theirs = parameters()
    of_torch = torch.optim.Adam(groups(theirs), lr=0.01, foreach=False)
    stepped([(theirs, of_torch)], range(3))
    ours = [torch.nn.Parameter(each.detach().clone()) for each in theirs]
    optimizer = Adam(groups(ours), config=small(directory))
    optimizer.load_state_dict(of_torch.state_dict())
    stepped([(theirs, of_torch), (ours, optimizer)], range(3, 6))
    assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in zip(ours, theirs))
    of_torch.load_state_dict(optimizer.state_dict())
    stepped([(theirs, of_torch), (ours, optimizer)], range(6, 8))
    assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in zip(ours, theirs))
    optimizer.close()


@promise
def a_distributed_checkpoint_has_the_state_of_a_rule(directory):
    models = []
    for _ in range(2):
        torch.manual_seed(1)
        module = torch.nn.Linear(30, 40)
        models.append((module, Adam(module.parameters(), lr=0.01, config=settings(directory))))
    (first, optimizer), (second, resumed) = models
    stepped([(list(first.parameters()), optimizer)], range(2, 5))
    dcp_state.set_optimizer_state_dict(
        second, resumed, copy.deepcopy(dcp_state.get_optimizer_state_dict(first, optimizer)))
    second.load_state_dict(first.state_dict())
    stepped([(list(each.parameters()), own) for each, own in models], range(5, 7))
    assert same(first.parameters(), second.parameters())
    optimizer.close()
    resumed.close()


@promise
def groups_schedulers_closures_hooks_and_frozen_parameters_are_as_in_torch(directory):
    modules, called = [], []
    for _ in range(2):
        torch.manual_seed(1)
        modules.append(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)))
    optimizers = [WholeAdam(modules[0][0].parameters(), lr=0.01, config=settings(directory)),
                  torch.optim.Adam(modules[1][0].parameters(), lr=0.01, foreach=False)]
    optimizers[0].register_step_post_hook(lambda *_: called.append(1))
    for module, optimizer in zip(modules, optimizers):
        module[2].bias.requires_grad_(False)
        optimizer.add_param_group({"params": list(module[2].parameters()), "lr": 0.1})
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in optimizers]
    for step in range(6):
        data = torch.randn(5, 8, generator=torch.Generator().manual_seed(step))
        losses = []
        for module, optimizer, scheduler in zip(modules, optimizers, schedulers):
            module[2].bias.requires_grad_(step >= 3)

            def closure(module=module, optimizer=optimizer):
                optimizer.zero_grad()
                loss = module(data).square().sum()
                loss.backward()
                return loss

            losses.append(optimizer.step(closure).item())
            scheduler.step()
        assert abs(losses[0] - losses[1]) < 1e-4 * losses[1]
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6)
               for a, b in zip(modules[0].parameters(), modules[1].parameters()))
    assert len(called) == 6 and [int(each["step"]) for each in optimizers[0].state.values()] == [6, 6, 6, 3]
    optimizers[0].close()


class Interrupted(Exception):
    pass


@contextlib.contextmanager
def interrupted(kind, at, error):
    """The rule raises an error in its `at`th call, after it has changed everything."""
    calls, update = [], kind.update

    def failing(self, weights, gradient, state, group, step):
        update(self, weights, gradient, state, group, step)
        calls.append(1)
        if len(calls) == at:
            raise error

    with mock.patch.object(kind, "update", failing):
        yield


@promise
def a_rule_that_raises_leaves_a_step_that_is_finished_exactly(directory):
    for dtype in (torch.float32, torch.bfloat16):
        first, second = parameters(dtype), parameters(dtype)
        pairs = [(params, Adam(groups(params), lr=0.01, config=small(directory))) for params in (first, second)]
        for step, at in enumerate(range(1, 9), 2):
            for params, _ in pairs:
                give_gradients(params, step)
            pairs[0][1].step()
            with interrupted(Adam, at, KeyboardInterrupt() if at % 2 else Interrupted()):
                raises(BaseException, pairs[1][1].step)
            # One that fails at its first piece has not begun.
            if at > 1:
                raises(nvswap.Error, pairs[1][1].state_dict, errno.EBUSY)
                raises(nvswap.Error, lambda: pairs[1][1].step(lambda: 1), errno.EINVAL)
            else:
                assert [int(each["step"]) for each in pairs[1][1].state_dict()["state"].values()] == []
            pairs[1][1].step()
            assert same(first, second), (dtype, at)
        assert same_state(*(state_of(optimizer) for _, optimizer in pairs))
        for _, optimizer in pairs:
            optimizer.close()


@promise
def the_rest_of_a_failed_step_has_its_own_gradients_or_is_dropped(directory):
    params = parameters()
    optimizer = WholeAdam(params, lr=0.01, config=settings(directory))
    give_gradients(params, 1)
    with interrupted(WholeAdam, 3, Interrupted()):
        raises(Interrupted, optimizer.step)
    before = [each.detach().clone() for each in params]
    give_gradients(params, 2)
    assert "zero_grad()" in str(raises(nvswap.Error, optimizer.step, errno.EINVAL))
    assert same(params, before)
    optimizer.zero_grad()
    optimizer.step()
    assert same(params, before) and [int(each["step"]) for each in optimizer.state.values()] == [1, 1]
    give_gradients(params, 2)
    optimizer.step()
    assert [int(optimizer.state[each]["step"]) for each in params] == [2, 2, 1, 1]
    optimizer.close()


@promise
def a_fault_of_the_drive_leaves_a_step_that_is_finished_exactly(directory):
    first, second = parameters(), parameters()
    pairs = [(params, Adam(groups(params), lr=0.01, config=small(directory))) for params in (first, second)]
    stepped(pairs, (2, 3))
    for step, (call, at) in enumerate(((call, at) for call in ("load_to", "store_from", "wait")
                                       for at in range(1, 8)), 4):
        calls, of_engine = [], getattr(nvswap.Engine, call)

        def failing(self, *arguments, **options):
            calls.append(1)
            if len(calls) == at:
                # What is in flight lands.
                if call == "wait":
                    of_engine(self, *arguments, **options)
                raise nvswap.Error(errno.EIO, "the drive has failed")
            return of_engine(self, *arguments, **options)

        for params, _ in pairs:
            give_gradients(params, step)
        pairs[0][1].step()
        with mock.patch.object(nvswap.Engine, call, failing):
            raises(nvswap.Error, pairs[1][1].step, errno.EIO)
        pairs[1][1].step()
        assert same(first, second), (call, at)
        assert same_state(*(state_of(optimizer) for _, optimizer in pairs)), (call, at)
    for _, optimizer in pairs:
        optimizer.close()


@contextlib.contextmanager
def offloaded_pair(directory, dtype):
    """A module in memory and one on the drive, each with its optimizer; they are alike."""
    pairs = []
    for offloads in (False, True):
        torch.manual_seed(1)
        module = torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.Tanh(), torch.nn.Linear(60, 40)).to(dtype)
        offloaded = nvswap.torch.offload(module, settings(directory)) if offloads else None
        pairs.append((module, Adam(module.parameters(), lr=0.01, config=small(directory), offloaded=offloaded)))
    yield pairs
    for _, optimizer in pairs:
        optimizer.close()
    offloaded.load()
    offloaded.engine.close()


def backward(module, step):
    data = torch.randn(6, 40, generator=torch.Generator().manual_seed(step)).to(next(module.parameters()).dtype)
    loss = (module(data) - 1).square().sum()
    loss.backward()
    return loss.item()


def weights_of(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


@promise
def an_offloaded_module_is_stepped_as_in_memory(directory):
    for dtype in (torch.float32, torch.bfloat16):
        with offloaded_pair(directory, dtype) as pairs:
            for step in range(6):
                losses = []
                for module, optimizer in pairs:
                    losses.append([backward(module, step)])
                    # Of 16 bits, sums of gradients differ, which are float32 in the store.
                    if dtype == torch.float32:
                        losses[-1] += [backward(module, 100 + step),
                                       torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0).item()]
                    if step == 3:
                        # These are dropped.
                        optimizer.zero_grad()
                        backward(module, step)
                    if step == 4:
                        module.load_state_dict({name: value * 0.5 for name, value in weights_of(module).items()})
                    optimizer.step()
                    assert all(each.grad is None for each in module.parameters()) or module is pairs[0][0]
                    optimizer.zero_grad()
                first, second = (weights_of(module) for module, _ in pairs)
                if dtype == torch.float32:
                    assert torch.allclose(*map(torch.tensor, losses), rtol=1e-4), losses
                    assert all(torch.allclose(first[name], second[name], rtol=1e-5, atol=1e-6) for name in first)
                else:
                    assert losses[0] == losses[1] and same(first.values(), second.values()), losses
            io, elements = pairs[1][1].result["io"], sum(each.numel() for each in pairs[0][0].parameters())
            states = 8 if dtype == torch.float32 else 12
            assert io["written_bytes"] == states * elements and io["read_bytes"] == (states + 4) * elements, io


@promise
def parameters_on_a_device_are_stepped_as_in_memory(directory):
    # A device that stands in for a GPU: the host's memory, to which weights are copied back.
    for dtype in (torch.float32, torch.bfloat16):
        first, second = parameters(dtype), parameters(dtype)
        pairs = [(params, Adam(groups(params), lr=0.01, config=small(directory))) for params in (first, second)]
        for step in range(3):
            stepped(pairs[:1], (step,))
            with host_as_device(nvswap.torch.optim.custom):
                stepped(pairs[1:], (step,))
        assert same(first, second)
        for _, optimizer in pairs:
            optimizer.close()


@promise
def a_parameter_that_has_become_another_is_an_error(directory):
    module = torch.nn.Linear(50, 50)
    optimizer = Adam(module.parameters(), config=small(directory))
    give_gradients(module.parameters(), 1)
    optimizer.step()
    for change in (lambda: module.to(torch.bfloat16), lambda: setattr(module.weight, "data", torch.zeros(50, 50).T)):
        before = module.weight.data
        change()
        give_gradients(module.parameters(), 2)
        assert "has become another" in str(raises(nvswap.Error, optimizer.step, errno.EINVAL))
        module.to(torch.float32)
        module.weight.data = before
    parked = nvswap.torch.park(module, settings(directory))
    raises(nvswap.Error, optimizer.step, errno.EINVAL)
    parked.unpark()
    give_gradients(module.parameters(), 2)
    optimizer.step()
    assert [int(each["step"]) for each in optimizer.state.values()] == [2, 2]
    optimizer.close()


@promise
def a_grad_scaler_scales_and_skips_steps_of_a_rule(directory):
    with offloaded_pair(directory, torch.float32) as pairs:
        scales = []
        for module, optimizer in pairs:
            scaler = torch.amp.GradScaler("cpu", init_scale=1024, growth_interval=2)
            for step in range(6):
                data = torch.randn(6, 40, generator=torch.Generator().manual_seed(step))
                loss = (module(data) - 1).square().sum() * (float("inf") if step == 3 else 1)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            scales.append(scaler.get_scale())
            assert [int(each["step"]) for each in optimizer.state.values()] == [5] * 4
        first, second = (weights_of(module) for module, _ in pairs)
        assert scales[0] == scales[1]
        assert all(torch.allclose(first[name], second[name], rtol=1e-5, atol=1e-6) for name in first)


@promise
def what_a_rule_writes_counts_towards_the_write_budget_of_the_path(directory):
    params, counted = parameters(), 0
    for _ in range(2):
        optimizer = Adam(params, config=small(directory, write_budget="10G"))
        for step in range(3):
            give_gradients(params, step)
            optimizer.step()
        written = optimizer.engine.stats()["drive_written_bytes"]
        optimizer.close()
        assert os.listdir(directory) == ["nvswap"] and os.listdir(directory + "/nvswap") == ["written"]
        with open(directory + "/nvswap/written", encoding="ascii") as file:
            before, counted = counted, int(file.read().split()[0])
        assert written > 0 and counted - before == written, (before, counted, written)
    with open(directory + "/nvswap/written", "w", encoding="ascii") as file:
        file.write(f"{10 << 30:020} bytes written\n")
    refused = raises(nvswap.Error, lambda: Adam(params, config=small(directory, write_budget="10G")), errno.EDQUOT)
    assert f" {directory}/nvswap/written " in str(refused), refused


@promise
def a_step_of_an_offloaded_module_that_fails_is_finished_exactly(directory):
    for dtype in (torch.float32, torch.bfloat16):
        with offloaded_pair(directory, dtype) as pairs:
            for step, at in enumerate((1, 2, 4, 6)):
                for module, _ in pairs:
                    backward(module, step)
                pairs[0][1].step()
                with interrupted(Adam, at, Interrupted()):
                    raises(Interrupted, pairs[1][1].step)
                pairs[1][1].step()
                for _, optimizer in pairs:
                    optimizer.zero_grad()
                first, second = (weights_of(module) for module, _ in pairs)
                assert all(torch.equal(first[name], second[name]) for name in first), (dtype, at)
            assert same_state(*(state_of(optimizer) for _, optimizer in pairs))


@promise
def gradients_that_are_added_to_are_not_those_of_a_failed_step(directory):
    with offloaded_pair(directory, torch.float32) as pairs:
        for module, optimizer in pairs:
            backward(module, 1)
            with interrupted(Adam, 2, Interrupted()):
                raises(Interrupted, optimizer.step)
            before = weights_of(module)
            backward(module, 2)
            raises(nvswap.Error, optimizer.step, errno.EINVAL)
            assert same(before.values(), weights_of(module).values())
            optimizer.zero_grad()
            backward(module, 3)
            optimizer.step()
            optimizer.zero_grad()


@promise
def a_gradient_that_the_drive_did_not_take_is_written_again_by_the_next_call(directory):
    with offloaded_pair(directory, torch.float32) as pairs:
        lost, store, wait = [], nvswap.Engine.store_from, nvswap.Engine.wait

        def losing(self, arrays, wait=True):
            if any(name.startswith("0.gradient") for name in arrays) and not lost:
                lost.extend(arrays)
                arrays = {name: torch.zeros_like(array) for name, array in arrays.items()}
            store(self, arrays, wait)

        def failing(self, names, *more):
            wait(self, names, *more)
            if lost and lost == list(names) and not failed:
                failed.append(1)
                raise nvswap.Error(errno.EIO, "the drive has failed")

        for step in range(2):
            lost.clear()
            failed = []
            for number, (module, optimizer) in enumerate(pairs):
                backward(module, 9)
                optimizer.zero_grad()
                with mock.patch.multiple(nvswap.Engine, store_from=losing, wait=failing):
                    backward(module, step)
                    if number:
                        raises(nvswap.Error, optimizer.step, errno.EIO)
                    optimizer.step()
                optimizer.zero_grad()
            first, second = (weights_of(module) for module, _ in pairs)
            assert all(torch.allclose(first[name], second[name], rtol=1e-5, atol=1e-6) for name in first)


@promise
def a_gradient_follows_one_that_was_dropped_on_its_way_to_the_drive(directory):
    module = torch.nn.Linear(1 << 8, 1 << 10, bias=False)
    offloaded = nvswap.torch.offload(module, settings(directory))
    optimizer = Adam(module.parameters(), config=settings(directory), offloaded=offloaded)
    waited, wait = [], nvswap.Engine.wait

    def waiting(self, names, *more):
        waited.extend(names)
        wait(self, names, *more)

    data = torch.ones(1, 1 << 8)
    with mock.patch.object(nvswap.Engine, "wait", waiting):
        for drop in (optimizer.zero_grad, module.zero_grad):
            module(data).sum().backward()
            drop()
            waited.clear()
            module(data).sum().backward()
            assert any(".gradient" in name for name in waited), waited
    assert torch.allclose(torch.linalg.vector_norm(module.weight.grad), torch.tensor(2.0 ** 9))
    optimizer.close()
    offloaded.load()
    offloaded.engine.close()


@promise
def an_optimizer_takes_no_parameters_of_anothers_of_the_same_module_in_groups_that_are_added(directory):
    module = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Linear(5, 5), torch.nn.Linear(5, 5))
    offloaded = nvswap.torch.offload(module, settings(directory))
    optimizers = [Adam(module[0].parameters(), config=settings(directory), offloaded=offloaded),
                  nvswap.torch.AdamW(module[1].parameters(), config=settings(directory), offloaded=offloaded)]
    for optimizer, other in zip(optimizers, (module[1], module[0])):
        raises(nvswap.Error, lambda optimizer=optimizer, other=other: optimizer.add_param_group(
            {"params": other.parameters()}), errno.EBUSY)
        assert len(optimizer.param_groups) == 1
    for optimizer, parameter in zip(optimizers, module[2].parameters()):
        optimizer.add_param_group({"params": [parameter]})
    before = weights_of(module)
    module(torch.ones(2, 5)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.close()
    assert not any(map(torch.equal, before.values(), weights_of(module).values()))
    offloaded.load()
    offloaded.engine.close()


@promise
def a_parameter_without_elements_has_no_state_also_where_torchs_has_it(directory):
    theirs, ours = parameters(shapes=((4, 5), (0, 5))), parameters(shapes=((4, 5), (0, 5)))
    of_torch = torch.optim.Adam(theirs, foreach=False)
    stepped([(theirs, of_torch)], range(3))
    optimizer = Adam(ours, config=settings(directory, keep=True))
    optimizer.load_state_dict(of_torch.state_dict())
    give_gradients(ours, 3)
    optimizer.step()
    optimizer.close()
    optimizer = Adam(ours, config=settings(directory, keep=True))
    assert [int(each["step"]) for each in optimizer.state.values()] == [2]
    optimizer.close()


@promise
def a_kept_store_is_continued_by_its_own_rule_with_the_same_bits(directory):
    for dtype in (torch.float32, torch.bfloat16):
        path = os.path.join(directory, str(dtype))
        os.mkdir(path)
        first = parameters(dtype)
        optimizer = Adam(groups(first), lr=0.01, config=small(directory))
        stepped([(first, optimizer)], range(8))
        kept = parameters(dtype)
        store = Adam(groups(kept), lr=0.01, config=small(path, keep=True))
        stepped([(kept, store)], range(4))
        store.commit()
        saved = store.state_dict()
        assert all(each.keys() == {"step"} for each in saved["state"].values())
        # These are lost.
        stepped([(kept, store)], range(40, 42))
        store.engine.abandon()
        again = parameters(dtype)
        store = Adam(groups(again), lr=0.01, config=small(path, keep=True))
        store.load_state_dict(saved)
        stepped([(again, store)], range(4, 8))
        assert same(first, again)
        raises(nvswap.Error, lambda store=store: store.load_state_dict(saved), errno.ESTALE)
        store.close()
        for other, shapes in ((WholeAdam, SHAPES), (Adam, SHAPES[1:]), (Adam, SHAPES[:3]),
                              (Factored, ((64, 40), (5, 4)))):
            raises(nvswap.Error, lambda other=other, shapes=shapes: other(
                parameters(dtype, shapes), config=small(path, keep=True)), errno.ESTALE)
        store = Adam(groups(parameters(dtype)), lr=0.01, config=small(path, keep=True))
        assert [int(each["step"]) for each in store.state.values()] == [6, 8, 8, 8]
        store.close()
        optimizer.close()


@promise
def a_kept_store_whose_last_step_is_not_finished_says_so(directory):
    params = parameters()
    optimizer = Adam(params, config=small(directory, keep=True))
    give_gradients(params, 1)
    with interrupted(Adam, 4, Interrupted()):
        raises(Interrupted, optimizer.step)
    raises(nvswap.Error, optimizer.commit, errno.EBUSY)
    # As the collector and the interpreter's exit do.
    optimizer.engine.close()
    error = raises(nvswap.Error, lambda: Adam(parameters(), config=small(directory, keep=True)), errno.ESTALE)
    assert "not finished" in str(error), error


@promise
def a_kept_store_whose_last_step_was_dropped_or_written_later_is_continued(directory):
    def drop(optimizer):
        with interrupted(Adam, 4, Interrupted()):
            raises(Interrupted, optimizer.step)
        optimizer.zero_grad()

    def write_later(optimizer):
        of_engine = nvswap.Engine.wait

        def failing(self, names, *more):
            of_engine(self, names, *more)
            if isinstance(names, dict) and "3.exp_avg" in names:
                raise nvswap.Error(errno.EIO, "the drive has failed")

        with mock.patch.object(nvswap.Engine, "wait", failing):
            raises(nvswap.Error, optimizer.step, errno.EIO)

    for name, interrupt in (("dropped", drop), ("later", write_later)):
        path = os.path.join(directory, name)
        os.mkdir(path)
        params, again = parameters(), parameters()
        optimizer = Adam(params, config=small(path, keep=True))
        for step in range(2):
            give_gradients(params, step)
            (optimizer.step if step == 0 else lambda optimizer=optimizer: interrupt(optimizer))()
        optimizer.commit()
        optimizer.close()
        optimizer = Adam(again, config=small(path, keep=True))
        assert same(params, again), name
        optimizer.close()


@on_ranks
def fully_sharded_ranks_step_their_shards_by_an_elementwise_rule(rank, directory):
    def sharded():
        module = model()
        for part in (module[0], module[3], module):
            fully_shard(part)
        return module

    modules = [sharded() for _ in range(3)]
    optimizers = [Adam(modules[0].parameters(), lr=0.01, config=small(directory, 200)),
                  torch.optim.Adam(modules[1].parameters(), lr=0.01, foreach=False),
                  Adam(modules[2].parameters(), lr=0.01, config=small(directory, 200))]
    losses = [trained(module, optimizer, rank, range(4)) for module, optimizer in zip(modules, optimizers[:2])]
    assert torch.allclose(*map(torch.tensor, losses), atol=1e-6), losses
    for one, other in zip(modules[0].parameters(), modules[1].parameters()):
        assert torch.allclose(one.to_local(), other.to_local(), atol=1e-6)
    held = sum(optimizers[0].engine[name].numel for name in optimizers[0].engine)
    assert held == 2 * sum(each.to_local().numel() for each in modules[0].parameters())
    weights, state = dcp_state.get_state_dict(modules[0], optimizers[0])
    dcp_state.set_state_dict(modules[2], optimizers[2], model_state_dict=weights,
                             optim_state_dict=copy.deepcopy(state))
    losses = [trained(modules[number], optimizers[number], rank, range(4, 6)) for number in (0, 2)]
    assert losses[0] == losses[1], losses
    raises(nvswap.Error, lambda: WholeAdam(modules[0].parameters(), config=settings(directory)), errno.EINVAL)
    optimizers[0].close()
    optimizers[2].close()


@promise
def an_optimizer_that_is_dropped_ends_without_a_word(directory):
    output = child("""
import gc, os, torch
import nvswap.torch

class Sign(nvswap.torch.CustomOptimizer):
    def states(self, parameter, group):
        return {"last": torch.float32}

    def update(self, weights, gradient, state, group, step):
        weights.sub_(gradient.sign(), alpha=group["lr"])
        state["last"] = gradient

def made():
    parameter = torch.nn.Parameter(torch.zeros(5000))
    optimizer = Sign([parameter], {"lr": 0.5}, os.environ["DIRECTORY"])
    parameter.grad = torch.ones(5000)
    optimizer.step()
    assert (parameter == -0.5).all()
    return optimizer

made()
gc.collect()
assert not os.listdir(os.environ["DIRECTORY"])
optimizer = made()
""", directory)
    assert not output, output


@promise
def what_a_rule_can_not_have_is_an_error(directory):
    class Wrong(NoState):
        kinds = {}
        assigned = {}

        def states(self, parameter, group):
            return self.kinds

        def update(self, weights, gradient, state, group, step):
            state.update(self.assigned)

    for name in ("step", "master"):
        with mock.patch.object(Wrong, "kinds", {name: torch.float32}):
            raises(nvswap.Error, lambda: Wrong(parameters(), {}, settings(directory)), errno.EINVAL)
    with mock.patch.object(Wrong, "kinds", {"rows": (torch.float32, (3,))}):
        raises(nvswap.Error, lambda: Wrong(parameters(), {}, settings(directory)), errno.EINVAL)
    params = parameters()
    optimizer = Wrong(params, {}, settings(directory))
    give_gradients(params, 1)
    with mock.patch.object(Wrong, "assigned", {"new": torch.zeros(3)}):
        raises(nvswap.Error, optimizer.step, errno.EINVAL)
    optimizer.close()
    params = parameters()
    optimizer = Factored(params[:1], config=settings(directory))
    give_gradients(params, 1)
    with mock.patch.object(Factored, "update", lambda *given: given[3].update(rows=torch.zeros(3))):
        assert "rows of shape [3]" in str(raises(nvswap.Error, optimizer.step, errno.EINVAL))
    raises(nvswap.Error, lambda: optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(
        3, dtype=torch.float64))]}), errno.EINVAL)
    assert len(optimizer.param_groups) == 1
    raises(TypeError, lambda: copy.deepcopy(optimizer))
    optimizer.step()
    for state in ({"rows": torch.zeros(64)}, {**optimizer.state_dict()["state"][0], "rows": torch.zeros(3)}):
        raises(nvswap.Error, lambda state=state: optimizer.load_state_dict(
            dict(optimizer.state_dict(), state={0: state})), errno.EINVAL)
    optimizer.close()
    for call in (optimizer.step, optimizer.state_dict):
        raises(nvswap.ClosedError, call)
    config = settings(directory)
    for block, key, value, code in ((None, "gradient_clipping", 1.0, errno.EINVAL),
                                    ("fp16", "enabled", True, errno.EINVAL),
                                    ("nvswap", "optimizer_state", "8bit", errno.ENOTSUP)):
        wrong = copy.deepcopy(config)
        (wrong.setdefault(block, {}) if block else wrong)[key] = value
        assert key in str(raises(nvswap.Error, lambda wrong=wrong: Adam(parameters(), config=wrong), code))
    raises(nvswap.Error, lambda: Adam([torch.nn.Parameter(torch.zeros(4, 5).T)], config=config), errno.EINVAL)
    module, other = torch.nn.Linear(50, 50), torch.nn.Linear(5, 5)
    offloaded = nvswap.torch.offload(module, config)
    raises(nvswap.Error, lambda: Adam(module.parameters(), config=config), errno.EINVAL)
    raises(nvswap.Error, lambda: Adam(other.parameters(), config=config, offloaded=offloaded), errno.EINVAL)
    optimizer = Adam(module.parameters(), config=config, offloaded=offloaded)
    raises(nvswap.Error, lambda: Adam(module.parameters(), config=config, offloaded=offloaded), errno.EBUSY)
    optimizer.close()
    offloaded.load()
    offloaded.engine.close()


main()
