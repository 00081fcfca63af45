#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Each fuzz target keeps its promises for its seeds, without a fuzzer; test_fuzz.sh makes inputs of them.
# shellcheck disable=SC2317 # check() calls the functions
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
build=${BUILD:-build}
# shellcheck source=tests/support/check.sh
. tests/support/check.sh

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# The program prints the name of each input before the target gets it.
replays() {
	"$build/fuzz/replay_$1" "fuzz/corpus/$1"/* >"$log" 2>&1 &&
		[ "$(grep -c "^fuzz/corpus/$1/" "$log")" = "$(find "fuzz/corpus/$1" -type f | wc -l)" ] && return
	tail -n 40 "$log"
	return 1
}

for source in fuzz/fuzz_*.c; do
	target=$(basename "$source" .c)
	check "seeds_of_${target}_keep_its_promises" replays "${target#fuzz_}"
done

# Otherwise only the reader of job files is fuzzed, and no plan.
are_planned() {
	A=4k EMPTY='' "$build/nvswap" bench --dry-run --directory "$build" \
		fuzz/corpus/jobfile/{clones,fio,stages,values,variables,windows} >"$log" 2>&1 || { cat "$log" && return 1; }
}
check seeds_of_job_files_are_planned are_planned
exit $status
