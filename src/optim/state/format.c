/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The format of the state: how many bytes each part of a tile has, and the state as float32 for
 * those that compute with it or show it. A pass reads, holds and writes tiles as bytes.
 *
 * A tile's parts, of T elements, side by side in the store:
 *
 *	master	    T floats; in a split tile T remainders of 16 bits
 *	exp_avg	    T floats, or T bf16 elements, or T codes of 8 bits and T / 128 scales
 *	exp_avg_sq  the same
 *
 * Only Adam's state has another format than T floats. Of other rules, exp_avg here and in struct
 * state_run is their first state, and exp_avg_sq NULL.
 *
 * A tile is split if the master of each of its elements is the caller's bf16 weight and a
 * remainder. The sign bits of a split tile's exp_avg_sq belong to its master, so the master alone
 * is never read or written. Codes of 8 bits have none, so a master that rounds from a tie is kept
 * as its neighbour: with them all tiles are split or none, and bits don't depend on the tiles.
 */
#include <string.h>

#include "optim/internal.h"

_Static_assert(TILE_UNIT % STATE_BLOCK == 0, "a group's first element begins a block of its tile");
_Static_assert(SLICE % STATE_BLOCK == 0, "slices end between blocks");

/* ---- What the configuration asks for ---- */

/* State outlives the caller's weights in a kept store, whose master weights are whole. */
void format_choose(struct nvs_optimizer *optimizer, enum nvs_optimizer_state state)
{
	static const enum moments moments[] = {
		[NVS_STATE_FP32] = MOMENTS_FP32,
		[NVS_STATE_SPLIT] = MOMENTS_FP32,
		[NVS_STATE_BF16] = MOMENTS_BF16,
		[NVS_STATE_8BIT] = MOMENTS_8BIT,
	};

	assert((unsigned)state < COUNT_OF(moments));
	optimizer->state = state;
	optimizer->moments = moments[state];
	optimizer->splits = state != NVS_STATE_FP32 && !optimizer->keep && !optimizer->read_only;
}

bool splits_group(const struct nvs_optimizer *optimizer, const struct group *group)
{
	return optimizer->splits && group->dtype == NVS_BF16 && group->weights;
}

static bool splits_all(const struct nvs_optimizer *optimizer)
{
	for (size_t i = 0; i < optimizer->ngroups; i++)
		if (!splits_group(optimizer, &optimizer->groups[i]))
			return false;
	return true;
}

void format_settle(struct nvs_optimizer *optimizer)
{
	if (optimizer->moments == MOMENTS_8BIT && !splits_all(optimizer))
		optimizer->splits = false;
}

/* Whether the values of a part are there as float32. */
static bool is_float(const struct state_run *packed, unsigned part)
{
	if (part == NVS_MASTER)
		return !packed->split;
	return packed->moments == MOMENTS_FP32 && (part == NVS_EXP_AVG || !packed->split);
}

bool is_packed(const struct state_run *packed)
{
	return packed->moments != MOMENTS_FP32 || packed->split;
}

/* ---- Bytes ---- */

static uint64_t moment_nbytes(const struct nvs_optimizer *optimizer, uint64_t numel)
{
	return numel * moment_size(optimizer->moments) +
	       scales_count(optimizer->moments, numel) * sizeof(float);
}

uint64_t part_nbytes(const struct nvs_optimizer *optimizer, size_t tile, unsigned part)
{
	assert(optimizer->tile_numel && tile < optimizer->ntiles && part < optimizer->rule->nparts);
	return part == NVS_MASTER
		       ? optimizer->tile_numel * master_size(optimizer->tiles[tile].split)
		       : moment_nbytes(optimizer, optimizer->tile_numel);
}

uint64_t tile_nbytes(const struct nvs_optimizer *optimizer, size_t tile)
{
	uint64_t nbytes = 0;

	for (unsigned part = 0; part < optimizer->rule->nparts; part++)
		nbytes += part_nbytes(optimizer, tile, part);
	return nbytes;
}

enum nvs_dtype part_dtype(const struct nvs_optimizer *optimizer, size_t tile, unsigned part)
{
	assert(tile < optimizer->ntiles && part < optimizer->rule->nparts);
	if (part == NVS_MASTER)
		return optimizer->tiles[tile].split ? NVS_U16 : NVS_F32;
	return optimizer->moments == MOMENTS_FP32   ? NVS_F32
	       : optimizer->moments == MOMENTS_BF16 ? NVS_BF16
						    : NVS_U8;
}

uint64_t state_nbytes(const struct nvs_optimizer *optimizer, uint64_t numel)
{
	assert(numel % TILE_UNIT == 0);
	return numel * master_size(splits_all(optimizer)) +
	       (optimizer->rule->nparts - 1) * moment_nbytes(optimizer, numel);
}

void *tile_part(const struct nvs_optimizer *optimizer, size_t tile, unsigned part)
{
	char *state;

	assert(tile < optimizer->ntiles && part < optimizer->rule->nparts);
	if (tile < optimizer->noffloaded) {
		state = nvs_tensor_data(optimizer->tiles[tile].parts[part]);
	} else {
		state = optimizer->tiles[tile].host;
		for (unsigned i = 0; i < part; i++)
			state += part_nbytes(optimizer, tile, i);
	}
	return state;
}

static void *place_in(void *part, uint64_t offset)
{
	return part ? (char *)part + offset : NULL;
}

/* A tile's state in these parts from an element on; with 8 bits the first of a block. */
static struct state_run packed_in(const struct nvs_optimizer *optimizer, size_t tile,
				  void *const parts[PARTS], uint64_t within)
{
	const enum moments moments = optimizer->moments;
	uint64_t codes = optimizer->tile_numel * moment_size(moments);
	uint64_t moment = within * moment_size(moments);
	uint64_t scale = codes + within / STATE_BLOCK * sizeof(float);
	bool split = optimizer->tiles[tile].split;

	assert(within < optimizer->tile_numel);
	assert(moments != MOMENTS_8BIT || within % STATE_BLOCK == 0);
	return (struct state_run){
		.moments = moments,
		.split = split,
		.master = place_in(parts[NVS_MASTER], within * master_size(split)),
		.exp_avg = place_in(parts[NVS_EXP_AVG], moment),
		.exp_avg_sq = place_in(parts[NVS_EXP_AVG_SQ], moment),
		.exp_avg_scales = place_in(parts[NVS_EXP_AVG], scale),
		.exp_avg_sq_scales = place_in(parts[NVS_EXP_AVG_SQ], scale),
	};
}

struct state_run state_packed(const struct nvs_optimizer *optimizer, size_t tile,
			      const struct segment *segment)
{
	void *parts[PARTS] = {NULL};

	for (unsigned part = 0; part < optimizer->rule->nparts; part++)
		parts[part] = tile_part(optimizer, tile, part);
	assert(segment->at >= tile * optimizer->tile_numel && segment->numel);
	return packed_in(optimizer, tile, parts, segment->at - tile * optimizer->tile_numel);
}

void *group_weights(const struct nvs_optimizer *optimizer, const struct segment *segment)
{
	const struct group *group = &optimizer->groups[segment->group];

	assert(segment->offset + segment->numel <= group->numel);
	return group->weights ? group->weights + segment->offset * nvs_dtype_size(group->dtype)
			      : NULL;
}

/* ---- Slices, as float32 ---- */

struct nvs_state_run state_open(const struct nvs_optimizer *optimizer,
				const struct state_run *packed, const struct segment *segment,
				unsigned thread, bool read)
{
	float *floats;
	enum nvs_optimizer_part first = optimizer->rule->parts[1];
	struct nvs_state_run run = {
		.size = sizeof(run),
		.group = segment->group,
		.offset = segment->offset,
		.numel = segment->numel,
		.master = packed->master,
		.exp_avg = first == NVS_EXP_AVG ? packed->exp_avg : NULL,
		.exp_avg_sq = packed->exp_avg_sq,
		.momentum_buffer = first == NVS_MOMENTUM_BUFFER ? packed->exp_avg : NULL,
		.sum = first == NVS_SUM ? packed->exp_avg : NULL,
	};

	if (!is_packed(packed))
		return run;
	/* Of Adam alone. */
	assert(optimizer->rule->packs);
	floats = optimizer->floats + (size_t)thread * optimizer->rule->nparts * SLICE;
	assert(segment->numel <= SLICE);
	if (!is_float(packed, NVS_MASTER))
		run.master = floats;
	if (!is_float(packed, NVS_EXP_AVG))
		run.exp_avg = floats + SLICE;
	if (!is_float(packed, NVS_EXP_AVG_SQ))
		run.exp_avg_sq = floats + (size_t)2 * SLICE;
	if (read)
		optimizer->kernel->unpack(
			packed, packed->split ? group_weights(optimizer, segment) : NULL,
			is_float(packed, NVS_MASTER) ? NULL : run.master,
			is_float(packed, NVS_EXP_AVG) ? NULL : run.exp_avg,
			is_float(packed, NVS_EXP_AVG_SQ) ? NULL : run.exp_avg_sq, segment->numel);
	return run;
}

void state_close(const struct nvs_optimizer *optimizer, const struct state_run *packed,
		 const struct segment *segment, const struct nvs_state_run *run, uint64_t step)
{
	const struct noise noise = noise_at(optimizer, segment, step);

	if (is_packed(packed))
		optimizer->kernel->pack(packed, step ? &noise : NULL,
					is_float(packed, NVS_MASTER) ? NULL : run->master,
					is_float(packed, NVS_EXP_AVG) ? NULL : run->exp_avg,
					is_float(packed, NVS_EXP_AVG_SQ) ? NULL : run->exp_avg_sq,
					packed->split ? group_weights(optimizer, segment) : NULL,
					NVS_BF16, segment->numel);
	if (!packed->split)
		give_weights(optimizer, segment, run->master);
}

void give_weights(const struct nvs_optimizer *optimizer, const struct segment *segment,
		  const float *master)
{
	void *weights = group_weights(optimizer, segment);

	if (weights)
		optimizer->kernel->convert(weights, optimizer->groups[segment->group].dtype, master,
					   NVS_F32, 1, segment->numel);
}

struct noise noise_at(const struct nvs_optimizer *optimizer, const struct segment *segment,
		      uint64_t step)
{
	return noise_of(optimizer->config.rank, segment->group, step, segment->offset);
}

void state_clear(const struct nvs_optimizer *optimizer, size_t tile, uint64_t from, uint64_t n)
{
	const struct segment segment = {.at = tile * optimizer->tile_numel + from, .numel = n};
	const struct state_run run = state_packed(optimizer, tile, &segment);
	float initial = rule_initial(optimizer->rule, &optimizer->config.adam, 1);
	size_t moment = n * moment_size(run.moments);
	size_t scales = scales_count(run.moments, n) * sizeof(float);

	assert(n && from + n <= optimizer->tile_numel && run.master && run.exp_avg);
	memset(run.master, 0, n * master_size(run.split));
	memset(run.exp_avg, 0, moment);
	if (initial != 0)
		for (uint64_t i = 0; i < n; i++)
			((float *)run.exp_avg)[i] = initial;
	if (scales)
		memset(run.exp_avg_scales, 0, scales);
	if (run.exp_avg_sq)
		memset(run.exp_avg_sq, 0, moment);
	if (run.exp_avg_sq && scales)
		memset(run.exp_avg_sq_scales, 0, scales);
}

/* ---- Ranges of one part ---- */

#define PIECE 1024u

bool part_needs(const struct nvs_optimizer *optimizer, size_t tile, unsigned part, unsigned other)
{
	return part == other ||
	       (part == NVS_MASTER && other == NVS_EXP_AVG_SQ && optimizer->tiles[tile].split);
}

/* Elements of a segment that are unpacked and packed together: whole blocks, which may have more
 * than the segment. Only what holds the part is in memory, and the rest elsewhere. */
struct piece {
	struct state_run packed;
	void *weights; /* with the remainders; otherwise NULL */
	uint64_t n, skip, take;
	float elsewhere[PIECE], values[PIECE];
};

static void take_piece(const struct nvs_optimizer *optimizer, size_t tile, unsigned part,
		       const struct segment *segment, uint64_t done, struct piece *piece)
{
	uint64_t unit = optimizer->moments == MOMENTS_8BIT ? STATE_BLOCK : 1;
	uint64_t offset = segment->offset + done, left = segment->numel - done;
	const struct group *group = &optimizer->groups[segment->group];
	struct segment whole = *segment;
	uint64_t within = segment->at + done - tile * optimizer->tile_numel;
	void *parts[PARTS] = {NULL};

	piece->skip = offset % unit;
	piece->n = min_u64(align_up(piece->skip + left, unit), PIECE);
	piece->n = min_u64(piece->n, group->numel - (offset - piece->skip));
	piece->take = min_u64(piece->n - piece->skip, left);
	assert(piece->take && piece->skip + piece->take <= piece->n);
	for (unsigned i = 0; i < optimizer->rule->nparts; i++)
		parts[i] = part_needs(optimizer, tile, part, i) ? tile_part(optimizer, tile, i)
								: NULL;
	piece->packed = packed_in(optimizer, tile, parts, within - piece->skip);
	if (!parts[NVS_MASTER])
		piece->packed.master = piece->elsewhere;
	if (!parts[NVS_EXP_AVG])
		piece->packed.exp_avg = piece->packed.exp_avg_scales = piece->elsewhere;
	if (!parts[NVS_EXP_AVG_SQ])
		piece->packed.exp_avg_sq = piece->packed.exp_avg_sq_scales = piece->elsewhere;
	whole.offset = offset - piece->skip;
	whole.numel = piece->n;
	piece->weights = piece->packed.split && part == NVS_MASTER
				 ? group_weights(optimizer, &whole)
				 : NULL;
}

void part_move(const struct nvs_optimizer *optimizer, size_t tile, unsigned part,
	       const struct segment *segment, float *to, const float *from)
{
	const struct state_run format = {.moments = optimizer->moments,
					 .split = optimizer->tiles[tile].split};
	uint64_t within = segment->at - tile * optimizer->tile_numel;
	struct piece piece;
	float *values = piece.values;
	float *master = part == NVS_MASTER ? values : NULL;
	float *exp_avg = part == NVS_EXP_AVG ? values : NULL;
	float *exp_avg_sq = part == NVS_EXP_AVG_SQ ? values : NULL;

	assert(within + segment->numel <= optimizer->tile_numel && !to != !from);
	if (is_float(&format, part)) {
		float *kept = (float *)tile_part(optimizer, tile, part) + within;

		memcpy(to ? to : kept, to ? kept : from, segment->numel * sizeof(float));
		return;
	}
	piece = (struct piece){0};
	for (uint64_t done = 0; done < segment->numel; done += piece.take) {
		take_piece(optimizer, tile, part, segment, done, &piece);
		if (to || piece.take != piece.n)
			optimizer->kernel->unpack(&piece.packed, piece.weights, master, exp_avg,
						  exp_avg_sq, piece.n);
		if (to) {
			memcpy(to + done, values + piece.skip, piece.take * sizeof(float));
			continue;
		}
		memcpy(values + piece.skip, from + done, piece.take * sizeof(float));
		optimizer->kernel->pack(&piece.packed, NULL, master, exp_avg, exp_avg_sq,
					piece.weights, NVS_BF16, piece.n);
	}
}
