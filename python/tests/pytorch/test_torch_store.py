#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `nvswap store export` writes, read by torch, and what torch saves, imported."""

import os
import subprocess
import zipfile

import torch

from promises import BUILD, main, promise

import nvswap
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
    first, second, universal = (os.path.join(directory, name) for name in
                                ("first.pt", "second.pt", "step9"))
    for step in (5, torch.tensor(6), torch.tensor([7], dtype=torch.uint64), torch.tensor(9.)):
        state = random_state()
        torch.save(state | {"step": step}, first)
        store("import", "--kind", "optimizer", "--from", first, directory)
        store("export", "--to", second, directory)
        found = torch.load(second, weights_only=True)
        assert found.pop("step") == int(step)
        assert found.keys() == state.keys()
        assert all(tensor.equal(found[name]) for name, tensor in state.items())
    store("export", "--to", universal, directory)
    for name, tensor in state.items():
        path = os.path.join(universal, "zero", *name.split(".")) + ".pt"
        assert torch.load(path, weights_only=True).equal(tensor)


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
    weights = {name: torch.ones(numel).numpy() for name, numel in GROUPS.items()}
    opened(directory, weights).close()
    saved = os.path.join(directory, "step1")
    store("export", "--to", saved, directory)
    path = os.path.join(saved, "zero", "embed", "exp_avg.pt")
    part = torch.rand(GROUPS["embed"] + 1)[:-1]
    torch.save({"param": part}, path)
    store("import", "--kind", "optimizer", "--from", saved, directory)
    store("export", "--to", os.path.join(directory, "step2"), directory)
    again = path.replace("step1", "step2")
    assert torch.load(again, weights_only=True).equal(part)
    flip_last_byte_of_data(path)
    error = refused("import", "--kind", "optimizer", "--from", saved, directory)
    assert "zero/embed/exp_avg.pt: its bytes do not have the checksum" in error, error


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
