# SPDX-License-Identifier: Apache-2.0
"""
The folder of a tag: its lock, and the mark while its files are of two saves. And whether files of
torch.save have the bytes that were written.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import shutil
import zipfile
import zlib
from contextlib import contextmanager, suppress
from typing import Iterator, Optional

from deepspeed.utils import logger

from nvswap.durable import sync
from nvswap.errors import Error

# What zipfile raises for a damaged file, in its data, methods, flags or numbers.
_DAMAGE = (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError)

# What flock raises where a file system has no locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

NO_SUMS = "has no CRC-32, so nothing shows that it is whole: torch.serialization.set_crc32_options(False) was " \
    "called where it was saved: load it with torch and save it again with CRC-32"

# In the folder of a tag while files of a new save take the place of old ones.
REPLACING = "replacing"

# In the folder of a tag while a job saves it.
SAVING = "saving"


def remove(path: str) -> None:
    """Removes a file, or a directory with all that is in it."""
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def mark_replacing(folder: str) -> bool:
    """Marks the folder, durably: its files may be of two saves. False: it was marked already."""
    mark = os.path.join(folder, REPLACING)
    try:
        descriptor = os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    os.close(descriptor)
    try:
        sync(folder)
    except BaseException:
        os.unlink(mark)
        raise
    return True


def unmark_replacing(folder: str) -> None:
    """Removes the mark, durably, if there is one. Several ranks may do it at once."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, REPLACING))
        sync(folder)


def check_replaced(folder: str) -> None:
    """
    Raises
    ------
    Error
        ESTALE: files of two saves may be in the folder.
    """
    mark = os.path.join(folder, REPLACING)
    if os.path.exists(mark):
        raise Error(errno.ESTALE, f"{folder} was being replaced when the job that saved it ended, so "
                    f"its files may be of two saves, as {mark} says: load another tag, or save this "
                    "one again", path=folder)


def is_zip(path: str) -> bool:
    """Whether a file begins as torch.save writes it since version 1.6; it may have been cut off."""
    with open(path, "rb") as file:
        return file.read(4) == b"PK\3\4"


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Has errors of reading a file of torch.save name it: those of torch and pickle don't."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise Error(errno.EIO, f"{path} is damaged, no file of torch.save, or needs what this job lacks: "
                    f"{error!r}", path=path) from error


def check_whole(path: str, data: bool = True) -> None:
    """
    Compares the contents of a file of torch.save with their CRC-32; without `data`, all but those of
    its tensors.

    Raises
    ------
    Error
        EIO: they differ, the file was cut off, or it has no CRC-32.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if not any(record.CRC for record in archive.infolist() if record.file_size):
                raise Error(errno.EIO, f"{path} {NO_SUMS}", path=path)
            damaged = archive.testzip() if data else _damaged_value(archive)
    except _DAMAGE as error:
        raise Error(errno.EIO, f"{path} is damaged, or no file of torch.save: {error}",
                    path=path) from error
    if damaged is not None:
        raise Error(errno.EIO, f"{path} is damaged: the CRC-32 of {damaged} differs", path=path)


def _damaged_value(archive: zipfile.ZipFile) -> Optional[str]:
    """A record other than a storage whose CRC-32 differs."""
    for name in archive.namelist():
        if "/data/" not in name:
            try:
                archive.read(name)
            except _DAMAGE:
                return name
    return None


class FolderLock:
    """
    The lock of a tag's folder, which ends with the process. It is on a file there: the exports of a save
    lock the folder itself, and would wait for it. A killed process leaves the file, without the lock.
    """

    def __init__(self, folder: str) -> None:
        self._folder, self._path, self._taken = folder, os.path.join(folder, SAVING), False
        self._descriptor = os.open(
            self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self.inode = os.fstat(self._descriptor).st_ino

    def take(self) -> None:
        """
        Where the file system has no locks, warns of it once for each folder of tags.

        Raises
        ------
        Error
            EBUSY: another job has the lock.
        """
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._taken = self._is_named()
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            _warn_of_no_locks(os.path.dirname(self._folder))
            return
        if not self._taken:
            raise Error(errno.EBUSY, f"another job saves {self._folder} at this moment: choose another "
                        "tag, or save when it has ended", path=self._folder)

    def _is_named(self) -> bool:
        """Whether the job that had the lock before has not removed the file."""
        with suppress(FileNotFoundError):
            return os.stat(self._path).st_ino == self.inode
        return False

    def release(self) -> None:
        """A file that can't be removed stays, without the lock."""
        if self._taken:
            with suppress(OSError):
                os.unlink(self._path)
        os.close(self._descriptor)


@functools.lru_cache(maxsize=None)
def _warn_of_no_locks(save_dir: str) -> None:
    logger.warning(f"{save_dir}: its file system locks no files, so nothing keeps two jobs from saving "
                   "one tag at once: give each job tags of its own")
