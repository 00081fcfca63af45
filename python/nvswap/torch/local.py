# SPDX-License-Identifier: Apache-2.0
"""What this process has of a tensor: all of it, or its shard of a DTensor; and of memory."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from typing import Any, Tuple

import torch

# Offset, size and stride, in elements.
Place = Tuple[int, torch.Size, Tuple[int, ...]]


def _dtensor() -> Any:
    """The class; None where nothing has imported it, so that there is none of it."""
    module = sys.modules.get("torch.distributed.tensor")
    return getattr(module, "DTensor", None)


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor, as those of fully_shard and tensor parallelism are."""
    kind = _dtensor()
    return kind is not None and isinstance(tensor, kind)


def is_host(device: torch.device) -> bool:
    """Whether memory of it is the host's."""
    return device.type == "cpu"


def is_on_host(tensor: torch.Tensor) -> bool:
    """Whether its memory is the host's."""
    return is_host(tensor.device)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part, without a graph; it shares the tensor's memory."""
    return tensor._local_tensor.detach() if is_sharded(tensor) else tensor.detach()


def local_gradient(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """The part of a gradient that belongs to this rank's part of its parameter."""
    if is_sharded(gradient) and gradient.placements != parameter.placements:
        gradient = gradient.redistribute(placements=parameter.placements)
    return local(gradient)


def like_parameter(values: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Values of this rank as a tensor that is sharded as the parameter is; no copy, in host memory."""
    if not is_sharded(parameter):
        return values
    return _dtensor()(values, parameter._spec, requires_grad=False)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a tensor's storage."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def place_of(tensor: torch.Tensor) -> Place:
    """Where a tensor lies in its storage."""
    return int(tensor.storage_offset()), tensor.size(), tensor.stride()


def view_at(data: torch.Tensor, dtype: torch.dtype, place: Place) -> torch.Tensor:
    """A tensor at a place in the storage of `data`."""
    return torch.empty(0, dtype=dtype, device=data.device).set_(data.untyped_storage(), *place)


def trim_memory() -> None:
    """Gives the system what the allocator of the C library keeps of memory that was freed."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
