/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The result as a short table. Rates are in GB/s, of 10^9 bytes, as drives have them; memory is in
 * MiB and GiB.
 */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "bench_report.h"

static const char *memory(uint64_t nbytes, char buffer[32])
{
	static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
	double value = (double)nbytes;
	unsigned unit = 0;

	for (; value >= 1024 && unit < 4; unit++)
		value /= 1024;
	snprintf(buffer, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
	return buffer;
}

static const char *duration(uint64_t ns, char buffer[32])
{
	if (ns < 10000000)
		snprintf(buffer, 32, "%.0f us", (double)ns / 1e3);
	else
		snprintf(buffer, 32, "%.1f ms", (double)ns / 1e6);
	return buffer;
}

static double rate(uint64_t nbytes, uint64_t ns)
{
	return ns ? (double)nbytes / (double)ns : 0;
}

static void print_head(FILE *file, const struct bench_report *report)
{
	const struct bench_options *options = report->options;
	const struct model *model = report->model;
	char whole[32], part[32];

	fprintf(file, "%s of %s: %zu tensors, %s", bench_rw_name(options->rw),
		model->path ? model->path : "made-up tensors", model->n,
		memory(model->nbytes, part));
	if (model->n < model->n_whole)
		fprintf(file, " (of %zu, %s)", model->n_whole, memory(model->nbytes_whole, whole));
	if (options->runtime_ms)
		fprintf(file, ", for %.3g s", (double)options->runtime_ms / 1e3);
	else
		fprintf(file, ", %" PRIu64 " %s%s", options->loops,
			has_steps(report) ? "step" : "loop", options->loops == 1 ? "" : "s");
	fprintf(file, ", seed %" PRIu64 "\n\n", options->seed);
}

static uint64_t latency(const struct bench_result *result, int direction, double percentile)
{
	static const double percentiles[NPERCENTILES] = PERCENTILES;
	unsigned i = 0;

	while (i < NPERCENTILES - 1 && percentiles[i] < percentile)
		i++;
	return result->latency_ns[direction][i];
}

static void print_directions(FILE *file, const struct bench_result *result)
{
	static const int order[] = {NVS_WRITE, NVS_READ};
	static const double shown[] = {50, 95, 99, 99.9};
	char text[32];

	fprintf(file, "%8s %8s %8s %11s %9s  %10s %10s %10s %10s %10s\n", "", "GB/s", "GiB/s",
		"moved", "I/Os", "p50", "p95", "p99", "p99.9", "max");
	for (unsigned i = 0; i < 2; i++) {
		int d = order[i];
		const struct nvs_io_stats *io = &result->aio.io[d];
		double gbs = rate(result->bytes[d], result->window_ns);

		if (!result->bytes[d])
			continue;
		fprintf(file, "%8s %8.3f %8.3f %11s %9" PRIu64 " ", d == NVS_WRITE ? "out" : "in",
			gbs, gbs * 1e9 / (1u << 30), memory(result->bytes[d], text), io->ios);
		for (unsigned p = 0; p < sizeof(shown) / sizeof(*shown); p++)
			fprintf(file, " %10s", duration(latency(result, d, shown[p]), text));
		fprintf(file, " %10s\n", duration(io->latency_max_ns, text));
	}
	fputc('\n', file);
}

static void print_work(FILE *file, const struct bench_report *report)
{
	const struct bench_result *result = report->result;

	if (result->first_bytes)
		fprintf(file,
			"first    %.3f GB/s out, before the measuring and with making the "
			"data\n",
			rate(result->first_bytes, result->first_ns));
	fprintf(file, "CPU      %.1f ms per GiB (user %.0f ms, system %.0f ms, in %.2f s",
		cpu_ms_per_gib(result), (double)result->user_us / 1e3,
		(double)result->system_us / 1e3, (double)result->window_ns / 1e9);
	if (result->data_us)
		fprintf(file,
			"; less %.0f ms to make and compare the data, which the rates include",
			(double)result->data_us / 1e3);
	if (report->options->rw == RW_STEP)
		fprintf(file, "; less %.0f ms for updates and norm",
			(double)result->updates_us / 1e3);
	fputs(")\n", file);
}

static void print_step_times(FILE *file, const struct bench_result *result)
{
	const struct step_figures *steps = &result->steps;
	const struct nvs_step_io *sum = &steps->sum;

	fprintf(file,
		"step     %.1f ms (%.1f to %.1f, of %" PRIu64 "): compute %.1f ms, I/O %.1f ms, "
		"hidden %.1f ms, %.0f %% of the shorter\n",
		per_step(result, sum->wall_ns) / 1e6, (double)steps->wall_min_ns / 1e6,
		(double)steps->wall_max_ns / 1e6, steps->steps,
		per_step(result, sum->compute_ns) / 1e6, per_step(result, sum->io_ns) / 1e6,
		per_step(result, sum->hidden_ns) / 1e6, 100 * hidden_share(result));
}

/* What one step moved, found in memory, and waited for. */
static void print_step_moves(FILE *file, const struct bench_report *report)
{
	const struct bench_result *result = report->result;
	const struct nvs_step_io *sum = &result->steps.sum;
	bool optimizer = report->options->rw == RW_STEP;
	char in[32], out[32];

	fprintf(file, "         %s read, %s written",
		memory((uint64_t)per_step(result, sum->read_bytes), in),
		memory((uint64_t)per_step(result, sum->written_bytes), out));
	fprintf(file, "; %.1f of %.1f %s found in memory; %.1f stalls, %.1f ms\n",
		per_step(result, sum->hits), per_step(result, sum->hits + sum->misses),
		optimizer ? "tiles" : "tensors", per_step(result, sum->stalls),
		per_step(result, sum->stall_ns) / 1e6);
	fprintf(file, "         the first, not measured: %.1f ms, %s read, %s written\n",
		(double)result->steps.first.wall_ns / 1e6,
		memory(result->steps.first.read_bytes, in),
		memory(result->steps.first.written_bytes, out));
}

static void print_gradients(FILE *file, const struct bench_report *report)
{
	const struct nvs_config *config = report->config;
	const struct step_figures *steps = &report->result->steps;

	if (report->options->rw != RW_STEP ||
	    !(config->gradient_clipping > 0 || config->fp16.enabled))
		return;
	fputs("gradient", file);
	if (steps->norm >= 0)
		fprintf(file, " norm %.4g,", steps->norm);
	if (config->gradient_clipping > 0)
		fprintf(file, " clipped to %.4g by %.4g,", config->gradient_clipping, steps->clip);
	if (config->fp16.enabled)
		fprintf(file, " loss scale %.9g,", steps->loss_scale);
	fputs(" in the last step\n", file);
}

static void print_step_memory(FILE *file, const struct step_figures *steps)
{
	char text[32];

	fprintf(file, "memory   %s at most:", memory(steps->peak_bytes, text));
	fprintf(file, " pool %s,", memory(steps->pool_rss_bytes, text));
	if (steps->host_bytes)
		fprintf(file, " state in memory %s,", memory(steps->host_bytes, text));
	fprintf(file, " the caller's own %s,", memory(steps->own_bytes, text));
	fprintf(file, " the rest %s\n", memory(peak_rest(steps), text));
	if (steps->store_bytes)
		fprintf(file, "         and beside these the store, %s of memory: device \"cpu\"\n",
			memory(steps->store_bytes, text));
}

static void print_steps(FILE *file, const struct bench_report *report)
{
	const struct bench_result *result = report->result;
	const struct step_figures *steps = &result->steps;

	print_step_times(file, result);
	print_step_moves(file, report);
	if (report->options->rw == RW_PARAMS)
		fprintf(file,
			"layers   %" PRIu64 ", forward and backward, %" PRIu64
			" us of computing in each visit\n",
			steps->layers, report->options->compute_us);
	else
		fprintf(file,
			"updates  %" PRIu64 " elements in %" PRIu64 " groups, %s on %u thread%s, "
			"%.1f ms of processor time with the norm\n",
			steps->elements, steps->groups, steps->kernel ? steps->kernel : "no kernel",
			steps->threads, steps->threads == 1 ? "" : "s",
			per_step(result, steps->updates_ns) / 1e6);
	if (steps->skipped)
		fprintf(file, "         %" PRIu64 " steps were skipped: gradients overflowed\n",
			steps->skipped);
	print_gradients(file, report);
	print_step_memory(file, steps);
}

static void print_engine(FILE *file, const struct bench_report *report)
{
	const struct bench_result *result = report->result;
	const struct nvs_aio_stats *aio = &result->engine.aio;
	const struct nvs_aio_config *config = &report->config->aio;
	char text[32];

	fprintf(file, "engine   %s, %u worker%s x depth %u, blocks of %s%s%s%s", aio->ioengine,
		aio->workers, aio->workers == 1 ? "" : "s", config->queue_depth,
		memory(config->block_size, text), aio->fixed_buffers ? ", fixed buffers" : "",
		aio->fixed_files ? ", fixed files" : "",
		result->engine.direct ? ", direct" : ", buffered: the file system has no O_DIRECT");
	if (*aio->ioengine_reason)
		fprintf(file, "\n         (%s)", aio->ioengine_reason);
	fputc('\n', file);
}

static void print_memory(FILE *file, const struct bench_result *result)
{
	const struct nvs_pool_stats *pool = &result->engine.pool;
	const struct nvs_aio_stats *aio = &result->engine.aio;
	char bytes[32], peak[32], locked[32], registered[32], bounce[32], bounced[32];

	fprintf(file, "pool     %s, at most %s used (%.0f %%), %s locked, %s huge pages\n",
		memory(pool->bytes, bytes), memory(result->pool_peak, peak),
		pool->bytes ? 100.0 * (double)result->pool_peak / (double)pool->bytes : 0,
		memory(pool->locked, locked),
		pool->huge		 ? "explicit"
		: pool->transparent_huge ? "transparent"
					 : "no");
	if (aio->fixed_buffers)
		fprintf(file, "         %s registered with the rings\n",
			memory(aio->registered_bytes, registered));
	fprintf(file, "bounce   %s set aside, %s went through it\n",
		memory(aio->bounce_bytes, bounce), memory(aio->bounced_bytes, bounced));
}

/* What is not known to be right is not called so. */
static void print_verify_failed(FILE *file, const struct bench_report *report)
{
	const struct bench_result *result = report->result;
	char text[32];

	if (!result->verified_bytes)
		fputs("verify   nothing was compared", file);
	else if (report->options->rw == RW_STEP)
		fprintf(file, "verify   only %" PRIu64 " of %" PRIu64 " elements were compared",
			result->steps.compared, result->steps.elements);
	else
		fprintf(file, "verify   %s compared, every byte equal so far",
			memory(result->verified_bytes, text));
	if (result->error.code)
		fprintf(file, "; the run failed: %s", result->error.text);
	fputc('\n', file);
}

static void print_verify(FILE *file, const struct bench_report *report)
{
	const struct bench_result *result = report->result;
	char text[32];

	if (!report->options->verify)
		fputs("verify   not asked for (--verify)\n", file);
	else if (result->verify_errors + result->engine.verify_errors)
		fprintf(file, "verify   %" PRIu64 " %s DIFFER\n",
			result->verify_errors + result->engine.verify_errors,
			report->options->rw == RW_STEP ? "values" : "tensors");
	else if (result->error.code || !result->verified_bytes)
		print_verify_failed(file, report);
	else if (report->options->rw == RW_STEP)
		fprintf(file,
			"verify   %" PRIu64 " of %" PRIu64
			" elements compared with a scalar Adam in double: "
			"weights and moments are within the rounding of fp32\n",
			result->steps.compared, result->steps.elements);
	else
		fprintf(file, "verify   %s compared, every byte equal\n",
			memory(result->verified_bytes, text));
}

void bench_report_text(FILE *file, const struct bench_report *report)
{
	const struct bench_result *result = report->result;

	assert(result->measured && result->opened);
	print_head(file, report);
	print_directions(file, result);
	if (has_steps(report))
		print_steps(file, report);
	print_work(file, report);
	print_engine(file, report);
	print_memory(file, result);
	print_verify(file, report);
}
