# SPDX-License-Identifier: Apache-2.0
"""A device that stands in for a GPU: the host's memory, taken for a device's by nvswap.torch."""

import contextlib
import types
from unittest import mock

import torch


class _Event:
    def __init__(self, log):
        self._log, self._asked = log, 0

    def query(self):
        """Whether the copies are done: when asked for the second time."""
        self._asked += 1
        return self._asked > 1

    def synchronize(self):
        self._log.append("synchronize")


class _Stream:
    def __init__(self, log):
        self._log = log

    def synchronize(self):
        self._log.append("synchronize")

    def wait_stream(self, _):
        self._log.append("wait_stream")

    def record_event(self):
        return _Event(self._log)

    def __enter__(self):
        self._log.append("copy")

    def __exit__(self, *_):
        pass


@contextlib.contextmanager
def host_as_device(*modules):
    """These modules take the host's memory for a device's; gives what was asked of the device."""
    log, empty = [], torch.empty
    device = types.SimpleNamespace(current_stream=lambda _: _Stream(log), stream=lambda stream: stream,
                                   Stream=lambda _: _Stream(log))

    def unpinned(*shape, pin_memory=False, **more):
        if pin_memory:
            log.append("pinned")
        return empty(*shape, **more)

    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.enter_context(mock.patch.object(module, "is_on_host", lambda _: False))
        stack.enter_context(mock.patch.object(torch, "get_device_module", lambda _: device))
        stack.enter_context(mock.patch.object(torch, "empty", unpinned))
        yield log
