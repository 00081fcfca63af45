/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers: checking, submitting and promoting them.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#include "aio/internal.h"
#include "base/clock.h"
#include "base/error.h"

int aio_check(const struct nvs_aio *aio, const struct transfer *transfer, struct nvs_error *error)
{
	if (!transfer->file || (!transfer->data && transfer->nbytes))
		return error_set(error, -EINVAL, "transfer has no file or no memory");
	if (transfer->file->aio != aio)
		return error_set(error, -EINVAL, "%s was opened with another aio",
				 transfer->file->members[0].path);
	if (transfer->direction != NVS_READ && transfer->direction != NVS_WRITE)
		return error_set(error, -EINVAL,
				 "transfer direction is %d: it must be NVS_READ or NVS_WRITE",
				 (int)transfer->direction);
	if ((unsigned)transfer->priority >= TRANSFER_PRIORITIES)
		return error_set(error, -EINVAL, "transfer priority is %d",
				 (int)transfer->priority);
	if (transfer->direction == NVS_WRITE && !transfer->file->writable)
		return error_cause(
			error, NVS_CAUSE_OTHER, transfer->file->members[0].path,
			error_set(error, -EINVAL,
				  "%s is open for reading only: open it with NVS_FILE_WRITE",
				  transfer->file->members[0].path));
	if (transfer->direction == NVS_WRITE && transfer->file->units &&
	    (transfer->offset | transfer->nbytes) % transfer->file->offset_align)
		return error_set(error, -EINVAL,
				 "%s: a write of %" PRIu64 " bytes at offset %" PRIu64
				 ": both must be multiples of %u bytes with NVS_FILE_UNITS",
				 transfer->file->members[0].path, (uint64_t)transfer->nbytes,
				 (uint64_t)transfer->offset, transfer->file->offset_align);
	if (transfer->offset > INT64_MAX || transfer->nbytes > INT64_MAX - transfer->offset)
		return error_set(error, -EINVAL, "%s: transfer ends beyond offset 2^63",
				 transfer->file->members[0].path);
	return 0;
}

void transfer_promote(struct nvs_aio *aio, struct transfer *transfer)
{
	bool queued = transfer->state.phase == TRANSFER_QUEUED;

	if (transfer->priority == TRANSFER_AWAITED)
		return;
	if (queued)
		transfer_unlink(aio, transfer);
	transfer->priority = TRANSFER_AWAITED;
	if (queued)
		transfer_append(aio, transfer);
	if (transfer_in_flight(transfer))
		aio->awaited_reads += transfer_is_awaited_read(transfer);
}

void transfers_promote_requests(struct nvs_aio *aio)
{
	for (int direction = NVS_READ; direction <= NVS_WRITE; direction++) {
		struct transfer *next = aio->todo[TRANSFER_USUAL][direction].head;

		list_check(&aio->todo[TRANSFER_USUAL][direction]);
		while (next) {
			struct transfer *transfer = next;

			next = transfer->state.next;
			if (transfer->requests)
				transfer_promote(aio, transfer);
		}
	}
}

void aio_promote(struct nvs_aio *aio, struct transfer *transfer)
{
	pthread_mutex_lock(&aio->lock);
	transfer_promote(aio, transfer);
	pthread_mutex_unlock(&aio->lock);
}

void aio_queue_list(struct nvs_aio *aio, struct completions *queue, struct transfer *list)
{
	uint64_t blocks = 0, now = aio->config.io_timeout_ms ? clock_ns() : 0;

	while (list) {
		struct transfer *transfer = list;

		list = transfer->state.next;
		assert(!queue == (transfer->requests != NULL));
		assert(!aio_check(aio, transfer, NULL));
		transfer->status = 0;
		transfer->error_offset = 0;
		transfer->state = (struct transfer_state){
			.queue = queue, .phase = TRANSFER_QUEUED, .since_ns = now};
		transfer->file->in_flight++;
		aio->awaited_reads += transfer_is_awaited_read(transfer);
		transfer_check(transfer);
		if (!transfer->nbytes && transfer->requests) {
			transfer_complete(aio, transfer);
			continue;
		}
		assert(transfer->nbytes);
		transfer_append(aio, transfer);
		blocks += transfer->nbytes / aio->config.block_size + 1;
	}
	workers_check(aio);

	uint64_t idle = aio->idle;

	/* Wakes idle workers first, one per queue depth of I/Os, then those with free queue
	 * slots. */
	for (; idle && blocks; idle--) {
		pthread_cond_signal(&aio->work);
		blocks -= blocks < aio->config.queue_depth ? blocks : aio->config.queue_depth;
	}
	for (unsigned i = 0; i < aio->nworkers && blocks; i++)
		if (aio->workers[i].waits_for_room) {
			aio->workers[i].waits_for_room = false;
			aio->ops->wake(aio->workers[i].queue);
			blocks -= blocks < aio->config.queue_depth ? blocks
								   : aio->config.queue_depth;
		}
}

void aio_submit_list(struct nvs_aio *aio, struct completions *queue, struct transfer *list)
{
	assert(queue);
	pthread_mutex_lock(&aio->lock);
	aio_queue_list(aio, queue, list);
	pthread_mutex_unlock(&aio->lock);
}
