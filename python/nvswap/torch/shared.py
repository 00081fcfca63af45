# SPDX-License-Identifier: Apache-2.0
"""
What modules that are offloaded to one engine share: the steps of the engine, the threads that run
forwards and backwards, and the parameters that these have pinned.
"""

from __future__ import annotations

import errno
import threading
import warnings
import weakref
from contextlib import contextmanager, suppress
from typing import Any, Callable, Dict, Iterator, Mapping, Optional

import torch

from nvswap.engine import Engine
from nvswap.errors import Error
from nvswap.torch.device import DeviceCopies
from nvswap.torch.saved import SavedTensors
from nvswap.torch.threads import Threads


class Shared:
    """
    Made by :func:`shared_of`. A step of the engine has the forwards and backwards of all modules:
    it ends before the forward of a module that has had one in it.

    Attributes
    ----------
    threads : Threads
    saved : SavedTensors
    lock : threading.Lock
        Of the step and of `depth`, and of what forwards of several threads do to one parameter.
    depth : dict of str to int
        How many forwards have pinned each tensor.
    copies : dict of torch.device to DeviceCopies
        Where modules compute on a device.
    planned : bool
        Whether the engine follows the order of a step before.
    """

    def __init__(self, engine: Engine) -> None:
        self.threads = Threads()
        self.saved = SavedTensors(engine, self.threads, self.contents)
        self.copies: Dict[torch.device, DeviceCopies] = {}
        # Where the pool is registered with CUDA.
        self._registered: Optional[int] = None
        self.lock = threading.Lock()
        self.depth: Dict[str, int] = {}
        self.planned = False
        self._engine = engine
        self._had: "weakref.WeakSet[torch.nn.Module]" = weakref.WeakSet()
        self._step = False

    def use_device(self, device: torch.device, memory: int) -> None:
        """Modules compute on a device, with a budget of its memory in bytes, to which others add."""
        if device in self.copies:
            self.copies[device].memory += memory
            return
        if device.type == "cuda" and self._registered is None:
            self._register_pool()
        self.copies[device] = DeviceCopies(self._engine, device, memory, self.saved.pinned)

    def _register_pool(self) -> None:
        base, nbytes = self._engine.pool()
        code = int(torch.cuda.cudart().cudaHostRegister(base, nbytes, 0))
        if code:
            _forget_error()
            warnings.warn(f"copies between the pool of {nbytes} bytes and the device are slower, as it "
                          f"can't be registered: error {code} of CUDA", stacklevel=4)
        else:
            self._registered = base

    def finish_copies(self) -> None:
        """Nothing of the pool is pinned for a device any more."""
        for copies in self.copies.values():
            copies.finish()

    def release(self) -> None:
        """Releases what the devices have of the pool, before it is freed."""
        for copies in self.copies.values():
            with suppress(RuntimeError):  # Of a device that has failed.
                copies.clear()
        base, self._registered = self._registered, None
        if base is not None and int(torch.cuda.cudart().cudaHostUnregister(base)):
            _forget_error()

    @contextmanager
    def contents(self, parameters: Dict[str, torch.nn.Parameter]) -> Iterator[Mapping[str, torch.Tensor]]:
        """Tensors with the contents of parameters of one device: pool memory, or copies there."""
        copies = self.copies.get(next(iter(parameters.values())).device) if self.copies else None
        if copies is not None:
            yield with_room(lambda timeout: copies.get(parameters, timeout), self.finish_copies)
            return
        with with_room(lambda timeout: self._engine.swap_in(
                list(parameters), timeout=timeout, arrays="torch"), self.finish_copies) as tensors:
            yield tensors

    def begin_step(self, module: torch.nn.Module) -> None:
        """The engine learns the order of forwards and backwards, and reads ahead by it."""
        with self.lock:
            if not self._step or module in self._had:
                self._end_step()
                self._engine._begin_step()
                self._step = True
            self._had.add(module)

    def end_step(self) -> None:
        """Ends the present step, if there is one."""
        with self.lock:
            self._end_step()

    def _end_step(self) -> None:
        if self._step:
            self._engine._end_step()
            self.planned = True
        self._step = False
        self._had = weakref.WeakSet()


def with_room(call: Callable[[Optional[float]], Any], release: Callable[[], None]) -> Any:
    """Calls with a timeout in seconds: if the pool has no room now, after `release`, and without end."""
    try:
        return call(0)
    except Error as error:
        if error.errno != errno.EAGAIN:
            raise
    release()
    return call(None)


def _forget_error() -> None:
    """CUDA keeps the error of a call, and torch raises it after the next kernel."""
    with suppress(RuntimeError):
        torch.zeros(1, device="cuda")


def shared_of(engine: Engine, user: Any) -> Shared:
    """
    Returns what the modules of the engine share. The steps of the engine are theirs, and not the
    program's, until each `user` has called :func:`leave` or is gone.

    Raises
    ------
    nvswap.Error
        EBUSY: the program has begun a step.
    """
    engine._end_shared()
    if engine._step and not engine._steppers:
        raise Error(errno.EBUSY, "a step of the engine has begun: end it before a module is "
                    "offloaded to it, whose forwards begin and end its steps")
    engine._steppers.add(user)
    if engine._shared is None:
        engine._shared = Shared(engine)
    shared: Shared = engine._shared
    return shared


def leave(engine: Engine, user: Any) -> None:
    """Gives the steps back to the program after the last user. A second call has no effect."""
    engine._steppers.discard(user)
    engine._end_shared()
