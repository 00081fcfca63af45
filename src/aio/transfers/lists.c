/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of transfers, under the lock: those with unclaimed bytes, by priority and direction, and
 * those about to be completed.
 */
#include <assert.h>

#include "aio/internal.h"
#include "base/state_checks.h"

static struct transfer_list *queue_of(struct nvs_aio *aio, const struct transfer *transfer)
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

void list_check(const struct transfer_list *list)
{
	if (!STATE_CHECKS)
		return;
	assert(list->tail && !*list->tail && !list->head == (list->tail == &list->head));
	if (!list->head)
		return;
	assert(list->head->state.link == &list->head);
	assert(list->head->state.phase == TRANSFER_QUEUED);
}

void transfer_append(struct nvs_aio *aio, struct transfer *transfer)
{
	struct transfer_list *todo = queue_of(aio, transfer);

	transfer_check(transfer);
	assert(transfer->state.phase == TRANSFER_QUEUED && !*todo->tail);
	transfer->state.next = NULL;
	transfer->state.link = todo->tail;
	*todo->tail = transfer;
	todo->tail = &transfer->state.next;
	list_check(todo);
}

void transfer_unlink(struct nvs_aio *aio, struct transfer *transfer)
{
	struct transfer *next = transfer->state.next;

	transfer_check(transfer);
	assert(*transfer->state.link == transfer);
	*transfer->state.link = next;
	if (next)
		next->state.link = transfer->state.link;
	else
		queue_of(aio, transfer)->tail = transfer->state.link;
	transfer->state.next = NULL;
	list_check(queue_of(aio, transfer));
}

bool transfers_queued(const struct nvs_aio *aio)
{
	for (int i = 0; i < TRANSFER_PRIORITIES * 2; i++)
		if (aio->todo[i / 2][i % 2].head)
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

void list_pop_claimed(struct nvs_aio *aio, struct transfer_list *todo,
		      struct transfer_list *completed)
{
	list_check(todo);
	while (todo->head) {
		struct transfer *transfer = todo->head;

		if (transfer->state.claimed < transfer->nbytes && !transfer->status)
			return;
		transfer_unlink(aio, transfer);
		transfer->state.phase = TRANSFER_CLAIMED;
		if (!transfer->state.pending)
			list_add_completed(completed, transfer);
	}
	list_check(todo);
}
