#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The block modes from a user's view: options and job files. Works in its own directory under the build
# directory.

. tests/support/command.sh
mkdir "$T/drive"

# run ARGUMENT...: $status, $T/out and $T/err
run() {
	timeout 100 "$NVSWAP" bench --nvme-path "$T/drive" "$@" >"$T/out" 2>"$T/err"
	status=$?
}

nothing_left() {
	[ -z "$(ls -A "$T/drive")" ]
}

# holds EXPRESSION: is true of the JSON, j being its jobs
holds() {
	python3 -c '
import json, sys
j = json.load(open(sys.argv[1]))["jobs"]
sys.exit(not eval("(" + sys.argv[2] + ")"))' "$T/out" "$1"
}

# succeeds NAME EXPRESSION ARGUMENT...
succeeds() {
	local name=$1 expression=$2
	shift 2
	! left_out "$name" || return 0
	run --output-format json "$@"
	[ "$status" = 0 ] && holds "$expression" && nothing_left
	result "$name" $?
}

cat >"$T/all.ini" <<'END'
[global]
bs=16k
size=2m
iodepth=4
direct=1
stonewall
[a]
rw=read
[b]
rw=write
[c]
rw=randread
[d]
rw=randwrite
END
succeeds every_mode_of_a_job_file \
	'len(j) == 4 and
	 [i["read"]["io_bytes"] for i in j] == [2 << 20, 0, 2 << 20, 0] and
	 [i["write"]["io_bytes"] for i in j] == [0, 2 << 20, 0, 2 << 20]' "$T/all.ini"
succeeds a_job_of_each_clone_has_a_file 'sum(i["write"]["io_bytes"] for i in j) == 8 << 20' \
	--rw write --numjobs 8 --size 1m --bs 64k

ulimit -S -f 1024
run --rw randwrite --size 2m
ulimit -S -f hard
[ "$status" = 1 ] && grep -q "ulimit -f" "$T/err" && nothing_left
result a_limit_on_file_sizes_is_reported $?

# The first batch is submitted at once; the rest takes at least half a second.
succeeds rate_is_not_exceeded 'j[0]["read"]["runtime"] >= 400 and j[0]["write"]["io_bytes"] == 0' \
	--rw randread --rate 4m --size 2m --bs 16k

# Samples are taken twice a second and blocks complete once a second: an interval without a block is
# not a sample.
succeeds samples_are_of_times_with_blocks \
	'0 < j[0]["write"]["bw_samples"] <= 3 and j[0]["write"]["bw_min"] > 0' \
	--rw write --rate 64k --bs 64k --size 192k
succeeds a_run_shorter_than_a_sample_is_one_sample 'j[0]["write"]["bw_samples"] >= 1' \
	--rw write --bs 64k --size 1m

# At that rate, the second block is due after more than an hour.
succeeds rate_does_not_outlast_ramp_and_runtime 'j[0]["write"]["io_bytes"] <= 64 << 10' --rw write \
	--rate 16 --bs 64k --size 1m --time-based --ramp-time 200ms --runtime 200ms

# At 4 MiB/s, the ramp takes about 1 MiB, which is not measured.
begin=$(date +%s%3N)
run --rw randread --rate 4m --size 64k --bs 16k --ramp-time 250ms --output-format json
[ "$status" = 0 ] && [ $(($(date +%s%3N) - begin)) -ge 250 ] &&
	holds 'j[0]["read"]["total_ios"] == 4'
result the_time_of_the_ramp_is_run_and_not_measured $?

run --rw read --trace "$T/trace.json" --size 1m
[ "$status" = 0 ] && grep -q '"traceEvents"' "$T/trace.json"
result a_trace_has_the_transfers_of_blocks $?
"$NVSWAP" bench --rw read --size 64k >"$T/out" 2>"$T/err"
[ $? = 2 ] && grep -q "there is no place for the file: give --directory" "$T/err"
result a_directory_must_be_given $?
mkdir "$T/second"
run --nvme-path "$T/second" --rw read --size 64k
[ "$status" = 1 ] && grep -q "rw=read measures one drive: give one directory" "$T/err"
result one_drive_is_measured $?
device=$(find /dev -maxdepth 1 -type b 2>"$T/null" | head -n 1)
if [ -n "$device" ]; then
	"$NVSWAP" bench --rw randwrite --directory "$device" --size 64k >"$T/out" 2>"$T/err"
	[ $? = 1 ] && grep -q "is a block device, and rw=randwrite needs a directory" "$T/err"
	result a_block_device_is_refused $?
else
	echo "skip a_block_device_is_refused: no block device here"
fi
for option in --verify "--model x" "--pool 1m"; do
	# shellcheck disable=SC2086
	run --rw randread $option
	[ "$status" = 2 ] && grep -q -- "${option%% *} has no effect with rw=randread" "$T/err"
	result "${option%% *}_is_refused" $?
done

# Kill the job once it moves blocks, which its counters in /proc show.
"$NVSWAP" bench --nvme-path "$T/drive" --rw write --size 8m --bs 64k --time-based \
	--runtime 1h >"$T/out" 2>"$T/err" &
parent=$!
moves_blocks() {
	job=$(pgrep -P $parent) && grep -qE '^write_bytes: [0-9]{8,}' "/proc/$job/io" 2>"$T/null"
}
until_true moves_blocks
[ "$(find "/proc/$job/fd" -lname "$(realpath "$T/drive")/*" -exec stat -L -c %a {} + | sort -u)" = 600 ]
result the_file_is_private $?
[ -n "$job" ] && kill -KILL $parent "$job"
wait $parent 2>"$T/null"
[ $? = 137 ] && nothing_left
result kill_leaves_nothing_behind $?

exit $((failures > 0))
