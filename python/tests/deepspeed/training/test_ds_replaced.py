#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are saved again under the same tag, by jobs that are killed amid it."""

import os
import shutil
import signal

from jobs import await_step, configuration, job, outputs_of, results_of, start
from promises import main, promise

os.environ["DS_ACCELERATOR"] = "cpu"
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint  # noqa: E402

from nvswap.deepspeed.checkpoint.durable import REPLACING  # noqa: E402


def assert_refused(config, checkpoint, tags):
    for result in results_of(start(config, steps=0, checkpoint=checkpoint, refused=tags)):
        for said in result["refused"]:
            assert f"{os.path.join(checkpoint, 'step1')} was being replaced" in str(said), said
            assert "load another tag" in said


@promise
def a_tag_whose_files_are_of_two_saves_is_refused_until_it_is_saved_again(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    job(config, steps=1, save_steps=[1], checkpoint=checkpoint)
    tag = os.path.join(checkpoint, "step1")
    files = sorted(os.listdir(tag))
    outputs_of(start(config, steps=1, save_steps=[1], checkpoint=checkpoint, seed=2,
                     killed_at_rename=2))
    assert REPLACING in os.listdir(tag)
    assert_refused(config, checkpoint, ["step1", None])
    assert get_fp32_state_dict_from_zero_checkpoint(checkpoint)  # DeepSpeed's tools still read it
    losses = job(config, steps=2, save_steps=[1], checkpoint=checkpoint, seed=2)
    assert sorted(os.listdir(tag)) == files
    again = job(config, steps=2, load_step=1, checkpoint=checkpoint)
    assert again == [each[2:] for each in losses]


@promise
def a_tag_that_was_never_whole_is_refused(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    outputs_of(start(config, steps=1, save_steps=[1], checkpoint=checkpoint, killed_at_rename=2))
    for result in results_of(start(config, steps=0, checkpoint=checkpoint, refused=["step1"])):
        assert "_optim_states.pt is missing" in str(result["refused"][0]), result["refused"]


def universal_jobs(directory):
    """For each depth a configuration, and where a job has saved a universal checkpoint."""
    for depth in ("step", "swappers"):
        part = os.path.join(directory, depth)
        os.mkdir(part)
        yield configuration(part, depth=depth), os.path.join(part, "saved")


@promise
def a_universal_checkpoint_of_two_saves_is_refused_until_it_is_saved_again(directory):
    for config, checkpoint in universal_jobs(directory):
        universal_of_two_saves(config, checkpoint)


def universal_of_two_saves(config, checkpoint):
    job(config, steps=1, universal=checkpoint)
    tag = os.path.join(checkpoint, "step1")
    files = sorted(os.listdir(tag))
    outputs_of(start(config, steps=1, universal=checkpoint, seed=2, killed_at_rename=2))
    loading = dict(config, checkpoint={"load_universal": True})
    assert_refused(loading, checkpoint, ["step1", None])
    losses = job(config, steps=2, universal=checkpoint, universal_step=1, seed=2)
    assert sorted(os.listdir(tag)) == files
    again = job(loading, steps=2, load_step=1, checkpoint=checkpoint)
    assert again == [each[2:] for each in losses]


@promise
def a_universal_checkpoint_that_cannot_be_written_leaves_the_one_before(directory):
    for config, checkpoint in universal_jobs(directory):
        saving = {"universal": checkpoint, "universal_step": 1, "universal_tag": "runs/a"}
        results = results_of(start(config, steps=3, too_large=200000, **saving))
        for result in results:
            reasons = ["File too large", "may write files of at most", "rank 0 "]
            assert any(reason in result["too_large"] for reason in reasons), result["too_large"]
        assert sorted(os.listdir(os.path.join(checkpoint, "runs"))) == ["a"]
        assert not [name for name in os.listdir(os.path.join(checkpoint, "runs", "a"))
                    if "partial" in name or name == REPLACING]
        with open(os.path.join(checkpoint, "latest_universal"), encoding="ascii") as file:
            assert file.read() == "runs/a"
        loading = dict(config, checkpoint={"load_universal": True})
        again = results_of(start(loading, steps=3, load_step=1, tag=None, checkpoint=checkpoint, seed=2))
        for before, after in zip(results, again):
            assert after["losses"] == before["losses"][2:] and after["place"] == 1


@promise
def a_universal_checkpoint_does_not_replace_other_files_and_leaves_none(directory):
    for depth in ("step", "swappers"):
        part = os.path.join(directory, depth)
        notes = os.path.join(part, "saved", "step1", "zero", "notes.txt")
        os.makedirs(os.path.dirname(notes))
        with open(notes, "w", encoding="ascii") as file:
            file.write("mine")
        outputs = outputs_of(start(configuration(part, depth=depth), steps=1,
                                   universal=os.path.join(part, "saved")))
        assert all(f"{notes} is no part of a universal checkpoint" in output for output in outputs)
        found = [name for _, _, names in os.walk(os.path.join(part, "saved")) for name in names]
        assert found == ["notes.txt"], found


@promise
def a_parameter_that_a_universal_checkpoint_has_no_directory_for_is_named(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    output, = outputs_of(start(config, ranks=1, steps=1, universal=checkpoint, slash=True))
    assert '"a/b": the name must be that of a directory' in output, output[-3000:]


@promise
def a_save_removes_what_its_tag_has_of_another_step_in_the_other_form(directory):
    for config, checkpoint in universal_jobs(directory):
        universal = dict(config, checkpoint={"load_universal": True})
        saving = {"steps": 3, "checkpoint": checkpoint, "universal": checkpoint, "universal_tag": "step2"}
        for universal_step, has_plain, has_universal in ((1, True, False), (3, False, True), (2, True, True)):
            losses = job(config, save_steps=[2], universal_step=universal_step, **saving)
            names = os.listdir(os.path.join(checkpoint, "step2"))
            assert ("zero" in names) == has_universal, (universal_step, names)
            assert any(name.endswith("_optim_states.pt") for name in names) == has_plain, names
            for loading, loads in ((config, has_plain), (universal, has_universal)):
                if loads and universal_step != 3:
                    again = job(loading, steps=3, load_step=2, checkpoint=checkpoint, seed=2)
                    assert again == [each[4:] for each in losses], (universal_step, loading)
            shutil.rmtree(checkpoint)


def states_in(folder):
    return sorted(name for name in os.listdir(folder) if name.endswith("_states.pt"))


@promise
def a_tag_that_fewer_ranks_save_again_has_only_their_files(directory):
    for config, checkpoint in universal_jobs(directory):
        universal = dict(config, checkpoint={"load_universal": True})
        tag, saving = os.path.join(checkpoint, "step1"), {"checkpoint": checkpoint, "save_steps": [1]}
        job(config, steps=1, **saving)
        losses, = job(config, ranks=1, steps=2, seed=2, **saving)
        assert states_in(tag) == ["bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
                                  "zero_pp_rank_0_mp_rank_00_model_states.pt"]
        assert get_fp32_state_dict_from_zero_checkpoint(checkpoint, "step1")
        for load in ({}, {"load_optimizer_states": False}):
            again, = job(config, ranks=1, steps=2, load_step=1, checkpoint=checkpoint, load=load)
            assert again[:2] == losses[2:4], load
        # State of the same step stays in the other form only if it is of as many ranks.
        job(config, steps=1, universal=checkpoint, **saving)
        assert len(states_in(tag)) == 4 and os.path.exists(os.path.join(tag, "zero"))
        job(universal, ranks=1, steps=1, load_step=1, universal=checkpoint, checkpoint=checkpoint)
        assert states_in(tag) == ["zero_pp_rank_0_mp_rank_00_model_states.pt"]


@promise
def a_tag_that_a_job_of_another_type_saves_again_has_only_its_files(directory):
    checkpoint = os.path.join(directory, "saved")
    for dtype, prefix in (("bf16", "bf16_"), ("fp32", "")):
        job(configuration(directory, depth="step", dtype=dtype), ranks=1, steps=1, save_steps=[1],
            checkpoint=checkpoint)
        assert states_in(os.path.join(checkpoint, "step1")) == sorted(
            [f"{prefix}zero_pp_rank_0_mp_rank_00_optim_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"])


@promise
def each_node_removes_files_of_ranks_that_are_gone_from_its_own_folder(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "node{rank}")
    config["checkpoint"] = {"use_node_local_storage": True}
    saving = {"nodes": 2, "steps": 1, "save_steps": [1], "checkpoint": checkpoint}
    job(config, **saving)
    folder = os.path.join(checkpoint.format(rank=1), "step1")
    names = states_in(folder)
    for name in names:
        shutil.copy(os.path.join(folder, name), os.path.join(folder, name.replace("rank_1", "rank_2")))
    job(config, **saving)
    assert states_in(folder) == names


@promise
def a_save_that_would_remove_files_of_others_changes_nothing(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    tag = os.path.join(checkpoint, "step2")
    job(config, steps=1, universal=checkpoint, universal_tag="step2")
    notes = os.path.join(tag, "zero", "notes.txt")
    with open(notes, "w", encoding="ascii") as file:
        file.write("mine")
    before = {name: os.stat(os.path.join(tag, name)).st_ino for name in os.listdir(tag)}
    first, second = outputs_of(start(config, steps=2, save_steps=[2], checkpoint=checkpoint))
    assert f"{notes} is no part of a universal checkpoint" in first, first[-3000:]
    assert "rank 0 could not save its part of step2" in second, second[-3000:]
    assert before == {name: os.stat(os.path.join(tag, name)).st_ino for name in os.listdir(tag)}


@promise
def a_tag_that_another_job_saves_is_refused_and_stays_that_of_the_other(directory):
    for config, checkpoint in universal_jobs(directory):
        for saving in ({"save_steps": [2], "checkpoint": checkpoint},
                       {"universal": checkpoint, "universal_step": 2}):
            one_of_two_jobs(config, checkpoint, saving)


def one_of_two_jobs(config, checkpoint, saving):
    first, = start(config, ranks=1, steps=3, killed_at_rename=-1, **saving)
    await_step(first)
    assert os.WIFSTOPPED(os.waitpid(first.pid, os.WUNTRACED)[1])
    outputs = outputs_of(start(config, steps=2, seed=2, **saving))
    os.kill(first.pid, signal.SIGCONT)
    folder = os.path.join(checkpoint, "step2")
    assert all(f"another job saves {folder}" in output for output in outputs), outputs[0][-3000:]
    assert "rank 0 could not save its part of step2" in outputs[1], outputs[1][-3000:]
    losses, = (result["losses"] for result in results_of([first]))
    assert not [name for _, folders, names in os.walk(checkpoint) for name in folders + names
                if "partial" in name or name == REPLACING]
    loading = dict(config, checkpoint={"load_universal": "universal" in saving})
    again, = job(loading, ranks=1, steps=3, load_step=2, checkpoint=checkpoint, seed=2)
    assert again == losses[4:]


main()
