/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small things on the drive that are not tensors (labels, manifests): little-endian fields, and
 * reading and writing them whole. Errors name the path and the offset.
 */
#ifndef STORE_DISK_H
#define STORE_DISK_H

#include <endian.h>
#include <string.h>

#include "nvswap.h"

static inline void put_u32(uint8_t *at, uint32_t value)
{
	value = htole32(value);
	memcpy(at, &value, sizeof(value));
}

static inline void put_u64(uint8_t *at, uint64_t value)
{
	value = htole64(value);
	memcpy(at, &value, sizeof(value));
}

static inline uint32_t get_u32(const uint8_t *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return le32toh(value);
}

static inline uint64_t get_u64(const uint8_t *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof(value));
	return le64toh(value);
}

/*
 * Reads or writes all of it: 0 or a negative errno. A read that meets the end of the file first
 * fills the rest with zeros, and is no error.
 */
int disk_read(int fd, const char *path, void *data, size_t nbytes, uint64_t offset,
	      struct nvs_error *error);
int disk_write(int fd, const char *path, const void *data, size_t nbytes, uint64_t offset,
	       struct nvs_error *error);
/*
 * Whether this process may have a file of `nbytes`: -ENOSPC where RLIMIT_FSIZE is less. To be asked
 * first, for who grows one beyond it gets SIGXFSZ, which ends a process that has not seen to it.
 */
int disk_may_grow(const char *path, uint64_t nbytes, struct nvs_error *error);
/* fdatasync; of a directory: fsync. */
int disk_sync(int fd, const char *path, struct nvs_error *error);

#endif
