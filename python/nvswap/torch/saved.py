# SPDX-License-Identifier: Apache-2.0
"""
What autograd saves in a forward. Of a tensor over pool memory these are its parameter and place,
which the backward pins again; another tensor is saved as it is. Each has its version, as in
autograd: a backward does not compute with what has changed since its forward.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Tuple

import torch

from nvswap.engine import Engine
from nvswap.torch.activations import Kept, SavedOnNvme, active
from nvswap.torch.threads import Threads


class _Place(NamedTuple):
    """Of a tensor over pool memory."""

    name: str
    parameter: torch.Tensor
    version: int  # of the parameter
    offset: int  # in elements
    size: Tuple[int, ...]
    stride: Tuple[int, ...]


class _Outer(NamedTuple):
    """In a forward within saved_on_nvme()."""

    owner: SavedOnNvme
    packed: Any


class SavedTensors:
    """
    Saves tensors for a backward.

    Parameters
    ----------
    engine : nvswap.Engine
    threads : Threads
        Told when a backward needs a tensor.

    Attributes
    ----------
    pinned : dict of str to torch.nn.Parameter
        The parameters that have pool memory now, by name.
    """

    def __init__(self, engine: Engine, threads: Threads) -> None:
        self._engine = engine
        self._threads = threads
        self._pool = engine.pool()
        self.pinned: Dict[str, torch.nn.Parameter] = {}

    def hooks(self) -> Any:
        """A context manager for a forward."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def in_pool(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has pool memory."""
        base, nbytes = self._pool
        return tensor.device.type == "cpu" and tensor.layout is torch.strided and \
            base <= tensor.data_ptr() < base + nbytes

    def _pack(self, tensor: torch.Tensor) -> Any:
        if self.in_pool(tensor):
            storage = tensor.untyped_storage().data_ptr()
            for name, pinned in list(self.pinned.items()):
                if pinned.untyped_storage().data_ptr() == storage and pinned.dtype == tensor.dtype:
                    return _Place(name, pinned, pinned._version, int(tensor.storage_offset()),
                                  tuple(tensor.size()), tensor.stride())
        outer = active()
        if outer is not None and not self.in_pool(tensor):
            return _Outer(outer, outer.pack(tensor))
        return Kept(tensor, tensor._version)  # One over pool memory keeps its pin.

    def _unpack(self, saved: Any) -> torch.Tensor:
        self._threads.begin_backward()
        if isinstance(saved, _Outer):
            return saved.owner.unpack(saved.packed)
        if isinstance(saved, Kept):
            return saved.take()
        if saved.parameter._version != saved.version:
            raise RuntimeError(f"parameter {saved.name}, of shape {list(saved.parameter.shape)}, "
                               "was modified by a step or an inplace operation since the forward "
                               "whose backward needs it: run the forward again")
        with self._engine.pinned(saved.name, arrays="torch") as tensors:
            # The tensor keeps the pin for as long as the backward needs it.
            return tensors[saved.name].as_strided(saved.size, saved.stride, saved.offset)
