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

import safetensors
import safetensors.numpy
import safetensors.torch
import torch

from promises import BUILD, main, promise, raises, settings

import nvswap

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16,
          "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
          "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
          "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
          "BOOL": torch.bool, "C64": torch.complex64, "F8_E8M0": torch.float8_e8m0fnu,
          "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz}
PACKED = {"F4", "F6_E2M3", "F6_E3M2"}
NUMPY = sorted(name for name in DTYPES if name not in ("BF16", "C64") and not name.startswith("F8_"))
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


def entry(dtype, shape, begin, end, **further):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end], **further}


def write_header(path, header, data):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + data)


def tensors_of_it(path):
    """Name, type, shape and bytes of each tensor, as the package reads them; None: it refuses the file."""
    with open(path, "rb") as file:
        whole = file.read()
    try:
        read = safetensors.deserialize(whole)
    except safetensors.SafetensorError:
        return None
    return {name: (each["dtype"], list(each["shape"]), bytes(each["data"])) for name, each in read}


def tensors_of_nvswap(directory, path):
    """The same of a store that `nvswap store import` fills, exported again; None: it refuses the file."""
    exported = path + ".exported.safetensors"
    done = subprocess.run([os.path.join(BUILD, "nvswap"), "store", "import", "--from", path, directory],
                          check=False, capture_output=True, text=True)
    if done.returncode:
        return None
    store("export", "--to", exported, directory)
    store("remove", directory)
    return tensors_of_it(exported)


@promise
def it_and_nvswap_read_the_same_of_odd_headers(directory):
    data, path = bytes(range(48)), os.path.join(directory, "odd.safetensors")
    one = entry("F32", [4], 0, 16)
    spaces = b'  {"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}} \n'
    headers = [
        ({"__metadata__": None, "a": one}, 16), ({"__metadata__": {"n": 0}, "a": one}, 16),
        ({"__metadata__": {"n": {"x": 1}}, "a": one}, 16), ({"a": {**one, "x": 1}}, 16),
        ({"a": {**one, "strides": [1], "device": {}}}, 16), (spaces, 16), (spaces[2:], 16),
        (spaces[2:] + b"\0\0", 16), (b"\xef\xbb\xbf" + spaces[2:], 16),
        ({"a": one}, 32), ({"a": one}, 12), ({"a": one, "b": entry("F32", [4], 32, 48)}, 48),
        ({"a": entry("F32", [4], 16, 32)}, 32), ({"a": one, "b": one}, 16),
        ({"b": entry("F32", [4], 16, 32), "a": one}, 32), ({"z": entry("F32", [0, 4], 0, 0), "a": one}, 16),
        ({"a": one, "z": entry("F32", [0], 16, 16)}, 16), ({"a": entry("F32", [], 0, 4)}, 4),
        ({"模型.层😀/a b": one}, 16), ({"a": entry("F32", [1] * 20 + [4], 0, 16)}, 16),
        ({"a": entry("f32", [4], 0, 16)}, 16), ({"a": entry("F4", [3], 0, 1)}, 1),
        (b'{"a":{"dtype":"F32","shape":[4.0],"data_offsets":[0,1.6e1]}}', 16)]
    accepted = 0
    for header, nbytes in headers:
        write_header(path, header, data[:nbytes])
        expected = tensors_of_it(path)
        # A space before the header is a matter of taste.
        if header == spaces:
            continue
        assert tensors_of_nvswap(directory, path) == expected, header
        accepted += expected is not None
    assert 0 < accepted < len(headers)


@promise
def each_type_that_it_knows_is_read(directory):
    header = b'{"t":{"dtype":"X9","shape":[],"data_offsets":[0,0]}}'
    error = raises(Exception, lambda: safetensors.deserialize(struct.pack("<Q", len(header)) + header))
    known = set(re.findall("`([A-Z0-9_]+)`", str(error))) - {"X9"}
    assert set(DTYPES) | PACKED == known, error
    for dtype in sorted(PACKED):
        path = os.path.join(directory, "packed.safetensors")
        nbytes = 16 * int(dtype[1]) // 8
        write_header(path, {"t": entry(dtype, [16], 0, nbytes)}, bytes(range(nbytes)))
        assert tensors_of_it(path) == {"t": (dtype, [16], bytes(range(nbytes)))}
        assert tensors_of_nvswap(directory, path) == {"t": ("U8", [nbytes], bytes(range(nbytes)))}
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
