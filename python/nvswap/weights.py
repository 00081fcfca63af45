# SPDX-License-Identifier: Apache-2.0
"""
Weights of .safetensors files, read where they lie: an engine without a store, whose tensors are those of
the files. It has the calls of safetensors.safe_open beside those of an engine.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import math
import os
import threading
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from nvswap._native import ffi, lib
from nvswap.aio import Aio
from nvswap.config import Config
from nvswap.dtypes import copy_bytes, empty_array, itemsize
from nvswap.engine import Engine, Names, Pinned, Tensor
from nvswap.errors import Error, check, invalid, new_error
from nvswap.strings import Path, encoded, encoded_path

Paths = Union[Path, Iterable[Path]]

Survey = Tuple[int, Dict[str, str], List[str]]

# What folders of Hugging Face's tools have, in the order in which nvs_engine_open_files looks for them.
_MODELS = ("model", "adapter_model", "diffusion_pytorch_model")

_ARRAYS = {"pt": "torch", "torch": "torch", "pytorch": "torch", "np": "numpy", "numpy": "numpy"}

# The default pool: for the tensor that a program reads and one that is read ahead, in whole units.
_SMALLEST_POOL = 64 << 20
_UNIT_BYTES = 4096


class Weights(Engine):
    """
    Opens .safetensors files to read; made by :func:`open_weights`. All calls of :class:`Engine` that
    read work, also steps; those that would write are EROFS.

    Parameters
    ----------
    paths : list of str or os.PathLike
    config : Config
        Whose offload_param block has the pool.
    aio : Aio, optional
    arrays : {"numpy", "torch"}
    checksums : str or os.PathLike, optional
    survey : callable, optional
        Returns what survey_of() does of these paths; by default this reads the headers.
    """

    def __init__(self, paths: Sequence[Path], config: Config, *, aio: Optional[Aio] = None,
                 arrays: str = "torch", checksums: Optional[Path] = None,
                 survey: Optional[Callable[[], Survey]] = None) -> None:
        if not paths:
            raise invalid("no files: name a folder, an index or .safetensors files")
        self._survey = survey or (lambda: survey_of(paths))
        self._paths = [os.fspath(path) for path in paths]
        self._checksums = ffi.NULL if checksums is None else ffi.new("char[]", encoded_path(checksums))
        # Held while parts of tensors are read: such a tensor can't be pinned.
        self._parts = threading.Lock()
        super().__init__(config, aio=aio, arrays=arrays)
        with self._open() as pointer:
            for each in self.stored():
                self._tensors[each.name] = Tensor(self, lib.nvs_tensor_find(pointer, encoded(each.name)),
                                                  each.name, each.dtype, each.shape)

    def _open_library(self, engine: Any, pointer: Any, shared: Any, _: int, error: Any) -> None:
        names = [ffi.new("char[]", encoded_path(path)) for path in self._paths]
        options = ffi.new("struct nvs_files_options *")
        options.size, options.aio = ffi.sizeof("struct nvs_files_options"), shared
        options.checksums = self._checksums
        check(lib.nvs_engine_open_files(engine, pointer, ffi.new("char *[]", names), len(names), options,
                                        error), error)

    def keys(self) -> List[str]:
        """The names of all tensors, sorted."""
        return sorted(self._tensors)

    def metadata(self) -> Optional[Dict[str, str]]:
        """What the headers had as "__metadata__" when the files were opened, together; of a key in several
        files, the first one's, those of an index by their names. None: no file has any."""
        return dict(self._survey()[1]) or None

    def offset_keys(self) -> List[str]:
        """The names of the tensors of the files, in the order in which they lie there."""
        stored = {each.name for each in self.stored()}
        return [name for name in self._survey()[2] if name in stored]

    def get_tensors(self) -> Dict[str, Any]:
        """All tensors of the files, by name, each in memory of its own."""
        return {name: self.get_tensor(name) for name in self.offset_keys()}

    def get_tensor(self, name: str) -> Any:
        """
        Reads a tensor into memory of its own.

        Raises
        ------
        Error
            ENOENT: no such tensor; ESTALE: its file was replaced or written to; and those of the drive.
        """
        tensor = self._one(name)
        array = empty_array(tensor.dtype, tensor.shape, self._arrays)
        try:
            with self.swap_in(tensor, timeout=0) as pinned:
                copy_bytes(array, pinned[name])
        except Error as error:
            # What the program has pinned fills the pool, or the tensor is larger.
            if error.errno not in (errno.EAGAIN, errno.E2BIG, errno.ENOBUFS):
                raise
            self._read_part(tensor, array, 0)
        return array

    def get_slice(self, name: str) -> "TensorSlice":
        """``weights.get_slice("a")[10:20]`` reads these rows alone; see :class:`TensorSlice`."""
        return TensorSlice(self, self._one(name))

    def register_rows(self, name: str, first: int, count: int = 1, new_name: Optional[str] = None) -> Tensor:
        """
        Makes a range along the first dimension, such as one expert of many, a tensor of its own, which is
        pinned, read ahead, kept and planned by itself.

        Parameters
        ----------
        name : str
        first, count : int
            The rows.
        new_name : str, optional
            "name[first:end]" by default.

        Raises
        ------
        Error
            EINVAL: no such rows, or those of a scalar; EEXIST: there is a tensor of that name; ENOENT.
        """
        own = new_name if new_name is not None else f"{name}[{first}:{first + count}]"
        return self._register_rows(self._one(name), {own: (first, count)})[0]

    def _register_rows(self, tensor: Tensor, rows: Mapping[str, Tuple[int, int]]) -> List[Tensor]:
        """Makes several ranges of rows (the first, and how many) tensors with these names, all or none."""
        names = [ffi.new("char[]", encoded(name)) for name in rows]
        specs, made = ffi.new("struct nvs_tensor_rows[]", len(rows)), ffi.new("struct nvs_tensor *[]", len(rows))
        for spec, name, (first, count) in zip(specs, names, rows.values()):
            if first < 0 or count < 0:
                raise invalid(f"rows are not negative: {first}, {count}", tensor.name)
            spec.size, spec.tensor, spec.name = ffi.sizeof("struct nvs_tensor_rows"), tensor._pointer, name
            spec.first, spec.count = first, count
        error = new_error()
        with self._open() as pointer:
            check(lib.nvs_tensor_register_rows(pointer, specs, len(rows), made, error), error)
            tensors = [Tensor(self, each, name, tensor.dtype, (count, *tensor.shape[1:]))
                       for each, (name, (_, count)) in zip(made, rows.items())]
            self._tensors.update((each.name, each) for each in tensors)
        return tensors

    def _one(self, name: str) -> Tensor:
        if not isinstance(name, (str, Tensor)):
            raise TypeError(f"the name of a tensor is a str, not {name!r}")
        (tensor,) = self._named(name)
        return tensor

    def swap_in(self, names: Names, mode: str = "r", *, timeout: Optional[float] = None,
                arrays: Optional[str] = None) -> Pinned:
        """As :meth:`Engine.swap_in`, after what :meth:`get_slice` reads of the tensors."""
        wanted = names if isinstance(names, (str, Tensor)) else list(names)
        while True:
            try:
                return super().swap_in(wanted, mode, timeout=timeout, arrays=arrays)
            except Error as error:
                if error.errno != errno.EBUSY:
                    raise
            with self._parts:
                try:
                    return super().swap_in(wanted, mode, timeout=0, arrays=arrays)
                except Error as error:
                    if error.errno != errno.EAGAIN or timeout == 0:
                        raise

    def _read_part(self, tensor: Tensor, array: Any, offset: int) -> None:
        """Reads elements from `offset` on, which fill the array."""
        byte, end = offset * itemsize(tensor.dtype), offset + _numel(array)
        while True:
            with self._parts:
                try:
                    return self.read_range(tensor, array, byte)
                except Error as error:
                    if error.errno != errno.EBUSY:
                        raise
            # Pinned: its contents are in the pool.
            try:
                with self.swap_in(tensor, timeout=0) as pinned:
                    copy_bytes(array.reshape(-1), pinned[tensor.name].reshape(-1)[offset:end])
                    return
            except Error as error:
                if error.errno != errno.EAGAIN:
                    raise


class TensorSlice:
    """
    A tensor of files, of which an index reads a part into memory of its own; made by
    :meth:`Weights.get_slice`. Whole numbers at the begin of the index and the first range narrow
    what is read; what follows is taken of that.
    """

    def __init__(self, weights: Weights, tensor: Tensor) -> None:
        self._weights = weights
        self._tensor = tensor

    def get_shape(self) -> List[int]:
        """The lengths of the dimensions."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """The type of the elements, as the format calls it: "BF16"."""
        return self._tensor.dtype

    def __getitem__(self, index: Any) -> Any:
        rest = list(index) if isinstance(index, tuple) else [index]
        shape, offset = list(self._tensor.shape), 0
        if not itemsize(self._tensor.dtype):
            raise invalid(f"elements of {self._tensor.dtype} are packed: read the tensor by get_tensor()",
                          self._tensor.name)
        while rest and shape and _is_number(rest[0]):
            length, number = shape.pop(0), int(rest.pop(0))
            if not -length <= number < length:
                raise IndexError(f"index {number} is out of range: {self._tensor.name} has "
                                 f"{self.get_shape()}")
            offset = offset * length + number % length
        row = math.prod(shape)
        if rest and shape and isinstance(rest[0], slice):
            begin, end, step = rest[0].indices(shape[0])
            if step < 1:
                raise ValueError(f"the step of a range is at least 1, not {step}")
            row = math.prod(shape[1:])
            offset = offset * shape[0] + begin
            shape[0], rest[0] = max(0, end - begin), slice(None, None, step)
        offset *= row
        array = empty_array(self._tensor.dtype, tuple(shape), self._weights._arrays)
        if _numel(array):
            self._weights._read_part(self._tensor, array, offset)
        if all(isinstance(each, slice) and each == slice(None, None, 1) for each in rest):
            return array
        part = array[tuple(rest)]
        # Memory of its own, in its own order.
        result = empty_array(self._tensor.dtype, tuple(part.shape), self._weights._arrays)
        copy_bytes(result, part)
        return result


def open_weights(paths: Paths, config: Any = None, *, framework: str = "pt",
                 aio: Optional[Aio] = None, checksums: Optional[Path] = None) -> Weights:
    """
    Opens .safetensors files, which are read where they lie: nothing is copied, written or locked.

    Parameters
    ----------
    paths : str, os.PathLike or iterable of them
        A file, an index (".index.json"), or a folder with model.safetensors or its index; several are
        one set of tensors.
    config : Config, dict, str or os.PathLike, optional
        A DeepSpeed JSON file or its contents: `buffer_count` x `buffer_size` elements of offload_param
        are the pool. Without these keys, or without a configuration, it has room for the largest
        tensor twice, and at least 64 MiB. Paths of it, and a directory, mean nothing here.
    framework : {"pt", "np"}
        Or "torch", "pytorch" and "numpy", as safe_open has them: torch tensors or numpy arrays. numpy has
        BF16 and F8 as unsigned integers; elements that are packed (F4, F6) are bytes in one dimension in
        both.
    aio : Aio, optional
        Whose workers to share, opened with the same configuration.
    checksums : str or os.PathLike, optional
        With "nvswap": {"verify": true}: the directory of the checksums that ``nvswap store checksum``
        has written, instead of that of the files.

    Raises
    ------
    Error
        Those of nvs_engine_open_files: ENOENT: no such file, or no checksums of one in `checksums`; EINVAL: a header is
        wrong. With verify, reads of a tensor that differs from its checksum are EBADMSG.
    """
    if framework not in _ARRAYS:
        raise invalid(f'a framework is "pt" or "np", not {framework!r}')
    if _ARRAYS[framework] == "torch":
        import torch  # noqa: F401 pylint: disable=import-outside-toplevel,unused-import
    files = files_list(paths)
    survey = functools.lru_cache(maxsize=None)(lambda: survey_of(files))  # a header may have megabytes
    largest = 0
    # Of the files as they are opened, also for metadata(). Opening them reports what is wrong.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        largest = survey()[0]

    def pool_bytes() -> int:
        return max(_SMALLEST_POOL, 2 * (largest + 2 * _UNIT_BYTES))

    return Weights(files, pool_config(config, pool_bytes), aio=aio, arrays=_ARRAYS[framework],
                   checksums=checksums, survey=survey)


def files_list(paths: Paths) -> List[Path]:
    """One path or several, as a list."""
    return [paths] if isinstance(paths, (str, bytes, os.PathLike)) else list(paths)


def pool_config(config: Any, pool_bytes: Callable[[], int]) -> Config:
    """
    A configuration for files: with a pool of pool_bytes() if it says nothing of one.

    Parameters
    ----------
    config : Config, dict, str, os.PathLike or None
    pool_bytes : callable
    """
    if isinstance(config, (str, os.PathLike)) and os.path.isdir(config):
        config = None
    own = Config(config)
    if isinstance(config, Config) or _has_pool(config):
        return own
    own["zero_optimization.offload_param.buffer_count"] = 1
    own["zero_optimization.offload_param.buffer_size"] = 1
    own["zero_optimization.offload_param.buffer_size"] = -(-pool_bytes() // own.pool_bytes("param"))
    return own


def _has_pool(config: Any) -> bool:
    if config is None:
        return False
    if not isinstance(config, dict):
        with open(config, encoding="utf-8") as file:
            config = json.load(file)
    block = (config.get("zero_optimization") or {}).get("offload_param") or {}
    return "buffer_count" in block or "buffer_size" in block


def survey_of(paths: Sequence[Path]) -> Survey:
    """Bytes of the largest tensor of all files, their "__metadata__", and the names by offset."""
    metadata: Dict[str, str] = {}
    names: List[str] = []
    largest = 0
    for header, nbytes in headers(paths):
        metadata = {**(header.pop("__metadata__", None) or {}), **metadata}
        for entry in header.values():
            begin, end = entry["data_offsets"]
            largest = max(largest, min(end - begin, nbytes))
        names += sorted(header, key=lambda name, entries=header: entries[name]["data_offsets"])
    return largest, metadata, names


def headers(paths: Sequence[Path]) -> Iterator[Tuple[Dict[str, Any], int]]:
    """The headers of all files, with the lengths of these."""
    for path in paths:
        for file_path in _files_of(os.fsdecode(path)):
            with open(file_path, "rb", opener=_open_now) as file:
                nbytes = os.fstat(file.fileno()).st_size
                yield json.loads(file.read(min(int.from_bytes(file.read(8), "little"), nbytes))), nbytes


def _files_of(path: str) -> List[str]:
    if os.path.isdir(path):
        found = [each for model in _MODELS for end in ("", ".index.json")
                 for each in [os.path.join(path, f"{model}.safetensors{end}")] if os.path.exists(each)]
        path = next(iter(found), path)
    if not path.endswith(".index.json"):
        return [path]
    with open(path, encoding="utf-8", opener=_open_now) as file:
        index = json.load(file)
    return [os.path.join(os.path.dirname(path), each) for each in sorted(set(index["weight_map"].values()))]


def _open_now(path: str, flags: int) -> int:
    """Opens a file, and a pipe without waiting for a program that writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)


def _numel(array: Any) -> int:
    return int(array.numel()) if hasattr(array, "numel") else int(array.size)


def _is_number(index: Any) -> bool:
    return hasattr(index, "__index__") and not isinstance(index, bool) and not hasattr(index, "shape")


__all__ = ["TensorSlice", "Weights", "open_weights"]
