#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The contents of `nvswap tune`'s report: pages of all kinds of results, written by
test_tune_report, parsed as HTML, and laid out by Chromium if it is installed."""

import html.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

import checks

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = ROOT / os.environ.get("BUILD", "build") / "tests/cli/tune/test_tune_report"
KINDS = ("saturating", "collapse", "slow", "one", "no-choice", "empty", "zero", "huge-values", "wide",
         "hostile")
VOID = {"meta", "br"}
SIZES = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
OBJECTIVES = ("Swap: half reads, half writes", "Reads", "Writes")


class Page(html.parser.HTMLParser):
    """Collects elements as (path of tags, attributes, text), tables as rows, and errors of nesting."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.wrong = [], [], []
        self.maps, self.heading = {}, ""
        self.source = source
        self.feed(source)
        self.close()
        self.wrong += [f"<{tag}> is not closed" for tag, _ in self.open]

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        if len(set(names)) != len(names):
            self.wrong.append(f"<{tag}> has an attribute twice")
        element = {"tag": tag, "attrs": dict(attrs), "text": "",
                   "within": [outer for outer, _ in self.open]}
        self.elements.append(element)
        if tag == "table" and element["attrs"].get("class") == "map":
            self.maps[self.heading] = []
        if tag == "tr" and self.in_map():
            self.maps[self.heading].append([])
        if tag in ("td", "th") and self.in_map():
            self.maps[self.heading][-1].append(element)
        if tag not in VOID:
            self.open.append((tag, element))

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open[-1][0] != tag:
            self.wrong.append(f"</{tag}> closes {self.open[-1][0] if self.open else 'nothing'}")
            return
        _, element = self.open.pop()
        if tag == "h3":
            self.heading = element["text"].split(" tuned for")[0]

    def handle_data(self, data):
        for _, element in self.open:
            element["text"] += data

    def in_map(self):
        return any(element["attrs"].get("class") == "map" for _, element in self.open)

    def all(self, tag):
        return [element for element in self.elements if element["tag"] == tag]

    def text(self):
        return self.all("html")[0]["text"]


def write_pages(directory):
    pages = {}
    for kind in KINDS:
        path = directory / f"{kind}.html"
        subprocess.run([PROGRAM, "page", kind, path], check=True)
        pages[kind] = Page(path.read_text())
    return pages


def trials(kind):
    text = subprocess.run([PROGRAM, "values", kind], check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    for line in text.splitlines():
        objective, block, depth, workers, single, mean, chosen, rounds = line.split()
        yield {"objective": int(objective), "block": int(block), "depth": int(depth),
               "workers": int(workers), "single": single == "1", "mean": float(mean),
               "chosen": chosen == "1", "rounds": int(rounds)}


def size(text):
    number, unit = text.split()
    return int(float(number) * SIZES[unit])


def complain(kind, *what):
    print(f"{kind}:", *what)
    return False


def each_page_is_well_formed(pages):
    good = True
    for kind, page in pages.items():
        for wrong in page.wrong:
            good = complain(kind, wrong)
        ids = [e["attrs"]["id"] for e in page.elements if "id" in e["attrs"]]
        if len(set(ids)) != len(ids):
            good = complain(kind, "an id stands twice")
        for drawing in re.findall(r"<svg.*?</svg>", page.source, re.S):
            ElementTree.fromstring(drawing)
            if re.search(r"\b(nan|inf)\b", drawing, re.I):
                good = complain(kind, "a drawing has no number:", drawing)
    return good


def each_page_names_what_it_is(pages):
    good = True
    for kind, page in pages.items():
        if page.all("html")[0]["attrs"].get("lang") != "en" or len(page.all("h1")) != 1:
            good = complain(kind, "no language, or not one h1")
        levels = [int(e["tag"][1]) for e in page.elements if re.fullmatch("h[1-6]", e["tag"])]
        if any(below > above + 1 for above, below in zip(levels, levels[1:])):
            good = complain(kind, "a level of headings is left out")
        for drawing in page.all("svg"):
            if drawing["attrs"].get("role") != "img" or not (
                    drawing["attrs"].keys() & {"aria-label", "aria-labelledby"}):
                good = complain(kind, "a drawing without a name")
        for element in page.elements:
            for name in element["attrs"].get("aria-labelledby", "").split():
                if f'id="{name}"' not in page.source:
                    good = complain(kind, "nothing is named", name)
        if "nvswap 0." not in page.all("footer")[0]["text"]:
            good = complain(kind, "no version")
    return good


def nothing_is_loaded(pages):
    good = True
    for kind, page in pages.items():
        for element in page.elements:
            if element["tag"] in ("script", "link", "img", "iframe", "object", "embed", "base"):
                good = complain(kind, "has a", element["tag"])
            for name, value in element["attrs"].items():
                if name in ("src", "srcset", "data", "action") or name.startswith("on") or (
                        name.endswith("href") and not value.startswith("#")):
                    good = complain(kind, name, value)
        style = "".join(e["text"] for e in page.all("style"))
        if not style or re.search(r"url\(|@import|@font-face|http", style):
            good = complain(kind, "the style loads something, or there is none")
    return good


def texts_from_outside_are_escaped(pages):
    page = pages["hostile"]
    if "</title><script>alert(\"1\")</script>&amp;'<img src=x>" not in page.text():
        return complain("hostile", "the text is not there as it came")
    if "\x1b" in page.source:
        return complain("hostile", "a control character has come through")
    names = {e["tag"] for e in page.elements} & {"script", "img", "b", "iframe"}
    return not names or complain("hostile", "markup has come through", names)


def expected(kind):
    """Returns the mean shown for each (objective, block, depth), and that of the choice."""
    all_trials = list(trials(kind))
    chosen = [trial for trial in all_trials if trial["chosen"]]
    held = chosen[0] if chosen else max((t for t in all_trials if t["objective"] == 0),
                                        key=lambda t: t["mean"], default=None)
    cells = {}
    for trial in all_trials:
        same = (trial["workers"], trial["single"]) == (held["workers"], held["single"])
        place = (trial["objective"], trial["block"], trial["depth"])
        if place not in cells or (same, trial["mean"]) > cells[place]:
            cells[place] = (same, trial["mean"])
    return cells, chosen[0] if chosen else None


def each_measured_value_stands_in_its_cell(pages):
    good = True
    for kind, page in pages.items():
        cells, _ = expected(kind)
        most = max((trial["mean"] for trial in trials(kind)), default=0)
        unit = 1e9 if most >= 1e9 else 1e6
        seen = 0
        for heading, rows in page.maps.items():
            depths = [int(cell["text"]) for cell in rows[1][1:]]
            for row in rows[2:]:
                for depth, cell in zip(depths, row[1:]):
                    place = OBJECTIVES.index(heading), size(row[0]["text"]), depth
                    same, mean = cells.get(place, (True, None))
                    value = "" if mean is None else f"{mean / unit:#.3g}"
                    shown = f"{float(cell['text']):#.3g}" if cell["text"] else ""
                    classes = cell["attrs"]["class"].split()
                    if mean is not None and abs(float(shown or "nan") - mean / unit) > max(
                            0.00501, 0.0051 * mean / unit):
                        good = complain(kind, place, "has", repr(shown), "and not", value)
                    if mean is None and (shown or "none" not in classes):
                        good = complain(kind, place, "was not measured, and is not marked so")
                    if ("other" in classes) == same:
                        good = complain(kind, place, "other settings are not marked")
                    seen += mean is not None
        if seen != len(cells):
            good = complain(kind, f"{seen} of {len(cells)} cells have a value")
    return good


def the_choice_is_marked_once_in_each_map(pages):
    good = True
    for kind, page in pages.items():
        _, chosen = expected(kind)
        if kind not in ("empty",) and not page.maps:
            good = complain(kind, "no map")
        for heading, rows in page.maps.items():
            depths = [cell["text"] for cell in rows[1][1:]]
            marked = [(size(row[0]["text"]), int(depth)) for row in rows[2:]
                      for depth, cell in zip(depths, row[1:])
                      if "chosen" in cell["attrs"]["class"].split()]
            if marked != ([(chosen["block"], chosen["depth"])] if chosen else []):
                good = complain(kind, heading, "marks", marked)
            best = [cell for row in rows[2:] for cell in row[1:]
                    if "best" in cell["attrs"]["class"].split()]
            if len(best) != 1:
                good = complain(kind, heading, f"{len(best)} cells are the best")
    return good


def the_headline_is_the_choice(pages):
    good = True
    for kind, page in pages.items():
        _, chosen = expected(kind)
        heading = page.all("h1")[0]["text"]
        if not chosen:
            if heading != "No choice was made" or page.all("pre")[0]["text"].startswith("{"):
                good = complain(kind, "names a choice that was not made:", heading)
            continue
        block, depth = re.fullmatch(r"Blocks of (.*), depth (\d+), \d+ workers", heading).groups()
        if (size(block), int(depth)) != (chosen["block"], chosen["depth"]):
            good = complain(kind, heading)
        if f'"block_size": {chosen["block"]},' not in page.all("pre")[0]["text"]:
            good = complain(kind, "has no aio block to copy")
    return good


def the_knee_is_the_smallest_depth_that_is_as_good(pages):
    good = True
    for kind in ("saturating", "collapse", "slow", "wide", "huge-values"):
        cells, chosen = expected(kind)
        means = {depth: mean for (objective, block, depth), (_, mean) in cells.items()
                 if (objective, block) == (chosen["objective"], chosen["block"])
                 and not (kind == "slow" and depth == 32)}
        knee = min(d for d, mean in means.items() if mean >= 0.98 * max(means.values()))
        if f"The knee is at depth {knee}:" not in pages[kind].text():
            good = complain(kind, "the knee is at", knee)
    return good


def every_trial_is_in_the_table_with_the_fastest_first(pages):
    good = True
    for kind, page in pages.items():
        count = len(list(trials(kind)))
        rows = [e["text"] for e in page.all("tr") if "details" in e["within"]][1:]
        if len(rows) != count:
            good = complain(kind, f"{len(rows)} of {count} trials")
        rates = [(re.match("swap|read|write", row)[0], float(re.match(r"\D+([\d.]+)", row)[1]))
                 for row in rows]
        if any(a[0] == b[0] and a[1] < b[1] for a, b in zip(rates, rates[1:])):
            good = complain(kind, "a slower one stands before a faster one")
    return good


def what_must_be_known_is_warned_of(pages):
    warned = {kind: [e["text"] for e in page.elements if e["attrs"].get("class") == "warning"]
              for kind, page in pages.items()}
    return (any("slows down" in text for text in warned["collapse"])
            and any("is not certain: The rounds can't tell 3 finalists" in text
                    for text in warned["slow"])
            and not warned["saturating"]) or complain("warnings", warned)


# A cell of the map, measured once, can be above the choice.
def the_worth_of_single_rounds_and_defaults_is_explained(pages):
    text = pages["saturating"].source
    return all(said in text for said in ("for the map alone is a single round",
                                         "leave their defaults only")) or complain("text", text)


def the_command_is_the_one_that_was_given(pages):
    options = ["--time", "1m", "--max-writes", "16g", "--block-size-min", "128k",
               "--queue-depth-max", "64", "--ioengine", "io_uring"]
    wanted = {"saturating": [*options, "/mnt/nvme0/swap"],
              "slow": [*options, "/mnt/nvme0/swap"],
              "hostile": [*options, "--report", "it's \\ here.html",
                          "</title><script>alert(\"1\")</script>&amp;'<img src=x>\n\x1b"]}
    good = True
    for kind, words in wanted.items():
        command = next(e["text"] for e in pages[kind].all("pre")
                       if e["attrs"].get("aria-label") == "the command")
        # bash itself checks the quoting.
        got = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], text=True, check=True,
                             stdout=subprocess.PIPE).stdout.split("\0")[:-1]
        if got != ["nvswap", "tune", *words]:
            good = complain(kind, command, got)
    return good


def what_was_measured_once_is_hollow_and_joined_to_nothing(pages):
    source = pages["slow"].source
    drawing = re.search(r'<svg class="chart" viewBox.*?</svg>', source, re.S)[0]
    depth = {"64": None, "32": None, "16": None}
    for x, text in re.findall(r'<text class="middle" x="([\d.]+)" y="318">(\d+)<', drawing):
        depth[text] = x
    good = True
    for name in ("bandwidth", "p50", "p99"):
        joins = re.search(rf'<path class="line {name}" d="([^"]*)"', drawing)[1]
        places = re.findall(r"([ML])([\d.]+) ", joins)
        if depth["32"] in [x for _, x in places] or ("M", depth["64"]) not in places:
            good = complain("slow", name, "joins a point that was measured once:", joins)
        hollow = re.findall(rf'<circle class="{name}[^"]* once" cx="([\d.]+)"', drawing)
        if hollow != [depth["32"]]:
            good = complain("slow", name, "has hollow points at", hollow)
    return good and "was measured once: chance may" in source and (
        " once" not in pages["saturating"].source.split("</style>")[1]) or complain("slow", "text")


def what_scrolls_on_a_phone_says_so(pages):
    style = pages["saturating"].all("style")[0]["text"]
    return all("100% local" in style and "The table scrolls sideways." in page.source
               and ("The map scrolls sideways." in page.source) == (kind == "wide")
               for kind, page in pages.items() if kind != "empty") or complain("hints", style)


WIDTHS = (360, 1280)
# A frame can be narrower than a window's minimum. All details are opened before measuring.
MEASURE = """<script>addEventListener("load", () => {
for (const frame of document.querySelectorAll("iframe")) {
	const page = frame.contentDocument;
	for (const details of page.querySelectorAll("details")) details.open = true;
	const { scrollWidth, clientWidth } = page.documentElement;
	document.body.append(`${frame.title} is ${scrollWidth} of ${clientWidth};`);
} });</script>"""


def no_page_is_wider_than_a_phone_or_a_desktop(pages):
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        return "no chromium here"
    with tempfile.TemporaryDirectory(dir=PROGRAM.parent) as directory:
        directory = pathlib.Path(directory)
        frames = ""
        for kind, page in pages.items():
            (directory / f"{kind}.html").write_text(page.source)
            for width in WIDTHS:
                frames += (f'<iframe title="{kind} at {width}" src="{kind}.html" scrolling="no" '
                           f'style="border:0; width:{width}px; height:900px"></iframe>')
        (directory / "frames.html").write_text(MEASURE + frames)
        text = subprocess.run(
            [chromium, "--headless=new", "--no-sandbox", "--disable-gpu",
             "--allow-file-access-from-files", f"--user-data-dir={directory}/profile",
             "--dump-dom", (directory / "frames.html").as_uri()],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=600).stdout
    good = True
    measured = re.findall(r"([a-z-]+) at (\d+) is (\d+) of (\d+);", text)
    for kind, width, needed, shown in measured:
        if shown != width or int(needed) > int(shown):
            good = complain(kind, f"needs {needed} of {shown} at {width}")
    return good and len(measured) == len(pages) * len(WIDTHS) or complain("frames", len(measured))


TESTS = (each_page_is_well_formed, each_page_names_what_it_is, nothing_is_loaded,
         texts_from_outside_are_escaped, each_measured_value_stands_in_its_cell,
         the_choice_is_marked_once_in_each_map, the_headline_is_the_choice,
         the_knee_is_the_smallest_depth_that_is_as_good,
         every_trial_is_in_the_table_with_the_fastest_first, what_must_be_known_is_warned_of,
         the_worth_of_single_rounds_and_defaults_is_explained,
         what_was_measured_once_is_hollow_and_joined_to_nothing, what_scrolls_on_a_phone_says_so,
         the_command_is_the_one_that_was_given,
         no_page_is_wider_than_a_phone_or_a_desktop)


def main():
    with tempfile.TemporaryDirectory(dir=PROGRAM.parent) as directory:
        return checks.run(TESTS, write_pages(pathlib.Path(directory)))


if __name__ == "__main__":
    sys.exit(main())
