#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`nvswap replay` from a user's view: the calls that it replays of a recorded run, the settings,
and refused input."""

import collections
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("BUILD", "build"))
sys.path.insert(0, str(ROOT / "tests/support"))
import checks  # noqa: E402

# Seven layers of 300000 bytes, of which a pool of a megabyte never holds all.
RUNS = {
    "params": ["--rw", "params", "--compute-us", "3000"],
    "swap": ["--rw", "swap", "--loops", "3"],
    "step": ["--rw", "step", "--threads", "2"],
}
SMALL = ["--tensors", "7", "--tensor-size", "300000"]
POOL = {"params": "1m", "swap": "1m", "step": "8m"}


def nvswap(command, directory, *options, status=0):
    done = subprocess.run([BUILD / "nvswap", command, "--nvme-path", directory, *map(str, options)],
                          text=True, capture_output=True, check=False)
    if status is not None and done.returncode != status:
        raise AssertionError(f"exit status {done.returncode}: {done.stderr}")
    return done


def replayed(directory, *options):
    done = nvswap("replay", directory, *options, "--output-format", "json")
    return json.loads(done.stdout)["jobs"][0]


def record(directory, mode):
    trace = directory / f"{mode}.json"
    if not trace.exists():
        store = directory / "recorded"
        store.mkdir(exist_ok=True)
        nvswap("bench", store, *SMALL, "--pool", POOL[mode], *RUNS[mode], "--trace", trace)
    return trace


def read(trace):
    """Returns the calls, as what, the number of the tensor in the order of their first call, and
    bytes; and the bytes that tensors' transfers moved in each direction."""
    calls, numbers, moved = [], {}, collections.Counter()
    for event in json.loads(trace.read_text())["traceEvents"]:
        args = event.get("args", {})
        if event.get("cat") == "call" and args["call"] != "open":
            number = numbers.setdefault(args["offset"], len(numbers))
            calls.append((args["call"], number, args["bytes"]))
        elif event.get("cat") == "tensor" and event["ph"] == "b":
            moved[event["name"].split()[0]] += args["bytes"]
    return calls, moved


def a_replay_makes_the_recorded_calls_in_their_order(directory):
    for mode in RUNS:
        trace, again = record(directory, mode), directory / "again.json"
        nvswap("replay", directory, trace, "--trace", again)
        recorded = read(trace)[0]
        made = read(again)[0]
        # At its end, a replay waits for all transfers.
        if made[:len(recorded)] != recorded or any(
                call[0] != "wait" for call in made[len(recorded):]):
            return False
        nvswap("replay", directory, again, "--trace", directory / "third.json")
        if read(directory / "third.json")[0][:len(made)] != made:
            return False
    return True


def a_replay_moves_the_recorded_bytes_each_way(directory):
    for mode in RUNS:
        trace = record(directory, mode)
        moved = read(trace)[1]
        for pace in ("recorded", "max"):
            job = replayed(directory, trace, "--pace", pace)
            figures = job["replay"]
            if not (figures["recorded_read_bytes"] == figures["replayed_read_bytes"] ==
                    moved["read"] > 0 and
                    figures["recorded_write_bytes"] == figures["replayed_write_bytes"] ==
                    moved["write"] > 0 and job["error"] == 0):
                print(mode, pace, figures, moved)
                return False
    return True


def the_pool_is_that_of_the_recorded_run(directory):
    job = replayed(directory, record(directory, "params"))
    larger = replayed(directory, record(directory, "params"), "--pool", "16m")
    figures = larger["replay"]
    return job["swap"]["pool_bytes"] == 1 << 20 and larger["swap"]["pool_bytes"] == 16 << 20 and \
        figures["replayed_read_bytes"] < figures["recorded_read_bytes"]


def settings_of_the_replay_are_those_given(directory):
    job = replayed(directory, record(directory, "swap"), "--bs", "64k", "--iodepth", 5,
                   "--thread-count", 2, "--ioengine", "posix")
    aio = job["config"]["aio"]
    return (aio["block_size"], aio["queue_depth"], aio["thread_count"],
            job["engine"]["ioengine"]) == (65536, 5, 2, "posix")


def the_program_computes_as_recorded_by_default(directory):
    trace = record(directory, "params")
    computed = 4 * 2 * 7 * 3_000_000  # four steps, each of which visits seven layers twice
    recorded = replayed(directory, trace)["replay"]
    fastest = replayed(directory, trace, "--pace", "max")["replay"]
    return (recorded["pace"], fastest["pace"]) == ("recorded", "max") and \
        recorded["recorded_ns"] - recorded["recorded_stall_ns"] >= computed and \
        recorded["replayed_ns"] >= computed and \
        fastest["calls"] == recorded["calls"] > 0


def verify_compares_everything_that_is_read(directory):
    for mode in RUNS:
        job = replayed(directory, record(directory, mode), "--verify")
        if not (job["swap"]["verified_bytes"] >= job["replay"]["recorded_read_bytes"] and
                job["swap"]["verify_errors"] == 0):
            return False
    return True


LIST = """
# Two layers, the second read ahead.
swapin   a 1m
prefetch b 2.5m
compute  2ms
swapout  a
swapin   b
release  b
step
swapout  c 64k
swapin   a
compute  500us  # a is released at the end
"""


def a_list_written_by_hand_is_replayed(directory):
    accesses = directory / "list"
    accesses.write_text(LIST)
    job = replayed(directory, accesses, "--verify", "--loops", 3)
    figures, swap = job["replay"], job["swap"]
    return swap["tensors"] == 3 and swap["bytes"] == (3 << 20) + (1 << 19) + (64 << 10) and \
        swap["first_swapout_bytes"] == (3 << 20) + (1 << 19) and \
        figures["recorded_ns"] == 0 and figures["replayed_ns"] >= 3 * 2_500_000 and \
        figures["replayed_write_bytes"] >= 3 * ((1 << 20) + (64 << 10)) and \
        swap["verified_bytes"] == 3 * (2 * (1 << 20) + (5 << 19))


def refused(directory, pattern, *options, status=1):
    done = nvswap("replay", directory, *options, status=status)
    if pattern not in done.stderr:
        print(f"not said: {pattern}\n{done.stderr}")
    return pattern in done.stderr


def refusals_say_what_is_missing(directory):
    trace = record(directory, "swap")
    text = trace.read_text()
    bad, accesses = directory / "bad.json", directory / "list"
    cases = [
        ("cut off here", text[:len(text) // 2].rsplit("\n", 1)[0] + "\n"),
        ("no room for 7 spans", text.replace('"dropped":0', '"dropped":7')),
        ("no accesses of tensors", "".join(line for line in text.splitlines(True)
                                           if '"cat":"call"' not in line)),
        ("not a trace as nvswap writes it", json.dumps(json.loads(text), indent=1)),
        ("was not in use", "".join(line for line in text.splitlines(True)
                                   if '"call":"lease"' not in line)),
    ]
    for pattern, damaged in cases:
        bad.write_text(damaged)
        if not refused(directory, pattern, bad):
            return False
    accesses.write_text("swapin a 3m\nswapin b 3m\nswapin c 3m\n")
    return refused(directory, "9437184 bytes in use at once", accesses, "--pool", "8m") and \
        refused(directory, "No such file", directory / "none") and \
        refused(directory, "replay takes one TRACE", status=2) and \
        refused(directory, "would be written over", trace, "--trace", trace, status=2) and \
        trace.read_text() == text


def a_dry_run_says_what_a_replay_takes_and_creates_nothing(directory):
    store = directory / "dry"
    store.mkdir()
    trace = record(directory, "params")
    figures = replayed(directory, trace)["replay"]
    done = nvswap("replay", store, trace, "--dry-run", "--output-format", "json")
    job = json.loads(done.stdout)["jobs"][0]
    accesses = directory / "list"
    accesses.write_text(LIST)
    listed = json.loads(nvswap("replay", store, accesses, "--dry-run", "--output-format",
                               "json").stdout)["jobs"][0]
    return not any(store.iterdir()) and \
        job["read_bytes"] == figures["replayed_read_bytes"] and \
        job["write_bytes"] == figures["replayed_write_bytes"] and \
        job["bytes_are"] == "exact" and \
        listed["write_bytes"] == (3 << 20) + (1 << 19) + (1 << 20) + (64 << 10) and \
        listed["read_bytes"] == 2 * (1 << 20) + (5 << 19) and listed["bytes_are"] == "at most"


def nothing_is_left_behind(directory):
    store = directory / "left"
    store.mkdir()
    nvswap("replay", store, record(directory, "swap"))
    nvswap("replay", store, record(directory, "swap"), "--pool", "256k", status=1)
    # Stop the replay while it computes for an hour.
    accesses = directory / "long"
    accesses.write_text("swapin a 1m\ncompute 3600s\nrelease a\n")
    with subprocess.Popen([BUILD / "nvswap", "replay", "--nvme-path", store, accesses],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until = time.monotonic() + 60
        while not any(store.iterdir()) and time.monotonic() < until:
            time.sleep(0.01)
        # Not SIGINT, which a background process inherits as ignored.
        process.terminate()
        try:
            status = process.wait(60)
        finally:
            process.kill()
    return status == 128 + signal.SIGTERM and not any(store.iterdir())


if __name__ == "__main__":
    (BUILD / "tmp").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD / "tmp") as temporary:
        sys.exit(checks.run_all(globals(), "directory", pathlib.Path(temporary)))
