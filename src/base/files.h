/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Before a file grows: the limit on its size (RLIMIT_FSIZE, ulimit -f), and space on the drive. And
 * the reading of short files.
 */
#ifndef BASE_FILES_H
#define BASE_FILES_H

#include "nvswap.h"

/*
 * -ENOSPC if a file of `nbytes` exceeds the limit. Must be called before growing a file, since
 * growing it beyond the limit raises SIGXFSZ, which by default ends the process.
 */
int file_may_grow(const char *path, uint64_t nbytes, struct nvs_error *error);
/*
 * fallocate(2) of the first `nbytes`, with its result and errno; repeated when a signal interrupts
 * it.
 */
int file_reserve(int fd, int mode, uint64_t nbytes);
/*
 * Reads a file or pipe to its end, or until it exceeds `most` bytes: *nbytes of malloc'ed text,
 * with a 0 behind it. -ENOMEM; errno of reading.
 */
int file_read_all(int fd, size_t most, char **text, size_t *nbytes);
/* The number behind `key` at the start of a line of a file; `otherwise` if there is none. */
uint64_t file_number(const char *path, const char *key, uint64_t otherwise);
/* Replaces \040 and the like in a field of /proc/self/mountinfo by their characters. */
void unescape_mount(char *text);
/* The path from the root, allocated; as it is, with errno, if the working directory is unknown.
 * NULL: out of memory. */
char *absolute_path(const char *path);

#endif
