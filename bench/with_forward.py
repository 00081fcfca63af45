# SPDX-License-Identifier: Apache-2.0
"""Rows of the part `weights` of `make bench`: a Llama of 2.01 GiB passes a prompt of 256 tokens forward and generates
(forward_weights.py), in memory, by nvswap.torch.from_pretrained, and by accelerate's device_map with all on the disk,
in turn; the latter two from a cold page cache and with memory limited to a quarter of the model."""
import os
import sys

from measure import GIB, MIB, RAW, at_least, at_most, median, print_rows, ratio, raw, run
from with_deepspeed import environment, python
from with_weights import in_cgroup

MEMORY, OURS, THEIRS = "in memory", "nvswap.torch.from_pretrained", "accelerate's device_map, all on the disk"
BY = {MEMORY: "memory", OURS: "nvswap", THEIRS: "accelerate"}
LIMIT = GIB // 2


def forward(args, what):
    env = environment(args)
    del env["OMP_NUM_THREADS"]
    # Large arrays that torch frees go back to the system, or the peak is that of glibc's heap, up to 60 MiB more.
    env["MALLOC_MMAP_THRESHOLD_"] = str(MIB)
    command = [python(args), "bench/programs/forward_weights.py", BY[what], f"{args.work}/llama"]
    if what == MEMORY:
        return run(command, env=env) | {"peak_mib": 0}
    return in_cgroup(command, env, LIMIT)


def forward_round(args):
    if not os.path.exists(f"{args.work}/llama"):
        run([python(args), "bench/programs/forward_weights.py", "make", f"{args.work}/llama"], env=environment(args))
    results = {("forward", "read", what): forward(args, what) for what in BY}
    if len({result["sum"] for result in results.values()}) > 1:
        sys.exit("the logits differ")
    floor = raw(args, "read", 2 * GIB)
    for result in results.values():
        result["of_bytes"] = result["token_s"] / max(result["token_bytes"], 1) * floor["gb_s"] * 1e9
    return results | {("forward", "read", RAW): floor}


def forward_print(rounds):
    keys = [("forward", "read", what) for what in BY]
    print_rows(("a prompt of 256 tokens", "s", "of memory's", "the first, s", "hidden", "GiB read", "peak MiB"), [
        (key[2], f"{median(rounds, key, 's'):.2f}", f"{ratio(rounds, key, keys[0], 's'):.2f}",
         f"{median(rounds, key, 'first_s'):.2f}",
         f"{median(rounds, key, 'hidden'):.2f}" if key[2] == OURS else "", f"{median(rounds, key, 'bytes') / GIB:.2f}",
         f"{max(result[key]['peak_mib'] for result in rounds):.0f}" if key[2] != MEMORY else "") for key in keys])
    print_rows(("a token after it", "s", "of memory's", "GiB read", "time of these at the raw loop's rate"), [
        (key[2], f"{median(rounds, key, 'token_s'):.2f}", f"{ratio(rounds, key, keys[0], 'token_s'):.2f}",
         f"{median(rounds, key, 'token_bytes') / GIB:.2f}",
         f"{median(rounds, key, 'of_bytes'):.2f}" if key[2] != MEMORY else "") for key in keys])


def forward_goals(rounds):
    ours, memory, theirs = (("forward", "read", what) for what in (OURS, MEMORY, THEIRS))
    return [
        at_most("forward: time of that in memory", 1.1, ratio(rounds, ours, memory, "s")),
        at_most("forward: time of accelerate's", 0.5, ratio(rounds, ours, theirs, "s")),
        at_least("forward: of the time of its reads, hidden by the trace", 0.9, median(rounds, ours, "hidden")),
        at_most("forward: MiB of memory", LIMIT / MIB, max(result[ours]["peak_mib"] for result in rounds)),
    ]


PART = (forward_round, forward_print, forward_goals, 3 * GIB)
