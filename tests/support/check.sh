# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Sourced by tests that are scripts: a function to report a test. `status` is the script's at its end.

status=0

# left_out NAME: whether tests/run leaves the test to `make check-all`
left_out() {
	[[ " ${LEFT_OUT:-} " == *" $1 "* ]]
}

# check NAME COMMAND...: the test passes if the command succeeds
check() {
	local name=$1
	shift
	! left_out "$name" || return 0
	if "$@"; then
		echo "ok $name"
	else
		echo "not ok $name"
		status=1
	fi
}
