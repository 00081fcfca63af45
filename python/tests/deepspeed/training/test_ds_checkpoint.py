#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of ZeRO-3 jobs whose parameters and optimizer state are on NVMe."""

import errno
import glob
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from random import Random
from types import SimpleNamespace

from jobs import await_step, configuration, job, outputs_of, results_of, start
from promises import main, promise, raises

os.environ["DS_ACCELERATOR"] = "cpu"
import torch  # noqa: E402
from deepspeed.runtime.config import DeepSpeedConfig  # noqa: E402
from deepspeed.runtime.fp16.loss_scaler import LossScaler  # noqa: E402
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint  # noqa: E402

from nvswap import Engine  # noqa: E402
from nvswap.deepspeed.checkpoint.engine import (  # noqa: E402
    CheckpointEngine, refuse_what_is_set)  # noqa: E402
from nvswap.deepspeed.checkpoint.stored import EngineFile, Stored  # noqa: E402
from nvswap.deepspeed.checkpoint.zero3 import Checkpoints  # noqa: E402
from nvswap.durable import replace_text  # noqa: E402

STEPS = 8


def tensors_of(state, path=""):
    """The tensors and numbers of a state dictionary, by where they are."""
    if isinstance(state, dict):
        items = state.items()
    elif isinstance(state, (list, tuple)):
        items = enumerate(state)
    else:
        return {path: state} if isinstance(state, (torch.Tensor, int, float)) else {}
    found = {}
    for key, value in items:
        found.update(tensors_of(value, f"{path}/{key}"))
    return found


def optimizer_state(checkpoint, tag):
    """Weights, moments, steps, learning rates and loss scales of all ranks."""
    files = sorted(glob.glob(os.path.join(checkpoint, tag, "*_optim_states.pt")))
    states = [torch.load(file, weights_only=False)["optimizer_state_dict"] for file in files]
    return tensors_of([(state["optimizer_state_dict"], state["fp32_flat_groups"],
                        vars(state["loss_scaler"]), state["dynamic_loss_scale"]) for state in states])


def assert_equal(one, other):
    assert one.keys() == other.keys() and one
    for key, value in one.items():
        same = value.equal(other[key]) if isinstance(value, torch.Tensor) else value == other[key]
        assert same, key


def with_other_numbers(config):
    """The same job with another learning rate and decay, which a checkpoint replaces."""
    return dict(config, optimizer={"type": "AdamW", "params": {"lr": 0.5, "weight_decay": 0.3}})


def resumes(directory, frozen=False, **settings):
    """Eight steps in one run, and four after a checkpoint, by a job that begins with other weights and
    another learning rate: the same losses and state."""
    config = configuration(directory, **settings)
    whole, parts = (os.path.join(directory, name) for name in ("whole", "parts"))
    losses = job(config, steps=STEPS, save_steps=[STEPS], checkpoint=whole, frozen=frozen)
    first = job(config, steps=4, save_steps=[4], checkpoint=parts, frozen=frozen)
    second = job(with_other_numbers(config), steps=STEPS, load_step=4, save_steps=[STEPS],
                 checkpoint=parts, seed=2, frozen=frozen)
    assert [one + two for one, two in zip(first, second)] == losses
    state = optimizer_state(whole, "step8")
    assert [each for key, each in state.items() if key.endswith("/step")][0] == STEPS
    assert_equal(state, optimizer_state(parts, "step8"))


@promise
def a_job_in_bf16_goes_on_exactly_with_the_step(directory):
    resumes(directory, depth="step")


@promise
def a_job_in_fp32_goes_on_exactly_with_the_step(directory):
    resumes(directory, depth="step", dtype="fp32")


@promise
def a_job_in_bf16_goes_on_exactly_with_the_swappers(directory):
    resumes(directory, depth="swappers")


@promise
def a_job_in_fp32_goes_on_exactly_with_the_swappers(directory):
    resumes(directory, depth="swappers", dtype="fp32",
            optimizer={"pipeline_read": True, "pipeline_write": True})


@promise
def a_job_with_masters_in_bf16_goes_on_exactly_with_the_swappers(directory):
    resumes(directory, depth="swappers", bf16={"bf16_master_weights_and_grads": True})


@promise
def a_job_with_state_in_memory_goes_on_with_its_state_on_nvme(directory):
    in_memory, checkpoint = configuration(None, "cpu"), os.path.join(directory, "saved")
    losses = job(in_memory, steps=STEPS, save_steps=[4], checkpoint=checkpoint)
    later = [each[2 * 4:] for each in losses]
    for depth in ("step", "swappers"):
        part = os.path.join(directory, depth)
        os.mkdir(part)
        assert job(configuration(part, depth=depth), steps=STEPS, load_step=4, seed=2,
                   checkpoint=checkpoint) == later, depth


@promise
def a_job_with_frozen_parameters_goes_on_exactly(directory):
    for depth in ("step", "swappers"):
        part = os.path.join(directory, depth)
        os.mkdir(part)
        resumes(part, depth=depth, frozen=True)


def in_fp16(config, initial_scale_power):
    """Slow without float16 in the processor; the scale doubles every second step."""
    block = {"enabled": True, "initial_scale_power": initial_scale_power, "loss_scale_window": 2}
    return dict(config, fp16=block)


@promise
def the_loss_scale_goes_on_where_it_was(directory):
    settings = {"ranks": 1, "width": 32, "steps": 3, "fp16_by_torch": True}
    config = configuration(directory, dtype="fp16", depth="step")
    native, written, again = (os.path.join(directory, name) for name in ("native", "one", "two"))
    job(in_fp16(config, 10), save_steps=[3], checkpoint=native, universal=written, **settings)
    settings["load_step"] = 3
    job(in_fp16(config, 4), checkpoint=native, saves=[[{}, ["again"]]], **settings)
    state = optimizer_state(native, "step3")
    assert state["/0/2/cur_scale"] >= 2 ** 10
    assert_equal(state, optimizer_state(native, "again"))
    config["checkpoint"] = {"load_universal": True}
    job(in_fp16(config, 4), checkpoint=written, universal=again, **settings)
    assert_equal(*(universal_state(os.path.join(path, "step3")) for path in (written, again)))


@promise
def save_latest_and_load_optimizer_states_do_as_they_say(directory):
    for depth in ("step", "swappers"):
        part = os.path.join(directory, depth)
        os.mkdir(part)
        saves_aside(part, configuration(part, depth=depth))


def saves_aside(directory, config):
    """Saves a tag that `latest` is not to name, then loads weights without moments."""
    checkpoint = os.path.join(directory, "saved")
    job(config, ranks=1, steps=2, save_steps=[2], checkpoint=checkpoint,
        saves=[[{}, ["aside"], checkpoint, False, True]])
    assert latest_of(checkpoint) == "step2" and names_in(checkpoint, "aside") == files_of_rank(0)
    job(with_other_numbers(config), ranks=1, steps=2, load_step=2, checkpoint=checkpoint, seed=2,
        load={"load_optimizer_states": False}, saves=[[{}, ["again"]]])
    before, after = (optimizer_state(checkpoint, tag) for tag in ("step2", "again"))
    assert after["/0/0/param_groups/0/lr"] == 0.5
    for path, values in before.items():
        if path.startswith("/0/1/"):
            assert values.bfloat16().float().equal(after[path]), path
        elif "exp_avg" in path:
            assert values.any() and not torch.as_tensor(after.get(path, 0)).any(), path


class OneSubGroup(Checkpoints):
    """An optimizer that keeps what a checkpoint gives it."""

    def __init__(self):
        self.fp16_groups, self.sub_group_to_group_id = [[]], {0: 0}
        self.fp16_partitioned_groups_flat_numel = [3]
        self.optimizer = SimpleNamespace(param_groups=[{"lr": 1.0}])
        self.given = None

    def _partition_all_parameters(self):
        pass

    def _put_state(self, group, master, state):
        self.given = state


@promise
def an_optimizer_takes_moments_and_numbers_of_a_checkpoint_only_if_asked(_directory):
    moments = {part: torch.ones(3) for part in ("exp_avg", "exp_avg_sq")}
    state = {"loss_scaler": None, "dynamic_loss_scale": True, "overflow": False,
             "fp32_flat_groups": [torch.ones(3)], "optimizer_state_dict": {
                 "state": {0: {"step": 7, **moments}}, "param_groups": [{"lr": 2.0}]}}
    for asked, given, rate in ((False, None, 1.0), (True, {"step": 7, **moments}, 2.0)):
        optimizer = OneSubGroup()
        optimizer._rigid_load_state_dict(state, load_optimizer_states=asked)
        assert optimizer.given == given and optimizer.optimizer.param_groups[0]["lr"] == rate


def saved(directory, ranks=2, **settings):
    """A job's checkpoint, and the fp32 weights that the job ended with."""
    checkpoint, weights = (os.path.join(directory, name) for name in ("saved", "weights.pt"))
    job(configuration(directory, **settings), ranks=ranks, steps=2, save_steps=[2],
        checkpoint=checkpoint, weights=weights)
    return checkpoint, torch.load(weights)


@promise
def torch_reads_files_of_state_without_executing_anything_but_the_loss_scaler(directory):
    checkpoint, _ = saved(directory, ranks=1, depth="step")
    path, = glob.glob(os.path.join(checkpoint, "step2", "*_optim_states.pt"))
    with torch.serialization.safe_globals([LossScaler]):
        state = torch.load(path, weights_only=True)["optimizer_state_dict"]
    assert state["zero_stage"] == 3 and state["optimizer_state_dict"]["state"][0]["step"] == 2


@promise
def zero_to_fp32_gives_the_weights_of_the_run(directory):
    for depth in ("step", "swappers"):
        part = os.path.join(directory, depth)
        os.mkdir(part)
        checkpoint, weights = saved(part, depth=depth)
        assert_equal(weights, get_fp32_state_dict_from_zero_checkpoint(checkpoint))


@promise
def a_converted_checkpoint_loads_on_one_rank_and_on_four(directory):
    checkpoint, weights = saved(directory, depth="step")
    tag = os.path.join(checkpoint, "step2")
    subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder",
                    tag, "--output_folder", f"{tag}_universal"], check=True,
                   stdout=subprocess.DEVNULL)
    for ranks, depth in ((1, "swappers"), (4, "step")):
        loaded_on(directory, checkpoint, weights, ranks, depth)


def loaded_on(directory, checkpoint, weights, ranks, depth):
    """Loads a universal checkpoint, and saves it again: the weights and moments are the same."""
    config = configuration(directory, depth=depth)
    config["checkpoint"] = {"load_universal": True}
    after = os.path.join(directory, f"weights{ranks}.pt")
    job(config, ranks=ranks, steps=2, load_step=2, tag="step2_universal", checkpoint=checkpoint,
        weights=after)
    assert_equal(weights, torch.load(after))


@promise
def damage_of_a_universal_checkpoint_is_refused_by_all_ranks(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    job(config, steps=1, universal=checkpoint)
    path, = glob.glob(os.path.join(checkpoint, "step1", "zero", "head.weight", "exp_avg.pt"))
    damage(path)
    for depth in ("step", "swappers"):
        config = configuration(directory, depth=depth)
        config["checkpoint"] = {"load_universal": True}
        for output in outputs_of(start(config, steps=2, load_step=1, tag="step1",
                                       checkpoint=checkpoint)):
            assert f"{path} is damaged" in output, output[-3000:]


def damage(path):
    """Changes a bit in the middle of a file."""
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def universal_state(folder):
    """The tensors of a universal checkpoint, by file; its step, learning rates and so on."""
    paths = glob.glob(os.path.join(folder, "zero", "*", "*.pt"))
    whole = torch.load(os.path.join(folder, "zero", "optimizer_state.pt"), weights_only=False)
    return {**{os.path.relpath(path, folder): torch.load(path) for path in paths},
            **tensors_of(whole), **tensors_of(vars(whole["loss_scaler"]), "/loss_scaler")}


@promise
def a_universal_checkpoint_is_written_and_loads_on_one_two_and_four_ranks(directory):
    written = os.path.join(directory, "universal0")
    losses = job(configuration(directory, depth="step"), steps=4, universal=written, universal_step=2)
    state = universal_state(os.path.join(written, "step2"))
    assert state["/optimizer_state_dict/state/0/step"] == 2
    assert all(values.any() for path, values in state.items() if "exp_avg" in path)
    for ranks, depth in ((1, "step"), (2, "step"), (4, "swappers")):
        again = os.path.join(directory, f"universal{ranks}")
        config = with_other_numbers(configuration(directory, depth=depth))
        config["checkpoint"] = {"load_universal": True}
        steps = 4 if ranks == 2 else 3
        after = job(config, ranks=ranks, steps=steps, load_step=2, tag=None, checkpoint=written,
                    universal=again, universal_step=2)
        assert_equal(state, universal_state(os.path.join(again, "step2")))
        # The losses up to the next step depend on no other rank.
        for one, two in zip(losses, after):
            assert one[4:] == two if ranks == 2 else one[4:6] == two


@promise
def a_universal_checkpoint_of_state_in_fewer_bytes_is_float32_and_loads_in_any_format(directory):
    for state in "bf16", "8bit":
        written = os.path.join(directory, state)
        losses = job(in_format(directory, state), steps=4, universal=written, universal_step=2)
        values = universal_state(os.path.join(written, "step2"))
        files = [path for path in values if path.endswith(".pt")]
        assert files and all(values[path].dtype == torch.float32 for path in files)
        assert all(values[path].any() for path in files if "exp_avg" in path)
        # Into fp32, and from there back.
        for into in "fp32", state:
            config, again = in_format(directory, into), f"{written}-{into}"
            config["checkpoint"] = {"load_universal": True}
            after = job(config, steps=4, load_step=2, tag=None, checkpoint=written, universal=again, universal_step=2)
            assert_equal(values, universal_state(os.path.join(again, "step2")))
            written = again
        for one, two in zip(losses, after):
            assert one[4:] == two


def in_format(directory, state):
    config = configuration(directory, depth="step")
    config["nvswap"]["optimizer_state"] = state
    return config


@promise
def a_universal_checkpoint_from_before_the_first_step_loads(directory):
    for depth in ("step", "swappers"):
        part = os.path.join(directory, depth)
        os.mkdir(part)
        config = configuration(part, depth=depth)
        losses = job(config, steps=2, universal=part, universal_step=0)
        config["checkpoint"] = {"load_universal": True}
        assert job(config, steps=2, load_step=0, checkpoint=part, seed=2) == losses


@promise
def every_file_has_the_checksums_of_its_contents_and_is_for_its_owner_alone(directory):
    checkpoint, _ = saved(directory, ranks=1, depth="step")
    files = glob.glob(os.path.join(checkpoint, "step2", "*.pt"))
    assert len(files) == 2
    for path in files:
        assert zipfile.ZipFile(path).testzip() is None
        assert os.stat(path).st_mode & 0o777 == 0o600


@promise
def a_checkpoint_that_is_damaged_or_of_another_job_is_refused_with_the_reason(directory):
    checkpoint, _ = saved(directory, ranks=1, depth="step")
    damaged, = [name for name in names_in(checkpoint, "step2") if "optim" in name]
    shutil.copytree(os.path.join(checkpoint, "step2"), os.path.join(checkpoint, "damaged"))
    flip_byte_of(os.path.join(checkpoint, "damaged", damaged))
    for depth in "step", "swappers":
        same = configuration(directory, depth=depth)
        result, = results_of(start(same, ranks=1, steps=0, checkpoint=checkpoint, refused=["damaged"]))
        refusal, = result["refused"]
        assert damaged in refusal and ("checksum" in refusal or "CRC-32" in refusal), refusal
    other = configuration(directory, depth="step", zero={"sub_group_size": 200000})
    result, = results_of(start(other, ranks=1, steps=0, checkpoint=checkpoint, refused=["step2"]))
    of_other, = result["refused"]
    assert "it is of another model, sub_group_size or number of ranks" in of_other


def flip_byte_of(path):
    """Changes the byte in the middle of a file, which belongs to the largest tensors."""
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        byte, = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


class Saver:
    """Saves tags whose files hold nothing but the tag's number."""

    def __init__(self, directory):
        self.directory = directory
        blocks = {"offload_param": {"device": "nvme", "nvme_path": directory, "buffer_size": 100000}}
        self.engine = Engine({"zero_optimization": blocks}, arrays="torch")
        self.engine.register("state", torch.float32, 100000)

    def save(self, tag):
        os.makedirs(os.path.join(self.directory, str(tag)), exist_ok=True)
        with self.engine.pinned("state", "w") as tensors:
            tensors["state"].fill_(float(tag))
        for rank in range(2):
            CheckpointEngine().save(
                {"state": Stored(EngineFile(self.engine), "state", 100000), "tag": tag},
                os.path.join(self.directory, str(tag), f"rank{rank}.pt"))
        replace_text(os.path.join(self.directory, "latest"), str(tag))


def latest_of(directory):
    with open(os.path.join(directory, "latest"), encoding="ascii") as file:
        return file.read()


@promise
def a_tag_that_latest_names_is_whole_after_kills_at_fifty_moments(directory):
    # A forked process has no threads of OpenMP.
    torch.set_num_threads(1)
    random, tags = Random(15), set()
    begun, saver = time.monotonic(), Saver(directory)
    saver.save(0)
    saver.engine.close()
    longest = 5 * (time.monotonic() - begun)
    for number in range(50):
        before = latest_of(directory)
        tag = int(before) + 1
        child = os.fork()
        saver = Saver(directory) if child == 0 else None
        while saver:
            saver.save(tag)
            tag += 1
        time.sleep(random.uniform(0, longest))
        # Every fifth kill comes after a save, however slow the machine is.
        while number % 5 == 0 and latest_of(directory) == before:
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert_whole(directory, latest_of(directory))
        tags.add(latest_of(directory))
    assert len(tags) > 5, tags


def assert_whole(directory, tag):
    paths = glob.glob(os.path.join(directory, tag, "*.pt"))
    assert len(paths) == 2
    for path in paths:
        state = CheckpointEngine().load(path)["state"]
        assert state.numel() == 100000 and (state == int(tag)).all(), path


@promise
def a_job_that_was_killed_while_it_saved_goes_on_from_latest(directory):
    checkpoint = os.path.join(directory, "saved")
    config = configuration(directory, depth="step")
    processes = start(config, steps=1000, save_steps=list(range(1, 1000)), checkpoint=checkpoint)
    await_step(processes[1])
    # Any later save is as good as that of step3, whose files may have their names before they are seen.
    while not (os.path.exists(os.path.join(checkpoint, "step3"))
               and glob.glob(os.path.join(checkpoint, "step*", "*.partial"))):
        assert all(process.poll() is None for process in processes)
    for process in processes:
        process.kill()
    outputs_of(processes)
    # It may have gone on since the file was seen.
    step = int(latest_of(checkpoint).removeprefix("step"))
    assert step >= 2
    losses = job(config, steps=step + 2, load_step=step, checkpoint=checkpoint)
    assert losses == [each[2 * step:] for each in job(config, steps=step + 2)]


# ---- The "checkpoint" block

def names_in(*path):
    return sorted(os.listdir(os.path.join(*path)))


def files_of_rank(rank):
    name = f"zero_pp_rank_{rank}_mp_rank_00"
    return [f"bf16_{name}_optim_states.pt", f"{name}_model_states.pt"]


@promise
def all_ranks_hear_of_a_save_that_one_cannot_make_and_the_tag_stays(directory):
    checkpoint, config = os.path.join(directory, "saved"), configuration(directory, depth="step")
    job(config, steps=1, save_steps=[1], checkpoint=checkpoint)
    before = optimizer_state(checkpoint, "step1")
    name = next(name for name in files_of_rank(1) if "optim" in name)
    os.makedirs(os.path.join(checkpoint, "step1", f"{name}.partial"))
    first, second = outputs_of(start(config, steps=1, save_steps=[1], checkpoint=checkpoint, seed=2))
    assert "rank 1 could not save its part of step1: " in first, first[-3000:]
    assert "IsADirectoryError" in second, second[-3000:]
    assert_equal(before, optimizer_state(checkpoint, "step1"))
    os.rmdir(os.path.join(checkpoint, "step1", f"{name}.partial"))
    assert names_in(checkpoint, "step1") == sorted(files_of_rank(0) + files_of_rank(1))


@promise
def all_ranks_hear_of_directories_that_cannot_be_made_and_the_next_save_is_whole(directory):
    config, checkpoint = configuration(directory, depth="step"), os.path.join(directory, "saved")
    file = os.path.join(checkpoint, "file")
    os.mkdir(checkpoint)
    with open(file, "w", encoding="ascii"):
        saves = [[{}, ["step1"] * 2, os.path.join(file, "saved")], [{}, ["file/tag"] * 2, checkpoint],
                 [{}, ["step1"] * 2, checkpoint]]
    for result in results_of(start(config, steps=1, saves=saves, checkpoint=checkpoint), timeout=120):
        first, second, third = (told["error"] for told in result["saves"])
        for error in first, second:
            assert file in str(error), error
        assert third is None
    assert latest_of(checkpoint) == "step1"
    assert names_in(checkpoint, "step1") == sorted(files_of_rank(0) + files_of_rank(1))


@promise
def weights_are_saved_to_one_file_or_all_ranks_hear_that_they_are_not(directory):
    config = configuration(directory, depth="step",
                           zero={"stage3_gather_16bit_weights_on_model_save": True})
    file, folder = (os.path.join(directory, name) for name in ("file", "folder"))
    with open(file, "w", encoding="ascii"):
        results = results_of(start(config, steps=1, gathered=[folder, os.path.join(file, "x"), folder]))
    for result in results:
        first, second, third = result["gathered"]
        assert first is None and file in second and third is None, result["gathered"]
    assert names_in(folder) == ["pytorch_model.bin"]
    assert torch.load(os.path.join(folder, "pytorch_model.bin"))["head.weight"].shape == (256, 128)


@promise
def tags_that_differ_between_ranks_pass_warn_or_fail_as_tag_validation_says(directory):
    checkpoint = os.path.join(directory, "saved")
    saves = [[{"tag_validation": "Fail"}, [0, 0]]]
    for mode, block in (("Fail", {"tag_validation": "Fail"}), ("Warn", {"tag_validation": "Warn"}),
                        ("Without", {}), ("Ignore", {"tag_validation": "Ignore"})):
        saves.append([block, [f"{mode}0", f"{mode}1"]])
    results = results_of(start(configuration(directory, depth="step"), steps=1, saves=saves,
                               checkpoint=checkpoint))
    for result in results:
        assert_validated(result["rank"], *result["saves"])
        for mode in ("Warn", "Without", "Ignore"):
            tag = os.path.join(checkpoint, f"{mode}{result['rank']}")
            assert names_in(tag) == files_of_rank(result["rank"])
    assert not glob.glob(os.path.join(checkpoint, "Fail*"))
    assert latest_of(checkpoint) == "0"
    assert names_in(checkpoint, "0") == sorted(files_of_rank(0) + files_of_rank(1))


def assert_validated(rank, same, fail, warn, without, ignore):
    """What a rank was told, in order of the tags."""
    assert same == {"error": None, "warnings": []}
    assert f"'Fail{rank}' is not consistent across all ranks" in fail["error"]
    for mode, told in (("Warn", warn), ("Without", without)):
        assert told["error"] is None
        assert f"'{mode}{rank}' is not consistent across all ranks" in told["warnings"][0]
    assert ignore["error"] is None
    assert not any("consistent" in warning for warning in ignore["warnings"])
    assert [bool(told["warnings"]) for told in (fail, ignore)] == [False, rank == 0]


@promise
def each_node_goes_on_from_latest_in_storage_of_its_own(directory):
    config = configuration(directory, depth="step")
    config["checkpoint"] = {"use_node_local_storage": True}
    checkpoint, shared = (os.path.join(directory, name) for name in ("node{rank}", "shared"))
    losses = job(config, nodes=2, steps=4, save_steps=[2], checkpoint=checkpoint)
    for rank in range(2):
        node = checkpoint.format(rank=rank)
        assert latest_of(node) == "step2" and names_in(node, "step2") == files_of_rank(rank)
    again = job(config, nodes=2, steps=4, load_step=2, tag=None, checkpoint=checkpoint,
                saves=[[{}, ["both", "both"], shared]])
    assert again == [each[4:] for each in losses]
    assert latest_of(shared) == "both" and len(names_in(shared, "both")) == 4


@promise
def keys_that_cannot_save_a_store_are_refused_with_the_reason(directory):
    config = configuration(directory, depth="step")
    writer = {"checkpoint": {"writer": {"type": "fast"}}}
    staged = {"checkpoint": {"parallel_write": {"pipeline_stage": True}}}
    for key, blocks in (("checkpoint.writer", writer),
                        ("checkpoint.checkpoint_serialization",
                         {"checkpoint": {"checkpoint_serialization": False}}),
                        ("checkpoint.parallel_write.pipeline_stage", staged),
                        ("datastates_ckpt", {"datastates_ckpt": {"host_cache_size": 1}})):
        read = DeepSpeedConfig({**config, **blocks})
        error = raises(OSError, lambda: refuse_what_is_set(read), errno.ENOTSUP)
        assert f"{key}: " in str(error) and "leave it out" in str(error)
    allowed = {"parallel_write": {"pipeline_stage": False}, "checkpoint_serialization": True}
    refuse_what_is_set(DeepSpeedConfig(dict(config, checkpoint=allowed)))
    config.update(writer)
    for output in outputs_of(start(config, steps=1)):
        assert "checkpoint.writer: optimizer state in a store is written by nvswap" in output


main()
