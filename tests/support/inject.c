/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See inject.h. Each function of WRAPPED in the Makefile has a wrapper here. Without inject_fail(),
 * a wrapper costs one load and one comparison.
 */
#include "support/inject.h"
#include "support/turns.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <hwloc.h>
#include <libaio.h>
#include <liburing.h>
#include <locale.h>
#include <malloc.h>
#include <pthread.h>
#include <search.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

static atomic_uint armed; /* kinds that are counted; set after the other variables */
static uint64_t first, times_max;
static int error_given;
static atomic_uint_fast64_t calls, failures;
enum { NONE, BEING_NAMED, NAMED };
static atomic_int failure;
static char failed_call[256]; /* complete once `failure` is NAMED */
static _Thread_local unsigned paused;
static atomic_int_fast64_t blocks, block_bytes, peak_bytes, mapped_bytes;
static _Atomic(const struct inject_observer *) observed_by;

void inject_fail(unsigned kinds, uint64_t nth, uint64_t times, int error)
{
	atomic_store(&armed, 0);
	first = nth;
	times_max = nth ? times : 0;
	error_given = error;
	atomic_store(&calls, 0);
	atomic_store(&failures, 0);
	atomic_store(&failure, NONE);
	atomic_store(&armed, kinds);
}

uint64_t inject_stop(uint64_t *failed)
{
	atomic_store(&armed, 0);
	if (failed)
		*failed = atomic_load(&failures);
	return atomic_load(&calls);
}

const char *inject_failed_call(void)
{
	return atomic_load(&failure) == NAMED ? failed_call : "";
}

void inject_pause(void)
{
	paused++;
}

void inject_resume(void)
{
	paused--;
}

void inject_observe(const struct inject_observer *observer)
{
	atomic_store(&observed_by, observer);
}

static const struct inject_observer *observer(void)
{
	return paused ? NULL : atomic_load(&observed_by);
}

/* Returns the errno to inject into this call, or 0. */
static int injected_at(unsigned kind, const char *name, const char *path)
{
	uint64_t number;
	int none = NONE;

	if (!(atomic_load_explicit(&armed, memory_order_acquire) & kind) || paused)
		return 0;
	number = atomic_fetch_add(&calls, 1) + 1;
	if (number < first || number - first >= times_max)
		return 0;
	atomic_fetch_add(&failures, 1);
	if (atomic_compare_exchange_strong(&failure, &none, BEING_NAMED)) {
		snprintf(failed_call, sizeof(failed_call), "%s%s%s", name, path ? " " : "",
			 path ? path : "");
		atomic_store(&failure, NAMED);
	}
	return error_given;
}

static int injected(unsigned kind, const char *name)
{
	return injected_at(kind, name, NULL);
}

struct inject_held inject_held(void)
{
	struct inject_held held = {.blocks = atomic_load(&blocks),
				   .mapped_bytes = atomic_load(&mapped_bytes)};
	DIR *directory = opendir("/proc/self/fd");

	while (directory && readdir(directory))
		held.files++;
	if (directory)
		closedir(directory);
	return held;
}

static int minus_one(int error)
{
	errno = error;
	return -1;
}

static void *null(int error)
{
	errno = error;
	return NULL;
}

/* Defines the wrapper that the linker calls instead of the function; `shown` names its failures. */
#define WRAP_AS(kind, shown, path, type, name, parameters, arguments, failure)                     \
	type __real_##name parameters;                                                             \
	type __wrap_##name parameters;                                                             \
	type __wrap_##name parameters                                                              \
	{                                                                                          \
		int error = injected_at(kind, shown, path);                                        \
                                                                                                   \
		return error ? (failure) : __real_##name arguments;                                \
	}
#define WRAP_AT(kind, path, type, name, parameters, arguments, failure)                            \
	WRAP_AS(kind, #name, path, type, name, parameters, arguments, failure)
#define WRAP(kind, type, name, parameters, arguments, failure)                                     \
	WRAP_AT(kind, NULL, type, name, parameters, arguments, failure)

/* ---- Memory ---- */

/* Counts bytes of a block that was allocated, or, with a negative sign, is about to be freed. */
static void count_bytes(int64_t nbytes)
{
	int_fast64_t now = atomic_fetch_add(&block_bytes, nbytes) + nbytes;
	int_fast64_t peak = atomic_load(&peak_bytes);

	while (now > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, now))
		;
}

static void *block(void *data)
{
	if (data) {
		atomic_fetch_add(&blocks, 1);
		count_bytes((int64_t)malloc_usable_size(data));
	}
	return data;
}

int64_t inject_peak(void)
{
	static int_fast64_t before;
	int_fast64_t now = atomic_load(&block_bytes);
	int_fast64_t most = atomic_exchange(&peak_bytes, now) - before;

	before = now;
	return most;
}

/* A function that returns a block for free(). */
#define BLOCK(type, name, parameters, arguments)                                                   \
	type __real_##name parameters;                                                             \
	type __wrap_##name parameters;                                                             \
	type __wrap_##name parameters                                                              \
	{                                                                                          \
		int error = injected(INJECT_MEMORY, #name);                                        \
                                                                                                   \
		return error ? null(error) : block(__real_##name arguments);                       \
	}
#define MEMORY(type, name, parameters, arguments, failure)                                         \
	WRAP(INJECT_MEMORY, type, name, parameters, arguments, failure)

BLOCK(void *, malloc, (size_t nbytes), (nbytes))
BLOCK(void *, calloc, (size_t n, size_t nbytes), (n, nbytes))
BLOCK(char *, strdup, (const char *text), (text))
BLOCK(void *, aligned_alloc, (size_t alignment, size_t nbytes), (alignment, nbytes))
BLOCK(char *, strndup, (const char *text, size_t nbytes), (text, nbytes))
MEMORY(void *, tsearch, (const void *key, void **root, comparison_fn_t compare),
       (key, root, compare), null(error))
MEMORY(locale_t, newlocale, (int mask, const char *name, locale_t base), (mask, name, base),
       null(error))
MEMORY(int, glob,
       (const char *pattern, int flags, int (*on_error)(const char *, int), glob_t *found),
       (pattern, flags, on_error, found), GLOB_NOSPACE)
MEMORY(XXH3_state_t *, XXH3_createState, (void), (), null(error))
MEMORY(int, hwloc_topology_init, (hwloc_topology_t * topology), (topology), minus_one(error))
MEMORY(int, hwloc_topology_load, (hwloc_topology_t topology), (topology), minus_one(error))
MEMORY(hwloc_bitmap_t, hwloc_bitmap_alloc, (void), (), null(error))

void *__real_realloc(void *data, size_t nbytes);
void *__wrap_realloc(void *data, size_t nbytes);
void *__wrap_realloc(void *data, size_t nbytes)
{
	int error = injected(INJECT_MEMORY, "realloc");

	if (error)
		return null(error);
	if (!data)
		return block(__real_realloc(NULL, nbytes));

	size_t before = malloc_usable_size(data);
	void *moved = __real_realloc(data, nbytes);

	/* It may have had both. */
	if (moved) {
		count_bytes((int64_t)malloc_usable_size(moved));
		count_bytes(-(int64_t)before);
	}
	return moved;
}

void *__wrap_reallocarray(void *data, size_t n, size_t nbytes);
void *__wrap_reallocarray(void *data, size_t n, size_t nbytes)
{
	size_t product;

	return __builtin_mul_overflow(n, nbytes, &product) ? null(ENOMEM)
							   : __wrap_realloc(data, product);
}

void __real_free(void *data);
void __wrap_free(void *data);
void __wrap_free(void *data)
{
	if (data) {
		atomic_fetch_sub(&blocks, 1);
		count_bytes(-(int64_t)malloc_usable_size(data));
	}
	__real_free(data);
}

int __real_vasprintf(char **text, const char *format, va_list args)
	__attribute__((format(printf, 2, 0)));
int __wrap_vasprintf(char **text, const char *format, va_list args)
	__attribute__((format(printf, 2, 0)));
int __wrap_vasprintf(char **text, const char *format, va_list args)
{
	int error = injected(INJECT_MEMORY, "vasprintf"), n;

	if (error)
		return minus_one(error);
	n = __real_vasprintf(text, format, args);
	if (n >= 0)
		block(*text);
	return n;
}

/* Of variable arguments, which begin behind `format`. */
#define ASPRINTF(name, at, ...)                                                                    \
	int __wrap_##name(__VA_ARGS__, ...) __attribute__((format(printf, at, (at) + 1)));         \
	int __wrap_##name(__VA_ARGS__, ...)                                                        \
	{                                                                                          \
		va_list args;                                                                      \
		int n;                                                                             \
                                                                                                   \
		va_start(args, format);                                                            \
		n = __wrap_vasprintf(text, format, args);                                          \
		va_end(args);                                                                      \
		return n;                                                                          \
	}

ASPRINTF(asprintf, 2, char **text, const char *format)
/* With FORTIFY, libc's headers call these instead. */
ASPRINTF(__asprintf_chk, 3, char **text, __attribute__((unused)) int flag, const char *format)

int __wrap___vasprintf_chk(char **text, int flag, const char *format, va_list args)
	__attribute__((format(printf, 3, 0)));
int __wrap___vasprintf_chk(char **text, int flag, const char *format, va_list args)
{
	(void)flag;
	return __wrap_vasprintf(text, format, args);
}

/* With optimization, libc's headers call this function instead of getline. */
ssize_t __real___getdelim(char **line, size_t *room, int end, FILE *file);
ssize_t __wrap___getdelim(char **line, size_t *room, int end, FILE *file);
ssize_t __wrap___getdelim(char **line, size_t *room, int end, FILE *file)
{
	int error = injected(INJECT_MEMORY, "getline");
	bool had = *line;
	ssize_t n;

	if (error)
		return minus_one(error);
	n = __real___getdelim(line, room, end, file);
	if (!had)
		block(*line);
	return n;
}

ssize_t __wrap_getline(char **line, size_t *room, FILE *file);
ssize_t __wrap_getline(char **line, size_t *room, FILE *file)
{
	return __wrap___getdelim(line, room, '\n', file);
}

void *__real_mmap(void *at, size_t nbytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t nbytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t nbytes, int protection, int flags, int fd, off_t offset)
{
	int error = injected(INJECT_MMAP, "mmap");
	void *data = MAP_FAILED;

	if (error)
		errno = error;
	else
		data = __real_mmap(at, nbytes, protection, flags, fd, offset);
	if (data != MAP_FAILED)
		atomic_fetch_add(&mapped_bytes, (int64_t)nbytes);
	return data;
}

int __real_munmap(void *data, size_t nbytes);
int __wrap_munmap(void *data, size_t nbytes);
int __wrap_munmap(void *data, size_t nbytes)
{
	atomic_fetch_sub(&mapped_bytes, (int64_t)nbytes);
	return __real_munmap(data, nbytes);
}

WRAP(INJECT_MMAP, int, memfd_create, (const char *name, unsigned flags), (name, flags),
     minus_one(error))
WRAP(INJECT_MMAP, int, madvise, (void *data, size_t nbytes, int advice), (data, nbytes, advice),
     minus_one(error))
WRAP(INJECT_MMAP, int, mlock, (const void *data, size_t nbytes), (data, nbytes), minus_one(error))

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
			  void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
			  void *arg)
{
	int error = injected(INJECT_THREAD, "pthread_create");

	return error ? error : turns_create(thread, attr, run, arg);
}

/* ---- Opening files ---- */

#define FIND(name, parameters, arguments)                                                          \
	WRAP(INJECT_OPEN, int, name, parameters, arguments, minus_one(error))

static bool has_mode(int flags)
{
	return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE;
}

/* Makes the call between the observer's two functions; keeps errno. */
#define OBSERVED(name, call)                                                                       \
	({                                                                                         \
		const struct inject_observer *hooks = observer();                                  \
		int result, code;                                                                  \
                                                                                                   \
		if (hooks && hooks->before_name)                                                   \
			hooks->before_name(hooks->arg, name);                                      \
		result = (call);                                                                   \
		code = errno;                                                                      \
		if (hooks && hooks->after_name)                                                    \
			hooks->after_name(hooks->arg, name, result >= 0);                          \
		errno = code;                                                                      \
		result;                                                                            \
	})

/* Tells the observer, then makes the call. */
#define OPENED(path, call)                                                                         \
	({                                                                                         \
		const struct inject_observer *hooks = observer();                                  \
                                                                                                   \
		if (hooks && hooks->before_open)                                                   \
			hooks->before_open(hooks->arg, path);                                      \
		(call);                                                                            \
	})

/* Defines the wrapper of open or openat. */
#define OPENING(function, directory, parameters, ...)                                              \
	int __real_##function parameters;                                                          \
	int __wrap_##function parameters;                                                          \
	int __wrap_##function parameters                                                           \
	{                                                                                          \
		int error = injected_at(flags & O_CREAT ? INJECT_OPEN | INJECT_NAME : INJECT_OPEN, \
					#function, path);                                          \
		struct inject_name name = {                                                        \
			.change = INJECT_MAKES, .from = (directory), .path = path};                \
		mode_t mode = 0;                                                                   \
                                                                                                   \
		if (has_mode(flags)) {                                                             \
			va_list args;                                                              \
                                                                                                   \
			va_start(args, flags);                                                     \
			mode = va_arg(args, mode_t);                                               \
			va_end(args);                                                              \
		}                                                                                  \
		if (error)                                                                         \
			return minus_one(error);                                                   \
		return flags & O_CREAT ? OBSERVED(&name, __real_##function(__VA_ARGS__, mode))     \
				       : OPENED(path, __real_##function(__VA_ARGS__, mode));       \
	}

OPENING(open, AT_FDCWD, (const char *path, int flags, ...), path, flags)
OPENING(openat, from, (int from, const char *path, int flags, ...), from, path, flags)

/* FORTIFY's forms of the calls without a mode. */
int __wrap___open_2(const char *path, int flags);
int __wrap___open_2(const char *path, int flags)
{
	return __wrap_open(path, flags);
}

int __wrap___openat_2(int from, const char *path, int flags);
int __wrap___openat_2(int from, const char *path, int flags)
{
	return __wrap_openat(from, path, flags);
}

#define FIND_AT(name, parameters, arguments)                                                       \
	WRAP_AT(INJECT_OPEN, path, int, name, parameters, arguments, minus_one(error))

WRAP_AT(INJECT_OPEN, path, FILE *, fopen, (const char *path, const char *mode), (path, mode),
	null(error))
WRAP(INJECT_OPEN, FILE *, fdopen, (int fd, const char *mode), (fd, mode), null(error))
WRAP_AT(INJECT_OPEN, path, char *, realpath, (const char *path, char *real), (path, real),
	null(error))
WRAP_AS(INJECT_OPEN, "realpath", path, char *, __realpath_chk,
	(const char *path, char *real, size_t room), (path, real, room), null(error))
WRAP(INJECT_OPEN, ssize_t, getrandom, (void *data, size_t nbytes, unsigned flags),
     (data, nbytes, flags), minus_one(error))

/* Defines the wrapper of a function that changes names; the last arguments are its inject_name. */
#define CHANGE(function, parameters, arguments, ...)                                               \
	int __real_##function parameters;                                                          \
	int __wrap_##function parameters;                                                          \
	int __wrap_##function parameters                                                           \
	{                                                                                          \
		int error = injected_at(INJECT_OPEN | INJECT_NAME, #function, path);               \
		struct inject_name name = {__VA_ARGS__};                                           \
                                                                                                   \
		return error ? minus_one(error) : OBSERVED(&name, __real_##function arguments);    \
	}

CHANGE(mkdir, (const char *path, mode_t mode), (path, mode), .change = INJECT_MAKES,
       .from = AT_FDCWD, .path = path)
CHANGE(mkdirat, (int from, const char *path, mode_t mode), (from, path, mode),
       .change = INJECT_MAKES, .from = from, .path = path)
CHANGE(rename, (const char *path, const char *to), (path, to), .change = INJECT_RENAMES,
       .from = AT_FDCWD, .path = path, .to = to)
CHANGE(renameat, (int from, const char *path, int into, const char *to), (from, path, into, to),
       .change = INJECT_RENAMES, .from = from, .path = path, .to = to)
CHANGE(renameat2, (int from, const char *path, int into, const char *to, unsigned flags),
       (from, path, into, to, flags), .change = INJECT_RENAMES, .from = from, .path = path,
       .to = to)
CHANGE(unlinkat, (int from, const char *path, int flags), (from, path, flags),
       .change = INJECT_REMOVES, .from = from, .path = path)
WRAP_AT(INJECT_OPEN | INJECT_NAME, path, int, mkostemp, (char *path, int flags), (path, flags),
	minus_one(error))
FIND_AT(stat, (const char *path, struct stat *st), (path, st))
FIND_AT(lstat, (const char *path, struct stat *st), (path, st))
FIND_AT(fstatat, (int from, const char *path, struct stat *st, int flags), (from, path, st, flags))
FIND(flock, (int fd, int operation), (fd, operation))
FIND(fchmod, (int fd, mode_t mode), (fd, mode))
FIND(fstat, (int fd, struct stat *st), (fd, st))
FIND(statx, (int from, const char *path, int flags, unsigned mask, struct statx *st),
     (from, path, flags, mask, st))
FIND(fstatfs, (int fd, struct statfs *fs), (fd, fs))
FIND(fstatvfs, (int fd, struct statvfs *fs), (fd, fs))

/* ---- Bytes and space ---- */

WRAP(INJECT_READ, ssize_t, read, (int fd, void *data, size_t nbytes), (fd, data, nbytes),
     minus_one(error))
WRAP(INJECT_READ, ssize_t, pread, (int fd, void *data, size_t nbytes, off_t offset),
     (fd, data, nbytes, offset), minus_one(error))
WRAP_AS(INJECT_READ, "read", NULL, ssize_t, __read_chk,
	(int fd, void *data, size_t nbytes, size_t room), (fd, data, nbytes, room),
	minus_one(error))
WRAP_AS(INJECT_READ, "pread", NULL, ssize_t, __pread_chk,
	(int fd, void *data, size_t nbytes, off_t offset, size_t room),
	(fd, data, nbytes, offset, room), minus_one(error))
WRAP(INJECT_WRITE, int, fflush, (FILE * file), (file), minus_one(error))
/* The descriptor is closed even if the wrapper reports an error. */
WRAP(__fwritable(file) ? INJECT_WRITE : 0, int, fclose, (FILE * file), (file),
     (__real_fclose(file), minus_one(error)))
WRAP(INJECT_SPACE, int, posix_fallocate, (int fd, off_t offset, off_t nbytes), (fd, offset, nbytes),
     error)
WRAP(INJECT_SPACE, int, fallocate, (int fd, int mode, off_t offset, off_t nbytes),
     (fd, mode, offset, nbytes), minus_one(error))
WRAP(INJECT_SPACE, int, ftruncate, (int fd, off_t nbytes), (fd, nbytes), minus_one(error))

ssize_t __real_pwrite(int fd, const void *data, size_t nbytes, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *data, size_t nbytes, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *data, size_t nbytes, off_t offset)
{
	const struct inject_observer *hooks = observer();
	int error = injected(INJECT_WRITE, "pwrite");

	if (error)
		return minus_one(error);
	if (hooks && hooks->before_write)
		hooks->before_write(hooks->arg, fd, data, nbytes, (uint64_t)offset);
	return __real_pwrite(fd, data, nbytes, offset);
}

/* The observer learns of a sync that succeeded. */
#define SYNC(name)                                                                                 \
	int __real_##name(int fd);                                                                 \
	int __wrap_##name(int fd);                                                                 \
	int __wrap_##name(int fd)                                                                  \
	{                                                                                          \
		const struct inject_observer *hooks = observer();                                  \
		int error = injected(INJECT_SYNC, #name);                                          \
		int rc = error ? minus_one(error) : __real_##name(fd);                             \
                                                                                                   \
		if (!rc && hooks && hooks->synced)                                                 \
			hooks->synced(hooks->arg, fd);                                             \
		return rc;                                                                         \
	}

SYNC(fdatasync)
SYNC(fsync)

/* ---- The queues of I/O engines ---- */

#define QUEUE(name, parameters, arguments, failure)                                                \
	WRAP(INJECT_QUEUE, int, name, parameters, arguments, failure)

QUEUE(eventfd, (unsigned count, int flags), (count, flags), minus_one(error))
QUEUE(io_setup, (int n, io_context_t *context), (n, context), -error)
QUEUE(io_uring_queue_init, (unsigned n, struct io_uring *ring, unsigned flags), (n, ring, flags),
      -error)
QUEUE(io_uring_register_files, (struct io_uring * ring, const int *files, unsigned n),
      (ring, files, n), -error)
QUEUE(io_uring_register_files_update,
      (struct io_uring * ring, unsigned slot, const int *files, unsigned n), (ring, slot, files, n),
      -error)
QUEUE(io_uring_register_buffers_sparse, (struct io_uring * ring, unsigned n), (ring, n), -error)
QUEUE(io_uring_register_buffers_update_tag,
      (struct io_uring * ring, unsigned slot, const struct iovec *memory, const __u64 *tags,
       unsigned n),
      (ring, slot, memory, tags, n), -error)
