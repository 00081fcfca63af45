# SPDX-License-Identifier: Apache-2.0
"""
`engine.offload_states(device=OffloadDeviceEnum.nvme)`, which DeepSpeed refuses: what its ZeRO optimizer has in
memory, on a GPU or on the host, goes to the drive and comes back to the same storages, so that no view of them
needs to be known.
"""

from __future__ import annotations

import functools
from typing import Any, Container, Iterable, Iterator, NoReturn, Optional, Tuple

import torch

from nvswap.config import Config
from nvswap.deepspeed.depth import blocks_of
from nvswap.errors import invalid
from nvswap.torch.park import Parked, StorageInPlace

# Of an engine, what reads or writes the states. Its forward has a hook.
_REFUSED = ("backward", "step", "save_checkpoint", "load_checkpoint", "save_16bit_model")


def watch_states() -> None:
    """Has engines take the drive for a device of their states; calling it again changes nothing."""
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum

    offload, reload = DeepSpeedEngine.offload_states, DeepSpeedEngine.reload_states
    if hasattr(offload, "nvswap_watches"):
        return

    @functools.wraps(offload)
    def offload_states(self: Any, include: Optional[Container[Any]] = None,
                       device: Any = OffloadDeviceEnum.cpu, *args: Any, **more: Any) -> None:
        if getattr(self, "nvswap_states", None):
            raise invalid("the engine's states are on the drive already: call its reload_states() first")
        if device != OffloadDeviceEnum.nvme:
            offload(self, include, device, *args, **more)
        else:
            self.nvswap_states = _States(self, include)

    @functools.wraps(reload)
    def reload_states(self: Any, *args: Any, **more: Any) -> None:
        if getattr(self, "nvswap_states", None):
            self.nvswap_states.reload(self)
            self.nvswap_states = None
        reload(self, *args, **more)

    offload_states.nvswap_watches = True  # type: ignore[attr-defined]
    DeepSpeedEngine.offload_states, DeepSpeedEngine.reload_states = offload_states, reload_states


class _States:
    """Of an engine, on the drive."""

    def __init__(self, engine: Any, include: Optional[Container[Any]]) -> None:
        if not hasattr(engine.optimizer, "offload_states"):
            raise invalid("the engine has no optimizer of ZeRO, whose states could go to the drive")
        param = engine.zero_offload_param()
        if param is not None and param.device != "none":
            raise invalid("the engine has offload_param: its parameters are not where offload_states() finds them")
        if hasattr(engine.optimizer, "empty_partition_cache"):
            engine.optimizer.empty_partition_cache()
        tensors = {name: tensor.data for kind, found in _kinds(engine) if include is None or kind in include
                   for name, tensor in _named(kind, found)}
        config = Config(blocks_of(engine._config))
        self._parked = Parked(tensors, config if config.paths("param") else None, StorageInPlace)
        _empty_cache()
        self._hook = engine.module.register_forward_pre_hook(_refuse, prepend=True)
        for name in _REFUSED:
            setattr(engine, name, _refuse)

    @property
    def nbytes(self) -> int:
        """On the drive."""
        return self._parked.nbytes

    def reload(self, engine: Any) -> None:
        """Brings them back; after an error they are still on the drive."""
        self._parked.unpark()
        self._hook.remove()
        for name in _REFUSED:
            delattr(engine, name)


def _kinds(engine: Any) -> Iterator[Tuple[str, Any]]:
    """What DeepSpeed's OffloadStateTypeEnum names, of all stages of ZeRO."""
    zero = engine.optimizer
    yield "optim_states", [list(state.values()) for state in zero.optimizer.state.values()]
    yield "hp_params", [getattr(zero, name, None) for name in (
        "fp32_partitioned_groups_flat", "single_partition_of_fp32_groups")]
    yield "lp_params", [getattr(parameter, "ds_tensor", parameter) for parameter in engine.module.parameters()]
    yield "lp_grads", [getattr(zero, name, None) for name in ("grad_partitions_flat_buffer", "averaged_gradients")]
    yield "contiguous_grad_buffer", [
        getattr(bucket, "buffer", None) for bucket in getattr(zero, "ipg_buckets", {}).values()]


def _named(name: str, found: Any) -> Iterator[Tuple[str, torch.Tensor]]:
    """The tensors in dictionaries and lists, of any depth."""
    if isinstance(found, torch.Tensor):
        yield name, found
    elif isinstance(found, (dict, list, tuple)):
        pairs: Iterable[Any] = found.items() if isinstance(found, dict) else enumerate(found)
        for key, value in pairs:
            yield from _named(f"{name}.{key}", value)


def _empty_cache() -> None:
    from deepspeed.accelerator import get_accelerator

    get_accelerator().empty_cache()


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise invalid("the engine's states are on the drive: call its reload_states() first")
