#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an engine of DeepSpeed leaves when it is destroyed or its initialization fails, in one process."""

import contextlib
import gc
import os
import re
import resource

import one_rank  # noqa: F401
import deepspeed
import torch
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.utils import (
    safe_get_local_fp32_param, safe_get_local_grad, safe_get_local_optimizer_state)
from jobs import configuration
from promises import main, promise, raises, settings

from nvswap.deepspeed.step.tiled import TiledState
from nvswap.deepspeed.swappers import store

WIDTH = 600  # DeepSpeed's own swappers leave tensors of less than 1 MiB in memory


def trained(config, module=None):
    """An engine after two steps, from the second on by the order of modules that it has learned."""
    if module is None:
        with deepspeed.zero.Init(config_dict_or_path=config):
            module = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    engine, _, _, _ = deepspeed.initialize(model=module, model_parameters=module.parameters(),
                                           config=config)
    for _ in range(2 * config["gradient_accumulation_steps"]):
        engine.backward(engine(torch.ones(2, WIDTH)).square().mean())
        engine.step()
    return engine


def left_of(directory):
    """Descriptors of files in a directory, and MiB of locked memory."""
    with open("/proc/self/status", encoding="ascii") as file:
        locked = int(re.search(r"VmLck:\s+(\d+)", file.read())[1])
    paths = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return [path for path in paths if os.path.lexists(path) and
            os.readlink(path).startswith(directory)], locked >> 10


@promise
def a_destroyed_engine_leaves_no_descriptor_and_no_locked_memory(directory):
    for depth in ("ops", "swappers", "step"):
        for persistent in (0, 10 ** 6):
            zero = {"stage3_param_persistence_threshold": persistent}
            engine = trained(configuration(directory, dtype="fp32", depth=depth, zero=zero))
            assert left_of(directory)[1], depth
            engine.destroy()
            del engine
            gc.collect()
            assert left_of(directory) == ([], 0), (depth, left_of(directory))


@contextlib.contextmanager
def failing_after(kind, name):
    """A method of a class raises at its end within the block."""
    method = getattr(kind, name)

    def failing(self, *args):
        method(self, *args)
        raise RuntimeError(name)

    setattr(kind, name, failing)
    try:
        yield
    finally:
        setattr(kind, name, method)


@promise
def an_engine_whose_initialization_fails_leaves_no_descriptor_and_no_locked_memory(directory):
    for depth in ("ops", "swappers", "step"):
        config = configuration(directory, dtype="fp32", depth=depth)
        for kind, name in ((DeepSpeedZeroOptimizer_Stage3, "_configure_offloading"),
                           (DeepSpeedZeroOptimizer_Stage3, "_setup_for_real_optimizer"),
                           (DeepSpeedZeroOptimizer_Stage3, "create_reduce_and_remove_grad_hooks"),
                           (DeepSpeedEngine, "_configure_lr_scheduler")):
            for module in (lambda: None, lambda: torch.nn.Linear(WIDTH, WIDTH)):
                with failing_after(kind, name):
                    error = raises(RuntimeError, lambda module=module: trained(config, module()))
                assert str(error) == name
                del error
                gc.collect()
                assert left_of(directory) == ([], 0), (depth, name, left_of(directory))


def muon(directory, param):
    config = configuration(directory, dtype="fp32", depth="step", param=param, zero={"reduce_scatter": False})
    config["optimizer"] = {"type": "Muon", "params": {"lr": 0.01}}
    return config


@promise
def a_step_of_muon_leaves_no_state_while_its_engine_or_its_failure_is_kept(directory):
    left = []
    for config in (configuration(directory, dtype="fp32", depth="step", param=False), muon(directory, False)):
        engine = trained(config)
        engine.destroy()
        left.append(left_of(directory))
        del engine
        gc.collect()
    assert not left[1][0] and left[1][1] <= left[0][1] + 2, left  # the buffers of state are 4 MiB
    with failing_after(TiledState, "set_state"):
        error = raises(RuntimeError, lambda: trained(muon(directory, {"device": "cpu"})))
    assert not left_of(directory)[0], left_of(directory)
    del error


@promise
def a_module_can_be_initialized_again_after_a_failure(directory):
    for depth in ("swappers", "step"):
        config, module = configuration(directory, dtype="fp32", depth=depth), torch.nn.Linear(WIDTH, 1)
        with failing_after(DeepSpeedEngine, "_configure_lr_scheduler"):
            raises(RuntimeError, lambda module=module: trained(config, module))
        trained(config, module).destroy()


@promise
def a_kept_store_is_opened_again_by_a_later_job_of_the_process(directory):
    for depth in ("swappers", "step"):
        config = configuration(directory, dtype="fp32", depth=depth, nvswap={"keep": True})
        unknown = dict(config, optimizer={"type": "unknown"})
        assert "unknown" in str(raises(AssertionError, lambda unknown=unknown: trained(unknown)))
        trained(config).destroy()
        trained(config).destroy()


@promise
def the_parameters_of_a_destroyed_engine_stay_as_long_as_their_module(directory):
    for depth in ("swappers", "step"):
        config = configuration(directory, dtype="fp32", depth=depth)
        engine = trained(config)
        module, parameters = engine.module, list(engine.module.parameters())
        engine.destroy()
        with deepspeed.zero.GatheredParameters(parameters):
            weights = [parameter.clone() for parameter in parameters]
        assert all(weight.isfinite().all() and weight.any() for weight in weights)
        trained(config, module).destroy()


@promise
def a_destroyed_engine_whose_step_failed_behind_the_forward_leaves_its_parameters_to_gather(directory):
    config = configuration(directory, dtype="fp32", depth="step", param=False, nvswap={"overlap_step": True})
    engine, limit = trained(config), resource.getrlimit(resource.RLIMIT_FSIZE)
    parameters, steps = list(engine.module.parameters()), config["gradient_accumulation_steps"]
    for _ in range(steps):
        engine.backward(engine(torch.ones(2, WIDTH)).square().mean())
        if engine.is_gradient_accumulation_boundary():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
        engine.step()
    try:
        assert "File too large" in str(raises(OSError, engine.destroy))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    with deepspeed.zero.GatheredParameters(parameters):
        assert all(parameter.isfinite().all() for parameter in parameters)


@promise
def state_that_was_read_does_not_keep_the_store_of_a_destroyed_engine_open(directory):
    for depth in ("swappers", "step"):
        engine = trained(configuration(directory, dtype="fp32", depth=depth))
        parameter = next(engine.module.parameters())
        state = [safe_get_local_fp32_param(parameter), safe_get_local_grad(parameter),
                 safe_get_local_optimizer_state(parameter, "exp_avg")]
        before = [part.clone() for part in state]
        engine.destroy()
        assert all(map(torch.equal, state, before)) and state[0].any()


@promise
def a_failure_in_destroying_is_raised_and_the_store_of_the_optimizer_is_closed(directory):
    def failing(optimizer):
        destroy(optimizer)
        raise RuntimeError("of DeepSpeed")

    destroy = DeepSpeedZeroOptimizer_Stage3.destroy
    for depth in ("swappers", "step"):
        engine = trained(configuration(directory, dtype="fp32", depth=depth))
        optimizer = engine.optimizer
        DeepSpeedZeroOptimizer_Stage3.destroy = failing
        try:
            assert str(raises(RuntimeError, engine.destroy)) == "of DeepSpeed"
        finally:
            DeepSpeedZeroOptimizer_Stage3.destroy = destroy
        state = optimizer._store if depth == "step" else optimizer.optimizer_swapper.engine
        assert state.closed


@promise
def an_engine_beside_another_waits_for_no_lock_of_its_own_process(directory):
    opened, opening = [], store.DeviceEngine

    def counted(config, *arguments, **keywords):
        opened.append(config["nvswap.rank"])
        return opening(config, *arguments, **keywords)

    store.DeviceEngine = counted
    try:
        engines = [store.open_engine(settings(directory), "param", 0) for _ in range(3)]
        engines[1].close()
        engines.append(store.open_engine(settings(directory), "param", 0))
    finally:
        store.DeviceEngine = opening
    assert len(opened) == 4 and len(set(opened)) == 3 and opened[1] == opened[3], opened


main()
