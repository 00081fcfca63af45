#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Measures nvswap against fio on the same file system in the same run, and prints medians and ratios.

In each round fio and nvswap take turns at the same work: reads, writes, and both mixed, with the
same block size and depth, on a file (a store) of the same size that has been written before. A ratio
is that of a round's pair, and what is printed is the median over the rounds: the machine and the
drive may drift from round to round, and these ratios don't. Timing never makes this program fail.
"""
import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys

GIB = 1 << 30
MODES = {  # nvswap's mode: what fio calls it
    "swapout": "write",
    "swapin": "read",
    "swap": "rw",
}
BIG, SMALL = "64 MiB", "64 KiB"
TENSORS = {BIG: (16, "64M"), SMALL: (16384, "64k")}


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--dir", default="build/bench", help="a directory on the drive (%(default)s)")
    parser.add_argument("--nvswap", default="build/nvswap", help="the command (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2, help="of each measurement (%(default)s)")
    parser.add_argument("--bs", default="1M")
    parser.add_argument("--iodepth", type=int, default=32)
    parser.add_argument("--pool", default="256M", help="nvswap's pool (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write every measurement there")
    return parser.parse_args()


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nfailed with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout[done.stdout.index("{"):])


def figures(report):
    """GB/s and milliseconds of processor time per GiB, from JSON of fio's shape."""
    job = report["jobs"][0]
    nbytes = sum(job[way]["io_bytes"] for way in ("read", "write"))
    ms = max(job[way]["runtime"] for way in ("read", "write"))
    cpu_ms = (job["usr_cpu"] + job["sys_cpu"]) / 100 * ms
    return {"gb_s": nbytes / ms / 1e6, "cpu_ms_gib": cpu_ms / (nbytes / GIB)}


def huge_pages_free():
    with open("/proc/meminfo", encoding="ascii") as file:
        facts = dict(line.split(":") for line in file)
    return int(facts["HugePages_Free"]) * int(facts["Hugepagesize"].split()[0]) * 1024


def fio(args, rw):
    # nvswap's pool takes huge pages where there are some, so fio is given them too.
    huge = ["--iomem=mmaphuge"] if args.huge else []
    return figures(run([
        "fio", "--name=floor", f"--filename={args.dir}/fio.dat", "--size=1g", f"--rw={rw}",
        f"--bs={args.bs}", f"--iodepth={args.iodepth}", "--ioengine=io_uring", "--fixedbufs",
        "--registerfiles", "--direct=1", "--scramble_buffers=0", "--time_based",
        "--ramp_time=1", f"--runtime={args.seconds}", "--output-format=json", *huge]))


def nvswap(args, mode, tensors, ioengine):
    count, size = TENSORS[tensors]
    report = run([
        args.nvswap, "bench", "--nvme-path", args.dir, "--tensors", str(count), "--tensor-size", size,
        "--rw", mode, "--bs", args.bs, "--iodepth", str(args.iodepth), "--pool", args.pool,
        "--ioengine", ioengine, "--ramp-loops", "2", "--runtime", str(args.seconds),
        "--output-format", "json"])
    return figures(report)


def one_round(args):
    results = {}
    for mode, rw in MODES.items():
        results["fio", BIG, mode] = fio(args, rw)
        for ioengine in ("io_uring", "libaio"):
            for tensors in (BIG, SMALL):
                results[ioengine, tensors, mode] = nvswap(args, mode, tensors, ioengine)
    return results


def median(rounds, key, figure):
    return statistics.median(result[key][figure] for result in rounds)


def ratio(rounds, key, over, figure):
    return statistics.median(result[key][figure] / result[over][figure] for result in rounds)


def print_table(rounds, huge):
    print("| what | engine | mode | GB/s | of fio | CPU ms/GiB | of fio |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    for key in rounds[0]:
        who, tensors, mode = key
        floor = ("fio", BIG, mode)
        name = "fio, fixed buffers" + (" in huge pages" if huge else "") if who == "fio" else f"nvswap, tensors of {tensors}"
        ratios = [1.0, 1.0] if who == "fio" else [
            ratio(rounds, key, floor, figure) for figure in ("gb_s", "cpu_ms_gib")]
        print(f"| {name} | {'io_uring' if who == 'fio' else who} | {mode} | "
              f"{median(rounds, key, 'gb_s'):.2f} | {ratios[0]:.2f} | "
              f"{median(rounds, key, 'cpu_ms_gib'):.1f} | {ratios[1]:.2f} |")


def print_goals(rounds):
    """What the figures are held against; a miss is said, and nothing more."""
    goals = []
    for mode in ("swapout", "swapin"):
        big, small, floor = ("io_uring", BIG, mode), ("io_uring", SMALL, mode), ("fio", BIG, mode)
        goals += [
            (f"{mode}, {BIG}: bandwidth of fio's, at least 0.97", "min", 0.97,
             ratio(rounds, big, floor, "gb_s")),
            (f"{mode}, {BIG}: CPU per GiB of fio's, at most 1.3", "max", 1.3,
             ratio(rounds, big, floor, "cpu_ms_gib")),
            (f"{mode}, {SMALL}: bandwidth of {BIG}'s, at least 0.85", "min", 0.85,
             ratio(rounds, small, big, "gb_s")),
            (f"{mode}, {SMALL}: CPU per GiB of {BIG}'s, at most 2", "max", 2.0,
             ratio(rounds, small, big, "cpu_ms_gib")),
        ]
    print("\n| goal | measured | |\n| --- | ---: | --- |")
    for text, kind, bound, value in goals:
        met = value >= bound if kind == "min" else value <= bound
        print(f"| {text} | {value:.2f} | {'met' if met else 'MISSED'} |")


def drive(nvswap_command, path):
    """The names that the kernel gives to the machine's parts, for the table's caption."""
    info = json.loads(subprocess.run(
        [nvswap_command, "info", "--nvme-path", path, "--output-format", "json"],
        stdout=subprocess.PIPE, text=True, check=True).stdout)
    where = info["paths"][0]
    return f"{where['filesystem']} on {where.get('device') or 'no drive'} {where.get('model') or ''}".strip()


def main():
    args = options()
    if not shutil.which("fio"):
        sys.exit("fio is not installed: apt-get install fio")
    os.makedirs(args.dir, mode=0o700, exist_ok=True)
    args.huge = huge_pages_free() >= GIB // 2
    try:
        fio(args, "write")  # lays the file out, so that every measurement overwrites
        rounds = []
        for number in range(args.rounds):
            print(f"round {number + 1} of {args.rounds} ...", file=sys.stderr, flush=True)
            rounds.append(one_round(args))
        print(f"{os.cpu_count()} CPUs, Linux {platform.release()}, {drive(args.nvswap, args.dir)}; "
              f"blocks of {args.bs}, depth {args.iodepth}, {args.rounds} rounds of "
              f"{args.seconds} s each, medians.\n")
        print_table(rounds, args.huge)
        print_goals(rounds)
        if args.json:
            with open(args.json, "w", encoding="utf-8") as file:
                json.dump([{" / ".join(key): value for key, value in result.items()}
                           for result in rounds], file, indent=1)
    finally:
        if os.path.exists(f"{args.dir}/fio.dat"):
            os.unlink(f"{args.dir}/fio.dat")


if __name__ == "__main__":
    main()
