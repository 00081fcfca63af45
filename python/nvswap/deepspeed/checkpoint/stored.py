# SPDX-License-Identifier: Apache-2.0
"""
Writes a state dictionary whose large tensors are in a store as torch.save does, with one run of a tensor
in memory at a time. torch.save lays the file out without data; the data then goes where torch.load says
that it belongs, and its CRC-32 to the directory of the zip file. Relies on torch.serialization.skip_data
and on FakeTensorMode, as the documentation of torch.save describes them.
"""

from __future__ import annotations

import errno
import os
import struct
import zipfile
import zlib
from typing import Any, BinaryIO, Callable, Dict, Iterator, Union

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from nvswap.errors import Error

_DIRECTORY_ENTRY, _DIRECTORY_CRC, _DIRECTORY_LENGTHS = 46, 16, 28
_LOCAL_HEADER, _LOCAL_LENGTHS = 30, 26
_DESCRIPTOR = b"PK\x07\x08"


class Stored:
    """
    A flat float32 tensor in a store, as a value of a state dictionary.

    Parameters
    ----------
    numel : int
    runs : callable
        Returns an iterator of one-dimensional tensors, each valid until the next: the contents in
        order.
    """

    def __init__(self, numel: int, runs: Callable[[], Iterator[torch.Tensor]]) -> None:
        self.numel = numel
        self.runs = runs

    def tensor(self) -> torch.Tensor:
        """The contents in memory."""
        whole, offset = torch.empty(self.numel), 0
        for run in self.runs():
            whole.narrow(0, offset, run.numel()).copy_(run)
            offset += run.numel()
        return whole

    def __reduce__(self) -> Any:
        raise Error(errno.ENOTSUP, "state in a store is saved by DeepSpeed's save_checkpoint, not by "
                    "pickling what the optimizer gave it")


_Leaf = Union[Stored, torch.Tensor]


def has_stored(state: Any) -> bool:
    """Whether any value is in a store."""
    return any(isinstance(leaf, Stored) for leaf in _leaves(state))


def save(state: Any, path: str) -> None:
    """
    Writes `state` to a file that torch.load reads.

    Raises
    ------
    Error
        ENOTSUP: a tensor is in an object other than a dict, list or tuple.
    OSError
        Those of writing and of reading the store.
    """
    with FakeTensorMode():
        described = _described(state)
    with torch.serialization.skip_data(materialize_fake_tensors=True):
        torch.save(described, path)
    with FakeTensorMode():
        laid_out = torch.load(path, map_location="cpu", weights_only=False)
    checksums = {}
    with open(path, "r+b") as file:
        for leaf, place in zip(_leaves(state), _leaves(laid_out)):
            offset = place.untyped_storage()._checkpoint_offset
            checksums[offset] = _fill(file, offset, leaf)
        file.flush()
        _set_checksums(file, checksums)


def _leaves(state: Any) -> Iterator[Any]:
    """The tensors of a state dictionary, always in the same order."""
    if isinstance(state, (Stored, torch.Tensor)):
        yield state
    elif isinstance(state, (dict, list, tuple)):
        for value in state.values() if isinstance(state, dict) else state:
            yield from _leaves(value)


def _described(state: Any) -> Any:
    """A copy of the containers that lead to stored tensors, with tensors without memory for these."""
    if isinstance(state, Stored):
        return torch.empty(state.numel)
    if not has_stored(state):
        return state
    if isinstance(state, dict):
        return {key: _described(value) for key, value in state.items()}
    return type(state)(_described(value) for value in state)


def _runs_of(leaf: _Leaf) -> Iterator[torch.Tensor]:
    if isinstance(leaf, Stored):
        return leaf.runs()
    # What is saved of a view is its whole storage.
    storage = leaf.detach().untyped_storage().cpu()
    return iter([torch.empty(0, dtype=torch.uint8).set_(storage)])


def _fill(file: BinaryIO, offset: int, leaf: _Leaf) -> int:
    """Writes the data of a tensor, and returns its CRC-32."""
    checksum, end = 0, offset
    for run in _runs_of(leaf):
        data = memoryview(run.numpy()).cast("B") if run.numel() else memoryview(b"")
        checksum = zlib.crc32(data, checksum)
        while data:
            count = os.pwrite(file.fileno(), data, end)
            end, data = end + count, data[count:]
    assert not isinstance(leaf, Stored) or end - offset == 4 * leaf.numel
    return checksum


def _set_checksums(file: BinaryIO, checksums: Dict[int, int]) -> None:
    """Sets the CRC-32 of each record, by the offset of its data, in the zip file's directory and behind
    the data."""
    with zipfile.ZipFile(file) as archive:
        position, records = archive.start_dir, archive.infolist()
    for record in records:
        file.seek(position + _DIRECTORY_LENGTHS)
        lengths = struct.unpack("<HHH", file.read(6))
        file.seek(record.header_offset + _LOCAL_LENGTHS)
        data = record.header_offset + _LOCAL_HEADER + sum(struct.unpack("<HH", file.read(4)))
        if "/data/" in record.filename and record.file_size:
            if data not in checksums:
                raise Error(errno.ENOTSUP, "a tensor of the optimizer's state is in an object that is "
                            "no dict, list or tuple")
            _set_checksum(file, position, data + record.file_size, checksums[data])
        position += _DIRECTORY_ENTRY + sum(lengths)


def _set_checksum(file: BinaryIO, entry: int, end: int, checksum: int) -> None:
    encoded = struct.pack("<I", checksum)
    os.pwrite(file.fileno(), encoded, entry + _DIRECTORY_CRC)
    if os.pread(file.fileno(), len(_DESCRIPTOR), end) == _DESCRIPTOR:
        os.pwrite(file.fileno(), encoded, end + len(_DESCRIPTOR))
