#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A short `make soak`: contents are correct, and files, threads, stores and memory do not grow.
# Works in its own directory under the build directory.

BUILD=${BUILD:-build}
mkdir -p "$BUILD/tmp"
T=$(mktemp -d "$BUILD/tmp/soak.XXXXXX")
trap 'rm -rf "$T"' EXIT

if "$BUILD/bench/soak" --directory "$T" --seconds 2 --seed 20240229 >"$T.out" 2>&1; then
	echo "ok nothing_grows_from_round_to_round"
else
	sed 's/^/  /' "$T.out"
	echo "not ok nothing_grows_from_round_to_round"
	failed=1
fi
rm -f "$T.out"

# `make soak` gives all programs the same options.
refused=0
for program in test_histories test_kill; do
	"$BUILD/tests/system/$program" soak --minutes soon >/dev/null 2>&1
	[ $? -eq 2 ] && refused=$((refused + 1))
done
if [ "$refused" -eq 2 ]; then
	echo "ok a_soak_refuses_a_time_that_is_no_number"
else
	echo "not ok a_soak_refuses_a_time_that_is_no_number"
	failed=1
fi
exit "${failed:-0}"
