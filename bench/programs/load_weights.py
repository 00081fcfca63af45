# SPDX-License-Identifier: Apache-2.0
"""load_weights.py make DIRECTORY: a folder of .safetensors files with an index, of the shapes of a Llama of
1.75 GiB.
load_weights.py {nvswap|safetensors} DIRECTORY [PROCS]: loads each of its tensors once, by nvswap.open_weights or
safetensors' safe_open, and looks at a byte of each page. No byte of the files is in the page cache before. Prints the
rate with and without opening, processor time, bytes written and the sum of what was looked at, as JSON. PROCS is the
file cgroup.procs of a cgroup to enter first."""
import json
import os
import sys
import time

from process import counted, enter_cgroup, leave_page_cache

enter_cgroup(sys.argv[3:])

import torch  # noqa: E402 pylint: disable=wrong-import-position
from safetensors import safe_open  # noqa: E402 pylint: disable=wrong-import-position
from safetensors.torch import save_file  # noqa: E402 pylint: disable=wrong-import-position
import nvswap  # noqa: E402 pylint: disable=wrong-import-position

LAYERS, WIDTH, INNER, WORDS, FILES = 17, 2048, 5632, 16000, 4
POOL = 128 << 20
# What is read while a tensor is looked at.
AHEAD = 6


def shapes():
    """Of each file."""
    files = [{} for _ in range(FILES)]
    files[0]["model.embed_tokens.weight"] = files[-1]["lm_head.weight"] = (WORDS, WIDTH)
    files[-1]["model.norm.weight"] = (WIDTH,)
    for layer in range(LAYERS):
        name, file = f"model.layers.{layer}.", files[layer * FILES // LAYERS]
        for each in "qkvo":
            file[f"{name}self_attn.{each}_proj.weight"] = (WIDTH, WIDTH)
        for each in ("gate", "up"):
            file[f"{name}mlp.{each}_proj.weight"] = (INNER, WIDTH)
        file[f"{name}mlp.down_proj.weight"] = (WIDTH, INNER)
        for each in ("input", "post_attention"):
            file[f"{name}{each}_layernorm.weight"] = (WIDTH,)
    return files


def make(directory):
    bits = torch.randint(-1 << 15, 1 << 15, (WORDS * WIDTH,), dtype=torch.int16,
                         generator=torch.Generator().manual_seed(1))
    index = {}
    os.makedirs(directory)
    for number, file in enumerate(shapes(), 1):
        name = f"model-{number:05}-of-{FILES:05}.safetensors"
        save_file({each: bits[:torch.Size(shape).numel()].view(torch.bfloat16).reshape(shape).clone()
                   for each, shape in file.items()}, os.path.join(directory, name))
        index |= dict.fromkeys(file, name)
    with open(os.path.join(directory, "model.safetensors.index.json"), "w", encoding="ascii") as file:
        json.dump({"metadata": {}, "weight_map": index}, file)


def look_at(tensor):
    """Bytes, and the sum of one of each page."""
    data = tensor.reshape(-1).view(torch.uint8)
    return data.numel(), int(data[::4096].sum())


def by_safetensors(directory):
    begun = time.monotonic()
    for name in sorted(os.listdir(directory)):
        if name.endswith(".safetensors"):
            with safe_open(os.path.join(directory, name), "pt") as weights:
                yield from (look_at(weights.get_tensor(each)) for each in weights.keys())
    yield begun


def by_nvswap(directory):
    with nvswap.open_weights(directory, {
            "aio": {"block_size": 1 << 20, "queue_depth": 32},
            "zero_optimization": {"offload_param": {"buffer_count": 1, "buffer_size": POOL // 4,
                                                    "max_in_cpu": 0}}}) as weights:
        names = [each.name for each in weights.stored()]
        begun = time.monotonic()
        for i, name in enumerate(names):
            weights.prefetch(names[i:i + AHEAD])
            with weights.pinned([name]) as tensors:
                yield look_at(tensors[name])
        yield begun


def main():
    by, directory = sys.argv[1:3]
    if by == "make":
        make(directory)
        print("{}")
        return
    leave_page_cache(directory)
    before, cpu, opened = counted("write_bytes"), time.process_time(), time.monotonic()
    *looked, begun = (by_nvswap if by == "nvswap" else by_safetensors)(directory)
    ended = time.monotonic()
    nbytes = sum(each for each, _ in looked)
    print(json.dumps({"gb_s": nbytes / (ended - begun) / 1e9, "all_gb_s": nbytes / (ended - opened) / 1e9,
                      "cpu_ms_gib": (time.process_time() - cpu) * 1e3 / (nbytes / 2**30),
                      "written_bytes": counted("write_bytes") - before, "sum": sum(each for _, each in looked)}))


if __name__ == "__main__":
    main()
