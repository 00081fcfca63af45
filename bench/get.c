/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures nvs_optimizer_get of all state in pieces of 1 MiB: the bytes read and the time. The
 * pieces come part by part (all master weights, then all exp_avg, ...), like a checkpoint, or with
 * all three parts of each range together. Prints JSON.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/measure.h"

#define GROUPS	    32
#define PARTS	    3
#define PIECE_NUMEL (MIB / sizeof(float))

struct get {
	struct nvs_optimizer *optimizer;
	uint64_t group_numel;
	float *piece;
};

static void open_optimizer(struct get *get, const struct nvs_config *config)
{
	struct nvs_group_spec groups[GROUPS];
	char names[GROUPS][16];

	for (size_t g = 0; g < GROUPS; g++) {
		snprintf(names[g], sizeof(names[g]), "group.%zu", g);
		groups[g] = (struct nvs_group_spec){.size = sizeof(struct nvs_group_spec),
						    .name = names[g],
						    .numel = get->group_numel,
						    .dtype = NVS_F32};
	}
	must(nvs_optimizer_open(&get->optimizer, config, groups, GROUPS, NULL, &bench_error),
	     "nvs_optimizer_open");
}

static uint64_t bytes_read(const struct get *get)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};

	nvs_engine_get_stats(nvs_optimizer_engine(get->optimizer), &stats);
	return stats.aio.io[NVS_READ].bytes;
}

static void get_piece(const struct get *get, size_t group, unsigned part, uint64_t offset)
{
	uint64_t left = get->group_numel - offset;

	must(nvs_optimizer_get(get->optimizer, group, (enum nvs_optimizer_part)part, offset,
			       left < PIECE_NUMEL ? left : PIECE_NUMEL, get->piece, &bench_error),
	     "nvs_optimizer_get");
}

static void get_part_by_part(const struct get *get)
{
	for (unsigned part = 0; part < PARTS; part++)
		for (size_t group = 0; group < GROUPS; group++)
			for (uint64_t at = 0; at < get->group_numel; at += PIECE_NUMEL)
				get_piece(get, group, part, at);
}

static void get_parts_together(const struct get *get)
{
	for (size_t group = 0; group < GROUPS; group++)
		for (uint64_t at = 0; at < get->group_numel; at += PIECE_NUMEL)
			for (unsigned part = 0; part < PARTS; part++)
				get_piece(get, group, part, at);
}

static void measure(const struct get *get, const char *order)
{
	double state = 12.0 * GROUPS * (double)get->group_numel;
	uint64_t before = bytes_read(get), from = now_ns();
	double seconds;

	if (!strcmp(order, "parts"))
		get_part_by_part(get);
	else
		get_parts_together(get);
	seconds = (double)(now_ns() - from) / 1e9;
	printf("{\"of_state\": %.3f, \"gb_s\": %.3f, \"seconds\": %.3f}\n",
	       (double)(bytes_read(get) - before) / state, state / seconds / 1e9, seconds);
}

int main(int argc, char **argv)
{
	struct get get = {0};
	struct nvs_config *config;

	if (argc != 4)
		fail("usage: get CONFIG.json parts|places ELEMENTS");
	get.group_numel = number_argument(argv[3]) / GROUPS;
	get.piece = malloc(MIB);
	if (!get.piece || !get.group_numel)
		fail("no memory, or too few elements");
	memset(get.piece, 0, MIB);
	config = open_config(argv[1], NULL);
	open_optimizer(&get, config);
	measure(&get, argv[2]);
	must(nvs_optimizer_close(get.optimizer, &bench_error), "nvs_optimizer_close");
	free(get.piece);
	nvs_config_close(config);
	return 0;
}
