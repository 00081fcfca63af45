#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Depth "step" with DeepSpeed's Lion and Adagrad: losses are those of state in memory, and checkpoints go between both,
of ranks and universal. State in memory is stepped and loaded by DeepSpeed's own classes, with nvswap's ops.
"""

import glob
import os
import subprocess
import sys
import types

from jobs import below, configuration, in_memory, job, outputs_of, start
from promises import main, promise

os.environ["DS_ACCELERATOR"] = "cpu"
import torch  # noqa: E402
from nvswap.checkpoint import Parameter  # noqa: E402
from nvswap.deepspeed.checkpoint import universal as universal_checkpoints  # noqa: E402

PARAMS = {"Lion": {"lr": 1e-3, "betas": [0.9, 0.98], "weight_decay": 0.1},
          "Adagrad": {"lr": 1e-2, "eps": 1e-8, "weight_decay": 0.01}}
JOBS = (("Lion", "bf16"), ("Adagrad", "fp32"))
SIZE = {"width": 64, "steps": 4}
UNIVERSAL = {"load_universal": True}


def by(kind, directory=None, dtype="fp32", lr=None, universal=False):
    """A job that the optimizer `kind` steps, with state on the drive if there is a directory."""
    config = configuration(directory, "nvme" if directory else "cpu", dtype, "step", zero={"sub_group_size": 60000})
    config["optimizer"] = {"type": kind, "params": {**PARAMS[kind], **({"lr": lr} if lr else {})}}
    if universal:
        config["checkpoint"] = UNIVERSAL
    return config


@promise
def lion_and_adagrad_have_the_losses_of_state_in_memory_and_go_on_exactly(directory):
    for kind, dtype in JOBS:
        saved, universal = (os.path.join(directory, kind + name) for name in ("saved", "universal"))
        losses = job(by(kind, below(directory, "a"), dtype), **SIZE, save_steps=[2], checkpoint=saved,
                     universal=universal, universal_step=2)
        assert losses == job(by(kind, None, dtype), **SIZE), (kind, losses)
        assert losses != in_memory(dtype, **SIZE), kind
        later = [each[2 * 2:] for each in losses]
        # With another learning rate and weights, which the checkpoints replace.
        for name, others in (("b", {"checkpoint": saved}), ("c", {"checkpoint": universal, "tag": "step2"})):
            config = by(kind, below(directory, name), dtype, lr=0.5, universal=name == "c")
            assert job(config, **SIZE, load_step=2, seed=2, **others) == later, (kind, name)


@promise
def lion_and_adagrad_take_checkpoints_of_state_in_memory_and_deepspeed_takes_theirs(directory):
    for kind, dtype in JOBS:
        saved, theirs = (os.path.join(directory, kind + name) for name in ("saved", "theirs"))
        universal = saved + "-universal"
        losses = job(by(kind, None, dtype), **SIZE, save_steps=[2], checkpoint=theirs)
        later = [each[2 * 2:] for each in losses]
        found = job(by(kind, below(directory, "a"), dtype, lr=0.5), **SIZE, load_step=2, seed=2, checkpoint=theirs,
                    save_steps=[3])
        assert found == later, kind
        job(by(kind, below(directory, "b"), dtype), **{**SIZE, "steps": 2}, save_steps=[2], checkpoint=saved,
            universal=universal)
        assert job(by(kind, None, dtype, lr=0.5), **SIZE, load_step=2, seed=2, checkpoint=saved) == later, kind
        config = by(kind, None, dtype, lr=0.5, universal=True)
        assert job(config, **SIZE, load_step=2, seed=2, checkpoint=universal, tag="step2") == later, kind


@promise
def the_states_of_a_checkpoint_are_those_of_its_optimizer(directory):
    for kind, own, other in (("Lion", "exp_avg", "exp_avg_sq"), ("Adagrad", "exp_avg_sq", "exp_avg")):
        saved = os.path.join(directory, kind)
        job(by(kind, directory), **{**SIZE, "steps": 1}, save_steps=[1], checkpoint=saved, universal=saved + "u")
        for path in glob.glob(os.path.join(saved, "step1", "*optim_states.pt")):
            whole = torch.load(path, weights_only=False)["optimizer_state_dict"]["optimizer_state_dict"]
            assert whole["state"] and all(state[own].any() for state in whole["state"].values()), path
            # DeepSpeed's Lion makes exp_avg_sq, and reads it nowhere.
            assert all(set(state) - {"step", own} == ({other} if kind == "Lion" else set()) and
                       not state.get(other, torch.zeros(1)).any() for state in whole["state"].values()), path
        folders = glob.glob(os.path.join(saved + "u", "step1", "zero", "*", ""))
        assert len(folders) > 10
        for folder in folders:
            assert sorted(os.listdir(folder)) == ["exp_avg.pt", "exp_avg_sq.pt", "fp32.pt"], folder
            values = torch.load(os.path.join(folder, f"{other}.pt"))
            assert values.shape == torch.load(os.path.join(folder, "fp32.pt")).shape and not values.any(), folder


@promise
def a_checkpoint_of_lion_is_converted_by_deepspeed(directory):
    saved = os.path.join(directory, "saved")
    losses = job(by("Lion", directory), **SIZE, save_steps=[2], checkpoint=saved)
    tag = os.path.join(saved, "step2")
    subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", tag,
                    "--output_folder", f"{tag}_universal"], check=True, stdout=subprocess.DEVNULL)
    found = job(by("Lion", directory, universal=True), **SIZE, load_step=2, seed=2, checkpoint=saved,
                tag="step2_universal")
    assert found == [each[2 * 2:] for each in losses]


@promise
def a_checkpoint_of_another_optimizer_is_refused_by_its_settings(directory):
    saved = os.path.join(directory, "saved")
    config = configuration(directory, dtype="fp32", depth="step", zero={"sub_group_size": 60000})
    job(config, **{**SIZE, "steps": 1}, save_steps=[1], checkpoint=saved, universal=saved + "u")
    for universal in (False, True):
        config = by("Lion", directory, universal=universal)
        for output in outputs_of(start(config, **SIZE, load_step=1, tag="step1",
                                       checkpoint=saved + "u" * universal)):
            assert "the checkpoint is of an optimizer with betas and eps, and DeepSpeedCPULion has betas" in output, \
                output[-3000:]


@promise
def state_in_fewer_bytes_is_refused_for_lion(directory):
    config = by("Lion", directory)
    config["nvswap"]["optimizer_state"] = "8bit"
    for output in outputs_of(start(config, ranks=1, **SIZE)):
        assert 'set it to "fp32" for Lion' in output, output[-3000:]


@promise
def moments_that_a_rule_lacks_are_zeros_in_the_shape_of_each_parameter(directory):
    shapes = {"matrix": (2, 3), "scale": ()}
    for name in shapes:
        below(directory, name)
    universal_checkpoints._add_missing(types.SimpleNamespace(_state_keys=("exp_avg",)), directory, [
        Parameter(name, 0, 0, 1, shape=shape) for name, shape in shapes.items()])
    for name, shape in shapes.items():
        assert os.listdir(os.path.join(directory, name)) == ["exp_avg_sq.pt"]
        assert torch.equal(torch.load(os.path.join(directory, name, "exp_avg_sq.pt")), torch.zeros(shape))


def near(one, other):
    """Whether losses differ by a ten-thousandth at most."""
    return all(abs(float.fromhex(a) / float.fromhex(b) - 1) < 1e-4
               for mine, theirs in zip(one, other) for a, b in zip(mine, theirs))


@promise
def losses_of_lion_and_adagrad_are_near_those_with_the_ops_that_deepspeed_compiles(directory):
    for kind in PARAMS:
        theirs = job(by(kind), **SIZE, nvswap=False, timeout=1500)
        found = job(by(kind, directory), **SIZE)
        assert near(found, theirs), (kind, found, theirs)


main()
