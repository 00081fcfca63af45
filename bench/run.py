#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures nvswap against fio and a bare io_uring loop on the same drive in the same run.

In each round, all do the same work in turn, with the same block size and depth, on files of the
same size that were written before. Ratios are between figures of one round, and the medians over all rounds are printed, because machine and drive can drift
between rounds. A missed goal is printed and does not make this program fail.

The parts: swapped tensors (swap), Adam's arithmetic alone (adam), optimizer steps (step), a
model's forward and backward pass (params), and those of goals.py. DeepSpeed's ops (deepspeed),
torch.save (torch), accelerate's disk_offload (accelerate), and loading .safetensors files and computing from them
(weights) are measured only if named, because they need a virtual environment."""
import argparse
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile

from goals import PARTS as GOAL_PARTS
from measure import (BIG, FIO, GIB, MIB, MODES, RAW, SMALL, SWAP_BYTES, at_least, at_most, best_floor,
                     figures, fio, floors, median, nvswap, of_floor, print_rows, print_speeds,
                     ratio, raw, run, steady, swap_work, write_json)
from with_accelerate import PART as ACCELERATE
from with_deepspeed import PART as DEEPSPEED
from with_forward import PART as FORWARD
from with_torch import PART as TORCH
from with_weights import PART as WEIGHTS

ADAM_ELEMENTS = 16 << 20  # 448 MiB in fp32, more than caches hold

ELEMENTS = 1 << 27
STATE_BYTES = 12 * ELEMENTS  # fp32 master weight and two moments
TILE_BYTES = 12 << 19
STEP_POOL = 12 * TILE_BYTES
PIPELINED, HALF, RESIDENT = "all on the drive", "half in memory", "all in memory"
CLIPPED = "all on the drive, clipped"
# Beside that in fp32, all on the drive.
STATES = {f"all on the drive, {state}": state for state in ("split", "bf16", "8bit")}
EIGHT_BITS = "all on the drive, 8bit"
IN_MEMORY = {PIPELINED: 0, CLIPPED: 0, HALF: ELEMENTS // 2, RESIDENT: ELEMENTS}

MODEL = "bench/models/llama-3.1-8b.json"
MODEL_SCALE = 4  # divides the layers and the vocabulary; the width stays
PARAMS_BYTES = 4 * GIB
PARAMS_POOL = 2 * GIB
IDLE, BUSY = "I/O alone", "compute as long as the I/O"


def positive(text):
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--dir", default="build/bench",
                        help="a directory on the drive (%(default)s)")
    parser.add_argument("--build", default="build", help="where nvswap was built (%(default)s)")
    parser.add_argument("--only", metavar="PART[,PART]", default=",".join(BY_DEFAULT),
                        help="measure these (%(default)s), or deepspeed, torch, accelerate,"
                        " weights")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--seconds", type=positive, default=1,
                        help="of each measurement (%(default)s)")
    parser.add_argument("--bs", default="1M")
    parser.add_argument("--iodepth", type=positive, default=32)
    parser.add_argument("--pool", default="256M", help="nvswap's pool for swap (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write every measurement there")
    args = parser.parse_args()
    args.only = args.only.split(",")
    for part in args.only:
        if part not in PARTS:
            parser.error(f"--only {part}: there are {', '.join(PARTS)}")
    args.work = None  # the directory of files and stores
    return args


# ---- swap


def swap_round(args):
    results = {}
    for mode, rw in MODES.items():
        results["swap", rw, FIO] = fio(args, rw, SWAP_BYTES)
        results["swap", rw, RAW] = raw(args, rw, SWAP_BYTES)
        for tensors, ioengine in ((BIG, "io_uring"), (SMALL, "io_uring"), (BIG, "libaio"),
                                  (SMALL, "libaio")):
            results["swap", rw, f"{tensors}, {ioengine}"] = figures(nvswap(
                args, mode, *swap_work(args, tensors, ioengine), *steady(args)))
    return results


def swap_row(rounds, key):
    _, rw, what = key
    over = ("swap", rw, FIO)
    name = what if what in (FIO, RAW) else f"nvswap, tensors of {what}"
    return (f"{rw}: {name}",
            f"{median(rounds, key, 'gb_s'):.2f}", f"{ratio(rounds, key, over, 'gb_s'):.2f}",
            f"{median(rounds, key, 'cpu_ms_gib'):.1f}",
            f"{ratio(rounds, key, over, 'cpu_ms_gib'):.2f}")


def swap_print(rounds):
    print_rows(("swapped", "GB/s", "of fio", "CPU ms/GiB", "of fio"),
               [swap_row(rounds, key) for key in rounds[0] if key[0] == "swap"])


def swap_goals(rounds):
    goals = []
    for mode in ("swapout", "swapin"):
        rw = MODES[mode]
        big, small = ("swap", rw, f"{BIG}, io_uring"), ("swap", rw, f"{SMALL}, io_uring")
        floor = ("swap", rw, FIO)
        goals += [
            at_least(f"{mode}, {BIG}: bandwidth of fio's", 0.97, ratio(rounds, big, floor, "gb_s")),
            at_most(f"{mode}, {BIG}: CPU per GiB of fio's", 1.3,
                    ratio(rounds, big, floor, "cpu_ms_gib")),
            at_least(f"{mode}, {SMALL}: bandwidth of {BIG}'s", 0.85,
                     ratio(rounds, small, big, "gb_s")),
            at_most(f"{mode}, {SMALL}: CPU per GiB of {BIG}'s", 2,
                    ratio(rounds, small, big, "cpu_ms_gib")),
        ]
    return goals


# ---- adam: the arithmetic alone, against copying memory


def adam_round(args):
    results = {}
    report = run([
        f"{args.build}/bench/adam", "--elements", ADAM_ELEMENTS, "--seconds", args.seconds])
    for turn in report["runs"]:
        for kernel in turn["kernels"]:
            results["adam", turn["threads"], kernel["kernel"], kernel["format"]] = {
                "gb_s": kernel["bytes_per_second"] / 1e9,
                "memory_gb_s": max(turn["memory"].values()) / 1e9,
                "of_memory": kernel["of_memory"]}
    return results


def adam_print(rounds):
    print_rows(("Adam's update", "GB/s", "memory GB/s", "of it"), [
        (f"{key[3]}, {key[2]}, {key[1]} thread{'s' * (key[1] > 1)}",
         *(f"{median(rounds, key, figure):.2f}" for figure in ("gb_s", "memory_gb_s", "of_memory")))
        for key in rounds[0] if key[0] == "adam"])


def adam_goals(rounds):
    best = {}
    for key in rounds[0]:
        # Codes of 8 bits take so many roots that the processor bounds them.
        if key[:2] == ("adam", 2) and key[3] != "8bit":
            best[key[3]] = max(best.get(key[3], 0), median(rounds, key, "of_memory"))
    return [at_least(f"Adam on two threads, {state} state: of the memory's bandwidth", 0.8, of)
            for state, of in best.items()]


# ---- step: the optimizer


def step_figures(report):
    """Prints a step: milliseconds, bytes, and CPU time without the updates."""
    step = report["jobs"][0]["step"]
    nbytes = step["read_bytes"] + step["written_bytes"]
    return {
        "ms": step["wall_mean_ns"] / 1e6,
        "io_ms": step["io_ns"] / 1e6,
        "compute_ms": step["compute_ns"] / 1e6,
        "hidden": step["hidden_share"],
        "nbytes": nbytes,
        "gb_s": nbytes / step["io_ns"] if step["io_ns"] else 0.0,
        "cpu_ms_gib": report["swap"]["cpu_ms_per_gib"],
        "rest_mib": step["memory_rest_bytes"] / MIB,
    }


def step_config(args, **more):
    """Returns the command's defaults with settings for which it has no option."""
    return write_json(args, "step.json", {
        "bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"offload_optimizer": {
            "device": "none", "pipeline_read": True, "pipeline_write": True, "fast_init": True}}, **more})


def take_steps(args, in_memory, *more):
    return step_figures(nvswap(
        args, "step", "--tensors", 1, "--tensor-size", 2 * ELEMENTS, "--pool", STEP_POOL,
        "--max-in-cpu", in_memory, "--ramp-loops", 1, "--time-based", "--runtime", args.seconds, *more))


def step_round(args):
    results = floors(args, "step", "rw", STATE_BYTES)
    for what, elements in IN_MEMORY.items():
        more = ["--config", step_config(args, gradient_clipping=1.0)] if what == CLIPPED else []
        results["step", "rw", what] = take_steps(args, elements, *more)
    for what, state in STATES.items():
        config = step_config(args, nvswap={"optimizer_state": state})
        results["step", "rw", what] = take_steps(args, 0, "--config", config)
    add_step_ratios(results)
    return results


def add_step_ratios(results):
    """Measures the step with all state on the drive, the drive alone and the computing alone."""
    pipelined, resident = (results["step", "rw", what] for what in (PIPELINED, RESIDENT))
    floor = best_floor(results, "step", "rw")
    io_ms = pipelined["nbytes"] / floor / 1e6
    pipelined["of_longer_alone"] = pipelined["ms"] / max(io_ms, resident["ms"])
    pipelined["of_longer_within"] = (
        pipelined["ms"] / max(pipelined["io_ms"], pipelined["compute_ms"]))
    for what in (PIPELINED, *STATES):
        step = results["step", "rw", what]
        step["of_bytes"] = step["ms"] / (step["nbytes"] / floor / 1e6)


def step_print(rounds):
    print_speeds(rounds, "step", "rw", "128M elements, half reads, half writes",
                 (PIPELINED, CLIPPED, HALF))
    figures_of_a_step = ("ms", "io_ms", "compute_ms", "rest_mib")
    print_rows(("optimizer step", "GiB moved", "step ms", "I/O ms", "compute ms",
                "beside pool MiB", "time of the first"), [
        (key[2], f"{median(rounds, key, 'nbytes') / GIB:.2f}",
         *(f"{median(rounds, key, figure):.0f}" for figure in figures_of_a_step),
         f"{ratio(rounds, key, ('step', 'rw', PIPELINED), 'ms'):.2f}")
        for key in rounds[0] if key[0] == "step" and key[2] in (*IN_MEMORY, *STATES)])
    print_rows(("format of the state", "bytes per element", "time of these at the better floor's rate"), [
        (STATES.get(what, "fp32"), f"{median(rounds, ('step', 'rw', what), 'nbytes') / ELEMENTS:.3f}",
         f"{median(rounds, ('step', 'rw', what), 'of_bytes'):.2f}") for what in (PIPELINED, *STATES)])


def step_goals(rounds):
    pipelined, half = ("step", "rw", PIPELINED), ("step", "rw", HALF)
    return [
        at_least("step: I/O rate of the better floor's", 0.95, of_floor(rounds, *pipelined)),
        at_most("step: time of the longer of I/O at the floor's rate and compute alone", 1.05,
                median(rounds, pipelined, "of_longer_alone")),
        at_most("step: time of the longer of its own I/O and compute", 1.05,
                median(rounds, pipelined, "of_longer_within")),
        at_most("step, half in memory: time of that with all on the drive", 0.55,
                ratio(rounds, half, pipelined, "ms")),
        *(at_most(f"step, {state}: time of its bytes at the better floor's rate", 1.1,
                  median(rounds, ("step", "rw", what), "of_bytes")) for what, state in STATES.items()),
        at_least("step, 8bit: faster than with fp32 state", 2.5,
                 ratio(rounds, pipelined, ("step", "rw", EIGHT_BITS), "ms")),
        at_most("step: CPU per GiB beside Adam's, of fio's", 1.3,
                ratio(rounds, pipelined, ("step", "rw", FIO), "cpu_ms_gib")),
        at_most("step: MiB in memory beside the pool and the caller's own", 64,
                max(result[key]["rest_mib"] for result in rounds for key in (pipelined, half))),
    ]


# ---- params: a forward and backward pass


def scaled_model(args):
    """Returns a model of the same proportions that fits a small drive and a short time."""
    with open(MODEL, encoding="ascii") as file:
        model = json.load(file)
    numbers = {name: int(name.split(".")[2]) for name in model if name.startswith("model.layers.")}
    layers = (max(numbers.values()) + 1) // MODEL_SCALE
    scaled, at = {}, 0
    for name, tensor in model.items():
        if name == "__metadata__" or numbers.get(name, 0) >= layers:
            continue
        shape = tensor["shape"]
        if name.startswith(("model.embed_tokens", "lm_head")):
            shape = [shape[0] // MODEL_SCALE, *shape[1:]]
        nbytes = 2 * math.prod(shape)
        scaled[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    return write_json(args, "model.json", scaled)


def params_config(args):
    """Reads ahead two layers; DeepSpeed's default bucket holds a quarter of one."""
    return write_json(args, "params.json", {"bf16": {"enabled": True}, "zero_optimization": {
        "stage": 3, "stage3_prefetch_bucket_size": 5e8, "stage3_max_reuse_distance": 0,
        "offload_param": {"device": "nvme", "nvme_path": args.work, "max_in_cpu": 0}}})


def params_run(args, compute_us):
    report = nvswap(
        args, "params", "--config", params_config(args), "--model", scaled_model(args), "--pool",
        PARAMS_POOL, "--compute-us", compute_us, "--loops", 4)
    return step_figures(report) | {"visits": 2 * report["jobs"][0]["step"]["layers"]}


def params_round(args):
    results = floors(args, "params", "read", PARAMS_BYTES)
    idle = params_run(args, 0)
    compute_us = round(idle["io_ms"] * 1e3 / idle["visits"])
    busy = params_run(args, compute_us)
    compute_ms = compute_us * busy["visits"] / 1e3
    busy["hidden_by_clock"] = ((idle["io_ms"] + compute_ms - busy["ms"])
                               / min(idle["io_ms"], compute_ms))
    return results | {("params", "read", IDLE): idle, ("params", "read", BUSY): busy}


def params_print(rounds):
    print_speeds(rounds, "params", "read", "a quarter of Llama-3.1-8B", (IDLE, BUSY))
    print_rows(("forward and backward", "GiB read", "step ms", "I/O ms", "compute ms", "hidden"), [
        (key[2], f"{median(rounds, key, 'nbytes') / GIB:.2f}",
         *(f"{median(rounds, key, figure):.0f}" for figure in ("ms", "io_ms", "compute_ms")),
         f"{median(rounds, key, 'hidden'):.2f}")
        for key in rounds[0] if key[0] == "params" and key[2] in (IDLE, BUSY)])


def params_goals(rounds):
    busy = ("params", "read", BUSY)
    return [
        at_least("params: of the shorter of I/O alone and compute, hidden by the clock", 0.9,
                 median(rounds, busy, "hidden_by_clock")),
        at_least("params: of the shorter of its own I/O and compute, hidden", 0.9,
                 median(rounds, busy, "hidden")),
        at_most("params: MiB in memory beside the pool and the caller's own", 64,
                max(result[busy]["rest_mib"] for result in rounds)),
    ]


# ---- The program


def together(first, second):
    """Two parts as one."""
    return (lambda args: first[0](args) | second[0](args), lambda rounds: (first[1](rounds), second[1](rounds)),
            lambda rounds: first[2](rounds) + second[2](rounds), first[3] + second[3])


PARTS = {  # functions that measure a round, print the results and check the goals; bytes needed on the drive
    "swap": (swap_round, swap_print, swap_goals, 2 * SWAP_BYTES),
    "adam": (adam_round, adam_print, adam_goals, 0),
    "step": (step_round, step_print, step_goals, 2 * STATE_BYTES),
    "params": (params_round, params_print, params_goals, 2 * PARAMS_BYTES),
    **GOAL_PARTS,
}
BY_DEFAULT = list(PARTS)
PARTS |= {"deepspeed": DEEPSPEED, "torch": TORCH, "accelerate": ACCELERATE, "weights": together(WEIGHTS, FORWARD)}


def machine(args):
    """Describes the machine and drive, for the caption."""
    info = run([
        f"{args.build}/nvswap", "info", "--nvme-path", args.work, "--output-format", "json"])
    where = info["paths"][0]
    drive = f"{where.get('device') or 'no drive'} {where.get('model') or ''}".strip()
    return f"{os.cpu_count()} CPUs, Linux {platform.release()}, {where['filesystem']} on {drive}"


def fio_version():
    return subprocess.run(["fio", "--version"], stdout=subprocess.PIPE, text=True,
                          check=True).stdout.strip()


def print_goals(judged):
    print("\n| goal | measured | |\n| --- | ---: | --- |")
    for text, value, met in judged:
        print(f"| {text} | {value:.2f} | {'met' if met else 'MISSED'} |")


def check_room(args):
    need = max(PARTS[part][3] for part in args.only) + GIB
    free = shutil.disk_usage(args.dir).free
    if free < need:
        sys.exit(f"{args.dir} has {free / GIB:.1f} GiB free and this needs {need / GIB:.1f}: "
                 "name another directory by --dir, or fewer parts by --only")


def lay_out(args):
    """Writes one file for all measurements of the raw loop."""
    nbytes = max(PARTS[part][3] for part in args.only) // 2
    if nbytes:
        raw(args, "write", nbytes)


def measure(args):
    rounds = []
    lay_out(args)
    for number in range(args.rounds):
        results = {}
        for part in args.only:
            print(f"round {number + 1} of {args.rounds}, {part} ...", file=sys.stderr, flush=True)
            results |= PARTS[part][0](args)
        rounds.append(results)
    return rounds


def print_report(args, rounds):
    print(f"{machine(args)}; blocks of {args.bs}, depth {args.iodepth}, {args.rounds} rounds of "
          f"{args.seconds} s each, medians, {fio_version()}.")
    for part in args.only:
        PARTS[part][1](rounds)
    print_goals([goal for part in args.only for goal in PARTS[part][2](rounds)])
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump([{" / ".join(map(str, key)): value for key, value in result.items()}
                       for result in rounds], file, indent=1)


def main():
    args = options()
    if not shutil.which("fio"):
        sys.exit("fio is not installed: apt-get install fio")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("stopped by a signal"))
    os.makedirs(args.dir, mode=0o700, exist_ok=True)
    check_room(args)
    # All files and stores are removed with this directory.
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="run-") as args.work:
        print_report(args, measure(args))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped")
