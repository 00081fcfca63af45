#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The public header, and each header of include/nvswap/ alone, compile as strict C11 and C++17 with
# each compiler that is installed. The errors of each function are a list, one a line.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
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

compiles header_is_c11_gcc c gcc -std=c11 -Wstrict-prototypes
compiles header_is_c11_clang c clang -std=c11 -Wstrict-prototypes
compiles header_is_cxx17_gcc c++ g++ -std=c++17
compiles header_is_cxx17_clang c++ clang++ -std=c++17
check errors_are_a_list_one_a_line errors_are_a_list
check all_functions_that_fail_list_their_errors all_have_errors
exit $status
