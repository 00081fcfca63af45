/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names and sizes of element types. The names are those of safetensors files.
 */
#include <errno.h>
#include <string.h>

#include "nvswap.h"

static const struct {
	const char *name;
	size_t nbytes;
} dtypes[NVS_DTYPE_COUNT] = {
	[NVS_F64] = {"F64", 8},	  [NVS_F32] = {"F32", 4},	  [NVS_F16] = {"F16", 2},
	[NVS_BF16] = {"BF16", 2}, [NVS_F8_E4M3] = {"F8_E4M3", 1}, [NVS_F8_E5M2] = {"F8_E5M2", 1},
	[NVS_I64] = {"I64", 8},	  [NVS_I32] = {"I32", 4},	  [NVS_I16] = {"I16", 2},
	[NVS_I8] = {"I8", 1},	  [NVS_U64] = {"U64", 8},	  [NVS_U32] = {"U32", 4},
	[NVS_U16] = {"U16", 2},	  [NVS_U8] = {"U8", 1},		  [NVS_BOOL] = {"BOOL", 1},
};

size_t nvs_dtype_size(enum nvs_dtype dtype)
{
	return (unsigned)dtype < NVS_DTYPE_COUNT ? dtypes[dtype].nbytes : 0;
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
