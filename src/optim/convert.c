/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Converts the state of a kept store to another format. Master weights are whole there in each
 * format, so only the moments are read, rounded to nearest and written: to new tensors, which take
 * the names of the old ones together with the header in one commit. Before that commit the store is
 * the old one, after it the new one, and nothing else of it changes.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "base/threads/cancel.h"
#include "optim/internal.h"

struct conversion {
	struct nvs_optimizer *from;
	/* The same layout in the new format, for the functions of format.c alone; it owns `tiles`,
	 * all of which have tensors. */
	struct nvs_optimizer to;
	float *values, *again; /* SLICE each */
	uint64_t rounded;
};

/* Of Adam: no other rule's state has a second format. */
static const unsigned moments[] = {NVS_EXP_AVG, NVS_EXP_AVG_SQ};

static void convert_values(struct conversion *conversion, size_t tile, unsigned part)
{
	const struct nvs_optimizer *from = conversion->from, *to = &conversion->to;
	uint64_t at = tile * to->tile_numel, end = at + to->tile_numel, n;
	struct segment segment, slice;

	/* Padding, too. */
	memset(tile_part(to, tile, part), 0, part_nbytes(to, tile, part));
	while (next_segment(to, &at, end, &segment))
		for (uint64_t done = 0; done < segment.numel; done += n) {
			n = min_u64(segment.numel - done, SLICE);
			slice = (struct segment){.group = segment.group,
						 .offset = segment.offset + done,
						 .at = segment.at + done,
						 .numel = n};
			part_move(from, tile, part, &slice, conversion->values, NULL);
			part_move(to, tile, part, &slice, NULL, conversion->values);
			part_move(to, tile, part, &slice, conversion->again, NULL);
			/* A NaN, which differs from itself, stays one. */
			for (uint64_t i = 0; i < n; i++)
				conversion->rounded += conversion->values[i] !=
							       conversion->again[i] &&
						       !isnan(conversion->values[i]);
		}
}

static int convert_part(struct conversion *conversion, size_t tile, unsigned part,
			struct nvs_error *error)
{
	struct nvs_optimizer *from = conversion->from;
	struct nvs_tensor *old = from->tiles[tile].parts[part];
	struct nvs_tensor *converted = conversion->to.tiles[tile].parts[part];
	bool reads = tile < from->noffloaded;
	uint64_t old_pin = 0, pin = 0;
	int rc = reads ? pin_and_read(from, NO_TILE, &old, 1, &old_pin, error) : 0;

	if (rc)
		return rc;
	rc = batch_pin(from->engine, &converted, 1, -1, &pin, error);
	if (!rc) {
		convert_values(conversion, tile, part);
		rc = batch_release(from->engine, &converted, 1, pin, NVS_DIRTY, error);
	}
	if (reads)
		engine_discard(from->engine, old, old_pin);
	return rc ?: batch_swap_out(from->engine, &converted, 1, error);
}

/* The new tensors take the places of the old ones, whose bytes stay until the commit. */
static int replace_tensors(struct conversion *conversion, struct nvs_error *error)
{
	struct nvs_engine *engine = conversion->from->engine;
	size_t n = COUNT_OF(moments) * conversion->to.ntiles;
	int rc = 0;

	for (size_t i = 0; i < n && !rc; i++) {
		size_t tile = i / COUNT_OF(moments);
		unsigned part = moments[i % COUNT_OF(moments)];
		struct nvs_tensor **old = &conversion->from->tiles[tile].parts[part];
		struct nvs_tensor_info info = {.size = sizeof(info)};
		char name[NVS_NAME_MAX + 1];

		rc = nvs_tensor_get_info(engine, *old, &info);
		if (rc)
			break;
		snprintf(name, sizeof(name), "%s", info.name);
		rc = batch_forget(engine, old, 1, error);
		if (!rc)
			rc = batch_rename(engine, conversion->to.tiles[tile].parts[part], name,
					  error);
	}
	return rc;
}

/* The optimizer is only closed after this, without a commit. */
static int convert(struct nvs_optimizer *optimizer, enum nvs_optimizer_state state,
		   struct nvs_state_conversion *result, struct nvs_error *error)
{
	struct conversion conversion = {.from = optimizer};
	int rc = 0;

	result->from = optimizer->stored.state;
	result->to = state;
	result->step = optimizer->step;
	result->numel = optimizer->numel;
	if (!optimizer->stored.ntiles)
		return error_set(error, -ENODATA,
				 "the kept store holds no state of an optimizer to convert");
	if (state != result->from && !optimizer->rule->packs)
		return error_set(error, -ENOTSUP,
				 "the kept store holds the state of %s, which has no other format "
				 "than fp32: there is nothing to convert",
				 optimizer->rule->name);
	if (state != result->from) {
		struct nvs_optimizer *to = &conversion.to;

		*to = *optimizer;
		format_choose(to, state);
		to->noffloaded = to->ntiles;
		to->tiles = calloc(to->ntiles, sizeof(*to->tiles));
		conversion.values = calloc(SLICE, sizeof(float));
		conversion.again = calloc(SLICE, sizeof(float));
		if (!to->tiles || !conversion.values || !conversion.again)
			rc = error_set(error, -ENOMEM, "out of memory for %zu tiles", to->ntiles);
		rc = rc ?: register_converted(to, moments, COUNT_OF(moments), error);
		for (size_t tile = 0; tile < to->ntiles && !rc; tile++) {
			/* Reads ahead if there is room. */
			if (tile + 1 < optimizer->noffloaded)
				batch_prefetch(optimizer->engine,
					       &optimizer->tiles[tile + 1].parts[moments[0]],
					       COUNT_OF(moments), NULL);
			for (unsigned i = 0; i < COUNT_OF(moments) && !rc; i++)
				rc = convert_part(&conversion, tile, moments[i], error);
		}
		rc = rc ?: replace_tensors(&conversion, error);
		rc = rc ?: keep_commit_format(optimizer, state, error);
		result->rounded = conversion.rounded;
		free(to->tiles);
		free(conversion.values);
		free(conversion.again);
	}
	result->generation = nvs_engine_generation(optimizer->engine);
	return rc;
}

int optimizer_convert_with(const struct nvs_config *config, enum nvs_optimizer_state state,
			   struct nvs_state_conversion *result, const struct engine_ops *ops,
			   void *ops_arg, struct nvs_error *error)
{
	struct nvs_state_conversion full = {.size = sizeof(full)};
	struct nvs_optimizer *optimizer = NULL;
	int rc = struct_out(result, &full, sizeof(full));

	if (rc)
		return error_set(error, rc, "result is NULL, or its size is not set");
	if ((unsigned)state > NVS_STATE_8BIT)
		return error_set(error, -EINVAL,
				 "the state is %d: allowed are the values of enum "
				 "nvs_optimizer_state",
				 (int)state);
	rc = optimizer_open_with(&optimizer, config, NULL, 0, NULL, ops, ops_arg, error);
	rc = rc ?: call_begin(optimizer, CALL_CHANGES, error);
	if (!rc) {
		/* The master weights of a kept store are whole. */
		rc = convert(optimizer, state == NVS_STATE_SPLIT ? NVS_STATE_FP32 : state, &full,
			     error);
		call_end(optimizer);
	}
	if (!rc)
		struct_out(result, &full, sizeof(full));
	nvs_optimizer_abandon(optimizer, NULL);
	return rc;
}

int nvs_optimizer_convert(const struct nvs_config *config, enum nvs_optimizer_state state,
			  struct nvs_state_conversion *result, struct nvs_error *error)
{
	HOLD_CANCEL;
	return optimizer_convert_with(config, state, result, NULL, NULL, error);
}
