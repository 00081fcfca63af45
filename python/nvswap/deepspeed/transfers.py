# SPDX-License-Identifier: Apache-2.0
"""
Transfers for DeepSpeed's op, which starts one small tensor per call: they are gathered and submitted
together, so that a tensor costs a few microseconds. Gathered transfers wait for at most GATHERED
others or GATHERED_BYTES, until a wait or until a file is closed, whichever comes first; those of more
bytes start at once.
"""

from __future__ import annotations

import errno
import threading
import warnings
from typing import Any, List, Optional

from nvswap._native import ffi, lib
from nvswap.aio import Aio, File
from nvswap.errors import Error, error_of, new_error
from nvswap.handle import wait_sliced

GATHERED = 32
GATHERED_BYTES = 1 << 20

_SIZE = ffi.sizeof("struct nvs_transfer")


class Pending:
    """A transfer from its start until it was waited for; it keeps its memory and its file alive."""

    __slots__ = ("owner", "file", "write", "address", "nbytes", "offset", "request", "failure", "descriptor")

    def __init__(self, owner: Any, file: File, write: bool, address: int, nbytes: int, offset: int) -> None:
        self.owner = owner
        self.file = file
        self.write = write
        self.address = address
        self.nbytes = nbytes
        self.offset = offset
        self.request: Any = None  # None: it is gathered, or failed
        self.failure: Optional[Error] = None
        self.descriptor: Any = None  # what its file was opened by, to be closed once it is waited for


def warn_dropped(failure: Error) -> None:
    """Warns of a failed transfer whose handle is gone: no wait() can raise it."""
    warnings.warn(f"a transfer of an aio_handle that was dropped without wait(): {failure}",
                  ResourceWarning, stacklevel=3)


class Transfers:
    """
    The transfers of an aio, started by any thread. The collector may drop a handle, which waits,
    anywhere within a call of its thread; so what is gathered changes by single assignments.
    """

    def __init__(self, aio: Aio) -> None:
        self._aio = aio
        # Held by callers that choose a file, so that no other thread closes it before the transfer
        # has been submitted. Reentrant: closing a file submits what is gathered.
        self.lock = threading.RLock()
        self._array = ffi.new("struct nvs_transfer[]", GATHERED)
        self._requests = ffi.new("struct nvs_request *[]", GATHERED)
        for each in self._array:
            each.size = _SIZE
        self._gathered: List[Pending] = []
        self._nbytes = 0
        self._submitting: Optional[int] = None  # the thread that submits
        self._adopted: List[Pending] = []

    def start(self, file: File, write: bool, address: int, nbytes: int, offset: int,
              owner: Any) -> Pending:
        """
        Starts a transfer, or gathers it with others. With `lock` held.

        Raises
        ------
        Error
            EINVAL: the offset is negative.
        """
        if offset < 0:
            raise Error(errno.EINVAL, f"an offset is not negative: {offset}")
        pending = Pending(owner, file, write, address, nbytes, offset)
        self._gathered.append(pending)
        self._nbytes += nbytes
        if len(self._gathered) >= GATHERED or self._nbytes >= GATHERED_BYTES:
            self.submit()
        return pending

    def submit(self) -> None:
        """Submits what is gathered. What can't be submitted fails in its wait."""
        with self.lock:
            if self._submitting is not None or not self._gathered:
                return
            self._submitting = threading.get_ident()
            gathered, self._gathered, self._nbytes = self._gathered, [], 0
            try:
                with self._aio._open() as pointer:
                    for first in range(0, len(gathered), GATHERED):
                        self._submit(pointer, gathered[first:first + GATHERED])
            except Error as error:
                for each in gathered:
                    each.failure = error
            finally:
                self._submitting = None

    def adopt(self, pending: List[Pending]) -> bool:
        """
        Takes over the transfers of a handle that the collector drops while its thread submits,
        which may be these transfers; the next wait ends them. False: the handle can wait itself.
        """
        if self._submitting != threading.get_ident():
            return False
        self._adopted.extend(pending)
        return True

    def _submit(self, pointer: Any, gathered: List[Pending]) -> None:
        n, error = len(gathered), new_error()
        for each, entry in zip(gathered, self._array):
            entry.file = each.file._pointer
            entry.direction = lib.NVS_WRITE if each.write else lib.NVS_READ
            entry.data = ffi.cast("void *", each.address)
            entry.nbytes = each.nbytes
            entry.offset = each.offset
        if lib.nvs_aio_submit(pointer, self._array, n, self._requests, error) == 0:
            for each, request in zip(gathered, self._requests):
                each.request = request
            return
        # None was started: one at a time, each hears of its own error.
        for index, each in enumerate(gathered):
            code = lib.nvs_aio_submit(pointer, self._array + index, 1, self._requests, error)
            if code == 0:
                each.request = self._requests[0]
            else:
                each.failure = error_of(code, error, each.file.path)

    def wait(self, pending: List[Pending]) -> Optional[Error]:
        """
        Waits for all of the transfers, and ends them; returns the first failure. Interrupted by an
        exception, such as KeyboardInterrupt, all of them stay to be waited for.
        """
        self.submit()
        failure = self._wait(pending)
        self._end_adopted()
        return failure

    def _end_adopted(self) -> None:
        if not self._adopted:
            return
        with self.lock:  # No other thread submits, so all that were adopted have been submitted.
            if self._submitting is not None:
                return
            adopted, self._adopted = self._adopted, []
        try:
            failure = self._wait(adopted)
        except BaseException:
            self._adopted.extend(adopted)
            raise
        if failure is not None:
            warn_dropped(failure)

    def _wait(self, pending: List[Pending]) -> Optional[Error]:
        submitted = [each for each in pending if each.request is not None]
        if submitted:
            array = ffi.new("struct nvs_request *[]", [each.request for each in submitted])
            error = new_error()
            with self._aio._open() as pointer:
                code = wait_sliced(self._aio, lambda ms, error: lib.nvs_aio_wait(
                    pointer, array, len(submitted), ms, error), None, error)
                if code == -errno.ETIMEDOUT:  # overdue, and still in flight
                    raise error_of(code, error)
                for each in submitted:
                    if code < 0:
                        each.failure = _failure_of(each, error)
                    lib.nvs_request_close(each.request)
                    each.request = None
        return next((each.failure for each in pending if each.failure is not None), None)


def _failure_of(pending: Pending, error: Any) -> Optional[Error]:
    error.code = 0
    code = lib.nvs_request_status(pending.request, error)
    return error_of(code, error, pending.file.path) if code < 0 else None
