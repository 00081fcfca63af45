#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The demo prints six lines of figures in order and leaves nothing but the report.

. tests/support/command.sh
export LC_ALL=C

# At length it is what a user runs; else the two parts that are measured are short.
demo() {
	if [ -n "${AT_LENGTH:-}" ]; then
		scripts/demo "$NVSWAP" "$1"
	else
		scripts/demo "$NVSWAP" "$1" 300ms
	fi
}

demo "$T/demo" >"$T/out" 2>"$T/err"
status=$?
if [ $status = 1 ] && grep -q "no direct I/O" "$T/err"; then
	echo "skip demo: $(cat "$T/err")"
	exit 0
fi
tail -n 6 "$T/out" >"$T/six"
paste -sd '|' "$T/six" >"$T/line"
[ $status = 0 ] && [ "$(cut -d ' ' -f 1 "$T/six" | paste -sd ' ')" = "Moved Speed Verified Drive Next Report" ]
result demo_ends_in_six_lines $? "$(cat "$T/out")"
grep -qE "148 tensors: [0-9.]+ [GM]iB read" "$T/line" &&
	grep -qE "Speed +[0-9.]+[kMG]B/s read and [0-9.]+[kMG]B/s written" "$T/line" &&
	grep -qE "Verified +949.40 MiB compared, every byte equal" "$T/line" &&
	grep -qE "Drive +[0-9.]+[kMG]B/s read, then .* nvswap had [1-9][0-9]* % of that" "$T/line"
result demo_has_its_figures $? "$(cat "$T/six")"
# Paths do not count: they are the test's.
sed -e "s|$NVSWAP|nvswap|" -e "s|$T|DIR|" "$T/six" | awk 'length > 100' | grep -q .
[ $? = 1 ] && [ ! -s "$T/err" ]
result demo_is_quiet_and_short $?
[ "$(find "$T/demo" -type f)" = "$T/demo/report.txt" ] && grep -q "^check: rw=swap, group 3" "$T/demo/report.txt"
result demo_leaves_the_report_alone $? "$(find "$T/demo")"
demo /proc/nvswap-demo >"$T/out" 2>"$T/err"
[ $? != 0 ]
result demo_fails_where_it_cannot_write $?

[ $failures = 0 ]
