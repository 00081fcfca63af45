/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/modes/modes.h"

#include <errno.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "cli/stop.h"

int load_run(const struct load *load)
{
	const struct bench_options *options = load->options;
	struct bench_result *result = load->result;
	struct nvs_aio *aio = load->engine ? nvs_engine_aio(load->engine) : load->aio;
	struct baseline from;
	int rc = 0;

	if (!job_begin(load->watch))
		return 0;
	if (options->ramp_loops)
		rc = load->run(load->arg, false, options->ramp_loops, 0);
	if (!rc && options->ramp_time_ms && !stop_signal())
		rc = load->run(load->arg, false, UINT64_MAX, options->ramp_time_ms);
	if (rc || stop_signal())
		return rc;
	result->data_us = 0;
	job_measures(load->watch, aio, load->engine, &from);
	rc = load->run(load->arg, true, options->time_based ? UINT64_MAX : options->loops,
		       options->runtime_ms);
	measure_end(aio, load->engine, &from, result);
	job_measured(load->watch, result);
	return rc;
}

static void count_step(struct step_figures *figures, const struct step_done *done)
{
	const struct nvs_step_io *io = &done->io;
	struct nvs_step_io *sum = &figures->sum;

	if (!figures->steps++ || io->wall_ns < figures->wall_min_ns)
		figures->wall_min_ns = io->wall_ns;
	figures->wall_max_ns = max_u64(figures->wall_max_ns, io->wall_ns);
	figures->skipped += done->skipped;
	figures->shorter_ns += min_u64(io->io_ns, io->compute_ns);
	figures->updates_ns += done->updates_ns;
	figures->tiles += done->tiles;
	sum->wall_ns += io->wall_ns;
	sum->io_ns += io->io_ns;
	sum->compute_ns += io->compute_ns;
	sum->hidden_ns += io->hidden_ns;
	sum->read_bytes += io->read_bytes;
	sum->written_bytes += io->written_bytes;
	sum->drive_written_bytes += io->drive_written_bytes;
	sum->hits += io->hits;
	sum->misses += io->misses;
	sum->stalls += io->stalls;
	sum->stall_ns += io->stall_ns;
}

static int run_steps(void *arg, bool measured, uint64_t loops, uint64_t runtime_ms)
{
	const struct load *steps = arg;
	uint64_t started = clock_ns(), runtime_ns = runtime_ms * 1000000u, spent_ns = 0, moved = 0;
	bool by_time = loops == UINT64_MAX;
	int rc = 0;

	progress_begin(measured ? "steps" : "ramp", by_time ? runtime_ns : loops);
	for (uint64_t i = 0;
	     i < loops && !rc && !stop_signal() && (!runtime_ns || spent_ns < runtime_ns); i++) {
		struct step_done done = {0};

		rc = steps->step(steps->arg, &done);
		if (!rc && measured)
			count_step(&steps->result->steps, &done);
		moved += done.io.read_bytes + done.io.written_bytes;
		spent_ns = clock_ns() - started;
		progress_update(by_time ? spent_ns : i + 1, moved);
	}
	progress_end();
	return rc || !steps->wait ? rc : steps->wait(steps->arg);
}

int steps_run(const struct load *steps)
{
	struct load own = *steps, load = *steps;
	struct step_done first = {0};
	int rc = steps->step(steps->arg, &first);

	steps->result->steps.first = first.io;
	if (!rc && steps->wait)
		rc = steps->wait(steps->arg);
	load.run = run_steps;
	load.arg = &own;
	if (!rc)
		rc = load_run(&load);
	steps->result->updates_us = steps->result->steps.updates_ns / 1000;
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
