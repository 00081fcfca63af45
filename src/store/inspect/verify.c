/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the contents of tensors through the aio layer and compares their checksums. Reads of
 * several tensors are in flight together, and are summed up in the order of the store; damage of
 * one does not keep others from being read.
 */
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "base/memory/huge_map.h"
#include "base/struct_size.h"
#include "base/threads/cancel.h"
#include "store/inspect/internal.h"

#define READS_MAX  32u /* in flight */
#define READ_BYTES (UINT64_C(1) << 20)

struct tensor_read {
	struct nvs_request *request;
	uint64_t tensor, nbytes; /* without padding */
	bool last;		 /* of its tensor */
};

struct verifier {
	struct nvs_store *store;
	struct nvs_store_verdict *verdicts;
	size_t size; /* of a verdict */
	uint64_t first, end;
	uint64_t tensor, offset; /* the next byte to submit */
	unsigned head, count;	 /* reads in flight */
	struct tensor_read reads[READS_MAX];
	uint8_t *memory;
	XXH3_state_t *sum;
	struct nvs_store_verdict now; /* of the tensor that is summed up; INTACT so far */
};

static int open_for_reads(struct nvs_store *store, struct nvs_aio *aio, struct nvs_error *error)
{
	int rc = 0;

	for (unsigned i = 0; i < store->npaths && !rc; i++) {
		struct member *member = &store->members[i];

		member_open_check(member);
		if (member->direct_fd < 0)
			rc = member_probe(member, store->info.unit, NULL, error);
	}
	if (!rc)
		rc = members_open_file(store->members, store->npaths, store->info.stripe_size, aio,
				       &store->file, error);
	store->aio = rc ? NULL : aio;
	return rc;
}

/* ---- Reads ---- */

static void report(struct verifier *verifier, uint64_t tensor,
		   const struct nvs_store_verdict *verdict)
{
	char *array = (char *)verifier->verdicts;

	struct_out(array + (tensor - verifier->first) * verifier->size, verdict, sizeof(*verdict));
}

/* Tensors without contents are judged at once, in their order: nothing of others changes. */
static void skip_empty(struct verifier *verifier)
{
	const struct nvs_store_verdict empty = {.finding = NVS_STORE_EMPTY};

	for (; verifier->tensor < verifier->end; verifier->tensor++) {
		const struct store_entry *entry = &verifier->store->found.entries[verifier->tensor];

		if (entry->written && entry->nbytes)
			return;
		report(verifier, verifier->tensor, &empty);
	}
}

static int submit_read(struct verifier *verifier, struct nvs_error *error)
{
	const struct store_entry *entry = &verifier->store->found.entries[verifier->tensor];
	unsigned place = (verifier->head + verifier->count) % READS_MAX;
	struct tensor_read *read = &verifier->reads[place];
	uint64_t left = entry->nbytes - verifier->offset,
		 nbytes = left < READ_BYTES ? left : READ_BYTES;
	int rc;

	entry_check(entry, verifier->store->info.unit);
	*read = (struct tensor_read){
		.tensor = verifier->tensor, .nbytes = nbytes, .last = nbytes == left};
	/* Whole units are read directly; an extent has them. */
	rc = nvs_aio_pread(verifier->store->aio, verifier->store->file,
			   verifier->memory + place * READ_BYTES,
			   align_up(nbytes, verifier->store->info.unit),
			   entry->offset + verifier->offset, &read->request, error);
	if (rc)
		return rc;
	verifier->count++;
	verifier->offset = read->last ? 0 : verifier->offset + nbytes;
	verifier->tensor += read->last;
	return 0;
}

static void take_read(struct verifier *verifier)
{
	struct tensor_read *read = &verifier->reads[verifier->head];
	struct nvs_error why = {.size = sizeof(why)};
	int rc;

	/* An overdue read still writes to the memory. */
	do
		rc = nvs_aio_wait(verifier->store->aio, &read->request, 1, -1, &why);
	while (rc == -ETIMEDOUT);
	nvs_request_close(read->request);
	if (rc && !verifier->now.problem[0]) {
		snprintf(verifier->now.problem, sizeof(verifier->now.problem),
			 "tensor %.200s: %.300s", verifier->store->found.entries[read->tensor].name,
			 why.text);
		verifier->now.finding = NVS_STORE_UNREADABLE;
	}
	if (!rc)
		XXH3_64bits_update(verifier->sum, verifier->memory + verifier->head * READ_BYTES,
				   read->nbytes);
	verifier->head = (verifier->head + 1) % READS_MAX;
	verifier->count--;
	if (read->last) {
		const struct store_entry *entry = &verifier->store->found.entries[read->tensor];
		const struct nvs_store *store = verifier->store;
		uint64_t sum = XXH3_64bits_digest(verifier->sum), at;
		const char *path = store->members[member_of(store, entry->offset, &at)].path;

		XXH3_64bits_reset(verifier->sum);
		if (verifier->now.finding == NVS_STORE_INTACT && !entry->has_checksum) {
			verifier->now.finding = NVS_STORE_UNCHECKED;
		} else if (verifier->now.finding == NVS_STORE_INTACT && sum != entry->checksum) {
			verifier->now.finding = NVS_STORE_CORRUPT;
			snprintf(verifier->now.problem, sizeof(verifier->now.problem),
				 "tensor %.200s: its %" PRIu64
				 " bytes in %.200s from offset %" PRIu64
				 " on do not match its checksum",
				 entry->name, entry->nbytes, path, at);
		}
		report(verifier, read->tensor, &verifier->now);
		verifier->now = (struct nvs_store_verdict){.finding = NVS_STORE_INTACT};
	}
}

static int check_verdicts(struct nvs_store *store, struct nvs_aio *aio, uint64_t first, size_t n,
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
	/* All members can be read, and the manifest was. */
	if (store->info.state == NVS_STORE_KEPT || store->info.truncated)
		return 0;
	return error_set(error, -EUCLEAN, "%s",
			 store->info.problem[0] ? store->info.problem : "the store is not kept");
}

int nvs_store_verify(struct nvs_store *store, struct nvs_aio *aio, uint64_t first, size_t n,
		     struct nvs_store_verdict *verdicts, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct verifier verifier = {.store = store,
				    .verdicts = verdicts,
				    .first = first,
				    .end = first + n,
				    .tensor = first};
	int rc = n ? check_verdicts(store, aio, first, n, verdicts, error)
		   : (!store || !aio || !verdicts ? -EINVAL : 0);

	if (rc || !n)
		return rc;
	inspect_check(store);
	verifier.size = verdicts->size;
	if (!store->file)
		rc = open_for_reads(store, aio, error);
	if (rc)
		return rc;
	verifier.memory = huge_map(READS_MAX * READ_BYTES, NULL);
	verifier.sum = XXH3_createState();
	if (verifier.memory && verifier.sum) {
		XXH3_64bits_reset(verifier.sum);

		do {
			skip_empty(&verifier);
			while (!rc && verifier.count < READS_MAX &&
			       verifier.tensor < verifier.end) {
				rc = submit_read(&verifier, error);
				skip_empty(&verifier);
			}
			if (verifier.count)
				take_read(&verifier);
		} while (verifier.count || (!rc && verifier.tensor < verifier.end));
	} else {
		rc = error_no_memory(error, "verifying a store");
	}
	if (verifier.memory)
		munmap(verifier.memory, round_to_pages(READS_MAX * READ_BYTES));
	XXH3_freeState(verifier.sum);
	return rc;
}
