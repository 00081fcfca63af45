/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The results of a run as text: a paragraph for each job, or for those reported as one, which the
 * lines of report/swap_text.c end; the sums of groups with several of these; the drives.
 */
#include "cli/report/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/numbers.h"
#include "cli/commands.h"
#include "cli/report/group.h"

static const char *const direction_names[] = {[NVS_READ] = "read", [NVS_WRITE] = "written"};

static const char *rate_text(double bytes_per_s, char text[SIZE_TEXT])
{
	if (bytes_per_s >= 1e9)
		snprintf(text, SIZE_TEXT, "%.2f GB/s", bytes_per_s / 1e9);
	else
		snprintf(text, SIZE_TEXT, "%.4g MB/s", bytes_per_s / 1e6);
	return text;
}

static void print_name(FILE *file, const struct report_group *group)
{
	const struct bench_result *result = &group->result;

	print_visible(file, group->job->name);
	fprintf(file, ": rw=%s, group %u, %u job%s, pid %d\n",
		bench_rw_name(group->job->options.rw), group->job->groupid, group->njobs,
		plural(group->njobs), result->pid);
	if (group->job->options.description) {
		text_label(file, "description");
		print_visible(file, group->job->options.description);
		fputc('\n', file);
	}
	if (result->error.code) {
		text_label(file, "error");
		print_visible(file, result->error.text);
		fputc('\n', file);
	}
}

/* Completion latencies, as clat_ns in the JSON. */
static void print_latency(FILE *file, const struct nvs_latency *latency)
{
	static const double percents[] = {50, 99, 99.9};

	text_sublabel(file, "latency");
	fprintf(file, "%.1f us mean", nvs_latency_mean(latency) / 1e3);
	for (unsigned i = 0; i < COUNT_OF(percents); i++)
		fprintf(file, ", %g %% %.1f", percents[i],
			(double)nvs_latency_percentile(latency, percents[i]) / 1e3);
	fprintf(file, ", at most %.1f us\n", (double)latency->max_ns / 1e3);
}

static void print_direction(FILE *file, const struct report_group *group, enum nvs_direction d)
{
	const struct bench_result *result = &group->result;
	const struct bench_samples *bw = &result->bw_bytes[d];
	char rate[SIZE_TEXT], moved[SIZE_TEXT];

	if (!result->bytes[d] && !result->aio.io[d].ios)
		return;
	text_label(file, direction_names[d]);
	fprintf(file, "%s, %.0f IOPS, %s in %.3f s", rate_text(group_bytes_per_s(group, d), rate),
		group_iops(group, d), text_size(result->bytes[d], moved),
		(double)group_runtime_ms(group, d) / 1e3);
	if (bw->n > 1)
		fprintf(file, "; %s to %s in half seconds", rate_text(bw->min, rate),
			rate_text(bw->max, moved));
	fputc('\n', file);
	if (result->latency[d][NVS_CLAT].count)
		print_latency(file, &result->latency[d][NVS_CLAT]);
}

/* What the entries of a group, which ran at the same time, moved together. */
struct group_sum {
	unsigned groupid, entries;
	uint64_t bytes[2];
	double bytes_per_s[2];
};

static void print_sum(FILE *file, const struct group_sum *sum)
{
	char rate[SIZE_TEXT], moved[SIZE_TEXT];

	if (sum->entries < 2)
		return;
	fprintf(file, "all of group %u\n", sum->groupid);
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		if (!sum->bytes[d])
			continue;
		text_label(file, direction_names[d]);
		fprintf(file, "%s, %s\n", rate_text(sum->bytes_per_s[d], rate),
			text_size(sum->bytes[d], moved));
	}
}

int report_text(FILE *file, const struct bench_report *report)
{
	struct group_sum sum = {.entries = 0};
	struct report_group *group = report_group_make();

	if (!group)
		return -ENOMEM;
	if (!report->status)
		fprintf(file, "nvswap %s, %u job%s\n", nvs_version(), report->plan->n,
			plural(report->plan->n));
	while (report_group_next(report, group)) {
		if (group->job->groupid != sum.groupid) {
			print_sum(file, &sum);
			sum = (struct group_sum){.groupid = group->job->groupid};
		}
		sum.entries++;
		for (int d = NVS_READ; d <= NVS_WRITE; d++) {
			sum.bytes[d] += group->result.bytes[d];
			sum.bytes_per_s[d] = group->all_bytes_per_s[d];
		}
		print_name(file, group);
		if (!group->result.measured)
			continue;
		print_direction(file, group, NVS_READ);
		print_direction(file, group, NVS_WRITE);
		report_swap_text(file, group);
	}
	print_sum(file, &sum);
	for (unsigned i = 0; report->disks && i < report->disks->n; i++) {
		const struct disk_use *disk = &report->disks->at[i];

		fprintf(file, "drive %s: %.0f %% busy, %" PRIu64 " reads, %" PRIu64 " writes\n",
			disk->name, disk_busy_percent(disk), disk->ios[NVS_READ],
			disk->ios[NVS_WRITE]);
	}
	free(group);
	return 0;
}
