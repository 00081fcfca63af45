/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the library's calls to libc and the kernel fail: the linker leads those of WRAPPED in the
 * Makefile through here (--wrap), in every test program. The I/Os of transfers are not among them:
 * an I/O engine fails those (sim_drive.h). Nothing is failed and little is done until asked for.
 */
#ifndef TESTS_INJECT_H
#define TESTS_INJECT_H

#include <stddef.h>
#include <stdint.h>

/* Kinds of calls, to be joined by "|". */
enum inject_kind {
	INJECT_MEMORY = 1, /* malloc, calloc, realloc, strdup, tsearch and what else takes memory */
	INJECT_MMAP = 2,   /* mmap, memfd_create, madvise, mlock */
	INJECT_THREAD = 4, /* pthread_create */
	INJECT_OPEN = 8,   /* open, openat, mkdirat, flock, fstat and what else finds a file */
	INJECT_READ = 16,  /* pread, read */
	INJECT_WRITE = 32, /* pwrite, fflush, fclose */
	INJECT_SYNC = 64,  /* fdatasync, fsync */
	INJECT_SPACE = 128, /* posix_fallocate, fallocate, ftruncate */
	INJECT_QUEUE = 256, /* the making of rings and contexts, and what is registered with them */
	INJECT_ANY = 511
};

#define INJECT_ALWAYS UINT64_MAX

/*
 * Counts calls of these kinds from now on, of all threads, and fails those from the `nth` (from 1)
 * to nth + times - 1 with the errno (a positive number); nth 0 fails none. A call that reports
 * failure otherwise (NULL, MAP_FAILED, a returned errno) does so in its own way.
 */
void inject_fail(unsigned kinds, uint64_t nth, uint64_t times, int error);
/* Ends that; how many calls there were, and how many of them failed (may be NULL). */
uint64_t inject_stop(uint64_t *failed);
/*
 * Which call it was that failed first since inject_fail(), as "open /sys/block" (with the path, of
 * those that have one) or "fstat"; "" if none did. Valid until inject_fail().
 */
const char *inject_failed_call(void);
/* What the calling thread does between these two is the test's own: neither counted, nor failed,
 * nor heard of. They may be nested. */
void inject_pause(void);
void inject_resume(void);

/* What is open now, and what the functions that are led through here have given out and not been
 * given back. */
struct inject_held {
	int64_t blocks, mapped_bytes;
	unsigned files;
};
struct inject_held inject_held(void);

/*
 * Hears of plain writes (labels, manifests) before they are made and of syncs after they have
 * succeeded, in the thread that makes them. Calls that were made to fail are not heard of.
 */
struct inject_observer {
	void *arg;
	void (*before_write)(void *arg, int fd, const void *data, size_t nbytes, uint64_t offset);
	void (*synced)(void *arg, int fd);
};
/* NULL: nobody hears; nor of what its function is NULL. The structure stays the caller's, until no
 * call is under way. */
void inject_observe(const struct inject_observer *observer);

#endif
