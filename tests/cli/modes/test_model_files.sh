#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Models: safetensors files and headers, well-formed and hostile, and parts of a model by --size and
# --scale; and the shapes in bench/models, which are those that the script makes.

. tests/support/bench.sh

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
write("half_pair", b'{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', bytes(1))
with open(os.path.join(sys.argv[1], "lines.json"), "w") as f:
    f.write('{\n"a": {"dtype": "F32", "shape": [4]},\n"b": {"dtype": "F32" "shape": [4]}\n}\n')
PY
mkdir "$T/models"
python3 "$T/make.py" "$T/models"

refused() {
	expect "model_$1_is_refused" 1 "$2" bench --nvme-path "$T/store" \
		--model "$T/models/$1.safetensors"
}
refused cut 'cut.safetensors: tensor a: its data ends 16 bytes .* only 15'
refused no_header 'there is no JSON in it'
refused empty 'has only 0'
refused seven 'has only 7'
refused long_header 'should have 1048576 bytes'
refused huge_header 'should have 18446744073709551615 bytes'
refused not_json ":1:2: a key in double quotes is expected here; found 'a'"
refused half_json 'the document ends before the object'
refused trailing 'the document ended before this'
refused array 'found an array where an object of tensors is expected'
refused no_tensor 'holds no tensor'
refused metadata_number 'found 1 where a string in __metadata__'
refused short_offsets 'tensor a: data_offsets span 12 bytes.* need 16'
refused backwards 'tensor a: data_offsets must be two numbers'
refused three_offsets 'tensor a: data_offsets has 3 numbers, and needs two'
refused no_offsets 'tensor a: has no data_offsets'
refused no_dtype 'tensor a: has no dtype'
refused no_shape 'tensor a: has no shape'
refused dtype 'tensor a: dtype F33'
refused dtype_number 'tensor a: found 32 where dtype'
refused negative 'tensor a: found -4'
refused fraction 'tensor a: found 4.5'
refused shape_string 'tensor a: found a string where shape'
refused shape_nested 'tensor a: found an array'
refused null 'tensor a: found null'
refused many_elements 'tensor a: its shape has more elements than 64 bits'
refused many_bytes 'tensor a: .*more than the 576460752303423488 bytes that are allowed'
refused big_number 'tensor a: found 99999999999999999999'
refused overlap 'tensor b: its data begins at 12, and must begin at 16, where a ends: the two overlap'
refused inside 'tensor b: its data begins at 8, and must begin at 16, where a ends: the two overlap'
refused same_place 'tensor [ab]: its data begins at 0, and must begin at 16, where [ab] ends: the two overlap'
refused hole 'tensor b: its data begins at 20, and must begin at 16, where a ends: there may be no hole'
refused late_start 'tensor a: its data begins at 4, and must begin at 0, where the header ends: there may be no hole'
refused more_data 'data ends at 16 with tensor a, but the file has 17 bytes of data: nothing may follow'
refused deep 'more than 512 deep'
refused deep_objects 'more than 512 deep'
refused huge_offsets 'tensor a: data_offsets must be two numbers, the second not less'
refused huge_end 'tensor a: its data ends 4398046511104 bytes .* only 16'
refused wrapping_offset 'tensor a: found 18446744073709551616 where a whole number'
refused metadata_twice '__metadata__ appears twice'
refused boolean 'tensor a: found true where dtype'
refused object 'tensor a: found an object where shape'
refused half_eib 'tensor a: .*more than the 576460752303423488 bytes that are allowed'
refused twice 'tensor a appears twice'
refused key_twice 'tensor a: dtype appears twice'
refused long_name 'none of its tensors has a name of 1 to 511 bytes'
refused no_name 'none of its tensors has a name'
refused nul_name 'none of its tensors has a name of .* without a NUL'
refused escape_name 'tensor a\\x1b\[2Jb'
refused bad_utf8 'byte 0xff is not UTF-8'
refused half_pair 'half of a .*pair'
expect model_error_has_the_line 1 "lines.json:3:22: a ',' or '}' is expected after a value in an object" bench \
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
# A folder as transformers saves it, in two files with an index.
cat >"$T/folder.py" <<'PY'
import json, os, random, struct, sys
folder, random_bytes = sys.argv[1], random.Random(1).randbytes
os.mkdir(folder)
weights = {}
for number, names in enumerate((("b", "a"), ("c",)), 1):
    name = f"model-0000{number}-of-00002.safetensors"
    header = {tensor: {"dtype": "F32", "shape": [1000], "data_offsets": [4000 * i, 4000 * i + 4000]}
              for i, tensor in enumerate(names)}
    weights.update(dict.fromkeys(names, name))
    text = json.dumps(header).encode()
    with open(os.path.join(folder, name), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + random_bytes(4000 * len(names)))
with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
    json.dump({"metadata": {"total_size": 12000}, "weight_map": weights}, f)
PY
python3 "$T/folder.py" "$T/folder"
for rw in swap params; do
	model "a_folder_of_hugging_face_verifies_in_$rw" "swap['tensors'] == 3" \
		--model "$T/folder" --rw $rw --verify
done
model an_index_stands_for_all_its_files "swap['bytes'] == 12000" \
	--model "$T/folder/model.safetensors.index.json" --verify
mkdir "$T/single"
cp "$T/models/good.safetensors" "$T/single/model.safetensors"
model a_folder_with_one_file_is_that_file "swap['bytes'] == $GOOD" --model "$T/single/" --verify
mkdir "$T/no_model"
mkdir "$T/adapter"
cp "$T/models/good.safetensors" "$T/adapter/adapter_model.safetensors"
model a_folder_of_an_adapter_is_read "swap['bytes'] == $GOOD" --model "$T/adapter" --verify
expect a_folder_without_a_model_is_refused 1 "has no model.safetensors, .* nor pytorch_model.bin" \
	bench --nvme-path "$T/store" --model "$T/no_model"
rm "$T/folder/model-00002-of-00002.safetensors"
expect a_file_that_an_index_misses_is_named 1 "model-00002-of-00002.safetensors: No such file" \
	bench --nvme-path "$T/store" --model "$T/folder"
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
model size_keeps_at_least_one_tensor "swap['tensors'] == 1 and swap['model_tensors'] == 4" \
	--model "$T/models/any_order.safetensors" --size 1
model size_of_made_up_tensors_is_exact "swap['tensors'] == 3 and swap['bytes'] == 10 << 10" \
	--tensor-size 4k --size 10k --verify
model size_below_a_made_up_tensor_shortens_it "swap['tensors'] == 1 and swap['bytes'] == 1 << 20" \
	--size 1m --verify
run bench --nvme-path "$T/store" --pool 8m --model "$T/models/good.json" --size 1536
[ "$status" = 0 ] && grep -q "4 tensors, .*(of 14, " "$T/out"
result the_table_names_the_omitted_part_of_a_model $?
run bench --nvme-path "$T/store" --tensors 1 --tensor-size 1
[ "$status" = 0 ] && grep -q ": 1 made-up tensor, 1 byte, 1 loop, seed 1$" "$T/out"
result one_of_a_thing_has_no_plural $? "$(cat "$T/out")"
model scale_keeps_that_share_of_the_layers_and_of_the_embeddings_rows "swap['tensors'] == 40 and
	swap['bytes'] == 3 * 28351488 + (12564 + 256) * 768 * 4 + 2 * 768 * 4 and
	swap['model_tensors'] == 148" --model bench/models/gpt2.json --scale 0.25 --pool 128m --rw swapout
model scale_keeps_a_layer_and_a_row_at_least "swap['tensors'] == 16 and
	swap['bytes'] == 28351488 + 2 * 768 * 4 + 2 * 768 * 4" \
	--model bench/models/gpt2.json --scale 0.000001 --pool 128m --rw swapout
model scale_keeps_that_share_of_made_up_tensors "swap['tensors'] == 3" \
	--tensors 10 --tensor-size 4k --scale 0.3
model scale_1_keeps_all "swap['tensors'] == 14" --model "$T/models/good.json" --scale 1

python3 bench/models/make_models.py --check >"$T/out" 2>"$T/err"
result model_shapes_are_what_the_script_makes $? "$(cat "$T/out")"

[ $failures = 0 ]
