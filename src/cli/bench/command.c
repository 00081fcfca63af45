/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap bench`, from the command line to the exit status. What there is to run is made in jobs.c,
 * what it runs with in bench_prepare.c, the processes that run it in stage.c, what is told of it in
 * report.h and the files behind it.
 */
#include <errno.h>
#include <stdlib.h>

#include "bench_prepare.h"
#include "commands.h"
#include "report.h"
#include "stage.h"

struct bench {
	struct bench_plan plan;
	unsigned nprepared; /* jobs */
	const struct bench_result *results[JOBS_MAX];
	struct disk_watch disks;
	struct compare_row compared[JOBS_MAX];
	struct output output;
	bool written; /* the output has something of this run */
	int failed;   /* STATUS_FAILED, of what was to be written */
};

/* In the order in which fio writes several. */
static void write_report(struct bench *bench, const struct bench_report *report)
{
	static const struct {
		enum bench_format format;
		int (*write)(FILE *file, const struct bench_report *report);
	} forms[] = {{FORMAT_TERSE, report_terse},
		     {FORMAT_JSON, report_json},
		     {FORMAT_NORMAL, report_text}};

	if (!bench->written && output_begin(&bench->output))
		bench->failed = STATUS_FAILED;
	bench->written = true;
	for (unsigned i = 0; i < sizeof(forms) / sizeof(*forms) && !bench->failed; i++)
		if (bench->plan.run.formats & 1u << forms[i].format &&
		    forms[i].write(bench->output.file, report)) {
			say("no memory for the report");
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

/* A plan of which a part can't be run is not run. */
static int prepare(struct bench *bench)
{
	static struct bench_result failed,
		others = {.error = {.code = -ECANCELED,
				    .text = "not run: another job could not begin"}};
	struct bench_plan *plan = &bench->plan;
	int rc = 0;

	for (unsigned i = 0; i < plan->n && !rc; i++) {
		rc = bench_prepare(&plan->jobs[i], &failed.error);
		bench->nprepared++;
	}
	if (!rc)
		return 0;
	failed.error.code = rc;
	if (!*failed.error.text)
		snprintf(failed.error.text, sizeof(failed.error.text), "%s", nvs_strerror(rc));
	for (unsigned i = 0; i < plan->n; i++)
		bench->results[i] = i == bench->nprepared - 1 ? &failed : &others;
	say_of_job(plan, bench->nprepared - 1, failed.error.text);
	return rc == -EDESTADDRREQ ? STATUS_USAGE : STATUS_FAILED;
}

static bool anything_measured(const struct bench *bench)
{
	for (unsigned i = 0; i < bench->plan.n; i++)
		if (bench->results[i]->measured)
			return true;
	return false;
}

/* Text and terse lines of nothing would only replace those of an earlier run. */
static bool is_worth_a_report(const struct bench *bench)
{
	return bench->plan.run.formats & 1u << FORMAT_JSON || anything_measured(bench);
}

static int run_prepared(struct bench *bench)
{
	struct bench_report report = {.plan = &bench->plan,
				      .results = bench->results,
				      .disks = &bench->disks,
				      .compared = bench->compared};
	struct stages *stages;
	int status;

	disks_begin(&bench->disks, &bench->plan);
	if (bench->plan.run.compare)
		status = compare_run(&bench->plan, &stages, bench->results, bench->compared,
				     &report.ncompared);
	else
		status = stages_run(&stages, &bench->plan, bench->results, write_status, bench);
	disks_end(&bench->disks);
	if (bench->results[0] && is_worth_a_report(bench))
		write_report(bench, &report);
	stages_free(stages);
	return status;
}

static int run(struct bench *bench)
{
	struct bench_report report = {.plan = &bench->plan, .results = bench->results};
	int status = prepare(bench);

	if (!status)
		status = run_prepared(bench);
	else if (status != STATUS_USAGE && is_worth_a_report(bench))
		write_report(bench, &report);
	return status ? status : bench->failed;
}

int cmd_bench(int argc, char **argv)
{
	static struct bench bench;
	int status = jobs_plan(&bench.plan, argc, argv);

	if (status)
		return status == OPTIONS_HELP ? options_help(&bench_command) : STATUS_USAGE;
	if (output_open(&bench.output, bench.plan.run.output)) {
		jobs_free(&bench.plan);
		return STATUS_FAILED;
	}
	status = run(&bench);
	if (output_close(&bench.output) && !status)
		status = STATUS_FAILED;
	for (unsigned i = 0; i < bench.nprepared; i++)
		bench_release(&bench.plan.jobs[i]);
	jobs_free(&bench.plan);
	return status;
}
