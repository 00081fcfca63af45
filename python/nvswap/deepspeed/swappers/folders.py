# SPDX-License-Identifier: Apache-2.0
"""
Makes what is missing of nvme_path, as DeepSpeed does, before a store is opened there. The library itself makes
nothing: on a drive that is not mounted a folder lies on another file system, so a warning names that one.
"""

from __future__ import annotations

import errno
import os
import re
from typing import NamedTuple

from deepspeed.utils import logger

from nvswap.config import Config
from nvswap.errors import Error

# The library names it where such a path does not exist. A path that begins with one is refused before.
_VARIABLE = re.compile(r"\$[A-Za-z_{(]|`")
_OCTAL = re.compile(r"\\(\d{3})")

MOUNTS = "/proc/self/mountinfo"


class _FileSystem(NamedTuple):
    mount_point: str
    kind: str


def make_folders(config: Config, block: str) -> None:
    """
    Makes the paths of a block that do not exist. Any number of ranks may call at once: one of them warns.

    Raises
    ------
    Error
        That of mkdir(2), with the path.
    """
    for path in config.paths(block):
        if not os.path.lexists(path) and not _VARIABLE.search(path):
            _make(path.rstrip("/"))


def _make(path: str) -> None:
    if _file_system_of(path).kind == "devtmpfs":
        raise Error(errno.ENODEV, f"nvme_path {path} does not exist: there is no such device (lsblk lists those that "
                    "there are), or the drive is mounted elsewhere", path=path)
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        try:
            os.mkdir(path)
        except FileExistsError:
            return  # another rank was faster
    except OSError as error:
        raise Error(error.errno or 0, f"nvme_path {path} does not exist and can't be made: {error.strerror}",
                    path=path) from error
    found = _file_system_of(path)
    if found.kind in ("tmpfs", "ramfs"):
        logger.warning(f"nvme_path {path} did not exist and was made, on the {found.kind} of "
                       f"{found.mount_point}, which is memory: is the drive mounted?")
    elif found.mount_point == "/":
        logger.warning(f"nvme_path {path} did not exist and was made, on the root file system ({found.kind}): "
                       "is the drive mounted?")


def _file_system_of(path: str) -> _FileSystem:
    real, found = os.path.realpath(path), _FileSystem("/", "")
    with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.split()
            point = _OCTAL.sub(lambda octal: chr(int(octal[1], 8)), fields[4])
            # A later mount covers the one before.
            if f"{real}/".startswith(f"{point.rstrip('/')}/") and len(point) >= len(found.mount_point):
                found = _FileSystem(point, fields[fields.index("-") + 1])
    return found
