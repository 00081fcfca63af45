#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The command, the library and the Python extension are hardened as the Makefile says: readelf and nm read it back.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
build=${BUILD:-build}
# shellcheck source=tests/support/check.sh
. tests/support/check.sh

binds_all_symbols_at_start() {
	readelf -lW "$1" | grep GNU_RELRO >/dev/null && readelf -dW "$1" | grep BIND_NOW >/dev/null
}

# Each of these reads all of its input: with pipefail, grep -q would fail the pipe.
calls() { # FILE PATTERN
	readelf --dyn-syms -W "$1" | awk '$7 == "UND" { print $8 }' | grep "$2" >/dev/null
}

has_no_executable_stack() {
	! readelf -lW "$1" | grep "GNU_STACK.* RWE " >/dev/null
}

is_position_independent() {
	readelf -dW "$1" | grep 'FLAGS_1.*PIE' >/dev/null
}

marks_branch_targets() {
	readelf -nW "$1" | grep 'IBT, SHSTK' >/dev/null
}

for file in nvswap libnvswap.so; do
	check "${file}_has_full_relro" binds_all_symbols_at_start "$build/$file"
	check "${file}_has_no_executable_stack" has_no_executable_stack "$build/$file"
	check "${file}_protects_its_stack" calls "$build/$file" '^__stack_chk_fail'
	if [ -n "${SANITIZE:-}" ] || [[ " ${CFLAGS:--O2} " != *" -O"[1-9s]* ]]; then
		echo "skip ${file}_checks_buffers: FORTIFY needs an optimised build without sanitizers"
	else
		check "${file}_checks_buffers" calls "$build/$file" '^__snprintf_chk'
	fi
done
extension=$build/python/nvswap/_native.abi3.so
for check in binds_all_symbols_at_start has_no_executable_stack; do
	if [ -n "${SANITIZE:-}" ] && [ ! -e "$extension" ]; then
		echo "skip the_python_extension_$check: the package is not built with this sanitizer"
	else
		check "the_python_extension_$check" $check "$extension"
	fi
done
check nvswap_is_position_independent is_position_independent "$build/nvswap"
# The C library's own start files may lack the mark, so the library's merged object is looked at.
if [ "$(uname -m)" = x86_64 ]; then
	check libnvswap_marks_the_targets_of_branches marks_branch_targets "$build/libnvswap.o"
else
	echo "skip libnvswap_marks_the_targets_of_branches: looks for the marks of x86-64"
fi
exit $status
