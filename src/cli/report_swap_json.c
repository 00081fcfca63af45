/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What nvswap knows of a job beside what fio knows: the engine, what was swapped, and the steps.
 */
#include <math.h>

#include "json_fields.h"
#include "report_json.h"

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
void report_steps_json(yajl_gen gen, const struct report_group *group)
{
	const struct bench_result *result = &group->result;
	const struct step_figures *steps = &result->steps;

	open_map(gen, "step");
	count_field(gen, "steps", steps->steps);
	step_times(gen, result);
	count_field(gen, "first_wall_ns", steps->first.wall_ns);
	count_field(gen, "first_read_bytes", steps->first.read_bytes);
	count_field(gen, "first_written_bytes", steps->first.written_bytes);
	if (group->job->options.rw == RW_PARAMS) {
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

static void put_swap(yajl_gen gen, const struct report_group *group)
{
	const struct bench_result *result = &group->result;
	const struct model *model = &group->job->model;

	open_map(gen, "swap");
	text_field(gen, "mode", bench_rw_name(group->job->options.rw));
	if (model->path)
		text_field(gen, "model", model->path);
	count_field(gen, "tensors", model->n);
	count_field(gen, "bytes", model->nbytes);
	count_field(gen, "model_tensors", model->n_whole);
	count_field(gen, "model_bytes", model->nbytes_whole);
	count_field(gen, "seed", group->job->options.seed);
	put_pool(gen, result);
	if (result->measured) {
		count_field(gen, "transfers", result->transfers);
		count_field(gen, "evictions", result->evictions);
		count_field(gen, "pool_waits", result->pool_waits);
		real_field(gen, "cpu_ms_per_gib", cpu_ms_per_gib(result));
		real_field(gen, "cpu_ms_for_data", (double)result->data_us / 1e3);
		if (group->job->options.rw == RW_STEP)
			real_field(gen, "cpu_ms_for_updates", (double)result->updates_us / 1e3);
	}
	if (result->first_bytes) {
		count_field(gen, "first_swapout_bytes", result->first_bytes);
		real_field(gen, "first_swapout_bw_bytes",
			   (double)result->first_bytes / ((double)result->first_ns / 1e9));
	}
	bool_field(gen, "verify", group->job->options.verify);
	count_field(gen, "verified_bytes", result->verified_bytes);
	count_field(gen, "verify_errors", verify_errors(result));
	yajl_gen_map_close(gen);
}

void report_swap_json(yajl_gen gen, const struct report_group *group)
{
	put_engine(gen, &group->result);
	put_swap(gen, group);
}
