/* SPDX-License-Identifier: Apache-2.0 */
/* Fills in a struct nvs_error, and calls the caller's log function. Never prints. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include <errno.h>

#include "nvswap.h"

/* Copies the fields of `from` that error->size covers, except the size; `error` may be NULL. */
void error_copy(struct nvs_error *error, const struct nvs_error *from);
/*
 * Sets code, text, subject (a key, tensor or option; NULL: none), line and offset (0: none), and
 * zeroes the rest, unless `error` is NULL; returns `code`, which is < 0.
 */
int error_about(struct nvs_error *error, int code, const char *subject, unsigned line,
		uint64_t offset, const char *format, ...) __attribute__((format(printf, 6, 7)));
#define error_set(error, code, ...) error_about(error, code, NULL, 0, 0, __VA_ARGS__)
/* -ENOMEM: "out of memory while DOING". */
#define error_no_memory(error, doing) error_set(error, -ENOMEM, "out of memory while %s", doing)
/* Adds the cause, and where the text names the path (NULL: none), to an error that was just set:
 *	return error_cause(error, cause, path, error_set(error, code, "%s ...", path));
 */
int error_cause(struct nvs_error *error, enum nvs_cause cause, const char *path, int code);
/* The same with those of the error that the text repeats. */
int error_cause_of(struct nvs_error *error, const struct nvs_error *why, int code);

/*
 * The status of an I/O or a sync that the kernel completed with this errno. -ETIMEDOUT and -EAGAIN
 * become -EIO, because as a status they mean that the I/O is still in flight.
 */
static inline int ended_with(int status)
{
	return status == -EAGAIN || status == -ETIMEDOUT ? -EIO : status;
}

/* Writes a size in its largest unit, with up to two decimals: "1 MiB", "1.50 GiB", "1000 bytes". */
const char *size_text(uint64_t nbytes, char buffer[32]);

/* Plural ending of a counted noun: "" for 1, else "s". */
static inline const char *plural(uint64_t count)
{
	return count == 1 ? "" : "s";
}

/* Where the caller wants messages. */
struct nvs_log {
	nvs_log_fn *fn; /* NULL: they are discarded */
	void *arg;
};

void log_say(const struct nvs_log *log, enum nvs_log_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
