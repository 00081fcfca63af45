/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a job in its mode, with a trace if one is asked for, and a result that says why it ended.
 */
#include <errno.h>
#include <stdio.h>

#include "base/clock.h"
#include "cli/bench/run.h"
#include "cli/commands.h"
#include "cli/modes/modes.h"
#include "cli/replay/replay.h"
#include "cli/stop.h"

#define TRACE_SPANS ((size_t)1 << 20)

/* `trace` may be NULL; the configuration has it too. */
static int run_mode(const struct bench_job *job, const struct nvs_config *config,
		    struct nvs_trace *trace, struct job_watch *watch, struct bench_result *result)
{
	const struct bench_options *options = &job->options;
	const struct model *model = &job->model;

	if (is_block_mode(options->rw))
		return bench_blocks(options, config, job->block, result, watch);
	switch (options->rw) {
	case RW_STEP:
		return bench_step(options, config, model, result, watch);
	case RW_REPLAY:
		return bench_replay(job, config, watch, result);
	case RW_PARAMS:
		return bench_params(options, config, trace, model, result, watch);
	default:
		return bench_swap(options, config, job->block, model, result, watch);
	}
}

/* The run's own error stays in the result; a failure to write the trace is reported separately. */
static int write_trace(struct nvs_trace *trace, const char *path, int rc,
		       struct bench_result *result)
{
	struct nvs_error error = {.size = sizeof(error)};
	uint64_t dropped = 0;
	int written = nvs_trace_write(trace, path, &dropped, &error);

	if (dropped)
		say("%s lacks %llu spans: a trace has room for %zu; trace a shorter run", path,
		    (unsigned long long)dropped, TRACE_SPANS);
	if (written && rc)
		say("%s", *error.text ? error.text : nvs_strerror(written));
	if (rc || !written)
		return rc;
	result->error = error;
	return written;
}

static int run_traced(const struct bench_job *job, struct job_watch *watch,
		      struct bench_result *result)
{
	const char *path = job->options.trace;
	struct nvs_trace *trace;
	int rc = nvs_trace_open(&trace, TRACE_SPANS, &result->error);

	if (rc)
		return rc;
	/* Detect an unwritable file before the run. */
	rc = nvs_trace_write(trace, path, NULL, &result->error);
	if (!rc) {
		nvs_config_set_trace(job->config, trace);
		rc = run_mode(job, job->config, trace, watch, result);
		nvs_config_set_trace(job->config, NULL);
		rc = write_trace(trace, path, rc, result);
	}
	nvs_trace_close(trace);
	return rc;
}

static int ended_early(struct bench_result *result)
{
	bool signal = stop_signal() != STOP_OTHER_FAILED;

	result->signal = signal ? stop_signal() : 0;
	result->error = (struct nvs_error){.size = sizeof(result->error)};
	snprintf(result->error.text, sizeof(result->error.text), "%s",
		 signal ? "stopped by a signal" : "ended early: another job could not begin");
	return signal ? -EINTR : -ECANCELED;
}

int bench_run(const struct bench_job *job, struct job_watch *watch, struct bench_result *result)
{
	uint64_t started = clock_ns();
	int rc;

	result->error.size = sizeof(result->error);
	rc = job->options.trace ? run_traced(job, watch, result)
				: run_mode(job, job->config, NULL, watch, result);
	if (!rc && stop_signal())
		rc = ended_early(result);
	result->error.code = rc;
	if (rc && !*result->error.text)
		snprintf(result->error.text, sizeof(result->error.text), "%s", nvs_strerror(rc));
	result->elapsed_s = (double)(clock_ns() - started) / 1e9;
	return rc;
}
