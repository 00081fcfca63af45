#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nvswap compare, on results made here in the shape of nvswap's and fio's."""

import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import checks

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = ROOT / os.environ.get("BUILD", "build")
MIB = 1 << 20
HOSTILE = "&<script>alert(1)</script>\x1b[31m\u202e\"'"


def direction(bw, noise=0.01, samples=40, p50=100e3, p99=900e3, bins=None):
    """Makes a run that lasts as long as its samples."""
    if not bw:
        return {"io_bytes": 0, "bw_bytes": 0, "iops": 0.0, "runtime": 0, "clat_ns": {"N": 0}}
    latency = {"N": 9, "percentile": {"50.000000": p50, "99.000000": p99, "99.900000": 2 * p99}}
    if bins:
        latency["bins"] = bins
    return {"io_bytes": 4 * MIB, "bw_bytes": bw, "iops": bw / 65536, "runtime": samples * 500 - 1,
            "clat_ns": latency, "bw_mean": bw / 1024, "bw_dev": noise * bw / 1024,
            "bw_samples": samples, "iops_mean": bw / 65536, "iops_stddev": noise * bw / 65536,
            "iops_samples": samples}


def job(name="job", read=0, write=100e6, **more):
    return {"jobname": name, "error": 0, "read": direction(read, **more),
            "write": direction(write, **more), "usr_cpu": 10.0, "sys_cpu": 15.0,
            "job_runtime": 1000}


class Work:
    def __init__(self, directory):
        self.directory = pathlib.Path(directory)

    def file(self, name, *jobs, text=None):
        path = self.directory / name
        path.write_text(json.dumps({"jobs": jobs}, indent=1) if text is None else text)
        return path

    def run(self, *arguments):
        return subprocess.run([BUILD / "nvswap", "compare", *map(str, arguments)], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)

    def json(self, *arguments):
        done = self.run("--output-format", "json", *arguments)
        return done.returncode, json.loads(done.stdout)

    def verdict(self, base, other, *options, key="write_bw_bytes"):
        """Returns the exit status and verdict of two jobs with one run each."""
        files = [self.file(f"{name}.json", what) for name, what in (("a", base), ("b", other))]
        status, report = self.json(*options, *files)
        return status, report["jobs"][0][key][1]["verdict"]

    def refuses(self, pattern, *arguments):
        done = self.run(*arguments)
        if done.returncode == 2 and re.search(pattern, done.stderr) and not done.stdout:
            return True
        print(f"  exit {done.returncode}: {done.stderr}")
        return False


def what_is_slower_by_more_than_the_threshold_is_the_exit_status(work):
    base = job()
    return (work.verdict(base, job(write=90e6)) == (1, "slower") and
            work.verdict(base, job(write=110e6)) == (0, "faster") and
            work.verdict(base, job(write=90e6), "--threshold", 15) == (0, "same") and
            work.verdict(base, job(write=96.5e6, noise=0.03)) == (0, "slower") and
            work.verdict(base, job(write=96.5e6, noise=0.03), "--threshold", 2) == (1, "slower"))


def noise_is_no_change(work):
    return (work.verdict(job(), job(write=101e6)) == (0, "same") and
            work.verdict(job(noise=0.5), job(write=70e6, noise=0.5)) == (0, "can't tell") and
            work.verdict(job(), job(write=70e6, samples=4)) == (0, "can't tell") and
            "only if it took 4 s or more" in " ".join(work.run(
                work.file("a.json", job(samples=2)), work.directory / "a.json").stdout.split()) and
            work.verdict(job(), job(p99=9e6), key="write_clat_p99_ns") == (0, "can't tell"))


def higher_latency_of_repeated_runs_is_slower(work):
    a = [work.file(f"a{i}.json", job(p50=100e3 + i)) for i in range(3)]
    b = [work.file(f"b{i}.json", job(p50=120e3 + i)) for i in range(3)]
    status, report = work.json(",".join(map(str, a)), ",".join(map(str, b)))
    back, reverse = work.json(",".join(map(str, b)), ",".join(map(str, a)))
    return (status == 1 and report["jobs"][0]["write_clat_p50_ns"][1]["verdict"] == "slower" and
            back == 0 and reverse["jobs"][0]["write_clat_p50_ns"][1]["verdict"] == "faster")


def cpu_is_reported_and_fails_nothing(work):
    dear = job() | {"usr_cpu": 90.0}
    a = [work.file(f"a{i}.json", job() | {"sys_cpu": 15.0 + i / 100}) for i in range(3)]
    b = [work.file(f"b{i}.json", dear | {"sys_cpu": 15.0 + i / 100}) for i in range(3)]
    status, report = work.json(",".join(map(str, a)), ",".join(map(str, b)))
    cpu = report["jobs"][0]["cpu_ms_per_gib"]
    return (status == 0 and cpu[1]["verdict"] == "more" and
            math.isclose(cpu[0]["value"], 250.1 / (4 / 1024), rel_tol=1e-6))


def samples_of_one_run_count_for_a_quarter_and_of_jobs_at_the_same_time_for_one(work):
    """40 samples count as 10 independent ones; t of 9 degrees of freedom is 2.262. fio adds up the
    samples of grouped jobs, here 4, but not their deviations."""
    for jobs, factor in ((1, 1), (4, 2)):
        one = job(noise=0.1)
        for kind in ("bw", "iops"):
            one["write"][f"{kind}_samples"] *= jobs
        _, report = work.json(work.file("a.json", one), work.file("b.json", job()))
        if not math.isclose(report["jobs"][0]["write_bw_bytes"][0]["half_width"],
                            100 * 2.262 * 0.1 * factor / math.sqrt(10), rel_tol=1e-6):
            return False
    return True


def repeated_runs_have_the_interval_of_welch(work):
    a, b = (98e6, 100e6, 102e6), (103e6, 104e6, 108e6)
    files = [",".join(str(work.file(f"{name}{i}.json", job(write=bw)))
                      for i, bw in enumerate(values)) for name, values in (("a", a), ("b", b))]
    _, report = work.json(*files)
    found = report["jobs"][0]["write_bw_bytes"]
    # Student's t of 2 degrees of freedom is 4.303, of 3 is 3.182.
    errors = [4e12 / 3 / 100e6 ** 2, 7e12 / 3 / 105e6 ** 2]
    freedom = sum(errors) ** 2 / sum(e ** 2 / 2 for e in errors)
    half = 3.182 * math.sqrt(sum(errors))
    return (3 <= freedom < 4 and math.isclose(found[1]["change"], 5, rel_tol=1e-6) and
            math.isclose(found[0]["half_width"], 100 * 4.303 * math.sqrt(errors[0]),
                         rel_tol=1e-6) and
            math.isclose(found[1]["change_half_width"], 105 * math.sinh(half), rel_tol=1e-6))


def jobs_are_matched_by_name(work):
    base = work.file("a.json", job("x"), job("y", write=200e6), job("y", write=300e6))
    other = work.file("b.json", job("y", write=201e6), job("new"), job("y", write=301e6))
    _, report = work.json(base, other)
    values = [[side["value"] for side in job["write_bw_bytes"]] for job in report["jobs"]]
    return values == [[100e6, None], [200e6, 201e6], [300e6, 301e6]]


def jobs_of_other_names_are_matched_by_order(work):
    base = work.file("a.json", job("x"), job("y", write=200e6))
    done = work.run(base, work.file("b.json", job("z"), job("w", write=201e6)))
    _, report = work.json(base, work.directory / "b.json")
    return ("matched by their order" in done.stdout.replace("\n", " ") and
            report["jobs"][1]["write_bw_bytes"][1]["value"] == 201e6 and
            work.refuses("b2.json has no job", base, work.file("b2.json", job("z"))))


def labels_are_of_the_files_or_given(work):
    a, b = work.file("a,1.json", job()), work.file("b.json", job())
    _, report = work.json(a, f"after={b},{b}")
    return report["results"] == [{"label": "a,1", "runs": 1}, {"label": "after", "runs": 2}]


def of_several_reports_in_a_file_the_last_counts(work):
    reports = [json.dumps({"jobs": [job(write=bw)]}, indent=2) for bw in (50e6, 75e6, 100e6)]
    whole = work.file("whole.json", text="\n".join(reports) + "\n")
    # Lines around them are passed over.
    mixed = work.file("mixed.json", text="fio: a warning\n" + "\njob: swap\n".join(reports) + "\njob: swap\n")
    cut = work.file("cut.json", text=("\n".join(reports))[:-20])
    _, report = work.json(work.file("one.json", job(write=100e6)), whole, mixed)
    return [side["value"] for side in report["jobs"][0]["write_bw_bytes"]] == [100e6] * 3 and \
        work.refuses("cut.json:", whole, cut)


def what_bench_writes_at_intervals_is_read(work):
    (work.directory / "drive").mkdir()
    path = work.directory / "status.json"
    subprocess.run([BUILD / "nvswap", "bench", "--nvme-path", work.directory / "drive", "--rw", "read", "--size",
                    "4m", "--time-based", "--runtime", "500ms", "--status-interval", "100ms",
                    "--output-format", "json", "--output", path], check=True)
    return path.read_text().count('"jobs"') > 1 and work.run(path, path).returncode == 0


def damaged_results_are_refused_with_their_place(work):
    good = work.file("good.json", job())
    cut = json.dumps({"jobs": [job()]}, indent=1)[:-40]
    negative = json.dumps({"jobs": [job()]}, indent=1).replace('s": 100000000.0', 's": -1')
    line = negative[:negative.index('"bw_bytes": -1')].count("\n") + 1
    (work.directory / "nul.json").write_bytes(b'{"jobs": [\0]}')
    return all((
        work.refuses(r"cut\.json:\d+:\d+: ", good, work.file("cut.json", text=cut)),
        work.refuses(r"text\.json:1:1: ", good, work.file("text.json", text="nothing\n")),
        work.refuses(rf"below\.json:{line}:\d+: this must be a number", good,
                     work.file("below.json", text=negative)),
        work.refuses(r'other\.json:1:1: no results .* list of "jobs"', good,
                     work.file("other.json", text='{"aio": {}}')),
        work.refuses(r'old\.json:1:\d+: .* no "bw_bytes"', good,
                     work.file("old.json", text='{"jobs": [{"read": {"bw": 5}}]}')),
        work.refuses("failed: No space left", good, work.file("f.json", job() | {"error": 28})),
        work.refuses("nul.json can't be read: it is no text", good, work.directory / "nul.json"),
        work.refuses("gone.json can't be read: No such file", good, work.directory / "gone.json"),
        work.refuses("can't be read: Is a directory", good, work.directory),
        work.refuses("give a name before the =", good, f"={good}"),
        work.refuses("the list of files has an empty name", good, f"{good},,{good}"),
        work.refuses("needs at least two results", good)))


def names_drive_no_terminal(work):
    done = work.run(work.file("a\x1b[2J.json", job(HOSTILE)),
                    work.file("b.json", job(HOSTILE)))
    return "\x1b" not in done.stdout and r"\x1b[31m" in done.stdout and r"a\x1b[2J" in done.stdout


def text_fits_eighty_columns(work):
    long = "x" * 200
    done = work.run(work.file(f"{long}.json", job(read=1e15, write=123456789e4, noise=0.05)),
                    work.file("b.json", job(read=1e3, write=1, p99=1e18, noise=9)))
    lines = [line for line in done.stdout.splitlines() if long not in line]
    return len(lines) > 10 and max(map(len, lines)) <= 80


def a_figure_that_one_side_lacks_has_no_change(work):
    a, b = work.file("a.json", job()), work.file("b.json", job(read=5e6))
    _, report = work.json(a, b)
    sides = report["jobs"][0]["read_bw_bytes"]
    text = work.run(a, b).stdout
    return (sides[0]["value"] is None and sides[1]["value"] == 5e6 and
            sides[1]["change"] is None and "nan" not in text and
            re.search(r"read bw +MiB/s +- +4\.8[^+-]*$", text, re.M) is not None)


def latencies_of_each_run_are_as_the_results_have_them(work):
    bins = [{"1000": i, "2000": 5, "x": None} for i in (3, 4)]
    a = work.file("a.json", job(bins=bins[0]))
    b = [work.file(f"b{i}.json", job(bins=bins[1], p50=7e4)) for i in (1, 2)]
    _, report = work.json(a, ",".join(map(str, b)))
    sides = report["jobs"][0]["clat_ns"]
    return ([side["result"] for side in sides] == ["a", "b1"] and sides[0]["read"] == [{}] and
            [run["bins"] for run in sides[0]["write"]] == bins[:1] and
            [run["bins"] for run in sides[1]["write"]] == [bins[1]] * 2 and
            sides[1]["write"][1]["percentile"]["50.000000"] == 7e4)


def results_of_nvswap_and_fio_are_compared(work):
    files = work.directory / "ours.json", work.directory / "theirs.json"
    common = ["--rw=randread", "--bs=64k", "--iodepth=4", "--output-format=json+"]
    subprocess.run([BUILD / "nvswap", "bench", *common, "--size=4m", "--nvme-path", work.directory,
                    f"--output={files[0]}"], check=True)
    if not shutil.which("fio"):
        return "fio is not installed"
    subprocess.run(["fio", "--name=randread", *common, "--size=4m", "--ioengine=libaio",
                    "--direct=1", "--unlink=1", f"--directory={work.directory}",
                    f"--output={files[1]}"], check=True)
    status, report = work.json("--threshold", 100, *files)
    found = report["jobs"][0]
    return (status == 0 and len(report["jobs"]) == 1 and found["jobname"] == "randread" and
            all(side["value"] > 0 for key in ("read_bw_bytes", "read_iops", "read_clat_p50_ns",
                                              "read_clat_p99_ns") for side in found[key]) and
            all(run["bins"] for side in found["clat_ns"] for run in side["read"]))


def main():
    (BUILD / "tmp").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD / "tmp") as directory:
        return checks.run_all(globals(), "work", Work(directory))


if __name__ == "__main__":
    sys.exit(main())
