/* SPDX-License-Identifier: Apache-2.0 */
/* What the jobs of a plan need, before anything is opened or made. No speed is assumed. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/numbers.h"
#include "cli/bench/run.h"
#include "cli/replay/replay.h"
#include "cli/settings.h"

#define SECTOR	    512u
#define SIZE(bytes) size_text(whole(bytes), (char[32]){0})

struct place {
	const char *path;
	char filesystem[32];
	uint64_t need, free; /* bytes */
	uint64_t device;     /* identifies the file system */
};

struct forecast {
	double space;	       /* bytes on all paths together */
	double bytes[2];       /* by enum nvs_direction, in all */
	double pass_written;   /* bytes written in each step or loop */
	const char *bytes_are; /* "exact", "about", "at most" or "at least" */
	double seconds;	       /* of ramp and measuring; 0: not known */
	struct place places[NVS_PATHS_MAX];
	unsigned nplaces;
};

static uint64_t whole(double bytes)
{
	return bytes < 0x1p63 ? (uint64_t)bytes : UINT64_MAX;
}

/* The bytes of an element's state: the master weight, and two moments of Adam or the one state of
 * another rule. The job's weights are in memory, so masters of bf16 weights may be remainders. */
static double state_bytes(const struct nvs_config *config)
{
	static const char *const of_one[] = {"SGD", "Adagrad", "Lion"};
	static const double moments[] = {[NVS_STATE_FP32] = 8,
					 [NVS_STATE_SPLIT] = 8,
					 [NVS_STATE_BF16] = 4,
					 [NVS_STATE_8BIT] = 2 + 8. / 128};
	uint64_t state = setting_number(config, "nvswap.optimizer_state");
	bool splits = state != NVS_STATE_FP32 && setting_param_dtype(config) == NVS_BF16 &&
		      !setting_number(config, "nvswap.keep");
	char type[16];
	int rc = nvs_config_get(config, "optimizer.type", type, sizeof(type), NULL);

	/* Names that are longer are of other types. */
	for (size_t i = 0; i < COUNT_OF(of_one) && !rc; i++)
		if (!strcmp(type, of_one[i]))
			return 4 + 4;
	return (splits ? 2 : 4) + moments[state];
}

/* Sets the bytes moved before or after the passes, and in each of them. */
static void add_moves(const struct bench_job *job, struct forecast *forecast, double around[2],
		      double pass[2])
{
	const struct bench_options *options = &job->options;
	const struct nvs_config *config = job->config;
	const struct access_list *list = job->accesses;
	const struct model_tensor *tensors = job->model.tensors;
	double nbytes = (double)job->model.nbytes, offloaded, resident, each;

	/* At least: an extent is whole units of the store, which are a sector or more. */
	for (size_t i = 0; i < job->model.n; i++)
		forecast->space += (double)((tensors[i].nbytes + SECTOR - 1) &
					    ~(uint64_t)(SECTOR - 1));
	switch (options->rw) {
	case RW_STEP:
		offloaded = (double)model_trained(&job->model, setting_param_dtype(config)) *
			    setting_real(config, "offload_optimizer.ratio");
		resident = fmin(setting_real(config, "nvswap.optimizer_max_in_cpu"), offloaded);
		each = state_bytes(config);
		forecast->bytes_are = "about"; /* without what pads a group's end to a tile */
		forecast->space = around[NVS_WRITE] = each * offloaded;
		for (int d = NVS_READ; d <= NVS_WRITE; d++) {
			pass[d] = each * (offloaded - resident);
			/* The first step, not measured, moves what opening wrote. */
			if (!setting_number(config, "offload_optimizer.fast_init"))
				around[d] += pass[d];
		}
		break;
	case RW_PARAMS: /* the first step is not measured, and the pool keeps some */
		around[NVS_WRITE] = nbytes;
		around[NVS_READ] = pass[NVS_READ] = 2 * nbytes;
		forecast->bytes_are = "at most";
		break;
	case RW_REPLAY: /* the trace of a run has the bytes moved; a list gives an upper bound */
		for (size_t i = 0; i < job->model.n; i++)
			around[NVS_WRITE] += list->read_first[i] ? (double)tensors[i].nbytes : 0;
		for (int d = NVS_READ; list->wall_ns && d <= NVS_WRITE; d++)
			pass[d] = (double)list->bytes[d];
		for (size_t i = 0; !list->wall_ns && i < list->n; i++) {
			double moved = (double)tensors[list->accesses[i].tensor].nbytes;

			if (list->accesses[i].call == ACCESS_SWAP_IN)
				pass[NVS_READ] += moved;
			if (list->accesses[i].call == ACCESS_RELEASE_DIRTY)
				pass[NVS_WRITE] += moved;
		}
		if (!list->wall_ns)
			forecast->bytes_are = "at most";
		break;
	case RW_SWAPOUT:
	case RW_SWAPIN:
	case RW_SWAP:
		if (options->rw != RW_SWAPOUT)
			around[NVS_WRITE] = pass[NVS_READ] = nbytes;
		if (options->rw != RW_SWAPIN)
			pass[NVS_WRITE] = nbytes;
		if (options->verify && options->rw != RW_SWAPIN)
			around[NVS_READ] = nbytes;
		break;
	default: /* blocks of a file; one that is read is written first */
		forecast->space = (double)options->size;
		if (block_mode_writes(options->rw))
			pass[NVS_WRITE] = forecast->space;
		else
			pass[NVS_READ] = around[NVS_WRITE] = forecast->space;
	}
}

/* errno of nvs_path_get_info; then the forecast has no places. */
static int forecast_job(const struct bench_job *job, struct forecast *forecast,
			struct nvs_error *error)
{
	const struct bench_options *options = &job->options;
	double around[2] = {0}, pass[2] = {0}, loops = (double)options->loops, pass_s = 0;
	double runtime = (double)options->runtime_ms / 1e3,
	       ramp = (double)options->ramp_time_ms / 1e3;
	unsigned n = 0;
	bool limited;

	*forecast = (struct forecast){.bytes_are = "exact"};
	add_moves(job, forecast, around, pass);
	if (options->rate)
		pass_s = fmax(pass[NVS_READ], pass[NVS_WRITE]) / (double)options->rate;
	limited = runtime > 0 && (options->time_based || pass_s == 0 || loops * pass_s > runtime);
	if (limited && pass_s > 0)
		loops = runtime / pass_s;
	else if (limited && options->time_based)
		loops = 0;
	if (limited)
		forecast->bytes_are = pass_s > 0 ? "about" : loops > 0 ? "at most" : "at least";
	if (ramp > 0)
		forecast->bytes_are = pass_s > 0 ? "about" : "at least";
	forecast->seconds = limited && (pass_s > 0 || options->time_based) ? runtime
									   : loops * pass_s;
	if (forecast->seconds > 0)
		forecast->seconds += ramp + (double)options->ramp_loops * pass_s;
	loops += (double)options->ramp_loops + (pass_s > 0 ? ramp / pass_s : 0);
	for (int d = NVS_READ; d <= NVS_WRITE; d++)
		forecast->bytes[d] = around[d] + loops * pass[d];
	forecast->pass_written = pass[NVS_WRITE];

	if (setting_device(job->config, job->block) != NVS_DEVICE_NVME)
		return 0;
	while (nvs_config_get_path(job->config, job->block, n))
		n++;
	for (unsigned i = 0; i < n; i++) {
		struct place *place = &forecast->places[i];
		struct nvs_path_info info = {.size = sizeof(info)};
		struct stat st = {0}, left;
		char name[PATH_MAX];
		int rc;

		place->path = nvs_config_get_path(job->config, job->block, i);
		rc = nvs_path_get_info(place->path, &info, error);
		if (rc)
			return rc;
		stat(place->path, &st);
		place->need = whole(forecast->space) / n;
		place->free = info.free_bytes;
		place->device = info.block_device ? st.st_rdev : st.st_dev;
		snprintf(place->filesystem, sizeof(place->filesystem), "%s", info.filesystem);
		/* This run's store replaces the one that a killed run left behind. */
		snprintf(name, sizeof(name), "%s/nvswap/rank%" PRIu64 "%s/data", place->path,
			 setting_number(job->config, "nvswap.rank"),
			 job->block == NVS_OFFLOAD_OPTIMIZER ? "-optimizer" : "");
		if (!is_block_mode(job->options.rw) && !stat(name, &left))
			place->free += (uint64_t)left.st_blocks * SECTOR;
	}
	forecast->nplaces = n;
	return 0;
}

/* Jobs of a stage run at the same time, so their needs of a file system add up. Each stage removes
 * its files, so those of different stages don't. */
int forecast_space(const struct bench_plan *plan, unsigned *index, struct nvs_error *error)
{
	static struct {
		uint64_t device, need;
	} demands[JOBS_MAX * NVS_PATHS_MAX];
	struct forecast forecast;
	unsigned ndemands = 0, at;

	for (*index = 0; *index < plan->n; ++*index) {
		const struct bench_job *job = &plan->jobs[*index];
		int rc = forecast_job(job, &forecast, error);

		if (rc)
			return rc;
		if (*index && job->stage != job[-1].stage)
			ndemands = 0;
		for (unsigned i = 0; i < forecast.nplaces; i++) {
			const struct place *place = &forecast.places[i];

			for (at = 0; at < ndemands && demands[at].device != place->device;)
				at++;
			if (at == ndemands) {
				demands[ndemands].device = place->device;
				demands[ndemands++].need = 0;
			}
			demands[at].need += place->need;
			if (demands[at].need > place->free)
				return error_about(
					error, -ENOSPC, place->path, 0, 0,
					"%s (%s) has %s free, and this needs %s there: free some "
					"space, give another path, or run a smaller job",
					place->path, place->filesystem, SIZE((double)place->free),
					SIZE((double)demands[at].need));
		}
	}
	return 0;
}

void forecast_write(struct json_writer *json, const struct bench_plan *plan)
{
	double all[2] = {0};
	struct forecast forecast;

	json_open_object(json, NULL);
	json_text(json, "nvswap version", nvs_version());
	json_bool(json, "dry_run", true);
	json_open_list(json, "jobs");
	for (unsigned i = 0; i < plan->n; i++) {
		const struct bench_job *job = &plan->jobs[i];

		forecast_job(job, &forecast, NULL); /* its errors are those of forecast_space */
		json_open_object(json, NULL);
		json_text(json, "jobname", job->name);
		json_text(json, "rw", bench_rw_name(job->options.rw));
		json_count(json, "space_bytes", whole(forecast.space));
		json_open_list(json, "paths");
		for (unsigned p = 0; p < forecast.nplaces; p++) {
			json_open_object(json, NULL);
			json_text(json, "path", forecast.places[p].path);
			json_count(json, "space_bytes", forecast.places[p].need);
			json_count(json, "free_bytes", forecast.places[p].free);
			json_close_object(json);
		}
		json_close_list(json);
		json_count(json, "write_bytes", whole(forecast.bytes[NVS_WRITE]));
		json_count(json, "loop_write_bytes", whole(forecast.pass_written));
		json_count(json, "read_bytes", whole(forecast.bytes[NVS_READ]));
		json_text(json, "bytes_are", forecast.bytes_are);
		if (forecast.seconds > 0)
			json_exact(json, "seconds", forecast.seconds);
		json_close_object(json);
		all[NVS_READ] += forecast.bytes[NVS_READ];
		all[NVS_WRITE] += forecast.bytes[NVS_WRITE];
	}
	json_close_list(json);
	json_count(json, "write_bytes", whole(all[NVS_WRITE]));
	json_count(json, "read_bytes", whole(all[NVS_READ]));
	json_close_object(json);
}
