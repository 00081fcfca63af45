#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
The reports of `nvswap bench` beside those that fio writes here, of jobs of the same form: every
line, key and field that fio has is there, in the same form.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
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


def forms_of(text):
    """The lines with what depends on the run replaced: numbers, units, dates, columns."""
    forms = set()
    for line in text.splitlines():
        # Which latencies there were, and whether it took long enough for a sample, depends on
        # luck; laying out files is fio's alone.
        if re.match(r"  lat \([num]sec\)|   bw \(|   iops  |.*: Laying out", line):
            continue
        line = re.sub(r"; 0 zone resets$|, aggr.*(?=, in_queue)", "", line)
        line = re.sub(r"(     \|) .*", r"\1", line)  # how many fit depends on their digits
        line = re.sub(r"\w{3} \w{3} +\d+ [\d:]+ \d{4}$", "DATE", line)
        line = re.sub(r"^(nvswap|fio)-.*", "VERSION", line)
        line = re.sub(r"\b[num]sec\b", "SEC", line)
        line = re.sub(r"\b(?:vd|sd|nvme|dm-|md|xvd|loop)\w*", "DRIVE", line)
        forms.add(re.sub(r" *(?<![\w.])\d+(?:\.\d+)?(?:[kKMGTP]i?)?(B?)", r" N\1", line).rstrip())
    return forms


def text_has_every_line_of_fios():
    ours, theirs = forms_of(nvswap("normal")), forms_of(fio("normal"))
    heads = {line for line in theirs if line.startswith("swap: (g=")}
    for line in sorted(theirs - ours - heads):
        print(f"not in ours: {line!r}")
    return len(heads) == 1 and theirs - heads <= ours


def lacks(ours, theirs, where, left_out):
    for key in theirs:
        if key in left_out:
            continue
        if key not in ours:
            yield f"{where}: {key} is not in ours"
        elif type(ours[key]) is not type(theirs[key]):
            yield f"{where}: {key} is {type(ours[key])}, and fio's is {type(theirs[key])}"
        elif isinstance(ours[key], dict):
            yield from lacks(ours[key], theirs[key], f"{where}.{key}", {"job options"})


def json_has_every_key_of_fios():
    ours, theirs = json.loads(nvswap("json")), json.loads(fio("json"))
    missing = list(lacks(ours, theirs, "", set()))
    missing += lacks(ours["jobs"][0], theirs["jobs"][0], "jobs[0]", {"job options"})
    for line in missing:
        print(line)
    return not missing


def json_has_the_drives_that_fio_has():
    reports = [json.loads(form("json")) for form in (nvswap, fio)]
    ours, theirs = ({drive["name"]: drive for drive in report.get("disk_util", [])}
                    for report in reports)
    # Of a drive that is made of others fio has the counters of both.
    made_of_others = {key for drive in theirs.values() for key in drive if key.startswith("aggr_")}
    missing = [line for name in ours.keys() & theirs.keys()
               for line in lacks(ours[name], theirs[name], name, made_of_others)]
    for line in missing:
        print(line)
    return not missing and ours.keys() <= theirs.keys() and bool(ours) == bool(theirs)


def terse_has_every_field_of_fios():
    def form(field):
        return re.sub(r"\d+\.\d+", "R", re.sub(r"(?<![.\d])\d+(?![.\d])", "N", field))
    ours, theirs = (line.split(";") for line in (nvswap("terse"), fio("terse")))
    for i, pair in enumerate(zip(ours[:121], theirs)):
        if form(pair[0]) != form(pair[1]) and i != 1:
            print(f"field {i + 1}: {pair[0]} is not of the form of {pair[1]}")
            return False
    # Nine for each drive.
    return len(ours) % 9 == len(theirs) % 9 and len(ours) >= 121 and ours[0] == theirs[0] == "3"


def percentiles_asked_for_are_those_told():
    report = json.loads(nvswap("json", "--percentile_list", "25:50:99.5"))
    told = report["jobs"][0]["write"]["clat_ns"]["percentile"]
    return list(told) == ["25.000000", "50.000000", "99.500000"]


def loader_finds_what_a_job_came_to():
    job = json.loads(nvswap("json", "--loops", 3))["jobs"][0]
    way = job["read"]
    levels = sum(job["iodepth_level"].values())
    times = sum(sum(job[f"latency_{unit}"].values()) for unit in ("ns", "us", "ms"))
    return (way["io_bytes"] == 3 * 4 << 20 and way["total_ios"] == way["clat_ns"]["N"] > 0 and
            abs(way["bw_bytes"] / 1024 - way["bw"]) <= 1 and
            abs(way["slat_ns"]["mean"] + way["clat_ns"]["mean"] - way["lat_ns"]["mean"]) < 1 and
            99 < levels < 101 and 99 < times < 101 and job["job_runtime"] >= way["runtime"] > 0)


def main():
    failed = False
    (BUILD / "tmp").mkdir(parents=True, exist_ok=True)
    for check in (text_has_every_line_of_fios, json_has_every_key_of_fios,
                  json_has_the_drives_that_fio_has, terse_has_every_field_of_fios,
                  percentiles_asked_for_are_those_told, loader_finds_what_a_job_came_to):
        if "fio" in check.__name__ and not shutil.which("fio"):
            print(f"skip {check.__name__}: fio is not installed")
            continue
        passed = check()
        print(f"{'ok' if passed else 'not ok'} {check.__name__}")
        failed |= not passed
    sys.exit(failed)


if __name__ == "__main__":
    main()
