/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON with the names, units and structure of fio 3, so that tools for fio read it. Features of fio
 * that nvswap lacks, such as trim and latency targets, are zero. nvswap's own figures are in
 * "config", "engine", "swap" and "step" of each job; a run of a single job has them at the top too.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "base/numbers.h"
#include "base/statistics/latency.h"
#include "cli/report/report.h"
#include "cli/settings.h"

/* By their names in job files, with _ as fio's and DeepSpeed's keys have it. given->text has only
 * the last item of a list; the value has all. */
static void put_given(struct json_writer *json, const struct options_given *given,
		      const void *values)
{
	for (unsigned i = 0; i < bench_command.noptions; i++) {
		const struct option_spec *spec = &bench_command.options[i];
		const struct option_list *list =
			(const void *)((const char *)values + spec->offset);
		char key[64], joined[4096] = "";
		size_t length = 0;

		if (!given->text[i])
			continue;
		snprintf(key, sizeof(key), "%s", spec->name);
		for (char *c = key; *c; c++)
			*c = *c == '-' ? '_' : *c;
		for (unsigned at = 0;
		     spec->type == OPTION_LIST && at < list->n && length < sizeof(joined) - 1; at++)
			length += (size_t)snprintf(joined + length, sizeof(joined) - length, "%s%s",
						   at ? ":" : "", list->items[at]);
		json_text(json, key, spec->type == OPTION_LIST ? joined : given->text[i]);
	}
}

#define NUMBER(number) number_text((number), (char[32]){0})
static const char *number_text(uint64_t number, char text[32])
{
	snprintf(text, 32, "%" PRIu64, number);
	return text;
}

/* Options given for all jobs; for a single prepared job also resolved ones. */
static void put_global_options(struct json_writer *json, const struct bench_report *report,
			       const struct report_group *group)
{
	const struct nvs_config *config = group->job->config;
	const struct options_given *given = &report->plan->given;

	json_open_object(json, "global options");
	put_given(json, given, &report->plan->run);
	if (config && group->njobs == report->plan->n) {
		/* The engine in use, or the one asked for if none was opened. */
		const char *engine = group->result.opened
					     ? group->result.engine.aio.ioengine
					     : nvs_ioengine_name(setting_ioengine(config));
		const char *resolved[][2] = {
			{"rw", bench_rw_name(group->job->options.rw)},
			{"ioengine", engine},
			{"bs", NUMBER(setting_number(config, "aio.block_size"))},
			{"iodepth", NUMBER(setting_number(config, "aio.queue_depth"))},
			{"numjobs", NUMBER(group->njobs)},
		};

		for (size_t i = 0; i < COUNT_OF(resolved); i++)
			if (!bench_option_given(given, resolved[i][0]))
				json_text(json, resolved[i][0], resolved[i][1]);
	}
	json_close_object(json);
}

/* A setting whose key is `object` and `name`. Texts of numbers and lists are JSON. */
static void put_setting(struct json_writer *json, const struct bench_job *job, const char *object,
			const char *name)
{
	const char *paths[NVS_PATHS_MAX + 1];
	char key[128], text[128];
	unsigned npaths = 0;
	int rc;

	if (!strcmp(name, "nvme_path")) {
		while ((paths[npaths] = nvs_config_get_path(job->config, job->block, npaths)))
			npaths++;
		if (npaths)
			json_texts(json, name, paths, npaths);
		return;
	}
	snprintf(key, sizeof(key), "%s%s", object, name);
	if (!strcmp(key, "zero_optimization.offload_optimizer.buffer_size"))
		strcpy(key, "zero_optimization.sub_group_size"); /* which has its value */
	rc = nvs_config_get(job->config, key, text, sizeof(text), NULL);
	assert(rc != -EINVAL && rc != -ERANGE);
	if (rc)
		json_null(json, name);
	else if (!strcmp(text, "true") || !strcmp(text, "false") || *text == '[' ||
		 (*text && !text[strspn(text, "0123456789+-.e")]))
		json_number(json, name, "%s", text);
	else
		/* Without a type the optimizer is Adam. */
		json_text(json, name, *text ? text : "Adam");
}

/* The keys that the figures of a job may depend on, in the form of a DeepSpeed file: words, and
 * what encloses those of an object. */
static const char keys_of_aio[] = "aio { block_size queue_depth thread_count single_submit "
				  "overlap_events use_gds } ";
static const char keys_of_param[] =
	"zero_optimization { offload_param { device nvme_path pin_memory buffer_count buffer_size "
	"max_in_cpu } stage3_prefetch_bucket_size stage3_max_live_parameters "
	"stage3_max_reuse_distance stage3_param_persistence_threshold } ";
static const char keys_of_optimizer[] =
	"zero_optimization { offload_optimizer { device nvme_path pin_memory buffer_count "
	"buffer_size fast_init pipeline_read pipeline_write ratio } sub_group_size } ";
static const char keys_of_step[] =
	"optimizer { type } gradient_clipping fp16 { enabled loss_scale initial_scale_power "
	"loss_scale_window hysteresis consecutive_hysteresis min_loss_scale } bf16 { enabled } "
	"data_types { grad_accum_dtype } ";
static const char keys_of_nvswap[] = "nvswap { ioengine io_timeout_ms verify keep rank stripe_size "
				     "write_budget";

static void put_config(struct json_writer *json, const struct bench_job *job)
{
	bool optimizer = job->block == NVS_OFFLOAD_OPTIMIZER;
	char keys[2048], object[128] = "", *rest = keys, *word, *end;
	int length = snprintf(keys, sizeof(keys), "%s%s", keys_of_aio,
			      optimizer ? keys_of_optimizer : keys_of_param);

	if (job->options.rw == RW_STEP)
		length += snprintf(keys + length, sizeof(keys) - (size_t)length, "%s",
				   keys_of_step);
	snprintf(keys + length, sizeof(keys) - (size_t)length, "%s%s }", keys_of_nvswap,
		 optimizer ? " optimizer_max_in_cpu optimizer_threads optimizer_state" : "");
	json_open_object(json, "config");
	while ((word = strsep(&rest, " "))) {
		end = object + strlen(object);
		if (*word == '}') {
			/* "zero_optimization.offload_param." becomes "zero_optimization." */
			end[-1] = '\0';
			end = strrchr(object, '.');
			(end ? end + 1 : object)[0] = '\0';
			json_close_object(json);
		} else if (rest && *rest == '{') {
			snprintf(end, sizeof(object) - strlen(object), "%s.", word);
			json_open_object(json, word);
			rest += strlen("{ ");
		} else {
			put_setting(json, job, object, word);
		}
	}
	json_close_object(json);
}

/* fio's last bucket counts all longer times. */
#define LAST_BIN (29 * 64 - 1)

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
	if (bins && latency->count) {
		json_open_object(json, "bins");
		for (unsigned i = 0; i <= LAST_BIN; i++) {
			uint64_t n = latency->buckets[i];

			for (unsigned at = i + 1; i == LAST_BIN && at < NVS_LATENCY_BUCKETS; at++)
				n += latency->buckets[at];
			if (n)
				json_count(json, NUMBER(latency_bucket_ns(i)), n);
		}
		json_close_object(json);
	}
	json_close_object(json);
}

/* One direction; of "trim", which tools expect, result and group are empty. */
static void put_direction(struct json_writer *json, const char *key,
			  const struct report_group *group, enum nvs_direction d, bool bins)
{
	const struct bench_result *result = &group->result;
	const struct bench_samples *bw = &result->bw_bytes[d], *iops = &result->iops[d];
	const struct report_way *way = &group->way[d];
	uint64_t bytes_per_s = (uint64_t)way->bytes_per_s;
	double all = way->all_bytes_per_s;

	json_open_object(json, key);
	json_count(json, "io_bytes", result->bytes[d]);
	json_count(json, "io_kbytes", result->bytes[d] / 1024);
	json_count(json, "bw_bytes", bytes_per_s);
	json_count(json, "bw", bytes_per_s / 1024);
	json_real(json, "iops", way->iops);
	json_count(json, "runtime", way->runtime_ms);
	json_count(json, "total_ios", result->aio.io[d].ios);
	json_count(json, "short_ios", 0);
	json_count(json, "drop_ios", 0);
	put_latency(json, "slat_ns", &result->latency[d][NVS_SLAT], false, false);
	put_latency(json, "clat_ns", &result->latency[d][NVS_CLAT], true, bins);
	put_latency(json, "lat_ns", &result->latency[d][NVS_LAT], false, false);
	json_count(json, "bw_min", (uint64_t)bw->min / 1024);
	json_count(json, "bw_max", (uint64_t)bw->max / 1024);
	json_real(json, "bw_agg", all > 0 ? fmin(100 * samples_mean(bw) / all, 100) : 0);
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

/* ---- A job ---- */

/* Like fio, rounds a share that is not 0 up to the least that its digits can show. */
static double percent(uint64_t part, uint64_t whole, double least)
{
	double share = whole ? 100 * (double)part / (double)whole : 0;

	return part && share < least ? least : share;
}

/* By depths of 1, 2, 4 and so on, or by I/Os in a call: 0, up to 4, 8 and so on. */
static void put_depths(struct json_writer *json, const char *key, bool calls,
		       const uint64_t counts[NVS_DEPTHS])
{
	uint64_t all = 0;

	for (unsigned i = 0; i < NVS_DEPTHS; i++)
		all += counts[i];
	json_open_object(json, key);
	for (unsigned i = 0; i < NVS_DEPTHS; i++)
		json_real(json,
			  i == NVS_DEPTHS - 1 ? ">=64"
			  : i || !calls	      ? NUMBER((calls ? 2u : 1u) << i)
					      : "0",
			  percent(counts[i], all, 0.1));
	json_close_object(json);
}

static void put_distributions(struct json_writer *json, const struct report_group *group)
{
	/* Each counts the I/Os from the one before up to, not including, itself. */
	static const unsigned bounds[] = {2, 4, 10, 20, 50, 100, 250, 500, 750, 1000, 2000};
	static const struct {
		const char *key;
		uint64_t ns;
		unsigned n;
	} units[] = {{"latency_ns", 1, 10}, {"latency_us", 1000, 10}, {"latency_ms", 1000000, 11}};
	const struct nvs_aio_stats *aio = &group->result.aio;
	const struct nvs_latency *reads = &group->result.latency[NVS_READ][NVS_CLAT];
	const struct nvs_latency *writes = &group->result.latency[NVS_WRITE][NVS_CLAT];
	const struct nvs_config *config = group->job->config;
	uint64_t all = reads->count + writes->count, below = 0;

	put_depths(json, "iodepth_level", false, aio->depth_ios);
	put_depths(json, "iodepth_submit", true, aio->submit_sizes);
	put_depths(json, "iodepth_complete", true, aio->reap_sizes);
	for (size_t unit = 0; unit < COUNT_OF(units); unit++) {
		json_open_object(json, units[unit].key);
		for (unsigned i = 0; i < units[unit].n; i++) {
			uint64_t ns = bounds[i] * units[unit].ns - 1;
			uint64_t upto = nvs_latency_within(reads, ns) +
					nvs_latency_within(writes, ns);

			json_real(json, NUMBER(bounds[i]), percent(upto - below, all, 0.01));
			below = upto;
		}
		if (unit == COUNT_OF(units) - 1)
			json_real(json, ">=2000", percent(all - below, all, 0.01));
		json_close_object(json);
	}
	json_count(json, "latency_depth", config ? setting_number(config, "aio.queue_depth") : 0);
	json_count(json, "latency_target", 0);
	json_real(json, "latency_percentile", 100);
	json_count(json, "latency_window", 0);
}

/* Times, bytes and counts are means per measured step. */
static void put_steps(struct json_writer *json, const struct report_group *group)
{
	const struct step_figures *steps = &group->result.steps;
	const struct nvs_step_io *sum = &steps->sum;

	json_open_object(json, "step");
	json_count(json, "steps", steps->steps);
	json_count(json, "wall_min_ns", steps->wall_min_ns);
	json_count(json, "wall_mean_ns", (uint64_t)per_step(group, sum->wall_ns));
	json_count(json, "wall_max_ns", steps->wall_max_ns);
	json_count(json, "compute_ns", (uint64_t)per_step(group, sum->compute_ns));
	json_count(json, "io_ns", (uint64_t)per_step(group, sum->io_ns));
	json_count(json, "hidden_ns", (uint64_t)per_step(group, sum->hidden_ns));
	json_exact(json, "hidden_share", group->no_moves ? NAN : group->hidden_share);
	if (group->no_moves)
		json_text(json, "note", group->no_moves);
	json_count(json, "stall_ns", (uint64_t)per_step(group, sum->stall_ns));
	json_count(json, "read_bytes", (uint64_t)per_step(group, sum->read_bytes));
	json_count(json, "written_bytes", (uint64_t)per_step(group, sum->written_bytes));
	json_real(json, "stalls", per_step(group, sum->stalls));
	json_real(json, "hits", per_step(group, sum->hits));
	json_real(json, "misses", per_step(group, sum->misses));
	json_count(json, "drive_written_bytes",
		   (uint64_t)per_step(group, sum->drive_written_bytes));
	json_count(json, "first_wall_ns", steps->first.wall_ns);
	json_count(json, "first_read_bytes", steps->first.read_bytes);
	json_count(json, "first_written_bytes", steps->first.written_bytes);
	if (group->job->options.rw == RW_PARAMS) {
		json_count(json, "layers", steps->layers);
	} else {
		json_count(json, "skipped", steps->skipped);
		json_count(json, "elements", steps->elements);
		json_count(json, "groups", steps->groups);
		json_real(json, "state_bytes_per_element", steps->state_bytes);
		json_real(json, "tiles", per_step(group, steps->tiles));
		json_count(json, "update_cpu_ns", (uint64_t)per_step(group, steps->updates_ns));
		json_text(json, "kernel", steps->kernel ? steps->kernel : "");
		json_count(json, "threads", steps->threads);
		json_exact(json, "norm", steps->norm < 0 ? NAN : steps->norm);
		json_exact(json, "clip", steps->clip);
		json_exact(json, "loss_scale", steps->loss_scale);
	}
	json_count(json, "memory_peak_bytes", steps->peak_bytes);
	json_count(json, "memory_pool_bytes", steps->pool_rss_bytes);
	json_count(json, "memory_host_bytes", steps->host_bytes);
	json_count(json, "memory_own_bytes", steps->own_bytes);
	json_count(json, "memory_rest_bytes", group->rest_bytes);
	json_count(json, "memory_store_bytes", steps->store_bytes);
	json_close_object(json);
}

static void put_swap(struct json_writer *json, const struct report_group *group)
{
	const struct bench_result *result = &group->result;
	const struct model *model = &group->job->model;
	const struct nvs_pool_stats *pool = &result->engine.pool;

	json_open_object(json, "swap");
	json_text(json, "mode", bench_rw_name(group->job->options.rw));
	if (model->path)
		json_text(json, "model", model->path);
	json_count(json, "tensors", model->n);
	json_count(json, "bytes", model->nbytes);
	json_count(json, "model_tensors", model->n_whole);
	json_count(json, "model_bytes", model->nbytes_whole);
	json_count(json, "seed", group->job->options.seed);
	json_count(json, "pool_bytes", pool->bytes);
	json_count(json, "pool_bytes_peak", result->pool_peak);
	json_count(json, "pool_locked_bytes", pool->locked);
	json_count(json, "pool_huge_bytes", pool->huge);
	json_bool(json, "pool_transparent_huge", pool->transparent_huge);
	json_number(json, "pool_numa_node", "%d", pool->numa_node);
	json_count(json, "pool_largest_free", pool->largest_free);
	json_count(json, "bounce_bytes", result->engine.aio.bounce_bytes);
	json_count(json, "store_bytes", result->engine.store_bytes);
	if (result->measured) {
		json_count(json, "transfers", result->transfers);
		json_count(json, "evictions", result->evictions);
		json_count(json, "pool_waits", result->pool_waits);
		json_real(json, "cpu_ms_per_gib", cpu_ms_per_gib(result));
		json_real(json, "cpu_ms_for_data", (double)result->data_us / 1e3);
		if (group->job->options.rw == RW_STEP)
			json_real(json, "cpu_ms_for_updates", (double)result->updates_us / 1e3);
	}
	if (result->first_bytes) {
		json_count(json, "first_swapout_bytes", result->first_bytes);
		json_real(json, "first_swapout_bw_bytes",
			  (double)result->first_bytes / ((double)result->first_ns / 1e9));
	}
	json_bool(json, "verify", group->job->options.verify);
	json_count(json, "verified_bytes", result->verified_bytes);
	json_count(json, "verify_errors", group->verify_errors);
	json_close_object(json);
}

/* What fio has no figures for. */
static void put_own(struct json_writer *json, const struct report_group *group)
{
	const struct bench_result *result = &group->result;
	const struct replay_figures *replay = &result->replay;
	const struct nvs_aio_stats *aio = result->measured ? &result->aio : &result->engine.aio;

	if (group->job->config)
		put_config(json, group->job);
	if (!result->opened)
		return;
	json_open_object(json, "engine");
	json_text(json, "ioengine", aio->ioengine);
	json_text(json, "reason", aio->ioengine_reason);
	json_text(json, "buffers_reason", aio->buffers_reason);
	json_bool(json, "direct", result->engine.direct);
	json_bool(json, "fixed_buffers", aio->fixed_buffers);
	json_bool(json, "fixed_files", aio->fixed_files);
	json_bool(json, "single_issuer", aio->single_issuer);
	json_bool(json, "defer_taskrun", aio->defer_taskrun);
	json_count(json, "workers", aio->workers);
	json_count(json, "inflight_max", aio->inflight_max);
	json_count(json, "submit_calls", aio->submit_calls);
	json_count(json, "reap_calls", aio->reap_calls);
	json_count(json, "retries", aio->retries);
	json_count(json, "read_bytes", aio->io[NVS_READ].bytes);
	json_count(json, "write_bytes", aio->io[NVS_WRITE].bytes);
	json_count(json, "drive_written_bytes", result->engine.drive_written_bytes);
	json_count(json, "registered_bytes", aio->registered_bytes);
	json_count(json, "bounced_bytes", aio->bounced_bytes);
	json_close_object(json);
	put_swap(json, group);
	if (!group->job->accesses)
		return;
	json_open_object(json, "replay");
	json_text(json, "pace", group->job->options.pace == PACE_MAX ? "max" : "recorded");
	json_count(json, "calls", replay->calls);
	json_count(json, "recorded_ns", replay->recorded_ns);
	json_count(json, "recorded_stall_ns", replay->recorded_stall_ns);
	json_count(json, "recorded_read_bytes", replay->recorded_bytes[NVS_READ]);
	json_count(json, "recorded_write_bytes", replay->recorded_bytes[NVS_WRITE]);
	json_count(json, "replayed_ns", result->window_ns);
	json_count(json, "replayed_stall_ns", replay->stall_ns);
	json_count(json, "replayed_read_bytes", result->bytes[NVS_READ]);
	json_count(json, "replayed_write_bytes", result->bytes[NVS_WRITE]);
	json_close_object(json);
}

static void put_group(struct json_writer *json, const struct bench_report *report,
		      const struct report_group *group)
{
	static const struct report_group nothing;
	const struct bench_job *job = group->job;
	const struct bench_result *result = &group->result;
	double base_us = (double)group->run_ns / 1e3;
	bool bins = report->plan->run.formats & 1u << FORMAT_JSON_PLUS;

	json_open_object(json, NULL);
	json_text(json, "jobname", job->name);
	json_count(json, "groupid", job->groupid);
	json_count(json, "error", (uint64_t)-result->error.code);
	if (result->error.code)
		json_text(json, "error_text", result->error.text);
	/* Seconds left; fio writes INT_MAX if unknown. */
	json_count(json, "eta", report->status ? INT_MAX : 0);
	json_count(json, "elapsed", (uint64_t)ceil(result->elapsed_s));
	json_count(json, "job_start", result->started_unix_ms);
	json_open_object(json, "job options");
	put_given(json, &job->given, &job->options);
	json_close_object(json);
	if (job->options.description)
		json_text(json, "desc", job->options.description);
	put_direction(json, "read", group, NVS_READ, bins);
	put_direction(json, "write", group, NVS_WRITE, bins);
	/* Tools expect fio's third direction and its syncs. */
	put_direction(json, "trim", &nothing, NVS_READ, false);
	json_open_object(json, "sync");
	json_count(json, "total_ios", 0);
	put_latency(json, "lat_ns", &nothing.result.latency[NVS_READ][NVS_LAT], false, false);
	json_close_object(json);
	json_count(json, "job_runtime", group->run_ns / 1000000 + (group->run_ns % 1000000 != 0));
	json_real(json, "usr_cpu", base_us > 0 ? 100 * (double)result->user_us / base_us : 0);
	json_real(json, "sys_cpu", base_us > 0 ? 100 * (double)result->system_us / base_us : 0);
	json_count(json, "ctx", result->context_switches);
	json_count(json, "majf", result->major_faults);
	json_count(json, "minf", result->minor_faults);
	put_distributions(json, group);
	if (group->has_steps && result->measured)
		put_steps(json, group);
	put_own(json, group);
	json_close_object(json);
}

void report_json(FILE *file, const struct bench_report *report)
{
	char program[64], time[64];
	struct json_writer json = json_to(file, 2);
	static struct report_group group;
	struct timespec now;
	struct tm local;

	group.job = NULL;
	report_group_next(report, &group);
	json_open_object(&json, NULL);
	/* Tools that plot fio's output refuse it without fio's own version key. */
	snprintf(program, sizeof(program), "nvswap-%s", nvs_version());
	json_text(&json, "fio version", program);
	json_text(&json, "nvswap version", nvs_version());
	clock_gettime(CLOCK_REALTIME, &now);
	json_count(&json, "timestamp", (uint64_t)now.tv_sec);
	json_count(&json, "timestamp_ms",
		   (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000);
	if (localtime_r(&now.tv_sec, &local) &&
	    strftime(time, sizeof(time), "%a %b %e %H:%M:%S %Y", &local))
		json_text(&json, "time", time);
	put_global_options(&json, report, &group);
	json_open_list(&json, "jobs");
	do
		put_group(&json, report, &group);
	while (report_group_next(report, &group));
	json_close_list(&json);
	if (group.njobs == report->plan->n)
		put_own(&json, &group);
	json_close_object(&json);
}
