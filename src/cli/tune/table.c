/* SPDX-License-Identifier: Apache-2.0 */
/* The result as text: the table of trials, fastest first. */
#include <inttypes.h>
#include <stdlib.h>

#include "cli/commands.h"
#include "cli/tune/tune.h"

#define MIB ((uint64_t)1 << 20)

const char *const tune_fates[] = {
	[TUNE_DROPPED] = "dropped", [TUNE_SLOWER] = "slower", [TUNE_TIE] = "tie",
	[TUNE_OVER] = "over",	    [TUNE_CHOSEN] = "chosen",
};

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
		tune_fates[trial->fate]);
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
	/* Without memory for the order, in that of the measurements. */
	for (size_t i = 0; i < outcome->n; i++)
		print_trial(file, order ? order[i] : &outcome->trials[i]);
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
