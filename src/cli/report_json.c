/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON in the shape of fio's: names, units and places are those of fio 3, so that its readers work.
 * What fio has and nvswap does without, such as trim and latency targets, is zero. What nvswap has
 * beside it is in "config", "engine", "swap" and "step" of each job, and of one job alone at the
 * top as well.
 */
#include "report_json.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "json_fields.h"

/* fio's own key too: what draws reports of fio's asks for it, and stops without it. */
static void put_version(yajl_gen gen)
{
	char program[64];

	snprintf(program, sizeof(program), "nvswap-%s", nvs_version());
	text_field(gen, "fio version", program);
	text_field(gen, "nvswap version", nvs_version());
}

static void put_times(yajl_gen gen)
{
	struct timespec now;
	struct tm local;
	char text[64];

	clock_gettime(CLOCK_REALTIME, &now);
	count_field(gen, "timestamp", (uint64_t)now.tv_sec);
	count_field(gen, "timestamp_ms",
		    (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000);
	if (localtime_r(&now.tv_sec, &local) &&
	    strftime(text, sizeof(text), "%a %b %e %H:%M:%S %Y", &local))
		text_field(gen, "time", text);
}

/* ---- Options, as texts */

static void put_list(yajl_gen gen, const struct option_list *list)
{
	char joined[4096] = "";
	size_t length = 0;

	for (unsigned i = 0; i < list->n && length < sizeof(joined) - 1; i++)
		length += (size_t)snprintf(joined + length, sizeof(joined) - length, "%s%s",
					   i ? ":" : "", list->items[i]);
	put_text(gen, joined);
}

/* Under the name that job files have, with _ as fio's and DeepSpeed's keys. */
static void put_key(yajl_gen gen, const char *name)
{
	char key[64];

	snprintf(key, sizeof(key), "%s", name);
	for (char *c = key; *c; c++)
		*c = *c == '-' ? '_' : *c;
	put_text(gen, key);
}

/* A list has the text of its last item alone; those before it are in its value. */
static void put_given(yajl_gen gen, const struct options_given *given, const void *values)
{
	for (unsigned i = 0; i < bench_command.noptions; i++) {
		const struct option_spec *spec = &bench_command.options[i];

		if (!given->text[i])
			continue;
		put_key(gen, spec->name);
		if (spec->type == OPTION_LIST)
			put_list(gen, (const void *)((const char *)values + spec->offset));
		else
			put_text(gen, given->text[i]);
	}
}

static void resolved(yajl_gen gen, const struct options_given *given, const char *key,
		     const char *text)
{
	if (!bench_option_given(given, key))
		text_field(gen, key, text);
}

/* Not that of another's key: of blocks of several sizes it is the keys that were given. */
static void put_block_size(yajl_gen gen, const struct options_given *given,
			   const struct bench_job *job)
{
	struct option_mix blocks[2];
	char text[32];

	if (is_fio_mode(job->options.rw))
		bench_blocks(&job->options, job->config.aio.block_size, blocks);
	if (is_fio_mode(job->options.rw) && !bench_blocks_alike(blocks))
		return;
	snprintf(text, sizeof(text), "%u", job->config.aio.block_size);
	resolved(gen, given, "bs", text);
}

/* What was given for all; of one job also what fio's readers ask for, as it was resolved. */
static void put_global_options(yajl_gen gen, const struct bench_report *report,
			       const struct report_group *group)
{
	const struct options_given *given = &report->plan->given;
	const struct nvs_aio_config *aio = &group->job->config.aio;
	char text[32];

	open_map(gen, "global options");
	put_given(gen, given, &report->plan->run);
	if (group->njobs == report->plan->n) {
		resolved(gen, given, "rw", bench_rw_name(group->job->options.rw));
		resolved(gen, given, "ioengine", group_ioengine(group));
		put_block_size(gen, given, group->job);
		snprintf(text, sizeof(text), "%u", aio->queue_depth);
		resolved(gen, given, "iodepth", text);
		snprintf(text, sizeof(text), "%u", group->njobs);
		resolved(gen, given, "numjobs", text);
	}
	yajl_gen_map_close(gen);
}

/* ---- A direction */

static void put_latency(yajl_gen gen, const char *key, const struct nvs_latency *latency,
			const struct option_percentiles *list)
{
	char text[32];

	open_map(gen, key);
	count_field(gen, "min", latency->min_ns);
	count_field(gen, "max", latency->max_ns);
	real_field(gen, "mean", nvs_latency_mean(latency));
	real_field(gen, "stddev", nvs_latency_stddev(latency));
	count_field(gen, "N", latency->count);
	if (list && latency->count) {
		open_map(gen, "percentile");
		for (unsigned i = 0; i < list->n; i++) {
			snprintf(text, sizeof(text), "%f", list->at[i]);
			count_field(gen, text, nvs_latency_percentile(latency, list->at[i]));
		}
		yajl_gen_map_close(gen);
	}
	yajl_gen_map_close(gen);
}

static void put_bandwidth_samples(yajl_gen gen, const struct bench_samples *bw, double share)
{
	count_field(gen, "bw_min", (uint64_t)bw->min / 1024);
	count_field(gen, "bw_max", (uint64_t)bw->max / 1024);
	real_field(gen, "bw_agg", share);
	real_field(gen, "bw_mean", samples_mean(bw) / 1024);
	real_field(gen, "bw_dev", samples_stddev(bw) / 1024);
	count_field(gen, "bw_samples", bw->n);
}

static void put_iops_samples(yajl_gen gen, const struct bench_samples *iops)
{
	count_field(gen, "iops_min", (uint64_t)iops->min);
	count_field(gen, "iops_max", (uint64_t)iops->max);
	real_field(gen, "iops_mean", samples_mean(iops));
	real_field(gen, "iops_stddev", samples_stddev(iops));
	count_field(gen, "iops_samples", iops->n);
}

static void put_moved(yajl_gen gen, uint64_t nbytes, double bytes_per_s, double iops,
		      uint64_t runtime_ms, uint64_t ios)
{
	count_field(gen, "io_bytes", nbytes);
	count_field(gen, "io_kbytes", nbytes / 1024);
	count_field(gen, "bw_bytes", (uint64_t)bytes_per_s);
	count_field(gen, "bw", (uint64_t)bytes_per_s / 1024);
	real_field(gen, "iops", iops);
	count_field(gen, "runtime", runtime_ms);
	count_field(gen, "total_ios", ios);
	count_field(gen, "short_ios", 0);
	count_field(gen, "drop_ios", 0);
}

static void put_direction(yajl_gen gen, const char *key, const struct report_group *group,
			  enum nvs_direction d)
{
	const struct bench_result *result = &group->result;
	struct option_percentiles list = group_percentiles(group);

	open_map(gen, key);
	put_moved(gen, result->bytes[d], group_bytes_per_s(group, d), group_iops(group, d),
		  group_runtime_ms(group, d), result->aio.io[d].ios);
	put_latency(gen, "slat_ns", &result->latency[d][NVS_SLAT], NULL);
	put_latency(gen, "clat_ns", &result->latency[d][NVS_CLAT], &list);
	put_latency(gen, "lat_ns", &result->latency[d][NVS_LAT], NULL);
	put_bandwidth_samples(gen, &result->bw_bytes[d], group_bandwidth_share(group, d));
	put_iops_samples(gen, &result->iops[d]);
	yajl_gen_map_close(gen);
}

/* fio's third direction and its syncs, which its readers ask for. */
static void put_what_is_never_done(yajl_gen gen)
{
	static const struct nvs_latency no_latency;
	static const struct bench_samples no_samples;

	open_map(gen, "trim");
	put_moved(gen, 0, 0, 0, 0, 0);
	put_latency(gen, "slat_ns", &no_latency, NULL);
	put_latency(gen, "clat_ns", &no_latency, NULL);
	put_latency(gen, "lat_ns", &no_latency, NULL);
	put_bandwidth_samples(gen, &no_samples, 0);
	put_iops_samples(gen, &no_samples);
	yajl_gen_map_close(gen);
	open_map(gen, "sync");
	count_field(gen, "total_ios", 0);
	put_latency(gen, "lat_ns", &no_latency, NULL);
	yajl_gen_map_close(gen);
}

/* ---- A job */

static void put_shares(yajl_gen gen, const char *key, const char *const *bounds,
		       const double *share, unsigned n)
{
	open_map(gen, key);
	for (unsigned i = 0; i < n; i++)
		real_field(gen, bounds[i], share[i]);
	yajl_gen_map_close(gen);
}

static void put_depths(yajl_gen gen, const char *key, const char *const *bounds,
		       const uint64_t counts[NVS_DEPTHS])
{
	double share[NVS_DEPTHS];

	depth_shares(counts, share);
	put_shares(gen, key, bounds, share, NVS_DEPTHS);
}

static void put_distributions(yajl_gen gen, const struct report_group *group)
{
	const struct nvs_aio_stats *aio = &group->result.aio;
	double share[LATENCY_SHARES];

	put_depths(gen, "iodepth_level", depth_bounds, aio->depth_ios);
	put_depths(gen, "iodepth_submit", call_bounds, aio->submit_sizes);
	put_depths(gen, "iodepth_complete", call_bounds, aio->reap_sizes);
	group_latency_shares(group, share);
	put_shares(gen, "latency_ns", latency_bounds, share, LATENCY_BOUNDS);
	put_shares(gen, "latency_us", latency_bounds, share + LATENCY_BOUNDS, LATENCY_BOUNDS);
	put_shares(gen, "latency_ms", latency_bounds, share + 2 * LATENCY_BOUNDS,
		   LATENCY_BOUNDS_MS);
	count_field(gen, "latency_depth", group->job->config.aio.queue_depth);
	count_field(gen, "latency_target", 0);
	real_field(gen, "latency_percentile", 100);
	count_field(gen, "latency_window", 0);
}

static void put_own(yajl_gen gen, const struct report_group *group)
{
	/* A job that was not understood has no configuration yet. */
	if (group->job->config.aio.block_size)
		report_config_json(gen, group->job);
	if (group->result.opened)
		report_swap_json(gen, group);
}

static void put_head(yajl_gen gen, const struct report_group *group, bool status)
{
	const struct bench_job *job = group->job;
	const struct bench_result *result = &group->result;

	text_field(gen, "jobname", job->name);
	count_field(gen, "groupid", job->groupid);
	count_field(gen, "error", (uint64_t)-result->error.code);
	if (result->error.code)
		text_field(gen, "error_text", result->error.text);
	/* Seconds that are left; fio's word for "not known" is this. */
	count_field(gen, "eta", status ? INT_MAX : 0);
	count_field(gen, "elapsed", (uint64_t)ceil(result->elapsed_s));
	count_field(gen, "job_start", result->started_unix_ms);
	open_map(gen, "job options");
	put_given(gen, &job->given, &job->options);
	yajl_gen_map_close(gen);
	if (job->options.description)
		text_field(gen, "desc", job->options.description);
}

static void put_group(yajl_gen gen, const struct report_group *group, bool status)
{
	const struct bench_result *result = &group->result;

	open_map(gen, NULL);
	put_head(gen, group, status);
	put_direction(gen, "read", group, NVS_READ);
	put_direction(gen, "write", group, NVS_WRITE);
	put_what_is_never_done(gen);
	count_field(gen, "job_runtime", window_ms(group->run_ns));
	real_field(gen, "usr_cpu", group_cpu_percent(group, result->user_us));
	real_field(gen, "sys_cpu", group_cpu_percent(group, result->system_us));
	count_field(gen, "ctx", result->context_switches);
	count_field(gen, "majf", result->major_faults);
	count_field(gen, "minf", result->minor_faults);
	put_distributions(gen, group);
	if (group_has_steps(group) && result->measured)
		report_steps_json(gen, group);
	put_own(gen, group);
	yajl_gen_map_close(gen);
}

/* ---- The whole */

static void put_figures(yajl_gen gen, const char *key, const struct compare_figures *figures)
{
	static const char *const directions[] = {[NVS_READ] = "read", [NVS_WRITE] = "write"};

	open_map(gen, key);
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		open_map(gen, directions[d]);
		count_field(gen, "io_bytes", figures->bytes[d]);
		real_field(gen, "bw_bytes", figures->bytes_per_s[d]);
		real_field(gen, "iops", figures->iops[d]);
		real_field(gen, "clat_p50_ns", figures->p50_ns[d]);
		real_field(gen, "clat_p99_ns", figures->p99_ns[d]);
		yajl_gen_map_close(gen);
	}
	real_field(gen, "cpu_ms_per_gib", figures->cpu_ms_per_gib);
	yajl_gen_map_close(gen);
}

static void put_compared(yajl_gen gen, const struct bench_report *report)
{
	open_array(gen, "compare");
	for (unsigned i = 0; i < report->ncompared; i++) {
		const struct compare_row *row = &report->compared[i];

		open_map(gen, NULL);
		text_field(gen, "jobname", row->job);
		count_field(gen, "rounds", row->rounds);
		real_field(gen, "ratio", row->ratio);
		put_figures(gen, "nvswap", &row->ours);
		put_figures(gen, "fio", &row->theirs);
		yajl_gen_map_close(gen);
	}
	yajl_gen_array_close(gen);
}

static void put_disks(yajl_gen gen, const struct disk_watch *disks)
{
	open_array(gen, "disk_util");
	for (unsigned i = 0; i < disks->n; i++) {
		const struct disk_use *disk = &disks->at[i];

		open_map(gen, NULL);
		text_field(gen, "name", disk->name);
		count_field(gen, "read_ios", disk->ios[NVS_READ]);
		count_field(gen, "write_ios", disk->ios[NVS_WRITE]);
		count_field(gen, "read_merges", disk->merges[NVS_READ]);
		count_field(gen, "write_merges", disk->merges[NVS_WRITE]);
		count_field(gen, "read_sectors", disk->sectors[NVS_READ]);
		count_field(gen, "write_sectors", disk->sectors[NVS_WRITE]);
		count_field(gen, "read_ticks", disk->ticks_ms[NVS_READ]);
		count_field(gen, "write_ticks", disk->ticks_ms[NVS_WRITE]);
		count_field(gen, "in_queue", disk->in_queue_ms);
		real_field(gen, "util", disk_busy_percent(disk));
		yajl_gen_map_close(gen);
	}
	yajl_gen_array_close(gen);
}

static void put_report(yajl_gen gen, const struct bench_report *report, struct report_group *group)
{
	report_group_next(report, group);
	open_map(gen, NULL);
	put_version(gen);
	put_times(gen);
	put_global_options(gen, report, group);
	open_array(gen, "jobs");
	do
		put_group(gen, group, report->status);
	while (report_group_next(report, group));
	yajl_gen_array_close(gen);
	if (group->njobs == report->plan->n)
		put_own(gen, group);
	if (report->disks && report->disks->n)
		put_disks(gen, report->disks);
	if (report->ncompared)
		put_compared(gen, report);
	yajl_gen_map_close(gen);
}

int report_json(FILE *file, const struct bench_report *report)
{
	yajl_gen gen = yajl_gen_alloc(NULL);
	struct report_group *group = report_group_make();
	const unsigned char *text;
	size_t length;
	int rc = gen && group ? 0 : -ENOMEM;

	if (!rc) {
		yajl_gen_config(gen, yajl_gen_beautify, 1);
		yajl_gen_config(gen, yajl_gen_indent_string, "  ");
		yajl_gen_config(gen, yajl_gen_validate_utf8, 1);
		put_report(gen, report, group);
		if (yajl_gen_get_buf(gen, &text, &length))
			rc = -ENOMEM;
		else
			fwrite(text, 1, length, file);
	}
	free(group);
	if (gen)
		yajl_gen_free(gen);
	return rc;
}
