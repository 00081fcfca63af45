#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
DeepSpeed's benchmark ds_io on nvswap's ops, in several processes. The directory for compiled ops
shows whether a process used DeepSpeed's own.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

from promises import PACKAGE, main, promise

NBYTES = 4 << 20

# Each of two processes sends what it sees of itself.
SPAWNING = """
import multiprocessing, sys
from deepspeed.ops.op_builder import AsyncIOBuilder

def seen(number):
    return number, AsyncIOBuilder().load().__name__, sys.argv[1:]

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for each in pool.map(seen, [1, 2]):
            print(each)
    print(sys.argv[1:])
"""


# Prints what each child sees, started in several ways. transformers looks for deepspeed before it imports it.
STARTING = """
import os, subprocess, sys

SEEN = "import importlib.util, sys; importlib.util.find_spec('deepspeed'); " \
    "print(NAME, 'deepspeed' in sys.modules, end=' '); import deepspeed; " \
    "from deepspeed.ops.op_builder import AsyncIOBuilder; print(AsyncIOBuilder().load().__name__, flush=True)"
sys.stdout.flush()
os.system(f'{sys.executable} -c "NAME = 1; {SEEN}"')
subprocess.run([sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', "
                + repr("NAME = 2; " + SEEN) + "])"], check=True)
"""


def run(directory, arguments, timeout=300, path=PACKAGE):
    """Runs `python -m nvswap.deepspeed ARGUMENTS` in the directory and returns the output; no op may be
    compiled."""
    compiled = os.path.join(directory, "compiled")
    environment = dict(os.environ, PYTHONPATH=path, DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1",
                       TORCH_EXTENSIONS_DIR=compiled)
    with subprocess.Popen([sys.executable, "-m", "nvswap.deepspeed", *arguments], cwd=directory,
                          env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          start_new_session=True) as process:
        try:
            output = process.communicate(timeout=timeout)[0]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, f"exit status {process.returncode}: {output}"
    assert not os.path.exists(compiled), f"DeepSpeed's own op was compiled: {output}"
    return output


@promise
def ds_io_in_two_processes_shows_the_rates_of_nvswap(directory):
    # ds_io takes no folder with a blank in its name.
    common = [shutil.which("ds_io"), "--folder", ".", "--io_size", str(NBYTES), "--loops", "2",
              "--multi_process", "2", "--validate"]
    for way, more in (("Write", []), ("Read", ["--read"])):
        output = run(directory, common + more)
        assert float(re.search(rf"E2E {way} Speed = ([0-9.e+-]+) GB", output)[1]) > 0, output
        files = [name for name in os.listdir(directory) if f"_{way.lower()}_" in name]
        sizes = {os.path.getsize(os.path.join(directory, name)) for name in files}
        assert len(files) == 2 and sizes == {NBYTES}, (files, sizes)


@promise
def a_spawned_process_has_the_ops_and_the_arguments_of_its_parent(directory):
    for arguments in (["spawning.py"], ["-m", "spawning"]):
        with open(os.path.join(directory, "spawning.py"), "w", encoding="ascii") as file:
            file.write(SPAWNING)
        lines = run(directory, [*arguments, "x", "y"]).splitlines()
        assert [line for line in lines if "'y'" in line] == [
            "(1, 'nvswap.deepspeed.op.async_io', ['x', 'y'])",
            "(2, 'nvswap.deepspeed.op.async_io', ['x', 'y'])", "['x', 'y']"], lines


@promise
def ds_nvme_tune_measures_nvswap(directory):
    sweep = {"block_size": ["64K"], "queue_depth": [8], "sequential_requests": [False],
             "single_submit": [False], "io_parallel": [1]}
    with open(os.path.join(directory, "sweep.json"), "w", encoding="ascii") as file:
        json.dump(sweep, file)
    output = run(directory, ["ds_nvme_tune", "--nvme_dir", ".", "--sweep_config", "sweep.json",
                             "--io_size", str(NBYTES)])
    rates = re.search(r"read = +([0-9.]+), write = +([0-9.]+)", output)
    assert float(rates[1]) > 0 and float(rates[2]) > 0, output


@promise
def processes_that_a_script_starts_and_those_of_them_have_the_ops(directory):
    with open(os.path.join(directory, "starting.py"), "w", encoding="ascii") as file:
        file.write(STARTING)
    lines = run(directory, ["starting.py"]).splitlines()
    for number in (1, 2):  # a child that does not import deepspeed imports nothing of it
        assert f"{number} False nvswap.deepspeed.op.async_io" in lines, lines


@promise
def the_sitecustomize_of_the_user_is_run_in_children_too(directory):
    for name, text in (("sitecustomize.py", "import sys; sys.own = __file__"),
                       ("script.py", "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import "
                        "sys, sitecustomize; print(sys.own, sitecustomize.__file__)'])\n")):
        with open(os.path.join(directory, name), "w", encoding="ascii") as file:
            file.write(text)
    own = os.path.join(directory, "sitecustomize.py")
    assert f"{own} {own}" in run(directory, ["script.py"], path=f"{PACKAGE}:{directory}").splitlines()


@promise
def a_child_whose_python_has_no_nvswap_warns(directory):
    with open(os.path.join(directory, "script.py"), "w", encoding="ascii") as file:
        file.write("import os, subprocess, sys\nfrom nvswap.deepspeed.startup import FOLDER\n"
                   "subprocess.run([sys.executable, '-c', 'import deepspeed; print(\"goes on\")'], check=True, "
                   "env=dict(os.environ, PYTHONPATH=FOLDER))\n")
    lines = run(directory, ["script.py"]).splitlines()
    assert "goes on" in lines and any("has no nvswap" in line for line in lines), lines


@promise
def deepspeeds_launcher_starts_a_script_on_the_ops(directory):
    script = os.path.join(directory, "script.py")
    with open(script, "w", encoding="ascii") as file:
        file.write("import sys\nfrom deepspeed.ops.op_builder import AsyncIOBuilder\n"
                   "print(AsyncIOBuilder().load().__name__, sys.argv[1:])\n")
    environment = dict(os.environ, PYTHONPATH=PACKAGE, DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1")
    done = subprocess.run(
        [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", "2", "--master_addr",
         "127.0.0.1", "--module", "nvswap.deepspeed", script, "x"],
        cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=300, check=False)
    for rank in (0, 1):
        line = f"nvswap.deepspeed.op.async_io ['--local_rank={rank}', 'x']"
        assert line in done.stdout, done.stdout


main()
