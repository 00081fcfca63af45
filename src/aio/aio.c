/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public side of an aio: engine choice, worker start and stop, memory registration, submitting
 * and awaiting transfers, and statistics.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "aio/internal.h"
#include "base/clock.h"
#include "base/error.h"

/* In the order that auto tries them. */
static const struct engine_ops *const engines[] = {&engine_io_uring, &engine_libaio, &engine_posix};
#define NENGINES (sizeof(engines) / sizeof(engines[0]))

/* Maximum size of a registered buffer in the kernel. */
#define REGION_BYTES (1ull << 30)

static const struct engine_ops *engine_of(enum nvs_ioengine ioengine)
{
	return engines[ioengine - NVS_IOENGINE_IO_URING];
}

int ioengine_try(enum nvs_ioengine ioengine, char *reason, size_t nbytes)
{
	struct engine_options options = {.depth = 1};
	struct engine_facts facts = {0};
	void *queue;
	int rc;

	assert(ioengine > NVS_IOENGINE_AUTO && ioengine < NVS_IOENGINE_COUNT);
	reason[0] = 0;
	rc = engine_of(ioengine)->open(&queue, &options, &facts, reason, nbytes);
	if (!rc)
		engine_of(ioengine)->close(queue);
	return rc;
}

/* ---- Opening and closing ---- */

static int check_config(const struct nvs_aio_config *config, struct nvs_error *error)
{
	if (config->block_size < NVS_BLOCK_SIZE_MIN || config->block_size > NVS_BLOCK_SIZE_MAX ||
	    config->block_size % 512)
		return error_about(error, -EINVAL, "block_size", 0, 0,
				   "block_size is %u bytes: it must be a multiple of 512, from %u "
				   "to %u",
				   config->block_size, NVS_BLOCK_SIZE_MIN, NVS_BLOCK_SIZE_MAX);
	if (!config->queue_depth || config->queue_depth > NVS_QUEUE_DEPTH_MAX)
		return error_about(error, -EINVAL, "queue_depth", 0, 0,
				   "queue_depth is %u: it must be from 1 to %u",
				   config->queue_depth, NVS_QUEUE_DEPTH_MAX);
	if (!config->thread_count || config->thread_count > NVS_THREAD_COUNT_MAX)
		return error_about(error, -EINVAL, "thread_count", 0, 0,
				   "thread_count is %u: it must be from 1 to %u",
				   config->thread_count, NVS_THREAD_COUNT_MAX);
	if (config->use_gds)
		return error_about(error, -ENOTSUP, "use_gds", 0, 0,
				   "use_gds is true, but this build only transfers between drives "
				   "and host memory: set use_gds to false");
	if (config->io_timeout_ms > NVS_IO_TIMEOUT_MS_MAX)
		return error_about(error, -EINVAL, "io_timeout_ms", 0, 0,
				   "io_timeout_ms is %u: it must be from 0 to %u",
				   config->io_timeout_ms, NVS_IO_TIMEOUT_MS_MAX);
	if ((unsigned)config->ioengine >= NVS_IOENGINE_COUNT)
		return error_about(error, -EINVAL, "ioengine", 0, 0,
				   "ioengine is %d: it must be auto, io_uring, libaio or posix",
				   (int)config->ioengine);
	return 0;
}

static struct nvs_aio *aio_new(const struct nvs_aio_config *config, const struct nvs_log *log)
{
	struct nvs_aio *aio = calloc(1, sizeof(*aio));

	if (!aio)
		return NULL;
	aio->workers = calloc(config->thread_count, sizeof(*aio->workers));
	if (!aio->workers) {
		free(aio);
		return NULL;
	}
	aio->config = *config;
	aio->log = log ? *log : (struct nvs_log){0};
	aio->options = (struct engine_options){.depth = config->queue_depth,
					       .single_submit = config->single_submit};
	pthread_mutex_init(&aio->lock, NULL);
	pthread_cond_init(&aio->work, NULL);
	pthread_cond_init(&aio->done, NULL);
	pthread_cond_init(&aio->synced, NULL);
	pthread_cond_init(&aio->unwatch, NULL);
	for (int direction = 0; direction < 2; direction++)
		aio->todo[direction].tail = &aio->todo[direction].head;
	memset(aio->files, -1, sizeof(aio->files));
	aio->node = -1;
	return aio;
}

static void aio_free(struct nvs_aio *aio)
{
	free(aio->workers);
	pthread_mutex_destroy(&aio->lock);
	pthread_cond_destroy(&aio->work);
	pthread_cond_destroy(&aio->done);
	pthread_cond_destroy(&aio->synced);
	pthread_cond_destroy(&aio->unwatch);
	free(aio);
}

static void stop_workers(struct nvs_aio *aio)
{
	pthread_mutex_lock(&aio->lock);
	aio->closing = true;
	pthread_cond_broadcast(&aio->work);
	pthread_mutex_unlock(&aio->lock);
	for (unsigned i = 0; i < aio->nworkers; i++)
		if (aio->workers[i].started)
			pthread_join(aio->workers[i].thread, NULL);
	watch_stop(aio);
	for (unsigned i = 0; i < aio->nworkers; i++)
		worker_free(&aio->workers[i]);
	memset(aio->workers, 0, aio->config.thread_count * sizeof(*aio->workers));
	aio->nworkers = aio->running = 0;
	aio->closing = false;
}

/* Waits until the started workers have opened their queues; returns the first error. */
static int opened(struct nvs_aio *aio, unsigned started, char *reason, size_t nbytes)
{
	int rc = 0;

	pthread_mutex_lock(&aio->lock);
	while (aio->running < started)
		pthread_cond_wait(&aio->synced, &aio->lock);
	for (unsigned i = 0; i < started && !rc; i++) {
		rc = aio->workers[i].open_status;
		if (rc)
			snprintf(reason, nbytes, "%s", aio->workers[i].open_reason);
	}
	pthread_mutex_unlock(&aio->lock);
	return rc;
}

static int start_workers(struct nvs_aio *aio, const struct engine_ops *ops, char *reason,
			 size_t nbytes)
{
	unsigned started = 0;
	int rc = 0, open_rc;

	aio->ops = ops;
	while (aio->nworkers < aio->config.thread_count && !rc) {
		struct worker *worker = &aio->workers[aio->nworkers];

		worker->aio = aio;
		worker->index = aio->nworkers++;
		rc = worker_start(worker);
		if (rc)
			snprintf(reason, nbytes, "worker %u can't be started: %s", worker->index,
				 nvs_strerror(rc));
		else
			started++;
	}
	open_rc = opened(aio, started, reason, nbytes);
	rc = open_rc ? open_rc : rc;
	if (rc)
		stop_workers(aio);
	return rc;
}

/* Starts the first engine that works; engine_reason says why the earlier ones don't. */
static int start_any(struct nvs_aio *aio, struct nvs_error *error)
{
	char why[160], all[512] = "";
	size_t used = 0;
	int rc = 0;

	for (size_t i = 0; i < NENGINES; i++) {
		rc = start_workers(aio, engines[i], why, sizeof(why));
		if (!rc) {
			snprintf(aio->engine_reason, sizeof(aio->engine_reason), "%s", all);
			if (i)
				log_say(&aio->log, NVS_LOG_INFO, "ioengine auto chose %s (%s)",
					engines[i]->name, all);
			return 0;
		}
		used += (size_t)snprintf(all + used, sizeof(all) - used, "%s%s: %s",
					 used ? "; " : "", engines[i]->name, why);
		if (used >= sizeof(all))
			used = sizeof(all) - 1;
	}
	return error_about(error, rc, "ioengine", 0, 0, "no I/O engine works here: %s", all);
}

static int start_one(struct nvs_aio *aio, const struct engine_ops *ops, struct nvs_error *error)
{
	char why[256];
	int rc = start_workers(aio, ops, why, sizeof(why));

	if (!rc)
		return 0;
	return error_about(error, rc == -ENOMEM ? rc : -ENOTSUP, "ioengine", 0, 0,
			   "ioengine %s does not work here: %s; set it to auto to use one that "
			   "does",
			   ops->name, why);
}

/* Registers each bounce buffer with its own worker only. Failure is harmless, only slower. */
static void register_bounce(struct nvs_aio *aio)
{
	_Static_assert(NVS_THREAD_COUNT_MAX < ENGINE_BUFFERS, "one slot per bounce buffer");
	pthread_mutex_lock(&aio->lock);
	for (unsigned i = 0; i < aio->nworkers; i++) {
		struct worker *worker = &aio->workers[i];

		aio->regions[aio->nregions++] = (struct region){
			.data = worker->bounce.data,
			.nbytes = bounce_bytes(&worker->bounce),
			.generation = ++aio->generation,
			.owner = worker->bounce.data,
			.only = worker,
		};
	}
	aio_sync(aio);
	pthread_mutex_unlock(&aio->lock);
}

static int open_as(struct nvs_aio **out, const struct nvs_aio_config *config,
		   const struct engine_ops *ops, void *ops_arg, const struct nvs_log *log,
		   struct nvs_error *error)
{
	struct nvs_aio *aio;
	int rc = check_config(config, error);

	if (rc)
		return rc;
	aio = aio_new(config, log);
	if (!aio)
		return error_set(error, -ENOMEM, "out of memory while opening the I/O workers");
	aio->options.arg = ops_arg;
	rc = ops ? start_one(aio, ops, error) : start_any(aio, error);
	if (!rc) {
		rc = watch_start(aio);
		if (rc) {
			error_set(error, rc,
				  "can't start the thread that enforces io_timeout_ms: %s",
				  nvs_strerror(rc));
			stop_workers(aio);
		}
	}
	if (rc) {
		aio_free(aio);
		return rc;
	}
	register_bounce(aio);
	*out = aio;
	return 0;
}

int nvs_aio_open(struct nvs_aio **aio, const struct nvs_aio_config *config,
		 const struct nvs_log *log, struct nvs_error *error)
{
	bool any = config->ioengine <= NVS_IOENGINE_AUTO || config->ioengine >= NVS_IOENGINE_COUNT;

	return open_as(aio, config, any ? NULL : engine_of(config->ioengine), NULL, log, error);
}

int aio_open_with(struct nvs_aio **aio, const struct nvs_aio_config *config,
		  const struct engine_ops *ops, void *ops_arg, const struct nvs_log *log,
		  struct nvs_error *error)
{
	return open_as(aio, config, ops, ops_arg, log, error);
}

void nvs_aio_close(struct nvs_aio *aio)
{
	if (!aio)
		return;
	stop_workers(aio);
	aio_free(aio);
}

/* ---- Registration ---- */

/* Wakes idle workers and those in reap; under the lock. */
static void wake_everyone(struct nvs_aio *aio)
{
	pthread_cond_broadcast(&aio->work);
	for (unsigned i = 0; i < aio->nworkers; i++)
		aio->ops->wake(aio->workers[i].queue);
}

void aio_sync(struct nvs_aio *aio)
{
	uint64_t epoch = ++aio->epoch;

	wake_everyone(aio);
	for (unsigned i = 0; i < aio->nworkers; i++)
		while (aio->workers[i].epoch < epoch)
			pthread_cond_wait(&aio->synced, &aio->lock);
}

static int region_take(struct nvs_aio *aio, const void *owner, char *data, size_t nbytes)
{
	for (int slot = 0; slot < ENGINE_BUFFERS; slot++) {
		struct region *region = &aio->regions[slot];

		if (region->data)
			continue;
		*region = (struct region){.data = data,
					  .nbytes = nbytes,
					  .generation = ++aio->generation,
					  .owner = owner};
		if ((unsigned)slot >= aio->nregions)
			aio->nregions = (unsigned)slot + 1;
		return slot;
	}
	return -ENOSPC;
}

int nvs_aio_register_memory(struct nvs_aio *aio, void *data, size_t nbytes)
{
	int rc = 0;

	if (!data || !nbytes || (uintptr_t)data % 4096)
		return -EINVAL;
	pthread_mutex_lock(&aio->lock);
	for (size_t done = 0; done < nbytes && rc >= 0; done += REGION_BYTES)
		rc = region_take(aio, data, (char *)data + done,
				 nbytes - done < REGION_BYTES ? nbytes - done : REGION_BYTES);
	if (rc < 0) {
		pthread_mutex_unlock(&aio->lock);
		nvs_aio_unregister_memory(aio, data);
		return rc;
	}
	aio_sync(aio);
	rc = 0;
	for (unsigned i = 0; i < aio->nregions; i++)
		if (aio->regions[i].owner == data && aio->regions[i].status)
			rc = aio->regions[i].status;
	if (rc)
		aio->buffers_status = rc;
	pthread_mutex_unlock(&aio->lock);
	/* Rings that did register the pages must not use them after the caller frees them. */
	if (rc)
		nvs_aio_unregister_memory(aio, data);
	return rc;
}

void nvs_aio_unregister_memory(struct nvs_aio *aio, void *data)
{
	pthread_mutex_lock(&aio->lock);
	for (unsigned i = 0; i < aio->nregions; i++)
		if (aio->regions[i].owner == data)
			aio->regions[i] = (struct region){0};
	aio_sync(aio);
	pthread_mutex_unlock(&aio->lock);
}

void aio_bind_workers(struct nvs_aio *aio, const struct topo *topo, int node)
{
	pthread_mutex_lock(&aio->lock);
	aio->topo = topo;
	aio->node = node;
	aio_sync(aio);
	pthread_mutex_unlock(&aio->lock);
}

/* ---- Transfers ---- */

static int check_transfer(const struct transfer *transfer, struct nvs_error *error)
{
	if (!transfer->file || (!transfer->data && transfer->nbytes))
		return error_set(error, -EINVAL, "transfer has no file or no memory");
	if (transfer->direction != NVS_READ && transfer->direction != NVS_WRITE)
		return error_set(error, -EINVAL,
				 "transfer direction is %d: it must be NVS_READ or NVS_WRITE",
				 (int)transfer->direction);
	if (transfer->direction == NVS_WRITE && !transfer->file->writable)
		return error_set(error, -EINVAL,
				 "%s is open for reading only: open it with NVS_FILE_WRITE",
				 transfer->file->members[0].path);
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

static void prepare(struct transfer *transfer, struct completions *queue, uint64_t now)
{
	transfer->status = 0;
	transfer->error_offset = 0;
	transfer->state =
		(struct transfer_state){.queue = queue, .flags = TRANSFER_QUEUED, .since_ns = now};
}

static void append(struct nvs_aio *aio, struct transfer *transfer)
{
	struct transfer_list *todo = &aio->todo[transfer->direction];

	assert(transfer->file->aio == aio);
	*todo->tail = transfer;
	todo->tail = &transfer->state.next;
}

static uint64_t blocks_of(const struct nvs_aio *aio, const struct transfer *transfer)
{
	return transfer->nbytes / aio->config.block_size + 1;
}

/* Wakes idle workers first, one per queue depth of I/Os, then those with free queue slots. */
static void wake_for(struct nvs_aio *aio, uint64_t blocks)
{
	uint64_t idle = aio->idle;

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

int aio_submit(struct nvs_aio *aio, struct transfer *const *transfers, size_t n,
	       struct nvs_error *error)
{
	uint64_t blocks = 0, now = aio->config.io_timeout_ms ? clock_ns() : 0;

	for (size_t i = 0; i < n; i++) {
		int rc = check_transfer(transfers[i], error);

		if (rc)
			return rc;
	}
	pthread_mutex_lock(&aio->lock);
	for (size_t i = 0; i < n; i++) {
		prepare(transfers[i], NULL, now);
		if (transfers[i]->nbytes) {
			append(aio, transfers[i]);
			blocks += blocks_of(aio, transfers[i]);
		} else {
			__atomic_store_n(&transfers[i]->state.completed, 1, __ATOMIC_RELEASE);
		}
	}
	wake_for(aio, blocks);
	pthread_mutex_unlock(&aio->lock);
	return 0;
}

void aio_trace(struct nvs_aio *aio, struct nvs_trace *trace)
{
	pthread_mutex_lock(&aio->lock);
	aio->trace = trace;
	pthread_mutex_unlock(&aio->lock);
}

void aio_submit_list(struct nvs_aio *aio, struct completions *queue, struct transfer *list)
{
	uint64_t blocks = 0, now = aio->config.io_timeout_ms ? clock_ns() : 0;

	assert(queue);
	pthread_mutex_lock(&aio->lock);
	while (list) {
		struct transfer *transfer = list;

		list = transfer->state.next;
		assert(transfer->nbytes && !check_transfer(transfer, NULL));
		prepare(transfer, queue, now);
		append(aio, transfer);
		blocks += blocks_of(aio, transfer);
	}
	wake_for(aio, blocks);
	pthread_mutex_unlock(&aio->lock);
}

bool transfer_completed(const struct transfer *transfer)
{
	return __atomic_load_n(&transfer->state.completed, __ATOMIC_ACQUIRE);
}

static const struct transfer *first_overdue(const struct nvs_aio *aio,
					    struct transfer *const *transfers, size_t n)
{
	for (size_t i = 0; i < n && aio->config.io_timeout_ms; i++)
		if (transfers[i]->state.flags & TRANSFER_OVERDUE)
			return transfers[i];
	return NULL;
}

/* Waits for the last of `n` transfers; drops the lock while it sleeps. */
static int wait_for_last(struct nvs_aio *aio, struct transfer *const *transfers, size_t n,
			 uint64_t deadline, struct nvs_error *error)
{
	struct transfer *last = transfers[n - 1];
	int rc = 0;

	while (!transfer_completed(last) && !rc) {
		const struct transfer *overdue = first_overdue(aio, transfers, n);

		if (overdue)
			return aio_overdue_error(overdue, overdue->state.hangs_at, NULL, error);
		last->state.flags |= TRANSFER_AWAITED;
		rc = cond_wait_until(&aio->done, &aio->lock, deadline);
	}
	return rc ? error_set(error, rc, "transfers are still in flight: %s", nvs_strerror(rc)) : 0;
}

int aio_wait(struct nvs_aio *aio, struct transfer *const *transfers, size_t n, int timeout_ms,
	     struct nvs_error *error)
{
	uint64_t deadline = deadline_ns(timeout_ms);
	int rc = 0;

	pthread_mutex_lock(&aio->lock);
	/* The last one usually completes last, so start there: a single sleep mostly suffices. */
	for (size_t left = n; left && !rc; left--)
		rc = wait_for_last(aio, transfers, left, deadline, error);
	pthread_mutex_unlock(&aio->lock);
	if (rc)
		return rc;
	for (size_t i = 0; i < n; i++)
		if (transfers[i]->status)
			return transfer_error(transfers[i], NULL, error);
	return 0;
}

/* ---- Statistics ---- */

static void add_counts(uint64_t *into, const uint64_t *seen, const uint64_t *at_reset)
{
	for (unsigned i = 0; i < NVS_DEPTHS; i++)
		into[i] += seen[i] - at_reset[i];
}

static void explain_buffers(struct nvs_aio_stats *stats, int status)
{
	struct rlimit limit;
	char text[32];

	if (status == -ENOMEM && !getrlimit(RLIMIT_MEMLOCK, &limit) &&
	    limit.rlim_cur != RLIM_INFINITY)
		snprintf(stats->buffers_reason, sizeof(stats->buffers_reason),
			 "registered memory counts towards the memlock limit of %s: raise it with "
			 "ulimit -l",
			 size_text(limit.rlim_cur, text));
	else if (status)
		snprintf(stats->buffers_reason, sizeof(stats->buffers_reason), "%s",
			 nvs_strerror(status));
}

static void add_tally(struct nvs_aio_stats *stats, const struct tally *seen,
		      const struct tally *at_reset)
{
	const struct engine_facts *facts = &seen->facts;

	stats->fixed_buffers = facts->fixed_buffers;
	stats->fixed_files = facts->fixed_files;
	explain_buffers(stats, facts->buffers_status);
	stats->single_issuer = facts->single_issuer;
	stats->defer_taskrun = facts->defer_taskrun;
	stats->submit_calls += facts->submit_calls - at_reset->facts.submit_calls;
	stats->reap_calls += facts->reap_calls - at_reset->facts.reap_calls;
	add_counts(stats->depth_ios, seen->depth_ios, at_reset->depth_ios);
	add_counts(stats->submit_sizes, seen->submit_sizes, at_reset->submit_sizes);
	add_counts(stats->reap_sizes, seen->reap_sizes, at_reset->reap_sizes);
}

static void add_worker(struct nvs_aio_stats *stats, struct worker *worker)
{
	pthread_mutex_lock(&worker->stats_lock);
	add_tally(stats, &worker->tally_seen, &worker->tally_at_reset);
	if (worker->inflight_max > stats->inflight_max)
		stats->inflight_max = worker->inflight_max;
	stats->retries += worker->retries;
	stats->bounced_bytes += worker->bounced_bytes;
	stats->bounce_bytes += bounce_bytes(&worker->bounce);
	for (int i = 0; i < 2; i++) {
		stats->io[i].bytes += worker->bytes[i];
		stats->io[i].ios += worker->ios_done[i];
	}
	pthread_mutex_unlock(&worker->stats_lock);
}

static void add_latency(struct nvs_aio *aio, enum nvs_direction direction, struct nvs_io_stats *io)
{
	struct nvs_latency latency;

	nvs_aio_get_latency(aio, direction, NVS_LAT, &latency);
	io->latency_min_ns = latency.min_ns;
	io->latency_max_ns = latency.max_ns;
	io->latency_mean_ns = nvs_latency_mean(&latency);
	io->latency_stddev_ns = nvs_latency_stddev(&latency);
}

void nvs_aio_get_stats(struct nvs_aio *aio, struct nvs_aio_stats *stats)
{
	*stats = (struct nvs_aio_stats){.ioengine = aio->ops->name, .workers = aio->nworkers};
	snprintf(stats->ioengine_reason, sizeof(stats->ioengine_reason), "%s", aio->engine_reason);
	for (unsigned i = 0; i < aio->nworkers; i++)
		add_worker(stats, &aio->workers[i]);
	for (int i = 0; i < 2; i++)
		add_latency(aio, i, &stats->io[i]);
	pthread_mutex_lock(&aio->lock);
	explain_buffers(stats, aio->buffers_status);
	for (unsigned i = 0; i < aio->nregions; i++)
		if (aio->regions[i].registered == (aio->regions[i].only ? 1 : aio->nworkers))
			stats->registered_bytes += aio->regions[i].nbytes;
	pthread_mutex_unlock(&aio->lock);
	stats->fixed_buffers &= stats->registered_bytes > 0;
}

void nvs_aio_get_latency(struct nvs_aio *aio, enum nvs_direction direction,
			 enum nvs_latency_kind kind, struct nvs_latency *latency)
{
	memset(latency, 0, sizeof(*latency));
	for (unsigned i = 0; i < aio->nworkers; i++) {
		struct worker *worker = &aio->workers[i];

		pthread_mutex_lock(&worker->stats_lock);
		nvs_latency_merge(latency, &worker->latency[direction][kind]);
		pthread_mutex_unlock(&worker->stats_lock);
	}
}

void nvs_aio_reset_stats(struct nvs_aio *aio)
{
	for (unsigned i = 0; i < aio->nworkers; i++) {
		struct worker *worker = &aio->workers[i];

		pthread_mutex_lock(&worker->stats_lock);
		memset(worker->latency, 0, sizeof(worker->latency));
		memset(worker->bytes, 0, sizeof(worker->bytes));
		memset(worker->ios_done, 0, sizeof(worker->ios_done));
		worker->retries = worker->bounced_bytes = 0;
		worker->inflight_max = 0;
		worker->tally_at_reset = worker->tally_seen;
		pthread_mutex_unlock(&worker->stats_lock);
	}
}
