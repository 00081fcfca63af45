# SPDX-License-Identifier: Apache-2.0
"""
Strings for C, which end at their first NUL: one with a NUL inside is refused, as open() refuses it.
"""

from __future__ import annotations

import os
from typing import Union

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


def encoded(text: str) -> bytes:
    """
    A name or key as UTF-8; ValueError if it has a NUL. Bytes that are none, of names in the store of an
    earlier version, are what Engine.stored() made of them.
    """
    return _without_nul(text.encode(errors="surrogateescape"))


def encoded_path(path: Path) -> bytes:
    """A path in the encoding of the file system; ValueError if it has a NUL."""
    return _without_nul(os.fsencode(path))


def _without_nul(data: bytes) -> bytes:
    if b"\0" in data:
        raise ValueError(f"embedded null byte: {data!r}")
    return data
