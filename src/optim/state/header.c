/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encodes and decodes the header. Every number that a later computation divides by, adds to or
 * allocates by has a bound here, so that a header whose checksum is right can't harm.
 */
#include "optim/state/header.h"

#include <float.h>

#include "base/little_endian.h"
#include "optim/step/numbers.h"

static const uint8_t magic[8] = {'n', 'v', 's', 'o', 'p', 't', 'i', 'm'};

enum {
	VERSION = 4,
	AT_VERSION = 8,
	AT_UNFINISHED = 12,
	AT_LAYOUT = 16,
	AT_TILE_NUMEL = 24,
	AT_NTILES = 32,
	AT_NOFFLOADED = 40,
	AT_NGRADIENTS = 48,
	AT_NGROUPS = 56,
	AT_GRADIENT_DTYPE = 64,
	AT_DYNAMIC = 68,
	AT_STEP = 72,
	AT_SCALE = 80,
	AT_ITERATION = 88,
	AT_LAST_OVERFLOW = 96,
	AT_HYSTERESIS = 104,
	AT_LR = 112,
	AT_FACTOR = 120,
	AT_NORM = 128,
	AT_CLIP = 136,
};

void header_encode(const struct header *header, uint8_t *bytes)
{
	memcpy(bytes, magic, sizeof(magic));
	put_u32(bytes + AT_VERSION, VERSION);
	put_u32(bytes + AT_UNFINISHED, header->unfinished);
	put_u64(bytes + AT_LAYOUT, header->layout);
	put_u64(bytes + AT_TILE_NUMEL, header->tile_numel);
	put_u64(bytes + AT_NTILES, header->ntiles);
	put_u64(bytes + AT_NOFFLOADED, header->noffloaded);
	put_u64(bytes + AT_NGRADIENTS, header->ngradients);
	put_u64(bytes + AT_NGROUPS, header->ngroups);
	put_u32(bytes + AT_GRADIENT_DTYPE, (uint32_t)header->gradient_dtype);
	put_u32(bytes + AT_DYNAMIC, header->dynamic);
	put_u64(bytes + AT_STEP, header->step);
	put_f64(bytes + AT_SCALE, header->scaler.scale);
	put_u64(bytes + AT_ITERATION, (uint64_t)header->scaler.iteration);
	put_u64(bytes + AT_LAST_OVERFLOW, (uint64_t)header->scaler.last_overflow);
	put_u64(bytes + AT_HYSTERESIS, header->scaler.hysteresis);
	put_f64(bytes + AT_LR, header->lr);
	put_f64(bytes + AT_FACTOR, header->factor);
	put_f64(bytes + AT_NORM, header->norm);
	put_f64(bytes + AT_CLIP, header->clip);
}

static void decode(const uint8_t *bytes, struct header *header)
{
	*header = (struct header){
		.unfinished = get_u32(bytes + AT_UNFINISHED),
		.layout = get_u64(bytes + AT_LAYOUT),
		.tile_numel = get_u64(bytes + AT_TILE_NUMEL),
		.ntiles = get_u64(bytes + AT_NTILES),
		.noffloaded = get_u64(bytes + AT_NOFFLOADED),
		.ngradients = get_u64(bytes + AT_NGRADIENTS),
		.ngroups = get_u64(bytes + AT_NGROUPS),
		.gradient_dtype = (enum nvs_dtype)get_u32(bytes + AT_GRADIENT_DTYPE),
		.dynamic = get_u32(bytes + AT_DYNAMIC),
		.step = get_u64(bytes + AT_STEP),
		.scaler = {.scale = get_f64(bytes + AT_SCALE),
			   .iteration = (int64_t)get_u64(bytes + AT_ITERATION),
			   .last_overflow = (int64_t)get_u64(bytes + AT_LAST_OVERFLOW),
			   .hysteresis = get_u64(bytes + AT_HYSTERESIS)},
		.lr = get_f64(bytes + AT_LR),
		.factor = get_f64(bytes + AT_FACTOR),
		.norm = get_f64(bytes + AT_NORM),
		.clip = get_f64(bytes + AT_CLIP),
	};
}

/* Each count is compared by itself first, since their sum may wrap. */
static const char *check_counts(const struct header *header, uint64_t nbytes)
{
	if (!header->tile_numel || header->tile_numel % HEADER_UNIT ||
	    header->tile_numel > HEADER_NUMEL_MAX)
		return "the length of a tile is out of range";
	if (!header->ntiles || header->ntiles > nbytes || header->ngradients > nbytes ||
	    !header->ngroups || header->ngroups > nbytes || header_nbytes(header) != nbytes)
		return "its counts do not match its length";
	if (header->noffloaded > header->ntiles)
		return "more tiles are offloaded than there are";
	if (header->step > STEPS_MAX - header->unfinished)
		return "the step count is out of range";
	return NULL;
}

static const char *check_scaler(const struct scaler *scaler)
{
	if (!is_scale(scaler->scale))
		return "the loss scale is out of range";
	if (scaler->iteration < 0 || scaler->iteration > UPDATES_MAX ||
	    scaler->last_overflow < -1 || scaler->last_overflow > scaler->iteration)
		return "the count of updates of the loss scale is out of range";
	if (!scaler->hysteresis || scaler->hysteresis > UINT32_MAX)
		return "the hysteresis of the loss scale is out of range";
	return NULL;
}

static const char *check_marks(const struct header *header, const uint8_t *mark)
{
	for (uint64_t i = 0; i < header->ntiles + header->ngradients; i++)
		if (*mark++ > 1)
			return "the mark of a tile is out of range";
	for (uint64_t i = 0; i < header->ngroups; i++)
		if (get_u64(mark + i * GROUP_BYTES) > HEADER_COUNTS_MAX &&
		    get_u64(mark + i * GROUP_BYTES) != GROUP_LENT)
			return "the mark of a group is out of range";
	return NULL;
}

static bool is_gradient_dtype(enum nvs_dtype dtype)
{
	return dtype == NVS_F32 || dtype == NVS_BF16 || dtype == NVS_F16;
}

const char *header_decode(const uint8_t *bytes, uint64_t nbytes, struct header *header)
{
	const char *why;

	if (nbytes < HEADER_BYTES || memcmp(bytes, magic, sizeof(magic)) != 0)
		return "it is no header of an optimizer";
	if (get_u32(bytes + AT_VERSION) != VERSION)
		return "its version is unknown";
	if (get_u32(bytes + AT_UNFINISHED) > 1 || get_u32(bytes + AT_DYNAMIC) > 1)
		return "a flag is unknown";
	decode(bytes, header);
	if (!is_gradient_dtype(header->gradient_dtype))
		return "the type of the gradients is unknown";
	/* The factor and the norm of a step may be inf or nan, as its gradients were. */
	if (header->unfinished && !(header->lr >= 0 && header->lr <= (double)FLT_MAX))
		return "the learning rate of the unfinished step is out of range";
	why = check_counts(header, nbytes);
	if (!why)
		why = check_scaler(&header->scaler);
	return why ? why : check_marks(header, bytes + HEADER_BYTES);
}
