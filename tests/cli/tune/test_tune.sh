#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# nvswap tune: its choice is a configuration, it refuses invalid options, and it leaves nothing on
# the drive however it ends.
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit
. tests/support/command.sh
T=$(realpath "$T")
dir=$T/drive
mkdir "$dir"
loop=
trap 'test -z "$loop" || losetup -d "$loop"; rm -rf "$T"' EXIT

# A small space, and one of a single setting. At length there is time for a certain choice.
soon=(--time "${AT_LENGTH:+1}3s" --tolerance 50 --working-set 64m --queue-depth-max 4 --block-size-max 1m)
small=(--time "${AT_LENGTH:+2}3s" --tolerance 50 --working-set 64m --block-size-min 1m --block-size-max 1m
	--queue-depth-max 1 --thread-count-max 1 --ioengine posix)

tune() { ends "$1" "$2" tune "${@:3}"; }

nothing_left() {
	left=$(ls -A "$dir")
	[ -z "$left" ] || { not_ok "left behind: $left" || return; }
	echo "ok $name"
}

# ---- A choice

tune the_choice_is_a_block_of_JSON_alone 0 "${soon[@]}" "$dir" && json '
	assert list(result) in (["aio"], ["aio", "nvswap"])
	assert list(aio) == ["block_size", "queue_depth", "thread_count", "single_submit",
			     "overlap_events"]
	assert 65536 <= aio["block_size"] <= 1 << 20 and 1 <= aio["queue_depth"] <= 4'
name=the_table_has_what_was_tried_with_the_choice
has err "block depth workers  engine" "chosen" "GB/s" "block_size" "64 MiB worked on"
name=nothing_is_left_after_a_choice
nothing_left
name=the_choice_is_a_configuration
cp "$T/out" "$T/choice.json"
"$NVSWAP" bench --config "$T/choice.json" --nvme-path "$dir" --tensors 1 --tensor-size 64k --pool 1m \
	>"$T/out" 2>"$T/err"
result "$name" $?

tune tuning_for_reads_writes_the_file_alone 0 "${small[@]}" --objective read \
	--output-format json "$dir" && json '
	assert tune["drive"]["written_bytes"] == 64 << 20
	assert {trial["objective"] for trial in tune["trials"]} == {"read"}
	assert {trial["ioengine"] for trial in tune["trials"]} == {"posix"}
	assert all(trial["rounds"] and trial["bytes_per_s"] > 0 for trial in tune["trials"])' &&
	name=all_that_was_found_out_is_one_object && json '
	chosen = tune["trials"][tune["chosen"]]
	assert chosen["fate"] == "chosen"
	assert all(chosen[key] == aio[key] for key in aio)
	assert result["nvswap"]["ioengine"] == "posix"
	assert tune["objective"] == "read" and tune["why"] and tune["machine"]["cpus"]
	assert tune["drive"]["path"] and tune["drive"]["working_set_bytes"] == 64 << 20
	assert tune["drive"]["filesystem"] and tune["ioengines"]["posix"]["works"]
	assert tune["space"]["block_sizes"] == [1 << 20] and tune["space"]["queue_depths"] == [1]
	assert tune["command"][:2] == ["nvswap", "tune"] and tune["command"][-1] == tune["drive"]["path"]
	assert isinstance(tune["advice"], list)'
tune json_has_every_trial_of_the_search 0 "${soon[@]}" --output-format json "$dir" && json '
	points = [[trial[key] for key in (*aio, "ioengine")] for trial in tune["trials"]]
	assert len(points) > 2 and all(points.count(point) == 1 for point in points)
	assert {trial["objective"] for trial in tune["trials"]} == {"swap"}
	assert {trial["fate"] for trial in tune["trials"]} <= {"chosen", "tie", "slower", "dropped"}
	assert tune["trials"][tune["fastest"]]["finalist"] or tune["unsure"]'

# The first files that it opens must not become standard output and error.
name=closed_standard_files_are_not_reused
if ! left_out "$name"; then
	timeout 300 "$NVSWAP" tune "${small[@]}" --output "$T/out" "$dir" <&- >&- 2>&-
	json 'assert aio["block_size"] == 1 << 20'
fi

# With a tolerance of 0 the search never becomes certain. A busy drive may not even have the time to
# fill a working set.
if ! left_out the_time_bounds_it; then
	timeout 300 "$NVSWAP" tune --time 4s --working-set 64m --tolerance 0 "$dir" >"$T/out" 2>"$T/err"
	grep -qE "not certain: .*More time|give a longer --time" "$T/err"
	result the_time_bounds_it $?
fi

# ---- Bounds

tune writes_are_announced_bounded_and_counted 0 "${soon[@]}" --max-writes 600m \
	--output-format json "$dir" && json 'assert tune["drive"]["written_bytes"] <= 600 << 20' &&
	name=the_limit_of_writes_is_announced has err "writes at most 0.59 GiB" "0.06 GiB to fill a file"

# ---- Applying it

printf '{\n\t"train_batch_size": 1E1,\n\t"aio": {"block_size": 4096},\n\t"x": [],
 "nvswap": {"ioengine":"libaio"} }' >"$T/ds.json"
tune output_is_written_to_its_file 0 "${small[@]}" --output "$T/to.json" \
	--apply "$T/ds.json" "$dir" && {
	[ ! -s "$T/out" ] && grep -q block_size "$T/to.json"
	result "$name" $?
}
name=apply_writes_the_choice_and_leaves_the_rest
python3 -c 'import json, sys
text = open(sys.argv[2]).read()
assert json.loads(text)["aio"] == json.load(open(sys.argv[1]))["aio"]
head = "{\n\t\"train_batch_size\": 1E1,\n\t\"aio\": {\"block_size\": "
tail = "},\n\t\"x\": [],\n \"nvswap\": {\"ioengine\":\"posix\"} }"
assert text.startswith(head) and text.endswith(tail)' "$T/to.json" "$T/ds.json" &&
	has err "ds.json has the choice" "named the I/O engine libaio" || not_ok "$(cat "$T/ds.json")"
echo '{"aio": 7}' >"$T/bad.json"
tune an_unusable_configuration_is_reported_at_once 1 --time 1h --apply "$T/bad.json" "$dir" &&
	has err "bad.json:1:9: aio is 7"
# A result must not overwrite the configuration.
cp "$T/ds.json" "$T/kept.json"
ln -s ds.json "$T/link.json"
tune no_result_takes_the_place_of_a_configuration 2 "${small[@]}" \
	--apply "$T/ds.json" --output "$T/link.json" "$dir" &&
	if cmp -s "$T/ds.json" "$T/kept.json"; then
		has err "are one file"
	else
		not_ok "it is changed"
	fi
tune an_unwritable_output_is_reported_at_once 1 --time 1h \
	--output "$T/none/result.json" "$dir" && has err "can't write the output to"
name=a_result_that_can_not_be_written_is_a_failure
if ! left_out "$name"; then
	"$NVSWAP" tune "${small[@]}" "$dir" >/dev/full 2>"$T/err"
	status=$?
	if [ $status -eq 1 ]; then has err "is incomplete"; else not_ok "exit status $status"; fi
fi

# ---- Refused options

tune only_one_directory_is_taken 2 "$dir" "$dir" && has err "one directory"
tune a_missing_directory_is_refused 1 "$dir/none" && has err "none"
tune a_file_is_refused 1 "$NVSWAP" && has err "is not a directory"
if [ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ]; then
	tune tmpfs_is_refused 1 /dev/shm && has err "no direct I/O"
else
	echo "skip tmpfs_is_refused: /dev/shm is none"
fi
ulimit -S -f 1024
tune a_limit_on_file_sizes_is_reported 1 "${small[@]}" "$dir" && has err "$dir" "ulimit -f"
ulimit -S -f hard
tune a_range_without_a_power_of_two_is_refused 1 --block-size-min 96k --block-size-max 100k \
	"$dir" && has err "no power of two"

truncate -s 64m "$T/image"
if loop=$(losetup -f --show "$T/image" 2>/dev/null); then
	tune a_block_device_is_refused 1 "$loop" && has err "whose contents would be lost"
	losetup -d "$loop" && loop=
else
	echo "skip a_block_device_is_refused: none can be made"
fi

# ---- Ends of the command

# Starts a long search in the background, and waits until it measures. What the search before it said
# goes first, since the new one empties the file only once it runs.
begin_long() {
	rm -f "$T/err"
	env --default-signal=INT,TERM "$NVSWAP" tune --time 10m --max-writes 10t --working-set 64m "$dir" \
		>"$T/out" 2>"$T/err" &
	pid=$!
	until_true grep -q "writes at most" "$T/err" || not_ok "it made no file"
}

for signal_and_status in INT:130 TERM:143; do
	signal=${signal_and_status%:*}
	name=a_signal_${signal}_ends_it_and_leaves_nothing
	begin_long && kill -"$signal" $pid
	wait $pid
	status=$?
	[ $status -eq "${signal_and_status#*:}" ] || { not_ok "exit status $status" || continue; }
	[ ! -s "$T/out" ] || { not_ok "there is a result" || continue; }
	nothing_left
done

name=two_do_not_measure_each_other
begin_long
"$NVSWAP" tune "${small[@]}" "$dir" >/dev/null 2>"$T/second"
status=$?
if [ $status -eq 1 ]; then has second "another nvswap tune"; else not_ok "exit status $status"; fi
name=a_kill_leaves_nothing
kill -9 $pid
wait $pid 2>/dev/null
nothing_left

[ $failures = 0 ]
