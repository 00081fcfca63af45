#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Generates the shapes of well-known models from their published dimensions: one JSON file per model,
in the form of a safetensors header, one tensor per line, in the order of a forward pass.

    make_models.py           writes the files beside this script
    make_models.py --check   fails if a file is out of date

Both check the number of tensors and parameters against the published ones.
"""

import json
import math
import pathlib
import sys

DTYPE_BYTES = {"F32": 4, "BF16": 2}


def gpt2(width, layers, vocabulary, positions):
    """GPT-2: weights are (in, out), and the output layer shares the embedding."""
    yield "wte.weight", [vocabulary, width]
    yield "wpe.weight", [positions, width]
    for n in range(layers):
        for name, outputs, inputs in (
            ("ln_1", width, None),
            ("attn.c_attn", 3 * width, width),
            ("attn.c_proj", width, width),
            ("ln_2", width, None),
            ("mlp.c_fc", 4 * width, width),
            ("mlp.c_proj", width, 4 * width),
        ):
            yield f"h.{n}.{name}.weight", [inputs, outputs] if inputs else [outputs]
            yield f"h.{n}.{name}.bias", [outputs]
    yield "ln_f.weight", [width]
    yield "ln_f.bias", [width]


def dense_mlp(width, inner):
    yield "mlp.gate_proj.weight", [inner, width]
    yield "mlp.up_proj.weight", [inner, width]
    yield "mlp.down_proj.weight", [width, inner]


def experts_mlp(width, inner, experts):
    """Mixtral: a router, and experts that are dense MLPs (w2 projects down)."""
    yield "block_sparse_moe.gate.weight", [experts, width]
    for expert in range(experts):
        for name, shape in (("w1", [inner, width]), ("w2", [width, inner]), ("w3", [inner, width])):
            yield f"block_sparse_moe.experts.{expert}.{name}.weight", shape


def llama(width, layers, vocabulary, heads, kv_heads, mlp, qkv_bias=False, tied=False):
    """Llama and similar: grouped-query attention, RMS norms, a gated MLP; weights are (out, in)."""
    head = width // heads
    yield "model.embed_tokens.weight", [vocabulary, width]
    for n in range(layers):
        prefix = f"model.layers.{n}."
        yield prefix + "input_layernorm.weight", [width]
        for name, outputs in (("q", heads * head), ("k", kv_heads * head), ("v", kv_heads * head)):
            yield f"{prefix}self_attn.{name}_proj.weight", [outputs, width]
            if qkv_bias:
                yield f"{prefix}self_attn.{name}_proj.bias", [outputs]
        yield prefix + "self_attn.o_proj.weight", [width, heads * head]
        yield prefix + "post_attention_layernorm.weight", [width]
        for name, shape in mlp:
            yield prefix + name, shape
    yield "model.norm.weight", [width]
    if not tied:
        yield "lm_head.weight", [vocabulary, width]


# file, model, dtype, tensors, parameters, and (name, shape) of each tensor
MODELS = (
    ("gpt2", "GPT-2 124M", "F32", 148, 124_439_808,
     gpt2(width=768, layers=12, vocabulary=50257, positions=1024)),
    ("qwen2.5-0.5b", "Qwen2.5-0.5B", "BF16", 290, 494_032_768,
     llama(width=896, layers=24, vocabulary=151936, heads=14, kv_heads=2,
           mlp=list(dense_mlp(896, 4864)), qkv_bias=True, tied=True)),
    ("llama-3.1-8b", "Llama-3.1-8B", "BF16", 291, 8_030_261_248,
     llama(width=4096, layers=32, vocabulary=128256, heads=32, kv_heads=8,
           mlp=list(dense_mlp(4096, 14336)))),
    ("llama-3.1-70b", "Llama-3.1-70B", "BF16", 723, 70_553_706_496,
     llama(width=8192, layers=80, vocabulary=128256, heads=64, kv_heads=8,
           mlp=list(dense_mlp(8192, 28672)))),
    ("mixtral-8x7b", "Mixtral-8x7B", "BF16", 995, 46_702_792_704,
     llama(width=4096, layers=32, vocabulary=32000, heads=32, kv_heads=8,
           mlp=list(experts_mlp(4096, 14336, experts=8)))),
)


def header(model, dtype, tensors, parameters, shapes):
    """Returns the text of the file; exits if the model differs from the published one."""
    entries, end, numel = {"__metadata__": {"model": model}}, 0, 0
    for name, shape in shapes:
        if name in entries:
            sys.exit(f"{model}: {name} appears twice")
        begin, numel = end, numel + math.prod(shape)
        end = begin + math.prod(shape) * DTYPE_BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    if (len(entries) - 1, numel) != (tensors, parameters):
        sys.exit(f"{model}: {len(entries) - 1} tensors and {numel} parameters were generated, "
                 f"but it has {tensors} and {parameters}")
    lines = (f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit("usage: make_models.py [--check]")
    check, stale = bool(sys.argv[1:]), []
    for file, *model in MODELS:
        path = pathlib.Path(__file__).parent / f"{file}.json"
        text = header(*model)
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        sys.exit(f"{', '.join(stale)}: out of date: run make_models.py")


if __name__ == "__main__":
    main()
