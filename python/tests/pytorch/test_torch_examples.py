#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python programs of examples/, and what its README changes in a training loop. Needs torch."""

import os
import re
import subprocess
import sys

from promises import PACKAGE, TOP, main, promise
import torch

PAGE = os.path.join(TOP, "docs", "python", "torch.md")
EXAMPLES = os.path.join(TOP, "examples")
SMALL = ("--text", os.path.join(TOP, "LICENSE"), "--device", "cpu", "--layers", "2", "--width", "32", "--length", "32",
         "--batch", "4", "--steps", "9", "--warmup", "3", "--save-every", "4", "--write", "40")


def output_of(program, directory, *arguments):
    done = subprocess.run(
        [sys.executable, program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        env=dict(os.environ, PYTHONPATH=PACKAGE, NVSWAP_CONFIG=directory, OMP_NUM_THREADS="1"))
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stdout}"
    return done.stdout


def changed(directory):
    """Applies the README's difference to the training loop, and returns the path of what it makes."""
    def read(name):
        with open(os.path.join(EXAMPLES, name), encoding="ascii") as file:
            return file.read()

    text, (diff,) = read("train_gpt.py"), re.findall(r"^```diff\n(.*?)^```", read("README.md"), re.M | re.S)
    assert len(re.findall(r"^\+", diff, re.M)) == 2
    for hunk in diff.split("@@\n"):
        old, new = ("".join(line[1:] for line in hunk.splitlines(keepends=True) if line[0] in f" {sign}")
                    for sign in "-+")
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = os.path.join(directory, "train_gpt_on_nvme.py")
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
    return path


def losses_of(output):
    return [float(loss) for loss in re.findall(r"loss (\S+?),?\s", output)]


@promise
def a_training_loop_with_two_lines_changed_has_the_losses_of_memory(directory):
    programs = {"memory": os.path.join(EXAMPLES, "train_gpt.py"), "nvme": changed(directory)}
    for autocast in ((), ("--autocast", "bfloat16"), ("--autocast", "float16")):
        theirs, ours = (losses_of(output_of(
            program, directory, *SMALL, *autocast, "--checkpoint", os.path.join(directory, "".join((name, *autocast)))))
            for name, program in programs.items())
        assert len(ours) == len(theirs) == 9 + 3 and theirs[8] < theirs[0] - 0.1, theirs
        # Adam's rounding differs.
        bound = 1e-3 if autocast else 1e-5
        assert all(abs(a - b) < bound for a, b in zip(ours, theirs)), (autocast, ours, theirs)


@promise
def a_training_loop_with_two_lines_changed_resumes_exactly(directory):
    program = changed(directory)
    for autocast in ((), ("--autocast", "float16")):
        whole, parted = (os.path.join(directory, "".join((name, *autocast))) for name in ("whole", "parted"))
        expected = output_of(program, directory, *SMALL, *autocast, "--checkpoint", whole)
        begun = output_of(program, directory, *SMALL, *autocast, "--checkpoint", parted, "--stop", "4")
        rest = output_of(program, directory, *SMALL, *autocast, "--checkpoint", parted)
        assert begun.startswith("step 1: ") and rest.startswith("step 5: ")
        assert expected.endswith(rest), (expected, rest)
        first, second = (torch.load(path, weights_only=True) for path in (whole, parted))
        assert first["step"] == second["step"] == 9
        assert all(map(torch.equal, first["model"].values(), second["model"].values()))
        states = zip(first["optimizer"]["state"].values(), second["optimizer"]["state"].values(), strict=True)
        assert all(a[part].equal(b[part]) for a, b in states for part in ("step", "exp_avg", "exp_avg_sq"))
        assert [first[name] for name in ("schedule", "scaler")] == [second[name] for name in ("schedule", "scaler")]


@promise
def examples_in_python_lower_the_loss(directory):
    for name in ("train_numpy.py", "train_torch.py"):
        losses = losses_of(output_of(os.path.join(EXAMPLES, name), "", directory))
        assert len(losses) == 5 and losses[-1] < losses[0], (name, losses)


@promise
def what_the_page_on_pytorch_shows_runs(directory):
    with open(PAGE, encoding="ascii") as file:
        blocks = re.findall(r"^```python\n(.*?)^```", file.read(), re.M | re.S)
    assert len(blocks) >= 5

    def model():
        return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))

    torch.distributed.init_process_group("gloo", init_method=f"file://{directory}/group", rank=0, world_size=1)
    in_memory, before = model(), os.getcwd()
    names = {"torch": torch, "module": model(), "model": in_memory, "groups": [{"params": in_memory.parameters()}],
             "criterion": torch.nn.MSELoss(), "data": torch.ones(8), "wanted": torch.zeros(8),
             "loader": [torch.ones(8)] * 2}
    os.chdir(directory)
    try:
        for block in blocks:
            # What is parked is in memory.
            names["module"] = in_memory if "park(" in block else names["module"]
            exec(block.replace("/mnt/nvme", directory), names)  # pylint: disable=exec-used
    finally:
        os.chdir(before)
        torch.distributed.destroy_process_group()


main()
