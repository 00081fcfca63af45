/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON with the names, units and structure of fio 3, so that tools for fio read it. Features of fio
 * that nvswap lacks, such as trim and latency targets, are zero. nvswap's own figures are in
 * "config", "engine", "swap" and "step" of each job; a run of a single job has them at the top too.
 */
#include "cli/report/json.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json/write.h"
#include "base/numbers.h"
#include "base/statistics/latency.h"

static void put_times(struct json_writer *json)
{
	struct timespec now;
	struct tm local;
	char text[64];

	clock_gettime(CLOCK_REALTIME, &now);
	json_count(json, "timestamp", (uint64_t)now.tv_sec);
	json_count(json, "timestamp_ms",
		   (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000);
	if (localtime_r(&now.tv_sec, &local) &&
	    strftime(text, sizeof(text), "%a %b %e %H:%M:%S %Y", &local))
		json_text(json, "time", text);
}

/* ---- Options */

static void put_list(struct json_writer *json, const char *key, const struct option_list *list)
{
	char joined[4096] = "";
	size_t length = 0;

	for (unsigned i = 0; i < list->n && length < sizeof(joined) - 1; i++)
		length += (size_t)snprintf(joined + length, sizeof(joined) - length, "%s%s",
					   i ? ":" : "", list->items[i]);
	json_text(json, key, joined);
}

/* Names in job files, with _ as fio's and DeepSpeed's keys have it. */
static const char *key_of(const char *name, char key[64])
{
	snprintf(key, 64, "%s", name);
	for (char *c = key; *c; c++)
		*c = *c == '-' ? '_' : *c;
	return key;
}

/* given->text has only the last item of a list; the value has all. */
static void put_given(struct json_writer *json, const struct options_given *given,
		      const void *values)
{
	for (unsigned i = 0; i < bench_command.noptions; i++) {
		const struct option_spec *spec = &bench_command.options[i];
		char key[64];

		if (!given->text[i])
			continue;
		key_of(spec->name, key);
		if (spec->type == OPTION_LIST)
			put_list(json, key, (const void *)((const char *)values + spec->offset));
		else
			json_text(json, key, given->text[i]);
	}
}

static void resolved(struct json_writer *json, const struct options_given *given, const char *key,
		     const char *text)
{
	if (!bench_option_given(given, key))
		json_text(json, key, text);
}

/* Options given for all jobs; for a single job also resolved ones that fio's tools read. */
static void put_global_options(struct json_writer *json, const struct bench_report *report,
			       const struct report_group *group)
{
	const struct options_given *given = &report->plan->given;
	char text[32];

	json_open_object(json, "global options");
	put_given(json, given, &report->plan->run);
	if (group->njobs == report->plan->n) {
		resolved(json, given, "rw", bench_rw_name(group->job->options.rw));
		resolved(json, given, "ioengine", group_ioengine(group));
		snprintf(text, sizeof(text), "%" PRIu64, job_block_size(group->job));
		resolved(json, given, "bs", text);
		snprintf(text, sizeof(text), "%" PRIu64, job_queue_depth(group->job));
		resolved(json, given, "iodepth", text);
		snprintf(text, sizeof(text), "%u", group->njobs);
		resolved(json, given, "numjobs", text);
	}
	json_close_object(json);
}

/* ---- A direction */

/* fio's last bucket counts all longer times. */
#define LAST_BIN (29 * 64 - 1)

static void put_bins(struct json_writer *json, const struct nvs_latency *latency)
{
	char key[32];

	json_open_object(json, "bins");
	for (unsigned i = 0; i <= LAST_BIN; i++) {
		uint64_t n = latency->buckets[i];

		for (unsigned beyond = LAST_BIN + 1; i == LAST_BIN && beyond < NVS_LATENCY_BUCKETS;
		     beyond++)
			n += latency->buckets[beyond];
		snprintf(key, sizeof(key), "%" PRIu64, latency_bucket_ns(i));
		if (n)
			json_count(json, key, n);
	}
	json_close_object(json);
}

static void put_latency(struct json_writer *json, const char *key,
			const struct nvs_latency *latency, bool percentiles, bool bins)
{
	static const double fios[] = {1,  5,  10, 20, 30,   40,	  50,	 60,   70,
				      80, 90, 95, 99, 99.5, 99.9, 99.95, 99.99};
	char text[32];

	json_open_object(json, key);
	json_count(json, "min", latency->min_ns);
	json_count(json, "max", latency->max_ns);
	json_real(json, "mean", nvs_latency_mean(latency));
	json_real(json, "stddev", nvs_latency_stddev(latency));
	json_count(json, "N", latency->count);
	if (percentiles && latency->count) {
		json_open_object(json, "percentile");
		for (unsigned i = 0; i < COUNT_OF(fios); i++) {
			snprintf(text, sizeof(text), "%f", fios[i]);
			json_count(json, text, nvs_latency_percentile(latency, fios[i]));
		}
		json_close_object(json);
	}
	if (bins && latency->count)
		put_bins(json, latency);
	json_close_object(json);
}

/* One direction; of "trim", which tools expect, result and group are empty. */
static void put_direction(struct json_writer *json, const char *key,
			  const struct report_group *group, enum nvs_direction d, bool bins)
{
	const struct bench_result *result = &group->result;
	const struct bench_samples *bw = &result->bw_bytes[d], *iops = &result->iops[d];
	uint64_t bytes_per_s = (uint64_t)group_bytes_per_s(group, d);

	json_open_object(json, key);
	json_count(json, "io_bytes", result->bytes[d]);
	json_count(json, "io_kbytes", result->bytes[d] / 1024);
	json_count(json, "bw_bytes", bytes_per_s);
	json_count(json, "bw", bytes_per_s / 1024);
	json_real(json, "iops", group_iops(group, d));
	json_count(json, "runtime", group_runtime_ms(group, d));
	json_count(json, "total_ios", result->aio.io[d].ios);
	json_count(json, "short_ios", 0);
	json_count(json, "drop_ios", 0);
	put_latency(json, "slat_ns", &result->latency[d][NVS_SLAT], false, false);
	put_latency(json, "clat_ns", &result->latency[d][NVS_CLAT], true, bins);
	put_latency(json, "lat_ns", &result->latency[d][NVS_LAT], false, false);
	json_count(json, "bw_min", (uint64_t)bw->min / 1024);
	json_count(json, "bw_max", (uint64_t)bw->max / 1024);
	json_real(json, "bw_agg", group_bandwidth_share(group, d));
	json_real(json, "bw_mean", samples_mean(bw) / 1024);
	json_real(json, "bw_dev", samples_stddev(bw) / 1024);
	json_count(json, "bw_samples", bw->n);
	json_count(json, "iops_min", (uint64_t)iops->min);
	json_count(json, "iops_max", (uint64_t)iops->max);
	json_real(json, "iops_mean", samples_mean(iops));
	json_real(json, "iops_stddev", samples_stddev(iops));
	json_count(json, "iops_samples", iops->n);
	json_close_object(json);
}

/* ---- A job */

static void put_shares(struct json_writer *json, const char *key, const char *const *bounds,
		       const double *share, unsigned n)
{
	json_open_object(json, key);
	for (unsigned i = 0; i < n; i++)
		json_real(json, bounds[i], share[i]);
	json_close_object(json);
}

static void put_depths(struct json_writer *json, const char *key, const char *const *bounds,
		       const uint64_t counts[NVS_DEPTHS])
{
	double share[NVS_DEPTHS];

	depth_shares(counts, share);
	put_shares(json, key, bounds, share, NVS_DEPTHS);
}

static void put_distributions(struct json_writer *json, const struct report_group *group)
{
	const struct nvs_aio_stats *aio = &group->result.aio;
	double share[LATENCY_SHARES];

	put_depths(json, "iodepth_level", depth_bounds, aio->depth_ios);
	put_depths(json, "iodepth_submit", call_bounds, aio->submit_sizes);
	put_depths(json, "iodepth_complete", call_bounds, aio->reap_sizes);
	group_latency_shares(group, share);
	put_shares(json, "latency_ns", latency_bounds, share, LATENCY_BOUNDS);
	put_shares(json, "latency_us", latency_bounds, share + LATENCY_BOUNDS, LATENCY_BOUNDS);
	put_shares(json, "latency_ms", latency_bounds, share + 2 * LATENCY_BOUNDS,
		   LATENCY_BOUNDS_MS);
	json_count(json, "latency_depth", job_queue_depth(group->job));
	json_count(json, "latency_target", 0);
	json_real(json, "latency_percentile", 100);
	json_count(json, "latency_window", 0);
}

static void put_own(struct json_writer *json, const struct report_group *group)
{
	/* A job that failed to parse has no configuration. */
	if (group->job->config)
		report_config_json(json, group->job);
	if (group->result.opened)
		report_swap_json(json, group);
}

static void put_head(struct json_writer *json, const struct report_group *group, bool status)
{
	const struct bench_job *job = group->job;
	const struct bench_result *result = &group->result;

	json_text(json, "jobname", job->name);
	json_count(json, "groupid", job->groupid);
	json_count(json, "error", (uint64_t)-result->error.code);
	if (result->error.code)
		json_text(json, "error_text", result->error.text);
	/* Seconds left; fio writes INT_MAX if unknown. */
	json_count(json, "eta", status ? INT_MAX : 0);
	json_count(json, "elapsed", (uint64_t)ceil(result->elapsed_s));
	json_count(json, "job_start", result->started_unix_ms);
	json_open_object(json, "job options");
	put_given(json, &job->given, &job->options);
	json_close_object(json);
	if (job->options.description)
		json_text(json, "desc", job->options.description);
}

static void put_group(struct json_writer *json, const struct bench_report *report,
		      const struct report_group *group)
{
	static const struct report_group nothing;
	const struct bench_result *result = &group->result;
	bool bins = report->plan->run.formats & 1u << FORMAT_JSON_PLUS;

	json_open_object(json, NULL);
	put_head(json, group, report->status);
	put_direction(json, "read", group, NVS_READ, bins);
	put_direction(json, "write", group, NVS_WRITE, bins);
	/* Tools expect fio's third direction and its syncs. */
	put_direction(json, "trim", &nothing, NVS_READ, false);
	json_open_object(json, "sync");
	json_count(json, "total_ios", 0);
	put_latency(json, "lat_ns", &nothing.result.latency[NVS_READ][NVS_LAT], false, false);
	json_close_object(json);
	json_count(json, "job_runtime", window_ms(group->run_ns));
	json_real(json, "usr_cpu", group_cpu_percent(group, result->user_us));
	json_real(json, "sys_cpu", group_cpu_percent(group, result->system_us));
	json_count(json, "ctx", result->context_switches);
	json_count(json, "majf", result->major_faults);
	json_count(json, "minf", result->minor_faults);
	put_distributions(json, group);
	if (group_has_steps(group) && result->measured)
		report_steps_json(json, group);
	put_own(json, group);
	json_close_object(json);
}

/* ---- The whole */

static void put_disks(struct json_writer *json, const struct disk_watch *disks)
{
	json_open_list(json, "disk_util");
	for (unsigned i = 0; i < disks->n; i++) {
		const struct disk_use *disk = &disks->at[i];

		json_open_object(json, NULL);
		json_text(json, "name", disk->name);
		json_count(json, "read_ios", disk->ios[NVS_READ]);
		json_count(json, "write_ios", disk->ios[NVS_WRITE]);
		json_count(json, "read_merges", disk->merges[NVS_READ]);
		json_count(json, "write_merges", disk->merges[NVS_WRITE]);
		json_count(json, "read_sectors", disk->sectors[NVS_READ]);
		json_count(json, "write_sectors", disk->sectors[NVS_WRITE]);
		json_count(json, "read_ticks", disk->ticks_ms[NVS_READ]);
		json_count(json, "write_ticks", disk->ticks_ms[NVS_WRITE]);
		json_count(json, "in_queue", disk->in_queue_ms);
		json_real(json, "util", disk_busy_percent(disk));
		json_close_object(json);
	}
	json_close_list(json);
}

int report_json(FILE *file, const struct bench_report *report)
{
	char program[64];
	struct json_writer json = json_to(file, 2);
	struct report_group *group = report_group_make();

	if (!group)
		return -ENOMEM;
	report_group_next(report, group);
	json_open_object(&json, NULL);
	/* Tools that plot fio's output refuse it without fio's own version key. */
	snprintf(program, sizeof(program), "nvswap-%s", nvs_version());
	json_text(&json, "fio version", program);
	json_text(&json, "nvswap version", nvs_version());
	put_times(&json);
	put_global_options(&json, report, group);
	json_open_list(&json, "jobs");
	do
		put_group(&json, report, group);
	while (report_group_next(report, group));
	json_close_list(&json);
	if (group->njobs == report->plan->n)
		put_own(&json, group);
	if (report->disks && report->disks->n)
		put_disks(&json, report->disks);
	json_close_object(&json);
	free(group);
	return 0;
}
