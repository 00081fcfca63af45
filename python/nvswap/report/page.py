# SPDX-License-Identifier: Apache-2.0
"""The page: a frame with its style, for narrow and wide screens, light, dark and print."""

from typing import List

from nvswap.report.drawing import style
from nvswap.report.elements import escape
from nvswap.report.latency import bench_sections, compare_sections
from nvswap.report.results import Result, ResultError, text
from nvswap.report.tune import tune_sections

# The ten colours of maps have equal steps of lightness in OKLCH at one hue.
STYLE = """
:root { color-scheme: light dark; --paper: #fff; --card: #f5f7fa; --rule: #d3dae3; --ink: #0b1220;
 --soft: #56606e; --accent: #1f5fbf; --second: #a8420a; --band: #d9ecd9; --warn: #fff1e0;
 --warn-ink: #7a2e00; --good: #0b6b3a; --bad: #a8270a;
 --q0: #ecf5fe; --q1: #c4e1ff; --q2: #9cccff; --q3: #77b7f9; --q4: #5aa2e9;
 --q5: #408dd6; --q6: #2a78c0; --q7: #1764a7; --q8: #08518b; --q9: #043f6e;
 --t0: #0b1220; --t1: #0b1220; --t2: #0b1220; --t3: #0b1220; --t4: #0b1220; --t5: #0b1220;
 --t6: #fff; --t7: #fff; --t8: #fff; --t9: #fff;
 --c0: #0b1220; --c1: #0072b2; --c2: #c24e00; --c3: #00805d; --c4: #a84a83; --c5: #8a6a00; }
@media screen and (prefers-color-scheme: dark) { :root { --paper: #10151d; --card: #18202b;
 --rule: #364252; --ink: #e8edf4; --soft: #a3afbf; --accent: #7db4ff; --second: #ffb066;
 --band: #1f3a2a; --warn: #3a2508; --warn-ink: #ffd9a8; --good: #6fd49b; --bad: #ff9b85;
 --q0: #022749; --q1: #033966; --q2: #0c4c82; --q3: #1c609d; --q4: #2e75b7;
 --q5: #448acf; --q6: #5da0e3; --q7: #78b6f6; --q8: #9dccfe; --q9: #c6e1ff;
 --t0: #fff; --t1: #fff; --t2: #fff; --t3: #fff; --t4: #fff;
 --t5: #0b1220; --t6: #0b1220; --t7: #0b1220; --t8: #0b1220; --t9: #0b1220;
 --c0: #e8edf4; --c1: #56b4e9; --c2: #ff9d5c; --c3: #3fc79e; --c4: #e79cc7; --c5: #e8c44a; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0 auto; padding: 16px; max-width: 1240px; background: var(--paper);
 color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1, h2, h3, h4 { line-height: 1.25; margin: 0 0 6px; }
h1 { font-size: 1rem; color: var(--soft); } h2 { font-size: 1.9rem; } h3 { font-size: 1.25rem; }
h4 { margin-top: 16px; } article { margin: 24px 0 48px; }
section { margin-top: 32px; min-width: 0; }
p { margin: 4px 0 12px; max-width: 46rem; }
.warning { border-left: 6px solid var(--second); background: var(--warn); color: var(--warn-ink);
 padding: 12px 16px; border-radius: 4px; }
.tiles { display: grid; gap: 12px;
 grid-template-columns: repeat(auto-fit, minmax(min(100%, 150px), 1fr)); }
.tiles div, pre { background: var(--card); border-radius: 8px; padding: 12px 16px; }
dt { color: var(--soft); font-size: .875rem; }
dd { margin: 0; font-size: 1.375rem; font-weight: 600; }
dd + dd { font-size: .875rem; font-weight: 400; color: var(--soft); }
pre { margin: 0; white-space: pre-wrap; font: .875rem/1.5 ui-monospace, monospace; }
.figures, .pair { display: grid; gap: 24px 32px;
 grid-template-columns: repeat(auto-fit, minmax(min(100%, 350px), 1fr)); }
figure { margin: 0; min-width: 0; } .wide { grid-column: 1 / -1; }
figcaption { font-size: .875rem; font-weight: 600; margin-bottom: 6px; }
svg { display: block; width: 100%; height: auto; max-width: 30rem; }
.wide svg { min-width: 36rem; max-width: 60rem; }
svg text { font-family: system-ui, sans-serif !important; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 14px 4px 0; text-align: right; vertical-align: top; white-space: nowrap;
 border-bottom: 1px solid var(--rule); }
th:first-child { text-align: left; } thead th { white-space: normal; min-width: 4rem; }
tbody th, small { font-weight: 400; color: var(--soft); } small { display: block; }
td strong { display: block; } .better { color: var(--good); } .worse { color: var(--bad); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 8px 0; padding: 0;
 list-style: none; }
.legend svg { display: inline-block; width: 30px; height: 10px; margin-right: 6px; }
summary { cursor: pointer; padding: 6px 0; font-weight: 600; }
footer { border-top: 1px solid var(--rule); color: var(--soft); font-size: .875rem; }
@media (min-width: 600px) { body { padding: 32px; } }
@media print { * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
 body { padding: 0; font-size: 12px; } figure, li { break-inside: avoid; }
 .scroll { overflow: visible; }
 details:not([open])::details-content { content-visibility: visible; block-size: auto; } }
"""


def _article(result: Result) -> str:
    try:
        if result.kind == "tune":
            title, sections = tune_sections(result.data)
        elif result.kind == "compare":
            title, sections = compare_sections(result.data)
        else:
            title, sections = bench_sections(result.data, result.label)
    except ResultError as error:
        raise ResultError(f"{result.path} is no result of nvswap {result.kind}: {error}") from None
    return f"<article>\n<h2>{escape(title)}</h2>\n{sections}\n</article>"


def page_of(results: List[Result]) -> str:
    """
    Draws results.

    Raises
    ------
    ResultError
        A result lacks what its command writes; names the file.
    """
    with style():
        articles = [_article(result) for result in results]
    name = escape(f"nvswap: {', '.join(result.label for result in results)}")
    versions = {text(result.data, "tune", "nvswap version") or text(result.data, "nvswap version")
                for result in results} - {""}
    written = f"Measured by nvswap {escape(', '.join(sorted(versions)))}. " if versions else ""
    return "\n".join((
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{name}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{name}</h1>\n<main>",
        *articles,
        f"</main>\n<footer>{written}GB and MB are 10<sup>9</sup> and 10<sup>6</sup> bytes; KiB, "
        "MiB and GiB are powers of 1024.</footer>\n</body>\n</html>\n"))
