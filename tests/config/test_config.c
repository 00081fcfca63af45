/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration layer: each key, bound and error with its position and text; the examples in
 * config/; mutated files from a printed seed. Runs from the root of the repository.
 */
#include "config/config.h"
#include "config/reader.h"
#include "support/support.h"

#include <float.h>
#include <glob.h>
#include <locale.h>

/* ---- Shared by the tests ---- */

static struct nvs_config config;
static struct offload_config *const param = &config.offload[NVS_OFFLOAD_PARAM],
				    *const optimizer = &config.offload[NVS_OFFLOAD_OPTIMIZER];
static struct nvs_error error = {.size = sizeof(error)};

/* The messages to `config.log`, by level. */
static struct {
	unsigned count[4];
	char last[4][1024];
} heard;

static void hear(void *arg, enum nvs_log_level level, const char *text)
{
	(void)arg;
	assert_null(strchr(text, '\n'));
	heard.count[level]++;
	snprintf(heard.last[level], sizeof(heard.last[level]), "%s", text);
}

/* Begins again with the defaults and with nothing heard. */
static void fresh(void)
{
	config_free(&config);
	config_init(&config);
	assert_null(config.log.fn);
	config.log = (struct nvs_log){hear, NULL};
	memset(&heard, 0, sizeof(heard));
}

static void heard_nothing(void)
{
	for (size_t i = 0; i < COUNT(heard.count); i++)
		if (heard.count[i])
			fail_msg("%s", heard.last[i]);
}

static int parse_as_written(const char *text)
{
	return nvs_config_parse(&config, text, strlen(text), "ds.json", &error);
}

/* Documents of the functions below have ' for ". */
static const char *quoted(const char *text)
{
	static char document[8192];
	char *end = document;

	assert_true(strlen(text) < sizeof(document));
	do
		*end++ = *text == '\'' ? '"' : *text;
	while (*text++);
	return document;
}

static int parse(const char *text)
{
	return parse_as_written(quoted(text));
}

/* Parses over what is set. */
static void adds(const char *text)
{
	if (parse(text))
		fail_msg("%s\n-> %s", text, error.text);
}

static void accepted(const char *text)
{
	fresh();
	adds(text);
}

/*
 * The document is refused at this line, with these fragments in the message, with and without a
 * struct nvs_error, and the configuration stays unchanged.
 */
static void refused(const char *text, unsigned line, const char *subject, const char *const *parts,
		    size_t nparts)
{
	static const char *const paths[] = {"/before/a", "/before/b"};
	struct nvs_config set, before;
	char place[32];

	text = quoted(text);
	config_init(&set);
	assert_int_equal(nvs_config_set_paths(&set, NVS_OFFLOAD_PARAM, paths, 2, NULL), 0);
	set.offload[NVS_OFFLOAD_PARAM].device = NVS_DEVICE_CPU;
	set.aio.queue_depth = 77;
	memcpy(&before, &set, sizeof(set));
	assert_int_equal(nvs_config_parse(&set, text, strlen(text), "ds.json", NULL), -EINVAL);
	if (nvs_config_parse(&set, text, strlen(text), "ds.json", &error) != -EINVAL)
		fail_msg("not refused: %s", text);
	assert_memory_equal(&before, &set, sizeof(set));
	assert_string_equal(set.offload[NVS_OFFLOAD_PARAM].nvme_path[1], "/before/b");
	if (error.line != line)
		fail_msg("line %u is not %u: %s", line, error.line, error.text);
	assert_int_equal(error.code, -EINVAL);
	snprintf(place, sizeof(place), line ? "ds.json:%u:" : "ds.json: ", line);
	assert_memory_equal(error.text, place, strlen(place));
	if (subject)
		assert_string_equal(error.subject, subject);
	for (size_t i = 0; i < nparts; i++)
		assert_says(error.text, parts[i]);
	config_free(&set);
}

#define REFUSED(text, line, subject, ...)                                                          \
	do {                                                                                       \
		static const char *const parts_[] = {__VA_ARGS__};                                 \
		refused(text, line, subject, parts_, COUNT(parts_));                               \
	} while (0)

/* A document with `key: value` in the block and nothing else. */
static void document_with(enum config_block block, const char *key, const char *value,
			  char document[512])
{
	static const char *const forms[BLOCK_COUNT] = {
		[BLOCK_ROOT] = "{\n'%s': %s}",
		[BLOCK_AIO] = "{'aio': {\n'%s': %s}}",
		[BLOCK_ZERO] = "{'zero_optimization': {\n'%s': %s}}",
		[BLOCK_PARAM] = "{'zero_optimization': {'offload_param': {\n'%s': %s}}}",
		[BLOCK_OPTIMIZER] = "{'zero_optimization': {'offload_optimizer': {\n'%s': %s}}}",
		[BLOCK_FP16] = "{'fp16': {\n'%s': %s}}",
		[BLOCK_BF16] = "{'bf16': {\n'%s': %s}}",
		[BLOCK_DATA_TYPES] = "{'data_types': {\n'%s': %s}}",
		[BLOCK_ADAM] = "{'optimizer': {\n'%s': %s}}",
		[BLOCK_ADAM_PARAMS] = "{'optimizer': {'params': {\n'%s': %s}}}",
		[BLOCK_NVSWAP] = "{'nvswap': {\n'%s': %s}}",
	};
	int n;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	n = snprintf(document, 512, forms[block], key, value);
#pragma GCC diagnostic pop
	assert_in_range(n, 1, 511);
}

static bool is_whole(const struct config_key *key)
{
	return key->type == KEY_U32 || key->type == KEY_U64;
}

static uint64_t whole_in(const struct config_key *key)
{
	const char *at = (const char *)&config + key->place;

	return key->type == KEY_U32 ? *(const uint32_t *)(const void *)at
				    : *(const uint64_t *)(const void *)at;
}

static int begin(void **state)
{
	(void)state;
	fresh();
	return 0;
}

EACH_TEST(begin, cleanup)

/* ---- Names and defaults ---- */

TEST(dtypes_have_safetensors_names_and_sizes)
{
	static const char *const none[] = {"", "f32", "F32 ", "FLOAT", "F8", "BF16X"};
	char all[512], *at = all;
	enum nvs_dtype dtype;

	for (unsigned i = 0; i < NVS_DTYPE_COUNT; i++) {
		const char *name = nvs_dtype_name((enum nvs_dtype)i);
		unsigned bits = nvs_dtype_bits((enum nvs_dtype)i);

		at += sprintf(at, "%s %u, ", name, bits);
		assert_int_equal(nvs_dtype_parse(name, &dtype), 0);
		assert_int_equal(dtype, i);
		assert_int_equal(nvs_dtype_size(dtype), bits / 8);
	}
	/* In the order of the header; the last ones have less than a byte. */
	assert_string_equal(all, "F64 64, F32 32, F16 16, BF16 16, F8_E4M3 8, F8_E5M2 8, I64 64, "
				 "I32 32, I16 16, I8 8, U64 64, U32 32, U16 16, U8 8, BOOL 8, "
				 "C64 64, F8_E8M0 8, F8_E4M3FNUZ 8, F8_E5M2FNUZ 8, F6_E2M3 6, "
				 "F6_E3M2 6, F4 4, ");
	for (size_t i = 0; i < COUNT(none); i++) {
		assert_int_equal(nvs_dtype_parse(none[i], &dtype), -EINVAL);
		assert_int_equal(dtype, NVS_F4);
	}
	assert_int_equal(nvs_dtype_size(NVS_DTYPE_COUNT), 0);
	assert_int_equal(nvs_dtype_bits(NVS_DTYPE_COUNT), 0);
	assert_string_equal(nvs_dtype_name(NVS_DTYPE_COUNT), "unknown");
}

TEST(engines_and_devices_have_the_names_of_the_configuration)
{
	static const char *const names[] = {"auto", "io_uring", "libaio", "posix"};
	enum nvs_ioengine ioengine;

	for (unsigned i = 0; i < COUNT(names); i++) {
		assert_int_equal(nvs_ioengine_parse(names[i], &ioengine), 0);
		assert_int_equal(ioengine, i);
		assert_string_equal(nvs_ioengine_name(ioengine), names[i]);
	}
	assert_int_equal(nvs_ioengine_parse("sync", &ioengine), -EINVAL);
	assert_int_equal(nvs_ioengine_parse("", &ioengine), -EINVAL);
	assert_string_equal(nvs_ioengine_name((enum nvs_ioengine)4), "unknown");
	assert_string_equal(nvs_device_name(NVS_DEVICE_NONE), "none");
	assert_string_equal(nvs_device_name(NVS_DEVICE_CPU), "cpu");
	assert_string_equal(nvs_device_name(NVS_DEVICE_NVME), "nvme");
	assert_string_equal(nvs_device_name((enum nvs_device)3), "unknown");
}

/* The text of a setting, by its key in the table. */
static const char *text_of(const struct config_key *key, char text[128])
{
	const char *block = config_blocks[key->block].name;
	char name[128];

	snprintf(name, sizeof(name), "%s%s%s", block, *block ? "." : "", key->name);
	SUCCEEDS(nvs_config_get(&config, name, text, 128, &error), &error);
	return text;
}

/* Everything is as by default. */
static void check_defaults(void)
{
	struct nvs_config due;

	config_init(&due);
	due.log = config.log;
	assert_memory_equal(&due, &config, sizeof(due));
}

/* docs/configuration.md has default_text, which another test holds to it. */
TEST(defaults_are_those_of_deepspeed)
{
	static const char *const documents[] = {
		"{}",
		" \n\t\r{ } \n",
		"{'aio': {}, 'offload_param': {}, 'fp16': {}, 'bf16': {}, 'nvswap': {}}",
		"{'zero_optimization': {'offload_param': {}, 'offload_optimizer': {}}}",
		"{'data_types': {}, 'optimizer': {'params': {}}}",
		"{'aio': null, 'zero_optimization': null, 'offload_param': null}",
		"{'nvswap': null, 'data_types': {'grad_accum_dtype': null}}",
	};
	char text[128], due[128];

	for (unsigned i = 0; i < config_key_count; i++) {
		const struct config_key *key = &config_keys[i];
		char *end = due;

		if (key->type == KEY_BLOCK || key->type == KEY_UNUSED)
			continue;
		/* Without quotes, and lists without blanks. */
		for (const char *c = key->default_text ? key->default_text : ""; *c; c++)
			if (*c != '"' && *c != ' ')
				*end++ = *c;
		*end = '\0';
		if (!strcmp(due, "`keep`"))
			strcpy(due, "false");
		else if (!strcmp(due, "theparameters'type"))
			strcpy(due, "fp32");
		if (key->type == KEY_REAL)
			assert_true(strtod(text_of(key, text), NULL) == strtod(due, NULL));
		else
			assert_string_equal(text_of(key, text), due);
	}
	assert_int_equal(config.param_dtype, NVS_F32);
	assert_int_equal(optimizer->buffer_size, 1000000000);
	assert_int_equal(optimizer->max_in_cpu, 4000000000);
	for (size_t i = 0; i < COUNT(documents); i++) {
		accepted(documents[i]);
		check_defaults();
	}
	config_free(NULL);
}

/* ---- Keys ---- */

static bool is_alias(const struct config_key *a, const struct config_key *b)
{
	return a->place == b->place &&
	       (a == b || a->type == KEY_PATHS || strstr(a->meaning, "alias of ") ||
		strstr(b->meaning, "alias of "));
}

TEST(every_key_reaches_its_field)
{
	char document[512], text[128], before[CONFIG_KEYS_MAX][128], value[128];

	for (unsigned i = 0; i < config_key_count; i++)
		if (config_keys[i].type != KEY_BLOCK && config_keys[i].type != KEY_UNUSED)
			text_of(&config_keys[i], before[i]);
	for (unsigned i = 0; i < config_key_count; i++) {
		const struct config_key *key = &config_keys[i];
		bool bare = key->type == KEY_CHOICE || key->type == KEY_NAME ||
			    key->type == KEY_PATHS;

		if (key->type == KEY_BLOCK || key->type == KEY_UNUSED)
			continue;
		if (is_whole(key))
			snprintf(value, sizeof(value), "%" PRIu64, key->max);
		else if (key->type == KEY_CHOICE)
			strcpy(value, config_choice_name(key->choices, key->whole ? 0 : 1));
		else
			strcpy(value, key->type == KEY_BETAS   ? "[0.25,0.5]"
				      : key->type == KEY_REAL  ? "0.125"
				      : key->type == KEY_NAME  ? "SGD"
				      : key->type == KEY_PATHS ? "rel/p"
				      : *before[i] == 't'      ? "false"
							       : "true");
		snprintf(text, sizeof(text), bare ? "'%s'" : "%s", value);
		document_with(key->block, key->name, text, document);
		accepted(document);
		heard_nothing();
		assert_string_equal(text_of(key, text), value);
		for (unsigned k = 0; k < config_key_count; k++) {
			const struct config_key *other = &config_keys[k];

			/* Gradients have the parameters' type, and a kept store is verified. */
			if (other->type == KEY_BLOCK || other->type == KEY_UNUSED ||
			    other->type == KEY_VERIFY || other->block == BLOCK_DATA_TYPES ||
			    is_alias(key, other))
				continue;
			if (strcmp(text_of(other, text), before[k]) != 0)
				fail_msg("%s changes %s", key->name, other->name);
		}
	}
}

static void expect_whole(const struct config_key *key, uint64_t value)
{
	char document[512], digits[24];

	snprintf(digits, sizeof(digits), "%" PRIu64, value);
	document_with(key->block, key->name, digits, document);
	accepted(document);
	assert_int_equal(whole_in(key), value);
}

static void refuse_value(const struct config_key *key, const char *value, const char *why)
{
	char document[512], subject[128], allows[160];
	const char *parts[] = {why, config_key_allows(key, allows), key->name};
	const char *outer = key->block == BLOCK_PARAM || key->block == BLOCK_OPTIMIZER
				    ? "zero_optimization."
				    : "";

	document_with(key->block, key->name, value, document);
	snprintf(subject, sizeof(subject), "%s%s%s%s", outer, config_blocks[key->block].name,
		 key->block == BLOCK_ROOT ? "" : ".", key->name);
	refused(document, 2, subject, parts, COUNT(parts));
}

TEST(whole_numbers_are_accepted_up_to_their_bounds)
{
	unsigned tried = 0;
	char digits[32];

	for (unsigned i = 0; i < config_key_count; i++) {
		const struct config_key *key = &config_keys[i];
		uint64_t unit = key->multiple_of ? key->multiple_of : 1;

		if (!is_whole(key))
			continue;
		tried++;
		expect_whole(key, key->min);
		expect_whole(key, key->min + unit);
		expect_whole(key, key->max);
		expect_whole(key, key->max - unit);
		snprintf(digits, sizeof(digits), "%" PRIu64, key->max + 1);
		refuse_value(key, digits, "too large");
		if (key->min) {
			snprintf(digits, sizeof(digits), "%" PRIu64, key->min - 1);
			refuse_value(key, digits, "too small");
			refuse_value(key, "-0", "too small");
		}
		if (unit > 1) {
			snprintf(digits, sizeof(digits), "%" PRIu64, key->min + unit + 1);
			refuse_value(key, digits, "a multiple of 512");
			snprintf(digits, sizeof(digits), "%" PRIu64, key->min + unit - 1);
			refuse_value(key, digits, "a multiple of 512");
		}
		refuse_value(key, "-1", "negative");
		refuse_value(key, "-1e300", "negative");
		refuse_value(key, "1024.5", "1024.5, which is not a whole number");
		refuse_value(key, "1e-1", "not a whole number");
		refuse_value(key, "18446744073709551616", "too large");
		refuse_value(key, "1e999999999999999999999", "too large");
	}
	assert_int_equal(tried, 27);
}

TEST(a_write_budget_is_bytes_or_a_text_in_units_of_1024)
{
	accepted("{'nvswap': {'write_budget': 5e13}}");
	assert_int_equal(config.write_budget, UINT64_C(50000000000000));
	accepted("{'nvswap': {'write_budget': '50T'}}");
	assert_int_equal(config.write_budget, UINT64_C(50) << 40);
	accepted("{'nvswap': {'write_budget': '512m'}}");
	assert_int_equal(config.write_budget, UINT64_C(512) << 20);
	REFUSED("{'nvswap': {'write_budget': '50TB'}}", 1, "nvswap.write_budget",
		"or a string such as \"50T\", of units of 1024");
	REFUSED("{'nvswap': {'write_budget': '50'}}", 1, NULL, "such as \"50T\"");
	REFUSED("{'nvswap': {'write_budget': '50T\\u0000'}}", 1, NULL, "such as");
	REFUSED("{'nvswap': {'write_budget': '-1T'}}", 1, NULL, "such as");
	REFUSED("{'nvswap': {'write_budget': '2000000T'}}", 1, NULL, "too large");
	/* Of other keys, texts stay errors. */
	REFUSED("{'nvswap': {'stripe_size': '1M'}}", 1, NULL, "a whole number");
}

TEST(a_value_of_another_type_is_refused)
{
	static const char *const values[] = {"null",   "true", "1",  "\"8\"", "\"\"",
					     "\"no\"", "{}",   "[]", "[1]",   "[null, null]"};

	for (unsigned i = 0; i < config_key_count; i++) {
		const struct config_key *key = &config_keys[i];

		if (key->type == KEY_UNUSED)
			continue;
		for (size_t j = 0; j < COUNT(values); j++) {
			const char *value = values[j];
			bool string = *value == '"', number = *value == '1';
			bool null = *value == 'n', fits = false;
			bool model = config_blocks[key->block].is_model;

			switch (key->type) {
			case KEY_BLOCK:
				fits = null || *value == '{' ||
				       (*value == 't' && key->child == BLOCK_ZERO);
				break;
			case KEY_BOOL:
			case KEY_VERIFY:
				fits = *value == 't' || number ||
				       (model && !strcmp(value, "\"no\""));
				break;
			case KEY_U32:
			case KEY_U64:
			case KEY_REAL:
				fits = number || (model && !strcmp(value, "\"8\"") &&
						  strcmp(key->name, "ratio") != 0);
				break;
			case KEY_NAME:
				fits = string;
				break;
			case KEY_PATHS:
				fits = null || (string && value[1] != '"');
				break;
			case KEY_CHOICE:
				fits = null && key->block == BLOCK_DATA_TYPES;
				break;
			default:
				break;
			}
			/* A string for a key of paths is another error, with its own test. */
			if (fits || (key->type == KEY_PATHS && string))
				continue;
			refuse_value(key, value,
				     *value == '{'   ? "an object"
				     : *value == '[' ? key->type == KEY_PATHS && value[1] != ']'
							       ? "it must be"
							       : "a list"
						     : value);
		}
	}
}

TEST(text_is_taken_where_the_models_of_deepspeed_take_it)
{
	static const struct {
		enum config_block block;
		const char *key, *due; /* NULL: the values are refused */
		const char *values;    /* with | between them */
	} cases[] = {
		{BLOCK_PARAM, "pin_memory", "true",
		 "'true'|'True'|'ON'|'yes'|'y'|'t'|'1'|1|1.0|true"},
		{BLOCK_OPTIMIZER, "pin_memory", "false", "'false'|'Off'|'no'|'n'|'f'|'0'|0|-0.0"},
		{BLOCK_PARAM, "pin_memory", NULL, "' true'|''|2|0.5|'enabled'|null"},
		{BLOCK_PARAM, "buffer_count", "16", "'16'|' 16 '|'16.0'|'+16'|'016'|16.0"},
		{BLOCK_PARAM, "buffer_count", NULL,
		 "'16.5'|'1e1'|'16.'|''|'0x10'|'-1'|'1 6'|'16\\u0000'"},
		{BLOCK_OPTIMIZER, "ratio", "0.5", "'0.5'|' .5'|'5e-1'|'+0.5'"},
		{BLOCK_OPTIMIZER, "ratio", NULL, "'nan'|'inf'|'5.'|'0.5e'|'1.5'"},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		const char *key = cases[i].key, *block = config_blocks[cases[i].block].name;
		char values[128], *rest = values, *value, document[512], name[64], text[16];

		snprintf(values, sizeof(values), "%s", quoted(cases[i].values));
		snprintf(name, sizeof(name), "%s.%s", block, key);
		while ((value = strsep(&rest, "|"))) {
			if (!cases[i].due) {
				refuse_value(config_key_find(cases[i].block, key, strlen(key)),
					     value, value);
				continue;
			}
			document_with(cases[i].block, key, value, document);
			accepted(document);
			assert_int_equal(nvs_config_get(&config, name, text, sizeof(text), &error),
					 0);
			assert_string_equal(text, cases[i].due);
		}
	}
	/* What ds_nvme_tune prints. */
	accepted("{'aio': {'single_submit': 'false', 'overlap_events': 'true', 'num_threads': 2, "
		 "'queue_depth': 32, 'block_size': 1048576}}");
	assert_true(!config.aio.single_submit && config.aio.overlap_events);
	assert_int_equal(config.aio.thread_count, 2);
	/* DeepSpeed's op takes 1 and 0. */
	accepted("{'aio': {'single_submit': 1, 'overlap_events': 0}}");
	assert_true(config.aio.single_submit && !config.aio.overlap_events);
	REFUSED("{'optimizer': {'params': {'lr': '1'}}}", 1, "optimizer.params.lr", "a number");
}

TEST(real_numbers_have_bounds)
{
	static const struct {
		const char *key, *value, *why;
	} wrong[] = {
		{"ratio", "1.0000001", "too large"},
		{"ratio", "-0.1", "negative"},
		{"lr", "-1e-30", "negative"},
		{"lr", "1e309", "which is out of the range of a double"},
		{"eps", "1e-400", "out of the range of a double"},
		{"betas", "[0.9, 1]", "too large"},
		{"betas", "[-0.1, 0.9]", "negative"},
		{"betas", "[0.9]", "a list of 1"},
		{"betas", "[0.9, 0.9, 0.9]", "a list of 3"},
		{"betas", "[\"a\", 0]", "\"a\""},
	};

	for (size_t i = 0; i < COUNT(wrong); i++) {
		const struct config_key *key = NULL;

		for (unsigned b = 0; b < BLOCK_COUNT && !key; b++)
			key = config_key_find((enum config_block)b, wrong[i].key,
					      strlen(wrong[i].key));
		assert_non_null(key);
		refuse_value(key, wrong[i].value, wrong[i].why);
	}
	accepted("{'offload_optimizer': {'ratio': 0}, 'gradient_clipping': 1e308,\n'optimizer': "
		 "{'params': {'betas': [0, 0.9999999999999999], 'lr': -0.0, 'eps': 5e-324}}}");
	assert_true(optimizer->ratio == 0 && config.gradient_clipping == 1e308);
	assert_true(config.adam.beta1 == 0 && config.adam.beta2 == 1 - DBL_EPSILON / 2);
	assert_true(config.adam.lr == 0 && config.adam.eps > 0);
}

TEST(names_have_their_values)
{
	static const char *const devices[] = {"\"NVMe\"", "\"disk\"", "\"cpu\\u0000\"", "\"nvm\""};

	for (size_t i = 0; i < COUNT(devices); i++) {
		refuse_value(config_key_find(BLOCK_PARAM, "device", 6), devices[i],
			     "\"none\", \"cpu\" or \"nvme\"");
		refuse_value(config_key_find(BLOCK_OPTIMIZER, "device", 6), devices[i], devices[i]);
	}
	refuse_value(config_key_find(BLOCK_NVSWAP, "ioengine", 8), "\"uring\"",
		     "\"auto\", \"io_uring\", \"libaio\" or \"posix\"");
	refuse_value(config_key_find(BLOCK_NVSWAP, "ioengine", 8), "\"posix\\u0000\"", "posix");
	refuse_value(config_key_find(BLOCK_DATA_TYPES, "grad_accum_dtype", 16), "\"fp64\"",
		     "\"fp32\", \"fp16\" or \"bf16\"");
	refuse_value(config_key_find(BLOCK_ADAM, "type", 4), "\"01234567890123456789012345678901\"",
		     "up to 31 bytes");
	refuse_value(config_key_find(BLOCK_ADAM, "type", 4), "\"Adam\\u0000W\"", "Adam");
	accepted("{'offload_param': {'device': 'cpu'},\n'offload_optimizer': {'device': 'none'}, "
		 "'nvswap': {'ioengine': 'auto'},\n'optimizer': {'type': "
		 "'0123456789012345678901234567890'}}");
	assert_int_equal(param->device, NVS_DEVICE_CPU);
	assert_int_equal(optimizer->device, NVS_DEVICE_NONE);
	assert_string_equal(config.adam.type, "0123456789012345678901234567890");
}

TEST(the_name_adamw_asks_for_decoupled_weight_decay)
{
	accepted("{'optimizer': {'type': 'adamW', 'params': {'adam_w_mode': false}}}");
	assert_true(config.adam.adam_w_mode);
}

TEST(defaults_of_an_optimizer_are_those_of_its_type)
{
	static const struct {
		const char *text;
		double lr, beta2, eps;
	} cases[] = {
		{"{'optimizer': {'type': 'Lion'}}", 1e-3, 0.99, 1e-8},
		{"{'optimizer': {'params': {'betas': 'auto'}, 'type': 'lion'}}", 1e-3, 0.99, 1e-8},
		{"{'optimizer': {'type': 'adagrad'}}", 1e-2, 0.999, 1e-10},
		{"{'optimizer': {'type': 'Adagrad', 'params': {'lr': 1e-3, 'eps': 1e-8}}}", 1e-3,
		 0.999, 1e-8},
		{"{'optimizer': {'type': 'SGD'}}", 1e-3, 0.999, 1e-8},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		accepted(cases[i].text);
		assert_true(config.adam.lr == cases[i].lr);
		assert_true(config.adam.beta1 == 0.9 && config.adam.beta2 == cases[i].beta2);
		assert_true(config.adam.eps == cases[i].eps);
	}
}

/* Sets a locale with a decimal comma; makes it in `directory` if it is not installed. */
static bool set_comma_locale(const char *directory)
{
	char command[256];

	if (setlocale(LC_ALL, "de_DE.UTF-8"))
		return true;
	snprintf(command, sizeof(command),
		 "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >%s/log 2>&1", directory, directory);
	if (system(command))
		return false;
	setenv("LOCPATH", directory, 1);
	return setlocale(LC_ALL, "de_DE.UTF-8");
}

TEST(numbers_do_not_depend_on_the_locale)
{
	int result;

	if (!set_comma_locale(temp_directory()))
		SKIP("no locale with a decimal comma, and localedef can't make one");
	assert_string_equal(localeconv()->decimal_point, ",");
	result = parse("{'gradient_clipping': 0.5, 'aio': {'queue_depth': 1.6e1}}");
	setlocale(LC_ALL, "C");
	unsetenv("LOCPATH");
	assert_int_equal(result, 0);
	assert_true(config.gradient_clipping == 0.5);
	assert_int_equal(config.aio.queue_depth, 16);
}

/* ---- Unknown keys, duplicates, two names ---- */

TEST(an_unknown_key_is_refused_with_the_nearest_one)
{
	REFUSED("{\n 'aio': {\n  'block_size': 4096,\n  'queue_dpeth': 8}}", 4, "aio.queue_dpeth",
		"ds.json:4:3: ", "aio.queue_dpeth", "did you mean `queue_depth`?");
	REFUSED("{'aio': {'blocksize': 1}}", 1, "aio.blocksize", "did you mean `block_size`?");
	REFUSED("{'aio': {'Queue_Depth': 1}}", 1, NULL, "did you mean `queue_depth`?");
	REFUSED("{'zero_optimization': {'offload_param': {\n'nvme_pth': 1}}}", 2,
		"zero_optimization.offload_param.nvme_pth", "did you mean `nvme_path`?");
	REFUSED("{'offload_param': {'queue_depth': 4}}", 1, "offload_param.queue_depth",
		"it is a key of `aio`");
	REFUSED("{'offload_param': {'sub_group_size': 4}}", 1, NULL,
		"it is a key of `zero_optimization`");
	REFUSED("{'offload_param': {'fast_init': true}}", 1, NULL,
		"it is a key of `offload_optimizer`");
	REFUSED("{'nvswap': {'color': 1}}", 1, NULL,
		"the keys are `ioengine` `io_timeout_ms` `verify` `keep` `read_only` `scrub` "
		"`rollback` `rank` `param_nvme_path` `optimizer_nvme_path` `stripe_size`");
	REFUSED("{'nvswap': {'': 1}}", 1, "nvswap.", "the keys are");
	REFUSED("{'aio': {'use_gds\\u0000': true}}", 1, "aio.use_gds?", "did you mean `use_gds`?");
	REFUSED("{'aio': {'" /* a key of 60 letters */
		"abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefgh\": true}}",
		1, NULL, "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuv... is not",
		"the keys are");
}

TEST(keys_of_other_blocks_are_left_alone)
{
	accepted("{'queue_dpeth': 1, 'Audio': {'x': 1, 'x': 2}, 'wandb': [{}, [[]], "
		 "'\\ud800'],'zero_optimization': {'stage': 'three', 'overlap_comm': {'a': "
		 "-1e999},'reduce_bucket_size': 'auto', 'sub_grup_size': -1},'fp16': "
		 "{'fused_mode': null}, 'bf16': {'x': 1}, 'data_types': {'y': []},'optimizer': "
		 "{'legacy_fusion': 1, 'params': {'freeze_step': -4}},'train_batch_size': 'auto', "
		 "'nothing': null, 'n': 1e99999}");
	check_defaults();
	/* What Python's json writes, and the comments that DeepSpeed reads. */
	accepted("\xef\xbb\xbf{ // of accelerate\n'steps_per_print': Infinity, 'x': [NaN, "
		 "-Infinity],\n'zero_optimization': {'stage': 3, # three\n'overlap_comm': NaN,}, "
		 "/* none */ 'fp16': {'x': Infinity},}\n# end");
	check_defaults();
}

#define ANYWHERE "is nothing that nvswap reads there; "
#define AT_TOP	 ANYWHERE "it belongs at the top of the file"

TEST(a_block_in_the_wrong_place_is_a_warning_or_where_strict_an_error)
{
	static const struct {
		const char *document, *subject, *says;
	} wrong[] = {
		{"{'zero_optimization': {\n'aio': {}}}", "zero_optimization.aio", AT_TOP},
		{"{'zero_optimization': {\n'nvswap': {'keep': true}}}", "zero_optimization.nvswap",
		 AT_TOP},
		{"{'zero_optimization': {\n'gradient_clipping': 1}}",
		 "zero_optimization.gradient_clipping", AT_TOP},
		{"{'zero_optimization': {\n'nvme_path': '/x'}}", "zero_optimization.nvme_path",
		 "it is a key of `offload_param` and of `offload_optimizer`"},
		{"{'zero_optimization': {\n'pipeline_read': true}}",
		 "zero_optimization.pipeline_read", "it is a key of `offload_optimizer`"},
		{"{'zero_optimization': {\n'offload_optimiser': {}}}",
		 "zero_optimization.offload_optimiser", "did you mean `offload_optimizer`?"},
		{"{'zero_optimization': {\n'offload_params': {}}}",
		 "zero_optimization.offload_params", "did you mean `offload_param`?"},
		{"{'zero_optimization': {\n'nvme_pth': '/x'}}", "zero_optimization.nvme_pth",
		 "did you mean `nvme_path`?"},
		{"{\n'aoi': {}}", "aoi", "did you mean `aio`?"},
		{"{\n'AIO': {}}", "AIO", "did you mean `aio`?"},
		{"{\n'zero_optimisation': {}}", "zero_optimisation",
		 "did you mean `zero_optimization`?"},
		{"{\n'nvme_path': '/x'}", "nvme_path", "it is a key of `offload_param`"},
		{"{'scheduler': {\n'aio': {}}}", "scheduler.aio", AT_TOP},
		{"{'fp16': {\n'offload_param': {}}}", "fp16.offload_param",
		 "it is a key of `zero_optimization`"},
		{"{'optimizer': {'params': {\n'nvswap': {}}}}", "optimizer.params.nvswap", AT_TOP},
	};
	char document[512];

	for (size_t i = 0; i < COUNT(wrong); i++) {
		accepted(wrong[i].document);
		assert_int_equal(heard.count[NVS_LOG_WARNING], 1);
		assert_says(heard.last[NVS_LOG_WARNING], "ds.json:2:1: ");
		assert_says(heard.last[NVS_LOG_WARNING], wrong[i].subject);
		assert_says(heard.last[NVS_LOG_WARNING], wrong[i].says);
		snprintf(document, sizeof(document), "{'nvswap': {'strict': true}, %s",
			 wrong[i].document + 1);
		refused(document, 2, wrong[i].subject, &wrong[i].says, 1);
		/* What the program has set holds for every file. */
		assert_int_equal(nvs_config_set(&config, "nvswap.strict", "true", &error), 0);
		assert_int_equal(parse(wrong[i].document), -EINVAL);
		adds("{'nvswap': {'strict': false}}");
		assert_int_equal(parse(wrong[i].document), -EINVAL);
		snprintf(document, sizeof(document), "{'nvswap': {'strict': false}, %s",
			 wrong[i].document + 1);
		assert_int_equal(parse(document), -EINVAL);
		assert_int_equal(heard.count[NVS_LOG_WARNING], 1);
	}
	/* In a strict block an error says the same. */
	REFUSED("{'offload_param': {'aio': {}}}", 1, "offload_param.aio",
		"it belongs at the top of the file");
	REFUSED("{'aio': {'nvme_path': '/x'}}", 1, "aio.nvme_path",
		"it is a key of `offload_param` and of `offload_optimizer`");
}

TEST(a_key_of_deepspeed_is_no_near_miss)
{
	/* At the top, of DeepSpeed and at the end of programs; then in zero_optimization. */
	char names[2][512] = {
		"amp fp16 bf16 bfloat16 optimizer scheduler checkpoint pipeline "
		"tensorboard compile data_efficiency elasticity nebula timers "
		"comms_logger zero_allow_untested_optimizer zero_force_ds_cpu_optimizer "
		"activation_checkpointing sparse_gradients memory_breakdown "
		"dynamic_batching monitor_config optimizer_d io_config audio "
		"wandb_config my_optimizer float16",
		"leaf_module zenflow zeropp_loco_param stage overlap_comm "
		"mics_shard_size memory_efficient_linear grad_hooks parameter_alignment "
		"legacy_stage1 contiguous_gradients something_new"};
	char document[512];

	for (unsigned i = 0; i < 2; i++)
		for (char *rest = names[i], *name; (name = strsep(&rest, " "));) {
			document_with(i ? BLOCK_ZERO : BLOCK_ROOT, name, "{}", document);
			fresh();
			assert_int_equal(nvs_config_set(&config, "nvswap.strict", "true", NULL), 0);
			if (parse(document) || heard.count[NVS_LOG_WARNING])
				fail_msg("%s: %s", document, heard.last[NVS_LOG_WARNING]);
		}
}

TEST(infinity_is_refused_where_a_value_is_read)
{
	for (unsigned i = 0; i < config_key_count; i++) {
		const struct config_key *key = &config_keys[i];

		if (key->type == KEY_UNUSED || key->block == BLOCK_ROOT)
			continue;
		refuse_value(key, "Infinity", "is Infinity");
		refuse_value(key, "-Infinity", "is -Infinity");
		refuse_value(key, "NaN", "is NaN");
	}
	REFUSED("{'gradient_clipping': NaN}", 1, "gradient_clipping", "is NaN; it must be");
	REFUSED("{'gradient_clipping': -Infinity}", 1, "gradient_clipping", "it must be");
	REFUSED("{'optimizer': {'params': {'betas': [0.9, NaN]}}}", 1, "optimizer.params.betas",
		"is NaN; it must be");
	REFUSED("{'offload_param': {'nvme_path': ['a', NaN]}}", 1, "offload_param.nvme_path",
		"is NaN; it must be");
	REFUSED("{'aio': {'blocksize': NaN}}", 1, "aio.blocksize", "did you mean");
	/* As in DeepSpeed, where no norm exceeds it. */
	accepted("{'gradient_clipping': Infinity}");
	assert_true(config.gradient_clipping == 0);
}

TEST(a_duplicate_key_is_refused)
{
	REFUSED("{'aio': {\n'queue_depth': 8,\n'block_size': 512,\n 'queue_depth': 8}}", 4,
		"aio.queue_depth", "ds.json:4:2: ", "already set on line 2");
	REFUSED("{'aio': {},\n'x': 1,\n'aio': {}}", 3, "aio", "already set on line 1");
	REFUSED("{'a': 1,\n'a': 2}", 2, "a", "already set on line 1");
	REFUSED("{'zero_optimization': {\n'offload_param': {},\n'offload_param': {}}}", 3,
		"zero_optimization.offload_param", "already set on line 2");
	REFUSED("{'zero_optimization': {\n'stage': 3,\n'stage': 3}}", 3, "zero_optimization.stage",
		"already set on line 2");
	REFUSED("{'fp16': {\n'enabled': true,\n'\\u0065nabled': true}}", 3, "fp16.enabled",
		"already set on line 2");
	REFUSED("{'optimizer': {'params': {'lr': 1,\n'lr': 1}}}", 2, "optimizer.params.lr",
		"remove one of them");
	/*
	 * The first key that repeats, in the order of the document, with the line of its
	 * predecessor.
	 */
	REFUSED("{'z': 1,\n'a': 1,\n'z': 1,\n'a': 1,\n'z': 1}", 3, "z", "on line 1");
	REFUSED("{'aio': {},\n'zero_optimization': {'offload_param': {}},\n'offload_param': {}}", 3,
		"offload_param", "the same block as `offload_param` on line 2");
	REFUSED("{'offload_optimizer': {},\n'zero_optimization': {\n'offload_optimizer': {}}}", 3,
		"zero_optimization.offload_optimizer", "on line 1");
	REFUSED("{'bfloat16': {},\n'bf16': {}}", 2, "bf16", "the same block as `bfloat16`");
}

TEST(two_names_of_one_setting_must_agree)
{
	static const char *const names[][2] = {
		{"stage3_prefetch_bucket_size", "prefetch_bucket_size"},
		{"stage3_max_live_parameters", "max_live_parameters"},
		{"stage3_max_reuse_distance", "max_reuse_distance"},
		{"stage3_param_persistence_threshold", "param_persistence_threshold"},
	};
	char document[256], subject[128];

	REFUSED("{'aio': {\n'thread_count': 8,\n'intra_op_parallelism': 4}}", 3,
		"aio.intra_op_parallelism", "is 4", "`thread_count`", "is 8", "on line 2");
	REFUSED("{'aio': {\n'intra_op_parallelism': 4,\n'thread_count': 1}}", 3, "aio.thread_count",
		"is 1", "`intra_op_parallelism`", "is 4", "on line 2");
	accepted("{'aio': {'thread_count': 4, 'intra_op_parallelism': 4.0}}");
	assert_int_equal(config.aio.thread_count, 4);
	for (size_t i = 0; i < COUNT(names); i++) {
		const char *parts[] = {names[i][0], "but its alias"};

		snprintf(document, sizeof(document), "{'zero_optimization': {'%s': 21,\n'%s': 20}}",
			 names[i][0], names[i][1]);
		snprintf(subject, sizeof(subject), "zero_optimization.%s", names[i][1]);
		refused(document, 2, subject, parts, COUNT(parts));
		snprintf(document, sizeof(document), "{'zero_optimization': {'%s': 21}}",
			 names[i][1]);
		accepted(document);
		assert_int_equal(
			whole_in(config_key_find(BLOCK_ZERO, names[i][0], strlen(names[i][0]))),
			21);
	}
}

TEST(auto_takes_the_default_where_a_trainer_may_fill_it_in)
{
	char document[512];

	for (unsigned i = 0; i < config_key_count; i++) {
		const struct config_key *key = &config_keys[i];

		if (key->type == KEY_BLOCK || key->type == KEY_UNUSED ||
		    key->choices == &config_ioengines || key->type == KEY_PATHS)
			continue;
		if (key->block == BLOCK_AIO || key->block == BLOCK_NVSWAP) {
			refuse_value(key, "\"auto\"", "is \"auto\"; it must be");
			continue;
		}
		document_with(key->block, key->name, "\"auto\"", document);
		accepted(document);
		assert_int_equal(heard.count[NVS_LOG_INFO], 1);
		assert_says(heard.last[NVS_LOG_INFO], "ds.json:2:");
		assert_says(heard.last[NVS_LOG_INFO], key->name);
		assert_says(heard.last[NVS_LOG_INFO], "is \"auto\"; using the default");
		if (key->default_text)
			assert_says(heard.last[NVS_LOG_INFO], key->default_text);
		check_defaults();
	}
	/* The value is the default, not the previous setting. */
	accepted("{'zero_optimization': {'sub_group_size': 5}, 'gradient_clipping': 3,'optimizer': "
		 "{'type': 'x', 'params': {'betas': [0, 0]}},'bf16': {'enabled': true}, "
		 "'data_types': {'grad_accum_dtype': 'fp16'}}");
	adds("{'zero_optimization': {'sub_group_size': 'auto'}, 'gradient_clipping': 'auto', "
	     "'optimizer': {'type': 'auto', 'params': {'betas': 'auto'}}, 'bf16': {'enabled': "
	     "'auto'}, 'data_types': {'grad_accum_dtype': 'auto'}}");
	check_defaults();
}

TEST(unused_keys_of_deepspeed_are_warnings)
{
	static const char *const values[] = {"true", "false", "{\"pin_memory\": true}", "\"auto\"",
					     "-1"};
	char document[512];
	unsigned unused = 0;

	for (size_t i = 0; i < config_key_count * COUNT(values); i++) {
		const struct config_key *key = &config_keys[i / COUNT(values)];

		if (key->type != KEY_UNUSED)
			continue;
		document_with(key->block, key->name, values[i % COUNT(values)], document);
		accepted(document);
		assert_int_equal(heard.count[NVS_LOG_WARNING], 1);
		assert_says(heard.last[NVS_LOG_WARNING], "ds.json:2:1: zero_optimization.");
		assert_says(heard.last[NVS_LOG_WARNING], key->name);
		assert_says(heard.last[NVS_LOG_WARNING], "has no effect in nvswap");
		assert_says(heard.last[NVS_LOG_WARNING], key->meaning);
		check_defaults();
		unused++;
	}
	assert_int_equal(unused, 9 * COUNT(values));
	adds("{'zero_optimization': true}");
	assert_says(heard.last[NVS_LOG_WARNING], "has been an object since DeepSpeed 0.3");
}

static const char some_file[] =
	"{\"aio\": {\"block_size\": 262144, \"queue_depth\": 33}, \"zero_optimization\": {\n"
	"\"sub_group_size\": 1e6, \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": "
	"\"p\"},\n"
	"\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": [\"/a\", \"/b/\"]}}}\n";

/* ---- Devices, paths, pools, element types ---- */

TEST(nvme_needs_a_path)
{
	static const char *const paths[] = {"/somewhere"};

	REFUSED("{'offload_optimizer': {\n'device': 'nvme'}}", 2, "offload_optimizer.nvme_path",
		"offload_optimizer.device is \"nvme\"", "nvme_path is not set",
		"a directory on the drive");
	REFUSED("{'zero_optimization': {'offload_optimizer':\n\n{'nvme_path': null,\n'device': "
		"'nvme'}}}",
		4, "offload_optimizer.nvme_path", "nvme_path is not set");
	assert_int_equal(parse("{'offload_param': {'device': 'nvme'}}"), -EINVAL);
	/* A path set earlier suffices; one for the other device does no harm. */
	assert_int_equal(nvs_config_set_paths(&config, NVS_OFFLOAD_PARAM, paths, 1, NULL), 0);
	adds("{'offload_param': {'device': 'nvme'}}");
	assert_string_equal(param->nvme_path[0], "/somewhere");
	adds("{'offload_param': {'device': 'cpu', 'nvme_path': '/x'}}");
	assert_int_equal(param->device, NVS_DEVICE_CPU);
	assert_string_equal(param->nvme_path[0], "/x");
}

TEST(paths_of_the_nvswap_block_replace_those_of_the_offload_blocks)
{
	static const char offload[] =
		"'offload_param': {'device': 'nvme', 'nvme_path': 'p'}, 'offload_optimizer': "
		"{'device': 'nvme', 'nvme_path': ['x', 'y']}";
	static const char nvswap[] =
		"'nvswap': {'param_nvme_path': ['a', 'b'], 'optimizer_nvme_path': 'c'}";

	for (int i = 0; i < 2; i++) {
		char text[512];

		snprintf(text, sizeof(text), "{%s, %s}", i ? offload : nvswap,
			 i ? nvswap : offload);
		accepted(text);
		assert_int_equal(param->npaths, 2);
		assert_string_equal(param->nvme_path[1], "b");
		assert_int_equal(optimizer->npaths, 1);
		assert_string_equal(optimizer->nvme_path[0], "c");
	}
}

/* {'offload_param': {'device': 'nvme', 'nvme_path': [n different short paths]}} */
static void document_with_paths(unsigned n, char *document, size_t room)
{
	size_t used = (size_t)snprintf(document, room,
				       "{'offload_param': {'device': 'nvme', 'nvme_path': [");

	for (unsigned i = 0; i < n; i++)
		used += (size_t)snprintf(document + used, room - used, "%s'p%u'", i ? ", " : "", i);
	snprintf(document + used, room - used, "]}}");
}

TEST(there_are_one_to_sixteen_different_paths)
{
	const char *subject = "offload_param.nvme_path";
	char document[512], name[8];

	for (unsigned n = 1; n <= NVS_PATHS_MAX; n++) {
		document_with_paths(n, document, sizeof(document));
		accepted(document);
		assert_int_equal(param->npaths, n);
		snprintf(name, sizeof(name), "p%u", n - 1);
		assert_string_equal(param->nvme_path[n - 1], name);
	}
	document_with_paths(NVS_PATHS_MAX + 1, document, sizeof(document));
	REFUSED(document, 1, subject, "a list of 17", "a list of 1 to 16 paths");
	REFUSED("{'offload_param': {'nvme_path': []}}", 1, subject, "a list of 0");
	REFUSED("{'offload_param': {'nvme_path': ''}}", 1, subject, "is empty");
	REFUSED("{'offload_param': {'nvme_path': ['a',\n'']}}", 2, subject, "is empty");
	REFUSED("{'offload_param': {'nvme_path': ['a',\n'b',\n'a']}}", 3, subject, "\"a\"",
		"twice");
	REFUSED("{'offload_param': {'nvme_path': ['/a',\n'/a//']}}", 2, subject, "twice");
	REFUSED("{'offload_param': {'nvme_path': ['a',\n7]}}", 2, subject, "is 7");
	REFUSED("{'offload_param': {'nvme_path': 'a\\u0000b'}}", 1, subject,
		"which is not a valid path");
	REFUSED("{'offload_param': {'nvme_path': '\\\\\\ud800'}}", 1, subject,
		"which is not a valid path");
	accepted("{'offload_param': {'nvme_path': ['/', '\\ud83d\\ude00', '\\\\ud800']}}");
	assert_string_equal(param->nvme_path[1], "\xf0\x9f\x98\x80");
	assert_string_equal(param->nvme_path[2], "\\ud800");
}

TEST(a_path_that_stands_for_another_is_refused_with_its_meaning)
{
	static const struct {
		const char *path, *says;
	} paths[] = {
		{"~", "only a shell expands"},
		{"~/nvme", "begins with ~"},
		{"~me/nvme", "begins with ~"},
		{"$HOME/x", "begins with a variable"},
		{"${SCRATCH}", "begins with a variable"},
		{"none", "deepspeed_config_file"},
		{"None", "deepspeed_config_file"},
		{"auto", "deepspeed_config_file"},
	};
	static const char *const real[] = {"./~", "./none", "/mnt/~", "$", "/none", "nonesuch"};
	char document[256];

	for (size_t i = 0; i < COUNT(paths); i++) {
		snprintf(document, sizeof(document),
			 "{'offload_param': {'device': 'nvme',\n'nvme_path': '%s'}}",
			 paths[i].path);
		refused(document, 2, "offload_param.nvme_path", &paths[i].says, 1);
		snprintf(document, sizeof(document),
			 "{'offload_optimizer': {'device': 'nvme',\n'nvme_path': ['a', '%s']}}",
			 paths[i].path);
		refused(document, 2, "offload_optimizer.nvme_path", &paths[i].says, 1);
		fresh();
		assert_int_equal(
			nvs_config_set_paths(&config, NVS_OFFLOAD_PARAM, &paths[i].path, 1, &error),
			-EINVAL);
		assert_says(error.text, paths[i].says);
		assert_int_equal(
			nvs_config_set(&config, "offload_param.nvme_path", paths[i].path, &error),
			-EINVAL);
		assert_says(error.text, paths[i].says);
		/* Where no drive is asked for it does no harm, until one is. */
		snprintf(document, sizeof(document),
			 "{'offload_param': {'device': 'cpu', 'nvme_path': '%s'}}", paths[i].path);
		adds(document);
		assert_int_equal(nvs_config_set(&config, "offload_param.device", "nvme", &error),
				 -EINVAL);
		assert_says(error.text, paths[i].says);
	}
	for (size_t i = 0; i < COUNT(real); i++) {
		snprintf(document, sizeof(document),
			 "{'offload_param': {'device': 'nvme', 'nvme_path': '%s'}}", real[i]);
		accepted(document);
	}
}

TEST(a_path_leaves_room_for_the_names_of_the_store)
{
	char document[4000];

	for (int n = 3840; n <= 3841; n++) {
		snprintf(document, sizeof(document), "{'offload_param': {'nvme_path': '%0*d'}}", n,
			 0);
		assert_int_equal(parse(document), n == 3840 ? 0 : -EINVAL);
	}
	assert_says(error.text, "3840");
	assert_int_equal(strlen(param->nvme_path[0]), 3840);
}

TEST(paths_can_be_set_by_a_call)
{
	const char *paths[NVS_PATHS_MAX + 1], *twice[] = {"a", "b", "a/"}, *empty[] = {"a", ""};
	const char *none[] = {"a", NULL}, *own[2];
	char names[NVS_PATHS_MAX + 1][8];
	const struct {
		const char *const *paths;
		unsigned n;
		const char *says;
	} wrong[] = {{paths, 0, "0 paths"},
		     {paths, 17, "1 to 16"},
		     {twice, 3, "\"a/\" is in the list twice"},
		     {empty, 2, "is empty"},
		     {none, 2, "is NULL"}};

	for (unsigned i = 0; i < COUNT(names); i++) {
		snprintf(names[i], sizeof(names[i]), "d%u", i);
		paths[i] = names[i];
	}
	assert_int_equal(
		nvs_config_set_paths(&config, NVS_OFFLOAD_PARAM, paths, NVS_PATHS_MAX, &error), 0);
	assert_int_equal(param->npaths, NVS_PATHS_MAX);
	assert_int_equal(param->device, NVS_DEVICE_NVME);
	for (size_t i = 0; i < COUNT(wrong); i++) {
		assert_int_equal(nvs_config_set_paths(&config, NVS_OFFLOAD_PARAM, wrong[i].paths,
						      wrong[i].n, &error),
				 -EINVAL);
		assert_string_equal(error.subject, "nvme_path");
		assert_says(error.text, wrong[i].says);
	}
	assert_int_equal(param->npaths, NVS_PATHS_MAX);
	assert_string_equal(param->nvme_path[15], "d15");
	/* The new paths alias the configuration's own strings. */
	own[0] = param->nvme_path[3];
	own[1] = param->nvme_path[0];
	assert_int_equal(nvs_config_set_paths(&config, NVS_OFFLOAD_PARAM, own, 2, &error), 0);
	assert_int_equal(param->npaths, 2);
	assert_string_equal(param->nvme_path[0], "d3");
	assert_string_equal(param->nvme_path[1], "d0");
	assert_null(param->nvme_path[2]);
	for (int i = 0; i < 2; i++) {
		config_free(&config);
		assert_int_equal(param->npaths, 0);
	}
}

TEST(a_pool_is_count_times_size_times_element)
{
	assert_int_equal(nvs_config_pool_bytes(&config, NVS_OFFLOAD_PARAM), 2000000000);
	assert_int_equal(nvs_config_pool_bytes(&config, NVS_OFFLOAD_OPTIMIZER), 16000000000);
	adds("{'bf16': {'enabled': true}, 'offload_param': {'buffer_count': 3, 'buffer_size': 7}, "
	     "'offload_optimizer': {'buffer_count': 6}, 'zero_optimization': {'sub_group_size': "
	     "11}}");
	assert_int_equal(nvs_config_pool_bytes(&config, NVS_OFFLOAD_PARAM), 3 * 7 * 2);
	assert_int_equal(nvs_config_pool_bytes(&config, NVS_OFFLOAD_OPTIMIZER), 6 * 11 * 4);
	param->buffer_size = UINT64_MAX;
	assert_int_equal(nvs_config_pool_bytes(&config, NVS_OFFLOAD_PARAM), UINT64_MAX);
	param->buffer_size = UINT64_MAX / 3;
	assert_int_equal(nvs_config_pool_bytes(&config, NVS_OFFLOAD_PARAM), UINT64_MAX);
	/* The optimizer's has room for its cache. */
	accepted("{'zero_optimization': {'sub_group_size': 11}, 'nvswap': {'optimizer_max_in_cpu': "
		 "5}}");
	assert_int_equal(nvs_config_pool_bytes(&config, NVS_OFFLOAD_OPTIMIZER),
			 4 * 11 * 4 + 5 * 12);
	assert_int_equal(nvs_config_pool_bytes(&config, NVS_OFFLOAD_PARAM), 2000000000);
	/* 2^64 / 12 is 1537228672809129301.3; the sum, and then the product, overflows. */
	config.optimizer_max_in_cpu = 1537228672809129301;
	assert_int_equal(nvs_config_pool_bytes(&config, NVS_OFFLOAD_OPTIMIZER), UINT64_MAX);
	config.optimizer_max_in_cpu++;
	assert_int_equal(nvs_config_pool_bytes(&config, NVS_OFFLOAD_OPTIMIZER), UINT64_MAX);
}

TEST(a_pool_beyond_any_memory_is_refused)
{
	/* 2^63 / (5 * 4) is 461168601842738790.4 */
	accepted("{'offload_param': {'device': 'cpu', 'buffer_size': 461168601842738790}}");
	REFUSED("{'offload_param': {'device': 'cpu',\n'buffer_size': 461168601842738791}}", 2,
		"offload_param.buffer_size", "buffer_count 5", "461168601842738791", "exceed");
	REFUSED("{'offload_optimizer': {'device': 'cpu', 'buffer_count': 32}, 'zero_optimization': "
		"{\n'sub_group_size': 72057594037927936}}",
		2, "zero_optimization.sub_group_size", "offload_optimizer.buffer_count 32",
		"exceed");
	/* (2^63 - 4 * 10 * 4) / 12 is 768614336404564637.3 */
	accepted("{'offload_optimizer': {'device': 'cpu'}, 'zero_optimization': {'sub_group_size': "
		 "10}, 'nvswap': {'optimizer_max_in_cpu': 768614336404564637}}");
	REFUSED("{'offload_optimizer': {'device': 'cpu'}, 'zero_optimization': {'sub_group_size': "
		"10},\n'nvswap': {'optimizer_max_in_cpu': 768614336404564638}}",
		2, "nvswap.optimizer_max_in_cpu", "768614336404564638 elements of 12 bytes",
		"exceed");
	accepted("{'offload_optimizer': {'device': 'cpu'}, 'zero_optimization': {'sub_group_size': "
		 "72057594037927936}}");
	/* A pool that is not configured is not checked. */
	accepted("{'nvswap': {'optimizer_max_in_cpu': 1e18}}");
	accepted("{'zero_optimization': {'sub_group_size': 72057594037927936}, "
		 "'offload_optimizer': {'buffer_count': 32}}");
	assert_int_equal(optimizer->buffer_size, 72057594037927936);
	accepted("{'zero_optimization': {'sub_group_size': 72057594037927936}}");
	optimizer->device = NVS_DEVICE_CPU;
	assert_int_equal(parse("{'offload_optimizer': {'buffer_count': 100}}"), -EINVAL);
}

TEST(element_types_follow_fp16_and_bf16)
{
	static const struct {
		const char *document;
		enum nvs_dtype param, grad;
	} types[] = {
		{"{'fp16': {'enabled': true}}", NVS_F16, NVS_F16},
		{"{'bf16': {'enabled': true}}", NVS_BF16, NVS_BF16},
		{"{'fp16': {'enabled': false}, 'bf16': {'enabled': false}}", NVS_F32, NVS_F32},
		{"{'fp16': {'enabled': 'auto'}, 'bf16': {'enabled': true}}", NVS_BF16, NVS_BF16},
		{"{'data_types': {'grad_accum_dtype': 'fp32'}, 'bf16': {'enabled': true}}",
		 NVS_BF16, NVS_F32},
		{"{'data_types': {'grad_accum_dtype': 'fp16'}, 'fp16': {'enabled': true}}", NVS_F16,
		 NVS_F16},
		{"{'data_types': {'grad_accum_dtype': 'bf16'}}", NVS_F32, NVS_BF16},
		{"{'data_types': {'grad_accum_dtype': 'auto'}, 'bf16': {'enabled': true}}",
		 NVS_BF16, NVS_BF16},
	};

	for (size_t i = 0; i < COUNT(types); i++) {
		accepted(types[i].document);
		assert_int_equal(config.param_dtype, types[i].param);
		assert_int_equal(config.grad_accum_dtype, types[i].grad);
	}
	/* Over several files, the gradients' type follows the parameters' until it is set. */
	accepted(types[0].document);
	adds(types[2].document);
	assert_int_equal(config.grad_accum_dtype, NVS_F32);
	adds(types[6].document);
	adds(types[0].document);
	assert_int_equal(config.grad_accum_dtype, NVS_BF16);
}

TEST(fp16_and_bf16_exclude_each_other)
{
	REFUSED("{'fp16': {\n'enabled': true},\n'bf16': {\n'enabled': true}}", 4, "bf16.enabled",
		"fp16 (line 2) and bf16 (line 4) are both enabled");
	REFUSED("{'bf16': {\n'enabled': true},\n'fp16': {\n'enabled': true}}", 4, "fp16.enabled",
		"fp16 (line 4) and bf16 (line 2)");
	accepted("{'fp16': {'enabled': true}}");
	assert_int_equal(parse("{\n'bf16': {'enabled': true}}"), -EINVAL);
	assert_int_equal(error.line, 2);
	assert_says(error.text, "earlier configuration");
	assert_int_equal(config.param_dtype, NVS_F16);
}

TEST(a_file_is_read_over_earlier_settings)
{
	accepted(some_file);
	assert_string_equal(optimizer->nvme_path[1], "/b/");
	adds("{'aio': {'queue_depth': 1}, 'offload_optimizer': {'nvme_path': 'c'}}");
	assert_int_equal(config.aio.queue_depth, 1);
	assert_int_equal(config.aio.block_size, 262144);
	assert_int_equal(optimizer->npaths, 1);
	assert_string_equal(optimizer->nvme_path[0], "c");
	assert_null(optimizer->nvme_path[1]);
	assert_int_equal(param->npaths, 1);
	assert_int_equal(optimizer->buffer_size, 1000000);
}

/* ---- Files ---- */

TEST(a_file_is_loaded_or_the_error_says_why)
{
	const char *directory = temp_directory(), *path = path_in(directory, "ds.json");
	const char *missing = path_in(directory, "none.json");
	struct nvs_config before = config;

	assert_int_equal(nvs_config_load(&config, missing, &error), -ENOENT);
	assert_says(error.text, missing);
	assert_says(error.text, "No such file");
	assert_int_equal(nvs_config_load(&config, directory, &error), -EISDIR);
	assert_says(error.text, directory);
	write_text(path, "");
	assert_int_equal(nvs_config_load(&config, path, &error), -EINVAL);
	assert_says(error.text, "there is no JSON in it");
	write_text(path, "{\"aio\": {");
	assert_int_equal(nvs_config_load(&config, path, &error), -EINVAL);
	assert_says(error.text, path);
	assert_memory_equal(&before, &config, sizeof(config));
	write_text(path, some_file);
	assert_int_equal(nvs_config_load(&config, path, &error), 0);
	assert_int_equal(config.aio.queue_depth, 33);
}

TEST(a_file_of_64_mib_is_the_largest)
{
	const char *path = path_in(temp_directory(), "ds.json");
	char *text = malloc(CONFIG_TEXT_MAX);
	int fd;

	assert_non_null(text);
	memset(text, ' ', CONFIG_TEXT_MAX);
	memcpy(text + CONFIG_TEXT_MAX - 2, "{}", 2);
	assert_int_equal(nvs_config_parse(&config, text, CONFIG_TEXT_MAX, "big", &error), 0);
	free(text);
	fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)CONFIG_TEXT_MAX + 1), 0);
	close(fd);
	assert_int_equal(nvs_config_load(&config, path, &error), -EFBIG);
	assert_says(error.text, "64 MiB");
}

TEST(a_pipe_can_be_loaded)
{
	char path[32];
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	assert_int_equal(write(ends[1], some_file, strlen(some_file)), strlen(some_file));
	close(ends[1]);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", ends[0]);
	assert_int_equal(nvs_config_load(&config, path, &error), 0);
	assert_int_equal(config.aio.queue_depth, 33);
	close(ends[0]);
}

/* ---- Syntax ---- */

TEST(a_syntax_error_has_its_place_and_what_is_expected)
{
	static const struct {
		const char *document, *place, *expected;
	} errors[] = {
		{"", "1:1: ", "there is no JSON in it"},
		{"{,}", "1:2: ", "a key in double quotes"},
		{"{\n\"a\" 1}", "2:5: ", "a ':' is expected after a key; found 1"},
		{"{\"a\": 1\n\"b\": 2}", "2:1: ", "a ',' or '}' is expected after a value"},
		{"{\"a\": [1}}", "1:9: ", "a ',' or ']' is expected"},
		{"{\"a\":\n [1",
		 "2:4: ", "the document ends before the list that begins on line 2"},
		{"{\n\n\"a\": 1\n\n", "3:7: ", "before the object that begins on line 1 does"},
		{"{\"a\"", "1:5: ", "before the object"},
		{"{\"a\": \"x", "1:9: ", "before the object"},
		{"tru", "1:1: ", "a value is expected here; found t"},
		{"{\"a\":\ntrue1}", "2:5: ", "a ',' or '}' is expected"},
		{"{\"a\": True}", "1:7: ", "found True; write true"},
		{"{\"a\": False}", "1:7: ", "write false"},
		{"{\"a\": None}", "1:7: ", "write null"},
		{"{'a': 1}", "1:2: ", "strings are written in double quotes"},
		{"{a: 1}", "1:2: ", "found a:; keys and strings are written in double quotes"},
		{"{\n \"a\": /* why 1}", "2:7: ", "a comment that begins here does not end"},
		{"{\"a\": 01}", "1:8: ", "a ',' or '}' is expected"},
		{"{\"a\": 1.}", "1:7: ", "no digit after its '.'"},
		{"{\"a\": 1e+}", "1:7: ", "no digit in its exponent"},
		{"{\"a\": -}", "1:7: ", "no digit after its '-'"},
		{"{\"a\": .5}", "1:7: ", "a number begins with a digit"},
		{"{\"a\": +5}", "1:7: ", "a number begins with a digit"},
		{"{\"a\": 0x10}",
		 "1:8: ", "a ',' or '}' is expected after a value in an object; found x10"},
		{"{\"a\": \"x\ny\"}", "1:7: ", "a closing '\"' may be missing"},
		{"{\"a\": \"\\x\"}", "1:7: ", "invalid escape"},
		{"{\"a\": \"\\u12g4\"}", "1:7: ", "four hex digits"},
		{"{}\n{}", "2:1: ", "the document ended before this"},
		{"{\"\xc3\xa9\xe2\x82\xac\": 01}", "1:9: ", "expected"},
		{"{\n\"a\": \"\xff\"}", "2:7: ", "byte 0xff is not UTF-8"},
		{"{\"a\": \"\xc0\x80\"}", "1:8: ", "byte 0xc0 is not UTF-8"},
		{"{\"a\": \"\xed\xa0\x80\"}", "1:8: ", "byte 0xed is not UTF-8"},
		{"{\"a\": \"\xf4\x90\x80\x80\"}", "1:8: ", "byte 0xf4 is not UTF-8"},
		{"{} \xe2\x82", "1:4: ", "byte 0xe2 is not UTF-8"},
		{"{\"a\":\n\f1}", "2:1: ", "form feed"},
		{"{}\n \v", "2:2: ", "vertical tab"},
		{"null", "1:1: ", "the document is null; it must be an object"},
		{"[]", "1:1: ", "the document is a list; it must be an object"},
		{" 12", "1:2: ", "the document is 12; it must be an object"},
	};
	char place[32];

	for (size_t i = 0; i < COUNT(errors); i++) {
		snprintf(place, sizeof(place), "ds.json:%s", errors[i].place);
		assert_int_equal(parse_as_written(errors[i].document), -EINVAL);
		if (parse_as_written(errors[i].document) != -EINVAL ||
		    strncmp(error.text, place, strlen(place)) != 0 ||
		    !strstr(error.text, errors[i].expected))
			fail_msg("%s\n-> %s\nis not %s...%s", errors[i].document, error.text, place,
				 errors[i].expected);
		assert_int_equal(error.line, strtoul(errors[i].place, NULL, 10));
	}
	/* A file that is no JSON may be secret. */
	assert_int_equal(parse_as_written(" root:x:0:0:root:/root:/bin/sh"), -EINVAL);
	assert_null(strstr(error.text, "root"));
	/* NUL is not a character of JSON. */
	assert_int_equal(nvs_config_parse(&config, "{\0}", 3, "ds.json", &error), -EINVAL);
	assert_int_equal(nvs_config_parse(&config, "{}\0", 3, "ds.json", &error), -EINVAL);
	assert_int_equal(nvs_config_parse(&config, "{}\0", 2, "ds.json", &error), 0);
	assert_int_equal(nvs_config_parse(&config, NULL, 0, "ds.json", &error), -EINVAL);
	check_defaults();
}

static int parse_nested(size_t depth)
{
	char document[1100];
	size_t used = (size_t)snprintf(document, sizeof(document), "{\"x\":\n");

	memset(document + used, '[', depth - 1);
	memset(document + used + depth - 1, ']', depth - 1);
	memcpy(document + used + 2 * (depth - 1), "}", 2);
	return parse(document);
}

TEST(values_nest_up_to_512_levels)
{
	assert_int_equal(parse_nested(511), 0);
	assert_int_equal(parse_nested(512), 0);
	assert_int_equal(parse_nested(513), -EFBIG);
	assert_int_equal(error.line, 2);
	assert_says(error.text, "ds.json:2:512: ");
	assert_says(error.text, "512 deep");
}

TEST(messages_replace_control_characters)
{
	char name[600];

	REFUSED("{'aio': {'\\u001b[31m': 1}}", 1, "aio.?[31m", "aio.?[31m is not a key");
	REFUSED("{'aio': {'a\xc2\x9b\x31': 1}}", 1, "aio.a?1", "aio.a?1");
	REFUSED("{'aio': {'a\x7f': 1}}", 1, "aio.a?", "aio.a?");
	REFUSED("{'aio': {'\xc3\xa9': 1}}", 1, "aio.\xc3\xa9", "\xc3\xa9");
	/* Messages are cut between characters. */
	REFUSED("{'aio': {'block_size': "
		"'0123456789012345678901234567890123456789012345\xe2\x82\xac\xe2\x82\xac'}}",
		1, "aio.block_size", "9012345...; it must be");
	memset(name, 'n', sizeof(name));
	snprintf(name + sizeof(name) - 9, 9, "/ds.json");
	assert_int_equal(nvs_config_parse(&config, "{\"aio\": 1}", 10, name, &error), -EINVAL);
	assert_says(error.text, "nnn/ds.json:1:9: aio is 1; it must be an object");
	assert_memory_equal(error.text, "...nnn", 6);
}

/* ---- The examples and the documentation ---- */

#define LLAMA_LAYER_BYTES  436224000 /* largest layer of Llama-3.1-8B */
#define GPT2_LARGEST_BYTES ((uint64_t)50257 * 768 * 4)

static void check_example_pool(enum nvs_block block)
{
	uint64_t nbytes = nvs_config_pool_bytes(&config, block);

	assert_true(nbytes >=
		    (block == NVS_OFFLOAD_PARAM ? LLAMA_LAYER_BYTES : GPT2_LARGEST_BYTES));
	assert_in_range(nbytes, 240000000, 520000000);
}

TEST(the_examples_load_and_hold_the_largest_tensor_of_gpt2)
{
	static const struct {
		const char *path;
		enum nvs_device param, optimizer;
		unsigned npaths;
	} examples[] = {
		{"config/zero3_nvme.json", NVS_DEVICE_NVME, NVS_DEVICE_NVME, 1},
		{"config/zero3_optimizer_nvme.json", NVS_DEVICE_NONE, NVS_DEVICE_NVME, 1},
		{"config/zero3_param_nvme.json", NVS_DEVICE_NVME, NVS_DEVICE_NONE, 1},
		{"config/zero3_cpu.json", NVS_DEVICE_CPU, NVS_DEVICE_CPU, 0},
		{"config/zero3_striped.json", NVS_DEVICE_NVME, NVS_DEVICE_NVME, 2},
	};
	glob_t found;

	for (size_t i = 0; i < COUNT(examples); i++) {
		fresh();
		if (nvs_config_load(&config, examples[i].path, &error))
			fail_msg("%s", error.text);
		heard_nothing();
		assert_int_equal(param->device, examples[i].param);
		assert_int_equal(optimizer->device, examples[i].optimizer);
		if (param->device != NVS_DEVICE_NONE) {
			assert_int_equal(param->npaths, examples[i].npaths);
			check_example_pool(NVS_OFFLOAD_PARAM);
		}
		if (optimizer->device != NVS_DEVICE_NONE) {
			assert_int_equal(optimizer->npaths, examples[i].npaths);
			check_example_pool(NVS_OFFLOAD_OPTIMIZER);
			assert_true(optimizer->pipeline_read && optimizer->pipeline_write &&
				    optimizer->fast_init);
			assert_string_equal(config.adam.type, "AdamW");
		}
		assert_int_equal(config.aio.block_size, 1 << 20);
		assert_int_equal(config.aio.queue_depth, 32);
	}
	assert_int_equal(glob("config/*.json", 0, NULL, &found), 0);
	assert_int_equal(found.gl_pathc, COUNT(examples));
	globfree(&found);
}

TEST(the_documentation_has_the_table_of_keys)
{
	char *text = file_text("docs/configuration.md"), row[512], allows[160];

	for (unsigned i = 0; i < config_key_count; i++) {
		const struct config_key *key = &config_keys[i];
		const char *block = config_blocks[key->block].name;

		if (key->type == KEY_BLOCK)
			continue;
		if (key->type == KEY_UNUSED)
			snprintf(row, sizeof(row), "\n| %s | `%s` | %s |\n", block, key->name,
				 key->meaning);
		else
			snprintf(row, sizeof(row), "\n| %s | `%s` | %s | %s | %s |\n",
				 *block ? block : "(the file)", key->name,
				 config_key_allows(key, allows),
				 key->default_text ? key->default_text : "-", key->meaning);
		assert_says(text, row);
	}
	free(text);
}
