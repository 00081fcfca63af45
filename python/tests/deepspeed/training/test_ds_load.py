#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads of checkpoints that can't be loaded by one rank: all ranks get an error that names the file."""

import contextlib
import os
import shutil

from jobs import configuration, job, outputs_of, results_of, start
from promises import main, promise

os.environ["DS_ACCELERATOR"] = "cpu"
import torch  # noqa: E402

import nvswap  # noqa: E402
from nvswap.deepspeed.checkpoint.durable import check_whole  # noqa: E402

STATE = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
MODEL = "zero_pp_rank_1_mp_rank_00_model_states.pt"


WEIGHTS, MODULE = {"load_optimizer_states": False}, {"load_module_only": True}


def refusals(config, checkpoint, tags, ranks=2, **settings):
    """What each rank says of each tag, or of each pair of a tag and arguments of load_checkpoint."""
    results = results_of(start(config, ranks=ranks, steps=0, checkpoint=checkpoint, refused=tags,
                               **settings))
    return [result["refused"] for result in sorted(results, key=lambda result: result["rank"])]


def copy_of(checkpoint, tag, name, change):
    """A copy of step1 in which one file has been changed; returns the file."""
    shutil.copytree(os.path.join(checkpoint, "step1"), os.path.join(checkpoint, tag))
    path = os.path.join(checkpoint, tag, name)
    change(path)
    return path


def flip_byte(path):
    """The byte in the middle, which belongs to the largest tensors."""
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        byte, = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def flip_byte_of_pickle(path):
    with open(path, "r+b") as file:
        at = file.read().index(b"param_shapes")
        file.seek(at)
        file.write(b"q")


def cut_off(path):
    os.truncate(path, os.path.getsize(path) // 2)


def empty(path):
    os.truncate(path, 0)


def zero(path):
    size = os.path.getsize(path)
    os.truncate(path, 0)
    os.truncate(path, size)


@promise
def a_file_that_one_rank_cannot_load_is_an_error_on_all_ranks_that_names_it(directory):
    for depth in ("step", "swappers"):
        part = os.path.join(directory, depth)
        os.mkdir(part)
        config, checkpoint = configuration(part, depth=depth), os.path.join(part, "saved")
        job(config, steps=1, save_steps=[1], checkpoint=checkpoint)
        changed = {"without-state": (STATE, os.remove), "without-model": (MODEL, os.remove),
                   "damaged-state": (STATE, flip_byte), "damaged-model": (MODEL, flip_byte_of_pickle),
                   "cut-state": (STATE, cut_off), "cut-model": (MODEL, cut_off),
                   "empty-state": (STATE, empty), "empty-model": (MODEL, empty),
                   "zero-state": (STATE, zero)}
        paths = [copy_of(checkpoint, tag, *how) for tag, how in changed.items()]
        first, second = refusals(config, checkpoint, [*changed, "step1"])
        assert first.pop() is None and second.pop() is None
        for path, of_other, own in zip(paths, first, second):
            tag = os.path.basename(os.path.dirname(path))
            reasons = ("is missing",) if "without" in tag else ("is damaged", "not have the checksum")
            assert path in str(own) and any(reason in own for reason in reasons), (tag, own)
            assert f"rank 1 could not load {tag}: " in str(of_other) and path in of_other, \
                (tag, of_other)


@promise
def what_was_saved_with_objects_that_torch_loads_is_loaded(directory):
    for depth in ("step", "swappers"):
        saved, universal = (os.path.join(directory, depth + name) for name in ("saved", "universal"))
        config = configuration(directory, depth=depth)
        losses = job(config, steps=3, save_steps=[1], checkpoint=saved, universal=universal,
                     universal_step=1, objects=True)
        of_universal = dict(config, checkpoint={"load_universal": True})
        for loading, checkpoint in ((config, saved), (of_universal, universal)):
            again = job(loading, steps=3, load_step=1, checkpoint=checkpoint, seed=2)
            assert again == [each[2:] for each in losses], checkpoint


def damage_unseen(path):
    """Changes a bit that no CRC-32 covers and torch.load stumbles over."""
    with open(path, "rb") as file:
        whole = file.read()
    for offset in range(len(whole) - 400, len(whole)):
        damaged = bytearray(whole)
        damaged[offset] ^= 0x10
        with open(path, "wb") as file:
            file.write(damaged)
        with contextlib.suppress(nvswap.Error):
            check_whole(path)
            try:
                torch.load(path, weights_only=False)
            except RuntimeError:
                return
    raise AssertionError(f"torch reads {path} whatever was changed")


@promise
def a_file_that_only_torch_finds_damaged_is_named_too(directory):
    config, checkpoint = configuration(directory, depth="swappers"), os.path.join(directory, "saved")
    job(config, steps=1, save_steps=[1], checkpoint=checkpoint)
    path = copy_of(checkpoint, "damaged", MODEL, damage_unseen)
    for said, in refusals(config, checkpoint, ["damaged"]):
        assert path in said, said
    universal = os.path.join(directory, "universal")
    job(config, steps=1, universal=universal)
    config["checkpoint"] = {"load_universal": True}
    for name in ("optimizer_state.pt", os.path.join("head.bias", "exp_avg.pt")):
        path = copy_of(universal, os.path.dirname(name) or "whole", os.path.join("zero", name), damage_unseen)
        for said, in refusals(config, universal, [os.path.dirname(name) or "whole"]):
            assert path in said, said


@promise
def a_universal_checkpoint_of_other_shapes_is_refused_by_name(directory):
    checkpoint = os.path.join(directory, "saved")
    for frozen, expected in ((False, " here"), (True, "this frozen parameter with the shape")):
        job(configuration(directory, depth="step"), steps=1, universal=checkpoint, frozen=frozen)
        for depth in ("step", "swappers"):
            config = configuration(directory, depth=depth)
            config["checkpoint"] = {"load_universal": True}
            for said in refusals(config, checkpoint, [["step1", load] for load in ({}, WEIGHTS)], width=96,
                                 frozen=frozen):
                assert len(said) == 2 and all(expected in each for each in said), (depth, said)


@promise
def buffers_of_a_universal_checkpoint_load_on_any_number_of_ranks(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    losses = job(config, steps=3, universal=checkpoint, universal_step=2, buffer=1)
    for ranks, depth, load in ((1, "step", {}), (2, "swappers", {}), (2, "step", MODULE)):
        loading = dict(configuration(directory, depth=depth), checkpoint={"load_universal": True})
        after = job(loading, ranks=ranks, steps=3, load_step=2, checkpoint=checkpoint, buffer=1, seed=2,
                    load=load)
        assert [each[4:6] for each in losses[:ranks]] == after, (ranks, depth, load)


@promise
def buffers_that_differ_are_refused_as_torch_refuses_them(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    loading = dict(config, checkpoint={"load_universal": True})
    for saved, own, said in (({"buffer": 1}, {"buffer": 2}, "size mismatch for seen"),
                             ({"buffer": 1}, {}, 'Unexpected key(s) in state_dict: "seen"'),
                             ({}, {"buffer": 1}, 'Missing key(s) in state_dict: "seen"')):
        job(config, ranks=1, steps=1, universal=checkpoint, **saved)
        (refusal, loose), = refusals(loading, checkpoint, ["step1", ["step1", {"load_module_strict": False}]],
                                     ranks=1, **own)
        assert said in refusal, refusal
        assert (loose is None) == (len(saved) != len(own)), loose


@promise
def optimizer_state_is_compared_where_only_weights_are_loaded(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    job(config, steps=1, save_steps=[1], checkpoint=checkpoint)
    paths = [copy_of(checkpoint, "damaged", STATE, flip_byte), copy_of(checkpoint, "empty", STATE, empty)]
    for load in (WEIGHTS, MODULE):
        for *said, of_whole in refusals(config, checkpoint, ["damaged", "empty", "step1"], load=load):
            assert all(path in each and "is damaged" in each for path, each in zip(paths, said)), said
            assert of_whole is None


@promise
def weights_that_one_rank_cannot_store_are_an_error_on_all_ranks(directory):
    for depth in ("step", "swappers"):
        config, checkpoint = configuration(directory, depth=depth), os.path.join(directory, depth)
        job(config, steps=1, save_steps=[1], checkpoint=checkpoint)
        (of_other,), (own,) = refusals(config, checkpoint, ["step1"], full=1, load=WEIGHTS)
        assert "no room" in str(own) and "rank 1 could not put the loaded weights" in str(of_other), depth


@promise
def weights_alone_are_those_of_the_tag_that_is_loaded(directory):
    for depth in ("step", "swappers"):
        part = os.path.join(directory, depth)
        os.mkdir(part)
        config, saved, universal = configuration(part, depth=depth), *(
            os.path.join(part, name) for name in ("saved", "universal"))
        losses = job(config, steps=2, save_steps=[1, 2], checkpoint=saved, universal=universal,
                     universal_step=1)
        of_universal = dict(config, checkpoint={"load_universal": True})
        for load in (WEIGHTS, MODULE):
            for loading, checkpoint in ((config, saved), (of_universal, universal)):
                again = job(loading, steps=2, load_step=1, checkpoint=checkpoint, seed=2, load=load)
                assert again == [each[2:] for each in losses], (depth, load, checkpoint)


@promise
def folders_and_tags_with_brackets_load(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved[a]")
    losses = job(config, ranks=1, steps=2, save_steps=[1], checkpoint=checkpoint, universal=checkpoint,
                 universal_step=1, universal_tag="universal[1]*")
    os.rename(os.path.join(checkpoint, "step1"), os.path.join(checkpoint, "step[1]"))
    of_universal = dict(config, checkpoint={"load_universal": True})
    for loading, tag, load in ((config, "step[1]", {}), (of_universal, "universal[1]*", {}),
                               (config, "step[1]", WEIGHTS)):
        again = job(loading, ranks=1, steps=2, load_step=1, tag=tag, checkpoint=checkpoint, seed=2, load=load)
        assert again == [each[2:] for each in losses], tag


@promise
def a_checkpoint_of_fewer_ranks_is_an_error_on_all_ranks_that_load_it(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    job(config, ranks=1, steps=1, save_steps=[1], checkpoint=checkpoint)
    for said, in refusals(config, checkpoint, ["step1"]):
        assert MODEL in said and "fewer ranks saved it" in said, said


@promise
def state_that_a_job_of_another_type_saved_is_refused_as_such(directory):
    for saved, own, said in (("bf16", "fp32", 'with "bf16", which is false in this job'),
                             ("fp32", "bf16", 'without "bf16", which is true in this job')):
        checkpoint = os.path.join(directory, saved)
        config = configuration(directory, depth="step", dtype=saved)
        job(config, ranks=1, steps=1, save_steps=[1], checkpoint=checkpoint)
        config = configuration(directory, depth="step", dtype=own)
        (refusal, of_weights), = refusals(config, checkpoint, ["step1", ["step1", WEIGHTS]], ranks=1)
        assert said in refusal, refusal
        assert of_weights is None


@promise
def a_checkpoint_of_another_zero_stage_is_refused_as_such(directory):
    checkpoint = os.path.join(directory, "saved")
    config = configuration(directory, "cpu", param=False, zero={"stage": 2})
    job(config, ranks=1, steps=1, save_steps=[1], checkpoint=checkpoint, whole=True)
    path = os.path.join(checkpoint, "step1", "mp_rank_00_model_states.pt")
    config = configuration(directory, depth="step")
    said, = refusals(config, checkpoint, [["step1", load] for load in ({}, MODULE)], ranks=1)
    assert all(f"{path} was saved with another ZeRO stage" in each for each in said), said


@promise
def state_in_swap_files_of_deepspeed_is_refused_with_the_way_to_go_on(directory):
    config, checkpoint = configuration(directory, depth="ops"), os.path.join(directory, "saved")
    job(config, ranks=1, steps=1, save_steps=[1], checkpoint=checkpoint)
    path = os.path.join(checkpoint, "step1", STATE.replace("rank_1", "rank_0"))
    for depth in ("step", "swappers"):
        config = configuration(directory, depth=depth)
        loads = [["step1", load] for load in ({}, WEIGHTS, MODULE)]
        for said in refusals(config, checkpoint, loads, ranks=1)[0]:
            assert path in said and "in swap files of DeepSpeed's own, in offloaded_tensors" in said, said


@promise
def state_of_parameters_in_another_order_is_refused_by_name(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    job(config, steps=1, save_steps=[1], checkpoint=checkpoint)
    for depth in ("step", "swappers"):
        config = configuration(directory, depth=depth)
        for said, of_weights in refusals(config, checkpoint, ["step1", ["step1", WEIGHTS]], exchanged=True):
            assert "has blocks.0.first.weight of shape (128,) where this job has blocks.0.first.bias" in said, said
            assert of_weights is None


@promise
def state_of_renamed_parameters_loads_if_names_need_not_match(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    losses = job(config, steps=2, save_steps=[1], checkpoint=checkpoint)
    assert job(config, steps=2, load_step=1, checkpoint=checkpoint, seed=2, wrapped=True,
               load={"load_module_strict": False}) == [each[2:] for each in losses]


@promise
def a_latest_file_without_a_tag_is_an_error_that_names_it(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    os.mkdir(checkpoint)
    for name, loading in (("latest", config),
                          ("latest_universal", dict(config, checkpoint={"load_universal": True}))):
        path = os.path.join(checkpoint, name)
        for contents in (b"", bytes(5), b"\xff"):
            with open(path, "wb") as file:
                file.write(contents)
            for said, in refusals(loading, checkpoint, [None], ranks=1):
                assert f"{path} is damaged" in said and "name the tag to load" in said, said


@promise
def tags_that_latest_cannot_name_are_refused_before_they_are_saved(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    tags, outside = ("", " a ", "a\nb"), ("..", ".", "a/../../b", "a/..", os.path.join(directory, "b"))
    for result in results_of(start(config, steps=0, checkpoint=checkpoint,
                                   saves=[[{}, [tag, "a"]] for tag in (*tags, *outside)])):
        for tag, told in zip((*tags, *outside), result["saves"]):
            said = f"the tag {tag!r} could not be loaded through `latest`" if tag in tags else \
                f"the tag {tag!r} names no folder below {checkpoint}"
            assert said in str(told["error"]), told
    assert not os.path.exists(checkpoint) and not os.path.exists(os.path.join(directory, "b"))
    os.makedirs(os.path.join(checkpoint, "latest"))
    os.mkdir(os.path.join(checkpoint, "latest_universal"))
    result, = results_of(start(config, ranks=1, steps=0, checkpoint=checkpoint, saves=[[{}, ["a"]]]))
    output, = outputs_of(start(config, ranks=1, steps=0, universal=checkpoint))
    assert f"{os.path.join(checkpoint, 'latest')} is a directory" in str(result["saves"][0]["error"])
    assert f"{os.path.join(checkpoint, 'latest_universal')} is a directory" in output, output[-3000:]
    assert sorted(os.listdir(checkpoint)) == ["latest", "latest_universal"]


@promise
def a_tag_that_is_a_number_loads_as_it_was_saved(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    losses = job(config, ranks=1, steps=2, checkpoint=checkpoint, universal=checkpoint, universal_step=1,
                 universal_tag=7)
    config["checkpoint"] = {"load_universal": True}
    assert job(config, ranks=1, steps=2, load_step=1, tag=7, checkpoint=checkpoint,
               seed=2) == [each[2:] for each in losses]


@promise
def a_tag_that_is_no_universal_checkpoint_is_refused_as_one(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    job(config, steps=1, save_steps=[1], checkpoint=checkpoint)
    config["checkpoint"] = {"load_universal": True}
    for said, in refusals(config, checkpoint, ["step1"]):
        assert f"{os.path.join(checkpoint, 'step1')} is no universal checkpoint" in said, said


@promise
def a_universal_checkpoint_that_is_loaded_as_an_ordinary_one_is_refused_with_the_key(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    job(config, steps=1, universal=checkpoint)
    for ranks in (2, 3):
        loads = [["step1", load] for load in ({}, WEIGHTS, MODULE)]
        for said in refusals(config, checkpoint, loads, ranks=ranks):
            assert all('load it with "checkpoint": {"load_universal": true}' in str(each) for each in said), said


@promise
def a_tag_that_is_not_there_is_an_error_that_names_those_that_are(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    job(config, ranks=1, steps=2, save_steps=[1, 2], checkpoint=checkpoint)
    shutil.rmtree(os.path.join(checkpoint, "step2"))
    for loading in (config, dict(config, checkpoint={"load_universal": True})):
        (said,), = refusals(loading, checkpoint, ["step3"], ranks=1)
        assert f"there is no tag step3 in {checkpoint}; it has step1" in said, said
    for said in refusals(config, checkpoint, [[None, load] for load in ({}, WEIGHTS)], ranks=1)[0]:
        assert f"there is no tag step2 in {checkpoint}, though latest there names it; it has step1" in said, said
    (said,), = refusals(config, os.path.join(directory, "other"), ["step1"], ranks=1)
    assert f"there is no tag step1 in {os.path.join(directory, 'other')}; it has none" in said, said


@promise
def a_file_of_state_that_is_missing_where_only_weights_are_loaded_is_named_on_all_ranks(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    job(config, steps=1, save_steps=[1], checkpoint=checkpoint)
    paths = [copy_of(checkpoint, tag, STATE.replace("rank_1", rank), os.remove)
             for tag, rank in (("one", "rank_1"), ("first", "rank_0"))]
    for load in (WEIGHTS, MODULE):
        for *said, of_whole in refusals(config, checkpoint, ["one", "first", "step1"], load=load):
            assert all(f"{path} is missing" in str(each) for path, each in zip(paths, said)), said
            assert of_whole is None


@promise
def nodes_whose_latest_names_different_tags_are_told_so(directory):
    config = configuration(directory, depth="step")
    config["checkpoint"] = {"use_node_local_storage": True}
    checkpoint = os.path.join(directory, "node{rank}")
    job(config, nodes=2, steps=2, save_steps=[1, 2], checkpoint=checkpoint)
    latest = os.path.join(checkpoint.format(rank=1), "latest")
    with open(latest, "w", encoding="ascii") as file:
        file.write("step1")
    for said, in refusals(config, checkpoint, [None], nodes=2):
        assert f"rank 1 'step1' in {latest}: name the tag to load" in said, said
    os.remove(latest)
    for said, in refusals(config, checkpoint, [None], nodes=2):
        assert f"rank 1 'None' in {latest}" in said, said
    with open(latest, "wb") as file:
        file.write(b"\xff")
    for said, in refusals(config, checkpoint, [None], nodes=2):
        assert f"{latest} is damaged" in said, said


@promise
def ranks_that_load_in_turns_hear_of_the_first_one_that_fails(directory):
    config = configuration(directory, depth="step", zero={"pipeline_loading_checkpoint": True})
    checkpoint = os.path.join(directory, "saved")
    losses = job(config, steps=2, save_steps=[1], checkpoint=checkpoint)
    assert job(config, steps=2, load_step=1, checkpoint=checkpoint) == [each[2:] for each in losses]
    path = copy_of(checkpoint, "damaged", STATE.replace("rank_1", "rank_0"), flip_byte)
    for output in outputs_of(start(config, steps=2, load_step=1, tag="damaged",
                                   checkpoint=checkpoint), timeout=120):
        assert path in output, output[-3000:]


@promise
def amid_gradient_accumulation_a_save_warns_and_a_load_is_refused(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    for loaded in ({}, {"load_step": 1}):
        output, = outputs_of(start(config, ranks=1, steps=2, save_steps=[1], checkpoint=checkpoint,
                                   amid=True, saves=[[{}, ["amid"]]], refused=["amid"], **loaded))
        assert "are not saved, so go on with micro batch 4, from 0" in output, output[-3000:]
        assert "load_checkpoint amid gradient accumulation" in output, output[-3000:]


main()
