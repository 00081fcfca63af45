#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The command: every option and every error path of `nvswap` and `nvswap bench`, as a user meets
# them. Works in a directory of its own under the build directory.

. "$(dirname "$0")/command.sh"
mkdir "$T/store"

# run ARGUMENT...: $status, $T/out and $T/err
run() {
	"$NVSWAP" "$@" >"$T/out" 2>"$T/err"
	status=$?
}

# expect NAME STATUS PATTERN ARGUMENT...: the pattern is of standard error; "" wants it empty.
expect() {
	local name=$1 want=$2 pattern=$3
	shift 3
	run "$@"
	if [ "$status" != "$want" ]; then
		result "$name" 1 "exit status $status, not $want"
	elif [ -n "$pattern" ]; then
		grep -qE -e "$pattern" "$T/err"
		result "$name" $? "standard error lacks: $pattern"
	else
		[ ! -s "$T/err" ]
		result "$name" $? "standard error is not empty"
	fi
}

usage() {
	local name=$1 pattern=$2
	shift 2
	expect "$name" 2 "$pattern" bench "$@"
}

SMALL=(--nvme-path "$T/store" --tensors 7 --tensor-size 1100000 --pool 8m)
bench() {
	run bench "${SMALL[@]}" "$@"
}

# json NAME EXPRESSION ARGUMENT...: the run succeeds, and the expression holds of its JSON (j is
# the whole, job, read and write its parts).
json() {
	local name=$1 expression=$2
	shift 2
	bench --output-format json "$@"
	if [ "$status" != 0 ]; then
		result "$name" 1 "exit status $status"
	else
		holds "$name" "$expression"
	fi
}

holds() {
	local why
	why=$(python3 - "$T/out" "$2" 2>&1 <<'PY'
import json, sys
j = json.load(open(sys.argv[1]))
job = j["jobs"][0]
read, write = job["read"], job["write"]
scope = {"j": j, "job": job, "read": read, "write": write, "swap": j.get("swap"),
         "aio": j.get("config", {}).get("aio"), "engine": j.get("engine"), "M": 7 * 1100000}
if not eval(f"({sys.argv[2]}\n)", scope):
    sys.exit(f"does not hold: {sys.argv[2]}\n{json.dumps(j)}")
PY
)
	result "$1" $? "$why"
}

# ---- The command

expect help_is_printed 0 "" --help
grep -q bench "$T/out"
result help_lists_the_commands $?
expect version_is_printed 0 "" --version
[ "$(cat "$T/out")" = "nvswap $(sed -n 's/^.define NVS_VERSION[^_A-Z]*"\(.*\)"/\1/p' include/nvswap.h)" ]
result version_is_the_headers $?
expect no_command_is_bad_usage 2 "usage: nvswap"
expect unknown_command_is_suggested 2 "bnech is no command; did you mean bench" bnech
expect unknown_command_points_to_help 2 "see nvswap --help" frobnicate
expect bench_help_is_printed 0 "" bench --help
missing=
for option in config nvme-path model tensors tensor-size scale size rw loops runtime \
	ramp-loops bs iodepth thread-count numjobs ioengine pool verify seed output-format output help; do
	grep -q -e "--$option " "$T/out" || missing="$missing $option"
done
[ -z "$missing" ]
result bench_help_names_every_option $? "missing:$missing"

# ---- Bad usage

usage unknown_option_is_suggested "iodpeth is no option of bench; did you mean --iodepth" --iodpeth 4
usage unknown_option_with_value_is_suggested "did you mean --loops" --lops=4
usage unknown_option_points_to_help "see nvswap bench --help" --frobnicate
usage unknown_short_option_is_refused "-x is no option" -x
usage ambiguous_option_is_refused "could be any of --tensors, --tensor-size" --tens 4
usage flag_takes_0_or_1 "time-based yes: allowed are 0 and 1" --time-based=yes
usage help_takes_no_value "help takes no value" --help=yes
usage option_without_value_is_refused "config needs a value" --config
usage empty_value_is_refused "not empty" --nvme-path=
usage argument_is_a_job_file "model.json: No such file" model.json
for size in 0 511 513 5000 4q 4kq k -4k 1.5m "" 2g 99999999999999999999 17179869184g; do
	usage "bs_${size:-empty}_is_refused" "^nvswap: --bs" --bs "$size"
done
for count in 0 x -1 4097 1.5 99999999999999999999; do
	usage "iodepth_${count}_is_refused" "--iodepth $count: allowed is .* from 1 to 4096" --iodepth "$count"
done
usage numjobs_257_is_refused "from 1 to 256" --numjobs 257
usage thread_count_257_is_refused "from 1 to 256" --thread-count 257
usage loops_0_is_refused "--loops 0" --loops 0
usage loops_beyond_64_bits_of_digits_are_refused "--loops 1.9" --loops 1.99999999999999999999999
usage ramp_loops_is_a_number "--ramp-loops x" --ramp-loops x
usage tensors_0_is_refused "--tensors 0" --tensors 0
usage tensor_size_0_is_refused "--tensor-size 0" --tensor-size 0
usage pool_below_a_page_is_refused "--pool 4095" --pool 4095
usage seed_negative_is_refused "--seed -1" --seed -1
for time in 3w 1.5s s -1; do
	usage "runtime_${time}_is_refused" "--runtime $time: allowed" --runtime "$time"
done
for share in 0 1.01 -0.5 nan 0x1p-1 a; do
	usage "scale_${share}_is_refused" "above 0 and up to 1" --scale "$share"
done
usage rw_is_suggested "allowed are swapout, swapin, .*rw and randrw; did you mean swapout" --rw swapot
usage ioengine_unknown_is_refused "allowed are auto, io_uring, libaio and posix" --ioengine splice
usage output_format_unknown_is_refused "allowed are normal, json and terse; did you mean json" --output-format json+
usage time_based_needs_runtime "needs runtime" --time-based
usage model_and_tensors_exclude_each_other "exclude each other" --model x --tensors 3
usage model_and_tensor_size_exclude_each_other "exclude each other" --tensor-size 3 --model x
usage scale_and_size_exclude_each_other "exclude each other" --scale 0.5 --size 3
usage nowhere_to_swap_to_is_refused "give --nvme-path DIR, or --config FILE"
echo '{"zero_optimization": {"offload_param": {"device": "none"}}}' >"$T/none.json"
usage device_none_is_refused "give --nvme-path DIR, or --config FILE" --config "$T/none.json"
many=()
for i in $(seq 17); do many+=(--nvme-path "$T/$i"); done
usage too_many_paths_are_refused "more than 16 times" "${many[@]}"

# ---- Failures

expect config_missing_fails 1 "nothere.json" bench --config "$T/nothere.json"
echo '{"aio": {"queue_dpeth": 4}}' >"$T/typo.json"
expect config_error_names_the_key 1 "queue_dpeth.*queue_depth" bench --config "$T/typo.json"
expect path_that_is_none_fails 1 "typo.json/sub" bench --nvme-path "$T/typo.json/sub" --tensors 1 --tensor-size 4k
expect tensor_that_never_fits_fails 1 "tensor.0" bench --nvme-path "$T/store" --tensors 1 \
	--tensor-size 8m --pool 1m
expect too_many_bytes_fail 1 "more bytes than the 576460752303423488 that are allowed" bench --nvme-path "$T/store" --tensors 16777216 \
	--tensor-size 1024t
expect output_in_no_directory_fails 1 "can't write the output to" bench "${SMALL[@]}" \
	--output "$T/nothere/out"
expect model_missing_fails 1 "can't open the model" bench --nvme-path "$T/store" --model "$T/none.safetensors"
expect model_that_is_a_directory_fails 1 "not a regular file" bench --nvme-path "$T/store" --model "$T"
"$NVSWAP" bench "${SMALL[@]}" >/dev/full 2>"$T/err"
[ $? = 1 ] && grep -q "standard output is not whole: No space left" "$T/err"
result full_standard_output_fails $?
expect full_output_file_fails 1 "/dev/full is not whole: No space left" bench "${SMALL[@]}" \
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

# ---- Models

cat >"$T/make.py" <<'PY'
"""Makes models, good and lying ones, into the directory argv[1]."""
import json, os, random, struct, sys

def write(name, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with open(os.path.join(sys.argv[1], name + ".safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text) if length is None else length) + text + data)

def tensor(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

random.seed(7)
sizes = [0, 1, 511, 512, 513, 4095, 4096, 4097, 65535, 65536, 65537, 1048575, 1048577]
header, at = {"__metadata__": {"format": "pt"}}, 0
for i, size in enumerate(sizes):
    header[f"layer.{i}"] = tensor([size], at, at + size, "U8")
    at += size
header["scalar"] = tensor([], at, at + 4)
data = random.randbytes(at + 4)
write("good", json.dumps(header).encode() + b"   ", data)
json.dump(header, open(os.path.join(sys.argv[1], "good.json"), "w"))
one = {"a": tensor([4], 0, 16)}
write("cut", one, bytes(15))
write("no_header", b"", b"")
open(os.path.join(sys.argv[1], "empty.safetensors"), "w")
open(os.path.join(sys.argv[1], "seven.safetensors"), "wb").write(bytes(7))
write("long_header", one, bytes(16), 1 << 20)
write("huge_header", one, bytes(16), (1 << 64) - 1)
write("not_json", b"{'a': 1}", bytes(16))
write("half_json", json.dumps(one).encode()[:-1], bytes(16))
write("trailing", json.dumps(one).encode() + b" {}", bytes(16))
write("array", [1])
write("no_tensor", {"__metadata__": {"a": "b"}})
write("metadata_number", {"__metadata__": {"a": 1}, **one}, bytes(16))
write("short_offsets", {"a": tensor([4], 0, 12)}, bytes(16))
write("backwards", {"a": tensor([4], 16, 0)}, bytes(16))
write("three_offsets", {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8, 16]}}, bytes(16))
write("no_offsets", {"a": {"dtype": "F32", "shape": [4]}}, bytes(16))
write("no_dtype", {"a": {"shape": [4], "data_offsets": [0, 16]}}, bytes(16))
write("no_shape", {"a": {"dtype": "F32", "data_offsets": [0, 16]}}, bytes(16))
write("dtype", {"a": tensor([4], 0, 16, "F33")}, bytes(16))
write("dtype_number", {"a": tensor([4], 0, 16, 32)}, bytes(16))
write("negative", {"a": tensor([-4], 0, 16)}, bytes(16))
write("fraction", {"a": tensor([4.5], 0, 16)}, bytes(16))
write("shape_string", {"a": tensor("4", 0, 16)}, bytes(16))
write("shape_nested", {"a": tensor([[4]], 0, 16)}, bytes(16))
write("null", {"a": None}, bytes(16))
write("many_elements", {"a": tensor([1 << 40, 1 << 40], 0, 16)}, bytes(16))
write("many_bytes", {"a": tensor([1 << 62], 0, 16)}, bytes(16))
write("big_number", b'{"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]}}', bytes(16))
write("overlap", {"a": tensor([4], 0, 16), "b": tensor([4], 12, 28)}, bytes(28))
write("inside", {"a": tensor([4], 0, 16), "b": tensor([0], 8, 8), "c": tensor([4], 16, 32)}, bytes(32))
write("same_place", {"a": tensor([4], 0, 16), "b": tensor([4], 0, 16)}, bytes(16))
write("hole", {"b": tensor([4], 20, 36), "a": tensor([4], 0, 16)}, bytes(36))
write("late_start", {"a": tensor([4], 4, 20)}, bytes(20))
write("more_data", {"a": tensor([4], 0, 16)}, bytes(17))
write("deep", b'{"a":{"dtype":"U8","shape":' + b"[" * 200000 + b"]" * 200000 + b"}}")
write("deep_objects", b'{"a":' * 200000 + b"}" * 200000)
write("huge_offsets", {"a": tensor([4], (1 << 64) - 8, 8)}, bytes(16))
write("huge_end", {"a": tensor([1 << 40], 0, 1 << 42)}, bytes(16))
write("wrapping_offset", b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551616,1]}}', bytes(1))
write("half_eib", {"a": tensor([1 << 58], 0, 1 << 60)}, bytes(16))
write("metadata_twice", b'{"__metadata__":{},"__metadata__":{},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
      bytes(1))
write("boolean", {"a": {"dtype": True, "shape": [4]}})
write("object", {"a": {"dtype": "F32", "shape": {}}})
write("any_order", {"b": tensor([2], 24, 32), "a": tensor([4], 0, 16), "empty": tensor([0, 9], 16, 16),
                    "c": tensor([2], 16, 24)}, bytes(range(32)))
write("twice", b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
               b'"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', bytes(2))
write("key_twice", b'{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', bytes(2))
write("unknown_key", {"a": {**tensor([4], 0, 16), "strides": [1]}}, bytes(16))
write("long_name", {"n" * 512: tensor([4], 0, 16)}, bytes(16))
write("no_name", {"": tensor([4], 0, 16)}, bytes(16))
write("nul_name", {"a\0b": tensor([4], 0, 16)}, bytes(16))
write("escape_name", {"a\x1b[2Jb": tensor([4], 0, 12)}, bytes(16))
write("bad_utf8", b'{"\xff":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', bytes(1))
with open(os.path.join(sys.argv[1], "lines.json"), "w") as f:
    f.write('{\n"a": {"dtype": "F32", "shape": [4]},\n"b": {"dtype": "F32" "shape": [4]}\n}\n')
PY
mkdir "$T/models"
python3 "$T/make.py" "$T/models"

refused() {
	expect "model_$1_is_refused" 1 "$2" bench --nvme-path "$T/store" \
		--model "$T/models/$1.safetensors"
}
refused cut 'cut.safetensors: tensor a: its data end 16 bytes .* only 15'
refused no_header 'not JSON'
refused empty 'has only 0'
refused seven 'has only 7'
refused long_header 'is to have 1048576 bytes'
refused huge_header 'is to have 18446744073709551615 bytes'
refused not_json 'line 1: not JSON'
refused half_json 'not JSON'
refused trailing 'not JSON'
refused array 'found an array where an object of tensors is due'
refused no_tensor 'holds no tensor'
refused metadata_number 'found 1 where a string in __metadata__'
refused short_offsets 'tensor a: data_offsets span 12 bytes.* need 16'
refused backwards 'tensor a: data_offsets must be two numbers'
refused three_offsets 'tensor a: data_offsets has more than two'
refused no_offsets 'tensor a has no data_offsets'
refused no_dtype 'tensor a has no dtype'
refused no_shape 'tensor a has no shape'
refused dtype 'tensor a: dtype F33'
refused dtype_number 'tensor a: found 32 where dtype'
refused negative 'tensor a: found -4'
refused fraction 'tensor a: found 4.5'
refused shape_string 'tensor a: found a string where shape'
refused shape_nested 'tensor a: found an array'
refused null 'tensor a: found null'
refused many_elements 'tensor a: its shape has more elements than 64 bits'
refused many_bytes 'tensor a: .*more bytes than the 576460752303423488 that are allowed'
refused big_number 'tensor a: found 99999999999999999999'
refused overlap 'tensor b: its data begin at 12, and must begin at 16, where a ends: the two overlap'
refused inside 'tensor b: its data begin at 8, and must begin at 16, where a ends: the two overlap'
refused same_place 'tensor [ab]: its data begin at 0, and must begin at 16, where [ab] ends: the two overlap'
refused hole 'tensor b: its data begin at 20, and must begin at 16, where a ends: a file has no holes'
refused late_start 'tensor a: its data begin at 4, and must begin at 0, where the header ends: a file has no'
refused more_data 'data end at 16 with tensor a, and the file has 17 bytes of data: nothing may stand behind'
refused deep 'tensor a: found an array where a whole number'
refused deep_objects 'tensor a: unknown key a'
refused huge_offsets 'tensor a: data_offsets must be two numbers, the second not less'
refused huge_end 'tensor a: its data end 4398046511104 bytes .* only 16'
refused wrapping_offset 'tensor a: found 18446744073709551616 where a whole number'
refused metadata_twice '__metadata__ stands twice'
refused boolean 'tensor a: found true where dtype'
refused object 'tensor a: found an object where shape'
refused half_eib 'tensor a: .*more bytes than the 576460752303423488 that are allowed'
refused twice 'tensor a stands twice'
refused key_twice 'tensor a: dtype stands twice'
refused unknown_key 'tensor a: unknown key strides'
refused long_name 'has 512 bytes; allowed are 1 to 511'
refused no_name 'has 0 bytes'
refused nul_name 'with a NUL'
refused escape_name 'tensor a\?\[2Jb'
refused bad_utf8 'not JSON.*UTF8'
expect model_error_has_the_line 1 "lines.json: file, line 3: not JSON" bench \
	--nvme-path "$T/store" --model "$T/models/lines.json"
truncate -s 200m "$T/models/large.json"
expect model_header_above_the_limit_is_refused 1 "header of 209715200 bytes; allowed are up to" \
	bench --nvme-path "$T/store" --model "$T/models/large.json"
rm "$T/models/large.json"

model() {
	local name=$1 expression=$2
	shift 2
	run bench --nvme-path "$T/store" --pool 8m --output-format json "$@"
	[ "$status" = 0 ] && holds "$name" "$expression" || result "$name" 1 "exit status $status"
}
GOOD=$((0 + 1 + 511 + 512 + 513 + 4095 + 4096 + 4097 + 65535 + 65536 + 65537 + 1048575 + 1048577 + 4))
for rw in swapout swapin swap; do
	model "safetensors_with_data_verifies_in_$rw" \
		"swap['tensors'] == 14 and swap['bytes'] == $GOOD and swap['verify_errors'] == 0 and
		 swap['verified_bytes'] >= $GOOD" \
		--model "$T/models/good.safetensors" --rw $rw --loops 2 --verify
done
model safetensors_lists_tensors_in_any_order "swap['tensors'] == 4 and swap['bytes'] == 32" \
	--model "$T/models/any_order.safetensors" --rw swap --verify
cp "$T/models/good.safetensors" "$T/models/renamed"
model safetensors_is_known_by_its_contents "swap['bytes'] == $GOOD" --model "$T/models/renamed" --verify
cp "$T/models/good.json" "$T/models/shapes"
model shapes_alone_verify "swap['bytes'] == $GOOD and swap['verified_bytes'] == 2 * $GOOD" \
	--model "$T/models/good.json" --verify
model shapes_are_known_by_their_contents "swap['bytes'] == $GOOD" --model "$T/models/shapes"
model size_keeps_whole_tensors_from_the_first \
	"swap['tensors'] == 4 and swap['bytes'] == 1024 and swap['model_tensors'] == 14" \
	--model "$T/models/good.json" --size 1536
model size_keeps_at_least_one_tensor "swap['tensors'] == 1" \
	--model "$T/models/gpt.json" --size 1 --model bench/models/gpt2.json --pool 512m
run bench --nvme-path "$T/store" --pool 8m --model "$T/models/good.json" --size 1536
[ "$status" = 0 ] && grep -q "4 tensors, .*(of 14, " "$T/out"
result the_table_says_what_was_left_out_of_a_model $?
model scale_keeps_a_share "swap['tensors'] == 13 and swap['model_bytes'] == $GOOD" \
	--model "$T/models/good.json" --scale 0.9999999
model scale_1_keeps_all "swap['tensors'] == 14" --model "$T/models/good.json" --scale 1

# ---- Runs

json swapout_writes_all "write['io_bytes'] == M and read['io_bytes'] == 0 and job['error'] == 0 and
	job['jobname'] == 'swapout' and 'first_swapout_bytes' not in swap" --rw swapout
json swapin_reads_all "read['io_bytes'] == M and write['io_bytes'] == 0 and
	swap['first_swapout_bytes'] == M" --rw swapin
json swap_reads_and_writes_all "read['io_bytes'] == M and write['io_bytes'] == M" --rw swap
json swap_is_the_default "job['jobname'] == 'swap' and j['global options']['rw'] == 'swap'"
json loops_are_counted "read['io_bytes'] == 3 * M and write['io_bytes'] == 3 * M" --loops 3
json ramp_loops_are_not_counted "write['io_bytes'] == 2 * M and engine['write_bytes'] < 3 * M" \
	--rw swapout --loops 2 --ramp-loops 3
for rw in swapout swapin swap; do
	json "runtime_ends_$rw" "200 <= job['job_runtime'] and job['error'] == 0" \
		--rw $rw --runtime 200ms --time-based --verify
	json "verify_compares_all_in_$rw" "swap['verify_errors'] == 0 and
		swap['verified_bytes'] == {'swapout': 1, 'swapin': 3, 'swap': 4}['$rw'] * M" \
		--rw $rw --loops 3 --ramp-loops 0 --verify
done
json pool_smaller_than_two_tensors_does "swap['verify_errors'] == 0" --pool 2m --verify
json tensors_larger_than_a_batch_do "swap['verify_errors'] == 0 and swap['tensors'] == 5" \
	--tensors 5 --tensor-size 3m --verify
json one_tensor_does "swap['tensors'] == 1" --tensors 1 --loops 4 --verify
json small_tensors_do "swap['tensors'] == 3000 and swap['verify_errors'] == 0" \
	--tensors 3000 --tensor-size 1000 --verify
json seed_is_taken "swap['seed'] == 18446744073709551615" --seed 18446744073709551615 --verify
json bs_sets_block_size "aio['block_size'] == 65536 and write['total_ios'] >= M // 65536" --bs 64K
json bs_takes_units "aio['block_size'] == 1 << 20" --bs 1MiB
json iodepth_sets_queue_depth "aio['queue_depth'] == 3 and engine['inflight_max'] <= 3" \
	--iodepth 3 --bs 4k
json thread_count_is_set "aio['thread_count'] == 2 and engine['workers'] == 2" --thread-count 2
json pool_sets_the_pool "8 << 20 <= swap['pool_bytes'] < 10 << 20 and
	0 < swap['pool_bytes_peak'] <= swap['pool_bytes']"
json options_are_told "job['job options']['loops'] == '2' and
	job['job options']['nvme_path'].endswith('store') and 'rw' not in job['job options']" --loops 2
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

if command -v fio >/dev/null; then
	fio --name=t --filename="$T/fio" --size=1m --rw=rw --bs=64k --output-format=json \
		--output="$T/fio.json" >/dev/null 2>&1
	bench --output-format json
	python3 - "$T/out" "$T/fio.json" >"$T/err" 2>&1 <<'PY'
import json, sys
ours, fios = (json.load(open(path)) for path in sys.argv[1:])
own = {"error_text", "job options", "job_start", "config", "engine", "swap"}
def compare(a, b, where):
    for key in a:
        if key in own:
            continue
        assert key in b, f"{where}.{key} is not fio's"
        kinds = [{int: float}.get(type(x), type(x)) for x in (a[key], b[key])]
        assert kinds[0] == kinds[1], f"{where}.{key}: {kinds}"
        if isinstance(a[key], dict):
            compare(a[key], b[key], f"{where}.{key}")
compare(ours["jobs"][0], fios["jobs"][0], "jobs[0]")
assert {"timestamp", "timestamp_ms", "time", "jobs"} <= ours.keys() & fios.keys()
PY
	result json_has_the_names_and_types_of_fios $?
else
	echo "skip json_has_the_names_and_types_of_fios: fio is not installed"
fi

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
for text in "^  read: IOPS=" "^  write: IOPS=" "MB/s" "99.90th" "^  cpu per GiB  : " "^  engine  " \
	"^  pool  " "^  bounce  " "^  verify .*every byte equal"; do
	grep -qE -e "$text" "$T/out" || break
	text=
done
[ "$status" = 0 ] && [ -z "$text" ]
result table_has_what_was_measured $? "lacks $text"
[ ! -s "$T/err" ]
result no_progress_bar_without_a_terminal $?
bench --output "$T/table"
[ "$status" = 0 ] && [ ! -s "$T/out" ] && grep -q "MB/s" "$T/table"
result output_takes_the_table $?
printf '%0100000d' 0 >"$T/long"
bench --output "$T/long" --output-format json
python3 -m json.tool "$T/long" >/dev/null 2>"$T/err"
result output_replaces_what_the_file_held $?
python3 - "$NVSWAP" bench "${SMALL[@]}" --time-based --runtime 1h >"$T/err" 2>&1 <<'PY'
import os, pty, signal, subprocess, sys
ours, theirs = pty.openpty()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=theirs)
os.close(theirs)
seen = b""
try:
    while part := os.read(ours, 4096):
        drawn = b"IOPS" in seen
        seen += part
        if b"IOPS" in seen and not drawn:
            process.send_signal(signal.SIGTERM)
except OSError:
    pass
out = process.communicate()[0]
assert process.returncode == 128 + signal.SIGTERM, process.returncode
assert b"MB/s" in out and b"\r" not in out, out
assert b"\r" in seen and b"%" in seen and b"GB/s" in seen, seen
assert seen.endswith(b"\r\x1b[Knvswap: stopped by a signal\r\n"), seen[-80:]
PY
result progress_bar_is_drawn_on_a_terminal_and_taken_off $?

# ---- What goes wrong while it runs

DATA=$T/store/nvswap/rank0/data
started() {
	"$NVSWAP" bench "${SMALL[@]}" --output-format json "$@" >"$T/out" 2>"$T/err" &
	pid=$!
	while kill -0 $pid 2>/dev/null && [ ! -s "$DATA" ]; do :; done
}
started --runtime 1h --time-based
kill -TERM $pid
wait $pid
[ $? = 143 ] && [ ! -e "$DATA" ] && grep -q "stopped by a signal" "$T/err"
result signal_stops_it_cleanly $?
holds stopped_run_has_eintr_in_json "job['error'] == 4"
# What comes too late for a run comes in time for a longer one.
for runtime in 1 8 60; do
	started --rw swapin --verify --runtime $runtime --time-based
	while kill -0 $pid 2>/dev/null; do
		dd if=/dev/zero of="$DATA" bs=1M seek=1 count=1 conv=notrunc,nocreat status=none 2>/dev/null
	done
	wait $pid
	status=$?
	[ $status = 0 ] || break
done
[ $status = 1 ] && grep -qE "tensor tensor.[01]: byte [0-9]+ of 1100000 is 0x00 and should be 0x" "$T/err"
result verify_finds_what_was_changed_on_the_drive $?
holds differences_are_counted_in_json "job['error'] == 74 and swap['verify_errors'] > 0"

[ $failures = 0 ]
