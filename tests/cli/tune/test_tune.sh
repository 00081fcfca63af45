#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# nvswap tune from outside: what it chooses is a configuration, what it can't tune for it refuses,
# and however it ends there is nothing left of it on the drive.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

nvswap=${BUILD:-build}/nvswap
mkdir -p "${BUILD:-build}/tmp" || exit
scratch=$(mktemp -d "${BUILD:-build}/tmp/tune.XXXXXX") || exit
scratch=$(realpath "$scratch")
dir=$scratch/drive
mkdir "$dir"
mounted= loop=
trap 'test -z "$mounted" || umount "$mounted"; test -z "$loop" || losetup -d "$loop"
	rm -rf "$scratch"' EXIT
failed=0

# A search that is soon sure, and a space so small that it is soon measured. On a machine that is busy
# they go on for longer, not to another end.
soon=(--time 10s --tolerance 50 --working-set 64m --queue-depth-max 4 --block-size-max 1m)
small=(--time 20s --tolerance 50 --working-set 64m --exhaustive --block-size-min 1m
	--block-size-max 1m --queue-depth-max 1 --thread-count-max 1 --ioengine posix)

not_ok() {
	echo "not ok $name: $1"
	cat "$scratch/out" "$scratch/err" 2>/dev/null
	failed=1
	return 1
}

# The name of the promise, the exit status that it has, and what follows "nvswap tune".
tune() {
	name=$1 expected=$2
	shift 2
	timeout 300 "$nvswap" tune "$@" >"$scratch/out" 2>"$scratch/err"
	status=$?
	[ $status -eq "$expected" ] || not_ok "exit status $status instead of $expected"
}

# What the file must have.
has() {
	file=$1
	shift
	for text; do
		grep -qF -e "$text" "$scratch/$file" || { not_ok "no \"$text\" in $file" || return; }
	done
	echo "ok $name"
}

# Statements of Python's that must hold of the JSON on standard output.
json() {
	python3 -c 'import json, sys, textwrap
result = json.load(open(sys.argv[1]))
aio, tune = result["aio"], result.get("tune")
exec(textwrap.dedent(sys.argv[2]))' "$scratch/out" "$1" || { not_ok "the JSON" || return; }
	echo "ok $name"
}

nothing_left() {
	left=$(ls -A "$dir")
	[ -z "$left" ] || { not_ok "left behind: $left" || return; }
	echo "ok $name"
}

# Waits until the command does not fail, for a minute.
until_true() {
	local end=$((SECONDS + 60))

	until eval "$1"; do
		[ $SECONDS -lt $end ] || { not_ok "never: $1" || return; }
		sleep 0.01
	done
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
cp "$scratch/out" "$scratch/choice.json"
if "$nvswap" bench --config "$scratch/choice.json" --nvme-path "$dir" --tensors 1 \
	--tensor-size 64k >"$scratch/out" 2>"$scratch/err"; then
	echo "ok $name"
else
	not_ok "bench does not take it"
fi

tune exhaustive_measures_all_there_is 0 "${small[@]}" --time 60s --queue-depth-max 2 --objective read \
	--output-format json "$dir" && json '
	points = {tuple(trial[key] for key in ("queue_depth", "single_submit", "overlap_events"))
		  for trial in tune["trials"]}
	assert len(points) == 2 * 2 * 2, points
	assert {trial["ioengine"] for trial in tune["trials"]} == {"posix"}
	assert all(trial["rounds"] and trial["bytes_per_s"] > 0 for trial in tune["trials"])' &&
	name=all_that_was_found_out_is_one_object && json '
	chosen = tune["trials"][tune["chosen"]]
	assert chosen["fate"] == "chosen"
	assert all(chosen[key] == aio[key] for key in aio)
	assert result["nvswap"]["ioengine"] == "posix"
	assert tune["objective"] == "read" and tune["why"] and tune["machine"]["cpus"]
	assert tune["drive"]["path"] and tune["drive"]["working_set_bytes"] == 64 << 20
	assert tune["drive"]["written_bytes"] >= 64 << 20'

# What is opened first then must not be what is written to as standard output and error.
name=closed_standard_files_are_nobody_elses
if timeout 300 "$nvswap" tune "${small[@]}" --output "$scratch/out" "$dir" <&- >&- 2>&-; then
	json 'assert aio["block_size"] == 1 << 20'
else
	not_ok "it fails"
fi

# A drive that is busy has not even the time for a working set.
name=the_time_bounds_it
timeout 300 "$nvswap" tune --time 4s --working-set 64m --exhaustive "$dir" \
	>"$scratch/out" 2>"$scratch/err"
if grep -qE "Time ran out|give a longer --time" "$scratch/err"; then
	echo "ok $name"
else
	not_ok "there was no end to the time"
fi

# ---- Applying it

printf '{\n\t"train_batch_size": 1E1,\n\t"aio": {"block_size": 4096},\n\t"x": [],
 "nvswap": {"ioengine":"libaio"} }' >"$scratch/ds.json"
tune output_goes_where_it_is_told 0 "${small[@]}" --output "$scratch/to.json" \
	--apply "$scratch/ds.json" "$dir" && {
	if [ ! -s "$scratch/out" ] && grep -q block_size "$scratch/to.json"; then
		echo "ok $name"
	else
		not_ok "not in the file"
	fi
}
name=apply_writes_the_choice_and_leaves_the_rest
if python3 -c 'import json, sys
text = open(sys.argv[2]).read()
assert json.loads(text)["aio"] == json.load(open(sys.argv[1]))["aio"]
head = "{\n\t\"train_batch_size\": 1E1,\n\t\"aio\": {\"block_size\": "
tail = "},\n\t\"x\": [],\n \"nvswap\": {\"ioengine\":\"posix\"} }"
assert text.startswith(head) and text.endswith(tail)' "$scratch/to.json" "$scratch/ds.json"; then
	has err "ds.json has the choice" "named the I/O engine libaio"
else
	not_ok "$(cat "$scratch/ds.json")"
fi
echo '{"aio": 7}' >"$scratch/bad.json"
tune what_can_not_be_applied_is_said_at_once 1 --time 1h --apply "$scratch/bad.json" "$dir" &&
	has err "bad.json:1:9: aio is 7"
# A configuration would be lost under a result.
cp "$scratch/ds.json" "$scratch/kept.json"
ln -s ds.json "$scratch/link.json"
for option in --output --report; do
	tune "no_result_takes_the_place_of_a_configuration_${option#--}" 2 "${small[@]}" \
		--apply "$scratch/ds.json" "$option" "$scratch/link.json" "$dir" &&
		if cmp -s "$scratch/ds.json" "$scratch/kept.json"; then
			has err "are one file"
		else
			not_ok "it is changed"
		fi
done
tune two_results_need_two_files 2 --output "$scratch/none.html" --report "$scratch/none.html" \
	"$dir" && has err "--output and --report are one file"
tune a_report_that_can_not_be_written_is_said_at_once 1 --time 1h \
	--report "$scratch/none/report.html" "$dir" && has err "can't write the report to"
name=a_result_that_can_not_be_written_is_a_failure
"$nvswap" tune "${small[@]}" "$dir" >/dev/full 2>"$scratch/err"
status=$?
if [ $status -eq 1 ]; then has err "is not whole"; else not_ok "exit status $status"; fi

# ---- What is refused

tune a_directory_is_needed 2 && has err "one directory"
tune only_one_directory_is_taken 2 "$dir" "$dir" && has err "one directory"
tune a_directory_that_is_not_there_is_refused 1 "$dir/none" && has err "none"
tune a_file_is_refused 1 "$nvswap" && has err "is no directory"
if [ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ]; then
	tune tmpfs_is_refused 1 /dev/shm && has err "no direct I/O"
else
	echo "skip tmpfs_is_refused: /dev/shm is none"
fi
tune more_than_there_is_room_for_is_refused 1 --working-set 1023t "$dir" &&
	has err "make room, or give a smaller --working-set"
tune a_range_without_a_power_of_two_is_refused 1 --block-size-min 96k --block-size-max 100k \
	"$dir" && has err "no power of two"
mkdir "$dir/.nvswap-tune"
tune a_name_that_is_taken_is_refused 1 "${small[@]}" "$dir" && has err ".nvswap-tune" "remove it"
rmdir "$dir/.nvswap-tune"

full=$scratch/full
mkdir "$full"
truncate -s 64m "$scratch/image"
if [ "$(id -u)" = 0 ] && mkfs.ext4 -q "$scratch/image" 2>/dev/null &&
	mount -o loop "$scratch/image" "$full" 2>/dev/null; then
	mounted=$full
	tune a_drive_without_room_is_refused 1 "$full" && has err "MiB free" "make room"
	umount "$full" && mounted=
else
	echo "skip a_drive_without_room_is_refused: nothing can be mounted"
fi
if loop=$(losetup -f --show "$scratch/image" 2>/dev/null); then
	tune a_block_device_is_refused 1 "$loop" && has err "what is on it would be lost"
	losetup -d "$loop" && loop=
else
	echo "skip a_block_device_is_refused: none can be made"
fi

# ---- However it ends

# Starts one in the background that would go on for long, and waits until it is at work.
begin_long() {
	env --default-signal=INT,TERM "$nvswap" tune --time 10m --working-set 64m "$dir" \
		>"$scratch/out" 2>"$scratch/err" &
	pid=$!
	until_true '[ -e "$dir/.nvswap-tune" ]'
}

for signal_and_status in INT:130 TERM:143; do
	signal=${signal_and_status%:*}
	name=a_signal_${signal}_ends_it_and_leaves_nothing
	begin_long && kill -"$signal" $pid
	wait $pid
	status=$?
	[ $status -eq "${signal_and_status#*:}" ] || { not_ok "exit status $status" || continue; }
	[ ! -s "$scratch/out" ] || { not_ok "there is a result" || continue; }
	nothing_left
done

name=two_do_not_measure_each_other
begin_long
"$nvswap" tune "${small[@]}" "$dir" >/dev/null 2>"$scratch/second"
status=$?
if [ $status -eq 1 ]; then has second "another nvswap tune"; else not_ok "exit status $status"; fi
name=a_kill_leaves_nothing
kill -9 $pid
wait $pid 2>/dev/null
until_true '[ -z "$(ls -A "$dir")" ]' && echo "ok $name"

# Who ends all that is called nvswap ends the guard last.
name=signals_do_not_end_the_guard
begin_long
until_true 'guard=$(pgrep -P $pid)'
for signal in TERM TERM INT INT HUP HUP QUIT USR1; do kill -$signal "$guard"; done
kill -9 $pid
wait $pid 2>/dev/null
until_true '[ -z "$(ls -A "$dir")" ]' && echo "ok $name"

name=without_its_guard_it_takes_the_file_away_itself
begin_long
until_true 'guard=$(pgrep -P $pid)'
kill -9 "$guard"
kill -TERM $pid
wait $pid
nothing_left

echo "left by a crash" >"$dir/.nvswap-tune"
tune what_a_crash_has_left_is_taken_away 0 "${small[@]}" "$dir" && nothing_left

exit $failed
