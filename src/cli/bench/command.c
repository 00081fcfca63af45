/* SPDX-License-Identifier: Apache-2.0 */
/* `nvswap bench`, from the command line to the exit status. */
#include <errno.h>

#include "base/error.h"
#include "cli/bench/run.h"
#include "cli/commands.h"
#include "cli/report/report.h"

struct bench {
	struct bench_plan plan;
	const struct bench_result *results[JOBS_MAX]; /* NULL: no memory for any */
	struct disk_watch disks;
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

	if (!bench->written && output_begin(&bench->output))
		bench->failed = STATUS_FAILED;
	bench->written = true;
	if (bench->failed)
		return;
	if (!report && formats & FORMATS_JSON)
		forecast_json(file, &bench->plan);
	if (!report && formats & 1u << FORMAT_NORMAL)
		forecast_text(file, &bench->plan);
	/* In fio's order. */
	if (report && ((formats & FORMATS_JSON && report_json(file, report)) ||
		       (formats & 1u << FORMAT_NORMAL && report_text(file, report)))) {
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

/*
 * A plan is run as a whole or not at all. A full drive is found before anything is made, filled or
 * pinned.
 */
static int prepare_plan(struct bench *bench)
{
	static struct bench_result failed = {.error = {.size = sizeof(failed.error)}},
				   others = {.error = {.size = sizeof(others.error)}};
	struct nvs_error *error = &failed.error;
	unsigned n = bench->plan.n, at = 0;
	int rc = 0;

	for (unsigned i = 0; i < n && !rc; i++) {
		at = i;
		rc = bench_prepare(&bench->plan.jobs[i], error);
	}
	bench->prepared = !rc;
	if (!rc)
		rc = forecast_space(&bench->plan, &at, error);
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

int bench_run_plan(struct bench_plan *plan)
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
		disks_begin(&bench.disks, &bench.plan);
		status = stages_run(&bench.plan, bench.results, write_status, &bench);
		disks_end(&bench.disks);
		report.disks = &bench.disks;
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
	for (unsigned i = 0; i < plan->n; i++)
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
