#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the swappers rely on: tensors of an engine that are held in the pool or beside it, and the
optimizer's swapper, called as DeepSpeed does, in one process."""

import errno
import gc
import types
import unittest.mock

import one_rank  # noqa: F401
import torch
from promises import main, promise, raises, settings

import nvswap
from nvswap.deepspeed import depth
from nvswap.deepspeed.swappers import device
from nvswap.deepspeed.swappers.hold import Holds
from nvswap.deepspeed.swappers.optimizer import PipelinedOptimizerSwapper
from nvswap.deepspeed.swappers.parameters import ParameterSwapper
from nvswap.deepspeed.swappers.store import open_engine

NUMEL = 100000


def filled(holds, count):
    """Tensors 0, 1 ... whose elements are their number."""
    for i in range(count):
        holds.register({str(i): torch.empty(0)}, NUMEL)
        hold = holds.new(str(i))
        hold.tensor.fill_(i)
        hold.end(True)


def add_one(held):
    for hold in held:
        hold.tensor.add_(1)
        hold.end(True)


def assert_added(holds, count):
    """Reads the tensors of filled() after add_one()."""
    for i, hold in enumerate(holds.read(map(str, range(count)))):
        assert (hold.tensor == i + 1).all()
        hold.end(False)


@promise
def more_than_the_pool_can_be_held_and_changed(directory):
    holds = Holds(open_engine(settings(directory), "param", 0))
    count = holds.pool_bytes // (4 * NUMEL) + 4
    filled(holds, count)
    held = holds.read(map(str, range(count)))
    assert all((hold.tensor == i).all() for i, hold in enumerate(held))
    add_one(held)
    assert_added(holds, count)
    assert holds.free_bytes() == holds.pool_bytes


@promise
def the_pool_of_16_bit_parameters_has_buffer_count_times_buffer_size_of_them(directory):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        swapper = ParameterSwapper(settings(directory), dtype)
        assert swapper.engine.pool()[1] == 4 * 262144 * dtype.itemsize, dtype
        swapper.engine.close()


class Accelerator:
    """One that copies from memory of the host. What it is told of is in `calls`."""

    def __init__(self, refuses=False):
        self.calls, self._refuses = [], refuses

    def current_device_name(self):
        return "cpu"

    def register_host_memory(self, address, nbytes):
        if self._refuses:
            raise RuntimeError("no registration")
        self.calls.append(("register", address, nbytes))
        return True

    def unregister_host_memory(self, address):
        with open("/proc/self/maps", encoding="ascii") as maps:
            mapped = [[int(part, 16) for part in line.split()[0].split("-")] for line in maps]
        assert any(begin <= address < end for begin, end in mapped)
        self.calls.append(("unregister", address))


def on(accelerator, directory, **block):
    """An engine of a job on this accelerator."""
    config = settings(directory)
    config["zero_optimization"]["offload_param"].update(block)
    with unittest.mock.patch.object(device, "get_accelerator", lambda: accelerator):
        return open_engine(config, "param", 0)


@promise
def the_pool_is_registered_with_the_device_until_it_is_unmapped(directory):
    accelerator = Accelerator()
    engine = on(accelerator, directory)
    address, nbytes = engine.pool()
    assert accelerator.calls == [("register", address, nbytes)]
    engine.register("tensor", "F32", NUMEL)
    view = engine.swap_in("tensor", "w")["tensor"][:1]
    raises(nvswap.Error, engine.close, errno.EBUSY)
    assert len(accelerator.calls) == 1
    del view
    engine.abandon()
    assert accelerator.calls[1:] == [("unregister", address)]
    # An engine that is collected unmaps its pool too.
    engine = on(accelerator, directory)
    del engine
    gc.collect()
    assert [call[0] for call in accelerator.calls] == ["register", "unregister"] * 2


@promise
def a_pool_is_not_registered_if_it_is_not_to_be_pinned_and_used_if_it_can_not_be(directory):
    accelerator = Accelerator()
    on(accelerator, directory, pin_memory=False).close()
    assert not accelerator.calls
    engine = on(Accelerator(refuses=True), directory)
    filled(Holds(engine), 2)
    engine.close()


@promise
def what_has_no_room_is_in_host_memory_whatever_the_default_device_is(directory):
    """Within zero.Init it is the one of the accelerator."""
    holds = Holds(open_engine(settings(directory), "param", 0))
    count = holds.pool_bytes // (4 * NUMEL) + 2
    with torch.device("meta"):
        filled(holds, count)
        held = holds.read(map(str, range(count)))
        assert all(hold.tensor.device.type == "cpu" for hold in held)
        add_one(held)
    assert_added(holds, count)


@promise
def a_tensor_that_was_not_changed_keeps_its_contents(directory):
    holds = Holds(open_engine(settings(directory), "param", 0))
    filled(holds, 2)
    hold = holds.new("1")
    hold.tensor.fill_(7)
    hold.end(False)
    hold, = holds.read(["1"])
    assert (hold.tensor == 1).all()
    hold.end(False)


@promise
def new_contents_are_taken_while_a_view_has_the_last_ones(directory):
    holds = Holds(open_engine(settings(directory), "param", 0))
    filled(holds, 1)
    hold, = holds.read(["0"])
    view = hold.tensor.narrow(0, 10, 10)
    hold.end(False)
    for i in (1, 2):
        hold = holds.new("0")
        hold.tensor.fill_(i)
        hold.end(True)
        hold, = holds.read(["0"])
        assert (hold.tensor == i).all() and (view == i).all()
        hold.end(False)


@promise
def what_an_exception_leaves_held_is_held_again(directory):
    holds = Holds(open_engine(settings(directory), "param", 0))
    filled(holds, 3)
    left = holds.read(["0", "1"])
    del left[0]
    for i, hold in enumerate(holds.read(["0", "1", "2"])):
        assert (hold.tensor == i).all()
        hold.end(False)
    left[0].end(True)
    assert holds.free_bytes() == holds.pool_bytes


@promise
def a_view_stays_valid_when_its_hold_ends(directory):
    holds = Holds(open_engine(settings(directory), "param", 0))
    count = holds.pool_bytes // (4 * NUMEL) + 4
    filled(holds, count)
    hold, = holds.read(["3"])
    view = hold.tensor.narrow(0, 10, 10)
    hold.end(False)
    for i in range(4, count):
        hold, = holds.read([str(i)])
        hold.end(False)
    assert (view == 3).all()


@promise
def free_bytes_follow_from_what_is_held_alone(directory):
    holds = Holds(open_engine(settings(directory), "param", 0))
    filled(holds, 3)
    view = holds.read(["0"])[0].tensor[:1]  # pins it
    assert holds.free_bytes() == holds.pool_bytes
    held = holds.read(["1"])
    with unittest.mock.patch.object(holds, "_pinned", lambda *_: None):
        held += holds.read(["2"])
    assert view == 0 and held[1].tensor[0] == 2
    assert holds.free_bytes() == holds.pool_bytes - 2 * holds.taken_by("1")


@promise
def a_read_ahead_that_outlasts_the_wait_is_awaited_outside_the_pool(directory):
    holds = Holds(open_engine(settings(directory), "param", 0))
    filled(holds, 1)
    holds.engine.swap_out("0")
    holds.engine.wait("0")
    with unittest.mock.patch.object(holds, "_pinned", lambda *_: None):
        hold, = holds.read(["0"])
    assert (hold.tensor == 0).all()
    hold.end(False)


@promise
def a_tensor_waits_for_no_room_that_units_or_views_take(directory):
    holds = Holds(open_engine(settings(directory), "param", 0))
    timeouts, swap_in = [], holds.engine.swap_in

    def recorded(name, mode, *, timeout=None, **more):
        timeouts.append(timeout)
        return swap_in(name, mode, timeout=timeout, **more)

    holds.engine.swap_in = recorded
    quarter = holds.pool_bytes // 16
    for name, numel in {"one": 1, "rest": 4 * quarter - 1, "half": 2 * quarter,
                        **{str(i): quarter for i in range(4)}}.items():
        holds.register({name: torch.empty(0)}, numel)
    # In bytes there is room for the rest beside one element.
    one = holds.new("one")
    holds.new("rest").end(False)
    one.end(False)
    # Views keep the first and the third quarter, so that no two are free together.
    held = [holds.new(str(i)) for i in range(4)]
    views = [hold.tensor[:1] for hold in held[::2]]
    for hold in held:
        hold.end(False)
    holds.new("half").end(False)
    assert set(timeouts) == {0}, timeouts
    views.clear()
    assert holds.free_bytes() == holds.pool_bytes


def swapper_of(directory, parameters):
    """An optimizer's swapper for sub-groups of 1, 2 ... times NUMEL elements."""
    depth.choose(dict(settings(directory), nvswap={"deepspeed": "swappers"}))
    for i, parameter in enumerate(parameters):
        parameter.ds_id = str(i)
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    keys = types.SimpleNamespace(pipeline_read=True, pipeline_write=True)
    swapper = PipelinedOptimizerSwapper(keys, {}, directory, optimizer, len(parameters) * NUMEL,
                                        "cpu", torch.float32, None)
    swapper.initialize_parameters(parameters, [torch.full(((i + 1) * NUMEL,), float(i))
                                               for i in range(len(parameters))])
    return swapper, optimizer


def step(swapper, optimizer, parameters, factor=1):
    for i, parameter in enumerate(parameters):
        gradient = factor * torch.arange(float((i + 1) * NUMEL))
        swapper.swap_out_gradients(parameter, [0, NUMEL // 3],
                                   [gradient[:NUMEL // 3], gradient[NUMEL // 3:]])
    for parameter, following in zip(parameters, [*parameters[1:], None]):
        swapper.swap_in_optimizer_state(parameter, following)
        optimizer.param_groups[0]["params"] = [parameter]
        optimizer.step()
        swapper.swap_out_optimizer_state(parameter, following is not None)


@promise
def sub_groups_are_stepped_as_in_memory(directory):
    parameters = [torch.nn.Parameter(torch.empty(0)) for _ in range(3)]
    swapper, optimizer = swapper_of(directory, parameters)
    expected = [torch.nn.Parameter(torch.full(((i + 1) * NUMEL,), float(i))) for i in range(3)]
    reference = torch.optim.AdamW(expected, lr=0.01)
    for _ in range(3):
        step(swapper, optimizer, parameters)
        for i, parameter in enumerate(expected):
            parameter.grad = torch.arange(float((i + 1) * NUMEL))
        reference.step()
    for parameter, wanted in zip(parameters, expected):
        assert parameter.numel() == 0
        swapper.swap_in_optimizer_state(parameter)
        assert torch.equal(parameter, wanted)
        assert torch.equal(optimizer.state[parameter]["exp_avg"], reference.state[wanted]["exp_avg"])
        swapper.release_swap_buffers(parameter)


@promise
def a_stay_in_memory_that_an_exception_cut_off_changes_no_later_step(directory):
    parameters = [torch.nn.Parameter(torch.empty(0)) for _ in range(2)]
    swapper, optimizer = swapper_of(directory, parameters)
    expected = [torch.nn.Parameter(torch.full(((i + 1) * NUMEL,), float(i))) for i in range(2)]
    reference = torch.optim.AdamW(expected, lr=0.01)
    for left, factor in ((1, 1), (0, -3), (0, 5)):
        step(swapper, optimizer, parameters, factor)
        swapper.swap_in_optimizer_state(parameters[left])
        for i, parameter in enumerate(expected):
            parameter.grad = factor * torch.arange(float((i + 1) * NUMEL))
        reference.step()
    for parameter, wanted in zip(parameters, expected):
        swapper.swap_in_optimizer_state(parameter)
        assert torch.equal(parameter, wanted)
    swapper.purge_state()
    swapper.close()


@promise
def purged_states_are_replaced_by_those_of_a_checkpoint(directory):
    parameters = [torch.nn.Parameter(torch.empty(0)) for _ in range(2)]
    swapper, optimizer = swapper_of(directory, parameters)
    swapper.purge_state()
    step(swapper, optimizer, parameters)
    swapper.purge_state()
    for parameter in parameters:
        swapper.swap_in_optimizer_state(parameter)
        optimizer.state[parameter]["exp_avg"] = torch.full_like(parameter.data, 5)
        optimizer.state[parameter]["exp_avg_sq"] = torch.full_like(parameter.data, 6)
        swapper.swap_out_optimizer_state(parameter)
    for parameter in parameters:
        swapper.swap_in_optimizer_state(parameter)
        assert (optimizer.state[parameter]["exp_avg"] == 5).all()
        assert (optimizer.state[parameter]["exp_avg_sq"] == 6).all()
        swapper.release_swap_buffers(parameter)


main()
