# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
#
# Sourced by tests of the command: its path in NVSWAP, a temporary directory in T that is removed at
# the end, and functions to report a test and to wait.

# shellcheck source=tests/support/check.sh
. tests/support/check.sh
BUILD=${BUILD:-build}
NVSWAP=$(realpath "$BUILD/nvswap")
mkdir -p "$BUILD/tmp"
T=$(mktemp -d "$BUILD/tmp/$(basename "$0" .sh).XXXXXX")
trap 'rm -rf "$T"' EXIT
failures=0

# result NAME STATUS [WHY]: says nothing of a test that is left out
result() {
	! left_out "$1" || return 0
	if [ "$2" = 0 ]; then
		echo "ok $1"
	else
		echo "not ok $1"
		[ -n "${3:-}" ] && echo "  $3"
		[ ! -e "$T/err" ] || sed 's/^/  stderr: /' "$T/err"
		failures=$((failures + 1))
	fi
}

# not_ok WHY: the test $name fails
not_ok() {
	result "$name" 1 "$1"
	[ ! -e "$T/out" ] || sed 's/^/  stdout: /' "$T/out"
	return 1
}

# ends NAME STATUS ARGUMENT...: begins a test: nvswap must exit with STATUS; fails as well if the test is
# left out
ends() {
	! left_out "$1" || return
	name=$1 expected=$2
	shift 2
	timeout 300 "$NVSWAP" "$@" >"$T/out" 2>"$T/err"
	status=$?
	[ $status -eq "$expected" ] || not_ok "exit status $status instead of $expected"
}

# has FILE TEXT...: ends the test: the file must contain each TEXT
has() {
	file=$1
	shift
	for text; do
		grep -qF -e "$text" "$T/$file" || { not_ok "no \"$text\" in $file: $(cat "$T/$file")" || return; }
	done
	echo "ok $name"
}

# json STATEMENTS: ends the test: the Python statements must hold of the JSON on standard output, of info or tune
json() {
	python3 -c 'import json, sys, textwrap
report = result = json.load(open(sys.argv[1]))
machine, paths, aio, tune = map(report.get, ("machine", "paths", "aio", "tune"))
exec(textwrap.dedent(sys.argv[2]))' "$T/out" "$1" || { not_ok "the JSON" || return; }
	echo "ok $name"
}

# until_true COMMAND...: repeats COMMAND until it succeeds, for at most a minute
until_true() {
	local end=$((SECONDS + 60))
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.02
	done
}

# has_data STORE: whether the command $pid, or a process of its jobs, has a store, such as rank0, with
# data, and sets DATA to a path of that file, which has no name; true as well if the command has ended
has_data() {
	DATA=$(find /proc/[0-9]*/fd -lname "$(realpath "$T")/store/nvswap/$1/*" 2>/dev/null |
		while read -r file; do [ -s "$file" ] && echo "$file" && break; done)
	[ -n "$DATA" ] || ! kill -0 $pid 2>/dev/null
}

# started STORE ARGUMENT...: starts nvswap bench in the background and waits until it has such a store
started() {
	"$NVSWAP" bench --output-format json "${@:2}" >"$T/out" 2>"$T/err" &
	pid=$!
	until_true has_data "$1"
}

# Zeros overwrite the store of rank 0, MiB SEEK and COUNT after it, until the run ends; one that is
# too short for that is repeated. Sets $status.
overwritten() { # SEEK COUNT "RUNTIMES" ARGUMENTS...
	local runtime
	for runtime in $3; do
		started rank0 "${@:4}" --verify --runtime "$runtime" --time-based
		while kill -0 $pid 2>/dev/null; do
			dd if=/dev/zero of="$DATA" bs=1M seek="$1" count="$2" conv=notrunc,nocreat \
				status=none 2>/dev/null
		done
		wait $pid
		status=$?
		[ $status = 0 ] || break
	done
}
