#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The block modes from a user's view: options and job files. Works in its own directory under the build
# directory.

. tests/support/bench.sh

nothing_left() {
	[ -z "$(ls -A "$T/store")" ]
}

blocks() {
	run bench --nvme-path "$T/store" "$@"
}

# succeeds NAME EXPRESSION ARGUMENT...
succeeds() {
	ran "$1" "not os.listdir(f'{T}/store') and ($2)" --nvme-path "$T/store" "${@:3}"
}

cat >"$T/all.ini" <<'END'
[global]
bs=16k
size=2m
iodepth=4
ioengine=auto
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
	'[(i["read"]["io_bytes"], i["write"]["io_bytes"]) for i in j["jobs"]] ==
	 [(2 << 20, 0), (0, 2 << 20)] * 2' "$T/all.ini"
succeeds a_job_of_each_clone_has_a_file 'sum(i["write"]["io_bytes"] for i in j["jobs"]) == 8 << 20' \
	--rw write --numjobs 8 --size 1m --bs 64k

ulimit -S -f 1024
blocks --rw randwrite --size 2m
ulimit -S -f hard
[ "$status" = 1 ] && grep -q "ulimit -f" "$T/err" && nothing_left
result a_limit_on_file_sizes_is_reported $?

# The first batch is submitted at once; the rest takes at least half a second.
succeeds rate_is_not_exceeded 'read["runtime"] >= 400 and write["io_bytes"] == 0' \
	--rw randread --rate 4m --size 2m --bs 16k

# Samples are taken twice a second and blocks complete once a second: an interval without a block is
# not a sample.
succeeds samples_are_of_times_with_blocks \
	'0 < write["bw_samples"] <= 3 and write["bw_min"] > 0' \
	--rw write --rate 64k --bs 64k --size 192k
succeeds a_run_shorter_than_a_sample_is_one_sample 'write["bw_samples"] >= 1' \
	--rw write --bs 64k --size 1m

# At that rate, the second block is due after more than an hour.
succeeds rate_does_not_outlast_ramp_and_runtime 'write["io_bytes"] <= 64 << 10' --rw write \
	--rate 16 --bs 64k --size 1m --time-based --ramp-time 200ms --runtime 200ms

# At 4 MiB/s, the ramp takes about 1 MiB, which is not measured.
begin=$(date +%s%3N)
succeeds the_time_of_the_ramp_is_not_measured 'read["total_ios"] == 4' \
	--rw randread --rate 4m --size 64k --bs 16k --ramp-time 250ms
[ $(($(date +%s%3N) - begin)) -ge 250 ]
result the_time_of_the_ramp_is_run $?

blocks --rw read --trace "$T/trace.json" --size 1m
[ "$status" = 0 ] && grep -q '"traceEvents"' "$T/trace.json"
result a_trace_has_the_transfers_of_blocks $?
usage a_directory_must_be_given "there is no place for the file: give --directory" --rw read --size 64k
mkdir "$T/second"
expect one_drive_is_measured 1 "rw=read measures one drive: give one directory" bench \
	--nvme-path "$T/store" --nvme-path "$T/second" --rw read --size 64k
device=$(find /dev -maxdepth 1 -type b 2>"$T/null" | head -n 1)
if [ -n "$device" ]; then
	expect a_block_device_is_refused 1 "is a block device, and rw=randwrite needs a directory" \
		bench --rw randwrite --directory "$device" --size 64k
else
	echo "skip a_block_device_is_refused: no block device here"
fi
# Kill the job once it moves blocks, which its counters in /proc show.
"$NVSWAP" bench --nvme-path "$T/store" --rw write --size 8m --bs 64k --time-based \
	--runtime 1h >"$T/out" 2>"$T/err" &
parent=$!
moves_blocks() {
	job=$(pgrep -P $parent) && grep -qE '^write_bytes: [0-9]{8,}' "/proc/$job/io" 2>"$T/null"
}
until_true moves_blocks
[ "$(find "/proc/$job/fd" -lname "$(realpath "$T/store")/*" -exec stat -L -c %a {} + | sort -u)" = 600 ]
result the_file_is_private $?
[ -n "$job" ] && kill -KILL $parent "$job"
wait $parent 2>"$T/null"
[ $? = 137 ] && nothing_left
result kill_leaves_nothing_behind $?

exit $((failures > 0))
