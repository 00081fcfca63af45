/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of transfers: each completes once, under the lock, as a request or for a completion
 * queue, to which it is appended without the lock.
 */
#include <assert.h>
#include <inttypes.h>

#include "aio/internal.h"
#include "aio/requests/requests.h"

/*
 * Write-backs stay restrained for this many queues of I/Os after the last awaited read, because
 * another such read is likely. A count rather than a time makes the order of I/Os depend on I/Os
 * alone.
 */
#define RESTRAINED_QUEUES 4

void transfer_complete(struct nvs_aio *aio, struct transfer *transfer)
{
	struct nvs_file *file = transfer->file;
	bool awaited = transfer->state.awaited;

	transfer_check(transfer);
	assert(!transfer->state.pending);
	if (transfer_is_awaited_read(transfer)) {
		assert(aio->awaited_reads);
		aio->awaited_reads--;
		aio->restrained = RESTRAINED_QUEUES * aio->config.queue_depth;
	}
	__atomic_store_n(&transfer->state.phase, TRANSFER_COMPLETED, __ATOMIC_RELEASE);
	if (transfer->requests)
		awaited |= requests_completed(transfer);
	if (!--file->in_flight && file->closing)
		awaited = true;
	if (awaited)
		pthread_cond_broadcast(&aio->done);
}

void list_publish(struct nvs_aio *aio, struct transfer_list *completed)
{
	struct transfer *list = completed->head;

	*completed = (struct transfer_list){.tail = &completed->head};
	while (list) {
		struct transfer *transfer = list;

		list = transfer->state.next;
		transfer_check(transfer);
		assert(!transfer->state.pending && transfer->state.phase == TRANSFER_CLAIMED);

		bool overdue = transfer->state.overdue;
		struct place place;

		/* Those with a queue are reported by their owners. */
		transfer->state.overdue = false;
		if (overdue && !transfer->state.queue) {
			place = file_place(transfer->file, transfer->state.hangs_at);
			aio_say(aio, NVS_LOG_WARNING,
				"%s %s at offset %" PRIu64 " completed late: %s",
				transfer->direction == NVS_WRITE ? "writing" : "reading",
				place.member->path, place.offset, nvs_strerror(transfer->status));
		}
		if (transfer->state.queue)
			list_add_completed(completed, transfer);
		transfer_complete(aio, transfer);
	}
}

/* Neighbours of one queue are appended together. */
void list_deliver(struct transfer *list)
{
	while (list) {
		struct transfer *first = list, *last = list;
		struct completions *queue = first->state.queue;

		while (last->state.next && last->state.next->state.queue == queue)
			last = last->state.next;
		list = last->state.next;
		assert(queue && first->state.phase == TRANSFER_COMPLETED);
		completions_append(queue, first, last);
	}
}
