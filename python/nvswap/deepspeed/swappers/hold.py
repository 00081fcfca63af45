# SPDX-License-Identifier: Apache-2.0
"""
Tensors of an engine in memory, for callers that can't wait for each other: in the pool if it has
room for them, in other memory if not, so that a small pool is slower and never an error. Relies on
arrays over the pool keeping their pin: a view that outlives its hold stays valid.
"""

from __future__ import annotations

import errno
import weakref
from typing import Iterable, List, Mapping, Optional

import torch

from nvswap.engine import Engine, Pinned
from nvswap.errors import Error

# Seconds to wait for room that write-backs will make.
_PATIENCE_S = 1.0
# A tensor takes whole units of the pool. On most drives they have this many bytes, or fewer.
_UNIT = 4096
_NO_ROOM = (errno.E2BIG, errno.ENOBUFS, errno.EAGAIN, errno.ETIMEDOUT)


class Hold:
    """A tensor in memory until end()."""

    def __init__(self, holds: "Holds", name: str, pinned: Optional[Pinned],
                 outside: Optional[torch.Tensor]) -> None:
        self.name = name
        self._holds = holds
        self._pinned = pinned
        self._outside = outside

    @property
    def tensor(self) -> torch.Tensor:
        """The contents, once they are read."""
        if self._pinned is not None:
            found: torch.Tensor = self._pinned[self.name]
            return found
        assert self._outside is not None
        return self._outside

    def end(self, changed: bool) -> None:
        """Gives the memory up, with the contents to the store if they were changed. Nothing is left to
        do if the tensor has been held again since."""
        if not self._holds.ended(self):
            return
        if self._pinned is not None:
            self._pinned.keep_contents(changed)
            self._pinned.release()
        elif changed:
            assert self._outside is not None
            self._holds.engine.store_from({self.name: self._outside})
        self._pinned = self._outside = None


class Holds:
    """The tensors of an engine that are held now, each once. One that is held again was left by a call
    that an exception cut off: its hold is ended."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.pool_bytes = engine.pool()[1]
        self._held: "weakref.WeakValueDictionary[str, Hold]" = weakref.WeakValueDictionary()

    def register(self, specs: Mapping[str, torch.Tensor], numel: int) -> None:
        """Registers those tensors that are not, each with `numel` elements of its example's type."""
        new = {name: (example.dtype, numel) for name, example in specs.items()
               if name not in self.engine}
        self.engine.register_all(new)

    def free_bytes(self) -> int:
        """Bytes of the pool beside all that is held, in the pool or outside it. DeepSpeed gathers ahead by
        them, so they must be the same on all ranks: they follow from what was held and ended alone, while
        what is pinned also depends on the drive and on views."""
        return max(0, self.pool_bytes - sum(map(self.taken_by, self._held)))

    def taken_by(self, name: str) -> int:
        """Bytes of the pool that a tensor takes."""
        return -(-self.engine[name].nbytes // _UNIT) * _UNIT

    def read(self, names: Iterable[str]) -> List[Hold]:
        """Holds tensors with their contents, which are read together and awaited one by one."""
        wanted = list(names)
        self.engine.prefetch(wanted)
        return [self._take(name, "r") for name in wanted]

    def new(self, name: str) -> Hold:
        """Holds a tensor for new contents."""
        return self._take(name, "w")

    def scratch(self, name: str) -> Hold:
        """Holds a tensor for contents that never go to the store. While a caller still has a view of
        the last ones, it is other memory."""
        return self._take(name, "w", self.engine.info(name)["pins"] == 0)

    def ended(self, hold: Hold) -> bool:
        """False: it was ended before."""
        if self._held.get(hold.name) is not hold:
            return False
        del self._held[hold.name]
        return True

    def _take(self, name: str, mode: str, in_pool: bool = True) -> Hold:
        left = self._held.get(name)
        if left is not None:
            left.end(False)
        pinned = self._pinned(name, mode) if in_pool else None
        outside = None
        if pinned is None:
            tensor = self.engine[name]
            # Within zero.Init, and after torch.set_default_device, the default is another device.
            outside = torch.empty(tensor.shape, dtype=getattr(torch, _TORCH[tensor.dtype]),
                                  device="cpu")
            if mode == "r":
                self.engine.wait(name)  # a read ahead may go on, which found room
                self.engine.load_to({name: outside})
        hold = self._held[name] = Hold(self, name, pinned, outside)
        return hold

    def _pinned(self, name: str, mode: str) -> Optional[Pinned]:
        """None if there is no room, and waiting would not make any."""
        room = self.engine.room_beside(self.engine.pinned_names(), _UNIT) >= self.taken_by(name)
        timeouts = (0, _PATIENCE_S) if room else (0,)
        for timeout in timeouts:
            try:
                return self.engine.swap_in(name, mode, timeout=timeout)
            except Error as error:
                if error.errno == errno.EBUSY and mode == "w":
                    # A view has the last contents pinned, which are not written: it sees the new
                    # ones, as a view of memory does.
                    return self.engine.swap_in(name, "r+")
                # A call that does not wait reports a write that failed before it; one that waits has it written.
                if error.errno not in _NO_ROOM and timeout == timeouts[-1]:
                    raise
        return None


_TORCH = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
