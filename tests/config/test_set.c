/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings by key: the values of a file, their short forms, and errors that name the key and its
 * valid values. Uses public functions only.
 */
#include "config/config.h"

#include "config/reader.h"
#include "support/support.h"

static struct nvs_config *config;
static struct nvs_error error = {.size = sizeof(error)};

static int open_config(void **state)
{
	(void)state;
	return nvs_config_open(&config, &error);
}

static int close_config(void **state)
{
	(void)state;
	nvs_config_close(config);
	return 0;
}

static void text_is(const char *key, const char *due)
{
	char text[256] = "";

	SUCCEEDS(nvs_config_get(config, key, text, sizeof(text), &error), &error);
	assert_string_equal(text, due);
}

static void becomes(const char *key, const char *value, const char *due)
{
	SUCCEEDS(nvs_config_set(config, key, value, &error), &error);
	text_is(key, due);
}

static void number_is(const char *key, uint64_t due)
{
	uint64_t number = 0;

	SUCCEEDS(nvs_config_get_number(config, key, &number, &error), &error);
	assert_true(number == due);
}

static void real_is(const char *key, double due)
{
	double real = -1;

	SUCCEEDS(nvs_config_get_real(config, key, &real, &error), &error);
	assert_true(real == due);
}

static void is_refused(const char *key, const char *value, const char *says)
{
	assert_int_equal(nvs_config_set(config, key, value, &error), -EINVAL);
	assert_int_equal(error.code, -EINVAL);
	assert_says(error.text, says);
}

TEST(values_are_written_as_in_the_file_or_shorter)
{
	becomes("aio.block_size", "65536", "65536");
	becomes("aio.block_size", "1M", "1048576");
	becomes("aio.block_size", "64k", "65536");
	becomes("zero_optimization.sub_group_size", "1e8", "100000000");
	becomes("zero_optimization.sub_group_size", "2G", "2147483648");
	becomes("aio.single_submit", "true", "true");
	becomes("nvswap.ioengine", "posix", "posix");
	becomes("nvswap.ioengine", "\"libaio\"", "libaio");
	becomes("data_types.grad_accum_dtype", "bf16", "bf16");
	becomes("gradient_clipping", "0.5", "0.5");
	becomes("optimizer.type", "AdamW", "AdamW");
	becomes("optimizer.params.betas", "[0.5, 0.25]", "[0.5,0.25]");
	becomes("zero_optimization.offload_optimizer.ratio", "0.25", "0.25");
}

TEST(paths_and_device_are_set_in_any_order)
{
	becomes("offload_param.device", "nvme", "nvme");
	becomes("offload_param.nvme_path", "/mnt/a b", "/mnt/a b");
	becomes("zero_optimization.offload_param.nvme_path", "/mnt/\xff", "/mnt/\xff");
	becomes("offload_param.nvme_path", "[\"/mnt/a\", \"/mnt/b\"]", "[\"/mnt/a\",\"/mnt/b\"]");
	becomes("offload_param.nvme_path", "null", "");
	becomes("offload_optimizer.nvme_path", "/mnt/c", "/mnt/c");
	becomes("offload_optimizer.device", "cpu", "cpu");
	is_refused("offload_param.nvme_path", "\"\"", "is empty");
}

TEST(an_unknown_key_is_refused_with_the_nearest)
{
	is_refused("aio.blocksize", "1M", "`block_size`");
	is_refused("zero_optimization.sub_grup_size", "1", "`sub_group_size`");
	is_refused("block_size", "1M", "it is a key of `aio`");
	is_refused("aio", "1", "is a block");
	is_refused("aio.", "1", "is not a key");
	is_refused("aio.block_size.x", "1", "is not a key");
	is_refused("", "1", "the key is empty");
	is_refused("offload_optimizer.pipeline", "true", "has no effect");
}

TEST(a_bad_value_is_refused_with_what_is_allowed)
{
	becomes("aio.block_size", "64k", "65536");
	is_refused("aio.block_size", "1000", "a multiple of 512");
	is_refused("aio.block_size", "large", "a whole number from 512");
	is_refused("aio.block_size", "1MB", "a whole number from 512");
	is_refused("aio.block_size", "-1", "negative");
	is_refused("aio.block_size", "99999999T", "too large");
	is_refused("aio.block_size", "", "a whole number");
	is_refused("aio.block_size", "{", "a whole number");
	is_refused("aio.single_submit", "maybe", "true or false");
	is_refused("offload_param.device", "ssd", "\"nvme\"");
	assert_string_equal(error.subject, "offload_param.device");
	becomes("fp16.enabled", "true", "true");
	is_refused("bf16.enabled", "true", "both enabled");
	becomes("aio.queue_depth", "4", "4");
	text_is("aio.block_size", "65536");
	/* A type of optimizer brings its defaults for what is not set. */
	becomes("optimizer.type", "Adagrad", "Adagrad");
	becomes("optimizer.params.weight_decay", "0.5", "0.5");
	real_is("optimizer.params.eps", 1e-10);
	becomes("optimizer.type", "Adam", "Adam");
	real_is("optimizer.params.eps", 1e-8);
}

TEST(text_that_is_not_utf8_is_refused)
{
	becomes("optimizer.type", "Adam", "Adam");
	is_refused("optimizer.type", "\xff", "UTF-8");
	is_refused("optimizer.type", "\"Adam\xc3\"", "UTF-8");
	is_refused("offload_param.nvme_path", "[\"/mnt/\xff\"]", "UTF-8");
	text_is("optimizer.type", "Adam");
}

TEST(a_number_is_not_set_or_read_where_the_setting_is_none)
{
	static const char *const none[] = {"offload_param.nvme_path", "optimizer.type",
					   "optimizer.params.betas", "data_types.grad_accum_dtype",
					   "nvswap.deepspeed"};
	static const char *const not_real[] = {"nvswap.keep", "nvswap.verify", "nvswap.ioengine",
					       "offload_param.device", "optimizer.type"};
	uint64_t number;
	double real = 0;

	for (size_t i = 0; i < COUNT(none); i++) {
		assert_int_equal(nvs_config_set_number(config, none[i], 9, &error), -EINVAL);
		assert_says(error.text, "set it with nvs_config_set");
		assert_string_equal(error.subject, none[i]);
	}
	assert_null(nvs_config_get_path(config, NVS_OFFLOAD_PARAM, 0));
	for (size_t i = 0; i < COUNT(not_real); i++) {
		assert_int_equal(nvs_config_get_number(config, not_real[i], &number, &error),
				 i < COUNT(not_real) - 1 ? 0 : -EINVAL);
		assert_int_equal(nvs_config_get_real(config, not_real[i], &real, &error), -EINVAL);
		assert_says(error.text, "read it with nvs_config_get");
	}
	becomes("offload_param.max_in_cpu", "123456789012345678", "123456789012345678");
	number_is("offload_param.max_in_cpu", 123456789012345678);
	assert_int_equal(nvs_config_set_number(config, "gradient_clipping", 2, &error), 0);
	real_is("gradient_clipping", 2);
	real_is("aio.queue_depth", 8);
	becomes("optimizer.params.betas", "[0.5, 0.25]", "[0.5,0.25]");
	real_is("optimizer.params.betas.0", 0.5);
	real_is("optimizer.params.betas.1", 0.25);
	assert_int_equal(nvs_config_get_real(config, "optimizer.params.betas.2", &real, &error),
			 -EINVAL);
	assert_int_equal(nvs_config_get_real(config, "optimizer.params.lr.0", &real, &error),
			 -EINVAL);
}

TEST(a_value_that_nests_too_deep_is_refused)
{
	char value[1025];

	memset(value, '[', 512);
	memset(value + 512, ']', 512);
	value[1024] = '\0';
	is_refused("optimizer.params.betas", value, "");
	memset(value, '[', 513);
	value[513] = '\0';
	assert_int_equal(nvs_config_set(config, "optimizer.params.betas", value, &error), -EFBIG);
}

TEST(verify_is_as_keep_until_it_is_set)
{
	text_is("nvswap.verify", "false");
	becomes("nvswap.keep", "true", "true");
	text_is("nvswap.verify", "true");
	becomes("nvswap.verify", "false", "false");
	number_is("nvswap.verify", 0);
	becomes("nvswap.keep", "false", "false");
	assert_int_equal(nvs_config_set_number(config, "nvswap.verify", 1, &error), 0);
	number_is("nvswap.verify", 1);
	is_refused("nvswap.verify", "2", "true or false");
	is_refused("nvswap.verify", "auto", "true or false");
}

TEST(enumerations_are_set_and_read_as_numbers)
{
	assert_int_equal(
		nvs_config_set_number(config, "nvswap.ioengine", NVS_IOENGINE_POSIX, &error), 0);
	number_is("nvswap.ioengine", NVS_IOENGINE_POSIX);
	assert_int_equal(nvs_config_set_number(config, "nvswap.ioengine", 4, &error), -EINVAL);
	assert_int_equal(
		nvs_config_set_number(config, "offload_param.device", NVS_DEVICE_CPU, &error), 0);
	number_is("offload_param.device", NVS_DEVICE_CPU);
	assert_int_equal(nvs_config_set_number(config, "offload_param.device", 3, &error), -EINVAL);
}

TEST(a_copy_has_the_settings_and_its_own_paths)
{
	static const char *const paths[] = {"/mnt/a", "/mnt/b"};
	struct nvs_config *copy = NULL;

	becomes("aio.block_size", "64k", "65536");
	assert_int_equal(nvs_config_set_paths(config, NVS_OFFLOAD_PARAM, paths, 2, &error), 0);
	assert_int_equal(nvs_config_set_paths(config, NVS_OFFLOAD_OPTIMIZER, paths, 1, &error), 0);
	assert_int_equal(nvs_config_copy(config, &copy, &error), 0);
	assert_int_equal(nvs_config_set_paths(config, NVS_OFFLOAD_PARAM, paths, 1, &error), 0);
	assert_int_equal(nvs_config_set(copy, "aio.queue_depth", "3", &error), 0);
	assert_string_equal(nvs_config_get_path(copy, NVS_OFFLOAD_PARAM, 1), "/mnt/b");
	assert_string_equal(nvs_config_get_path(copy, NVS_OFFLOAD_OPTIMIZER, 0), "/mnt/a");
	assert_null(nvs_config_get_path(config, NVS_OFFLOAD_PARAM, 1));
	assert_int_equal(copy->aio.block_size, 65536);
	assert_int_equal(config->aio.queue_depth, 8);
	nvs_config_close(copy);
}

TEST(a_text_that_does_not_fit_is_not_copied)
{
	char text[4] = "old";

	assert_int_equal(nvs_config_get(config, "aio.block_size", text, 7, &error), -ERANGE);
	assert_string_equal(text, "old");
	assert_int_equal(nvs_config_get(config, "aio.block_size", text, 0, &error), -ERANGE);
}

/* Sets each key to its default, as the table of keys prints it. */
TEST(every_key_can_be_read_and_set_to_what_was_read)
{
	for (unsigned i = 0; i < config_key_count; i++) {
		const struct config_key *key = &config_keys[i];
		const char *block = config_blocks[key->block].name;
		char name[128], text[256];

		if (key->type == KEY_BLOCK || key->type == KEY_UNUSED)
			continue;
		snprintf(name, sizeof(name), "%s%s%s", block, *block ? "." : "", key->name);
		assert_int_equal(nvs_config_get(config, name, text, sizeof(text), &error), 0);
		becomes(name, text, text);
	}
}

TEST(paths_can_be_read_and_set_to_what_was_read)
{
	static const char *const paths[] = {"/mnt/a", "[a", "\"a\"", " \"a", "null", "/mnt/\xff"};
	char text[256];

	for (size_t i = 0; i < COUNT(paths); i++) {
		assert_int_equal(
			nvs_config_set_paths(config, NVS_OFFLOAD_PARAM, &paths[i], 1, &error), 0);
		assert_int_equal(nvs_config_get(config, "nvswap.param_nvme_path", text,
						sizeof(text), &error),
				 0);
		becomes("offload_param.nvme_path", "", "");
		assert_null(nvs_config_get_path(config, NVS_OFFLOAD_PARAM, 0));
		becomes("nvswap.param_nvme_path", text, text);
		assert_string_equal(nvs_config_get_path(config, NVS_OFFLOAD_PARAM, 0), paths[i]);
	}
}

TEST(the_rank_is_read_from_the_environment_when_asked)
{
	struct nvs_engine *engine;
	uint64_t rank = 7;

	becomes("offload_param.device", "cpu", "cpu");
	becomes("nvswap.rank", "TEST_LOCAL_RANK", "TEST_LOCAL_RANK");
	setenv("TEST_LOCAL_RANK", "3", 1);
	assert_int_equal(nvs_config_get_number(config, "nvswap.rank", &rank, &error), -EINVAL);
	assert_int_equal(nvs_engine_open(&engine, config, NVS_OFFLOAD_PARAM, &error), -EINVAL);
	assert_says(error.text, "nvs_config_read_rank");
	assert_int_equal(nvs_config_read_rank(config, &error), 0);
	number_is("nvswap.rank", 3);
	setenv("TEST_LOCAL_RANK", "4", 1);
	assert_int_equal(nvs_config_read_rank(config, &error), 0);
	becomes("nvswap.rank", "5", "5");
}

TEST(a_rank_that_can_not_be_read_is_refused)
{
	static const char *const values[] = {"", "x", "-1", "1x", " 1", "4294967296"};
	assert_int_equal(nvs_config_read_rank(NULL, &error), -EINVAL);
	assert_int_equal(nvs_config_read_rank(config, &error), 0);
	is_refused("nvswap.rank", "\"local rank\"", "environment variable");
	becomes("nvswap.rank", "TEST_LOCAL_RANK", "TEST_LOCAL_RANK");
	unsetenv("TEST_LOCAL_RANK");
	assert_int_equal(nvs_config_read_rank(config, &error), -EINVAL);
	assert_says(error.text, "which is not set");
	for (size_t i = 0; i < COUNT(values); i++) {
		setenv("TEST_LOCAL_RANK", values[i], 1);
		assert_int_equal(nvs_config_read_rank(config, &error), -EINVAL);
		assert_says(error.text, "a whole number from 0");
	}
}

EACH_TEST(open_config, close_config)
