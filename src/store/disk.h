/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small structures on the drive (labels, manifests): little-endian fields, and whole reads and
 * writes. Errors name path and offset.
 */
#ifndef STORE_DISK_H
#define STORE_DISK_H

#include <string.h>

#include "base/little_endian.h"
#include "base/numbers.h"
#include "nvswap.h"

#define DISK_PAGE_BYTES 4096u /* of the page cache and of most drives, for counting alone */

/*
 * Read or write all `nbytes`. A read past the end of the file fills the rest with zeros and
 * succeeds.
 */
int disk_read(int fd, const char *path, void *data, size_t nbytes, uint64_t offset,
	      struct nvs_error *error);
int disk_write(int fd, const char *path, const void *data, size_t nbytes, uint64_t offset,
	       struct nvs_error *error);
/* Adds to *written, atomically, what a drive gets of a write of `nbytes`: whole pages. */
static inline void disk_count(uint64_t *written, uint64_t nbytes)
{
	__atomic_fetch_add(written, align_up(nbytes, DISK_PAGE_BYTES), __ATOMIC_RELAXED);
}
/* fdatasync(2); fsync(2) of a directory. */
int disk_sync(int fd, const char *path, struct nvs_error *error);

#endif
