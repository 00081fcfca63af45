/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap bench`, from the command line to the exit status: plan (jobs.c), prepare (prepare.c), run
 * (stage.c) and report (report.h).
 */
#include <errno.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "cli/bench/forecast.h"
#include "cli/bench/prepare.h"
#include "cli/bench/run.h"
#include "cli/bench/stage.h"
#include "cli/commands.h"
#include "cli/report/report.h"

struct bench {
	struct bench_plan plan;
	unsigned nprepared; /* jobs */
	const struct bench_result *results[JOBS_MAX];
	struct disk_watch disks;
	struct output output;
	bool written; /* this run's output has begun */
	int failed;   /* STATUS_FAILED if the report could not be written */
};

/* In fio's order. */
static void write_report(struct bench *bench, const struct bench_report *report)
{
	static const struct {
		unsigned formats;
		int (*write)(FILE *file, const struct bench_report *report);
	} forms[] = {{FORMATS_JSON, report_json}, {1u << FORMAT_NORMAL, report_text}};

	if (!bench->written && output_begin(&bench->output))
		bench->failed = STATUS_FAILED;
	bench->written = true;
	for (unsigned i = 0; i < COUNT_OF(forms) && !bench->failed; i++)
		if (bench->plan.run.formats & forms[i].formats &&
		    forms[i].write(bench->output.file, report)) {
			say("out of memory for the report");
			bench->failed = STATUS_FAILED;
		}
}

static void write_status(void *arg, const struct bench_result *const *results)
{
	struct bench *bench = arg;
	struct bench_report report = {.plan = &bench->plan, .results = results, .status = true};

	write_report(bench, &report);
	fflush(bench->output.file);
}

/* A plan is run as a whole or not at all. */
static int refuse_plan(struct bench *bench, unsigned at, int rc, const struct nvs_error *error)
{
	static struct bench_result failed,
		others = {.error = {.size = sizeof(others.error),
				    .code = -ECANCELED,
				    .text = "not run: another job could not begin"}};

	failed.error = *error;
	failed.error.code = rc;
	if (!*failed.error.text)
		snprintf(failed.error.text, sizeof(failed.error.text), "%s", nvs_strerror(rc));
	for (unsigned i = 0; i < bench->plan.n; i++)
		bench->results[i] = i == at ? &failed : &others;
	say_of_job(&bench->plan, at, failed.error.text);
	return rc == -EDESTADDRREQ ? STATUS_USAGE : STATUS_FAILED;
}

static int prepare(struct bench *bench)
{
	struct nvs_error error = {.size = sizeof(error)};

	for (unsigned i = 0; i < bench->plan.n; i++) {
		int rc = bench_prepare(&bench->plan.jobs[i], &error);

		bench->nprepared++;
		if (rc)
			return refuse_plan(bench, i, rc, &error);
	}
	return 0;
}

/* A full drive is found before anything is made, filled or pinned. */
static int check_space(struct bench *bench)
{
	struct nvs_error error = {.size = sizeof(error)};
	unsigned at;
	int rc = forecast_space(&bench->plan, &at, &error);

	return rc ? refuse_plan(bench, at, rc, &error) : 0;
}

static bool anything_measured(const struct bench *bench)
{
	for (unsigned i = 0; i < bench->plan.n; i++)
		if (bench->results[i]->measured)
			return true;
	return false;
}

/* Without results, text would only replace the report of an earlier run. */
static bool is_worth_a_report(const struct bench *bench)
{
	return bench->plan.run.formats & FORMATS_JSON || anything_measured(bench);
}

static int run_prepared(struct bench *bench)
{
	struct bench_report report = {
		.plan = &bench->plan, .results = bench->results, .disks = &bench->disks};
	struct stages *stages;
	int status;

	disks_begin(&bench->disks, &bench->plan);
	status = stages_run(&stages, &bench->plan, bench->results, write_status, bench);
	disks_end(&bench->disks);
	if (bench->results[0] && is_worth_a_report(bench))
		write_report(bench, &report);
	stages_free(stages);
	return status;
}

static void write_forecast(struct bench *bench)
{
	if (output_begin(&bench->output)) {
		bench->failed = STATUS_FAILED;
		return;
	}
	if (bench->plan.run.formats & FORMATS_JSON)
		forecast_json(bench->output.file, &bench->plan);
	if (bench->plan.run.formats & 1u << FORMAT_NORMAL)
		forecast_text(bench->output.file, &bench->plan);
}

static int run(struct bench *bench)
{
	struct bench_report report = {.plan = &bench->plan, .results = bench->results};
	bool dry_run = bench->plan.run.dry_run;
	int status = prepare(bench);

	if (!status) {
		status = check_space(bench);
		if (dry_run)
			write_forecast(bench);
		else if (!status)
			return run_prepared(bench);
	}
	if (status && !dry_run && status != STATUS_USAGE && is_worth_a_report(bench))
		write_report(bench, &report);
	return status;
}

int bench_run_plan(struct bench_plan *plan)
{
	static struct bench bench;
	int status;

	bench.plan = *plan;
	if (output_open(&bench.output, bench.plan.run.output)) {
		jobs_free(&bench.plan);
		return STATUS_FAILED;
	}
	status = run(&bench);
	if (!status)
		status = bench.failed;
	if (output_close(&bench.output) && !status)
		status = STATUS_FAILED;
	if (!status && !bench.plan.run.dry_run && bench.plan.run.formats & FORMATS_JSON)
		say_page(bench.plan.run.output);
	for (unsigned i = 0; i < bench.nprepared; i++)
		bench_release(&bench.plan.jobs[i]);
	jobs_free(&bench.plan);
	return status;
}

int cmd_bench(int argc, char **argv)
{
	struct bench_plan plan;
	int status = jobs_plan(&plan, argc, argv);

	if (status)
		return status == OPTIONS_HELP ? options_help(&bench_command) : STATUS_USAGE;
	return bench_run_plan(&plan);
}
