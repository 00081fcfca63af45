#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The manual pages, the README and docs/ agree with the public header and with --help: prototypes,
commands, options and links. mandoc, if installed, accepts the pages."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import checks

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BUILD", "build")
COMMAND = BUILD / "nvswap"


def plain(text):
    return re.sub(r"\s*\*\s*", " *", " ".join(text.split())).replace("* *", "**")


def prototypes_of_header():
    for header in (ROOT / "include/nvswap").glob("*.h"):
        for declaration in re.findall(r"^NVS_API\s+([^;]*);", header.read_text(), re.M):
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


def listed_by(*arguments, start):
    text = subprocess.run([COMMAND, *arguments, "--help"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    return re.findall(rf"^  {start}([a-z_-]+)", text, re.M)


def commands():
    return listed_by(start="(?!-)")


def options_are_those_of_help():
    agree = True
    page = (BUILD / "nvswap.1").read_text()
    for command in commands():
        section = re.search(rf"^\.Ss nvswap {command}$(.*?)^\.S[sh] ", page, re.M | re.S)[1]
        named = set(re.findall(r"^\.It Fl -([a-z-]+)", section, re.M))
        listed = set(listed_by(command, start="--"))
        agree = same(f"option of {command}", listed, named) and agree
    return agree


def keys_of_job_files_are_those_of_help():
    page = (BUILD / "nvswap.1").read_text()
    named = set(re.findall(r"^\.It Cm ([a-z_-]+)$", page, re.M))
    return same("key", set(listed_by("bench", start="(?!-)")), named)


def synopsis_has_every_command():
    page = (BUILD / "nvswap.1").read_text().split(".Sh DESCRIPTION")[0]
    return same("command", set(commands()), set(re.findall(r"^\.Cm ([a-z]+)$", page, re.M)))


def tables_in_documents_are_current():
    agree = True
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        now = subprocess.run([BUILD / "option-docs", document], check=True,
                             stdout=subprocess.PIPE).stdout
        if now != document.read_bytes():
            print(f"{document.relative_to(ROOT)} is not as \"make docs\" writes it")
            agree = False
    return agree


def links_in_documents_lead_to_files():
    agree, seen = True, 0
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")]:
        for link in re.findall(r"\]\(([^):#]+)\)", document.read_text()):
            seen += 1
            if not (document.parent / link).exists():
                print(f"{document.relative_to(ROOT)}: there is no {link}")
                agree = False
    return agree and seen > 10


def sources_named_in_documents_exist():
    sources = {str(path.relative_to(ROOT)) for folder in ("src", "include", "tests", "bench", "fuzz",
               "scripts", "examples", "python") for path in (ROOT / folder).rglob("*")}
    agree, seen = True, 0
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for name in re.findall(r"`([a-z][a-z0-9_/-]*\.(?:[ch]|sh|py|ini|json))`", document.read_text()):
            seen += 1
            if name != "ds_config.json" and not (ROOT / name).exists() and not any(
                    source.endswith(f"/{name}") for source in sources):
                print(f"{document.relative_to(ROOT)}: there is no {name}")
                agree = False
    return agree and seen > 50


def examples_name_options_that_are_there():
    known = {command: {"help", *listed_by(command, start="(?: +also )?--")}
             for command in commands()}
    agree, seen = True, 0
    for document in [ROOT / "README.md", BUILD / "nvswap.1", *sorted((ROOT / "docs").glob("*.md"))]:
        text = document.read_text().replace("\\e\n.Dl", "").replace("\\\n", "")
        for command, rest in re.findall(r"nvswap ([a-z]+)([^\n`]*)", text):
            for option in re.findall(r"(?<=\s)--([a-z][a-z-]*)", rest) if command in known else ():
                seen += 1
                if option not in known[command]:
                    print(f"{document.name}: nvswap {command} has no --{option}")
                    agree = False
    return agree and seen > 10


def pages_are_clean():
    if not shutil.which("mandoc"):
        return "no mandoc here"
    pages = [BUILD / "nvswap.1", ROOT / "man/libnvswap.3"]
    return subprocess.run(["mandoc", "-T", "lint", "-W", "warning", *pages]).returncode == 0


def main():
    return checks.run((prototypes_are_the_headers, options_are_those_of_help,
                       keys_of_job_files_are_those_of_help, synopsis_has_every_command,
                       tables_in_documents_are_current, links_in_documents_lead_to_files,
                       sources_named_in_documents_exist, examples_name_options_that_are_there,
                       pages_are_clean))


if __name__ == "__main__":
    sys.exit(main())
