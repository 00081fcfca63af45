/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Filling in a struct nvs_error, and speaking through the caller's log. Neither ever prints.
 */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include <errno.h>

#include "nvswap.h"

/* Copies `from` into as much as error->size covers; `error` may be NULL, its size stays. */
void error_copy(struct nvs_error *error, const struct nvs_error *from);
/* Sets code and text (the rest to zero) where `error` is not NULL; returns `code`, which is < 0. */
int error_set(struct nvs_error *error, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The same, with the key, tensor or option that it is about, and the line or offset (0: none). */
int error_about(struct nvs_error *error, int code, const char *subject, unsigned line,
		uint64_t offset, const char *format, ...) __attribute__((format(printf, 6, 7)));

/*
 * What has become of an I/O or a sync that the kernel has ended with this errno: as a status,
 * -ETIMEDOUT and -EAGAIN would say that it is still in flight.
 */
static inline int ended_with(int status)
{
	return status == -EAGAIN || status == -ETIMEDOUT ? -EIO : status;
}

/* Writes a size as people do, exactly where it is exact: "1 MiB", "1.5 GiB", "1000 bytes". */
const char *size_text(uint64_t nbytes, char buffer[32]);

/* The ending of a counted noun: "" for 1, else "s". */
static inline const char *plural(uint64_t count)
{
	return count == 1 ? "" : "s";
}

void log_say(const struct nvs_log *log, enum nvs_log_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
