#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
.safetensors files of `nvswap store export`, read by the safetensors package, and files that it writes,
imported: every tensor has the same bits.
"""

import json
import os
import re
import struct
import subprocess
import sys

import safetensors
import safetensors.numpy
import safetensors.torch
import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from promises import BUILD, main, promise, raises, settings  # noqa: E402

import nvswap  # noqa: E402

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16,
          "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
          "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
          "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
          "BOOL": torch.bool}
NUMPY = sorted(set(DTYPES) - {"BF16", "F8_E4M3", "F8_E5M2"})
SHAPES = ((), (0, 3), (7,), (3, 5), (70001,))


def store(*arguments):
    subprocess.run([os.path.join(BUILD, "nvswap"), "store", *arguments], check=True,
                   stdout=subprocess.DEVNULL)


def random_tensor(dtype, shape):
    """Any bits, those that are no number among them."""
    numel = torch.Size(shape).numel()
    size = torch.empty(0, dtype=DTYPES[dtype]).element_size()
    raw = torch.randint(0, 2 if dtype == "BOOL" else 256, (numel * size,), dtype=torch.uint8)
    return raw.view(DTYPES[dtype]).reshape(shape)


def random_tensors(dtypes=tuple(DTYPES)):
    torch.manual_seed(15)
    return {f"{dtype}.größe.{number}": random_tensor(dtype, shape) for dtype in dtypes
            for number, shape in enumerate(SHAPES)}


def bits(tensor):
    return tensor.dtype, tensor.shape, tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert bits(tensor) == bits(other[name]), name


@promise
def its_files_are_imported_and_it_reads_what_is_exported_in_every_dtype(directory):
    first, second = (os.path.join(directory, name) for name in
                     ("first.safetensors", "second.safetensors"))
    tensors = random_tensors()
    safetensors.torch.save_file(tensors, first, metadata={"format": "pt", "note": "a \"quoted\" one"})
    store("import", "--from", first, directory)
    store("export", "--to", second, directory)
    assert_same_bits(tensors, safetensors.torch.load_file(second))
    with safetensors.safe_open(second, "pt") as file:
        assert file.metadata() == {"format": "pt"}


def refusal_of(directory, dtype):
    """What `nvswap store import` says of a file with this type."""
    path = os.path.join(directory, "other.safetensors")
    header = json.dumps({"t": {"dtype": dtype, "shape": [16], "data_offsets": [0, 16]}}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + bytes(16))
    done = subprocess.run([os.path.join(BUILD, "nvswap"), "store", "import", "--from", path, directory],
                          check=False, capture_output=True, text=True)
    assert done.returncode == 1
    return done.stderr


@promise
def its_dtypes_that_nvswap_lacks_are_told_from_those_that_are_unknown(directory):
    header = b'{"t":{"dtype":"X9","shape":[],"data_offsets":[0,0]}}'
    error = raises(Exception, lambda: safetensors.deserialize(struct.pack("<Q", len(header)) + header))
    known = set(re.findall("`([A-Z0-9_]+)`", str(error))) - {"X9"}
    lacking = known - set(DTYPES)
    assert len(known) > len(lacking) > 0, error
    for dtype in lacking:
        said = refusal_of(directory, dtype)
        assert f"nvswap lacks dtype {dtype} of safetensors" in said, said
    assert "dtype X9 is not one of safetensors's" in refusal_of(directory, "X9")


@promise
def its_numpy_files_are_imported_and_it_reads_what_is_exported(directory):
    first, second = (os.path.join(directory, name) for name in
                     ("first.safetensors", "second.safetensors"))
    arrays = {name: tensor.numpy() for name, tensor in random_tensors(NUMPY).items()}
    safetensors.numpy.save_file(arrays, first)
    store("import", "--from", first, directory)
    store("export", "--to", second, directory)
    found = safetensors.numpy.load_file(second)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert found[name].tobytes() == array.tobytes(), name


@promise
def a_program_finds_the_imported_values(directory):
    path = os.path.join(directory, "first.safetensors")
    arrays = {dtype: random_tensor(dtype, (70001,)).numpy() for dtype in NUMPY}
    safetensors.numpy.save_file(arrays, path)
    store("import", "--from", path, directory)
    with nvswap.Engine(settings(directory, keep=True)) as engine:
        engine.register_all({dtype: (dtype, array.shape) for dtype, array in arrays.items()})
        with engine.pinned(list(arrays)) as found:
            for dtype, array in arrays.items():
                assert found[dtype].tobytes() == array.tobytes(), dtype


@promise
def it_reads_each_shard_and_finds_each_tensor_where_the_index_says(directory):
    first, second = (os.path.join(directory, name) for name in
                     ("first.safetensors", "second.safetensors"))
    tensors = random_tensors()
    safetensors.torch.save_file(tensors, first)
    store("import", "--from", first, directory)
    store("export", "--to", second, "--shard-size", "500000", directory)
    with open(second + ".index.json", encoding="utf-8") as file:
        index = json.load(file)
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 3
    found = {name: safetensors.torch.load_file(os.path.join(directory, name)) for name in files}
    assert sum(map(len, found.values())) == len(tensors)
    assert_same_bits(tensors, {name: found[file][name]
                               for name, file in index["weight_map"].items()})


@promise
def optimizer_state_is_read_and_written_too(directory):
    with nvswap.Optimizer({"offload_optimizer": {"device": "nvme", "nvme_path": directory},
                           "sub_group_size": 100000, "nvswap": {"keep": True}},
                          {"w": torch.zeros(50001).numpy()}):
        pass
    first, second = (os.path.join(directory, name) for name in
                     ("first.safetensors", "second.safetensors"))
    state = {f"w.{part}": torch.rand(50001) for part in ("fp32", "exp_avg", "exp_avg_sq")}
    state["step"] = torch.tensor([2**40 + 1], dtype=torch.uint64)
    safetensors.torch.save_file(state, first)
    store("import", "--kind", "optimizer", "--from", first, directory)
    store("export", "--to", second, directory)
    assert_same_bits(state, safetensors.torch.load_file(second))


main()
