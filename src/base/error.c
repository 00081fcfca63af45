/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors and log lines are formatted in memory of the stack, so they need no allocation. Texts come
 * with names from files and drives: base/text.h makes them visible.
 */
#include "base/error.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"
#include "base/text.h"

/* Writes as much as the caller's size allows; a truncated text still ends with a NUL. */
void error_copy(struct nvs_error *error, const struct nvs_error *from)
{
	size_t size = error ? error->size : 0;

	if (size < offsetof(struct nvs_error, code) + sizeof(error->code))
		return;
	if (size > sizeof(*error))
		size = sizeof(*error);
	memcpy(&error->code, &from->code, size - offsetof(struct nvs_error, code));
	if (size > offsetof(struct nvs_error, subject) && size < offsetof(struct nvs_error, cause))
		((char *)error)[size - 1] = '\0';
}

int error_about(struct nvs_error *error, int code, const char *subject, unsigned line,
		uint64_t offset, const char *format, ...)
{
	struct nvs_error full = {.code = code, .line = line, .offset = offset};
	char text[sizeof(full.text)];
	va_list args;

	assert(code < 0);
	if (!error)
		return code;
	if (subject)
		snprintf(full.subject, sizeof(full.subject), "%s", subject);
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	visible_text(text, strlen(text), full.text, sizeof(full.text));
	error_copy(error, &full);
	return code;
}

/* Older callers have no such fields. */
static void set_cause(struct nvs_error *error, enum nvs_cause cause, const char *path,
		      size_t nbytes)
{
	const char *at = NULL;

	if (!error || error->size < sizeof(*error))
		return;
	if (nbytes)
		at = memmem(error->text, strlen(error->text), path, nbytes);
	error->cause = cause;
	error->path_at = at ? (unsigned)(at - error->text) : 0;
	error->path_nbytes = at ? (unsigned)nbytes : 0;
}

int error_cause(struct nvs_error *error, enum nvs_cause cause, const char *path, int code)
{
	assert(code < 0);
	set_cause(error, cause, path, path ? strlen(path) : 0);
	return code;
}

int error_cause_of(struct nvs_error *error, const struct nvs_error *why, int code)
{
	assert(code < 0);
	set_cause(error, why->cause, &why->text[why->path_at], why->path_nbytes);
	return code;
}

const char *size_text(uint64_t nbytes, char buffer[32])
{
	static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double value = (double)nbytes;
	unsigned unit = 0;

	while (value >= 1024 && unit + 1 < COUNT_OF(units)) {
		value /= 1024;
		unit++;
	}
	if (value == (double)(uint64_t)value)
		snprintf(buffer, 32, "%llu %s", (unsigned long long)value,
			 nbytes == 1 ? "byte" : units[unit]);
	else
		snprintf(buffer, 32, "%.2f %s", value, units[unit]);
	return buffer;
}

void log_say(const struct nvs_log *log, enum nvs_log_level level, const char *format, ...)
{
	char text[1024], visible[sizeof(text)];
	va_list args;

	if (!log || !log->fn)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	log->fn(log->arg, level, visible_text(text, strlen(text), visible, sizeof(visible)));
}

const char *nvs_version(void)
{
	return NVS_VERSION;
}

const char *nvs_strerror(int code)
{
	switch (code) {
	case 0:
		return "success";
	case -EBADMSG:
		return "checksum differs: the bytes read are not those that were written";
	case -ENODATA:
		return "no data: never written, or past the end of the file";
	case -E2BIG:
		return "the tensor is larger than the pool could ever hold";
	case -ENOBUFS:
		return "the batch is larger than the pool";
	case -ESTALE:
		return "it exists with another type or length, or was replaced since";
	case -EEXIST:
		return "it exists already";
	case -EMEDIUMTYPE:
		return "the path holds something that is not this store";
	case -EUCLEAN:
		return "the store is damaged";
	case -EBUSY:
		return "in use";
	case -ETIMEDOUT:
		return "the time limit ran out";
	case -EAGAIN:
		return "the call would have to wait";
	case -EMFILE:
		return "too many open files: raise the limit (ulimit -n)";
	case -ENFILE:
		return "too many open files on this machine: raise sysctl fs.file-max";
	default:
		if (code > 0)
			return "not an error code";
		if (code == INT_MIN || !strerrordesc_np(-code))
			return "unknown error";
		return strerrordesc_np(-code);
	}
}
