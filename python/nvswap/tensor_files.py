# SPDX-License-Identifier: Apache-2.0
"""
Tensors of an engine, or the state of an optimizer, in files that other programs read and write:
.safetensors files and those of torch.save. Data goes between the store and the file through the pool.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Any, Iterator, Mapping, Optional, Sequence, Tuple, Union

from nvswap._native import ffi, lib
from nvswap.dtypes import number_name
from nvswap.engine import Engine, Names
from nvswap.errors import check, new_error
from nvswap.optimizer import STATES, Optimizer
from nvswap.strings import Path, encoded, encoded_path

_NULL = ffi.NULL

# Tensors, or what they are called in the file by their names in the engine.
FileNames = Union[Names, Mapping[str, str]]


def export_tensors(engine: Engine, path: Path, names: Optional[FileNames] = None, *,
                   shard_bytes: int = 0, pickle: Optional[bytes] = None,
                   storages: Sequence[Any] = ()) -> None:
    """
    Writes registered tensors to `path`, which a crash leaves as it was, or complete.

    Parameters
    ----------
    engine : Engine
    path : str or path
        Ends with ".safetensors", or with ".pt" for the form of torch.save.
    names : str or Tensor, a sequence of them, or dict of str to str, optional
        The tensors to write, or what they are called in the file by their names in the engine; by
        default all.
    shard_bytes : int, optional
        Data of one .safetensors file; more goes to further files, and `path`.index.json names them.
    pickle : bytes, optional
        The value of a file of torch.save, as torch.save pickles it, with any `path`: storages "0", "1"
        and so on are the tensors in their order, then `storages`.
    storages : sequence of buffers, optional
        Storages of `pickle` that are in memory.

    Raises
    ------
    Error
        Those of nvs_checkpoint_export, such as ENOSPC; EBUSY: another process writes `path`.
    """
    error, options, keep = new_error(), *_options(shard_bytes, pickle, storages)
    with engine._open() as pointer, _items(engine, names) as (items, n):
        check(lib.nvs_checkpoint_export(pointer, items, n, encoded_path(path), options, error), error)
    del keep


def import_tensors(engine: Engine, path: Path, names: Optional[FileNames] = None) -> None:
    """
    Reads registered tensors from `path`: a .safetensors file, its index, or a file of torch.save, of
    which nothing is executed. In that, keys and indices make a name: "module.layers.0.weight".

    Parameters
    ----------
    names : str or Tensor, a sequence of them, or dict of str to str, optional
        As for export_tensors. The file may have other tensors too.

    Raises
    ------
    Error
        Those of nvs_checkpoint_open and nvs_checkpoint_import: ENOENT: the file has no such tensor;
        ESTALE: with another type or length, or another shape, where the registered one has two
        dimensions or more; or another save replaced the file during the call: call again; EINVAL:
        the file is damaged, or may execute code; EBADMSG.
    """
    error = new_error()
    with engine._open() as pointer, _items(engine, names) as (items, n), _opened(path) as checkpoint:
        check(lib.nvs_checkpoint_import(pointer, checkpoint, items, n, error), error)


def export_optimizer(optimizer: Optimizer, path: Path, *, shard_bytes: int = 0,
                     pickle: Optional[bytes] = None, storages: Sequence[Any] = ()) -> None:
    """
    Writes all state: of each group G the tensors "G.fp32" and those of the rule's states, of Adam "G.exp_avg" and
    "G.exp_avg_sq", and "step".
    The arguments are those of export_tensors; with `pickle` the tensors are storages in that order,
    group by group.

    Raises
    ------
    Error
        Those of nvs_checkpoint_export_optimizer.
    """
    error, options, keep = new_error(), *_options(shard_bytes, pickle, storages)
    with optimizer._open() as pointer:
        check(lib.nvs_checkpoint_export_optimizer(pointer, encoded_path(path), options, error), error)
    del keep


def import_optimizer(optimizer: Optimizer, path: Path,
                     names: Optional[Sequence[Optional[str]]] = None) -> None:
    """
    Reads all state and the number of steps.

    Parameters
    ----------
    names : sequence of str or None, optional
        What the tensors are called, in the order of export_optimizer; the parts whose name is None
        become 0, and the number of steps stays.

    Raises
    ------
    Error
        Those of nvs_checkpoint_open and nvs_checkpoint_import_optimizer.
    """
    error, array, keep = new_error(), _NULL, []
    if names is not None:
        keep = [_NULL if name is None else ffi.new("char[]", encoded(name)) for name in names]
        parts = 1 + len(STATES[optimizer.info()["rule"]])
        if len(keep) != parts * len(optimizer.groups):
            raise ValueError(f"{len(keep)} names for {len(optimizer.groups)} groups of {parts} tensors")
        array = ffi.new("char *[]", keep)
    with optimizer._open() as pointer, _opened(path) as checkpoint:
        check(lib.nvs_checkpoint_import_optimizer(pointer, checkpoint, array, error), error)
    del keep


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    checkpoint, error = ffi.new("struct nvs_checkpoint **"), new_error()
    check(lib.nvs_checkpoint_open(checkpoint, encoded_path(path), error), error, os.fsdecode(path))
    try:
        yield checkpoint[0]
    finally:
        lib.nvs_checkpoint_close(checkpoint[0])


def tensors_of(path: Path) -> Iterator[Tuple[str, str, Tuple[int, ...], int]]:
    """Of each tensor in a file: name, element type, shape, and the offset of its data."""
    with _opened(path) as checkpoint:
        found = ffi.new("struct nvs_checkpoint_tensor *")
        found.size = ffi.sizeof("struct nvs_checkpoint_tensor")
        for index in range(lib.nvs_checkpoint_count(checkpoint)):
            check(lib.nvs_checkpoint_get(checkpoint, index, found))
            yield ffi.string(found.name).decode(), number_name(found.dtype), \
                tuple(found.shape[0:found.ndim]), int(found.offset)


@contextmanager
def _items(engine: Engine, names: Optional[FileNames]) -> Iterator[Tuple[Any, int]]:
    tensors = engine._named(engine if names is None else names)
    in_file = [ffi.new("char[]", encoded(name)) for name in names.values()] \
        if isinstance(names, Mapping) else [_NULL] * len(tensors)
    array = ffi.new("struct nvs_checkpoint_item[]", len(tensors))
    for item, tensor, name in zip(array, tensors, in_file):
        item.size, item.tensor = ffi.sizeof("struct nvs_checkpoint_item"), tensor._pointer
        item.name = name
    yield array, len(tensors)


def _options(shard_bytes: int, pickle: Optional[bytes], storages: Sequence[Any]) -> Tuple[Any, Any]:
    """The structure for the library, and what it points to."""
    options = ffi.new("struct nvs_checkpoint_options *")
    array = ffi.new("struct nvs_checkpoint_storage[]", len(storages))
    keep = [array, *(ffi.from_buffer(storage) for storage in storages)]
    for each, buffer in zip(array, keep[1:]):
        each.size, each.data = ffi.sizeof("struct nvs_checkpoint_storage"), buffer
        each.nbytes = len(buffer)
    options.size, options.shard_bytes = ffi.sizeof("struct nvs_checkpoint_options"), shard_bytes
    if pickle is not None:
        keep.append(ffi.from_buffer(pickle))
        options.pickle, options.pickle_bytes = keep[-1], len(pickle)
    options.storages, options.nstorages = array, len(storages)
    return options, keep
