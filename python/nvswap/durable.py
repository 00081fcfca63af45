# SPDX-License-Identifier: Apache-2.0
"""
Files and directories that are replaced as a whole: written under a temporary name with mode 0600, made
durable, then renamed. After a crash a path is what it was before, or complete.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from contextlib import contextmanager, suppress
from typing import Iterator

from nvswap._native import ffi, lib
from nvswap.errors import Error


def make_directories(path: str) -> None:
    """Makes a directory and those above it that are missing, each durable in its parent."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(os.path.abspath(path))
    make_directories(parent)
    os.makedirs(path, exist_ok=True)  # another rank may have made it
    sync(parent)


@contextmanager
def replacing(path: str, rename: bool = True) -> Iterator[str]:
    """The name to write the new contents of `path` to; a killed process leaves it behind, and the next
    one with that path replaces it. The caller keeps other jobs away, and unless `rename` ends it by
    replace() or discard()."""
    partial = partial_of(path)
    if os.path.lexists(partial):
        os.unlink(partial)
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    try:
        yield partial
        sync(partial)
        if rename:
            replace(path)
    except BaseException:
        discard(path)
        raise


def new_directory(path: str) -> str:
    """Where the new contents of `path`, a directory, are made; what is made beside them is removed with
    the old ones."""
    return os.path.join(partial_of(path), "new", os.path.basename(path))


def replace(path: str) -> None:
    """Puts the new contents, which are durable, in the place of the old. Where directories can't exchange their names,
    a crash amid the renames of one leaves neither there."""
    partial, old = partial_of(path), old_of(path)
    if os.path.isdir(partial):
        if not (os.path.lexists(path) and exchange(new_directory(path), path)):
            if os.path.lexists(old):  # it has removed files that are open
                os.rename(old, tempfile.mkdtemp(dir=partial))
            if os.path.lexists(path):
                os.rename(path, old)
            os.rename(new_directory(path), path)
    else:
        os.rename(partial, path)
    sync(os.path.dirname(path) or ".")
    discard(path)


def exchange(one: str, other: str) -> bool:
    """Has two directories exchange their names at once. False: their file system can't, as FUSE and NFS."""
    if not lib.renameat2(lib.AT_FDCWD, os.fsencode(one), lib.AT_FDCWD, os.fsencode(other), lib.RENAME_EXCHANGE):
        return True
    number = ffi.errno
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), one, None, other)


def discard(path: str) -> None:
    """Removes the new contents, if they are there. A directory's old ones go back to their place, unless
    the new ones have it. A link is removed, and what it leads to stays."""
    partial, old = partial_of(path), old_of(path)
    if os.path.isdir(partial) and not os.path.islink(partial):
        if os.path.lexists(old) and not os.path.lexists(path):
            os.rename(old, path)
            sync(os.path.dirname(path) or ".")
        _remove_tree(partial)
        return
    with suppress(FileNotFoundError):
        os.unlink(partial)


def is_removed(name: str) -> bool:
    """Whether it is the name that NFS or FUSE gives a file that is removed while it is open."""
    return name.startswith((".nfs", ".fuse_hidden"))


def _remove_tree(path: str) -> None:
    """Leaves files that were removed while they were open, with their directories."""
    for folder, folders, names in os.walk(path, topdown=False):
        for name in [*names, *(each for each in folders if os.path.islink(os.path.join(folder, each)))]:
            with suppress(*([OSError] if is_removed(name) else [])):
                os.unlink(os.path.join(folder, name))
        try:
            os.rmdir(folder)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise


def partial_of(path: str) -> str:
    """The name of new contents until they take their place."""
    return f"{path}.partial"


def old_of(path: str) -> str:
    """Where the old contents of a directory are until the new ones have its name."""
    return os.path.join(partial_of(path), "old")


def replace_text(path: str, text: str) -> None:
    """Makes `text` the contents of a file. Jobs that do so at once take turns."""
    with locked(os.path.dirname(path) or "."), replacing(path) as partial, \
            open(partial, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)


@contextmanager
def locked(folder: str, wait: bool = True) -> Iterator[None]:
    """
    Raises
    ------
    Error
        EBUSY: another process has the lock, and `wait` is not set.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise Error(errno.EBUSY, f"another process writes to {folder}: write to another one, or when that has "
                        "ended", path=folder) from error
        except OSError:
            pass  # of a directory, NFS has no such lock
        yield
    finally:
        os.close(descriptor)


def reserve(descriptor: int, nbytes: int) -> None:
    """Makes a new file this long, with room for all of it where the file system can tell. posix_fallocate writes to each
    page otherwise, which takes long, and has NFS write whole pages over what other nodes write to them."""
    while lib.fallocate(descriptor, 0, 0, nbytes):
        number = ffi.errno
        if number in (errno.EOPNOTSUPP, errno.ENOSYS):
            os.ftruncate(descriptor, nbytes)
            return
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
