/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker: one thread with one engine queue. In each round it catches up with the aio
 * (catch_up), claims I/Os (claim.c), submits and reaps them, and accounts their completions; up
 * to queue_depth of them are in flight. It takes the aio's lock once per round, whatever the number
 * of I/Os. It runs no code of the owners of transfers: it appends completed ones to their queues.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aio/internal.h"
#include "base/clock.h"
#include "base/memory/cache.h"
#include "base/threads/thread.h"
#include "trace/trace.h"

/* ---- Without the lock: submit and reap ---- */

/* Groups by batch size: 0, 1-4, 5-8, 9-16, 17-32, 33-64, more. */
static unsigned size_group(uint32_t n)
{
	unsigned group = n <= 4 ? n > 0 : 31 - (unsigned)__builtin_clz(n - 1);

	return group < NVS_DEPTHS ? group : NVS_DEPTHS - 1;
}

static void submit_batch(struct worker *worker)
{
	struct tally *tally = &worker->tally;
	uint32_t taken = 0, kept = 0;
	uint64_t now;
	int rc = 0;

	while (taken < worker->nbatch) {
		unsigned group;

		rc = worker->aio->ops->submit(worker->queue, worker->ios + taken,
					      worker->nbatch - taken);
		assert(rc != 0 && rc <= (int)(worker->nbatch - taken));
		if (rc < 0) {
			tally->submit_sizes[0]++;
			break;
		}
		taken += (uint32_t)rc;
		worker->submitted += (uint32_t)rc;
		/* Groups by queue depth: 1, 2-3, 4-7, ..., 64 and more. */
		group = 31 - (unsigned)__builtin_clz(worker->submitted);
		tally->depth_ios[group < NVS_DEPTHS ? group : NVS_DEPTHS - 1] += (uint32_t)rc;
		/* single_submit makes one submission call per I/O, else there was one for all. */
		if (worker->aio->config.single_submit)
			tally->submit_sizes[size_group(1)] += (uint32_t)rc;
		else
			tally->submit_sizes[size_group((uint32_t)rc)]++;
	}
	now = taken ? clock_ns() : 0;
	for (uint32_t i = 0; i < taken; i++)
		worker->batch[i]->taken_ns = now;
	/* The engine accepted none of the rest, which is their result; but -EAGAIN while others are
	 * in flight is waited for. */
	for (uint32_t i = taken; i < worker->nbatch; i++) {
		struct piece *piece = worker->batch[i];

		piece->io.result = rc;
		if ((rc == -EAGAIN && worker->submitted) || !piece_finish(worker, piece))
			worker->batch[kept++] = piece;
		else
			worker->reaped[worker->nreaped++] = piece;
	}
	worker->nbatch = kept;
	worker_check(worker);
	if (kept && !worker->submitted)
		sched_yield();
}

static unsigned list_of(const struct piece *piece)
{
	return (unsigned)(2 * (TRANSFER_PRIORITIES - 1 - piece->priority) + piece->io.write);
}

static void submit_claimed(struct worker *worker)
{
	uint64_t now = clock_ns();
	uint32_t at[TRANSFER_PRIORITIES * 2 + 1] = {0};

	/* Groups the batch by the lists that its I/Os were claimed from, awaited ones first, into
	 * `ios`. Claims alternate between lists, and the kernel merges an I/O only with its
	 * neighbour in a batch. A merged request notifies the drive once, which costs more
	 * processor time than the merge. */
	for (uint32_t i = 0; i < worker->nbatch; i++)
		at[list_of(worker->batch[i]) + 1]++;
	for (unsigned i = 1; i < TRANSFER_PRIORITIES * 2; i++)
		at[i + 1] += at[i];
	assert(at[TRANSFER_PRIORITIES * 2] == worker->nbatch);
	for (uint32_t i = 0; i < worker->nbatch; i++)
		worker->ios[at[list_of(worker->batch[i])]++] = &worker->batch[i]->io;
	for (uint32_t i = 0; i < worker->nbatch; i++) {
		struct piece *piece = worker->ios[i]->owner;

		worker->batch[i] = piece;
		if (!piece->begun_ns) {
			piece->begun_ns = now;
			piece_begin(piece);
		}
		piece->handed_ns = now;
		piece_choose_slots(worker, piece);
		piece_check(worker, piece);
	}
	submit_batch(worker);
}

/* The more bytes are in flight, the longer the drive stays busy with the rest, so the worker may
 * wait for a larger part. */
#define LARGE_IO_BYTES	  (256u * 1024)
#define LARGE_QUEUE_BYTES (16u << 20)

/*
 * Usually one, so that no transfer is delayed by another's I/O. If the queue is full and more work
 * is waiting, an eighth of the queue, or a quarter if I/Os are large; or up to half, but no more
 * than 16 MiB, if the queue has 16 MiB or more. That saves most rounds and still keeps the drive
 * busy. With io_timeout_ms always one, so that a hanging I/O does not delay those that completed.
 */
uint32_t worker_wait_for(const struct aio_config *config, uint32_t submitted, bool full)
{
	assert(submitted && submitted <= config->queue_depth);
	if (config->io_timeout_ms)
		return 1;
	if (!config->overlap_events)
		return submitted;
	if (full && submitted >= 8) {
		uint32_t half = submitted / 2, quarter = submitted / 4;
		uint32_t most = LARGE_QUEUE_BYTES / config->block_size;

		if (config->block_size < LARGE_IO_BYTES)
			return submitted / 8;
		if ((uint64_t)config->block_size * submitted < LARGE_QUEUE_BYTES || most < quarter)
			return quarter;
		return most < half ? most : half;
	}
	return 1;
}

/* Evaluates the I/Os in worker->ios, which stay there. Copies from the bounce buffer, so without
 * the lock of the counters. */
static void finish_reaped(struct worker *worker, unsigned n, struct nvs_trace *trace, uint64_t now)
{
	/* The pieces were last used when they were submitted, so their cache lines are cold. */
	_Static_assert(offsetof(struct piece, io) == 0, "an I/O is at the start of its piece");

	for (unsigned i = 0; i < n; i++)
		load_lines(worker->ios[i], sizeof(struct piece));
	for (unsigned i = 0; i < n; i++) {
		struct piece *piece = worker->ios[i]->owner;

		if (piece_finish(worker, piece)) {
			/* Traces the piece including its retries; a failed one counts as 0
			 * bytes. */
			trace_io(trace, piece->io.write, worker->index, piece->io.index,
				 piece->begun_ns, now, piece->position,
				 piece->status ? 0 : piece->useful);
			worker->reaped[worker->nreaped++] = piece;
		} else {
			worker->tally.retries++;
			worker->batch[worker->nbatch++] = piece;
		}
	}
}

static void reap_completions(struct worker *worker, unsigned min, struct nvs_trace *trace)
{
	uint32_t depth = worker->aio->config.queue_depth;
	int n = worker->aio->ops->reap(worker->queue, worker->ios, depth, min);
	uint64_t now;

	assert(n <= (int)worker->submitted && min <= worker->aio->options.wait_max);
	worker->tally.reap_sizes[size_group(n > 0 ? (uint32_t)n : 0)]++;
	if (n < 0) {
		/* The kernel may still write to the memory of these I/Os, so they stay in
		 * flight. */
		if (worker->reap_status != n)
			log_later(&worker->aio->log, NVS_LOG_ERROR,
				  "%s: can't retrieve completions from the kernel: %s; retrying "
				  "every %d ms",
				  worker->aio->ops->name, nvs_strerror(n), REAP_AGAIN_MS);
		worker->reap_status = n;
		nanosleep(&(struct timespec){.tv_nsec = REAP_AGAIN_MS * 1000000L}, NULL);
		return;
	}
	worker->reap_status = 0;
	now = clock_ns();
	finish_reaped(worker, (unsigned)n, trace, now);
	pthread_mutex_lock(&worker->stats_lock);
	if (worker->submitted > worker->inflight_max)
		worker->inflight_max = worker->submitted;
	for (int i = 0; i < n; i++) {
		const struct piece *piece = worker->ios[i]->owner;
		enum nvs_direction direction = piece->io.write ? NVS_WRITE : NVS_READ;
		struct nvs_latency *latency = worker->latency[direction];
		uint32_t nbytes = (uint32_t)piece->io.result;

		assert(now >= piece->taken_ns && piece->taken_ns >= piece->handed_ns);
		assert(piece->handed_ns >= piece->begun_ns && piece->begun_ns);
		if (piece->io.result < 0)
			continue;
		worker->bytes[direction] += nbytes;
		worker->ios_done[direction]++;
		if (piece->bounce >= 0)
			worker->bounced_bytes += nbytes;
		if (piece->io.write)
			__atomic_fetch_add(&piece->transfer->file->written[piece->member], nbytes,
					   __ATOMIC_RELAXED);
		/* For a resubmitted I/O, slat and clat are of the last submission; lat counts from
		 * the first. */
		latency_add(&latency[NVS_SLAT], piece->taken_ns - piece->handed_ns);
		latency_add(&latency[NVS_CLAT], now - piece->taken_ns);
		latency_add(&latency[NVS_LAT], now - piece->begun_ns);
	}
	worker->tally_seen = worker->tally;
	pthread_mutex_unlock(&worker->stats_lock);
	worker->submitted -= (uint32_t)n;
	worker_check(worker);
}

/* ---- What all workers share: files, regions of memory, the binding to a NUMA node ---- */

/* Descriptor numbers are reused, so a slot that can't be changed must not seem to hold the new
 * file. */
#define FILE_UNKNOWN (-2)

/* The old memory leaves the slot first: if the ring refuses the new, no I/O may name the slot. */
static void sync_buffer(struct worker *worker, unsigned slot, const struct region *wanted)
{
	const struct engine_ops *ops = worker->aio->ops;
	struct ring_buffer *buffer = &worker->buffers[slot];
	int rc;

	if (buffer->data) {
		*buffer = (struct ring_buffer){.data = NULL};
		(void)ops->set_buffer(worker->queue, slot, NULL, 0);
	}
	if (!wanted->data)
		return;
	rc = ops->set_buffer(worker->queue, slot, wanted->data, wanted->nbytes);
	if (!rc) {
		*buffer = (struct ring_buffer){.data = wanted->data,
					       .nbytes = wanted->nbytes,
					       .generation = wanted->generation};
		if (worker->nbuffers <= slot)
			worker->nbuffers = slot + 1;
	}

	struct region *region = &worker->aio->regions[slot];

	/* Records the result of registering the region, unless its slot has been reused. */
	pthread_mutex_lock(&worker->aio->lock);
	if (region->generation == wanted->generation) {
		region->registered += !rc;
		if (rc && rc != -ENOTSUP)
			region->status = rc;
		region_check(worker->aio, region);
	}
	pthread_mutex_unlock(&worker->aio->lock);
}

/*
 * Under the lock, which it drops: applies changes of the aio's files, regions and binding to the
 * worker's own ring and thread. Only its own thread may change a ring of a single issuer.
 */
static void catch_up(struct worker *worker)
{
	struct nvs_aio *aio = worker->aio;
	const struct engine_ops *ops = aio->ops;
	uint64_t epoch = aio->epoch;
	unsigned nregions = aio->nregions;
	const struct topo *topo = aio->topo;
	int node = aio->node, rc;
	int wanted[ENGINE_FILES];

	assert(worker->epoch < epoch);
	memcpy(wanted, aio->files, sizeof(wanted));
	pthread_mutex_unlock(&aio->lock);
	for (unsigned slot = 0; slot < ENGINE_FILES && ops->set_file; slot++)
		if (worker->files[slot] != wanted[slot]) {
			rc = ops->set_file(worker->queue, slot, wanted[slot]);
			worker->files[slot] = rc ? FILE_UNKNOWN : wanted[slot];
		}
	for (unsigned slot = 0; slot < nregions && ops->set_buffer; slot++) {
		struct region region;

		pthread_mutex_lock(&aio->lock);
		region = aio->regions[slot];
		pthread_mutex_unlock(&aio->lock);
		if (region.only && region.only != worker)
			region = (struct region){.data = NULL};
		if (worker->buffers[slot].generation != region.generation)
			sync_buffer(worker, slot, &region);
	}
	if (topo && worker->bound_node != node) {
		worker->bound_node = node;
		rc = topo_bind_thread(topo, node);
		if (rc)
			log_later(&aio->log, NVS_LOG_INFO,
				  "worker %u can't be bound to the cores of NUMA node %d: %s",
				  worker->index, node, nvs_strerror(rc));
	}
	pthread_mutex_lock(&aio->lock);
	worker->epoch = epoch;
	worker_check(worker);
	pthread_cond_broadcast(&aio->synced);
}

/* ---- The thread ---- */

static void round_of_io(struct worker *worker)
{
	struct nvs_aio *aio = worker->aio;
	struct nvs_trace *trace;
	bool more;

	assert(!worker->waits_for_room && worker->epoch == aio->epoch);
	worker->now_ns = aio->config.io_timeout_ms ? clock_ns() : 0;
	worker->completed = (struct transfer_list){.tail = &worker->completed.head};
	worker_account(worker);
	worker_claim(worker);
	list_publish(aio, &worker->completed);
	trace = aio->trace;
	more = transfers_queued(aio);
	worker->waits_for_room = worker->nfree && aio->config.overlap_events;
	pthread_mutex_unlock(&aio->lock);

	/* Without overlap_events, retries wait for the I/Os in flight like any other. */
	if (aio->config.overlap_events || !worker->submitted)
		submit_claimed(worker);
	list_deliver(worker->completed.head);
	/* Waits for none if pieces have ended already: their transfers are not delayed. */
	if (worker->submitted)
		reap_completions(worker,
				 worker->nreaped ? 0
						 : worker_wait_for(&aio->config, worker->submitted,
								   more && !worker->nfree),
				 trace);

	pthread_mutex_lock(&aio->lock);
	worker->waits_for_room = false;
	worker_check(worker);
}

static void *worker_main(void *arg)
{
	struct worker *worker = arg;
	struct nvs_aio *aio = worker->aio;
	int status = bounce_open(&worker->bounce, aio->config.queue_depth,
				 aio->config.thread_count);

	if (status)
		snprintf(worker->open_reason, sizeof(worker->open_reason), "%s",
			 "no memory for the bounce buffer");
	else
		status = aio->ops->open(&worker->queue, &aio->options, &worker->tally.facts,
					worker->open_reason, sizeof(worker->open_reason));
	/* The worker runs for microseconds at a time, and the drive idles until it does. */
	take_short_slices();
	pthread_mutex_lock(&worker->stats_lock);
	worker->tally_seen = worker->tally;
	pthread_mutex_unlock(&worker->stats_lock);
	pthread_mutex_lock(&aio->lock);
	assert(!worker->opened);
	worker->open_status = status;
	worker->opened = true;
	aio->running++;
	pthread_cond_broadcast(&aio->synced);
	while (!status) {
		/* catch_up() drops the lock: repeat until no I/O can name a stale slot. */
		while (worker->epoch != aio->epoch)
			catch_up(worker);
		if (pieces_in_flight(worker) || transfers_queued(aio)) {
			round_of_io(worker);
			continue;
		}
		if (aio->closing)
			break;
		assert(!worker->waits_for_room && aio->idle < aio->running);
		aio->idle++;
		pthread_cond_wait(&aio->work, &aio->lock);
		aio->idle--;
	}
	assert(status || worker->nfree == aio->config.queue_depth);
	pthread_mutex_unlock(&aio->lock);
	if (!status)
		aio->ops->close(worker->queue);
	return NULL;
}

int worker_start(struct worker *worker)
{
	uint32_t depth = worker->aio->config.queue_depth;
	int rc;

	pthread_mutex_init(&worker->stats_lock, NULL);
	memset(worker->files, -1, sizeof(worker->files));
	worker->bound_node = -1;
	worker->pieces = calloc(depth, sizeof(*worker->pieces));
	worker->ios = calloc(depth, sizeof(struct io *));
	worker->batch = calloc(depth, sizeof(struct piece *));
	worker->reaped = calloc(depth, sizeof(struct piece *));
	worker->free = calloc(depth, sizeof(struct piece *));
	if (!worker->pieces || !worker->ios || !worker->batch || !worker->reaped || !worker->free)
		return -ENOMEM;
	/* A stack, lowest index on top: a shallow load reuses few pieces of a deep queue. */
	for (worker->nfree = 0; worker->nfree < depth; worker->nfree++) {
		struct piece *piece = &worker->pieces[depth - 1 - worker->nfree];

		piece->io.index = depth - 1 - worker->nfree;
		worker->free[worker->nfree] = piece;
	}
	worker_check(worker);
	rc = thread_start(&worker->thread, worker_main, worker);
	worker->started = !rc;
	return rc;
}

void worker_free(struct worker *worker)
{
	assert(!worker->submitted);
	bounce_close(&worker->bounce);
	free(worker->pieces);
	free(worker->ios);
	free(worker->batch);
	free(worker->reaped);
	free(worker->free);
	pthread_mutex_destroy(&worker->stats_lock);
}
