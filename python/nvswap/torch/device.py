# SPDX-License-Identifier: Apache-2.0
"""
Copies of offloaded parameters in a device's memory. A forward or backward gets those that it needs: a
copy that is there, or one that is made of the pool's memory on a stream of its own, for which the
present stream waits. So the device computes with one layer while the next one is copied, and the drive
reads those after it.

Copies stay after their use, up to a budget, in which those count too that the device may still be
computing with. Those that a step needs first stay, since a forward needs them first and a backward last:
no other choice has more of them there, for forwards alone and for steps. A copy of what a step has
changed since is made anew.
"""

from __future__ import annotations

import collections
import threading
from typing import Any, Deque, Dict, NamedTuple, Optional, Tuple

import torch

from nvswap.engine import Engine, Pinned


class _Copy(NamedTuple):
    tensor: torch.Tensor
    version: int  # of the parameter
    copied: Any  # the event after which the tensor has the contents


class DeviceCopies:
    """
    Parameters
    ----------
    engine : nvswap.Engine
    device : torch.device
    memory : int
        Bytes of the budget. What a module needs at once is there also beyond it.
    in_use : dict of str to torch.nn.Parameter
        Those that are not dropped, which the caller changes.
    """

    def __init__(self, engine: Engine, device: torch.device, memory: int,
                 in_use: Dict[str, torch.nn.Parameter]) -> None:
        self.memory = memory
        self._engine, self._device, self._in_use = engine, device, in_use
        self._module = torch.get_device_module(device)
        self._stream = self._module.Stream(device)
        self._lock = threading.Lock()
        self._copies: Dict[str, _Copy] = {}
        # Bytes of copies, and of dropped ones that the device may be computing with until an event.
        self._held = self._dropped_bytes = self._largest = 0
        self._dropped: Deque[Tuple[Any, int]] = collections.deque()
        # Pool memory, and the event after which it is copied.
        self._copying: Deque[Tuple[Any, Pinned]] = collections.deque()
        # The order in which they were needed first.
        self._order: Dict[str, int] = {}

    def get(self, parameters: Dict[str, torch.nn.Parameter],
            timeout: Optional[float]) -> Dict[str, torch.Tensor]:
        """Tensors with the contents of parameters, for what the present stream does next; `timeout` as that
        of Engine.swap_in()."""
        with self._lock:
            stream = self._module.current_stream(self._device)
            missing = {}
            for name, parameter in parameters.items():
                self._order.setdefault(name, len(self._order))
                copy = self._copies.get(name)
                if copy is None or copy.version != parameter._version:
                    self._drop(name)
                    missing[name] = parameter
            if missing:
                self._copy(missing, parameters, timeout)
            result = {name: self._copies[name] for name in parameters}
            for copy in result.values():
                stream.wait_event(copy.copied)
                copy.tensor.record_stream(stream)
            return {name: copy.tensor for name, copy in result.items()}

    @property
    def held(self) -> int:
        """Bytes that are not the allocator's yet."""
        return self._held + self._dropped_bytes

    def clear(self) -> None:
        """Drops all copies, whose memory is the allocator's once the device has done with it, and releases
        the pool."""
        with self._lock:
            self._copies.clear()
            self._dropped.clear()
            self._held = self._dropped_bytes = 0
            self._release(wait=True)

    def finish(self) -> None:
        """Waits for the copies that have begun, and releases the pool."""
        with self._lock:
            self._release(wait=True)

    def _copy(self, missing: Dict[str, torch.nn.Parameter], needed: Dict[str, torch.nn.Parameter],
              timeout: Optional[float]) -> None:
        self._make_room(sum(parameter.nbytes for parameter in missing.values()), needed)
        self._release(wait=False)
        pinned = self._engine.swap_in(list(missing), timeout=timeout, arrays="torch")
        made = {}
        try:
            with self._module.stream(self._stream):
                for name, parameter in missing.items():
                    made[name] = torch.empty(parameter.shape, dtype=parameter.dtype, device=self._device)
                    made[name].copy_(pinned[name], non_blocking=True)
        finally:
            copied = self._stream.record_event()
            self._copying.append((copied, pinned))
        for name, tensor in made.items():
            self._copies[name] = _Copy(tensor, missing[name]._version, copied)
            self._held += tensor.nbytes

    def _release(self, wait: bool) -> None:
        """Releases the pool memory that is copied, also where the device has failed."""
        failure = None
        while self._copying and (wait or self._copying[0][0].query()):
            copied, pinned = self._copying.popleft()
            try:
                copied.synchronize()
            except RuntimeError as error:
                failure = failure or error
            pinned.release()
        if failure is not None:
            raise failure

    # ---- The budget

    def _make_room(self, nbytes: int, needed: Dict[str, torch.nn.Parameter]) -> None:
        # So much may be dropped that the device still computes with: it is two modules behind at most.
        self._largest = max(self._largest, nbytes)
        behind = min(2 * self._largest, self.memory // 2)
        droppable = [name for name in self._copies if name not in self._in_use and name not in needed]
        droppable.sort(key=self._order.__getitem__)
        while droppable and self._held + nbytes > self.memory - behind:
            self._drop(droppable.pop())
        self._wait_for_dropped(self.memory - self._held - nbytes)

    def _wait_for_dropped(self, most: int) -> None:
        """Waits until the device computes with `most` bytes of what is dropped, or with none."""
        while self._dropped and self._dropped_bytes > most:
            used, size = self._dropped.popleft()
            used.synchronize()
            self._dropped_bytes -= size

    def _drop(self, name: str) -> None:
        copy = self._copies.pop(name, None)
        if copy is not None:
            nbytes = copy.tensor.nbytes
            self._held -= nbytes
            self._dropped_bytes += nbytes
            self._dropped.append((self._module.current_stream(self._device).record_event(), nbytes))
