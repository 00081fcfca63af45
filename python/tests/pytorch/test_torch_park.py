#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nvswap.torch.park: tensors of models and optimizers to the drive and back. Needs torch."""

import copy
import errno
import glob
import os
import sys
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from promises import child, main, promise, raises, settings
from stand_in import host_as_device
import nvswap
import nvswap.torch


def trained(module, optimizer, steps):
    for step in steps:
        data = torch.randn(8, 32, generator=torch.Generator().manual_seed(step))
        module(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def made():
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 32))
    module[2].weight = module[0].weight
    return module, torch.optim.AdamW(module.parameters(), lr=0.01)


@promise
def a_model_and_an_optimizer_go_on_exactly_after_a_pause(directory):
    (ours, own), (theirs, torchs) = made(), made()
    for steps in (range(3), range(3, 6)):
        trained(ours, own, steps)
        trained(theirs, torchs, steps)
        parked = [nvswap.torch.park(each, settings(directory)) for each in (ours, own)]
        assert parked[0].nbytes == sum(each.nbytes for each in {*theirs.parameters(), *theirs.buffers()})
        assert not any(each.numel() for each in [*ours.parameters(), *ours.buffers()])
        for each in parked:
            each.unpark()
            each.unpark()
            assert each.nbytes == 0
    assert ours[2].weight is ours[0].weight
    assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))


@promise
def a_parked_model_leaves_memory_and_goes_on_with_its_optimizer_on_the_drive(directory):
    (ours, _), (theirs, _) = made(), made()
    own, other = (nvswap.torch.AdamW(each.parameters(), lr=0.01, config=os.path.join(directory, name))
                  for each, name in ((ours, "ours"), (theirs, "theirs")) if not os.mkdir(os.path.join(directory, name)))
    storage = StorageWeakRef(ours[0].weight.untyped_storage())
    trained(ours, own, range(3))
    parked = nvswap.torch.park(ours, directory)
    assert storage.expired()
    assert "has become another" in str(raises(nvswap.Error, own.step, errno.EINVAL))
    parked.unpark()
    trained(ours, own, range(3, 6))
    trained(theirs, other, range(6))
    own.close()
    other.close()
    assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))


@promise
def tensors_of_one_storage_are_parked_once_and_share_it_again(directory):
    whole = torch.arange(100.0)
    views = {"part": whole[10:20], "across": whole.view(10, 10).t(), "whole": whole,
             "bytes": whole.view(torch.int32), "empty": torch.empty(0), "scalar": torch.tensor(3)}
    expected = copy.deepcopy(views)
    parked = nvswap.torch.park(views, directory)
    assert parked.nbytes == 400 + 8
    parked.unpark()
    for name, tensor in views.items():
        assert tensor.equal(expected[name]) and tensor.stride() == expected[name].stride(), name
    whole[10] = -1
    assert views["part"][0] == -1 and views["across"][0, 1] == -1


@promise
def tensors_of_a_device_go_through_host_memory(directory):
    with host_as_device(sys.modules["nvswap.torch.park"]) as log, \
            mock.patch.object(sys.modules["nvswap.torch.park"], "_STAGING_BYTES", 4096):
        tensor = torch.arange(5000.0)
        parked = nvswap.torch.park({"weights": tensor}, directory)
        assert tensor.numel() == 0 and log == ["pinned"]
        parked.unpark()
    assert tensor.equal(torch.arange(5000.0)) and log == ["pinned"] * 2


@promise
def every_dtype_comes_back_to_the_bit(directory):
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool,
                  torch.complex64, torch.float8_e4m3fn):
        tensor = torch.randint(0, 2, (1001,)).to(dtype)
        expected = tensor.clone()
        nvswap.torch.park([tensor], directory).unpark()
        assert tensor.view(torch.uint8).equal(expected.view(torch.uint8)), dtype


@promise
def what_can_not_be_parked_is_as_before(directory):
    tensor, leaf = torch.ones(3000), torch.ones(3, requires_grad=True)
    for wrong in (leaf * 2, torch.ones(3).to_sparse(), torch.ones(3, device="meta")):
        raises(nvswap.Error, lambda wrong=wrong: nvswap.torch.park([tensor, wrong], directory), errno.EINVAL)
    error = raises(nvswap.Error, lambda: nvswap.torch.park({"a": tensor, "b": [tensor]}, directory), errno.EINVAL)
    assert "b is a list, and no tensor" in str(error), error
    raises(nvswap.Error, lambda: nvswap.torch.park(tensor, os.path.join(directory, "missing")))
    assert tensor.equal(torch.ones(3000))


@promise
def bytes_that_the_drive_lost_are_an_error_and_stay_parked(directory):
    tensor = torch.arange(100000.0)
    config = settings(directory, keep=False)
    parked = nvswap.torch.park({"weights": tensor}, config)
    assert not os.listdir(directory)
    # Files without a name: through the process's descriptors.
    damaged = 0
    for descriptor in glob.glob("/proc/self/fd/*"):
        try:
            if os.readlink(descriptor).startswith(directory) and os.stat(descriptor).st_size > 400000:
                with open(descriptor, "r+b", buffering=0) as file:
                    for at in range(0, os.stat(descriptor).st_size, 4096):
                        file.seek(at)
                        file.write(b"damage")
                    damaged += 1
        except FileNotFoundError:
            pass
    assert damaged
    assert raises(nvswap.Error, parked.unpark, errno.EBADMSG).tensor == "weights"
    assert tensor.numel() == 0 and parked.nbytes == 400000


@promise
def the_memory_of_what_is_parked_goes_back_to_the_system(directory):
    child("""
import os, torch, nvswap.torch
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
# Some as the C library maps them, and some of its arenas, which it keeps.
tensors = [torch.ones(1 << 20) for _ in range(32)] + [torch.ones(4000) for _ in range(8000)]
before = resident()
parked = nvswap.torch.park(tensors, os.environ["DIRECTORY"])
freed = before - resident()
assert freed > 0.7 * (256 << 20), freed
parked.unpark()
assert all(each.eq(1).all() and each.numel() for each in tensors)
""", directory)


main()
