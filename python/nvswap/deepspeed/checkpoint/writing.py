# SPDX-License-Identifier: Apache-2.0
"""torch.save that always writes CRC-32, which loads compare, and whose errors of writing have errno and
path; torch's own have neither."""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import Any, Iterator, Optional

import torch


class _File(io.FileIO):
    """Keeps the first error of writing. torch can't pass on an exception, so it writes on to nowhere."""

    failure: Optional[OSError] = None

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        nbytes = len(left)
        try:
            while left and self.failure is None:
                left = left[super().write(left):]
        except OSError as error:
            self.failure = error
        return nbytes


def save(value: Any, path: str) -> None:
    """
    Writes what torch.load reads.

    Raises
    ------
    OSError
        With the errno and the path.
    """
    with _File(path, "w") as file, _summing():
        torch.save(value, file)
    if file.failure is not None:
        raise OSError(file.failure.errno, file.failure.strerror, path)


def saved(value: Any) -> bytes:
    """The bytes of such a file."""
    file = io.BytesIO()
    with _summing():
        torch.save(value, file)
    return file.getvalue()


@contextmanager
def _summing() -> Iterator[None]:
    """Whatever torch.serialization.set_crc32_options is; releases before 2.6 have no such option."""
    if not hasattr(torch.serialization, "set_crc32_options"):
        yield
        return
    sums = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(True)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(sums)
