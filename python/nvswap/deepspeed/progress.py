# SPDX-License-Identifier: Apache-2.0
"""
What the first rank of a job logs to standard error, about its own stores: how far they are filled, that the first step
has learned the order of reads, and when the process ends what was moved, how fast, and how much of that while other
work went on. "nvswap": {"progress": false} turns it off.
"""

from __future__ import annotations

import atexit
import sys
import time
import weakref
from typing import Any, Dict, Optional

from deepspeed import comm

from nvswap.deepspeed.depth import choice
from nvswap.statistics import StepIO

PARAMETERS, STATE = "parameters", "optimizer state"

_PAUSE_S = 5  # between two lines about one store that is filled

_is_first_rank: Optional[bool] = None  # the process group may be gone when the process ends
_next_report_s: Dict[str, float] = {}  # when the next line about a store that is filled is due
_moved: Dict[str, "_Moved"] = {}
_engines: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()  # see count_engine_at_exit()


class _Moved:
    """The I/O of a run, in bytes and nanoseconds."""

    def __init__(self) -> None:
        self.steps = self.nbytes_read = self.nbytes_written = self.io_ns = self.hidden_ns = self.stall_ns = 0
        self.nbytes_to_drive = self.step_nbytes_to_drive = 0

    def add_step(self, io: StepIO, nbytes_to_drive: int) -> None:
        self.steps += 1
        self.nbytes_to_drive = nbytes_to_drive
        self.step_nbytes_to_drive += io["drive_written_bytes"]
        self.nbytes_read += io["read_bytes"]
        self.nbytes_written += io["written_bytes"]
        self.io_ns += io["io_ns"]
        self.hidden_ns += io["hidden_ns"]
        self.stall_ns += io["stall_ns"]

    def add_engine(self, stats: Dict[str, Any]) -> None:
        self.nbytes_read += stats["swapped_in"]
        self.nbytes_written += stats["swapped_out"]
        self.nbytes_to_drive += stats["drive_written_bytes"]
        self.io_ns += stats["busy_ns"]

    def line(self) -> str:
        seconds = self.io_ns / 1e9
        rate = (self.nbytes_read + self.nbytes_written) / seconds if seconds else 0
        text = (f"{_size(self.nbytes_read)} read and {_size(self.nbytes_written)} written in {seconds:.1f} s of I/O, "
                f"{_size(rate)}/s")
        if self.steps and self.io_ns:
            text += (f"; in {self.steps} steps, {100 * self.hidden_ns / self.io_ns:.0f} % of it hidden behind "
                     f"computation, {self.stall_ns / 1e9:.1f} s waited for")
        text += f"; the drive was given {_size(self.nbytes_to_drive)}"
        if self.steps:
            text += f", {_size(self.step_nbytes_to_drive / self.steps)} in each step"
        return text


def report_fill(what: str, nbytes: int, total: Optional[int] = None) -> None:
    """Logs every few seconds how far a store is filled, of `total` bytes if that is known."""
    now = time.monotonic()
    if now >= _next_report_s.setdefault(what, now + _PAUSE_S):
        _next_report_s[what] = now + _PAUSE_S
        _log(f"{what}: {_size(nbytes)}{'' if total is None else f' of {_size(total)}'} in the store")


def record_step(what: str, io: StepIO, stats: Dict[str, Any]) -> None:
    """Counts a step, and logs of the first one of parameters that it has learned the order of reads. The statistics are
    those of the engine or optimizer after it."""
    _learn_rank()
    moved = _moved.setdefault(what, _Moved())
    moved.add_step(io, stats["drive_written_bytes"])
    if what == PARAMETERS and moved.steps == 1:
        _log(f"{what}: the first step took {io['wall_ns'] / 1e9:.1f} s and learned the order of its "
             f"{io['hits'] + io['misses']} reads; from the next on they are read ahead")


def count_engine_at_exit(what: str, engine: Any) -> None:
    """Counts all I/O of an engine that has no steps, when the process ends; count_engine() before it is closed."""
    _learn_rank()
    _engines[engine] = what


def count_engine(engine: Any) -> None:
    what = _engines.pop(engine, None)
    if what is not None and not engine.closed:
        _moved.setdefault(what, _Moved()).add_engine(engine.stats())


def _learn_rank() -> None:
    global _is_first_rank  # pylint: disable=global-statement
    if _is_first_rank is None:
        _is_first_rank = comm.get_rank() == 0


def _log(text: str) -> None:
    _learn_rank()
    if _is_first_rank and choice().progress:
        print(f"nvswap: {text}", file=sys.stderr, flush=True)


def _size(nbytes: float) -> str:
    return f"{nbytes / (1 << 30):.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes / (1 << 20):.1f} MiB"


@atexit.register
def _end() -> None:
    for engine in list(_engines):
        count_engine(engine)
    for what, moved in _moved.items():
        _log(f"{what}: {moved.line()}")
