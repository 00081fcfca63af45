/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rounds of a comparison: nvswap's jobs and fio's in turn, each first in every other round, so
 * that a drive which drifts does so for both.
 */
#include "compare.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "guard.h"
#include "report_group.h"
#include "stage.h"
#include "stop.h"

#define GIB (1u << 30)

struct comparison {
	struct bench_plan *plan;
	struct stages **stages;
	const struct bench_result **results;
	unsigned njobs, rounds;
	struct compare_figures *ours, *theirs; /* of job j in round r: [r * njobs + j] */
	char run[64];			       /* the beginning of the names of fio's files */
	char *jobs;			       /* fio's job file */
};

static struct compare_figures figures_of(const struct report_group *group)
{
	static const struct compare_figures none;
	const struct bench_result *result = &group->result;
	struct compare_figures figures = none;

	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		const struct nvs_latency *latency = &result->latency[d][NVS_CLAT];

		figures.bytes[d] = result->bytes[d];
		figures.bytes_per_s[d] = group_bytes_per_s(group, d);
		figures.iops[d] = group_iops(group, d);
		figures.p50_ns[d] = (double)nvs_latency_percentile(latency, 50);
		figures.p99_ns[d] = (double)nvs_latency_percentile(latency, 99);
	}
	figures.cpu_ms_per_gib = cpu_ms_per_gib(result);
	return figures;
}

/* ---- One run of each */

static int note_ours(const struct comparison *comparison, unsigned round)
{
	struct report_group *group = report_group_make();
	/* Clones are one job, as if all had group_reporting; and only clones are. */
	unsigned job = 0;

	if (!group)
		return -ENOMEM;
	for (unsigned i = 0, clones; i < comparison->plan->n; i += clones) {
		clones = compare_clones(comparison->plan, i);
		report_group_of(comparison->plan, comparison->results, i, clones, group);
		comparison->ours[round * comparison->njobs + job++] = figures_of(group);
	}
	free(group);
	return 0;
}

static int run_ours(struct comparison *comparison, unsigned round)
{
	int status;

	stages_free(*comparison->stages);
	status = stages_run(comparison->stages, comparison->plan, comparison->results, NULL, NULL);
	if (!status && note_ours(comparison, round)) {
		say("no memory to compare with");
		status = STATUS_FAILED;
	}
	return status;
}

static int status_of(int rc, const struct nvs_error *error)
{
	say("%s", *error->text ? error->text : nvs_strerror(rc));
	return rc == -EINTR ? 128 + stop_signal() : STATUS_FAILED;
}

static int run_theirs(struct comparison *comparison, unsigned round)
{
	struct nvs_error error = {0};
	char *json = NULL;
	int rc = compare_fio_run(comparison->jobs, &json, &error);

	if (!rc)
		rc = compare_fio_read(json, &comparison->theirs[round * comparison->njobs],
				      comparison->njobs, &error);
	free(json);
	compare_fio_remove(comparison->plan, comparison->run);
	return rc ? status_of(rc, &error) : 0;
}

/* ---- All rounds */

/* Explicit huge pages that are free when nvswap's own run has ended, for which fio asks too. */
static bool huge_pages_suffice(const struct bench_plan *plan)
{
	struct nvs_machine_info machine;
	uint64_t needed = 0;

	for (unsigned i = 0; i < plan->n; i++) {
		const struct nvs_aio_config *aio = &plan->jobs[i].config.aio;

		/* Each of fio's jobs rounds up to a page. */
		needed += (uint64_t)aio->thread_count *
			  ((uint64_t)aio->queue_depth * aio->block_size + (2u << 20));
	}
	return !nvs_machine_info(&machine, NULL) &&
	       machine.hugepages_free * machine.hugepage_bytes >= needed;
}

/* Where there is a limit fio ends at it, while nvswap registers as much as there is room for. */
static bool may_lock_all(void)
{
	struct nvs_machine_info machine;

	return !nvs_machine_info(&machine, NULL) && machine.memlock_bytes == UINT64_MAX;
}

static int make_jobs(struct comparison *comparison)
{
	if (comparison->jobs)
		return 0;
	if (!compare_fio_jobs(comparison->plan, comparison->results, comparison->run,
			      huge_pages_suffice(comparison->plan), may_lock_all(),
			      &comparison->jobs))
		return 0;
	say("no memory for fio's jobs");
	return STATUS_FAILED;
}

static int run_round(struct comparison *comparison, unsigned round)
{
	/* The first of all is nvswap, whose result says which engine it took. */
	bool ours_first = round % 2 == 0;
	int status = ours_first ? run_ours(comparison, round) : run_theirs(comparison, round);

	if (!status)
		status = make_jobs(comparison);
	if (!status)
		status = ours_first ? run_theirs(comparison, round) : run_ours(comparison, round);
	return status;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, unsigned n)
{
	qsort(values, n, sizeof(*values), by_value);
	return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* Of one figure at `offset` of struct compare_figures, over the rounds of a job. */
static double median_at(const struct comparison *comparison, const struct compare_figures *all,
			unsigned job, size_t offset, double *values)
{
	for (unsigned r = 0; r < comparison->rounds; r++)
		memcpy(&values[r], (const char *)&all[r * comparison->njobs + job] + offset,
		       sizeof(double));
	return median(values, comparison->rounds);
}

static struct compare_figures medians(const struct comparison *comparison,
				      const struct compare_figures *all, unsigned job,
				      double *values)
{
	static const size_t figures[] = {
		offsetof(struct compare_figures, bytes_per_s[NVS_READ]),
		offsetof(struct compare_figures, bytes_per_s[NVS_WRITE]),
		offsetof(struct compare_figures, iops[NVS_READ]),
		offsetof(struct compare_figures, iops[NVS_WRITE]),
		offsetof(struct compare_figures, p50_ns[NVS_READ]),
		offsetof(struct compare_figures, p50_ns[NVS_WRITE]),
		offsetof(struct compare_figures, p99_ns[NVS_READ]),
		offsetof(struct compare_figures, p99_ns[NVS_WRITE]),
		offsetof(struct compare_figures, cpu_ms_per_gib),
	};
	struct compare_figures result = all[(comparison->rounds - 1) * comparison->njobs + job];

	for (size_t i = 0; i < sizeof(figures) / sizeof(*figures); i++) {
		double value = median_at(comparison, all, job, figures[i], values);

		memcpy((char *)&result + figures[i], &value, sizeof(value));
	}
	return result;
}

static double both_ways(const struct compare_figures *figures)
{
	return figures->bytes_per_s[NVS_READ] + figures->bytes_per_s[NVS_WRITE];
}

static void fill_rows(const struct comparison *comparison, double *values, struct compare_row *rows)
{
	unsigned first = 0;

	for (unsigned job = 0; job < comparison->njobs; job++) {
		struct compare_row *row = &rows[job];

		*row = (struct compare_row){.rounds = comparison->rounds};
		memcpy(row->job, comparison->plan->jobs[first].name, sizeof(row->job));
		first += compare_clones(comparison->plan, first);
		row->ours = medians(comparison, comparison->ours, job, values);
		row->theirs = medians(comparison, comparison->theirs, job, values);
		for (unsigned r = 0; r < comparison->rounds; r++) {
			size_t at = r * comparison->njobs + job;
			double theirs = both_ways(&comparison->theirs[at]);

			values[r] = theirs > 0 ? both_ways(&comparison->ours[at]) / theirs : 0;
		}
		row->ratio = median(values, comparison->rounds);
	}
}

static int run_rounds(struct comparison *comparison, struct compare_row *rows, unsigned *nrows)
{
	size_t n = (size_t)comparison->rounds * comparison->njobs;
	double *values = calloc(comparison->rounds, sizeof(*values));
	int status = STATUS_FAILED;

	comparison->ours = calloc(n, sizeof(*comparison->ours));
	comparison->theirs = calloc(n, sizeof(*comparison->theirs));
	if (values && comparison->ours && comparison->theirs)
		for (unsigned r = 0; r < comparison->rounds && (!r || !status); r++)
			status = run_round(comparison, r);
	else
		say("no memory to compare with");
	if (!status) {
		fill_rows(comparison, values, rows);
		*nrows = comparison->njobs;
	}
	free(values);
	free(comparison->ours);
	free(comparison->theirs);
	free(comparison->jobs);
	return status;
}

/* By the guard, when fio too has ended. */
static void take_away(const void *arg)
{
	const struct comparison *comparison = arg;

	compare_fio_remove(comparison->plan, comparison->run);
}

int compare_run(struct bench_plan *plan, struct stages **stages,
		const struct bench_result **results, struct compare_row *rows, unsigned *nrows)
{
	struct comparison comparison = {.plan = plan,
					.stages = stages,
					.results = results,
					.rounds = (unsigned)plan->run.rounds};
	struct nvs_error error = {0};
	struct guard guard;
	int rc = compare_check(plan, &error), status;

	*stages = NULL;
	*nrows = 0;
	if (rc)
		return status_of(rc, &error);
	for (unsigned i = 0; i < plan->n; i += compare_clones(plan, i))
		comparison.njobs++;
	snprintf(comparison.run, sizeof(comparison.run), ".nvswap-compare-%d", (int)getpid());
	rc = guard_post(&guard, take_away, &comparison, &error);
	if (rc)
		return status_of(rc, &error);
	status = run_rounds(&comparison, rows, nrows);
	guard_dismiss(&guard);
	return status;
}
