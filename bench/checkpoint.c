/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures how fast an optimizer's state leaves its store for a checkpoint and comes back, and
 * checks that every value came back. The checkpoint is a .safetensors or .pt file. It must not
 * exist, and stays. Prints JSON.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/measure.h"

#define GROUPS	    32
#define PARTS	    3
#define FINITE_BITS 0x3fffffffu /* of a float: not negative, infinite or NaN */

/* The state that is saved, and what replaces it before it is restored. */
enum generation { SAVED = 1, REPLACED };

struct saving {
	struct nvs_optimizer *optimizer;
	const char *path;
	char names[GROUPS][16];
	uint64_t nbytes; /* of state */
};

/* ---- State: values are hashes of their place and generation ---- */

struct state {
	enum generation generation;
	_Atomic uint64_t differences;
};

static uint32_t mix(uint32_t x)
{
	x ^= x >> 16;
	x *= 0x85ebca6bu;
	x ^= x >> 13;
	x *= 0xc2b2ae35u;
	return x ^ x >> 16;
}

static uint32_t salt_of(const struct state *state, size_t group, unsigned part)
{
	return mix((uint32_t)state->generation << 16 ^ (uint32_t)group << 2 ^ part);
}

static uint32_t bits_at(uint32_t salt, uint64_t index)
{
	return mix((uint32_t)index * 0x9e3779b1u + salt) & FINITE_BITS;
}

static int fill_run(void *arg, const struct nvs_state_run *run)
{
	float *const parts[PARTS] = {run->master, run->exp_avg, run->exp_avg_sq};

	for (unsigned part = 0; part < PARTS; part++) {
		uint32_t salt = salt_of(arg, run->group, part);

		for (uint64_t i = 0; i < run->numel; i++) {
			uint32_t bits = bits_at(salt, run->offset + i);

			memcpy(&parts[part][i], &bits, sizeof(bits));
		}
	}
	return 0;
}

static int compare_run(void *arg, const struct nvs_state_run *run)
{
	const float *const parts[PARTS] = {run->master, run->exp_avg, run->exp_avg_sq};
	struct state *state = arg;
	uint64_t differences = 0;

	for (unsigned part = 0; part < PARTS; part++) {
		uint32_t salt = salt_of(state, run->group, part);

		for (uint64_t i = 0; i < run->numel; i++) {
			uint32_t bits;

			memcpy(&bits, &parts[part][i], sizeof(bits));
			differences += bits != bits_at(salt, run->offset + i);
		}
	}
	atomic_fetch_add(&state->differences, differences);
	return 0;
}

static void fill(const struct saving *saving, enum generation generation)
{
	struct state state = {.generation = generation};

	must(nvs_optimizer_import(saving->optimizer, fill_run, &state, &bench_error),
	     "nvs_optimizer_import");
}

static void compare(const struct saving *saving, enum generation generation)
{
	struct state state = {.generation = generation};

	must(nvs_optimizer_export(saving->optimizer, compare_run, &state, &bench_error),
	     "nvs_optimizer_export");
	if (state.differences)
		fail("%s: %" PRIu64 " values differ from what was saved", saving->path,
		     (uint64_t)state.differences);
}

/* ---- The checkpoint ---- */

static void save(const struct saving *saving)
{
	must(nvs_checkpoint_export_optimizer(saving->optimizer, saving->path, NULL, &bench_error),
	     "nvs_checkpoint_export_optimizer");
}

static void restore(const struct saving *saving)
{
	struct nvs_checkpoint *checkpoint;

	must(nvs_checkpoint_open(&checkpoint, saving->path, &bench_error), "nvs_checkpoint_open");
	must(nvs_checkpoint_import_optimizer(saving->optimizer, checkpoint, NULL, &bench_error),
	     "nvs_checkpoint_import_optimizer");
	nvs_checkpoint_close(checkpoint);
}

static double rate_of(const struct saving *saving, void (*move)(const struct saving *saving))
{
	uint64_t from = now_ns();

	move(saving);
	return (double)saving->nbytes / (double)(now_ns() - from);
}

static void measure(const struct saving *saving)
{
	double saved, restored;

	fill(saving, SAVED);
	saved = rate_of(saving, save);
	fill(saving, REPLACED);
	restored = rate_of(saving, restore);
	compare(saving, SAVED);
	printf("{\"state_bytes\": %" PRIu64 ", \"save_gb_s\": %.3f, \"restore_gb_s\": %.3f}\n",
	       saving->nbytes, saved, restored);
}

/* ---- The program ---- */

static void open_optimizer(struct saving *saving, const struct nvs_config *config, uint64_t numel)
{
	struct nvs_group_spec groups[GROUPS];

	for (size_t g = 0; g < GROUPS; g++) {
		snprintf(saving->names[g], sizeof(saving->names[g]), "group.%zu", g);
		groups[g] = (struct nvs_group_spec){.size = sizeof(struct nvs_group_spec),
						    .name = saving->names[g],
						    .numel = numel,
						    .dtype = NVS_BF16};
	}
	saving->nbytes = PARTS * sizeof(float) * GROUPS * numel;
	must(nvs_optimizer_open(&saving->optimizer, config, groups, GROUPS, NULL, &bench_error),
	     "nvs_optimizer_open");
}

int main(int argc, char **argv)
{
	struct saving saving = {0};
	struct nvs_config *config;
	uint64_t numel;

	if (argc != 4)
		fail("usage: checkpoint CONFIG.json FILE.safetensors|FILE.pt ELEMENTS");
	numel = number_argument(argv[3]) / GROUPS;
	if (!numel)
		fail("at least %d elements", GROUPS);
	saving.path = argv[2];
	config = open_config(argv[1], NULL);
	open_optimizer(&saving, config, numel);
	measure(&saving);
	must(nvs_optimizer_close(saving.optimizer, &bench_error), "nvs_optimizer_close");
	nvs_config_close(config);
	return 0;
}
