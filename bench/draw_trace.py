#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Draws part of a trace (nvswap bench --trace) as an SVG: a row for each thread, then the transfers of
tensors, packed into as few lanes as possible, then a band for each worker with a lane for each place
in its queue. The colours follow the viewer's light or dark mode.

    python3 bench/draw_trace.py step.json docs/trace.svg --ms 60
"""
import argparse
import json
import sys
from collections import defaultdict
from html import escape

WIDTH, MARGIN, LABELS = 1000, 16, 128
PLOT = WIDTH - LABELS - MARGIN
THREAD_HEIGHT, LANE_HEIGHT, LANES_HEIGHT, GAP = 20, 5, 200, 10
LETTER = 6.1  # average width of a letter

KINDS = {  # label, colour in light mode, colour in dark mode
    "read": ("read", "#2f7fd1", "#5aa5ee"),
    "write": ("write", "#e07b1f", "#f09a4a"),
    "compute": ("computation", "#3c9a5f", "#57b97b"),
    "wait": ("waiting", "#e3a3a6", "#8f4a50"),
    "caller": ("span of the caller", "#8b7cc4", "#a99ae0"),
}

STYLE = """
text { font: 11px system-ui, "DejaVu Sans", sans-serif; fill: #24292f; }
.page { fill: #ffffff; } .row { fill: #f1f3f5; } .grid { stroke: #d0d7de; } .in { fill: #ffffff; }
.minor { fill: #57606a; }
""" + "\n".join(f".{kind} {{ fill: {light}; }}" for kind, (_, light, _) in KINDS.items()) + """
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.page { fill: #0d1117; } .row { fill: #1b2129; } .grid { stroke: #30363d; } .in { fill: #0d1117; }
.minor { fill: #9aa4af; }
""" + "\n".join(f".{kind} {{ fill: {dark}; }}" for kind, (_, _, dark) in KINDS.items()) + """
}
"""


class Slice:
    def __init__(self, kind, name, begin, end):
        self.kind, self.name, self.begin, self.end = kind, name, begin, end


class Track:
    def __init__(self, name="", order=0):
        self.name, self.order, self.slices = name, order, []


def read_tracks(path):
    """The tracks in their order, and the transfers of tensors."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    tracks, tensors, begun = defaultdict(Track), [], {}
    for event in sorted(events, key=lambda event: event.get("ts", 0)):
        if event["ph"] == "M" and event["name"] == "thread_name":
            tracks[event["tid"]].name = event["args"]["name"]
        elif event["ph"] == "M" and event["name"] == "thread_sort_index":
            tracks[event["tid"]].order = event["args"]["sort_index"]
        elif event["ph"] == "X":
            kind = event["name"] if event["cat"] == "io" else event["cat"]
            tracks[event["tid"]].slices.append(
                Slice(kind, event["name"], event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "b" and event["cat"] == "tensor":
            begun[event["id"]] = event
        elif event["ph"] == "e" and event["cat"] == "tensor" and event["id"] in begun:
            begin = begun.pop(event["id"])
            tensors.append(Slice(begin["name"].split()[0], begin["name"], begin["ts"], event["ts"]))
    return sorted(tracks.values(), key=lambda track: track.order), tensors


def clipped(slices, begin, end):
    return [Slice(s.kind, s.name, max(s.begin, begin), min(s.end, end))
            for s in slices if s.end > begin and s.begin < end]


def packed(slices):
    """Packs slices into as few lanes as possible without overlaps."""
    lanes = []
    for each in sorted(slices, key=lambda s: s.begin):
        for lane in lanes:
            if lane[-1].end <= each.begin:
                lane.append(each)
                break
        else:
            lanes.append([each])
    return lanes


class Picture:
    def __init__(self, begin, end):
        self.begin, self.end = begin, end
        self.y, self.below, self.above = 44, [], []
        self.paths = defaultdict(list)

    def x(self, time):
        return LABELS + (time - self.begin) / (self.end - self.begin) * PLOT

    def text(self, x, y, text, more=""):
        self.above.append(f'<text x="{x:.0f}" y="{y:.0f}"{more}>{escape(text)}</text>')

    def back(self, height):
        self.below.append(f'<rect class="row" x="{LABELS}" y="{self.y}" width="{PLOT}" '
                          f'height="{height}"/>')

    def bars(self, slices, y, height):
        for each in slices:
            left, right = self.x(each.begin), self.x(each.end)
            # A gap separates neighbours.
            width = max(right - left - (0.6 if right - left > 3 else 0), 0.4)
            self.paths[each.kind].append(
                f"M{left:.1f} {y:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z")

    def names(self, slices, y):
        for each in slices:
            left, right = self.x(each.begin), self.x(each.end)
            room = int((right - left - 8) / LETTER)
            if len(each.name) <= room:
                self.text((left + right) / 2, y, each.name, ' class="in" text-anchor="middle"')

    def thread(self, track):
        self.back(THREAD_HEIGHT)
        # Nested slices come later and are drawn over the outer ones.
        self.bars(track.slices, self.y, THREAD_HEIGHT)
        self.names(track.slices, self.y + 14)
        self.text(LABELS - 8, self.y + 14, track.name, ' text-anchor="end"')
        self.y += THREAD_HEIGHT + 4

    def lanes(self, name, note, lanes):
        each = min(LANE_HEIGHT, LANES_HEIGHT / len(lanes))
        height = round(len(lanes) * each)
        self.back(height)
        for i, lane in enumerate(lanes):
            self.bars(lane, self.y + (i + 0.1) * each, 0.8 * each)
        middle = self.y + height / 2
        self.text(LABELS - 8, middle - (2 if note else -4), name, ' text-anchor="end"')
        if note:
            self.text(LABELS - 8, middle + 11, note, ' class="minor" text-anchor="end"')
        self.y += height + GAP

    def legend(self):
        x = LABELS
        for kind, (name, _, _) in KINDS.items():
            if kind not in self.paths:
                continue
            self.above.append(f'<rect class="{kind}" x="{x:.0f}" y="{MARGIN - 6}" width="11" '
                              'height="11" rx="2"/>')
            self.text(x + 16, MARGIN + 4, name)
            x += 34 + len(name) * LETTER

    def axis(self):
        span = (self.end - self.begin) / 1000
        step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 1e4, 1e9)
                    if span / s <= 12)
        for i in range(int(span / step) + 1):
            x = self.x(self.begin + i * step * 1000)
            self.below.append(f'<path class="grid" d="M{x:.1f} 36V{self.y - GAP + 4}"/>')
            self.text(x, self.y + 8, f"{i * step:g}" + (" ms" if not i else ""),
                      ' class="minor" text-anchor="middle"')
        self.y += 20

    def svg(self):
        bars = [f'<path class="{kind}" d="{"".join(parts)}"/>'
                for kind, parts in self.paths.items()]
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.y}" role="img" '
            'aria-label="timeline of threads, transfers and I/Os">',
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{WIDTH}" height="{self.y}" rx="6"/>',
            *self.below, *bars, *self.above, "</svg>", ""])


def slot_of(track):
    """Returns ("worker 0", "03") for the track "worker 0, slot 03"; None for a thread's track."""
    worker, comma, slot = track.name.partition(", slot ")
    return (worker, slot) if comma else None


def draw(tracks, tensors, begin, end):
    picture = Picture(begin, end)
    workers = defaultdict(list)
    for track in tracks:
        track.slices = sorted(clipped(track.slices, begin, end),
                              key=lambda s: (s.begin, -s.end))
        if slot_of(track):
            workers[slot_of(track)[0]].append(track.slices)
        elif track.slices:
            picture.thread(track)
    picture.y += GAP - 4
    lanes = packed(clipped(tensors, begin, end))
    if lanes:
        picture.lanes("tensors", f"{len(lanes)} at a time", lanes)
    for worker, slots in workers.items():
        picture.lanes(worker, f"a queue of {len(slots)}", slots)
    picture.axis()
    picture.legend()
    return picture.svg()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", help="a trace that nvswap wrote")
    parser.add_argument("picture", help="the SVG to write")
    parser.add_argument("--from-ms", type=float,
                        help="where the part begins; without it the part is in the middle")
    parser.add_argument("--ms", type=float, help="length of the part; without it, up to the end")
    args = parser.parse_args()

    tracks, tensors = read_tracks(args.trace)
    last = max((s.end for track in tracks for s in track.slices), default=0)
    length = args.ms * 1000 if args.ms else last - (args.from_ms or 0) * 1000
    begin = (last - length) / 2 if args.from_ms is None else args.from_ms * 1000
    begin = max(begin, 0)
    if length <= 0 or begin >= last:
        sys.exit(f"{args.trace} ends at {last / 1000:g} ms: there is nothing to draw")
    with open(args.picture, "w", encoding="utf-8") as file:
        file.write(draw(tracks, tensors, begin, begin + length))


if __name__ == "__main__":
    main()
