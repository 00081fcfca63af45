/* SPDX-License-Identifier: Apache-2.0 */
/* A round counts I/Os between two completions: counting transfers would be too coarse. */
#include "base/clock.h"
#include "base/error.h"
#include "base/numbers.h"
#include "cli/tune/tune.h"

#define MIB ((uint64_t)1 << 20)
/* Submitted beyond the total depth, so that queues stay full until the next transfer is submitted.
 * All of it must complete at the end of the round. */
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
	uint64_t
		region; /* transfers of one direction in the part of the file that they walk over */
	uint64_t in_flight; /* bytes that the queues hold */
	uint64_t turns;	    /* transfers submitted */
	uint64_t completed; /* bytes of completed transfers */
	struct counters from, to;
	struct nvs_error *error;
};

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
		rc = workload->open ? workload->open(workload->arg, config, aio, error)
				    : nvs_aio_open(aio, config, error);
	nvs_config_close(config);
	return rc;
}

static int plan_round(struct round *round, const struct tune_point *point)
{
	const struct tune_workload *workload = round->workload;
	uint64_t in_flight = (uint64_t)point->block_size * point->queue_depth * point->thread_count;
	uint64_t total = in_flight + min_u64(max_u64(in_flight, SLACK_MIN), SLACK_MAX);

	round->in_flight = in_flight;
	round->transfer_bytes = align_up(total / TRANSFERS, point->block_size);
	round->nslots = (unsigned)min_u64(total / round->transfer_bytes + 1,
					  workload->memory_bytes / round->transfer_bytes);
	if (round->nslots * round->transfer_bytes <= in_flight)
		return error_set(round->error, -EINVAL,
				 "the memory for transfers is too small for the bytes in flight");
	round->region = workload->working_set / (round->objective == TUNE_SWAP ? 2 : 1) /
			round->transfer_bytes;
	if (round->region < round->nslots)
		return error_set(round->error, -EINVAL,
				 "the working set is too small for the bytes in flight");
	return 0;
}

static struct slot *oldest_slot(struct round *round)
{
	struct slot *first = NULL;

	for (struct slot *slot = round->slots; slot < round->slots + round->nslots; slot++)
		if (slot->request && (!first || slot->turn < first->turn))
			first = slot;
	return first;
}

/* Fills the free slots. In a mix, every second transfer is a write: reads go to the first half of
 * the file and writes to the second. */
static int submit_transfers(struct round *round)
{
	struct tune_workload *workload = round->workload;
	const struct slot *first = oldest_slot(round);
	unsigned mix = round->objective == TUNE_SWAP;
	struct nvs_transfer batch[2 * TRANSFERS];
	struct nvs_request *requests[2 * TRANSFERS];
	size_t n = 0;
	int rc;

	for (unsigned i = 0; i < round->nslots; i++) {
		struct slot *slot = &round->slots[i];
		uint64_t place = round->turns >> mix; /* earlier ones of the same direction */
		bool write = mix ? round->turns % 2 : round->objective == TUNE_WRITE;

		if (slot->request)
			continue;
		/* It must not overlap one in flight from the previous walk over the file. */
		if (first && place - (first->turn >> mix) >= round->region)
			break;
		if (write && workload->written + round->transfer_bytes > workload->writes_max) {
			if (n)
				break;
			return error_set(round->error, -EDQUOT, "the limit of writes is reached");
		}
		slot->turn = round->turns++;
		workload->written += write ? round->transfer_bytes : 0;
		batch[n++] = (struct nvs_transfer){
			.size = sizeof(*batch),
			.file = round->file,
			.direction = write ? NVS_WRITE : NVS_READ,
			.data = (char *)workload->memory + i * round->transfer_bytes,
			.nbytes = round->transfer_bytes,
			.offset = (place % round->region + (mix && write ? round->region : 0)) *
				  round->transfer_bytes,
			.user = slot,
		};
	}
	if (!n)
		return 0;
	rc = nvs_aio_submit(round->aio, batch, n, requests, round->error);
	for (size_t i = 0; i < n && !rc; i++)
		((struct slot *)batch[i].user)->request = requests[i];
	return rc;
}

static int reap_transfers(struct round *round, bool *any)
{
	struct nvs_request *completed[2 * TRANSFERS + 1] = {oldest_slot(round)->request};
	size_t n = nvs_aio_wait(round->aio, completed, 1, WAIT_MS, NULL) != -ETIMEDOUT;
	int rc = 0;

	n += nvs_aio_take(round->aio, completed + n, 2 * TRANSFERS);
	for (size_t i = 0; i < n; i++) {
		struct slot *slot = nvs_request_user(completed[i]);

		slot->request = NULL;
		*any = true;
		round->completed += round->transfer_bytes;
		rc = rc ?: nvs_request_status(completed[i], round->error);
		nvs_request_close(completed[i]);
	}
	return rc;
}

/* Time and bytes first, because they belong together; latencies take longer to read. */
static void read_counters(const struct round *round, struct counters *counters)
{
	const struct tune_workload *workload = round->workload;
	struct nvs_aio_stats stats = {.size = sizeof(stats)};

	if (workload->hold)
		workload->hold(workload->arg, true);
	counters->ns = workload->now_ns(workload->arg);
	counters->cpu_ms = 1e-6 * (double)clock_read_ns(CLOCK_PROCESS_CPUTIME_ID);
	nvs_aio_get_stats(round->aio, &stats);
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		counters->bytes[d] = stats.io[d].bytes;
		counters->latency[d].size = sizeof(struct nvs_latency);
		nvs_aio_get_latency(round->aio, d, NVS_LAT, &counters->latency[d]);
	}
	if (workload->hold)
		workload->hold(workload->arg, false);
}

/* Warms up until the queues were emptied once, or for half of the time; then counts. Both ends of
 * the window are completions of transfers. */
static int run_transfers(struct round *round, uint64_t for_ns)
{
	const struct tune_workload *workload = round->workload;
	uint64_t started = workload->now_ns(workload->arg);
	bool counting = false;

	for (;;) {
		bool any = false;
		int rc = workload->stopped && workload->stopped() ? -EINTR
								  : submit_transfers(round);
		uint64_t now;

		rc = rc ?: reap_transfers(round, &any);
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

static void make_sample(struct round *round, struct tune_sample *sample)
{
	const struct counters *from = &round->from;
	struct counters *to = &round->to;
	double nbytes;

	*sample = (struct tune_sample){.ns = max_u64(to->ns - from->ns, 1)};
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		struct nvs_latency *latency = &to->latency[d];

		sample->bytes[d] = to->bytes[d] - from->bytes[d];
		/* Minimum and maximum stay those since the begin: none uses them. */
		latency->count -= from->latency[d].count;
		for (size_t i = 0; i < NVS_LATENCY_BUCKETS; i++)
			latency->buckets[i] -= from->latency[d].buckets[i];
		sample->p50_ns = max_u64(sample->p50_ns, nvs_latency_percentile(latency, 50));
		sample->p99_ns = max_u64(sample->p99_ns, nvs_latency_percentile(latency, 99));
	}
	nbytes = (double)(sample->bytes[NVS_READ] + sample->bytes[NVS_WRITE]);
	sample->bytes_per_s = nbytes * 1e9 / (double)sample->ns;
	if (nbytes > 0)
		sample->cpu_ms_per_gib = (to->cpu_ms - from->cpu_ms) /
					 (nbytes / (double)(1024 * MIB));
}

int tune_workload_measure(void *arg, const struct tune_point *point, enum tune_objective objective,
			  uint64_t for_ns, struct tune_sample *sample, struct nvs_error *error)
{
	struct tune_workload *workload = arg;
	static struct round rounds; /* large */
	struct round *round = &rounds;
	int rc;

	*round = (struct round){.workload = workload, .objective = objective, .error = error};
	rc = plan_round(round, point);
	rc = rc ?: tune_aio_open(workload, point, &round->aio, error);
	if (!rc)
		rc = nvs_file_from_fd(round->aio, workload->fd, NVS_FILE_WRITE, &round->file,
				      error);
	if (!rc) {
		/* If limits or the ring prevent it, transfers still work. */
		(void)nvs_aio_register_memory(round->aio, workload->memory,
					      round->nslots * round->transfer_bytes);
		rc = run_transfers(round, for_ns);
		/* The kernel uses the memory until all transfers have completed. */
		(void)nvs_aio_wait_all(round->aio, -1, NULL, NULL);
		nvs_file_close(round->file);
	}
	if (!rc) {
		make_sample(round, sample);
		workload->rate = sample->bytes_per_s;
	}
	nvs_aio_close(round->aio);
	return rc;
}
