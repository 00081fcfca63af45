#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The job files of bench/jobs, run as their heads say but with less data: every job moves bytes and
# succeeds. fio accepts its own files unchanged.
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit
. tests/support/command.sh
T=$(realpath "$T")
mkdir "$T/drive"

# Options on the command line override the file's. Small tensors would stay in memory by default,
# and the first tensor of a large model is long.
run_small() {
	local smaller=(--size 2m --loops 1 --runtime 50ms --ramp-time 0 --compute-us 100 --verify
		--max-in-cpu 0)

	[ "$1" = params-8b ] && smaller+=(--model bench/models/gpt2.json --pool 512m)
	DIRECTORY="$T/drive" timeout 120 "$NVSWAP" bench "bench/jobs/$1.ini" \
		--directory "$T/drive" "${smaller[@]}" --output-format json --eta never \
		>"$T/out" 2>"$T/err"
}

# Each section except [global] has its jobs, in order, and each job moved bytes.
check_jobs() {
	"${PYTHON:-python3}" - "bench/jobs/$1.ini" "$T/out" <<'EOF'
import json, re, sys
names = [n for n in re.findall(r"^\[(.+)\]$", open(sys.argv[1]).read(), re.M) if n != "global"]
jobs = json.load(open(sys.argv[2]))["jobs"]
reported = list(dict.fromkeys(job["jobname"] for job in jobs))
assert reported == names, (reported, names)
for job in jobs:
    assert job["error"] == 0, job
    assert job["read"]["io_bytes"] + job["write"]["io_bytes"], job
EOF
}

for file in bench/jobs/*.ini; do
	name=$(basename "$file" .ini)
	run_small "$name" && check_jobs "$name" 2>>"$T/err" && [ -z "$(ls -A "$T/drive")" ]
	result "${name}_runs_every_job_and_leaves_nothing" $?
	head -n 20 "$file" | grep -q "^;.*nvswap bench bench/jobs/$name.ini" &>"$T/out"
	result "${name}_says_how_to_run_it" $?
done

if command -v fio >/dev/null; then
	DIRECTORY="$T/drive" fio --parse-only bench/jobs/fio-own.ini >"$T/out" 2>"$T/err" &&
		! grep -qi "bad option\|failed\|dropped" "$T/out" "$T/err"
	result "fio_takes_its_own_job_file_unchanged" $?
else
	echo "skip fio_takes_its_own_job_file_unchanged: no fio here"
fi

sed -n '/^```ini/,/^```/{/^```/!p}' docs/jobs.md >"$T/example.ini"
"$NVSWAP" bench "$T/example.ini" --directory "$T/drive" --size 8m --runtime 200ms \
	--eta never >"$T/out" 2>"$T/err" && grep -q "^four: rw=swap, group 1, 4 jobs" "$T/out"
result "the_example_of_docs_jobs_runs" $?

# The directory is a variable; without it, the error says to set it.
"$NVSWAP" bench bench/jobs/fio-own.ini >"$T/out" 2>"$T/err"
[ $? = 2 ] && grep -q 'fio-own.ini:[0-9]*: ${DIRECTORY} is not set: put DIRECTORY=' "$T/err"
result "an_unset_variable_is_reported_with_its_line" $?

[ $failures = 0 ]
