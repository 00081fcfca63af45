# SPDX-License-Identifier: Apache-2.0
"""
Which threads run forwards and backwards of an offloaded module. Forwards may run together; a backward
runs alone: torch adds a gradient to a parameter outside of any lock that hooks could take, and reads
the parameter's strides, which a forward changes.
"""

from __future__ import annotations

import errno
import threading
import weakref
from contextlib import contextmanager
from typing import Callable, Dict, Iterator, List, Optional

import torch

from nvswap.errors import Error

# What a forward has pinned, by the tensors' names, and that of each one of a thread that runs now.
Forward = Dict[str, torch.nn.Parameter]
Forwards = List[Forward]


class _Backward:
    """A backward's callback for its end, which torch keeps for as long as the backward runs, also
    one that fails."""

    def __init__(self, forwards: Forwards) -> None:
        self.forwards = forwards
        # torch runs nodes of other devices in threads of its own.
        self.task = torch._C._current_graph_task_id()

    def __call__(self) -> None:
        pass


class Threads:
    """The threads that run the modules of an engine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own = threading.local()
        # Those of the threads that run one now.
        self._running: List[Forwards] = []
        self._backward: Callable[[], Optional[_Backward]] = lambda: None

    def forwards(self) -> Forwards:
        """What each forward of this thread has pinned, the innermost last. The list is always the
        same, and stands for the thread: torch.compile warns of threading.get_ident()."""
        if not hasattr(self._own, "forwards"):
            self._own.forwards = []
        forwards: Forwards = self._own.forwards
        return forwards

    @contextmanager
    def forward(self) -> Iterator[Forward]:
        """A forward, with a dictionary for what it pins; EBUSY as :meth:`begin_backward`."""
        forwards = self.forwards()
        mine: Forward = {}
        with self._lock:
            if self._other_backward():
                raise _two_threads()
            if not forwards:
                self._running.append(forwards)
            forwards.append(mine)
        try:
            yield mine
        finally:
            with self._lock:
                forwards.pop()
                self._running = [each for each in self._running if each]

    def begin_backward(self) -> None:
        """
        Called by what runs in a backward, any number of times.

        Raises
        ------
        nvswap.Error
            EBUSY: a forward or a backward runs in another thread.
        """
        with self._lock:
            if self._other_backward() or any(each is not self.forwards()
                                             for each in self._running):
                raise _two_threads()
            if self._backward() is None and torch._C._current_graph_task_id() != -1:
                backward = _Backward(self.forwards())
                torch.autograd.Variable._execution_engine.queue_callback(backward)
                self._backward = weakref.ref(backward)

    def _other_backward(self) -> bool:
        """Whether a backward runs that is not of this thread. No frame that raises has the backward,
        since a traceback would keep it."""
        backward = self._backward()
        return backward is not None and backward.forwards is not self.forwards() and \
            backward.task != torch._C._current_graph_task_id()


def _two_threads() -> Error:
    return Error(errno.EBUSY, "a backward of an offloaded module would run beside a forward or a "
                 "backward of another thread: one thread at a time trains it")
