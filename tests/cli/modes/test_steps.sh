#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Training steps: `nvswap bench --rw step` and `--rw params`, and `--trace`.

. tests/support/bench.sh

# table NAME PATTERN ARGUMENT...: the run must succeed, and its text match PATTERN.
table() {
	run bench "${@:3}"
	[ "$status" = 0 ] && grep -qE -e "$2" "$T/out"
	result "$1" $? "exit status $status, or standard output lacks: $2"
}

# Seven tensors of 300000 bytes: 1050000 trainable elements of bf16, or seven layers.
SMALL=(--nvme-path "$T/store" --tensors 7 --tensor-size 300000 --pool 8m)
M=$((7 * 300000))
step() {
	json "$1" "$2" --rw step "${@:3}"
}
params() {
	json "$1" "$2" --rw params "${@:3}"
}

# ---- Optimizer steps

step state_is_read_and_written_once_in_a_step "job['jobname'] == 'step' and
	step['elements'] == E and step['steps'] == 3 and step['skipped'] == 0 and
	whole(step['read_bytes'], E) and step['written_bytes'] == step['read_bytes'] and
	read['io_bytes'] == write['io_bytes'] == 3 * step['read_bytes'] and
	step['hits'] == 0 and step['misses'] == step['tiles'] > 0"
holds first_step_makes_the_state_and_is_not_measured \
	"step['first_read_bytes'] == 0 and step['first_written_bytes'] == step['written_bytes'] and
	 step['first_wall_ns'] > 0"
holds steps_without_a_configuration_are_adamw_on_bf16_pipelined \
	"zero['offload_optimizer']['pipeline_read'] and zero['offload_optimizer']['pipeline_write'] and
	 zero['offload_optimizer']['fast_init'] and zero['offload_optimizer']['buffer_count'] == 4"
holds what_the_drive_was_given_is_reported_for_each_step_and_for_the_run \
	"0 <= step['drive_written_bytes'] - step['written_bytes'] < 8192 * step['tiles'] and
	 job['engine']['drive_written_bytes'] >= 4 * step['written_bytes']"
holds pool_sets_buffers_and_groups "zero['sub_group_size'] == (8 << 20) / 4 / 4 and
	zero['offload_optimizer']['buffer_size'] == zero['sub_group_size'] and
	step['groups'] == -(-E // zero['sub_group_size']) and
	8 << 20 <= swap['pool_bytes'] < 10 << 20 and
	0 < swap['pool_bytes_peak'] <= swap['pool_bytes']"
holds times_of_a_step_are_in_order \
	"0 < step['wall_min_ns'] <= step['wall_mean_ns'] <= step['wall_max_ns'] and
	 0 < step['io_ns'] <= step['wall_mean_ns'] and 0 < step['compute_ns'] <= step['wall_mean_ns'] and
	 0 <= step['hidden_ns'] <= min(step['io_ns'], step['compute_ns']) and
	 0 <= step['hidden_share'] <= 1 and 3 * step['wall_mean_ns'] / 1e6 <= job['job_runtime'] + 1"
holds updates_are_reported "step['kernel'] in ('avx512', 'avx2', 'plain') and step['threads'] >= 1 and
	step['update_cpu_ns'] > 0 and
	abs(swap['cpu_ms_for_updates'] - 3 * step['update_cpu_ns'] / 1e6) < 0.01"
holds memory_is_the_sum_of_its_parts \
	"step['memory_own_bytes'] == 4 * E and step['memory_peak_bytes'] == step['memory_own_bytes'] +
	 step['memory_pool_bytes'] + step['memory_rest_bytes'] and step['memory_rest_bytes'] > 0 and
	 step['memory_host_bytes'] == step['memory_store_bytes'] == 0"
holds unchanged_gradients_are_reported "step['norm'] is None and
	step['clip'] == step['loss_scale'] == 1"
holds configuration_of_the_optimizer_is_reported \
	"config['optimizer'] == {'type': 'AdamW'} and
	 config['gradient_clipping'] == 0 and config['bf16'] == {'enabled': True} and
	 not config['fp16']['enabled'] and config['data_types'] == {'grad_accum_dtype': 'bf16'}"
holds cpu_per_gib_leaves_the_updates_out \
	"swap['cpu_ms_per_gib'] * (read['io_bytes'] + write['io_bytes']) / (1 << 30) <
	 (job['usr_cpu'] + job['sys_cpu']) / 100 * (job['job_runtime'] + 1) -
	 swap['cpu_ms_for_updates'] + 0.1"

step resident_state_is_neither_read_nor_written "step['read_bytes'] == step['written_bytes'] == 0 and
	step['hits'] == step['tiles'] and step['misses'] == 0 and
	config['nvswap']['optimizer_max_in_cpu'] == 2000000" --max-in-cpu 2000000
# Tiles are not split, so up to one tile less than requested stays in memory.
step state_in_memory_is_not_moved "step['read_bytes'] == step['written_bytes'] and
	0 <= step['read_bytes'] - 12 * (E - 500000) <= 12 * 57344 * 2 and step['hits'] > 0 and
	config['nvswap']['optimizer_max_in_cpu'] == 500000" --max-in-cpu 5.0e5 --ramp-loops 1
step threads_are_taken "step['threads'] == 1 and config['nvswap']['optimizer_threads'] == 1" \
	--threads 1 --loops 1
step runtime_ends_steps "step['steps'] > 0 and 200 <= job['job_runtime'] and
	read['io_bytes'] == step['steps'] * step['read_bytes'] and whole(step['read_bytes'], E)" --runtime 200ms --time-based
step ramp_loops_are_not_in_the_figures "step['steps'] == 2 and whole(write['io_bytes'] / 2, E) and
	j['engine']['write_bytes'] == write['io_bytes']" \
	--loops 2 --ramp-loops 2
python3 - "$T" <<'PY'
import json, sys
at, model = 0, {}
def add(name, numel):
    global at
    model[name] = {"dtype": "BF16", "shape": [numel], "data_offsets": [at, at + 2 * numel]}
    at += 2 * numel
add("model.embed_tokens.weight", 1000)
for i in range(11):
    for part in ("attn.0.w", "attn.1.w", "norm"):
        add(f"model.layers.{i}.{part}", 20000)
add("model.norm.weight", 100)
add("lm_head.weight", 1000)
json.dump(model, open(f"{sys.argv[1]}/layers.json", "w"))
PY
ran tensors_are_packed_into_groups "step['elements'] == 662100 and step['groups'] == 11" \
	--rw step --nvme-path "$T/store" --model "$T/layers.json" --pool 1m --loops 1

# $1: types; $2: Adam's parameters; $3: other keys; $4: the device (nvme); $5: the ratio (1)
config() {
	echo "{$1, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 2e-3, $2}}, $3
	 \"zero_optimization\": {\"sub_group_size\": 90001, \"offload_optimizer\": {
	 \"device\": \"${4:-nvme}\", \"nvme_path\": \"$T/store\", \"buffer_count\": 3,
	 \"pipeline_read\": true, \"ratio\": ${5:-1}}}}" >"$T/config.json"
}
SHORT=(--rw step --config "$T/config.json" --tensors 3 --tensor-size 250000 --loops 5)
config '"fp16": {"enabled": true}' '"weight_decay": 0.1, "adam_w_mode": false' \
	'"gradient_clipping": 0.5,'
ran configured_groups_are_kept "step['elements'] == 375000 and step['groups'] == 5 and zero['sub_group_size'] == 90001 and
	whole(step['first_read_bytes'], 375000)" "${SHORT[@]}"
holds scaled_and_clipped_gradients_are_reported "step['norm'] > 0.5 and
	abs(step['clip'] * (step['norm'] + 1e-6) / 0.5 - 1) < 1e-6 and step['loss_scale'] == 65536"
holds configuration_of_types_and_clipping_is_reported "config['gradient_clipping'] == 0.5 and
	config['fp16'] == {'enabled': True, 'loss_scale': 0, 'initial_scale_power': 16,
	 'loss_scale_window': 1000, 'hysteresis': 2, 'consecutive_hysteresis': False,
	 'min_loss_scale': 1} and
	not config['bf16']['enabled'] and config['data_types'] == {'grad_accum_dtype': 'fp16'}"
config '"bf16": {"enabled": false}' '"weight_decay": 0.1, "bias_correction": false' ''
ran elements_of_fp32_have_four_bytes "step['elements'] == 187500 and
	step['memory_own_bytes'] == 8 * 187500" "${SHORT[@]}"
config '"bf16": {"enabled": true}' '"eps": 1e-7' '' nvme 0.5
ran state_that_ratio_leaves_in_memory_is_a_figure_of_its_own \
	"0 < step['memory_host_bytes'] < 12 * 375000 + (1 << 20) and
	 step['memory_host_bytes'] + step['first_written_bytes'] >= 12 * 375000 and
	 step['memory_peak_bytes'] == step['memory_pool_bytes'] + step['memory_host_bytes'] +
	 step['memory_own_bytes'] + step['memory_rest_bytes']" "${SHORT[@]}"
table table_has_the_state_in_memory "^  memory .* state in memory [0-9.]+ [KM]iB, .* the rest" \
	"${SHORT[@]}"
config '"bf16": {"enabled": true}' '"eps": 1e-7' '' cpu
ran store_in_memory_is_a_figure_of_its_own "12 * 375000 <= step['memory_store_bytes'] ==
	swap['store_bytes'] and step['memory_host_bytes'] == 0" "${SHORT[@]}"
table table_has_the_store_in_memory "store +: [0-9.]+ MiB of memory beside these" "${SHORT[@]}"

config '"bf16": {"enabled": true}' '"eps": 1e-7' '"nvswap": {"optimizer_state": "8bit"},'
ran the_format_of_the_state_is_reported "config['nvswap']['optimizer_state'] == '8bit' and
	8 * 375000 <= step['read_bytes'] + step['written_bytes'] < 9 * 375000" "${SHORT[@]}"

config '"bf16": {"enabled": true}' '"weight_decay": 0.1' ''
sed -i 's/"AdamW\?"/"SGD"/' "$T/config.json"
ran the_state_of_another_rule_is_smaller "config['optimizer'] == {'type': 'SGD'} and
	8 * 375000 <= step['read_bytes'] < 9 * 375000" "${SHORT[@]}"

# ---- Forward and backward

params layers_are_asked_for_forward_and_backward "job['jobname'] == 'params' and step['layers'] == 7 and
	step['steps'] == 3 and step['hits'] + step['misses'] == 14 and
	step['first_read_bytes'] == M and swap['first_swapout_bytes'] == M and
	write['io_bytes'] == 0 and 'elements' not in step" --compute-us 0
# A pool of four layers cannot hold seven.
params layers_beyond_the_pool_are_read "0 < step['read_bytes'] <= 2 * M and
	step['hits'] + step['misses'] == 14 and step['io_ns'] > 0 and
	step['wall_mean_ns'] >= 14 * 500 * 1000 and
	step['compute_ns'] >= 14 * 500 * 1000 and 0 <= step['hidden_share'] <= 1" \
	--pool 1250k --compute-us 500
params a_model_that_the_pool_holds_shows_nothing_and_says_so "step['read_bytes'] == 0 and
	step['hits'] == 14 and step['hidden_share'] is None and 'smaller --pool' in step['note'] and
	zero['offload_param']['max_in_cpu'] == 100000000" --pool 32m --max-in-cpu 100000000
table table_says_that_nothing_is_shown \
	"nothing to hide$" --rw params "${SMALL[@]}" --pool 32m --max-in-cpu 100000000
ran default_pool_does_not_hold_the_model "0 < step['read_bytes'] and 'note' not in step and
	swap['pool_bytes'] < M" --rw params --nvme-path "$T/store" --tensors 7 --tensor-size 300000
holds default_pool_has_room_to_read_ahead "swap['pool_bytes'] >= 2 * 303104"
params verify_compares_each_visit "swap['verified_bytes'] == 3 * 2 * M and swap['verify_errors'] == 0 and
	step['steps'] == 2" --pool 1250k --loops 2 --verify
params runtime_ends_params "step['steps'] > 0 and 200 <= job['job_runtime']" --runtime 200ms --time-based
LAYERS=(--rw params --nvme-path "$T/store" --model "$T/layers.json")
ran layers_are_what_names_say "step['layers'] == 14 and step['hits'] + step['misses'] == 72" \
	"${LAYERS[@]}" --pool 1m --loops 1
ran layer_may_take_the_whole_pool "step['layers'] == 14 and swap['verify_errors'] == 0 and
	swap['pool_bytes'] == swap['pool_bytes_peak'] == 122880" \
	"${LAYERS[@]}" --pool 120k --loops 2 --verify
expect layer_of_more_than_the_pool_is_refused 1 \
	'layer model.layers.0 takes 122880 bytes, .* give --pool 122880 or .* "buffer_size": 6144 \(el' bench \
	"${LAYERS[@]}" --pool 100k

# ---- Trace

SPANS="[event for event in json.load(open(f'{T}/trace'))['traceEvents'] if event['ph'] == 'X']"
step trace_is_written_of_steps "step['steps'] == 1 and $SPANS" --loops 1 --trace "$T/trace"
ran trace_has_the_computing_of_each_layer \
	"sum(event['name'] == 'model.layers.7' for event in $SPANS) == 4 and
	 all(event['dur'] >= 100 for event in $SPANS if event['name'] == 'model.layers.7')" \
	"${LAYERS[@]}" --pool 1m --loops 1 --compute-us 100 --trace "$T/trace"
json trace_is_written_of_swaps "write['io_bytes'] == M and $SPANS" --rw swapout --trace "$T/trace"
expect trace_in_no_directory_fails_before_the_run 1 "$T/nothere/trace" bench --rw step "${SMALL[@]}" \
	--runtime 1h --time-based --trace "$T/nothere/trace"

# ---- Bad usage

expect pool_too_small_for_tiles_is_reported_in_elements 1 "set sub_group_size to 1536 elements or more" bench \
	--rw step --nvme-path "$T/store" --tensors 2 --tensor-size 100000 --pool 4k
table the_suggested_value_suffices "step time" \
	--rw step --nvme-path "$T/store" --tensors 2 --tensor-size 100000 --pool $((1536 * 4 * 4)) --loops 1
usage step_needs_its_block "with an offload_optimizer block" --rw step
usage params_needs_its_block "with an offload_param block" --rw params --config "$T/config.json"
echo '{"a": {"dtype": "I32", "shape": [4], "data_offsets": [0, 16]}}' >"$T/integers.json"
expect model_without_floats_is_refused 1 "no floating-point element" bench --rw step --nvme-path "$T/store" \
	--model "$T/integers.json"

# ---- Text

bench --rw step
prints table_of_steps_has_the_figures "^  read .* IOPS" "^  written .* IOPS" "^  step time .*I/O .*hidden" \
	"read, .*tiles found in memory" "not measured" "^  updates +: 1050000 elements in 3 groups" \
	"^  memory .*the caller's own .*the rest" "^  cpu per GiB .*for updates and norm"
bench --rw params --pool 1250k --compute-us 7
prints table_of_params_has_the_figures "^  step time .*I/O .*hidden" "tensors found in memory" \
	"^  layers +: 7, .* 7 us" "^  memory "

# ---- Failures during a run

started rank0-optimizer --rw step "${SMALL[@]}" --runtime 1h --time-based
kill -TERM $pid
wait $pid
[ $? = 143 ] && [ ! -e "$T/store/nvswap" ] && grep -q "stopped by a signal" "$T/err"
result signal_stops_steps_cleanly $?
holds stopped_steps_have_eintr_in_json "job['error'] == 4"
# A read error ends the run before anything is compared.
started rank0 --rw swapin "${SMALL[@]}" --verify --runtime 1h --time-based --output-format normal
while kill -0 $pid 2>/dev/null; do truncate -c -s 0 "$DATA" 2>/dev/null; done
wait $pid
[ $? = 1 ] && grep -qE "^  verify +: .*(so far|was compared); the run failed: ." "$T/out"
result failed_run_is_not_called_verified $? "$(cat "$T/out")"
rm "$T/trace"
overwritten 1 2 "700ms 8s 60s" --rw params "${SMALL[@]}" --pool 1250k --trace "$T/trace" # not the label
[ $status = 1 ] && grep -qE "tensor tensor.[0-9]: byte [0-9]+ of 300000 is 0x00 and should be" "$T/err"
result verify_finds_parameters_that_were_changed_on_the_drive $?
holds trace_is_written_after_an_error "$SPANS"
[ -z "$(find "$T/store" -type f -size +0)" ]
result stores_are_removed_at_the_end $? "$(find "$T/store" -type f)"

[ $failures = 0 ]
