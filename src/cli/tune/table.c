/* SPDX-License-Identifier: Apache-2.0 */
/* The result as text: the table of trials, fastest first. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "cli/commands.h"
#include "cli/tune/tune.h"

#define MIB ((uint64_t)1 << 20)

bool tune_names_ioengine(const struct tune_result *result)
{
	return result->outcome->chosen->point.ioengine != result->drive->machine.auto_ioengine;
}

const char *tune_fate_name(const struct tune_trial *trial)
{
	static const char *const names[] = {
		[TUNE_DROPPED] = "dropped", [TUNE_SLOWER] = "slower", [TUNE_TIE] = "tie",
		[TUNE_OVER] = "over",	    [TUNE_CHOSEN] = "chosen",
	};

	return names[trial->fate];
}

const char *tune_objective_name(enum tune_objective objective)
{
	static const char *const names[TUNE_OBJECTIVES] = {
		[TUNE_SWAP] = "swap", [TUNE_READ] = "read", [TUNE_WRITE] = "write"};

	return names[objective];
}

static const char *size_text(uint64_t nbytes, char text[24])
{
	if (nbytes % MIB)
		snprintf(text, 24, "%" PRIu64 "k", nbytes / 1024);
	else
		snprintf(text, 24, "%" PRIu64 "m", nbytes / MIB);
	return text;
}

static const char *time_text(uint64_t ns, char text[24])
{
	if (ns < 1000000)
		snprintf(text, 24, "%.0f us", (double)ns / 1e3);
	else
		snprintf(text, 24, ns < 100000000 ? "%.1f ms" : "%.0f ms", (double)ns / 1e6);
	return text;
}

static void print_trial(FILE *file, const struct tune_trial *trial)
{
	const struct tune_point *point = &trial->point;
	char block[24], p50[24], p99[24], ratio[24] = "";

	if (trial->finalist)
		snprintf(ratio, sizeof(ratio), "%.1f %%", 100 * trial->to_best);
	fprintf(file,
		"%6s %5" PRIu32 " %7" PRIu32
		"  %-8s  %-6s  %-7s  %7.3f %6.3f  %8s %8s  %4.0f  %6u  "
		"%7s  %s\n",
		size_text(point->block_size, block), point->queue_depth, point->thread_count,
		nvs_ioengine_name(point->ioengine), point->single_submit ? "yes" : "no",
		point->overlap_events ? "yes" : "no", trial->mean / 1e9, trial->half_width / 1e9,
		time_text(trial->p50_ns, p50), time_text(trial->p99_ns, p99), trial->cpu_ms_per_gib,
		trial->rounds, ratio, tune_fate_name(trial));
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

static int print_trials(FILE *file, const struct tune_outcome *outcome)
{
	const struct tune_trial **order = calloc(outcome->n + 1, sizeof(*order));
	size_t n = outcome->n;

	if (!order)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		order[i] = &outcome->trials[i];
	qsort(order, n, sizeof(*order), by_rate);
	for (size_t i = 0; i < n; i++)
		print_trial(file, order[i]);
	free(order);
	return 0;
}

static void print_drive(FILE *file, const struct tune_result *result)
{
	const struct tune_drive *drive = result->drive;
	const struct nvs_path_info *path = &drive->path;

	print_visible(file, path->path);
	fprintf(file, ": %s%s", path->filesystem, path->device[0] ? " on " : "");
	print_visible(file, path->device);
	fputs(path->model[0] ? ", " : "", file);
	print_visible(file, path->model);
	fprintf(file, ", %" PRIu64 " MiB worked on, %.1f GiB written in %.0f s\n\n",
		drive->working_set / MIB, (double)drive->written_bytes / (double)(1024 * MIB),
		(double)result->elapsed_ns / 1e9);
}

static void print_advice(FILE *file, const struct tune_drive *drive)
{
	struct nvs_advice advice = {.size = sizeof(advice)};

	nvs_machine_advise(&drive->machine, &drive->path, &advice);
	if (advice.count)
		fprintf(file, "\nwhat to change before tuning again\n");
	for (unsigned i = 0; i < advice.count; i++) {
		fprintf(file, "  %u. ", i + 1);
		print_visible(file, advice.line[i]);
		fputc('\n', file);
	}
}

void tune_table(FILE *file, const struct tune_result *result)
{
	print_drive(file, result);
	fprintf(file, "%6s %5s %7s  %-8s  %-6s  %-7s  %7s %6s  %8s %8s  %4s  %6s  %7s\n", "block",
		"depth", "workers", "engine", "single", "overlap", "GB/s", "+-", "p50", "p99",
		"CPU", "rounds", "of best");
	if (print_trials(file, result->outcome))
		fputs("(no memory for the table)\n", file);
	fprintf(file,
		"\nGB/s: %s, mean and 95 %% interval; p50, p99: latency of an I/O; CPU: ms per "
		"GiB;\n"
		"of best: ratio to the fastest finalist, from rounds made in turn\n",
		result->rules->objective == TUNE_SWAP	? "reads and writes, half of each"
		: result->rules->objective == TUNE_READ ? "reads"
							: "writes");
	if (result->drive->slows_down)
		fprintf(file, "\n%s\n", result->drive->slows_text);
	print_advice(file, result->drive);
}
