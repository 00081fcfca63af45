# SPDX-License-Identifier: Apache-2.0
"""The configuration that calls of nvswap.torch are given: one of DeepSpeed, or a directory."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from typing import Any, Iterator

import torch

from nvswap.config import Config
from nvswap.engine import Engine
from nvswap.errors import Error, invalid

# Elements in a buffer, of 4 bytes in host memory, of which a pool has four.
_SUB_GROUP_SIZE = 1 << 24
_SMALLEST_BUFFER = 1 << 20


def settings_of(config: Any, largest: int = 1) -> Config:
    """
    Returns a configuration of its own, for the rank that torch.distributed gives this process unless it
    has one.

    Parameters
    ----------
    config : Config, dict, str, os.PathLike or None
        A DeepSpeed JSON file or its contents. A directory: offload there, with pools of four buffers
        of `largest` elements, or of 4 MiB, for parameters and of 64 MiB for an optimizer. None: what
        the variable NVSWAP_CONFIG of the environment has, a file or a directory.
    largest : int
        Elements that the parameters of the largest module need in a pool.

    Raises
    ------
    nvswap.Error
        EINVAL: None, and there is no such variable. And those of Config.
    """
    if config is None:
        config = os.environ.get("NVSWAP_CONFIG")
    if not config:
        raise invalid("there is no configuration: as config=, or in the environment as NVSWAP_CONFIG, "
                      "give a directory on the drive or a DeepSpeed JSON file")
    if isinstance(config, (str, os.PathLike)) and os.path.isdir(config):
        block = {"device": "nvme", "nvme_path": os.fspath(config), "buffer_count": 4}
        config = {"zero_optimization": {
            "sub_group_size": _SUB_GROUP_SIZE,
            "offload_param": dict(block, buffer_size=max(largest, _SMALLEST_BUFFER)),
            "offload_optimizer": dict(block, pipeline_read=True, pipeline_write=True)}}
    own = Config(config)
    if torch.distributed.is_available() and torch.distributed.is_initialized() and not own["nvswap.rank"]:
        own["nvswap.rank"] = torch.distributed.get_rank()
    return own


def _share_count(path: str, own: str) -> None:
    """Has a store in the directory of its own count towards the write budget of the path."""
    counts = [os.path.join(each, "nvswap", "written") for each in (path, own)]
    for count in counts:
        os.makedirs(os.path.dirname(count), 0o700, exist_ok=True)
    os.close(os.open(counts[0], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    os.link(*counts)


@contextlib.contextmanager
def place_of_its_own(config: Config, block: str) -> Iterator[None]:
    """What is opened with the configuration has a directory of its own below each path, which goes with the
    end of the block: its files have no name then. A kept store has one place, and so has a device."""
    paths = config.paths(block)
    if config["nvswap.keep"] or config["nvswap.read_only"] or not paths or not all(map(os.path.isdir, paths)):
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            own = []
            for path in paths:
                own.append(tempfile.mkdtemp(prefix="nvswap-", dir=path))
                # NFS and FUSE keep a name of each file that is open.
                stack.callback(shutil.rmtree, own[-1], ignore_errors=True)
                if config["nvswap.write_budget"]:
                    _share_count(path, own[-1])
            config.set_paths(block, own)
        except OSError as error:
            if isinstance(error, Error):
                raise
            raise Error(error.errno or errno.EIO, f"no directory can be made below {', '.join(paths)}: "
                        f"{error.strerror}") from error
        try:
            yield
        except Error as error:
            if error.errno != errno.EDQUOT:
                raise
            # The count of the path, to which that of the directory is a link.
            text = error.strerror
            for path, each in zip(paths, own):
                text = text.replace(each, path)
            raise Error(error.errno, text, error.tensor) from None
        finally:
            config.set_paths(block, paths)


def engine_of_its_own(config: Config, verify: bool) -> Engine:
    """An engine over the offload_param block, for arrays of the caller alone, beside others of the same
    configuration."""
    config["nvswap.verify"] = verify
    config["nvswap.keep"] = False
    config["zero_optimization.offload_param.buffer_count"] = 1
    config["zero_optimization.offload_param.buffer_size"] = 1
    with place_of_its_own(config, "param"):
        return Engine(config, "param", arrays="torch")
