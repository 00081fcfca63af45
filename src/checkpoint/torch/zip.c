/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the directory of a zip: the end record, with ZIP64 its longer form, and an entry for each
 * record. Every number is checked against the file before it is used.
 */
#include "checkpoint/torch/zip.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/error.h"
#include "base/little_endian.h"
#include "base/numbers.h"
#include "checkpoint/checkpoint.h"

#define END_BYTES     22u /* without the comment */
#define COMMENT_MAX   65535u
#define LOCATOR_BYTES 20u
#define END64_BYTES   56u
#define CENTRAL_BYTES 46u /* without name, extra fields and comment */
#define LOCAL_BYTES   30u
#define FULL_16	      UINT16_MAX /* the value is in the ZIP64 form */
#define FULL_32	      UINT32_MAX
#define ENCRYPTED     1u
#define ZIP64_ID      1u

struct zip_reader {
	struct zip *zip;
	int fd;
	uint64_t file_bytes;
	const char *path;
	struct nvs_error *error;
	uint64_t at, nbytes, count; /* the directory: place, size, entries */
};

static uint32_t get_u16(const uint8_t *at)
{
	return (uint32_t)at[0] | (uint32_t)at[1] << 8;
}

#define REJECT(reader, format, ...)                                                                \
	error_set((reader)->error, -EINVAL, "%s: " format, (reader)->path, ##__VA_ARGS__)

static int no_memory(const struct zip_reader *reader)
{
	return error_set(reader->error, -ENOMEM, "no memory for the directory of %s", reader->path);
}

static int read_bytes(const struct zip_reader *reader, uint64_t at, void *data, size_t nbytes)
{
	return read_at(reader->fd, reader->path, at, data, nbytes, reader->error);
}

/* The end record, and with ZIP64 its longer form, which a locator just before it names. */
static int read_end(struct zip_reader *reader, const uint8_t *end, uint64_t end_at)
{
	uint8_t bytes[END64_BYTES];
	uint64_t at;
	int rc;

	reader->count = get_u16(end + 10);
	reader->nbytes = get_u32(end + 12);
	reader->at = get_u32(end + 16);
	if (reader->count == FULL_16 || reader->nbytes == FULL_32 || reader->at == FULL_32) {
		if (end_at < LOCATOR_BYTES + END64_BYTES)
			return REJECT(reader, "its directory is damaged: no ZIP64 record");
		rc = read_bytes(reader, end_at - LOCATOR_BYTES, bytes, LOCATOR_BYTES);
		if (rc)
			return rc;
		at = get_u64(bytes + 8);
		if (get_u32(bytes) != 0x07064b50 || at > end_at - LOCATOR_BYTES - END64_BYTES)
			return REJECT(reader, "its directory is damaged: no ZIP64 record");
		rc = read_bytes(reader, at, bytes, END64_BYTES);
		if (rc)
			return rc;
		if (get_u32(bytes) != 0x06064b50)
			return REJECT(reader,
				      "its directory is damaged: no ZIP64 record at byte %llu",
				      (unsigned long long)at);
		reader->count = get_u64(bytes + 32);
		reader->nbytes = get_u64(bytes + 40);
		reader->at = get_u64(bytes + 48);
	}
	if (reader->at > end_at || reader->nbytes > end_at - reader->at)
		return REJECT(reader, "its directory is damaged: it should have %llu bytes at %llu",
			      (unsigned long long)reader->nbytes, (unsigned long long)reader->at);
	if (reader->nbytes > HEADER_MAX)
		return REJECT(reader, "a directory of %llu bytes; allowed are up to %u",
			      (unsigned long long)reader->nbytes, HEADER_MAX);
	if (reader->count > reader->nbytes / CENTRAL_BYTES)
		return REJECT(reader, "its directory is damaged: %llu records in %llu bytes",
			      (unsigned long long)reader->count,
			      (unsigned long long)reader->nbytes);
	return 0;
}

/* The end record is the last thing in the file but for a comment, whose length it has. */
static int find_end(struct zip_reader *reader)
{
	size_t n = min_u64(reader->file_bytes, END_BYTES + COMMENT_MAX), i = n;
	uint64_t begin = reader->file_bytes - n;
	uint8_t *tail = malloc(n + 1), *end = NULL;
	int rc;

	if (!tail)
		return no_memory(reader);
	rc = read_bytes(reader, begin, tail, n);
	for (; !rc && !end && i >= END_BYTES; i--)
		if (get_u32(tail + i - END_BYTES) == 0x06054b50 &&
		    get_u16(tail + i - END_BYTES + 20) == n - i)
			end = tail + i - END_BYTES;
	if (!rc)
		rc = end ? read_end(reader, end, begin + (uint64_t)(end - tail))
			 : REJECT(reader,
				  "it is no zip: it is truncated, or no file of torch.save");
	free(tail);
	return rc;
}

/* Replaces the fields that are full by those of the ZIP64 extra field, which come in this order. */
static bool read_extra(const uint8_t *extra, size_t nbytes, uint64_t *const fields[3])
{
	while (nbytes >= 4) {
		size_t length = get_u16(extra + 2);
		const uint8_t *at = extra + 4;

		if (length > nbytes - 4)
			return false;
		if (get_u16(extra) == ZIP64_ID) {
			for (int i = 0; i < 3; i++) {
				if (*fields[i] != FULL_32)
					continue;
				if ((size_t)(at - extra - 4) + 8 > length)
					return false;
				assert(at + 8 <= extra + nbytes);
				*fields[i] = get_u64(at);
				at += 8;
			}
			return true;
		}
		extra += 4 + length;
		nbytes -= 4 + length;
	}
	return *fields[0] != FULL_32 && *fields[1] != FULL_32 && *fields[2] != FULL_32;
}

/* One entry of the directory, whose length goes to *used. */
static int read_record(struct zip_reader *reader, const uint8_t *at, size_t left, size_t *used)
{
	struct zip_record *record = &reader->zip->records[reader->zip->n];
	uint64_t packed = 0, *const fields[3] = {&record->nbytes, &packed, &record->header_at};
	size_t name_bytes, extra_bytes;

	if (left < CENTRAL_BYTES || get_u32(at) != 0x02014b50)
		return REJECT(reader, "its directory is damaged at record %zu", reader->zip->n);
	name_bytes = get_u16(at + 28);
	extra_bytes = get_u16(at + 30);
	*used = CENTRAL_BYTES + name_bytes + extra_bytes + get_u16(at + 32);
	if (*used > left || memchr(at + CENTRAL_BYTES, 0, name_bytes))
		return REJECT(reader, "its directory is damaged at record %zu", reader->zip->n);
	record->name = strndup((const char *)at + CENTRAL_BYTES, name_bytes);
	if (!record->name)
		return no_memory(reader);
	reader->zip->n++;
	record->crc = get_u32(at + 16);
	packed = get_u32(at + 20);
	record->nbytes = get_u32(at + 24);
	record->header_at = get_u32(at + 42);
	if (!read_extra(at + CENTRAL_BYTES + name_bytes, extra_bytes, fields))
		return REJECT(reader, "record %s has damaged extra fields", record->name);
	if (get_u16(at + 10) || packed != record->nbytes || get_u16(at + 8) & ENCRYPTED)
		return REJECT(reader,
			      "record %s is compressed or encrypted: torch.save does neither",
			      record->name);

	uint8_t local[LOCAL_BYTES];
	uint64_t end;
	int rc;

	/* Where the data begins, which only the record's own header says. */
	if (record->header_at > reader->at || reader->at - record->header_at < LOCAL_BYTES)
		return REJECT(reader, "record %s begins in the directory", record->name);
	rc = read_bytes(reader, record->header_at, local, sizeof(local));
	if (rc)
		return rc;
	if (get_u32(local) != 0x04034b50)
		return REJECT(reader, "record %s has no header at byte %llu", record->name,
			      (unsigned long long)record->header_at);
	record->data_at = record->header_at + LOCAL_BYTES + get_u16(local + 26) +
			  get_u16(local + 28);
	if (__builtin_add_overflow(record->data_at, record->nbytes, &end) || end > reader->at)
		return REJECT(
			reader,
			"record %s has %llu bytes at %llu, behind the directory's begin at %llu",
			record->name, (unsigned long long)record->nbytes,
			(unsigned long long)record->data_at, (unsigned long long)reader->at);
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct zip_record *left = a, *right = b;

	return (left->header_at > right->header_at) - (left->header_at < right->header_at);
}

static int by_name(const void *a, const void *b)
{
	const struct zip_record *left = a, *right = b;

	return strcmp(left->name, right->name);
}

/* Also leaves the records sorted by name. */
static int check_records(const struct zip_reader *reader)
{
	const struct zip *zip = reader->zip;
	bool has_sums = false, has_data = false;

	assert(zip->records);
	qsort(zip->records, zip->n, sizeof(*zip->records), by_place);
	for (size_t i = 0; i < zip->n; i++) {
		const struct zip_record *record = &zip->records[i];

		if (i && record[-1].data_at + record[-1].nbytes > record->header_at)
			return REJECT(reader, "records %s and %s overlap", record[-1].name,
				      record->name);
		/* A single record may have a CRC-32 of 0. */
		has_sums |= record->crc;
		has_data |= record->nbytes;
	}
	qsort(zip->records, zip->n, sizeof(*zip->records), by_name);
	for (size_t i = 1; i < zip->n; i++)
		if (!strcmp(zip->records[i - 1].name, zip->records[i].name))
			return REJECT(reader, "two records have the name %s", zip->records[i].name);
	if (has_data && !has_sums)
		return REJECT(
			reader,
			"it has no CRC-32, so nothing shows that it is whole: "
			"torch.serialization.set_crc32_options(False) was called where it was "
			"saved: load it with torch and save it again with CRC-32");
	return 0;
}

int zip_read(struct zip *zip, int fd, uint64_t file_bytes, const char *path,
	     struct nvs_error *error)
{
	struct zip_reader reader = {
		.zip = zip, .fd = fd, .file_bytes = file_bytes, .path = path, .error = error};
	uint8_t *directory;
	int rc;

	*zip = (struct zip){0};
	rc = find_end(&reader);
	if (rc)
		return rc;
	directory = malloc(reader.nbytes + 1);
	if (!directory)
		return no_memory(&reader);
	rc = read_bytes(&reader, reader.at, directory, reader.nbytes);
	zip->records = rc ? NULL : calloc(reader.count + 1, sizeof(struct zip_record));
	if (!rc && !zip->records)
		rc = no_memory(&reader);
	assert(rc || zip->records);
	for (size_t i = 0, at = 0, used = 0; i < reader.count && !rc; i++, at += used)
		rc = read_record(&reader, directory + at, (size_t)reader.nbytes - at, &used);
	free(directory);
	return rc ? rc : check_records(&reader);
}

const struct zip_record *zip_find(const struct zip *zip, const char *name)
{
	const struct zip_record key = {.name = (char *)(uintptr_t)name};

	return zip->n ? bsearch(&key, zip->records, zip->n, sizeof(key), by_name) : NULL;
}

uint32_t zip_crc32(const void *data, size_t nbytes)
{
	return (uint32_t)crc32_z(0, data, nbytes);
}

uint32_t zip_crc32_add(uint32_t crc, const void *data, size_t nbytes)
{
	return (uint32_t)crc32_z(crc, data, nbytes);
}

uint32_t zip_crc32_before(uint32_t crc, uint64_t nbytes)
{
	return (uint32_t)crc32_combine64(crc, 0, (z_off64_t)nbytes);
}

void zip_free(struct zip *zip)
{
	for (size_t i = 0; i < zip->n; i++)
		free(zip->records[i].name);
	free(zip->records);
	*zip = (struct zip){0};
}
