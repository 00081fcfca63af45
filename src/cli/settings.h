/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The values of a configuration's keys as C types. The key must exist and have a value of that
 * type; then it can be read without memory, and none of these fails.
 */
#ifndef CLI_SETTINGS_H
#define CLI_SETTINGS_H

#include <assert.h>
#include <stdio.h>

#include "nvswap.h"

static inline uint64_t setting_number(const struct nvs_config *config, const char *key)
{
	uint64_t number = 0;
	int rc = nvs_config_get_number(config, key, &number, NULL);

	assert(!rc);
	(void)rc;
	return number;
}

static inline double setting_real(const struct nvs_config *config, const char *key)
{
	double number = 0;
	int rc = nvs_config_get_real(config, key, &number, NULL);

	assert(!rc);
	(void)rc;
	return number;
}

static inline enum nvs_ioengine setting_ioengine(const struct nvs_config *config)
{
	return (enum nvs_ioengine)setting_number(config, "nvswap.ioengine");
}

/* The type of parameters: bf16, fp16 or fp32. */
static inline enum nvs_dtype setting_param_dtype(const struct nvs_config *config)
{
	if (setting_number(config, "bf16.enabled"))
		return NVS_BF16;
	return setting_number(config, "fp16.enabled") ? NVS_F16 : NVS_F32;
}

static inline uint64_t setting_of_block(const struct nvs_config *config, enum nvs_block block,
					const char *key)
{
	char text[128];

	snprintf(text, sizeof(text), "%s.%s",
		 block == NVS_OFFLOAD_PARAM ? "offload_param" : "offload_optimizer", key);
	return setting_number(config, text);
}

static inline enum nvs_device setting_device(const struct nvs_config *config, enum nvs_block block)
{
	return (enum nvs_device)setting_of_block(config, block, "device");
}

/* Elements of a buffer: the optimizer's are set by sub_group_size. */
static inline const char *setting_buffer_size_key(enum nvs_block block)
{
	return block == NVS_OFFLOAD_PARAM ? "offload_param.buffer_size"
					  : "zero_optimization.sub_group_size";
}

#endif
