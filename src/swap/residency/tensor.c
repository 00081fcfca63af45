/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a tensor.
 */
#include "swap/residency/internal.h"

bool in_flight(const struct nvs_tensor *tensor)
{
	return tensor->state == NVS_READING || tensor->state == NVS_WRITING;
}

bool is_part(const struct nvs_tensor *tensor)
{
	return tensor->external && tensor->part_nbytes != tensor->nbytes;
}

bool needs_memory(const struct nvs_tensor *tensor)
{
	return tensor->state == NVS_EMPTY || tensor->state == NVS_ON_DRIVE;
}
