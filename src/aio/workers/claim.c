/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Under the lock: a worker claims I/Os from the shared transfers, a mix of reads and writes, and
 * accounts those that have ended.
 *
 * The order: transfers that a call waits for (aio_promote moves them to lists of their own), then
 * reads ahead, then write-backs, which have every fourth I/O while both are queued, so that both
 * directions of the drive are busy. While reads are awaited, and for four queues of I/Os after the
 * last of them, other writes fill at most a third of a worker's queue, rounded up, so that the
 * next awaited read finds room in it; up to that share they alternate with awaited I/Os. The rule
 * counts I/Os and reads no clock, so the order is deterministic. What the kernel has already can't
 * be promoted. Within a batch the I/Os of one list are neighbours, awaited ones first: the kernel
 * merges only neighbours.
 */
#include "aio/internal.h"

void worker_check(const struct worker *worker)
{
	if (!STATE_CHECKS)
		return;

	uint32_t depth = worker->aio->config.queue_depth;

	assert(worker->nfree + worker->nbatch + worker->submitted + worker->nreaped == depth);
	assert(worker->writes <= depth - worker->nfree);
	assert(worker->turn == NVS_READ || worker->turn == NVS_WRITE);
	assert(worker->nbuffers <= ENGINE_BUFFERS);
	bounce_check(&worker->bounce);
}

/*
 * While reads are awaited, write-backs fill at most a third of the queue, rounded up. With half of
 * it a queue of awaited reads takes twice as long as on an idle drive; the rate of swapping in and
 * out together is the same.
 */
#define RESTRAINED_PART 3

/* While reads ahead are queued, a write-back takes the turn after so many of them. */
#define READS_PER_WRITE 3

/* Claims an I/O from a list. The part of writes is at least one I/O, so they always progress. */
static bool claim_from(struct worker *worker, enum transfer_priority priority, int direction)
{
	struct nvs_aio *aio = worker->aio;
	uint32_t part = (aio->config.queue_depth + RESTRAINED_PART - 1) / RESTRAINED_PART;
	struct transfer_queue *todo = &aio->todo[priority][direction];
	struct transfer *transfer = TAILQ_FIRST(todo);
	struct piece *piece;

	if (!transfer)
		return false;
	if (priority == TRANSFER_USUAL && direction == NVS_WRITE &&
	    (aio->awaited_reads || aio->restrained)) {
		if (worker->writes >= part)
			return false;
		aio->restrained -= aio->restrained > 0;
	}
	piece = worker->free[worker->nfree - 1];
	if (!piece_cut(worker, transfer, piece))
		return false;
	piece->claimed_ns = worker->now_ns;
	worker->nfree--;
	worker->writes += piece->io.write;
	worker->batch[worker->nbatch++] = piece;
	piece_check(worker, piece);
	transfer_check(transfer);
	queue_pop_claimed(todo, &worker->completed);
	return true;
}

/* Claims an I/O of that direction or, without one, of the other. Returns its direction; -1: there
 * is none. */
static int claim_either(struct worker *worker, enum transfer_priority priority, int direction)
{
	for (int i = 0; i < 2; i++, direction = !direction)
		if (claim_from(worker, priority, direction))
			return direction;
	return -1;
}

/* First an awaited I/O, then a write-back if it is its turn, and reads ahead last. */
static bool claim_any(struct worker *worker)
{
	int claimed;

	assert(worker->aio->config.overlap_events || !worker->submitted);
	if (worker->write_next && claim_from(worker, TRANSFER_USUAL, NVS_WRITE)) {
		worker->write_next = false;
		return true;
	}
	claimed = claim_either(worker, TRANSFER_AWAITED, worker->turn);
	worker->write_next = claimed >= 0;
	if (claimed >= 0) {
		worker->turn = !claimed;
		return true;
	}
	/* One write-back after every few reads, so that writing back goes on and both directions of
	 * the drive are busy. */
	claimed = claim_either(worker, TRANSFER_USUAL,
			       worker->reads_ahead < READS_PER_WRITE ? NVS_READ : NVS_WRITE);
	if (claimed >= 0)
		worker->reads_ahead = claimed == NVS_READ ? worker->reads_ahead + 1 : 0;
	return claimed >= 0;
}

void worker_claim(struct worker *worker)
{
	struct nvs_aio *aio = worker->aio;

	worker_check(worker);
	for (int i = 0; i < TRANSFER_PRIORITIES * 2; i++)
		queue_pop_claimed(&aio->todo[i / 2][i % 2], &worker->completed);
	if (!aio->config.overlap_events && pieces_in_flight(worker))
		return;
	while (worker->nfree && claim_any(worker))
		;
	assert(pieces_in_flight(worker) || !transfers_queued(aio));
	worker_check(worker);
}

void worker_account(struct worker *worker)
{
	if (worker->nreaped)
		worker->aio->moved_ns = worker->now_ns;
	for (uint32_t i = 0; i < worker->nreaped; i++) {
		struct piece *piece = worker->reaped[i];
		struct transfer *transfer = piece->transfer;

		piece_report(piece);
		transfer_check(transfer);
		assert(transfer->state.pending);
		if (!--transfer->state.pending && transfer->state.phase == TRANSFER_CLAIMED)
			list_add_completed(&worker->completed, transfer);
		piece->claimed_ns = 0;
		assert(worker->writes >= piece->io.write);
		worker->writes -= piece->io.write;
		worker->free[worker->nfree++] = piece;
	}
	worker->nreaped = 0;
	worker_check(worker);
}
