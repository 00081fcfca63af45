# SPDX-License-Identifier: Apache-2.0
"""The measured programs, their figures, and the printed tables and goals.

Results of a round are a dictionary: a key is (part, fio's mode, measurement), and figures are by
name."""
import json
import resource
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


def steady(args):
    """Options of nvswap bench for a measurement of the usual length."""
    return ["--ramp-time", 1, "--time-based", "--runtime", args.seconds]


def huge_pages_hold(nbytes):
    with open("/proc/meminfo", encoding="ascii") as file:
        info = {line.split(":")[0]: int(line.split()[1]) for line in file}
    return info.get("HugePages_Free", 0) * info.get("Hugepagesize", 0) * 1024 >= nbytes


def bytes_of(text):
    """Returns the bytes of a size with k, m or g."""
    units = {"k": 10, "m": 20, "g": 30}
    text = str(text).lower()
    return int(text[:-1]) << units[text[-1]] if text[-1] in units else int(text)


def fio(args, rw, nbytes):
    """Has fio write a file first and overwrite it, with the buffers that nvswap has: registered where the
    memlock limit allows it, and huge where pages are free."""
    more = ["--fixedbufs=1"] if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] < 0 else []
    if huge_pages_hold(args.iodepth * bytes_of(args.bs) + 2 * MIB):
        more.append("--iomem=mmaphuge")
    return figures(run([
        "fio", "--name=floor", f"--directory={args.work}", "--unlink=1", "--overwrite=1",
        f"--size={nbytes}", f"--rw={rw}", f"--bs={args.bs}", f"--iodepth={args.iodepth}",
        "--ioengine=io_uring", "--registerfiles=1", "--direct=1", "--thread=1",
        "--scramble_buffers=0", "--time_based=1", "--ramp_time=1", f"--runtime={args.seconds}",
        "--output-format=json", *more]))


def write_json(args, name, value):
    path = f"{args.work}/{name}"
    with open(path, "w", encoding="ascii") as file:
        json.dump(value, file)
    return path


def floors(args, part, rw, nbytes):
    return {(part, rw, FIO): fio(args, rw, nbytes), (part, rw, RAW): raw(args, rw, nbytes)}


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
