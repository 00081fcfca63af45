/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a storage of a file of torch.save for its CRC-32 alone: of a tensor that is a part of its
 * storage, the file has no other.
 */
#include <assert.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/torch/zip.h"

#define CHUNK ((uint64_t)1 << 20) /* bytes between multiples of it in the file */
#define DEPTH (STORAGE_MEMORY / CHUNK)

/* Bytes before `summed` are summed; up to `begun` they are being read. Both are places in the
 * file. */
struct sum {
	struct nvs_aio *aio;
	struct nvs_file *file;
	char *memory;
	struct nvs_request *requests[DEPTH];
	uint64_t summed, begun, end;
	uint32_t crc;
};

static uint64_t chunk_end(const struct sum *sum, uint64_t offset)
{
	uint64_t end = (offset / CHUNK + 1) * CHUNK;

	return end < sum->end ? end : sum->end;
}

/* A chunk lies in memory as in the file, so that it is read directly. */
static char *place_of(const struct sum *sum, uint64_t offset)
{
	return sum->memory + offset % STORAGE_MEMORY;
}

static struct nvs_request **request_of(struct sum *sum, uint64_t offset)
{
	return &sum->requests[offset / CHUNK % DEPTH];
}

/* Waits for the oldest chunk that is being read. */
static int sum_oldest(struct sum *sum, struct nvs_error *error)
{
	uint64_t from = sum->summed, next = chunk_end(sum, from);
	int rc = requests_finish(sum->aio, request_of(sum, from), 1, error);

	assert(from < next && next <= sum->begun);
	sum->summed = next;
	if (!rc)
		sum->crc = zip_crc32_add(sum->crc, place_of(sum, from), next - from);
	return rc;
}

int storage_sum(const struct storage *storage, struct nvs_aio *aio, struct nvs_file *file,
		char *memory, uint32_t *crc, struct nvs_error *error)
{
	struct sum sum = {.aio = aio,
			  .file = file,
			  .memory = memory,
			  .summed = storage->offset,
			  .begun = storage->offset,
			  .end = storage->offset + storage->nbytes};
	int rc = 0;

	while (!rc && sum.summed < sum.end) {
		uint64_t end = (sum.summed / CHUNK + DEPTH) * CHUNK;

		/* Begins to read the next chunks; those in flight have places of their own. */
		while (!rc && sum.begun < sum.end && sum.begun < end) {
			uint64_t next = chunk_end(&sum, sum.begun);

			rc = nvs_aio_pread(sum.aio, sum.file, place_of(&sum, sum.begun),
					   next - sum.begun, sum.begun, request_of(&sum, sum.begun),
					   error);
			if (!rc)
				sum.begun = next;
		}

		if (!rc)
			rc = sum_oldest(&sum, error);
	}
	while (sum.summed < sum.begun)
		sum_oldest(&sum, NULL);
	*crc = sum.crc;
	return rc;
}
