#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reports of `nvswap bench` against fio's on this machine, for similar jobs: every key of
fio's exists in the same form."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import checks

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = ROOT / os.environ.get("BUILD", "build")


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, text=True,
                          stdout=subprocess.PIPE).stdout


def nvswap(form, *options):
    with tempfile.TemporaryDirectory(dir=BUILD / "tmp") as store:
        return run(BUILD / "nvswap", "bench", "--nvme-path", store, "--tensors", 4,
                   "--tensor-size", "1m", "--pool", "4m", "--bs", "64k", "--iodepth", 4,
                   "--output-format", form, *options)


def fio(form, *options):
    with tempfile.TemporaryDirectory(dir=BUILD / "tmp") as directory:
        return run("fio", "--name=swap", f"--directory={directory}", "--size=4m", "--rw=rw",
                   "--bs=64k", "--iodepth=4", "--ioengine=libaio", "--direct=1",
                   f"--output-format={form}", *options)


# What only nvswap has.
OWN = {"error_text", "job options", "job_start", "config", "engine", "swap"}


def lacks(ours, theirs, where, left_out):
    for key in theirs:
        if key in left_out:
            continue
        if key not in ours:
            yield f"{where}: one side lacks {key}"
        elif type(ours[key]) is not type(theirs[key]):
            yield f"{where}: {key} is {type(ours[key])}, and fio's is {type(theirs[key])}"
        elif isinstance(ours[key], dict):
            yield from lacks(ours[key], theirs[key], f"{where}.{key}", left_out | {"job options"})


def json_has_the_keys_of_fios_but_of_drives_and_its_own():
    if not shutil.which("fio"):
        return "fio is not installed"
    ours, theirs = json.loads(nvswap("json")), json.loads(fio("json"))
    missing = list(lacks(ours, theirs, "", {"disk_util"}))
    missing += lacks(ours["jobs"][0], theirs["jobs"][0], "jobs[0]", {"job options"})
    missing += lacks(theirs["jobs"][0], ours["jobs"][0], "jobs[0]", OWN)
    for line in missing:
        print(line)
    return not missing


def bins_of(report):
    return {(way, kind): job[way][kind].get("bins") for job in report["jobs"]
            for way in ("read", "write", "trim") for kind in ("slat_ns", "clat_ns", "lat_ns")}


def bucket(ns):
    """Returns the value of a time's bucket, as in fio's stat.c."""
    shift = max(ns.bit_length() - 7, 0)
    return (ns >> shift << shift) + (1 << shift >> 1)


def json_plus_has_the_bins_of_fios():
    if not shutil.which("fio"):
        return "fio is not installed"
    report = json.loads(nvswap("json+"))
    ways = [report["jobs"][0][way] for way in ("read", "write")]
    missing = list(lacks(report["jobs"][0], json.loads(fio("json+"))["jobs"][0], "jobs[0]",
                         {"job options", "bins"}))
    ours, theirs = bins_of(report), bins_of(json.loads(fio("json+")))
    keys = [int(key) for bins in (ours, theirs) for some in bins.values() for key in some or ()]
    return not missing and len(keys) > 4 and all(key == bucket(key) for key in keys) and \
        {key for key, bins in ours.items() if bins} == \
        {key for key, bins in theirs.items() if bins} and \
        all(sum(way["clat_ns"]["bins"].values()) == way["total_ios"] > 0 for way in ways) and \
        "bins" not in nvswap("json")


def fio_jsonplus_clat2csv_reads_json_plus():
    if not shutil.which("fio_jsonplus_clat2csv"):
        return "fio_jsonplus_clat2csv is not installed"
    with tempfile.TemporaryDirectory(dir=BUILD / "tmp") as directory:
        source, dest = pathlib.Path(directory, "ours.json"), pathlib.Path(directory, "ours.csv")
        source.write_text(nvswap("json+"))
        run("fio_jsonplus_clat2csv", source, dest)
        checked = run("fio_jsonplus_clat2csv", source, dest, "--validate")
        rows = pathlib.Path(directory, "ours_job0.csv").read_text().splitlines()
    return "ours_job0.csv validated" in checked and len(rows) > 2


def a_loader_of_fios_json_finds_a_jobs_figures():
    job = json.loads(nvswap("json", "--loops", 3))["jobs"][0]
    way = job["read"]
    levels = sum(job["iodepth_level"].values())
    times = sum(sum(job[f"latency_{unit}"].values()) for unit in ("ns", "us", "ms"))
    return (way["io_bytes"] == 3 * 4 << 20 and way["total_ios"] == way["clat_ns"]["N"] > 0 and
            abs(way["bw_bytes"] / 1024 - way["bw"]) <= 1 and
            abs(way["slat_ns"]["mean"] + way["clat_ns"]["mean"] - way["lat_ns"]["mean"]) < 1 and
            99 < levels < 101 and 99 < times < 101 and job["job_runtime"] >= way["runtime"] > 0)


TESTS = (json_has_the_keys_of_fios_but_of_drives_and_its_own, json_plus_has_the_bins_of_fios,
         fio_jsonplus_clat2csv_reads_json_plus, a_loader_of_fios_json_finds_a_jobs_figures)

if __name__ == "__main__":
    (BUILD / "tmp").mkdir(parents=True, exist_ok=True)
    sys.exit(checks.run(TESTS))
