#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The command under each limit on open files, from the least with which it starts: what fails for the limit
# says so, with the way to raise it, and leaves nothing.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. tests/support/command.sh

mkdir "$T/store" "$T/kept"
printf '{"nvswap": {"keep": true, "param_nvme_path": "%s"}, "zero_optimization": {"offload_param": {"device": "nvme"}}}' \
	"$T/kept" >"$T/keep.json"
"$NVSWAP" bench --nvme-path "$T/store" --tensors 1 --tensor-size 1m --output-format json --output "$T/result.json"

# each_limit NAME ARGUMENT...: runs nvswap under limits until it succeeds; each failure must name the limit
each_limit() {
	local name=$1 n failed=0 wrong=
	shift
	for n in $(seq 3 60); do
		if (ulimit -n "$n" && exec "$NVSWAP" "$@") >"$T/out" 2>"$T/err"; then
			break
		fi
		failed=$((failed + 1))
		# Below some number not even the loader gets libraries.
		grep -q "error while loading shared libraries" "$T/err" && continue
		grep -q "ulimit -n" "$T/err" "$T/out" || wrong="$wrong with $n: $(head -n 3 "$T/err")"
	done
	[ "$failed" -gt 0 ] && [ "$n" -lt 60 ] && [ -z "$wrong" ] && [ -z "$(ls -A "$T/store")" ]
	result "$name" $? "$failed failures; no ulimit -n $wrong; left: $(ls -A "$T/store")"
}

small=(--nvme-path "$T/store" --tensors 2 --tensor-size 64k --pool 1m)
each_limit a_bench_at_the_limit_of_open_files_says_so bench "${small[@]}"
each_limit a_step_at_the_limit_of_open_files_says_so bench "${small[@]}" --rw step --pool 16m
each_limit a_file_s_job_at_the_limit_of_open_files_says_so bench --directory "$T/store" --rw randread --size 1m --bs 64k
each_limit a_comparison_at_the_limit_of_open_files_says_so compare "$T/result.json" "$T/result.json"
each_limit info_at_the_limit_of_open_files_says_so info --nvme-path "$T/store"
[ $failures = 0 ]
