/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of I/O engines and devices, as in the file, and the blocks that there are.
 */
#include <errno.h>
#include <string.h>

#include "base/numbers.h"

#include "config/config.h"

bool block_exists(enum nvs_block block)
{
	return block == NVS_OFFLOAD_PARAM || block == NVS_OFFLOAD_OPTIMIZER;
}

static const char *const ioengines[NVS_IOENGINE_COUNT] = {
	[NVS_IOENGINE_AUTO] = "auto",
	[NVS_IOENGINE_IO_URING] = "io_uring",
	[NVS_IOENGINE_LIBAIO] = "libaio",
	[NVS_IOENGINE_POSIX] = "posix",
};

static const char *const devices[] = {
	[NVS_DEVICE_NONE] = "none",
	[NVS_DEVICE_CPU] = "cpu",
	[NVS_DEVICE_NVME] = "nvme",
};
#define DEVICES (COUNT_OF(devices))

const char *nvs_ioengine_name(enum nvs_ioengine ioengine)
{
	return (unsigned)ioengine < NVS_IOENGINE_COUNT ? ioengines[ioengine] : "unknown";
}

int nvs_ioengine_parse(const char *name, enum nvs_ioengine *ioengine)
{
	if (!name || !ioengine)
		return -EINVAL;
	for (unsigned i = 0; i < NVS_IOENGINE_COUNT; i++) {
		if (!strcmp(name, ioengines[i])) {
			*ioengine = (enum nvs_ioengine)i;
			return 0;
		}
	}
	return -EINVAL;
}

const char *nvs_device_name(enum nvs_device device)
{
	return (unsigned)device < DEVICES ? devices[device] : "unknown";
}
