/* SPDX-License-Identifier: Apache-2.0 */
/* The results of a run as text. Sizes are in MiB and GiB, rates are in GB/s. */
#include <inttypes.h>

#include "base/error.h"
#include "cli/report/report.h"
#include "cli/settings.h"

#define SIZE(nbytes)  size_text((nbytes), (char[32]){0})
#define RATE(bytes_s) rate_text((bytes_s), (char[32]){0})
#define MS(ns)	      ((double)(ns) / 1e6)

static const char *const direction_names[] = {[NVS_READ] = "read", [NVS_WRITE] = "written"};

static const char *rate_text(double bytes_per_s, char text[32])
{
	if (bytes_per_s >= 1e9)
		snprintf(text, 32, "%.2f GB/s", bytes_per_s / 1e9);
	else
		snprintf(text, 32, "%.4g MB/s", bytes_per_s / 1e6);
	return text;
}

static void print_direction(FILE *file, const struct report_group *group, enum nvs_direction d)
{
	const struct bench_result *result = &group->result;
	const struct bench_samples *bw = &result->bw_bytes[d];
	const struct nvs_latency *clat = &result->latency[d][NVS_CLAT];

	if (!result->bytes[d] && !result->aio.io[d].ios)
		return;
	fprintf(file, "  %-13s: %s, %.0f IOPS, %s in %.3f s", direction_names[d],
		RATE(group->way[d].bytes_per_s), group->way[d].iops, SIZE(result->bytes[d]),
		(double)group->way[d].runtime_ms / 1e3);
	if (bw->n > 1)
		fprintf(file, "; %s to %s in half seconds", RATE(bw->min), RATE(bw->max));
	fputc('\n', file);
	if (clat->count)
		fprintf(file,
			"     latency   : %.1f us mean, 50 %% %.1f, 99 %% %.1f, 99.9 %% %.1f, "
			"at most %.1f us\n",
			nvs_latency_mean(clat) / 1e3,
			(double)nvs_latency_percentile(clat, 50) / 1e3,
			(double)nvs_latency_percentile(clat, 99) / 1e3,
			(double)nvs_latency_percentile(clat, 99.9) / 1e3,
			(double)clat->max_ns / 1e3);
}

static void print_load(FILE *file, const struct report_group *group)
{
	const struct bench_options *options = &group->job->options;
	const struct model *model = &group->job->model;
	bool steps = options->rw == RW_STEP || options->rw == RW_PARAMS;

	fputs("  load         : ", file);
	if (is_block_mode(options->rw)) {
		fprintf(file, "a file of %s", SIZE(options->size));
	} else {
		if (model->path) {
			print_visible(file, model->path);
			fputs(", ", file);
		}
		fprintf(file, "%zu %stensor%s, %s", model->n, model->path ? "" : "made-up ",
			plural(model->n), SIZE(model->nbytes));
		if (model->n < model->n_whole)
			fprintf(file, " (of %zu, %s)", model->n_whole, SIZE(model->nbytes_whole));
	}
	if (group->njobs > 1)
		fprintf(file, ", in each of %u jobs", group->njobs);
	if (!options->time_based)
		fprintf(file, ", %" PRIu64 " %s%s", options->loops, steps ? "step" : "loop",
			plural(options->loops));
	if (options->runtime_ms)
		fprintf(file, ", for %.3g s%s", (double)options->runtime_ms / 1e3,
			options->time_based ? "" : " at most");
	fprintf(file, ", seed %" PRIu64 "\n", options->seed);
}

static void print_replay(FILE *file, const char *name, uint64_t ns, uint64_t stall_ns,
			 const uint64_t bytes[2], const char *pace)
{
	fprintf(file,
		"     %-10s: %.3f s, %.3f s of it waiting for the drive; %s read, %s written%s\n",
		name, MS(ns) / 1e3, MS(stall_ns) / 1e3, SIZE(bytes[NVS_READ]),
		SIZE(bytes[NVS_WRITE]), pace);
}

/* Times, bytes and counts are means per measured step. */
static void print_steps(FILE *file, const struct report_group *group)
{
	const struct bench_options *options = &group->job->options;
	const struct step_figures *steps = &group->result.steps;
	const struct nvs_step_io *sum = &steps->sum;
	bool updates = options->rw == RW_STEP;

	fprintf(file,
		"  step time    : %.1f ms (%.1f to %.1f, of %" PRIu64
		"): compute %.1f ms, I/O %.1f ms, ",
		MS(per_step(group, sum->wall_ns)), MS(steps->wall_min_ns), MS(steps->wall_max_ns),
		steps->steps, MS(per_step(group, sum->compute_ns)),
		MS(per_step(group, sum->io_ns)));
	if (group->no_moves)
		fprintf(file, "nothing to hide\n%15snote: %s\n", "", group->no_moves);
	else
		fprintf(file, "hidden %.1f ms, %.0f %% of the shorter\n",
			MS(per_step(group, sum->hidden_ns)), 100 * group->hidden_share);
	fprintf(file,
		"     moved     : %s read, %s written; %.1f of %.1f %s found in memory; %.1f "
		"stalls, %.1f ms\n",
		SIZE((uint64_t)per_step(group, sum->read_bytes)),
		SIZE((uint64_t)per_step(group, sum->written_bytes)), per_step(group, sum->hits),
		per_step(group, sum->hits + sum->misses), updates ? "tiles" : "tensors",
		per_step(group, sum->stalls), MS(per_step(group, sum->stall_ns)));
	if (sum->drive_written_bytes)
		fprintf(file, "     drive     : %s written to it in each step\n",
			SIZE((uint64_t)per_step(group, sum->drive_written_bytes)));
	fprintf(file, "     first     : not measured: %.1f ms, %s read, %s written\n",
		MS(steps->first.wall_ns), SIZE(steps->first.read_bytes),
		SIZE(steps->first.written_bytes));
	if (!updates)
		fprintf(file,
			"  layers       : %" PRIu64 ", forward and backward, %" PRIu64
			" us of computing in each visit\n",
			steps->layers, options->compute_us);
	else
		fprintf(file,
			"  updates      : %" PRIu64 " element%s in %" PRIu64
			" group%s, %s on %u thread%s, %.1f ms of processor time with the norm\n",
			steps->elements, plural(steps->elements), steps->groups,
			plural(steps->groups), steps->kernel ? steps->kernel : "no kernel",
			steps->threads, plural(steps->threads),
			MS(per_step(group, steps->updates_ns)));
	if (updates)
		fprintf(file, "     state     : %.4g bytes read and written per element and step\n",
			steps->state_bytes);
	if (updates && steps->skipped)
		fprintf(file, "     skipped   : %" PRIu64 " step%s: gradients overflowed\n",
			steps->skipped, plural(steps->skipped));
	fprintf(file, "  memory       : %s at most: pool %s,", SIZE(steps->peak_bytes),
		SIZE(steps->pool_rss_bytes));
	if (steps->host_bytes)
		fprintf(file, " state in memory %s,", SIZE(steps->host_bytes));
	fprintf(file, " the caller's own %s, the rest %s\n", SIZE(steps->own_bytes),
		SIZE(group->rest_bytes));
	if (steps->store_bytes)
		fprintf(file, "     store     : %s of memory beside these: device \"cpu\"\n",
			SIZE(steps->store_bytes));
}

static void print_engine(FILE *file, const struct report_group *group)
{
	const struct nvs_engine_stats *engine = &group->result.engine;
	const struct nvs_aio_stats *aio = &engine->aio;
	const struct nvs_pool_stats *pool = &engine->pool;
	const struct bench_job *job = group->job;

	fprintf(file,
		"  engine       : %s, %u worker%s x depth %" PRIu64 ", blocks of %s%s%s, %s\n",
		aio->ioengine, aio->workers, plural(aio->workers),
		setting_number(job->config, "aio.queue_depth"),
		SIZE(setting_number(job->config, "aio.block_size")),
		aio->fixed_buffers ? ", fixed buffers" : "",
		aio->fixed_files ? ", fixed files" : "",
		setting_device(job->config, job->block) == NVS_DEVICE_CPU ? "in host memory"
		: engine->direct					  ? "direct"
				 : "buffered: the file system has no O_DIRECT");
	if (*aio->ioengine_reason)
		fprintf(file, "     reason    : %s\n", aio->ioengine_reason);
	if (!pool->bytes)
		return;
	fprintf(file, "  pool         : %s, at most %s used (%.0f %%), %s locked, %s huge pages\n",
		SIZE(pool->bytes), SIZE(group->result.pool_peak),
		100.0 * (double)group->result.pool_peak / (double)pool->bytes, SIZE(pool->locked),
		pool->huge		 ? "explicit"
		: pool->transparent_huge ? "transparent"
					 : "no");
	if (aio->fixed_buffers || *aio->buffers_reason)
		fprintf(file, "     registered: %s with the rings%s%s\n",
			SIZE(aio->registered_bytes), *aio->buffers_reason ? "; " : "",
			aio->buffers_reason);
	fprintf(file, "  bounce       : %s set aside, %s went through it\n",
		SIZE(aio->bounce_bytes), SIZE(aio->bounced_bytes));
	if (engine->drive_written_bytes)
		fprintf(file, "  wear         : %s written to the drive by the whole run\n",
			SIZE(engine->drive_written_bytes));
}

/* Says what was compared where not everything was. */
static void print_verify(FILE *file, const struct report_group *group)
{
	const struct bench_result *result = &group->result;
	uint64_t errors = group->verify_errors;
	bool failed = result->error.code;
	unsigned asked = group->asked_verify, missing = asked - group->compared;

	fputs("  verify       : ", file);
	if (!asked)
		fputs("not asked for (--verify)", file);
	else if (errors)
		fprintf(file, "%" PRIu64 " tensor%s DIFFER%s", errors, plural(errors),
			errors == 1 ? "S" : "");
	else if (!result->verified_bytes)
		fputs("nothing was compared", file);
	else if (missing && !failed)
		fprintf(file, "nothing was compared in %u of %u jobs", missing, asked);
	else
		fprintf(file, "%s compared, every byte equal%s", SIZE(result->verified_bytes),
			failed ? " so far" : "");
	if (asked && !errors && failed) {
		fputs("; the run failed: ", file);
		print_visible(file, result->error.text);
	} else if (asked && !errors && !missing && asked < group->njobs) {
		fprintf(file, " in %u job%s; not asked for in the other %u", asked, plural(asked),
			group->njobs - asked);
	}
	fputc('\n', file);
}

static void print_line(FILE *file, const char *label, const char *text)
{
	if (!text)
		return;
	fprintf(file, "  %-13s: ", label);
	print_visible(file, text);
	fputc('\n', file);
}

static void print_group(FILE *file, const struct report_group *group)
{
	const struct bench_job *job = group->job;
	const struct bench_result *result = &group->result;
	const struct replay_figures *replay = &result->replay;

	print_visible(file, job->name);
	fprintf(file, ": rw=%s, group %u, %u job%s, pid %d\n", bench_rw_name(job->options.rw),
		job->groupid, group->njobs, plural(group->njobs), result->pid);
	print_line(file, "description", job->options.description);
	print_line(file, "error", result->error.code ? result->error.text : NULL);
	if (!result->measured)
		return;
	print_direction(file, group, NVS_READ);
	print_direction(file, group, NVS_WRITE);
	print_load(file, group);
	if (job->accesses && replay->recorded_ns)
		print_replay(file, "recorded", replay->recorded_ns, replay->recorded_stall_ns,
			     replay->recorded_bytes, "");
	if (job->accesses)
		print_replay(file, "replayed", result->window_ns, replay->stall_ns, result->bytes,
			     job->options.pace == PACE_MAX ? "; as fast as possible"
							   : "; computing as recorded");
	if (group->has_steps)
		print_steps(file, group);
	if (result->first_bytes)
		fprintf(file,
			"  first out    : %.3f GB/s, before the measuring and with making the "
			"data\n",
			result->first_ns ? (double)result->first_bytes / (double)result->first_ns
					 : 0);
	fprintf(file, "  cpu per GiB  : %.1f ms (user %.0f ms, system %.0f ms, in %.2f s",
		cpu_ms_per_gib(result), (double)result->user_us / 1e3,
		(double)result->system_us / 1e3, (double)group->run_ns / 1e9);
	if (result->data_us)
		fprintf(file,
			"; less %.0f ms to make and compare the data, which the rates include",
			(double)result->data_us / 1e3);
	if (group->job->options.rw == RW_STEP)
		fprintf(file, "; less %.0f ms for updates and norm",
			(double)result->updates_us / 1e3);
	fputs(")\n", file);
	if (result->opened)
		print_engine(file, group);
	if (!is_block_mode(job->options.rw) && job->options.rw != RW_STEP)
		print_verify(file, group);
}

/* After the last of several entries of a group, which ran at the same time: what all moved. */
static void print_sum(FILE *file, const struct bench_plan *plan, const struct report_group *group)
{
	const struct bench_job *job = group->job, *next = job + group->njobs;

	if (job == plan->jobs || job[-1].groupid != job->groupid ||
	    (next < plan->jobs + plan->n && next->groupid == job->groupid))
		return;
	fprintf(file, "all of group %u\n", job->groupid);
	for (int d = NVS_READ; d <= NVS_WRITE; d++)
		if (group->way[d].all_bytes)
			fprintf(file, "  %-13s: %s, %s\n", direction_names[d],
				RATE(group->way[d].all_bytes_per_s), SIZE(group->way[d].all_bytes));
}

void report_text(FILE *file, const struct bench_report *report)
{
	static struct report_group group;

	group.job = NULL;
	if (!report->status)
		fprintf(file, "nvswap %s, %u job%s\n", nvs_version(), report->plan->n,
			plural(report->plan->n));
	while (report_group_next(report, &group)) {
		print_group(file, &group);
		print_sum(file, report->plan, &group);
	}
}
