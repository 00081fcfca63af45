# SPDX-License-Identifier: Apache-2.0
"""The measured programs, their figures, and the printed tables and goals.

Results of a round are a dictionary: a key is (part, fio's mode, measurement), and figures are by
name."""
import json
import statistics
import subprocess
import sys

MIB, GIB = 1 << 20, 1 << 30
MODES = {  # nvswap's mode and fio's equivalent
    "swapout": "write",
    "swapin": "read",
    "swap": "rw",
}
FIO, RAW = "fio, fixed buffers", "raw loop"
BIG, SMALL = "64 MiB", "64 KiB"
TENSORS = {BIG: (16, "64M"), "1 MiB": (1024, "1M"), SMALL: (16384, "64k")}
SWAP_BYTES = GIB


# ---- The measured programs


def run(command, env=None):
    """Runs a program, in this environment unless another is given, and returns its JSON."""
    command = [str(word) for word in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=env, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nfailed with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout[done.stdout.index("{"):])


def figures(report):
    """Returns GB/s, and milliseconds of processor time per GiB, from JSON of fio's form."""
    job = report["jobs"][0]
    nbytes = sum(job[way]["io_bytes"] for way in ("read", "write"))
    ms = max(job[way]["runtime"] for way in ("read", "write"))
    cpu_ms = (job["usr_cpu"] + job["sys_cpu"]) / 100 * ms
    return {"gb_s": nbytes / ms / 1e6, "cpu_ms_gib": cpu_ms / (nbytes / GIB)}


def raw(args, rw, nbytes):
    return figures(run([
        f"{args.build}/bench/raw", "--file", f"{args.work}/floor", "--size", nbytes, "--rw", rw,
        "--bs", args.bs, "--iodepth", args.iodepth, "--ramp", 1, "--seconds", args.seconds]))


def nvswap(args, mode, *more):
    return run([
        f"{args.build}/nvswap", "bench", "--nvme-path", args.work, "--rw", mode, "--bs", args.bs,
        "--iodepth", args.iodepth, "--output-format", "json", *more])


def swap_work(args, tensors, ioengine):
    count, size = TENSORS[tensors]
    return ["--tensors", count, "--tensor-size", size, "--pool", args.pool, "--ioengine", ioengine]


def compared(args, mode, *more):
    """Returns nvswap's and fio's figures of the same work, run in turn."""
    row = nvswap(args, mode, "--compare", "--rounds", 1, "--ramp-time", 1, "--time-based",
                 "--runtime", args.seconds, *more)["compare"][0]
    return ({"gb_s": (row[who]["read"]["bw_bytes"] + row[who]["write"]["bw_bytes"]) / 1e9,
             "cpu_ms_gib": row[who]["cpu_ms_per_gib"]} for who in ("nvswap", "fio"))


def write_json(args, name, value):
    path = f"{args.work}/{name}"
    with open(path, "w", encoding="ascii") as file:
        json.dump(value, file)
    return path


def floors(args, part, rw, nbytes):
    _, fio = compared(args, rw, "--size", nbytes)
    return {(part, rw, FIO): fio, (part, rw, RAW): raw(args, rw, nbytes)}


# ---- Results of the rounds


def median(rounds, key, figure):
    return statistics.median(result[key][figure] for result in rounds)


def ratio(rounds, key, over, figure):
    return statistics.median(result[key][figure] / result[over][figure] for result in rounds)


def best_floor(result, part, rw):
    return max(result[part, rw, floor]["gb_s"] for floor in (FIO, RAW))


def at_least(text, bound, value):
    return text + f", at least {bound}", value, value >= bound


def at_most(text, bound, value):
    return text + f", at most {bound:.3g}", value, value <= bound


def print_rows(heads, rows):
    print("\n| " + " | ".join(heads) + " |")
    print("| --- |" + " ---: |" * (len(heads) - 1))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def print_speeds(rounds, part, rw, title, whats):
    """Prints the floors, and ratios to the better of the two."""
    print_rows((title, "GB/s", "of the better floor", "CPU ms/GiB"), [
        (what, f"{median(rounds, (part, rw, what), 'gb_s'):.2f}",
         f"{of_floor(rounds, part, rw, what):.2f}",
         f"{median(rounds, (part, rw, what), 'cpu_ms_gib'):.1f}")
        for what in (FIO, RAW, *whats)])


def of_floor(rounds, part, rw, what):
    return statistics.median(
        result[part, rw, what]["gb_s"] / best_floor(result, part, rw) for result in rounds)
