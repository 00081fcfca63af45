/* SPDX-License-Identifier: Apache-2.0 */
/* Copies structures of callers whose size differs from the library's. */
#include "base/struct_size.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

static size_t size_of(const void *structure)
{
	size_t size;

	memcpy(&size, structure, sizeof(size));
	return size;
}

bool struct_sized(const void *structure)
{
	size_t size = structure ? size_of(structure) : 0;

	return size > sizeof(size_t) && size <= STRUCT_SIZE_MAX && size % sizeof(size_t) == 0;
}

int struct_in(void *into, size_t size, const void *from)
{
	const unsigned char *bytes = from;
	size_t given;

	if (!struct_sized(from))
		return -EINVAL;
	given = size_of(from);
	for (size_t i = size; i < given; i++)
		if (bytes[i])
			return -E2BIG;
	memset(into, 0, size);
	memcpy(into, from, given < size ? given : size);
	memcpy(into, &size, sizeof(size));
	return 0;
}

int struct_in_at(void *into, size_t size, const void *array, size_t i)
{
	const unsigned char *bytes = array;
	size_t stride;

	if (!struct_sized(array))
		return -EINVAL;
	stride = size_of(array);
	bytes += i * stride;
	return size_of(bytes) == stride ? struct_in(into, size, bytes) : -EINVAL;
}

int struct_refused(struct nvs_error *error, int rc, const char *type, const char *format, ...)
{
	char what[128];
	va_list args;

	assert(rc == -EINVAL || rc == -E2BIG);
	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	if (rc == -E2BIG)
		return error_set(error, rc,
				 "%s: a field of struct %s is set that this version of the library "
				 "does not know; set it to 0, or use the version that has it",
				 what, type);
	return error_set(error, rc, "%s: NULL, or the size is not set to sizeof(struct %s)", what,
			 type);
}

int struct_out(void *into, const void *from, size_t size)
{
	size_t given;

	if (!struct_sized(into))
		return -EINVAL;
	given = size_of(into);
	memcpy((unsigned char *)into + sizeof(given), (const unsigned char *)from + sizeof(given),
	       (given < size ? given : size) - sizeof(given));
	return 0;
}
