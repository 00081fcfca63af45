/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests of several layers need: random data, directories, file systems and block devices of
 * their own, processes with fewer rights. Whatever is made here goes away with the test that made
 * it, by cleanup(), and mounts and loop devices with the process at the latest.
 */
#ifndef TESTS_SUPPORT_H
#define TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Ends the test as skipped, for a reason that tests/run shows. */
#define SKIP(...)                                                                                  \
	do {                                                                                       \
		print_message(__VA_ARGS__);                                                        \
		print_message("\n");                                                               \
		skip();                                                                            \
	} while (0)

/* The call returns 0, else the test fails with what `error` has to say. */
#define SUCCEEDS(call, error)                                                                      \
	do {                                                                                       \
		int succeeds_rc = (call);                                                          \
		if (succeeds_rc)                                                                   \
			fail_msg("%s: %d: %s", #call, succeeds_rc, (error)->text);                 \
	} while (0)

/* The text says `part`. */
#define assert_says(text, part)                                                                    \
	do {                                                                                       \
		if (!strstr(text, part))                                                           \
			fail_msg("\"%s\" does not say \"%s\"", text, part);                        \
	} while (0)

/* A test that leaves nothing behind. */
#define test(name) cmocka_unit_test_teardown(name, cleanup)
/* Removes what the functions below have made; a cmocka teardown. */
int cleanup(void **state);

/* ---- Random data ---- */

/* Starts a sequence, the same each time for a name, and prints its seed. */
uint64_t random_seed(const char *name);
uint64_t random_next(uint64_t *state);
uint64_t random_below(uint64_t *state, uint64_t n); /* n > 0 */
void random_fill(uint64_t *state, void *data, size_t nbytes);

/* ---- Places to put files ---- */

/* A new directory below build/tmp, on whatever file system that is. */
const char *temp_directory(void);
/* A new directory on tmpfs; NULL where there is none. */
const char *memory_directory(void);
/*
 * A block device of `nbytes` with that logical sector size, over a file in memory or below
 * build/tmp; NULL with the reason in *why where the machine has none to give.
 */
const char *loop_device(uint64_t nbytes, unsigned sector_bytes, const char **why);
/* The same over a file that is there, past its page cache. */
const char *loop_device_over(const char *path, const char **why);
/* A directory on an ext4 of its own on such a device. */
const char *loop_ext4(uint64_t nbytes, unsigned sector_bytes, const char **why);
/* The two steps of it, with options of mkfs.ext4 ("" or more), mount(2)'s flags and ext4's. */
bool ext4_make(const char *device, const char *options, const char **why);
const char *ext4_mount(const char *device, unsigned long flags, const char *options,
		       const char **why);
/* "directory/name", until cleanup(). */
const char *path_in(const char *directory, const char *name);
/* How many names are in it. */
unsigned entries_of(const char *directory);

/* ---- Processes with fewer rights ---- */

enum { CHILD_OK, CHILD_WRONG, CHILD_SKIPPED };

/*
 * Does `work` in a process of its own and returns its exit status. Cmocka's asserts may not be used
 * in it; EXPECT() does there.
 */
int in_child(int (*work)(void *arg), void *arg);

#define EXPECT(condition)                                                                          \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);            \
			return CHILD_WRONG;                                                        \
		}                                                                                  \
	} while (0)

/*
 * From here on, system call `number` fails with the errno in this process, in all its threads: 0 or
 * a negative errno.
 */
int deny_syscall(long number, int error);
/* Limits locked memory to `nbytes`, and gives up the right to ignore that: 0 or a negative errno.
 */
int limit_memlock(uint64_t nbytes);
/* Whether mlock(2) does what it says; a sanitizer may have replaced it by nothing. */
bool mlock_locks(void);

#endif
