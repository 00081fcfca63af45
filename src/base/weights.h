/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors in files of others, as their headers list them. */
#ifndef BASE_WEIGHTS_H
#define BASE_WEIGHTS_H

#include "base/stamp.h"
#include "nvswap.h"

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
