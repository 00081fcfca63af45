#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of ZeRO-3 jobs that have nvswap's ops alone, and so swap files of DeepSpeed's own swappers."""

import glob
import os
import shutil

from jobs import configuration, job, results_of, start
from promises import main, promise

PIPELINED = {"pipeline_read": True, "pipeline_write": True, "buffer_count": 16}
HOST = {"device": "cpu"}
NOT_AHEAD = {"stage3_prefetch_bucket_size": 0}  # DeepSpeed's own swapper fails on what it reads ahead twice


def goes_on(directory, **settings):
    """Three steps in one run, and two after a checkpoint, by a job that begins with other weights and learning
    rate: the same losses. Some sub-groups have swap files, and the last one is too small for them."""
    folder = os.path.join(directory, str(len(os.listdir(directory))))
    os.mkdir(folder)
    job_settings = {key: settings.pop(key) for key in ("decay", "ranks") if key in settings}
    config, saved = configuration(folder, depth="ops", zero=NOT_AHEAD, **settings), os.path.join(folder, "saved")
    other = dict(config, optimizer={"type": "AdamW", "params": {"lr": 0.5, "weight_decay": 0.3}})
    losses = job(config, width=256, steps=3, save_steps=[1], checkpoint=saved, **job_settings)
    again = job(other, width=256, steps=3, load_step=1, checkpoint=saved, seed=2, **job_settings)
    assert again == [each[2:] for each in losses], settings


@promise
def a_job_with_the_ops_alone_goes_on_exactly(directory):
    goes_on(directory)
    goes_on(directory, dtype="fp32", optimizer=PIPELINED, ranks=1)
    goes_on(directory, param=HOST, decay=True, ranks=1)


@promise
def a_job_with_the_ops_alone_and_only_parameters_on_nvme_goes_on_exactly(directory):
    goes_on(directory, optimizer=HOST)


def refusal(config, saved, tag="step1", **load):
    """What one rank says of a tag."""
    result, = results_of(start(config, ranks=1, steps=0, checkpoint=saved, refused=[[tag, load]]))
    return str(result["refused"][0])


@promise
def a_load_that_the_ops_alone_would_make_of_parts_is_refused_with_the_way_to_go_on(directory):
    config, saved = configuration(directory, depth="ops"), os.path.join(directory, "saved")
    job(config, ranks=1, steps=1, save_steps=[1], checkpoint=saved)
    shutil.copytree(os.path.join(saved, "step1"), os.path.join(saved, "short"))
    path = glob.glob(os.path.join(saved, "short", "offloaded_tensors", "rank00", "exp_avg-*"))[0]
    os.truncate(path, os.path.getsize(path) - 1)
    assert f"{path} has" in refusal(config, saved, "short")
    shutil.copytree(os.path.join(saved, "step1"), os.path.join(saved, "missing"))
    path = path.replace("short", "missing")
    os.unlink(path)
    assert f"{path} has 0 bytes" in refusal(config, saved, "missing")
    for change in ({"zero": {"sub_group_size": 10000000}}, {"param": HOST, "zero": {"sub_group_size": 100000}}):
        said = refusal(configuration(directory, depth="ops", **change), saved)
        assert "other sub-groups" in said and "sub_group_size, aio.block_size" in said, said
    for load in ({"load_optimizer_states": False}, {"load_module_only": True}):
        assert "save_16bit_model in a job that loads all" in refusal(config, saved, **load)
    assert "save_16bit_model" in refusal(dict(config, checkpoint={"load_universal": True}), saved)


main()
