/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The result as JSON in the shape of fio's: names, units and places are those that fio 3 has, so
 * that its readers work; what fio has and nvswap does not measure is left out. What nvswap has
 * beside it is in "config", "engine" and "swap".
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <yajl/yajl_gen.h>

#include "bench_report.h"

static void put_bytes(yajl_gen gen, const char *text, size_t n)
{
	char ascii[1024];

	if (yajl_gen_string(gen, (const unsigned char *)text, n) != yajl_gen_invalid_string)
		return;
	/* A path need not be UTF-8, and JSON must. */
	if (n > sizeof(ascii))
		n = sizeof(ascii);
	for (size_t i = 0; i < n; i++)
		ascii[i] = (unsigned char)text[i] < 0x80 ? text[i] : '?';
	yajl_gen_string(gen, (const unsigned char *)ascii, n);
}

static void put_text(yajl_gen gen, const char *text)
{
	put_bytes(gen, text, strlen(text));
}

static void put_number(yajl_gen gen, const char *text)
{
	yajl_gen_number(gen, text, strlen(text));
}

static void text_field(yajl_gen gen, const char *key, const char *text)
{
	put_text(gen, key);
	put_text(gen, text);
}

static void count_field(yajl_gen gen, const char *key, uint64_t count)
{
	char text[32];

	snprintf(text, sizeof(text), "%" PRIu64, count);
	put_text(gen, key);
	put_number(gen, text);
}

static void real_field(yajl_gen gen, const char *key, double value)
{
	char text[400];

	snprintf(text, sizeof(text), "%f", isfinite(value) ? value : 0);
	put_text(gen, key);
	put_number(gen, text);
}

/* In the fewest digits that read back as the same; null where JSON has no number for it. */
static void put_exact(yajl_gen gen, double value)
{
	char text[32];

	if (!isfinite(value)) {
		yajl_gen_null(gen);
		return;
	}
	for (int digits = 15; digits <= 17; digits++) {
		snprintf(text, sizeof(text), "%.*g", digits, value);
		if (strtod(text, NULL) == value)
			break;
	}
	put_number(gen, text);
}

static void exact_field(yajl_gen gen, const char *key, double value)
{
	put_text(gen, key);
	put_exact(gen, value);
}

static void bool_field(yajl_gen gen, const char *key, bool value)
{
	put_text(gen, key);
	yajl_gen_bool(gen, value);
}

static void open_map(yajl_gen gen, const char *key)
{
	if (key)
		put_text(gen, key);
	yajl_gen_map_open(gen);
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

/* What holds for the whole run, under fio's names and, as there, as text. */
static void put_global_options(yajl_gen gen, const struct bench_report *report)
{
	const struct nvs_aio_config *aio = &report->config->aio;
	char text[32];

	open_map(gen, "global options");
	text_field(gen, "rw", bench_rw_name(report->options->rw));
	text_field(gen, "ioengine",
		   report->result->opened ? report->result->engine.aio.ioengine
					  : nvs_ioengine_name(aio->ioengine));
	snprintf(text, sizeof(text), "%u", aio->block_size);
	text_field(gen, "bs", text);
	snprintf(text, sizeof(text), "%u", aio->queue_depth);
	text_field(gen, "iodepth", text);
	snprintf(text, sizeof(text), "%u", aio->thread_count);
	text_field(gen, "numjobs", text);
	yajl_gen_map_close(gen);
}

static void put_list(yajl_gen gen, const struct option_list *list)
{
	char joined[4096] = "";
	size_t length = 0;

	for (unsigned i = 0; i < list->n && length < sizeof(joined) - 1; i++)
		length += (size_t)snprintf(joined + length, sizeof(joined) - length, "%s%s",
					   i ? ":" : "", list->items[i]);
	put_bytes(gen, joined, length < sizeof(joined) ? length : sizeof(joined) - 1);
}

static void put_job_options(yajl_gen gen, const struct bench_report *report)
{
	const struct command_spec *command = report->command;

	open_map(gen, "job options");
	for (unsigned i = 0; i < command->noptions; i++) {
		const struct option_spec *spec = &command->options[i];

		if (!report->given->text[i])
			continue;
		put_text(gen, spec->name);
		if (spec->type == OPTION_LIST)
			put_list(gen, &report->options->nvme_path);
		else
			put_text(gen, report->given->text[i]);
	}
	yajl_gen_map_close(gen);
}

static void put_latency(yajl_gen gen, const char *key, const struct nvs_io_stats *io,
			const uint64_t *percentile_ns)
{
	static const double percentiles[NPERCENTILES] = PERCENTILES;
	char text[32];

	open_map(gen, key);
	count_field(gen, "min", io->ios ? io->latency_min_ns : 0);
	count_field(gen, "max", io->latency_max_ns);
	real_field(gen, "mean", io->latency_mean_ns);
	real_field(gen, "stddev", io->latency_stddev_ns);
	count_field(gen, "N", io->ios);
	if (percentile_ns && io->ios) {
		open_map(gen, "percentile");
		for (unsigned i = 0; i < NPERCENTILES; i++) {
			snprintf(text, sizeof(text), "%f", percentiles[i]);
			count_field(gen, text, percentile_ns[i]);
		}
		yajl_gen_map_close(gen);
	}
	yajl_gen_map_close(gen);
}

/* An I/O's time counts from its submission to its completion, which fio calls both lat and clat
 * where it has no submission latency of its own. */
static void put_direction(yajl_gen gen, const char *key, const struct bench_result *result,
			  enum nvs_direction direction)
{
	static const struct nvs_io_stats none;
	const struct nvs_io_stats *io = result->measured ? &result->aio.io[direction] : &none;
	uint64_t nbytes = result->bytes[direction];
	double seconds = (double)result->window_ns / 1e9;
	double bandwidth = seconds > 0 ? (double)nbytes / seconds : 0;

	open_map(gen, key);
	count_field(gen, "io_bytes", nbytes);
	count_field(gen, "io_kbytes", nbytes / 1024);
	count_field(gen, "bw_bytes", (uint64_t)bandwidth);
	count_field(gen, "bw", (uint64_t)bandwidth / 1024);
	real_field(gen, "iops", seconds > 0 ? (double)io->ios / seconds : 0);
	count_field(gen, "runtime", nbytes ? (result->window_ns + 999999) / 1000000 : 0);
	count_field(gen, "total_ios", io->ios);
	put_latency(gen, "clat_ns", io, result->latency_ns[direction]);
	put_latency(gen, "lat_ns", io, NULL);
	yajl_gen_map_close(gen);
}

static void step_times(yajl_gen gen, const struct bench_result *result)
{
	const struct step_figures *steps = &result->steps;
	const struct nvs_step_io *sum = &steps->sum;

	count_field(gen, "wall_min_ns", steps->wall_min_ns);
	count_field(gen, "wall_mean_ns", (uint64_t)per_step(result, sum->wall_ns));
	count_field(gen, "wall_max_ns", steps->wall_max_ns);
	count_field(gen, "compute_ns", (uint64_t)per_step(result, sum->compute_ns));
	count_field(gen, "io_ns", (uint64_t)per_step(result, sum->io_ns));
	count_field(gen, "hidden_ns", (uint64_t)per_step(result, sum->hidden_ns));
	real_field(gen, "hidden_share", hidden_share(result));
	count_field(gen, "stall_ns", (uint64_t)per_step(result, sum->stall_ns));
	count_field(gen, "read_bytes", (uint64_t)per_step(result, sum->read_bytes));
	count_field(gen, "written_bytes", (uint64_t)per_step(result, sum->written_bytes));
	real_field(gen, "stalls", per_step(result, sum->stalls));
	real_field(gen, "hits", per_step(result, sum->hits));
	real_field(gen, "misses", per_step(result, sum->misses));
}

static void step_memory(yajl_gen gen, const struct bench_result *result)
{
	const struct step_figures *steps = &result->steps;

	count_field(gen, "memory_peak_bytes", steps->peak_bytes);
	count_field(gen, "memory_pool_bytes", steps->pool_rss_bytes);
	count_field(gen, "memory_host_bytes", steps->host_bytes);
	count_field(gen, "memory_own_bytes", steps->own_bytes);
	count_field(gen, "memory_rest_bytes", peak_rest(steps));
	count_field(gen, "memory_store_bytes", steps->store_bytes);
}

/* Times, bytes and counts are of one step: the mean over the measured ones. */
static void put_steps(yajl_gen gen, const struct bench_report *report)
{
	const struct bench_result *result = report->result;
	const struct step_figures *steps = &result->steps;

	open_map(gen, "step");
	count_field(gen, "steps", steps->steps);
	step_times(gen, result);
	count_field(gen, "first_wall_ns", steps->first.wall_ns);
	count_field(gen, "first_read_bytes", steps->first.read_bytes);
	count_field(gen, "first_written_bytes", steps->first.written_bytes);
	if (report->options->rw == RW_PARAMS) {
		count_field(gen, "layers", steps->layers);
	} else {
		count_field(gen, "skipped", steps->skipped);
		count_field(gen, "elements", steps->elements);
		count_field(gen, "groups", steps->groups);
		real_field(gen, "tiles", per_step(result, steps->tiles));
		count_field(gen, "update_cpu_ns", (uint64_t)per_step(result, steps->updates_ns));
		text_field(gen, "kernel", steps->kernel ? steps->kernel : "");
		count_field(gen, "threads", steps->threads);
		count_field(gen, "compared_elements", steps->compared);
		exact_field(gen, "norm", steps->norm < 0 ? NAN : steps->norm);
		exact_field(gen, "clip", steps->clip);
		exact_field(gen, "loss_scale", steps->loss_scale);
	}
	step_memory(gen, result);
	yajl_gen_map_close(gen);
}

static void put_job(yajl_gen gen, const struct bench_report *report)
{
	static const struct bench_result nothing;
	const struct bench_result *result = report->result;
	double percent = result->window_ns ? 1e5 / (double)result->window_ns : 0;

	open_map(gen, NULL);
	text_field(gen, "jobname", bench_rw_name(report->options->rw));
	count_field(gen, "groupid", 0);
	count_field(gen, "error", (uint64_t)-result->error.code);
	if (result->error.code)
		text_field(gen, "error_text", result->error.text);
	count_field(gen, "elapsed", (uint64_t)ceil(result->elapsed_s));
	put_job_options(gen, report);
	put_direction(gen, "read", result, NVS_READ);
	put_direction(gen, "write", result, NVS_WRITE);
	/* fio's third direction, which its readers ask for. */
	put_direction(gen, "trim", &nothing, NVS_WRITE);
	count_field(gen, "job_runtime", (result->window_ns + 999999) / 1000000);
	real_field(gen, "usr_cpu", (double)result->user_us * percent);
	real_field(gen, "sys_cpu", (double)result->system_us * percent);
	count_field(gen, "ctx", result->context_switches);
	count_field(gen, "majf", result->major_faults);
	count_field(gen, "minf", result->minor_faults);
	if (has_steps(report) && result->measured)
		put_steps(gen, report);
	yajl_gen_map_close(gen);
}

static void put_block(yajl_gen gen, const struct nvs_config *config, enum nvs_block block)
{
	const struct nvs_offload_config *offload = config_block(config, block);

	open_map(gen, block == NVS_OFFLOAD_PARAM ? "offload_param" : "offload_optimizer");
	text_field(gen, "device", nvs_device_name(offload->device));
	if (offload->npaths) {
		put_text(gen, "nvme_path");
		yajl_gen_array_open(gen);
		for (unsigned i = 0; i < offload->npaths; i++)
			put_text(gen, offload->nvme_path[i]);
		yajl_gen_array_close(gen);
	}
	bool_field(gen, "pin_memory", offload->pin_memory);
	count_field(gen, "buffer_count", offload->buffer_count);
	count_field(gen, "buffer_size", offload->buffer_size);
	if (block == NVS_OFFLOAD_PARAM) {
		count_field(gen, "max_in_cpu", offload->max_in_cpu);
	} else {
		bool_field(gen, "fast_init", offload->fast_init);
		bool_field(gen, "pipeline_read", offload->pipeline_read);
		bool_field(gen, "pipeline_write", offload->pipeline_write);
		real_field(gen, "ratio", offload->ratio);
	}
	yajl_gen_map_close(gen);
}

/* What the steps go by, beside the block. */
static void put_budgets(yajl_gen gen, const struct nvs_config *config, enum nvs_block block)
{
	if (block == NVS_OFFLOAD_OPTIMIZER) {
		count_field(gen, "sub_group_size", config->sub_group_size);
		return;
	}
	count_field(gen, "stage3_prefetch_bucket_size", config->prefetch_bucket_size);
	count_field(gen, "stage3_max_live_parameters", config->max_live_parameters);
	count_field(gen, "stage3_max_reuse_distance", config->max_reuse_distance);
	count_field(gen, "stage3_param_persistence_threshold", config->param_persistence_threshold);
}

static void put_adam(yajl_gen gen, const struct nvs_optimizer_config *adam)
{
	open_map(gen, "optimizer");
	text_field(gen, "type", *adam->type ? adam->type : "Adam");
	open_map(gen, "params");
	exact_field(gen, "lr", adam->lr);
	put_text(gen, "betas");
	yajl_gen_array_open(gen);
	put_exact(gen, adam->beta1);
	put_exact(gen, adam->beta2);
	yajl_gen_array_close(gen);
	exact_field(gen, "eps", adam->eps);
	exact_field(gen, "weight_decay", adam->weight_decay);
	bool_field(gen, "bias_correction", adam->bias_correction);
	bool_field(gen, "adam_w_mode", adam->adam_w_mode);
	yajl_gen_map_close(gen);
	yajl_gen_map_close(gen);
}

static void put_fp16(yajl_gen gen, const struct nvs_fp16_config *fp16)
{
	open_map(gen, "fp16");
	bool_field(gen, "enabled", fp16->enabled);
	exact_field(gen, "loss_scale", fp16->loss_scale);
	count_field(gen, "initial_scale_power", fp16->initial_scale_power);
	count_field(gen, "loss_scale_window", fp16->loss_scale_window);
	count_field(gen, "hysteresis", fp16->hysteresis);
	bool_field(gen, "consecutive_hysteresis", fp16->consecutive_hysteresis);
	exact_field(gen, "min_loss_scale", fp16->min_loss_scale);
	yajl_gen_map_close(gen);
}

/* What an optimizer's step computes, and on which types. */
static void put_training(yajl_gen gen, const struct nvs_config *config)
{
	put_adam(gen, &config->adam);
	exact_field(gen, "gradient_clipping", config->gradient_clipping);
	put_fp16(gen, &config->fp16);
	open_map(gen, "bf16");
	bool_field(gen, "enabled", config->bf16_enabled);
	yajl_gen_map_close(gen);
	open_map(gen, "data_types");
	text_field(gen, "grad_accum_dtype",
		   config->grad_accum_dtype == NVS_F32	 ? "fp32"
		   : config->grad_accum_dtype == NVS_F16 ? "fp16"
							 : "bf16");
	yajl_gen_map_close(gen);
}

static void put_config(yajl_gen gen, const struct bench_report *report)
{
	const struct nvs_config *config = report->config;
	const struct nvs_aio_config *aio = &config->aio;
	enum nvs_block block = report->block;

	open_map(gen, "config");
	open_map(gen, "aio");
	count_field(gen, "block_size", aio->block_size);
	count_field(gen, "queue_depth", aio->queue_depth);
	count_field(gen, "thread_count", aio->thread_count);
	bool_field(gen, "single_submit", aio->single_submit);
	bool_field(gen, "overlap_events", aio->overlap_events);
	bool_field(gen, "use_gds", aio->use_gds);
	yajl_gen_map_close(gen);
	open_map(gen, "zero_optimization");
	put_block(gen, config, block);
	put_budgets(gen, config, block);
	yajl_gen_map_close(gen);
	if (report->options->rw == RW_STEP)
		put_training(gen, config);
	open_map(gen, "nvswap");
	text_field(gen, "ioengine", nvs_ioengine_name(aio->ioengine));
	count_field(gen, "io_timeout_ms", aio->io_timeout_ms);
	bool_field(gen, "verify", config->verify);
	bool_field(gen, "keep", config->keep);
	count_field(gen, "rank", config->rank);
	count_field(gen, "stripe_size", config->stripe_size);
	if (block == NVS_OFFLOAD_OPTIMIZER) {
		count_field(gen, "optimizer_max_in_cpu", config->optimizer_max_in_cpu);
		count_field(gen, "optimizer_threads", config->optimizer_threads);
	}
	yajl_gen_map_close(gen);
	yajl_gen_map_close(gen);
}

static void put_engine(yajl_gen gen, const struct bench_result *result)
{
	const struct nvs_aio_stats *aio = result->measured ? &result->aio : &result->engine.aio;

	open_map(gen, "engine");
	text_field(gen, "ioengine", aio->ioengine);
	text_field(gen, "reason", aio->ioengine_reason);
	bool_field(gen, "direct", result->engine.direct);
	bool_field(gen, "fixed_buffers", aio->fixed_buffers);
	bool_field(gen, "fixed_files", aio->fixed_files);
	bool_field(gen, "single_issuer", aio->single_issuer);
	bool_field(gen, "defer_taskrun", aio->defer_taskrun);
	count_field(gen, "workers", aio->workers);
	count_field(gen, "inflight_max", aio->inflight_max);
	count_field(gen, "submit_calls", aio->submit_calls);
	count_field(gen, "reap_calls", aio->reap_calls);
	count_field(gen, "retries", aio->retries);
	count_field(gen, "read_bytes", aio->io[NVS_READ].bytes);
	count_field(gen, "write_bytes", aio->io[NVS_WRITE].bytes);
	count_field(gen, "registered_bytes", aio->registered_bytes);
	count_field(gen, "bounced_bytes", aio->bounced_bytes);
	yajl_gen_map_close(gen);
}

static void put_pool(yajl_gen gen, const struct bench_result *result)
{
	const struct nvs_pool_stats *pool = &result->engine.pool;

	count_field(gen, "pool_bytes", pool->bytes);
	count_field(gen, "pool_bytes_peak", result->pool_peak);
	count_field(gen, "pool_locked_bytes", pool->locked);
	count_field(gen, "pool_huge_bytes", pool->huge);
	bool_field(gen, "pool_transparent_huge", pool->transparent_huge);
	put_text(gen, "pool_numa_node");
	yajl_gen_integer(gen, pool->numa_node);
	count_field(gen, "pool_largest_free", pool->largest_free);
	count_field(gen, "bounce_bytes", result->engine.aio.bounce_bytes);
	count_field(gen, "store_bytes", result->engine.store_bytes);
}

static void put_swap(yajl_gen gen, const struct bench_report *report)
{
	const struct bench_result *result = report->result;
	const struct model *model = report->model;

	open_map(gen, "swap");
	text_field(gen, "mode", bench_rw_name(report->options->rw));
	if (model->path)
		text_field(gen, "model", model->path);
	count_field(gen, "tensors", model->n);
	count_field(gen, "bytes", model->nbytes);
	count_field(gen, "model_tensors", model->n_whole);
	count_field(gen, "model_bytes", model->nbytes_whole);
	count_field(gen, "seed", report->options->seed);
	put_pool(gen, result);
	if (result->measured) {
		count_field(gen, "transfers", result->transfers);
		count_field(gen, "evictions", result->evictions);
		count_field(gen, "pool_waits", result->pool_waits);
		real_field(gen, "cpu_ms_per_gib", cpu_ms_per_gib(result));
		real_field(gen, "cpu_ms_for_data", (double)result->data_us / 1e3);
		if (report->options->rw == RW_STEP)
			real_field(gen, "cpu_ms_for_updates", (double)result->updates_us / 1e3);
	}
	if (result->first_bytes) {
		count_field(gen, "first_swapout_bytes", result->first_bytes);
		real_field(gen, "first_swapout_bw_bytes",
			   (double)result->first_bytes / ((double)result->first_ns / 1e9));
	}
	bool_field(gen, "verify", report->options->verify);
	count_field(gen, "verified_bytes", result->verified_bytes);
	count_field(gen, "verify_errors", result->verify_errors + result->engine.verify_errors);
	yajl_gen_map_close(gen);
}

static void put_report(yajl_gen gen, const struct bench_report *report)
{
	const struct bench_result *result = report->result;

	open_map(gen, NULL);
	text_field(gen, "nvswap version", nvs_version());
	put_times(gen);
	if (report->config)
		put_global_options(gen, report);
	put_text(gen, "jobs");
	yajl_gen_array_open(gen);
	put_job(gen, report);
	yajl_gen_array_close(gen);
	if (report->config)
		put_config(gen, report);
	if (result->opened) {
		put_engine(gen, result);
		put_swap(gen, report);
	}
	yajl_gen_map_close(gen);
}

int bench_report_json(FILE *file, const struct bench_report *report)
{
	yajl_gen gen = yajl_gen_alloc(NULL);
	const unsigned char *text;
	size_t length;

	if (!gen)
		return -ENOMEM;
	yajl_gen_config(gen, yajl_gen_beautify, 1);
	yajl_gen_config(gen, yajl_gen_indent_string, "  ");
	yajl_gen_config(gen, yajl_gen_validate_utf8, 1);
	put_report(gen, report);
	if (!yajl_gen_get_buf(gen, &text, &length))
		fwrite(text, 1, length, file);
	yajl_gen_free(gen);
	return 0;
}
