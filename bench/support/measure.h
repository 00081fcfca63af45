/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the programs that measure nvswap: configuration, errors, the clock, samples. Every
 * failure ends the program with a message.
 */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <stddef.h>
#include <stdint.h>

#include "nvswap.h"

#define MIB	 (UINT64_C(1) << 20)
#define GIB	 (UINT64_C(1) << 30)
#define NS_PER_S UINT64_C(1000000000)

/* The library's error, printed by must(). */
extern struct nvs_error bench_error;

_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Fails with `what` and the text of bench_error unless rc is 0. */
void must(int rc, const char *what);
uint64_t now_ns(void);
/* Parses a number of at least 1 from the command line. */
uint64_t number_argument(const char *text);

/* Opens a DeepSpeed JSON file. The engine or optimizer records in `trace`, which may be NULL. */
struct nvs_config *open_config(const char *path, struct nvs_trace *trace);
uint64_t block_bytes(const struct nvs_config *config);
uint64_t queue_depth(const struct nvs_config *config);

/* Registers `n` fp32 tensors of `nbytes` each, named PREFIX.0 and so on; free() the array. */
struct nvs_tensor **register_tensors(struct nvs_engine *engine, const char *prefix, size_t n,
				     uint64_t nbytes);
/* Pins the tensors, changes a word in each page, and releases them dirty. */
void change_tensors(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n,
		    uint64_t nbytes);
/* Starts to write the tensors out. */
void swap_out_tensors(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n);
/* Waits for transfers of tensors that are not pinned. */
void wait_for_tensors(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n);

/* Durations of calls or I/Os. */
struct samples {
	uint64_t *ns;
	size_t n, room;
};
void samples_add(struct samples *samples, uint64_t ns);
/* Sorts the samples. `share` is 0.5 for the median. Returns 0 without samples. */
double samples_percentile_us(struct samples *samples, double share);

#endif
