# SPDX-License-Identifier: Apache-2.0
"""
Files of torch.save without torch: one float32 tensor whose data is written and read in place, by several
threads and processes in any order, and numbers of a pickle. The place of the data depends on the shape
alone; its CRC-32, which stands before and behind it, is written at last. Nothing of a file is executed.
"""

from __future__ import annotations

import errno
import io
import math
import pickle
import struct
import zipfile
import zlib
from typing import Any, BinaryIO, Dict, Optional, Sequence, Tuple, Union

from nvswap._native import lib
from nvswap.errors import Error, invalid

_PAGE = 4096  # torch maps the data at pages
_PICKLE_MAX = 10**8  # bytes, as nvs_checkpoint_open reads
_STEPS_MAX = 2**53 - 1

# What zipfile raises for a damaged file.
_DAMAGE = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError, struct.error)


def sum_before(crc: int, nbytes: int) -> int:
    """What bytes with this CRC-32 contribute to that of a whole in which `nbytes` come behind them: the
    exclusive or of all contributions is the CRC-32 of the whole."""
    return int(lib.crc32_combine(crc, 0, nbytes))


# ---- Writing


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def _number(number: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", number)


def _pickled(shape: Sequence[int]) -> bytes:
    """The only value of the file, as torch pickles it: a tensor whose data is record "0"."""
    strides = [math.prod(max(1, size) for size in shape[i + 1:]) for i in range(len(shape))]
    return b"".join([
        b"\x80\2ctorch._utils\n_rebuild_tensor_v2\n((", _text("storage"), b"ctorch\nFloatStorage\n",
        _text("0"), _text("cpu"), _number(math.prod(shape)), b"tQ", _number(0), b"(", *map(_number, shape),
        b"t(", *map(_number, strides), b"t\x89ccollections\nOrderedDict\n)RtR."])


def _begin(file: BinaryIO, value: bytes) -> zipfile.ZipFile:
    archive = zipfile.ZipFile(file, "w")  # pylint: disable=consider-using-with
    for name, data in (("data.pkl", value), ("byteorder", b"little"), ("version", b"3\n")):
        archive.writestr(zipfile.ZipInfo(f"archive/{name}"), data)
    return archive


def _begin_tensor(file: BinaryIO, shape: Sequence[int], crc: int) -> Tuple[zipfile.ZipFile, zipfile.ZipInfo, int]:
    """Writes what stands before the data, and returns where that begins."""
    archive, info = _begin(file, _pickled(shape)), zipfile.ZipInfo("archive/data/0")
    info.header_offset, info.CRC = file.tell(), crc
    info.file_size = info.compress_size = 4 * math.prod(shape)
    padding = -(file.tell() + len(info.FileHeader()) + 4) % _PAGE
    info.extra = struct.pack("<HH", 0x4246, padding) + b"Z" * padding  # as torch pads
    file.write(info.FileHeader())
    info.extra = b""
    return archive, info, file.tell()


def data_offset(shape: Sequence[int]) -> int:
    """Where the data of a tensor of this shape begins in its file."""
    archive, _, offset = _begin_tensor(io.BytesIO(), shape, 0)
    archive.close()
    return offset


def write_around(file: BinaryIO, shape: Sequence[int], crc: int) -> None:
    """Writes all but the data of a tensor, whose CRC-32 is given."""
    archive, info, offset = _begin_tensor(file, shape, crc)
    archive.filelist.append(info)
    archive.start_dir = offset + info.file_size
    archive.close()


def saved_value(value: Any) -> bytes:
    """The bytes of a file with a value of dictionaries, lists, numbers and texts."""
    file = io.BytesIO()
    _begin(file, pickle.dumps(value, protocol=2)).close()
    return file.getvalue()


# ---- Reading


def sum_of(path: str, offset: int, nbytes: int) -> Optional[int]:
    """
    The CRC-32 that a file has of the data at this offset. None: that is only a part of a record, which was read and
    compared as a whole.

    Raises
    ------
    Error
        EINVAL: the file is damaged. EBADMSG: a record does not have its CRC-32.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            record = max((each for each in archive.infolist() if each.header_offset < offset),
                         key=lambda each: each.header_offset)
            if record.file_size == nbytes:
                return record.CRC
            with archive.open(record) as data:
                while data.read(1 << 20):
                    pass
    except zipfile.BadZipFile as error:
        if "Bad CRC-32" in str(error):
            raise Error(errno.EBADMSG, f"{path}: its bytes do not have the checksum that the file states",
                        path=path) from error
        raise damaged(path, error) from error
    except _DAMAGE as error:
        raise damaged(path, error) from error
    return None


def damaged(path: str, reason: Any) -> Error:
    return Error(errno.EINVAL, f"{path} is damaged, or no file of torch.save: {reason}", path=path)


class _Object(dict):  # type: ignore[type-arg]
    """Stands for any object of a pickle: what it is made of."""

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        self.parts = parts

    def __setstate__(self, state: Any) -> None:
        """Of any form, such as the tuple of numpy's types."""

    def append(self, value: Any) -> None:
        """Of a list of another class, whose elements are not kept."""


# The Unpickler in C takes memory for the numbers that a file has, this one for its bytes.
class _Unpickler(pickle._Unpickler):  # type: ignore[name-defined]
    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, encoding="utf-8")
        self._kinds: Dict[str, Any] = {}

    def find_class(self, _module: str, name: str) -> Any:
        return self._kinds.setdefault(name, type(name, (_Object,), {}))

    def persistent_load(self, pid: Any) -> Any:
        return pid


def read_count(path: str, keys: Sequence[Union[int, str]]) -> int:
    """
    The whole number, or tensor of one element, below these keys of nested dictionaries.

    Raises
    ------
    Error
        EINVAL: there is none, or the file is damaged. ERANGE: it is above 2^53 - 1.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            record = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            info = archive.getinfo(record)
            if info.compress_type != zipfile.ZIP_STORED or info.file_size > _PICKLE_MAX:
                raise ValueError("its pickle is compressed, or has more than 10^8 bytes")
            value = _Unpickler(io.BytesIO(archive.read(record))).load()
            for key in keys:
                value = value[key]
            if isinstance(value, _Object):
                (_, kind, number, _, _), first = value.parts[0], value.parts[1]
                form = {"FloatStorage": "<f", "DoubleStorage": "<d", "IntStorage": "<i", "LongStorage": "<q"}[kind.__name__]
                data = archive.read(record[:-len("data.pkl")] + f"data/{number}")
                value, = struct.unpack_from(form, data, first * struct.calcsize(form))
    except OSError:
        raise
    except Exception as error:
        raise damaged(path, repr(error)) from error
    if type(value) not in (int, float) or value < 0 or not float(value).is_integer():
        raise invalid(f"{path} has no whole number {'.'.join(map(str, keys))}")
    if value > _STEPS_MAX:
        raise Error(errno.ERANGE, f"{path} counts {value:.0f} steps; allowed are up to 2^53 - 1", path=path)
    return int(value)
