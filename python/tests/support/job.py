# SPDX-License-Identifier: Apache-2.0
"""
A training job: a small GPT on the text of this repository's licence, with DeepSpeed's ZeRO-3. Each rank
prints its losses, all digits, as one line of JSON; with "inspect" also what DeepSpeed's functions say of
gradients, weights and states, some of which it changes in between. With "frozen" some parameters are not
trained; with "unused" one layer is never called, and the last block in every second step only; "buffer" is
the number of elements of a buffer that counts calls; with "slash" a parameter has "/" in its name. "saves"
are checkpoints after the last step: the "checkpoint" block of each, a tag for each rank, the folder,
save_latest and exclude_frozen_parameters. "universal" is the folder of a universal checkpoint after
"universal_step", or the last step, of the tag "universal_tag"; "too_large" are bytes of a file that can't
be written when it is saved again at the end. With "exclude_frozen" it has no frozen parameters. With
"whole" the model is not partitioned when it is made. "gathered" are folders for save_16bit_model. With
"amid" a micro batch of the next step comes before all these. "refused" are tags that must not load, or each
with arguments of load_checkpoint, where the weights can't be stored on the rank "full". With
"killed_at_rename": N it kills itself before its N-th file or directory gets its name; with -N it stops
there. With "backend" ranks talk by another one than gloo; "deterministic" has torch compute the same bits in
each run. The rank "outside" finds no room in a pool for what it holds. With "objects" a
learning rate is numpy's, and parameter groups have a set and an enumeration. In step "failing" no file can be
written at first, or with "failing_reads" one read fails, so that it is called again, with "read_unfinished"
behind a read of weights that must be refused; step "raising" ends with an exception, and the job goes on. With "progress_pause_s" that is the time between lines about a store that is
filled. With "evaluated" each step is followed by a loss of evaluation mode and the numbers of all weights,
gathered first in every second step. In the forward after step "failing_behind" no file can be written, and it
is called again. With "gated" the last sub-group of a step waits for the first block's forward after it, and the
spans of both are written to that file. After each of "states_steps" the engine's states go to the drive and
come back. With "limit_s" a collective operation ends after that time.
On SIGUSR1 it prints where its threads are.
Run by the tests with RANK, WORLD_SIZE and so on in the environment; it installs nvswap itself if JOB's
"nvswap" says so.
"""

import contextlib
import datetime
import errno
import faulthandler
import json
import logging
import os
import resource
import signal
import sys
import threading
import time

# {rank} in it gives each rank a folder of its own.
JOB = json.loads(sys.argv[1].replace("{rank}", os.environ["RANK"]))

if JOB.get("nvswap"):
    import nvswap.deepspeed
    nvswap.deepspeed.install()
    if "progress_pause_s" in JOB:
        from nvswap.deepspeed import progress
        progress._PAUSE_S = JOB["progress_pause_s"]

faulthandler.register(signal.SIGUSR1)

import deepspeed  # noqa: E402
import numpy  # noqa: E402
import torch  # noqa: E402
from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum  # noqa: E402
from deepspeed.utils import (  # noqa: E402
    safe_get_full_fp32_param, safe_get_full_grad, safe_get_full_optimizer_state,
    safe_set_full_fp32_param, safe_set_full_grad, safe_set_full_optimizer_state)
from torch import nn  # noqa: E402

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
LENGTH = JOB.get("length", 64)  # characters of a text
CHECKPOINT = JOB.get("checkpoint", "")


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.second = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.first(x)).chunk(3, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    def __init__(self, width, layers, heads):
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.places = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256)
        self.unused = nn.Linear(width, width) if JOB.get("unused") else None
        self.calls = 0
        if JOB.get("slash"):
            self.register_parameter("a/b", nn.Parameter(torch.zeros(width)))
        if "buffer" in JOB:
            self.register_buffer("seen", torch.zeros(JOB["buffer"]))

    def forward(self, text):
        inputs, targets = text[:, :-1], text[:, 1:]
        x = self.tokens(inputs) + self.places(torch.arange(inputs.shape[1], device=text.device))
        if JOB.get("slash"):
            x = x + getattr(self, "a/b")
        step = self.calls // JOB["config"]["gradient_accumulation_steps"]
        self.calls += 1
        for block in self.blocks[:-1] if self.unused and step % 2 else self.blocks:
            x = block(x)
        loss = nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())
        if "buffer" in JOB:
            self.seen += 1
            loss = loss + self.seen.sum()
        return loss


def text_of_licence():
    """A text that stays as it is, so that the losses do."""
    with open(os.path.join(TOP, "LICENSE"), "rb") as file:
        return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()


def inspected(model, what):
    """A number for each parameter that depends on all elements and their order."""
    numbers = []
    for parameter in model.parameters():
        value = what(parameter).double().flatten().cpu()
        numbers.append((value * torch.arange(1, len(value) + 1)).sum().item().hex())
    return numbers


def halve(parameter):
    """Changes weights, a state and the gradient, from all ranks."""
    for key in ("exp_avg", "exp_avg_sq"):
        value = safe_get_full_optimizer_state(parameter, key)
        safe_set_full_optimizer_state(parameter, value / 2, key)
    safe_set_full_fp32_param(parameter, safe_get_full_fp32_param(parameter) / 2)
    safe_set_full_grad(parameter, safe_get_full_grad(parameter) / 2)


def error_of_unknown_state(parameter):
    """The type of the error for a state that the optimizer does not have."""
    try:
        safe_get_full_optimizer_state(parameter, "unknown")
    except Exception as error:
        return type(error).__name__
    return None


def groups_of(model):
    """Parameters in one group, or with "decay" the biases in one of their own; with "exchanged" two of the
    same shape have changed places."""
    if not JOB.get("decay"):
        parameters = list(model.parameters())
        if JOB.get("exchanged"):
            parameters[2:4] = parameters[3], parameters[2]
        return parameters
    vectors = [each for each in model.parameters() if len(each.ds_shape) < 2]
    matrices = [each for each in model.parameters() if len(each.ds_shape) > 1]
    return [{"params": matrices, "lr": 2e-3}, {"params": vectors, "weight_decay": 0.0}]


def save_under(engine, block, tags, folder=CHECKPOINT, *more):
    """Saves with this "checkpoint" block under the rank's tag; returns the error and the warnings."""
    from deepspeed.runtime.model_checkpointing.config import get_checkpoint_config  # since 0.17.1
    engine._config.checkpoint_config = get_checkpoint_config({"checkpoint": block})
    warnings, handler, error = [], logging.Handler(logging.WARNING), None
    handler.emit = lambda record: warnings.append(record.getMessage())
    deepspeed.utils.logger.addHandler(handler)
    try:
        engine.save_checkpoint(folder, tags[torch.distributed.get_rank()], {}, *more)
    except (AssertionError, OSError) as refused:
        error = str(refused)
    deepspeed.utils.logger.removeHandler(handler)
    return {"error": error, "warnings": warnings}


def save_universal_after(engine, step):
    """Saves a universal checkpoint if it is to be one after so many steps."""
    if JOB.get("universal") and step == JOB.get("universal_step", JOB["steps"]):
        from nvswap.deepspeed.checkpoint.universal import save_universal
        save_universal(engine, JOB["universal"], JOB.get("universal_tag", f"step{step}"),
                       {"place": step}, exclude_frozen_parameters=JOB.get("exclude_frozen", False))


def save_too_large(engine):
    """The error of a universal checkpoint on a drive with no room for its largest files, or None."""
    if "too_large" not in JOB:
        return None
    try:
        with file_size_limit(JOB["too_large"]):
            save_universal_after(engine, JOB["universal_step"])
    except OSError as refused:
        return str(refused)
    return None


def save_gathered(engine, folder):
    """The error of saving all weights to one file, or None."""
    try:
        engine.save_16bit_model(folder)
    except OSError as refused:
        return str(refused)
    return None


@contextlib.contextmanager
def file_size_limit(nbytes):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


@contextlib.contextmanager
def failing_reads():
    """Fails the second read of tensors of an engine within the block."""
    from nvswap.engine import Engine
    load, left = Engine.load_to, [2]

    def load_to(*args, **kwargs):
        left[0] -= 1
        if not left[0]:
            raise OSError(errno.EIO, "a read has failed")
        load(*args, **kwargs)

    Engine.load_to = load_to
    try:
        yield
    finally:
        Engine.load_to = load


def step_without_room(engine):
    """A step that fails on each rank, with "failing_rank" for want of room on that rank alone."""
    fails = JOB.get("failing_rank") in (None, torch.distributed.get_rank())
    fault = failing_reads() if JOB.get("failing_reads") else file_size_limit(4096)
    with fault if fails else contextlib.nullcontext():
        try:
            engine.step()
        except OSError as error:
            print("FAILED", error, flush=True)
            if JOB.get("read_unfinished"):
                read_unfinished(engine)
            return
    raise AssertionError("the step has not failed")


def read_unfinished(engine):
    """Weights of a step that is to be finished are refused on each rank, where none waits for another."""
    try:
        safe_get_full_fp32_param(next(engine.module.parameters()))
    except OSError as error:
        assert error.errno == errno.EBUSY, error
        return
    raise AssertionError("state of an unfinished step was read")


def forward_after_step_without_room(engine, batch):
    """Takes the step, which goes on behind a forward that fails on each rank; with "failing_rank" for want of room on
    that rank alone."""
    fails = JOB.get("failing_rank") in (None, torch.distributed.get_rank())
    with file_size_limit(4096) if fails else contextlib.nullcontext():
        engine.step()
        try:
            engine(batch)
        except OSError as error:
            print("FAILED", error, flush=True)
            return
    raise AssertionError("the forward has not failed")


def evaluated(engine, batch, gathered_first):
    """A loss, and a number for each parameter."""
    def weights():
        with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
            return inspected(engine.module, lambda parameter: parameter.detach())

    found = weights() if gathered_first else []
    engine.eval()
    with torch.no_grad():
        found.append(engine(batch).item().hex())
    engine.train()
    return found + ([] if gathered_first else weights())


class Gate:
    """See "gated"."""

    def __init__(self):
        from nvswap.deepspeed.step import overlap, state
        self.trace, self.opened, self.first = nvswap.Trace(), threading.Event(), None
        config_of, arrive = state._config_of, overlap.Overlap.arrive

        def traced_config_of(*args):
            config = config_of(*args)
            config.set_trace(self.trace)
            return config

        def arrive_late(this, group, numel):
            if group == len(this._numels) - 1:
                assert self.opened.wait(100), "the forward waits for weights that it does not need yet"
            arrive(this, group, numel)

        state._config_of, overlap.Overlap.arrive = traced_config_of, arrive_late

    def watch(self, block):
        block.register_forward_pre_hook(self._begin)
        block.register_forward_hook(self._end)

    def _begin(self, *_):
        self.span = self.trace.span("first block")
        self.span.__enter__()

    def _end(self, *_):
        self.span.__exit__(None, None, None)
        self.opened.set()


def step_that_raises(engine):
    """Has the first sub-group scale its gradient, and then an exception as of Ctrl-C."""
    optimizer, scale = engine.optimizer, engine.optimizer.unscale_and_clip_grads

    def interrupted(*args):
        scale(*args)
        raise KeyboardInterrupt

    optimizer.unscale_and_clip_grads = interrupted
    with contextlib.suppress(KeyboardInterrupt):
        engine.step()
    del optimizer.unscale_and_clip_grads


def fill_drive():
    raise OSError(errno.ENOSPC, "no room")


def load_refused(engine, attempt):
    """The error of a load of a tag, or of one with arguments of its own, or None."""
    tag, load = attempt if isinstance(attempt, list) else (attempt, JOB.get("load", {}))
    if JOB.get("full") == torch.distributed.get_rank():
        engine.optimizer._put_weights_of_parameters = fill_drive
    try:
        engine.load_checkpoint(CHECKPOINT, tag=tag, **load)
    except (OSError, RuntimeError) as refused:
        return str(refused)
    return None


def kill_at_rename(number):
    """Ends this process before its call of that number, from 1; of a negative number, stops it."""
    rename, left = os.rename, [abs(number)]

    def renamed(old, new):
        left[0] -= ".partial" not in new
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL if number > 0 else signal.SIGSTOP)
        rename(old, new)

    os.rename = renamed


def keep_outside_pools():
    """Has each tensor that is held find no room in the pool."""
    from nvswap.deepspeed.swappers import hold
    hold.Holds._pinned = lambda *_: None


def moved_bytes():
    """Bytes that this process has read from and written to drives."""
    with open("/proc/self/io", encoding="ascii") as file:
        counts = dict(line.split(": ") for line in file)
    return int(counts["read_bytes"]) + int(counts["write_bytes"])


def main():
    torch.manual_seed(JOB.get("seed", 1))
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(JOB.get("deterministic", False))
    deepspeed.init_distributed(JOB.get("backend", "gloo"),
                               timeout=datetime.timedelta(seconds=JOB.get("limit_s", 1800)))
    if JOB.get("outside") == torch.distributed.get_rank():
        keep_outside_pools()
    if JOB.get("killed_at_rename"):
        kill_at_rename(JOB["killed_at_rename"])
    if JOB.get("fp16_by_torch"):
        # Slow on processors without float16, which DeepSpeed refuses.
        type(deepspeed.accelerator.get_accelerator()).is_fp16_supported = lambda self: True
    if JOB.get("failing_reads"):
        from nvswap.deepspeed.step import tiled
        tiled._TOGETHER = 0  # each sub-group is read by itself
    gate = Gate() if JOB.get("gated") else None
    with deepspeed.zero.Init(config_dict_or_path=JOB["config"], enabled=not JOB.get("whole")):
        model = GPT(JOB["width"], JOB["layers"], JOB["heads"])
        if JOB.get("wrapped"):
            model = nn.Sequential(model)
    if JOB.get("frozen"):
        for each in filter(None, (model.places, model.blocks[0].up, model.norm, model.unused)):
            each.requires_grad_(False)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=groups_of(model),
                                           config=JOB["config"])
    if gate:
        gate.watch(model.blocks[0])
    if JOB.get("objects"):
        for group in engine.optimizer.param_groups:
            group.update(lr=numpy.float64(group["lr"]), kept={"a", "b"}, kind=OffloadDeviceEnum.nvme)
    rank, text = torch.distributed.get_rank(), text_of_licence()
    random = torch.Generator().manual_seed(100 + rank)
    texts = engine.train_micro_batch_size_per_gpu()
    losses, seconds, seen, client = [], [], [], None
    first = JOB.get("load_step", 0)
    if "load_step" in JOB:
        _, client = engine.load_checkpoint(CHECKPOINT, tag=JOB.get("tag", f"step{first}"),
                                           **JOB.get("load", {}))
    save_universal_after(engine, first)
    for _ in range(first * JOB["config"]["gradient_accumulation_steps"]):
        torch.randint(len(text) - LENGTH - 1, (texts,), generator=random)
    torch.distributed.barrier()
    moved, times, begun = moved_bytes(), os.times(), time.perf_counter()
    for step in range(first, JOB["steps"]):
        for _ in range(JOB["config"]["gradient_accumulation_steps"]):
            begins = torch.randint(len(text) - LENGTH - 1, (texts,), generator=random)
            batch = torch.stack([text[i:i + LENGTH + 1] for i in begins])
            loss = engine(batch.to(engine.device))
            engine.backward(loss)
            if JOB.get("inspect") and step > 0 and engine.is_gradient_accumulation_boundary():
                halve(next(model.parameters()))
                halve(model.blocks[0].up.weight)
                for what in (safe_get_full_grad, safe_get_full_fp32_param, lambda parameter:
                             safe_get_full_optimizer_state(parameter, "exp_avg")):
                    seen.append(inspected(model, what))
            boundary = engine.is_gradient_accumulation_boundary()
            if boundary and step == JOB.get("failing"):
                step_without_room(engine)
            if boundary and step == JOB.get("raising"):
                step_that_raises(engine)
                continue
            begin = time.perf_counter()
            if gate and boundary:
                gate.opened.clear()
            if boundary and step == JOB.get("failing_behind"):
                forward_after_step_without_room(engine, batch.to(engine.device))
            else:
                engine.step()
            seconds.append(time.perf_counter() - begin)
            if boundary and JOB.get("evaluated"):
                seen.append(evaluated(engine, batch.to(engine.device), step % 2))
            if JOB.get("inspect"):
                seen.append(error_of_unknown_state(model.head.weight))
            losses.append(loss.item().hex())
        print(f"STEP {step}", flush=True)
        if step + 1 in JOB.get("states_steps", []):
            engine.offload_states(device=OffloadDeviceEnum.nvme)
            engine.reload_states()
        if step + 1 in JOB.get("save_steps", []):
            engine.save_checkpoint(CHECKPOINT, tag=f"step{step + 1}")
        save_universal_after(engine, step + 1)
    if gate:
        gate.opened.set()
        engine.destroy()
        gate.trace.write(JOB["gated"])
    if JOB.get("amid"):
        engine.backward(engine(batch.to(engine.device)))
        engine.step()
    saves = [save_under(engine, *each) for each in JOB.get("saves", [])]
    gathered = [save_gathered(engine, folder) for folder in JOB.get("gathered", [])]
    too_large = save_too_large(engine)
    refused = [load_refused(engine, attempt) for attempt in JOB.get("refused", [])]
    if JOB.get("weights"):
        weights = {name: safe_get_full_fp32_param(parameter)
                   for name, parameter in model.named_parameters()}
        if rank == 0:
            torch.save(weights, JOB["weights"])
    ended, after = time.perf_counter(), os.times()
    print("RESULT " + json.dumps({
        "rank": rank, "losses": losses, "seen": seen, "saves": saves,
        "refused": refused, "too_large": too_large, "place": (client or {}).get("place"),
        "gathered": gathered,
        "step_s": sum(seconds),
        "train_s": ended - begun,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "cpu_s": after.user + after.system - times.user - times.system,
        "moved_bytes": moved_bytes() - moved}), flush=True)
    torch.distributed.barrier()


main()
