#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
What takes long (`make soak-deepspeed`). Beside DeepSpeed's own ops, which it compiles for minutes the
first time: each call of async_io, and the losses of the large job (large.py). In bfloat16, that job at
the depths that the tests leave out.
"""

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../support"))
from large import in_memory, on_drive, with_own_ops  # noqa: E402
from promises import BUILD, TOP, main, promise  # noqa: E402


os.environ["TORCH_EXTENSIONS_DIR"] = os.path.join(BUILD, "venv", "extensions")


def calls_of(which, directory):
    """What each call of async_io returned. The process may fail afterwards: the op of DeepSpeed 0.19.8
    ended one in "malloc(): invalid next size"."""
    environment = dict(os.environ, PYTHONPATH=os.path.join(BUILD, "python"))
    done = subprocess.run([sys.executable, os.path.join(TOP, "python/tests/support/handle_calls.py"), which, directory],
                          env=environment, stdout=subprocess.PIPE, text=True, check=False)
    return [line for line in done.stdout.splitlines() if line.startswith("CALL ")]


@promise
def each_call_of_async_io_returns_what_its_own_op_does(directory):
    calls = calls_of("nvswap", directory)
    assert len(calls) > 50 and calls == calls_of("own", directory)


@promise
def each_depth_has_the_losses_of_the_large_job_in_memory_in_bf16(directory):
    expected = in_memory("bf16")
    for depth in ("ops", "swappers"):
        assert on_drive(directory, "bf16", depth) == expected, depth


@promise
def a_large_job_has_the_losses_of_its_own_ops_within_the_rounding_of_fp32(directory):
    ours = on_drive(directory, "fp32", "step")
    for rank, losses in enumerate(with_own_ops(directory, "fp32")):
        for step, (own, loss) in enumerate(zip(losses, ours[rank])):
            own, loss = float.fromhex(own), float.fromhex(loss)
            assert abs(loss - own) < 1e-4 * abs(own), f"loss {step}: {loss}, {own}"


main()
