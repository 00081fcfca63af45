/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structures of callers that begin with `size_t size`. A caller may have been compiled with a
 * smaller or larger structure than the library: copy them in before reading and out after filling
 * in, and never touch the caller's otherwise.
 */
#ifndef BASE_STRUCT_SIZE_H
#define BASE_STRUCT_SIZE_H

#include <stdbool.h>
#include <stddef.h>

struct nvs_error;

#define STRUCT_SIZE_MAX ((size_t)1 << 16) /* bytes of a structure of any version */

/*
 * Whether the structure is not NULL and its size can be that of a version: larger than a size_t, up
 * to STRUCT_SIZE_MAX, and a multiple of a size_t, to which the structures are aligned. Other sizes
 * are not set, and may end within a pointer.
 */
bool struct_sized(const void *structure);

/*
 * Copies the structure `from` of the caller into `into`, which has `size` bytes and is larger than
 * a size_t. Fields that the caller does not know become 0, the default. Fields that only the caller
 * knows must be 0.
 * Errors:
 * -EINVAL  not struct_sized()
 * -E2BIG   a field that this library does not know is not 0
 */
int struct_in(void *into, size_t size, const void *from);

/*
 * The same for element i of an array, whose elements must all have the size of the first. -EINVAL:
 * this one differs.
 */
int struct_in_at(void *into, size_t size, const void *array, size_t i);

/*
 * Sets the error of one of these functions and returns `rc`, its code. The caller's structure is
 * named by `type` (such as "nvs_step_options") and a format ("the options").
 */
int struct_refused(struct nvs_error *error, int rc, const char *type, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/*
 * Copies the fields of `from`, which has `size` bytes, that fit into the caller's `into`. Its size,
 * and fields that only the caller knows, stay unchanged. Returns -EINVAL if `into` is not
 * struct_sized().
 */
int struct_out(void *into, const void *from, size_t size);

#endif
