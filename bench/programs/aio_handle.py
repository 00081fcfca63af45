# SPDX-License-Identifier: Apache-2.0
"""Writes and reads tensors, each in a file of its own as DeepSpeed's swappers do, through aio_handle:

    aio_handle.py own|nvswap DIRECTORY TENSORS BYTES ROUNDS

Prints the rates and the processor time as JSON. With "own", DeepSpeed compiles its op the first time.
"""
import json
import os
import sys
import time

os.environ["DS_ACCELERATOR"] = "cpu"
if sys.argv[1] == "nvswap":
    import nvswap.deepspeed
    nvswap.deepspeed.install()

import torch  # noqa: E402
from deepspeed.ops.op_builder import AsyncIOBuilder  # noqa: E402

BATCH = 64  # tensors that are in flight until a wait


def passes(call, handle, tensors, paths, rounds):
    """Returns seconds and processor seconds of passing over all tensors `rounds` times."""
    times, begun = os.times(), time.perf_counter()
    for _ in range(rounds):
        for first in range(0, len(tensors), BATCH):
            for tensor, path in zip(tensors[first:first + BATCH], paths[first:first + BATCH]):
                call(tensor, path)
            handle.wait()
    seconds, after = time.perf_counter() - begun, os.times()
    return seconds, after.user + after.system - times.user - times.system


def main():
    directory, count, nbytes, rounds = sys.argv[2], *map(int, sys.argv[3:])
    handle = AsyncIOBuilder().load().aio_handle(1 << 20, 32, False, True, 1)
    pool = handle.new_cpu_locked_tensor(count * nbytes, torch.empty(0, dtype=torch.uint8))
    pool.fill_(7)
    tensors = list(pool.view(count, nbytes))
    paths = [f"{directory}/{index}.tensor" for index in range(count)]
    result = {}
    for name, call in (("write", handle.async_pwrite), ("read", handle.async_pread)):
        passes(call, handle, tensors, paths, 1)  # creates the files, and fills caches of names
        seconds, cpu = passes(call, handle, tensors, paths, rounds)
        moved = count * nbytes * rounds
        result[name] = {"gb_s": moved / seconds / 1e9, "cpu_ms_gib": cpu * 1e3 / (moved / 2**30)}
    for path in paths:
        os.unlink(path)
    print(json.dumps(result))


main()
