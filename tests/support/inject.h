/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the library's calls to libc and the kernel fail: in every test program the linker redirects
 * the functions of WRAPPED in the Makefile to here (--wrap), except for those of turns.h. I/Os of
 * transfers are not among them; the simulated drive fails those (sim_drive.h). Without
 * inject_fail() no call fails.
 */
#ifndef TESTS_SUPPORT_INJECT_H
#define TESTS_SUPPORT_INJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Kinds of calls, to be combined with "|". */
enum inject_kind {
	INJECT_MEMORY =
		1, /* malloc, calloc, realloc, strdup, tsearch and others that allocate memory */
	INJECT_MMAP = 2,    /* mmap, memfd_create, madvise, mlock */
	INJECT_THREAD = 4,  /* pthread_create */
	INJECT_OPEN = 8,    /* open, openat, mkdirat, flock, fstat and others that find a file */
	INJECT_READ = 16,   /* pread, read */
	INJECT_WRITE = 32,  /* pwrite, fflush, fclose of a file that can be written */
	INJECT_SYNC = 64,   /* fdatasync, fsync */
	INJECT_SPACE = 128, /* posix_fallocate, fallocate, ftruncate */
	INJECT_QUEUE = 256, /* creating rings and contexts, and registering with them */
	INJECT_NAME = 512,  /* of INJECT_OPEN: mkdir, rename, unlinkat, open with O_CREAT and others
			       that change the names in a directory */
	INJECT_ANY = 1023,
	INJECT_ALLOCATIONS = INJECT_MEMORY | INJECT_MMAP | INJECT_THREAD,
	INJECT_FILES = INJECT_OPEN | INJECT_READ | INJECT_WRITE | INJECT_SYNC | INJECT_SPACE
};

#define INJECT_ALWAYS UINT64_MAX

/*
 * Counts calls of these kinds from now on, in all threads, and fails calls `nth` (from 1) to
 * nth + times - 1 with the errno (a positive number); nth 0 fails none. Functions that report
 * errors otherwise (NULL, MAP_FAILED, a returned errno) do so.
 */
void inject_fail(unsigned kinds, uint64_t nth, uint64_t times, int error);
/*
 * Stops counting and failing. Returns the number of calls; *failed (may be NULL) gets the number of
 * failures.
 */
uint64_t inject_stop(uint64_t *failed);
/*
 * The first call that failed since inject_fail(), such as "open /sys/block" (with its path, if it
 * has one) or "fstat"; "" if none did. Valid until inject_fail().
 */
const char *inject_failed_call(void);
/*
 * Calls of this thread between inject_pause() and inject_resume() are the test's own: neither
 * counted, failed nor observed. Pairs may be nested.
 */
void inject_pause(void);
void inject_resume(void);

/* Open files, and memory that the redirected functions have allocated and not freed. */
struct inject_held {
	int64_t blocks, mapped_bytes;
	unsigned files;
};
struct inject_held inject_held(void);

/*
 * The most bytes of such memory that were allocated at once since the last call, beyond those
 * allocated then; and from this call on.
 */
int64_t inject_peak(void);

/* A call that makes, removes or renames a file or directory. */
enum inject_change { INJECT_MAKES, INJECT_REMOVES, INJECT_RENAMES };
struct inject_name {
	enum inject_change change;
	int from;	  /* the directory from which the paths lead */
	const char *path; /* the name to make or remove, or the old name */
	const char *to;	  /* the new name; NULL: not a renaming */
	void *note;	  /* the observer's own */
};

/*
 * Observes plain writes (labels, manifests) before they are made, files that are there before they
 * are opened, syncs after they succeeded, and changes of names before and after (mkostemp's
 * excepted), in the calling thread. Injected failures are not observed.
 */
struct inject_observer {
	void *arg;
	void (*before_write)(void *arg, int fd, const void *data, size_t nbytes, uint64_t offset);
	void (*synced)(void *arg, int fd);
	/* A name to make may exist already, and one to remove may be missing. */
	void (*before_name)(void *arg, struct inject_name *name);
	void (*after_name)(void *arg, struct inject_name *name, bool done);
	void (*before_open)(void *arg, const char *path);
};
/* NULL ends it. Its functions may be NULL. The structure must stay valid until no call is in
 * progress. */
void inject_observe(const struct inject_observer *observer);

#endif
