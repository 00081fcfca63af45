#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# --dry-run: the forecast of each mode compared with the run itself, and its errors.

. tests/support/bench.sh

# forecast NAME EXPRESSION ARGUMENT...: compares the dry run (f) with the run itself (j, job, read,
# write); a dry run must leave no file
forecast() {
	bench --output-format json --dry-run "${@:3}"
	cp "$T/out" "$T/forecast.json"
	[ "$status" = 0 ] && [ -z "$(ls "$T/store")" ]
	result "${1}_without_a_trace" $? "$(ls "$T/store")"
	json "$1" "(lambda f: $2)(json.load(open(f'{T}/forecast.json'))['jobs'][0])" "${@:3}"
	rm -rf "$T/store/nvswap"
}
FILL="swap.get('first_swapout_bytes', 0)"
for rw in swapout swapin swap; do
	forecast "dry_run_knows_what_${rw}_moves" "f['write_bytes'] == write['io_bytes'] + $FILL and
		f['read_bytes'] >= read['io_bytes'] == 3 * M * ('$rw' != 'swapout') and
		f['read_bytes'] - read['io_bytes'] == M * ('$rw' != 'swapin') and
		M <= f['space_bytes'] < M + 7 * 512 and f['bytes_are'] == 'exact' and
		'seconds' not in f" --rw $rw --loops 3 --verify
done
forecast dry_run_knows_what_params_moves "f['write_bytes'] == M and
	0 < read['io_bytes'] <= f['read_bytes'] <= 4 * 2 * M and f['bytes_are'] == 'at most'" \
	--rw params --pool 4m
# Tiles are padded by less than one tile.
echo '{"optimizer": {"type": "Lion"}, "zero_optimization": {"offload_optimizer": {
	"device": "none", "fast_init": true}}}' >"$T/lion.json"
for rule in adam lion; do
	forecast "dry_run_knows_what_step_of_${rule}_moves" "1 <= read['io_bytes'] / f['read_bytes'] < 1.05 and
		1 <= write['io_bytes'] / (f['write_bytes'] - f['space_bytes']) < 1.05 and
		1 <= swap['store_bytes'] / f['space_bytes'] and f['bytes_are'] == 'about' and
		1 <= job['step']['drive_written_bytes'] / f['loop_write_bytes'] < 1.05" --rw step \
		$([ $rule = adam ] || echo --config "$T/lion.json")
done
bench --dry-run --time-based --runtime 1h --rate 10m
[ "$status" = 0 ] && grep -q "seconds *3600" "$T/out" && grep -q "  read *35.1[56] GiB" "$T/out" &&
	[ -z "$(grep -v " $T" "$T/out" | awk 'length > 80')" ]
result dry_run_estimates_time_by_runtime_and_rate $? "$(cat "$T/out")"
bench --dry-run --rw swapout --rate 64m --loops 3 --output-format json
python3 -c "import json, sys; job = json.load(open(sys.argv[1]))['jobs'][0]
sys.exit(job['seconds'] != job['write_bytes'] / (64 << 20))" "$T/out"
result dry_run_takes_its_time_from_the_rate $? "$(cat "$T/out")"
bench --dry-run --time-based --runtime 1h
[ "$status" = 0 ] && grep -q "seconds *3600" "$T/out" && grep -q "bytes are *at least" "$T/out"
result dry_run_knows_the_least_bytes_of_a_runtime $? "$(cat "$T/out")"
bench --dry-run
[ "$status" = 0 ] && ! grep -q "seconds" "$T/out"
result dry_run_says_no_time_without_a_rate $? "$(cat "$T/out")"
bench --dry-run --rw step --loops 3
[ "$status" = 0 ] && grep -q "loop write *[1-9].*iB" "$T/out"
result dry_run_says_what_each_step_writes $? "$(cat "$T/out")"
printf '[a]\nrw=swap\nloops=2\n[b]\nstonewall\nrw=read\nsize=2m\nbs=1m\niodepth=8\nioengine=auto\ndirect=1\n' >"$T/two.ini"
run bench --nvme-path "$T/store" --dry-run "$T/two.ini"
[ "$status" = 0 ] && grep -q "  jobname *b$" "$T/out" && grep -q "^write *3.00 GiB" "$T/out" &&
	grep -q "^read *2.00 GiB" "$T/out"
result dry_run_adds_up_the_jobs_of_a_file $? "$(cat "$T/out")"
FULL=(--nvme-path "$T/store" --tensors 1024 --tensor-size 1t)
for rw in step swapout params; do
	expect "space_that_is_lacking_is_found_before_$rw" 1 "store .* has .* free, and this needs" \
		bench "${FULL[@]}" --rw $rw --pool 2t
done
expect dry_run_fails_as_the_run_would 1 "has .* free, and this needs" bench --dry-run "${FULL[@]}" --pool 2t
grep -q "  space *1 PiB" "$T/out"
result dry_run_reports_missing_space $? "$(cat "$T/out")"
expect dry_run_refuses_what_the_run_refuses 1 "more than the whole pool" bench --dry-run "${SMALL[@]}" \
	--tensor-size 16m
[ -z "$(ls "$T/store")" ]
result dry_runs_make_nothing $? "$(ls "$T/store")"
SMALL=(--nvme-path "$T/store")
for rw in read randwrite; do
	forecast "dry_run_knows_what_${rw}_moves" "f['space_bytes'] == 1 << 20 and
		f['read_bytes'] == read['io_bytes'] == (1 << 20) * ('$rw' == 'read') and
		f['write_bytes'] == 1 << 20 == max(read['io_bytes'], write['io_bytes'])" \
		--rw $rw --bs 4k --size 1m
done

[ $failures = 0 ]
