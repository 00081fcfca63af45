/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors of opening a member, and the paths that they name.
 */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "store/member/internal.h"

int member_refuse(struct nvs_error *error, const char *path, const char *why)
{
	assert(path && *path);
	assert(why && *why);
	return error_set(error, -EMEDIUMTYPE,
			 "%s %s: nvswap does not touch it; move it away, or choose another path or "
			 "rank",
			 path, why);
}

int member_cannot(struct nvs_error *error, const char *what, const char *path, int code)
{
	assert(what && path && code < 0);
	return error_set(error, code, "cannot %s %s: %s", what, path, nvs_strerror(code));
}

int member_compose(char **text, struct nvs_error *error, const char *format, ...)
{
	va_list args;
	int n;

	assert(text && format);
	free(*text);
	va_start(args, format);
	n = vasprintf(text, format, args);
	va_end(args);
	if (n >= 0)
		return 0;
	*text = NULL;
	return error_set(error, -ENOMEM, "out of memory while opening a store");
}
