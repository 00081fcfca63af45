/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input is a configuration. An accepted one is within the bounds of the table of keys, and
 * reads the same again; a refused one leaves the configuration unchanged, with an error that names
 * the place.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "allocations.h"
#include "config/config.h"
#include "config/reader.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

static void on_log(void *arg, enum nvs_log_level level, const char *text)
{
	(void)arg;
	assert(level <= NVS_LOG_DEBUG && *text);
}

static void check_whole(const struct config_key *key, uint64_t value)
{
	assert(value >= key->min && value <= key->max);
	assert(!key->multiple_of || value % key->multiple_of == 0);
}

static void check_real(double value, double max)
{
	assert(isfinite(value) && value >= 0 && value <= max);
}

static void check_paths(const struct offload_config *offload)
{
	assert(offload->npaths <= NVS_PATHS_MAX);
	assert(offload->npaths || offload->device != NVS_DEVICE_NVME);
	for (unsigned i = 0; i < offload->npaths; i++)
		assert(!path_flaw((const char *const *)offload->nvme_path, i));
}

static void check_key(const struct nvs_config *config, const struct config_key *key)
{
	const void *at = (const char *)config + key->place;

	switch (key->type) {
	case KEY_BOOL:
		assert(*(const uint8_t *)at <= 1);
		break;
	case KEY_U32:
		check_whole(key, *(const uint32_t *)at);
		break;
	case KEY_U64:
		check_whole(key, *(const uint64_t *)at);
		break;
	case KEY_REAL:
		check_real(*(const double *)at, key->real_max);
		break;
	case KEY_BETAS:
		check_real(((const double *)at)[0], nextafter(1, 0));
		check_real(((const double *)at)[1], nextafter(1, 0));
		break;
	case KEY_CHOICE:
		assert(config_choice_name(key->choices, *(const unsigned *)at));
		break;
	case KEY_VERIFY:
		assert(*(const enum verify *)at <= VERIFY_OFF);
		break;
	case KEY_NAME:
		assert(memchr(at, 0, sizeof(config->adam.type)));
		break;
	case KEY_PATHS:
		check_paths(at);
		break;
	case KEY_BLOCK:
	case KEY_UNUSED:
		break;
	}
}

static void check_accepted(const struct nvs_config *config)
{
	for (unsigned i = 0; i < config_key_count; i++)
		check_key(config, &config_keys[i]);
	assert(!config->fp16.enabled || !config->bf16_enabled);
	if (config->offload[NVS_OFFLOAD_PARAM].device != NVS_DEVICE_NONE)
		assert(nvs_config_pool_bytes(config, NVS_OFFLOAD_PARAM) <= INT64_MAX);
	if (config->offload[NVS_OFFLOAD_OPTIMIZER].device != NVS_DEVICE_NONE)
		assert(nvs_config_pool_bytes(config, NVS_OFFLOAD_OPTIMIZER) <= INT64_MAX);
}

static void check_refused(const struct nvs_error *error, int rc, const uint8_t *data, size_t nbytes)
{
	unsigned lines = 1;

	for (size_t i = 0; i < nbytes; i++)
		lines += data[i] == '\n';
	assert(rc < 0 && error->code == rc);
	assert(error->line <= lines);
	assert(*error->text && memchr(error->text, 0, sizeof(error->text)));
	assert(memchr(error->subject, 0, sizeof(error->subject)));
	for (const char *c = error->text; *c; c++)
		assert((unsigned char)*c >= ' ' && *c != 0x7f);
}

static bool same_bytes(const void *a, const void *b)
{
	return !memcmp(a, b, sizeof(struct nvs_config));
}

/* Settings of both must be equal; paths are compared elsewhere. */
static void check_same(const struct nvs_config *a, const struct nvs_config *b)
{
	struct nvs_config x = *a, y = *b;

	assert(a->offload[NVS_OFFLOAD_PARAM].npaths == b->offload[NVS_OFFLOAD_PARAM].npaths &&
	       a->offload[NVS_OFFLOAD_OPTIMIZER].npaths ==
		       b->offload[NVS_OFFLOAD_OPTIMIZER].npaths);
	for (unsigned i = 0; i < a->offload[NVS_OFFLOAD_PARAM].npaths; i++)
		assert(!strcmp(a->offload[NVS_OFFLOAD_PARAM].nvme_path[i],
			       b->offload[NVS_OFFLOAD_PARAM].nvme_path[i]));
	for (unsigned i = 0; i < a->offload[NVS_OFFLOAD_OPTIMIZER].npaths; i++)
		assert(!strcmp(a->offload[NVS_OFFLOAD_OPTIMIZER].nvme_path[i],
			       b->offload[NVS_OFFLOAD_OPTIMIZER].nvme_path[i]));
	memset(x.offload[NVS_OFFLOAD_PARAM].nvme_path, 0,
	       sizeof(x.offload[NVS_OFFLOAD_PARAM].nvme_path));
	memset(y.offload[NVS_OFFLOAD_PARAM].nvme_path, 0,
	       sizeof(y.offload[NVS_OFFLOAD_PARAM].nvme_path));
	memset(x.offload[NVS_OFFLOAD_OPTIMIZER].nvme_path, 0,
	       sizeof(x.offload[NVS_OFFLOAD_OPTIMIZER].nvme_path));
	memset(y.offload[NVS_OFFLOAD_OPTIMIZER].nvme_path, 0,
	       sizeof(y.offload[NVS_OFFLOAD_OPTIMIZER].nvme_path));
	/* Compare the name only up to its end; the bytes behind it are left over. */
	assert(!strcmp(x.adam.type, y.adam.type));
	memset(x.adam.type, 0, sizeof(x.adam.type));
	memset(y.adam.type, 0, sizeof(y.adam.type));
	assert(same_bytes(&x, &y));
}

/* Also settings that are set again from their text. */
size_t allocated_most(size_t nbytes)
{
	return CONFIG_BYTES(nbytes) + (256u << 10);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	struct nvs_config config, before;
	struct nvs_error error = {.size = sizeof(error)};
	int rc;

	config_init(&config);
	config.log.fn = on_log;
	before = config;
	rc = nvs_config_parse(&config, (const char *)data, nbytes, "input", &error);
	if (rc) {
		check_refused(&error, rc, data, nbytes);
		assert(same_bytes(&config, &before));
	} else {
		struct nvs_config again;

		check_accepted(&config);
		config_init(&again);
		again.log.fn = on_log;
		assert(!nvs_config_parse(&again, (const char *)data, nbytes, "input", NULL));
		assert(!nvs_config_parse(&again, (const char *)data, nbytes, "input", NULL));
		check_same(&config, &again);
		config_free(&again);
	}
	config_free(&config);
	return 0;
}
