# SPDX-License-Identifier: Apache-2.0
"""A timeline of I/Os, transfers, computation and waits, for Perfetto and chrome://tracing."""

from __future__ import annotations

import errno
import os
import time
from contextlib import contextmanager
from typing import Any, Iterator, Union

from nvswap._native import ffi, lib
from nvswap.errors import Error, check, invalid, new_error
from nvswap.handle import Handle, users_of
from nvswap.strings import encoded, encoded_path


class Trace(Handle):
    """
    Records what is opened with a configuration that has it (:meth:`Config.set_trace`), and spans of
    the program.

    Parameters
    ----------
    max_spans : int
        Room, of 64 bytes each; spans beyond it are counted and dropped.

    Raises
    ------
    Error
        EINVAL: 0 or too many spans; ENOMEM.

    Notes
    -----
    close() raises EBUSY while an engine, optimizer or aio that records is open. Any thread may call.
    """

    _what = "trace"

    def __init__(self, max_spans: int = 1_000_000) -> None:
        if max_spans < 1:
            raise invalid(f"a trace has room for 1 or more spans, not {max_spans}")
        trace, error = ffi.new("struct nvs_trace **"), new_error()
        check(lib.nvs_trace_open(trace, max_spans, error), error)
        super().__init__(trace[0])

    def _free(self, pointer: Any, at_exit: bool) -> None:
        if not users_of(self):
            lib.nvs_trace_close(pointer)
        elif not at_exit:
            raise Error(errno.EBUSY, "an engine, optimizer or aio records in the trace: close it first")

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """A block of the program, as a slice of its thread's track; 31 bytes of its name."""
        begin = time.monotonic_ns()
        try:
            yield
        finally:
            with self._open() as pointer:
                lib.nvs_trace_span(pointer, encoded(name), begin, time.monotonic_ns())

    def write(self, path: Union[str, "os.PathLike[str]"]) -> int:
        """
        Writes the spans so far as JSON, over a file that is there; returns how many were dropped.

        Raises
        ------
        Error
            EINVAL: the path is no regular file; and those of opening and writing it.
        """
        dropped, error = ffi.new("uint64_t *"), new_error()
        with self._open() as pointer:
            check(lib.nvs_trace_write(pointer, encoded_path(path), dropped, error), error, os.fsdecode(path))
        return int(dropped[0])
