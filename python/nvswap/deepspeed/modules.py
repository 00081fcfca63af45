# SPDX-License-Identifier: Apache-2.0
"""
Lets the module of an engine go with it. DeepSpeed keeps the modules of all engines until the process ends,
and with them the memory and the store of their parameters: in its list of the modules that are in a forward,
and in a cache of what to release after each of them.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any


def watch_destroyed() -> None:
    """Has each engine that is destroyed drop its module; calling it again changes nothing."""
    from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK, DeepSpeedZeRoOffload

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


def _clear_releases() -> None:
    """Engines that are still there fill the cache again."""
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

    release = getattr(PartitionedParameterCoordinator,
                      "_PartitionedParameterCoordinator__params_to_release", None)
    if inspect.isfunction(release):
        for cached in inspect.getclosurevars(release).nonlocals.values():
            getattr(cached, "cache_clear", lambda: None)()
