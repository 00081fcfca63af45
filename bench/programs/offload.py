# SPDX-License-Identifier: Apache-2.0
"""offload.py {accelerate|nvswap} DIRECTORY: forward passes of a model whose parameters are on the drive, by
accelerate's disk_offload or nvswap.torch.offload. Prints the rate at which parameters came, and processor
time, as JSON. The model stands for one larger than memory, so before each pass no byte of its files is in
the page cache, and nvswap's pool holds an eighth of it."""
import json
import os
import shutil
import sys
import time

import torch
from process import leave_page_cache

LAYERS, WIDTH, PASSES = 32, 4096, 3
NBYTES = LAYERS * WIDTH * WIDTH * 4


def offload(module, by, directory):
    if by == "accelerate":
        from accelerate import disk_offload
        return disk_offload(module, directory, execution_device=torch.device("cpu"))
    import nvswap.torch
    return nvswap.torch.offload(module, {
        "aio": {"block_size": 1 << 20, "queue_depth": 32},
        "zero_optimization": {"offload_param": {
            "device": "nvme", "nvme_path": directory, "max_in_cpu": 0, "buffer_count": LAYERS // 8,
            "buffer_size": WIDTH * WIDTH}}})


def main():
    by, directory = sys.argv[1], os.path.join(sys.argv[2], "offload")
    os.makedirs(directory)
    try:
        module = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
        offloaded = offload(module, by, directory)  # must live as long as the module is used
        seconds = cpu = 0
        with torch.no_grad():
            module(torch.ones(1, WIDTH))  # nvswap learns the order in the first pass
            for _ in range(PASSES):
                leave_page_cache(directory)
                started, used = time.monotonic(), time.process_time()
                module(torch.ones(1, WIDTH))
                seconds += time.monotonic() - started
                cpu += time.process_time() - used
    finally:
        shutil.rmtree(directory)
    print(json.dumps({"gb_s": PASSES * NBYTES / seconds / 1e9,
                      "cpu_ms_gib": cpu * 1e3 / (PASSES * NBYTES / 2**30)}))


if __name__ == "__main__":
    main()
