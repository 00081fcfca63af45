/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Behind its first byte, the input is a file of torch.save (if the byte is even), or the pickle of
 * one, around which a zip with one storage and right checksums is made. Every tensor that is
 * accepted lies in the file and has the bytes that its shape needs.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "allocations.h"
#include "base/little_endian.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/torch/zip.h"

#define STORAGE_BYTES 64u
#define NAMES_BYTES   48u
#define PICKLE_MAX    65536u

static int file = -1; /* in memory, opened through `path` */
static char path[32];
static uint8_t made[PICKLE_MAX + 512];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

static void make_file(const uint8_t *data, size_t nbytes)
{
	if (file < 0) {
		file = memfd_create("input", MFD_CLOEXEC);
		assert(file >= 0);
		snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	}
	assert(!ftruncate(file, 0));
	assert(pwrite(file, data, nbytes, 0) == (ssize_t)nbytes);
}

static void check_entry(const struct entry *entry, uint64_t file_bytes)
{
	uint64_t numel = 1;

	assert(*entry->name && strlen(entry->name) <= NVS_NAME_MAX);
	assert(entry->dtype < NVS_DTYPE_COUNT && entry->ndim <= NVS_NDIM_MAX);
	for (size_t i = 0; i < entry->ndim; i++)
		numel *= entry->shape[i];
	assert(numel == entry->numel);
	assert(entry->nbytes == numel * nvs_dtype_size(entry->dtype));
	assert(entry->offset <= file_bytes && entry->nbytes <= file_bytes - entry->offset);
}

static void try_file(const uint8_t *data, size_t nbytes)
{
	struct nvs_checkpoint checkpoint = {0};
	struct nvs_error error = {.size = sizeof(error)};
	bool is_torch;
	int rc;

	make_file(data, nbytes);
	rc = torch_load(&checkpoint, path, &is_torch, &error);
	if (rc) {
		assert(is_torch && rc < 0 && error.code == rc && *error.text);
		assert(!checkpoint.entries && !checkpoint.paths);
		return;
	}
	assert(!is_torch || checkpoint.n);
	for (size_t i = 0; i < checkpoint.n; i++)
		check_entry(&checkpoint.entries[i], nbytes);
	checkpoint_free(&checkpoint);
}

/* A record's fields that the local header and the directory have in common. */
static uint8_t *put_common(uint8_t *at, uint32_t crc, uint32_t nbytes, const char *name)
{
	memset(at, 0, 24);
	put_u32(at + 10, crc);
	put_u32(at + 14, nbytes);
	put_u32(at + 18, nbytes);
	at[22] = (uint8_t)strlen(name);
	return at + 24;
}

/* Writes the record to `at` and its entry to *central; returns the record's end. */
static uint8_t *put_record(uint8_t *at, const char *name, const uint8_t *data, uint32_t nbytes,
			   uint8_t **central)
{
	uint32_t crc = zip_crc32(data, nbytes), header_at = (uint32_t)(at - made);
	uint8_t *to = *central;

	put_u32(at, 0x04034b50);
	at = put_common(at + 4, crc, nbytes, name);
	memset(at, 0, 2);
	at = (uint8_t *)mempcpy(at + 2, name, strlen(name));
	at = (uint8_t *)mempcpy(at, data, nbytes);
	put_u32(to, 0x02014b50);
	memset(to + 4, 0, 2);
	to = put_common(to + 6, crc, nbytes, name);
	memset(to, 0, 12);
	put_u32(to + 12, header_at);
	*central = (uint8_t *)mempcpy(to + 16, name, strlen(name));
	return at;
}

static void try_pickle(const uint8_t *data, uint32_t nbytes)
{
	static const uint8_t storage[STORAGE_BYTES];
	uint8_t directory[128 + NAMES_BYTES], *central = directory, *at = made;
	uint32_t directory_bytes;

	at = put_record(at, "a/data.pkl", data, nbytes, &central);
	at = put_record(at, "a/data/0", storage, sizeof(storage), &central);
	directory_bytes = (uint32_t)(central - directory);
	memcpy(at, directory, directory_bytes);
	central = at + directory_bytes;
	memset(central, 0, 22);
	put_u32(central, 0x06054b50);
	central[10] = 2;
	put_u32(central + 12, directory_bytes);
	put_u32(central + 16, (uint32_t)(at - made));
	try_file(made, (size_t)(central + 22 - made));
}

/* With the zip that is made around a pickle. */
size_t allocated_most(size_t nbytes)
{
	return TORCH_BYTES(nbytes + 512);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	if (!nbytes || nbytes > PICKLE_MAX)
		return 0;
	if (data[0] % 2)
		try_pickle(data + 1, (uint32_t)nbytes - 1);
	else
		try_file(data + 1, nbytes - 1);
	return 0;
}
