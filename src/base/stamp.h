/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tells a file from one that took its name since, and from what it was before it was written
 * to.
 */
#ifndef BASE_STAMP_H
#define BASE_STAMP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

struct stamp {
	uint64_t device, inode, nbytes;
	int64_t modified_s, modified_ns;
};

static inline struct stamp stamp_of(const struct stat *status)
{
	return (struct stamp){.device = status->st_dev,
			      .inode = status->st_ino,
			      .nbytes = (uint64_t)status->st_size,
			      .modified_s = status->st_mtim.tv_sec,
			      .modified_ns = status->st_mtim.tv_nsec};
}

static inline bool stamps_equal(const struct stamp *a, const struct stamp *b)
{
	return a->device == b->device && a->inode == b->inode && a->nbytes == b->nbytes &&
	       a->modified_s == b->modified_s && a->modified_ns == b->modified_ns;
}

#endif
