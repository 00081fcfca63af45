# SPDX-License-Identifier: Apache-2.0
"""
Engine: tensors by name, between a pinned pool and a store on the drive. Arrays over pool memory
keep their pin: it ends when the with block has ended and the last array or view of it is gone.
"""

from __future__ import annotations

import errno
import math
import os
import weakref
from contextlib import contextmanager, nullcontext, suppress
from typing import (Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional,
                    Sequence, Set, Tuple, Union, cast)

from nvswap._native import ffi, lib
from nvswap.aio import Aio
from nvswap.config import block_number, config_of
from nvswap.dtypes import array_over, dtype_name, dtype_number, is_array, nbytes_of, number_name
from nvswap.errors import Error, check, invalid, new_error
from nvswap.handle import Handle, wait_sliced
from nvswap.memory import Shape, Span, shape_of, span_of
from nvswap.statistics import StepIO, fields_of
from nvswap.strings import encoded

Names = Union[str, "Tensor", Iterable[Union[str, "Tensor"]]]

# (dtype, shape), or an array that has both. None, or None as the shape, takes what the kept store has.
Spec = Any

_NULL = ffi.NULL


class StoredTensor(NamedTuple):
    """A tensor of a kept store, as it was when the engine was opened."""

    name: str
    dtype: str
    numel: int
    nbytes: int
    has_contents: bool
    checksum: Optional[int]  # XXH3, 64 bits
    shape: Tuple[int, ...]


class Tensor:
    """A registered tensor. It has no data of its own: the engine's pins do."""

    def __init__(self, engine: "Engine", pointer: Any, name: str, dtype: str,
                 shape: Tuple[int, ...]) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self._engine = weakref.ref(engine)
        self._pointer = pointer

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return nbytes_of(self.dtype, self.numel)

    def __repr__(self) -> str:
        return f"<nvswap.Tensor {self.name!r} {self.dtype} {list(self.shape)}>"


class _Pin:
    """A pin of the library, released with the last reference to it: the arrays over its memory hold
    one each, whoever made it another."""

    def __init__(self, engine: "Engine", tensors: List[Tensor], number: int, how: int) -> None:
        self.engine = engine
        self.tensors = tensors
        self.number = number
        self.how = how
        self._array = _array_of(tensors)
        engine._pins[id(self)] = self.record()

    def record(self) -> Tuple[Any, int, int, int, List[str]]:
        return (self._array, len(self.tensors), self.number, self.how,
                [tensor.name for tensor in self.tensors])

    def __del__(self) -> None:
        try:
            self._end()
        except BaseException:  # of a signal handler, which Python reports and drops
            self._end()
            raise

    def _end(self) -> None:
        engine = self.engine
        if engine._pid != os.getpid():
            return
        with engine._idle:
            # At exit the engine has ended its pins, and may be freed at any time.
            if engine._pins.pop(id(self), None) is None:
                return
            engine._begin_call()
        try:
            _release(engine._pointer, self.record())
        finally:
            engine._end_call()

    def keep(self, _: Any) -> None:
        """Called when an array over the pool is gone; the reference to this method kept the pin."""


class Pinned(Mapping[str, Any]):
    """
    Pinned tensors by their names; the values are arrays over pool memory, without a copy. A context
    manager that waits for the contents at its beginning. An array that is kept beyond the end of
    the block keeps all tensors of the block pinned.
    """

    def __init__(self, pin: _Pin, arrays: str, writable: bool, new: bool) -> None:
        self._pin: Optional[_Pin] = pin
        self._kind = arrays
        self._writable = writable
        self._new = new
        self._arrays: Optional[Dict[str, Any]] = None

    def wait(self, timeout: Optional[float] = None) -> "Pinned":
        """
        Waits for the contents.

        Raises
        ------
        Error
            EIO, EBADMSG (a checksum differs) and others of the drive, with tensor, path and offset;
            the pin has ended.
        Timeout
            After `timeout` seconds, or if the drive hangs; the tensors stay pinned.
        """
        pin = self._the_pin()
        if self._arrays is None:
            engine = pin.engine
            with engine._open() as pointer:
                error = new_error()
                code = wait_sliced(engine, lambda ms, error: lib.nvs_tensor_wait(
                    pointer, pin._array, len(pin.tensors), pin.number, ms, error), timeout, error)
                check(code, error)
                self._arrays = {tensor.name: self._array(pin, tensor) for tensor in pin.tensors}
        return self

    def _the_pin(self) -> _Pin:
        if self._pin is None:
            raise invalid("the tensors are not pinned any more")
        return self._pin

    def _array(self, pin: _Pin, tensor: Tensor) -> Any:
        owner = ffi.gc(ffi.cast("char *", lib.nvs_tensor_data(tensor._pointer)), pin.keep)
        buffer = ffi.buffer(owner, tensor.nbytes)
        return array_over(buffer, tensor.dtype, tensor.shape, self._kind, self._writable)

    def keep_contents(self, changed: bool) -> None:
        """Says whether the end of the pin gives the contents to the store. Without it, those of
        modes "r+" and "w" go there."""
        self._the_pin().how = lib.NVS_DIRTY if changed else lib.NVS_CLEAN

    def release(self) -> None:
        """Drops the arrays; the pin ends when the caller has none of them any more."""
        pin, self._pin, self._arrays = self._pin, None, None
        del pin

    def __getitem__(self, name: str) -> Any:
        self.wait()
        assert self._arrays is not None
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter([tensor.name for tensor in self._the_pin().tensors])

    def __len__(self) -> int:
        return len(self._the_pin().tensors)

    def __enter__(self) -> "Pinned":
        try:
            return self.wait()
        except BaseException:
            self.release()
            raise

    def __exit__(self, kind: Any, *_: Any) -> None:
        # New contents that were not completed are discarded; changed ones can't be.
        if kind is not None and self._pin is not None and self._new:
            self._pin.how = lib.NVS_CLEAN
        self.release()


class Engine(Handle):
    """
    Opens the store and the pool of a block of the configuration.

    Parameters
    ----------
    config : Config, str or dict
    block : {"param", "optimizer"}
        Whose nvme_path, buffer_count and buffer_size count.
    aio : Aio, optional
        Whose workers to share with other engines, optimizers and files; opened with the same
        configuration. It is closed after the engine.
    arrays : {"numpy", "torch", "memoryview"}
        What pinned tensors are given as. numpy has BF16 and F8 as unsigned integers.

    Raises
    ------
    Error
        EBUSY: another engine has the store; EEXIST: it holds a kept store; ENOMEM: the pool can't
        be locked; ENOENT: no such path; EUCLEAN: the store is damaged; and those of nvs_engine_open.

    Notes
    -----
    Closing commits a kept store. While arrays over the pool exist, close() raises EBUSY. Any thread
    may call; steps are of one thread at a time.
    """

    _what = "engine"

    def __init__(self, config: Any, block: str = "param", *, aio: Optional[Aio] = None,
                 arrays: str = "numpy") -> None:
        engine, error = ffi.new("struct nvs_engine **"), new_error()
        self._config = config_of(config)
        number = block_number(block)
        self._arrays = arrays
        self._tensors: Dict[str, Tensor] = {}
        self._pins: Dict[int, Any] = {}
        # External memory that transfers use, by the tensor's name.
        self._external: Dict[str, Any] = {}
        # That of calls that have not returned, by the call's own number.
        self._starting: Dict[int, List[Span]] = {}
        # The modules that begin and end the steps instead of the program, and what they share.
        self._steppers: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._shared: Any = None
        self._step = False
        with self._config._opening() as (pointer, used):
            with aio._open() if aio is not None else nullcontext(_NULL) as shared:
                self._open_library(engine, pointer, shared, number, error)
            super().__init__(engine[0], *used, *([aio] if aio else []))

    def _open_library(self, engine: Any, pointer: Any, shared: Any, block: int, error: Any) -> None:
        if shared == _NULL:
            check(lib.nvs_engine_open(engine, pointer, block, error), error)
        else:
            check(lib.nvs_engine_open_on(engine, shared, pointer, block, error), error)

    def _free(self, pointer: Any, at_exit: bool) -> None:
        self._end_pins(pointer, at_exit)
        error = new_error()
        check(lib.nvs_engine_close(pointer, error), error)

    def _end_pins(self, pointer: Any, at_exit: bool) -> None:
        """Refuses to free memory that arrays are over, unless the program ends."""
        if self._shared is not None:
            with suppress(RuntimeError):  # Of a device that has failed.
                self._shared.finish_copies()
        with self._idle:
            pins = list(self._pins.values())
            if pins and not at_exit:
                names = ", ".join(sorted({name for pin in pins for name in pin[-1]})[:4])
                raise Error(errno.EBUSY, f"the engine has arrays over pinned tensors: {names}",
                            names)
            self._pins.clear()
        for pin in pins:
            _release(pointer, pin)
        with self._idle:
            self._idle.wait_for(lambda: not self._calls)
        if self._shared is not None:
            self._shared.release()

    def abandon(self) -> None:
        """Closes the engine without a commit: a kept store stays as last committed."""
        def free(pointer: Any) -> None:
            self._end_pins(pointer, False)
            error = new_error()
            check(lib.nvs_engine_abandon(pointer, error), error)

        self._close(free)

    # ---- Tensors

    def register(self, name: str, dtype: Any = None, shape: Optional[Shape] = None) -> Tensor:
        """Registers one tensor, also ``register(name, array)`` and ``register(name)``; see
        :meth:`register_all`."""
        if isinstance(dtype, (tuple, list)):
            raise invalid(f"tensor {name}: give dtype and shape as two arguments, as in "
                          f"register({name!r}, \"F32\", 10)", name)
        if is_array(dtype) and shape is not None:
            raise invalid(f"tensor {name}: an array has its own shape: leave the other out", name)
        return self.register_all({name: dtype if is_array(dtype) else (dtype, shape)})[0]

    def register_all(self, specs: Mapping[str, Spec]) -> List[Tensor]:
        """
        Registers tensors, which lie side by side in the store and move together.

        Parameters
        ----------
        specs : mapping of str to (dtype, shape), array or None
            An array or torch tensor stands for its dtype and shape; nothing is copied from it.
            None, also in the place of a shape, stands for what the kept store had when it was opened.
            Another shape of as many elements replaces the one that the store has, with the next
            commit.

        Raises
        ------
        Error
            EEXIST: a name is registered; ESTALE: the kept store has it with another type or length;
            ENOENT: it has no such tensor; ENOSPC; EROFS. None is registered then.
        ValueError
            A NUL in a name.
        """
        made = self._completed(specs)
        if not made:
            return []
        names = [ffi.new("char[]", encoded(name)) for name, _, _ in made]
        shapes = [ffi.new("uint64_t[]", list(shape) or [0]) for _, _, shape in made]
        array = ffi.new("struct nvs_tensor_spec[]", len(made))
        for spec, c_name, c_shape, (_, dtype, shape) in zip(array, names, shapes, made):
            spec.size, spec.name = ffi.sizeof("struct nvs_tensor_spec"), c_name
            spec.dtype, spec.numel = dtype_number(dtype), math.prod(shape)
            spec.shape, spec.ndim = c_shape, len(shape)
        handles, error = ffi.new("struct nvs_tensor *[]", len(made)), new_error()
        with self._open() as pointer:
            check(lib.nvs_tensor_register(pointer, array, len(made), handles, error), error)
            tensors = [Tensor(self, handle, name, dtype, shape)
                       for handle, (name, dtype, shape) in zip(handles, made)]
            self._tensors.update((tensor.name, tensor) for tensor in tensors)
        return tensors

    def _completed(self, specs: Mapping[str, Spec]) -> List[Tuple[str, str, Tuple[int, ...]]]:
        """Names, types and shapes; those that are not given are the kept store's."""
        pairs = {name: _pair_of(name, spec) for name, spec in specs.items()}
        stored = {}
        if any(shape is None for _, shape in pairs.values()):
            stored = {each.name: each for each in self.stored()}
        made = []
        for name, (dtype, shape) in pairs.items():
            if shape is None and name not in stored:
                raise Error(errno.ENOENT, f"the kept store has no tensor {name!r}: register it with "
                            "its dtype and shape", name)
            made.append((name, stored[name].dtype if dtype is None else dtype_name(dtype),
                         stored[name].shape if shape is None else shape_of(shape)))
        return made

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._tensors))

    def __len__(self) -> int:
        return len(self._tensors)

    def _named(self, names: Names) -> List[Tensor]:
        wanted = [names] if isinstance(names, (str, Tensor)) else list(names)
        tensors = []
        for name in wanted:
            if isinstance(name, Tensor):
                if self._tensors.get(name.name) is not name:
                    raise invalid(f"tensor {name.name} is not registered with this engine",
                                  name.name)
                tensors.append(name)
            elif name in self._tensors:
                tensors.append(self._tensors[name])
            else:
                raise Error(errno.ENOENT, f"no tensor {name!r} is registered", str(name))
        return tensors

    def _run(self, call: Any, names: Names) -> int:
        tensors, error = self._named(names), new_error()
        with self._open() as pointer:
            return check(call(pointer, _array_of(tensors), len(tensors), error), error)

    def forget(self, names: Names) -> None:
        """Removes tensors with their data; EBUSY if one is pinned or in flight."""
        tensors = self._named(names)
        self._run(lib.nvs_tensor_forget, tensors)
        for tensor in tensors:
            self._tensors.pop(tensor.name, None)
            self._external.pop(tensor.name, None)

    def rename(self, name: Union[str, Tensor], new_name: str) -> None:
        """Renames a tensor; a kept store has the new name from the next commit on."""
        (tensor,), name_bytes, error = self._named(name), encoded(new_name), new_error()
        with self._open() as pointer:
            check(lib.nvs_tensor_rename(pointer, tensor._pointer, name_bytes, error), error)
            del self._tensors[tensor.name]
            tensor.name = new_name
            self._tensors[new_name] = tensor

    def info(self, name: Union[str, Tensor]) -> Dict[str, Any]:
        """The fields of struct nvs_tensor_info: state, dirty, pins, store_offset, status, shape."""
        (tensor,) = self._named(name)
        info = ffi.new("struct nvs_tensor_info *")
        info.size = ffi.sizeof("struct nvs_tensor_info")
        with self._open() as pointer:
            check(lib.nvs_tensor_get_info(pointer, tensor._pointer, info))
            fields = fields_of(info)
            fields["shape"] = tuple(info.shape[0:info.ndim])
        fields["dtype"] = number_name(info.dtype)
        fields["state"] = ffi.string(lib.nvs_tensor_state_name(info.state)).decode()
        return fields

    # ---- Pins

    def swap_in(self, names: Names, mode: str = "r", *, timeout: Optional[float] = None,
                arrays: Optional[str] = None) -> Pinned:
        """
        Pins tensors and starts to read those that are not in the pool.

        Parameters
        ----------
        names : str, Tensor or iterable of them
        mode : {"r", "r+", "w"}
            Contents, to be read only; contents, to be changed; new contents, nothing is read.
        timeout : float, optional
            Seconds to wait for room in the pool; None waits without end, also for what this thread
            itself has pinned. After 5 seconds the log says which tensors are pinned.
        arrays : {"numpy", "torch", "memoryview"}, optional
            Instead of the engine's.

        Returns
        -------
        Pinned
            Its :meth:`Pinned.wait` waits for the contents, as do the values.

        Raises
        ------
        Error
            ENODATA: a tensor was never written; E2BIG, ENOBUFS: larger than the pool; EBUSY.
        Timeout
            There was no room in time.

        Notes
        -----
        The arrays are not mapped in a child of fork(), as those of :func:`nvswap.empty`.
        """
        if mode not in ("r", "r+", "w"):
            raise invalid(f'a mode is "r", "r+" or "w", not {mode!r}')
        tensors, number, error = self._named(names), ffi.new("uint64_t *"), new_error()
        array = _array_of(tensors)
        call = lib.nvs_tensor_pin if mode == "w" else lib.nvs_tensor_swap_in
        with self._open() as pointer:
            try:
                code = self._wait_for_room(pointer, lambda ms, error: call(
                    pointer, array, len(tensors), ms, number, error), timeout, error)
                check(code, error)
                how = lib.NVS_CLEAN if mode == "r" else lib.NVS_DIRTY
                pin = _Pin(self, tensors, int(number[0]), how)
            except BaseException:  # of a signal handler, once there is a pin
                if number[0]:
                    _release(pointer, (array, len(tensors), int(number[0]), lib.NVS_CLEAN, []))
                raise
        return Pinned(pin, arrays or self._arrays, mode != "r", mode == "w")

    def pinned(self, names: Names, mode: str = "r", *, timeout: Optional[float] = None,
               arrays: Optional[str] = None) -> Pinned:
        """``with engine.pinned(["a", "b"]) as tensors: tensors["a"] ...``; see :meth:`swap_in`."""
        return self.swap_in(names, mode, timeout=timeout, arrays=arrays)

    def prefetch(self, names: Names) -> int:
        """Reads ahead as many of the tensors, in order, as fit without waiting; returns how many
        are in the pool or being read."""
        return self._run(lib.nvs_tensor_prefetch, names)

    def swap_out(self, names: Names) -> None:
        """Starts to write back and evict tensors; EBUSY if one is pinned."""
        self._run(lib.nvs_tensor_swap_out, names)

    def wait(self, names: Names, timeout: Optional[float] = None) -> None:
        """Waits for transfers that pin nothing: of prefetch, swap_out, store_from and load_to."""
        tensors, error = self._named(names), new_error()
        array = _array_of(tensors)
        with self._open() as pointer:
            code = wait_sliced(self, lambda ms, error: lib.nvs_tensor_wait(
                pointer, array, len(tensors), 0, ms, error), timeout, error)
            if code not in (-errno.EAGAIN, -errno.ETIMEDOUT):
                for tensor in tensors:
                    self._external.pop(tensor.name, None)
            check(code, error)

    # ---- External memory

    def store_from(self, arrays: Mapping[str, Any], wait: bool = True) -> None:
        """
        Writes whole tensors from the caller's arrays, without the pool.

        Parameters
        ----------
        arrays : mapping of str to array
            Each with as many bytes as its tensor; kept alive, and not to be changed before
            :meth:`wait` if `wait` is false.

        Raises
        ------
        Error
            EBUSY: a tensor is pinned or in flight; EINVAL: another number of bytes; EROFS.
        """
        self._transfer(lib.nvs_tensor_swap_out_from, "void *[]", arrays, False, wait)

    def load_to(self, arrays: Mapping[str, Any], wait: bool = True) -> None:
        """Reads whole tensors into the caller's arrays, as :meth:`store_from` writes them."""
        self._transfer(lib.nvs_tensor_swap_in_to, "void *[]", arrays, True, wait)

    def _transfer(self, call: Any, kind: str, arrays: Mapping[str, Any], writable: bool,
                  wait: bool) -> None:
        tensors, error = self._named(arrays), new_error()
        spans = [self._whole(tensor, span_of(array, writable))
                 for tensor, array in zip(tensors, arrays.values())]
        data = ffi.new(kind, [span.pointer for span in spans])
        with self._open() as pointer:
            self._start(tensors, spans, lambda: check(
                call(pointer, _array_of(tensors), data, len(tensors), error), error))
        if wait:
            self.wait(tensors)

    def _start(self, tensors: List[Tensor], spans: List[Span], call: Callable[[], Any]) -> None:
        """Begins transfers with external memory, and keeps it until they have ended. The exception of a
        signal comes as soon as the library returns: the memory is kept before, and then for good."""
        self._starting[id(spans)] = spans
        try:
            call()
            self._external.update((tensor.name, span.owner) for tensor, span in zip(tensors, spans))
        except Error:
            del self._starting[id(spans)]
            raise
        del self._starting[id(spans)]

    @staticmethod
    def _whole(tensor: Tensor, span: Span) -> Span:
        if span.nbytes != tensor.nbytes:
            raise invalid(f"tensor {tensor.name} has {tensor.nbytes} bytes, the array "
                          f"{span.nbytes}", tensor.name)
        return span

    def read_range(self, name: Union[str, Tensor], array: Any, offset: int = 0) -> None:
        """Reads bytes of a tensor from byte `offset` on into an array, and waits for them."""
        (tensor,), error, span = self._named(name), new_error(), span_of(array, True)
        ranges = _range_of(tensor, span, offset)
        with self._open() as pointer:
            self._start([tensor], [span], lambda: check(lib.nvs_tensor_read(pointer, ranges, 1, error), error))
        self.wait(tensor)

    def write_range(self, name: Union[str, Tensor], array: Any, offset: int = 0,
                    timeout: Optional[float] = None) -> None:
        """Replaces bytes of a tensor from byte `offset` on, in the pool."""
        (tensor,), error, span = self._named(name), new_error(), span_of(array, False)
        ranges = _range_of(tensor, span, offset)
        with self._open() as pointer:
            code = self._wait_for_room(pointer, lambda ms, error: lib.nvs_tensor_write(
                pointer, ranges, 1, ms, error), timeout, error)
            check(code, error)

    def _wait_for_room(self, pointer: Any, call: Callable[[int, Any], int],
                       timeout: Optional[float], error: Any) -> int:
        """As wait_sliced(). The thread keeps its place among the calls that wait from slice to
        slice."""
        # Fails in the handler of a signal within such a wait, which has its thread's place.
        keeps = not lib.nvs_engine_keep_place(pointer, True, ffi.NULL)
        try:
            return wait_sliced(self, call, timeout, error)
        finally:
            if keeps:
                lib.nvs_engine_keep_place(pointer, False, ffi.NULL)

    # ---- Steps and commits

    def step_begin(self) -> None:
        """Begins a step: the engine records or follows the order in which tensors are pinned.
        EBUSY: a step has begun, or modules are offloaded to the engine, whose forwards begin
        them."""
        self._refuse_step()
        self._begin_step()

    def step_end(self) -> StepIO:
        """Ends it; returns the fields of struct nvs_step_io, times in ns."""
        self._refuse_step()
        return self._end_step()

    def _begin_step(self) -> None:
        error = new_error()
        with self._open() as pointer:
            check(lib.nvs_engine_step_begin(pointer, error), error)
            self._step = True

    def _end_step(self) -> StepIO:
        error, io = new_error(), ffi.new("struct nvs_step_io *")
        io.size = ffi.sizeof("struct nvs_step_io")
        with self._open() as pointer:
            check(lib.nvs_engine_step_end(pointer, io, error), error)
            self._step = False
        return cast(StepIO, fields_of(io))

    def _refuse_step(self) -> None:
        self._end_shared()
        if self._steppers:
            raise Error(errno.EBUSY, "the engine has the parameters of an offloaded module, whose "
                        "forwards begin and end its steps: leave out step(), step_begin() and "
                        "step_end()")

    def _end_shared(self) -> None:
        """The steps are the program's again when the steppers have left or are gone."""
        if self._shared is not None and not self._steppers:
            self._shared.end_step()
            self._shared.release()
            self._shared = None

    @contextmanager
    def step(self) -> Iterator[StepIO]:
        """``with engine.step() as io``: `io` has the step's statistics after the block."""
        io = cast(StepIO, {})
        self.step_begin()
        try:
            yield io
        finally:
            io.update(self.step_end())

    def commit(self) -> None:
        """
        Writes back what is dirty, and makes a kept store's new state durable, all or nothing.

        Raises
        ------
        Error
            EBUSY: a tensor is pinned and dirty; ESTALE; EROFS; errors of the drive.
        """
        error = new_error()
        with self._open() as pointer:
            check(lib.nvs_engine_commit(pointer, error), error)

    @property
    def note(self) -> bytes:
        """The note of a kept store's last commit, such as the step; the next commits have the one that
        is set here, up to 65536 bytes, or that of the commit before. In a store that is not kept a
        note that is set has no effect."""
        with self._open() as pointer:
            return note_of(lib.nvs_engine_get_note, pointer)

    @note.setter
    def note(self, note: bytes) -> None:
        error = new_error()
        with self._open() as pointer:
            check(lib.nvs_engine_set_note(pointer, bytes(note), len(note), error), error)

    @property
    def generation(self) -> int:
        """The number of the last commit of a kept store; 0 if there was none."""
        with self._open() as pointer:
            return int(lib.nvs_engine_generation(pointer))

    def stored(self) -> List[StoredTensor]:
        """What the kept store held when the engine was opened, registered since or not."""
        result, each = [], ffi.new("struct nvs_stored_tensor *")
        with self._open() as pointer:
            while True:
                each.size = ffi.sizeof("struct nvs_stored_tensor")
                if lib.nvs_engine_get_stored(pointer, len(result), each):
                    return result
                result.append(StoredTensor(
                    ffi.string(each.name).decode(errors="surrogateescape"), number_name(each.dtype),
                    each.numel, each.nbytes, each.has_contents,
                    each.checksum if each.has_checksum else None,
                    tuple(each.shape[0:each.ndim])))

    def pool(self) -> Tuple[int, int]:
        """Address and bytes of the pool, to be registered with a GPU. End that before the engine closes:
        the GPU would copy the old pages in place of what is mapped at their address next."""
        data, nbytes = ffi.new("void **"), ffi.new("size_t *")
        with self._open() as pointer:
            check(lib.nvs_engine_pool(pointer, data, nbytes))
        return int(ffi.cast("uintptr_t", data[0])), int(nbytes[0])

    def pinned_names(self) -> Set[str]:
        """The tensors that are pinned, also those whose arrays alone keep them so."""
        with self._idle:
            return {name for pin in list(self._pins.values()) for name in pin[-1]}

    def room_beside(self, names: Iterable[str], unit: int = 1) -> int:
        """Bytes of the longest run of the pool beside pinned tensors, if each takes whole units."""
        base, nbytes = self.pool()
        longest, begin = 0, base
        with self._open():
            runs = sorted((int(ffi.cast("uintptr_t", lib.nvs_tensor_data(tensor._pointer))),
                           tensor.nbytes) for tensor in self._named(names))
        for address, length in [*runs, (base + nbytes, 0)]:
            longest = max(longest, address - begin)
            begin = max(begin, address + -(-length // unit) * unit)
        return longest

    def stats(self) -> Dict[str, Any]:
        """The fields of struct nvs_engine_stats, with those of the pool and the aio."""
        with self._open() as pointer:
            return engine_stats(pointer)


def engine_stats(pointer: Any) -> Dict[str, Any]:
    stats = ffi.new("struct nvs_engine_stats *")
    stats.size = ffi.sizeof("struct nvs_engine_stats")
    check(lib.nvs_engine_get_stats(pointer, stats))
    return fields_of(stats)


def _release(pointer: Any, record: Tuple[Any, int, int, int, List[str]]) -> None:
    """Ends a pin; one that ended already, with a failed read, is no error."""
    array, n, number, how, _ = record
    if lib.nvs_tensor_release(pointer, array, n, number, how, _NULL) == -errno.EBUSY:
        lib.nvs_tensor_wait(pointer, array, n, number, -1, _NULL)
        lib.nvs_tensor_release(pointer, array, n, number, how, _NULL)


def _pair_of(name: str, spec: Spec) -> Tuple[Any, Optional[Shape]]:
    """dtype and shape; None where the kept store says it."""
    if spec is None:
        return None, None
    if isinstance(spec, (tuple, list)) and len(spec) == 2:
        dtype, shape = spec
        if dtype is None and shape is not None:
            raise invalid(f"tensor {name} has a shape and no dtype", name)
        return dtype, shape
    if not is_array(spec):
        raise invalid(f"tensor {name}: (dtype, shape), an array or None, not {spec!r}", name)
    return spec.dtype, tuple(spec.shape)


def _array_of(tensors: Sequence[Tensor]) -> Any:
    return ffi.new("struct nvs_tensor *[]", [tensor._pointer for tensor in tensors])


def _range_of(tensor: Tensor, span: Span, offset: int) -> Any:
    if offset < 0:
        raise invalid(f"an offset is not negative: {offset}", tensor.name)
    ranges = ffi.new("struct nvs_tensor_range[]", 1)
    ranges[0].size = ffi.sizeof("struct nvs_tensor_range")
    ranges[0].tensor, ranges[0].data = tensor._pointer, span.pointer
    ranges[0].offset, ranges[0].nbytes = offset, span.nbytes
    return ranges


def note_of(get: Any, pointer: Any) -> bytes:
    """The note that nvs_engine_get_note, or that of an optimizer, copies."""
    room = int(lib.NVS_NOTE_MAX)
    note, nbytes = ffi.new("char[]", room), ffi.new("size_t *", room)
    check(get(pointer, note, nbytes))
    return bytes(ffi.buffer(note, nbytes[0]))
