/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structures of callers that begin with `size_t size`. A caller may have been compiled with a
 * smaller or larger structure than the library: copy them in before reading and out after filling
 * in, and never touch the caller's otherwise.
 */
#ifndef BASE_STRUCT_SIZE_H
#define BASE_STRUCT_SIZE_H

#include <errno.h>
#include <stddef.h>
#include <string.h>

/*
 * Copies the structure `from` of the caller into `into`, which has `size` bytes and is larger than
 * a size_t. Fields that the caller does not know become 0, the default. Fields that only the caller
 * knows must be 0.
 * Errors:
 * -EINVAL  `from` is NULL, or its size is not set
 * -E2BIG   a field that this library does not know is not 0
 */
static inline int struct_in(void *into, size_t size, const void *from)
{
	const unsigned char *bytes = from;
	size_t given;

	if (!from)
		return -EINVAL;
	memcpy(&given, from, sizeof(given));
	if (given <= sizeof(size_t))
		return -EINVAL;
	for (size_t i = size; i < given; i++)
		if (bytes[i])
			return -E2BIG;
	memset(into, 0, size);
	memcpy(into, from, given < size ? given : size);
	memcpy(into, &size, sizeof(size));
	return 0;
}

/* The same for element i of an array, whose elements all have the size of the first. -EINVAL: this
 * one has another. */
static inline int struct_in_at(void *into, size_t size, const void *array, size_t i)
{
	const unsigned char *bytes = array;
	size_t stride, given;

	if (!array)
		return -EINVAL;
	memcpy(&stride, bytes, sizeof(stride));
	if (stride <= sizeof(size_t))
		return -EINVAL;
	memcpy(&given, bytes + i * stride, sizeof(given));
	return given == stride ? struct_in(into, size, bytes + i * stride) : -EINVAL;
}

/*
 * Copies the fields of `from`, which has `size` bytes, that `into`, the caller's, has room for; its
 * size stays, and so does what only the caller knows. Returns -EINVAL if `into` is NULL or its size
 * is not set.
 */
static inline int struct_out(void *into, const void *from, size_t size)
{
	size_t given;

	if (!into)
		return -EINVAL;
	memcpy(&given, into, sizeof(given));
	if (given <= sizeof(size_t))
		return -EINVAL;
	memcpy((unsigned char *)into + sizeof(given), (const unsigned char *)from + sizeof(given),
	       (given < size ? given : size) - sizeof(given));
	return 0;
}

#endif
