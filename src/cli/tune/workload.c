/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A round counts I/Os as they complete, between two completions: if I/Os are slow, counting
 * transfers would be too coarse.
 */
#include "cli/tune/workload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/numbers.h"

#define MIB ((uint64_t)1 << 20)
/*
 * Submitted beyond the total depth, so that queues stay full until the next transfer is submitted.
 * All of it must complete at the end of the round.
 */
#define SLACK_MIN (4 * MIB)
#define SLACK_MAX (32 * MIB)
/* The submitted bytes are divided into this many transfers, if blocks are small enough. */
#define TRANSFERS 32u
/* How long a late transfer may delay the submission of further ones. */
#define WAIT_MS 1

struct slot {
	struct nvs_request *request; /* NULL: no transfer is in flight */
	uint64_t turn;		     /* number of its transfer, from 0 */
};

struct counters {
	uint64_t ns, bytes[2];
	double cpu_ms;
	struct nvs_latency latency[2];
};

struct round {
	struct tune_workload *workload;
	enum tune_objective objective;
	struct nvs_aio *aio;
	struct nvs_file *file;
	struct slot slots[2 * TRANSFERS];
	unsigned nslots;
	uint64_t transfer_bytes;
	uint64_t region_bytes; /* part of the file that transfers of one direction walk over */
	uint64_t in_flight;    /* bytes that the queues hold */
	uint64_t turns;	       /* transfers submitted */
	uint64_t completed;    /* bytes of completed transfers */
	struct counters from, to;
	struct nvs_error *error;
};

static int fail(struct nvs_error *error, int rc, const char *text)
{
	if (error) {
		*error = (struct nvs_error){.size = sizeof(*error), .code = rc};
		snprintf(error->text, sizeof(error->text), "%s", text);
	}
	return rc;
}

/* ---- Transfers ---- */

/* Chooses the length of transfers and their number in flight. */
static int plan(struct round *round, const struct tune_point *point)
{
	const struct tune_workload *workload = round->workload;
	uint64_t in_flight = (uint64_t)point->block_size * point->queue_depth * point->thread_count;
	uint64_t slack = in_flight < SLACK_MIN ? SLACK_MIN : in_flight, fits, total;

	total = in_flight + (slack < SLACK_MAX ? slack : SLACK_MAX);
	round->in_flight = in_flight;
	round->transfer_bytes = (total / TRANSFERS + point->block_size - 1) / point->block_size *
				point->block_size;
	round->nslots = (unsigned)(total / round->transfer_bytes + 1);
	fits = workload->memory_bytes / round->transfer_bytes;
	if (round->nslots > fits)
		round->nslots = (unsigned)fits;
	if (round->nslots * round->transfer_bytes <= in_flight)
		return fail(round->error, -EINVAL,
			    "the memory for transfers is too small for the bytes in flight");
	round->region_bytes = workload->working_set / (round->objective == TUNE_SWAP ? 2 : 1) /
			      round->transfer_bytes * round->transfer_bytes;
	if (round->region_bytes < round->nslots * round->transfer_bytes)
		return fail(round->error, -EINVAL,
			    "the working set is too small for the bytes in flight");
	return 0;
}

static enum nvs_direction direction_of(const struct round *round, uint64_t turn)
{
	if (round->objective == TUNE_SWAP)
		return turn % 2 ? NVS_WRITE : NVS_READ;
	return round->objective == TUNE_READ ? NVS_READ : NVS_WRITE;
}

/* The number of earlier transfers of the same direction. */
static uint64_t place_of(const struct round *round, uint64_t turn)
{
	return round->objective == TUNE_SWAP ? turn / 2 : turn;
}

/* In a mix, reads go to the first half of the file and writes to the second. */
static struct nvs_transfer transfer_of(struct round *round, unsigned index, uint64_t turn)
{
	struct slot *slot = &round->slots[index];
	enum nvs_direction direction = direction_of(round, turn);
	uint64_t offset = place_of(round, turn) * round->transfer_bytes % round->region_bytes;

	if (round->objective == TUNE_SWAP && direction == NVS_WRITE)
		offset += round->region_bytes;
	slot->turn = turn;
	if (direction == NVS_WRITE)
		round->workload->written += round->transfer_bytes;
	return (struct nvs_transfer){
		.size = sizeof(struct nvs_transfer),
		.file = round->file,
		.direction = direction,
		.data = (char *)round->workload->memory + index * round->transfer_bytes,
		.nbytes = round->transfer_bytes,
		.offset = offset,
		.user = slot,
	};
}

static bool may_write(const struct round *round)
{
	const struct tune_workload *workload = round->workload;

	return direction_of(round, round->turns) == NVS_READ ||
	       workload->written + round->transfer_bytes <= workload->writes_max;
}

static struct slot *oldest(struct round *round)
{
	struct slot *first = NULL;

	for (unsigned i = 0; i < round->nslots; i++) {
		struct slot *slot = &round->slots[i];

		if (slot->request && (!first || slot->turn < first->turn))
			first = slot;
	}
	return first;
}

/* The next transfer must not overlap one in flight from the previous walk over the file. */
static bool has_place(struct round *round)
{
	const struct slot *first = oldest(round);

	return !first || place_of(round, round->turns) - place_of(round, first->turn) <
				 round->region_bytes / round->transfer_bytes;
}

static int submit(struct round *round)
{
	struct nvs_transfer batch[2 * TRANSFERS];
	struct nvs_request *requests[2 * TRANSFERS];
	size_t n = 0;
	int rc;

	for (unsigned i = 0; i < round->nslots && has_place(round); i++) {
		if (round->slots[i].request)
			continue;
		if (!may_write(round)) {
			if (!n)
				return fail(round->error, -EDQUOT,
					    "the limit of writes is reached");
			break;
		}
		batch[n++] = transfer_of(round, i, round->turns++);
	}
	if (!n)
		return 0;
	rc = nvs_aio_submit(round->aio, batch, n, requests, round->error);
	for (size_t i = 0; i < n && !rc; i++)
		((struct slot *)batch[i].user)->request = requests[i];
	return rc;
}

/* Waits briefly for the oldest transfer, and takes the completed ones. */
static int reap(struct round *round, bool *any)
{
	struct nvs_request *completed[2 * TRANSFERS + 1] = {oldest(round)->request};
	int rc = nvs_aio_wait(round->aio, completed, 1, WAIT_MS, NULL);
	size_t n = rc != -ETIMEDOUT;

	n += nvs_aio_take(round->aio, completed + n, 2 * TRANSFERS);
	rc = 0;
	for (size_t i = 0; i < n; i++) {
		struct slot *slot = nvs_request_user(completed[i]);

		slot->request = NULL;
		*any = true;
		round->completed += round->transfer_bytes;
		if (!rc)
			rc = nvs_request_status(completed[i], round->error);
		nvs_request_close(completed[i]);
	}
	return rc;
}

/* The kernel uses the memory until all transfers have completed. */
static void drain(struct round *round)
{
	(void)nvs_aio_wait_all(round->aio, -1, NULL, NULL);
}

/* ---- Counters ---- */

static double cpu_ms(void)
{
	struct rusage usage;

	if (getrusage(RUSAGE_SELF, &usage))
		return 0;
	return 1e3 * (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       1e-3 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* Time and bytes first, because they belong together; latencies take longer to read. */
static void read_counters(const struct round *round, struct counters *counters)
{
	const struct tune_workload *workload = round->workload;
	struct nvs_aio_stats stats = {.size = sizeof(stats)};

	if (workload->hold)
		workload->hold(workload->arg, true);
	counters->ns = workload->now_ns(workload->arg);
	counters->cpu_ms = cpu_ms();
	nvs_aio_get_stats(round->aio, &stats);
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		counters->bytes[d] = stats.io[d].bytes;
		counters->latency[d].size = sizeof(struct nvs_latency);
		nvs_aio_get_latency(round->aio, d, NVS_LAT, &counters->latency[d]);
	}
	if (workload->hold)
		workload->hold(workload->arg, false);
}

/*
 * Warms up until the queues were emptied once, or for half of the time; then counts. Both ends of
 * the window are completions of transfers.
 */
static int run(struct round *round, uint64_t for_ns)
{
	const struct tune_workload *workload = round->workload;
	uint64_t started = workload->now_ns(workload->arg);
	bool counting = false;

	for (;;) {
		bool any = false;
		int rc = workload->stopped && workload->stopped() ? -EINTR : submit(round);
		uint64_t now;

		if (!rc)
			rc = reap(round, &any);
		if (rc)
			return rc;
		if (!any)
			continue;
		now = workload->now_ns(workload->arg);
		if (!counting &&
		    (round->completed >= round->in_flight || now - started >= for_ns / 2)) {
			read_counters(round, &round->from);
			counting = true;
		} else if (counting && now - round->from.ns >= for_ns) {
			read_counters(round, &round->to);
			return 0;
		}
	}
}

/* The minimum and maximum stay those since the begin; percentiles do not use them. */
static void latency_since(struct nvs_latency *latency, const struct nvs_latency *before)
{
	latency->count -= before->count;
	for (size_t i = 0; i < NVS_LATENCY_BUCKETS; i++)
		latency->buckets[i] -= before->buckets[i];
}

static void make_sample(struct round *round, struct tune_sample *sample)
{
	const struct counters *from = &round->from;
	struct counters *to = &round->to;
	double nbytes;

	*sample = (struct tune_sample){.ns = to->ns > from->ns ? to->ns - from->ns : 1};
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		sample->bytes[d] = to->bytes[d] - from->bytes[d];
		latency_since(&to->latency[d], &from->latency[d]);
		sample->p50_ns = max_u64(sample->p50_ns,
					 nvs_latency_percentile(&to->latency[d], 50));
		sample->p99_ns = max_u64(sample->p99_ns,
					 nvs_latency_percentile(&to->latency[d], 99));
	}
	nbytes = (double)(sample->bytes[NVS_READ] + sample->bytes[NVS_WRITE]);
	sample->bytes_per_s = nbytes * 1e9 / (double)sample->ns;
	if (nbytes > 0)
		sample->cpu_ms_per_gib = (to->cpu_ms - from->cpu_ms) /
					 (nbytes / (double)(1024 * MIB));
}

/* ---- A round ---- */

static int measure_on_file(struct round *round, uint64_t for_ns, struct tune_sample *sample)
{
	const struct tune_workload *workload = round->workload;
	int rc = nvs_file_open(round->aio, workload->path, NVS_FILE_WRITE, &round->file,
			       round->error);

	if (rc)
		return rc;
	/* If limits or the ring prevent it, transfers still work. */
	(void)nvs_aio_register_memory(round->aio, workload->memory,
				      round->nslots * round->transfer_bytes);
	rc = run(round, for_ns);
	drain(round);
	if (!rc)
		make_sample(round, sample);
	nvs_file_close(round->file);
	return rc;
}

void tune_settings(const struct tune_point *point, struct tune_setting settings[TUNE_SETTINGS])
{
	settings[0] = (struct tune_setting){"aio.block_size", point->block_size, false};
	settings[1] = (struct tune_setting){"aio.queue_depth", point->queue_depth, false};
	settings[2] = (struct tune_setting){"aio.thread_count", point->thread_count, false};
	settings[3] = (struct tune_setting){"aio.single_submit", point->single_submit, true};
	settings[4] = (struct tune_setting){"aio.overlap_events", point->overlap_events, true};
}

int tune_aio_open(const struct tune_workload *workload, const struct tune_point *point,
		  struct nvs_aio **aio, struct nvs_error *error)
{
	struct tune_setting settings[TUNE_SETTINGS];
	struct nvs_config *config;
	int rc = nvs_config_open(&config, error);

	if (rc)
		return rc;
	tune_settings(point, settings);
	rc = nvs_config_set_number(config, "nvswap.ioengine", point->ioengine, error);
	for (size_t i = 0; i < TUNE_SETTINGS && !rc; i++)
		rc = nvs_config_set_number(config, settings[i].key, settings[i].value, error);
	if (!rc)
		rc = workload->open(workload->arg, config, aio, error);
	nvs_config_close(config);
	return rc;
}

int tune_workload_measure(void *arg, const struct tune_point *point, enum tune_objective objective,
			  uint64_t for_ns, struct tune_sample *sample, struct nvs_error *error)
{
	struct tune_workload *workload = arg;
	struct round *round = calloc(1, sizeof(*round));
	int rc;

	if (!round)
		return fail(error, -ENOMEM, "out of memory for a measurement");
	round->workload = workload;
	round->objective = objective;
	round->error = error;
	rc = plan(round, point);
	if (!rc)
		rc = tune_aio_open(workload, point, &round->aio, error);
	if (!rc) {
		rc = measure_on_file(round, for_ns, sample);
		nvs_aio_close(round->aio);
	}
	free(round);
	return rc;
}
