/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures swap-ins that the caller waits for: on an idle drive, and while a gigabyte of
 * write-backs is queued. Each batch has as many tensors of one block as a queue holds, so the drive
 * reads at the same depth in both cases. Prints JSON.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "support/measure.h"

#define DIRTY	    16
#define DIRTY_BYTES (64 * MIB)
#define BATCHES	    16

struct awaited {
	struct nvs_engine *engine;
	struct nvs_tensor **dirty, **read;
	size_t depth; /* tensors in a batch */
	uint64_t block;
	struct samples idle, queued;
	uint64_t write_ns, writes;
};

static void read_batch(struct awaited *awaited, size_t batch, struct samples *samples)
{
	struct nvs_tensor **tensors = awaited->read + batch * awaited->depth;
	uint64_t from = now_ns(), pin;

	must(nvs_tensor_swap_in(awaited->engine, tensors, awaited->depth, -1, &pin, &bench_error),
	     "nvs_tensor_swap_in");
	must(nvs_tensor_wait(awaited->engine, tensors, awaited->depth, pin, -1, &bench_error),
	     "nvs_tensor_wait");
	samples_add(samples, now_ns() - from);
	must(nvs_tensor_release(awaited->engine, tensors, awaited->depth, pin, NVS_CLEAN,
				&bench_error),
	     "nvs_tensor_release");
	swap_out_tensors(awaited->engine, tensors, awaited->depth);
}

static bool is_writing(const struct awaited *awaited)
{
	for (size_t i = DIRTY; i > 0; i--) {
		struct nvs_tensor_info info = {.size = sizeof(info)};

		nvs_tensor_get_info(awaited->engine, awaited->dirty[i - 1], &info);
		if (info.state == NVS_WRITING)
			return true;
	}
	return false;
}

static void measure_round(struct awaited *awaited)
{
	uint64_t from;

	change_tensors(awaited->engine, awaited->dirty, DIRTY, DIRTY_BYTES);
	for (size_t batch = 0; batch < BATCHES; batch++)
		read_batch(awaited, batch, &awaited->idle);
	from = now_ns();
	swap_out_tensors(awaited->engine, awaited->dirty, DIRTY);
	for (size_t batch = 0; batch < BATCHES && is_writing(awaited); batch++)
		read_batch(awaited, batch, &awaited->queued);
	wait_for_tensors(awaited->engine, awaited->dirty, DIRTY);
	awaited->write_ns += now_ns() - from;
	awaited->writes++;
}

static void write_what_is_read(struct awaited *awaited)
{
	size_t n = BATCHES * awaited->depth;

	awaited->read = register_tensors(awaited->engine, "read", n, awaited->block);
	for (size_t i = 0; i < n; i += awaited->depth)
		change_tensors(awaited->engine, awaited->read + i, awaited->depth, awaited->block);
	swap_out_tensors(awaited->engine, awaited->read, n);
	wait_for_tensors(awaited->engine, awaited->read, n);
}

static void print_reads(const char *name, struct samples *reads)
{
	printf("\"%s\": {\"waits\": %zu, \"p50_us\": %.1f, \"p99_us\": %.1f}, ", name, reads->n,
	       samples_percentile_us(reads, 0.5), samples_percentile_us(reads, 0.99));
}

int main(int argc, char **argv)
{
	struct awaited awaited = {0};
	struct nvs_config *config;

	if (argc != 3)
		fail("usage: awaited CONFIG.json ROUNDS");
	config = open_config(argv[1], NULL);
	must(nvs_engine_open(&awaited.engine, config, NVS_OFFLOAD_PARAM, &bench_error),
	     "nvs_engine_open");
	awaited.depth = queue_depth(config);
	awaited.block = block_bytes(config);
	awaited.dirty = register_tensors(awaited.engine, "dirty", DIRTY, DIRTY_BYTES);
	write_what_is_read(&awaited);
	for (uint64_t round = number_argument(argv[2]); round > 0; round--)
		measure_round(&awaited);
	must(nvs_engine_close(awaited.engine, &bench_error), "nvs_engine_close");
	putchar('{');
	print_reads("idle", &awaited.idle);
	print_reads("queued", &awaited.queued);
	printf("\"write_ms\": %.1f}\n", (double)awaited.write_ns / 1e6 / (double)awaited.writes);
	free(awaited.idle.ns);
	free(awaited.queued.ns);
	free(awaited.dirty);
	free(awaited.read);
	nvs_config_close(config);
	return 0;
}
