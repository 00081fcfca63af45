/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rw=checkpoint and rw=restore: an optimizer's state goes to a checkpoint beside the store, or
 * comes back. In every round nvswap and the other ways take turns, and another one is first, so
 * that a drive that slows down does so for all. Rates, CPU time and the window are nvswap's turns
 * alone.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "cli/jobs/measure.h"
#include "cli/jobs/watch.h"
#include "cli/modes/checkpoint/copies.h"
#include "cli/modes/checkpoint/seeded_state.h"
#include "cli/modes/checkpoint/universal.h"
#include "cli/modes/modes.h"
#include "cli/modes/optimizer.h"
#include "cli/progress.h"
#include "cli/settings.h"
#include "cli/stop.h"

#define STATE_BYTES 12u /* of an element: master weight and two moments */

/* The generations of the state: in the checkpoint, and what replaces it before it is verified. */
enum { SAVED = 1, REPLACED };

struct saving {
	const struct bench_options *options;
	struct nvs_optimizer *optimizer;
	struct copies copies;
	char checkpoint[PATH_MAX], copy[PATH_MAX];
	struct universal universal;
	double (*rates)[WAYS];	   /* bytes a second, of each measured round */
	uint64_t own_ns, aside_us; /* nvswap's time, and the processor time of the other ways */
	struct job_watch *watch;
	struct bench_result *result;
};

/* ---- One turn ---- */

static bool is_universal(const struct saving *saving)
{
	return saving->options->checkpoint_format == CHECKPOINT_UNIVERSAL;
}

static int save_file(struct saving *saving)
{
	return nvs_checkpoint_export_optimizer(saving->optimizer, saving->checkpoint, NULL,
					       &saving->result->error);
}

static int save(struct saving *saving)
{
	return is_universal(saving) ? universal_save(&saving->universal, saving->optimizer,
						     &saving->result->error)
				    : save_file(saving);
}

/* Called before the clock runs: saving over the old checkpoint would also measure its removal. */
static int remove_checkpoint(struct saving *saving)
{
	if (is_universal(saving))
		return universal_remove(&saving->universal, &saving->result->error);
	return unlink(saving->checkpoint) && errno != ENOENT ? -errno : 0;
}

static int restore_file(struct saving *saving)
{
	struct nvs_checkpoint *checkpoint;
	int rc = nvs_checkpoint_open(&checkpoint, saving->checkpoint, &saving->result->error);

	if (rc)
		return rc;
	rc = nvs_checkpoint_import_optimizer(saving->optimizer, checkpoint, NULL,
					     &saving->result->error);
	nvs_checkpoint_close(checkpoint);
	return rc;
}

static int restore(struct saving *saving)
{
	return is_universal(saving) ? universal_restore(&saving->universal, saving->optimizer,
							&saving->result->error)
				    : restore_file(saving);
}

static int own_turn(struct saving *saving, uint64_t *moved, uint64_t *ns)
{
	bool saves = saving->options->rw == RW_CHECKPOINT;
	uint64_t from;
	int rc = saves ? remove_checkpoint(saving) : 0;

	if (rc)
		return rc;
	from = clock_ns();
	rc = saves ? save(saving) : restore(saving);
	*ns = clock_ns() - from;
	*moved = saving->result->checkpoint.nbytes;
	saving->own_ns += *ns;
	return rc;
}

static uint64_t process_us(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000u +
	       (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static int other_turn(struct saving *saving, enum checkpoint_way way, uint64_t *moved, uint64_t *ns)
{
	uint64_t from_us = process_us();
	int rc = copies_run(&saving->copies, way, moved, ns, &saving->result->error);

	saving->aside_us += process_us() - from_us;
	return rc;
}

static int take_turns(struct saving *saving, uint64_t round, double rates[WAYS])
{
	int rc = 0;

	for (unsigned i = 0; i < WAYS && !rc && !stop_signal(); i++) {
		enum checkpoint_way way = (i + round) % WAYS;
		uint64_t moved = 0, ns = 0;

		rc = way == WAY_NVSWAP ? own_turn(saving, &moved, &ns)
				       : other_turn(saving, way, &moved, &ns);
		rates[way] = ns ? (double)moved * 1e9 / (double)ns : 0;
	}
	return rc;
}

/* ---- Rounds ---- */

static int ramp(struct saving *saving)
{
	uint64_t ramp_ns = saving->options->ramp_time_ms * 1000000u, started;
	double rates[WAYS];
	int rc = 0;

	for (uint64_t i = 0; i < saving->options->ramp_loops && !rc && !stop_signal(); i++)
		rc = take_turns(saving, i, rates);
	started = clock_ns();
	while (!rc && !stop_signal() && clock_ns() - started < ramp_ns)
		rc = take_turns(saving, 0, rates);
	return rc;
}

static bool goes_on(const struct bench_options *options, uint64_t rounds, uint64_t spent_ns)
{
	if (stop_signal() || (options->runtime_ms && spent_ns >= options->runtime_ms * 1000000u))
		return false;
	return rounds < (options->time_based ? CHECKPOINT_ROUNDS_MAX : options->loops);
}

static int run_rounds(struct saving *saving)
{
	const struct bench_options *options = saving->options;
	struct checkpoint_figures *figures = &saving->result->checkpoint;
	uint64_t started = clock_ns();
	int rc = 0;

	progress_begin("rounds",
		       options->time_based ? options->runtime_ms * 1000000u : options->loops);
	while (!rc && goes_on(options, figures->rounds, clock_ns() - started)) {
		rc = take_turns(saving, figures->rounds, saving->rates[figures->rounds]);
		figures->rounds += !rc && !stop_signal();
		progress_update(options->time_based ? clock_ns() - started : figures->rounds,
				figures->rounds * figures->nbytes);
	}
	progress_end();
	return rc;
}

/* ---- Figures ---- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, uint64_t n)
{
	qsort(values, n, sizeof(*values), by_value);
	return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static void sum_up_way(const struct saving *saving, enum checkpoint_way way, double *values)
{
	struct checkpoint_figures *figures = &saving->result->checkpoint;
	struct way_figures *sums = &figures->ways[way];
	uint64_t n = figures->rounds;

	if (!n || saving->rates[0][way] <= 0)
		return;
	for (uint64_t i = 0; i < n; i++)
		values[i] = saving->rates[i][WAY_NVSWAP] / saving->rates[i][way];
	sums->ratio = median(values, n);
	for (uint64_t i = 0; i < n; i++)
		values[i] = saving->rates[i][way];
	sums->median = median(values, n);
	sums->min = values[0];
	sums->max = values[n - 1];
}

static void leave_out_other_ways(const struct saving *saving)
{
	struct bench_result *result = saving->result;
	uint64_t spent = result->user_us + result->system_us;
	double own = spent > saving->aside_us ? (double)(spent - saving->aside_us) / (double)spent
					      : 0;

	result->user_us = (uint64_t)((double)result->user_us * own);
	result->system_us = (uint64_t)((double)result->system_us * own);
	result->window_ns = saving->own_ns;
	for (int d = NVS_READ; d <= NVS_WRITE; d++)
		result->bytes[d] = result->checkpoint.rounds * result->checkpoint.nbytes;
}

static int measure(struct saving *saving)
{
	struct nvs_engine *engine = nvs_optimizer_engine(saving->optimizer);
	struct nvs_aio *aio = nvs_engine_aio(engine);
	double values[CHECKPOINT_ROUNDS_MAX];
	struct baseline from;
	int rc;

	saving->own_ns = saving->aside_us = 0;
	job_measures(saving->watch, aio, engine, &from);
	rc = run_rounds(saving);
	measure_end(aio, engine, &from, saving->result);
	leave_out_other_ways(saving);
	job_measured(saving->watch, saving->result);
	for (unsigned way = 0; way < WAYS; way++)
		sum_up_way(saving, way, values);
	return rc;
}

/* ---- The run ---- */

/* The checkpoint is read back over other state. */
static int verify(struct saving *saving)
{
	struct bench_result *result = saving->result;
	uint64_t seed = saving->options->seed;
	int rc = state_fill(saving->optimizer, seed, REPLACED, &result->error);

	if (!rc)
		rc = restore(saving);
	if (!rc)
		rc = state_compare(saving->optimizer, seed, SAVED, &result->verify_errors,
				   &result->error);
	result->verified_bytes = !rc || rc == -EBADMSG ? result->checkpoint.nbytes : 0;
	return rc;
}

static int prepare(struct saving *saving)
{
	struct bench_result *result = saving->result;
	uint64_t from = clock_ns();
	int rc = state_fill(saving->optimizer, saving->options->seed, SAVED, &result->error);

	result->first_ns = clock_ns() - from;
	result->first_bytes = rc ? 0 : result->checkpoint.nbytes;
	/* cp copies one file of the same length. */
	if (!rc)
		rc = save_file(saving);
	if (!rc && is_universal(saving))
		rc = save(saving);
	return rc ? rc : copies_open(&saving->copies, &result->error);
}

static int run(struct saving *saving)
{
	int rc = prepare(saving);

	if (!rc && job_begin(saving->watch)) {
		rc = ramp(saving);
		if (!rc && !stop_signal())
			rc = measure(saving);
		if (!rc && saving->options->verify && !stop_signal())
			rc = verify(saving);
	}
	copies_close(&saving->copies);
	unlink(saving->checkpoint);
	universal_close(&saving->universal);
	return rc;
}

/* The store of this rank is locked, so the names are this job's. */
static int name_files(struct saving *saving, const struct nvs_config *config)
{
	const char *place = nvs_config_get_path(config, NVS_OFFLOAD_OPTIMIZER, 0);
	unsigned long long rank = setting_number(config, "nvswap.rank");
	int a = snprintf(saving->checkpoint, sizeof(saving->checkpoint),
			 "%s/nvswap-bench-rank%llu.safetensors", place, rank);
	int b = snprintf(saving->copy, sizeof(saving->copy), "%s/nvswap-bench-rank%llu.copy", place,
			 rank);
	int c = snprintf(saving->universal.directory, sizeof(saving->universal.directory),
			 "%s/nvswap-bench-rank%llu.universal", place, rank);
	int d = snprintf(saving->universal.tag, sizeof(saving->universal.tag), "%s/state",
			 saving->universal.directory);

	return (size_t)a < sizeof(saving->checkpoint) && (size_t)b < sizeof(saving->copy) &&
			       c < d && (size_t)d < sizeof(saving->universal.tag)
		       ? 0
		       : error_set(&saving->result->error, -ENAMETOOLONG, "%s: %s", place,
				   nvs_strerror(-ENAMETOOLONG));
}

static int open_and_run(struct saving *saving, const struct nvs_config *config,
			const struct model *model, const struct parameters *parameters)
{
	struct bench_result *result = saving->result;
	int rc = name_files(saving, config);

	if (!rc && is_universal(saving))
		rc = universal_open(&saving->universal, model, parameters, &result->error);

	saving->copies =
		(struct copies){.from = saving->checkpoint,
				.to = saving->copy,
				.nbytes = result->checkpoint.nbytes,
				.block = setting_number(config, "aio.block_size"),
				.depth = (unsigned)(setting_number(config, "aio.queue_depth") *
						    setting_number(config, "aio.thread_count")),
				.over = saving->options->rw == RW_RESTORE,
				.why_no_loop = result->checkpoint.why_no_loop,
				.reason_bytes = sizeof(result->checkpoint.why_no_loop)};
	if (!rc)
		rc = bench_optimizer_open(&saving->optimizer, config, parameters, result);
	return rc ? rc : bench_optimizer_close(saving->optimizer, run(saving), result);
}

int bench_checkpoint(const struct bench_options *options, const struct nvs_config *config,
		     const struct model *model, struct bench_result *result,
		     struct job_watch *watch)
{
	struct saving *saving = calloc(1, sizeof(*saving));
	struct parameters parameters;
	int rc;

	if (!saving)
		return -ENOMEM;
	saving->options = options;
	saving->watch = watch;
	saving->result = result;
	saving->rates = calloc(CHECKPOINT_ROUNDS_MAX, sizeof(*saving->rates));
	rc = !saving->rates
		     ? -ENOMEM
		     : parameters_cut(&parameters, model, setting_param_dtype(config),
				      setting_number(config, "zero_optimization.sub_group_size"),
				      options->seed, &result->error);
	if (!rc) {
		result->checkpoint.nbytes = parameters.numel * STATE_BYTES;
		rc = open_and_run(saving, config, model, &parameters);
	}
	free(saving->rates);
	free(saving);
	return rc;
}
