/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One setting at a time, by its key. A value has the notation of the file or, if unambiguous, no
 * quotes; it passes the reader's checks and the rules that need no other key. An aio that is open
 * is compared with a configuration by the text of its settings.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json/write.h"
#include "base/numbers.h"
#include "base/text.h"
#include "base/threads/cancel.h"
#include "config/reader.h"

/* ---- Keys ---- */

/* Finds the setting `key`, a path of blocks and a key separated by dots. NULL: -EINVAL. */
static const struct config_key *find_setting(const struct nvs_config *config, const char *key,
					     struct nvs_error *error)
{
	enum config_block block = BLOCK_ROOT;
	const struct config_key *found;
	const char *name = key;

	if (!config || !key) {
		error_set(error, -EINVAL, "the configuration or the key is NULL");
		return NULL;
	}
	if (!*key) {
		error_about(error, -EINVAL, key, 0, 0,
			    "the key is empty; name a setting, such as aio.block_size");
		return NULL;
	}
	for (;; block = found->child) {
		size_t length = strcspn(name, ".");

		found = config_key_find(block, name, length);
		if (!found || (found->type != KEY_BLOCK && name[length])) {
			const char *in = config_blocks[block].name;
			char text[256], part[64];

			snprintf(part, sizeof(part), "%.*s",
				 (int)(found ? strlen(name + length) : length),
				 found ? name + length : name);
			error_about(error, -EINVAL, key, 0, 0, "%.200s is not a key%s%s%s; %s", key,
				    *in ? " of `" : "", in, *in ? "`" : "",
				    config_key_suggest(block, part, strlen(part), text));
			return NULL;
		}
		if (found->type != KEY_BLOCK)
			break;
		if (!name[length]) {
			error_about(error, -EINVAL, key, 0, 0,
				    "%.200s is a block; name one of its keys, such as "
				    "aio.block_size",
				    key);
			return NULL;
		}
		name += length + 1;
	}
	if (found->type != KEY_UNUSED)
		return found;
	error_about(error, -EINVAL, key, 0, 0, "%.200s has no effect in nvswap: %s", key,
		    found->meaning);
	return NULL;
}

/* ---- Values as JSON ---- */

static bool is_whole(const struct config_key *key)
{
	return key->type == KEY_U32 || key->type == KEY_U64;
}

static bool is_numbered_choice(const struct config_key *key)
{
	return key->type == KEY_CHOICE && key->choices->numbered;
}

/* Whether the value is JSON other than a bare word. */
static bool is_json(const struct config_key *key, const char *value)
{
	const char *first = value + strspn(value, " \t\r\n");

	if (*first == '"' || *first == '[' || !strcmp(first, "null"))
		return true;
	if (key->type == KEY_BOOL || key->type == KEY_VERIFY)
		return !strcmp(first, "true") || !strcmp(first, "false") || isdigit(*first);
	return (is_whole(key) || key->type == KEY_REAL) &&
	       (isdigit(*first) || *first == '-' || !strcmp(first, "Infinity"));
}

/* Sets it in a copy, which replaces the configuration if the value is valid. */
static int set_value(struct nvs_config *config, const struct config_key *setting, const char *key,
		     const struct json_value *value, struct nvs_error *error)
{
	struct reader r = {.caller = config,
			   .config = *config,
			   .from_call = true,
			   .file = key,
			   .key = setting,
			   .error = error};

	snprintf(r.name, sizeof(r.name), "%s", key);
	return reader_set(&r, value);
}

int nvs_config_set(struct nvs_config *config, const char *key, const char *value,
		   struct nvs_error *error)
{
	HOLD_CANCEL;
	const struct config_key *setting = find_setting(config, key, error);
	struct json_value bare = {.type = JSON_STRING, .string = value};
	struct nvs_error why = {.size = sizeof(why)};
	struct json_document *document;
	char shown[SHOWN_BYTES + 8];
	int result;

	if (!setting)
		return -EINVAL;
	if (!value)
		return error_about(error, -EINVAL, key, 0, 0, "the value of %.200s is NULL", key);
	if (setting->type == KEY_PATHS && (!*value || !strcmp(value, "null"))) {
		paths_free(config_key_at(config, setting));
		return 0;
	}
	if (setting->type == KEY_PATHS && !is_json(setting, value)) {
		/* A path can contain bytes that JSON cannot. */
		struct offload_config *offload = config_key_at(config, setting);
		enum nvs_device device = offload->device;

		result = config_set_paths(offload, &value, 1, error);
		offload->device = device;
		return result;
	}
	if (!text_is_utf8(value))
		return error_about(error, -EINVAL, key, 0, 0, "the value of %.200s is not UTF-8",
				   key);
	if (is_json(setting, value)) {
		result = json_parse_relaxed(&document, value, strlen(value), setting->name,
					    CONFIG_MEMORY_MAX, &why);
		if (!result) {
			result = set_value(config, setting, key, json_root(document), error);
			json_free(document);
			return result;
		}
		if (result != -EINVAL || *value == '"' || *value == '[') {
			error_copy(error, &why);
			return result;
		}
	}
	/* A word that is not JSON is refused like a string, with the values that the key allows. */
	bare.length = strlen(value);
	bare.raw = shown;
	bare.raw_length = min_u64(bare.length + 2, sizeof(shown) - 1);
	snprintf(shown, sizeof(shown), "\"%s\"", value);
	return set_value(config, setting, key, &bare, error);
}

int nvs_config_set_number(struct nvs_config *config, const char *key, uint64_t number,
			  struct nvs_error *error)
{
	HOLD_CANCEL;
	const struct config_key *setting = find_setting(config, key, error);
	struct json_value value = {.type = JSON_NUMBER};
	char digits[32];

	if (!setting)
		return -EINVAL;
	if (!is_whole(setting) && setting->type != KEY_BOOL && setting->type != KEY_VERIFY &&
	    setting->type != KEY_REAL && !is_numbered_choice(setting))
		return error_about(error, -EINVAL, key, 0, 0,
				   "%.200s is not one number; set it with nvs_config_set", key);
	value.raw = digits;
	value.raw_length = (size_t)snprintf(digits, sizeof(digits), "%" PRIu64, number);
	if (is_numbered_choice(setting) && config_choice_name(setting->choices, number)) {
		value.type = JSON_STRING;
		value.string = config_choice_name(setting->choices, number);
		value.length = strlen(value.string);
	}
	return set_value(config, setting, key, &value, error);
}

/* ---- Reading ---- */

static bool names_variable(const struct nvs_config *config, const struct config_key *key)
{
	return key->place == offsetof(struct nvs_config, rank) && *config->rank_variable;
}

static void put_value(FILE *file, const struct nvs_config *config, const struct config_key *key)
{
	const void *place = config_key_at(config, key);
	const struct offload_config *offload = place;
	struct json_writer json = json_to(file, 0);

	switch (key->type) {
	case KEY_BOOL:
		fputs(*(const bool *)place ? "true" : "false", file);
		break;
	case KEY_VERIFY:
		fputs(config_verifies(config) ? "true" : "false", file);
		break;
	case KEY_U32:
	case KEY_U64:
		if (names_variable(config, key))
			fputs(config->rank_variable, file);
		else
			fprintf(file, "%" PRIu64, config_key_whole(key, config));
		break;
	case KEY_REAL:
		json_exact(&json, NULL, *(const double *)place);
		break;
	case KEY_BETAS:
		json_open_list(&json, NULL);
		json_exact(&json, NULL, ((const double *)place)[0]);
		json_exact(&json, NULL, ((const double *)place)[1]);
		json_close_list(&json);
		break;
	case KEY_CHOICE:
		fputs(config_choice_name(key->choices, config_key_whole(key, config)), file);
		break;
	case KEY_NAME:
		fputs(place, file);
		break;
	case KEY_PATHS: /* one path is bare, unless nvs_config_set would read it as JSON */
		if (offload->npaths == 1 && !is_json(key, offload->nvme_path[0]))
			fputs(offload->nvme_path[0], file);
		else if (offload->npaths)
			json_texts(&json, NULL, (const char *const *)offload->nvme_path,
				   offload->npaths);
		break;
	case KEY_BLOCK:
	case KEY_UNUSED:
		break;
	}
}

int nvs_config_get(const struct nvs_config *config, const char *key, char *text, size_t nbytes,
		   struct nvs_error *error)
{
	const struct config_key *setting = find_setting(config, key, error);
	char *full = NULL;
	size_t length = 0;
	FILE *file;
	int result = 0;

	if (!setting)
		return -EINVAL;
	if (!text)
		return error_set(error, -EINVAL, "text is NULL");
	file = open_memstream(&full, &length);
	if (file)
		put_value(file, config, setting);
	if (!file || fclose(file)) {
		free(full);
		return error_about(error, -ENOMEM, key, 0, 0, "out of memory for %.200s", key);
	}
	if (length < nbytes)
		memcpy(text, full, length + 1);
	else
		result = error_about(error, -ERANGE, key, 0, 0,
				     "the value of %.200s has %zu bytes and a NUL; there is room "
				     "for %zu",
				     key, length, nbytes);
	free(full);
	return result;
}

int nvs_config_get_number(const struct nvs_config *config, const char *key, uint64_t *number,
			  struct nvs_error *error)
{
	const struct config_key *setting = find_setting(config, key, error);

	if (!setting)
		return -EINVAL;
	if (!number)
		return error_set(error, -EINVAL, "number is NULL");
	if (names_variable(config, setting))
		return error_about(error, -EINVAL, key, 0, 0,
				   "%.200s is the environment variable %s: call "
				   "nvs_config_read_rank first",
				   key, config->rank_variable);
	if (setting->type == KEY_VERIFY)
		*number = config_verifies(config);
	else if (setting->type == KEY_BOOL || is_whole(setting) || is_numbered_choice(setting))
		*number = config_key_whole(setting, config);
	else
		return error_about(error, -EINVAL, key, 0, 0,
				   "%.200s is not a whole number, true or false; read it with "
				   "nvs_config_get",
				   key);
	return 0;
}

int nvs_config_get_real(const struct nvs_config *config, const char *key, double *number,
			struct nvs_error *error)
{
	size_t length = key ? strlen(key) : 0;
	/* One of the two in a list: "optimizer.params.betas.1". */
	bool indexed = length > 2 && key[length - 2] == '.' && (key[length - 1] & ~1) == '0';
	char list[64] = "";
	const struct config_key *setting;
	uint64_t whole = 0;
	int result;

	if (indexed)
		snprintf(list, sizeof(list), "%.*s", (int)length - 2, key);
	setting = find_setting(config, indexed ? list : key, error);
	if (!setting)
		return -EINVAL;
	if (!number)
		return error_set(error, -EINVAL, "number is NULL");
	if (setting->type == (indexed ? KEY_BETAS : KEY_REAL)) {
		const double *reals = config_key_at(config, setting);

		*number = reals[indexed ? key[length - 1] - '0' : 0];
		return 0;
	}
	if (indexed || !is_whole(setting))
		return error_about(error, -EINVAL, key, 0, 0,
				   "%.200s is not one number; read it with nvs_config_get", key);
	result = nvs_config_get_number(config, key, &whole, error);
	if (!result)
		*number = (double)whole;
	return result;
}

/* ---- The environment ---- */

int nvs_config_read_rank(struct nvs_config *config, struct nvs_error *error)
{
	HOLD_CANCEL;
	const char *value;
	char *end;

	unsigned long long rank;

	if (!config)
		return error_set(error, -EINVAL, "config is NULL");
	if (!*config->rank_variable)
		return 0;
	value = getenv(config->rank_variable);
	if (!value)
		return error_about(error, -EINVAL, "nvswap.rank", 0, 0,
				   "nvswap.rank is the environment variable %s, which is not set: "
				   "launchers such as torchrun set it for each process",
				   config->rank_variable);
	errno = 0;
	rank = strtoull(value, &end, 10);
	if (!isdigit((unsigned char)*value) || *end || errno || rank > UINT32_MAX)
		return error_about(
			error, -EINVAL, "nvswap.rank", 0, 0,
			"the environment variable %s is \"%.64s\"; nvswap.rank must be a "
			"whole number from 0 to %u",
			config->rank_variable, value, UINT32_MAX);
	config->rank = (uint32_t)rank;
	config->rank_variable[0] = '\0';
	return 0;
}

/* ---- Comparing with an open aio ---- */

static const char *const aio_keys[] = {
	"aio.block_size",     "aio.queue_depth", "aio.thread_count", "aio.single_submit",
	"aio.overlap_events", "aio.use_gds",	 "nvswap.ioengine",  "nvswap.io_timeout_ms"};

int config_same_aio(const struct nvs_config *config, const struct aio_config *opened,
		    struct nvs_error *error)
{
	struct nvs_config other = *config;
	char wanted[64], present[64];

	other.aio = *opened;
	for (size_t i = 0; i < COUNT_OF(aio_keys); i++) {
		int rc = nvs_config_get(config, aio_keys[i], wanted, sizeof(wanted), error);

		if (!rc)
			rc = nvs_config_get(&other, aio_keys[i], present, sizeof(present), error);
		if (rc)
			return rc;
		if (strcmp(wanted, present))
			return error_about(error, -EINVAL, aio_keys[i], 0, 0,
					   "%s is %s, but the aio to share was opened with %s: "
					   "open both with one configuration",
					   aio_keys[i], wanted, present);
	}
	return 0;
}
