/* SPDX-License-Identifier: Apache-2.0 */
/* Counters and latencies of the workers, added up. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "aio/internal.h"
#include "base/struct_size.h"

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
