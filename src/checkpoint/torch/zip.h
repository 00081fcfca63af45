/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The records of a zip whose contents are stored, not compressed, as torch.save writes them: where
 * the data of each lies in the file. The central directory counts, so that data descriptors and
 * bytes between records are tolerated. The file may be damaged or hostile.
 */
#ifndef CHECKPOINT_ZIP_H
#define CHECKPOINT_ZIP_H

#include <stddef.h>
#include <stdint.h>

#include "nvswap.h"

struct zip_record {
	char *name;
	uint64_t header_at, data_at, nbytes;
	uint32_t crc;
};

struct zip {
	struct zip_record *records; /* by name */
	size_t n;
};

/*
 * Reads the directory and the header of each record. No two records overlap, and no two have the
 * same name. Call zip_free in any case. -EINVAL: no such zip; -ENODATA, -ENOMEM, errno of reading.
 */
int zip_read(struct zip *zip, int fd, uint64_t file_bytes, const char *path,
	     struct nvs_error *error);
/* NULL: there is none. */
const struct zip_record *zip_find(const struct zip *zip, const char *name);
void zip_free(struct zip *zip);
/* The CRC-32 that a zip has of each record. */
uint32_t zip_crc32(const void *data, size_t nbytes);
/* The CRC-32 of bytes whose own is `crc`, followed by these. */
uint32_t zip_crc32_add(uint32_t crc, const void *data, size_t nbytes);
/*
 * The contribution of a part to the CRC-32 of the whole, which is the exclusive or of those of all
 * parts, in any order: `crc` is the part's own, and `nbytes` the bytes that follow it in the whole.
 */
uint32_t zip_crc32_before(uint32_t crc, uint64_t nbytes);

#endif
