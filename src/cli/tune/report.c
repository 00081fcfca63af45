/* SPDX-License-Identifier: Apache-2.0 */
/* The result: as one JSON object, which is a configuration too, since DeepSpeed and nvswap ignore
 * the block "tune"; and as text, the table of trials. */
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "cli/commands.h"
#include "cli/info/info.h"
#include "cli/tune/tune.h"

#define MIB ((uint64_t)1 << 20)

const char *const tune_objectives[] = {
	[TUNE_SWAP] = "swap", [TUNE_READ] = "read", [TUNE_WRITE] = "write", NULL};
static const char *const fates[] = {
	[TUNE_DROPPED] = "dropped", [TUNE_SLOWER] = "slower", [TUNE_TIE] = "tie",
	[TUNE_OVER] = "over",	    [TUNE_CHOSEN] = "chosen",
};

bool tune_names_ioengine(const struct tuning *tuning)
{
	return tuning->outcome.chosen->point.ioengine != tuning->drive.machine.auto_ioengine;
}

static void put_settings(struct json_writer *json, const struct tune_point *point)
{
	struct tune_setting settings[TUNE_SETTINGS];

	tune_settings(point, settings);
	for (unsigned i = 0; i < TUNE_SETTINGS; i++)
		if (settings[i].is_flag)
			json_bool(json, settings[i].key + 4, settings[i].value);
		else
			json_count(json, settings[i].key + 4, settings[i].value);
}

static void put_values(struct json_writer *json, const char *key, const uint32_t *values,
		       unsigned n)
{
	json_open_list(json, key);
	for (unsigned i = 0; i < n; i++)
		json_count(json, NULL, values[i]);
	json_close_list(json);
}

static void put_trials(struct json_writer *json, const struct tuning *tuning)
{
	const struct tune_outcome *outcome = &tuning->outcome;

	json_open_list(json, "trials");
	for (size_t i = 0; i < outcome->n; i++) {
		const struct tune_trial *trial = &outcome->trials[i];

		json_open_object(json, NULL);
		json_text(json, "objective", tune_objectives[tuning->rules.objective]);
		json_text(json, "ioengine", nvs_ioengine_name(trial->point.ioengine));
		put_settings(json, &trial->point);
		json_text(json, "fate", fates[trial->fate]);
		json_bool(json, "finalist", trial->finalist);
		json_count(json, "rounds", trial->rounds);
		json_real(json, "bytes_per_s", trial->mean);
		json_real(json, "bytes_per_s_half_width", trial->half_width);
		if (trial->finalist) {
			json_real(json, "to_fastest", trial->to_best);
			json_real(json, "to_fastest_half_width", trial->to_best_half_width);
		}
		json_count(json, "p50_ns", trial->p50_ns);
		json_count(json, "p99_ns", trial->p99_ns);
		json_real(json, "cpu_ms_per_gib", trial->cpu_ms_per_gib);
		json_close_object(json);
	}
	json_close_list(json);
	json_count(json, "chosen", (uint64_t)(outcome->chosen - outcome->trials));
	json_count(json, "fastest", (uint64_t)(outcome->fastest - outcome->trials));
}

void tune_json(FILE *file, const struct tuning *tuning, bool whole)
{
	const struct tune_outcome *outcome = &tuning->outcome;
	const struct tune_rules *rules = &tuning->rules;
	const struct tune_space *space = &tuning->space;
	struct json_writer to = json_to(file, whole ? 4 : 2), *json = &to;

	json_open_object(json, NULL);
	json_open_object(json, "aio");
	put_settings(json, &outcome->chosen->point);
	json_close_object(json);
	if (tune_names_ioengine(tuning)) {
		json_open_object(json, "nvswap");
		json_text(json, "ioengine", nvs_ioengine_name(outcome->chosen->point.ioengine));
		json_close_object(json);
	}
	if (whole) {
		json_open_object(json, "tune");
		json_text(json, "nvswap version", nvs_version());
		json_count(json, "timestamp", (uint64_t)time(NULL));
		json_count(json, "elapsed_ns", tuning->elapsed_ns);
		json_text(json, "objective", tune_objectives[rules->objective]);
		json_real(json, "tolerance", rules->tolerance);
		if (rules->latency_max_ns)
			json_count(json, "max_latency_ns", rules->latency_max_ns);
		json_count(json, "max_writes_bytes", tuning->options.max_writes);
		json_bool(json, "certain", outcome->certain);
		json_text(json, "why", outcome->why);
		json_text(json, "unsure", outcome->unsure);
		json_open_list(json, "command");
		json_text(json, NULL, "nvswap");
		for (int i = 0; i < tuning->argc; i++)
			json_text(json, NULL, tuning->argv[i]);
		json_close_list(json);
		json_open_object(json, "space");
		put_values(json, "block_sizes", space->block_sizes, space->nblock_sizes);
		put_values(json, "queue_depths", space->queue_depths, space->nqueue_depths);
		put_values(json, "thread_counts", space->thread_counts, space->nthread_counts);
		json_count(json, "in_flight_max_bytes", space->in_flight_max);
		json_close_object(json);

		const struct tune_drive *drive = &tuning->drive;
		struct nvs_advice advice = {.size = sizeof(advice)};

		info_json_machine(json, &drive->machine);
		json_open_object(json, "drive");
		json_text(json, "path", drive->path.path);
		info_json_path(json, &drive->path);
		json_count(json, "working_set_bytes", tuning->workload.working_set);
		json_count(json, "written_bytes", tuning->workload.written);
		json_real(json, "write_first_bytes_per_s", drive->reference[0]);
		json_real(json, "write_last_bytes_per_s", drive->reference[1]);
		json_bool(json, "slows_down", drive->slows_down);
		json_text(json, "slows_text", drive->slows_text);
		json_close_object(json);
		nvs_machine_advise(&drive->machine, &drive->path, &advice);
		json_open_list(json, "advice");
		for (unsigned i = 0; i < advice.count; i++)
			json_text(json, NULL, advice.line[i]);
		json_close_list(json);
		put_trials(json, tuning);
		json_close_object(json);
	}
	json_close_object(json);
}

static const char *time_text(uint64_t ns, char text[24])
{
	if (ns < 1000000)
		snprintf(text, 24, "%.0f us", (double)ns / 1e3);
	else
		snprintf(text, 24, ns < 100000000 ? "%.1f ms" : "%.0f ms", (double)ns / 1e6);
	return text;
}

/* Finalists first, because their ratios are the most precise. */
static int by_rate(const void *left, const void *right)
{
	const struct tune_trial *a = *(const struct tune_trial *const *)left;
	const struct tune_trial *b = *(const struct tune_trial *const *)right;

	if (a->finalist != b->finalist)
		return a->finalist ? -1 : 1;
	if (a->finalist && a->to_best != b->to_best)
		return a->to_best < b->to_best ? 1 : -1;
	return (a->mean < b->mean) - (a->mean > b->mean);
}

static void print_trial(FILE *file, const struct tune_trial *trial)
{
	const struct tune_point *point = &trial->point;
	bool whole = point->block_size % MIB == 0;
	char p50[24], p99[24], ratio[24] = "";

	if (trial->finalist)
		snprintf(ratio, sizeof(ratio), "%.1f %%", 100 * trial->to_best);
	fprintf(file,
		"%5" PRIu64 "%c %5" PRIu32 " %7" PRIu32
		"  %-8s  %-6s  %-7s  %7.3f %6.3f  %8s %8s  %4.0f  %6u  %7s  %s\n",
		point->block_size / (whole ? MIB : 1024), whole ? 'm' : 'k', point->queue_depth,
		point->thread_count, nvs_ioengine_name(point->ioengine),
		point->single_submit ? "yes" : "no", point->overlap_events ? "yes" : "no",
		trial->mean / 1e9, trial->half_width / 1e9, time_text(trial->p50_ns, p50),
		time_text(trial->p99_ns, p99), trial->cpu_ms_per_gib, trial->rounds, ratio,
		fates[trial->fate]);
}

void tune_table(FILE *file, const struct tuning *tuning)
{
	const struct nvs_path_info *path = &tuning->drive.path;
	const struct tune_outcome *outcome = &tuning->outcome;
	const struct tune_trial **order = calloc(outcome->n, sizeof(*order));
	struct nvs_advice advice = {.size = sizeof(advice)};

	print_visible(file, path->path);
	fprintf(file, ": %s%s", path->filesystem, path->device[0] ? " on " : "");
	print_visible(file, path->device);
	fputs(path->model[0] ? ", " : "", file);
	print_visible(file, path->model);
	fprintf(file, ", %" PRIu64 " MiB worked on, %.1f GiB written in %.0f s\n\n",
		tuning->workload.working_set / MIB,
		(double)tuning->workload.written / (double)(1024 * MIB),
		(double)tuning->elapsed_ns / 1e9);
	fprintf(file, "%6s %5s %7s  %-8s  %-6s  %-7s  %7s %6s  %8s %8s  %4s  %6s  %7s\n", "block",
		"depth", "workers", "engine", "single", "overlap", "GB/s", "+-", "p50", "p99",
		"CPU", "rounds", "of best");
	for (size_t i = 0; order && i < outcome->n; i++)
		order[i] = &outcome->trials[i];
	if (order)
		qsort(order, outcome->n, sizeof(*order), by_rate);
	for (size_t i = 0; order && i < outcome->n; i++)
		print_trial(file, order[i]);
	free(order);
	fprintf(file,
		"\nGB/s: %s, mean and 95 %% interval; p50, p99: latency of an I/O; CPU: ms per "
		"GiB;\n"
		"of best: ratio to the fastest finalist, from rounds made in turn\n",
		tuning->rules.objective == TUNE_SWAP   ? "reads and writes, half of each"
		: tuning->rules.objective == TUNE_READ ? "reads"
						       : "writes");
	if (tuning->drive.slows_down)
		fprintf(file, "\n%s\n", tuning->drive.slows_text);
	nvs_machine_advise(&tuning->drive.machine, path, &advice);
	if (advice.count)
		fprintf(file, "\nwhat to change before tuning again\n");
	for (unsigned i = 0; i < advice.count; i++) {
		fprintf(file, "  %u. ", i + 1);
		print_visible(file, advice.line[i]);
		fputc('\n', file);
	}
}
