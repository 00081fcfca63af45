# SPDX-License-Identifier: Apache-2.0
"""The part `torch` of `make bench`: optimizer state between a store and a universal checkpoint, beside
torch.save of as many bytes from memory to as many files, in turn. What nvswap reads and writes is
measured beside a bare loop of half reads and half writes, in the same round."""
from measure import at_least, median, nvswap, print_rows, ratio, run
from with_deepspeed import environment, python

TENSORS, NUMEL = 32, 4 << 20  # 128 Mi elements of state, in three parts
STATE_BYTES = 12 * TENSORS * NUMEL
SAVE = "torch.save"
WAYS = {"checkpoint": "to a universal checkpoint", "restore": "from a universal checkpoint"}


def torch_round(args):
    results = {}
    for mode in WAYS:
        job = nvswap(args, mode, "--checkpoint-format", "universal", "--tensors", TENSORS,
                     "--tensor-size", 2 * NUMEL, "--loops", 1)["jobs"][0]["checkpoint"]
        results["torch", mode] = {
            "gb_s": job["nvswap"]["bw_bytes"] / 1e9,
            "of_loop": job["io_uring"]["ratio"]}
    results["torch", SAVE] = run([python(args), "bench/torch_save.py", args.work, 3 * TENSORS,
                                  NUMEL], env=environment(args))
    return results


def torch_print(rounds):
    rows = [(what, f"{median(rounds, ('torch', mode), 'gb_s'):.2f}",
             f"{median(rounds, ('torch', mode), 'of_loop'):.2f}") for mode, what in WAYS.items()]
    print_rows(("optimizer state", "GB/s", "of the bare loop"),
               rows + [(SAVE, f"{median(rounds, ('torch', SAVE), 'gb_s'):.2f}", "")])


def torch_goals(rounds):
    goals = [at_least(f"universal checkpoint, {mode}: of a loop of half reads and half writes", 0.9,
                      median(rounds, ("torch", mode), "of_loop")) for mode in WAYS]
    return [*goals, at_least("universal checkpoint: rate, of torch.save from memory", 3,
                             ratio(rounds, ("torch", "checkpoint"), ("torch", SAVE), "gb_s"))]


PART = (torch_round, torch_print, torch_goals, 4 * STATE_BYTES)
