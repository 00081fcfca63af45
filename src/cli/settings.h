/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The values of a configuration's keys as C types. The key must exist and have a value of that
 * type. Without a configuration (NULL, in a job that was not prepared) every value is 0.
 */
#ifndef CLI_SETTINGS_H
#define CLI_SETTINGS_H

#include "nvswap.h"

uint64_t setting_number(const struct nvs_config *config, const char *key);
double setting_real(const struct nvs_config *config, const char *key);
enum nvs_ioengine setting_ioengine(const struct nvs_config *config);
/* The type of parameters: bf16, fp16 or fp32. */
enum nvs_dtype setting_param_dtype(const struct nvs_config *config);

/* Of a block, whose key is for example "buffer_count". */
enum nvs_device setting_device(const struct nvs_config *config, enum nvs_block block);
uint64_t setting_of_block(const struct nvs_config *config, enum nvs_block block, const char *key);
/* Elements of a buffer: the optimizer's are set by sub_group_size. */
const char *setting_buffer_size_key(enum nvs_block block);
unsigned setting_path_count(const struct nvs_config *config, enum nvs_block block);

#endif
