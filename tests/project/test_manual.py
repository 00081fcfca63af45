#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each exported function has a manual page with its prototype and its errors, and the examples in the
headers compile. The pages, the README and docs/ agree with --help: commands, options and links. mandoc, if
installed, accepts the pages."""

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
PAGES = BUILD / "man"
# What the examples of the headers have as variables of the reader's program.
EXAMPLE_VARIABLES = """
#include <errno.h>
#include <nvswap.h>
#include <stdio.h>
enum { cudaHostRegisterPortable };
int cudaHostRegister(void *, size_t, unsigned), cudaHostUnregister(void *);
extern struct nvs_config *config, *other;
extern struct nvs_error error;
extern struct nvs_engine *engine, *second;
extern struct nvs_optimizer *optimizer;
extern struct nvs_aio *aio;
extern struct nvs_file *file;
extern struct nvs_request *request, *requests[2];
extern struct nvs_tensor *tensor;
extern struct nvs_checkpoint *checkpoint;
extern struct nvs_checkpoint_item items[1];
extern struct nvs_group_spec groups[1];
extern struct nvs_store *store;
extern struct nvs_store_place place;
extern struct nvs_trace *trace;
extern enum nvs_ioengine ioengine;
extern void *memory, *data, *row, *output, *note;
extern const void *input;
extern float *values, *master, *exp_avg, *exp_avg_sq;
extern size_t n, nbytes, which;
extern uint64_t numel, offset, number, pin, from_ns, to_ns;
extern double real, loss, squares[];
extern void *weights[];
extern char text[64];
extern int rc, fd;
void handle_signals(void);
nvs_log_fn log_line;
nvs_state_fn write_run, read_run;
"""


def same(what, here, there):
    for text in sorted(here ^ there):
        print(f"{what}: {text} is {'not in the page' if text in here else 'in the page alone'}")
    return here == there and bool(here)


def text_of(page):
    """The page as it is read, without what a formatter does to lines."""
    text = page.read_text()
    if text.startswith(".so man3/"):
        text = (PAGES / text.split("/")[1].strip()).read_text()
    return " ".join(re.sub(r"\\f[BIP]|^\.(?:B|I|PP|nf|fi)\b", "", text, flags=re.M).replace("\\-", "-").split())


def each_exported_function_has_a_page():
    symbols = subprocess.run(["nm", "-D", "--defined-only", BUILD / "libnvswap.so"], check=True, text=True,
                             stdout=subprocess.PIPE).stdout
    exported = set(re.findall(r" T (nvs_\w+)", symbols))
    agree = same("page", exported, {page.stem for page in PAGES.glob("nvs_*.3")})
    for name in exported if agree else ():
        text = text_of(PAGES / f"{name}.3")
        named = re.search(r"\.SH NAME (?:nvs_\w+, )*" + name + r"(?:, nvs_\w+)* - \S+ \S+", text)
        told = re.search(r"\.SH DESCRIPTION [A-Z`\\]", text)
        if not named or not told or ".SH EXAMPLES" not in text:
            print(f"{name}.3 has no summary, description or example")
            agree = False
    return agree


def pages_have_prototypes_and_errors():
    agree, seen = True, 0
    for header in (ROOT / "include/nvswap").glob("*.h"):
        for kind, name, arguments in re.findall(r"^NVS_API\s+([^;]*?)(nvs_\w+)\(([^;]*)\);", header.read_text(), re.M):
            seen += 1
            text = text_of(PAGES / f"{name}.3")
            prototype = " ".join(f"{kind}{name}({arguments});".split())
            if prototype not in text or (kind == "int " and ".SH ERRORS" not in text):
                print(f"{name}.3 has not {prototype}, or no errors")
                agree = False
    return agree and seen > 100


def examples_in_headers_compile():
    """Each in a function of its own. "..." stands for what the reader does."""
    source = EXAMPLE_VARIABLES
    for number, example in enumerate(
            example for header in sorted((ROOT / "include/nvswap").glob("*.h"))
            for example in re.findall(r"(?:^ \*\t.*\n|^ \*\n(?= \*\t))+", header.read_text(), re.M)):
        code = re.sub(r"^ \*\t\.\.\..*|^ \*\t?", "", example, flags=re.M)
        source += f"void example_{number}(void);\nvoid example_{number}(void) {{\n{code}}}\n"
    compiler = os.environ.get("CC", "gcc")
    return "example_20" in source and subprocess.run(
        [compiler, "-std=gnu11", "-Wall", "-Wno-unused", "-Werror", "-fsyntax-only", f"-I{ROOT}/include",
         "-xc", "-"], input=source, text=True).returncode == 0


def listed_by(*arguments, start):
    text = subprocess.run([COMMAND, *arguments, "--help"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    return re.findall(rf"^  {start}([a-z_-]+)", text, re.M)


def commands():
    return listed_by(start="(?!-)")


def commands_options_and_keys_are_those_of_help():
    page = (BUILD / "nvswap.1").read_text()
    agree = same("command", set(commands()),
                 set(re.findall(r"^\.Cm ([a-z]+)$", page.split(".Sh DESCRIPTION")[0], re.M)))
    for command in commands():
        section = re.search(rf"^\.Ss nvswap {command}$(.*?)^\.S[sh] ", page, re.M | re.S)[1]
        agree &= same(f"option of {command}", set(listed_by(command, start="--")),
                      set(re.findall(r"^\.It Fl -([a-z-]+)", section, re.M)))
    return agree & same("key", set(listed_by("bench", start="(?!-)")),
                        set(re.findall(r"^\.It Cm ([a-z_-]+)$", page, re.M)))


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
    theirs = ("ds_config.json", "zero_to_fp32.py", "ds_to_universal.py")  # DeepSpeed's
    sources = {str(path.relative_to(ROOT)) for folder in ("src", "include", "tests", "bench", "fuzz",
               "scripts", "examples", "python") for path in (ROOT / folder).rglob("*")}
    agree, seen = True, 0
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for name in re.findall(r"`([a-z][a-z0-9_/-]*\.(?:[ch]|sh|py|ini|json))`", document.read_text()):
            seen += 1
            if name not in theirs and not (ROOT / name).exists() and not any(
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
    pages = [BUILD / "nvswap.1", *(page for page in PAGES.glob("*.3") if not page.read_text().startswith(".so"))]
    return subprocess.run(["mandoc", "-T", "lint", "-W", "warning", *pages]).returncode == 0


def main():
    return checks.run((each_exported_function_has_a_page, pages_have_prototypes_and_errors,
                       examples_in_headers_compile, commands_options_and_keys_are_those_of_help,
                       tables_in_documents_are_current, links_in_documents_lead_to_files,
                       sources_named_in_documents_exist, examples_name_options_that_are_there,
                       pages_are_clean))


if __name__ == "__main__":
    sys.exit(main())
