# SPDX-License-Identifier: Apache-2.0
"""
What autograd saves in a forward. Of a tensor over a parameter's memory these are the parameter and its
place, which the backward pins again; another tensor is saved as it is. Each has its version, as in
autograd: a backward does not compute with what has changed since its forward.
"""

from __future__ import annotations

from typing import Any, Callable, ContextManager, Dict, Mapping, NamedTuple, Optional, Tuple

import torch

from nvswap.engine import Engine
from nvswap.torch.activations import Kept, SavedOnNvme, active
from nvswap.torch.threads import Threads

Contents = Callable[[Dict[str, torch.nn.Parameter]], ContextManager[Mapping[str, torch.Tensor]]]


class _Place(NamedTuple):
    """Of a tensor over a parameter's memory."""

    name: str
    parameter: torch.nn.Parameter
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
    contents : callable
        Pins parameters.

    Attributes
    ----------
    pinned : dict of str to torch.nn.Parameter
        The parameters that have memory now, by name.
    """

    def __init__(self, engine: Engine, threads: Threads, contents: Contents) -> None:
        self._threads = threads
        self._contents = contents
        self._pool = engine.pool()
        self.pinned: Dict[str, torch.nn.Parameter] = {}

    def hooks(self) -> Any:
        """A context manager for a forward."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def of_parameter(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is over memory that a parameter has for a forward or backward."""
        return self._in_pool(tensor) or self._owner(tensor) is not None

    def _in_pool(self, tensor: torch.Tensor) -> bool:
        base, nbytes = self._pool
        return tensor.layout is torch.strided and base <= tensor.data_ptr() < base + nbytes

    def _owner(self, tensor: torch.Tensor) -> Optional[Tuple[str, torch.nn.Parameter]]:
        """The parameter over whose memory a tensor is."""
        if tensor.layout is not torch.strided or not tensor.numel():
            return None
        storage = tensor.untyped_storage().data_ptr()
        return next(((name, pinned) for name, pinned in list(self.pinned.items())
                     if pinned.untyped_storage().data_ptr() == storage), None)

    @torch.compiler.disable
    def _pack(self, tensor: torch.Tensor) -> Any:
        owner = self._owner(tensor)
        if owner is not None and owner[1].dtype == tensor.dtype:
            name, pinned = owner
            return _Place(name, pinned, pinned._version, int(tensor.storage_offset()),
                          tuple(tensor.size()), tensor.stride())
        outer = active()
        if outer is not None and owner is None and not self._in_pool(tensor):
            return _Outer(outer, outer.pack(tensor))
        return Kept(tensor, tensor._version)  # One over a parameter's memory keeps that.

    @torch.compiler.disable
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
        with self._contents({saved.name: saved.parameter}) as tensors:
            # The tensor keeps the memory for as long as the backward needs it.
            return tensors[saved.name].as_strided(saved.size, saved.stride, saved.offset)
