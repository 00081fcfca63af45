# SPDX-License-Identifier: Apache-2.0
"""
Handles: the base of every object that owns something of the library. A handle counts the calls in
progress, so that no call meets a freed object: close() refuses new calls and waits for those that
have begun in other threads. A handle knows its process, and closes itself when it is collected or
the interpreter exits.
"""

from __future__ import annotations

import atexit
import enum
import errno
import os
import threading
import time
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Optional, TypeVar

from nvswap._native import lib
from nvswap.errors import Error, closed, closed_within_call, error_of, forked

# A call that waits without end wakes up this often for signals (Ctrl-C) and for close().
SLICE_MS = 200


class State(enum.Enum):
    OPEN = 1
    CLOSING = 2
    CLOSED = 3


_Self = TypeVar("_Self", bound="Handle")

# By id(). Other threads may add to it while one makes a list of its references, and not of a WeakSet.
_handles: "weakref.WeakValueDictionary[int, Handle]" = weakref.WeakValueDictionary()


class Handle:
    """Something of the library that is open until close(), the end of a with block, or exit."""

    _what = "object"

    def __init__(self, pointer: Any, *users: "Handle") -> None:
        # Reentrant: the collector may close another object within a call on this one.
        self._idle = threading.Condition(threading.RLock())
        # The threads that are in a call, once for each call.
        self._calls: List[int] = []
        self._pid = os.getpid()
        self._pointer = pointer
        # Objects that must outlive this one.
        self._users = users
        self._state = State.OPEN
        _handles[id(self)] = self

    @property
    def closed(self) -> bool:
        """Whether the object can't be used any more."""
        return self._state is not State.OPEN or self._pid != os.getpid()

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """The pointer, which stays valid within the block."""
        if self._pid != os.getpid():
            raise forked(self._what)
        with self._idle:
            if self._state is not State.OPEN:
                raise closed(self._what)
            self._begin_call()
        try:
            yield self._pointer
        finally:
            self._end_call()

    def _begin_call(self) -> None:
        with self._idle:
            self._calls.append(threading.get_ident())

    def _end_call(self) -> None:
        with self._idle:
            self._calls.remove(threading.get_ident())
            if not self._calls:
                self._idle.notify_all()

    def _free(self, pointer: Any, at_exit: bool) -> None:
        """Frees the library's object; with an exception the object stays open."""
        raise NotImplementedError

    def _freed(self, error: Error) -> bool:
        """Whether an error of closing comes after everything was freed."""
        return error.errno not in (errno.EBUSY, errno.ETIMEDOUT)

    def _close(self, free: Callable[[Any], None]) -> None:
        if self._pid != os.getpid():
            return
        with self._idle:
            if self._state is not State.OPEN:
                return
            if threading.get_ident() in self._calls:
                raise closed_within_call(self._what)
            self._state = State.CLOSING
            self._idle.wait_for(lambda: not self._calls)
        try:
            free(self._pointer)
        except Error as error:
            self._state = State.CLOSED if self._freed(error) else State.OPEN
            raise
        except BaseException:
            self._state = State.OPEN
            raise
        self._state = State.CLOSED
        _close_kept()

    def _before_close(self) -> None:
        """Called by close(), and before the interpreter's exit closes the object."""

    def close(self) -> None:
        """Closes the object, after the calls on it in other threads have ended. Closing a closed
        object, or in a child process one of the parent's, does nothing. In a thread that is in a
        call on the object, such as in a callback or a signal handler, raises Error EDEADLK."""
        if not self.closed:
            self._before_close()
        self._close(lambda pointer: self._free(pointer, False))

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        # What an exception that ends the program has kept goes after this module's names.
        if State is not None and getattr(self, "_state", State.CLOSED) is State.OPEN:
            try:
                self.close()
            except Exception:
                _kept.append(self)

    def __repr__(self) -> str:
        return f"<nvswap.{type(self).__name__}{' closed' if self.closed else ''}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"a nvswap.{type(self).__name__} can't be pickled or copied")


# What could not be closed: an aio that was collected before its engine, since both were in a cycle.
_kept: List[Handle] = []


def _all_handles() -> List[Handle]:
    handles = (reference() for reference in _handles.valuerefs())
    return [*(handle for handle in handles if handle is not None), *_kept]


def users_of(used: Handle) -> List[Handle]:
    """The open objects that another one must outlive."""
    return [handle for handle in _all_handles()
            if handle._state is not State.CLOSED and any(each is used for each in handle._users)]


def _close_kept() -> None:
    """Tries it again when another object, which may have used it, was closed."""
    for _ in range(len(_kept)):
        try:
            handle = _kept.pop(0)
        except IndexError:  # another thread took it
            return
        handle.__del__()  # pylint: disable=unnecessary-dunder-call


def wait_sliced(handle: Handle, call: Callable[[int, Any], int], timeout: Optional[float],
                error: Any) -> int:
    """
    Waits by call(timeout_ms, error) in slices. Returns its result, or -ETIMEDOUT once `timeout`
    seconds have passed or as soon as the call says that an I/O is overdue.
    """
    end = None if timeout is None else time.monotonic() + max(0.0, timeout)
    while True:
        begin = time.monotonic()
        left = SLICE_MS if end is None else (end - begin) * 1000
        slice_ms = max(0, min(SLICE_MS, int(left + 0.999)))
        code = call(slice_ms, error)
        now = time.monotonic()
        if slice_ms == 0 and code == -errno.EAGAIN:
            return -errno.ETIMEDOUT if timeout else code
        if code != -errno.ETIMEDOUT or (end is not None and now >= end):
            return code
        # An overdue I/O ends a wait before its time.
        if (now - begin) * 1000 < slice_ms * 0.9:
            return code
        if handle._state is not State.OPEN:
            raise closed(handle._what)


def raise_status(code: int, error: Any) -> None:
    if code < 0:
        raise error_of(code, error)


def _close_at_exit() -> None:
    """Closes what is open, users before what they use. The log ends after that, since no thread of
    the library may enter an interpreter that is gone."""
    handles = [handle for handle in _all_handles() if handle._state is State.OPEN]
    _kept.clear()
    used = {id(user) for handle in handles for user in handle._users}
    left = []
    for handle in sorted(handles, key=lambda handle: id(handle) in used):
        try:
            handle._before_close()
            handle._close(lambda pointer, handle=handle: handle._free(pointer, True))
        except Exception:
            left.append(handle)
    _kept.extend(left)
    lib.nvswap_end_log()


atexit.register(_close_at_exit)
