# SPDX-License-Identifier: Apache-2.0
"""
A device that stands in for a GPU: the host's memory, taken for a device's by nvswap.torch. A copy that
does not block is made when its stream or an event after it is waited for, so that one which nothing
waits for, or whose source has gone meanwhile, gives wrong values.
"""

import contextlib
import threading
import types
from unittest import mock

import torch


class _Event:
    def __init__(self, stream):
        self._stream, self._copies, self._asked = stream, len(stream.copies), 0

    def query(self):
        """Whether the copies are done: when asked for the second time."""
        self._asked += 1
        if self._asked > 1:
            self._stream.run(self._copies)
        return self._asked > 1

    def synchronize(self):
        self._stream.log.append("synchronize" if self._stream.own else "behind")
        self._stream.run(self._copies)

    def wait(self):
        self._stream.log.append("wait_event")
        self._stream.run(self._copies)


class _Stream:
    def __init__(self, log, present, own=True):
        self.log, self._present, self.own = log, present, own
        self.copies, self._done = [], 0

    def run(self, copies):
        """Makes the copies of the stream up to a number."""
        for number in range(self._done, copies):
            call, self.copies[number] = self.copies[number], None
            call()
        self._done = max(self._done, copies)

    def synchronize(self):
        self.log.append("synchronize")
        self.run(len(self.copies))

    def wait_stream(self, other):
        self.log.append("wait_stream")
        other.run(len(other.copies))

    def wait_event(self, event):
        event.wait()

    def record_event(self):
        return _Event(self)

    def __enter__(self):
        self.log.append("copy")
        self._present.streams = [*getattr(self._present, "streams", []), self]

    def __exit__(self, *_):
        self._present.streams = self._present.streams[:-1]


@contextlib.contextmanager
def host_as_device(*modules):
    """These modules take the host's memory for a device's; gives what was asked of the device."""
    log, empty, copy, present = [], torch.empty, torch.Tensor.copy_, threading.local()
    default = _Stream(log, present, own=False)

    def current_stream(_=None):
        return (getattr(present, "streams", None) or [default])[-1]

    device = types.SimpleNamespace(current_stream=current_stream, stream=lambda stream: stream,
                                   Stream=lambda _: _Stream(log, present))

    def unpinned(*shape, pin_memory=False, **more):
        if pin_memory:
            log.append("pinned")
        return empty(*shape, **more)

    def copy_later(target, source, non_blocking=False):
        if not non_blocking:
            return copy(target, source)
        current_stream().copies.append(lambda: copy(target, source))
        return target

    with contextlib.ExitStack() as stack:
        for module in modules:
            for name in {"is_host", "is_on_host"} & set(vars(module)):
                stack.enter_context(mock.patch.object(module, name, lambda _: False))
        stack.enter_context(mock.patch.object(torch.Tensor, "record_stream",
                                              lambda *_: log.append("record_stream")))
        stack.enter_context(mock.patch.object(torch.Tensor, "copy_", copy_later))
        stack.enter_context(mock.patch.object(torch, "get_device_module", lambda _: device))
        stack.enter_context(mock.patch.object(torch, "empty", unpinned))
        yield log
