# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
#
# What tests of the command begin with, read by ".": the command, a directory of the script's own
# that goes when it ends, and how a test is counted.

BUILD=${BUILD:-build}
NVSWAP=$(realpath "$BUILD/nvswap")
mkdir -p "$BUILD/tmp"
T=$(mktemp -d "$BUILD/tmp/$(basename "$0" .sh).XXXXXX")
trap 'rm -rf "$T"' EXIT
failures=0

# result NAME STATUS [WHY]
result() {
	if [ "$2" = 0 ]; then
		echo "ok $1"
	else
		echo "not ok $1"
		[ -n "${3:-}" ] && echo "  $3"
		sed 's/^/  stderr: /' "$T/err"
		failures=$((failures + 1))
	fi
}

# until_true COMMAND...: for a minute at most
until_true() {
	local end=$((SECONDS + 60))
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.02
	done
}
