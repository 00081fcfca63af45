/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text with the names, order, units and spacing of fio's output, for tools that parse it. The lines
 * of report/swap_text.c follow each job.
 */
#include "cli/report/text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/commands.h"
#include "cli/report/group.h"

static const char *const direction_names[] = {[NVS_READ] = "read", [NVS_WRITE] = "write"};

/*
 * fio's short numbers, four characters without the prefix: 9999, 10.0k, 999k, 1.00M; prefixes are
 * powers of 1000 or 1024.
 */
static const char *short_number(double value, unsigned thousand, const char *unit,
				char text[SHORT_NUMBER])
{
	static const char *const prefixes[][6] = {{"", "k", "M", "G", "T", "P"},
						  {"", "Ki", "Mi", "Gi", "Ti", "Pi"}};
	unsigned prefix = 0;
	int decimals = 0;

	/* From here on it rounds to five digits. */
	for (; value >= 9999.5 && prefix < 5; prefix++) {
		value /= thousand;
		decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
	}
	snprintf(text, SHORT_NUMBER, "%.*f%s%s", decimals, value,
		 prefixes[thousand == 1024][prefix], unit);
	return text;
}

const char *short_count(double value, char text[SHORT_NUMBER])
{
	return short_number(value, 1000, "", text);
}

const char *short_bytes(double value, unsigned thousand, char text[SHORT_NUMBER])
{
	return short_number(value, thousand, "B", text);
}

/* ---- Before the first job */

/* fio prints the sizes of reads, writes and trims. */
static void print_block_sizes(FILE *file, const struct bench_job *job)
{
	char size[SHORT_NUMBER];

	short_bytes((double)job_block_size(job), 1024, size);
	fprintf(file, "bs=(R) %s-%s, (W) %s-%s, (T) %s-%s", size, size, size, size, size, size);
}

/* Like fio, print one line for a job and "..." for its clones. */
static void print_head(FILE *file, const struct bench_report *report)
{
	const struct bench_plan *plan = report->plan;

	for (unsigned i = 0; i < plan->n; i++) {
		const struct bench_job *job = &plan->jobs[i];

		if (job->clone) {
			fputs(job->clone == 1 ? "...\n" : "", file);
			continue;
		}
		print_visible(file, job->name);
		fprintf(file, ": (g=%u): rw=%s, ", job->groupid, bench_rw_name(job->options.rw));
		print_block_sizes(file, job);
		fprintf(file, ", ioengine=%s, iodepth=%" PRIu64 "\n",
			report->results[i]->opened
				? report->results[i]->engine.aio.ioengine
				: nvs_ioengine_name(setting_ioengine(job->config)),
			job_queue_depth(job));
	}
	fprintf(file, "nvswap-%s\nStarting %u process%s\n\n", nvs_version(), plan->n,
		plan->n == 1 ? "" : "es");
}

/* ---- A job, or jobs reported as one */

static void print_name(FILE *file, const struct report_group *group)
{
	const struct bench_result *result = &group->result;
	time_t now = time(NULL);
	struct tm local;
	char date[64] = "";

	if (localtime_r(&now, &local))
		strftime(date, sizeof(date), "%a %b %e %H:%M:%S %Y", &local);
	print_visible(file, group->job->name);
	fprintf(file, ": (groupid=%u, jobs=%u): err=%2d", group->job->groupid, group->njobs,
		-result->error.code);
	if (result->error.code) {
		fputs(" (", file);
		print_visible(file, result->error.text);
		fputc(')', file);
	}
	fprintf(file, ": pid=%d: %s\n", result->pid, date);
	if (group->job->options.description) {
		fputs("  Description  : [", file);
		print_visible(file, group->job->options.description);
		fputs("]\n", file);
	}
}

struct unit {
	const char *name;
	uint64_t ns;
};

/* fio's choice: the largest unit in which minimum, maximum and deviation keep their digits. */
static struct unit unit_of(uint64_t least, uint64_t most, double spread)
{
	static const struct unit units[] = {{"msec", 1000000}, {"usec", 1000}};

	for (unsigned i = 0; i < 2; i++)
		if (least > 2 * units[i].ns && most >= 100 * units[i].ns &&
		    spread > (double)units[i].ns)
			return units[i];
	return (struct unit){"nsec", 1};
}

static void print_latency(FILE *file, const char *name, const struct nvs_latency *latency)
{
	double stddev = nvs_latency_stddev(latency);
	struct unit unit = unit_of(latency->min_ns, latency->max_ns, stddev);
	char least[SHORT_NUMBER], most[SHORT_NUMBER];

	if (!latency->count)
		return;
	/* Beyond six digits fio shortens numbers. */
	snprintf(least, sizeof(least), "%" PRIu64, latency->min_ns / unit.ns);
	snprintf(most, sizeof(most), "%" PRIu64, latency->max_ns / unit.ns);
	if (strlen(least) > 6)
		short_count((double)latency->min_ns / (double)unit.ns, least);
	if (strlen(most) > 6)
		short_count((double)latency->max_ns / (double)unit.ns, most);
	fprintf(file, "    %s (%s): min=%s, max=%s, avg=%5.02f, stdev=%5.02f\n", name, unit.name,
		least, most, nvs_latency_mean(latency) / (double)unit.ns, stddev / (double)unit.ns);
}

/* Rounded up, so that the percentage holds. */
static void print_percentiles(FILE *file, const struct report_group *group,
			      const struct nvs_latency *latency)
{
	struct option_percentiles list = group_percentiles(group);
	uint64_t least = nvs_latency_percentile(latency, list.at[0]);
	uint64_t most = nvs_latency_percentile(latency, list.at[list.n - 1]);
	struct unit unit = unit_of(least, most, HUGE_VAL);
	int width = snprintf(NULL, 0, "%" PRIu64, most / unit.ns);
	unsigned per_line;

	if (!latency->count)
		return;
	width = width > 5 ? width : 5;
	per_line = width < 61 ? 73 / (unsigned)(12 + width) : 1;
	fprintf(file, "    clat percentiles (%s):\n", unit.name);
	for (unsigned i = 0; i < list.n; i++)
		fprintf(file, "%s %5.2fth=[%*" PRIu64 "]%s", i % per_line ? "" : "     |",
			list.at[i], width,
			(nvs_latency_percentile(latency, list.at[i]) + unit.ns - 1) / unit.ns,
			i + 1 == list.n		      ? "\n"
			: i % per_line < per_line - 1 ? ","
						      : ",\n");
}

static void print_samples(FILE *file, const struct report_group *group, enum nvs_direction d)
{
	const struct bench_samples *bw = &group->result.bw_bytes[d];
	const struct bench_samples *iops = &group->result.iops[d];
	bool mib = samples_mean(bw) > (1u << 30);
	double unit = mib ? 1u << 20 : 1u << 10;

	if (bw->n)
		fprintf(file,
			"   bw (%5s/s): min=%5.0f, max=%5.0f, per=%3.2f%%, avg=%5.02f, "
			"stdev=%5.02f, samples=%" PRIu64 "\n",
			mib ? "MiB" : "KiB", floor(bw->min / unit), floor(bw->max / unit),
			group_bandwidth_share(group, d), samples_mean(bw) / unit,
			samples_stddev(bw) / unit, bw->n);
	if (iops->n)
		fprintf(file,
			"   iops        : min=%5.0f, max=%5.0f, avg=%5.02f, stdev=%5.02f, "
			"samples=%" PRIu64 "\n",
			floor(iops->min), floor(iops->max), samples_mean(iops),
			samples_stddev(iops), iops->n);
}

static void print_direction(FILE *file, const struct report_group *group, enum nvs_direction d)
{
	const struct nvs_latency *latency = group->result.latency[d];
	double bandwidth = group_bytes_per_s(group, d);
	char iops[SHORT_NUMBER], binary[SHORT_NUMBER], decimal[SHORT_NUMBER], moved[SHORT_NUMBER];

	if (!group->result.bytes[d] && !group->result.aio.io[d].ios)
		return;
	fprintf(file, "  %s: IOPS=%s, BW=%s/s (%s/s)(%s/%" PRIu64 "msec)\n", direction_names[d],
		short_count(group_iops(group, d), iops), short_bytes(bandwidth, 1024, binary),
		short_bytes(bandwidth, 1000, decimal),
		short_bytes((double)group->result.bytes[d], 1024, moved),
		group_runtime_ms(group, d));
	print_latency(file, "slat", &latency[NVS_SLAT]);
	print_latency(file, "clat", &latency[NVS_CLAT]);
	print_latency(file, " lat", &latency[NVS_LAT]);
	print_percentiles(file, group, &latency[NVS_CLAT]);
	print_samples(file, group, d);
}

/* Five to a line; zeros are left out. */
static void print_shares(FILE *file, const char *unit, const double *share, unsigned n)
{
	unsigned shown = 0;

	for (unsigned i = 0; i < n; i++) {
		if (share[i] <= 0)
			continue;
		if (shown % 5)
			fputs(", ", file);
		else
			fprintf(file, "%s  lat (%s)   : ", shown ? "\n" : "", unit);
		fprintf(file, "%s=%3.2f%%", latency_bounds[i], share[i]);
		shown++;
	}
	if (shown)
		fputc('\n', file);
}

static void print_counts(FILE *file, const char *label, const char *const *bounds,
			 const uint64_t counts[NVS_DEPTHS])
{
	double share[NVS_DEPTHS];

	depth_shares(counts, share);
	fputs(label, file);
	for (unsigned i = 0; i < NVS_DEPTHS; i++)
		fprintf(file, "%s%s=%3.1f%%", i ? ", " : "", bounds[i], share[i]);
	fputc('\n', file);
}

static void print_depths(FILE *file, const struct report_group *group)
{
	const struct nvs_aio_stats *aio = &group->result.aio;

	print_counts(file, "  IO depths    : ", depth_bounds, aio->depth_ios);
	print_counts(file, "     submit    : ", call_bounds, aio->submit_sizes);
	print_counts(file, "     complete  : ", call_bounds, aio->reap_sizes);
	fprintf(file,
		"     issued rwts: total=%" PRIu64 ",%" PRIu64 ",0,0 short=0,0,0,0 "
		"dropped=0,0,0,0\n",
		aio->io[NVS_READ].ios, aio->io[NVS_WRITE].ios);
	fprintf(file,
		"     latency   : target=0, window=0, percentile=100.00%%, depth=%" PRIu64 "\n",
		job_queue_depth(group->job));
}

static void print_group(FILE *file, const struct report_group *group)
{
	const struct bench_result *result = &group->result;
	double share[LATENCY_SHARES];

	print_name(file, group);
	if (!result->measured)
		return;
	print_direction(file, group, NVS_READ);
	print_direction(file, group, NVS_WRITE);
	group_latency_shares(group, share);
	print_shares(file, "nsec", share, LATENCY_BOUNDS);
	print_shares(file, "usec", share + LATENCY_BOUNDS, LATENCY_BOUNDS);
	print_shares(file, "msec", share + 2 * LATENCY_BOUNDS, LATENCY_BOUNDS_MS);
	fprintf(file,
		"  cpu          : usr=%3.2f%%, sys=%3.2f%%, ctx=%" PRIu64 ", majf=%" PRIu64
		", minf=%" PRIu64 "\n",
		group_cpu_percent(group, result->user_us),
		group_cpu_percent(group, result->system_us), result->context_switches,
		result->major_faults, result->minor_faults);
	print_depths(file, group);
	report_swap_text(file, group);
}

/* ---- After the last job */

/* Totals of the jobs with one groupid, which ran at the same time. */
struct status {
	unsigned groupid;
	uint64_t bytes[2], least_ms[2], most_ms[2];
	double least_per_s[2], most_per_s[2], all_per_s[2];
};

static void count_group(struct status *status, const struct report_group *group, int d)
{
	uint64_t ms = group_runtime_ms(group, d);
	double per_s = group_bytes_per_s(group, d);
	bool first = !status->bytes[d];

	if (!group->result.bytes[d])
		return;
	status->bytes[d] += group->result.bytes[d];
	status->all_per_s[d] = group->all_bytes_per_s[d];
	status->least_ms[d] = first || ms < status->least_ms[d] ? ms : status->least_ms[d];
	status->most_ms[d] = ms > status->most_ms[d] ? ms : status->most_ms[d];
	status->least_per_s[d] = first ? per_s : fmin(per_s, status->least_per_s[d]);
	status->most_per_s[d] = fmax(per_s, status->most_per_s[d]);
}

static void print_status(FILE *file, const struct status *status, int d)
{
	char text[8][SHORT_NUMBER];

	if (!status->bytes[d])
		return;
	fprintf(file,
		"%s: bw=%s/s (%s/s), %s/s-%s/s (%s/s-%s/s), io=%s (%s), "
		"run=%" PRIu64 "-%" PRIu64 "msec\n",
		d == NVS_READ ? "   READ" : "  WRITE",
		short_bytes(status->all_per_s[d], 1024, text[0]),
		short_bytes(status->all_per_s[d], 1000, text[1]),
		short_bytes(status->least_per_s[d], 1024, text[2]),
		short_bytes(status->most_per_s[d], 1024, text[3]),
		short_bytes(status->least_per_s[d], 1000, text[4]),
		short_bytes(status->most_per_s[d], 1000, text[5]),
		short_bytes((double)status->bytes[d], 1024, text[6]),
		short_bytes((double)status->bytes[d], 1000, text[7]), status->least_ms[d],
		status->most_ms[d]);
}

static void print_disks(FILE *file, const struct disk_watch *disks)
{
	if (disks && disks->n)
		fputs("\nDisk stats (read/write):\n", file);
	for (unsigned i = 0; disks && i < disks->n; i++) {
		const struct disk_use *disk = &disks->at[i];

		fprintf(file,
			"  %s: ios=%" PRIu64 "/%" PRIu64 ", merge=%" PRIu64 "/%" PRIu64
			", ticks=%" PRIu64 "/%" PRIu64 ", in_queue=%" PRIu64 ", util=%3.2f%%\n",
			disk->name, disk->ios[NVS_READ], disk->ios[NVS_WRITE],
			disk->merges[NVS_READ], disk->merges[NVS_WRITE], disk->ticks_ms[NVS_READ],
			disk->ticks_ms[NVS_WRITE], disk->in_queue_ms, disk_busy_percent(disk));
	}
}

/* Jobs with one groupid are neighbours in the plan; statuses has room for all jobs. */
static void print_all(FILE *file, const struct bench_report *report, struct report_group *group,
		      struct status *statuses)
{
	unsigned n = 0;

	if (!report->status)
		print_head(file, report);
	while (report_group_next(report, group)) {
		print_group(file, group);
		if (!n || statuses[n - 1].groupid != group->job->groupid)
			statuses[n++].groupid = group->job->groupid;
		for (int d = NVS_READ; d <= NVS_WRITE; d++)
			count_group(&statuses[n - 1], group, d);
	}
	for (unsigned i = 0; i < n; i++) {
		fprintf(file, "\nRun status group %u (all jobs):\n", statuses[i].groupid);
		for (int d = NVS_READ; d <= NVS_WRITE; d++)
			print_status(file, &statuses[i], d);
	}
	print_disks(file, report->disks);
}

int report_text(FILE *file, const struct bench_report *report)
{
	struct report_group *group = report_group_make();
	struct status *statuses = calloc(report->plan->n, sizeof(*statuses));
	int rc = group && statuses ? 0 : -ENOMEM;

	if (!rc)
		print_all(file, report, group, statuses);
	free(statuses);
	free(group);
	return rc;
}
