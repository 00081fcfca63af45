# SPDX-License-Identifier: Apache-2.0
"""
Exceptions: the library's negative errno and its struct nvs_error as an OSError. Relies on nothing
but the extension, so that every other module can raise them.
"""

from __future__ import annotations

import errno
import os
import re
import traceback
from typing import Any, Optional

from nvswap._native import ffi, lib

# What the library's texts advise to call, as Python has it.
_CALLS = {"nvs_config_read_rank": "Config.read_rank", "nvs_engine_abandon": "its abandon()",
          "nvs_engine_step_begin": "Engine.step_begin", "nvs_memory_alloc": "nvswap.empty",
          "NVS_FILE_WRITE": 'mode "r+"',
          "nvs_optimizer_set_step": "Optimizer.step_count",
          "nvs_optimizer_step": "Optimizer.step", "nvs_tensor_find": "Engine[name]",
          "nvs_tensor_pin": 'Engine.pinned, mode "w",'}
_CALL = re.compile(r"\b(?:nvs|NVS)_\w+")


class Error(OSError):
    """
    A call of nvswap failed.

    Attributes
    ----------
    errno : int
        The positive errno, such as ``errno.ENOSPC``.
    strerror : str
        The library's message for a person.
    tensor : str or None
        The tensor, key or option concerned.
    path : str or None
        The file of a failed I/O, or a path that is missing, full or not open for writing.
    offset : int or None
        The byte offset of a failed I/O in that file.
    line : int or None
        The line in the configuration file, from 1.
    """

    def __init__(self, code: int, text: str, tensor: Optional[str] = None,
                 path: Optional[str] = None, offset: Optional[int] = None,
                 line: Optional[int] = None) -> None:
        super().__init__(code, text)
        self.tensor = tensor
        self.path = path
        self.offset = offset
        self.line = line

    def __str__(self) -> str:
        return f"{self.strerror} [{errno.errorcode.get(self.errno, self.errno)}]"

    def __reduce__(self) -> Any:
        return type(self), (self.errno, self.strerror, self.tensor, self.path, self.offset,
                            self.line)


class Timeout(Error, TimeoutError):
    """A wait ended before what it waits for: its timeout has passed, or an I/O is overdue."""


class ClosedError(Error, ValueError):
    """The object was closed, or was opened by the parent of this process."""


def new_error() -> Any:
    """A struct nvs_error for one call."""
    error = ffi.new("struct nvs_error *")
    error.size = ffi.sizeof("struct nvs_error")
    return error


def error_of(code: int, error: Any = None, path: Optional[str] = None) -> Error:
    """The exception of a negative errno, with what the library said about it."""
    code = -code
    if error is None or error.code != -code:
        text = ffi.string(lib.nvs_strerror(-code)).decode()
        return (Timeout if code == errno.ETIMEDOUT else Error)(code, text, path=path)
    text = ffi.string(error.text)
    path = path or text[error.path_at:][:error.path_nbytes].decode(errors="replace") or None
    text = _CALL.sub(lambda call: _CALLS.get(call[0], call[0]),
                     text.decode(errors="replace"))
    return (Timeout if code == errno.ETIMEDOUT else Error)(
        code, text, ffi.string(error.subject).decode(errors="replace") or None, path,
        error.offset if error.cause == lib.NVS_CAUSE_IO else None, error.line or None)


def check(code: int, error: Any = None, path: Optional[str] = None) -> int:
    """Raises the exception of a negative errno; returns other values."""
    if code < 0:
        raise error_of(code, error, path)
    return code


def invalid(text: str, tensor: Optional[str] = None) -> Error:
    return Error(errno.EINVAL, text, tensor)


def drop_variables(failure: Optional[BaseException],
                   until: Optional[BaseException] = None) -> None:
    """Clears the variables of the frames that an exception and those before it have left: they keep
    arrays over memory of the library. `until` was handled before, and is left alone."""
    left, seen = [failure], [until]
    while left:
        each = left.pop()
        if each is None or any(each is other for other in seen):
            continue
        seen.append(each)
        traceback.clear_frames(each.__traceback__)
        left += [each.__cause__, each.__context__]


def closed(what: str) -> ClosedError:
    return ClosedError(errno.EBADF, f"the {what} is closed")


def closed_within_call(what: str) -> Error:
    return Error(errno.EDEADLK, f"the {what} can't be closed within a call on it, in a callback or "
                 "a signal handler: close it when the call has returned, or in another thread")


def forked(what: str) -> ClosedError:
    return ClosedError(errno.EBADF, f"the {what} was opened before a fork, in process "
                       f"{os.getppid()} or above; a child opens its own")
