/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encodes and decodes the header. Every number that a later computation divides by, adds to or
 * allocates by has a bound here, so that a header whose checksum is right can't harm.
 */
#include "optim/state/header.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/little_endian.h"
#include "base/numbers.h"

static const uint8_t magic[8] = {'n', 'v', 's', 'o', 'p', 't', 'i', 'm'};

enum {
	VERSION = 4,	    /* state in fp32, the only format of earlier versions */
	VERSION_STATES = 5, /* another format */
	VERSION_RULES = 6,  /* another rule than Adam */
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
	/* In the number at AT_DYNAMIC, above the flag: */
	STATE_SHIFT = 8,
	RULE_SHIFT = 16,
};

_Static_assert(AT_CLIP + sizeof(uint64_t) == HEADER_BYTES, "the marks follow the last number");

void header_encode(const struct header *header, uint8_t *bytes)
{
	assert(header->tile_numel % HEADER_UNIT == 0 && header->noffloaded <= header->ntiles);
	memcpy(bytes, magic, sizeof(magic));
	assert(header->state != NVS_STATE_SPLIT && header->state <= NVS_STATE_8BIT);
	put_u32(bytes + AT_VERSION, header->rule != NVS_RULE_ADAM     ? VERSION_RULES
				    : header->state != NVS_STATE_FP32 ? VERSION_STATES
								      : VERSION);
	put_u32(bytes + AT_UNFINISHED, header->unfinished);
	put_u64(bytes + AT_LAYOUT, header->layout);
	put_u64(bytes + AT_TILE_NUMEL, header->tile_numel);
	put_u64(bytes + AT_NTILES, header->ntiles);
	put_u64(bytes + AT_NOFFLOADED, header->noffloaded);
	put_u64(bytes + AT_NGRADIENTS, header->ngradients);
	put_u64(bytes + AT_NGROUPS, header->ngroups);
	put_u32(bytes + AT_GRADIENT_DTYPE, (uint32_t)header->gradient_dtype);
	put_u32(bytes + AT_DYNAMIC, header->dynamic | (uint32_t)header->state << STATE_SHIFT |
					    (uint32_t)header->rule << RULE_SHIFT);
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

static int out_of_bounds(const char *name, uint64_t value, uint64_t least, uint64_t most,
			 struct nvs_error *error)
{
	return error_set(error, -EUCLEAN, "%s is %" PRIu64 ": allowed are %" PRIu64 " to %" PRIu64,
			 name, value, least, most);
}

/* Counts are bounded here, so that adding them up does not wrap. */
static int check_whole(const uint8_t *bytes, struct nvs_error *error)
{
	static const struct {
		const char *name;
		unsigned at, nbytes;
		uint64_t least, most;
	} numbers[] = {
		{"its version", AT_VERSION, 4, VERSION, VERSION_RULES},
		{"the flag of an unfinished step", AT_UNFINISHED, 4, 0, 1},
		{"the length of a tile", AT_TILE_NUMEL, 8, HEADER_UNIT, HEADER_NUMEL_MAX},
		{"the number of tiles", AT_NTILES, 8, 1, HEADER_COUNTS_MAX},
		{"the number of offloaded tiles", AT_NOFFLOADED, 8, 0, HEADER_COUNTS_MAX},
		{"the number of gradient tensors", AT_NGRADIENTS, 8, 0, HEADER_COUNTS_MAX},
		{"the number of groups", AT_NGROUPS, 8, 1, HEADER_COUNTS_MAX},
		{"the number of steps taken", AT_STEP, 8, 0, STEPS_MAX},
		{"the number of updates of the loss scale", AT_ITERATION, 8, 0, UPDATES_MAX},
		{"the remaining hysteresis", AT_HYSTERESIS, 8, 1, UINT32_MAX},
	};

	for (size_t i = 0; i < COUNT_OF(numbers); i++) {
		const uint8_t *at = bytes + numbers[i].at;
		uint64_t value = numbers[i].nbytes == 4 ? get_u32(at) : get_u64(at);

		if (value < numbers[i].least || value > numbers[i].most)
			return out_of_bounds(numbers[i].name, value, numbers[i].least,
					     numbers[i].most, error);
	}
	return 0;
}

/* The flag of a dynamic loss scale, the format of the state, and the rule. */
static int check_flags(const uint8_t *bytes, struct nvs_error *error)
{
	uint32_t version = get_u32(bytes + AT_VERSION), flags = get_u32(bytes + AT_DYNAMIC);
	uint32_t rule = version == VERSION_RULES ? flags >> RULE_SHIFT : 0;
	uint32_t state = (flags ^ rule << RULE_SHIFT) >> STATE_SHIFT;
	uint32_t dynamic = flags & ((1u << STATE_SHIFT) - 1);

	if (dynamic > 1 || (version == VERSION && flags > 1))
		return out_of_bounds("the flag of a dynamic loss scale",
				     version == VERSION ? flags : dynamic, 0, 1, error);
	if (version == VERSION_STATES && state != NVS_STATE_BF16 && state != NVS_STATE_8BIT)
		return out_of_bounds("the format of the state", state, NVS_STATE_BF16,
				     NVS_STATE_8BIT, error);
	if (version != VERSION_RULES)
		return 0;
	if (rule < NVS_RULE_SGD || rule > NVS_RULE_LION)
		return out_of_bounds("the rule", rule, NVS_RULE_SGD, NVS_RULE_LION, error);
	if (state != NVS_STATE_FP32)
		return out_of_bounds("the format of the state", state, NVS_STATE_FP32,
				     NVS_STATE_FP32, error);
	return 0;
}

/* Numbers whose bounds depend on others. */
static int check_related(const struct header *header, uint64_t nbytes, struct nvs_error *error)
{
	const struct scaler *scaler = &header->scaler;

	/* Bounded before, so that the bytes of the marks add up. */
	assert(header->ntiles <= HEADER_COUNTS_MAX && header->ngradients <= HEADER_COUNTS_MAX);
	assert(header->ngroups <= HEADER_COUNTS_MAX);
	if (header->tile_numel % HEADER_UNIT)
		return error_set(error, -EUCLEAN,
				 "the length of a tile is %" PRIu64 ": allowed are multiples of %u",
				 header->tile_numel, HEADER_UNIT);
	if (header_nbytes(header) != nbytes)
		return error_set(error, -EUCLEAN,
				 "it has %" PRIu64 " bytes, but the marks of %" PRIu64
				 " tiles, %" PRIu64 " gradient tensors and %" PRIu64
				 " groups make it %" PRIu64,
				 nbytes, header->ntiles, header->ngradients, header->ngroups,
				 header_nbytes(header));
	if (header->noffloaded > header->ntiles)
		return out_of_bounds("the number of offloaded tiles", header->noffloaded, 0,
				     header->ntiles, error);
	if (header->unfinished && header->step == STEPS_MAX)
		return out_of_bounds("the number of steps before the unfinished one", header->step,
				     0, STEPS_MAX - 1, error);
	if (scaler->last_overflow < -1 || scaler->last_overflow > scaler->iteration)
		return error_set(error, -EUCLEAN,
				 "the update with the last overflow is %" PRId64
				 ": allowed are -1 to %" PRId64,
				 scaler->last_overflow, scaler->iteration);
	if (!is_element(header->gradient_dtype))
		return error_set(error, -EUCLEAN,
				 "the element type of the gradients is %d: allowed are F32, BF16 "
				 "and F16",
				 (int)header->gradient_dtype);
	return 0;
}

static int check_reals(const struct header *header, struct nvs_error *error)
{
	const struct {
		const char *name;
		double value, least, most;
	} numbers[] = {
		{"the loss scale", header->scaler.scale, SCALE_MIN, SCALE_MAX},
		/* of an unfinished step: */
		{"the learning rate of the unfinished step", header->lr, 0, (double)FLT_MAX},
		{"the factor of the gradients", header->factor, 0, 1 / SCALE_MIN},
		{"the factor of clipping", header->clip, 0, 1},
	};

	size_t n = header->unfinished ? COUNT_OF(numbers) : 1;

	for (size_t i = 0; i < n; i++)
		if (!(numbers[i].value >= numbers[i].least && numbers[i].value <= numbers[i].most))
			return error_set(error, -EUCLEAN, "%s is %g: allowed are %g to %g",
					 numbers[i].name, numbers[i].value, numbers[i].least,
					 numbers[i].most);
	/* The norm may be inf or nan, as the gradients were; -1 if it was not computed. */
	if (header->unfinished && header->norm < 0 && header->norm != -1)
		return error_set(error, -EUCLEAN,
				 "the norm of the gradients is %g: allowed are -1, and 0 and above",
				 header->norm);
	return 0;
}

int header_decode(const uint8_t *bytes, uint64_t nbytes, struct header *header,
		  struct nvs_error *error)
{
	int rc;

	if (nbytes < HEADER_BYTES || memcmp(bytes, magic, sizeof(magic)) != 0)
		return error_set(error, -EUCLEAN, "it is no header of an optimizer");
	rc = check_whole(bytes, error);
	if (rc)
		return rc;
	rc = check_flags(bytes, error);
	if (rc)
		return rc;
	*header = (struct header){
		.unfinished = get_u32(bytes + AT_UNFINISHED),
		.layout = get_u64(bytes + AT_LAYOUT),
		.tile_numel = get_u64(bytes + AT_TILE_NUMEL),
		.ntiles = get_u64(bytes + AT_NTILES),
		.noffloaded = get_u64(bytes + AT_NOFFLOADED),
		.ngradients = get_u64(bytes + AT_NGRADIENTS),
		.ngroups = get_u64(bytes + AT_NGROUPS),
		.gradient_dtype = (enum nvs_dtype)get_u32(bytes + AT_GRADIENT_DTYPE),
		.dynamic = get_u32(bytes + AT_DYNAMIC) & 1,
		.state = (enum nvs_optimizer_state)(get_u32(bytes + AT_DYNAMIC) >> STATE_SHIFT &
						    255),
		.rule = (enum nvs_rule)(get_u32(bytes + AT_DYNAMIC) >> RULE_SHIFT),
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
	rc = check_related(header, nbytes, error);
	if (!rc)
		rc = check_reals(header, error);
	/* The marks end where the bytes do. */
	assert(rc || header_nbytes(header) == nbytes);
	if (rc)
		return rc;

	const uint8_t *mark = bytes + HEADER_BYTES;

	for (uint64_t i = 0; i < header->ntiles + header->ngradients; i++)
		if (mark[i] > 1)
			return out_of_bounds(i < header->ntiles ? "the mark of a tile"
								: "the mark of a gradient tensor",
					     mark[i], 0, 1, error);
	mark += header->ntiles + header->ngradients;
	for (uint64_t i = 0; i < header->ngroups; i++) {
		uint64_t added = get_u64(mark + i * GROUP_BYTES);

		if (added > HEADER_COUNTS_MAX && added != GROUP_LENT)
			return out_of_bounds("the number of a group's added gradients", added, 0,
					     HEADER_COUNTS_MAX, error);
	}
	return 0;
}
