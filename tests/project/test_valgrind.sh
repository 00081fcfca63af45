#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Valgrind finds no use of uninitialised memory, which the sanitizers of `make asan` do not look for, in the
# tests of transfers, of files and of an engine's note.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
build=${BUILD:-build}
# shellcheck source=tests/support/check.sh
. tests/support/check.sh

finds_nothing() {
	valgrind -q --error-exitcode=99 "$build/tests/$1" >"$temporary" 2>&1 && return
	grep -E '^==|^not ok|^valgrind: ' "$temporary" | head -n 40
	return 1
}

temporary=$(mktemp)
trap 'rm -f "$temporary"' EXIT
for program in aio/test_transfers aio/test_file swap/test_swap_note; do
	name=valgrind_finds_nothing_in_${program##*/test_}
	if [ -n "${SANITIZE:-}" ]; then
		echo "skip $name: a build with sanitizers does not run under valgrind"
	elif ! command -v valgrind >/dev/null; then
		echo "skip $name: valgrind is not installed"
	else
		check "$name" finds_nothing "$program"
	fi
done
exit $status
