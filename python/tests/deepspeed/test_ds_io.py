#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
DeepSpeed's benchmark ds_io on nvswap's ops, in several processes. The directory for compiled ops
shows whether a process used DeepSpeed's own.
"""

import os
import re
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from promises import PACKAGE, main, promise  # noqa: E402

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


def run(directory, arguments, timeout=300):
    """Runs `python -m nvswap.deepspeed ARGUMENTS` in the directory and returns the output; no op may be
    compiled."""
    compiled = os.path.join(directory, "compiled")
    environment = dict(os.environ, PYTHONPATH=PACKAGE, DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1",
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
