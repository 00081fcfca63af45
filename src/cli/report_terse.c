/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fio's terse output, version 3: a line for each job or group, the same fields in the same order,
 * with ; between them. Bytes are in KiB, latencies in microseconds.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "report_group.h"

static void put_count(FILE *file, uint64_t count)
{
	fprintf(file, ";%" PRIu64, count);
}

static void put_mean(FILE *file, double mean, double stddev)
{
	fprintf(file, ";%f;%f", mean, stddev);
}

static void put_latency(FILE *file, const struct nvs_latency *latency)
{
	put_count(file, latency->min_ns / 1000);
	put_count(file, latency->max_ns / 1000);
	put_mean(file, nvs_latency_mean(latency) / 1e3, nvs_latency_stddev(latency) / 1e3);
}

/* As many fields as fio has room for, whatever was asked for. */
static void put_percentiles(FILE *file, const struct report_group *group,
			    const struct nvs_latency *latency)
{
	struct option_percentiles list = group_percentiles(group);

	for (unsigned i = 0; i < OPTION_PERCENTILES_MAX; i++)
		if (i < list.n)
			fprintf(file, ";%f%%=%" PRIu64, list.at[i],
				nvs_latency_percentile(latency, list.at[i]) / 1000);
		else
			fputs(";0%=0", file);
}

static void put_direction(FILE *file, const struct report_group *group, enum nvs_direction d)
{
	const struct bench_result *result = &group->result;
	const struct bench_samples *bw = &result->bw_bytes[d];

	put_count(file, result->bytes[d] / 1024);
	put_count(file, (uint64_t)group_bytes_per_s(group, d) / 1024);
	put_count(file, (uint64_t)group_iops(group, d));
	put_count(file, group_runtime_ms(group, d));
	put_latency(file, &result->latency[d][NVS_SLAT]);
	put_latency(file, &result->latency[d][NVS_CLAT]);
	put_percentiles(file, group, &result->latency[d][NVS_CLAT]);
	put_latency(file, &result->latency[d][NVS_LAT]);
	put_count(file, (uint64_t)bw->min / 1024);
	put_count(file, (uint64_t)bw->max / 1024);
	fprintf(file, ";%f%%", group_bandwidth_share(group, d));
	put_mean(file, samples_mean(bw) / 1024, samples_stddev(bw) / 1024);
}

/* There are none of nanoseconds: what took less than two microseconds is one. */
static void put_shares(FILE *file, const struct report_group *group)
{
	double depth[NVS_DEPTHS], share[LATENCY_SHARES];

	depth_shares(group->result.aio.depth_ios, depth);
	for (unsigned i = 0; i < NVS_DEPTHS; i++)
		fprintf(file, ";%3.1f%%", depth[i]);
	group_latency_shares(group, share);
	for (unsigned i = 0; i < LATENCY_BOUNDS; i++)
		share[LATENCY_BOUNDS] += share[i];
	for (unsigned i = LATENCY_BOUNDS; i < LATENCY_SHARES; i++)
		fprintf(file, ";%3.2f%%", share[i]);
}

static void put_disks(FILE *file, const struct disk_watch *disks)
{
	for (unsigned i = 0; disks && i < disks->n; i++) {
		const struct disk_use *disk = &disks->at[i];

		fprintf(file, ";%s", disk->name);
		put_count(file, disk->ios[NVS_READ]);
		put_count(file, disk->ios[NVS_WRITE]);
		put_count(file, disk->merges[NVS_READ]);
		put_count(file, disk->merges[NVS_WRITE]);
		put_count(file, disk->ticks_ms[NVS_READ]);
		put_count(file, disk->ticks_ms[NVS_WRITE]);
		put_count(file, disk->in_queue_ms);
		fprintf(file, ";%3.2f%%", disk_busy_percent(disk));
	}
}

static void put_group(FILE *file, const struct bench_report *report,
		      const struct report_group *group)
{
	const struct bench_result *result = &group->result;

	fprintf(file, "3;nvswap-%s;%s;%u;%d", nvs_version(), group->job->name, group->job->groupid,
		-result->error.code);
	put_direction(file, group, NVS_READ);
	put_direction(file, group, NVS_WRITE);
	fprintf(file, ";%f%%;%f%%", group_cpu_percent(group, result->user_us),
		group_cpu_percent(group, result->system_us));
	put_count(file, result->context_switches);
	put_count(file, result->major_faults);
	put_count(file, result->minor_faults);
	put_shares(file, group);
	put_disks(file, report->disks);
	if (group->job->options.description)
		fprintf(file, ";%s", group->job->options.description);
	fputc('\n', file);
}

int report_terse(FILE *file, const struct bench_report *report)
{
	struct report_group *group = report_group_make();

	if (!group)
		return -ENOMEM;
	while (report_group_next(report, group))
		put_group(file, report, group);
	free(group);
	return 0;
}
