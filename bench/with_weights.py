# SPDX-License-Identifier: Apache-2.0
"""The part `weights` of `make bench`: each tensor of a folder of .safetensors files is loaded once, from a cold page
cache and with memory limited to a quarter of the files, by safetensors' safe_open over mmap and by
nvswap.open_weights in turn (load_weights.py), beside the bare loop, whose rate is the most that the drive gives."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))
from cgroup import Cgroup
from measure import GIB, MIB, RAW, at_least, at_most, median, print_rows, ratio, raw, run
from with_deepspeed import environment, python

THEIRS, OURS = "safetensors' safe_open", "nvswap.open_weights"
FLOOR = ("weights", "read", RAW)


def all_of_it(results):
    """The loop opens nothing."""
    return results | {"all_gb_s": results["gb_s"]}


def load(args, by):
    """Runs a load in a cgroup, with as many threads as torch takes."""
    env = environment(args)
    del env["OMP_NUM_THREADS"]
    limit = sum(entry.stat().st_size for entry in os.scandir(f"{args.work}/model")) // 4
    return in_cgroup([python(args), "bench/programs/load_weights.py", by, f"{args.work}/model"], env, limit)


def in_cgroup(command, env, limit):
    """Runs a program that enters a cgroup of its last argument, or without a limit where none can be made."""
    try:
        cgroup = Cgroup(limit)
    except OSError as error:
        print(f"weights: without a limit of memory, because no cgroup can be made here: {error}", file=sys.stderr)
        return run(command, env=env) | {"peak_mib": 0}
    try:
        results = run([*command, os.path.join(cgroup.path, "cgroup.procs")], env=env)
        return results | {"peak_mib": cgroup.peak() / MIB}
    finally:
        cgroup.remove()


def weights_round(args):
    if not os.path.exists(f"{args.work}/model"):
        run([python(args), "bench/programs/load_weights.py", "make", f"{args.work}/model"], env=environment(args))
    results = {("weights", "read", THEIRS): load(args, "safetensors"),
               FLOOR: all_of_it(raw(args, "read", 2 * GIB)),
               ("weights", "read", OURS): load(args, "nvswap")}
    if results["weights", "read", THEIRS]["sum"] != results["weights", "read", OURS]["sum"]:
        sys.exit("the tensors that safetensors and nvswap have loaded differ")
    return results


def weights_print(rounds):
    theirs = ("weights", "read", THEIRS)
    print_rows(("each tensor of 1.75 GiB once", "GB/s", "of the loop", "with opening", "of safe_open's", "CPU ms/GiB",
                "peak MiB"), [
        (key[2], f"{median(rounds, key, 'gb_s'):.2f}", f"{ratio(rounds, key, FLOOR, 'gb_s'):.2f}",
         f"{median(rounds, key, 'all_gb_s'):.2f}", f"{ratio(rounds, key, theirs, 'all_gb_s'):.2f}",
         *((f"{median(rounds, key, 'cpu_ms_gib'):.0f}",
            f"{max(result[key]['peak_mib'] for result in rounds):.0f}") if key != FLOOR else ("", "")))
        for key in rounds[0] if key[0] == "weights"])


def weights_goals(rounds):
    ours, theirs = (("weights", "read", what) for what in (OURS, THEIRS))
    most = ratio(rounds, FLOOR, theirs, "all_gb_s")
    return [
        at_least("weights: rate of the raw loop's, once they are open", 0.95, ratio(rounds, ours, FLOOR, "gb_s")),
        at_least(f"weights: rate of safe_open's, with opening; the drive gives {most:.2f} of it", 3,
                 ratio(rounds, ours, theirs, "all_gb_s")),
        at_most("weights: bytes written", 0, max(result[ours]["written_bytes"] for result in rounds)),
    ]


PART = (weights_round, weights_print, weights_goals, 4 * GIB)
