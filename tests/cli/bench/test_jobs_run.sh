#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The job files of bench/jobs, each as its head says it is run, only smaller: every job moves bytes
# and ends well. What fio is to run too, it takes unchanged.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
build=${BUILD:-build}
nvswap=$PWD/$build/nvswap
status=0

mkdir -p "$build/tmp"
work=$(mktemp -d "$build/tmp/jobs-XXXXXX") || exit
trap 'rm -rf "$work"' EXIT
work=$(realpath "$work")
mkdir "$work/drive"

judge() {
	if [ "$2" = 0 ]; then
		echo "ok $1"
	else
		echo "not ok $1"
		cat "$work"/out "$work"/err >&2
		status=1
	fi
}

# Typed options hold over those of the file. Nothing that small would leave the memory by itself, and
# the first tensor of a large model is not small.
run_small() {
	local smaller=(--size 8m --loops 1 --runtime 200ms --ramp-time 0 --compute-us 100 --verify
		--max-in-cpu 0)

	[ "$1" = params-8b ] && smaller+=(--model bench/models/gpt2.json --pool 512m)
	DIRECTORY="$work/drive" timeout 120 "$nvswap" bench "bench/jobs/$1.ini" \
		--directory "$work/drive" "${smaller[@]}" --output-format json --eta never \
		>"$work/out" 2>"$work/err"
}

# Each section but [global] has its jobs, in order, and each of them moved something.
check_jobs() {
	"${PYTHON:-python3}" - "bench/jobs/$1.ini" "$work/out" <<'EOF'
import json, re, sys
names = [n for n in re.findall(r"^\[(.+)\]$", open(sys.argv[1]).read(), re.M) if n != "global"]
jobs = json.load(open(sys.argv[2]))["jobs"]
told = list(dict.fromkeys(job["jobname"] for job in jobs))
assert told == names, (told, names)
for job in jobs:
    assert job["error"] == 0, job
    assert job["read"]["io_bytes"] + job["write"]["io_bytes"], job
EOF
}

for file in bench/jobs/*.ini; do
	name=$(basename "$file" .ini)
	run_small "$name" && check_jobs "$name" 2>>"$work/err" && [ -z "$(ls -A "$work/drive")" ]
	judge "${name}_runs_every_job_and_leaves_nothing" $?
	head -n 20 "$file" | grep -q "^;.*nvswap bench bench/jobs/$name.ini" &>"$work/out"
	judge "${name}_says_how_to_run_it" $?
done

if command -v fio >/dev/null; then
	DIRECTORY="$work/drive" fio --parse-only bench/jobs/fio-own.ini >"$work/out" 2>"$work/err" &&
		! grep -qi "bad option\|failed\|dropped" "$work/out" "$work/err"
	judge "fio_takes_its_own_job_file_unchanged" $?
	sed 's/^size=.*/size=1m/; s/^runtime=.*/runtime=100ms/; s/^ramp_time=.*//; s/^ioengine=.*/ioengine=libaio/' \
		bench/jobs/fio-own.ini >"$work/own.ini"
	DIRECTORY="$work/drive" fio "$work/own.ini" >"$work/out" 2>"$work/err" &&
		[ -z "$(ls -A "$work/drive")" ]
	judge "fio_leaves_nothing_that_nvswap_would_stop_at" $?
	rm -f "$work"/drive/*
else
	echo "skip fio_takes_its_own_job_file_unchanged: no fio here"
	echo "skip fio_leaves_nothing_that_nvswap_would_stop_at: no fio here"
fi

sed -n '/^```ini/,/^```/{/^```/!p}' docs/jobs.md >"$work/example.ini"
"$nvswap" bench "$work/example.ini" --directory "$work/drive" --size 8m --runtime 200ms \
	--eta never >"$work/out" 2>"$work/err" && grep -q "^four: (groupid=1, jobs=4)" "$work/out"
judge "the_example_of_docs_jobs_runs" $?

# The directory is a variable, and leaving it out says what to set.
"$nvswap" bench bench/jobs/fio-own.ini >"$work/out" 2>"$work/err"
[ $? = 2 ] && grep -q 'fio-own.ini:[0-9]*: ${DIRECTORY} is not set: put DIRECTORY=' "$work/err"
judge "a_variable_that_is_not_set_is_told_with_its_line" $?

exit $status
