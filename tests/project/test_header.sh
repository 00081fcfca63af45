#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The public header, and each header of include/nvswap/ alone, compile as strict C11 and C++17 with
# each compiler that is installed. The errors of each function are a list, one a line.
#
# A program that was compiled against smaller structures goes on working: smaller/program.c is compiled
# against copies of the headers in which each structure that begins with its size lacks its last fields, is
# linked with the library of now, and runs.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
build=${BUILD:-build}
read -ra sanitize <<<"${SANITIZE_FLAGS:-}"
work=$build/smaller
# shellcheck source=tests/support/check.sh
. tests/support/check.sh

# Each header in a translation unit of its own.
each_compiles() {
	local header
	for header in nvswap.h $(cd include && echo nvswap/*.h); do
		echo "#include \"$header\"" | "$@" -fsyntax-only -Wall -Wextra -Wpedantic -Wundef \
			-Werror -Iinclude - || return
	done
}

compiles() {
	local name=$1 language=$2
	shift 2
	! left_out "$name" || return 0
	if ! command -v "$1" >/dev/null; then
		echo "skip $name: no $1 here"
	else
		check "$name" each_compiles "$@" -x "$language"
	fi
}

# A comment that is filled to the line runs a list of errors together.
errors_are_a_list() {
	! grep -nE -- '-E[A-Z0-9]{2,}.*-E[A-Z0-9]{2,}|Errors:.* -E[A-Z0-9]{2,}' include/*.h include/nvswap/*.h
}

# The comment before a function, or before the functions that it shares it with, has "Errors:" or
# "Errors, with which nothing is started:".
all_have_errors() {
	awk '/^\/\*/ { told = 0 }
	     /^ \* Errors.*(:$|: those )/ { told = 1 }
	     /^NVS_API (int|long) / && !told { print FILENAME ":" FNR ": no errors: " $0; bad = 1 }
	     END { exit bad }' include/nvswap/*.h
}

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

compiles_against_smaller() {
	"${CC:-gcc}" -std=gnu11 -Wall -Wextra -Werror "${sanitize[@]}" -I"$work" -o "$work/program" \
		tests/project/smaller/program.c -L"$build" -lnvswap
}

runs() { mkdir -p "$work/data" && LD_LIBRARY_PATH=$build "$work/program" "$work/data"; }

compiles header_is_c11_gcc c gcc -std=c11 -Wstrict-prototypes
compiles header_is_c11_clang c clang -std=c11 -Wstrict-prototypes
compiles header_is_cxx17_gcc c++ g++ -std=c++17
compiles header_is_cxx17_clang c++ clang++ -std=c++17
check errors_are_a_list_one_a_line errors_are_a_list
check all_functions_that_fail_list_their_errors all_have_errors
check the_structures_can_be_cut cut_headers
check a_program_compiles_against_smaller_structures compiles_against_smaller
check a_program_with_smaller_structures_goes_on_working runs
exit $status
