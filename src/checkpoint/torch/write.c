/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the form of torch.save: a zip of stored records, with a pickle (protocol 2) of a
 * dictionary of tensors and a record for the data of each. Data begins at a page. A record's CRC-32
 * is known when its data has passed through the pool, so headers and directory are written last.
 * Zips of stored records take less code than the calls of a zip library, none of which leaves the
 * moving of data to its caller.
 */
#include "checkpoint/torch/torch.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/little_endian.h"
#include "checkpoint/torch/pickle_write.h"
#include "checkpoint/torch/zip.h"

#define PAGE	     4096u
#define LOCAL_BYTES  30u
#define LARGE	     UINT32_MAX /* a field of 32 bits whose value is in the ZIP64 extra field */
#define PREFIX	     "archive/"
#define PAD_ID	     0x4246u /* the extra field that torch pads with */
#define RECORDS_LEAD 3u

/* A record of the zip. */
struct record {
	char name[48];
	uint32_t crc;
	uint64_t nbytes, header_at, data_at;
};

/* The fields that local headers and the directory have in common. */
static void put_common(FILE *out, const struct record *record, unsigned extra)
{
	bool large = record->nbytes >= LARGE;

	put_number(out, large ? 45 : 20, 2); /* the version that is needed */
	put_number(out, 0x800, 2);	     /* names are UTF-8 */
	put_number(out, 0, 2);		     /* stored */
	put_number(out, 0, 2);
	put_number(out, 0x21, 2); /* 1 January 1980 */
	put_number(out, record->crc, 4);
	put_number(out, large ? LARGE : record->nbytes, 4);
	put_number(out, large ? LARGE : record->nbytes, 4);
	put_number(out, strlen(record->name), 2);
	put_number(out, extra, 2);
}

static void put_local(FILE *out, const struct record *record)
{
	unsigned extra = (unsigned)(record->data_at - record->header_at - LOCAL_BYTES -
				    strlen(record->name));

	put_number(out, 0x04034b50, 4);
	put_common(out, record, extra);
	fputs(record->name, out);
	if (record->nbytes >= LARGE) {
		put_number(out, 1, 2);
		put_number(out, 16, 2);
		put_number(out, record->nbytes, 8);
		put_number(out, record->nbytes, 8);
		extra -= 20;
	}
	assert(extra >= 4);
	put_number(out, PAD_ID, 2);
	put_number(out, extra - 4, 2);
	for (unsigned i = 4; i < extra; i++)
		fputc('Z', out);
}

static void put_central(FILE *out, const struct record *record)
{
	bool large = record->nbytes >= LARGE || record->header_at >= LARGE,
	     long_data = record->nbytes >= LARGE;

	put_number(out, 0x02014b50, 4);
	put_number(out, 45, 2);
	put_common(out, record, large ? 4 + 8 + (long_data ? 16 : 0) : 0);
	put_number(out, 0, 8); /* no comment, disk 0, no attributes */
	put_number(out, 0, 2);
	put_number(out, large ? LARGE : record->header_at, 4);
	fputs(record->name, out);
	if (!large)
		return;
	put_number(out, 1, 2);
	put_number(out, 8 + (long_data ? 16 : 0), 2);
	if (long_data) {
		put_number(out, record->nbytes, 8);
		put_number(out, record->nbytes, 8);
	}
	put_number(out, record->header_at, 8);
}

/* The end of the directory, in both forms: readers take the longer one where a field is full. */
static void put_end(FILE *out, uint64_t n, uint64_t at, uint64_t nbytes)
{
	put_number(out, 0x06064b50, 4);
	put_number(out, 44, 8);
	put_number(out, 45, 2);
	put_number(out, 45, 2);
	put_number(out, 0, 4);
	put_number(out, 0, 4);
	put_number(out, n, 8);
	put_number(out, n, 8);
	put_number(out, nbytes, 8);
	put_number(out, at, 8);
	put_number(out, 0x07064b50, 4);
	put_number(out, 0, 4);
	put_number(out, at + nbytes, 8);
	put_number(out, 1, 4);
	put_number(out, 0x06054b50, 4);
	put_number(out, 0, 4);
	put_number(out, n < UINT16_MAX ? n : UINT16_MAX, 2);
	put_number(out, n < UINT16_MAX ? n : UINT16_MAX, 2);
	put_number(out, nbytes < LARGE ? nbytes : LARGE, 4);
	put_number(out, at < LARGE ? at : LARGE, 4);
	put_number(out, 0, 2);
}

/* Places a record behind `at`, its data at a multiple of `align`, and returns its end. */
static uint64_t place_record(struct record *record, uint64_t at, uint64_t nbytes, unsigned align)
{
	uint64_t least = at + LOCAL_BYTES + strlen(record->name) + 20 + 4;

	record->nbytes = nbytes;
	record->header_at = at;
	record->data_at = (least + align - 1) / align * align;
	return record->data_at + nbytes;
}

static struct record record_of(const struct nvs_checkpoint *plan, size_t i, const uint32_t *crcs)
{
	const struct entry *entry = &plan->entries[i];
	struct record record = {.crc = crcs ? crcs[i] : 0};

	snprintf(record.name, sizeof(record.name), PREFIX "data/%zu", i);
	record.nbytes = entry->nbytes;
	record.data_at = entry->offset;
	record.header_at = i ? entry[-1].offset + entry[-1].nbytes : 0;
	return record;
}

static struct record lead_record(const struct torch *torch, unsigned i)
{
	static const char *const names[RECORDS_LEAD] = {"data.pkl", "byteorder", "version"};
	struct record record = {.crc = torch->lead_crc[i],
				.nbytes = torch->lead_nbytes[i],
				.header_at = torch->lead_at[i],
				.data_at = torch->lead_data_at[i]};

	snprintf(record.name, sizeof(record.name), PREFIX "%s", names[i]);
	return record;
}

/* The directory, with the CRCs so far; its length does not depend on them. */
static int make_directory(const struct torch *torch, const struct nvs_checkpoint *plan, char **text,
			  size_t *nbytes)
{
	FILE *out = open_memstream(text, nbytes);
	struct record record;

	if (!out)
		return -ENOMEM;
	for (unsigned i = 0; i < RECORDS_LEAD; i++) {
		record = lead_record(torch, i);
		put_central(out, &record);
	}
	for (size_t i = 0; i < plan->n; i++) {
		record = record_of(plan, i, torch->crcs);
		record.header_at = i ? record.header_at : torch->lead_bytes;
		put_central(out, &record);
	}
	fflush(out);
	put_end(out, plan->n + RECORDS_LEAD, torch->directory_at, *nbytes);
	return fclose(out) ? -ENOMEM : 0;
}

static int place_all(struct torch *torch, struct nvs_checkpoint *plan)
{
	uint64_t at = torch->lead_bytes;
	size_t nbytes = 0;
	char *text = NULL;
	int rc;

	for (size_t i = 0; i < plan->n; i++) {
		struct record record = record_of(plan, i, NULL);
		uint64_t end = place_record(&record, at, plan->entries[i].nbytes, PAGE);

		plan->entries[i].file = 0;
		plan->entries[i].offset = record.data_at;
		at = end;
	}
	torch->directory_at = at;
	rc = make_directory(torch, plan, &text, &nbytes);
	torch->file_bytes = at + nbytes;
	free(text);
	return rc;
}

int torch_place_pickle(struct torch *torch, struct nvs_checkpoint *plan, const char *pickle,
		       size_t nbytes, const char *path, struct nvs_error *error)
{
	int rc;

	*torch = (struct torch){.crcs = calloc(plan->n + 1, sizeof(uint32_t))};
	if (torch->crcs) {
		static const char *const names[RECORDS_LEAD] = {"data.pkl", "byteorder", "version"};
		const char *const data[RECORDS_LEAD] = {pickle, "little", "3\n"};
		const size_t lengths[RECORDS_LEAD] = {nbytes, 6, 2};
		FILE *out = open_memstream(&torch->lead, &torch->lead_bytes);
		uint64_t at = 0;

		/* The records before the data: the pickle, the byte order and the version. */
		if (!out)
			rc = -ENOMEM;
		else {
			for (unsigned i = 0; i < RECORDS_LEAD; i++) {
				struct record record = {.crc = zip_crc32(data[i], lengths[i])};

				snprintf(record.name, sizeof(record.name), PREFIX "%s", names[i]);
				at = place_record(&record, at, lengths[i], 64);
				put_local(out, &record);
				fwrite(data[i], 1, lengths[i], out);
				torch->lead_at[i] = record.header_at;
				torch->lead_data_at[i] = record.data_at;
				torch->lead_crc[i] = record.crc;
				torch->lead_nbytes[i] = record.nbytes;
			}
			rc = fclose(out) ? -ENOMEM : 0;
		}
	} else
		rc = -ENOMEM;
	if (!rc)
		rc = place_all(torch, plan);
	return rc ? error_set(error, rc, "no memory for the directory of %s", path) : 0;
}

/* `alone`: the only tensor is the value, and there is no dictionary. */
static int place_values(struct torch *torch, struct nvs_checkpoint *plan, bool alone,
			const struct torch_count *count, const char *path, struct nvs_error *error)
{
	char *pickle = NULL;
	size_t nbytes = 0;
	FILE *out = open_memstream(&pickle, &nbytes);
	int rc = -ENOMEM;

	assert(!alone || (plan->n == 1 && !count));
	if (out) {
		pickle_begin(out);
		if (alone)
			pickle_tensor(out, plan->entries, 0);
		else {
			fputs("}(", out);
			for (size_t i = 0; i < plan->n; i++) {
				pickle_text(out, plan->entries[i].name);
				pickle_tensor(out, &plan->entries[i], i);
			}
			if (count) {
				pickle_text(out, count->name);
				pickle_number(out, count->value);
			}
			fputs("u", out);
		}
		pickle_end(out);
		rc = fclose(out) ? -ENOMEM : 0;
	}
	rc = rc ? error_set(error, rc, "no memory for the directory of %s", path)
		: torch_place_pickle(torch, plan, pickle, nbytes, path, error);
	free(pickle);
	return rc;
}

int torch_place(struct torch *torch, struct nvs_checkpoint *plan, const struct torch_count *count,
		const char *path, struct nvs_error *error)
{
	return place_values(torch, plan, false, count, path, error);
}

int torch_place_alone(struct torch *torch, struct nvs_checkpoint *plan, const char *path,
		      struct nvs_error *error)
{
	return place_values(torch, plan, true, NULL, path, error);
}

static int write_local(const struct torch *torch, const struct nvs_checkpoint *plan, size_t i,
		       const struct sink *sink, const char *path, struct nvs_aio *aio,
		       struct nvs_error *error)
{
	struct record record = record_of(plan, i, torch->crcs);
	char *text = NULL;
	size_t nbytes;
	FILE *out = open_memstream(&text, &nbytes);
	int rc;

	if (!out)
		return error_set(error, -ENOMEM, "no memory for a header of %s", path);
	record.header_at = i ? record.header_at : torch->lead_bytes;
	put_local(out, &record);
	rc = fclose(out) ? error_set(error, -ENOMEM, "no memory for a header of %s", path)
			 : sink_write_now(sink, aio, text, nbytes, record.header_at, error);
	free(text);
	return rc;
}

int torch_finish(const struct torch *torch, const struct nvs_checkpoint *plan,
		 const struct sink *sink, const char *path, struct nvs_aio *aio,
		 struct nvs_error *error)
{
	char *text = NULL;
	size_t nbytes = 0;
	int rc = 0;

	for (size_t i = 0; i < plan->n && !rc; i++)
		rc = write_local(torch, plan, i, sink, path, aio, error);
	if (rc)
		return rc;
	if (make_directory(torch, plan, &text, &nbytes))
		rc = error_set(error, -ENOMEM, "no memory for the directory of %s", path);
	else
		rc = sink_write_now(sink, aio, text, nbytes, torch->directory_at, error);
	free(text);
	return rc;
}

void torch_free(struct torch *torch)
{
	free(torch->crcs);
	free(torch->lead);
	*torch = (struct torch){0};
}
