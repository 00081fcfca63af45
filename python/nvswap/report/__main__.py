# SPDX-License-Identifier: Apache-2.0
"""The command line of `python -m nvswap.report`, from its arguments to the file."""

import argparse
import os
import stat
import sys
import tempfile
from typing import List

from nvswap.report.results import ResultError, read_result

MATPLOTLIB_IS_MISSING = ("matplotlib, which draws the page, is missing: install it by "
                         "apt-get install python3-matplotlib, or pip install 'nvswap[report]'")


def write_page(path: str, text: str) -> None:
    """
    Replaces a file by the page as a whole, or writes to a device, a pipe or, for "-", to standard
    output.

    Raises
    ------
    ResultError
        The path is a symbolic link, which another user may have planted.
    OSError
    """
    if path == "-":
        print(text, end="", flush=True)
        return
    if os.path.islink(path):
        raise ResultError(f"{path} is a symbolic link, which is not followed; name the file itself")
    exists = os.path.exists(path)
    if exists and not stat.S_ISREG(os.stat(path).st_mode):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return
    mask = os.umask(0)
    os.umask(mask)
    mode = stat.S_IMODE(os.stat(path).st_mode) if exists else 0o666 & ~mask
    handle, beside = tempfile.mkstemp(prefix=".nvswap.", dir=os.path.dirname(path) or ".")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def draw(paths: List[str], output: str) -> None:
    """Reads all results, then draws and writes the page."""
    results = [read_result(path) for path in paths]
    for path in paths:
        if os.path.exists(output) and os.path.samefile(path, output):
            raise ResultError(f"{output} is a result: give another file for the page")
    try:
        from nvswap.report.page import page_of
    except ImportError as error:
        raise ResultError(MATPLOTLIB_IS_MISSING if error.name == "matplotlib"
                          else f"matplotlib can't be loaded: {error}") from None
    write_page(output, page_of(results))


def main() -> int:
    """Returns the exit status: 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(
        prog="python3 -m nvswap.report",
        description="Draws a page of HTML from results: heat maps, the curve over the depth and "
                    "the finalists of tune; tables, latency histograms and percentiles of bench, "
                    "fio and compare. The page is one file that loads nothing.")
    parser.add_argument("results", metavar="RESULT.json", nargs="+",
                        help="what --output-format json (json+ for histograms) --output "
                             "RESULT.json of nvswap bench, tune or compare has written, or fio's")
    parser.add_argument("-o", "--output", metavar="PAGE.html", required=True,
                        help="the page, which replaces a file as a whole; - is standard output")
    arguments = parser.parse_args()
    try:
        draw(arguments.results, arguments.output)
    except ResultError as error:
        reason = str(error)
    except OSError as error:
        reason = f"can't write {arguments.output}: {error.strerror}"
    else:
        return 0
    print(f"nvswap.report: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
