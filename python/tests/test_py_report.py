#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""nvswap.report: pages of results made here and of those that the command writes, parsed as HTML,
and laid out by Chromium if it is installed."""

import html.parser
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import stat
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

from promises import BUILD, TOP, Skip, child, main, promise, raises

try:
    from nvswap.report.page import page_of
except ImportError as error:
    if error.name != "matplotlib":
        raise
    print(f"skipped: {error}")
    sys.exit(77)
from nvswap.report.results import Result, ResultError, read_result

NVSWAP = os.path.join(BUILD, "nvswap")
# Without the native library: that of a checkout.
SOURCE = os.path.join(TOP, "python")
MIB = 1 << 20
HOSTILE = "</title><script>alert(\"1\")</script>&amp;'<img src=x>\n\x1b\u202e$\\frac{1}{0}$"


# ---- Results


def trial(objective, block, depth, rate, **more):
    return {"objective": objective, "ioengine": "io_uring", "block_size": block,
            "queue_depth": depth, "thread_count": 2, "single_submit": False, "overlap_events": True,
            "fate": "dropped", "finalist": False, "rounds": 3, "bytes_per_s": rate,
            "bytes_per_s_half_width": rate * 0.012,
            "p50_ns": int(1e9 * block * depth / rate) if rate else 0,
            "p99_ns": int(1.7e9 * block * depth / rate) if rate else 0, "cpu_ms_per_gib": 14.5,
            "spent_ns": 1, "written_bytes": 1, **more}


def tuned(peak=6.9e9, blocks=9, depths=9, once_at=None):
    """Levels off at depth 16 with the chosen block; some cells of reads and writes are left out."""
    sizes, deep = [65536 << i for i in range(blocks)], [1 << i for i in range(depths)]
    trials = []
    for share, objective in ((0.86, "swap"), (1.02, "read"), (0.71, "write")):
        for b, block in enumerate(sizes):
            for d, depth in enumerate(deep):
                if objective != "swap" and (b * 5 + d * 3) % 7 == 0 or block * depth > 256 * MIB:
                    continue
                rate = peak * share * (1 - math.exp(-block * depth / (5 * MIB)))
                trials.append(trial(objective, block, depth, rate,
                                    rounds=1 if depth == once_at else 3,
                                    thread_count=1 if (b * 3 + d) % 17 == 3 else 2,
                                    fate="dropped"))
    best = max((each for each in trials if each["objective"] == "swap"),
               key=lambda each: each["bytes_per_s"])
    chosen = next(each for each in trials if (each["block_size"], each["queue_depth"]) == (MIB, 16))
    chosen["thread_count"] = best["thread_count"] = 2
    for each, to_fastest, fate in ((best, 1, "tie"), (chosen, 0.985, "chosen")):
        each.update(finalist=True, fate=fate, to_fastest=to_fastest, to_fastest_half_width=0.004,
                    rounds=14)
    # Faster than the cell of the map, which has the settings of the choice.
    trials.append(trial("swap", MIB, 8, peak * 0.8, single_submit=True))
    return {"aio": {"block_size": MIB, "queue_depth": 16}, "tune": {
        "nvswap version": "0.2.0", "elapsed_ns": 58211000000, "objective": "swap",
        "tolerance": 0.02, "max_writes_bytes": 16 << 30, "certain": True, "why": "It is fast.",
        "unsure": "",
        "command": ["nvswap", "tune", "--time", "1m", "--", "/mnt/nvme0/swap"],
        "space": {"block_sizes": sizes, "queue_depths": deep, "thread_counts": [1, 2],
                  "in_flight_max_bytes": 256 * MIB},
        "machine": {"kernel": "6.18.0", "cpus": 32, "memlock_bytes": None},
        "ioengines": {"libaio": {"works": False, "reason": "io_setup: not permitted"}},
        "drive": {"path": "/mnt/nvme0/swap", "device": "nvme0n1", "model": "MZQL21T9HCJR",
                  "working_set_bytes": 1 << 30, "written_bytes": 9 << 30, "slows_down": False,
                  "slows_text": ""},
        "advice": [], "trials": trials, "chosen": trials.index(chosen),
        "fastest": trials.index(best)}}


def one_trial():
    data = tuned()
    data["tune"].update(trials=[trial("swap", MIB, 8, 1e9, rounds=1)], chosen=0, fastest=0)
    return data


def hostile():
    data = tuned()
    data["tune"].update(why=HOSTILE, unsure=HOSTILE, certain=False, advice=[HOSTILE],
                        machine={HOSTILE: HOSTILE}, ioengines={HOSTILE: {"reason": HOSTILE}},
                        command=["nvswap", "tune", "--output", "it's \\ here.json", "--", HOSTILE])
    data["tune"]["drive"].update(path=HOSTILE, model=HOSTILE, slows_down=True, slows_text=HOSTILE)
    data["tune"]["trials"][0]["fate"] = HOSTILE
    data["aio"][HOSTILE] = HOSTILE
    return data


def direction(rate, bins=None, p50=100000):
    latency = {"percentile": {"50.000000": p50, "99.000000": 9 * p50, "100.000000": 99 * p50}}
    return {"io_bytes": 4 * MIB, "bw_bytes": rate, "iops": rate / 65536,
            "clat_ns": {**latency, "bins": bins} if bins else latency}


def benched(*names, bins=None):
    return {"fio version": "nvswap-0.2.0", "nvswap version": "0.2.0",
            "global options": {"rw": "swap"},
            "jobs": [{"jobname": name, "error": 0, "read": direction(0),
                      "write": direction(1e8, bins), "usr_cpu": 10.0, "sys_cpu": 15.0,
                      "job_runtime": 1000} for name in names]}


def compared(*bins):
    """A job with a result for each argument, whose runs have these bins."""
    labels = [f"<{i}>" for i in range(len(bins))]
    sides = [{"result": label, "value": 1e8, "half_width": 1.5, "change": -7.25,
              "change_half_width": 0.5, "verdict": "slower", "beyond_threshold": True}
             for label in labels]
    del sides[0]["change"], sides[0]["verdict"]
    latencies = [{"result": label, "read": [{}],
                  "write": [direction(1, each)["clat_ns"] for each in runs]}
                 for label, runs in zip(labels, bins)]
    return {"nvswap version": "0.2.0", "threshold": 5.0,
            "notes": "± is half of the 95 % interval.",
            "results": [{"label": label, "runs": 1} for label in labels],
            "jobs": [{"jobname": HOSTILE, "write_bw_bytes": sides, "clat_ns": latencies}]}


HISTOGRAM = {str(1000 + 10 * i): i for i in range(1, 500)}
KINDS = {"saturating": tuned, "slow": lambda: tuned(61e6, once_at=64), "zero": lambda: tuned(0),
         "huge": lambda: tuned(4e14), "wide": lambda: tuned(blocks=9, depths=16), "one": one_trial,
         "hostile": hostile, "bench": lambda: benched("a", HOSTILE, bins=HISTOGRAM),
         "plain": lambda: benched("a"),
         "compare": lambda: compared([HISTOGRAM], [HISTOGRAM, {"9": 4}])}


class Page(html.parser.HTMLParser):
    """Elements as (tag, attributes, text), and what is wrong with their nesting."""

    def __init__(self, source):
        super().__init__()
        self.source, self.open, self.elements, self.wrong = source, [], [], []
        self.feed(source)
        self.close()
        self.wrong += [f"<{element['tag']}> is open" for element in self.open]

    def handle_starttag(self, tag, attrs):
        self.elements.append({"tag": tag, "attrs": dict(attrs), "text": "",
                              "within": [element["tag"] for element in self.open]})
        if len(dict(attrs)) != len(attrs):
            self.wrong.append(f"<{tag}> has an attribute twice")
        if tag != "meta":
            self.open.append(self.elements[-1])

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open.pop()["tag"] != tag:
            self.wrong.append(f"</{tag}> closes something else")

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def texts(self, tag):
        return [element["text"] for element in self.elements if element["tag"] == tag]

    def ids(self):
        return [element["attrs"]["id"] for element in self.elements if "id" in element["attrs"]]

    def text(self):
        return self.texts("body")[0]

    def drawings(self, name):
        found = re.findall(r"<svg [^>]*aria-label.*?</svg>", self.source, re.S)
        return [drawing for drawing in found if name in re.search('aria-label="(.*?)"', drawing)[1]]


_pages = {}


def page(kind):
    if kind not in _pages:
        data = KINDS[kind]()
        _pages[kind] = Page(page_of([Result(f"{kind}.json", kind_of(data), data)]))
    return _pages[kind]


def kind_of(data):
    return "tune" if "tune" in data else "compare" if "threshold" in data else "bench"


def draw(directory, *arguments, package=SOURCE, **environment):
    """Runs the command in the directory."""
    return subprocess.run([sys.executable, "-m", "nvswap.report", *arguments], cwd=directory,
                          check=False, text=True,
                          env={**os.environ, "PYTHONPATH": package, **environment},
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def write(directory, name, data):
    path = os.path.join(directory, name)
    pathlib.Path(path).write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def refused(directory, *arguments, **environment):
    """The reason for which there is no page, one line."""
    done = draw(directory, *arguments, **environment)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.startswith("nvswap.report: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


# ---- The page


@promise
def each_page_is_well_formed_and_its_drawings_have_numbers_alone(_):
    for kind in KINDS:
        assert not page(kind).wrong, (kind, page(kind).wrong)
        names = page(kind).ids()
        assert len(set(names)) == len(names), (kind, names)
        drawings = page(kind).drawings("")
        assert drawings or kind == "plain", kind
        for drawing in drawings:
            ElementTree.fromstring(drawing.replace("xlink:", ""))
            numbers = re.sub("<title>.*?</title>", "", drawing)
            assert not re.search(r"\b(nan|inf)\b|#f1e2", numbers), kind
        levels = [int(element["tag"][1]) for element in page(kind).elements
                  if re.fullmatch("h[1-6]", element["tag"])]
        assert levels.count(1) == 1, (kind, levels)
        assert all(below <= above + 1 for above, below in zip(levels, levels[1:])), (kind, levels)


@promise
def a_page_loads_nothing_and_runs_no_script(_):
    loading = {"script", "link", "img", "iframe", "object", "embed", "base"}
    for kind in KINDS:
        assert not loading & {element["tag"] for element in page(kind).elements}, kind
        for element in page(kind).elements:
            for name, value in element["attrs"].items():
                assert name not in ("src", "srcset", "data", "action"), (kind, name)
                assert not name.startswith("on"), (kind, name)
                assert not name.endswith("href") or value.startswith("#"), (kind, value)
        assert not re.search(r"https?:|@import|@font-face|url\((?!#)", page(kind).source), kind


@promise
def texts_from_outside_are_escaped(_):
    for kind in ("hostile", "bench", "compare"):
        shown = HOSTILE.replace("\x1b", "\ufffd").replace("\u202e", "\ufffd")
        assert shown in page(kind).text(), kind
        assert not re.search("[\x1b\u202e]", page(kind).source), kind


@promise
def the_same_results_give_the_same_drawings(_):
    def drawings():
        found = Page(page_of([Result("a.json", "tune", tuned())])).drawings("")
        return [re.sub(r"\bd\d+-", "", drawing) for drawing in found]

    assert drawings() == drawings()


@promise
def each_measured_value_is_in_its_cell_and_the_choice_is_marked_in_each_map(_):
    for kind in ("saturating", "slow", "wide", "huge", "zero"):
        data = KINDS[kind]()["tune"]
        unit = 1e9 if max(each["bytes_per_s"] for each in data["trials"]) >= 1e9 else 1e6
        chosen = data["trials"][data["chosen"]]
        maps = page(kind).drawings("over block size and depth")
        assert len(maps) == 3
        for objective, drawing in zip(("swap", "read", "write"), maps):
            here = [each for each in data["trials"]
                    if each["objective"] == objective and not each["single_submit"]]
            titles = re.findall("<title>(.*?)</title>", drawing)
            shown = [title for title in titles if title != "not measured"]
            assert len(shown) == len(here), (kind, objective, len(shown))
            space = data["space"]
            assert len(titles) == len(space["block_sizes"]) * len(space["queue_depths"])
            cells = [re.search(r": (\d+) (KiB|MiB), depth (\d+), ", title) for title in shown]
            by_cell = {(int(cell[1]) * (1024 if cell[2] == "KiB" else MIB), int(cell[3])): title
                       for cell, title in zip(cells, shown)}
            for each in here:
                title = by_cell[each["block_size"], each["queue_depth"]]
                value = float(title.split()[0])
                assert abs(value - each["bytes_per_s"] / unit) <= max(0.006, value * 0.006), title
                assert ("measured once" in title) == (each["rounds"] == 1), title
                assert title.endswith("; the choice") == (all(each[key] == chosen[key] for key in (
                    "block_size", "queue_depth"))), title
                other = any(each[key] != chosen[key] for key in ("thread_count", "ioengine"))
                assert ("other settings" in title) == other, title
                assert f">{title.split()[0]}</text>" in drawing
            assert sum("the best of this map" in title for title in shown) == 1


@promise
def the_headline_is_the_choice_and_its_block_can_be_copied(_):
    assert page("saturating").texts("h2") == ["Blocks of 1 MiB, depth 16, 2 workers"]
    block = json.loads(page("saturating").texts("pre")[0])
    assert block == {"aio": {"block_size": MIB, "queue_depth": 16}}
    assert "MZQL21T9HCJR /mnt/nvme0/swap" in page("saturating").text()


@promise
def the_knee_is_the_smallest_depth_that_is_as_good(_):
    for kind in ("saturating", "slow", "huge"):
        rates = {each["queue_depth"]: each["bytes_per_s"]
                 for each in KINDS[kind]()["tune"]["trials"]
                 if each["objective"] == "swap" and each["block_size"] == MIB
                 and each["rounds"] > 1 and not each["single_submit"]}
        knee = min(depth for depth, rate in rates.items() if rate >= 0.98 * max(rates.values()))
        assert f"The knee is at depth {knee}:" in page(kind).text(), kind
        assert f"knee: depth {knee}</text>" in page(kind).drawings("over queue depth")[0], kind
    assert "the knee is unknown" in page("one").text()


def points_of(drawing):
    """The marks by their fill, and the lines with three points or more, as sets of abscissas."""
    hollow, full = ({float(x) for x in re.findall(
        rf'<use [^>]*?x="([\d.]+)"[^>]*fill: var\(--{fill}\)', drawing)}
        for fill in ("paper", "accent"))
    joined = set()
    for path in re.findall(r'<path d="(M [^"]*)"[^>]*fill: none', drawing):
        xs = [float(x) for x in re.findall(r"[ML] ([\d.]+) ", path)]
        if len(set(xs)) > 2:
            joined |= set(xs)
    return hollow, full, joined


@promise
def what_was_measured_once_is_hollow_and_joined_to_nothing(_):
    hollow, full, joined = points_of(page("slow").drawings("over queue depth")[0])
    assert len(hollow) == 1 and not hollow & joined, (hollow, joined)
    assert full == joined and len(full) > 5, (full, joined)
    assert "A hollow point was measured once" in page("slow").text()
    hollow, full, joined = points_of(page("saturating").drawings("over queue depth")[0])
    assert not hollow and full == joined
    assert "hollow" not in page("saturating").text()


@promise
def finalists_have_their_ratio_and_interval(_):
    drawing, = page("saturating").drawings("Finalists")
    assert re.findall("<title>(.*?)</title>", drawing) == ["98.5 % ± 0.4 of the fastest",
                                                           "100.0 % ± 0.4 of the fastest"]
    assert "1 MiB, depth 16, 2 workers, io_uring, chosen" in drawing
    assert not page("one").drawings("Finalists")


@promise
def every_trial_is_in_the_table_with_the_fastest_first(_):
    for kind in ("saturating", "slow", "one", "zero"):
        rows = [element["text"] for element in page(kind).elements
                if element["tag"] == "tr" and "details" in element["within"]]
        rates = [re.match(r"(swap|read|write)([\d.]+)", row) for row in rows]
        rates = [(found[1], float(found[2])) for found in rates if found]
        assert len(rates) == len(KINDS[kind]()["tune"]["trials"]), kind
        assert rates[0][0] == "swap"
        assert not any(a[0] == b[0] and a[1] < b[1] for a, b in zip(rates, rates[1:])), kind


@promise
def what_must_be_known_is_warned_of(_):
    data = tuned()
    data["tune"].update(certain=False, unsure="3 finalists are equal.")
    data["tune"]["drive"].update(slows_down=True, slows_text="It slows down.")
    text = Page(page_of([Result("a.json", "tune", data)])).text()
    assert "Warning: It slows down." in text and "is not certain: 3 finalists are equal." in text
    assert "arning" not in page("saturating").text() and "certain" not in page("saturating").text()


@promise
def the_command_is_the_one_that_was_given(_):
    command = next(element["text"] for element in page("hostile").elements
                   if element["attrs"].get("aria-label") == "the command")
    words = shlex.split(command)
    assert words[:4] == ["nvswap", "tune", "--output", "it's \\ here.json"] and len(words) == 6


@promise
def histograms_have_a_line_for_each_result_over_all_of_its_runs(_):
    drawing, = page("compare").drawings("histogram")
    assert sum("var(--c0)" in path for path in re.findall("<path[^>]*>", drawing)) == 1
    assert sum("var(--c1)" in path for path in re.findall("<path[^>]*>", drawing)) == 1
    # The second result's bin of 9 ns has the place farthest to the left.
    paths = {name: path for path, name in re.findall(
        r'<path d="([^"]*)"[^>]*var\(--(c\d)\)', drawing)}
    lines = {name: [float(x) for x in re.findall(r"[ML] ([\d.]+) ", path)]
             for name, path in paths.items()}
    high = {name: re.findall(r"[ML] [\d.]+ ([\d.]+)", path)[:4] for name, path in paths.items()}
    assert min(lines["c0"]) == min(lines["c1"]) and high["c0"] != high["c1"], lines
    assert len(page("compare").drawings("percentiles")) == 1
    assert "<0> against <1>" in page("compare").text()


@promise
def what_is_no_latency_is_passed_over(_):
    odd = {"x": 1, "5": -1, "3": None, "0": 4, "1e999": 2, "7": 1e300, "17112760320": 1}
    for bins in (odd, {str(i / 1000 + 0.5): i + 1 for i in range(5000)}, [4], "x"):
        result = Result("a.json", "compare", compared([HISTOGRAM], [bins]))
        drawings = Page(page_of([result])).drawings("")
        assert len(drawings) == 2 and not re.search(r"\b(nan|inf)\b", "".join(drawings))


@promise
def a_page_without_histograms_says_how_to_get_them(_):
    assert "json+" in page("plain").text() and "json+" not in page("bench").text()


@promise
def a_table_has_the_figures_of_each_job_and_the_verdicts_of_compare(_):
    rows = {element["text"] for element in page("plain").elements if element["tag"] == "tr"}
    assert {"write bw95.4 MiB/s", "write p50100.0 us", "write p99900.0 us",
            "cpu / GiB32000.0 ms"} <= rows, rows
    assert not any(row.startswith("read bw") for row in rows)
    row, = (element["text"] for element in page("compare").elements
            if element["tag"] == "tr" and element["text"].startswith("write bw"))
    assert row == "write bw95.4 MiB/s± 1.5 %95.4 MiB/s± 1.5 %slower-7.2 % ± 0.5 %", row


@promise
def a_job_that_failed_is_named(_):
    data = benched("good", "bad")
    data["jobs"][1].update(error=28, error_text="No space left")
    assert "Failed: bad: No space left" in Page(page_of([Result("a.json", "bench", data)])).text()


@promise
def several_results_are_one_page(directory):
    for name in ("bench", "compare", "saturating"):
        write(directory, f"{name}.json", KINDS[name]())
    done = draw(directory, "saturating.json", "bench.json", "compare.json", "-o", "page.html")
    assert done.returncode == 0, done.stderr
    found = Page(pathlib.Path(directory, "page.html").read_text())
    assert found.texts("h2") == ["Blocks of 1 MiB, depth 16, 2 workers", "bench", "<0> against <1>"]
    assert len(set(found.ids())) == len(found.ids()) and not found.wrong


# ---- Files


@promise
def lines_around_results_and_earlier_ones_are_passed_over(directory):
    documents = [json.dumps(benched(name), indent=1) for name in ("early", "last")]
    path = write(directory, "a.json", "\n".join(("fio: a warning", *documents, "",
                                                 "last: (groupid=0)", "{}", "")))
    assert [job["jobname"] for job in read_result(path).data["jobs"]] == ["last"]


@promise
def damaged_and_foreign_files_are_refused_with_their_name_and_what_is_expected(directory):
    cases = {"cut": json.dumps(tuned(), indent=1)[:-40], "text": "nothing\n",
        "nan": json.dumps(benched("a"), indent=1).replace("100000000.0", "NaN"),
        "foreign": '{"aio": {}}', "list": "[1]", "empty": "",
        "old": {"jobs": [{"read": {"bw": 5}}]}, "word": {"jobs": [{"read": {"bw_bytes": "x"}}]},
        "deep": "[" * 100000, "deep2": '{"jobs":' + "[" * 100000}
    for key, value in (("trials", 5), ("trials", []), ("chosen", 10 ** 9), ("chosen", -1),
                       ("chosen", 0.5), ("fastest", None), ("tolerance", "x"), ("space", []),
                       ("drive", None)):
        data = tuned()
        data["tune"][key] = value
        cases[f"tune-{key}-{str(value)[:3]}"] = data
    for key, value in (("objective", "x"), ("rounds", 0), ("block_size", "x"), ("block_size", 1.5),
                       ("queue_depth", None), ("bytes_per_s", -1), ("bytes_per_s", 1e300),
                       ("ioengine", HOSTILE), ("p50_ns", True)):
        data = tuned()
        data["tune"]["trials"][3][key] = value
        cases[f"trial-{key}-{str(value)[:3]}".replace("/", "")] = data
    for name, data in cases.items():
        path = write(directory, f"{name}.json", data)
        raises(ResultError, lambda path=path: page_of([read_result(path)]))
    for name, reason in (("cut", "cut.json:"), ("text", "text.json is no result: give what"),
                         ("old", "old.json is no result of nvswap bench: read has no bw_bytes"),
                         ("trial-rounds-0", "rounds must be a whole number from 1 on"),
                         ("gone", "gone.json can't be read: No such file")):
        said = refused(directory, f"{name}.json", "-o", "page.html")
        assert reason in said and f"{name}.json" in said, said
    pathlib.Path(directory, "bytes.json").write_bytes(b'{"jobs": "\xff"}')
    assert "bytes.json can't be read as JSON" in refused(directory, "bytes.json", "-o", "page.html")
    assert not os.path.exists(os.path.join(directory, "page.html"))


@promise
def a_page_replaces_a_file_as_a_whole_and_keeps_its_mode(directory):
    write(directory, "a.json", benched("a"))
    path = write(directory, "page.html", "x" * MIB)
    os.chmod(path, 0o640)
    before = os.stat(path).st_ino
    assert draw(directory, "a.json", "-o", "page.html").returncode == 0
    text = pathlib.Path(path).read_text()
    assert text.endswith("</html>\n") and os.stat(path).st_ino != before
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o640
    assert sorted(os.listdir(directory)) == ["a.json", "page.html"]
    done = draw(directory, "a.json", "-o", "-")
    assert done.returncode == 0 and done.stdout == text
    assert draw(directory, "a.json", "-o", "/dev/null").returncode == 0
    assert not os.path.isfile("/dev/null")


@promise
def a_page_that_can_not_be_written_leaves_the_old_one(directory):
    write(directory, "a.json", benched("a"))
    path = write(directory, "page.html", "old")
    assert "no/page.html: No such file" in refused(directory, "a.json", "-o", "no/page.html")
    assert "/dev/full: No space left" in refused(directory, "a.json", "-o", "/dev/full")
    script = """import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.argv = ["x", "a.json", "-o", "page.html"]
from nvswap.report.__main__ import main
sys.exit(main())"""
    done = subprocess.run([sys.executable, "-c", script], cwd=directory, check=False, text=True,
                          env={**os.environ, "PYTHONPATH": SOURCE, "PYTHONDONTWRITEBYTECODE": "1"},
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 1, done.stderr
    assert "can't write page.html: File too large" in done.stderr, done.stderr
    assert pathlib.Path(path).read_text() == "old"
    assert sorted(os.listdir(directory)) == ["a.json", "page.html"]


@promise
def a_page_overwrites_no_result_and_follows_no_link(directory):
    path = write(directory, "a.json", benched("a"))
    assert "a.json is a result" in refused(directory, "a.json", "-o", "./a.json")
    os.symlink("target.html", os.path.join(directory, "link.html"))
    assert "symbolic link" in refused(directory, "a.json", "-o", "link.html")
    assert json.loads(pathlib.Path(path).read_text())["jobs"]
    assert not os.path.exists(os.path.join(directory, "target.html"))


@promise
def without_matplotlib_the_reason_says_how_to_install_it(directory):
    write(directory, "a.json", benched("a"))
    os.mkdir(os.path.join(directory, "matplotlib"))
    write(directory, "matplotlib/__init__.py",
          "raise ModuleNotFoundError('No module named matplotlib', name='matplotlib')")
    said = refused(directory, "a.json", "-o", "page.html", package=f"{directory}:{SOURCE}")
    assert "apt-get install python3-matplotlib" in said and "pip install 'nvswap[report]'" in said
    assert draw(directory, "--help", package=f"{directory}:{SOURCE}").returncode == 0


@promise
def neither_torch_nor_the_native_library_is_loaded(directory):
    assert "_native" not in "".join(os.listdir(os.path.join(SOURCE, "nvswap")))
    path = write(directory, "a.json", benched("a"))
    script = f"""import sys
from nvswap import report
from nvswap.report.page import page_of
from nvswap.report.results import read_result
page_of([read_result({path!r})])
print([name for name in sys.modules if name in ("torch", "nvswap._native", "nvswap.engine")])"""
    assert child(script, directory).strip() == "[]"


@promise
def each_name_of_the_package_is_there_at_its_first_use(directory):
    script = """import nvswap
assert "nvswap._native" not in __import__("sys").modules
assert set(nvswap.__all__) < set(dir(nvswap))
try:
    nvswap.no_such_name
except AttributeError as error:
    assert "no_such_name" in str(error)
from nvswap import *
from nvswap import Engine, __version__
assert Engine is nvswap.engine.Engine and nvswap.Error is nvswap.errors.Error
for name in nvswap.__all__:
    home = getattr(nvswap, name).__module__
    assert vars(__import__("sys").modules[home])[name] is getattr(nvswap, name), name
print(__version__)"""
    assert re.fullmatch(r"\d+\.\d+\.\d+", child(script, directory).strip())


# ---- With the command


def last_line(directory, *arguments):
    """Runs nvswap; returns the command line that it ends with."""
    done = subprocess.run([NVSWAP, *arguments], cwd=directory, text=True, check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.stdout == "", done.stdout
    return re.fullmatch("nvswap: for a page of these results: (python3 -m nvswap.report .*)",
                        done.stderr.splitlines()[-1])[1]


def run_line(directory, line, page_name):
    """The page that the line of a command makes, by the interpreter that has matplotlib."""
    subprocess.run(line.replace("python3", shlex.quote(sys.executable), 1), shell=True,
                   cwd=directory, check=True, env={**os.environ, "PYTHONPATH": SOURCE})
    return Page(pathlib.Path(directory, page_name).read_text())


@promise
def the_line_that_bench_and_compare_end_with_makes_the_page(directory):
    bench = ("bench", "--nvme-path", ".", "--rw", "swapout", "--size", "8m", "--loops", "1")
    line = last_line(directory, *bench, "--output-format", "json+", "--output", "-it's a.json")
    found = run_line(directory, line, "-it's a.html")
    assert len(found.drawings("Writes: histogram")) == 1 and found.texts("h2") == ["-it's a"]
    line = last_line(directory, *bench, "--output-format", "json", "--output", "b")
    assert line == "python3 -m nvswap.report b -o b.html"
    line = last_line(directory, "compare", "./-it's a.json", "b", "--threshold", "100",
                     "--output-format", "json", "--output", "c.json")
    found = run_line(directory, line, "c.html")
    assert found.texts("h2") == ["-it's a against b"]
    assert len(found.drawings("Writes: percentiles")) == 1
    assert "write bw" in found.text()


@promise
def no_line_stands_where_no_result_is_in_a_file(directory):
    bench = [NVSWAP, "bench", "--nvme-path", ".", "--rw", "swapout", "--size", "8m", "--loops", "1"]
    for more in (["--output-format", "json"], ["--output", "a.txt"],
                 ["--output-format", "json", "--output", "/dev/null"],
                 ["--output-format", "json", "--output", "a.json", "--dry-run"]):
        done = subprocess.run([*bench, *more], cwd=directory, text=True, check=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert "nvswap.report" not in done.stdout, (more, done.stdout)


@promise
def the_line_that_tune_ends_with_makes_the_page(directory):
    line = last_line(directory, "tune", "--time", "3s", "--tolerance", "50", "--working-set", "64m",
                     "--queue-depth-max", "4", "--block-size-max", "1m", "--output-format", "json",
                     "--output", "drive.json", ".")
    found = run_line(directory, line, "drive.html")
    data = json.loads(pathlib.Path(directory, "drive.json").read_text())
    assert f"depth {data['aio']['queue_depth']}, " in found.texts("h2")[0] and not found.wrong
    assert "nvswap tune --time 3s --tolerance 50 --working-set 64m " in found.text()
    assert data["tune"]["drive"]["filesystem"] in found.text()


WIDTHS = (360, 1280)
# A frame can be narrower than a window's minimum. All details are opened before measuring.
MEASURE = """<script>addEventListener("load", () => {
for (const frame of document.querySelectorAll("iframe")) {
	const page = frame.contentDocument;
	for (const details of page.querySelectorAll("details")) details.open = true;
	const { scrollWidth, clientWidth } = page.documentElement;
	document.body.append(`${frame.title} is ${scrollWidth} of ${clientWidth};`);
} });</script>"""


@promise
def no_page_is_wider_than_a_phone_or_a_desktop(directory):
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        raise Skip("no chromium here")
    frames = ""
    for kind in KINDS:
        write(directory, f"{kind}.html", page(kind).source)
        for width in WIDTHS:
            frames += (f'<iframe title="{kind} at {width}" src="{kind}.html" scrolling="no" '
                       f'style="border:0; width:{width}px; height:900px"></iframe>')
    path = write(directory, "frames.html", MEASURE + frames)
    shown = subprocess.run([chromium, "--headless=new", "--no-sandbox", "--disable-gpu",
                            "--allow-file-access-from-files",
                            f"--user-data-dir={directory}/profile", "--dump-dom",
                            pathlib.Path(path).resolve().as_uri()], text=True, check=True,
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=600).stdout
    measured = re.findall(r"([a-z-]+) at (\d+) is (\d+) of (\d+);", shown)
    assert len(measured) == len(KINDS) * len(WIDTHS), shown[-2000:]
    for kind, width, scroll, client in measured:
        assert scroll == client == width, (kind, width, scroll, client)


if __name__ == "__main__":
    main()
