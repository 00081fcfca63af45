/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread samples the counters of the aio, so that the measured threads do not. It runs only
 * between job_measures and job_measured.
 */
#include "cli/jobs/jobs.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/clock.h"

#define LIVE_NS	     250000000u
#define SAMPLE_TICKS 2u	       /* half a second, fio's bwavgtime and iopsavgtime */
#define SLICE_NS     50000000u /* sleep at most this long, to notice a signal */

struct job_watch {
	const struct bench_job *job;
	struct job_live *live;
	int channel;
	struct pace {
		uint64_t since_ns, bytes; /* since_ns 0: not started */
	} pace[2];
	uint64_t over_ns; /* end of the phase; 0: no limit */

	struct nvs_aio *aio;
	struct baseline from;
	struct nvs_aio_stats stats;
	struct nvs_io_stats sampled[2]; /* as of the last sample, at sampled_ns */
	uint64_t sampled_ns;
	struct bench_samples bw_bytes[2], iops[2];
	uint64_t started_unix_ms;

	pthread_t thread;
	bool sampling; /* the thread runs */
	sem_t ending;  /* it should end */
};

bool job_sleep_until(uint64_t due_ns)
{
	for (uint64_t now = clock_ns(); now < due_ns && !stop_signal(); now = clock_ns()) {
		uint64_t to = due_ns - now < SLICE_NS ? due_ns : now + SLICE_NS;
		struct timespec until = {.tv_sec = (time_t)(to / 1000000000u),
					 .tv_nsec = (long)(to % 1000000000u)};

		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
	}
	return !stop_signal();
}

static void begin_phase(struct job_watch *watch, enum job_phase phase, uint64_t limit_ms)
{
	memset(watch->pace, 0, sizeof(watch->pace));
	watch->over_ns = limit_ms ? clock_ns() + limit_ms * 1000000u : 0;
	atomic_store(&watch->live->phase, phase);
}

bool job_begin(struct job_watch *watch)
{
	const struct bench_options *options;
	struct pollfd channel = {.events = POLLIN};
	char c = 'r';

	if (!watch)
		return !stop_signal();
	options = &watch->job->options;
	channel.fd = watch->channel;
	atomic_store(&watch->live->phase, JOB_READY);
	if (send(channel.fd, &c, 1, MSG_NOSIGNAL) != 1)
		return false;
	while (!stop_signal() && poll(&channel, 1, (int)(SLICE_NS / 1000000u)) <= 0)
		;
	if (stop_signal() || recv(channel.fd, &c, 1, 0) != 1)
		return false;
	begin_phase(watch, JOB_RAMPING, options->ramp_loops ? 0 : options->ramp_time_ms);
	return true;
}

bool job_pace(struct job_watch *watch, enum nvs_direction direction, uint64_t nbytes)
{
	uint64_t rate = watch ? watch->job->options.rate : 0, due_ns;
	struct pace *pace;

	if (!rate)
		return true;
	pace = &watch->pace[direction];
	if (!pace->since_ns)
		pace->since_ns = clock_ns();
	due_ns = pace->since_ns + (uint64_t)((double)pace->bytes / (double)rate * 1e9);
	pace->bytes += nbytes;
	if (!watch->over_ns || due_ns < watch->over_ns)
		return job_sleep_until(due_ns);
	job_sleep_until(watch->over_ns);
	return false;
}

static void add_sample(struct bench_samples *samples, double value)
{
	if (!samples->n++ || value < samples->min)
		samples->min = value;
	if (value > samples->max)
		samples->max = value;
	samples->sum += value;
	samples->sum_squares += value * value;
}

/* Windows without I/O are no samples, as in fio. */
static void add_samples(struct job_watch *watch, uint64_t now)
{
	double seconds = (double)(now - watch->sampled_ns) / 1e9;

	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		const struct nvs_io_stats *io = &watch->stats.io[d];
		uint64_t ios = io->ios - watch->sampled[d].ios;

		if (!ios || seconds <= 0)
			continue;
		add_sample(&watch->iops[d], (double)ios / seconds);
		add_sample(&watch->bw_bytes[d],
			   (double)(io->bytes - watch->sampled[d].bytes) / seconds);
		watch->sampled[d] = *io;
	}
	watch->sampled_ns = now;
}

static void put_samples(const struct job_watch *watch, struct bench_result *result)
{
	result->pid = watch->live->result.pid;
	result->started_unix_ms = watch->started_unix_ms;
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		result->bw_bytes[d] = watch->bw_bytes[d];
		result->iops[d] = watch->iops[d];
	}
}

static void put_status(const struct job_watch *watch, struct bench_result *status)
{
	*status = (struct bench_result){0};
	put_samples(watch, status);
	measure_end(watch->aio, NULL, &watch->from, status);
	status->elapsed_s = (double)status->window_ns / 1e9;
}

static void publish_counters(struct job_watch *watch)
{
	struct job_live *live = watch->live;
	unsigned asked = atomic_load(&live->status_asked);

	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		atomic_store(&live->bytes[d], watch->stats.io[d].bytes);
		atomic_store(&live->ios[d], watch->stats.io[d].ios);
	}
	if (asked == atomic_load(&live->status_answered))
		return;
	put_status(watch, &live->status);
	atomic_store(&live->status_answered, asked);
}

/* Counters are published at each multiple of LIVE_NS, and sampled at each SAMPLE_TICKS of these. */
static void *take_samples(void *arg)
{
	struct job_watch *watch = arg;
	uint64_t started = watch->from.started_ns, ticks = 0, now = started;

	for (;;) {
		uint64_t next = started + ((now - started) / LIVE_NS + 1) * LIVE_NS;
		const struct timespec until = {.tv_sec = (time_t)(next / 1000000000u),
					       .tv_nsec = (long)(next % 1000000000u)};

		if (!sem_clockwait(&watch->ending, CLOCK_MONOTONIC, &until))
			return NULL;
		if (errno != ETIMEDOUT)
			continue;
		nvs_aio_get_stats(watch->aio, &watch->stats);
		now = clock_ns();
		publish_counters(watch);
		if ((now - started) / LIVE_NS / SAMPLE_TICKS != ticks / SAMPLE_TICKS)
			add_samples(watch, now);
		ticks = (now - started) / LIVE_NS;
	}
}

void job_measures(struct job_watch *watch, struct nvs_aio *aio, struct nvs_engine *engine,
		  struct baseline *from)
{
	struct timeval unix_time;
	int rc;

	measure_begin(aio, engine, from);
	if (!watch)
		return;
	watch->aio = aio;
	watch->from = *from;
	watch->stats.size = sizeof(watch->stats);
	gettimeofday(&unix_time, NULL);
	watch->started_unix_ms = (uint64_t)unix_time.tv_sec * 1000u +
				 (uint64_t)unix_time.tv_usec / 1000u;
	watch->sampled_ns = from->started_ns;
	atomic_store(&watch->live->measuring_since_ns, from->started_ns);
	begin_phase(watch, JOB_MEASURING, watch->job->options.runtime_ms);
	rc = pthread_create(&watch->thread, NULL, take_samples, watch);
	watch->sampling = !rc;
	if (rc)
		say("cannot start the thread for samples and status: %s", strerror(rc));
}

void job_measured(struct job_watch *watch, struct bench_result *result)
{
	if (!watch)
		return;
	if (watch->sampling) {
		sem_post(&watch->ending);
		pthread_join(watch->thread, NULL);
		watch->sampling = false;
	}
	nvs_aio_get_stats(watch->aio, &watch->stats);
	/* A measurement shorter than a window is its only sample. */
	if (!watch->iops[NVS_READ].n && !watch->iops[NVS_WRITE].n)
		add_samples(watch, watch->from.started_ns + result->window_ns);
	put_samples(watch, result);
	publish_counters(watch);
	put_status(watch, &watch->live->measured);
	atomic_store(&watch->live->phase, JOB_MEASURED);
}

struct job_watch *job_watch_open(const struct bench_job *job, struct job_live *live, int channel)
{
	static struct job_watch watch;

	watch = (struct job_watch){.job = job, .live = live, .channel = channel};
	sem_init(&watch.ending, 0, 0);
	return &watch;
}
