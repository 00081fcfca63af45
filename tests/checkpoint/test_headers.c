/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of .safetensors files that the format's own reader takes, and what is told of them. */
#include "checkpoint/weights_fixture.h"
#include "swap/swap_fixture.h"

ONE_ENGINE

static struct nvs_error error = {.size = sizeof(error)};

EACH_TEST(NULL, cleanup)

/* Opens a file of this header and 16 bytes of data. */
static struct nvs_checkpoint *open_header(const char *header, size_t nbytes)
{
	static const char data[32] = "0123456789abcdef";
	const char *path = path_in(temp_directory(), "model.safetensors");
	struct nvs_checkpoint *checkpoint;

	weights_file(path, header, 0, data, nbytes);
	SUCCEEDS(nvs_checkpoint_open(&checkpoint, path, &error), &error);
	return checkpoint;
}

static void holds(struct nvs_tensor *tensor, const char *data, size_t nbytes)
{
	tensors_pin(f, &tensor, 1);
	assert_memory_equal(nvs_tensor_data(tensor), data, nbytes);
	OK(f, sole_release(f->engine, &tensor, 1, NVS_CLEAN, &f->error));
}

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}"

static void has_a(const char *header)
{
	struct nvs_checkpoint *checkpoint = open_header(header, 16);
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};

	assert_int_equal(nvs_checkpoint_count(checkpoint), 1);
	assert_int_equal(nvs_checkpoint_get(checkpoint, 0, &tensor), 0);
	assert_string_equal(tensor.name, "a");
	assert_int_equal(tensor.nbytes, 16);
	nvs_checkpoint_close(checkpoint);
}

TEST(metadata_may_be_null)
{
	has_a("{\"__metadata__\":null," A "}");
	has_a("{" A ",\"__metadata__\":{\"format\":\"pt\"}}");
}

TEST(further_keys_of_a_tensor_mean_nothing)
{
	has_a("{\"a\":{\"x\":1,\"dtype\":\"F32\",\"x\":[{}],\"shape\":[4],\"data_offsets\":[0,16],"
	      "\"strides\":[1]}}");
}

TEST(a_file_may_have_no_tensors)
{
	struct nvs_checkpoint *checkpoint = open_header("{\"__metadata__\":{\"k\":\"v\"}}", 0);

	assert_int_equal(nvs_checkpoint_count(checkpoint), 0);
	nvs_checkpoint_close(checkpoint);
}

TEST(each_type_of_the_format_has_its_shape_and_bytes)
{
	static const struct {
		const char *name;
		unsigned numel, nbytes;
	} types[] = {{"F64", 2, 16},	  {"F16", 8, 16},	   {"BF16", 8, 16},
		     {"I64", 2, 16},	  {"U16", 8, 16},	   {"BOOL", 16, 16},
		     {"F8_E4M3", 16, 16}, {"F8_E5M2", 16, 16},	   {"F8_E8M0", 16, 16},
		     {"C64", 2, 16},	  {"F8_E4M3FNUZ", 16, 16}, {"F8_E5M2FNUZ", 16, 16},
		     {"F4", 32, 16},	  {"F6_E2M3", 16, 12},	   {"F6_E3M2", 16, 12}};

	for (size_t i = 0; i < COUNT(types); i++) {
		struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};
		struct nvs_checkpoint *checkpoint;
		char header[256];

		snprintf(header, sizeof(header),
			 "{\"t\":{\"dtype\":\"%s\",\"shape\":[2,%u],\"data_offsets\":[0,%u]}}",
			 types[i].name, types[i].numel / 2, types[i].nbytes);
		checkpoint = open_header(header, types[i].nbytes);
		assert_int_equal(nvs_checkpoint_get(checkpoint, 0, &tensor), 0);
		assert_string_equal(nvs_dtype_name(tensor.dtype), types[i].name);
		assert_int_equal(tensor.numel, types[i].numel);
		assert_int_equal(tensor.nbytes, types[i].nbytes);
		assert_int_equal(tensor.ndim, 2);
		nvs_checkpoint_close(checkpoint);
	}
}

/* As the format's own reader does. */
TEST(packed_elements_fill_whole_bytes)
{
	const char *path = path_in(temp_directory(), "model.safetensors");
	struct nvs_checkpoint *checkpoint;

	weights_file(path, "{\"t\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 0,
		     "x", 1);
	assert_int_equal(nvs_checkpoint_open(&checkpoint, path, &error), -EINVAL);
	assert_says(error.text, "tensor t: 3 elements of 4 bits fill no whole number of bytes");
}

TEST(names_that_nvswap_cannot_have_leave_the_other_tensors_usable)
{
	struct nvs_checkpoint *checkpoint = open_header(
		"{\"\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
		"\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[8,12]},"
		"\"c\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[12,16]}}",
		16);
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};
	struct nvs_checkpoint_item item = {.size = sizeof(item), .name = "a"};

	assert_int_equal(nvs_checkpoint_count(checkpoint), 1);
	assert_int_equal(nvs_checkpoint_get(checkpoint, 0, &tensor), 0);
	assert_string_equal(tensor.name, "c");
	OPEN(f, .pool_bytes = MIB);
	item.tensor = tensor_add(f, "c", 4);
	FAILS(f, -ENOENT,
	      "tensor a can't be read: its name has no bytes, more than those allowed, or a "
	      "NUL",
	      nvs_checkpoint_import, checkpoint, &item, 1);
	item.name = NULL;
	OK(f, nvs_checkpoint_import(f->engine, checkpoint, &item, 1, &f->error));
	holds(item.tensor, "cdef", 4);
	nvs_checkpoint_close(checkpoint);
}

/* A store has elements of whole bytes. */
TEST(packed_elements_are_imported_as_bytes)
{
	struct nvs_checkpoint *checkpoint = open_header(
		"{\"t\":{\"dtype\":\"F4\",\"shape\":[32],\"data_offsets\":[0,16]}}", 16);
	struct nvs_checkpoint_item item = {.size = sizeof(item)};

	OPEN(f, .pool_bytes = MIB);
	item.tensor = tensor_add(f, "t", 16);
	OK(f, nvs_checkpoint_import(f->engine, checkpoint, &item, 1, &f->error));
	holds(item.tensor, "0123456789abcdef", 16);
	nvs_checkpoint_close(checkpoint);
}
