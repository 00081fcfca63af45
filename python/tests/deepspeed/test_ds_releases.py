#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's other releases, each in an environment of its own: jobs with them, and what install() says of them."""

import os
import subprocess
import sys
import warnings
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from jobs import configuration, job  # noqa: E402
from promises import BUILD, TOP, main, promise, raises  # noqa: E402

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed  # noqa: E402, F401
from deepspeed.ops.op_builder.builder import OpBuilder  # noqa: E402
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3  # noqa: E402

import nvswap  # noqa: E402
from nvswap.deepspeed.depth import choose  # noqa: E402
from nvswap.deepspeed.releases import VersionError, check_release, missing_places  # noqa: E402


def interpreter_with(release):
    """That of an environment with a release of DeepSpeed."""
    link = os.path.join(BUILD, f"venv-{release}")
    subprocess.run([os.path.join(TOP, "scripts", "venv"), os.path.join(TOP, "python", "tests", "requirements.txt"),
                    link, release], check=True, env=dict(os.environ, DEBIAN_PYTHON=os.path.realpath(sys.executable)))
    return os.path.join(link, "bin", "python3")


def is_trained_and_resumed(directory, release):
    """Whether losses of a release equal those with all in memory, and at the depths with checkpoints of nvswap's own
    also after a resume."""
    python = interpreter_with(release)
    for dtype in ("bf16", "fp32"):
        expected = job(configuration(None, "cpu", dtype), python=python)
        for depth in ("ops", "swappers", "step"):
            config = configuration(directory, dtype=dtype, depth=depth)
            saved = {} if depth == "ops" else {"save_steps": [2], "checkpoint": os.path.join(directory, dtype + depth)}
            losses = job(config, python=python, **saved)
            assert losses == expected, (depth, dtype, losses, expected)
            if saved:
                again = job(config, python=python, load_step=2, checkpoint=saved["checkpoint"])
                assert again == [each[4:] for each in losses], (depth, dtype, again, losses)


@promise
def deepspeed_0_16_0_trains_as_in_memory_and_resumes(directory):
    is_trained_and_resumed(directory, "0.16.0")


@promise
def deepspeed_0_16_9_trains_as_in_memory_and_resumes(directory):
    is_trained_and_resumed(directory, "0.16.9")


@promise
def deepspeed_0_17_6_trains_as_in_memory_and_resumes(directory):
    is_trained_and_resumed(directory, "0.17.6")


@promise
def deepspeed_0_18_4_trains_as_in_memory_and_resumes(directory):
    is_trained_and_resumed(directory, "0.18.4")


@promise
def deepspeed_0_18_9_trains_as_in_memory_and_resumes(directory):
    is_trained_and_resumed(directory, "0.18.9")


@promise
def deepspeed_0_19_2_trains_as_in_memory_and_resumes(directory):
    is_trained_and_resumed(directory, "0.19.2")


@promise
def a_release_before_the_oldest_is_refused_with_both_versions(_):
    for version in ("0.15.4", "0.9"):
        with mock.patch("deepspeed.__version__", version):
            error = raises(VersionError, check_release)
        assert version in str(error) and nvswap.__version__ in str(error) and "0.16.0" in str(error)


@promise
def a_release_after_the_newest_is_tried_with_a_warning(_):
    with mock.patch("deepspeed.__version__", "0.21.0+unknown"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        check_release()
    assert len(said) == 1 and "DeepSpeed 0.21.0+unknown is newer" in str(said[0].message)


@promise
def what_the_newest_release_has_lost_is_named(_):
    assert not any(map(missing_places, ("ops", "swappers", "step")))
    check_release()
    with mock.patch.object(OpBuilder, "_loaded_ops"):
        del OpBuilder._loaded_ops
        error = raises(VersionError, check_release)
    assert "has no deepspeed.ops.op_builder.builder.OpBuilder._loaded_ops, which" in str(error)
    step = DeepSpeedZeroOptimizer_Stage3.partition_grads
    place = "deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3.partition_grads"
    del DeepSpeedZeroOptimizer_Stage3.partition_grads
    try:
        with mock.patch("deepspeed.__version__", "0.21.0"), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            check_release()
        assert place in str(said[0].message)
        error = raises(OSError, lambda: choose({"nvswap": {"deepspeed": "step"}}))
        assert place in str(error)
        choose({"nvswap": {"deepspeed": "ops"}})
    finally:
        DeepSpeedZeroOptimizer_Stage3.partition_grads = step


main()
