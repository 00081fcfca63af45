#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs each fuzz target from its seeds for a fixed number of inputs, the same in each run; `make fuzz`
# runs them at length, and test_fuzz_seeds.sh the seeds without a fuzzer. The targets are built with
# sanitizers, so a sanitized build skips this test.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
build=${BUILD:-build}
status=0

targets() {
	for source in fuzz/fuzz_*.c; do
		basename "$source" .c | sed 's/^fuzz_//'
	done
}

skip_all() {
	for target in $(targets); do
		echo "skip fuzz_${target}_keeps_its_promises: $1"
	done
	exit 0
}

[ -z "${SANITIZE_FLAGS:-}" ] || skip_all "the plain build's tests run it, under sanitizers of its own"
command -v clang >/dev/null || skip_all "no clang here"
runtime=$(clang -print-file-name="libclang_rt.fuzzer-$(uname -m).a")
[ -e "$runtime" ] || skip_all "clang has no $runtime here"
env -u MAKEFLAGS -u MAKELEVEL -u CC -u CFLAGS -u SANITIZE_FLAGS \
	make --no-print-directory BUILD="$build" fuzz-build || exit

for target in $(targets); do
	if BUILD=$build fuzz/run --runs 10000 "$target"; then
		echo "ok fuzz_${target}_keeps_its_promises"
	else
		echo "not ok fuzz_${target}_keeps_its_promises"
		status=1
	fi
done
exit $status
