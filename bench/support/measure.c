/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "measure.h"

#define PAGE 4096 /* bytes between two changed words */

struct nvs_error bench_error = {.size = sizeof(bench_error)};

void fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(EXIT_FAILURE);
}

void must(int rc, const char *what)
{
	if (rc)
		fail("%s: %s: %s", what, nvs_strerror(rc), bench_error.text);
}

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t number_argument(const char *text)
{
	char *end;
	uint64_t value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || end == text || *end || !value)
		fail("%s: not a number from 1 on", text);
	return value;
}

/* ---- Configuration ---- */

struct nvs_config *open_config(const char *path, struct nvs_trace *trace)
{
	struct nvs_config *config;

	must(nvs_config_open(&config, &bench_error), path);
	must(nvs_config_load(config, path, &bench_error), path);
	nvs_config_set_trace(config, trace);
	return config;
}

static uint64_t setting(const struct nvs_config *config, const char *key)
{
	uint64_t number;

	must(nvs_config_get_number(config, key, &number, &bench_error), key);
	return number;
}

uint64_t block_bytes(const struct nvs_config *config)
{
	return setting(config, "aio.block_size");
}

uint64_t queue_depth(const struct nvs_config *config)
{
	return setting(config, "aio.queue_depth");
}

/* ---- Tensors ---- */

static void register_tensor(struct nvs_engine *engine, const char *prefix, size_t i,
			    uint64_t nbytes, struct nvs_tensor **tensor)
{
	char name[64];
	struct nvs_tensor_spec spec = {.size = sizeof(spec),
				       .name = name,
				       .dtype = NVS_F32,
				       .numel = nbytes / sizeof(float)};

	snprintf(name, sizeof(name), "%s.%zu", prefix, i);
	must(nvs_tensor_register(engine, &spec, 1, tensor, &bench_error), name);
}

struct nvs_tensor **register_tensors(struct nvs_engine *engine, const char *prefix, size_t n,
				     uint64_t nbytes)
{
	struct nvs_tensor **tensors = calloc(n, sizeof(struct nvs_tensor *));

	if (!tensors)
		fail("no memory for %zu tensors", n);
	for (size_t i = 0; i < n; i++)
		register_tensor(engine, prefix, i, nbytes, &tensors[i]);
	return tensors;
}

void change_tensors(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n,
		    uint64_t nbytes)
{
	uint64_t pin;

	must(nvs_tensor_pin(engine, tensors, n, -1, &pin, &bench_error), "nvs_tensor_pin");
	for (size_t i = 0; i < n; i++) {
		unsigned char *data = nvs_tensor_data(tensors[i]);

		for (uint64_t at = 0; at < nbytes; at += PAGE)
			memcpy(data + at, &(uint64_t){now_ns() + at}, sizeof(uint64_t));
	}
	must(nvs_tensor_release(engine, tensors, n, pin, NVS_DIRTY, &bench_error),
	     "nvs_tensor_release");
}

void swap_out_tensors(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n)
{
	must(nvs_tensor_swap_out(engine, tensors, n, &bench_error), "nvs_tensor_swap_out");
}

void wait_for_tensors(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n)
{
	must(nvs_tensor_wait(engine, tensors, n, 0, -1, &bench_error), "nvs_tensor_wait");
}

/* ---- Samples ---- */

void samples_add(struct samples *samples, uint64_t ns)
{
	if (samples->n == samples->room) {
		samples->room = samples->room ? samples->room * 2 : 1024;
		samples->ns = realloc(samples->ns, samples->room * sizeof(*samples->ns));
		if (!samples->ns)
			fail("no memory for %zu samples", samples->room);
	}
	samples->ns[samples->n++] = ns;
}

static int by_length(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

double samples_percentile_us(struct samples *samples, double share)
{
	if (!samples->n)
		return 0;
	qsort(samples->ns, samples->n, sizeof(*samples->ns), by_length);
	return (double)samples->ns[(size_t)((double)(samples->n - 1) * share)] / 1e3;
}
