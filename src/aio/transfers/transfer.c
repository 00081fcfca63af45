/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers: checking, submitting and promoting them, and their end: each completes once, under the
 * lock, as a request or for a completion queue, to which it is appended without the lock.
 */
#include <inttypes.h>

#include "aio/internal.h"
#include "aio/requests/requests.h"
#include "base/clock.h"

/*
 * Write-backs stay restrained for this many queues of I/Os after the last awaited read, because
 * another such read is likely. A count rather than a time makes the order of I/Os depend on I/Os
 * alone.
 */
#define RESTRAINED_QUEUES 4

/* The queue of its priority and direction. */
static struct transfer_queue *queue_of(struct nvs_aio *aio, const struct transfer *transfer)
{
	return &aio->todo[transfer->priority][transfer->direction];
}

void transfer_check(const struct transfer *transfer)
{
	if (!STATE_CHECKS)
		return;
	assert(transfer_in_flight(transfer));
	assert(transfer->file->aio && transfer->file->in_flight);
	assert(transfer->status <= 0 && !(transfer->state.queue && transfer->requests));
	assert(transfer->state.claimed <= transfer->nbytes);
	if (transfer->state.phase == TRANSFER_CLAIMED)
		assert(transfer->state.claimed == transfer->nbytes || transfer->status);
}

bool transfers_queued(const struct nvs_aio *aio)
{
	for (int i = 0; i < TRANSFER_PRIORITIES * 2; i++)
		if (!TAILQ_EMPTY(&aio->todo[i / 2][i % 2]))
			return true;
	return false;
}

void list_add_completed(struct transfer_list *completed, struct transfer *transfer)
{
	assert(!transfer->state.pending && transfer->state.phase == TRANSFER_CLAIMED);
	transfer->state.next = NULL;
	*completed->tail = transfer;
	completed->tail = &transfer->state.next;
}

void queue_pop_claimed(struct transfer_queue *todo, struct transfer_list *completed)
{
	struct transfer *transfer;

	while ((transfer = TAILQ_FIRST(todo))) {
		transfer_check(transfer);
		assert(transfer->state.phase == TRANSFER_QUEUED);
		if (transfer->state.claimed < transfer->nbytes && !transfer->status)
			return;
		TAILQ_REMOVE(todo, transfer, state.queued);
		transfer->state.phase = TRANSFER_CLAIMED;
		if (!transfer->state.pending)
			list_add_completed(completed, transfer);
	}
}

/* ---- Submitting ---- */

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
	assert((unsigned)transfer->priority < TRANSFER_PRIORITIES);
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
		TAILQ_REMOVE(queue_of(aio, transfer), transfer, state.queued);
	transfer->priority = TRANSFER_AWAITED;
	if (queued)
		TAILQ_INSERT_TAIL(queue_of(aio, transfer), transfer, state.queued);
	if (transfer_in_flight(transfer))
		aio->awaited_reads += transfer_is_awaited_read(transfer);
}

void aio_promote(struct nvs_aio *aio, struct transfer *transfer)
{
	pthread_mutex_lock(&aio->lock);
	transfer_promote(aio, transfer);
	pthread_mutex_unlock(&aio->lock);
}

/* The last thing the aio does with a transfer; its owner may free it, unless it has a queue. */
static void transfer_complete(struct nvs_aio *aio, struct transfer *transfer)
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
		TAILQ_INSERT_TAIL(queue_of(aio, transfer), transfer, state.queued);
		blocks += transfer->nbytes / aio->config.block_size + 1;
	}
	workers_check(aio);

	uint64_t idle = aio->idle;

	/* Wakes idle workers first, one per queue depth of I/Os, then those with free queue
	 * slots. */
	for (; idle && blocks; idle--) {
		pthread_cond_signal(&aio->work);
		blocks -= min_u64(blocks, aio->config.queue_depth);
	}
	for (unsigned i = 0; i < aio->nworkers && blocks; i++)
		if (aio->workers[i].waits_for_room) {
			aio->workers[i].waits_for_room = false;
			aio->ops->wake(aio->workers[i].queue, false);
			blocks -= min_u64(blocks, aio->config.queue_depth);
		}
}

void aio_submit_list(struct nvs_aio *aio, struct completions *queue, struct transfer *list)
{
	pthread_mutex_lock(&aio->lock);
	aio_queue_list(aio, queue, list);
	pthread_mutex_unlock(&aio->lock);
}

/* ---- Completing ---- */

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
		struct location place;

		/* Those with a queue are reported by their owners. */
		transfer->state.overdue = false;
		if (overdue && !transfer->state.queue) {
			place = file_place(transfer->file, transfer->state.hangs_at);
			log_later(&aio->log, NVS_LOG_WARNING,
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
		completions_append(queue, first, last);
	}
}
