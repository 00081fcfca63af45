# SPDX-License-Identifier: Apache-2.0
"""
Registers the pool of an engine with the job's accelerator, as DeepSpeed's own swap buffers are pinned:
copies to and from the device then go directly, beside other work. Relies on DeepSpeed to wait for the
copies of a partition before it releases it, as its own swappers do. Memory is never unmapped while it is
registered: the driver would copy the old pages in place of what is mapped there next.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, Callable, Optional

import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import logger

from nvswap.deepspeed.swappers.names import NamingEngine


class DeviceEngine(NamingEngine):
    """An engine of the swappers, whose pool may be registered until it closes."""

    _unregister: Optional[Callable[[], Any]] = None

    def register_pool(self) -> None:
        """Registers the pool; where the device refuses, copies are slower."""
        accelerator, (address, nbytes) = get_accelerator(), self.pool()
        try:
            # Not in all releases; False of one that needs no registration.
            if getattr(accelerator, "register_host_memory", lambda *_: False)(address, nbytes):
                self._unregister = partial(accelerator.unregister_host_memory, address)
        except RuntimeError as error:
            _forget_error()
            logger.warning(f"copies between the pool of {nbytes} bytes and the device are slower, as it "
                           f"can't be registered: {error}")

    def _end_pins(self, pointer: Any, at_exit: bool) -> None:
        super()._end_pins(pointer, at_exit)
        unregister, self._unregister = self._unregister, None
        try:
            if unregister is not None:
                unregister()
        except RuntimeError as error:
            # The device has failed: the job ends, and its store must be closed.
            _forget_error()
            logger.warning(f"the pool is still registered with the device: {error}")


def _forget_error() -> None:
    """CUDA keeps the error of a call, and PyTorch raises it after the next kernel."""
    with suppress(RuntimeError):
        torch.zeros(1, device=get_accelerator().current_device_name())
