#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The command: options, failures, runs and configurations of `nvswap` and `nvswap bench`.

. tests/support/bench.sh

# ---- The command

expect help_is_printed 0 "" --help
expect version_is_printed 0 "" --version
[ "$(cat "$T/out")" = "nvswap $(sed -n 's/^.define NVS_VERSION[^_A-Z]*"\(.*\)"/\1/p' include/nvswap/version.h)" ]
result version_is_the_headers $?
expect no_command_is_bad_usage 2 "usage: nvswap"
expect unknown_command_is_suggested 2 "bnech is not a command; did you mean bench" bnech
expect unknown_command_points_to_help 2 "see nvswap --help" frobnicate
for command in $("$NVSWAP" --help | sed -n 's/^  \([a-z]\+\) .*/\1/p'); do
	expect "help_of_${command}_is_printed" 0 "" "$command" --help
	[ -s "$T/out" ] && [ -z "$(grep -E '.{81}' "$T/out")" ]
	result "help_of_${command}_has_80_columns_at_most" $? "$(grep -E '.{81}' "$T/out")"
done
run bench --help
tr -s ' \n' ' ' <"$T/out" >"$T/words"
grep -qF -- "--size SIZE of a model, use only the first tensors up to this many bytes, at least" "$T/words"
result wrapping_loses_no_word $?

# ---- Bad usage

usage unknown_option_is_suggested "iodpeth is not an option of bench; did you mean --iodepth" --iodpeth 4
usage argument_is_a_job_file "model.json: No such file" model.json
for given in bs:511 bs:2g iodepth:0 iodepth:4097 numjobs:257 thread-count:257 loops:0 tensors:0 tensor-size:0 pool:4095; do
	usage "${given%:*}_${given#*:}_is_refused" "^nvswap: --${given%:*} ${given#*:}: allowed is" \
		"--${given%:*}" "${given#*:}"
done
usage rw_is_suggested "allowed are swapout, swapin, .*randread and randwrite; did you mean swapout" --rw swapot
usage ioengine_unknown_is_refused "allowed are auto, io_uring, libaio and posix" --ioengine splice
usage model_and_tensors_exclude_each_other "exclude each other" --model x --tensors 3
usage scale_and_size_exclude_each_other "exclude each other" --scale 0.5 --size 3
usage nowhere_to_swap_to_is_refused "give --nvme-path DIR, or --config FILE"
echo '{"zero_optimization": {"offload_param": {"device": "none"}}}' >"$T/none.json"
usage device_none_is_refused "give --nvme-path DIR, or --config FILE" --config "$T/none.json"

# ---- Failures

expect config_missing_fails 1 "nothere.json" bench --config "$T/nothere.json"
echo '{"aio": {"queue_dpeth": 4}}' >"$T/typo.json"
expect model_that_is_given_as_configuration_is_refused 1 "gpt2.json: this is a model, give it to --model" \
	bench --nvme-path "$T/store" --config bench/models/gpt2.json
expect config_error_names_the_key 1 "queue_dpeth.*queue_depth" bench --config "$T/typo.json"
expect a_variable_in_a_path_is_told_in_place_of_mkdir 1 "a shell alone replaces the variable" \
	bench --nvme-path "$T"'/$USER' --tensors 1 --tensor-size 4k
expect info_refuses_an_endurance_of_no_drive 2 "name it by --nvme-path" info --tbw 600
expect info_says_that_a_shell_alone_replaces_a_path 1 "nvme_path .HOME/x begins with a variable" info --nvme-path '$HOME/x'
echo '{"zero_optimization": {"aio": {"queue_depth": 4}}}' >"$T/misplaced.json"
expect a_block_in_the_wrong_place_is_refused 1 "zero_optimization.aio .*belongs at the top of the file" \
	bench --config "$T/misplaced.json"
expect path_that_is_none_fails 1 "typo.json/sub" bench --nvme-path "$T/typo.json/sub" --tensors 1 --tensor-size 4k
expect tensor_that_never_fits_fails 1 'tensor.0 takes 8388608 bytes,.* give --pool 8388608' bench --nvme-path "$T/store" --tensors 1 \
	--tensor-size 8m --pool 1m
expect too_many_bytes_fail 1 "more than the 576460752303423488 bytes that are allowed" bench --nvme-path "$T/store" --tensors 16777216 \
	--tensor-size 1024t
expect output_in_no_directory_fails 1 "can't write the output to" bench "${SMALL[@]}" \
	--output "$T/nothere/out"
expect model_missing_fails 1 "can't open the checkpoint" bench --nvme-path "$T/store" --model "$T/none.safetensors"
expect model_that_is_no_file_fails 1 "not a regular file" bench --nvme-path "$T/store" --model /dev/null
"$NVSWAP" bench "${SMALL[@]}" >/dev/full 2>"$T/err"
[ $? = 1 ] && grep -q "standard output is incomplete: No space left" "$T/err"
result full_standard_output_fails $?
expect full_output_file_fails 1 "/dev/full is incomplete: No space left" bench "${SMALL[@]}" \
	--output /dev/full
"$NVSWAP" bench --help >/dev/full 2>"$T/err"
[ $? = 1 ] && grep -q "No space left" "$T/err"
result full_standard_output_of_help_fails $?
echo earlier >"$T/kept"
run bench --nvme-path "$T/typo.json/sub" --output "$T/kept"
[ "$status" = 1 ] && [ "$(cat "$T/kept")" = earlier ]
result failed_run_leaves_an_earlier_result $?
run bench --nvme-path "$T/typo.json/sub" --tensors 1 --tensor-size 4k --output-format json
[ "$status" = 1 ]
holds failed_run_has_its_errno_in_json \
	'job["error"] == 20 and "typo.json/sub" in job["error_text"] and write["io_bytes"] == 0'

for rw in swap step params read randwrite; do
	expect "missing_nvme_path_is_refused_in_$rw" 1 \
		"nvme_path $T/missing does not exist .* is the drive mounted" \
		bench --nvme-path "$T/missing" --size 1m --rw $rw
	result "missing_nvme_path_is_not_made_in_$rw" "$([ ! -e "$T/missing" ]; echo $?)"
done

# ---- Runs

run bench --config config/zero3_cpu.json --rw swap --tensors 4 --tensor-size 4k
[ "$status" = 0 ] && grep -q "engine .*, in host memory$" "$T/out" && ! grep -q buffered "$T/out"
result device_cpu_is_reported_as_host_memory $?
json swapout_writes_all "write['io_bytes'] == M and read['io_bytes'] == 0 and job['error'] == 0 and
	job['jobname'] == 'swapout' and 'first_swapout_bytes' not in swap" --rw swapout
json swapin_reads_all "read['io_bytes'] == M and write['io_bytes'] == 0 and
	swap['first_swapout_bytes'] == M" --rw swapin
json loops_are_counted "job['jobname'] == 'swap' and j['global options']['rw'] == 'swap' and
	read['io_bytes'] == write['io_bytes'] == 3 * M" --loops 3
json ramp_loops_are_not_counted "write['io_bytes'] == 2 * M and engine['write_bytes'] < 3 * M" \
	--rw swapout --loops 2 --ramp-loops 3
for rw in swapout swapin swap; do
	json "verify_compares_all_in_$rw" "swap['verify_errors'] == 0 and
		swap['verified_bytes'] == {'swapout': 1, 'swapin': 3, 'swap': 4}['$rw'] * M" \
		--rw $rw --loops 3 --ramp-loops 0 --verify
done
json pool_smaller_than_two_tensors_does "swap['verify_errors'] == 0" --pool 2m --verify
json tensors_larger_than_a_batch_do "swap['verify_errors'] == 0 and swap['tensors'] == 5" \
	--tensors 5 --tensor-size 3m --verify
json small_tensors_do "swap['tensors'] == 3000 and swap['verify_errors'] == 0" \
	--tensors 3000 --tensor-size 1000 --verify
json settings_are_taken "aio == {**aio, 'block_size': 65536, 'queue_depth': 3, 'thread_count': 2} and
	write['total_ios'] >= M // 65536 and engine['inflight_max'] <= 6 and engine['workers'] == 2 and
	swap['seed'] == 18446744073709551615 and 8 << 20 <= swap['pool_bytes'] < 10 << 20 and
	0 < swap['pool_bytes_peak'] <= swap['pool_bytes']" \
	--bs 64K --iodepth 3 --thread-count 2 --seed 18446744073709551615 --verify
holds options_are_in_the_json "job['job options']['bs'] == '64K' and
	job['job options']['nvme_path'].endswith('store') and 'rw' not in job['job options']"
json percentiles_are_in_order "(lambda p: p == sorted(p) and len(p) == 17 and p[0] > 0 and
	write['clat_ns']['max'] >= write['clat_ns']['mean'] >= write['clat_ns']['min'] > 0)(
	list(write['clat_ns']['percentile'].values()))"
json bandwidth_and_time_agree "abs(write['bw_bytes'] * write['runtime'] / 1e3 / (40 * M) - 1) < 0.2 and
	job['usr_cpu'] + job['sys_cpu'] > 0 and swap['cpu_ms_per_gib'] > 0" --loops 40
for engine in posix libaio io_uring auto; do
	bench --ioengine $engine --verify --output-format json
	if [ "$status" != 0 ] && [ $engine != posix ] && [ $engine != auto ] &&
		grep -qiE "not (permitted|implemented|supported)|blocked|disabled|does not work" "$T/err"; then
		echo "skip ioengine_${engine}_is_used: $(cat "$T/err")"
	else
		holds "ioengine_${engine}_is_used" \
			"j['config']['nvswap']['ioengine'] == '$engine' and swap['verify_errors'] == 0 and
			 engine['ioengine'] in ('$engine' if '$engine' != 'auto' else 'io_uring libaio posix')"
	fi
done

# ---- Configurations

cat >"$T/cpu.json" <<'J'
{"aio": {"block_size": 65536, "queue_depth": 5},
 "zero_optimization": {"offload_param": {"device": "cpu", "buffer_count": 4, "buffer_size": 1e6}}}
J
run bench --config "$T/cpu.json" --tensors 5 --tensor-size 1m --verify --output-format json
[ "$status" = 0 ]
holds config_is_taken "aio['block_size'] == 65536 and aio['queue_depth'] == 5 and
	j['config']['zero_optimization']['offload_param']['device'] == 'cpu' and
	16e6 <= swap['pool_bytes'] < 18e6 and swap['verify_errors'] == 0"
run bench --config "$T/cpu.json" --tensors 5 --tensor-size 1m --verify --output-format json \
	--bs 4k --nvme-path "$T/store" --pool 6m
holds options_override_the_config "aio['block_size'] == 4096 and aio['queue_depth'] == 5 and
	j['config']['zero_optimization']['offload_param']['device'] == 'nvme' and
	6 << 20 <= swap['pool_bytes'] < 8 << 20"
run bench --config "$T/cpu.json" --tensors 1 --tensor-size 17m
[ "$status" = 1 ] && grep -qF '"buffer_size": 1114112 (elements, in each of 4 buffers)' "$T/err"
result pool_too_small_is_reported_in_elements_of_the_key $?
sed 's/1e6/1114112/' "$T/cpu.json" >"$T/enough.json"
run bench --config "$T/enough.json" --tensors 1 --tensor-size 17m
result the_suggested_value_suffices $status
for config in config/*.json; do
	name=$(basename "$config" .json)_swaps_llama
	! left_out "$name" || continue
	run bench --config "$config" --model bench/models/llama-3.1-8b.json --scale 0.01 --rw swapout \
		--nvme-path "$T/store"
	result "$name" $status
done
cat >"$T/optimizer.json" <<J
{"zero_optimization": {"sub_group_size": 1e6,
  "offload_optimizer": {"device": "nvme", "nvme_path": "$T/store", "buffer_count": 4}}}
J
run bench --config "$T/optimizer.json" --tensors 8 --tensor-size 1m --verify --output-format json
holds optimizer_is_taken_where_parameters_are_not_offloaded \
	"swap['verify_errors'] == 0 and swap['tensors'] == 8 and
	 j['config']['zero_optimization']['offload_optimizer']['buffer_size'] == 1000000"
run bench --config "$T/optimizer.json" --tensors 8 --tensor-size 256k --verify --output-format json
holds optimizers_pool_is_no_larger_than_the_model_needs \
	"j['config']['zero_optimization']['offload_optimizer']['buffer_size'] == 8 * (256 << 10) / 4"
echo "{\"nvswap\": {\"keep\": true}}" >"$T/keep.json"
bench --config "$T/keep.json" --output-format json
holds store_is_never_kept "j['config']['nvswap']['keep'] is False"
mkdir "$T/second"
json several_paths_are_striped "len(j['config']['zero_optimization']['offload_param']['nvme_path']) == 2
	and swap['verify_errors'] == 0" --nvme-path "$T/second" --verify
[ -z "$(find "$T/store" "$T/second" -type f -size +0)" ]
result store_is_removed_at_the_end $? "$(find "$T/store" "$T/second" -type f)"

# ---- Text

bench --verify
prints table_has_the_figures "^  read  .* IOPS, " "^  written  .* IOPS, " "99.9 %" "^  cpu per GiB  : " "^  engine  " \
	"^  pool  " "^  bounce  " "^  verify .*every byte equal"
[ ! -s "$T/err" ]
result no_progress_bar_without_a_terminal $?
bench --output "$T/table"
[ "$status" = 0 ] && [ ! -s "$T/out" ] && grep -q " IOPS, " "$T/table"
result output_takes_the_table $?
printf '%0100000d' 0 >"$T/long"
bench --output "$T/long" --output-format json
python3 -m json.tool "$T/long" >/dev/null 2>"$T/err"
result output_replaces_what_the_file_held $?
python3 - "$NVSWAP" bench "${SMALL[@]}" --time-based --runtime 1h >"$T/err" 2>&1 <<'PY'
import fcntl, os, pty, re, signal, struct, subprocess, sys, termios
ours, theirs = pty.openpty()
def resize(columns):
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
resize(80)
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=theirs)
os.close(theirs)
seen, narrow_from = b"", None
try:
    while part := os.read(ours, 4096):
        seen += part
        if narrow_from is None and b"IOPS" in seen:
            resize(40)
            narrow_from = len(seen)
        # One line may have been composed before the terminal was resized.
        elif narrow_from is not None and seen[narrow_from:].count(b"\r") == 3:
            process.send_signal(signal.SIGTERM)
except OSError:
    pass
out = process.communicate()[0]
assert process.returncode == 128 + signal.SIGTERM, process.returncode
assert b" IOPS, " in out and b"\r" not in out, out
assert b"%" in seen and b"GB/s read" in seen, seen
assert seen.endswith(b"\r\x1b[Knvswap: stopped by a signal\r\n"), seen[-80:]
drawn = [line for line in seen.split(b"\r") if line.endswith(b"\x1b[K")]
width = lambda line: len(line) - len(b"\x1b[K")
assert all(width(line) < 80 for line in drawn), drawn
narrow = [line for line in seen[narrow_from:].split(b"\r")[2:] if line.endswith(b"\x1b[K")]
assert narrow and all(width(line) < 40 and b"GB/s read" in line for line in narrow), narrow
PY
result progress_line_is_as_wide_as_the_terminal_and_erased $?

# ---- Failures during a run

started rank0 "${SMALL[@]}" --runtime 1h --time-based
kill -TERM $pid
wait $pid
[ $? = 143 ] && [ ! -e "$T/store/nvswap" ] && grep -q "stopped by a signal" "$T/err"
result signal_stops_it_cleanly $?
holds stopped_run_has_eintr_in_json "job['error'] == 4"
overwritten 2 1 "1 8 60" "${SMALL[@]}" --rw swapin
[ $status = 1 ] && grep -qE "tensor tensor.[01]: byte [0-9]+ of 1100000 is 0x00 and should be 0x" "$T/err"
result verify_detects_changes_on_the_drive $?
holds differences_are_counted_in_json "job['error'] == 74 and swap['verify_errors'] > 0"

[ $failures = 0 ]
