# SPDX-License-Identifier: Apache-2.0
"""
Opens the engines of this rank, on one aio, each on a store that no other job has. Relies on the
document that DeepSpeed read; the ranks come from its process group.
"""

from __future__ import annotations

import errno
import gc
import threading
import weakref
from typing import Any, Callable, Dict, TypeVar

from nvswap.aio import Aio
from nvswap.config import Config
from nvswap.deepspeed.swappers.device import DeviceEngine
from nvswap.deepspeed.swappers.folders import make_folders
from nvswap.errors import Error
from nvswap.handle import Handle

# A job takes the next number for its store when another job has the one before.
_RANKS_MAX = 1 << 16
_JOBS_MAX = 1 << 8

_aios: "weakref.WeakValueDictionary[Any, Aio]" = weakref.WeakValueDictionary()
_lock = threading.Lock()
# What this process has opened, by the number and the paths of its store.
_opened: "weakref.WeakValueDictionary[Any, Handle]" = weakref.WeakValueDictionary()

Opened = TypeVar("Opened", bound=Handle)


def open_engine(document: Dict[str, Any], block: str, rank: int, **settings: Any) -> DeviceEngine:
    """
    The engine of a rank.

    Parameters
    ----------
    document : dict
        The blocks_of() DeepSpeed's configuration.
    block : {"param", "optimizer"}
    rank : int
        Of this process in the job; "nvswap.rank" in the document goes before it.
    settings
        Keys that are not the document's, with two underscores for the dot.
    """
    config = Config(document)
    if block == "optimizer":
        end_with_job(config)
    for key, value in settings.items():
        config[key.replace("__", ".")] = value
    aio = aio_of(config)
    engine = on_own_store(config, document, block, rank,
                          lambda: DeviceEngine(config, block, aio=aio, arrays="torch"))
    # DeepSpeed's default is true.
    if document["zero_optimization"][f"offload_{block}"].get("pin_memory", True):
        engine.register_pool()
    return engine


def end_with_job(config: Config) -> None:
    """Keeps no store: state outlives a job in DeepSpeed's checkpoints alone, "keep" is for parameters."""
    if config["nvswap.keep"]:
        config["nvswap.rollback"] = config["nvswap.keep"] = False


def on_own_store(config: Config, document: Dict[str, Any], block: str, rank: int,
                 opening: Callable[[], Opened]) -> Opened:
    """
    Opens what lies in a store, with "nvswap.rank" set to the first number whose store no other job
    has: other jobs' stores are deleted with them. A kept store has its rank's number alone. `rank`
    is that of a document which names none. Opening a store that is locked waits for its lock, so those
    that this process has open come last.
    """
    make_folders(config, block)
    if "rank" in (document.get("nvswap") or {}):
        config.read_rank()
        rank = int(config["nvswap.rank"])
    last, paths = None, config.paths(block)
    stores = [(_number(rank, block, job), *paths)
              for job in range(1 if config["nvswap.keep"] else _JOBS_MAX)]
    if any(map(_is_open, stores)):
        gc.collect()  # those of modules that are gone: what DeepSpeed adds to a module refers to it
    for store in sorted(stores, key=_is_open):
        config["nvswap.rank"] = store[0]
        try:
            opened = opening()
            _opened[store] = opened
            return opened
        except Error as error:
            if config["nvswap.keep"] or error.errno not in (errno.EBUSY, errno.EEXIST):
                raise
            last = error
    assert last is not None
    raise last


def _is_open(store: Any) -> bool:
    opened = _opened.get(store)
    return opened is not None and not opened.closed


def _number(rank: int, block: str, job: int) -> int:
    return rank + _RANKS_MAX * (2 * job + (block == "optimizer"))


def aio_of(config: Config) -> Aio:
    """One for all engines of the same settings: what they move waits in one queue."""
    keys = ("block_size", "queue_depth", "thread_count", "single_submit", "overlap_events")
    key = (*(config[f"aio.{name}"] for name in keys), config["nvswap.ioengine"],
           config["nvswap.io_timeout_ms"])
    with _lock:
        aio = _aios.get(key)
        if aio is None or aio.closed:
            aio = _aios[key] = Aio(config)
        return aio
