# SPDX-License-Identifier: Apache-2.0
"""The part `deepspeed` of `make bench`: DeepSpeed with its own compiled ops beside the same with
nvswap in their place, in turn.

Tensors through aio_handle (aio_handle.py), and a ZeRO-3 job of two ranks with parameters and
optimizer on the drive (python/tests/support/job.py). Both run in the virtual environment that
`make` builds; DeepSpeed compiles its ops there before the first round."""
import json
import os
import socket
import subprocess
import sys

from measure import BIG, SMALL, at_least, at_most, median, print_rows, ratio, run

OWN = "DeepSpeed's own ops"
DEPTHS = {f"nvswap, {depth}": depth for depth in ("ops", "swappers", "step")}
EIGHT_BITS = "nvswap, step, 8bit"
IN_TURN, BEHIND = (f"nvswap, step, parameters in memory{more}" for more in ("", ", behind the forward"))
# The block "nvswap" of each job; None: none of it. overlap_step takes no parameters on the drive.
JOBS = {OWN: None, **{what: {"deepspeed": depth} for what, depth in DEPTHS.items()},
        EIGHT_BITS: {"deepspeed": "step", "optimizer_state": "8bit"},
        IN_TURN: {"deepspeed": "step"}, BEHIND: {"deepspeed": "step", "overlap_step": True}}
HANDLE = {SMALL: (2048, 64 << 10), BIG: (8, 64 << 20)}  # tensors and bytes of each
RANKS, STEPS = 2, 5
LAYERS, WIDTH = 6, 512  # some 20 million parameters
PARAM_BUFFERS = 64  # its own swapper ends a run that reads more parameters ahead
STATE_BUFFERS = 12  # its own swapper needs four for each sub-group that is read, updated or written


def virtual_environment(args):
    path = os.path.abspath(f"{args.build}/venv")
    if not os.path.exists(f"{path}/ready"):
        sys.exit(f"{path} is missing: run make bench BENCH=\"--only deepspeed\"")
    return path


def environment(args, **more):
    """The virtual environment's programs, the package, and a place for compiled ops."""
    venv = virtual_environment(args)
    return dict(os.environ, PATH=f"{venv}/bin:{os.environ['PATH']}", DS_ACCELERATOR="cpu",
                PYTHONPATH=os.path.abspath(f"{args.build}/python"), OMP_NUM_THREADS="1",
                TORCH_EXTENSIONS_DIR=f"{venv}/extensions", **more)


def python(args):
    return f"{virtual_environment(args)}/bin/python"


def compile_ops(args):
    """Has DeepSpeed compile its ops, which takes minutes the first time."""
    program = ("from deepspeed.ops.op_builder import AsyncIOBuilder, CPUAdamBuilder\n"
               "AsyncIOBuilder().load(), CPUAdamBuilder().load()")
    done = subprocess.run([python(args), "-c", program], env=environment(args), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.exit(f"DeepSpeed could not compile its ops:\n{done.stdout[-4000:]}")


# ---- Tensors through aio_handle


def handle_round(args):
    results = {}
    for tensors, (count, nbytes) in HANDLE.items():
        for what, ops in ((OWN, "own"), ("nvswap, ops", "nvswap")):
            report = run([python(args), "bench/programs/aio_handle.py", ops, args.work, count, nbytes,
                          2 * args.seconds], env=environment(args))
            for way, figures in report.items():
                results["deepspeed", f"{way}, tensors of {tensors}", what] = figures
    return results


# ---- A job


def job_config(args, what):
    block = {"device": "nvme", "nvme_path": args.work, "pin_memory": True}
    param = {"device": "cpu"} if what in (IN_TURN, BEHIND) else dict(
        block, buffer_count=PARAM_BUFFERS, buffer_size=WIDTH * WIDTH * 4 + 4096, max_in_cpu=0)
    return {
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
        "zero_optimization": {
            "stage": 3, "stage3_param_persistence_threshold": 0, "sub_group_size": 2000000,
            "stage3_prefetch_bucket_size": 0,  # its own swapper asserts that it reads nothing twice
            "offload_param": param,
            "offload_optimizer": dict(block, buffer_count=STATE_BUFFERS, pipeline_read=True,
                                      pipeline_write=True)},
        "aio": {"block_size": 1 << 20, "queue_depth": args.iodepth, "intra_op_parallelism": 1,
                "single_submit": False, "overlap_events": True},
        **({"nvswap": JOBS[what]} if JOBS[what] else {})}


def job(args, what):
    """Runs the job, and returns the figures of its ranks together."""
    setting = json.dumps({"nvswap": bool(JOBS[what]), "width": WIDTH, "layers": LAYERS, "heads": 8,
                          "steps": STEPS, "config": job_config(args, what)})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [subprocess.Popen(
        [python(args), "python/tests/support/job.py", setting], text=True,
        env=environment(args, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS),
                        LOCAL_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                        GLOO_SOCKET_IFNAME="lo"),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for rank in range(RANKS)]
    try:
        outputs = [process.communicate()[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    ranks = []
    for output in outputs:
        lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
        if not lines:
            sys.exit(f"a rank of the job failed:\n{output[-4000:]}")
        ranks.append(json.loads(lines[0][len("RESULT "):]))
    return {
        "step_s": max(rank["step_s"] for rank in ranks) / STEPS,
        "train_s": max(rank["train_s"] for rank in ranks) / STEPS,
        "cpu_s": sum(rank["cpu_s"] for rank in ranks) / STEPS,
        "moved_mib": sum(rank["moved_bytes"] for rank in ranks) / STEPS / 2**20,
        "peak_mib": max(rank["peak_mib"] for rank in ranks),
        "loss": float.fromhex(ranks[0]["losses"][-1])}


def job_round(args):
    return {("deepspeed", "job", what): job(args, what) for what in JOBS}


# ---- The part


def deepspeed_round(args):
    if not getattr(args, "ops_compiled", False):
        compile_ops(args)
        args.ops_compiled = True
    return handle_round(args) | job_round(args)


def deepspeed_print(rounds):
    keys = [key for key in rounds[0] if key[0] == "deepspeed"]
    print_rows(("aio_handle", "GB/s", "of DeepSpeed's own", "CPU ms/GiB", "of its own"), [
        (f"{key[1]}: {key[2]}", f"{median(rounds, key, 'gb_s'):.2f}",
         f"{ratio(rounds, key, (*key[:2], OWN), 'gb_s'):.2f}",
         f"{median(rounds, key, 'cpu_ms_gib'):.1f}",
         f"{ratio(rounds, key, (*key[:2], OWN), 'cpu_ms_gib'):.2f}")
        for key in keys if key[1] != "job"])
    own = ("deepspeed", "job", OWN)
    print_rows((f"a job of {RANKS} ranks, one step", "optimizer s", "of its own", "all s",
                "of its own", "CPU s", "of its own", "MiB moved", "of its own",
                "resident MiB of a rank", "of its own"), [
        (key[2], *(text for figure, digits in (("step_s", 2), ("train_s", 2), ("cpu_s", 2),
                                              ("moved_mib", 0), ("peak_mib", 0))
                   for text in (f"{median(rounds, key, figure):.{digits}f}",
                                f"{ratio(rounds, key, own, figure):.2f}")))
        for key in keys if key[1] == "job"])


def deepspeed_goals(rounds):
    goals = []
    for way in ("write", "read"):
        key = ("deepspeed", f"{way}, tensors of {SMALL}", "nvswap, ops")
        own = (*key[:2], OWN)
        goals += [at_least(f"aio_handle, {way}, {SMALL}: rate of DeepSpeed's own", 3,
                           ratio(rounds, key, own, "gb_s")),
                  at_most(f"aio_handle, {way}, {SMALL}: CPU per GiB of its own", 0.1,
                          ratio(rounds, key, own, "cpu_ms_gib"))]
        key = ("deepspeed", f"{way}, tensors of {BIG}", "nvswap, ops")
        goals.append(at_most(f"aio_handle, {way}, {BIG}: CPU per GiB of its own", 0.5,
                             ratio(rounds, key, (*key[:2], OWN), "cpu_ms_gib")))
    own = ("deepspeed", "job", OWN)
    ops, step, eight_bits, in_turn, behind = (("deepspeed", "job", what) for what in (
        "nvswap, ops", "nvswap, step", EIGHT_BITS, IN_TURN, BEHIND))
    goals += [
        at_most("job, ops: time of all of that with its own ops", 1,
                ratio(rounds, ops, own, "train_s")),
        at_most("job, step: time of the optimizer step of that with its own ops", 1 / 1.5,
                ratio(rounds, step, own, "step_s")),
        at_most("job, step, 8bit: time of the optimizer step of that with its own ops", 1 / 2,
                ratio(rounds, eight_bits, own, "step_s")),
        at_most("job, step: bytes of those with its own ops", 0.8,
                ratio(rounds, step, own, "moved_mib")),
        at_most("job, step behind the forward: time of all of that in turn", 1,
                ratio(rounds, behind, in_turn, "train_s")),
    ]
    goals += [at_most(f"job, {depth}: resident memory of that with its own ops", 1,
                      ratio(rounds, ("deepspeed", "job", what), own, "peak_mib"))
              for what, depth in DEPTHS.items()]
    return goals


PART = (deepspeed_round, deepspeed_print, deepspeed_goals, 0)
