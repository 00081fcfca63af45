# SPDX-License-Identifier: Apache-2.0
"""
New weights on their way to parameters on a drive or a device: the runs that a step makes are put together
by sub-group, and each complete sub-group is written by a thread while the step goes on. Threads of the
library deliver the runs; only the writing thread calls DeepSpeed.
"""

from __future__ import annotations

import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Mapping, Optional

import numpy
import torch

# Complete sub-groups that may wait to be written; a step waits for the drive beyond that.
_WAITING_MAX = 1


class Here(Executor):
    """Does the work in the thread that submits it, also while the interpreter exits, when others take none."""

    def submit(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> "Future[Any]":
        done: "Future[Any]" = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except BaseException as failure:
            done.set_exception(failure)
        return done


class NewWeights:
    """
    Parameters
    ----------
    numels : mapping of int to int
        The elements of each sub-group whose parameters are on a drive.
    dtype : torch.dtype
        Of the parameters.
    write : callable
        Gets a sub-group's number and its new weights, on the writing thread.
    writer : Executor, optional
        In place of that thread.
    """

    def __init__(self, numels: Mapping[int, int], dtype: torch.dtype,
                 write: Callable[[int, torch.Tensor], None], writer: Optional[Executor] = None) -> None:
        self._numels = numels
        self._dtype = dtype
        self._write = write
        self._lock = threading.Lock()
        self._weights: Dict[int, torch.Tensor] = {}
        self._missing: Dict[int, int] = {}
        self._written: List["Future[None]"] = []
        self._room = threading.Semaphore(_WAITING_MAX)
        self._writer = writer or ThreadPoolExecutor(1, "nvswap-weights")

    def add(self, group: int, offset: int, run: Any) -> None:
        """Takes a run of new weights; the function `weights_final` of an optimizer."""
        if group not in self._numels:
            return
        with self._lock:
            if group not in self._weights:
                self._weights[group] = torch.empty(self._numels[group], dtype=self._dtype,
                                                   device="cpu")
                self._missing[group] = self._numels[group]
            weights = self._weights[group]
        data, size = weights.view(torch.uint8).numpy(), weights.element_size()
        data[offset * size:(offset + len(run)) * size] = run.view(numpy.uint8)
        with self._lock:
            self._missing[group] -= len(run)
            complete = self._missing[group] == 0
        if complete:
            self._submit(group)

    def _submit(self, group: int) -> None:
        # Only a complete sub-group waits here, so that the writing thread always has work to end.
        self._room.acquire()  # pylint: disable=consider-using-with
        with self._lock:
            del self._missing[group]
            weights = self._weights.pop(group)
            self._written.append(self._writer.submit(self._write_one, group, weights))

    def _write_one(self, group: int, weights: torch.Tensor) -> None:
        try:
            self._write(group, weights)
        finally:
            self._room.release()

    def wait(self) -> None:
        """Waits until all complete sub-groups are written, and raises the first failure."""
        with self._lock:
            written, self._written = self._written, []
        failures = [each.exception() for each in written]
        for failure in failures:
            if failure is not None:
                raise failure

    def close(self) -> None:
        self._writer.shutdown()
