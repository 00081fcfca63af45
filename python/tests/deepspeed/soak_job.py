#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
What takes long (`make soak-deepspeed`, some 15 minutes): each call of async_io beside DeepSpeed's own
compiled op; and the job at length: 50 steps of 20 million parameters on two
ranks, with gradient accumulation and clipping. Each depth has the losses of the job in memory, all
digits, and those of DeepSpeed's own compiled ops within the rounding of fp32.
"""

import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from jobs import configuration, results_of, start  # noqa: E402
from promises import BUILD, main, promise  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 50
DEPTHS = ("ops", "swappers", "step")
MODEL = {"width": 512, "layers": 6, "heads": 8, "steps": STEPS}
# Its own swapper holds what is read ahead in buffers of one parameter each, and may read none twice.
ZERO = {"sub_group_size": 2000000, "stage3_prefetch_bucket_size": 0}
PARAM = {"buffer_size": 512 * 512 * 4 + 4096, "buffer_count": 64}

os.environ["TORCH_EXTENSIONS_DIR"] = os.path.join(BUILD, "venv", "extensions")


def run(what, config, **more):
    """The losses of each rank, all digits. Prints what each rank held in memory."""
    results = results_of(start(config, **MODEL, **more), timeout=1800)
    print(f"  {what}: {max(result['train_s'] for result in results) / STEPS:.2f} s a step, "
          f"{max(result['peak_mib'] for result in results):.0f} MiB in a rank at most", flush=True)
    return [result["losses"] for result in results]


def on_drive(directory, dtype, depth):
    return run(f"{dtype}, {depth}", configuration(
        directory, dtype=dtype, depth=depth, zero=ZERO, param=PARAM))


def in_memory(dtype):
    return run(f"{dtype}, in memory", configuration(None, "cpu", dtype, zero=ZERO))


def calls_of(which, directory):
    """What each call of async_io returned. The process may fail afterwards: the op of DeepSpeed 0.19.8
    ended one in "malloc(): invalid next size"."""
    environment = dict(os.environ, PYTHONPATH=os.path.join(BUILD, "python"))
    done = subprocess.run([sys.executable, os.path.join(HERE, "handle_calls.py"), which, directory],
                          env=environment, stdout=subprocess.PIPE, text=True, check=False)
    return [line for line in done.stdout.splitlines() if line.startswith("CALL ")]


@promise
def each_call_of_async_io_returns_what_its_own_op_does(directory):
    calls = calls_of("nvswap", directory)
    assert len(calls) > 50 and calls == calls_of("own", directory)


@promise
def each_depth_has_the_losses_of_the_job_in_memory_in_bf16(directory):
    expected = in_memory("bf16")
    for depth in DEPTHS:
        assert on_drive(directory, "bf16", depth) == expected, depth


@promise
def each_depth_has_the_losses_of_the_job_in_memory_and_of_its_own_ops_in_fp32(directory):
    expected = in_memory("fp32")
    for depth in DEPTHS:
        assert on_drive(directory, "fp32", depth) == expected, depth
    own = run("fp32, DeepSpeed's own ops", configuration(
        directory, dtype="fp32", zero=ZERO, param=PARAM), nvswap=False)
    for rank, losses in enumerate(expected):
        for step, (loss, theirs) in enumerate(zip(losses, own[rank])):
            loss, theirs = float.fromhex(loss), float.fromhex(theirs)
            assert abs(loss - theirs) < 1e-4 * abs(theirs), f"loss {step}: {loss}, {theirs}"


main()
