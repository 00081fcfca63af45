/* SPDX-License-Identifier: Apache-2.0 */
/* `nvswap bench`, from the command line to the exit status, and `nvswap replay`, which makes a plan
 * of one job. Options override the configuration; the jobs' processes inherit both by fork. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/numbers.h"
#include "cli/bench/run.h"
#include "cli/modes/modes.h"
#include "cli/replay/replay.h"
#include "cli/report/report.h"
#include "cli/settings.h"

static const char optimizer_defaults[] =
	"{\"bf16\": {\"enabled\": true},"
	" \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}},"
	" \"zero_optimization\": {\"offload_optimizer\": {\"device\": \"none\","
	"  \"pipeline_read\": true, \"pipeline_write\": true, \"fast_init\": true}}}";

static int load_model(const struct bench_options *options, const struct options_given *given,
		      struct model *model, struct nvs_error *error)
{
	uint64_t tensor_size = bench_option_given(given, "tensor-size") ? options->tensor_size
									: pool_tensor_size(options);
	int rc = options->model
			 ? model_load(model, options->model, error)
			 : model_make(model, tensor_size, options->tensors, options->size, error);

	if (rc)
		return rc;
	if (bench_option_given(given, "scale"))
		return model_scale(model, options->scale);
	if (options->model && options->size)
		model_limit(model, options->size);
	return 0;
}

static int load_config(const struct bench_job *job, struct nvs_error *error)
{
	const struct bench_options *options = &job->options;
	const struct options_given *given = &job->given;
	struct nvs_config *config = job->config;
	bool resident = bench_option_given(given, "max-in-cpu");
	const struct {
		bool given;
		const char *key;
		uint64_t number;
	} settings[] = {
		{options->bs, "aio.block_size", options->bs},
		{options->iodepth, "aio.queue_depth", options->iodepth},
		{options->thread_count, "aio.thread_count", options->thread_count},
		{options->threads, "nvswap.optimizer_threads", options->threads},
		{bench_option_given(given, "ioengine"), "nvswap.ioengine", options->ioengine},
		{resident && options->rw == RW_STEP, "nvswap.optimizer_max_in_cpu",
		 options->max_in_cpu},
		{resident && options->rw == RW_PARAMS, "offload_param.max_in_cpu",
		 options->max_in_cpu},
	};
	struct nvs_error unused = {.size = sizeof(unused)};
	struct model model;
	int rc;

	nvs_config_set_log(config, say_log, NULL);
	rc = nvs_config_set_number(config, "nvswap.strict", true, error);
	if (!rc && options->config) {
		/* A model parses as a configuration that has none of nvswap's blocks. */
		if (!model_load(&model, options->config, &unused)) {
			model_free(&model);
			return error_set(error, -EINVAL,
					 "--config %s: this is a model, give it to --model",
					 options->config);
		}
		rc = nvs_config_load(config, options->config, error);
		rc = rc ?: nvs_config_read_rank(config, error);
	} else if (!rc && options->rw == RW_STEP) {
		rc = nvs_config_parse(config, optimizer_defaults, sizeof(optimizer_defaults) - 1,
				      "the defaults of an optimizer", error);
	}
	for (size_t i = 0; i < COUNT_OF(settings) && !rc; i++)
		if (settings[i].given)
			rc = nvs_config_set_number(config, settings[i].key, settings[i].number,
						   error);
	if (rc)
		return rc;
	rc = nvs_config_set_number(config, "nvswap.rank",
				   setting_number(config, "nvswap.rank") + job->rank, error);
	if (rc || !setting_number(config, "nvswap.keep"))
		return rc;
	/* A benchmark must never overwrite a kept store. */
	say_log(NULL, NVS_LOG_WARNING,
		"\"keep\" is ignored: bench neither keeps a store nor uses a kept one");
	return nvs_config_set_number(config, "nvswap.keep", false, error);
}

/* The configuration block with the paths: that of the mode, or parameters before optimizer. Paths
 * given as an option create the block. */
static int choose_block(const struct bench_options *options, struct nvs_config *config,
			enum nvs_block *block, struct nvs_error *error)
{
	bool optimizer = options->rw == RW_STEP ||
			 (options->rw != RW_PARAMS &&
			  setting_device(config, NVS_OFFLOAD_PARAM) == NVS_DEVICE_NONE &&
			  setting_device(config, NVS_OFFLOAD_OPTIMIZER) != NVS_DEVICE_NONE);

	*block = optimizer ? NVS_OFFLOAD_OPTIMIZER : NVS_OFFLOAD_PARAM;
	if (options->nvme_path.n)
		return nvs_config_set_paths(config, *block, options->nvme_path.items,
					    options->nvme_path.n, error);
	if (setting_device(config, *block) != NVS_DEVICE_NONE)
		return 0;
	if (is_block_mode(options->rw))
		return error_set(error, -EDESTADDRREQ,
				 "there is no place for the file: give --directory DIR");
	return error_set(error, -EDESTADDRREQ,
			 "there is no place to swap to: give --nvme-path DIR, or --config FILE "
			 "with an %s block whose \"device\" is \"nvme\" or \"cpu\"",
			 options->rw == RW_STEP	    ? "offload_optimizer"
			 : options->rw == RW_PARAMS ? "offload_param"
						    : "offload_param or offload_optimizer");
}

static int prepare_job(struct bench_job *job, struct nvs_error *error)
{
	const struct bench_options *options = &job->options;
	const char *place, *mode = bench_rw_name(options->rw);
	struct stat st;
	int rc;

	rc = nvs_config_open(&job->config, error);
	if (rc)
		return rc;
	rc = load_config(job, error);
	rc = rc ?: choose_block(options, job->config, &job->block, error);
	if (rc)
		return rc;
	if (is_block_mode(options->rw)) {
		place = nvs_config_get_path(job->config, job->block, 0);
		if (!place || nvs_config_get_path(job->config, job->block, 1))
			return error_set(error, -EINVAL,
					 "rw=%s measures one drive: give one directory as "
					 "--nvme-path",
					 mode);
		if (!stat(place, &st) && S_ISBLK(st.st_mode))
			return error_set(error, -ENOTDIR,
					 "%s is a block device, and rw=%s needs a directory for "
					 "its file",
					 place, mode);
		return 0;
	}
	rc = options->rw == RW_REPLAY ? replay_load(job, error)
				      : load_model(options, &job->given, &job->model, error);
	rc = rc ?: pool_choose(options, &job->model, job->config, job->block, error);
	return rc || !job->accesses ? rc : replay_check_pool(job, error);
}

struct bench {
	struct bench_plan plan;
	const struct bench_result *results[JOBS_MAX]; /* NULL: no memory for any */
	struct output output;
	bool prepared;
	bool written; /* this run's output has begun */
	int failed;   /* STATUS_FAILED if the report could not be written */
};

/* Writes the report, or the forecast of a dry run, in the formats that were asked for. */
static void write_report(struct bench *bench, const struct bench_report *report)
{
	unsigned formats = bench->plan.run.formats;
	FILE *file = bench->output.file;
	struct json_writer json;

	if (!bench->written && output_begin(&bench->output))
		bench->failed = STATUS_FAILED;
	bench->written = true;
	if (bench->failed)
		return;
	json = json_to(file, 2);
	if (!report && formats & FORMATS_JSON)
		forecast_write(&json, &bench->plan);
	json = json_as_text(file);
	if (!report && formats & 1u << FORMAT_NORMAL)
		forecast_write(&json, &bench->plan);
	/* In fio's order. */
	if (report && formats & FORMATS_JSON)
		report_json(file, report);
	if (report && formats & 1u << FORMAT_NORMAL)
		report_text(file, report);
}

static void write_status(void *arg, const struct bench_result *const *results)
{
	struct bench *bench = arg;
	struct bench_report report = {.plan = &bench->plan, .results = results, .status = true};

	write_report(bench, &report);
	fflush(bench->output.file);
}

/* A plan is run as a whole or not at all. A full drive is found before anything is made. */
static int prepare_plan(struct bench *bench)
{
	static struct bench_result failed = {.error = {.size = sizeof(failed.error)}},
				   others = {.error = {.size = sizeof(others.error)}};
	struct nvs_error *error = &failed.error;
	unsigned n = bench->plan.n, at = 0;
	int rc = 0;

	for (; at < n && !rc; at += !rc)
		rc = prepare_job(&bench->plan.jobs[at], error);
	bench->prepared = !rc;
	rc = rc ?: forecast_space(&bench->plan, &at, error);
	if (!rc)
		return 0;
	if (!*error->text)
		error_set(error, rc, "%s", nvs_strerror(rc));
	error->code = rc;
	error_set(&others.error, -ECANCELED, "not run: another job could not begin");
	for (unsigned i = 0; i < n; i++)
		bench->results[i] = i == at ? &failed : &others;
	say_of_job(&bench->plan, at, error->text);
	return rc == -EDESTADDRREQ ? STATUS_USAGE : STATUS_FAILED;
}

/* Prepares its jobs, runs them and reports; frees the plan. Returns the exit status. */
static int run_plan(struct bench_plan *plan)
{
	static struct bench bench;
	struct bench_report report = {.plan = &bench.plan, .results = bench.results};
	bool json = plan->run.formats & FORMATS_JSON, dry_run = plan->run.dry_run, worth = json;
	int status;

	bench.plan = *plan;
	if (output_open(&bench.output, plan->run.output)) {
		jobs_free(plan);
		return STATUS_FAILED;
	}
	status = prepare_plan(&bench);
	if (dry_run && bench.prepared) {
		write_report(&bench, NULL);
	} else if (!status) {
		status = stages_run(&bench.plan, bench.results, write_status, &bench);
	}
	/* Without results, text would only replace the report of an earlier run. */
	for (unsigned i = 0; i < plan->n && bench.results[i]; i++)
		worth |= bench.results[i]->measured;
	if (worth && bench.results[0] && !dry_run && status != STATUS_USAGE)
		write_report(&bench, &report);
	if (!status)
		status = bench.failed;
	if (output_close(&bench.output) && !status)
		status = STATUS_FAILED;
	if (!status && !dry_run && json)
		say_page(plan->run.output);
	for (unsigned i = 0; i < plan->n; i++) {
		nvs_config_close(bench.plan.jobs[i].config);
		model_free(&bench.plan.jobs[i].model);
		replay_release(&bench.plan.jobs[i]);
	}
	jobs_free(&bench.plan);
	return status;
}

int cmd_bench(int argc, char **argv)
{
	struct bench_plan plan;
	int status = jobs_plan(&plan, argc, argv);

	if (status)
		return status == OPTIONS_HELP ? options_help(&bench_command) : STATUS_USAGE;
	return run_plan(&plan);
}

/* ---- nvswap replay ---- */

static const char *const pace_names[] = {[PACE_RECORDED] = "recorded", [PACE_MAX] = "max", NULL};

/* Rows of bench's table, with other help where replay differs; "pace" is replay's own. */
static const struct {
	const char *name, *help;
} rows[] = {
	{"nvme-path", NULL},
	{"config", NULL},
	{"pace", "recorded: compute as long between calls as the recorded program did (the "
		 "default). max: make each call as soon as the one before has returned"},
	{"loops", "times through the accesses (1)"},
	{"bs", NULL},
	{"iodepth", NULL},
	{"thread-count", NULL},
	{"ioengine", NULL},
	{"pool", "bytes of the pool. Without it and --config: that of the recorded run; of a "
		 "list, 256m, or a quarter more than is ever in use if that is more"},
	{"verify", "compare every tensor that is read with what was written"},
	{"seed", "of the tensors' contents (1)"},
	{"dry-run", "print the space and bytes of the replay, and run nothing"},
	{"trace", "a timeline of the replay, which can be replayed in turn"},
	{"eta", NULL},
	{"output-format", NULL},
	{"output", NULL},
};
static struct option_spec option_specs[COUNT_OF(rows)];

static void __attribute__((constructor)) copy_rows_of_bench(void)
{
	for (size_t i = 0; i < COUNT_OF(rows); i++) {
		const struct option_spec *spec = options_find(&bench_command, rows[i].name);

		option_specs[i] = spec ? *spec
				       : (struct option_spec){rows[i].name, "PACE", OPTION_CHOICE,
							      offsetof(struct bench_options, pace),
							      .choices = pace_names};
		if (rows[i].help)
			option_specs[i].help = rows[i].help;
	}
}

static const struct bench_options defaults = {
	.rw = RW_REPLAY,
	.formats = 1u << FORMAT_NORMAL,
	.pace = PACE_RECORDED,
	.scale = 1,
	.loops = 1,
	.numjobs = 1,
	.seed = 1,
};

const struct command_spec replay_command = {
	.name = "replay",
	.summary = "Makes the calls on tensors that a recorded run made, in the same order, on "
		   "another drive or with other settings, and measures them. TRACE is a timeline "
		   "that nvswap bench --trace or the library wrote, or a text file of accesses.",
	.notes = "A text file has an access on each line: swapin NAME [BYTES], swapout NAME "
		 "[BYTES], release NAME, prefetch NAME [BYTES], compute TIME, step. BYTES is "
		 "needed the first time. "
		 "The exit status is 0 only if every byte was moved and, with --verify, compared "
		 "equal; 1 with the reason on standard error otherwise; 2 for bad usage.",
	.operand = "TRACE",
	.options = option_specs,
	.noptions = COUNT_OF(option_specs),
	.defaults = &defaults,
};

int cmd_replay(int argc, char **argv)
{
	struct bench_plan plan = {.run = defaults, .n = 1};
	struct options_given typed;
	int rc = options_parse(&replay_command, argc, argv, &plan.run, &typed);

	if (rc)
		return rc == OPTIONS_HELP ? options_help(&replay_command) : STATUS_USAGE;
	if (typed.noperands != 1)
		return REFUSE(STATUS_USAGE, "replay takes one TRACE, and %u are given",
			      typed.noperands);
	plan.run.replay = typed.operands[0];
	for (unsigned i = 0; i < 2; i++) {
		const char *written = i ? plan.run.output : plan.run.trace;

		if (is_same_file(plan.run.replay, written))
			return REFUSE(STATUS_USAGE,
				      "%s would be written over the accesses that are read from it",
				      written);
	}
	plan.jobs = calloc(1, sizeof(*plan.jobs));
	if (!plan.jobs)
		return REFUSE(STATUS_FAILED, "out of memory");
	/* Jobs have the options by their index in bench's table. */
	for (size_t i = 0; i < COUNT_OF(rows); i++) {
		const struct option_spec *spec = options_find(&bench_command, rows[i].name);

		if (spec)
			plan.given.text[spec - bench_command.options] = typed.text[i];
	}
	plan.jobs->options = plan.run;
	plan.jobs->given = plan.given;
	strcpy(plan.jobs->name, replay_command.name);
	return run_plan(&plan);
}
