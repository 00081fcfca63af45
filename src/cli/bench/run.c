/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/bench/run.h"

#include <errno.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/modes/modes.h"
#include "cli/replay/replay.h"
#include "cli/stop.h"

#define TRACE_SPANS ((size_t)1 << 20)

/* `trace` may be NULL; the configuration has it too. */
static int run_mode(const struct bench_job *job, struct nvs_trace *trace, struct job_watch *watch,
		    struct bench_result *result)
{
	const struct bench_options *options = &job->options;
	const struct model *model = &job->model;

	if (is_block_mode(options->rw))
		return bench_blocks(options, job->config, job->block, result, watch);
	switch (options->rw) {
	case RW_STEP:
		return bench_step(options, job->config, model, result, watch);
	case RW_REPLAY:
		return bench_replay(job, job->config, watch, result);
	case RW_PARAMS:
		return bench_params(options, job->config, trace, model, result, watch);
	default:
		return bench_swap(options, job->config, job->block, model, result, watch);
	}
}

/* If the run fails too, its own error stays in the result, and that of the trace is printed. */
static int run_traced(const struct bench_job *job, struct job_watch *watch,
		      struct bench_result *result)
{
	const char *path = job->options.trace;
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_trace *trace;
	uint64_t dropped = 0;
	int rc = nvs_trace_open(&trace, TRACE_SPANS, &result->error), written;

	if (rc)
		return rc;
	/* Detect an unwritable file before the run. */
	rc = nvs_trace_write(trace, path, NULL, &result->error);
	if (!rc) {
		nvs_config_set_trace(job->config, trace);
		rc = run_mode(job, trace, watch, result);
		nvs_config_set_trace(job->config, NULL);
		written = nvs_trace_write(trace, path, &dropped, &error);
		if (dropped)
			say("%s lacks %llu spans: a trace has room for %zu; trace a shorter run",
			    path, (unsigned long long)dropped, TRACE_SPANS);
		if (written && rc) {
			say("%s", *error.text ? error.text : nvs_strerror(written));
		} else if (written) {
			result->error = error;
			rc = written;
		}
	}
	nvs_trace_close(trace);
	return rc;
}

void bench_run(const struct bench_job *job, struct job_watch *watch, struct bench_result *result)
{
	uint64_t started = clock_ns();
	int rc, stopped;

	result->error.size = sizeof(result->error);
	rc = job->options.trace ? run_traced(job, watch, result)
				: run_mode(job, NULL, watch, result);
	stopped = rc ? 0 : stop_signal();
	if (stopped == STOP_OTHER_FAILED) {
		rc = error_set(&result->error, -ECANCELED,
			       "ended early: another job could not begin");
	} else if (stopped) {
		result->signal = stopped;
		rc = error_set(&result->error, -EINTR, "stopped by a signal");
	}
	result->error.code = rc;
	if (rc && !*result->error.text)
		snprintf(result->error.text, sizeof(result->error.text), "%s", nvs_strerror(rc));
	result->elapsed_s = (double)(clock_ns() - started) / 1e9;
}
