/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening and closing an aio: its settings, the choice of the I/O engine, starting and stopping the
 * workers. Their counters and latencies, added up.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "aio/internal.h"
#include "aio/requests/requests.h"
#include "base/clock.h"
#include "base/struct_size.h"
#include "base/threads/cancel.h"
#include "base/threads/thread.h"

static struct nvs_aio *aio_new(const struct aio_config *config, const struct nvs_log *log)
{
	struct nvs_aio *aio = calloc(1, sizeof(*aio));

	if (!aio)
		return NULL;
	aio->workers = calloc(config->thread_count, sizeof(*aio->workers));
	aio->requests = requests_open(aio);
	if (!aio->workers || !aio->requests) {
		requests_close(aio->requests);
		free(aio->workers);
		free(aio);
		return NULL;
	}
	aio->config = *config;
	log_init(&aio->log, log);
	aio->options = (struct engine_options){
		.depth = config->queue_depth,
		.single_submit = config->single_submit,
		.wait_max = worker_wait_for(config, config->queue_depth, true)};
	pthread_mutex_init(&aio->lock, NULL);
	pthread_cond_init(&aio->work, NULL);
	pthread_cond_init(&aio->done, NULL);
	pthread_cond_init(&aio->synced, NULL);
	pthread_cond_init(&aio->unwatch, NULL);
	for (int i = 0; i < TRANSFER_PRIORITIES * 2; i++)
		TAILQ_INIT(&aio->todo[i / 2][i % 2]);
	LIST_INIT(&aio->open_files);
	LIST_INIT(&aio->memories);
	memset(aio->files, -1, sizeof(aio->files));
	aio->node = -1;
	return aio;
}

static void aio_free(struct nvs_aio *aio)
{
	assert(!transfers_queued(aio) && !aio->awaited_reads);
	assert(!aio->holders && !aio->watched && !aio->running);
	free(aio->workers);
	requests_close(aio->requests);
	log_destroy(&aio->log);
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
	log_stop(&aio->log);
	for (unsigned i = 0; i < aio->nworkers; i++)
		worker_free(&aio->workers[i]);
	memset(aio->workers, 0, aio->config.thread_count * sizeof(*aio->workers));
	aio->nworkers = aio->running = 0;
	aio->closing = false;
	assert(!aio->idle && !transfers_queued(aio));
}

/* How often to look whether a worker that opens its queue still lives. */
#define LOOK_MS 50

/* Starts the workers, and waits until they have opened their queues. */
static int start_workers(struct nvs_aio *aio, const struct engine_ops *ops, char *reason,
			 size_t nbytes)
{
	unsigned started = 0;
	int rc = 0, open_rc = 0;

	aio->ops = ops;
	while (aio->nworkers < aio->config.thread_count && !rc) {
		struct worker *worker = &aio->workers[aio->nworkers];

		worker->aio = aio;
		worker->index = aio->nworkers++;
		rc = worker_start(worker);
		if (rc)
			snprintf(reason, nbytes, "worker %u can't be started: %s", worker->index,
				 thread_strerror(rc));
		else
			started++;
	}
	pthread_mutex_lock(&aio->lock);
	while (aio->running < started) {
		if (!cond_wait_until(&aio->synced, &aio->lock, deadline_ns(LOOK_MS)))
			continue;
		/* A seccomp filter may kill a thread for a system call; the process goes on. */
		for (unsigned i = 0; i < aio->nworkers; i++) {
			struct worker *worker = &aio->workers[i];

			if (!worker->started || worker->opened ||
			    pthread_tryjoin_np(worker->thread, NULL))
				continue;
			worker->started = false;
			worker->opened = true;
			worker->open_status = -EPERM;
			snprintf(worker->open_reason, sizeof(worker->open_reason), "%s",
				 ENGINE_KILLED);
			aio->running++;
		}
	}
	for (unsigned i = 0; i < started && !open_rc; i++) {
		open_rc = aio->workers[i].open_status;
		if (open_rc)
			snprintf(reason, nbytes, "%s", aio->workers[i].open_reason);
	}
	pthread_mutex_unlock(&aio->lock);
	rc = open_rc ? open_rc : rc;
	if (rc)
		stop_workers(aio);
	assert(rc ? !aio->nworkers : aio->running == aio->nworkers);
	return rc;
}

/* Starts the first engine that works; engine_reason says why the earlier ones don't. */
static int start_any(struct nvs_aio *aio, struct nvs_error *error)
{
	char why[160], all[512] = "";
	size_t used = 0;
	int rc = 0;

	for (int i = NVS_IOENGINE_AUTO + 1; i < NVS_IOENGINE_COUNT; i++) {
		const struct engine_ops *ops = ioengines[i];

		rc = start_workers(aio, ops, why, sizeof(why));
		if (!rc) {
			snprintf(aio->engine_reason, sizeof(aio->engine_reason), "%s", all);
			if (used)
				log_say(&aio->log.to, NVS_LOG_INFO, "ioengine auto chose %s (%s)",
					ops->name, all);
			return 0;
		}
		used += (size_t)snprintf(all + used, sizeof(all) - used, "%s%s: %s",
					 used ? "; " : "", ops->name, why);
		if (used >= sizeof(all))
			used = sizeof(all) - 1;
	}
	return error_about(error, rc, "ioengine", 0, 0, "no I/O engine works here: %s", all);
}

int aio_open_with(struct nvs_aio **out, const struct aio_config *config,
		  const struct engine_ops *ops, void *ops_arg, const struct nvs_log *log,
		  struct nvs_error *error)
{
	const char *what = "enforces io_timeout_ms";
	struct nvs_aio *aio;
	char why[256];
	int rc;

	/* The bounds of the keys that set them. */
	assert(config->block_size >= NVS_BLOCK_SIZE_MIN &&
	       config->block_size <= NVS_BLOCK_SIZE_MAX);
	assert(config->block_size % 512 == 0);
	assert(config->queue_depth && config->queue_depth <= NVS_QUEUE_DEPTH_MAX);
	assert(config->thread_count && config->thread_count <= NVS_THREAD_COUNT_MAX);
	assert(config->io_timeout_ms <= NVS_IO_TIMEOUT_MS_MAX);
	assert((unsigned)config->ioengine < NVS_IOENGINE_COUNT);
	if (config->use_gds)
		return error_about(error, -ENOTSUP, "use_gds", 0, 0,
				   "use_gds is true, but this build only transfers between drives "
				   "and host memory: set use_gds to false");
	aio = aio_new(config, log);
	if (!aio)
		return error_no_memory(error, "opening the I/O workers");
	aio->options.arg = ops_arg;
	ops = ops ?: ioengines[config->ioengine];
	rc = ops ? start_workers(aio, ops, why, sizeof(why)) : start_any(aio, error);
	if (rc && ops)
		rc = error_about(error, rc == -ENOMEM || rc == -EAGAIN ? rc : -ENOTSUP, "ioengine",
				 0, 0,
				 "ioengine %s does not work here: %s; set it to auto to use one "
				 "that does",
				 ops->name, why);
	if (rc) {
		aio_free(aio);
		return rc;
	}
	/* The threads beside the workers. */
	rc = watch_start(aio);
	if (!rc) {
		what = "calls the log function";
		rc = log_start(&aio->log);
	}
	if (rc) {
		stop_workers(aio);
		aio_free(aio);
		return error_set(error, rc, "can't start the thread that %s: %s", what,
				 thread_strerror(rc));
	}
	register_bounce(aio);
	*out = aio;
	return 0;
}

int nvs_aio_open(struct nvs_aio **aio, const struct nvs_config *config, struct nvs_error *error)
{
	HOLD_CANCEL;
	int rc;

	if (aio)
		*aio = NULL;
	if (!aio || !config)
		return error_set(error, -EINVAL, "%s is NULL", aio ? "config" : "aio");
	rc = aio_open_with(aio, &config->aio, NULL, NULL, &config->log, error);
	if (!rc)
		aio_trace(*aio, config->trace);
	return rc;
}

const struct nvs_log *aio_log(const struct nvs_aio *aio)
{
	return &aio->log.to;
}

const struct aio_config *aio_settings(const struct nvs_aio *aio)
{
	return &aio->config;
}

unsigned aio_change_holders(struct nvs_aio *aio, int change)
{
	unsigned holders;

	pthread_mutex_lock(&aio->lock);
	assert(!aio->closing && (change >= 0 || aio->holders));
	aio->holders += (unsigned)change;
	holders = aio->holders;
	pthread_mutex_unlock(&aio->lock);
	return holders;
}

int nvs_aio_close(struct nvs_aio *aio)
{
	HOLD_CANCEL;
	struct aio_memory *memory;
	struct nvs_file *file;

	if (!aio)
		return 0;
	if (aio_change_holders(aio, 0))
		return -EBUSY;
	stop_workers(aio);
	/* Their owners close them later. */
	LIST_FOREACH(file, &aio->open_files, open)
	{
		file->aio = NULL;
	}
	LIST_FOREACH(memory, &aio->memories, link)
	{
		memory->aio = NULL;
	}
	aio_free(aio);
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
	else if (status == -EFAULT)
		snprintf(stats->buffers_reason, sizeof(stats->buffers_reason),
			 "memory is not mapped for reading and writing, or it is a shared mapping "
			 "of a file");
	else if (status)
		snprintf(stats->buffers_reason, sizeof(stats->buffers_reason), "%s",
			 nvs_strerror(status));
}

static void add_worker(struct nvs_aio_stats *stats, struct nvs_latency sums[2],
		       struct worker *worker)
{
	pthread_mutex_lock(&worker->stats_lock);

	const struct engine_facts *facts = &worker->tally_seen.facts;

	stats->fixed_buffers = facts->fixed_buffers;
	stats->fixed_files = facts->fixed_files;
	explain_buffers(stats, facts->buffers_status);
	stats->single_issuer = facts->single_issuer;
	stats->defer_taskrun = facts->defer_taskrun;
	stats->submit_calls += facts->submit_calls - worker->tally_at_reset.facts.submit_calls;
	stats->reap_calls += facts->reap_calls - worker->tally_at_reset.facts.reap_calls;
	stats->retries += worker->tally_seen.retries - worker->tally_at_reset.retries;
	add_counts(stats->depth_ios, worker->tally_seen.depth_ios,
		   worker->tally_at_reset.depth_ios);
	add_counts(stats->submit_sizes, worker->tally_seen.submit_sizes,
		   worker->tally_at_reset.submit_sizes);
	add_counts(stats->reap_sizes, worker->tally_seen.reap_sizes,
		   worker->tally_at_reset.reap_sizes);
	assert(worker->inflight_max <= worker->aio->config.queue_depth);
	assert(worker->bounced_bytes <= worker->bytes[NVS_READ] + worker->bytes[NVS_WRITE]);
	if (worker->inflight_max > stats->inflight_max)
		stats->inflight_max = worker->inflight_max;
	stats->bounced_bytes += worker->bounced_bytes;
	stats->bounce_bytes += bounce_bytes(&worker->bounce);
	for (int i = 0; i < 2; i++) {
		stats->io[i].bytes += worker->bytes[i];
		stats->io[i].ios += worker->ios_done[i];
		latency_merge_sums(&sums[i], &worker->latency[i][NVS_LAT]);
	}
	pthread_mutex_unlock(&worker->stats_lock);
}

int nvs_aio_get_stats(struct nvs_aio *aio, struct nvs_aio_stats *stats)
{
	struct nvs_aio_stats full;
	struct nvs_latency sums[2];

	if (!aio || !stats)
		return -EINVAL;
	full = (struct nvs_aio_stats){
		.size = sizeof(full), .ioengine = aio->ops->name, .workers = aio->nworkers};
	snprintf(full.ioengine_reason, sizeof(full.ioengine_reason), "%s", aio->engine_reason);
	for (int i = 0; i < 2; i++)
		latency_begin_sums(&sums[i]);
	for (unsigned i = 0; i < aio->nworkers; i++)
		add_worker(&full, sums, &aio->workers[i]);
	for (int i = 0; i < 2; i++) {
		struct nvs_io_stats *io = &full.io[i];

		io->latency_min_ns = sums[i].min_ns;
		io->latency_max_ns = sums[i].max_ns;
		io->latency_mean_ns = nvs_latency_mean(&sums[i]);
		io->latency_stddev_ns = nvs_latency_stddev(&sums[i]);
	}
	pthread_mutex_lock(&aio->lock);
	workers_check(aio);
	explain_buffers(&full, aio->buffers_status);
	for (unsigned i = 0; i < aio->nregions; i++) {
		region_check(aio, &aio->regions[i]);
		if (aio->regions[i].registered == (aio->regions[i].only ? 1 : aio->nworkers))
			full.registered_bytes += aio->regions[i].nbytes;
	}
	pthread_mutex_unlock(&aio->lock);
	full.fixed_buffers &= full.registered_bytes > 0;
	return struct_out(stats, &full, sizeof(full));
}

int nvs_aio_get_latency(struct nvs_aio *aio, enum nvs_direction direction,
			enum nvs_latency_kind kind, struct nvs_latency *latency)
{
	struct nvs_latency full = {.size = sizeof(full)};

	if (!aio || !latency || (unsigned)direction > NVS_WRITE ||
	    (unsigned)kind >= NVS_LATENCY_KINDS)
		return -EINVAL;
	for (unsigned i = 0; i < aio->nworkers; i++) {
		struct worker *worker = &aio->workers[i];

		pthread_mutex_lock(&worker->stats_lock);
		latency_merge(&full, &worker->latency[direction][kind]);
		pthread_mutex_unlock(&worker->stats_lock);
	}
	return struct_out(latency, &full, sizeof(full));
}

void nvs_aio_reset_stats(struct nvs_aio *aio)
{
	if (!aio)
		return;
	for (unsigned i = 0; i < aio->nworkers; i++) {
		struct worker *worker = &aio->workers[i];

		pthread_mutex_lock(&worker->stats_lock);
		memset(worker->latency, 0, sizeof(worker->latency));
		memset(worker->bytes, 0, sizeof(worker->bytes));
		memset(worker->ios_done, 0, sizeof(worker->ios_done));
		worker->bounced_bytes = 0;
		worker->inflight_max = 0;
		worker->tally_at_reset = worker->tally_seen;
		pthread_mutex_unlock(&worker->stats_lock);
	}
}
