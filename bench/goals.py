# SPDX-License-Identifier: Apache-2.0
"""Parts of `make bench` that each measure one goal of the library: processor time (cpu), checksums
(verify), calls that start transfers (start), reads during a commit (commit), awaited reads while
write-backs are queued (awaited), reading the optimizer's state (get), and saving it to a checkpoint
and restoring it (checkpoint).

The programs of the same names in bench/ take a configuration and print their figures as JSON."""
import json
import os
import shutil
import subprocess
import time

from measure import (BIG, GIB, MIB, MODES, RAW, SMALL, SWAP_BYTES, at_least, at_most, bytes_of, figures,
                     median, nvswap, print_rows, ratio, raw, run, steady, swap_work, write_json)

MIDDLE = "1 MiB"
CPU_GOALS = {BIG: 1.15, MIDDLE: 1.25, SMALL: 1.8}  # limits relative to the raw loop's processor time

START_BYTES = GIB
START_TENSORS = {BIG: 64 * MIB, SMALL: 64 * 1024}  # their bytes
START_GOAL_US = 5000
CALLS = ("release", "swap_out")

COMMITTED = {"a commit of 16 tensors of 64 KiB": 16, "a commit of 1024": 1024}
COMMIT_BYTES = 3 * 4096 * 64 * 1024  # the store, copy-on-write, and the bare file

GET_ELEMENTS = 1 << 27
GET_BYTES = 12 * GET_ELEMENTS
GET_POOL = 12 * (12 << 19)
ORDERS = {"parts": "part by part", "places": "all parts of a place"}

STATE_ELEMENTS = 1 << 27
STATE_BYTES = 12 * STATE_ELEMENTS
STATE_GROUPS = 32  # of bench/checkpoint.c
STATE_POOL = 256 * MIB
FORMS = {"a .safetensors file": "state.safetensors", "a .pt file": "state.pt"}
CP, LOOP = "cp and fsync", "raw loop, half reads and half writes"


def config(args, name, pool, block="offload_param", zero=None, **nvswap_keys):
    """Returns a configuration with the measured blocks and depth, and a pool of `pool` bytes."""
    offload = {"device": "nvme", "nvme_path": args.work}
    if block == "offload_param":
        offload |= {"buffer_count": 1, "buffer_size": pool // 4, "max_in_cpu": 1e12}
    else:
        offload |= {"buffer_count": 1}
    return {"aio": {"block_size": bytes_of(args.bs), "queue_depth": args.iodepth},
            "nvswap": nvswap_keys,
            "zero_optimization": {block: offload, **(zero or {})}}


# ---- cpu


def cpu_round(args):
    results = {}
    for mode in ("swapout", "swapin"):
        rw = MODES[mode]
        results["cpu", rw, RAW] = raw(args, rw, SWAP_BYTES)
        for tensors in CPU_GOALS:
            results["cpu", rw, tensors] = figures(nvswap(
                args, mode, *swap_work(args, tensors, "io_uring"), *steady(args)))
    return results


def cpu_print(rounds):
    print_rows(("processor time", "GB/s", "CPU ms/GiB", "of the raw loop"), [
        (f"{key[1]}: {key[2] if key[2] == RAW else f'tensors of {key[2]}'}",
         f"{median(rounds, key, 'gb_s'):.2f}", f"{median(rounds, key, 'cpu_ms_gib'):.1f}",
         f"{ratio(rounds, key, ('cpu', key[1], RAW), 'cpu_ms_gib'):.2f}")
        for key in rounds[0] if key[0] == "cpu"])


def cpu_goals(rounds):
    return [at_most(f"{mode}, {tensors}: CPU per GiB of the raw loop's", bound,
                    ratio(rounds, ("cpu", MODES[mode], tensors), ("cpu", MODES[mode], RAW),
                          "cpu_ms_gib"))
            for mode in ("swapout", "swapin") for tensors, bound in CPU_GOALS.items()]


# ---- verify


PLAIN, VERIFIED = "without verify", "with verify"


def verify_round(args):
    results = {}
    for mode in ("swapout", "swapin"):
        for what in (PLAIN, VERIFIED):
            path = write_json(args, "verify.json", {
                "nvswap": {"verify": what == VERIFIED},
                "zero_optimization": {"offload_param": {"device": "none"}}})
            results["verify", MODES[mode], what] = figures(nvswap(
                args, mode, "--config", path, *swap_work(args, BIG, "io_uring"), *steady(args)))
    return results


def verify_print(rounds):
    print_rows((f"tensors of {BIG}", "GB/s", "of without", "CPU ms/GiB"), [
        (f"{key[1]}: {key[2]}", f"{median(rounds, key, 'gb_s'):.2f}",
         f"{ratio(rounds, key, ('verify', key[1], PLAIN), 'gb_s'):.2f}",
         f"{median(rounds, key, 'cpu_ms_gib'):.1f}")
        for key in rounds[0] if key[0] == "verify"])


def verify_goals(rounds):
    return [at_least(f"{mode}, {BIG}, verify: bandwidth of that without", 0.9,
                     ratio(rounds, ("verify", MODES[mode], VERIFIED),
                           ("verify", MODES[mode], PLAIN), "gb_s"))
            for mode in ("swapout", "swapin")]


# ---- start


def first_ios_us(path):
    """The times from the begin of each recorded call to the first write after it."""
    with open(path, encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    calls = [event["ts"] for event in events if event["name"] == "call"]
    writes = sorted(event["ts"] for event in events if event["name"] == "write")
    return [next(ts for ts in writes if ts >= call) - call for call in calls]


def start_measure(args, nbytes, call, verify):
    text = config(args, "start", START_BYTES + 64 * MIB, verify=verify)
    if call == "release":
        text["zero_optimization"]["offload_param"]["max_in_cpu"] = 0
    trace = f"{args.work}/start-trace.json"
    result = run([f"{args.build}/bench/start", write_json(args, "start.json", text), call,
                  START_BYTES // nbytes, nbytes, 3, trace])
    first = sorted(first_ios_us(trace))
    os.unlink(trace)
    result["first_us"] = first[len(first) // 2]
    return result


def start_round(args):
    results = {}
    for tensors, nbytes in START_TENSORS.items():
        for call in CALLS:
            for verify in (False, True):
                what = f"{call} of tensors of {tensors}, {VERIFIED if verify else PLAIN}"
                results["start", "write", what] = start_measure(args, nbytes, call, verify)
    return results


def start_print(rounds):
    print_rows(("1 GiB", "the call returns, ms", "first I/O, ms"), [
        (key[2], f"{median(rounds, key, 'call_us') / 1e3:.2f}",
         f"{median(rounds, key, 'first_us') / 1e3:.2f}")
        for key in rounds[0] if key[0] == "start"])


def start_goals(rounds):
    keys = [key for key in rounds[0] if key[0] == "start"]
    return ([at_most(f"{key[2]}: ms until the call returns", START_GOAL_US / 1e3,
                     median(rounds, key, "call_us") / 1e3) for key in keys]
            + [at_most(f"{key[2]}: ms until the first I/O", START_GOAL_US / 1e3,
                       median(rounds, key, "first_us") / 1e3) for key in keys])


# ---- commit


def commit_round(args):
    results = {}
    for what, tensors in COMMITTED.items():
        report = run([f"{args.build}/bench/commit",
                      write_json(args, "commit.json", config(args, "commit", 512 * MIB, keep=True)),
                      f"{args.work}/reads", tensors, 2 * args.seconds])
        results["commit", "read", what] = {
            "quiet_us": report["quiet"]["p99_us"], "commit_us": report["commit"]["p99_us"],
            "median_us": report["commit"]["p50_us"], "commit_ms": report["commit_ms"],
            "sync_us": report["fdatasync"]["p99_us"], "sync_ms": report["fdatasync_ms"]}
        remove_store(args)
    return results


def remove_store(args):
    """Removes the kept store before other parts run."""
    shutil.rmtree(f"{args.work}/nvswap")


def commit_print(rounds):
    keys = [key for key in rounds[0] if key[0] == "commit"]
    print_rows(("reads of 4 KiB", "quiet p99 us", "median us", "p99 us", "the call, ms"), [
        (f"during {key[2]}", f"{median(rounds, key, 'quiet_us'):.0f}",
         f"{median(rounds, key, 'median_us'):.0f}", f"{median(rounds, key, 'commit_us'):.0f}",
         f"{median(rounds, key, 'commit_ms'):.1f}")
        for key in keys] + [
        (f"during a bare fdatasync of the bytes of {key[2]}", f"{median(rounds, key, 'quiet_us'):.0f}",
         "", f"{median(rounds, key, 'sync_us'):.0f}", f"{median(rounds, key, 'sync_ms'):.1f}")
        for key in keys])


def commit_goals(rounds):
    goals = []
    for what in COMMITTED:
        results = [result["commit", "read", what] for result in rounds]
        shares = sorted(result["commit_us"] / result["quiet_us"] for result in results)
        goals.append(at_most(f"reads of 4 KiB during {what}: 99th percentile of that without", 3,
                             shares[len(shares) // 2]))
    return goals


# ---- awaited


def awaited_round(args):
    report = run([f"{args.build}/bench/awaited",
                  write_json(args, "awaited.json", config(args, "awaited", GIB + 256 * MIB)), 3])
    return {("awaited", "read", what): report[what] | {"write_ms": report["write_ms"]}
            for what in ("idle", "queued")}


def awaited_print(rounds):
    print_rows(("swap-ins of a queue's depth", "median ms", "99th percentile ms"), [
        (key[2], *(f"{median(rounds, key, figure) / 1e3:.2f}" for figure in ("p50_us", "p99_us")))
        for key in rounds[0] if key[0] == "awaited"])


def awaited_goals(rounds):
    return [at_most("swap-ins waited for while 1 GiB of write-backs queues: median of idle", 2,
                    ratio(rounds, ("awaited", "read", "queued"), ("awaited", "read", "idle"),
                          "p50_us"))]


# ---- get


def get_round(args):
    results = {("get", "read", RAW): raw(args, "read", GET_BYTES)}
    text = config(args, "get", 0, block="offload_optimizer",
                  zero={"sub_group_size": GET_POOL // 12})
    text["zero_optimization"]["offload_optimizer"] |= {"buffer_count": 3}
    for order, what in ORDERS.items():
        results["get", "read", what] = run([
            f"{args.build}/bench/get", write_json(args, "get.json", text), order, GET_ELEMENTS])
    return results


def get_print(rounds):
    print_rows(("nvs_optimizer_get of all, pieces of 1 MiB", "GB/s", "of the raw loop",
                "read, of the state"), [
        (key[2], f"{median(rounds, key, 'gb_s'):.2f}",
         f"{ratio(rounds, key, ('get', 'read', RAW), 'gb_s'):.2f}",
         f"{median(rounds, key, 'of_state'):.2f}" if key[2] != RAW else "")
        for key in rounds[0] if key[0] == "get"])


def get_goals(rounds):
    goals = []
    for what in ORDERS.values():
        key = ("get", "read", what)
        goals += [
            at_most(f"get, {what}: bytes read of the state", 1.05, median(rounds, key, "of_state")),
            at_least(f"get, {what}: rate of the raw loop's", 0.9,
                     ratio(rounds, key, ("get", "read", RAW), "gb_s")),
        ]
    return goals


# ---- checkpoint


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def save_and_restore(args, part, forms, program, env=None):
    """Saves state to a checkpoint of each form by a program and restores it, beside the loop and cp."""
    group = STATE_ELEMENTS // STATE_GROUPS
    text = config(args, part, 0, block="offload_optimizer", zero={"sub_group_size": group})
    text["zero_optimization"]["offload_optimizer"] |= {
        "buffer_count": STATE_POOL // (4 * group), "pipeline_read": True, "pipeline_write": True,
        "fast_init": True}
    results = {(part, "rw", LOOP): copy_by_loop(args)}
    for form, name in forms.items():
        path = f"{args.work}/{name}"
        results[part, "rw", form] = run([*program, write_json(args, f"{part}.json", text), path, STATE_ELEMENTS], env)
        if path.endswith(".safetensors"):
            results[part, "rw", CP] = copy_by_cp(args, path)
        remove(path)
    return results


def copy_by_loop(args):
    """Copies as many bytes to a new file, which is made durable as a checkpoint is, and then over
    that file, as state is restored over the store."""
    path, rates = f"{args.work}/copy", {}
    for what in ("save_gb_s", "restore_gb_s"):
        report = run([f"{args.build}/bench/raw", "--rw", "copy", "--from", f"{args.work}/floor",
                      "--file", path, "--size", STATE_BYTES, "--bs", args.bs, "--iodepth",
                      args.iodepth])
        rates[what] = report["jobs"][0]["write"]["bw_bytes"] / 1e9
    os.unlink(path)
    return rates


def copy_by_cp(args, source):
    """Copies a checkpoint likewise, through a page cache that has nothing of either file."""
    path, rates = f"{args.work}/copy", {}
    for what in ("save_gb_s", "restore_gb_s"):
        for name in filter(os.path.exists, (source, path)):
            with open(name, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.monotonic()
        subprocess.run(["cp", "--reflink=never", source, path], check=True)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        rates[what] = STATE_BYTES / (time.monotonic() - started) / 1e9
    os.unlink(path)
    return rates


def checkpoint_round(args):
    return save_and_restore(args, "checkpoint", FORMS, [f"{args.build}/bench/checkpoint"])


def checkpoint_print(rounds):
    whats = [key[2] for key in rounds[0] if key[0] == "checkpoint"]
    print_rows(("optimizer state", "saved, GB/s", "of the loop", "restored, GB/s", "of the loop"), [
        (what, *checkpoint_figures(rounds, "checkpoint", what)) for what in whats])


def checkpoint_figures(rounds, part, what):
    """The columns of save and restore: the rate, and that of the loop's."""
    key, loop = (part, "rw", what), (part, "rw", LOOP)
    return [text for figure in ("save_gb_s", "restore_gb_s")
            for text in (f"{median(rounds, key, figure):.2f}",
                         f"{ratio(rounds, key, loop, figure):.2f}")]


def checkpoint_goals(rounds, part="checkpoint", forms=FORMS):
    return [at_least(f"{form}, {way}: rate of the loop's", 0.9,
                     ratio(rounds, (part, "rw", form), (part, "rw", LOOP), figure))
            for form in forms
            for way, figure in (("saved", "save_gb_s"), ("restored", "restore_gb_s"))]


PARTS = {  # functions that measure a round, print the results and check the goals; bytes needed on the drive
    "cpu": (cpu_round, cpu_print, cpu_goals, 2 * SWAP_BYTES),
    "verify": (verify_round, verify_print, verify_goals, SWAP_BYTES),
    "start": (start_round, start_print, start_goals, 2 * START_BYTES),
    "commit": (commit_round, commit_print, commit_goals, 2 * COMMIT_BYTES),
    "awaited": (awaited_round, awaited_print, awaited_goals, 2 * GIB),
    "get": (get_round, get_print, get_goals, 2 * GET_BYTES),
    # Beside the loop's file of half of that, a checkpoint with its store or a copy.
    "checkpoint": (checkpoint_round, checkpoint_print, checkpoint_goals, 4 * STATE_BYTES),
}
