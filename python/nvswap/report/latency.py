# SPDX-License-Identifier: Apache-2.0
"""
Results of `nvswap bench`, fio and `nvswap compare`: a table of figures, and histograms and
percentiles of completion latencies, with a line for each job or result.
"""

import math
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Tuple

from nvswap.report.drawing import COLOUR, LINE_DASHES, Drawing, log_axis
from nvswap.report.elements import escape, figure, paragraph, section, table
from nvswap.report.results import NUMBER_MAX, ResultError, is_number, items, member, number, text

DIRECTIONS = {"read": "Reads", "write": "Writes"}
NO_HISTOGRAMS = "These results have no histograms: --output-format json+ writes them."
# fio's bins are 1/64 of a power of two wide: of columns narrower than two bins some stay empty.
COLUMN_LEAST = 2 * math.log10(2) / 64
COLUMNS = 96
TICKS_PERCENT = (50, 90, 99, 99.9, 99.99, 99.999)


class Metric(NamedTuple):
    """A figure of a job: its name and unit on the page, and its member in compare's JSON."""

    name: str
    unit: str
    key: str
    scale: float


_OF_DIRECTION = (("bw", "MiB/s", "bw_bytes", 1 / (1 << 20)), ("iops", "", "iops", 1),
                 ("p50", "us", "clat_p50_ns", 1e-3), ("p99", "us", "clat_p99_ns", 1e-3),
                 ("p99.9", "us", "clat_p99_9_ns", 1e-3))
METRICS = (*(Metric(f"{way} {name}", unit, f"{way}_{key}", scale)
             for way in DIRECTIONS for name, unit, key, scale in _OF_DIRECTION),
           Metric("cpu / GiB", "ms", "cpu_ms_per_gib", 1),
           Metric("step", "ms", "step_wall_mean_ns", 1e-6),
           Metric("of that computing", "ms", "step_compute_ns", 1e-6),
           Metric("of that stalls", "ms", "step_stall_ns", 1e-6),
           Metric("I/O hidden", "%", "step_hidden_share", 100))


class Line(NamedTuple):
    """The latencies of a job, or of a result's runs, in both directions."""

    label: str
    runs: Dict[str, List[Any]]  # by direction: objects with "percentile" and "bins"

    def pairs(self, direction: str, what: str) -> Iterator[Tuple[float, float]]:
        """Each bin or percentile of all runs with its number; what is neither is passed over."""
        for run in self.runs.get(direction, []):
            found = member(run, what)
            for key, value in found.items() if isinstance(found, dict) else ():
                try:
                    at = float(key)
                except ValueError:
                    continue
                if 0 < at < NUMBER_MAX and is_number(value) and value > 0:
                    yield at, float(value)


def _value(value: float, metric: Metric) -> str:
    value *= metric.scale
    shown = f"{value:.1f}" if value < 1e5 else f"{value:.0f}" if value < 1e15 else f"{value:.3g}"
    return f"{shown} {metric.unit}".strip()


# ---- Plots


def _colour(i: int) -> str:
    return COLOUR[f"c{i % len(LINE_DASHES)}"]


def _dashed(artist: Any, i: int) -> Any:
    dashes = LINE_DASHES[i % len(LINE_DASHES)]
    artist.set_linestyle((0, dashes) if dashes else "-")
    return artist


def _axes(drawing: Drawing, xlabel: str) -> Any:
    axes = drawing.figure.add_axes((0.15, 0.2, 0.81, 0.74))
    axes.set_xlabel(xlabel)
    return axes


def _histogram(lines: List[Line], direction: str) -> str:
    bins = [list(line.pairs(direction, "bins")) for line in lines]
    times = [math.log10(ns) for pairs in bins for ns, _ in pairs]
    if not times:
        return ""
    low, high = min(times) - COLUMN_LEAST, max(times) + COLUMN_LEAST
    columns = min(int((high - low) / COLUMN_LEAST), COLUMNS)
    edges = [10 ** (low + i * (high - low) / columns) for i in range(columns + 1)]
    drawing = Drawing(190)
    axes = _axes(drawing, "completion latency; share of the I/Os, %")
    for i, pairs in enumerate(bins):
        counts = [0.0] * columns
        for ns, n in pairs:
            counts[min(int((math.log10(ns) - low) / (high - low) * columns), columns - 1)] += n
        if pairs:
            shares = [100 * n / sum(counts) for n in counts]
            _dashed(axes.stairs(shares, edges, color=_colour(i), linewidth=1.5), i)
    axes.set_ylim(0)
    log_axis(axes, "x", edges[0], edges[-1])
    name = f"{DIRECTIONS[direction]}: histogram"
    return figure(name, drawing.svg(f"{name} of completion latency"))


def _nines(percentile: float) -> float:
    """90 is 1, 99 is 2, 99.9 is 3."""
    return -math.log10(1 - percentile / 100)


def _percentiles(lines: List[Line], direction: str) -> str:
    curves = []
    for line in lines:
        runs: Dict[float, List[float]] = {}
        for percentile, ns in line.pairs(direction, "percentile"):
            if percentile < 100:
                runs.setdefault(percentile, []).append(ns)
        curves.append([(_nines(at), sum(times) / len(times)) for at, times in sorted(runs.items())])
    points = [point for curve in curves for point in curve]
    if len({at for at, _ in points}) < 2:
        return ""
    drawing = Drawing(190)
    axes = _axes(drawing, "percentile of completion latency")
    for i, curve in enumerate(curves):
        _dashed(axes.plot([at for at, _ in curve], [ns for _, ns in curve], color=_colour(i))[0], i)
    most = max(at for at, _ in points)
    ticks = [percent for percent in TICKS_PERCENT if _nines(percent) <= most * 1.0001]
    axes.set_xlim(0, most)
    axes.set_xticks([_nines(percent) for percent in ticks], [f"{percent:g}" for percent in ticks])
    log_axis(axes, "y", 0.9 * min(ns for _, ns in points), 1.1 * max(ns for _, ns in points))
    name = f"{DIRECTIONS[direction]}: percentiles"
    return figure(name, drawing.svg(f"{name} of completion latency"))


def _legend(lines: List[Line]) -> str:
    entries = []
    for i, line in enumerate(lines):
        dashes = " ".join(map(str, LINE_DASHES[i % len(LINE_DASHES)]))
        entries.append(f'<li><svg viewBox="0 0 30 10" aria-hidden="true"><path d="M0 5H30" '
                       f'style="stroke: var(--c{i % len(LINE_DASHES)}); stroke-width: 2" '
                       f'stroke-dasharray="{dashes or "none"}"/></svg>{escape(line.label)}</li>')
    return "\n".join(('<ul class="legend">', *entries, "</ul>"))


def _plots(lines: List[Line]) -> str:
    """Plots of what the results have, with a legend where there are several lines."""
    histograms = {way: _histogram(lines, way) for way in DIRECTIONS}
    drawings = [drawing for way in DIRECTIONS
                for drawing in (histograms[way], _percentiles(lines, way))]
    return "\n".join(filter(None, (
        _legend(lines) if any(drawings) and len(lines) > 1 else "",
        '<div class="figures">', *drawings, "</div>",
        "" if any(histograms.values()) else paragraph(NO_HISTOGRAMS))))


# ---- bench and fio


def _job_figures(job: Any) -> Dict[str, float]:
    """The figures of a job of bench or fio, by the members that compare's JSON has."""
    if number(job, "error", default=0):
        return {}
    figures: Dict[str, float] = {}
    for way in DIRECTIONS:
        if not isinstance(member(job, way), dict):
            continue
        if member(job, way, "bw_bytes") is None:
            raise ResultError(f"{way} has no bw_bytes: this is no result of nvswap bench or fio 3")
        figures |= {f"{way}_bw_bytes": number(job, way, "bw_bytes"),
                    f"{way}_iops": number(job, way, "iops", default=0)}
        for key, percentile in (("p50", "50"), ("p99", "99"), ("p99_9", "99.9")):
            figures[f"{way}_clat_{key}_ns"] = number(job, way, "clat_ns", "percentile",
                                                     f"{float(percentile):f}", default=0)
    gib = sum(number(job, way, "io_bytes", default=0) for way in DIRECTIONS) / (1 << 30)
    cpu_percent = number(job, "usr_cpu", default=0) + number(job, "sys_cpu", default=0)
    cpu_ms = cpu_percent / 100 * number(job, "job_runtime", default=0)
    # nvswap's own figure leaves out making and comparing contents.
    own = number(job, "swap", "cpu_ms_per_gib", default=0)
    figures["cpu_ms_per_gib"] = own or (cpu_ms / gib if gib else 0)
    for key in ("wall_mean_ns", "compute_ns", "stall_ns", "hidden_share"):
        figures[f"step_{key}"] = number(job, "step", key, default=0)
    return figures


def _figures_table(name: str, columns: List[str], figures: List[Dict[str, float]]) -> str:
    rows = [(escape(metric.name),
             *(_value(each[metric.key], metric) if each.get(metric.key) else "-"
               for each in figures))
            for metric in METRICS if any(each.get(metric.key) for each in figures)]
    return table(name, ("", *columns), rows)


def bench_sections(data: Dict[str, Any], label: str) -> Tuple[str, str]:
    """Returns the title of a result of bench or fio, and its sections as HTML."""
    jobs = items(data, "jobs")
    names = [text(job, "jobname") or f"job {i + 1}" for i, job in enumerate(jobs)]
    failed = [f"{name}: {text(job, 'error_text') or 'error ' + str(member(job, 'error'))}"
              for name, job in zip(names, jobs) if member(job, "error")]
    lines = [Line(name, {way: [member(job, way, "clat_ns")] for way in DIRECTIONS})
             for name, job in zip(names, jobs)]
    program = text(data, "nvswap version") and f"nvswap {text(data, 'nvswap version')}"
    given = member(data, "global options", default={})
    options = ", ".join(f"{key}={value}" for key, value in given.items() if isinstance(value, str))
    lead = program or text(data, "fio version"), text(data, "time"), options
    figures = [_job_figures(job) for job in jobs]
    parts = [paragraph(". ".join(filter(None, lead))),
             *(paragraph(f"Failed: {each}") for each in failed),
             section("Figures", _figures_table("figures", names, figures)),
             section("Latencies", _plots(lines))]
    return label, "\n".join(parts)


# ---- compare


_KINDS = {"faster": "better", "less": "better", "slower": "worse", "more": "worse"}


def _change(side: Dict[str, Any]) -> Iterable[str]:
    """The verdict on a change, with its interval."""
    change, verdict = member(side, "change"), text(side, "verdict")
    if isinstance(change, (int, float)) and math.isfinite(change):
        half = member(side, "change_half_width")
        yield f'<strong class="{_KINDS.get(verdict, "")}">{escape(verdict)}</strong>'
        yield f"<small>{change:+.1f} %{f' ± {half:.1f} %' if is_number(half) else ''}</small>"


def _cell(side: Any, metric: Metric) -> str:
    if not member(side, "value"):
        return "-"
    half = member(side, "half_width")
    interval = f"<small>± {half:.1f} %</small>" if is_number(half) else ""
    return _value(number(side, "value"), metric) + interval + "".join(_change(side))


def compare_sections(data: Dict[str, Any]) -> Tuple[str, str]:
    """Returns the title of a result of compare, and its sections as HTML."""
    labels = [text(side, "label") for side in items(data, "results")]
    parts = [paragraph(text(data, "notes"))]
    for job in items(data, "jobs"):
        rows = [(escape(metric.name), *(_cell(side, metric) for side in items(job, metric.key)))
                for metric in METRICS if member(job, metric.key)]
        heads = ("", *(label if i else f"{label} (base)" for i, label in enumerate(labels)))
        lines = [Line(text(side, "result"), {way: items(side, way) for way in DIRECTIONS})
                 for side in items(job, "clat_ns")]
        parts.append(section(text(job, "jobname"), table("figures", heads, rows), _plots(lines)))
    base, *others = labels or [""]
    return f"{base} against {', '.join(others)}", "\n".join(parts)
