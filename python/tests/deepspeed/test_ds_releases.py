#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's other releases, each in an environment of its own: jobs with them, and what install() says of them."""

import enum
import functools
import glob
import importlib
import os
import subprocess
import sys
import warnings
from unittest import mock

from jobs import configuration, job
from promises import BUILD, PACKAGE, TOP, main, promise, raises

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed  # noqa: E402, F401
from deepspeed.ops.op_builder.builder import OpBuilder  # noqa: E402
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3  # noqa: E402

import nvswap  # noqa: E402
from nvswap.deepspeed.depth import choose  # noqa: E402
from nvswap.deepspeed import releases  # noqa: E402
from nvswap.deepspeed.releases import VersionError, check_release, missing_places  # noqa: E402
from nvswap.deepspeed.step import stage3 as step  # noqa: E402
from nvswap.deepspeed.swappers import stage3 as swappers  # noqa: E402

IMPORTS = {"deepspeed.runtime.engine": ["DeepSpeedEngine"], "deepspeed.runtime.swap_tensor.utils": ["SwapBufferPool"],
           "deepspeed.runtime.zero.stage3": ["DeepSpeedZeroOptimizer_Stage3"]}


def interpreter_with(release):
    """That of an environment with a release of DeepSpeed."""
    link = os.path.join(BUILD, f"venv-{release}")
    subprocess.run([os.path.join(TOP, "scripts", "venv"), os.path.join(TOP, "python", "tests", "requirements.txt"),
                    link, release], check=True, env=dict(os.environ, DEBIAN_PYTHON=os.path.realpath(sys.executable)))
    return os.path.join(link, "bin", "python3")


def is_trained_and_resumed(directory, release):
    """Whether losses of a release equal those with all in memory, and at the depths with checkpoints of nvswap's own
    also after a resume; there a universal checkpoint is saved too."""
    python = interpreter_with(release)
    for dtype in ("bf16", "fp32"):
        expected = job(configuration(None, "cpu", dtype), python=python)
        for depth in ("ops", "swappers", "step"):
            config = configuration(directory, dtype=dtype, depth=depth)
            folder = os.path.join(directory, dtype + depth)
            saved = {} if depth == "ops" else {"save_steps": [2], "checkpoint": folder, "universal": folder + "u"}
            losses = job(config, python=python, **saved)
            assert losses == expected, (depth, dtype, losses, expected)
            if saved:
                assert glob.glob(f"{folder}u/step*/zero/*/exp_avg_sq.pt"), (depth, dtype)
                again = job(config, python=python, load_step=2, checkpoint=folder)
                assert again == [each[4:] for each in losses], (depth, dtype, again, losses)


@promise
def deepspeed_0_16_0_trains_as_in_memory_and_resumes(directory):
    is_trained_and_resumed(directory, "0.16.0")


@promise
def deepspeed_0_16_0_resumes_with_the_ops_alone(directory):
    config, folder = configuration(directory, depth="ops"), os.path.join(directory, "saved")
    python = interpreter_with("0.16.0")
    # It has one folder for the swap files of all ranks.
    losses = job(config, ranks=1, steps=3, python=python, save_steps=[1], checkpoint=folder)
    again = job(config, ranks=1, steps=3, python=python, load_step=1, checkpoint=folder, seed=2)
    assert again == [each[2:] for each in losses], (again, losses)


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
def releases_whose_swappers_ask_the_accelerator_train_with_swap_files_of_the_ops_alone(directory):
    """Sub-groups that are large enough for DeepSpeed's own swap files, with buffers for both pipelines."""
    zero, size = {"sub_group_size": 600000}, {"ranks": 1, "width": 256, "steps": 2}
    for release in ("0.17.6", "0.19.2"):
        python = interpreter_with(release)
        expected = job(configuration(None, "cpu", zero=zero), python=python, **size)
        for pipelines in (False, True):
            path = os.path.join(directory, f"{release}-{pipelines}")
            config = configuration(path, zero=zero, param=False, optimizer={
                "buffer_count": 12, "pipeline_read": pipelines, "pipeline_write": pipelines})
            assert job(config, python=python, **size) == expected, (release, pipelines)
            assert glob.glob(f"{path}/**/exp_avg-*.swp", recursive=True), (release, pipelines)


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


def places_of(depth):
    """The owner and name of each place, and of the imports of releases.py."""
    for places in releases._REQUIRED[depth]:
        for module, names in places.items():
            for name in names:
                *owner, last = name.split(".")
                yield functools.reduce(getattr, owner, importlib.import_module(module)), last
    for module, names in IMPORTS.items():
        for name in names:
            yield importlib.import_module(module), name


def said_by_install_without(owner, name):
    """What install() raises or warns of in a child whose newer DeepSpeed has lost a name, and whether the ops are
    nvswap's."""
    code = f"""
import sys, warnings
import deepspeed, importlib
deepspeed.__version__ = "0.21.0"
owner = importlib.import_module({getattr(owner, "__module__", owner.__name__)!r})
owner = getattr(owner, {getattr(owner, "__qualname__", "")!r}, owner)
for each in getattr(owner, "__mro__", [owner]):
    if {name!r} in vars(each):
        delattr(each, {name!r})
    elif each is owner and hasattr(owner, "__path__"):
        del owner.__getattr__  # of a module that makes the name
warnings.simplefilter("always")
import nvswap.deepspeed
try:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        nvswap.deepspeed.install()
    print(*(each.message for each in said), "INSTALLED")
except nvswap.deepspeed.VersionError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                          env=dict(os.environ, PYTHONPATH=PACKAGE))
    assert done.returncode == 0, (owner, name, done.stderr[-2000:])
    return done.stdout


@promise
def a_newer_release_that_has_lost_any_name_is_installed_or_refused_by_that_name(_):
    # What every class has, and a member of an enumeration, can't be taken away.
    chosen = [(owner, name) for owner, name in dict.fromkeys(places_of("step"))
              if name != "__init__" and not isinstance(owner, enum.EnumMeta)]
    if not os.environ.get("AT_LENGTH"):
        chosen = [each for each in chosen if each[1] in (
            "_configure_checkpointing", "_save_zero_checkpoint", "destroy", "SwapBufferPool", "partition_grads")]
    for owner, name in chosen:
        said = said_by_install_without(owner, name)
        assert name in said, (owner, name, said)
        if "INSTALLED" in said:
            assert 'only "nvswap": {"deepspeed": "ops"} can work' in said, (owner, name, said)


@promise
def all_that_stage3_replaces_is_among_the_required_names(_):
    required = {name for _, name in places_of("step")} | set(releases._STAGE3_SINCE_OLDEST)
    for stage3 in (swappers.Stage3, step.Stage3):
        replaced = {name for name, value in vars(stage3).items()
                    if callable(value) and hasattr(DeepSpeedZeroOptimizer_Stage3, name) and not name.startswith("__")}
        assert not replaced - required, replaced - required


main()
