/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every mode of a benchmark has around it: signals, the trace, and a result that says why it
 * ended.
 */
#include <errno.h>
#include <stdio.h>

#include "bench_modes.h"
#include "clock.h"
#include "commands.h"
#include "stop.h"

#define TRACE_SPANS ((size_t)1 << 20)

static int run_mode(const struct bench_options *options, const struct nvs_config *config,
		    enum nvs_block block, const struct model *model, struct bench_result *result)
{
	switch (options->rw) {
	case RW_STEP:
		return bench_step(options, config, model, result);
	case RW_PARAMS:
		return bench_params(options, config, model, result);
	default:
		return bench_swap(options, config, block, model, result);
	}
}

/* An error of the run itself is the one to be reported; that of its trace is said beside it. */
static int write_trace(struct nvs_trace *trace, const char *path, int rc,
		       struct bench_result *result)
{
	struct nvs_error error = {0};
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

static int run_traced(const struct bench_options *options, const struct nvs_config *config,
		      enum nvs_block block, const struct model *model, struct bench_result *result)
{
	struct nvs_config traced = *config;
	int rc = nvs_trace_open(&traced.trace, TRACE_SPANS, &result->error);

	if (rc)
		return rc;
	/* A file that can't be written is found before the run and not after it. */
	rc = nvs_trace_write(traced.trace, options->trace, NULL, &result->error);
	if (!rc) {
		rc = run_mode(options, &traced, block, model, result);
		rc = write_trace(traced.trace, options->trace, rc, result);
	}
	nvs_trace_close(traced.trace);
	return rc;
}

int bench_run(const struct bench_options *options, const struct nvs_config *config,
	      enum nvs_block block, const struct model *model, struct bench_result *result)
{
	uint64_t started = now_ns();
	int rc;

	stop_catch_signals();
	rc = options->trace ? run_traced(options, config, block, model, result)
			    : run_mode(options, config, block, model, result);
	result->signal = stop_signal();
	if (!rc && result->signal) {
		result->error = (struct nvs_error){.text = "stopped by a signal"};
		rc = -EINTR;
	}
	result->error.code = rc;
	if (rc && !*result->error.text)
		snprintf(result->error.text, sizeof(result->error.text), "%s", nvs_strerror(rc));
	result->elapsed_s = (double)(now_ns() - started) / 1e9;
	return rc;
}
