# SPDX-License-Identifier: Apache-2.0
"""
nvswap in the place of DeepSpeed's NVMe ops. One line before training:

    import nvswap.deepspeed
    nvswap.deepspeed.install()

or none: `python -m nvswap.deepspeed script.py ...`. DeepSpeed's files stay as they are: its builders
look for a loaded op before they load or compile one, and install() puts nvswap's there.
"""

from __future__ import annotations

import sys
import types
from typing import Any, Callable, Dict

from nvswap.errors import Error

_PINNED_OP = "_deepspeed_pin_memory_op_module"


class VersionError(ImportError):
    """The installed DeepSpeed is older than this nvswap knows, or so new that what it replaces is not there."""


def install(*, adam: bool = True) -> None:
    """
    Gives DeepSpeed nvswap's `async_io`, `pin_memory`, `cpu_adagrad`, `cpu_lion` and, with `adam`, `cpu_adam`, for
    this process, so that a job needs no compiler. With "offload_optimizer": {"device": "nvme"} nvswap also makes the
    ZeRO-3 step, unless "nvswap": {"deepspeed": "ops" or "swappers"} in DeepSpeed's JSON file says
    otherwise; see nvswap.deepspeed.depth. To be called before
    deepspeed.initialize and zero.Init; calling it again changes nothing.

    Raises
    ------
    VersionError
        DeepSpeed is older than 0.16, or so new that something is gone that nvswap replaces; the message names it.
    ImportError
        DeepSpeed or torch is not installed.
    Error
        EBUSY: DeepSpeed has loaded one of its own ops already.
    """
    import deepspeed
    from deepspeed.ops.op_builder import AsyncIOBuilder
    from deepspeed.ops.op_builder.builder import OpBuilder

    from nvswap.deepspeed.depth import watch_configurations
    from nvswap.deepspeed.releases import check_release, remember_pinned
    from nvswap.deepspeed.states import watch_states

    check_release()
    modules = _modules(adam)
    for name, module in modules.items():
        loaded = OpBuilder._loaded_ops.get(name)
        if name == "pin_memory":
            loaded = loaded or getattr(sys, _PINNED_OP, None)
        if loaded is not None and loaded.__name__ != module.__name__:
            raise Error(16, f"DeepSpeed has loaded its own {name} already: call "
                        "nvswap.deepspeed.install() before deepspeed.initialize and zero.Init")
    for name, module in modules.items():
        OpBuilder._loaded_ops.setdefault(name, module)
    if not hasattr(sys, _PINNED_OP):
        setattr(sys, _PINNED_OP, modules["pin_memory"])
    # ds_io and the swappers ask the builder; everything else asks the table.
    AsyncIOBuilder.is_compatible = lambda self, verbose=False: True
    compatible: Dict[str, bool] = deepspeed.ops.__compatible_ops__
    compatible.update({name: True for name in modules})
    watch_configurations()
    watch_states()
    remember_pinned()
    # The CPU accelerator would compile it for collectives in shared memory; gloo does without.
    compatible["deepspeed_shm_comm"] = False


def _modules(adam: bool) -> Dict[str, types.ModuleType]:
    """The ops as modules without a file, which DeepSpeed would hand to ctypes."""
    from nvswap.deepspeed import ops, optimizers, pinned

    modules = {
        "async_io": _module("async_io", ops.aio_handle, ops.aio_read, ops.aio_write,
                            ops.deepspeed_memcpy),
        "pin_memory": _module("pin_memory", pinned.pin_handle),
        "cpu_adagrad": _module("cpu_adagrad", optimizers.create_adagrad, optimizers.destroy_adagrad,
                               optimizers.adagrad_update),
        "cpu_lion": _module("cpu_lion", optimizers.create_lion, optimizers.destroy_lion, optimizers.lion_update),
    }
    if adam:
        modules["cpu_adam"] = _module("cpu_adam", optimizers.create_adam, optimizers.destroy_adam,
                                      optimizers.adam_update, optimizers.adam_rollback)
    return modules


def _module(name: str, *members: Callable[..., Any]) -> types.ModuleType:
    module = types.ModuleType(f"nvswap.deepspeed.op.{name}")
    for member in members:
        setattr(module, member.__name__, member)
    return module
