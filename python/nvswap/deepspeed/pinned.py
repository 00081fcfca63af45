# SPDX-License-Identifier: Apache-2.0
"""
DeepSpeed's op `pin_memory`: page-locked tensors, with one manager for the process, so that what one
handle allocated is pinned for all of them and can be freed by any. Memory of which all tensors are gone is
freed too: DeepSpeed's swapper of parameters never does.
"""

from __future__ import annotations

import bisect
import threading
import weakref
from typing import Any, Dict, List, Tuple

import torch

from nvswap.dtypes import array_over, dtype_name
from nvswap.errors import invalid
from nvswap.memory import pinned_buffer


class PinnedMemory:
    """The pinned tensors that were allocated and not freed yet, by base address; some may be gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._regions: Dict[int, Tuple[int, "weakref.ref[Any]"]] = {}
        self._addresses: List[int] = []  # ascending

    def allocate(self, numel: int, example: torch.Tensor, aio: Any = None) -> torch.Tensor:
        """A flat tensor of `numel` elements of the example's type; zero, where DeepSpeed's is not
        initialised."""
        if numel < 0:
            raise invalid(f"a tensor has 0 elements or more, not {numel}")
        if numel == 0:
            return torch.empty(0, dtype=example.dtype, device="cpu")
        nbytes = numel * example.element_size()
        buffer = pinned_buffer(nbytes, aio)
        tensor = array_over(buffer, dtype_name(example.dtype), (numel,), "torch")
        self._add(tensor, buffer)
        return tensor

    def adopt(self, tensor: torch.Tensor) -> torch.Tensor:
        """Has a tensor that is not page-locked count as pinned until it is gone."""
        if tensor.numel():
            self._add(tensor, tensor)
        return tensor

    def _add(self, tensor: torch.Tensor, owner: Any) -> None:
        with self._lock:
            # Their addresses may be those of the new one.
            self._regions = {address: region for address, region in self._regions.items()
                             if region[1]() is not None}
            self._regions[tensor.data_ptr()] = (tensor.nbytes, weakref.ref(owner))
            self._addresses = sorted(self._regions)

    def free(self, address: int) -> bool:
        """
        Frees the region that begins at `address`; False if there is none. Its memory stays until
        the last tensor over it is gone: where DeepSpeed's is a use after free, this one is none.
        """
        with self._lock:
            region = self._regions.pop(address, None)
            if region is None:
                return False
            del self._addresses[bisect.bisect_left(self._addresses, address)]
        return region[1]() is not None

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether all of the tensor lies in one region."""
        first = tensor.data_ptr()
        end = first + tensor.numel() * tensor.element_size()
        with self._lock:
            i = bisect.bisect_right(self._addresses, first) - 1
            if i < 0:
                return False
            begin = self._addresses[i]
            nbytes, buffer = self._regions[begin]
            return buffer() is not None and end <= begin + nbytes


PINNED = PinnedMemory()


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether the tensor is page-locked: by this module or by torch."""
    if tensor.device.type != "cpu":
        return False
    return PINNED.holds(tensor) or tensor.is_pinned()


class pin_handle:  # pylint: disable=invalid-name
    """DeepSpeed's interface to the process's pinned memory. Any thread may call."""

    def new_cpu_locked_tensor(self, num_elem: int, example_tensor: torch.Tensor) -> torch.Tensor:
        return PINNED.allocate(num_elem, example_tensor)

    def free_cpu_locked_tensor(self, locked_tensor: torch.Tensor) -> bool:
        return PINNED.free(locked_tensor.data_ptr())

    def free_cpu_locked_tensor_by_ptr(self, address: int) -> bool:
        return PINNED.free(address)

    def is_pinned(self, buffer: torch.Tensor) -> bool:
        return is_pinned(buffer)
