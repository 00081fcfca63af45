#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nvswap.open_weights: .safetensors files read in place, beside safe_open. Needs torch and safetensors."""

import contextlib
import errno
import itertools
import json
import os
import struct
import subprocess
import threading
from unittest import mock

import numpy
import safetensors
import safetensors.torch
import torch

from promises import BUILD, child, main, promise, raises
import nvswap

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool,
          torch.float8_e4m3fn, torch.complex64]


def tensors(seed=1, rows=64):
    generator = torch.Generator().manual_seed(seed)
    made = {f"{str(dtype)[6:]}.weight": torch.randint(0, 2, (rows, 3, 50), generator=generator).to(dtype)
            for dtype in DTYPES}
    made["matrix"] = torch.randn(1000, 300, generator=generator)
    made["scalar"] = torch.tensor(7.0)
    made["none"] = torch.empty(0, 4)
    return made


def folder(directory, made=None, metadata=None):
    """A folder of several files with an index, as save_pretrained makes one."""
    made, files = made or tensors(), {}
    for number, part in enumerate(itertools.zip_longest(*[iter(made)] * 4), 1):
        files[f"model-{number:05}.safetensors"] = {name: made[name] for name in part if name}
    for name, part in files.items():
        safetensors.torch.save_file(part, os.path.join(directory, name), metadata)
    index = {"metadata": {}, "weight_map": {name: file for file, part in files.items() for name in part}}
    with open(os.path.join(directory, "model.safetensors.index.json"), "w", encoding="ascii") as file:
        json.dump(index, file)
    return made


def equal(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and (
        not a.numel() or torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)))


def read_bytes(weights):
    return weights.stats()["aio"]["read"]["bytes"]


@promise
def names_types_shapes_and_contents_are_those_of_safe_open(directory):
    made = folder(directory, metadata={"format": "pt", "by": "a test"})
    with nvswap.open_weights(directory) as weights:
        assert weights.keys() == sorted(made)
        assert weights.metadata() == {"format": "pt", "by": "a test"}
        for name, tensor in made.items():
            assert equal(weights.get_tensor(name), tensor), name
            of_slice = weights.get_slice(name)
            assert of_slice.get_shape() == list(tensor.shape)
    path = os.path.join(directory, "one.safetensors")
    safetensors.torch.save_file(made, path)
    with nvswap.open_weights(path) as weights, safetensors.safe_open(path, "pt") as theirs:
        assert weights.keys() == sorted(theirs.keys()) and weights.metadata() == theirs.metadata() is None
        for name in theirs.keys():
            assert equal(weights.get_tensor(name), theirs.get_tensor(name)), name
            assert weights.get_slice(name).get_dtype() == theirs.get_slice(name).get_dtype()
        weights.register_rows("matrix", 1)
        assert weights.offset_keys() == theirs.offset_keys() != weights.keys()
        ours = weights.get_tensors()
        assert list(ours) == list(theirs.get_tensors()) and all(equal(ours[name], made[name]) for name in made)
    for framework in ("pt", "torch", "pytorch", "np", "numpy"):
        with nvswap.open_weights(path, framework=framework) as ours, safetensors.safe_open(path, framework) as theirs:
            assert isinstance(ours.get_tensor("matrix"), type(theirs.get_tensor("matrix"))), framework


@promise
def headers_are_parsed_once(directory):
    path = os.path.join(directory, "one.safetensors")
    safetensors.torch.save_file(tensors(), path, {"format": "pt"})
    with mock.patch("nvswap.weights.json.loads", wraps=json.loads) as loads:
        with nvswap.open_weights(path) as weights:
            for _ in range(2):
                assert weights.metadata() == {"format": "pt"}
    assert loads.call_count == 1


@promise
def several_files_are_one_set_of_tensors(directory):
    paths = []
    for number in range(3):
        paths.append(os.path.join(directory, f"{number}.safetensors"))
        safetensors.torch.save_file({f"t{number}": torch.full((5,), float(number))}, paths[-1],
                                    {"number": str(number), f"only {number}": "x"})
    with nvswap.open_weights(iter(paths)) as weights:
        assert weights.keys() == ["t0", "t1", "t2"]
        assert weights.metadata() == {"number": "0", "only 0": "x", "only 1": "x", "only 2": "x"}
        assert weights.get_tensor("t2").tolist() == [2.0] * 5


@promise
def metadata_is_that_of_the_files_as_they_were_opened(directory):
    path, other = (os.path.join(directory, f"{name}.safetensors") for name in ("one", "other"))
    pool = {"zero_optimization": {"offload_param": {"buffer_count": 1, "buffer_size": 1 << 20}}}
    for config in None, pool:
        safetensors.torch.save_file({"a": torch.arange(3)}, path, {"version": "1"})
        safetensors.torch.save_file({"a": torch.arange(3)}, other, {"version": "2"})
        with nvswap.open_weights(path, config) as weights, safetensors.safe_open(path, "pt") as theirs:
            os.rename(other, path)
            assert weights.metadata() == theirs.metadata() == {"version": "1"}


@promise
def arrays_of_numpy_are_those_of_safe_open(directory):
    path = os.path.join(directory, "a.safetensors")
    safetensors.torch.save_file({"a": torch.arange(12.0).view(3, 4), "b": torch.arange(5)}, path)
    with nvswap.open_weights(path, framework="np") as weights, safetensors.safe_open(path, "np") as theirs:
        for name in theirs.keys():
            ours = weights.get_tensor(name)
            assert isinstance(ours, numpy.ndarray) and ours.dtype == theirs.get_tensor(name).dtype
            assert numpy.array_equal(ours, theirs.get_tensor(name))
        assert weights.get_slice("a")[1:, 2].tolist() == [6.0, 10.0]
    raises(nvswap.Error, lambda: nvswap.open_weights(path, framework="tf"), errno.EINVAL)


@promise
def a_slice_has_what_the_index_takes_of_the_tensor(directory):
    made = folder(directory)
    indices = [..., (), 0, -1, 5, slice(None), slice(3, 9), slice(-4, None), slice(9, 3), slice(0, 60, 7),
               (3, 1), (3, -1, 4), (2, slice(1, 3)), (slice(2, 5), 1), (slice(2, 50, 3), slice(None), slice(5, 9)),
               (..., 3), (None, 2), ([1, 5, 7],), (slice(60, 900), ..., 0), (4, [0, 2])]
    with nvswap.open_weights(directory) as weights:
        for name in ("float32.weight", "bfloat16.weight", "uint8.weight"):
            for index in indices:
                found = weights.get_slice(name)[index]
                assert equal(found, made[name][index].contiguous()), (name, index)
                assert found.is_contiguous() and found.untyped_storage().nbytes() == found.nbytes
        assert equal(weights.get_slice("scalar")[()], made["scalar"])
        assert equal(weights.get_slice("none")[:], made["none"])
        raises(IndexError, lambda: weights.get_slice("matrix")[1000])
        raises(IndexError, lambda: weights.get_slice("matrix")[-1001])
        raises(ValueError, lambda: weights.get_slice("matrix")[::-1])
        raises(nvswap.Error, lambda: weights.get_slice("another"), errno.ENOENT)
        raises(nvswap.Error, lambda: weights.get_tensor("another"), errno.ENOENT)


@promise
def bytes_of_a_bool_are_those_of_the_file_as_safe_open_has_them(directory):
    header = json.dumps({"a": {"dtype": "BOOL", "shape": [4, 5], "data_offsets": [0, 20]}}).encode()
    path = os.path.join(directory, "a.safetensors")
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + bytes(range(20)))
    indices = (slice(None), slice(1, 3), (slice(1, 3), slice(2, 4)), slice(0, 4, 2), (..., 3), 2, (3, 4))
    with nvswap.open_weights(path) as weights, safetensors.safe_open(path, "pt") as theirs:
        for pinned in False, True:
            with weights.pinned("a") if pinned else contextlib.nullcontext():
                found = weights.get_tensor("a").view(torch.uint8)
                assert found.flatten().tolist() == list(range(20))
                assert torch.equal(found, theirs.get_tensor("a").view(torch.uint8))
                for index in indices:
                    assert torch.equal(weights.get_slice("a")[index].view(torch.uint8),
                                       theirs.get_slice("a")[index].view(torch.uint8)), index


@promise
def a_slice_reads_its_rows_alone(directory):
    path = os.path.join(directory, "large.safetensors")
    large = torch.arange(8 << 20, dtype=torch.int32).view(1024, 32, 256)
    safetensors.torch.save_file({"large": large}, path)
    with nvswap.open_weights(path) as weights:
        before = read_bytes(weights)
        assert torch.equal(weights.get_slice("large")[100:102], large[100:102])
        assert torch.equal(weights.get_slice("large")[7, 3], large[7, 3])
        # Three rows and what rounds them up to units, of 32 MiB.
        assert read_bytes(weights) - before <= 2 * 32768 + 1024 + 4 * 8192


@promise
def rows_are_tensors_of_their_own(directory):
    made = folder(directory)
    with nvswap.open_weights(directory) as weights:
        rows = weights.register_rows("matrix", 300, 2)
        assert rows.name == "matrix[300:302]" and rows.shape == (2, 300) and rows.nbytes == 2400
        assert weights.register_rows("matrix", 0, new_name="first").name == "first"
        before = read_bytes(weights)
        with weights.pinned([rows, "first"]) as pinned:
            assert equal(pinned[rows.name], made["matrix"][300:302]) and equal(pinned["first"], made["matrix"][:1])
        assert read_bytes(weights) - before < made["matrix"].nbytes // 10
        assert equal(weights.get_tensor("first"), made["matrix"][:1])
        weights.forget("first")
        raises(nvswap.Error, lambda: weights.register_rows("matrix", 300, 2), errno.EEXIST)
        for first, count in ((999, 2), (-1, 1), (0, 0), (0, -1)):
            raises(nvswap.Error, lambda at=first, n=count: weights.register_rows("matrix", at, n), errno.EINVAL)
        raises(nvswap.Error, lambda: weights.register_rows("scalar", 0), errno.EINVAL)
        raises(nvswap.Error, lambda: weights.register_rows("absent", 0), errno.ENOENT)


@promise
def tensors_are_pinned_without_a_copy_and_read_ahead(directory):
    made = folder(directory)
    with nvswap.open_weights(directory) as weights:
        base, nbytes = weights.pool()
        assert weights.prefetch(["matrix", "float32.weight"]) == 2
        weights.wait(["matrix", "float32.weight"])
        before = read_bytes(weights)
        with weights.pinned(["matrix", "float32.weight"]) as pinned:
            assert all(base <= each.data_ptr() < base + nbytes for each in pinned.values())
            assert all(equal(each, made[name]) for name, each in pinned.items())
            # What is pinned is read too, wholly and in part, and what is not.
            assert equal(weights.get_tensor("matrix"), made["matrix"])
            assert equal(weights.get_slice("matrix")[7:9], made["matrix"][7:9])
            assert read_bytes(weights) == before
            assert equal(weights.get_tensor("int64.weight"), made["int64.weight"])
            del pinned
        assert not weights.pinned_names()


@promise
def a_pool_that_is_full_or_too_small_is_not_waited_for_by_get_tensor(directory):
    made = folder(directory)
    pool = {"zero_optimization": {"offload_param": {"device": "none", "buffer_count": 1, "buffer_size": 400000}}}
    small = {"zero_optimization": {"offload_param": {"buffer_count": 1, "buffer_size": 65536}}}
    with nvswap.open_weights(directory, pool) as weights, weights.pinned("matrix"):
        assert equal(weights.get_tensor("float32.weight"), made["float32.weight"])
    with nvswap.open_weights(directory, small) as weights:
        assert equal(weights.get_tensor("matrix"), made["matrix"])
        raises(nvswap.Error, lambda: weights.pinned("matrix"), errno.E2BIG)


@promise
def the_default_pool_holds_the_largest_tensor_twice(directory):
    path = os.path.join(directory, "large.safetensors")
    safetensors.torch.save_file({name: torch.zeros(48 << 20, dtype=torch.uint8) for name in "ab"}, path)
    for config in (None, directory, {}, {"aio": {"queue_depth": 4}}):
        with nvswap.open_weights(path, config) as weights, weights.pinned(["a", "b"]):
            assert 96 << 20 <= weights.pool()[1] < 97 << 20, config
    for source in (pool := {"zero_optimization": {"offload_param": {"buffer_size": 1 << 20, "buffer_count": 2}}},
                   nvswap.Config(pool)):
        with nvswap.open_weights(path, source) as weights:
            assert weights.pool()[1] == 8 << 20
    safetensors.torch.save_file({"a": torch.zeros(4)}, path)
    with nvswap.open_weights(path) as weights:
        assert weights.pool()[1] == 64 << 20


@promise
def threads_read_pin_and_slice_the_same_tensors_at_once(directory):
    made, failures = folder(directory), []

    def read(number, weights):
        try:
            for turn in range(40):
                name = ("matrix", "float32.weight")[(turn + number) % 2]
                if number % 3 == 0:
                    assert equal(weights.get_tensor(name), made[name])
                elif number % 3 == 1:
                    assert equal(weights.get_slice(name)[turn:turn + 3], made[name][turn:turn + 3])
                else:
                    with weights.pinned(name) as pinned:
                        assert equal(pinned[name], made[name])
        except BaseException as failure:
            failures.append(failure)

    pool = {"zero_optimization": {"offload_param": {"buffer_count": 1, "buffer_size": 320000}}}
    with nvswap.open_weights(directory, pool) as weights:
        threads = [threading.Thread(target=read, args=(number, weights)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures


@promise
def what_would_write_is_refused(directory):
    folder(directory)
    with nvswap.open_weights(directory) as weights:
        raises(nvswap.Error, lambda: weights.register("more", "F32", 4), errno.EROFS)
        raises(nvswap.Error, lambda: weights.pinned("matrix", "w"), errno.EROFS)
        raises(nvswap.Error, lambda: weights.store_from({"scalar": torch.zeros(1)}), errno.EROFS)
    error = raises(nvswap.ClosedError, lambda: weights.get_tensor("scalar"), errno.EBADF)
    assert str(error).startswith("the engine is closed"), error


@promise
def files_that_are_missing_or_wrong_are_refused_by_name(directory):
    path = os.path.join(directory, "a.safetensors")
    assert directory in str(raises(nvswap.Error, lambda: nvswap.open_weights(directory), errno.ENOENT))
    assert path in str(raises(nvswap.Error, lambda: nvswap.open_weights(path), errno.ENOENT))
    raises(nvswap.Error, lambda: nvswap.open_weights([]), errno.EINVAL)
    safetensors.torch.save_file({"a": torch.zeros(2)}, path)
    with nvswap.open_weights(path) as weights:
        for call in (weights.get_tensor, weights.get_slice):
            assert "a str, not 3" in str(raises(TypeError, lambda call=call: call(3)))
    for data in (b"", b"\xff" * 100, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 9) + b'{"a": []}'):
        with open(path, "wb") as file:
            file.write(data)
        assert path in str(raises(nvswap.Error, lambda: nvswap.open_weights(path)))
    for name in ("pipe.safetensors", "pipe.index.json"):  # Not waited for: nothing may ever write to it.
        path = os.path.join(directory, name)
        os.mkfifo(path)
        found = child(f"import nvswap\ntry:\n    nvswap.open_weights({path!r})\nexcept nvswap.Error as error:\n"
                      "    print(error)", directory)
        assert f"{path} is not a regular file" in found, found


@promise
def a_file_that_is_replaced_is_stale(directory):
    path, other = (os.path.join(directory, name) for name in ("a.safetensors", "b.safetensors"))
    safetensors.torch.save_file({"a": torch.zeros(100000)}, path)
    safetensors.torch.save_file({"a": torch.ones(100000)}, other)
    with nvswap.open_weights(path) as weights:
        assert not weights.get_slice("a")[5]
        os.replace(other, path)
        for read in (lambda: weights.get_slice("a")[5], lambda: weights.get_tensor("a")):
            assert path in str(raises(nvswap.Error, read, errno.ESTALE))


@promise
def tensors_are_compared_with_the_checksums_that_the_command_wrote(directory):
    made, verify = folder(directory), {"nvswap": {"verify": True}}
    sums = os.path.join(directory, "sums")
    os.mkdir(sums)
    subprocess.run([os.path.join(BUILD, "nvswap"), "store", "checksum", "--to", sums, directory], check=True,
                   stdout=subprocess.DEVNULL)
    with nvswap.open_weights(directory, verify, checksums=sums) as weights:
        assert all(each.checksum is not None for each in weights.stored() if each.nbytes)
        for name, tensor in made.items():
            assert equal(weights.get_tensor(name), tensor), name
    path = os.path.join(directory, "model-00003.safetensors")
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    with nvswap.open_weights(directory, verify, checksums=sums) as weights:
        damaged = {}
        for name, tensor in made.items():
            try:
                assert equal(weights.get_tensor(name), tensor), name
            except nvswap.Error as error:
                damaged[name] = error.errno, str(error)
        (name, (code, text)), = damaged.items()
        assert code == errno.EBADMSG and path in text and name in text
    with nvswap.open_weights(directory, checksums=sums) as weights:
        assert not equal(weights.get_tensor(name), made[name])
    os.mkdir(os.path.join(directory, "empty"))
    for other in ("empty", "none"):
        error = raises(nvswap.Error, lambda other=other: nvswap.open_weights(
            directory, verify, checksums=os.path.join(directory, other)), errno.ENOENT)
        assert os.path.join(directory, other, "model-0000") in str(error)


@promise
def packed_elements_are_bytes(directory):
    header = json.dumps({"f4": {"dtype": "F4", "shape": [2, 4], "data_offsets": [0, 4]},
                         "f6": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [4, 7]}}).encode()
    path = os.path.join(directory, "a.safetensors")
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + bytes(range(7)))
    for framework in ("pt", "np"):
        with nvswap.open_weights(path, framework=framework) as weights:
            assert weights.get_slice("f4").get_shape() == [2, 4] and weights.get_slice("f6").get_dtype() == "F6_E2M3"
            assert weights.get_tensor("f4").tolist() == [0, 1, 2, 3]
            with weights.pinned("f6") as pinned:
                assert pinned["f6"].tolist() == [4, 5, 6]
                del pinned
            raises(nvswap.Error, lambda: weights.get_slice("f4")[0], errno.EINVAL)


@promise
def a_program_without_torch_reads_arrays_of_numpy(directory):
    safetensors.torch.save_file({"a": torch.arange(3)}, os.path.join(directory, "model.safetensors"))
    script = ("import os, sys, nvswap\n"
              "with nvswap.open_weights(os.environ['DIRECTORY'], framework='np') as weights:\n"
              "    print(weights.get_tensor('a').tolist(), 'torch' in sys.modules)\n")
    assert child(script, directory) == "[0, 1, 2] False\n"


main()
