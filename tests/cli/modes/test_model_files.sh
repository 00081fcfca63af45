#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Models: safetensors files and headers, well-formed and hostile, and parts of a model by --size and
# --scale; and the shapes in bench/models, which are those that the script makes.

. tests/support/bench.sh

cat >"$T/make.py" <<'PY'
"""Makes models, good and lying ones, into the directory argv[1]; prints for each lying one its name and why
it is refused."""
import json, os, random, struct, sys

def write(name, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with open(os.path.join(sys.argv[1], name + ".safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text) if length is None else length) + text + data)

def bad(name, pattern, header, data=bytes(16), length=None):
    print(name, pattern, sep="\t")
    write(name, header, data, length)

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
bad("cut", r"cut.safetensors: tensor a: its data ends 16 bytes .* only 15", one, bytes(15))
bad("no_header", r"there is no JSON in it", b"", b"")
for name, length in ("empty", 0), ("seven", 7):
    bad(name, f"has only {length}", b"")
    os.truncate(os.path.join(sys.argv[1], name + ".safetensors"), length)
bad("huge_header", r"should have 18446744073709551615 bytes", one, bytes(16), (1 << 64) - 1)
bad("not_json", r":1:2: a key in double quotes is expected here; found 'a'", b"{'a': 1}")
bad("array", r"found an array where an object of tensors is expected", [1], b"")
bad("no_tensor", r"holds no tensor", {"__metadata__": {"a": "b"}}, b"")
bad("metadata_number", r"found 1 where a string in __metadata__", {"__metadata__": {"a": 1}, **one})
bad("short_offsets", r"tensor a: data_offsets span 12 bytes.* need 16", {"a": tensor([4], 0, 12)})
bad("backwards", r"tensor a: data_offsets must be two numbers", {"a": tensor([4], 16, 0)})
bad("three_offsets", r"tensor a: data_offsets has 3 numbers, and needs two",
    {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8, 16]}})
bad("no_offsets", r"tensor a: has no data_offsets", {"a": {"dtype": "F32", "shape": [4]}})
bad("no_dtype", r"tensor a: has no dtype", {"a": {"shape": [4], "data_offsets": [0, 16]}})
bad("no_shape", r"tensor a: has no shape", {"a": {"dtype": "F32", "data_offsets": [0, 16]}})
bad("dtype", r"tensor a: dtype F33", {"a": tensor([4], 0, 16, "F33")})
bad("dtype_number", r"tensor a: found 32 where dtype", {"a": tensor([4], 0, 16, 32)})
bad("negative", r"tensor a: found -4", {"a": tensor([-4], 0, 16)})
bad("shape_string", r"tensor a: found a string where shape", {"a": tensor("4", 0, 16)})
bad("null", r"tensor a: found null", {"a": None})
bad("many_elements", r"tensor a: its shape has more elements than 64 bits",
    {"a": tensor([1 << 40, 1 << 40], 0, 16)})
bad("many_bytes", r"tensor a: .*more than the 576460752303423488 bytes that are allowed",
    {"a": tensor([1 << 62], 0, 16)})
bad("overlap", r"tensor b: its data begins at 12, and must begin at 16, where a ends: the two overlap",
    {"a": tensor([4], 0, 16), "b": tensor([4], 12, 28)}, bytes(28))
bad("inside", r"tensor b: its data begins at 8, and must begin at 16, where a ends: the two overlap",
    {"a": tensor([4], 0, 16), "b": tensor([0], 8, 8), "c": tensor([4], 16, 32)}, bytes(32))
bad("hole", r"tensor b: its data begins at 20, and must begin at 16, where a ends: there may be no hole",
    {"b": tensor([4], 20, 36), "a": tensor([4], 0, 16)}, bytes(36))
bad("late_start", r"tensor a: its data begins at 4, and must begin at 0, where the header ends: there may be no hole",
    {"a": tensor([4], 4, 20)}, bytes(20))
bad("more_data", r"data ends at 16 with tensor a, but the file has 17 bytes of data: nothing may follow",
    {"a": tensor([4], 0, 16)}, bytes(17))
bad("wrapping_offset", r"tensor a: found 18446744073709551616 where a whole number",
    b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551616,1]}}', bytes(1))
bad("metadata_twice", r"__metadata__ appears twice",
    b'{"__metadata__":{},"__metadata__":{},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
      bytes(1))
write("any_order", {"b": tensor([2], 24, 32), "a": tensor([4], 0, 16), "empty": tensor([0, 9], 16, 16),
                    "c": tensor([2], 16, 24)}, bytes(range(32)))
bad("twice", r"tensor a appears twice", b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
               b'"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', bytes(2))
bad("key_twice", r"tensor a: dtype appears twice",
    b'{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', bytes(2))
write("unknown_key", {"a": {**tensor([4], 0, 16), "strides": [1]}}, bytes(16))
bad("long_name", r"none of its tensors has a name of 1 to 511 bytes", {"n" * 512: tensor([4], 0, 16)})
bad("no_name", r"none of its tensors has a name", {"": tensor([4], 0, 16)})
bad("nul_name", r"none of its tensors has a name of .* without a NUL", {"a\0b": tensor([4], 0, 16)})
bad("escape_name", r"tensor a\\x1b\[2Jb", {"a\x1b[2Jb": tensor([4], 0, 12)})
# A folder as transformers saves it, in two files with an index.
folder, weights = os.path.join(sys.argv[1], "folder"), {}
os.mkdir(folder)
for name, names in ("model-00001-of-00002", "ba"), ("model-00002-of-00002", "c"):
    write(os.path.join("folder", name), {key: tensor([1000], 4000 * i, 4000 * i + 4000) for i, key in enumerate(names)},
          random.randbytes(4000 * len(names)))
    weights.update(dict.fromkeys(names, name + ".safetensors"))
with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
    json.dump({"metadata": {"total_size": 12000}, "weight_map": weights}, f)
with open(os.path.join(sys.argv[1], "lines.json"), "w") as f:
    f.write('{\n"a": {"dtype": "F32", "shape": [4]},\n"b": {"dtype": "F32" "shape": [4]}\n}\n')
PY
mkdir "$T/models"
python3 "$T/make.py" "$T/models" >"$T/bad"

while IFS=$'\t' read -r name pattern; do
	expect "model_${name}_is_refused" 1 "$pattern" bench --nvme-path "$T/store" \
		--model "$T/models/$name.safetensors"
done <"$T/bad"
expect model_error_has_the_line 1 "lines.json:3:22: a ',' or '}' is expected after a value in an object" bench \
	--nvme-path "$T/store" --model "$T/models/lines.json"
truncate -s 200m "$T/models/large.json"
expect model_header_above_the_limit_is_refused 1 "header of 209715200 bytes; allowed are up to" \
	bench --nvme-path "$T/store" --model "$T/models/large.json"
rm "$T/models/large.json"

model() {
	ran "$1" "$2" --nvme-path "$T/store" --pool 8m "${@:3}"
}
GOOD=$((0 + 1 + 511 + 512 + 513 + 4095 + 4096 + 4097 + 65535 + 65536 + 65537 + 1048575 + 1048577 + 4))
for rw in swapout swapin swap; do
	model "safetensors_with_data_verifies_in_$rw" \
		"swap['tensors'] == 14 and swap['bytes'] == $GOOD and swap['verify_errors'] == 0 and
		 swap['verified_bytes'] >= $GOOD" \
		--model "$T/models/good.safetensors" --rw $rw --loops 2 --verify
done
for rw in swap params; do
	model "a_folder_of_hugging_face_verifies_in_$rw" "swap['tensors'] == 3" \
		--model "$T/models/folder" --rw $rw --verify
done
model an_index_stands_for_all_its_files "swap['bytes'] == 12000" \
	--model "$T/models/folder/model.safetensors.index.json" --verify
mkdir "$T/single"
cp "$T/models/good.safetensors" "$T/single/model.safetensors"
model a_folder_with_one_file_is_that_file "swap['bytes'] == $GOOD" --model "$T/single/" --verify
mkdir "$T/no_model" "$T/adapter"
cp "$T/models/good.safetensors" "$T/adapter/adapter_model.safetensors"
model a_folder_of_an_adapter_is_read "swap['bytes'] == $GOOD" --model "$T/adapter" --verify
expect a_folder_without_a_model_is_refused 1 "has no model.safetensors, .* nor pytorch_model.bin" \
	bench --nvme-path "$T/store" --model "$T/no_model"
rm "$T/models/folder/model-00002-of-00002.safetensors"
expect a_file_that_an_index_misses_is_named 1 "model-00002-of-00002.safetensors: No such file" \
	bench --nvme-path "$T/store" --model "$T/models/folder"
model safetensors_lists_tensors_in_any_order "swap['tensors'] == 4 and swap['bytes'] == 32" \
	--model "$T/models/any_order.safetensors" --rw swap --verify
cp "$T/models/good.safetensors" "$T/models/renamed"
model safetensors_is_known_by_its_contents "swap['bytes'] == $GOOD" --model "$T/models/renamed" --verify
model shapes_alone_verify "swap['bytes'] == $GOOD and swap['verified_bytes'] == 2 * $GOOD" \
	--model "$T/models/good.json" --verify
model size_keeps_whole_tensors_from_the_first \
	"swap['tensors'] == 4 and swap['bytes'] == 1024 and swap['model_tensors'] == 14" \
	--model "$T/models/good.json" --size 1536
model size_keeps_at_least_one_tensor "swap['tensors'] == 1" --model "$T/models/any_order.safetensors" --size 1
model size_of_made_up_tensors_is_exact "swap['tensors'] == 3 and swap['bytes'] == 10 << 10" \
	--tensor-size 4k --size 10k --verify
model size_below_a_made_up_tensor_shortens_it "swap['tensors'] == 1 and swap['bytes'] == 1 << 20" \
	--size 1m --verify
run bench --nvme-path "$T/store" --pool 8m --model "$T/models/good.json" --size 1536
[ "$status" = 0 ] && grep -q "4 tensors, .*(of 14, " "$T/out"
result the_table_names_the_omitted_part_of_a_model $?
model scale_keeps_that_share_of_the_layers_and_of_the_embeddings_rows "swap['tensors'] == 40 and
	swap['bytes'] == 3 * 28351488 + (12564 + 256) * 768 * 4 + 2 * 768 * 4 and
	swap['model_tensors'] == 148" --model bench/models/gpt2.json --scale 0.25 --pool 128m --rw swapout
model scale_keeps_a_layer_and_a_row_at_least "swap['tensors'] == 16 and
	swap['bytes'] == 28351488 + 2 * 768 * 4 + 2 * 768 * 4" \
	--model bench/models/gpt2.json --scale 0.000001 --pool 128m --rw swapout
model scale_keeps_that_share_of_made_up_tensors "swap['tensors'] == 3" \
	--tensors 10 --tensor-size 4k --scale 0.3

python3 bench/models/make_models.py --check >"$T/out" 2>"$T/err"
result model_shapes_are_what_the_script_makes $? "$(cat "$T/out")"

[ $failures = 0 ]
