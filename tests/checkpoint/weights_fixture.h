/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of checkpoints: files with headers as they are given, and damage to them. */
#ifndef TESTS_CHECKPOINT_WEIGHTS_FIXTURE_H
#define TESTS_CHECKPOINT_WEIGHTS_FIXTURE_H

#include "nvswap.h"
#include "support/support.h"

/* Writes a file of this header, with spaces behind it up to `padded` bytes, and the data. */
void weights_file(const char *path, const char *header, size_t padded, const void *data,
		  size_t nbytes);
/* Writes a file of the tensors t<from> to t<to - 1> of U8, of these lengths and with the contents
 * of their number (fill), side by side behind a header of an odd length. */
void weights_make(const char *path, const uint64_t *lengths, size_t from, size_t to, size_t padded);

/* Finds the tensors t0 to t<n - 1> of an engine. */
void weights_find(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n);
/* Reads a tensor, which stays in the pool. */
int weights_read(struct nvs_engine *engine, struct nvs_tensor *tensor, struct nvs_error *error);

/* ---- Damage ---- */

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
