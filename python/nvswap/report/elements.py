# SPDX-License-Identifier: Apache-2.0
"""Parts of a page: text from outside, numbers with their units, tables and drawings as HTML."""

import html
import re
from typing import Iterable, List, Sequence

# What would be obeyed rather than shown: control characters, line separators and those that change
# the direction of writing; and halves of a character, which no file can have.
_OBEYED = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069"
                     "\ud800-\udfff]")


def escape(text: str) -> str:
    """Text from outside, as HTML."""
    return html.escape(_OBEYED.sub("\ufffd", text))


def plural(n: float, noun: str) -> str:
    """ "1 worker", "2 workers"."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _three_digits(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _scaled(value: float, units: Sequence[str], factor: float) -> str:
    unit = 0
    while value >= factor * (1 if factor == 1024 else 0.9995) and unit + 1 < len(units):
        value /= factor
        unit += 1
    digits = f"{value:.0f}" if value == int(value) else _three_digits(value)
    return f"{digits} {units[unit]}"


def size(nbytes: float) -> str:
    """ "1.50 MiB"."""
    return _scaled(nbytes, ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"), 1024)


def duration(ns: float) -> str:
    """ "2.72 ms"."""
    return _scaled(ns, ("ns", "us", "ms", "s"), 1000)


def tick_duration(ns: float) -> str:
    """The same without zeros behind, for an axis."""
    value, unit = duration(ns).split()
    return f"{float(value):g} {unit}"


class Rates:
    """Rates of one page in one unit, so that they can be compared."""

    def __init__(self, most: float) -> None:
        self.scale, self.unit = (1e9, "GB/s") if most >= 1e9 else (1e6, "MB/s")

    def value(self, rate: float) -> str:
        """ "6.71"."""
        return _three_digits(rate / self.scale)

    def text(self, rate: float, half_width: float = 0) -> str:
        """ "6.71 ± 0.04 GB/s"; without an interval where it is not known."""
        interval = f" ± {_three_digits(half_width / self.scale)}" if half_width else ""
        return f"{self.value(rate)}{interval} {self.unit}"


def section(title: str, *parts: str) -> str:
    """A part of a result under a heading."""
    return "\n".join((f"<section>\n<h3>{escape(title)}</h3>", *parts, "</section>"))


def paragraph(text: str) -> str:
    """Text from outside as a paragraph."""
    return f"<p>{escape(text)}</p>"


def warning(name: str, text: str) -> str:
    """A warning that stands out."""
    return f'<p class="warning"><strong>{escape(name)}:</strong> {escape(text)}</p>'


def scrolling(inner: str, name: str) -> str:
    """What may be wider than a phone scrolls by itself, also by keys."""
    return (f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}">\n'
            f"{inner}\n</div>")


def figure(title: str, drawing: str, wide: bool = False) -> str:
    """A drawing with its caption; a wide one scrolls on a phone."""
    inner = scrolling(drawing, title) if wide else drawing
    return (f'<figure{" class=" + chr(34) + "wide" + chr(34) if wide else ""}>\n'
            f"<figcaption>{escape(title)}</figcaption>\n{inner}\n</figure>")


def table(name: str, head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column names the rows. Cells of `rows` are HTML, those of `head` text."""
    lines: List[str] = ["<table>", "<thead><tr>"]
    lines += [f'<th scope="col">{escape(cell)}</th>' for cell in head]
    lines.append("</tr></thead>\n<tbody>")
    for first, *others in rows:
        cells = "".join(f"<td>{cell}</td>" for cell in others)
        lines.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    lines.append("</tbody>\n</table>")
    return scrolling("\n".join(lines), name)
