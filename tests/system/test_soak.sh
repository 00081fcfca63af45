#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A short `make soak`: contents are correct, and files, threads, stores and memory do not grow.
# Works in its own directory under the build directory.

cd "$(dirname "$0")/../.." || exit
. tests/support/command.sh

"$BUILD/bench/soak" --directory "$T" --seconds 2 --seed 20240229 >"$T.out" 2>&1
result nothing_grows_from_round_to_round $? "$(cat "$T.out")"
rm -f "$T.out"

# `make soak` gives all programs the same options.
refused=
for program in test_histories test_kill; do
	"$BUILD/tests/system/$program" soak --minutes soon >/dev/null 2>&1
	refused=$refused$?
done
[ "$refused" = 22 ]
result a_soak_refuses_a_time_that_is_no_number $?
[ $failures = 0 ]
