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
bench() {
	run bench "${SMALL[@]}" "$@"
}

# json NAME EXPRESSION ARGUMENT...: the run must succeed, and EXPRESSION must be true of its JSON: j
# is the document; job, read and write are its parts.
json() {
	local name=$1 expression=$2
	shift 2
	bench --output-format json "$@"
	if [ "$status" != 0 ]; then
		result "$name" 1 "exit status $status"
	else
		holds "$name" "$expression"
	fi
}

holds() {
	local why
	why=$(python3 - "$T/out" "$2" 2>&1 <<'PY'
import json, sys
j = json.load(open(sys.argv[1]))
job = j["jobs"][0]
read, write = job["read"], job["write"]
scope = {"j": j, "job": job, "read": read, "write": write, "swap": j.get("swap"),
         "aio": j.get("config", {}).get("aio"), "engine": j.get("engine"), "M": 7 * 1100000}
if not eval(f"({sys.argv[2]}\n)", scope):
    sys.exit(f"does not hold: {sys.argv[2]}\n{json.dumps(j)}")
PY
)
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
