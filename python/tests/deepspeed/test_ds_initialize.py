#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What deepspeed.initialize does with keys of the store at each depth, or refuses, in one process."""

import contextlib
import errno
import gc
import logging
import os
import shutil
import threading

import one_rank  # noqa: F401
import deepspeed
import torch
from jobs import configuration
from promises import main, promise, raises, settings

import nvswap
from nvswap.deepspeed.swappers import folders

WIDTH = 600  # DeepSpeed's own swappers leave tensors of less than 1 MiB in memory


def layers():
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))


def initialized(config):
    """An engine of a module that zero.Init has made."""
    with deepspeed.zero.Init(config_dict_or_path=config):
        module = layers()
    return deepspeed.initialize(model=module, model_parameters=module.parameters(), config=config)[0]


@promise
def a_ratio_is_refused_by_the_swappers_whose_state_is_all_on_the_drive(directory):
    for ratio in (0, 0.5):
        config = configuration(directory, dtype="fp32", depth="swappers", optimizer={"ratio": ratio})
        error = raises(OSError, lambda config=config: initialized(config), errno.ENOTSUP)
        assert error.tensor == "offload_optimizer.ratio" and '"step"' in str(error), error


@promise
def parameters_that_zero_init_partitioned_without_a_configuration_are_refused(directory):
    for depth in ("swappers", "step"):
        for optimizer in (None, {"device": "cpu"}):
            config = configuration(directory, dtype="fp32", depth=depth, optimizer=optimizer)
            with deepspeed.zero.Init():
                module = layers()
            error = raises(OSError, lambda config=config, module=module: deepspeed.initialize(
                model=module, model_parameters=module.parameters(), config=config), errno.EINVAL)
            assert "config_dict_or_path" in str(error) and error.tensor == "offload_param", error
            # Parameters that stay in memory need none.
            with deepspeed.zero.Init():
                module = layers()
            config["zero_optimization"]["offload_param"]["max_in_cpu"] = 10 ** 9
            deepspeed.initialize(model=module, model_parameters=module.parameters(),
                                 config=config)[0].destroy()


@promise
def with_the_step_a_ratio_of_the_state_is_on_the_drive(directory):
    on_drive = {}
    for ratio in (0, 0.4, 1):
        engine = initialized(configuration(directory, dtype="fp32", depth="step",
                                           optimizer={"ratio": ratio}))
        on_drive[ratio] = engine.optimizer._store.stats()["tensor_bytes"]
        engine.destroy()
    state = 12 * sum(parameter.ds_numel for parameter in engine.module.parameters())
    assert on_drive[0] == 0 and 0.4 * state <= on_drive[0.4] < 0.7 * state <= on_drive[1], on_drive


@promise
def a_rollback_without_a_kept_store_is_refused(directory):
    for depth in ("swappers", "step"):
        for param in (None, False):
            config = configuration(directory, depth=depth, param=param, nvswap={"rollback": True})
            error = raises(OSError, lambda config=config: initialized(config), errno.EINVAL)
            assert error.tensor == "nvswap.rollback", error


@promise
def of_a_job_that_keeps_its_store_the_parameters_are_kept_alone(directory):
    for depth in ("swappers", "step"):
        for rollback in (False, True):
            engine = initialized(configuration(directory, dtype="fp32", depth=depth,
                                               nvswap={"keep": True, "rollback": rollback}))
            engine.destroy()
            del engine
            gc.collect()
            assert os.listdir(f"{directory}/nvswap") == ["rank0"], (depth, os.listdir(directory))
        with nvswap.Engine(settings(directory, read_only=True)) as store:
            assert all(each.name.startswith("parameter.") for each in store.stored())
        shutil.rmtree(f"{directory}/nvswap")


@contextlib.contextmanager
def warnings_of_paths():
    """What DeepSpeed's log says of paths that were made."""
    said, handler = [], logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    deepspeed.utils.logger.addHandler(handler)
    try:
        yield said
    finally:
        deepspeed.utils.logger.removeHandler(handler)
        said[:] = [each for each in said if "was made" in each]


@contextlib.contextmanager
def mounts(directory, *mounted):
    """Has these mount points and kinds in place of the machine's."""
    folders.MOUNTS, real = os.path.join(directory, "mountinfo"), folders.MOUNTS
    with open(folders.MOUNTS, "w", encoding="utf-8") as file:
        for point, kind in mounted:
            point = point.replace(" ", "\\040")
            file.write(f"22 1 8:1 / {point} rw,relatime shared:1 - {kind} /dev/x rw\n")
    try:
        yield
    finally:
        folders.MOUNTS = real


@promise
def a_missing_path_is_made_with_a_warning_of_the_file_system_that_it_lies_on(directory):
    number = 0
    for mounted, words in ((("/", "ext4"),), "root file system (ext4)"), \
            ((("/", "ext4"), (directory, "xfs")), None), \
            ((("/", "xfs"), (directory, "tmpfs")), f"tmpfs of {directory}, which is memory"):
        for depth in ("swappers", "step"):
            for param in ({}, False):
                number += 1
                path = os.path.join(directory, str(number), "deep")
                config = configuration(path, dtype="fp32", depth=depth, param=param)
                with mounts(directory, *mounted), warnings_of_paths() as said:
                    engine = initialized(config)
                assert os.path.isdir(path + "/nvswap")
                assert [path in each and words in each for each in said] == ([True] if words else []), said
                engine.destroy()
    with mounts(directory, ("/", "ext4"), (directory, "xfs"), (directory + "/a b", "tmpfs")):
        assert folders._file_system_of(directory + "/a b/c").mount_point == directory + "/a b"
        assert folders._file_system_of(directory + "/a bc").mount_point == directory
    assert folders._file_system_of("/dev/shm/x").kind == "tmpfs"


@promise
def ranks_that_make_a_path_at_once_warn_once(directory):
    path = os.path.join(directory, "a", "b", "c")
    with mounts(directory, ("/", "ext4")), warnings_of_paths() as said, nvswap.Config(settings(path)) as config:
        barrier = threading.Barrier(8)

        def make():
            barrier.wait()
            folders.make_folders(config, "param")

        ranks = [threading.Thread(target=make) for _ in range(8)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
    assert os.path.isdir(path) and len(said) == 1, said


@promise
def a_path_that_can_not_be_made_is_an_error_with_the_path(directory):
    with open(os.path.join(directory, "file"), "w", encoding="ascii"):
        pass
    for path, number in ((os.path.join(directory, "file", "deep"), errno.EEXIST),
                         ("/proc/nvswap/deep", errno.ENOENT)):
        for depth in ("swappers", "step"):
            error = raises(OSError, lambda depth=depth, path=path: initialized(configuration(path, depth=depth)),
                           number)
            assert error.path == path and "does not exist and can't be made" in str(error), error


@promise
def a_path_with_a_variable_is_not_made(directory):
    for name in ("${USER}", "$USER"):
        with nvswap.Config(settings(os.path.join(directory, name, "x"))) as config:
            folders.make_folders(config, "param")
    assert os.listdir(directory) == []
    with nvswap.Config(settings(os.path.join(directory, "cash$"))) as config:
        folders.make_folders(config, "param")
    assert os.listdir(directory) == ["cash$"]


main()
