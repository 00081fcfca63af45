#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The recipes of python/README.md, run as they stand but for the drive's path and what a machine without a GPU
needs."""

import os
import re
import shlex
import subprocess
import sys

from jobs import free_port
from promises import PACKAGE, TOP, main, promise

FILES = {"json": "ds_config.json", "python": "train.py", "yaml": "accelerate.yaml"}


def blocks_of(title):
    """The blocks of a part of the page, by the language."""
    with open(os.path.join(TOP, "python", "README.md"), encoding="utf-8") as file:
        part = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## )", file.read(), re.M | re.S)[1]
    return dict(re.findall(r"^```(\w+)\n(.*?)^```", part, re.M | re.S))


def run(title, directory, command=None):
    """The output of a recipe, which must end well."""
    blocks = blocks_of(title)
    for language, name in FILES.items():
        if language in blocks:
            text = blocks[language].replace("/mnt/nvme", directory)
            text = text.replace('Arguments("out",', 'Arguments("out", use_cpu=True,')
            if language == "yaml":
                text += f"use_cpu: true\nmain_process_port: {free_port()}\n"
            with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
                file.write(text)
    command = shlex.split(command or blocks["sh"])
    if command[0] == "torchrun":
        command[1:1] = ["--master_port", str(free_port())]
    folder = os.path.dirname(sys.executable)
    done = subprocess.run(
        [os.path.join(folder, command[0]), *command[1:]], cwd=directory, check=False, timeout=300, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
        env=dict(os.environ, PYTHONPATH=PACKAGE, PATH=folder + os.pathsep + os.environ["PATH"], DS_ACCELERATOR="cpu",
                 OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", HF_HUB_OFFLINE="1", HF_HOME=directory))
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stdout[-4000:]}"
    return done.stdout


def losses_fall(output, steps):
    losses = [float(number) for number in re.findall(r"^\s*(\d+\.\d+(?:e-\d+)?)\s*$", output, re.M)]
    return len(losses) >= steps and losses[-1] < losses[0]


@promise
def the_trainer_s_recipe_runs(directory):
    output = run("transformers' Trainer", directory)
    losses = [float(number) for number in re.findall(r"'loss': '?(\d+\.\d+)", output)]
    assert len(losses) == 4 and losses[-1] < losses[0], output[-4000:]
    assert "nvswap: parameters: " in output and "nvswap: optimizer state: " in output, output[-4000:]


@promise
def accelerates_recipe_runs(directory):
    output = run("accelerate", directory)
    # Without a GPU accelerate takes each of the two ranks for the only one: both print, some lines into each other.
    assert losses_fall(output, 5) and "nvswap: parameters: " in output, output[-4000:]


@promise
def the_recipe_without_deepspeed_runs(directory):
    output = run("PyTorch without DeepSpeed", directory, f"python3 {os.path.join(directory, 'train.py')}")
    assert losses_fall(output, 8), output[-4000:]


main()
