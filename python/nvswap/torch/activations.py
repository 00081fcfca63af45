# SPDX-License-Identifier: Apache-2.0
"""
What autograd saves for the backward, on the drive. The newest storages stay in memory, up to a
budget; the oldest are written as the forward goes on, and read back in reverse before the backward
needs them. What the drive has not taken by then stays in memory too, up to a second bound.

A storage that is saved is

    HELD      in memory alone;
    COPYING   on a device, on its way to host memory, from where it is written;
    WRITING   in memory, on its way to the drive;
    STORED    on the drive alone;
    READING   on its way back, to host memory;
    READ      in memory and on the drive.

HELD becomes COPYING or WRITING when what is held passes half of the budget, and STORED when the write
has ended and the budget is needed. The forward waits for a write when the second bound is passed and nothing
else makes room.
A storage ends when the graph that saved it does.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import errno
import functools
import os
import threading
import time
import weakref
from typing import Any, Callable, Deque, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple, Union

import torch
import torch.utils.checkpoint
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules import module as nn_module

from nvswap.engine import Engine
from nvswap.errors import Error, invalid
from nvswap.torch.absent import is_offloaded
from nvswap.torch.local import bytes_of, trim_memory, is_on_host, place_of, view_at
from nvswap.torch.settings import engine_of_its_own, settings_of

# The outermost module and that which runs, or nothing.
_Where = Tuple["weakref.ref[torch.nn.Module]", ...]
_Place = enum.Enum("_Place", "HELD COPYING WRITING STORED READING READ")
_TRIM_BYTES = 64 << 20


class _Storage:
    """A storage that one or several saved tensors are views of."""

    def __init__(self, number: int, tensor: torch.Tensor, where: "_Where") -> None:
        self.number, self.where = number, where
        self.address = tensor.untyped_storage().data_ptr()
        # Another tensor may be saved of it after its memory is this one's no more.
        self.alive = StorageWeakRef(tensor.untyped_storage())
        self.tensor: Optional[torch.Tensor] = tensor  # for its version
        self.version = tensor._version
        self.bytes: Optional[torch.Tensor] = bytes_of(tensor)
        self.nbytes, self.device = self.bytes.numel(), tensor.device
        self.on_host = is_on_host(tensor)
        self.place = _Place.HELD
        self.handles = 0
        self.modified = False
        self.slot = ""
        self.host: Optional[torch.Tensor] = None  # of a device's storage, while it moves
        self.copied: Any = None  # the event after which `host` has it

    def check_version(self) -> None:
        """Notes a change in place, after which the backward may not use it."""
        if self.tensor is not None and self.tensor._version != self.version:
            self.modified = True


class _Handle:
    """A saved tensor: a view of a storage. Autograd keeps it as long as the graph."""

    def __init__(self, owner: "SavedOnNvme", storage: _Storage, tensor: torch.Tensor) -> None:
        self.owner, self.storage, self.dtype = owner, storage, tensor.dtype
        self.place = place_of(tensor)
        storage.handles += 1

    def __del__(self) -> None:
        # Of any thread, also amid a call on the owner, which looks at these later.
        self.owner._dropped.append(self.storage)
        self.owner._drop_unless_called()


class Kept(NamedTuple):
    """A saved tensor that stays in memory, and its version then."""

    tensor: torch.Tensor
    version: int

    def take(self) -> torch.Tensor:
        """The tensor for the backward; an error if it was changed in place."""
        if self.tensor._version != self.version:
            raise _modified(self.tensor.shape)
        return self.tensor


class SavedOnNvme:
    """
    Made by :func:`saved_on_nvme`; a context manager that may be entered again and again.

    Attributes
    ----------
    written, read, held : int
        Bytes that went to the drive and came back, and that are in memory now.
    exceeded : int
        The most bytes beyond `memory` that a forward had in memory, since the drive had not taken them.
    waited : float
        Seconds for which forwards waited for writes because of `most_memory`, and backwards for reads.
    """

    def __init__(self, config: Any, memory: int, most_memory: int, smallest: int) -> None:
        if memory < 0 or most_memory < memory or smallest < 1:
            raise invalid("memory is 0 or more bytes, most_memory as many or more, smallest 1 or more: "
                          f"{memory}, {most_memory}, {smallest}")
        self._config, self._smallest = settings_of(config), smallest
        self._memory, self._most_memory = memory, most_memory
        self.written = self.read = self.held = self.exceeded = 0
        self.waited = 0.0
        self._lock = threading.RLock()
        self._engine: Optional[Engine] = None
        # Calls within each other, since the collector may drop a graph amid one.
        self._calls = 0
        self._count = self._freed = 0
        self._dropped: Deque[_Storage] = collections.deque()
        # By the storage's address.
        self._by_address: Dict[int, _Storage] = {}
        self._held: Dict[int, _Storage] = {}
        self._moving: Dict[int, _Storage] = {}
        self._stored: Dict[int, _Storage] = {}
        self._read: Dict[int, _Storage] = {}
        # Of the engine, by size; and those whose transfer nobody wants, until it has ended.
        self._slots: Dict[int, List[str]] = {}
        self._leaving: List[_Storage] = []

    # ---- The context

    def __enter__(self) -> "SavedOnNvme":
        hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)
        modules = _Modules()
        hooks.__enter__()
        modules.begin()
        _entered().append(_Entered(self, hooks, modules))
        return self

    def __exit__(self, *exception: Any) -> None:
        _, hooks, modules = _entered().pop()
        modules.end()
        hooks.__exit__(*exception)

    def close(self) -> None:
        """Ends the store; a backward that needs it fails."""
        with self._call():
            if self._engine is not None:
                self._engine.abandon()

    # ---- Saving

    # torch.compile compiles what a module computes, and not where that lies until the backward.
    @torch.compiler.disable
    def pack(self, tensor: torch.Tensor) -> Union[_Handle, Kept]:
        """The hook of autograd for a tensor that is saved."""
        modules = _entered()[-1].modules if _entered() else None
        if not self._takes(tensor, modules):
            return Kept(tensor, tensor._version)
        address = tensor.untyped_storage().data_ptr()
        with self._call():
            self._drop()
            storage = self._by_address.get(address)
            if storage is None or storage.alive.expired() or storage.version != tensor._version:
                storage = _Storage(self._count, tensor, modules.where() if modules else ())
                self._count += 1
                self.held += storage.nbytes
                self._by_address[address] = storage
                self._held[storage.number] = storage
            handle = _Handle(self, storage, tensor)
            self._make_room()
        return handle

    def _takes(self, tensor: torch.Tensor, modules: Optional["_Modules"]) -> bool:
        if tensor.layout is not torch.strided or type(tensor) is not torch.Tensor or tensor.is_meta:
            return False
        storage = tensor.untyped_storage()
        return storage.nbytes() >= self._smallest and not (
            modules and storage.data_ptr() in modules.weights())

    def _make_room(self) -> None:
        """Starts to write the oldest, and waits for writes if more is held than the second bound."""
        self._reap()
        leaving = sum(each.nbytes for each in self._moving.values() if each.place is not _Place.READING)
        while self._held and self.held - leaving > self._memory // 2:
            storage = next(iter(self._held.values()))
            self._start_to_write(storage)
            leaving += storage.nbytes
        while self._read and self.held > self._memory:
            self._forget_memory(next(iter(self._read.values())))
        while self.held > self._most_memory and self._moving:
            storage = next(iter(self._moving.values()))
            if storage.place is _Place.READING:
                break
            self._finish(storage)
        self.exceeded = max(self.exceeded, self.held - self._memory)

    def _start_to_write(self, storage: _Storage) -> None:
        assert storage.bytes is not None
        with _naming(storage):
            storage.slot = storage.slot or self._slot(storage.nbytes)
            if storage.on_host:
                self._store(storage, storage.bytes)
        del self._held[storage.number]
        self._moving[storage.number] = storage
        if storage.on_host:
            return
        device = torch.get_device_module(storage.device)
        stream = device.Stream(storage.device)
        stream.wait_stream(device.current_stream(storage.device))
        storage.host = torch.empty(storage.nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        with device.stream(stream):
            storage.host.copy_(storage.bytes, non_blocking=True)
        storage.copied = stream.record_event()
        storage.place = _Place.COPYING

    def _store(self, storage: _Storage, data: torch.Tensor) -> None:
        self._the_engine().store_from({storage.slot: data}, wait=False)
        storage.place = _Place.WRITING
        self.written += storage.nbytes

    def _the_engine(self) -> Engine:
        if self._engine is None:
            self._engine = engine_of_its_own(self._config, bool(self._config["nvswap.verify"]))
        return self._engine

    def _slot(self, nbytes: int) -> str:
        """A tensor of the engine of this size. Those of other sizes that nothing needs make room."""
        free = self._slots.get(nbytes)
        if free:
            return free.pop()
        engine = self._the_engine()
        unused = [name for names in self._slots.values() for name in names]
        if 2 * len(unused) > len(engine):
            engine.forget(unused)
            self._slots.clear()
        self._count += 1
        name = str(self._count)
        engine.register(name, "U8", (nbytes,))
        return name

    # ---- Transfers that end

    def _reap(self) -> None:
        """Takes note of transfers that have ended."""
        for storage in list(self._moving.values()):
            self._finish(storage, 0)
        for storage in list(self._leaving):
            if self._has_ended(storage, 0):
                self._leaving.remove(storage)
                self._slots.setdefault(storage.nbytes, []).append(storage.slot)

    def _finish(self, storage: _Storage, timeout: Optional[float] = None) -> None:
        """Waits for a transfer; with a timeout of 0, looks whether it has ended."""
        begun = time.monotonic()
        ended = self._has_ended(storage, timeout)
        if timeout is None:
            self.waited += time.monotonic() - begun
        if not ended:
            return
        del self._moving[storage.number]
        if storage.place is _Place.READING:
            storage.place = _Place.READ
            self._read[storage.number] = storage
        else:
            self._forget_memory(storage)

    def _has_ended(self, storage: _Storage, timeout: Optional[float]) -> bool:
        if storage.place is _Place.COPYING:
            if timeout is None:
                storage.copied.synchronize()
            elif not storage.copied.query():
                return False
            assert storage.host is not None
            with _naming(storage):
                self._store(storage, storage.host)
        with _naming(storage):
            try:
                self._the_engine().wait(storage.slot, timeout)
            except Error as error:
                if error.errno == errno.EAGAIN:
                    return False
                raise
        return True

    def _forget_memory(self, storage: _Storage) -> None:
        """The drive has it alone."""
        storage.check_version()
        self._read.pop(storage.number, None)
        self._free(storage)
        storage.place = _Place.STORED
        self._stored[storage.number] = storage

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        with self._lock:
            self._calls += 1
            try:
                yield
            finally:
                self._calls -= 1

    @torch.compiler.disable
    def _drop_unless_called(self) -> None:
        if self._lock.acquire(blocking=False):
            try:
                if not self._calls:
                    with self._call():
                        self._drop()
            finally:
                self._lock.release()

    def _drop(self) -> None:
        """Ends the storages whose graphs have ended."""
        while self._dropped:
            storage = self._dropped.popleft()
            storage.handles -= 1
            if storage.handles:
                continue
            if storage.place is not _Place.STORED:
                self._free(storage)
            if self._by_address.get(storage.address) is storage:
                del self._by_address[storage.address]
            for places in (self._held, self._moving, self._stored, self._read):
                places.pop(storage.number, None)
            if storage.place in (_Place.WRITING, _Place.READING):
                self._leaving.append(storage)
            elif storage.slot:
                self._slots.setdefault(storage.nbytes, []).append(storage.slot)

    def _free(self, storage: _Storage) -> None:
        self.held -= storage.nbytes
        storage.bytes = storage.tensor = storage.host = None
        # The C library's allocator keeps what it got, and finds little of it again for aligned memory.
        self._freed += storage.nbytes if storage.on_host else 0
        if self._freed > max(self._memory // 4, _TRIM_BYTES):
            self._freed = 0
            trim_memory()

    # ---- The backward

    @torch.compiler.disable
    def unpack(self, saved: Union[_Handle, Kept]) -> torch.Tensor:
        """The hook of autograd for a tensor that the backward needs."""
        if isinstance(saved, Kept):
            return saved.take()
        storage = saved.storage
        with self._call():
            self._drop()
            self._reap()
            if storage.place is _Place.STORED:
                self._start_to_read(storage)
            self._read_ahead(storage.number)
            if storage.place is _Place.READING:
                self._finish(storage)
            storage.check_version()
            if storage.modified:
                raise _modified(saved.place[1])
            if storage.bytes is None:
                assert storage.host is not None
                storage.bytes = storage.host.to(storage.device, non_blocking=True)
            data = storage.bytes
        return view_at(data, saved.dtype, saved.place)

    def _start_to_read(self, storage: _Storage) -> None:
        del self._stored[storage.number]
        self._moving[storage.number] = storage
        storage.place = _Place.READING
        self.held += storage.nbytes
        self.read += storage.nbytes
        storage.host = torch.empty(storage.nbytes, dtype=torch.uint8, device="cpu",
                                   pin_memory=not storage.on_host)
        if storage.on_host:
            storage.bytes = storage.host
        self._the_engine().load_to({storage.slot: storage.host}, wait=False)

    def _read_ahead(self, number: int) -> None:
        """Starts to read those before the present one, the newest first, as the budget allows."""
        ahead, room = [], self._memory - self.held
        for storage in reversed(self._stored.values()):
            if storage.nbytes > room:
                break
            if storage.number < number:
                ahead.append(storage)
                room -= storage.nbytes
        for storage in ahead:
            self._start_to_read(storage)


def _modified(shape: Tuple[int, ...]) -> RuntimeError:
    return RuntimeError("a tensor that the backward needs was modified by an inplace operation: it has "
                        f"shape {list(shape)}")


class _Modules:
    """Which module's forward runs in this thread, and the weights of the outermost one."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._running: List[Any] = []
        self._weights: Set[int] = set()
        self._hooks: List[Any] = []

    def begin(self) -> None:
        """Notes forwards from here on."""
        self._hooks = [nn_module.register_module_forward_pre_hook(self._enter),
                       nn_module.register_module_forward_hook(self._leave, always_call=True)]

    def end(self) -> None:
        """Notes none from here on."""
        for hook in self._hooks:
            hook.remove()

    @torch.compiler.disable
    def _enter(self, module: torch.nn.Module, _: Any) -> None:
        if threading.get_ident() == self._thread:
            if not self._running:
                self._weights = {each.untyped_storage().data_ptr() for each in module.parameters()
                                 if not is_offloaded(each)}
            self._running.append(weakref.ref(module))

    @torch.compiler.disable
    def _leave(self, *_: Any) -> None:
        if threading.get_ident() == self._thread and self._running:
            self._running.pop()

    def weights(self) -> Set[int]:
        """Addresses of storages that stay in memory anyway."""
        return self._weights if self._running else set()

    def where(self) -> _Where:
        """The outermost module and that which runs."""
        return tuple(self._running[:1] + self._running[-1:])


def _name_of(where: _Where) -> str:
    outermost, module = (each() for each in where) if where else (None, None)
    if outermost is None or module is None:
        return "a forward"
    name = next((name for name, each in outermost.named_modules() if each is module), "")
    return f"module {name or type(module).__name__}"


@contextlib.contextmanager
def _naming(storage: _Storage) -> Iterator[None]:
    """Has an error name the module that has saved the storage."""
    try:
        yield
    except Error as error:
        raise Error(error.errno, f"what {_name_of(storage.where)} has saved for the backward: "
                    f"{error.strerror}", None, error.path, error.offset) from error


class _Entered(NamedTuple):
    owner: SavedOnNvme
    hooks: Any
    modules: _Modules


_threads = threading.local()


def _entered() -> List[_Entered]:
    """What this thread is within, the innermost last."""
    if not hasattr(_threads, "entered"):
        _threads.entered = []
    entered: List[_Entered] = _threads.entered
    return entered


def active() -> Optional[SavedOnNvme]:
    """The one that takes what this thread saves."""
    return _entered()[-1].owner if _entered() else None


def saved_on_nvme(config: Any = None, *, memory: int = 1 << 30, most_memory: Optional[int] = None,
                  smallest: int = 1 << 20) -> SavedOnNvme:
    """
    Keeps what autograd saves in a forward on the drive until the backward.

    Parameters
    ----------
    config : Config, dict, str or os.PathLike, optional
        A directory on the drive; or a DeepSpeed JSON file or its contents, whose offload_param block has
        the path. The variable NVSWAP_CONFIG of the environment by default.
    memory : int
        Bytes of saved tensors that stay in memory, the newest ones.
    most_memory : int, optional
        Bytes up to which also those stay in memory that the drive has not taken in time, so that no forward
        waits for it; beyond them it does. As many as `memory` by default.
    smallest : int
        Bytes of the smallest storage that is written; smaller ones stay in memory beside the budget.

    Returns
    -------
    SavedOnNvme
        To enter around each forward; the backward may be outside.

    Raises
    ------
    nvswap.Error
        In a forward, ENOSPC, EIO and others of the drive. In a backward, EBADMSG too. The error names the
        module that has saved the tensor.

    Notes
    -----
    Gradients are those of memory to the bit. Parameters of the module that is called are not written, and
    a storage that several tensors are views of is written once. A tensor in memory that
    is changed in place after it was saved makes the backward a RuntimeError; one that was written by then
    comes back as it was saved. Checksums are compared with
    "nvswap": {"verify": true}.

    Examples
    --------
    >>> saved = nvswap.torch.saved_on_nvme("/mnt/nvme", memory=4 << 30)
    >>> for data in loader:
    ...     with saved:
    ...         loss = model(data).mean()
    ...     loss.backward()
    """
    return SavedOnNvme(config, memory, memory if most_memory is None else most_memory, smallest)


def checkpoint(function: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """
    torch.utils.checkpoint.checkpoint whose inputs wait for the backward on the drive.

    Parameters
    ----------
    function : callable
    args
        Of it.
    more
        Keywords of it, and `preserve_rng_state`, `determinism_check` and `debug` as torch has them, and
        `use_reentrant=False`.

    Raises
    ------
    nvswap.Error
        EINVAL: use_reentrant is True.

    Notes
    -----
    It is that of torch within :func:`saved_on_nvme`, and outside of one within that of the environment's
    NVSWAP_CONFIG.
    """
    if more.pop("use_reentrant", False):
        raise invalid("a reentrant checkpoint saves its inputs elsewhere: leave use_reentrant out")
    with contextlib.nullcontext() if active() is not None else _of_environment():
        return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **more)


def _of_environment() -> SavedOnNvme:
    return _of_variable(os.environ.get("NVSWAP_CONFIG"))


@functools.lru_cache(maxsize=None)
def _of_variable(config: Optional[str]) -> SavedOnNvme:
    return saved_on_nvme(config)
