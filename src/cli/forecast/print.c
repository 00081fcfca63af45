/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forecast as text, in the form of the report's lines, and as JSON.
 */
#include "base/error.h"
#include "base/json/write.h"
#include "cli/commands.h"
#include "cli/forecast/forecast.h"
#include "cli/replay/accesses.h"

/* Jobs of a stage share the drive, and stages follow each other. */
static void add_up(const struct bench_plan *plan, struct forecast *all)
{
	double stage_s = 0, stage_bytes = 0;

	*all = (struct forecast){0};
	for (unsigned i = 0; i < plan->n; i++) {
		struct forecast one;

		forecast_job(&plan->jobs[i], &one);
		for (int d = NVS_READ; d <= NVS_WRITE; d++) {
			all->bytes[d] += one.bytes[d];
			stage_bytes += one.by_time ? 0 : (double)one.bytes[d];
		}
		stage_s = one.seconds > stage_s ? one.seconds : stage_s;
		if (i + 1 < plan->n && plan->jobs[i + 1].stage == plan->jobs[i].stage)
			continue;
		if (stage_bytes / FORECAST_BYTES_PER_S > stage_s)
			stage_s = stage_bytes / FORECAST_BYTES_PER_S;
		all->seconds += stage_s;
		stage_s = stage_bytes = 0;
	}
}

static void print_places(FILE *file, const struct bench_job *job, uint64_t space)
{
	struct path_space places[NVS_PATHS_MAX];
	struct nvs_error error = {.size = sizeof(error)};
	char need[32], left[32];
	int n = forecast_places(job, places, &error);

	if (n < 0) {
		fprintf(file, "  %-13s: ", "space");
		print_visible(file, error.text);
		fputc('\n', file);
	}
	if (!n)
		fprintf(file, "  %-13s: %s of host memory\n", "space", size_text(space, need));
	for (int i = 0; i < n; i++) {
		fprintf(file, "  %-13s: %s on ", "space", size_text(places[i].need, need));
		print_visible(file, places[i].path);
		fprintf(file, " (%s, %s free)\n", places[i].filesystem,
			size_text(places[i].free, left));
	}
}

static void print_moves(FILE *file, const struct forecast *forecast)
{
	const char *about = forecast->by_time ? "about " : forecast->at_most ? "at most " : "";
	char text[32], fill[32];

	fprintf(file, "  %-13s: %s%s", "written", forecast->by_time ? "about " : "",
		size_text(forecast->bytes[NVS_WRITE], text));
	if (forecast->fill)
		fprintf(file, ", %s of it before the measuring", size_text(forecast->fill, fill));
	fprintf(file, "\n  %-13s: %s%s\n", "read", forecast->bytes[NVS_READ] ? about : "",
		size_text(forecast->bytes[NVS_READ], text));
	if (forecast->pinned)
		fprintf(file, "  %-13s: %s\n", "pinned", size_text(forecast->pinned, text));
	fprintf(file, "  %-13s: about %.1f s\n", "time", forecast->seconds);
}

void forecast_text(FILE *file, const struct bench_plan *plan)
{
	struct forecast forecast;
	char written[32], read[32];

	for (unsigned i = 0; i < plan->n; i++) {
		const struct bench_job *job = &plan->jobs[i];

		forecast_job(job, &forecast);
		print_visible(file, job->name);
		fprintf(file, ": rw=%s", bench_rw_name(job->options.rw));
		if (job->model.n)
			fprintf(file, ", %zu tensor%s of %s together", job->model.n,
				plural(job->model.n), size_text(job->model.nbytes, written));
		fputc('\n', file);
		print_places(file, job, forecast.space);
		print_moves(file, &forecast);
		if (job->accesses && job->accesses->wall_ns)
			fprintf(file, "  %-13s: %.1f s\n", "recorded run",
				(double)job->accesses->wall_ns / 1e9);
	}
	add_up(plan, &forecast);
	if (plan->n > 1)
		fprintf(file, "all jobs: %s written, %s read, about %.1f s\n",
			size_text(forecast.bytes[NVS_WRITE], written),
			size_text(forecast.bytes[NVS_READ], read), forecast.seconds);
	fprintf(file,
		"Nothing was opened, created or moved. Times assume a drive of %.0f GB/s, reads "
		"and\nwrites together; they are not measured.\n",
		FORECAST_BYTES_PER_S / 1e9);
}

static void moves_json(struct json_writer *json, const struct forecast *forecast)
{
	json_count(json, "write_bytes", forecast->bytes[NVS_WRITE]);
	json_count(json, "read_bytes", forecast->bytes[NVS_READ]);
	json_exact(json, "seconds", forecast->seconds);
}

static void job_json(struct json_writer *json, const struct bench_job *job)
{
	struct path_space places[NVS_PATHS_MAX];
	struct forecast forecast;
	struct nvs_error error = {.size = sizeof(error)};
	int n = forecast_places(job, places, &error);

	forecast_job(job, &forecast);
	json_open_object(json, NULL);
	json_text(json, "jobname", job->name);
	json_text(json, "rw", bench_rw_name(job->options.rw));
	json_count(json, "space_bytes", forecast.space);
	json_open_list(json, "paths");
	for (int i = 0; i < n; i++) {
		json_open_object(json, NULL);
		json_text(json, "path", places[i].path);
		json_count(json, "space_bytes", places[i].need);
		json_count(json, "free_bytes", places[i].free);
		json_close_object(json);
	}
	json_close_list(json);
	json_count(json, "fill_bytes", forecast.fill);
	moves_json(json, &forecast);
	json_bool(json, "read_bytes_are_at_most", forecast.at_most);
	json_bool(json, "bytes_follow_from_time", forecast.by_time);
	json_count(json, "pinned_bytes", forecast.pinned);
	if (job->accesses)
		json_count(json, "recorded_ns", job->accesses->wall_ns);
	json_close_object(json);
}

void forecast_json(FILE *file, const struct bench_plan *plan)
{
	struct json_writer json = json_to(file, 2);
	struct forecast all;

	json_open_object(&json, NULL);
	json_text(&json, "nvswap version", nvs_version());
	json_bool(&json, "dry_run", true);
	json_count(&json, "assumed_bytes_per_second", (uint64_t)FORECAST_BYTES_PER_S);
	json_open_list(&json, "jobs");
	for (unsigned i = 0; i < plan->n; i++)
		job_json(&json, &plan->jobs[i]);
	json_close_list(&json);
	add_up(plan, &all);
	json_open_object(&json, "all");
	moves_json(&json, &all);
	json_close_object(&json);
	json_close_object(&json);
	fputc('\n', file);
}
