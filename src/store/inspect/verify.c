/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the contents of tensors through the aio layer and compares their checksums. Reads of
 * several tensors are in flight together, and are summed up in the order of the store; damage of
 * one does not keep others from being read.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "aio/aio.h"
#include "base/error.h"
#include "base/memory/huge_map.h"
#include "base/struct_size.h"
#include "store/inspect/internal.h"

#define CHUNKS	    32u
#define CHUNK_BYTES (UINT64_C(1) << 20)

struct chunk {
	struct nvs_request *request;
	uint64_t tensor, nbytes; /* without padding */
	bool last;		 /* of its tensor */
};

struct reading {
	struct nvs_store *store;
	struct nvs_store_verdict *verdicts;
	size_t size; /* of a verdict */
	uint64_t first, end;
	uint64_t tensor, offset; /* the next byte to submit */
	unsigned head, count;	 /* chunks in flight */
	struct chunk chunks[CHUNKS];
	uint8_t *memory;
	XXH3_state_t *sum;
	struct nvs_store_verdict now; /* of the tensor that is summed up */
};

/* Asserts what must hold between two chunks. */
static void reading_check(const struct reading *reading)
{
	const struct manifest *found = &reading->store->found;

	assert(reading->first <= reading->tensor && reading->tensor <= reading->end);
	assert(reading->end <= found->header.count);
	assert(reading->head < CHUNKS && reading->count <= CHUNKS);
	assert(!reading->offset || (reading->tensor < reading->end &&
				    reading->offset < found->entries[reading->tensor].nbytes));
	/* Every chunk but a tensor's last is full, so the next one is aligned. */
	assert(reading->offset % CHUNK_BYTES == 0);
	assert(reading->now.finding == NVS_STORE_INTACT ||
	       reading->now.finding == NVS_STORE_UNREADABLE);
	assert((reading->now.finding == NVS_STORE_UNREADABLE) == (reading->now.problem[0] != 0));
}

/* Whether all members can be read, and the manifest was. */
static bool can_be_verified(const struct nvs_store *store)
{
	assert(!store->info.truncated || store->info.state == NVS_STORE_DAMAGED);
	return store->info.state == NVS_STORE_KEPT || store->info.truncated;
}

static int open_file(struct nvs_store *store, struct nvs_aio *aio, struct nvs_error *error)
{
	struct file_member members[NVS_PATHS_MAX];
	const struct nvs_log silent = {.fn = NULL};
	int rc = 0;

	assert(!store->file && store->locked);
	assert(can_be_verified(store));
	for (unsigned i = 0; i < store->npaths && !rc; i++) {
		struct member *member = &store->members[i];

		member_open_check(member);
		if (member->direct_fd < 0)
			rc = member_probe(member, store->info.unit, &silent, error);
		members[i] = (struct file_member){.path = member->path,
						  .fd = member->fd,
						  .direct_fd = member->direct_fd,
						  .base = member->base,
						  .dio = member->dio};
	}
	if (!rc)
		rc = file_create(aio, members, store->npaths, store->info.stripe_size, false, true,
				 &store->file, error);
	for (unsigned i = 0; i < store->npaths && !rc; i++)
		store->members[i].lent = true;
	assert(!rc == (store->file != NULL));
	store->aio = rc ? NULL : aio;
	return rc;
}

/* ---- Verdicts ---- */

static void report(struct reading *reading, uint64_t tensor, enum nvs_store_finding finding)
{
	char *array = (char *)reading->verdicts;

	assert(tensor >= reading->first && tensor < reading->end);
	assert(finding <= NVS_STORE_UNREADABLE);
	assert((finding == NVS_STORE_CORRUPT || finding == NVS_STORE_UNREADABLE) ==
	       (reading->now.problem[0] != 0));
	reading->now.finding = finding;
	struct_out(array + (tensor - reading->first) * reading->size, &reading->now,
		   sizeof(reading->now));
	reading->now = (struct nvs_store_verdict){.finding = NVS_STORE_INTACT};
}

static void judge(struct reading *reading, uint64_t tensor)
{
	const struct store_entry *entry = &reading->store->found.entries[tensor];
	const struct nvs_store *store = reading->store;
	uint64_t sum = XXH3_64bits_digest(reading->sum), at;
	const char *path = store->members[member_of(store, entry->offset, &at)].path;

	assert(entry->written && entry->nbytes && path);
	/* Tensors are judged in the order in which they were submitted. */
	assert(tensor < reading->tensor);
	XXH3_64bits_reset(reading->sum);
	if (reading->now.finding == NVS_STORE_UNREADABLE) {
		report(reading, tensor, NVS_STORE_UNREADABLE);
	} else if (!entry->has_checksum) {
		report(reading, tensor, NVS_STORE_UNCHECKED);
	} else if (sum == entry->checksum) {
		report(reading, tensor, NVS_STORE_INTACT);
	} else {
		snprintf(reading->now.problem, sizeof(reading->now.problem),
			 "tensor %.200s: its %" PRIu64 " bytes in %.200s from offset %" PRIu64
			 " on do not match its checksum",
			 entry->name, entry->nbytes, path, at);
		report(reading, tensor, NVS_STORE_CORRUPT);
	}
}

/* ---- Chunks ---- */

/* Tensors without contents are judged at once, in their order: nothing of others changes. */
static void skip_empty(struct reading *reading)
{
	assert(!reading->offset || reading->tensor < reading->end);
	while (reading->tensor < reading->end) {
		const struct store_entry *entry = &reading->store->found.entries[reading->tensor];
		struct nvs_store_verdict now = reading->now;

		if (entry->written && entry->nbytes)
			return;
		reading->now = (struct nvs_store_verdict){.finding = NVS_STORE_EMPTY};
		report(reading, reading->tensor++, NVS_STORE_EMPTY);
		reading->now = now;
	}
}

static int submit_chunk(struct reading *reading, struct nvs_error *error)
{
	const struct store_entry *entry = &reading->store->found.entries[reading->tensor];
	unsigned place = (reading->head + reading->count) % CHUNKS;
	struct chunk *chunk = &reading->chunks[place];
	uint64_t left = entry->nbytes - reading->offset,
		 nbytes = left < CHUNK_BYTES ? left : CHUNK_BYTES;
	int rc;

	assert(reading->count < CHUNKS);
	assert(left && entry->written);
	assert(reading->offset < entry->nbytes);
	entry_check(entry, reading->store->info.unit);
	*chunk =
		(struct chunk){.tensor = reading->tensor, .nbytes = nbytes, .last = nbytes == left};
	/* Whole units are read directly; an extent has them. */
	rc = nvs_aio_pread(reading->store->aio, reading->store->file,
			   reading->memory + place * CHUNK_BYTES,
			   round_to_unit(nbytes, reading->store->info.unit),
			   entry->offset + reading->offset, &chunk->request, error);
	if (rc)
		return rc;
	reading->count++;
	reading->offset = chunk->last ? 0 : reading->offset + nbytes;
	reading->tensor += chunk->last;
	return 0;
}

static void take_chunk(struct reading *reading)
{
	struct chunk *chunk = &reading->chunks[reading->head];
	struct nvs_error why = {.size = sizeof(why)};
	int rc;

	assert(reading->count);
	assert(chunk->nbytes && chunk->nbytes <= CHUNK_BYTES && chunk->tensor < reading->end);
	/* An overdue read still writes to the memory. */
	do
		rc = nvs_aio_wait(reading->store->aio, &chunk->request, 1, -1, &why);
	while (rc == -ETIMEDOUT);
	nvs_request_close(chunk->request);
	if (rc && !reading->now.problem[0]) {
		snprintf(reading->now.problem, sizeof(reading->now.problem),
			 "tensor %.200s: %.300s", reading->store->found.entries[chunk->tensor].name,
			 why.text);
		reading->now.finding = NVS_STORE_UNREADABLE;
	}
	if (!rc)
		XXH3_64bits_update(reading->sum, reading->memory + reading->head * CHUNK_BYTES,
				   chunk->nbytes);
	reading->head = (reading->head + 1) % CHUNKS;
	reading->count--;
	if (chunk->last)
		judge(reading, chunk->tensor);
}

static int read_all(struct reading *reading, struct nvs_error *error)
{
	int rc = 0;

	do {
		skip_empty(reading);
		while (!rc && reading->count < CHUNKS && reading->tensor < reading->end) {
			rc = submit_chunk(reading, error);
			skip_empty(reading);
		}
		if (reading->count)
			take_chunk(reading);
		reading_check(reading);
	} while (reading->count || (!rc && reading->tensor < reading->end));
	assert(!reading->count);
	assert(rc || reading->tensor == reading->end);
	return rc;
}

static int check(struct nvs_store *store, struct nvs_aio *aio, uint64_t first, size_t n,
		 const struct nvs_store_verdict *verdicts, struct nvs_error *error)
{
	if (!store || !aio || !struct_sized(verdicts))
		return error_set(error, -EINVAL, "an argument is NULL, or a size is not set");
	if (first > store->found.header.count || n > store->found.header.count - first)
		return error_set(error, -EINVAL, "the store has no such tensors");
	if (!store->locked || (store->aio && store->aio != aio))
		return error_set(error, -EINVAL, "the store is not locked, or has another aio");
	for (size_t i = 0; i < n; i++)
		if (((const struct nvs_store_verdict *)((const char *)verdicts +
							i * verdicts->size))
			    ->size != verdicts->size)
			return error_set(error, -EINVAL, "the sizes of the verdicts differ");
	return can_be_verified(store) ? 0
				      : error_set(error, -EUCLEAN, "%s",
						  store->info.problem[0] ? store->info.problem
									 : "the store is not kept");
}

int nvs_store_verify(struct nvs_store *store, struct nvs_aio *aio, uint64_t first, size_t n,
		     struct nvs_store_verdict *verdicts, struct nvs_error *error)
{
	struct reading reading = {.first = first, .end = first + n, .tensor = first};
	int rc = n ? check(store, aio, first, n, verdicts, error)
		   : (!store || !aio || !verdicts ? -EINVAL : 0);

	if (rc || !n)
		return rc;
	inspect_check(store);
	reading.store = store;
	reading.verdicts = verdicts;
	reading.size = verdicts->size;
	if (!store->file)
		rc = open_file(store, aio, error);
	if (rc)
		return rc;
	reading.memory = huge_map(CHUNKS * CHUNK_BYTES, NULL);
	reading.sum = XXH3_createState();
	if (reading.memory && reading.sum) {
		XXH3_64bits_reset(reading.sum);
		rc = read_all(&reading, error);
	} else {
		rc = error_set(error, -ENOMEM, "out of memory while verifying a store");
	}
	if (reading.memory)
		munmap(reading.memory, round_to_pages(CHUNKS * CHUNK_BYTES));
	XXH3_freeState(reading.sum);
	return rc;
}
