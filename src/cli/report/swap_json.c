/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Figures of a job that fio does not have: the engine, the swapped tensors, the steps.
 */
#include <math.h>

#include "base/json/write.h"
#include "cli/report/json.h"

/* Times, bytes and counts are means per measured step. */
void report_steps_json(struct json_writer *json, const struct report_group *group)
{
	const struct bench_result *result = &group->result;
	const struct step_figures *steps = &result->steps;
	const struct nvs_step_io *sum = &steps->sum;

	json_open_object(json, "step");
	json_count(json, "steps", steps->steps);
	json_count(json, "wall_min_ns", steps->wall_min_ns);
	json_count(json, "wall_mean_ns", (uint64_t)per_step(result, sum->wall_ns));
	json_count(json, "wall_max_ns", steps->wall_max_ns);
	json_count(json, "compute_ns", (uint64_t)per_step(result, sum->compute_ns));
	json_count(json, "io_ns", (uint64_t)per_step(result, sum->io_ns));
	json_count(json, "hidden_ns", (uint64_t)per_step(result, sum->hidden_ns));
	json_exact(json, "hidden_share", steps_note(result) ? NAN : hidden_share(result));
	if (steps_note(result))
		json_text(json, "note", steps_note(result));
	json_count(json, "stall_ns", (uint64_t)per_step(result, sum->stall_ns));
	json_count(json, "read_bytes", (uint64_t)per_step(result, sum->read_bytes));
	json_count(json, "written_bytes", (uint64_t)per_step(result, sum->written_bytes));
	json_real(json, "stalls", per_step(result, sum->stalls));
	json_real(json, "hits", per_step(result, sum->hits));
	json_real(json, "misses", per_step(result, sum->misses));
	json_count(json, "first_wall_ns", steps->first.wall_ns);
	json_count(json, "first_read_bytes", steps->first.read_bytes);
	json_count(json, "first_written_bytes", steps->first.written_bytes);
	if (group->job->options.rw == RW_PARAMS) {
		json_count(json, "layers", steps->layers);
	} else {
		json_count(json, "skipped", steps->skipped);
		json_count(json, "elements", steps->elements);
		json_count(json, "groups", steps->groups);
		json_real(json, "tiles", per_step(result, steps->tiles));
		json_count(json, "update_cpu_ns", (uint64_t)per_step(result, steps->updates_ns));
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
	json_count(json, "memory_rest_bytes", peak_rest(steps));
	json_count(json, "memory_store_bytes", steps->store_bytes);
	json_close_object(json);
}

static void put_engine(struct json_writer *json, const struct bench_result *result)
{
	const struct nvs_aio_stats *aio = result->measured ? &result->aio : &result->engine.aio;

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
	json_count(json, "registered_bytes", aio->registered_bytes);
	json_count(json, "bounced_bytes", aio->bounced_bytes);
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
	json_signed(json, "pool_numa_node", pool->numa_node);
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
	json_count(json, "verify_errors", verify_errors(result));
	json_close_object(json);
}

static void put_replay(struct json_writer *json, const struct report_group *group)
{
	const struct replay_figures *replay = &group->result.replay;

	json_open_object(json, "replay");
	json_text(json, "pace", group->job->options.pace == PACE_MAX ? "max" : "recorded");
	json_count(json, "calls", replay->calls);
	json_count(json, "recorded_ns", replay->recorded_ns);
	json_count(json, "recorded_stall_ns", replay->recorded_stall_ns);
	json_count(json, "recorded_read_bytes", replay->recorded_bytes[NVS_READ]);
	json_count(json, "recorded_write_bytes", replay->recorded_bytes[NVS_WRITE]);
	json_count(json, "replayed_ns", group->result.window_ns);
	json_count(json, "replayed_stall_ns", replay->stall_ns);
	json_count(json, "replayed_read_bytes", group->result.bytes[NVS_READ]);
	json_count(json, "replayed_write_bytes", group->result.bytes[NVS_WRITE]);
	json_close_object(json);
}

void report_swap_json(struct json_writer *json, const struct report_group *group)
{
	put_engine(json, &group->result);
	put_swap(json, group);
	if (group->job->accesses)
		put_replay(json, group);
}
