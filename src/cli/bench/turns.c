/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rounds of bench --compare: nvswap and fio run in turn, and take turns in being first, so that
 * a drive that slows down or speeds up does so for both.
 */
#include "cli/bench/turns.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/fio/fio.h"
#include "cli/guard.h"
#include "cli/report/group.h"
#include "cli/settings.h"
#include "cli/stop.h"

struct turns {
	struct bench_plan *plan;
	struct stages **stages;
	const struct bench_result **results;
	struct disk_watch *disks;
	unsigned njobs, rounds;
	struct job_figures *ours, *theirs; /* [r * njobs + j]: job j in round r */
	char run[64];			   /* prefix of the names of fio's files */
	char *jobs;			   /* fio's job file */
};

static struct job_figures figures_of(const struct report_group *group)
{
	const struct bench_result *result = &group->result;
	struct job_figures figures = {.cpu_ms_per_gib = cpu_ms_per_gib(result)};

	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		const struct nvs_latency *latency = &result->latency[d][NVS_CLAT];

		figures.bytes[d] = result->bytes[d];
		figures.bytes_per_s[d] = group_bytes_per_s(group, d);
		figures.iops[d] = group_iops(group, d);
		figures.p50_ns[d] = (double)nvs_latency_percentile(latency, 50);
		figures.p99_ns[d] = (double)nvs_latency_percentile(latency, 99);
	}
	return figures;
}

/* ---- One run of each */

static int note_ours(const struct turns *turns, unsigned round)
{
	struct report_group *group = report_group_make();
	/* Clones count as one job, whether or not they have group_reporting. */
	unsigned job = 0;

	if (!group)
		return -ENOMEM;
	for (unsigned i = 0, clones; i < turns->plan->n; i += clones) {
		clones = fio_clones(turns->plan, i);
		report_group_of(turns->plan, turns->results, i, clones, group);
		turns->ours[round * turns->njobs + job++] = figures_of(group);
	}
	free(group);
	return 0;
}

static int run_ours(struct turns *turns, unsigned round)
{
	int status;

	stages_free(*turns->stages);
	disks_begin(turns->disks, turns->plan);
	status = stages_run(turns->stages, turns->plan, turns->results, NULL, NULL);
	disks_end(turns->disks);
	if (!status && note_ours(turns, round)) {
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

static int run_theirs(struct turns *turns, unsigned round)
{
	struct nvs_error error = {.size = sizeof(error)};
	char *json = NULL;
	int rc = fio_run(turns->jobs, &json, &error);

	if (!rc)
		rc = fio_read(json, &turns->theirs[round * turns->njobs], turns->njobs, &error);
	fio_remove_files(turns->plan, turns->run);
	return rc ? status_of(rc, &error) : 0;
}

/* ---- All rounds */

/* Whether fio, too, can have explicit huge pages now that nvswap's run has ended. */
static bool huge_pages_suffice(const struct bench_plan *plan)
{
	struct nvs_machine_info machine = {.size = sizeof(machine)};
	uint64_t needed = 0;

	for (unsigned i = 0; i < plan->n; i++) {
		const struct nvs_config *config = plan->jobs[i].config;

		/* Each of fio's jobs rounds up to a huge page. */
		needed += setting_number(config, "aio.thread_count") *
			  (setting_number(config, "aio.queue_depth") *
				   setting_number(config, "aio.block_size") +
			   (2u << 20));
	}
	return !nvs_machine_get_info(&machine, NULL) &&
	       machine.hugepages_free * machine.hugepage_bytes >= needed;
}

/* fio fails at a memlock limit; nvswap registers what fits below it. */
static bool may_lock_all(void)
{
	struct nvs_machine_info machine = {.size = sizeof(machine)};

	return !nvs_machine_get_info(&machine, NULL) && machine.memlock_bytes == UINT64_MAX;
}

static int make_jobs(struct turns *turns)
{
	if (turns->jobs)
		return 0;
	if (!fio_job_file(turns->plan, turns->results, turns->run, huge_pages_suffice(turns->plan),
			  may_lock_all(), &turns->jobs))
		return 0;
	say("no memory for fio's jobs");
	return STATUS_FAILED;
}

static int run_round(struct turns *turns, unsigned round)
{
	/* nvswap is first in the first round: fio's job file names the engine that it used. */
	bool ours_first = round % 2 == 0;
	int status = ours_first ? run_ours(turns, round) : run_theirs(turns, round);

	if (!status)
		status = make_jobs(turns);
	if (!status)
		status = ours_first ? run_theirs(turns, round) : run_ours(turns, round);
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

/* The medians of one job's figures over all rounds. */
static struct job_figures medians(const struct turns *turns, const struct job_figures *all,
				  unsigned job, double *values)
{
	struct job_figures result = all[(turns->rounds - 1) * turns->njobs + job];
	double value;

	for (size_t at = offsetof(struct job_figures, bytes_per_s); at < sizeof(result);
	     at += sizeof(value)) {
		for (unsigned r = 0; r < turns->rounds; r++)
			memcpy(&values[r], (const char *)&all[r * turns->njobs + job] + at,
			       sizeof(value));
		value = median(values, turns->rounds);
		memcpy((char *)&result + at, &value, sizeof(value));
	}
	return result;
}

static double both_ways(const struct job_figures *figures)
{
	return figures->bytes_per_s[NVS_READ] + figures->bytes_per_s[NVS_WRITE];
}

static void fill_rows(const struct turns *turns, double *values, struct fio_row *rows)
{
	unsigned first = 0;

	for (unsigned job = 0; job < turns->njobs; job++) {
		struct fio_row *row = &rows[job];

		*row = (struct fio_row){.rounds = turns->rounds};
		memcpy(row->job, turns->plan->jobs[first].name, sizeof(row->job));
		first += fio_clones(turns->plan, first);
		row->ours = medians(turns, turns->ours, job, values);
		row->theirs = medians(turns, turns->theirs, job, values);
		for (unsigned r = 0; r < turns->rounds; r++) {
			size_t at = r * turns->njobs + job;
			double theirs = both_ways(&turns->theirs[at]);

			values[r] = theirs > 0 ? both_ways(&turns->ours[at]) / theirs : 0;
		}
		row->ratio = median(values, turns->rounds);
	}
}

static int run_rounds(struct turns *turns, struct fio_row *rows, unsigned *nrows)
{
	size_t n = (size_t)turns->rounds * turns->njobs;
	double *values = calloc(turns->rounds, sizeof(*values));
	int status = STATUS_FAILED;

	turns->ours = calloc(n, sizeof(*turns->ours));
	turns->theirs = calloc(n, sizeof(*turns->theirs));
	if (values && turns->ours && turns->theirs)
		for (unsigned r = 0; r < turns->rounds && (!r || !status); r++)
			status = run_round(turns, r);
	else
		say("no memory to compare with");
	if (!status) {
		fill_rows(turns, values, rows);
		*nrows = turns->njobs;
	}
	free(values);
	free(turns->ours);
	free(turns->theirs);
	free(turns->jobs);
	return status;
}

/* Called by the guard after fio has ended too. */
static void remove_files(const void *arg)
{
	const struct turns *turns = arg;

	fio_remove_files(turns->plan, turns->run);
}

int take_turns(struct bench_plan *plan, struct stages **stages, const struct bench_result **results,
	       struct disk_watch *disks, struct fio_row *rows, unsigned *nrows)
{
	struct turns turns = {.plan = plan,
			      .stages = stages,
			      .results = results,
			      .disks = disks,
			      .rounds = (unsigned)plan->run.rounds};
	struct nvs_error error = {.size = sizeof(error)};
	struct guard guard;
	int rc = fio_check(plan, &error), status;

	*stages = NULL;
	*nrows = 0;
	if (rc)
		return status_of(rc, &error);
	for (unsigned i = 0; i < plan->n; i += fio_clones(plan, i))
		turns.njobs++;
	snprintf(turns.run, sizeof(turns.run), ".nvswap-compare-%d", (int)getpid());
	rc = guard_post(&guard, remove_files, &turns, &error);
	if (rc)
		return status_of(rc, &error);
	status = run_rounds(&turns, rows, nrows);
	guard_dismiss(&guard);
	return status;
}
