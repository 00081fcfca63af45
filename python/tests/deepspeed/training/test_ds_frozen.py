#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Parameters that are not trained, in universal checkpoints."""

import os
import shutil
import subprocess
import sys

from jobs import configuration, job, results_of, start
from promises import main, promise

os.environ["DS_ACCELERATOR"] = "cpu"
import torch  # noqa: E402


def assert_goes_on(directory, checkpoint, tag, losses):
    """Jobs that begin with other weights, on one, two and four ranks. The losses up to the next step
    depend on no other rank."""
    for ranks, depth in ((1, "step"), (2, "swappers"), (4, "step")):
        config = configuration(directory, depth=depth)
        config["checkpoint"] = {"load_universal": True}
        after = job(config, ranks=ranks, steps=3, load_step=2, tag=tag, checkpoint=checkpoint,
                    frozen=True, seed=2)
        for one, two in zip(losses, after):
            assert one[4:6] == two, (ranks, depth)


@promise
def frozen_parameters_of_a_universal_checkpoint_load_on_one_two_and_four_ranks(directory):
    checkpoint = os.path.join(directory, "saved")
    losses = job(configuration(directory, depth="step"), steps=3, universal=checkpoint,
                 universal_step=2, frozen=True)
    assert_goes_on(directory, checkpoint, "step2", losses)


@promise
def frozen_parameters_of_a_converted_checkpoint_load_on_one_two_and_four_ranks(directory):
    checkpoint = os.path.join(directory, "saved")
    losses = job(configuration(directory, depth="step"), steps=3, save_steps=[2],
                 checkpoint=checkpoint, frozen=True)
    tag = os.path.join(checkpoint, "step2")
    subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder",
                    tag, "--output_folder", f"{tag}_universal"], check=True,
                   stdout=subprocess.DEVNULL)
    shutil.rmtree(tag)
    assert_goes_on(directory, checkpoint, "step2_universal", losses)


@promise
def weights_alone_load_to_parameters_that_are_frozen_since(directory):
    for depth in ("step", "swappers"):
        config, checkpoint = configuration(directory, depth=depth), os.path.join(directory, depth)
        losses = job(config, steps=2, save_steps=[1], checkpoint=checkpoint)
        assert job(config, steps=2, load_step=1, checkpoint=checkpoint, frozen=True, seed=2,
                   load={"load_optimizer_states": False}) == [each[2:] for each in losses], depth


def refusals(config, checkpoint, *loads, **settings):
    """What each rank of a job says of step1 with each of these arguments of load_checkpoint."""
    results = results_of(start(config, steps=0, checkpoint=checkpoint, seed=2,
                               refused=[["step1", load] for load in loads], **settings))
    return [result["refused"] for result in results]


@promise
def weights_of_a_universal_checkpoint_load_to_parameters_that_are_trained_since(directory):
    for depth in ("step", "swappers"):
        config, checkpoint = configuration(directory, depth=depth), os.path.join(directory, depth)
        loading, alone = dict(config, checkpoint={"load_universal": True}), {"load_optimizer_states": False}
        losses = job(config, steps=2, universal=checkpoint, universal_step=1, frozen=True)
        for ranks in (1, 2):
            again = job(loading, ranks=ranks, steps=2, load_step=1, checkpoint=checkpoint, seed=2, load=alone)
            assert again == [each[2:] for each in losses[:ranks]], (depth, ranks)
        for said, in refusals(loading, checkpoint, {}):
            assert "places.weight was frozen when" in str(said), said
            assert "load the weights alone (load_optimizer_states=False)" in said, said


@promise
def a_universal_checkpoint_loads_to_parameters_that_are_frozen_since(directory):
    for depth in ("step", "swappers"):
        config, checkpoint = configuration(directory, depth=depth), os.path.join(directory, depth)
        loading = dict(config, checkpoint={"load_universal": True})
        losses = job(config, steps=2, universal=checkpoint, universal_step=1)
        for ranks, load in ((1, {}), (2, {"load_module_only": True})):
            again = job(loading, ranks=ranks, steps=2, load_step=1, checkpoint=checkpoint, frozen=True, seed=2,
                        load=load)
            assert again == [each[2:] for each in losses[:ranks]], (depth, ranks)


@promise
def a_universal_checkpoint_without_weights_of_a_parameter_is_refused_unless_names_need_not_match(directory):
    alone, loose = {"load_optimizer_states": False}, {"load_module_strict": False}
    for depth in ("step", "swappers"):
        config, checkpoint = configuration(directory, depth=depth), os.path.join(directory, depth)
        loading = dict(config, checkpoint={"load_universal": True})
        job(config, steps=1, universal=checkpoint, frozen=True, exclude_frozen=True)
        for frozen, loads, text in (
                (True, [loose, {**alone, **loose}], "With load_module_strict=False it keeps"),
                (False, [{**alone, **loose}], "has no weights of places.weight")):
            for first, second, *loaded in refusals(loading, checkpoint, {}, alone, *loads, frozen=frozen):
                assert text in str(first) and text in str(second), (depth, frozen, first, second)
                assert loaded == [None] * len(loads), (depth, frozen, loaded)


@promise
def a_frozen_parameter_that_is_new_keeps_its_weights_if_names_need_not_match(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    losses = job(config, steps=2, save_steps=[1], checkpoint=checkpoint, universal=checkpoint,
                 universal_step=1, universal_tag="universal", frozen=True)
    of_universal = dict(config, checkpoint={"load_universal": True})
    for loading, tag in ((config, "step1"), (of_universal, "universal")):
        again = job(loading, steps=2, load_step=1, tag=tag, checkpoint=checkpoint, frozen=True, unused=True,
                    seed=2, load={"load_module_strict": False})
        assert again == [each[2:] for each in losses], tag
    results = results_of(start(of_universal, steps=0, checkpoint=checkpoint, frozen=True, unused=True,
                               refused=["universal"]))
    for result in results:
        assert "With load_module_strict=False it keeps" in str(result["refused"][0]), result["refused"]


@promise
def a_rank_reads_only_the_files_that_have_its_part_of_frozen_parameters(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    job(config, steps=1, universal=checkpoint, frozen=True)
    path = os.path.join(checkpoint, "step1", "zero_pp_rank_1_mp_rank_00_model_states.pt")
    os.truncate(path, os.path.getsize(path) // 2)
    config["checkpoint"] = {"load_universal": True}
    results = results_of(start(config, steps=0, checkpoint=checkpoint, frozen=True, refused=["step1"]))
    (first,), (second,) = (each["refused"] for each in sorted(results, key=lambda each: each["rank"]))
    assert first == f"rank 1 could not load step1: {second}" and second.startswith(path), (first, second)


@promise
def frozen_parameters_are_excluded_from_a_universal_checkpoint_if_asked(directory):
    checkpoint = os.path.join(directory, "saved")
    for exclude in (False, True):
        job(configuration(directory, depth="step"), ranks=1, steps=1, universal=checkpoint, frozen=True,
            exclude_frozen=exclude)
        path = os.path.join(checkpoint, "step1", "zero_pp_rank_0_mp_rank_00_model_states.pt")
        fragments = torch.load(path, weights_only=False)["frozen_param_fragments"]
        assert (fragments is None) == exclude


main()
