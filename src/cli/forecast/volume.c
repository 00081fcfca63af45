/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of each mode by its passes: before the measuring, in each measured loop, and after it.
 */
#include <math.h>

#include "cli/forecast/forecast.h"
#include "cli/modes/model/layers.h"
#include "cli/modes/model/parameters.h"
#include "cli/modes/pool.h"
#include "cli/replay/accesses.h"
#include "cli/settings.h"

#define STATE_BYTES 12 /* master weight and two moments, of one element */
#define MS_PER_S    1e3
#define US_PER_S    1e6
#define NS_PER_S    1e9

struct volume {
	double before[2], loop[2], after[2]; /* bytes, by enum nvs_direction */
	double space;
	double compute_s; /* of one loop */
	bool at_most;
};

/* At least: an extent is a whole number of units of the store, which are 512 bytes or more. */
static double model_space(const struct model *model)
{
	double space = 0;

	for (size_t i = 0; i < model->n; i++)
		space += (double)((model->tensors[i].nbytes + 511) & ~(uint64_t)511);
	return space;
}

static void swap_volume(const struct bench_job *job, struct volume *volume)
{
	const struct bench_options *options = &job->options;
	double nbytes = (double)job->model.nbytes;

	volume->space = model_space(&job->model);
	if (options->rw != RW_SWAPOUT)
		volume->before[NVS_WRITE] = volume->loop[NVS_READ] = nbytes;
	if (options->rw != RW_SWAPIN)
		volume->loop[NVS_WRITE] = nbytes;
	if (options->verify && options->rw != RW_SWAPIN)
		volume->after[NVS_READ] = nbytes;
}

/* The first step is not measured. */
static void params_volume(const struct bench_job *job, struct volume *volume)
{
	double nbytes = (double)job->model.nbytes;
	size_t layers = layers_cut(&job->model, NULL);

	volume->space = model_space(&job->model);
	volume->before[NVS_WRITE] = nbytes;
	volume->before[NVS_READ] = volume->loop[NVS_READ] = 2 * nbytes;
	volume->compute_s = 2 * (double)layers * (double)job->options.compute_us / US_PER_S;
	volume->at_most = true;
}

static void step_volume(const struct bench_job *job, struct volume *volume)
{
	const struct nvs_config *config = job->config;
	double numel = (double)parameters_numel(&job->model, setting_param_dtype(config));
	double offloaded = numel * setting_real(config, "offload_optimizer.ratio");
	double resident = fmin(setting_real(config, "nvswap.optimizer_max_in_cpu"), offloaded);

	volume->space = volume->before[NVS_WRITE] = STATE_BYTES * offloaded;
	for (int d = NVS_READ; d <= NVS_WRITE; d++)
		volume->loop[d] = STATE_BYTES * (offloaded - resident);
	if (setting_number(config, "offload_optimizer.fast_init"))
		return;
	/* Opening the optimizer writes the state; the first step then reads and writes it. */
	for (int d = NVS_READ; d <= NVS_WRITE; d++)
		volume->before[d] += volume->loop[d];
}

/* The trace of a recorded run has the bytes moved; a list of accesses gives an upper bound. */
static void replay_volume(const struct bench_job *job, struct volume *volume)
{
	const struct access_list *list = job->accesses;
	double asked[2] = {0};

	for (size_t i = 0; i < list->n; i++) {
		double nbytes = (double)job->model.tensors[list->accesses[i].tensor].nbytes;

		asked[NVS_READ] += list->accesses[i].call == ACCESS_SWAP_IN ? nbytes : 0;
		asked[NVS_WRITE] += list->accesses[i].call == ACCESS_RELEASE_DIRTY ? nbytes : 0;
	}
	for (int d = NVS_READ; d <= NVS_WRITE; d++)
		volume->loop[d] = list->wall_ns ? (double)list->bytes[d] : asked[d];
	for (size_t i = 0; i < job->model.n; i++)
		if (list->read_first[i])
			volume->before[NVS_WRITE] += (double)job->model.tensors[i].nbytes;
	volume->space = model_space(&job->model);
	if (job->options.pace == PACE_RECORDED)
		volume->compute_s = (double)list->accesses[list->n - 1].at_ns / NS_PER_S;
	volume->at_most = !list->wall_ns;
}

/* A file that is read is written first. */
static void block_volume(const struct bench_job *job, struct volume *volume)
{
	bool writes = block_mode_writes(job->options.rw);

	volume->space = (double)job->options.size;
	volume->loop[writes ? NVS_WRITE : NVS_READ] = volume->space;
	volume->before[NVS_WRITE] = writes ? 0 : volume->space;
}

/* Seconds of that many loops at the assumed rate, or at the job's limit. */
static double loops_seconds(const struct bench_options *options, const struct volume *volume,
			    double loops)
{
	double seconds = (volume->loop[NVS_READ] + volume->loop[NVS_WRITE]) / FORECAST_BYTES_PER_S;

	for (int d = NVS_READ; d <= NVS_WRITE; d++)
		if (options->rate)
			seconds = fmax(seconds, volume->loop[d] / (double)options->rate);
	return loops * fmax(seconds, volume->compute_s);
}

/* Seconds of ramp and measuring, and the number of loops in them. */
static double measuring_seconds(const struct bench_options *options, const struct volume *volume,
				double *loops, bool *by_time)
{
	double runtime = (double)options->runtime_ms / MS_PER_S, seconds;
	double ramp = (double)options->ramp_time_ms / MS_PER_S;
	double loop = loops_seconds(options, volume, 1);

	*loops = (double)options->loops;
	seconds = loops_seconds(options, volume, *loops);
	*by_time = runtime > 0 && (options->time_based || seconds > runtime);
	if (*by_time) {
		*loops = loop > 0 ? runtime / loop : 0;
		seconds = runtime;
	}
	*loops += (double)options->ramp_loops + (loop > 0 ? ramp / loop : 0);
	return seconds + loops_seconds(options, volume, (double)options->ramp_loops) + ramp;
}

static uint64_t whole(double bytes)
{
	return bytes < 0x1p63 ? (uint64_t)bytes : UINT64_MAX;
}

void forecast_job(const struct bench_job *job, struct forecast *forecast)
{
	const struct bench_options *options = &job->options;
	struct volume volume = {0};
	double loops, around = 0;

	if (is_block_mode(options->rw))
		block_volume(job, &volume);
	else if (options->rw == RW_STEP)
		step_volume(job, &volume);
	else if (options->rw == RW_PARAMS)
		params_volume(job, &volume);
	else if (options->rw == RW_REPLAY)
		replay_volume(job, &volume);
	else
		swap_volume(job, &volume);
	*forecast = (struct forecast){.space = whole(volume.space),
				      .fill = whole(volume.before[NVS_WRITE]),
				      .at_most = volume.at_most};
	if (!is_block_mode(options->rw))
		forecast->pinned = nvs_config_pool_bytes(job->config, job->block);
	forecast->seconds = measuring_seconds(options, &volume, &loops, &forecast->by_time);
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		around += volume.before[d] + volume.after[d];
		forecast->bytes[d] =
			whole(volume.before[d] + loops * volume.loop[d] + volume.after[d]);
	}
	forecast->seconds += around / FORECAST_BYTES_PER_S;
}
