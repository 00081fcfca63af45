# SPDX-License-Identifier: Apache-2.0
"""The part `accelerate` of `make bench`: forward passes of a model whose parameters are on the drive, by
accelerate's disk_offload and by nvswap.torch.offload in turn (offload.py)."""
from measure import at_least, median, print_rows, ratio, run
from with_deepspeed import environment, python

THEIRS = "accelerate's disk_offload"
OURS = "nvswap.torch.offload"


def accelerate_round(args):
    return {("accelerate", "read", what): run([python(args), "bench/programs/offload.py", by, args.work],
                                              env=environment(args))
            for what, by in ((THEIRS, "accelerate"), (OURS, "nvswap"))}


def accelerate_print(rounds):
    theirs = ("accelerate", "read", THEIRS)
    print_rows(("a forward pass over 2 GiB of parameters", "GB/s", "of accelerate's", "CPU ms/GiB",
                "of accelerate's"), [
        (key[2], f"{median(rounds, key, 'gb_s'):.2f}", f"{ratio(rounds, key, theirs, 'gb_s'):.2f}",
         f"{median(rounds, key, 'cpu_ms_gib'):.1f}", f"{ratio(rounds, key, theirs, 'cpu_ms_gib'):.2f}")
        for key in rounds[0] if key[0] == "accelerate"])


def accelerate_goals(rounds):
    keys = (("accelerate", "read", what) for what in (OURS, THEIRS))
    return [at_least("a forward pass: rate of accelerate's", 1, ratio(rounds, *keys, "gb_s"))]


PART = (accelerate_round, accelerate_print, accelerate_goals, 0)
