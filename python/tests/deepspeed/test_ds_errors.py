#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Errors of the swappers name parameters as the model does. In one process, called as DeepSpeed does."""

import contextlib
import errno
import os
import re
import resource
import types

import one_rank  # noqa: F401
import torch
from deepspeed.utils.debug import debug_extract_module_and_param_names
from promises import main, promise, raises, settings

import nvswap
from nvswap.deepspeed import depth
from nvswap.deepspeed.swappers.names import _add_name
from nvswap.deepspeed.swappers.optimizer import PartitionedOptimizerSwapper
from nvswap.deepspeed.swappers.parameters import ParameterSwapper
from nvswap.tensor_files import export_tensors

NUMEL = 4096


@contextlib.contextmanager
def failing_writes():
    """Writes beyond the first block of a file fail within the block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def parameters_of(module, first=7):
    """A module's parameters, with what DeepSpeed gives them, numbered from the first on."""
    parameters = list(module.parameters())
    for number, parameter in enumerate(parameters, first):
        parameter.ds_id, parameter.ds_tensor = number, torch.empty(0)
        parameter.ds_tensor.ds_numel = parameter.numel()
        parameter.partition_numel = parameter.numel
    return parameters


def named(error, names, directory):
    """Whether an error begins with the names, and goes on with path and offset."""
    return re.match(rf"{re.escape(names)}: writing {re.escape(directory)}/nvswap/\S+ at offset \d+ "
                    "failed: ", str(error))


def data_in(directory):
    """A path of the data of this process's store, whose file has no name."""
    paths = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return next(path for path in paths if os.path.isfile(path) and os.path.getsize(path) and
                os.readlink(path).startswith(f"{directory}/nvswap/"))


@promise
def a_failed_write_of_a_partition_names_its_parameter(directory):
    module, other = (torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False)) for _ in range(2))
    debug_extract_module_and_param_names(module)
    swapper = ParameterSwapper(settings(directory), torch.float32)
    for parameter, names in ((*parameters_of(module), "0.weight (parameter.7)"),
                             (*parameters_of(other, 8), "parameter.8")):
        tensor = f"parameter.{parameter.ds_id}"
        swapper.get_buffer(parameter, NUMEL).fill_(1)
        with failing_writes():
            swapper.swap_out_and_release([parameter])
            swapper.engine.swap_out(tensor)
            error = raises(nvswap.Error, lambda tensor=tensor: swapper.engine.wait(tensor),
                           errno.EFBIG)
        assert named(error, names, directory), error
        assert error.tensor == tensor and error.path and error.offset is not None
    swapper.engine.abandon()


@promise
def the_tensor_of_an_error_is_named_and_no_other(_):
    error = nvswap.Error(errno.EBUSY, "optimizer.7_9.exp_avg, optimizer.7_91, optimizer.7_9: busy")
    _add_name(error, "optimizer.7_9", "weight")
    assert error.strerror == \
        "optimizer.7_9.exp_avg, optimizer.7_91, weight (optimizer.7_9): busy", error


@promise
def damage_of_a_partition_names_its_parameter(directory):
    module = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False))
    debug_extract_module_and_param_names(module)
    swapper = ParameterSwapper(settings(directory, verify=True), torch.float32)
    parameter, = parameters_of(module)
    swapper.get_buffer(parameter, NUMEL).fill_(1)
    swapper.swap_out_and_release([parameter])
    swapper.engine.swap_out("parameter.7")
    swapper.engine.wait("parameter.7")
    with open(data_in(directory), "r+b") as file:
        file.seek(file.read().index(torch.ones(NUMEL).numpy().tobytes()))
        file.write(b"damage")
    error = raises(nvswap.Error, lambda: swapper.swap_in([parameter], async_op=False),
                   errno.EBADMSG)
    assert "0.weight (parameter.7)" in str(error), error
    del error  # Its traceback has the pin.
    swapper.engine.abandon()


@promise
def a_failed_save_names_the_parameter(directory):
    module = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False))
    debug_extract_module_and_param_names(module)
    swapper = ParameterSwapper(settings(directory), torch.float32)
    parameter, = parameters_of(module)
    swapper.get_buffer(parameter, NUMEL)
    error = raises(nvswap.Error, lambda: export_tensors(
        swapper.engine, os.path.join(directory, "saved.pt"), "parameter.7"), errno.EBUSY)
    assert "0.weight (parameter.7)" in str(error), error
    swapper.swap_out_and_release([parameter])
    swapper.engine.abandon()


@promise
def a_failed_write_of_optimizer_state_names_the_parameters_of_the_sub_group(directory):
    module = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(3)))
    debug_extract_module_and_param_names(module)
    depth.choose(dict(settings(directory), nvswap={"deepspeed": "swappers"}))
    flat = torch.nn.Parameter(torch.empty(0))
    flat.ds_id = "7_9"
    keys = types.SimpleNamespace(pipeline_read=False, pipeline_write=False)
    swapper = PartitionedOptimizerSwapper(keys, {}, directory, torch.optim.AdamW([flat]), 3 * NUMEL,
                                          "cpu", torch.float32, None)
    swapper.parameters = {"7_9": parameters_of(module)}
    swapper.initialize_parameters([flat], [torch.ones(3 * NUMEL)])
    for offset, name in ((0, "0.weight"), (NUMEL, "1.weight"), (2 * NUMEL, "2.weight")):
        tensor = f"optimizer.7_9.gradient.{offset}"
        swapper.swap_out_gradients(flat, [offset], [torch.ones(NUMEL)])
        with failing_writes():
            swapper.engine.swap_out(tensor)
            error = raises(nvswap.Error, lambda tensor=tensor: swapper.engine.wait(tensor),
                           errno.EFBIG)
        assert named(error, f"{name} ({tensor})", directory), error
    swapper.swap_in_optimizer_state(flat)
    with failing_writes():
        error = raises(nvswap.Error, lambda: swapper.swap_out_optimizer_state(flat), errno.EFBIG)
    assert named(error, "0.weight to 2.weight (optimizer.7_9)", directory), error
    swapper.engine.abandon()


main()
