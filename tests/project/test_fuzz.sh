#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs each fuzz target from its seeds for a fixed number of inputs, the same in each run; `make fuzz`
# runs them at length, and test_fuzz_seeds.sh the seeds without a fuzzer. The targets are built with
# sanitizers, so a sanitized build skips this test.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
export BUILD=${BUILD:-build}
# shellcheck source=tests/support/check.sh
. tests/support/check.sh
targets=$(basename -s .c fuzz/fuzz_*.c | sed 's/^fuzz_//')

skip_all() {
	for target in $targets; do
		echo "skip fuzz_${target}_keeps_its_promises: $1"
	done
	exit 0
}

[ -z "${SANITIZE_FLAGS:-}" ] || skip_all "the plain build's tests run it, under sanitizers of its own"
command -v clang >/dev/null || skip_all "no clang here"
runtime=$(clang -print-file-name="libclang_rt.fuzzer-$(uname -m).a")
[ -e "$runtime" ] || skip_all "clang has no $runtime here"
env -u MAKEFLAGS -u MAKELEVEL -u CC -u CFLAGS -u SANITIZE_FLAGS \
	make --no-print-directory BUILD="$BUILD" fuzz-build || exit

for target in $targets; do
	check "fuzz_${target}_keeps_its_promises" fuzz/run --runs 10000 "$target"
done
exit $status
