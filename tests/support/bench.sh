# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
#
# Runs `nvswap bench` and checks its exit status, messages and JSON; read by ".".

. tests/support/command.sh
mkdir "$T/store"

# run ARGUMENT...: sets $status, $T/out and $T/err
run() {
	"$NVSWAP" "$@" >"$T/out" 2>"$T/err"
	status=$?
}

# expect NAME STATUS PATTERN ARGUMENT...: PATTERN must match standard error; "" expects no output.
expect() {
	local name=$1 want=$2 pattern=$3
	shift 3
	run "$@"
	if [ "$status" != "$want" ]; then
		result "$name" 1 "exit status $status, not $want"
	elif [ -n "$pattern" ]; then
		grep -qE -e "$pattern" "$T/err"
		result "$name" $? "standard error lacks: $pattern"
	else
		[ ! -s "$T/err" ]
		result "$name" $? "standard error is not empty"
	fi
}

usage() {
	local name=$1 pattern=$2
	shift 2
	expect "$name" 2 "$pattern" bench "$@"
}

SMALL=(--nvme-path "$T/store" --tensors 7 --tensor-size 1100000 --pool 8m)
M=$((7 * 1100000))
bench() {
	run bench "${SMALL[@]}" "$@"
}

# ran NAME EXPRESSION ARGUMENT...: bench must succeed without messages, and EXPRESSION hold.
ran() {
	! left_out "$1" || return 0
	run bench --output-format json "${@:3}"
	if [ "$status" != 0 ] || [ -s "$T/err" ]; then
		result "$1" 1 "exit status $status"
	else
		holds "$1" "$2"
	fi
}

# json NAME EXPRESSION ARGUMENT...: the same of the small run
json() {
	ran "$1" "$2" "${SMALL[@]}" "${@:3}"
}

# true_of EXPRESSION: is true of the JSON documents in $T/out, docs, of which the last is j; jobs are its
# jobs by name and clone ("a.0"), job the first, and read, write, step, swap, engine, aio, config and zero
# parts of it. M are the bytes of the model, E the elements of it as bf16; begin and end of the
# measurement are in ms, as is $before.
true_of() {
	python3 - "$T" "$1" "$M" "${before:-0}" 2>&1 <<'PY'
import json, os, re, sys
text, docs, at = open(f"{sys.argv[1]}/out").read(), [], 0
while text[at:].strip():
    doc, at = json.JSONDecoder().raw_decode(text, at + len(text[at:]) - len(text[at:].lstrip()))
    docs.append(doc)
def by_name(doc):
    jobs = {}
    for job in doc["jobs"]:
        jobs[f"{job['jobname']}.{sum(job['jobname'] + '.' in name for name in jobs)}"] = job
    return jobs
def whole(nbytes, elements):
    """State moves in tiles of equal length; the last one may be padded."""
    return 12 * elements <= nbytes < 12 * elements * step["tiles"] / (step["tiles"] - 1)
j, M = docs[-1], int(sys.argv[3])
E, job, config = M // 2, j["jobs"][0], j.get("config", {})
read, write, step = job["read"], job["write"], job.get("step")
scope = globals() | {
    "jobs": by_name(j), "swap": j.get("swap"), "engine": j.get("engine"), "aio": config.get("aio"),
    "zero": config.get("zero_optimization"), "T": sys.argv[1], "before": int(sys.argv[4]),
    "begin": lambda job: job["job_start"], "end": lambda job: job["job_start"] + job["job_runtime"],
    "bytes_of": lambda job: job["read"]["io_bytes"] + job["write"]["io_bytes"]}
if not eval(f"({sys.argv[2]}\n)", scope):
    sys.exit(f"does not hold: {sys.argv[2]}\n{json.dumps(docs)[:9000]}")
PY
}

# holds NAME EXPRESSION
holds() {
	local why
	why=$(true_of "$2")
	result "$1" $? "$why"
}

# prints NAME PATTERN...: the run has succeeded, and its text has each PATTERN
prints() {
	local name=$1
	shift
	for text; do
		grep -qE -e "$text" "$T/out" || break
		text=
	done
	[ "$status" = 0 ] && [ -z "$text" ]
	result "$name" $? "lacks $text"
}
