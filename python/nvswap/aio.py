# SPDX-License-Identifier: Apache-2.0
"""
Aio: files, and reads and writes of any memory at any offset. A transfer is a Request, which keeps
its memory alive until it has completed, and can be waited for, awaited or turned into a
concurrent.futures.Future.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import logging
import os
import select
import threading
from contextlib import contextmanager
from typing import (Any, Callable, Dict, Generator, Iterable, Iterator, List, NamedTuple, Optional,
                    Tuple, Union)

from nvswap._native import ffi, lib
from nvswap.config import config_of
from nvswap.errors import Error, check, error_of, invalid, new_error
from nvswap.handle import Handle, wait_sliced
from nvswap.memory import Span, span_of
from nvswap.statistics import fields_of
from nvswap.strings import encoded_path

_MODES = {
    "r": 0,
    "r+": lib.NVS_FILE_WRITE,
    "w": lib.NVS_FILE_WRITE | lib.NVS_FILE_CREATE | lib.NVS_FILE_TRUNCATE,
    "a": lib.NVS_FILE_WRITE | lib.NVS_FILE_CREATE,
}
_TAKEN = 64
_NULL = ffi.NULL

_log = logging.getLogger("nvswap")


class Transfer(NamedTuple):
    """A transfer to submit with others; `offset` in bytes, `nbytes` None for all of the array."""

    file: "File"
    direction: str  # "read" or "write"
    array: Any
    offset: int = 0
    nbytes: Optional[int] = None


class Request:
    """
    A submitted transfer. `await request` waits in an event loop, :meth:`wait` in a thread; both
    raise what failed. A request need not be waited for: :meth:`Aio.wait_all` reports its failure.
    """

    def __init__(self, aio: "Aio", file: "File", span: Span) -> None:
        self.file = file
        self.nbytes = span.nbytes
        self._aio = aio
        self._owner: Any = span.owner
        self._pointer: Any = None
        self._error: Optional[Error] = None
        self._finished = False
        self._waiters = 0
        self._callbacks: List[Callable[["Request"], None]] = []

    def done(self) -> bool:
        """Whether the transfer has completed, successfully or not."""
        if not self._finished:
            self._aio._poll(self)
        return self._finished

    def wait(self, timeout: Optional[float] = None) -> int:
        """
        Waits for the transfer.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None waits without end, unless the drive hangs (io_timeout_ms).

        Returns
        -------
        int
            The bytes transferred, all of them.

        Raises
        ------
        Timeout
            The transfer goes on and can be waited for again.
        Error
            ENODATA: a read past the end of the file; ENOSPC, EIO and others of the drive.
        """
        self._aio.wait([self], timeout)
        return self.nbytes

    def exception(self) -> Optional[Error]:
        """What failed, or None; Timeout while the transfer is in flight."""
        if not self.done():
            return error_of(-errno.ETIMEDOUT)
        return self._error

    def add_done_callback(self, callback: Callable[["Request"], None]) -> None:
        """
        Calls `callback(request)` when the completion is seen, by the thread that sees it: now, in a
        wait, in an event loop, or in the thread of futures. The callback may close the aio. An
        exception of it is logged, by the logger "nvswap", and ends nothing else.
        """
        with self._aio._lock:
            if not self._finished:
                self._callbacks.append(callback)
                return
        _call_back(iter([(callback, self)]))

    def future(self) -> "concurrent.futures.Future[int]":
        """A future with the bytes transferred, set by a thread of the aio. It can't be cancelled:
        a transfer goes on until it completes."""
        future: "concurrent.futures.Future[int]" = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        self.add_done_callback(lambda _: self._settle(future))
        self._aio._start_watching()
        return future

    def _settle(self, future: Any) -> None:
        if future.cancelled():
            return
        if self._error is not None:
            future.set_exception(self._error)
        else:
            future.set_result(self.nbytes)

    def __await__(self) -> Generator[Any, None, int]:
        if not self._finished:
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            self._aio._add_loop(loop)
            self.add_done_callback(lambda _: _in_loop(loop, self._settle, future))
            try:
                yield from future.__await__()
            finally:
                self._aio._remove_loop(loop)
        if self._error is not None:
            raise self._error
        return self.nbytes

    def __repr__(self) -> str:
        state = "in flight" if not self._finished else "failed" if self._error else "completed"
        return f"<nvswap.Request {state}, {self.nbytes} bytes, {self.file.path}>"


def _in_loop(loop: Any, call: Callable[..., None], *args: Any) -> None:
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:  # The loop was closed, so nobody awaits.
        pass


_Due = Tuple[Callable[[Request], None], Request]


def _call_back(due: Iterator[_Due]) -> None:
    """Calls the callbacks of requests that have completed, all of them."""
    for callback, request in due:
        try:
            callback(request)
        except Exception:
            _log.exception("a done callback of %r failed", request)
        except BaseException:
            _call_back(due)
            raise


class File(Handle):
    """A file or block device of an aio; made by :meth:`Aio.open_file`."""

    _what = "file"

    def __init__(self, aio: "Aio", pointer: Any, path: str) -> None:
        super().__init__(pointer, aio)
        self.aio = aio
        self.path = path

    def _free(self, pointer: Any, at_exit: bool) -> None:
        lib.nvs_file_close(pointer)

    @property
    def direct(self) -> bool:
        """Whether transfers bypass the page cache (O_DIRECT)."""
        with self._open() as pointer:
            return bool(lib.nvs_file_direct(pointer))

    @property
    def unit(self) -> int:
        """The direct-I/O alignment of offsets and lengths in bytes; 1 without O_DIRECT."""
        with self._open() as pointer:
            return int(lib.nvs_file_unit(pointer))

    def pread(self, array: Any, offset: int = 0, nbytes: Optional[int] = None) -> Request:
        """
        Starts to read into an array, which is kept alive and must not be touched meanwhile.

        Parameters
        ----------
        array : writable buffer or torch.Tensor in host memory, contiguous
        offset : int
            In the file, in bytes; any alignment.
        nbytes : int, optional
            How many bytes, from the beginning of the array; all of them by default.
        """
        return self.aio.submit([Transfer(self, "read", array, offset, nbytes)])[0]

    def pwrite(self, array: Any, offset: int = 0, nbytes: Optional[int] = None) -> Request:
        """Starts to write an array, as :meth:`pread` reads it. Transfers in flight are not ordered:
        those of overlapping bytes must not be in flight together."""
        return self.aio.submit([Transfer(self, "write", array, offset, nbytes)])[0]

    def sync(self) -> None:
        """Makes completed writes durable (fdatasync)."""
        error = new_error()
        with self._open() as pointer:
            check(lib.nvs_file_sync(pointer, error), error, self.path)


class Aio(Handle):
    """
    Workers that do I/O, with the "aio" block of a configuration.

    Parameters
    ----------
    config : Config, str or dict, optional
        Defaults if omitted.

    Raises
    ------
    Error
        ENOTSUP: the I/O engine does not work on this machine; EINVAL; ENOMEM.
    """

    _what = "aio"

    def __init__(self, config: Any = None) -> None:
        aio, error = ffi.new("struct nvs_aio **"), new_error()
        self._config = config_of(config)
        # Reentrant: a callback may submit or wait.
        self._lock = threading.RLock()
        self._in_flight: Dict[int, Request] = {}
        # Awaits of each event loop, and the descriptor that it polls.
        self._loops: Dict[Any, Tuple[int, int]] = {}
        self._watcher: Optional[threading.Thread] = None
        self._wake = -1
        with self._config._opening() as (pointer, used):
            check(lib.nvs_aio_open(aio, pointer, error), error)
            super().__init__(aio[0], *used)

    def _free(self, pointer: Any, at_exit: bool) -> None:
        self._stop_watching()
        due: List[_Due] = []
        try:
            if self._in_flight:
                lib.nvs_aio_wait_all(pointer, -1, _NULL, _NULL)
                self._finish_completed(None, due)
            check(lib.nvs_aio_close(pointer))
            for request in list(self._in_flight.values()):
                request._pointer = _NULL  # The library has ended it.
                self._finish(request, error_of(-errno.ECANCELED), due)
        finally:
            _call_back(iter(due))

    def open_file(self, path: Union[str, "os.PathLike[str]", int], mode: str = "r", *,
                  buffered: bool = False, units: bool = False) -> File:
        """
        Opens a file or block device.

        Parameters
        ----------
        path : str, os.PathLike or int
            A path, or a descriptor, which stays the caller's and may be closed at once.
        mode : {"r", "r+", "w", "a"}
            Read; read and write; create and truncate; create if there is none, with its contents.
            Files are created with mode 0600. A descriptor allows "r" and "r+".
        buffered : bool
            Use the page cache even if O_DIRECT works.
        units : bool
            Refuse writes that are not of whole :attr:`File.unit`, which pass through the cache.

        Raises
        ------
        Error
            Those of open(2), such as ENOENT; EINVAL: neither a file nor a block device.
        ValueError
            A NUL in the path.
        """
        if mode not in _MODES:
            raise invalid(f'a mode is one of {", ".join(_MODES)}, not {mode!r}')
        flags = _MODES[mode] | (lib.NVS_FILE_BUFFERED if buffered else 0)
        flags |= lib.NVS_FILE_UNITS if units else 0
        file, error = ffi.new("struct nvs_file **"), new_error()
        with self._open() as pointer:
            if isinstance(path, int):
                name = f"descriptor {path}"
                check(lib.nvs_file_from_fd(pointer, path, flags, file, error), error)
            else:
                name = os.fsdecode(path)
                check(lib.nvs_file_open(pointer, encoded_path(path), flags, file, error), error,
                      name)
        return File(self, file[0], name)

    def submit(self, transfers: Iterable[Transfer]) -> List[Request]:
        """
        Starts transfers together, in one call; after an error none has started.

        Raises
        ------
        Error
            EINVAL: a file of another aio, a write to a file open for reading, a bad offset.
        ValueError, BufferError, TypeError
            As :func:`nvswap.memory.span_of`.
        """
        transfers = list(transfers)
        spans = [_span_of_transfer(transfer) for transfer in transfers]
        requests = [Request(self, transfer.file, span)
                    for transfer, span in zip(transfers, spans)]
        if requests:
            with self._open() as pointer:
                self._submit(pointer, transfers, spans, requests)
        return requests

    def _submit(self, pointer: Any, transfers: List[Transfer], spans: List[Span],
                requests: List[Request]) -> None:
        array = ffi.new("struct nvs_transfer[]", len(transfers))
        pointers = ffi.new("struct nvs_request *[]", len(transfers))
        error, held = new_error(), []
        try:
            for each, transfer, span, request in zip(array, transfers, spans, requests):
                opened = transfer.file._open()
                each.file = opened.__enter__()
                held.append(opened)
                each.size = ffi.sizeof("struct nvs_transfer")
                each.direction = lib.NVS_WRITE if transfer.direction == "write" else lib.NVS_READ
                each.data, each.nbytes, each.offset = span.pointer, span.nbytes, transfer.offset
                each.user = ffi.cast("void *", id(request))
            with self._lock:
                check(lib.nvs_aio_submit(pointer, array, len(transfers), pointers, error), error)
                for request, c_request in zip(requests, pointers):
                    request._pointer = c_request
                    self._in_flight[id(request)] = request
        finally:
            for opened in held:
                opened.__exit__(None, None, None)

    def wait(self, requests: Iterable[Request], timeout: Optional[float] = None) -> None:
        """Waits for all of several requests, as :meth:`Request.wait`; raises what failed first."""
        wanted = self._own(requests)
        if not all(request._finished for request in wanted):
            error = new_error()
            code = wait_sliced(self, lambda ms, error: self._wait_slice(wanted, ms, error), timeout,
                               error)
            if code < 0 and not all(request._finished for request in wanted):
                raise error_of(code, error)
        for request in wanted:
            if request._error is not None:
                raise request._error

    def _wait_slice(self, wanted: List[Request], timeout_ms: int, error: Any) -> int:
        """Finishes what has completed even if others have not: :meth:`take` does not return what a
        call waits for, and another thread may await it."""
        with self._completing() as (pointer, due), _Waiting(self, wanted) as pending:
            if not pending:
                return 0
            array = ffi.new("struct nvs_request *[]", [each._pointer for each in pending])
            code = lib.nvs_aio_wait(pointer, array, len(pending), timeout_ms, error)
            self._finish_completed(pending, due)
        return int(code)

    def wait_any(self, requests: Iterable[Request], timeout: Optional[float] = None) -> Request:
        """Waits for one of several requests, and returns it, failed or not: its
        :meth:`Request.wait` raises what failed."""
        wanted = self._own(requests)
        if not wanted:
            raise invalid("no requests to wait for")
        if not any(request._finished for request in wanted):
            code, error, index = 0, new_error(), ffi.new("size_t *")
            with self._completing() as (pointer, due), _Waiting(self, wanted) as pending:
                if len(pending) == len(wanted):
                    array = ffi.new("struct nvs_request *[]", [each._pointer for each in pending])
                    code = wait_sliced(self, lambda ms, error: _any_in_flight(
                        lib.nvs_aio_wait_any(pointer, array, len(pending), ms, index, error),
                        index[0], len(pending)), timeout, error)
                    self._finish_completed(pending, due)
            check(code, error)
        return next(request for request in wanted if request._finished)

    def wait_all(self, timeout: Optional[float] = None) -> int:
        """
        Waits until nothing is in flight, by whichever thread it was submitted.

        Returns
        -------
        int
            How many requests were submitted since the last call that did not time out.

        Raises
        ------
        Error
            The first of them that failed, also if it was waited for.
        """
        completed, error = ffi.new("uint64_t *"), new_error()
        finished = ffi.new("uint64_t *", (1 << 64) - 1)

        def wait(timeout_ms: int, error: Any) -> int:
            completed[0] = finished[0]
            code = lib.nvs_aio_wait_all(pointer, timeout_ms, completed, error)
            return code if completed[0] == finished[0] or code == 0 else 1

        with self._completing() as (pointer, due):
            code = wait_sliced(self, wait, timeout, error)
            self._finish_completed(None, due)
        if code > 0:
            raise error_of(error.code, error)
        check(code, error)
        return int(completed[0])

    def fileno(self) -> int:
        """A descriptor that is readable while :meth:`take` has requests to return."""
        with self._open() as pointer:
            return check(lib.nvs_aio_eventfd(pointer))

    def take(self) -> List[Request]:
        """The requests whose completion no call has seen yet. Does not wait."""
        taken: List[Request] = []
        with self._completing() as (pointer, due):
            array = ffi.new("struct nvs_request *[]", _TAKEN)
            while True:
                with self._lock:
                    n = lib.nvs_aio_take(pointer, array, _TAKEN)
                    users = [int(ffi.cast("uintptr_t", lib.nvs_request_user(array[i])))
                             for i in range(n)]
                    new = [self._in_flight[user] for user in users if user in self._in_flight]
                self._finish_completed(new, due)
                taken += new
                if n < _TAKEN:
                    return taken

    def stats(self) -> Dict[str, Any]:
        """The fields of struct nvs_aio_stats: bytes, I/Os, latencies in ns, the I/O engine."""
        stats = ffi.new("struct nvs_aio_stats *")
        stats.size = ffi.sizeof("struct nvs_aio_stats")
        with self._open() as pointer:
            check(lib.nvs_aio_get_stats(pointer, stats))
        return fields_of(stats)

    # ---- Completion

    def _own(self, requests: Iterable[Request]) -> List[Request]:
        """The requests, once each, which must be of this aio."""
        wanted = list(dict.fromkeys(requests))
        for request in wanted:
            if request._aio is not self:
                raise invalid("a request belongs to another aio")
        return wanted

    @contextmanager
    def _completing(self) -> Iterator[Tuple[Any, List[_Due]]]:
        """The pointer, and a list for the callbacks of the requests that complete in the block.
        They are called after it, so that they may close the aio."""
        due: List[_Due] = []
        try:
            with self._open() as pointer:
                yield pointer, due
        finally:
            _call_back(iter(due))

    def _poll(self, request: Request) -> None:
        with self._lock:
            if request._finished:
                return
        if self._state.value == 1 and self._pid == os.getpid():
            with self._completing() as (_, due):
                self._finish_completed([request], due)

    def _finish_completed(self, requests: Optional[List[Request]], due: List[_Due]) -> None:
        """Finishes those of the requests (None: of all) that have completed."""
        error = new_error()
        for request in list(self._in_flight.values()) if requests is None else requests:
            with self._lock:
                if request._finished:
                    continue
                error.code = 0
                code = lib.nvs_request_status(request._pointer, error)
                if code == -errno.EINPROGRESS:
                    continue
                # An overdue request is in flight too; a drive's own ETIMEDOUT is EIO.
                if code == -errno.ETIMEDOUT:
                    continue
            path = request.file.path
            self._finish(request, error_of(code, error, path) if code < 0 else None, due)

    def _finish(self, request: Request, failure: Optional[Error], due: List[_Due]) -> None:
        with self._lock:
            if request._finished:
                return
            request._error, request._finished = failure, True
            due += [(callback, request) for callback in request._callbacks]
            request._callbacks = []
            request._owner = None
            self._in_flight.pop(id(request), None)
            if request._waiters == 0:
                lib.nvs_request_close(request._pointer)

    # ---- Event loops

    def _add_loop(self, loop: Any) -> None:
        with self._lock:
            awaits, descriptor = self._loops.get(loop, (0, -1))
            if awaits == 0:
                # The loop's own: it still polls it for a moment after the aio was closed.
                descriptor = os.dup(self.fileno())
                loop.add_reader(descriptor, self._take_in_loop)
            self._loops[loop] = awaits + 1, descriptor

    def _remove_loop(self, loop: Any) -> None:
        with self._lock:
            awaits, descriptor = self._loops[loop]
            self._loops[loop] = awaits - 1, descriptor
            if awaits == 1:
                del self._loops[loop]
                if not loop.is_closed():
                    loop.remove_reader(descriptor)
                os.close(descriptor)

    def _take_in_loop(self) -> None:
        if not self.closed:
            self.take()

    # ---- The thread of futures

    def _start_watching(self) -> None:
        with self._lock:
            if self._watcher is None:
                wake_read, self._wake = os.pipe()
                self._watcher = threading.Thread(
                    target=_watch, args=(self, self.fileno(), wake_read), daemon=True,
                    name="nvswap-futures")
                self._watcher.start()

    def _stop_watching(self) -> None:
        with self._lock:
            watcher, self._watcher = self._watcher, None
        if watcher is not None:
            os.close(self._wake)
            if watcher is not threading.current_thread():
                watcher.join()


def _watch(aio: Aio, descriptor: int, wake: int) -> None:
    """Takes completed requests until the other end of the pipe is closed."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.register(wake, select.POLLIN)
    try:
        while not any(ready == wake for ready, _ in poll.poll()):
            _take_and_log(aio)
    except Error:  # The aio is being closed, which finishes its requests.
        pass
    finally:
        os.close(wake)


def _take_and_log(aio: Aio) -> None:
    try:
        aio.take()
    except Error:
        raise
    except BaseException:  # Of a callback, such as SystemExit.
        _log.exception("a done callback ended the thread of futures, which goes on")


class _Waiting:
    """Keeps the library's requests while a call waits for them, whichever thread finishes them."""

    def __init__(self, aio: Aio, requests: List[Request]) -> None:
        self._aio = aio
        self._requests = requests

    def __enter__(self) -> List[Request]:
        with self._aio._lock:
            self._requests = [each for each in self._requests if not each._finished]
            for request in self._requests:
                request._waiters += 1
        return self._requests

    def __exit__(self, *_: Any) -> None:
        with self._aio._lock:
            for request in self._requests:
                request._waiters -= 1
                if request._finished and request._waiters == 0:
                    lib.nvs_request_close(request._pointer)


def _any_in_flight(code: int, index: int, n: int) -> int:
    """nvs_aio_wait_any returns the status of the request it found, which is no error of the wait."""
    return 0 if index < n else code


def _span_of_transfer(transfer: Transfer) -> Span:
    if transfer.direction not in ("read", "write"):
        raise invalid(f'a direction is "read" or "write", not {transfer.direction!r}')
    if transfer.offset < 0:
        raise invalid(f"an offset is not negative: {transfer.offset}")
    span = span_of(transfer.array, transfer.direction == "read")
    nbytes = span.nbytes if transfer.nbytes is None else transfer.nbytes
    if not 0 <= nbytes <= span.nbytes:
        raise invalid(f"{nbytes} bytes of an array of {span.nbytes}")
    return Span(span.address, nbytes, span.owner)
