# SPDX-License-Identifier: Apache-2.0
"""
Element types: the safetensors names of the library beside those of numpy and torch. numpy is
imported when an array is asked for, torch never: whoever has torch tensors has imported it.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from nvswap._native import ffi, lib
from nvswap.errors import invalid

# Types that numpy lacks are unsigned integers of their size there.
_NUMPY = {"F64": "f8", "F32": "f4", "F16": "f2", "BF16": "u2", "F8_E4M3": "u1", "F8_E5M2": "u1",
          "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1", "U64": "u8", "U32": "u4", "U16": "u2",
          "U8": "u1", "BOOL": "?", "C64": "c8", "F8_E8M0": "u1", "F8_E4M3FNUZ": "u1",
          "F8_E5M2FNUZ": "u1"}
_TORCH = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
          "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "I64": "int64", "I32": "int32",
          "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16",
          "U8": "uint8", "BOOL": "bool", "C64": "complex64", "F8_E8M0": "float8_e8m0fnu",
          "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"}
_NAMES = {name.lower(): name for name in _NUMPY}
_NAMES.update({other: name for name, other in _TORCH.items()})
_NAMES.update({"|b1": "BOOL", "b1": "BOOL"})
for _name, _code in _NUMPY.items():
    if _name not in ("BF16", "BOOL") and not _name.startswith("F8_"):
        _NAMES.update({"<" + _code: _name, "|" + _code: _name, "=" + _code: _name})


def dtype_name(dtype: Any) -> str:
    """
    The safetensors name of an element type.

    Parameters
    ----------
    dtype : str, numpy.dtype, numpy type or torch.dtype
        ``"BF16"``, ``"bfloat16"``, ``numpy.float32``, ``torch.bfloat16``.
    """
    text = dtype if isinstance(dtype, str) else None
    if text is None and str(dtype).startswith("torch."):
        text = str(dtype)[len("torch."):]
    if text is None:
        text = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    try:
        return _NAMES[text.lower()]
    except KeyError:
        raise invalid(f"no element type {dtype!r}; there are {', '.join(_NUMPY)}") from None


def dtype_number(dtype: Any) -> int:
    return _parsed(dtype_name(dtype))


def _parsed(name: str) -> int:
    number = ffi.new("enum nvs_dtype *")
    if lib.nvs_dtype_parse(name.encode(), number):
        raise invalid(f"no element type {name!r}")
    return int(number[0])


def number_name(number: int) -> str:
    return ffi.string(lib.nvs_dtype_name(number)).decode()


def itemsize(name: str) -> int:
    """Bytes of an element; 0 if it is packed with others into a byte."""
    return int(lib.nvs_dtype_size(_parsed(name)))


def nbytes_of(name: str, numel: int) -> int:
    """Bytes of `numel` elements."""
    return int(lib.nvs_dtype_bits(_parsed(name))) * numel // 8


def loaded_torch() -> Any:
    """torch if the program has imported it, or None."""
    return sys.modules.get("torch")


def imported_numpy() -> Any:
    """
    numpy, for an array that the library makes.

    Raises
    ------
    ModuleNotFoundError
        It is not installed; says what to do.
    """
    try:
        import numpy
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'numpy is not installed: install it, or ask for arrays="memoryview" or "torch" where the '
            "array is made (nvswap.empty, Engine), and give get_state an array by out=",
            name=error.name) from error
    return numpy


def torch_dtype(name: str) -> Any:
    """
    The type of torch.

    Raises
    ------
    Error
        EINVAL: this release has none.
    """
    dtype = getattr(loaded_torch(), _TORCH.get(name, ""), None)
    if dtype is None:
        raise invalid(f"torch has no element type {name}")
    return dtype


def is_tensor(value: Any) -> bool:
    torch = loaded_torch()
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: Any) -> bool:
    """Whether it is an array of numpy, a torch tensor or alike, and not the type of one."""
    return not isinstance(value, type) and hasattr(value, "dtype") and hasattr(value, "shape")


def array_over(buffer: Any, dtype: str, shape: Any, kind: str, writable: bool = True) -> Any:
    """An array of `kind` ("numpy", "torch", "memoryview") over a buffer, which it keeps. Packed elements
    are bytes in one dimension."""
    if dtype not in _NUMPY:
        dtype, shape = "U8", (len(buffer),)
    if kind == "torch":
        return _tensor_over(buffer, dtype, shape)
    view = memoryview(buffer)
    view = view if writable else view.toreadonly()
    if kind == "memoryview":
        return view
    if kind != "numpy":
        raise invalid(f'arrays are "numpy", "torch" or "memoryview", not {kind!r}')
    return imported_numpy().frombuffer(view, dtype=_NUMPY[dtype]).reshape(shape)


def empty_array(dtype: str, shape: Any, kind: str) -> Any:
    """An array of `kind` ("numpy", "torch") in memory of its own, like that of :func:`array_over`."""
    if dtype not in _NUMPY:
        dtype, shape = "U8", (nbytes_of(dtype, math.prod(shape)),)
    if kind == "torch":
        return loaded_torch().empty(shape, dtype=torch_dtype(dtype), device="cpu")
    return imported_numpy().empty(shape, dtype=_NUMPY[dtype])


def copy_bytes(to: Any, array: Any) -> None:
    """Copies an array to one of its type and shape. A copy of a tensor of bool would have 1 in the place of each byte
    but 0, which files may have."""
    if is_tensor(array) and array.dtype == torch_dtype("BOOL"):
        to, array = to.view(torch_dtype("U8")), array.view(torch_dtype("U8"))
    to[...] = array


def _tensor_over(buffer: Any, dtype: str, shape: Any) -> Any:
    torch = loaded_torch()
    if torch is None:
        raise invalid("import torch before asking for tensors of it")
    kind = torch_dtype(dtype)
    if len(buffer) == 0:
        return torch.empty(shape, dtype=kind, device="cpu")
    flat = torch.frombuffer(buffer, dtype=kind)
    # A reshape is a view, and with the last reference to what it is a view of, weak ones end.
    return flat if len(shape) == 1 else flat.reshape(shape)
