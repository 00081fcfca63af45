#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `nvswap store export` and `export_universal` write, read by torch, and what torch saves, imported."""

import argparse
import errno
import os
import subprocess
import zipfile
from collections import Counter, deque
from pathlib import PurePath

import numpy
import torch

from promises import BUILD, main, promise, raises

import nvswap
from nvswap import Parameter, export_universal, import_universal
import nvswap.torch

PARTS = ("fp32", "exp_avg", "exp_avg_sq")
GROUPS = {"embed": 50000, "head": 7}


def opened(directory, groups=None):
    return nvswap.Optimizer({"offload_optimizer": {"device": "nvme", "nvme_path": directory},
                             "sub_group_size": 100000, "nvswap": {"keep": True}}, groups)


def store(*arguments):
    subprocess.run([os.path.join(BUILD, "nvswap"), "store", *arguments], check=True,
                   stdout=subprocess.DEVNULL)


def refused(*arguments):
    """What the command says."""
    done = subprocess.run([os.path.join(BUILD, "nvswap"), "store", *arguments], check=False,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert done.returncode != 0
    return done.stderr


def flip_last_byte_of_data(path):
    """Of the last storage."""
    with zipfile.ZipFile(path) as archive:
        *_, name = (name for name in archive.namelist() if "/data/" in name)
        data = archive.read(name)
    with open(path, "r+b") as file:
        whole = file.read()
        file.seek(whole.index(data) + len(data) - 1)
        file.write(bytes([data[-1] ^ 1]))


def random_state():
    return {f"{group}.{part}": torch.rand(numel) for group, numel in GROUPS.items()
            for part in PARTS}


@promise
def torch_reads_what_is_exported_and_what_torch_saves_is_imported(directory):
    weights = {name: torch.zeros(numel).numpy() for name, numel in GROUPS.items()}
    opened(directory, weights).close()
    first, second = (os.path.join(directory, name) for name in ("first.pt", "second.pt"))
    for step in (5, torch.tensor(6), torch.tensor([7], dtype=torch.uint64), torch.tensor(9.)):
        state = random_state()
        torch.save(state | {"step": step}, first)
        store("import", "--kind", "optimizer", "--from", first, directory)
        store("export", "--to", second, directory)
        found = torch.load(second, weights_only=True)
        assert found.pop("step") == int(step)
        assert found.keys() == state.keys()
        assert all(tensor.equal(found[name]) for name, tensor in state.items())


@promise
def torch_reads_a_universal_checkpoint_and_what_torch_saves_is_imported(directory):
    universal = os.path.join(directory, "step9")
    parameters = [Parameter("a", "embed", 0, 49995, 0, (5, 9, 1111)), Parameter("b", "embed", 49995, 5),
                  Parameter("none", "embed", 0, 0, 0, (3, 0)), Parameter("scalar", "head", 0, 1, 0, ())]
    with opened(directory, {name: torch.rand(numel).numpy() for name, numel in GROUPS.items()}) as optimizer:
        for step in (5, torch.tensor(6), torch.tensor(7.), torch.tensor([8., 9.], dtype=torch.float64)[1],
                     torch.tensor(10, dtype=torch.int32)):
            export_universal(optimizer, universal, parameters)
            for each in parameters:
                for mmap in (False, True):
                    found = torch.load(os.path.join(universal, "zero", each.name, "fp32.pt"), weights_only=True, mmap=mmap)
                    own = optimizer.get_state(each.group, "master", each.offset, each.numel)
                    assert found.shape == (each.shape if each.shape is not None else (each.numel,))
                    assert found.flatten().equal(torch.from_numpy(own))
            file = os.path.join(universal, "zero/optimizer_state.pt")
            found = torch.load(file, weights_only=True)
            assert found["optimizer_state_dict"]["state"][0]["step"] == optimizer.step_count
            found["optimizer_state_dict"]["state"][0]["step"] = step
            found |= {"loss_scaler": argparse.Namespace(scale=1), "counts": Counter("aab"), "stage": PurePath("a"),
                      "lr": numpy.float64(0.5), "last": deque([1, 2])}
            torch.save(found, file)
            wanted = torch.rand(5, 9, 1111)
            torch.save({"param": wanted}, os.path.join(universal, "zero/a/exp_avg.pt"))
            import_universal(optimizer, universal, parameters)
            assert optimizer.step_count == int(step)
            assert torch.from_numpy(optimizer.get_state("embed", "exp_avg", 0, 49995)).equal(wanted.flatten())


@promise
def weights_load_into_their_model_after_a_store(directory):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5))
    first, second = (os.path.join(directory, name) for name in ("first.pt", "second.pt"))
    torch.save(model.state_dict(), first)
    store("import", "--from", first, directory)
    store("export", "--to", second, directory)
    found = torch.load(second, weights_only=True)
    for name, tensor in model.state_dict().items():
        assert found[name].shape == tensor.shape and found[name].equal(tensor), name
    torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5)).load_state_dict(found)


@promise
def weights_of_an_offloaded_module_load_into_one_that_is_not(directory):
    path = os.path.join(directory, "weights.pt")
    model = torch.nn.Linear(7, 5)
    wanted = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    offloaded = nvswap.torch.offload(model, {
        "offload_param": {"device": "nvme", "nvme_path": directory}, "nvswap": {"keep": True}})
    offloaded.engine.close()
    store("export", "--to", path, directory)
    found = torch.load(path, weights_only=True)
    torch.nn.Linear(7, 5).load_state_dict(found)
    assert all(found[name].equal(tensor) for name, tensor in wanted.items())


@promise
def damage_of_a_storage_that_parts_of_the_state_share_is_refused(directory):
    weights = {name: torch.zeros(numel).numpy() for name, numel in GROUPS.items()}
    opened(directory, weights).close()
    first, second = (os.path.join(directory, name) for name in ("first.pt", "second.pt"))
    # An element that belongs to none comes last.
    flat, state, offset = torch.rand(3 * sum(GROUPS.values()) + 1), {}, 0
    for name, tensor in random_state().items():
        state[name] = flat.narrow(0, offset, tensor.numel())
        offset += tensor.numel()
    torch.save(state | {"step": 5}, first)
    store("import", "--kind", "optimizer", "--from", first, directory)
    store("export", "--to", second, directory)
    found = torch.load(second, weights_only=True)
    assert all(tensor.equal(found[name]) for name, tensor in state.items())
    flip_last_byte_of_data(first)
    error = refused("import", "--kind", "optimizer", "--from", first, directory)
    assert f"{first}: tensor embed.fp32 is a part of a storage" in error, error


@promise
def damage_of_a_storage_of_which_a_parameter_is_a_part_is_refused(directory):
    saved = os.path.join(directory, "step1")
    path = os.path.join(saved, "zero", "embed", "exp_avg.pt")
    part = torch.rand(GROUPS["embed"] + 1)[:-1]
    with opened(directory, {name: torch.ones(numel).numpy() for name, numel in GROUPS.items()}) as optimizer:
        export_universal(optimizer, saved)
        torch.save({"param": part}, path)
        import_universal(optimizer, saved)
        assert torch.from_numpy(optimizer.get_state("embed", "exp_avg")).equal(part)
        flip_last_byte_of_data(path)
        error = raises(nvswap.Error, lambda: import_universal(optimizer, saved), errno.EBADMSG)
        assert f"{path}: its bytes do not have the checksum" in str(error), error


@promise
def damage_of_a_step_that_is_a_tensor_is_refused(directory):
    weights = {name: torch.zeros(numel).numpy() for name, numel in GROUPS.items()}
    opened(directory, weights).close()
    path = os.path.join(directory, "state.pt")
    torch.save(random_state() | {"step": torch.tensor([7, 8])[:1]}, path)
    store("import", "--kind", "optimizer", "--from", path, directory)
    flip_last_byte_of_data(path)
    error = refused("import", "--kind", "optimizer", "--from", path, directory)
    assert f"{path}: tensor step: record state/data/6 is damaged" in error, error


main()
