#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Files that torch.save writes, read by nvs_checkpoint_open: every tensor is found with its dtype, shape
and bytes, or left out, or the file is refused with the reason.
"""

import argparse
import collections
import ctypes
import errno
import os
import random
import warnings
import zipfile

import torch

from promises import BUILD, main, promise

import nvswap

FILES = 200
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16,
          "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32, "I16": torch.int16,
          "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool, "U16": torch.uint16,
          "U32": torch.uint32, "U64": torch.uint64, "F8_E4M3": torch.float8_e4m3fn,
          "F8_E5M2": torch.float8_e5m2}


class Error(ctypes.Structure):
    """struct nvs_error"""
    _fields_ = [("size", ctypes.c_size_t), ("code", ctypes.c_int), ("line", ctypes.c_uint),
                ("offset", ctypes.c_uint64), ("subject", ctypes.c_char * 128),
                ("text", ctypes.c_char * 1024)]


class Tensor(ctypes.Structure):
    """struct nvs_checkpoint_tensor"""
    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("dtype", ctypes.c_int),
                ("numel", ctypes.c_uint64), ("nbytes", ctypes.c_uint64),
                ("ndim", ctypes.c_size_t), ("shape", ctypes.POINTER(ctypes.c_uint64)),
                ("path", ctypes.c_char_p), ("offset", ctypes.c_uint64)]


library = ctypes.CDLL(os.path.join(BUILD, "libnvswap.so"))
library.nvs_checkpoint_count.restype = ctypes.c_size_t
library.nvs_dtype_name.restype = ctypes.c_char_p


class Refused(Exception):
    """nvs_checkpoint_open failed; says why."""


def read(path):
    """The tensors of a file: dtype, shape and bytes by name."""
    checkpoint, error = ctypes.c_void_p(), Error(size=ctypes.sizeof(Error))
    if library.nvs_checkpoint_open(ctypes.byref(checkpoint), path.encode(), ctypes.byref(error)):
        raise Refused(error.text.decode())
    found = {}
    with open(path, "rb") as file:
        for index in range(library.nvs_checkpoint_count(checkpoint)):
            tensor = Tensor(size=ctypes.sizeof(Tensor))
            assert not library.nvs_checkpoint_get(checkpoint, ctypes.c_size_t(index),
                                                  ctypes.byref(tensor))
            file.seek(tensor.offset)
            found[tensor.name.decode()] = (
                library.nvs_dtype_name(tensor.dtype).decode(), tensor.shape[:tensor.ndim],
                file.read(tensor.nbytes))
    library.nvs_checkpoint_close(checkpoint)
    return found


def refusal(path):
    try:
        read(path)
    except Refused as error:
        return str(error)
    raise AssertionError(f"{path} is read")


def expected(dtype, tensor):
    contents = tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else tensor
    return dtype, list(tensor.shape), bytes(contents.tolist()) if tensor.numel() else b""


def some_tensor(chance):
    """A dtype and a tensor of it: some of a shared storage, some not contiguous."""
    dtype = chance.choice(list(DTYPES))
    shape = [chance.randrange(1, 6) if chance.random() < 0.9 else 0
             for _ in range(chance.randrange(4))]
    numel = max(1, int(torch.Size(shape).numel()))
    size = torch.empty(0, dtype=DTYPES[dtype]).element_size()
    raw = torch.randint(0, 2 if dtype == "BOOL" else 120, (numel * size,), dtype=torch.uint8)
    tensor = raw.view(DTYPES[dtype])[:torch.Size(shape).numel()].reshape(shape)
    if len(shape) > 1 and chance.random() < 0.5:
        tensor = tensor.transpose(0, 1)
    elif len(shape) > 0 and shape[0] > 1 and chance.random() < 0.2:
        tensor = tensor[1:]
    return dtype, tensor


@promise
def two_hundred_files_are_read_or_refused_with_a_reason(directory):
    chance = random.Random(20240229)
    torch.manual_seed(20240229)
    path, refused, left_out = os.path.join(directory, "file.pt"), 0, 0
    for _ in range(FILES):
        made = {f"t{i}": some_tensor(chance) for i in range(chance.randrange(1, 5))}
        shared = chance.choice(list(made))
        value = {name: tensor for name, (_, tensor) in made.items()}
        value |= {"step": 7, "lr": 0.1, "name": "x", "deep": [{"again": made[shared][1]}, None]}
        torch.save(value, path, pickle_protocol=chance.choice((2, 3, 4, 5)))
        made["deep.0.again"] = made[shared]
        listed = {name: pair for name, pair in made.items() if pair[1].is_contiguous()}
        left_out += len(made) - len(listed)
        if listed:
            assert read(path) == {name: expected(*pair) for name, pair in listed.items()}
        else:
            assert "do not follow one another" in refusal(path)
            refused += 1
    assert refused and left_out, (refused, left_out)


@promise
def what_a_model_and_deepspeed_save_is_read(directory):
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    path = os.path.join(directory, "file.pt")
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    torch.save({"module": model.state_dict(), "buffer_names": ["1.running_mean"],
                "shared": [model[0].weight, torch.nn.Parameter(torch.ones(2))],
                "shapes": [collections.OrderedDict(a=torch.Size([2, 3]))],
                "scaler": LossScaler(scale=1.0), "dynamic": DynamicLossScaler(
                    init_scale=2**16, scale_window=1000, min_scale=1, delayed_shift=1,
                    consecutive_hysteresis=False),
                "zero_stage": ZeroStageEnum.weights, "dtype": torch.bfloat16,
                "args": argparse.Namespace(a=1), "big": 2**70, "device": torch.device("cpu"),
                "bytes": {1: torch.arange(3)}}, path)
    found = read(path)
    for name, tensor in model.state_dict().items():
        assert found[f"module.{name}"][1:] == expected("", tensor)[1:], name
    assert found["shared.0"] == found["module.0.weight"]
    assert found["bytes.1"] == expected("I64", torch.arange(3))
    marked = {"tensor": torch.arange(3.), "parameter": torch.nn.Parameter(torch.arange(3.))}
    for tensor in marked.values():
        tensor.ds_id = "10_0"
    torch.save(marked, path)
    assert read(path) == {name: expected("F32", torch.arange(3.)) for name in marked}
    torch.save({"empty": torch.empty(0, 3, 2).transpose(1, 2)}, path)
    assert read(path) == {"empty": ("F32", [0, 2, 3], b"")}
    torch.save(torch.arange(5), path)
    assert read(path) == {"tensor": expected("I64", torch.arange(5))}


@promise
def values_that_torch_reads_with_weights_only_are_read_past(directory):
    path = os.path.join(directory, "file.pt")
    values = {"set": {1, 2}, "empty set": set(), "bytes": bytes(range(256)),
              "bytearray": bytearray(b"\x00\xff"), "no bytearray": bytearray(), "complex": 1 + 2j,
              "counter": collections.Counter("aab"), "layout": torch.strided,
              "dtypes": [torch.complex64, torch.float8_e4m3fnuz, torch.quint8],
              "nested": [{"deep": ({3}, b"x", collections.Counter())}],
              (1, "a"): [2], None: {}, b"key": [{1}], 1.5: ()}
    for protocol in (2, 3, 4, 5):
        torch.save({"a": torch.arange(3), **values, "frozenset": frozenset({1}), "no bytes": b""}, path,
                   pickle_protocol=protocol)
        assert read(path) == {"a": expected("I64", torch.arange(3))}, protocol
    torch.save({"a": torch.arange(3), **values}, path)
    torch.load(path, weights_only=True)


@promise
def tensors_that_can_not_be_imported_leave_the_others_usable(directory):
    path = os.path.join(directory, "file.pt")
    square = torch.arange(4.).reshape(2, 2)
    other = "it is sparse, quantized, nested, of a subclass, or without data"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = torch.quantize_per_tensor(square, 0.1, 10, torch.quint8)
        compressed = square.to_sparse_csr()
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    unread = {
        "turned": (square.t(), "its elements do not follow one another"),
        "sliced": (square[:, 1], "its elements do not follow one another"),
        "expanded": (torch.ones(1, 3).expand(2, 3), "its elements do not follow one another"),
        "complex": (torch.ones(2, dtype=torch.complex64), "nvswap has no type for its elements"),
        "fnuz": (square.to(torch.float8_e4m3fnuz), "nvswap has no type for its elements"),
        "negated": (torch._neg_view(torch.arange(4.)), "it is a negated or conjugated view"),
        "conjugated": (torch.ones(2, dtype=torch.complex64).conj().imag,
                       "it is a negated or conjugated view"),
        "quantized": (quantized, other), "sparse": (square.to_sparse(), other),
        "compressed": (compressed, other), "nested": (nested, other),
        "meta": (torch.empty(2, device="meta"), other),
        "meta parameter": (torch.nn.Parameter(torch.empty(2, device="meta")), other)}
    torch.save({"first": square, **{name: value for name, (value, _) in unread.items()},
                "last": torch.arange(3)}, path)
    assert read(path) == {"first": expected("F32", square), "last": expected("I64", torch.arange(3))}
    config = {"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": directory,
                                                      "buffer_count": 2, "buffer_size": 4096}}}
    with nvswap.Engine(config) as engine:
        engine.register("first", "F32", 4)
        nvswap.import_tensors(engine, path)
        with engine.pinned("first") as pinned:
            assert pinned["first"].tolist() == [0, 1, 2, 3]
        for name, (_, reason) in unread.items():
            engine.register(name, "F32", 1)
            try:
                nvswap.import_tensors(engine, path, [name])
            except nvswap.Error as error:
                assert error.errno == errno.ENOENT and f"tensor {name} can't be read: {reason}" in str(error)
            else:
                raise AssertionError(f"{name} was imported")
    for name, (value, reason) in unread.items():
        torch.save({name: value}, path)
        assert f"tensor {name}: it can't be read, and there is no other: {reason}" in refusal(path)


class Unknown:
    """A class that no checkpoint may have."""


@promise
def what_is_not_permitted_or_not_stored_is_refused_with_the_reason(directory):
    path = os.path.join(directory, "file.pt")
    torch.save({"a": torch.ones(1), "b": Unknown()}, path)
    assert "__main__.Unknown, which is not among what a checkpoint may have" in refusal(path)
    torch.save({"a": torch.ones(1)}, path)
    with zipfile.ZipFile(path) as saved, \
            zipfile.ZipFile(path + "z", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in saved.namelist():
            packed.writestr(name, saved.read(name) * 100)
    assert "is compressed" in refusal(path + "z")
    torch.save({"a": torch.ones(1)}, path, _use_new_zipfile_serialization=False)
    assert "before version 1.6" in refusal(path)
    torch.save({"a": 1}, path)
    assert "holds no tensor" in refusal(path)
    torch.serialization.set_crc32_options(False)
    torch.save({"a": torch.ones(1)}, path)
    torch.serialization.set_crc32_options(True)
    assert "has no CRC-32" in refusal(path)


main()
