/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step that a signal or an error cut short is not counted.
 */
#include "cli/modes/steps.h"

#include <errno.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "cli/jobs/measure.h"
#include "cli/jobs/watch.h"
#include "cli/progress.h"
#include "cli/stop.h"

static int wait_in_flight(const struct step_mode *mode)
{
	return mode->wait ? mode->wait(mode->arg) : 0;
}

static void add_up(struct nvs_step_io *sum, const struct nvs_step_io *io)
{
	sum->wall_ns += io->wall_ns;
	sum->io_ns += io->io_ns;
	sum->compute_ns += io->compute_ns;
	sum->hidden_ns += io->hidden_ns;
	sum->read_bytes += io->read_bytes;
	sum->written_bytes += io->written_bytes;
	sum->hits += io->hits;
	sum->misses += io->misses;
	sum->stalls += io->stalls;
	sum->stall_ns += io->stall_ns;
}

static void count_step(struct step_figures *figures, const struct step_done *done)
{
	uint64_t wall_ns = done->io.wall_ns;

	if (!figures->steps++ || wall_ns < figures->wall_min_ns)
		figures->wall_min_ns = wall_ns;
	if (wall_ns > figures->wall_max_ns)
		figures->wall_max_ns = wall_ns;
	figures->skipped += done->skipped;
	figures->shorter_ns += min_u64(done->io.io_ns, done->io.compute_ns);
	figures->updates_ns += done->updates_ns;
	figures->tiles += done->tiles;
	add_up(&figures->sum, &done->io);
}

/* Runs the steps before the measurement: ramp_loops of them, then for ramp_time. */
static int ramp(const struct step_mode *mode, const struct bench_options *options)
{
	uint64_t ramp_ns = options->ramp_time_ms * 1000000u;
	struct step_done done = {0};
	uint64_t started;
	int rc = 0;

	for (uint64_t i = 0; i < options->ramp_loops && !rc && !stop_signal(); i++)
		rc = mode->step(mode->arg, &done);
	started = clock_ns();
	while (!rc && !stop_signal() && clock_ns() - started < ramp_ns)
		rc = mode->step(mode->arg, &done);
	return rc ? rc : wait_in_flight(mode);
}

static int first_step(const struct step_mode *mode, struct bench_result *result)
{
	struct step_done done = {0};
	int rc = mode->step(mode->arg, &done);

	result->steps.first = done.io;
	return rc ? rc : wait_in_flight(mode);
}

static bool goes_on(const struct bench_options *options, uint64_t steps, uint64_t spent_ns)
{
	if (stop_signal() || (options->runtime_ms && spent_ns >= options->runtime_ms * 1000000u))
		return false;
	return options->time_based || steps < options->loops;
}

static int run_steps(const struct step_mode *mode, const struct bench_options *options,
		     struct bench_result *result)
{
	uint64_t started = clock_ns();
	struct step_figures *figures = &result->steps;
	int rc = 0;

	progress_begin("steps",
		       options->time_based ? options->runtime_ms * 1000000u : options->loops);
	while (!rc && goes_on(options, figures->steps, clock_ns() - started)) {
		struct step_done done = {0};

		rc = mode->step(mode->arg, &done);
		result->data_us += done.data_us;
		if (!rc)
			count_step(figures, &done);
		progress_update(options->time_based ? clock_ns() - started : figures->steps,
				figures->sum.read_bytes + figures->sum.written_bytes);
	}
	progress_end();
	return rc ? rc : wait_in_flight(mode);
}

static int measured_steps(const struct step_mode *mode, const struct bench_options *options,
			  struct bench_result *result)
{
	struct nvs_aio *aio = nvs_engine_aio(mode->engine);
	struct baseline from;
	int rc;

	job_measures(mode->watch, aio, mode->engine, &from);
	rc = run_steps(mode, options, result);
	measure_end(aio, mode->engine, &from, result);
	job_measured(mode->watch, result);
	result->updates_us = result->steps.updates_ns / 1000;
	return rc;
}

int steps_run(const struct step_mode *mode, const struct bench_options *options,
	      struct bench_result *result)
{
	int rc = first_step(mode, result);

	if (!rc && job_begin(mode->watch)) {
		rc = ramp(mode, options);
		if (!rc && !stop_signal())
			rc = measured_steps(mode, options, result);
	}
	return rc == -EINTR && stop_signal() ? 0 : rc;
}

void steps_note_memory(struct bench_result *result, enum nvs_device device, uint64_t own_bytes)
{
	const struct nvs_pool_stats *pool = &result->engine.pool;

	result->steps.own_bytes = own_bytes;
	result->steps.peak_bytes = peak_memory();
	/* Explicit huge pages are not in the resident set. */
	result->steps.pool_rss_bytes = pool->bytes - min_u64(pool->huge, pool->bytes);
	if (device == NVS_DEVICE_CPU)
		result->steps.store_bytes = result->engine.store_bytes;
}
