/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap store checksum`: what it writes is what the engine compares with, it names what is
 * damaged, and what it can't do says so.
 */
#include "checkpoint/weights_fixture.h"
#include "cli/store/store_command_fixture.h"

#define N 7u

/* One has more than a group takes of the pool, and one is empty. */
static const uint64_t lengths[N] = {3000, 200000, 0, 40 << 20, 17, 70000, 65536};
static const char *model;

/* A folder of two files with an index. */
static void make_model(void)
{
	char index[512], *end = index;

	model = temp_directory();
	weights_make(path_in(model, "a.safetensors"), lengths, 0, 4, 0);
	weights_make(path_in(model, "b.safetensors"), lengths, 4, N, 0);
	for (unsigned i = 0; i < N; i++)
		end += sprintf(end, "%s\"t%u\": \"%s.safetensors\"",
			       i ? ", " : "{\"weight_map\": {", i, i < 4 ? "a" : "b");
	strcpy(end, "}}");
	write_text(path_in(model, "model.safetensors.index.json"), index);
}

static uint64_t length_of(const char *name)
{
	struct stat status;

	assert_int_equal(stat(path_in(model, name), &status), 0);
	return (uint64_t)status.st_size;
}

TEST(what_is_written_is_what_the_engine_compares_with)
{
	make_model();
	SAYS(0,
	     "a.safetensors.checksums\n  tensors                    4\n  bytes                     "
	     " 40.19 MiB\n",
	     "checksum %s", model);
	assert_says(output, "b.safetensors.checksums\n  tensors                    3\n");
	SAYS(0,
	     "damaged none\n  tensors                    7\n  bytes                      40.32 "
	     "MiB\n  without checksum           0\n",
	     "checksum --check %s", model);
	/* A file of them alone. */
	SAYS(0, "tensors                    3\n", "checksum --check %s/b.safetensors", model);
}

TEST(each_damaged_tensor_of_files_is_named)
{
	make_model();
	EXITS(0, "checksum %s", model);
	damage(path_in(model, "a.safetensors"), length_of("a.safetensors") - 1);
	damage(path_in(model, "b.safetensors"), length_of("b.safetensors") - 1);
	SAYS(1, "problem t3: the bytes of", "checksum --check %s", model);
	assert_says(output, "problem t6: the bytes of");
	assert_says(output, path_in(model, "b.safetensors"));
	assert_int_equal(count_of("- tensor "), 2);
	SAYS(1, "\"tensor\": \"t6\"", "checksum --check --output-format json %s", model);
	assert_int_equal(count_of("\"problem\""), 2);
	/* They are what the files have now. */
	EXITS(0, "checksum %s", model);
	EXITS(0, "checksum --check %s", model);
}

TEST(checksums_go_to_another_directory_and_leave_the_model)
{
	const char *to = temp_directory();

	make_model();
	assert_int_equal(chmod(model, 0500), 0);
	EXITS(0, "checksum --to %s %s", to, model);
	SAYS(0, "damaged none", "checksum --check --to %s %s", to, model);
	SAYS(1, "has no checksums: \"nvswap store checksum", "checksum --check %s", model);
	assert_int_equal(chmod(model, 0700), 0);
	SAYS(1, "can't write checksums to", "checksum --to %s/none %s", to, model);
	SAYS(1, "/none/", "checksum --check --to %s/none %s", to, model);
}

/* As the parts of a model of diffusers, each in its own folder. */
TEST(checksums_of_two_files_of_one_name_do_not_replace_each_other)
{
	const char *parts = temp_directory(), *to = temp_directory();

	make_model();
	assert_int_equal(mkdir(path_in(parts, "unet"), 0700), 0);
	weights_make(path_in(parts, "unet/a.safetensors"), lengths, 4, N, 0);
	SAYS(1, "a.safetensors have one name", "checksum --to %s %s/a.safetensors %s", to, model,
	     path_in(parts, "unet/a.safetensors"));
	assert_int_equal(entries_of(to), 0);
	EXITS(0, "checksum %s/a.safetensors %s", model, path_in(parts, "unet/a.safetensors"));
	SAYS(0, "damaged none", "checksum --check %s/a.safetensors %s", model,
	     path_in(parts, "unet/a.safetensors"));
}

TEST(checksums_of_a_file_that_was_replaced_are_refused)
{
	make_model();
	EXITS(0, "checksum %s", model);
	weights_make(path_in(model, "b.safetensors"), lengths, 4, N, 500);
	SAYS(1, "the file was replaced since; \"nvswap store checksum", "checksum --check %s",
	     model);
	EXITS(0, "checksum %s", model);
	EXITS(0, "checksum --check %s", model);
}

TEST(what_checksum_can_not_read_or_does_not_take_is_refused)
{
	make_model();
	SAYS(1, "has no model.safetensors", "checksum %s", temp_directory());
	SAYS(1, "No such file", "checksum %s/none.safetensors", model);
	SAYS(2, "--rank is an option of nvswap store list, show, ", "checksum --rank 0 %s", model);
	SAYS(2, "--kind is an option of nvswap store list, show, ", "checksum --kind optimizer %s",
	     model);
	SAYS(2, "--check is an option of nvswap store checksum", "verify --check %s", model);
	SAYS(2, "--to is an option of nvswap store export and checksum", "verify --to x %s", model);
}

EACH_TEST(NULL, cleanup)
