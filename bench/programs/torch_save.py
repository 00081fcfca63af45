# SPDX-License-Identifier: Apache-2.0
"""torch_save.py DIRECTORY TENSORS NUMEL: saves as many float32 tensors from memory, each to a file of its
own that is made durable, and prints the rate as JSON."""
import json
import os
import shutil
import sys
import time

import torch

directory, count, numel = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
directory = os.path.join(directory, "torch")
tensors = [torch.full((numel,), float(i)) for i in range(count)]
os.makedirs(directory)
try:
    started = time.monotonic()
    for i, tensor in enumerate(tensors):
        with open(os.path.join(directory, f"{i}.pt"), "wb") as file:
            torch.save(tensor, file)
            file.flush()
            os.fsync(file.fileno())
    seconds = time.monotonic() - started
finally:
    shutil.rmtree(directory)
print(json.dumps({"gb_s": count * numel * 4 / seconds / 1e9}))
