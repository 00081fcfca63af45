#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# fio's modes from a user's view: options and job files. Works in its own directory under the build
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
verify=1
stonewall
[a]
rw=read
[b]
rw=write
[c]
rw=randread
[d]
rw=randwrite
[e]
rw=rw
rwmixread=75
[f]
rw=randrw
rwmixread=25
END
succeeds every_mode_of_a_job_file \
	'len(j) == 6
	 and all(i["read"]["io_bytes"] + i["write"]["io_bytes"] == 2 << 20 for i in j)
	 and [i["read"]["io_bytes"] == 2 << 20 for i in j] == [True, False, True] + [False] * 3
	 and [i["write"]["io_bytes"] == 2 << 20 for i in j] == [False, True, False, True] + [False] * 2
	 and j[4]["read"]["io_bytes"] > j[4]["write"]["io_bytes"]
	 and j[5]["read"]["io_bytes"] < j[5]["write"]["io_bytes"]' "$T/all.ini"

succeeds lengths_of_bssplit '64 < j[0]["write"]["total_ios"] < 1024' \
	--rw randwrite --bssplit 4k/50:64k/50 --size 4m --verify

ulimit -S -f 1024
run --rw randwrite --size 2m
ulimit -S -f hard
[ "$status" = 1 ] && grep -q "ulimit -f" "$T/err" && nothing_left
result a_limit_on_file_sizes_is_reported $?

# Jobs that begin at the same time use one name after the other.
succeeds jobs_share_a_name 'sum(i["write"]["io_bytes"] for i in j) == 8 << 20' \
	--rw write --filename one --numjobs 8 --size 1m --bs 64k

# The first batch is submitted at once; the rest takes at least half a second.
succeeds rate_is_not_exceeded 'j[0]["read"]["runtime"] >= 400 and j[0]["write"]["io_bytes"] == 0' \
	--rw randread --rate 4m --size 2m --bs 16k

succeeds rates_of_both_directions \
	'all(j[0][d]["io_bytes"] / (j[0][d]["runtime"] + 100) * 1000 <= 2 << 20
	     for d in ("read", "write"))' \
	--rw randrw --rate 2m --size 2m --bs 16k

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

head -c 100000 /dev/urandom >"$T/drive/mine"
cp "$T/drive/mine" "$T/copy"
for mode in write randwrite rw randrw; do
	run --rw $mode --filename mine --size 1m
	[ "$status" = 1 ] && grep -q "mine exists" "$T/err" &&
		cmp -s "$T/drive/mine" "$T/copy"
	result "${mode}_does_not_write_over_a_file" $?
done
cat >"$T/late.ini" <<'END'
[first]
rw=write
size=64k
[late]
stonewall
rw=write
filename=mine
END
run "$T/late.ini" --output-format json
[ "$status" = 1 ] && grep -q "job late (2): .*mine exists" "$T/err" &&
	holds 'not j[0]["write"]["io_bytes"] and j[0]["error_text"].startswith("not run")'
result errors_of_later_stages_are_found_first $?
run --rw randread --filename mine --bs 4k --output-format json
[ "$status" = 0 ] && holds 'j[0]["read"]["io_bytes"] == 24 * 4096' &&
	cmp -s "$T/drive/mine" "$T/copy"
result an_existing_file_is_read_and_kept $?
if command -v fio >"$T/null"; then
	for amount in --size=64k "--size=64k --io_size=32k" "--size=16k --io_size=64k" \
		"--size=16k --io_size=8k --loops=3" "--size=16k --io_size=64k --loops=3"; do
		name=as_much_as_fio_with_${amount//[^a-z0-9]/_}
		! left_out "$name" || continue
		fio --name=a --filename="$T/drive/mine" --readonly --rw=read --bs=4k $amount \
			--output-format=json --output="$T/out" >"$T/err" 2>&1 &&
			moved=$(python3 -c 'import json, sys
print(json.load(open(sys.argv[1]))["jobs"][0]["read"]["io_bytes"])' "$T/out") &&
			run --rw read --filename mine --bs 4k $amount --output-format json &&
			holds "j[0]['read']['io_bytes'] == $moved > 0"
		result "$name" $?
	done
fi
whole=$(realpath "$T/drive")
for name in mine new; do
	"$NVSWAP" bench --rw randread --filename "$whole/$name" --size 64k --bs 4k \
		--output-format json >"$T/out" 2>"$T/err" &&
		holds 'j[0]["read"]["total_ios"] == 16' && [ "$(ls "$T/drive")" = mine ]
	result "a_whole_name_needs_no_directory_${name}" $?
done
for mode in randread write; do
	"$NVSWAP" bench --rw $mode --filename /dev/nvswap-nosuch --size 64k >"$T/out" 2>"$T/err"
	[ $? = 1 ] && grep -q "^nvswap: /dev/nvswap-nosuch: there is no such device$" "$T/err" &&
		[ ! -e /dev/nvswap-nosuch ]
	result "${mode}_of_a_missing_device_says_so_and_makes_no_file" $?
done
"$NVSWAP" bench --rw randread --filename /nosuch/file --size 64k >"$T/out" 2>"$T/err"
[ $? = 1 ] && grep -q "/nosuch does not exist" "$T/err"
result a_missing_directory_of_a_file_says_so $?
printf '[global]\nfilename=%s/mine\n[a]\nrw=swap\n' "$whole" >"$T/swap.ini"
"$NVSWAP" bench "$T/swap.ini" >"$T/out" 2>"$T/err"
[ $? = 2 ] && grep -q "there is no place to swap to" "$T/err"
result a_whole_name_is_no_place_to_swap_to $?
"$NVSWAP" bench --rw read --filename mine >"$T/out" 2>"$T/err"
[ $? = 2 ] && grep -q "there is no place for the file: give --directory" "$T/err"
result a_name_without_a_directory_is_refused $?
mv "$T/drive/mine" "$T/mine"
for mode in randread write; do
	ln -s ../mine "$T/drive/link"
	run --rw $mode --filename link --bs 4k
	[ "$status" = 1 ] && grep -q "link: it is a symbolic link" "$T/err" &&
		cmp -s "$T/mine" "$T/copy" && rm "$T/drive/link" && nothing_left
	result "${mode}_follows_no_link" $?
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
