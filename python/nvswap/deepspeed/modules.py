# SPDX-License-Identifier: Apache-2.0
"""
Lets the module of an engine go with it, also if the engine is not completed. DeepSpeed keeps the modules of all
engines until the process ends, and with them the memory and the store of their parameters: in its list of the
modules that are in a forward, in a cache of what to release after each of them, and in hooks.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

from nvswap.deepspeed.releases import forget_names


def watch_destroyed() -> None:
    """Has each engine that is destroyed, or whose initialization fails, drop its module; calling it again
    changes nothing."""
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK, DeepSpeedZeRoOffload
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

    destroy = DeepSpeedZeRoOffload.destroy
    if hasattr(destroy, "nvswap_watches"):
        return

    @functools.wraps(destroy)
    def destroyed(self: Any) -> None:
        try:
            destroy(self)
        finally:
            FWD_MODULE_STACK[:] = [each for each in FWD_MODULE_STACK if each is not self.module]
            _clear_releases()

    destroyed.nvswap_watches = True  # type: ignore[attr-defined]
    DeepSpeedZeRoOffload.destroy = destroyed
    _watch_failures(DeepSpeedZeroOptimizer_Stage3, _end_optimizer)
    _watch_failures(DeepSpeedEngine, _end_engine)


def _watch_failures(kind: Any, end: Callable[[Any], None]) -> None:
    """Has `end` called with an object of a class whose __init__ fails."""
    make = kind.__init__

    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            make(self, *args, **kwargs)
        except BaseException:
            end(self)
            raise

    kind.__init__ = made


def _end_optimizer(optimizer: Any) -> None:
    """What destroy() does, which needs all attributes of the optimizer."""
    try:
        getattr(optimizer, "close_store", lambda: None)()
    finally:
        for name in ("_grad_acc_hooks", "_leaf_module_hooks"):
            for hook in getattr(optimizer, name, ()):
                hook.remove()
        if hasattr(optimizer, "parameter_offload"):
            optimizer.parameter_offload.destroy()


def _end_engine(engine: Any) -> None:
    forget_names()
    for name in ("module_forward_pre_hook", "module_forward_post_hook"):
        if hasattr(engine, name):
            getattr(engine, name).remove()
    if getattr(engine, "optimizer", None) is not None:
        engine.destroy()


def _clear_releases() -> None:
    """Engines that are still there fill the cache again."""
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

    release = getattr(PartitionedParameterCoordinator,
                      "_PartitionedParameterCoordinator__params_to_release", None)
    if inspect.isfunction(release):
        for cached in inspect.getclosurevars(release).nonlocals.values():
            getattr(cached, "cache_clear", lambda: None)()
