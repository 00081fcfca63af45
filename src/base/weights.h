/* SPDX-License-Identifier: Apache-2.0 */
/* Files of others, and the tensors in them as their headers list them. */
#ifndef BASE_WEIGHTS_H
#define BASE_WEIGHTS_H

#include <sys/stat.h>

#include "nvswap.h"

/*
 * What tells a file from one that took its name since, and from what it was before it was written
 * to.
 */
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

struct weights_file {
	const char *path;
	int fd;		    /* open for reading */
	struct stamp stamp; /* when its header was read */
};

struct weights_tensor {
	const char *name;
	enum nvs_dtype dtype;
	uint64_t numel, nbytes;
	const uint64_t *shape;
	size_t ndim;
	size_t file;	 /* index in `files` */
	uint64_t offset; /* of its data in the file, within the file's bytes */
	bool has_checksum;
	uint64_t checksum; /* XXH3 (64 bits) of its nbytes */
};

struct weights {
	const struct weights_file *files; /* at least one */
	size_t nfiles;
	const struct weights_tensor *tensors;
	size_t ntensors;
};

#endif
