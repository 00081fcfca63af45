/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The format of the state: how many bytes each part of a tile has, and the state as float32 for
 * those that compute with it or show it. A pass reads, holds and writes tiles as bytes.
 */
#include <assert.h>
#include <string.h>

#include "optim/internal.h"

/* ---- Bytes ---- */

uint64_t part_nbytes(const struct nvs_optimizer *optimizer, size_t tile, unsigned part)
{
	assert(optimizer->tile_numel && tile < optimizer->ntiles && part < PARTS);
	return optimizer->tile_numel * sizeof(float);
}

enum nvs_dtype part_dtype(const struct nvs_optimizer *optimizer, size_t tile, unsigned part)
{
	assert(tile < optimizer->ntiles && part < PARTS);
	return NVS_F32;
}

uint64_t state_nbytes(const struct nvs_optimizer *optimizer, uint64_t numel)
{
	(void)optimizer;
	assert(numel % TILE_UNIT == 0);
	return PARTS * numel * sizeof(float);
}

void *tile_part(const struct nvs_optimizer *optimizer, size_t tile, unsigned part)
{
	char *state;

	assert(tile < optimizer->ntiles && part < PARTS);
	if (tile < optimizer->noffloaded) {
		state = nvs_tensor_data(optimizer->tiles[tile].parts[part]);
	} else {
		state = optimizer->tiles[tile].host;
		for (unsigned i = 0; i < part; i++)
			state += part_nbytes(optimizer, tile, i);
	}
	assert(state);
	return state;
}

/* ---- As float32 ---- */

void part_clear(const struct nvs_optimizer *optimizer, size_t tile, unsigned part, uint64_t from,
		uint64_t n)
{
	assert(from + n <= optimizer->tile_numel);
	memset((float *)tile_part(optimizer, tile, part) + from, 0, n * sizeof(float));
}

void part_read(const struct nvs_optimizer *optimizer, size_t tile, unsigned part,
	       const struct segment *segment, float *to)
{
	uint64_t within = segment->at - tile * optimizer->tile_numel;

	assert(within + segment->numel <= optimizer->tile_numel);
	memcpy(to, (const float *)tile_part(optimizer, tile, part) + within,
	       segment->numel * sizeof(float));
}

void part_write(const struct nvs_optimizer *optimizer, size_t tile, unsigned part,
		const struct segment *segment, const float *from)
{
	uint64_t within = segment->at - tile * optimizer->tile_numel;

	assert(within + segment->numel <= optimizer->tile_numel);
	memcpy((float *)tile_part(optimizer, tile, part) + within, from,
	       segment->numel * sizeof(float));
}

struct nvs_state_run state_open(const struct nvs_optimizer *optimizer, size_t tile,
				const struct segment *segment)
{
	uint64_t within = segment->at - tile * optimizer->tile_numel;

	assert(segment->at >= tile * optimizer->tile_numel && segment->numel);
	assert(within + segment->numel <= optimizer->tile_numel);
	assert(segment->group < optimizer->ngroups);
	return (struct nvs_state_run){
		.size = sizeof(struct nvs_state_run),
		.group = segment->group,
		.offset = segment->offset,
		.numel = segment->numel,
		.master = (float *)tile_part(optimizer, tile, NVS_MASTER) + within,
		.exp_avg = (float *)tile_part(optimizer, tile, NVS_EXP_AVG) + within,
		.exp_avg_sq = (float *)tile_part(optimizer, tile, NVS_EXP_AVG_SQ) + within,
	};
}
