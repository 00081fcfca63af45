# SPDX-License-Identifier: Apache-2.0
"""The part `torch` of `make bench`: training loops of plain PyTorch (torch_loop.py) with the optimizer's state,
the parameters and what autograd saves on the drive, beside those in memory and DeepSpeed's own NVMe. And
optimizer state between a store and a universal checkpoint, beside torch.save of as many bytes from memory
to as many files, and the raw loop of the part `checkpoint`, in the same round."""
from goals import (LOOP, STATE_BYTES, STATE_ELEMENTS, STATE_GROUPS, checkpoint_figures,
                   checkpoint_goals, save_and_restore)
from measure import at_least, at_most, median, print_rows, ratio, run
from with_deepspeed import compile_ops, environment, python

UNIVERSAL = "a universal checkpoint"
SAVE = "torch.save"
IN_MEMORY = "torch.optim.AdamW, in memory"
STATE = {IN_MEMORY: "memory", "nvswap.torch.AdamW": "nvswap",
         "nvswap.torch.AdamW and offload": "offload", "DeepSpeed's own ops, ZeRO-3": "deepspeed"}
SAVED_IN_MEMORY = "saved in memory"
SAVED = {SAVED_IN_MEMORY: "saved-memory", "torch's save_on_cpu": "saved-cpu",
         "saved_on_nvme, a quarter in memory": "saved-nvme"}


def torch_round(args):
    results = save_and_restore(args, "torch", {UNIVERSAL: "state"}, [python(args), "bench/programs/universal.py"],
                               environment(args))
    saved = run([python(args), "bench/programs/torch_save.py", args.work, 3 * STATE_GROUPS,
                 STATE_ELEMENTS // STATE_GROUPS], env=environment(args))
    if not getattr(args, "ops_compiled", False):
        compile_ops(args)
        args.ops_compiled = True
    loops = {("torch", "loop", what): run([python(args), "bench/programs/torch_loop.py", variant, args.work],
                                          env=environment(args))
             for what, variant in (STATE | SAVED).items()}
    return results | {("torch", "rw", SAVE): {"save_gb_s": saved["gb_s"]}} | loops


def torch_print(rounds):
    for title, variants, first in (("a step, of 50 million weights", STATE, IN_MEMORY),
                                   ("a step that saves 1 GiB", SAVED, SAVED_IN_MEMORY)):
        print_rows((title, "s", "of the first", "MiB", "of the first"), [
            (what, *(text for figure, digits in (("step_s", 2), ("peak_mib", 0)) for text in (
                f"{median(rounds, ('torch', 'loop', what), figure):.{digits}f}",
                f"{ratio(rounds, ('torch', 'loop', what), ('torch', 'loop', first), figure):.2f}")))
            for what in variants])
    rows = [(what, *checkpoint_figures(rounds, "torch", what)) for what in (LOOP, UNIVERSAL)]
    print_rows(("optimizer state", "saved, GB/s", "of the loop", "restored, GB/s", "of the loop"), [
        *rows, (SAVE, f"{median(rounds, ('torch', 'rw', SAVE), 'save_gb_s'):.2f}", "", "", "")])


def torch_goals(rounds):
    own = [("torch", "loop", what) for what in ("nvswap.torch.AdamW and offload",
                                                "DeepSpeed's own ops, ZeRO-3")]
    return [at_most("a loop with all on the drive: a step's time of that with DeepSpeed's own ops", 1,
                    ratio(rounds, *own, "step_s")),
            *checkpoint_goals(rounds, "torch", (UNIVERSAL,)),
            at_least(f"{UNIVERSAL}, saved: rate of torch.save's from memory", 3,
                     ratio(rounds, ("torch", "rw", UNIVERSAL), ("torch", "rw", SAVE), "save_gb_s"))]


PART = (torch_round, torch_print, torch_goals, 4 * STATE_BYTES)
