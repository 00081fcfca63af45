#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A program that was compiled against smaller structures goes on working: smaller/program.c is compiled
# against copies of the headers in which each structure that begins with its size lacks its last fields, is
# linked with the library of now, and runs.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
build=${BUILD:-build}
cc=${CC:-gcc}
read -ra sanitize <<<"${SANITIZE_FLAGS:-}"
work=$build/smaller
# shellcheck source=tests/support/check.sh
. tests/support/check.sh

cut_headers() {
	rm -rf "$work" && mkdir -p "$work/nvswap" && cp include/nvswap.h "$work" &&
		python3 - include/nvswap "$work/nvswap" <<'PYTHON'
import pathlib, re, sys

cut = []


def smaller(found):
    declarations, depth, last = [], 0, 0
    body = re.sub(r"/\*.*?\*/", "", found[2], flags=re.S)
    for at, letter in enumerate(body):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == ";" and not depth:
            declarations.append(body[last:at + 1])
            last = at + 1
    if len(declarations) < 3:
        return found[0]
    cut.append(found[1])
    return f"struct {found[1]} {{{''.join(declarations[:-1])}\n}};"


for header in pathlib.Path(sys.argv[1]).glob("*.h"):
    text = re.sub(r"^struct (\w+) \{(\n\tsize_t size;.*?)^\};", smaller, header.read_text(),
                  flags=re.S | re.M)
    (pathlib.Path(sys.argv[2]) / header.name).write_text(text)
print(len(cut), "structures lack their last fields:", *cut)
sys.exit(len(cut) < 30)
PYTHON
}

compiles() {
	"$cc" -std=gnu11 -Wall -Wextra -Werror "${sanitize[@]}" -I"$work" -o "$work/program" \
		tests/project/smaller/program.c -L"$build" -lnvswap
}

runs() { mkdir -p "$work/data" && LD_LIBRARY_PATH=$build "$work/program" "$work/data"; }

check the_structures_can_be_cut cut_headers
check a_program_compiles_against_smaller_structures compiles
check a_program_with_smaller_structures_goes_on_working runs
exit $status
