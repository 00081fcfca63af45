/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines about a job after its rates: tensors, steps, CPU time per GiB, engine, pool and the outcome
 * of verifying. Memory is in MiB and GiB, rates are in GB/s.
 */
#include <inttypes.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/report/text.h"

const char *text_size(uint64_t nbytes, char text[SIZE_TEXT])
{
	static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
	double value = (double)nbytes;
	unsigned unit = 0;

	for (; value >= 1024 && unit < 4; unit++)
		value /= 1024;
	snprintf(text, SIZE_TEXT, "%.*f %s", unit ? 1 : 0, value,
		 nbytes == 1 ? "byte" : units[unit]);
	return text;
}

void text_label(FILE *file, const char *name)
{
	fprintf(file, "  %-13s: ", name);
}

void text_sublabel(FILE *file, const char *name)
{
	fprintf(file, "     %-10s: ", name);
}

static const char *pass_name(const struct report_group *group)
{
	unsigned rw = group->job->options.rw;

	return rw == RW_STEP || rw == RW_PARAMS ? "step" : "loop";
}

static void print_model(FILE *file, const struct model *model)
{
	char text[SIZE_TEXT];

	if (model->path) {
		print_visible(file, model->path);
		fputs(", ", file);
	}
	fprintf(file, "%zu %stensor%s, ", model->n, model->path ? "" : "made-up ",
		plural(model->n));
	fputs(text_size(model->nbytes, text), file);
	if (model->n < model->n_whole)
		fprintf(file, " (of %zu, %s)", model->n_whole,
			text_size(model->nbytes_whole, text));
}

static void print_load(FILE *file, const struct report_group *group)
{
	const struct bench_options *options = &group->job->options;
	char text[SIZE_TEXT];

	text_label(file, "load");
	if (is_block_mode(options->rw))
		fprintf(file, "a file of %s", text_size(options->size, text));
	else
		print_model(file, &group->job->model);
	if (group->njobs > 1)
		fprintf(file, ", in each of %u jobs", group->njobs);
	if (options->time_based)
		fprintf(file, ", for %.3g s", (double)options->runtime_ms / 1e3);
	else
		fprintf(file, ", %" PRIu64 " %s%s", options->loops, pass_name(group),
			plural(options->loops));
	if (options->runtime_ms && !options->time_based)
		fprintf(file, ", for %.3g s at most", (double)options->runtime_ms / 1e3);
	fprintf(file, ", seed %" PRIu64 "\n", options->seed);
}

static void print_replay(FILE *file, const struct report_group *group)
{
	const struct replay_figures *replay = &group->result.replay;
	char in[SIZE_TEXT], out[SIZE_TEXT];

	if (replay->recorded_ns) {
		text_sublabel(file, "recorded");
		fprintf(file, "%.3f s, %.3f s of it waiting for the drive; %s read, %s written\n",
			(double)replay->recorded_ns / 1e9, (double)replay->recorded_stall_ns / 1e9,
			text_size(replay->recorded_bytes[NVS_READ], in),
			text_size(replay->recorded_bytes[NVS_WRITE], out));
	}
	text_sublabel(file, "replayed");
	fprintf(file, "%.3f s, %.3f s of it waiting for the drive; %s read, %s written; %s\n",
		(double)group->result.window_ns / 1e9, (double)replay->stall_ns / 1e9,
		text_size(group->result.bytes[NVS_READ], in),
		text_size(group->result.bytes[NVS_WRITE], out),
		group->job->options.pace == PACE_MAX ? "as fast as possible"
						     : "computing as recorded");
}

static void print_work(FILE *file, const struct report_group *group)
{
	const struct bench_result *result = &group->result;

	if (result->first_bytes) {
		text_label(file, "first out");
		fprintf(file, "%.3f GB/s, before the measuring and with making the data\n",
			result->first_ns ? (double)result->first_bytes / (double)result->first_ns
					 : 0);
	}
	text_label(file, "cpu per GiB");
	fprintf(file, "%.1f ms (user %.0f ms, system %.0f ms, in %.2f s", cpu_ms_per_gib(result),
		(double)result->user_us / 1e3, (double)result->system_us / 1e3,
		(double)group->run_ns / 1e9);
	if (result->data_us)
		fprintf(file,
			"; less %.0f ms to make and compare the data, which the rates include",
			(double)result->data_us / 1e3);
	if (group->job->options.rw == RW_STEP)
		fprintf(file, "; less %.0f ms for updates and norm",
			(double)result->updates_us / 1e3);
	fputs(")\n", file);
}

/* ---- Steps */

static void print_step_times(FILE *file, const struct bench_result *result)
{
	const struct step_figures *steps = &result->steps;
	const struct nvs_step_io *sum = &steps->sum;

	text_label(file, "step time");
	fprintf(file, "%.1f ms (%.1f to %.1f, of %" PRIu64 "): compute %.1f ms, I/O %.1f ms, ",
		per_step(result, sum->wall_ns) / 1e6, (double)steps->wall_min_ns / 1e6,
		(double)steps->wall_max_ns / 1e6, steps->steps,
		per_step(result, sum->compute_ns) / 1e6, per_step(result, sum->io_ns) / 1e6);
	if (steps_note(result))
		fprintf(file, "nothing to hide\n%15snote: %s\n", "", steps_note(result));
	else
		fprintf(file, "hidden %.1f ms, %.0f %% of the shorter\n",
			per_step(result, sum->hidden_ns) / 1e6, 100 * hidden_share(result));
}

/* Means per step. */
static void print_step_moves(FILE *file, const struct report_group *group)
{
	const struct bench_result *result = &group->result;
	const struct nvs_step_io *sum = &result->steps.sum;
	char in[SIZE_TEXT], out[SIZE_TEXT];

	text_sublabel(file, "moved");
	fprintf(file, "%s read, %s written",
		text_size((uint64_t)per_step(result, sum->read_bytes), in),
		text_size((uint64_t)per_step(result, sum->written_bytes), out));
	fprintf(file, "; %.1f of %.1f %s found in memory; %.1f stalls, %.1f ms\n",
		per_step(result, sum->hits), per_step(result, sum->hits + sum->misses),
		group->job->options.rw == RW_STEP ? "tiles" : "tensors",
		per_step(result, sum->stalls), per_step(result, sum->stall_ns) / 1e6);
	text_sublabel(file, "first");
	fprintf(file, "not measured: %.1f ms, %s read, %s written\n",
		(double)result->steps.first.wall_ns / 1e6,
		text_size(result->steps.first.read_bytes, in),
		text_size(result->steps.first.written_bytes, out));
}

static void print_gradients(FILE *file, const struct report_group *group)
{
	double clipping = setting_real(group->job->config, "gradient_clipping");
	bool fp16 = setting_number(group->job->config, "fp16.enabled");
	const struct step_figures *steps = &group->result.steps;

	if (!(clipping > 0 || fp16))
		return;
	text_label(file, "gradient");
	if (steps->norm >= 0)
		fprintf(file, "norm %.4g, ", steps->norm);
	if (clipping > 0)
		fprintf(file, "clipped to %.4g by %.4g, ", clipping, steps->clip);
	if (fp16)
		fprintf(file, "loss scale %.9g, ", steps->loss_scale);
	fputs("in the last step\n", file);
}

static void print_updates(FILE *file, const struct report_group *group)
{
	const struct step_figures *steps = &group->result.steps;

	text_label(file, "updates");
	fprintf(file,
		"%" PRIu64 " element%s in %" PRIu64 " group%s, %s on %u thread%s, "
		"%.1f ms of processor time with the norm\n",
		steps->elements, plural(steps->elements), steps->groups, plural(steps->groups),
		steps->kernel ? steps->kernel : "no kernel", steps->threads, plural(steps->threads),
		per_step(&group->result, steps->updates_ns) / 1e6);
	if (steps->skipped) {
		text_sublabel(file, "skipped");
		fprintf(file, "%" PRIu64 " step%s: gradients overflowed\n", steps->skipped,
			plural(steps->skipped));
	}
	print_gradients(file, group);
}

static void print_steps(FILE *file, const struct report_group *group)
{
	char text[SIZE_TEXT];
	const struct step_figures *steps = &group->result.steps;

	print_step_times(file, &group->result);
	print_step_moves(file, group);
	if (group->job->options.rw == RW_STEP) {
		print_updates(file, group);
	} else {
		text_label(file, "layers");
		fprintf(file,
			"%" PRIu64 ", forward and backward, %" PRIu64
			" us of computing in each visit\n",
			steps->layers, group->job->options.compute_us);
	}
	text_label(file, "memory");
	fprintf(file, "%s at most:", text_size(steps->peak_bytes, text));
	fprintf(file, " pool %s,", text_size(steps->pool_rss_bytes, text));
	if (steps->host_bytes)
		fprintf(file, " state in memory %s,", text_size(steps->host_bytes, text));
	fprintf(file, " the caller's own %s,", text_size(steps->own_bytes, text));
	fprintf(file, " the rest %s\n", text_size(peak_rest(steps), text));
	if (steps->store_bytes) {
		text_sublabel(file, "store");
		fprintf(file, "%s of memory beside these: device \"cpu\"\n",
			text_size(steps->store_bytes, text));
	}
}

/* ---- Engine and pool */

static void print_engine(FILE *file, const struct report_group *group)
{
	const struct nvs_aio_stats *aio = &group->result.engine.aio;
	const struct bench_job *job = group->job;
	enum nvs_device device = setting_device(job->config, job->block);
	char text[SIZE_TEXT];

	text_label(file, "engine");
	fprintf(file, "%s, %u worker%s x depth %" PRIu64 ", blocks of ", aio->ioengine,
		aio->workers, plural(aio->workers), job_queue_depth(job));
	fprintf(file, "%s%s%s", text_size(job_block_size(job), text),
		aio->fixed_buffers ? ", fixed buffers" : "",
		aio->fixed_files ? ", fixed files" : "");
	fputs(device == NVS_DEVICE_CPU	    ? ", in host memory\n"
	      : group->result.engine.direct ? ", direct\n"
					    : ", buffered: the file system has no O_DIRECT\n",
	      file);
	if (*aio->ioengine_reason) {
		text_sublabel(file, "reason");
		fprintf(file, "%s\n", aio->ioengine_reason);
	}
}

static void print_pool(FILE *file, const struct bench_result *result)
{
	const struct nvs_pool_stats *pool = &result->engine.pool;
	const struct nvs_aio_stats *aio = &result->engine.aio;
	char bytes[SIZE_TEXT], peak[SIZE_TEXT], locked[SIZE_TEXT];

	text_label(file, "pool");
	fprintf(file, "%s, at most %s used (%.0f %%), %s locked, %s huge pages\n",
		text_size(pool->bytes, bytes), text_size(result->pool_peak, peak),
		pool->bytes ? 100.0 * (double)result->pool_peak / (double)pool->bytes : 0,
		text_size(pool->locked, locked),
		pool->huge		 ? "explicit"
		: pool->transparent_huge ? "transparent"
					 : "no");
	if (aio->fixed_buffers || *aio->buffers_reason) {
		text_sublabel(file, "registered");
		fprintf(file, "%s with the rings%s%s\n", text_size(aio->registered_bytes, bytes),
			*aio->buffers_reason ? "; " : "", aio->buffers_reason);
	}
	text_label(file, "bounce");
	fprintf(file, "%s set aside, %s went through it\n", text_size(aio->bounce_bytes, bytes),
		text_size(aio->bounced_bytes, peak));
}

/* ---- Verify */

/* Not everything was compared: say what was. */
static void print_open_verify(FILE *file, const struct report_group *group)
{
	const struct bench_result *result = &group->result;
	char text[SIZE_TEXT];

	if (!result->verified_bytes)
		fputs("nothing was compared", file);
	else if (group->compared < group->asked_verify && !result->error.code)
		fprintf(file, "nothing was compared in %u of %u jobs",
			group->asked_verify - group->compared, group->asked_verify);
	else
		fprintf(file, "%s compared, every byte equal so far",
			text_size(result->verified_bytes, text));
	if (result->error.code) {
		fputs("; the run failed: ", file);
		print_visible(file, result->error.text);
	}
}

static void print_equal(FILE *file, const struct report_group *group)
{
	const struct bench_result *result = &group->result;
	char text[SIZE_TEXT];

	fprintf(file, "%s compared, every byte equal", text_size(result->verified_bytes, text));
	if (group->asked_verify < group->njobs)
		fprintf(file, " in %u job%s; not asked for in the other %u", group->asked_verify,
			plural(group->asked_verify), group->njobs - group->asked_verify);
}

static void print_verify(FILE *file, const struct report_group *group)
{
	const struct bench_result *result = &group->result;

	text_label(file, "verify");
	if (!group->asked_verify)
		fputs("not asked for (--verify)", file);
	else if (verify_errors(result))
		fprintf(file, "%" PRIu64 " tensor%s DIFFER%s", verify_errors(result),
			plural(verify_errors(result)), verify_errors(result) == 1 ? "S" : "");
	else if (result->error.code || group->compared < group->asked_verify)
		print_open_verify(file, group);
	else
		print_equal(file, group);
	fputc('\n', file);
}

void report_swap_text(FILE *file, const struct report_group *group)
{
	print_load(file, group);
	if (group->job->accesses && group->result.measured)
		print_replay(file, group);
	if (group_has_steps(group))
		print_steps(file, group);
	print_work(file, group);
	if (group->result.opened)
		print_engine(file, group);
	if (group->result.engine.pool.bytes)
		print_pool(file, &group->result);
	if (!is_block_mode(group->job->options.rw))
		if (group->job->options.rw != RW_STEP)
			print_verify(file, group);
}
