/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures how long nvs_tensor_release and nvs_tensor_swap_out of many dirty tensors take to
 * return. The calls are spans of a trace, which also has the I/Os; bench/goals.py reads the time of
 * each call's first I/O from it. The aio has the trace and the engine has none, which would record
 * each tensor of the measured call. The configuration decides whether a release starts to write:
 * with max_in_cpu 0 it does; swap_out needs a larger value. Prints JSON.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/measure.h"

#define SPANS (UINT64_C(1) << 20)

struct start {
	struct nvs_engine *engine;
	struct nvs_tensor **tensors;
	struct nvs_trace *trace;
	size_t n;
	uint64_t tensor_bytes, pin;
	bool swap_out;
};

static void fill(struct start *start, unsigned char byte)
{
	must(nvs_tensor_pin(start->engine, start->tensors, start->n, -1, &start->pin, &bench_error),
	     "nvs_tensor_pin");
	for (size_t i = 0; i < start->n; i++)
		memset(nvs_tensor_data(start->tensors[i]), byte + (int)i, start->tensor_bytes);
}

static void release(const struct start *start)
{
	must(nvs_tensor_release(start->engine, start->tensors, start->n, start->pin, NVS_DIRTY,
				&bench_error),
	     "nvs_tensor_release");
}

/* The duration of the measured call. */
static uint64_t call_ns(const struct start *start)
{
	uint64_t from, to;

	if (start->swap_out)
		release(start);
	from = now_ns();
	if (start->swap_out)
		swap_out_tensors(start->engine, start->tensors, start->n);
	else
		release(start);
	to = now_ns();
	nvs_trace_span(start->trace, "call", from, to);
	return to - from;
}

static void measure(struct start *start, uint64_t rounds, struct samples *samples)
{
	for (uint64_t round = 0; round < rounds; round++) {
		fill(start, (unsigned char)round);
		samples_add(samples, call_ns(start));
		swap_out_tensors(start->engine, start->tensors, start->n);
		wait_for_tensors(start->engine, start->tensors, start->n);
	}
}

int main(int argc, char **argv)
{
	struct start start = {0};
	struct samples samples = {0};
	struct nvs_config *config, *traced;
	struct nvs_aio *aio;
	uint64_t rounds;

	if (argc != 7)
		fail("usage: start CONFIG.json release|swap_out TENSORS TENSOR_BYTES ROUNDS "
		     "TRACE.json");
	start.swap_out = !strcmp(argv[2], "swap_out");
	start.n = number_argument(argv[3]);
	start.tensor_bytes = number_argument(argv[4]);
	rounds = number_argument(argv[5]);
	must(nvs_trace_open(&start.trace, SPANS, &bench_error), "nvs_trace_open");
	config = open_config(argv[1], NULL);
	traced = open_config(argv[1], start.trace);
	must(nvs_aio_open(&aio, traced, &bench_error), "nvs_aio_open");
	must(nvs_engine_open_on(&start.engine, aio, config, NVS_OFFLOAD_PARAM, &bench_error),
	     "nvs_engine_open_on");
	start.tensors = register_tensors(start.engine, "tensor", start.n, start.tensor_bytes);
	measure(&start, rounds, &samples);
	must(nvs_engine_close(start.engine, &bench_error), "nvs_engine_close");
	nvs_aio_close(aio);
	must(nvs_trace_write(start.trace, argv[6], NULL, &bench_error), "nvs_trace_write");
	nvs_trace_close(start.trace);
	printf("{\"rounds\": %" PRIu64 ", \"call_us\": %.1f}\n", rounds,
	       samples_percentile_us(&samples, 0.5));
	free(samples.ns);
	free(start.tensors);
	nvs_config_close(traced);
	nvs_config_close(config);
	return 0;
}
