#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Saving and restoring an optimizer's state: `nvswap bench --rw checkpoint` and `--rw restore`.

. tests/support/bench.sh

# 7 x 275000 bytes of bf16: 962500 elements, 12 bytes of state each, in groups of 131072.
SMALL=(--nvme-path "$T/store" --tensors 7 --tensor-size 275000 --pool 2m)
STATE=11550000

for rw in checkpoint restore; do
	json "${rw}_moves_all_state_once_in_a_round" "job['jobname'] == '$rw' and
		j['jobs'][0]['checkpoint']['state_bytes'] == $STATE and
		job['checkpoint']['rounds'] == 3 and
		read['io_bytes'] == write['io_bytes'] == 3 * $STATE and
		swap['first_swapout_bytes'] == $STATE" --rw $rw --verify
	holds "${rw}_is_verified" "swap['verified_bytes'] == $STATE and swap['verify_errors'] == 0"
	holds "${rw}_is_measured_beside_cp_and_write" "all(
		0 < way['bw_bytes_min'] <= way['bw_bytes'] <= way['bw_bytes_max'] and way['ratio'] > 0
		for way in (job['checkpoint'][name] for name in ('nvswap', 'cp', 'write')))"
	holds "${rw}_is_measured_beside_a_loop_where_io_uring_works" \
		"('no_io_uring' in job['checkpoint']) != ('io_uring' in job['checkpoint'])"
	holds "${rw}_has_the_time_of_its_own_turns" \
		"abs(read['bw_bytes'] / job['checkpoint']['nvswap']['bw_bytes'] - 1) < 3 and
		 job['checkpoint']['nvswap']['ratio'] == 1"
	[ -z "$(find "$T/store" -type f)" ]
	result "${rw}_leaves_no_file" $? "$(find "$T/store" -type f)"
	bench --rw $rw
	for text in "^  load +: 7 made-up tensors, .*, 3 rounds" "^  state +: 11.0 MiB, 3 rounds" \
		"^     nvswap +: [0-9.]+ GB/s \([0-9.]+ to" "^     cp .*nvswap [0-9.]+ times that" \
		"^     write .*nvswap [0-9.]+ times that" "^     io_uring +: " "not asked for"; do
		grep -qE -e "$text" "$T/out" || break
		text=
	done
	[ "$status" = 0 ] && [ -z "$text" ]
	result "table_of_${rw}_has_the_figures" $? "lacks $text"
	json "${rw}_runs_the_rounds_that_are_asked_for" "job['checkpoint']['rounds'] == 2" --rw $rw --loops 2 \
		--ramp-loops 1
	json "runtime_ends_${rw}" "job['checkpoint']['rounds'] > 0" --rw $rw --runtime 100ms --time-based
	json "clones_of_${rw}_are_added_up" "job['checkpoint']['state_bytes'] == 2 * $STATE and
		read['io_bytes'] == 2 * $STATE" --rw $rw --numjobs 2 --group-reporting --loops 1
done

# Root may lock memory beyond the limit unless it gives up that capability.
limited=(prlimit --memlock=65536)
[ "$(id -u)" = 0 ] && limited+=(setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock)
"${limited[@]}" "$NVSWAP" bench "${SMALL[@]}" --rw checkpoint --loops 1 >"$T/out" 2>"$T/err" &&
	grep -qE "^     io_uring +: [0-9.]+ GB/s" "$T/out"
result checkpoint_is_measured_where_memory_cannot_be_registered $? "$(cat "$T/err")"

# A universal checkpoint has files for each tensor; a group ends within the third one.
for rw in checkpoint restore; do
	json "${rw}_of_a_universal_checkpoint_moves_all_state" "job['checkpoint']['rounds'] == 2 and
		swap['verified_bytes'] == $STATE and swap['verify_errors'] == 0" \
		--rw $rw --checkpoint-format universal --loops 2 --verify
	[ -z "$(find "$T/store" -type f -o -name '*.universal')" ]
	result "${rw}_of_a_universal_checkpoint_leaves_no_file" $? "$(find "$T/store")"
done
"$NVSWAP" bench "${SMALL[@]}" --rw checkpoint --checkpoint-format universal --runtime 1h --time-based \
	>"$T/out" 2>"$T/err" &
pid=$!
cut=
while kill -0 $pid 2>/dev/null && [ -z "$cut" ]; do
	cut=$(find "$T/store" -path '*/zero/*tensor2.1*' -name exp_avg.pt 2>/dev/null)
done
[ -n "$cut" ]
result a_tensor_that_a_group_cuts_has_two_pieces $? "$(find "$T/store")"
kill -KILL $pid
wait $pid 2>/dev/null
# Its store is locked until the kernel has released its ring, or a process that it left removes it.
data=$T/store/nvswap/rank0-optimizer/data
while [ -e "$data" ] && ! flock -n "$data" true 2>/dev/null; do :; done
json a_universal_checkpoint_of_a_killed_run_is_replaced "swap['verify_errors'] == 0" --rw checkpoint \
	--checkpoint-format universal --loops 1 --verify
usage checkpoint_format_is_for_checkpoints "checkpoint-format has no effect with rw=swap" --rw swap \
	--checkpoint-format universal

# A killed run leaves its files to the next one.
touch "$T/store/nvswap-bench-rank0.safetensors" "$T/store/nvswap-bench-rank0.copy"
json files_of_a_killed_run_are_replaced "swap['verify_errors'] == 0" --rw checkpoint --loops 1 --verify
[ -z "$(find "$T/store" -type f)" ]
result files_of_a_killed_run_are_removed $? "$(find "$T/store" -type f)"

# Ends the run by a signal once the checkpoint exists.
"$NVSWAP" bench "${SMALL[@]}" --rw checkpoint --runtime 1h --time-based >"$T/out" 2>"$T/err" &
pid=$!
while kill -0 $pid 2>/dev/null && [ ! -e "$T/store/nvswap-bench-rank0.copy" ]; do :; done
kill -TERM $pid
wait $pid
[ $? = 143 ] && [ -z "$(find "$T/store" -type f)" ]
result signal_ends_checkpoints_and_removes_the_files $? "$(find "$T/store" -type f)"

# ---- Bad usage

for option in "--max-in-cpu 5" "--compute-us 5" "--rate 1m"; do
	# shellcheck disable=SC2086
	usage "${option%% *}_is_refused_with_checkpoint" "has no effect with rw=checkpoint" --rw checkpoint $option
done
usage more_than_1000_rounds_are_refused "with rw=restore at most 1000" --rw restore --loops 1001
mkdir "$T/second"
expect checkpoint_takes_one_directory 1 "rw=checkpoint measures one drive: give one" \
	bench "${SMALL[@]}" --nvme-path "$T/second" --rw checkpoint
echo '{"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}' >"$T/cpu.json"
expect checkpoint_of_a_store_in_memory_is_refused 1 "give one directory" bench --config "$T/cpu.json" --rw checkpoint
usage checkpoint_needs_its_block "with an offload_optimizer block" --rw checkpoint

[ $failures = 0 ]
