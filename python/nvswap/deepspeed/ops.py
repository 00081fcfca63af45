# SPDX-License-Identifier: Apache-2.0
"""
DeepSpeed's op `async_io` on nvswap's aio layer: any length, alignment and number of threads, file
systems without O_DIRECT, and every result checked. What fails is raised as nvswap.Error, an OSError
with path and offset, by the call itself or by wait(), where DeepSpeed's op aborts or says nothing.

Handles of the same settings share one Aio, so those of one drive do not compete. Arguments have the
names, the positions and the defaults of DeepSpeed's bindings (csrc/aio/py_lib/py_ds_aio.cpp).
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import resource
import threading
import weakref
from collections import Counter, OrderedDict
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

import torch

from nvswap.aio import Aio, File
from nvswap.config import Config
from nvswap.deepspeed.pinned import PINNED, is_pinned
from nvswap.deepspeed.transfers import Pending, Transfers, warn_dropped
from nvswap.errors import Error, invalid

Name = Union[str, "os.PathLike[str]", int]

_ALIGNMENT = 512
_FILES_MAX = 2048
_LOOKS = 8


def files_max() -> int:
    """How many files an Aio keeps open; each has two descriptors, and most are left to others."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _FILES_MAX if soft == resource.RLIM_INFINITY else max(8, min(_FILES_MAX, soft // 8))


class _Opened(NamedTuple):
    """An open file. Writes to it are of whole `unit` bytes; 0: it is open for reading alone."""

    file: File
    unit: int

    def writes(self, nbytes: int, offset: int) -> bool:
        return self.unit > 0 and (nbytes | offset) % self.unit == 0


class _Files:
    """
    The open files of an Aio, by device and inode: opening one for each of many small transfers
    would cost more than the transfers. The least recently used is closed first.

    A file is opened for writes of whole units until another write comes: only those go to the
    drive directly to the last byte. The end of another passes through the page cache and is flushed.

    A file that transfers of a descriptor use is closed when all of them were waited for: a caller that closes its
    descriptor and deletes the file expects its space back.
    """

    def __init__(self, aio: Aio, transfers: Transfers) -> None:
        self._aio = aio
        self._transfers = transfers
        self._files: "OrderedDict[Tuple[int, int], _Opened]" = OrderedDict()
        self._max = files_max()
        self._to_look_at: List[Any] = []  # keys of files that may have been deleted
        self._of_descriptors: "Counter[Any]" = Counter()  # their transfers that were not waited for, by key

    def get(self, name: Name, write: bool, nbytes: int, offset: int) -> File:
        """The file, opened if it is not; created with mode 0600 if it is missing and written. With
        the lock of the transfers held."""
        if isinstance(name, int):
            _check_access(name, write)
        try:
            key = _key_of(name)
        except FileNotFoundError:
            if not write:
                raise
            key = None
        found = self._files.get(key) if key else None
        if found is not None and (not write or found.writes(nbytes, offset)):
            self._files.move_to_end(key)
            return found.file
        if found is not None:
            self._close(key)
        self._make_room()
        opened, key = self._open(name, write, key, True)
        if write and not opened.writes(nbytes, offset):
            opened.file.close()
            opened, key = self._open(name, write, key, False)
        self._files[key] = opened
        return opened.file

    def begin_with(self, number: int, pending: Pending) -> None:
        """Counts a transfer of a descriptor. With the lock of the transfers held."""
        pending.descriptor = _key_of(number)
        self._of_descriptors[pending.descriptor] += 1

    def end(self, waited: List[Pending]) -> None:
        """Closes the files of descriptors of which no transfer is left."""
        keys = [each.descriptor for each in waited if each.descriptor is not None]
        if keys:
            with self._transfers.lock:
                self._of_descriptors.subtract(keys)
                for key in set(keys):
                    if self._of_descriptors[key] <= 0:
                        del self._of_descriptors[key]
                        if key in self._files:
                            self._close(key)

    def _close(self, key: Any) -> None:
        """Gathered transfers of the file start before it is closed, which waits for them."""
        self._transfers.submit()
        self._files.pop(key).file.close()

    def _open(self, name: Name, write: bool, key: Any, units: bool) -> Tuple[_Opened, Any]:
        if isinstance(name, int):
            file, writable = self._open_descriptor(name, write, key, units), write
        elif write:
            file, writable = self._aio.open_file(name, "a", units=units), True
            key = _key_of(name)
        else:
            writable = os.access(name, os.W_OK)
            file = self._aio.open_file(name, "r+" if writable else "r", units=units)
        return _Opened(file, (file.unit if units else 1) if writable else 0), key

    def _open_descriptor(self, number: int, write: bool, key: Any, units: bool) -> File:
        """A descriptor that is open for writing alone is opened anew by its path: writing parts of
        a page reads the rest."""
        mode = "r+" if write else "r"
        if not write or fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR:
            return self._aio.open_file(number, mode, units=units)
        path = os.readlink(f"/proc/self/fd/{number}")
        if not os.path.exists(path) or _key_of(path) != key:
            raise invalid(f"descriptor {number} is open for writing alone and its file was renamed "
                          "or deleted: open it for reading and writing")
        return self._aio.open_file(path, mode, units=units)

    def _make_room(self) -> None:
        """Closes the oldest, and some of the files that were deleted or replaced, whose space stays
        in use: each call looks at the next few."""
        if not self._to_look_at:
            self._to_look_at = list(self._files)
        for key in self._to_look_at[:_LOOKS]:
            if key in self._files and not _is_still(self._files[key].file, key):
                self._close(key)
        del self._to_look_at[:_LOOKS]
        while len(self._files) >= self._max:
            self._close(next(iter(self._files)))


def _is_still(file: File, key: Any) -> bool:
    """Whether the file's name still leads to it."""
    try:
        return file.path.startswith("descriptor ") or _key_of(file.path) == key
    except OSError:
        return False


def _check_access(number: int, write: bool) -> None:
    """As the kernel does, since the file may be open by another descriptor or its path."""
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == (os.O_RDONLY if write else os.O_WRONLY):
        raise Error(errno.EBADF, f"descriptor {number} is not open for "
                    f"{'writing' if write else 'reading'}")


def _key_of(name: Name) -> Tuple[int, int]:
    status = os.fstat(name) if isinstance(name, int) else os.stat(name)
    return status.st_dev, status.st_ino


class _Shared:
    """An Aio and its open files, for all handles of the same settings in this process."""

    def __init__(self, settings: Dict[str, Any]) -> None:
        self.aio = Aio(Config({"aio": settings}))
        self.transfers = Transfers(self.aio)
        self.files = _Files(self.aio, self.transfers)


_shared: "weakref.WeakValueDictionary[Any, _Shared]" = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


def _shared_of(settings: Dict[str, Any]) -> _Shared:
    key = (os.getpid(), *settings.values())
    with _shared_lock:
        shared = _shared.get(key)
        if shared is None:
            shared = _shared[key] = _Shared(settings)
        return shared


def _parsed_bool(value: Any) -> bool:
    """Also of text, as ds_nvme_tune prints it."""
    if isinstance(value, str):
        if value.lower() not in ("true", "false"):
            raise invalid(f'a boolean is true or false, not "{value}"')
        return value.lower() == "true"
    return bool(value)


def _takes_async(method: Callable[..., int]) -> Callable[..., int]:
    """Has a method take its argument `async_op` as `async` too, which is DeepSpeed's name for it and a
    word of Python's grammar: callers write **{"async": True}."""

    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> int:
        if "async" in kwargs:
            is_async = kwargs.pop("async")
            return method(*args, async_op=is_async, **kwargs)
        return method(*args, **kwargs)

    return called


class aio_handle:  # pylint: disable=invalid-name
    """
    DeepSpeed's handle. Tensors may lie anywhere: those in host memory and contiguous are transferred
    in place, others by a copy. They are kept alive until wait(). Any thread may call. Tensors of less
    than 1 MiB start together with up to 31 others, or in wait().

    Parameters
    ----------
    block_size : int
        Bytes of an I/O.
    queue_depth : int
        I/Os in flight on each thread.
    single_submit, overlap_events : bool
        As the keys of the "aio" block.
    intra_op_parallelism : int
        I/O threads.

    Raises
    ------
    Error
        EINVAL: a value is out of bounds; the message names the key.
    """

    def __init__(self, block_size: int = 1 << 20, queue_depth: int = 128,
                 single_submit: bool = False, overlap_events: bool = False,
                 intra_op_parallelism: int = 1) -> None:
        self._settings = {"block_size": int(block_size), "queue_depth": int(queue_depth),
                          "single_submit": _parsed_bool(single_submit),
                          "overlap_events": _parsed_bool(overlap_events),
                          "intra_op_parallelism": int(intra_op_parallelism)}
        self._pending: List[Pending] = []
        self._lock = threading.Lock()
        self._shared = _shared_of(self._settings)

    def get_block_size(self) -> int:
        return self._settings["block_size"]

    def get_queue_depth(self) -> int:
        return self._settings["queue_depth"]

    def get_single_submit(self) -> bool:
        return self._settings["single_submit"]

    def get_overlap_events(self) -> bool:
        return self._settings["overlap_events"]

    def get_intra_op_parallelism(self) -> int:
        return self._settings["intra_op_parallelism"]

    def get_alignment(self) -> int:
        """What DeepSpeed's op needs of lengths; this one takes any."""
        return _ALIGNMENT * self._settings["intra_op_parallelism"]

    # ---- Transfers ----

    def read(self, buffer: torch.Tensor, filename: Name, validate: bool,
             file_offset: int = 0) -> int:
        """Reads the whole tensor, and compares it with the file if `validate`; returns 0."""
        self._now(buffer, filename, file_offset, False)
        return _validated(buffer, filename, file_offset) if validate else 0

    def write(self, buffer: torch.Tensor, filename: Name, validate: bool,
              file_offset: int = 0) -> int:
        """Writes the whole tensor, and compares the file with it if `validate`; returns 0."""
        self._now(buffer, filename, file_offset, True)
        return _validated(buffer, filename, file_offset) if validate else 0

    @_takes_async
    def pread(self, buffer: torch.Tensor, filename: Name, validate: bool, async_op: bool,
              file_offset: int = 0) -> int:
        """Returns 0 once it has begun if `async_op`, else 1 when it is done."""
        if async_op:
            return self._begin(buffer, filename, file_offset, False)
        self.read(buffer, filename, validate, file_offset)
        return 1

    @_takes_async
    def pwrite(self, buffer: torch.Tensor, filename: Name, validate: bool, async_op: bool,
               file_offset: int = 0) -> int:
        """Returns 0 once it has begun if `async_op`, else 1 when it is done."""
        if async_op:
            return self._begin(buffer, filename, file_offset, True)
        self.write(buffer, filename, validate, file_offset)
        return 1

    def sync_pread(self, buffer: torch.Tensor, filename: Name, file_offset: int = 0) -> int:
        return self.pread(buffer, filename, False, False, file_offset)

    def sync_pwrite(self, buffer: torch.Tensor, filename: Name, file_offset: int = 0) -> int:
        return self.pwrite(buffer, filename, False, False, file_offset)

    def async_pread(self, buffer: torch.Tensor, filename: Name, file_offset: int = 0) -> int:
        return self._begin(buffer, filename, file_offset, False)

    def async_pwrite(self, buffer: torch.Tensor, filename: Optional[Name] = None,
                     file_offset: int = 0, *, fd: Optional[int] = None) -> int:
        """Takes a descriptor by the name `fd`, or in the place of `filename`."""
        if (filename is None) == (fd is None):
            raise TypeError("async_pwrite takes either filename or fd")
        return self._begin(buffer, filename if fd is None else fd, file_offset, True)

    def wait(self) -> int:
        """
        Waits for all transfers of this handle, by whichever thread they were begun.

        Returns
        -------
        int
            How many were begun since the last wait.

        Raises
        ------
        Error
            Of the first transfer that failed, with path and offset. All of them have ended.
        """
        with self._lock:
            pending, self._pending = self._pending, []
        try:
            failed = self._shared.transfers.wait(pending)
        except BaseException:
            with self._lock:
                self._pending = pending + self._pending
            raise
        self._end(pending, failed)
        return len(pending)

    def _end(self, waited: List[Pending], failed: Optional[Error]) -> None:
        for each in waited:
            _finish(each)
        try:
            self._shared.files.end(waited)
        finally:
            if failed is not None:
                raise failed

    def _now(self, buffer: torch.Tensor, name: Name, offset: int, write: bool) -> None:
        pending = self._started(buffer, name, offset, write)
        try:
            failed = self._shared.transfers.wait([pending])
        except BaseException:
            with self._lock:
                self._pending.append(pending)
            raise
        self._end([pending], failed)

    def _begin(self, buffer: torch.Tensor, name: Name, offset: int, write: bool) -> int:
        pending = self._started(buffer, name, offset, write)
        with self._lock:
            self._pending.append(pending)
        return 0

    def _started(self, buffer: torch.Tensor, name: Name, offset: int, write: bool) -> Pending:
        if not isinstance(buffer, torch.Tensor):
            raise invalid(f"a buffer is a tensor, not {type(buffer).__name__}")
        if buffer.is_meta:
            raise invalid("the tensor is on the meta device, where tensors have no data")
        if buffer.is_conj() or buffer.is_neg():
            raise invalid("the tensor is a lazy conjugate or negative; resolve it first")
        into = None
        if not buffer.is_cpu or not buffer.is_contiguous():
            into, buffer = buffer, torch.empty(
                buffer.shape, dtype=buffer.dtype, device="cpu")
            if write:
                buffer.copy_(into.detach())
                into = None
        shared = self._shared
        with shared.transfers.lock:
            pending = shared.transfers.start(
                shared.files.get(name, write, buffer.nbytes, offset), write, buffer.data_ptr(),
                buffer.nbytes, offset, (buffer, into))
            if isinstance(name, int):
                shared.files.begin_with(name, pending)
            return pending

    # ---- Pinned memory ----

    def new_cpu_locked_tensor(self, num_elem: int, example_tenosr: torch.Tensor) -> torch.Tensor:
        """A flat, page-locked tensor of the example's type, registered with the handle's rings."""
        return PINNED.allocate(num_elem, example_tenosr, self._shared.aio)

    def free_cpu_locked_tensor(self, tensor: torch.Tensor) -> bool:
        return PINNED.free(tensor.data_ptr())

    def is_pinned(self, buffer: torch.Tensor) -> bool:
        return is_pinned(buffer)

    def __del__(self) -> None:
        if not getattr(self, "_pending", None) or self._shared.transfers.adopt(self._pending):
            return
        try:
            self.wait()
        except Error as error:
            warn_dropped(error)


def _finish(pending: Pending) -> None:
    """Copies what was read to its tensor, and releases both."""
    staged, into = pending.owner
    pending.owner = None
    if into is not None and pending.failure is None:
        into.detach().copy_(staged)


def _validated(buffer: torch.Tensor, name: Name, offset: int) -> int:
    """Compares with the file's contents through the page cache."""
    expected = buffer.detach().cpu().contiguous().view(-1).view(torch.uint8)
    found = bytearray(expected.numel())
    path = name if not isinstance(name, int) else f"/proc/self/fd/{name}"
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        nread = file.readinto(found)
    if nread == len(found) and (not found or
                                torch.equal(torch.frombuffer(found, dtype=torch.uint8), expected)):
        return 0
    raise Error(errno.EIO, f"{path} at offset {offset} differs from the tensor that was "
                "transferred", path=str(path), offset=offset)


def aio_read(buffer: torch.Tensor, filename: Name, block_size: int, queue_depth: int,
             single_submit: bool, overlap_events: bool, validate: bool) -> int:
    """Reads the whole tensor from the beginning of the file; returns 0."""
    return aio_handle(block_size, queue_depth, single_submit, overlap_events).read(
        buffer, filename, validate)


def aio_write(buffer: torch.Tensor, filename: Name, block_size: int, queue_depth: int,
              single_submit: bool, overlap_events: bool, validate: bool) -> int:
    """Writes the whole tensor to the beginning of the file; returns 0."""
    return aio_handle(block_size, queue_depth, single_submit, overlap_events).write(
        buffer, filename, validate)


def deepspeed_memcpy(dest: torch.Tensor, src: torch.Tensor) -> int:
    """Copies a tensor onto another of the same number of elements; returns 0."""
    dest.view(-1).copy_(src.reshape(-1))
    return 0
