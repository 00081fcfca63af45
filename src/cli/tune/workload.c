/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a round of tuning does to the drive: transfers of several blocks, as of tensors, walk over
 * the file in order, with more of them handed over than the queues hold, so that these never run
 * dry. Counts I/Os as they complete, not whole transfers. Relies on a file that is there.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "tune.h"

#define MIB ((uint64_t)1 << 20)
/* Beyond what the queues hold, for the time that it takes to hand over the next transfer; no more,
 * for all of it has to be waited for in the end. */
#define SLACK_MIN (4 * MIB)
#define SLACK_MAX (32 * MIB)
/* All that is handed over is cut into so many transfers, where blocks are small enough. */
#define TRANSFERS 32u
/* For how long one transfer that is late may keep others from being followed by the next. */
#define WAIT_MS 1

struct slot {
	struct nvs_transfer transfer;
	uint64_t turn; /* of its transfer, counted from 0 */
	bool busy;
};

/* Counters at one moment. */
struct moment {
	uint64_t ns, bytes[2];
	double cpu_ms;
	struct nvs_latency latency[2];
};

struct round {
	const struct tune_load *load;
	enum tune_objective objective;
	struct nvs_aio *aio;
	struct nvs_file *file;
	struct slot *slots;
	unsigned nslots;
	uint64_t transfer_bytes;
	uint64_t region_bytes; /* that transfers of a direction walk over, again and again */
	uint64_t in_flight;    /* that the queues hold, bytes */
	uint64_t turns;	       /* transfers handed over */
	uint64_t moved;	       /* bytes of transfers that have completed */
	struct moment *from, *to;
	struct nvs_error *error;
};

static int fail(struct nvs_error *error, int code, const char *text)
{
	if (error) {
		*error = (struct nvs_error){.code = code};
		snprintf(error->text, sizeof(error->text), "%s", text);
	}
	return code;
}

/* ---- What is in flight ---- */

static uint64_t round_up(uint64_t n, uint64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* How long transfers are, and how many there are at a time. */
static int plan(struct round *round, const struct tune_point *point)
{
	const struct tune_load *load = round->load;
	unsigned regions = round->objective == TUNE_SWAP ? 2 : 1;
	uint64_t slack, fits;

	round->in_flight = (uint64_t)point->block_size * point->queue_depth * point->thread_count;
	slack = round->in_flight < SLACK_MIN ? SLACK_MIN : round->in_flight;
	slack = slack > SLACK_MAX ? SLACK_MAX : slack;
	round->transfer_bytes = round_up((round->in_flight + slack) / TRANSFERS, point->block_size);
	fits = load->memory_bytes / round->transfer_bytes;
	round->nslots = (unsigned)((round->in_flight + slack) / round->transfer_bytes + 1);
	if (round->nslots > fits)
		round->nslots = (unsigned)fits;
	if ((uint64_t)round->nslots * round->transfer_bytes <= round->in_flight)
		return fail(round->error, -EINVAL,
			    "the memory to move data to and from holds no more than what is to be "
			    "in flight");
	round->region_bytes = load->working_set / regions / round->transfer_bytes *
			      round->transfer_bytes;
	if (round->region_bytes < round->nslots * round->transfer_bytes)
		return fail(round->error, -EINVAL,
			    "the working set is too small for what is to be in flight");
	return 0;
}

static enum nvs_direction direction_of(const struct round *round, uint64_t turn)
{
	if (round->objective == TUNE_SWAP)
		return turn % 2 ? NVS_WRITE : NVS_READ;
	return round->objective == TUNE_READ ? NVS_READ : NVS_WRITE;
}

/* How many transfers of its direction came before. */
static uint64_t place_of(const struct round *round, uint64_t turn)
{
	return round->objective == TUNE_SWAP ? turn / 2 : turn;
}

/* The transfer of a turn. Reads lie in the first half of a mix, writes in the second. */
static void prepare(struct round *round, unsigned index, uint64_t turn)
{
	struct slot *slot = &round->slots[index];
	enum nvs_direction direction = direction_of(round, turn);
	uint64_t offset = place_of(round, turn) * round->transfer_bytes % round->region_bytes;

	if (round->objective == TUNE_SWAP && direction == NVS_WRITE)
		offset += round->region_bytes;
	slot->transfer = (struct nvs_transfer){
		.file = round->file,
		.direction = direction,
		.data = (char *)round->load->memory + index * round->transfer_bytes,
		.nbytes = round->transfer_bytes,
		.offset = offset,
	};
	slot->turn = turn;
	slot->busy = true;
}

static struct slot *oldest(const struct round *round)
{
	struct slot *first = NULL;

	for (unsigned i = 0; i < round->nslots; i++) {
		struct slot *slot = &round->slots[i];

		if (slot->busy && (!first || slot->turn < first->turn))
			first = slot;
	}
	return first;
}

/* Whether the walk has not come round to where one is still in flight. */
static bool may_go_on(const struct round *round)
{
	const struct slot *first = oldest(round);

	return !first || place_of(round, round->turns) - place_of(round, first->turn) <
				 round->region_bytes / round->transfer_bytes;
}

static int hand_over(struct round *round)
{
	struct nvs_transfer *batch[2 * TRANSFERS];
	size_t n = 0;

	for (unsigned i = 0; i < round->nslots && may_go_on(round); i++) {
		if (round->slots[i].busy)
			continue;
		prepare(round, i, round->turns++);
		batch[n++] = &round->slots[i].transfer;
	}
	return n ? nvs_submit(round->aio, batch, n, round->error) : 0;
}

/* Takes those that have completed; *any: one has. */
static int take_completed(struct round *round, bool *any)
{
	for (unsigned i = 0; i < round->nslots; i++) {
		struct slot *slot = &round->slots[i];
		struct nvs_transfer *transfer = &slot->transfer;
		int rc;

		if (!slot->busy || !nvs_transfer_completed(transfer))
			continue;
		slot->busy = false;
		*any = true;
		round->moved += transfer->nbytes;
		rc = nvs_transfer_wait(round->aio, &transfer, 1, 0, round->error);
		if (rc)
			return rc;
	}
	return 0;
}

/* Until the oldest has completed, or not for long; what they end with is looked at then. */
static int wait_a_little(struct round *round, bool *any)
{
	struct nvs_transfer *transfer = &oldest(round)->transfer;

	(void)nvs_transfer_wait(round->aio, &transfer, 1, WAIT_MS, NULL);
	return take_completed(round, any);
}

/* The kernel has the memory until all of them have ended. */
static void drain(struct round *round)
{
	for (unsigned i = 0; i < round->nslots; i++) {
		struct nvs_transfer *transfer = &round->slots[i].transfer;

		if (round->slots[i].busy)
			nvs_transfer_wait(round->aio, &transfer, 1, -1, NULL);
	}
}

/* ---- The window ---- */

static double cpu_ms(void)
{
	struct rusage usage;

	if (getrusage(RUSAGE_SELF, &usage))
		return 0;
	return 1e3 * (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       1e-3 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* Time and bytes first, which belong together: latencies take longer to add up. */
static void look(const struct round *round, struct moment *moment)
{
	const struct tune_load *load = round->load;
	struct nvs_aio_stats stats;

	if (load->hold)
		load->hold(load->arg, true);
	moment->ns = load->now_ns(load->arg);
	moment->cpu_ms = cpu_ms();
	nvs_aio_get_stats(round->aio, &stats);
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		moment->bytes[d] = stats.io[d].bytes;
		nvs_aio_get_latency(round->aio, d, NVS_LAT, &moment->latency[d]);
	}
	if (load->hold)
		load->hold(load->arg, false);
}

/*
 * Moves until the queues have been emptied once, or half the time of the window has passed; then
 * for the time of the window. Both ends of it are moments at which a transfer has completed: where
 * I/Os are slow, a part of one counts.
 */
static int run(struct round *round, uint64_t for_ns)
{
	const struct tune_load *load = round->load;
	uint64_t started = load->now_ns(load->arg);
	bool counting = false;

	for (;;) {
		bool any = false;
		int rc = load->stopped && load->stopped() ? -EINTR : hand_over(round);
		uint64_t now;

		if (!rc)
			rc = wait_a_little(round, &any);
		if (rc)
			return rc;
		now = load->now_ns(load->arg);
		if (!any)
			continue;
		if (!counting &&
		    (round->moved >= round->in_flight || now - started >= for_ns / 2)) {
			look(round, round->from);
			counting = true;
		} else if (counting && now - round->from->ns >= for_ns) {
			look(round, round->to);
			return 0;
		}
	}
}

/* Least and greatest stay those since the beginning; percentiles don't look at them. */
static void latency_since(struct nvs_latency *latency, const struct nvs_latency *before)
{
	latency->count -= before->count;
	for (size_t i = 0; i < NVS_LATENCY_BUCKETS; i++)
		latency->buckets[i] -= before->buckets[i];
}

static void count(struct round *round, struct tune_sample *sample)
{
	const struct moment *from = round->from;
	struct moment *to = round->to;
	double nbytes;

	*sample = (struct tune_sample){.ns = to->ns > from->ns ? to->ns - from->ns : 1};
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		uint64_t p50, p99;

		sample->bytes[d] = to->bytes[d] - from->bytes[d];
		latency_since(&to->latency[d], &from->latency[d]);
		p50 = nvs_latency_percentile(&to->latency[d], 50);
		p99 = nvs_latency_percentile(&to->latency[d], 99);
		if (p50 > sample->p50_ns) {
			sample->p50_ns = p50;
			sample->p99_ns = p99;
		}
	}
	nbytes = (double)(sample->bytes[NVS_READ] + sample->bytes[NVS_WRITE]);
	sample->bytes_per_s = nbytes * 1e9 / (double)sample->ns;
	if (nbytes > 0)
		sample->cpu_ms_per_gib = (to->cpu_ms - from->cpu_ms) /
					 (nbytes / (double)(1024 * MIB));
}

/* ---- A round ---- */

static int with_file(struct round *round, uint64_t for_ns, struct tune_sample *sample)
{
	const struct tune_load *load = round->load;
	int rc = nvs_file_open(round->aio, load->path, NVS_FILE_WRITE, &round->file, round->error);

	if (rc)
		return rc;
	/* Where the limits or the ring don't allow it, data is moved all the same. */
	(void)nvs_aio_register_memory(round->aio, load->memory,
				      round->nslots * round->transfer_bytes);
	rc = run(round, for_ns);
	drain(round);
	if (!rc)
		count(round, sample);
	nvs_file_close(round->file);
	return rc;
}

static int with_aio(struct round *round, const struct tune_point *point, uint64_t for_ns,
		    struct tune_sample *sample)
{
	const struct nvs_aio_config config = {
		.block_size = point->block_size,
		.queue_depth = point->queue_depth,
		.thread_count = point->thread_count,
		.single_submit = point->single_submit,
		.overlap_events = point->overlap_events,
		.ioengine = point->ioengine,
	};
	int rc = plan(round, point);

	if (!rc)
		rc = round->load->open(round->load->arg, &config, &round->aio, round->error);
	if (rc)
		return rc;
	rc = with_file(round, for_ns, sample);
	nvs_aio_close(round->aio);
	return rc;
}

int tune_load_measure(void *load, const struct tune_point *point, enum tune_objective objective,
		      uint64_t for_ns, struct tune_sample *sample, struct nvs_error *error)
{
	struct slot *slots = calloc((size_t)2 * TRANSFERS, sizeof(struct slot));
	struct moment *moments = calloc(2, sizeof(struct moment));
	struct round round = {
		.load = load,
		.objective = objective,
		.slots = slots,
		.from = moments,
		.to = moments ? moments + 1 : NULL,
		.error = error,
	};
	int rc;

	if (slots && moments)
		rc = with_aio(&round, point, for_ns, sample);
	else
		rc = fail(error, -ENOMEM, "out of memory while measuring");
	free(slots);
	free(moments);
	return rc;
}
