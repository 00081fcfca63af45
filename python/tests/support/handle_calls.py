# SPDX-License-Identifier: Apache-2.0
"""
Calls everything that async_io has, in the ways that DeepSpeed's own op serves (memory aligned for direct
I/O, files as long as the tensor), and prints what each call returns and what the files then hold:

    handle_calls.py own|nvswap DIRECTORY
"""

import hashlib
import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"
if sys.argv[1] == "nvswap":
    import nvswap.deepspeed
    nvswap.deepspeed.install()

import torch  # noqa: E402
from deepspeed.ops.op_builder import AsyncIOBuilder  # noqa: E402

NUMEL = 1 << 20
aio, path = AsyncIOBuilder().load(), os.path.join(sys.argv[2], "tensor")


def say(what, *results):
    print("CALL", what, *results, flush=True)


def contents():
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


def read_all(handle, call):
    """What a call that reads into a tensor returns, and what it has read."""
    found = handle.new_cpu_locked_tensor(NUMEL, torch.empty(0, dtype=torch.uint8)).zero_()
    result = call(found)
    return result, hashlib.sha256(found.numpy().tobytes()).hexdigest()[:16]


def calls_of(settings):
    handle = aio.aio_handle(*settings)
    say("settings", handle.get_block_size(), handle.get_queue_depth(), handle.get_single_submit(),
        handle.get_overlap_events(), handle.get_intra_op_parallelism())
    data = handle.new_cpu_locked_tensor(NUMEL, torch.empty(0, dtype=torch.uint8))
    data.copy_(torch.arange(NUMEL) * (1 + len(settings)) // 7 % 256)
    for name in ("write", "read"):
        for validate in (False, True):
            say(name, validate, getattr(handle, name)(data, path, validate), contents())
    for name in ("sync_pwrite", "sync_pread"):
        say(name, getattr(handle, name)(data, path, 0), contents())
    for name in ("async_pwrite", "async_pread"):
        say(name, getattr(handle, name)(data, path, 0), handle.wait(), contents())
    for name in ("pwrite", "pread"):
        for is_async in (False, True):
            result = getattr(handle, name)(data, path, False, is_async)
            say(name, is_async, result, handle.wait() if is_async else "", contents())
    say("two of async_pread", read_all(handle, lambda found: (
        handle.async_pread(found, path, 0), handle.async_pread(found, path, 0), handle.wait())))
    pinned = handle.new_cpu_locked_tensor(NUMEL // 2, torch.empty(0, dtype=torch.float16))
    say("pinned", pinned.dtype, tuple(pinned.shape), handle.is_pinned(pinned),
        handle.is_pinned(torch.zeros(NUMEL)))
    pinned.fill_(3)
    say("of pinned", handle.sync_pwrite(pinned, path, 0), contents())
    say("free", handle.free_cpu_locked_tensor(pinned))


copy, data = torch.empty(NUMEL), torch.rand(NUMEL)
say("deepspeed_memcpy", aio.deepspeed_memcpy(copy, data), torch.equal(copy, data))
say("module", sorted(name for name in dir(aio) if not name.startswith("_")))
for settings in ((1 << 20, 8, False, True, 1), (65536, 4, True, False, 2), ()):
    calls_of(settings)
handle = aio.aio_handle()
data = handle.new_cpu_locked_tensor(NUMEL, torch.empty(0, dtype=torch.uint8)).fill_(9)
say("aio_write", aio.aio_write(data, path, 1 << 20, 8, False, False, False), contents())
say("aio_read", read_all(handle, lambda found: aio.aio_read(found, path, 1 << 20, 8, False, False,
                                                             False)))
