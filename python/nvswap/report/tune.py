# SPDX-License-Identifier: Apache-2.0
"""
A result of `nvswap tune`: the choice and its reasons, maps of block size and depth, the curve over
the depth, the finalists, all trials, and the machine and drive of which it holds.
"""

import json
import re
import shlex
from typing import Any, Dict, List, Optional, Tuple

from matplotlib.patches import Rectangle

from nvswap.report.drawing import COLOUR, STEPS, WIDTH, Drawing, log_axis
from nvswap.report.elements import (Rates, duration, escape, figure, paragraph, plural, section,
                                    size, table, warning)
from nvswap.report.results import ResultError, count, items, member, number, text

OBJECTIVES = {"swap": "Swap: half reads, half writes", "read": "Reads", "write": "Writes"}
FATES = {"tie": "as good, less preferred", "slower": "finalist, slower",
         "over": "over the latency bound"}
# A map of more columns is wider than a phone, and scrolls.
MAP_COLUMNS = 10


class Trial:
    """A point of settings with its rounds in one objective; rates are in bytes a second."""

    def __init__(self, data: Any) -> None:
        self.objective, self.ioengine, self.fate = (
            text(data, key) for key in ("objective", "ioengine", "fate"))
        if self.objective not in OBJECTIVES or not re.fullmatch(r"[a-z_]{1,16}", self.ioengine):
            raise ResultError("a trial has no objective, or no I/O engine, that is known")
        self.block_size, self.queue_depth, self.thread_count, self.rounds = (
            count(data, key) for key in ("block_size", "queue_depth", "thread_count", "rounds"))
        self.single_submit, self.overlap_events, self.finalist = (
            member(data, key) is True for key in ("single_submit", "overlap_events", "finalist"))
        self.rate, self.half_width, self.p50_ns, self.p99_ns, self.cpu_ms_per_gib = (
            number(data, key) for key in ("bytes_per_s", "bytes_per_s_half_width", "p50_ns",
                                          "p99_ns", "cpu_ms_per_gib"))
        self.to_fastest, self.to_fastest_half_width = (
            number(data, key, default=0) for key in ("to_fastest", "to_fastest_half_width"))
        self.once = self.rounds == 1  # so it may be due to chance, and has no interval of its own
        if self.once:
            self.half_width = 0
        self.cell = self.block_size, self.queue_depth
        self.settings = self.ioengine, self.thread_count, self.single_submit, self.overlap_events

    def __str__(self) -> str:
        return (f"{size(self.block_size)}, depth {self.queue_depth}, "
                f"{plural(self.thread_count, 'worker')}, {self.ioengine}"
                f"{', single submit' if self.single_submit else ''}"
                f"{'' if self.overlap_events else ', no overlap'}")


class Tuning:
    """What tune has found out."""

    def __init__(self, data: Dict[str, Any]) -> None:
        self.data = data["tune"]
        self.trials = [Trial(each) for each in items(self.data, "trials")]
        self.chosen, self.fastest = (self._place(key) for key in ("chosen", "fastest"))
        self.objective = self.chosen.objective
        self.tolerance = number(self.data, "tolerance")
        self.block_sizes, self.depths = (
            sorted({value for value in items(self.data, "space", key) if isinstance(value, int)}
                   | {trial.cell[i] for trial in self.trials})
            for i, key in enumerate(("block_sizes", "queue_depths")))
        self.rates = Rates(max(trial.rate for trial in self.trials))

    def _place(self, key: str) -> Trial:
        place = number(self.data, key)
        if place not in range(len(self.trials)):
            raise ResultError(f"{key} must be the place of a trial")
        return self.trials[int(place)]

    def rate(self, trial: Trial) -> str:
        """The trial's rate with its interval."""
        return self.rates.text(trial.rate, trial.half_width)

    def at(self, objective: str, *cell: int) -> Optional[Trial]:
        """The trial of a block size and a depth with the other settings of the choice; else the
        fastest of those with different ones; None: not measured."""
        there = [trial for trial in self.trials
                 if (trial.objective, trial.cell) == (objective, cell)]
        same = [trial for trial in there if trial.settings == self.chosen.settings]
        return max(same or there, key=lambda trial: trial.rate, default=None)

    def marks(self, trial: Trial, best: Optional[Trial] = None) -> str:
        """What is special about a trial in a drawing."""
        return "".join(mark for mark, holds in (
            ("; measured once", trial.once),
            ("; other settings than the choice", trial.settings != self.chosen.settings),
            ("; the best of this map", trial is best),
            ("; the choice", trial.cell == self.chosen.cell)) if holds)


# ---- Maps


def _box(axes: Any, x: int, y: int, **style: Any) -> None:
    axes.add_patch(Rectangle((x + 0.03, y + 0.03), 0.94, 0.94, clip_on=False, **style))


def _measured_cell(axes: Any, x: int, y: int, tuning: Tuning, trial: Trial, best: Trial,
                   gid: str) -> None:
    step = min(int(STEPS * trial.rate / best.rate), STEPS - 1) if best.rate else 0
    chosen, ink = trial.cell == tuning.chosen.cell, COLOUR[f"t{step}"]
    _box(axes, x, y, facecolor=COLOUR[f"q{step}"], linewidth=0, gid=gid)
    axes.text(x + 0.5, y + 0.5, tuning.rates.value(trial.rate), ha="center", va="center",
              fontsize=7.5, color=ink, weight="bold" if chosen else "normal")
    if trial.settings != tuning.chosen.settings:
        axes.fill([x + 0.97, x + 0.97, x + 0.75], [y + 0.03, y + 0.25, y + 0.03], facecolor=ink)
    if chosen or trial is best:  # on a line of the paper's colour, to be seen on light and dark
        _box(axes, x, y, fill=False, edgecolor=COLOUR["paper"], linewidth=3.6)
        _box(axes, x, y, fill=False, edgecolor=COLOUR["ink"], linewidth=1.6,
             linestyle="-" if chosen else (0, (3, 2)))


def _map(tuning: Tuning, objective: str, cells: Dict[Tuple[int, int], Trial]) -> str:
    best = max(cells.values(), key=lambda trial: trial.rate)
    columns, rows = len(tuning.depths), len(tuning.block_sizes)
    width, height = max(WIDTH, 55 + 29 * columns), 46 + 25 * rows
    drawing = Drawing(height, width)
    axes = drawing.figure.add_axes((48 / width, 4 / height, 1 - 51 / width, 1 - 46 / height))
    axes.set(xlim=(0, columns), ylim=(rows, 0), xlabel="queue depth")
    axes.grid(False)
    axes.spines["bottom"].set_visible(False)
    axes.xaxis.set_label_position("top")
    axes.xaxis.tick_top()
    axes.set_xticks([i + 0.5 for i in range(columns)], [str(depth) for depth in tuning.depths])
    axes.set_yticks([i + 0.5 for i in range(rows)], [size(block) for block in tuning.block_sizes])
    for y, block in enumerate(tuning.block_sizes):
        for x, depth in enumerate(tuning.depths):
            trial = cells.get((block, depth))
            if trial:
                title = f"{tuning.rate(trial)}: {trial}{tuning.marks(trial, best)}"
                _measured_cell(axes, x, y, tuning, trial, best, drawing.titled(title))
            else:
                _box(axes, x, y, facecolor=COLOUR["card"], linewidth=0,
                     gid=drawing.titled("not measured"))
                axes.plot([x + 0.35, x + 0.65], [y + 0.5, y + 0.5], color=COLOUR["rule"])
    tuned = " (tuned for)" if objective == tuning.objective else ""
    name = OBJECTIVES[objective]
    return figure(f"{name}{tuned}. Best: {tuning.rate(best)} at {best}",
                  drawing.svg(f"{name}: {tuning.rates.unit} over block size and depth"),
                  wide=columns > MAP_COLUMNS)


def _maps(tuning: Tuning) -> str:
    maps = []
    for objective in sorted(OBJECTIVES, key=lambda name: name != tuning.objective):
        found = {(block, depth): tuning.at(objective, block, depth)
                 for block in tuning.block_sizes for depth in tuning.depths}
        cells = {cell: trial for cell, trial in found.items() if trial}
        if cells:
            maps.append(_map(tuning, objective, cells))
    return section("Bandwidth over block size and depth", paragraph(
        f"In {tuning.rates.unit}, with the other settings of the choice. A line marks the choice, "
        "a dashed one the best of a map, a dash what was not measured, a corner what was measured "
        "only with other settings, and is the best of these."),
        '<div class="figures">', *maps, "</div>")


# ---- The curve


def _draw_points(axes: Any, points: List[Tuple[int, Trial]], values: List[float], colour: str,
                 dashes: Any = None) -> None:
    """Joins points measured more than once; the others are hollow and joined to nothing."""
    axes.plot([i for i, _ in points], [float("nan") if trial.once else value
                                       for (_, trial), value in zip(points, values)],
              color=colour, linestyle=dashes or "-")
    for (i, trial), value in zip(points, values):
        axes.plot([i], [value], "o", color=colour,
                  markerfacecolor=COLOUR["paper"] if trial.once else colour)


def _draw_rates(drawing: Drawing, axes: Any, tuning: Tuning, points: List[Tuple[int, Trial]],
                best: Trial) -> None:
    scale = tuning.rates.scale
    axes.axhspan(best.rate * (1 - tuning.tolerance) / scale, best.rate / scale,
                 color=COLOUR["band"], linewidth=0)
    _draw_points(axes, points, [trial.rate / scale for _, trial in points], COLOUR["accent"])
    for i, trial in points:
        axes.plot([i, i], [max(trial.rate - trial.half_width, 0) / scale,
                           (trial.rate + trial.half_width) / scale], color=COLOUR["accent"])
        title = f"{trial}: {tuning.rate(trial)}, p50 {duration(trial.p50_ns)}, " \
                f"p99 {duration(trial.p99_ns)}{tuning.marks(trial)}"
        # Larger than the point, so that it is easy to point at.
        axes.plot([i], [trial.rate / scale], "o", markersize=14, color="none",
                  gid=drawing.titled(title))
        if trial.cell == tuning.chosen.cell:
            axes.plot([i], [trial.rate / scale], "o", markersize=9, markerfacecolor="none",
                      color=COLOUR["ink"])
    axes.set_ylim(0, 1.06 * max(trial.rate + trial.half_width for _, trial in points) / scale or 1)
    axes.set_title(f"Bandwidth, {tuning.rates.unit}")


def _draw_latencies(axes: Any, points: List[Tuple[int, Trial]]) -> None:
    for name, colour, dashes, side in (("p50", COLOUR["accent"], None, "top"),
                                       ("p99", COLOUR["second"], (0, (4, 2)), "bottom")):
        times = [getattr(trial, f"{name}_ns") for _, trial in points]
        _draw_points(axes, points, times, colour, dashes)
        axes.text(points[-1][0] + 0.2, times[-1], name, color=colour, va=side, clip_on=False)
    log_axis(axes, "y", min(trial.p50_ns for _, trial in points) * 0.8,
             max(max(trial.p50_ns, trial.p99_ns) for _, trial in points) * 1.25)
    axes.set_title("Latency of an I/O (logarithmic)")


def _knee_text(tuning: Tuning, last: Trial, best: Trial, knee: Trial) -> str:
    beyond = ("No deeper queue was measured, so it may lie beyond." if last is knee else
              "Deeper queues add latency, and in the end lose bandwidth."
              if last.rate < best.rate * (1 - tuning.tolerance) else
              "Deeper queues add latency and next to no bandwidth.")
    return (f"The knee is at depth {knee.queue_depth}: the smallest within "
            f"{100 * tuning.tolerance:g} % of the best of this block, "
            f"{tuning.rates.text(best.rate)}. {beyond}")


def _curve(tuning: Tuning) -> str:
    found = [(i, tuning.at(tuning.objective, tuning.chosen.block_size, depth))
             for i, depth in enumerate(tuning.depths)]
    points = [(i, trial) for i, trial in found if trial]
    sure = [trial for _, trial in points if not trial.once] or [trial for _, trial in points]
    best = max(sure, key=lambda trial: trial.rate)
    knee = next(trial for trial in sure if trial.rate >= best.rate * (1 - tuning.tolerance))
    timed = all(trial.p50_ns and trial.p99_ns for _, trial in points)
    drawing = Drawing(300 if timed else 160)
    panels = drawing.figure.subplots(2 if timed else 1, sharex=True, squeeze=False)[:, 0]
    drawing.figure.subplots_adjust(left=0.14, right=0.91, bottom=0.11 if timed else 0.21,
                                   top=0.93 if timed else 0.86, hspace=0.28)
    _draw_rates(drawing, panels[0], tuning, points, best)
    if timed:
        _draw_latencies(panels[1], points)
    panels[-1].set(xlim=(-0.5, len(tuning.depths) - 0.5), xlabel="queue depth")
    panels[-1].set_xticks(range(len(tuning.depths)), [str(depth) for depth in tuning.depths])
    said = "Only one depth was measured with this block, so the knee is unknown."
    if len(points) > 1:
        said = _knee_text(tuning, points[-1][1], best, knee)
        at = tuning.depths.index(knee.queue_depth)
        for axes in panels:
            axes.axvline(at, color=COLOUR["ink"], linestyle=(0, (4, 3)), linewidth=1)
        right = at < len(tuning.depths) / 2
        panels[0].text(at + (0.15 if right else -0.15), 0.05 * panels[0].get_ylim()[1],
                       f"knee: depth {knee.queue_depth}", ha="left" if right else "right",
                       weight="bold")
    if any(trial.once for _, trial in points):
        said += " A hollow point was measured once: it may be due to chance."
    return section(f"Depth, at blocks of {size(tuning.chosen.block_size)}", paragraph(said),
                   drawing.svg("Bandwidth and latency over queue depth; the table of all that was "
                               "tried has the figures"))


# ---- Finalists


def _finalists(tuning: Tuning) -> str:
    shown = sorted((trial for trial in tuning.trials if trial.finalist and trial.to_fastest),
                   key=lambda trial: trial.to_fastest)
    if not shown:
        return ""
    height = 30 * len(shown) + 34
    drawing = Drawing(height)
    axes = drawing.figure.add_axes((0.02, 32 / height, 0.96, 1 - 32 / height))
    axes.axvspan(100 * (1 - tuning.tolerance), 100, color=COLOUR["band"], linewidth=0)
    axes.set(ylim=(-0.4, len(shown) - 0.1), yticks=[], xlabel="% of the fastest")
    for y, trial in enumerate(shown):
        share, half = 100 * trial.to_fastest, 100 * trial.to_fastest_half_width
        chosen = trial is tuning.chosen
        axes.errorbar([share], [y], xerr=[[half], [half]], fmt="none", ecolor=COLOUR["accent"],
                      capsize=3)
        axes.plot([share], [y], "o", color=COLOUR["accent"], markersize=7 if chosen else 5,
                  markeredgecolor=COLOUR["ink" if chosen else "accent"],
                  gid=drawing.titled(f"{share:.1f} % ± {half:.1f} of the fastest"))
        for x, side, words in ((0, "left", f"{trial}{', chosen' if chosen else ''}"),
                               (1, "right", tuning.rate(trial))):
            axes.text(x, y + 0.38, words, transform=axes.get_yaxis_transform(), ha=side,
                      va="center", fontsize=8, weight="bold" if chosen else "normal")
    return section("Finalists", paragraph(
        "Measured in turn against the fastest, with 95 % intervals. The band is the tolerance, "
        f"{100 * tuning.tolerance:g} %."), drawing.svg("Finalists, in per cent of the fastest"))


# ---- Text


def _tiles(tuning: Tuning) -> str:
    chosen = tuning.chosen
    share = ("; the fastest" if chosen is tuning.fastest else
             f"; {100 * chosen.to_fastest:.1f} % of the fastest" if chosen.to_fastest else "")
    tiles = [("Bandwidth", tuning.rate(chosen), f"{plural(chosen.rounds, 'round')}{share}"),
             ("Latency of an I/O, median", duration(chosen.p50_ns),
              f"99th percentile {duration(chosen.p99_ns)}; of the slower direction"),
             ("In flight", size(chosen.block_size * chosen.queue_depth * chosen.thread_count),
              f"{plural(chosen.queue_depth, 'I/O')} on each of "
              f"{plural(chosen.thread_count, 'worker')}"),
             ("CPU", f"{chosen.cpu_ms_per_gib:.1f} ms", "per GiB moved")]
    return "\n".join(('<dl class="tiles">',
                      *(f"<div><dt>{name}</dt><dd>{value}</dd><dd>{more}</dd></div>"
                        for name, value, more in tiles), "</dl>"))


def _tried(tuning: Tuning) -> str:
    order = sorted(tuning.trials, key=lambda trial: (trial.objective != tuning.objective,
                                                     trial.objective, -trial.rate))
    rows = [(trial.objective, tuning.rate(trial), size(trial.block_size), str(trial.queue_depth),
             str(trial.thread_count), trial.ioengine, str(trial.single_submit).lower(),
             str(trial.overlap_events).lower(), duration(trial.p50_ns), duration(trial.p99_ns),
             f"{trial.cpu_ms_per_gib:.1f}", str(trial.rounds),
             escape(FATES.get(trial.fate, trial.fate))) for trial in order]
    head = ("of", "bandwidth", "block", "depth", "workers", "engine", "single submit",
            "overlap events", "p50", "p99", "CPU, ms/GiB", "rounds", "fate")
    return section("All that was tried", "<details>",
                   f"<summary>{len(rows)} measured, the fastest first</summary>",
                   table("All that was tried", head, rows), "</details>")


def _fact(key: str, value: Any) -> str:
    if isinstance(value, (bool, str)):
        return escape(str(value).lower() if isinstance(value, bool) else value)
    return (Rates(value).text(value) if key.endswith("_per_s") else
            size(value) if key.endswith(("_bytes", "_align")) else f"{value:g}")


def _conditions(tuning: Tuning) -> str:
    found = tuning.data
    said = (f"Worked on {size(number(found, 'drive', 'working_set_bytes'))}, and wrote "
            f"{size(number(found, 'drive', 'written_bytes'))} of at most "
            f"{size(number(found, 'max_writes_bytes'))} in "
            f"{duration(number(found, 'elapsed_ns'))}, with at most "
            f"{size(number(found, 'space', 'in_flight_max_bytes'))} in flight.")
    words = [word for word in items(found, "command") if isinstance(word, str)]
    advice = [f"<li>{escape(str(line))}</li>" for line in items(found, "advice")]
    changes = ("<h4>What to change before tuning again</h4>\n<ul>", *advice, "</ul>")
    facts = [(escape(key.replace("_", " ")), _fact(key, value)) for part in ("machine", "drive")
             for key, value in member(found, part, default={}).items()
             if value != "" and isinstance(value, (str, int, float))]
    facts += [(escape(name), escape(text(engine, "reason") or "works"))
              for name, engine in member(found, "ioengines", default={}).items()]
    return section("Where it holds", paragraph(said),
                   f'<pre aria-label="the command">{escape(shlex.join(words))}</pre>',
                   *(changes if advice else ()), "<details>\n<summary>Machine and drive</summary>",
                   table("machine and drive", ("fact", "value"), facts), "</details>")


def tune_sections(data: Dict[str, Any]) -> Tuple[str, str]:
    """Returns the title of a result of tune, and its sections as HTML."""
    tuning = Tuning(data)
    chosen, found = tuning.chosen, tuning.data
    title = (f"Blocks of {size(chosen.block_size)}, depth {chosen.queue_depth}, "
             f"{plural(chosen.thread_count, 'worker')}")
    drive = text(found, "drive", "model") or text(found, "drive", "device")
    lead = f"{drive} {text(found, 'drive', 'path')}. {OBJECTIVES[tuning.objective]}."
    warnings = []
    if member(found, "drive", "slows_down") is True:
        warnings.append(warning("Warning", text(found, "drive", "slows_text")))
    if member(found, "certain") is not True:
        warnings.append(warning("The choice is not certain", text(found, "unsure")))
    block = json.dumps({key: data[key] for key in ("aio", "nvswap") if key in data}, indent=2)
    return title, "\n".join((
        paragraph(lead), *warnings, _tiles(tuning), '<div class="pair">',
        section("Why", paragraph(text(found, "why"))),
        section("For the configuration", f"<pre>{escape(block)}</pre>"), "</div>", _maps(tuning),
        '<div class="pair">', _curve(tuning), _finalists(tuning), "</div>", _tried(tuning),
        _conditions(tuning)))
