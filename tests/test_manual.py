#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
The manual pages say what is there: the prototypes of the public header, and the options that each
command lists under --help. And they are clean, as far as mandoc is here to tell.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMAND = ROOT / os.environ.get("BUILD", "build") / "nvswap"


def plain(text):
    return re.sub(r"\s*\*\s*", " *", " ".join(text.split())).replace("* *", "**")


def prototypes_of_header():
    header = (ROOT / "include/nvswap.h").read_text()
    for declaration in re.findall(r"^NVS_API\s+([^;]*);", header, re.M):
        yield plain(declaration.replace("(", " ("))


def prototypes_of_page():
    kind, name, arguments = None, None, []
    for line in (ROOT / "man/libnvswap.3").read_text().split(".Sh DESCRIPTION")[0].splitlines():
        macro, _, rest = line.partition(" ")
        if macro == ".Ft":
            kind = rest.strip('"')
        elif macro == ".Fo":
            name, arguments = rest, []
        elif macro == ".Fa":
            arguments.append(rest.strip('"'))
        elif macro == ".Fn":
            name, _, quoted = rest.partition(" ")
            arguments = re.findall(r'"([^"]*)"', quoted)
        if macro in (".Fn", ".Fc"):
            yield plain(f"{kind} {name} ({', '.join(arguments)})")


def same(what, here, there):
    for text in sorted(here ^ there):
        print(f"{what}: {text} is {'not in the page' if text in here else 'in the page alone'}")
    return here == there and bool(here)


def prototypes_are_the_headers():
    return same("prototype", set(prototypes_of_header()), set(prototypes_of_page()))


def options_are_those_of_help():
    agree = True
    page = (ROOT / "man/nvswap.1").read_text()
    for command in ("bench", "info"):
        text = subprocess.run([COMMAND, command, "--help"], check=True, text=True,
                              stdout=subprocess.PIPE).stdout
        section = re.search(rf"^\.Ss nvswap {command}$(.*?)^\.S[sh] ", page, re.M | re.S)[1]
        synopsis = re.search(rf"^\.Cm {command}$(.*?)^\.(Nm|Sh)", page, re.M | re.S)[1]
        listed = set(re.findall(r"^  --([a-z-]+)", text, re.M))
        for part in (synopsis, section):
            named = set(re.findall(r"^\.(?:It|Op) .*?$", part, re.M))
            named = {option for line in named for option in re.findall(r"Fl -([a-z-]+)", line)}
            agree = same(f"option of {command}", listed, named) and agree
    return agree


def pages_are_clean():
    if not shutil.which("mandoc"):
        return "no mandoc here"
    pages = sorted((ROOT / "man").iterdir())
    return subprocess.run(["mandoc", "-T", "lint", "-W", "warning", *pages]).returncode == 0


def main():
    status = 0
    for test in (prototypes_are_the_headers, options_are_those_of_help, pages_are_clean):
        result = test()
        if isinstance(result, str):
            print(f"skip {test.__name__}: {result}")
        else:
            print(f"{'ok' if result else 'not ok'} {test.__name__}", flush=True)
            status |= not result
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
