# SPDX-License-Identifier: Apache-2.0
"""
Statistics: a structure that the library has filled in, as a dictionary of its fields.
"""

from __future__ import annotations

from typing import Any, Dict, TypedDict

from nvswap._native import ffi


class StepIO(TypedDict):
    """I/O of a step of an engine or an optimizer, in bytes and nanoseconds: struct nvs_step_io."""

    wall_ns: int
    io_ns: int
    compute_ns: int
    hidden_ns: int
    read_bytes: int
    written_bytes: int
    hits: int
    misses: int
    stalls: int
    stall_ns: int
    drive_written_bytes: int


class StepResult(TypedDict):
    """What a step of an optimizer has done: struct nvs_step_result."""

    step: int
    skipped: bool
    loss_scale: float
    norm: float
    clip: float
    tiles: int
    cpu_ns: int
    host_bytes: int
    threads: int
    kernel: str
    io: StepIO


_HIDDEN = ("size", "reserved")


def _value_of(kind: Any, value: Any) -> Any:
    if kind.kind == "struct":
        return fields_of(value)
    if kind.kind == "array" and kind.item.cname == "char":
        return ffi.string(value).decode(errors="replace")
    if kind.kind == "array":
        return [_value_of(kind.item, each) for each in value]
    if kind.kind == "pointer":
        return ffi.string(value).decode(errors="replace") if value else None
    return value


def _is_elsewhere(kind: Any) -> bool:
    """Whether it points to something whose length another field has."""
    return bool(kind.kind == "pointer" and kind.item.cname != "char")


def fields_of(structure: Any) -> Dict[str, Any]:
    """The fields of a structure without arrays elsewhere; arrays of I/O by direction become "read" and
    "write"."""
    kind = ffi.typeof(structure)
    kind = kind.item if kind.kind == "pointer" else kind
    result = {name: _value_of(field.type, getattr(structure, name))
              for name, field in kind.fields
              if name not in _HIDDEN and not _is_elsewhere(field.type)}
    if "io" in result and isinstance(result["io"], list):
        result["read"], result["write"] = result.pop("io")
    return result
