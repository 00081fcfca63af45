/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests of several layers: random data, private directories, file systems and block
 * devices, processes with fewer privileges. cleanup() removes at the end of a test what it created;
 * mounts and loop devices end with the process at the latest. It includes what most tests call of
 * libc.
 */
#ifndef TESTS_SUPPORT_SUPPORT_H
#define TESTS_SUPPORT_SUPPORT_H

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/tests.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Skips the test; tests/run shows the reason. */
#define SKIP(...)                                                                                  \
	do {                                                                                       \
		print_message(__VA_ARGS__);                                                        \
		print_message("\n");                                                               \
		skip();                                                                            \
	} while (0)

/* The call must return 0; otherwise the test fails with the text of `error`. */
#define SUCCEEDS(call, error)                                                                      \
	do {                                                                                       \
		int succeeds_rc = (call);                                                          \
		if (succeeds_rc)                                                                   \
			fail_msg("%s: %d: %s", #call, succeeds_rc, (error)->text);                 \
	} while (0)

/* For other threads and child processes, where cmocka's asserts don't work. */
#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__,           \
				#condition);                                                       \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

/* The text must contain `part`. */
#define assert_says(text, part)                                                                    \
	do {                                                                                       \
		if (!strstr(text, part))                                                           \
			fail_msg("\"%s\" does not say \"%s\"", text, part);                        \
	} while (0)

/* Removes what the functions below have made; a cmocka teardown. */
int cleanup(void **state);
/* What they have made so far stays until this one, a teardown of a file's tests. */
void keep_made(void);
int cleanup_all(void **state);

/*
 * A number of rounds or seeds for a run of `make check-all`, and the fewer that suffice for the
 * others.
 */
unsigned at_length(unsigned all, unsigned few);

/* ---- Random data ---- */

/* Starts a sequence that the name determines, and prints its seed. */
uint64_t random_seed(const char *name);
uint64_t random_next(uint64_t *state);
uint64_t random_below(uint64_t *state, uint64_t n); /* n > 0 */
double random_value(uint64_t *state);		    /* in [-1, 1) */
void random_fill(uint64_t *state, void *data, size_t nbytes);

/* ---- Directories and devices ---- */

/* A new directory below build/tmp. */
const char *temp_directory(void);
/* A new directory on tmpfs; NULL if there is none. */
const char *memory_directory(void);
/*
 * A block device of `nbytes` with that logical sector size, over a file in memory or below
 * build/tmp; NULL with the reason in *why if the machine can't provide one.
 */
const char *loop_device(uint64_t nbytes, unsigned sector_bytes, const char **why);
/* The same over an existing file, without its page cache. */
const char *loop_device_over(const char *path, const char **why);
/*
 * Such a device, or a directory on a new ext4 on one. Without it the test is skipped and says why.
 */
const char *need_device(uint64_t nbytes, unsigned sector_bytes);
const char *need_ext4(uint64_t nbytes, unsigned sector_bytes);
/* The same on this device, with options of mkfs.ext4 (may be "") and of ext4 (may be NULL). */
const char *need_ext4_on(const char *device, const char *make_options, const char *mount_options);
/* The same of any type of file system, such as "btrfs". */
const char *need_file_system(const char *type, uint64_t nbytes, unsigned sector_bytes);
/* need_ext4_on() of any type; NULL with the reason in *why if that does not work here. */
const char *file_system_on(const char *device, const char *type, const char *make_options,
			   const char *mount_options, const char **why);
/* "directory/name", until cleanup(). */
const char *path_in(const char *directory, const char *name);
/*
 * A path by which this process may open the data of a store: of the file in `directory`, or, if the
 * store is not kept, of its own open file, which has no name.
 */
void data_path(const char *directory, char path[512]);
/* Removes a directory with all that is in it, or a file. */
int remove_tree(const char *path);
/* The number of entries of the directory. */
unsigned entries_of(const char *directory);
/* Makes or replaces a file. */
void write_text(const char *path, const char *text);
/* The same of root/path, with the directories between. */
void write_below(const char *root, const char *path, const char *text);
/* The contents of a file, up to 1 MiB, as a string that the caller frees. */
char *file_text(const char *path);

/* ---- Processes with fewer privileges ---- */

enum { CHILD_OK, CHILD_WRONG, CHILD_SKIPPED };

/*
 * Runs `work` in a child process and returns its exit status. In the child use EXPECT() instead of
 * cmocka's asserts.
 */
int in_child(int (*work)(void *arg), void *arg);
/* The same: the test is skipped, with that reason, if the child is, and fails if it is wrong. */
void pass_in_child(int (*work)(void *arg), void *arg, const char *skipped);

#define EXPECT(condition)                                                                          \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);            \
			return CHILD_WRONG;                                                        \
		}                                                                                  \
	} while (0)

/*
 * Makes system call `number` fail with the errno in all threads of this process from now on.
 * Returns 0 or a negative errno.
 */
int deny_syscall(long number, int error);
/* Makes system call `number` kill the thread that makes it. Returns 0 or a negative errno. */
int kill_on_syscall(long number);
/* Limits locked memory to `nbytes` and drops CAP_IPC_LOCK. Returns 0 or a negative errno. */
int limit_memlock(uint64_t nbytes);
/* Whether mlock(2) works; a sanitizer may have replaced it. */
bool mlock_locks(void);
/* Whether a thread of this process sleeps in a system call that a signal would end. */
bool thread_sleeps(pid_t tid);

#endif
