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
#include "base/numbers.h"
#include "checkpoint/torch/pickle.h"
#include "checkpoint/torch/zip.h"

#define PAGE	     4096u
#define LOCAL_BYTES  30u
#define LARGE	     UINT32_MAX /* a field of 32 bits whose value is in the ZIP64 extra field */
#define PREFIX	     "archive/"
#define PAD_ID	     0x4246u /* the extra field that torch pads with */
#define RECORDS_LEAD 3u

/* The lowest `nbytes` bytes of a number, the lowest first, as zips and pickles have them. */
static void put_number(FILE *out, uint64_t value, unsigned nbytes)
{
	for (unsigned i = 0; i < nbytes; i++)
		fputc((int)(value >> (8 * i) & 0xff), out);
}

/* ---- Pickles ---- */

static void pickle_text(FILE *out, const char *text)
{
	fputc('X', out);
	put_number(out, strlen(text), 4);
	fputs(text, out);
}

static void pickle_number(FILE *out, uint64_t number)
{
	unsigned nbytes = 1;

	if (number <= INT32_MAX) {
		fputc('J', out);
		put_number(out, number, 4);
		return;
	}
	while (nbytes < 9 && (nbytes == 8 || number >> (8 * nbytes - 1)))
		nbytes++;
	fputs("\x8a", out);
	fputc((int)nbytes, out);
	put_number(out, number, nbytes < 8 ? nbytes : 8);
	if (nbytes == 9)
		fputc(0, out);
}

static void pickle_name(FILE *out, const char *name)
{
	const char *dot = strrchr(name, '.');

	assert(dot);
	fprintf(out, "c%.*s\n%s\n", (int)(dot - name), name, dot + 1);
}

/*
 * A tensor of which record `index` has the data. Types without a storage of their own lie in bytes,
 * and name the type behind the rest.
 */
static void pickle_tensor(FILE *out, const struct entry *entry, size_t index)
{
	const char *storage = pickle_name_of(NAME_STORAGE, entry->dtype);
	char number[24];

	snprintf(number, sizeof(number), "%zu", index);
	fprintf(out, "ctorch._utils\n_rebuild_tensor_v%d\n((", storage ? 2 : 3);
	pickle_text(out, "storage");
	pickle_name(out, storage ? storage : "torch.storage.UntypedStorage");
	pickle_text(out, number);
	pickle_text(out, "cpu");
	pickle_number(out, storage ? entry->numel : entry->nbytes);
	fputs("tQK", out);
	fputc(0, out);

	fputc('(', out);
	for (size_t i = 0; i < entry->ndim; i++)
		pickle_number(out, entry->shape[i]);
	fputs("t(", out);
	for (size_t i = 0; i < entry->ndim; i++) {
		uint64_t stride = 1;

		for (size_t j = i + 1; j < entry->ndim; j++)
			stride *= entry->shape[j] ? entry->shape[j] : 1;
		pickle_number(out, stride);
	}
	fputc('t', out);
	fputs("\x89"
	      "ccollections\nOrderedDict\n)R",
	      out);
	if (!storage)
		pickle_name(out, pickle_name_of(NAME_CONSTANT, entry->dtype));
	fputs("tR", out);
}

/* ---- Zips ---- */

/* The records before the data. */
static const char *const lead_names[RECORDS_LEAD] = {"data.pkl", "byteorder", "version"};

/* A record of the zip. */
struct record {
	char name[48];
	struct zip_place place;
};

/* The fields that local headers and the directory have in common. */
static void put_common(FILE *out, const struct record *record, unsigned extra)
{
	bool large = record->place.nbytes >= LARGE;

	put_number(out, large ? 45 : 20, 2); /* the version that is needed */
	put_number(out, 0x800, 2);	     /* names are UTF-8 */
	put_number(out, 0, 2);		     /* stored */
	put_number(out, 0, 2);
	put_number(out, 0x21, 2); /* 1 January 1980 */
	put_number(out, record->place.crc, 4);
	put_number(out, large ? LARGE : record->place.nbytes, 4);
	put_number(out, large ? LARGE : record->place.nbytes, 4);
	put_number(out, strlen(record->name), 2);
	put_number(out, extra, 2);
}

static void put_local(FILE *out, const struct record *record)
{
	unsigned extra = (unsigned)(record->place.data_at - record->place.header_at - LOCAL_BYTES -
				    strlen(record->name));

	put_number(out, 0x04034b50, 4);
	put_common(out, record, extra);
	fputs(record->name, out);
	if (record->place.nbytes >= LARGE) {
		put_number(out, 1, 2);
		put_number(out, 16, 2);
		put_number(out, record->place.nbytes, 8);
		put_number(out, record->place.nbytes, 8);
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
	bool large = record->place.nbytes >= LARGE || record->place.header_at >= LARGE,
	     long_data = record->place.nbytes >= LARGE;

	put_number(out, 0x02014b50, 4);
	put_number(out, 45, 2);
	put_common(out, record, large ? 4 + 8 + (long_data ? 16 : 0) : 0);
	put_number(out, 0, 8); /* no comment, disk 0, no attributes */
	put_number(out, 0, 2);
	put_number(out, large ? LARGE : record->place.header_at, 4);
	fputs(record->name, out);
	if (!large)
		return;
	put_number(out, 1, 2);
	put_number(out, 8 + (long_data ? 16 : 0), 2);
	if (long_data) {
		put_number(out, record->place.nbytes, 8);
		put_number(out, record->place.nbytes, 8);
	}
	put_number(out, record->place.header_at, 8);
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

/* Places a record of that many bytes behind `at`, its data at a multiple of `align`. */
static uint64_t place_record(struct record *record, uint64_t at, uint64_t nbytes, unsigned align)
{
	record->place.nbytes = nbytes;
	record->place.header_at = at;
	record->place.data_at = align_up(at + LOCAL_BYTES + strlen(record->name) + 20 + 4, align);
	return record->place.data_at + nbytes;
}

static struct record record_of(const struct torch *torch, const struct nvs_checkpoint *plan,
			       size_t i)
{
	const struct entry *entry = &plan->entries[i];
	struct record record = {.place = {.crc = torch->crcs[i],
					  .nbytes = entry->nbytes,
					  .data_at = entry->offset,
					  .header_at = i ? entry[-1].offset + entry[-1].nbytes
							 : torch->lead_bytes}};

	snprintf(record.name, sizeof(record.name), PREFIX "data/%zu", i);
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
		record.place = torch->lead_places[i];
		snprintf(record.name, sizeof(record.name), PREFIX "%s", lead_names[i]);
		put_central(out, &record);
	}
	for (size_t i = 0; i < plan->n; i++) {
		record = record_of(torch, plan, i);
		put_central(out, &record);
	}
	fflush(out);
	put_end(out, plan->n + RECORDS_LEAD, torch->directory_at, *nbytes);
	return fclose(out) ? -ENOMEM : 0;
}

/* The pickle, the byte order and the version stand before the data. */
int torch_place_pickle(struct torch *torch, struct nvs_checkpoint *plan, const char *pickle,
		       size_t pickle_bytes, const char *path, struct nvs_error *error)
{
	const char *const data[RECORDS_LEAD] = {pickle, "little", "3\n"};
	const size_t lengths[RECORDS_LEAD] = {pickle_bytes, 6, 2};
	struct record record;
	char *text = NULL;
	size_t nbytes = 0;
	uint64_t at = 0;
	FILE *out;
	int rc = -ENOMEM;

	*torch = (struct torch){.crcs = calloc(plan->n + 1, sizeof(uint32_t))};
	out = torch->crcs ? open_memstream(&torch->lead, &torch->lead_bytes) : NULL;
	for (unsigned i = 0; i < RECORDS_LEAD && out; i++) {
		record.place.crc = zip_crc32(data[i], lengths[i]);
		snprintf(record.name, sizeof(record.name), PREFIX "%s", lead_names[i]);
		at = place_record(&record, at, lengths[i], 64);
		put_local(out, &record);
		fwrite(data[i], 1, lengths[i], out);
		torch->lead_places[i] = record.place;
	}
	if (out)
		rc = fclose(out) ? -ENOMEM : 0;
	for (size_t i = 0; i < plan->n && !rc; i++) {
		record = record_of(torch, plan, i);
		at = place_record(&record, at, plan->entries[i].nbytes, PAGE);
		plan->entries[i].file = 0;
		plan->entries[i].offset = record.place.data_at;
	}
	torch->directory_at = at;
	if (!rc)
		rc = make_directory(torch, plan, &text, &nbytes);
	torch->file_bytes = at + nbytes;
	free(text);
	return rc ? error_set(error, rc, "no memory for the directory of %s", path) : 0;
}

int torch_place(struct torch *torch, struct nvs_checkpoint *plan, const struct torch_count *count,
		const char *path, struct nvs_error *error)
{
	char *pickle = NULL;
	size_t nbytes = 0;
	FILE *out;
	int rc = -ENOMEM;

	for (size_t i = 0; i < plan->n; i++)
		if (!pickle_name_of(NAME_CONSTANT, plan->entries[i].dtype))
			return error_about(error, -EINVAL, plan->entries[i].name, 0, 0,
					   "%s: tensor %s: a file of torch.save has no %s: write a "
					   ".safetensors file, or leave the tensor out",
					   path, plan->entries[i].name,
					   nvs_dtype_name(plan->entries[i].dtype));
	out = open_memstream(&pickle, &nbytes);
	if (out) {
		fputs("\x80\x02}(", out);
		for (size_t i = 0; i < plan->n; i++) {
			pickle_text(out, plan->entries[i].name);
			pickle_tensor(out, &plan->entries[i], i);
		}
		if (count) {
			pickle_text(out, count->name);
			pickle_number(out, count->value);
		}
		fputs("u.", out);
		rc = fclose(out) ? -ENOMEM : 0;
	}
	rc = rc ? error_set(error, rc, "no memory for the directory of %s", path)
		: torch_place_pickle(torch, plan, pickle, nbytes, path, error);
	free(pickle);
	return rc;
}

int torch_finish(const struct torch *torch, const struct nvs_checkpoint *plan,
		 const struct sink *sink, const char *path, struct nvs_aio *aio,
		 struct nvs_error *error)
{
	char *text = NULL;
	size_t nbytes = 0;
	int rc = 0;

	for (size_t i = 0; i < plan->n && !rc; i++) {
		struct record record = record_of(torch, plan, i);
		FILE *out = open_memstream(&text, &nbytes);

		if (out)
			put_local(out, &record);
		rc = !out || fclose(out)
			     ? error_set(error, -ENOMEM, "no memory for a header of %s", path)
			     : sink_write_now(sink, aio, text, nbytes, record.place.header_at,
					      error);
		free(text);
		text = NULL;
	}
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
