/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Types of elements.
 *
 * The bytes of a tensor of a file:
 *
 *	enum nvs_dtype dtype;
 *
 *	if (!nvs_dtype_parse("BF16", &dtype))
 *		printf("%s: %zu bytes, %u bits\n", nvs_dtype_name(dtype),
 *		       numel * nvs_dtype_size(dtype), nvs_dtype_bits(dtype));
 */
#ifndef NVSWAP_DTYPE_H
#define NVSWAP_DTYPE_H

#include <stddef.h>

#include "nvswap/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Elements of C64 and of those behind it are moved and not computed with. Those of F6 and F4 are
 * packed, an element without a byte of its own: nvs_checkpoint_import has them as bytes, of a
 * tensor of U8.
 */
enum nvs_dtype {
	NVS_F64,
	NVS_F32,
	NVS_F16,
	NVS_BF16,
	NVS_F8_E4M3,
	NVS_F8_E5M2,
	NVS_I64,
	NVS_I32,
	NVS_I16,
	NVS_I8,
	NVS_U64,
	NVS_U32,
	NVS_U16,
	NVS_U8,
	NVS_BOOL,
	NVS_C64, /* two F32 */
	NVS_F8_E8M0,
	NVS_F8_E4M3FNUZ,
	NVS_F8_E5M2FNUZ,
	NVS_F6_E2M3,
	NVS_F6_E3M2,
	NVS_F4, /* F4_E2M1 */
	NVS_DTYPE_COUNT
};

/* Returns the bytes per element; 0 if the type is unknown, or an element is less than a byte. */
NVS_API size_t nvs_dtype_size(enum nvs_dtype dtype);
/* Returns the bits per element; 0 if the type is unknown. */
NVS_API unsigned nvs_dtype_bits(enum nvs_dtype dtype);
/* Returns the safetensors name of a type: "BF16". */
NVS_API const char *nvs_dtype_name(enum nvs_dtype dtype);
/*
 * Converts a safetensors name to a type, stored in *dtype.
 * Errors, with which *dtype is as it was:
 * -EINVAL  the name is unknown, or an argument is NULL
 */
NVS_API int nvs_dtype_parse(const char *name, enum nvs_dtype *dtype);

#ifdef __cplusplus
}
#endif

#endif
