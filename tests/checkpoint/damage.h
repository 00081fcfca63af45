/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of checkpoints: damage to their files. */
#ifndef TESTS_CHECKPOINT_DAMAGE_H
#define TESTS_CHECKPOINT_DAMAGE_H

#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "support/tests.h"

/* Changes these bits of a byte; a second time, changes them back. */
static inline void flip(const char *file, off_t at, uint8_t bits)
{
	int fd = open(file, O_RDWR | O_CLOEXEC);
	uint8_t byte;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, at), 1);
	byte ^= bits;
	assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

/* An observer of openings: cuts the file at `arg` off once its header has been read. */
static inline void truncate_before_reading(void *arg, const char *file)
{
	if (!strncmp(file, "/proc/self/fd/", 14))
		assert_int_equal(truncate(arg, 100000), 0);
}

#endif
