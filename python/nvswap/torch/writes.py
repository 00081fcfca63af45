# SPDX-License-Identifier: Apache-2.0
"""
New weights of offloaded parameters, as the threads of a step compute them, run by run. A tensor is pinned
with its first run and released with its last one, and the next one is read ahead: each is read and written
once, however little of it stays in the pool.
"""

from __future__ import annotations

import threading
from typing import Any, Dict, List

from nvswap.engine import Engine, Pinned
from nvswap.torch.shared import with_room


class Writes:
    """
    Parameters
    ----------
    engine : nvswap.Engine
    names : list of str
        Tensors in the order of the store.
    """

    def __init__(self, engine: Engine, names: List[str]) -> None:
        self._engine = engine
        self._names = names
        self._numbers = {name: number for number, name in enumerate(names)}
        self._last = 0
        self._lock = threading.Lock()
        self._opened: Dict[str, Pinned] = {}
        self._missing = {name: engine[name].numel for name in names}

    def put(self, name: str, offset: int, weights: Any) -> None:
        """Writes a run of a numpy array's elements from element `offset` of a tensor on."""
        with self._lock:
            if name not in self._opened:
                self._opened[name] = self._open(name)
            self._opened[name][name].reshape(-1)[offset:offset + len(weights)] = weights
            self._missing[name] -= len(weights)
            if not self._missing[name]:
                self._opened.pop(name).release()

    def _open(self, name: str) -> Pinned:
        # The room may be that of the others.
        pinned: Pinned = with_room(lambda timeout: self._engine.swap_in(
            name, "r+", timeout=timeout, arrays="numpy"), self._release)
        # Each step walks the other way.
        number = self._numbers[name]
        following = number + (1 if number >= self._last else -1)
        self._last = number
        if 0 <= following < len(self._names):
            self._engine.prefetch(self._names[following])
        return pinned.wait()

    def _release(self) -> None:
        for pinned in self._opened.values():
            pinned.release()
        self._opened.clear()

    def end(self) -> None:
        """Releases what has not come to its end, because the step failed; what has come is there."""
        with self._lock:
            self._release()
