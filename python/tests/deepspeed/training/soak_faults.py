#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Jobs of two ranks with a fault at a random moment (`make soak-deepspeed`):

    soak_faults.py [--jobs N] [--hours H] [--seed N]

Each seed is one job, in which each rank has a drive of its own and the checkpoint has one. It saves a
checkpoint, goes on, and saves another one. Meanwhile drives fill up, fail for a while or for ever, lose the
end of a file or stall, or a rank is killed. Right is: each rank ends by itself, with the losses of a job in
memory or with an error that names the fault or the rank that was lost; a drive that stalls changes no loss;
nothing is left that stops the next job; and a job that loads a checkpoint from before has the losses of one
that was not interrupted. As root.
"""

import argparse
import collections
import contextlib
import functools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../support"))
from drives import MIB, Drive  # noqa: E402
from jobs import BUILD, configuration, job, left_behind, start  # noqa: E402

TORCH_LIMIT_S = 45  # of a collective operation
HANGS_S = 4 * TORCH_LIMIT_S  # from the fault on, which may come while one rank waits for the other to start
DRIVE_BYTES = (96 * MIB, 96 * MIB, 256 * MIB)  # of the ranks, of the checkpoint
STEPS, SAVES = 12, (3, 9)
# Where DeepSpeed's own swappers run, tensors below 1 MiB are never on the drive.
WIDTHS = {("ops", "bf16"): 384, ("ops", "fp32"): 512}

# What an error says of each fault, and of another rank that had one. ext4 itself fails with ENOMEM where
# it makes a name in a block behind the end of its device, and with ENOSPC where it can't read the maps of
# what is free.
IO_ERRORS = (r"EIO|EROFS|ENOMEM|ENOSPC|Input/output error|Read-only file system|Cannot allocate memory|"
             r"No space left on device")
CAUSES = {"full": r"ENOSPC|No space left on device",
          "errors": IO_ERRORS, "errors for a while": IO_ERRORS,
          "short": r"EIO|EBADMSG|ENODATA",
          "slow": None, "kill": None}
LOST_RANK = r"rank \d could not|[Cc]onnection (closed|reset|refused)|Broken pipe|[Tt]imed out|recvValue failed"


class Draw:
    """What a seed decides."""

    def __init__(self, seed):
        choose = random.Random(seed)
        self.fault = choose.choice(list(CAUSES))
        self.dtype = choose.choice(("bf16", "fp32"))
        self.depth = choose.choice(("ops", "swappers", "step"))
        self.fuse = choose.random() < 0.25
        self.verify = self.fault == "short" or choose.random() < 0.3
        self.ioengine = choose.choice(("io_uring", "libaio", "posix"))
        self.pipelined = choose.random() < 0.3
        self.max_in_cpu = choose.choice((0, 0, 60000))
        self.after_step = choose.choice((-1, -1, *range(STEPS)))
        self.delay_s = choose.random() * (3 if self.after_step < 0 else 0.4)
        # What DeepSpeed saves by itself, at the depth "ops", is not durable when the call returns.
        drives = choose.choice(((0,), (1,), (0, 1), (0, 1), *(((2,), (0, 1, 2)) if self.depth != "ops" else ())))
        self.drives = (choose.randrange(2),) if self.fault in ("short", "kill") else drives
        self.random = choose
        self.shape = {"width": WIDTHS.get((self.depth, self.dtype), 128), "layers": 2 - (self.depth == "ops"),
                      "steps": STEPS, "limit_s": TORCH_LIMIT_S}
        self.sub_group_size = 600000 if self.depth == "ops" else 60000
        # No depth loads DeepSpeed's swap files of optimizer state exactly.
        parameters_alone = self.depth == "ops" and self.dtype == "fp32" and choose.random() < 0.7
        self.optimizer = {"device": "cpu"} if parameters_alone else {
            "pipeline_read": self.pipelined, "pipeline_write": self.pipelined}
        self.saves = SAVES if parameters_alone or self.depth != "ops" else ()

    def config(self, path, depth=None):
        """Pools that do not hold all."""
        largest = self.shape["width"] ** 2 * 2 + 4096
        return configuration(
            path, dtype=self.dtype, depth=depth or self.depth,
            param={"max_in_cpu": self.max_in_cpu, "buffer_size": largest, "buffer_count": 6},
            optimizer=self.optimizer, zero={"sub_group_size": self.sub_group_size},
            nvswap={"verify": self.verify, "ioengine": self.ioengine})

    def reference(self):
        return reference(self.dtype, self.sub_group_size, **self.shape)

    def __str__(self):
        on = "+".join(("rank 0", "rank 1", "checkpoint")[drive] for drive in self.drives)
        return (f"{self.fault}, {on}, {self.delay_s:.2f} s after step {self.after_step}; {self.depth}, "
                f"{self.dtype}, {self.ioengine}{', FUSE' * self.fuse}{', verify' * self.verify}"
                f"{', pipelined' * self.pipelined}{', in CPU' * bool(self.max_in_cpu)}")


class Watch(threading.Thread):
    """Reads what a rank prints."""

    def __init__(self, rank):
        super().__init__()
        self.rank, self.lines, self._changed, self._step = rank, [], threading.Condition(), -1
        self.start()

    def run(self):
        for line in self.rank.stdout:
            self.lines.append(line)
            if line.startswith("STEP "):
                self._advance(int(line.split()[1]))
        self._advance(STEPS)

    def _advance(self, step):
        with self._changed:
            self._step = step
            self._changed.notify_all()

    def await_step(self, step):
        """Until the step is made or the rank's output ends; False if that takes too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._step >= step, HANGS_S)

    def end(self, until):
        """The exit status, and whether the rank ended by itself until then."""
        while self.rank.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        alone = self.rank.poll() is not None
        if not alone:  # It prints where it is.
            os.kill(self.rank.pid, signal.SIGUSR1)
            self.join(2)
            self.rank.kill()
        self.join()
        return self.rank.poll(), alone


def files_of(rank):
    """Files on the drive of a rank's parameters or store, which may have no name any more."""
    paths = [f"/proc/{rank.pid}/fd/{fd}" for fd in os.listdir(f"/proc/{rank.pid}/fd")]
    return [path for path in paths if "/nvswap/" in os.readlink(path) and os.path.isfile(path)]


def cut_file(draw, rank, path):
    files = left_behind(path) if draw.depth == "ops" else files_of(rank)
    sizes = {path: os.stat(path).st_size for path in files}
    files = sorted(path for path in files if sizes[path])
    if files:
        path = draw.random.choice(files)
        os.truncate(path, draw.random.randrange(sizes[path]))


@contextlib.contextmanager
def faulted(draw, drives, ranks, ended):
    """Has the fault on the drives from here on."""
    chosen = [drives[number] for number in draw.drives]
    helper = None
    if draw.fault == "full":
        for drive in chosen:
            drive.fill()
    elif draw.fault.startswith("errors"):
        for drive in chosen:
            drive.fail_from(4096 * draw.random.choice((1, 1, draw.random.randrange(1, 8192))))
        if draw.fault != "errors":
            ended.wait(0.02 + draw.random.random())
            for drive in chosen:
                drive.fail_from(0)
    elif draw.fault == "short":
        with contextlib.suppress(OSError):  # The rank has ended.
            cut_file(draw, ranks[draw.drives[0]], chosen[0].path)
    elif draw.fault == "kill":
        ranks[draw.drives[0]].kill()
    else:
        helper = threading.Thread(target=stall, args=(draw, chosen, ended))
        helper.start()
    try:
        yield
    finally:
        ended.set()
        if helper:
            helper.join()


def stall(draw, drives, ended):
    until = time.monotonic() + 8
    while time.monotonic() < until and not ended.is_set():
        with contextlib.ExitStack() as stopped:
            for drive in drives:
                stopped.enter_context(drive.stopped())
            ended.wait(draw.random.random() ** 3)
        ended.wait(0.1 * draw.random.random())


@functools.lru_cache(maxsize=None)
def reference(dtype, sub_group_size, **shape):
    """The losses of a job in memory."""
    return job(configuration(None, "cpu", dtype, zero={"sub_group_size": sub_group_size}), **shape)


def losses_of(lines):
    results = [line for line in lines if line.startswith("RESULT ")]
    return json.loads(results[0][len("RESULT "):])["losses"] if results else None


def wrong_with(draw, rank, status, alone, lines):
    """What is wrong with the end of a rank, or None."""
    text = "".join(lines)
    if not alone:
        return "it hangs"
    if status == 0:
        return None if losses_of(lines) == draw.reference()[rank] else "wrong losses"
    if draw.fault == "kill" and rank in draw.drives and status == -signal.SIGKILL:
        return None
    if draw.fault == "slow":
        return "a slow drive is an error"
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    named = CAUSES[draw.fault] and re.search(CAUSES[draw.fault], text)
    return None if named or re.search(LOST_RANK, text) else "an error that names no cause"


def run_job(seed, directory):
    """Runs the job of a seed; returns the outcome and what was wrong."""
    draw, wrong = Draw(seed), []
    paths = [os.path.join(directory, name) for name in ("drive0", "drive1", "saved")]
    with contextlib.ExitStack() as undo:
        drives = []
        for path, nbytes in zip(paths, DRIVE_BYTES):
            drives.append(Drive(path, path + ".files", nbytes, draw.fuse))
            undo.callback(drives[-1].remove)
        config, saved = draw.config(os.path.join(directory, "drive{rank}")), os.path.join(paths[2], "tags")
        begun = time.monotonic()
        ranks = start(config, nodes=2, save_steps=draw.saves, checkpoint=saved, **draw.shape)
        undo.callback(lambda: [rank.kill() for rank in ranks])
        watches = [Watch(rank) for rank in ranks]
        watches[draw.random.randrange(2)].await_step(draw.after_step)
        ended = threading.Event()
        threading.Thread(target=lambda: [watch.join() for watch in watches] and ended.set()).start()
        ended.wait(draw.delay_s)
        before = tags_in(saved)
        with faulted(draw, drives, ranks, ended):
            until = time.monotonic() + HANGS_S
            ends = [watch.end(until) for watch in watches]
        faulty_s = time.monotonic() - begun
        for rank, (watch, (status, alone)) in enumerate(zip(watches, ends)):
            bad = wrong_with(draw, rank, status, alone, watch.lines)
            if bad:
                wrong.append(f"rank {rank}: {bad}, status {status}:\n{''.join(watch.lines)[-3000:]}")
        statuses = [status for status, _ in ends]
        if any(statuses) and draw.fault != "kill" and not any(
                re.search(CAUSES[draw.fault] or "$^", line) for watch in watches for line in watch.lines):
            wrong.append("no rank names the cause")
        for drive in drives:
            drive.mend()
        for rank, status in enumerate(statuses):
            left = [path for path in left_behind(os.path.join(paths[rank], "nvswap"))
                    if status >= 0 and "errors" not in draw.fault]
            if left:
                wrong.append(f"rank {rank}, status {status}, leaves {left}")
        wrong += go_on(draw, config, saved, before, paths)
    names = {0: "exact", -signal.SIGKILL: "killed"}
    outcome = "+".join(sorted(names.get(status, "error") for status in statuses))
    print(f"seed {seed}: {draw}: {outcome}, {faulty_s:.1f} s"
          f"{'; from ' + ' '.join(sorted(before)) if before else ''}", flush=True)
    return draw.fault, outcome, wrong


def tags_in(saved):
    """The tag that `latest` names; none where DeepSpeed is about to write it."""
    with contextlib.suppress(FileNotFoundError), open(os.path.join(saved, "latest"), encoding="ascii") as file:
        return {file.read()} - {""}
    return set()


def go_on(draw, config, saved, before, paths):
    """What is wrong with a job on the same drives that loads what was saved before the fault."""
    tags = sorted(before if draw.depth == "ops" else before | tags_in(saved))
    first = int(draw.random.choice(tags)[len("step"):]) if tags else 0
    load = {"load_step": first, "checkpoint": saved, "seed": 2} if first else {}
    if draw.depth == "ops":  # which do not load parameters of the drive
        config = draw.config(os.path.join(os.path.dirname(paths[0]), "drive{rank}"), "step")
    try:
        losses = job(config, timeout=HANGS_S, nodes=2, **draw.shape, **load)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        return [f"the next job from {tags} at {first} fails: {error} {getattr(error, 'output', '')}"]
    expected = [each[2 * first:] for each in draw.reference()]
    wrong = [] if losses == expected else [f"the next job from {tags} at {first}: {losses}, not {expected}"]
    left = [path for drive in paths[:2] for path in left_behind(os.path.join(drive, "nvswap"))]
    return wrong + ([f"the next job leaves {left}"] if left else [])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=sys.maxsize)
    parser.add_argument("--hours", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    if os.geteuid():
        print("skip soak_faults: mounting file systems needs root")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    end, outcomes, violations = time.monotonic() + 3600 * options.hours, collections.Counter(), 0
    for seed in range(options.seed, options.seed + options.jobs):
        if time.monotonic() > end:
            break
        os.makedirs(os.path.join(BUILD, "tmp"), exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="faults", dir=os.path.join(BUILD, "tmp")) as directory:
            fault, outcome, wrong = run_job(seed, directory)
        outcomes[fault, outcome] += 1
        for each in wrong:
            print(f"VIOLATION of seed {seed}: {each}", flush=True)
        violations += bool(wrong)
    for (fault, outcome), count in sorted(outcomes.items()):
        print(f"{count:5} {fault}: {outcome}")
    print(f"{sum(outcomes.values())} jobs from seed {options.seed}, {violations} with violations")
    sys.exit(bool(violations))


if __name__ == "__main__":
    main()
