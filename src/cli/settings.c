/* SPDX-License-Identifier: Apache-2.0 */
/* A key that exists can be read as a number without memory, so none of these fails. */
#include "cli/settings.h"

#include <assert.h>
#include <stdio.h>

#define TEXT_BYTES 128

uint64_t setting_number(const struct nvs_config *config, const char *key)
{
	uint64_t number = 0;
	int rc = config ? nvs_config_get_number(config, key, &number, NULL) : 0;

	assert(!rc);
	(void)rc;
	return number;
}

double setting_real(const struct nvs_config *config, const char *key)
{
	double number = 0;
	int rc = config ? nvs_config_get_real(config, key, &number, NULL) : 0;

	assert(!rc);
	(void)rc;
	return number;
}

enum nvs_ioengine setting_ioengine(const struct nvs_config *config)
{
	return (enum nvs_ioengine)setting_number(config, "nvswap.ioengine");
}

enum nvs_dtype setting_param_dtype(const struct nvs_config *config)
{
	if (setting_number(config, "bf16.enabled"))
		return NVS_BF16;
	return setting_number(config, "fp16.enabled") ? NVS_F16 : NVS_F32;
}

/* ---- Of a block ---- */

uint64_t setting_of_block(const struct nvs_config *config, enum nvs_block block, const char *key)
{
	char text[TEXT_BYTES];

	snprintf(text, sizeof(text), "%s.%s",
		 block == NVS_OFFLOAD_PARAM ? "offload_param" : "offload_optimizer", key);
	return setting_number(config, text);
}

enum nvs_device setting_device(const struct nvs_config *config, enum nvs_block block)
{
	return (enum nvs_device)setting_of_block(config, block, "device");
}

const char *setting_buffer_size_key(enum nvs_block block)
{
	return block == NVS_OFFLOAD_PARAM ? "offload_param.buffer_size"
					  : "zero_optimization.sub_group_size";
}

unsigned setting_path_count(const struct nvs_config *config, enum nvs_block block)
{
	unsigned n = 0;

	while (nvs_config_get_path(config, block, n))
		n++;
	return n;
}
