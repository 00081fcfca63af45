# SPDX-License-Identifier: Apache-2.0
"""
The hottest experts of mixtures, in memory of their own. Each token that chose an expert is a use. An expert that was
read is kept if the budget has room, or in place of those with fewer uses: so replacing one reads nothing more than
without a budget. Counts are halved when there are many, so that what is not chosen any more gets cold.

The memory is not the pool's: rows that stay for long anywhere in it would leave no room for a large layer. Nor are the
others read into the pool then, where a plan that has the experts of the token before would read these again.
"""

from __future__ import annotations

import collections
import inspect
import threading
from typing import Any, Counter, Dict, Iterable, Mapping, Tuple

import torch

from nvswap.errors import invalid

# Mean uses of an expert at which all are halved.
_MOST_USES = 64

Expert = Tuple[str, int]  # the module's name, and the row
Rows = Dict[str, torch.Tensor]  # of its parameters


def has_experts(module: torch.nn.Module) -> bool:
    """Whether rows of its parameters are experts, in the way of transformers."""
    return isinstance(getattr(module, "num_experts", None), int) and \
        "top_k_index" in inspect.signature(module.forward).parameters


class HotExperts:
    """
    Parameters
    ----------
    memory : int
        Bytes of the budget, which is never exceeded.
    """

    def __init__(self, memory: int) -> None:
        if not isinstance(memory, int) or memory < 0:
            raise invalid(f"experts_memory is a number of bytes, 0 or more, not {memory!r}")
        self.memory = memory
        self._lock = threading.Lock()
        self._kept: Dict[Expert, Rows] = {}
        self._bytes = self._hits = self._misses = 0
        self._uses: Counter[Expert] = collections.Counter()
        self._sum = 0
        # No kept expert has fewer uses.
        self._least = 0

    def kept(self, module: str, numbers: Iterable[int], names: Iterable[str]) -> Dict[int, Rows]:
        """The rows of those experts of a module that are kept, with these parameters."""
        with self._lock:
            found = {number: self._kept.get((module, number), {}) for number in numbers}
        return {number: rows for number, rows in found.items() if rows and all(name in rows for name in names)}

    def count(self, module: str, tokens: Mapping[int, int]) -> None:
        """Tokens chose experts of a module."""
        with self._lock:
            for number, uses in tokens.items():
                self._uses[module, number] += uses
                self._sum += uses
                if (module, number) in self._kept:
                    self._hits += 1
                else:
                    self._misses += 1
            if self._sum > _MOST_USES * len(self._uses):
                self._uses = collections.Counter({expert: uses // 2 for expert, uses in self._uses.items()})
                self._sum, self._least = sum(self._uses.values()), 0

    def offer(self, module: str, number: int, rows: Rows) -> None:
        """Keeps an expert that was read, in memory of its own, if it is among the hottest."""
        expert, nbytes = (module, number), sum(each.nbytes for each in rows.values())
        with self._lock:
            if nbytes > self.memory or expert in self._kept:
                return
            while self._bytes + nbytes > self.memory:
                if self._uses[expert] <= self._least:
                    return
                coldest = min(self._kept, key=self._uses.__getitem__)
                self._least = self._uses[coldest]
                if self._uses[expert] > self._least:
                    self._bytes -= sum(each.nbytes for each in self._kept.pop(coldest).values())
            self._least = min(self._least, self._uses[expert])
            self._bytes += nbytes
            self._kept[expert] = rows

    def clear(self) -> None:
        """Drops all."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def stats(self) -> Dict[str, Any]:
        """Bytes of the budget, experts in it and their bytes, and how many of those that forwards needed were
        there or not."""
        with self._lock:
            return {"memory": self.memory, "kept": len(self._kept), "kept_bytes": self._bytes,
                    "hits": self._hits, "misses": self._misses}
