# SPDX-License-Identifier: Apache-2.0
"""The part `torch` of `make bench`: optimizer state between a store and a universal checkpoint,
beside torch.save of as many bytes from memory to as many files, and the raw loop of the part
`checkpoint`, in the same round."""
from goals import (LOOP, STATE_BYTES, STATE_ELEMENTS, STATE_GROUPS, checkpoint_figures,
                   checkpoint_goals, save_and_restore)
from measure import at_least, median, print_rows, ratio, run
from with_deepspeed import environment, python

UNIVERSAL = "a universal checkpoint"
SAVE = "torch.save"


def torch_round(args):
    results = save_and_restore(args, "torch", (UNIVERSAL,))
    saved = run([python(args), "bench/torch_save.py", args.work, 3 * STATE_GROUPS,
                 STATE_ELEMENTS // STATE_GROUPS], env=environment(args))
    return results | {("torch", "rw", SAVE): {"save_gb_s": saved["gb_s"]}}


def torch_print(rounds):
    rows = [(what, *checkpoint_figures(rounds, "torch", what)) for what in (LOOP, UNIVERSAL)]
    print_rows(("optimizer state", "saved, GB/s", "of the loop", "restored, GB/s", "of the loop"), [
        *rows, (SAVE, f"{median(rounds, ('torch', 'rw', SAVE), 'save_gb_s'):.2f}", "", "", "")])


def torch_goals(rounds):
    return [*checkpoint_goals(rounds, "torch", (UNIVERSAL,)),
            at_least(f"{UNIVERSAL}, saved: rate of torch.save's from memory", 3,
                     ratio(rounds, ("torch", "rw", UNIVERSAL), ("torch", "rw", SAVE), "save_gb_s"))]


PART = (torch_round, torch_print, torch_goals, 4 * STATE_BYTES)
