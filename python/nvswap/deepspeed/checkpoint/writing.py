# SPDX-License-Identifier: Apache-2.0
"""torch.save whose errors of writing have errno and path; torch's own have neither."""

from __future__ import annotations

import io
from typing import Any, Optional

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
    with _File(path, "w") as file:
        torch.save(value, file)
    if file.failure is not None:
        raise OSError(file.failure.errno, file.failure.strerror, path)
