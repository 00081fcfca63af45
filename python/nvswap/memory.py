# SPDX-License-Identifier: Apache-2.0
"""
Memory: where the caller's arrays lie, and pinned memory for transfers. An array is anything with
the buffer protocol (bytes, bytearray, memoryview, numpy) or a torch tensor in host memory.
"""

from __future__ import annotations

import math
import operator
import os
import re
from typing import Any, NamedTuple, Optional, Sequence, SupportsIndex, Tuple, Union

from nvswap._native import ffi, lib
from nvswap.dtypes import _NUMPY, array_over, dtype_name, is_tensor, itemsize
from nvswap.errors import check, invalid, new_error
from nvswap.strings import encoded_path

Shape = Union[SupportsIndex, Sequence[SupportsIndex]]

# In a format of the buffer protocol without field names: objects, pointers, functions, C strings.
# "Z" before a float is a complex number.
_POINTERS = re.compile(r"[OP&Xz]|Z(?![efdg])")
_FIELD_NAMES = re.compile(r":[^:]*:")


_ADDRESSABLE = (1 << 63) - 1  # bytes


class Span(NamedTuple):
    """The memory of an array, which `owner` keeps alive."""

    address: int
    nbytes: int
    owner: Any

    @property
    def pointer(self) -> Any:
        return ffi.cast("char *", self.address)


def shape_of(shape: Shape) -> Tuple[int, ...]:
    """A shape as a tuple of lengths, none of them negative."""
    try:
        result: Tuple[int, ...] = (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError:
        result = tuple(operator.index(n) for n in shape)  # type: ignore[union-attr]
    if any(n < 0 for n in result):
        raise invalid(f"a shape has no negative lengths: {result}")
    if any(n > _ADDRESSABLE for n in result) or math.prod(result) > _ADDRESSABLE:
        raise invalid(f"a shape of {result} is more than can be addressed")
    return result


def span_of(array: Any, writable: bool) -> Span:
    """
    The memory of an array.

    Raises
    ------
    ValueError, BufferError, TypeError
        The array is not contiguous, is on another device, is read-only and must be written, has
        pointers as elements (numpy's dtype object), or is no array.
    """
    if is_tensor(array):
        return _span_of_tensor(array)
    owner = ffi.from_buffer("char[]", _viewed(array), require_writable=writable)
    return Span(int(ffi.cast("uintptr_t", owner)), len(owner), (owner, array))


def _viewed(array: Any) -> Any:
    """ffi.from_buffer also takes Fortran order, in which offsets mean something else, and arrays of
    Python objects."""
    view = memoryview(array)
    if not view.c_contiguous:
        raise ValueError("the array is not contiguous in C order")
    if _POINTERS.search(_FIELD_NAMES.sub(" ", view.format)):
        raise TypeError(f"the array's elements are or hold pointers (format {view.format!r}), "
                        "which mean nothing outside of this process")
    return array


def _span_of_tensor(tensor: Any) -> Span:
    if tensor.device.type != "cpu":
        raise ValueError(f"the tensor is on {tensor.device}; transfers are from and to host memory")
    if not str(tensor.layout).endswith("strided") or not tensor.is_contiguous():
        raise ValueError("the tensor is not contiguous")
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError("the tensor is a lazy conjugate or negative; resolve it first")
    return Span(tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor)


def array_dtype(array: Any) -> str:
    """The element type of an array, by its name in the library."""
    if hasattr(array, "dtype"):
        return dtype_name(array.dtype)
    view = memoryview(array)
    codes = {"b": "i1", "B": "u1", "c": "u1", "h": "i2", "H": "u2", "i": "i4", "I": "u4",
             "q": "i8", "Q": "u8", "l": "i8", "L": "u8", "e": "f2", "f": "f4", "d": "f8", "?": "?"}
    code = codes.get(view.format)
    names = [name for name, numpy_code in _NUMPY.items()
             if numpy_code == code and name not in ("BF16", "F8_E4M3", "F8_E5M2")]
    if not names:
        raise invalid(f"no element type for elements of format {view.format!r}")
    return names[0]


def array_numel(array: Any) -> int:
    if is_tensor(array):
        return int(array.numel())
    view = memoryview(array)
    return view.nbytes // view.itemsize


def pinned_buffer(nbytes: int, aio: Any = None, path: Optional[str] = None) -> Any:
    """A buffer of `nbytes` over pinned memory, freed with the last reference to it."""
    if nbytes > _ADDRESSABLE:
        raise invalid(f"{nbytes} bytes are more than can be addressed", "nbytes")
    data, error = ffi.new("void **"), new_error()
    name = ffi.NULL if path is None else encoded_path(path)
    if aio is None:
        check(lib.nvs_memory_alloc(ffi.NULL, nbytes, name, data, error), error)
    else:
        with aio._open() as pointer:
            check(lib.nvs_memory_alloc(pointer, nbytes, name, data, error), error)
    def free_memory(memory: Any, pid: int = os.getpid(), now: Any = os.getpid, free: Any = lib.nvs_memory_free) -> None:
        # The memory is not mapped in a child. At exit this may outlive the names of its module.
        if now() == pid:
            free(memory)

    owner = ffi.gc(ffi.cast("char *", data[0]), free_memory, nbytes)
    return ffi.buffer(owner, nbytes)


def empty(shape: Shape, dtype: Any = None, *, aio: Any = None, path: Optional[str] = None,
          arrays: str = "numpy") -> Any:
    """
    Allocates pinned memory for transfers: locked, on huge pages where there are some, and zero.

    Parameters
    ----------
    shape : int or sequence of int
        Elements, or bytes without a `dtype`. An array without elements has no pinned memory.
    dtype : optional
        As for :func:`nvswap.dtype_name`. Without one, a memoryview of bytes is returned.
    aio : Aio, optional
        Registers the memory with this aio's rings, which saves work for every I/O.
    path : str, optional
        Binds the memory to the NUMA node of the drive of this path.
    arrays : {"numpy", "torch", "memoryview"}
        What to return. BF16 and the F8 types are unsigned integers in numpy.

    Returns
    -------
    array
        Freed when it and all views of it are gone, and no transfer uses it any more.

    Raises
    ------
    Error
        ENOMEM: the memory can't be locked; EINVAL: no such type, or more than can be addressed.

    Notes
    -----
    The memory is not mapped in a child of fork(), which SIGSEGV ends when it touches the array.
    Give children a copy made before the fork, ``numpy.array(array)`` or ``tensor.clone()``. Those
    started by multiprocessing's "spawn" or "forkserver" get a copy of a numpy array; torch moves a
    tensor that it passes out of the pinned memory, so pass a clone.

    Memory that is registered with a GPU (cudaHostRegister) must not be any more when the last view of
    it goes: the GPU would copy the old pages in place of what is mapped at their address next.
    """
    lengths, name = shape_of(shape), "U8" if dtype is None else dtype_name(dtype)
    nbytes = math.prod(lengths) * itemsize(name)
    buffer = pinned_buffer(nbytes, aio, path) if nbytes else bytearray()
    return array_over(buffer, name, lengths, "memoryview" if dtype is None else arrays)


def is_pinned(array: Any) -> bool:
    """Whether all of an array lies in memory of :func:`empty`, of any thread or aio."""
    span = span_of(array, False)
    return bool(lib.nvs_memory_is_pinned(span.pointer, span.nbytes))
