# SPDX-License-Identifier: Apache-2.0
"""
Drawings by matplotlib as SVG that stands in a page: colours are variables of the page's style,
which has them for light and dark; there are no links, and no names that another drawing has too.
"""

import html
import io
import itertools
import math
import re
from contextlib import contextmanager
from typing import Any, Dict, Iterator

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from nvswap.report.elements import tick_duration

# Steps of one hue from 0 to the maximum of a map, with the ink that is legible on each.
STEPS = 10
# Lines of one plot differ in dashes and in colour, after Okabe and Ito for all colour vision.
LINE_DASHES = ((), (7, 3), (2, 3), (9, 3, 2, 3), (12, 4), (4, 2, 1, 2))

_NAMES = ("ink", "soft", "rule", "paper", "card", "accent", "second", "band",
          *(f"q{i}" for i in range(STEPS)), *(f"t{i}" for i in range(STEPS)),
          *(f"c{i}" for i in range(len(LINE_DASHES))))
# matplotlib gets a colour of its own for each variable, which is replaced in what it writes.
COLOUR: Dict[str, str] = {name: f"#f1e2{i:02x}" for i, name in enumerate(_NAMES)}

# Points of a drawing, which the page scales to its width: a phone's is about 330.
WIDTH = 331

_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "nvswap", "text.parse_math": False,
          "font.size": 9, "axes.edgecolor": COLOUR["rule"], "axes.labelcolor": COLOUR["soft"],
          "axes.titlesize": 9, "axes.titlelocation": "left", "axes.titleweight": "bold",
          "axes.titlecolor": COLOUR["ink"], "axes.grid": True, "axes.axisbelow": True,
          "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
          "grid.color": COLOUR["rule"], "grid.linewidth": 0.7,
          "text.color": COLOUR["ink"], "xtick.color": COLOUR["soft"], "ytick.color": COLOUR["soft"],
          "xtick.major.size": 0, "ytick.major.size": 0, "xtick.minor.size": 0,
          "lines.linewidth": 1.5, "lines.markersize": 4}

_drawings = itertools.count(1)


class Drawing:
    """
    A figure of matplotlib.

    Attributes
    ----------
    figure : Figure
    titles : dict of str to str
        What a pointer over a part shows, by the gid of the part; see `titled`.
    """

    def __init__(self, height: float, width: float = WIDTH) -> None:
        self.figure = Figure(figsize=(width / 72, height / 72))
        FigureCanvasSVG(self.figure)
        self.titles: Dict[str, str] = {}

    def titled(self, title: str) -> str:
        """Returns the gid for a part with this title."""
        name = f"titled-{len(self.titles)}"
        self.titles[name] = title
        return name

    def svg(self, name: str) -> str:
        """The drawing as an element of HTML, called `name` by what reads it aloud."""
        stream = io.StringIO()
        self.figure.savefig(stream, format="svg", transparent=True,
                            metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        source = stream.getvalue()
        source = source[source.index("<svg"):]
        box = re.search(r'viewBox="[^"]*"', source)[0]
        source = re.sub(r"<svg[^>]*>", f'<svg {box} role="img" aria-label="{html.escape(name)}">',
                        source, count=1)
        source = re.sub(r"#f1e2([0-9a-f]{2})", lambda found: f"var(--{_NAMES[int(found[1], 16)]})",
                        source)
        return re.sub(r"\n\s*", "\n", self._renamed(source))

    def _renamed(self, source: str) -> str:
        """Only names that are referred to stay, each with this drawing's number."""
        used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', source))
        prefix = f"d{next(_drawings)}-"

        def named(found: "re.Match[str]") -> str:
            tag, name = found[1], found[2]
            if name in self.titles:
                return f"<{tag}><title>{html.escape(self.titles[name])}</title>"
            return f'<{tag} id="{prefix}{name}"' + found[3] if name in used else f"<{tag}{found[3]}"

        source = re.sub(r'<(g) id="(titled-\d+)"()>', named, source)
        source = re.sub(r'<(\w+) id="([^"]+)"([^>]*>)', named, source)
        return re.sub(r'(url\(#|href="#)', rf"\1{prefix}", source)


@contextmanager
def style() -> Iterator[None]:
    """Drawings are made within it: of the user's own settings of matplotlib none has effect."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def log_axis(axes: Any, which: str, least: float, most: float) -> None:
    """Makes the axis "x" or "y" one of times in nanoseconds, with ticks at 1, 2 and 5 of each power
    of ten, fewer if there are many powers."""
    powers = math.log10(most / least)
    getattr(axes, f"set_{which}scale")("log")
    getattr(axes, f"set_{which}lim")(least, most)
    axis = getattr(axes, f"{which}axis")
    digits = (1, 2, 5) if powers < 1.5 else (1, 3) if powers < 3 else (1,)
    axis.set_major_locator(LogLocator(subs=digits))
    axis.set_major_formatter(lambda ns, _: tick_duration(ns))
    axis.set_minor_locator(NullLocator())
