/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of I/O engines and devices as in the file, of element types as in safetensors files with
 * their sizes, and the blocks that there are.
 */
#include <errno.h>
#include <string.h>

#include "base/numbers.h"
#include "config/reader.h"

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

const struct config_choices config_ioengines = {ioengines, NVS_IOENGINE_COUNT, true};
const struct config_choices config_devices = {devices, COUNT_OF(devices), true};

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
	return (unsigned)device < COUNT_OF(devices) ? devices[device] : "unknown";
}

static const struct {
	const char *name;
	unsigned bits;
} dtypes[NVS_DTYPE_COUNT] = {
	[NVS_F64] = {"F64", 64},
	[NVS_F32] = {"F32", 32},
	[NVS_F16] = {"F16", 16},
	[NVS_BF16] = {"BF16", 16},
	[NVS_F8_E4M3] = {"F8_E4M3", 8},
	[NVS_F8_E5M2] = {"F8_E5M2", 8},
	[NVS_I64] = {"I64", 64},
	[NVS_I32] = {"I32", 32},
	[NVS_I16] = {"I16", 16},
	[NVS_I8] = {"I8", 8},
	[NVS_U64] = {"U64", 64},
	[NVS_U32] = {"U32", 32},
	[NVS_U16] = {"U16", 16},
	[NVS_U8] = {"U8", 8},
	[NVS_BOOL] = {"BOOL", 8},
	[NVS_C64] = {"C64", 64},
	[NVS_F8_E8M0] = {"F8_E8M0", 8},
	[NVS_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
	[NVS_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
	[NVS_F6_E2M3] = {"F6_E2M3", 6},
	[NVS_F6_E3M2] = {"F6_E3M2", 6},
	[NVS_F4] = {"F4", 4},
};

size_t nvs_dtype_size(enum nvs_dtype dtype)
{
	return nvs_dtype_bits(dtype) / 8;
}

unsigned nvs_dtype_bits(enum nvs_dtype dtype)
{
	return (unsigned)dtype < NVS_DTYPE_COUNT ? dtypes[dtype].bits : 0;
}

const char *nvs_dtype_name(enum nvs_dtype dtype)
{
	return (unsigned)dtype < NVS_DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}

int nvs_dtype_parse(const char *name, enum nvs_dtype *dtype)
{
	if (!name || !dtype)
		return -EINVAL;
	for (unsigned i = 0; i < NVS_DTYPE_COUNT; i++) {
		if (!strcmp(name, dtypes[i].name)) {
			*dtype = (enum nvs_dtype)i;
			return 0;
		}
	}
	return -EINVAL;
}
