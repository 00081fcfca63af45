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
	AT_DYNAMIC = 68,
	/* In the number at AT_DYNAMIC, above the flag: */
	STATE_SHIFT = 8,
	RULE_SHIFT = 16,
};

#define FIELD(name) offsetof(struct header, name), sizeof(((struct header *)0)->name)

/* The other numbers, of 4 or 8 bytes, and the bounds of those that are no reals. Counts have some,
 * so that adding them up does not wrap. */
static const struct {
	unsigned at; /* in the bytes */
	size_t field, nbytes;
	uint64_t least, most;
	const char *name;
} numbers[] = {
	{12, FIELD(unfinished), 0, 1, "the flag of an unfinished step"},
	{16, FIELD(layout), 0, UINT64_MAX, NULL},
	{24, FIELD(tile_numel), HEADER_UNIT, HEADER_NUMEL_MAX, "the length of a tile"},
	{32, FIELD(ntiles), 1, HEADER_COUNTS_MAX, "the number of tiles"},
	{40, FIELD(noffloaded), 0, HEADER_COUNTS_MAX, "the number of offloaded tiles"},
	{48, FIELD(ngradients), 0, HEADER_COUNTS_MAX, "the number of gradient tensors"},
	{56, FIELD(ngroups), 1, HEADER_COUNTS_MAX, "the number of groups"},
	{64, FIELD(gradient_dtype), 0, UINT32_MAX, NULL},
	{72, FIELD(step), 0, STEPS_MAX, "the number of steps taken"},
	{80, FIELD(scaler.scale), 0, UINT64_MAX, NULL},
	{88, FIELD(scaler.iteration), 0, UPDATES_MAX, "the number of updates of the loss scale"},
	{96, FIELD(scaler.last_overflow), 0, UINT64_MAX, NULL},
	{104, FIELD(scaler.hysteresis), 1, UINT32_MAX, "the remaining hysteresis"},
	{112, FIELD(lr), 0, UINT64_MAX, NULL},
	{120, FIELD(factor), 0, UINT64_MAX, NULL},
	{128, FIELD(norm), 0, UINT64_MAX, NULL},
	{HEADER_BYTES - 8, FIELD(clip), 0, UINT64_MAX, NULL},
};

void header_encode(const struct header *header, uint8_t *bytes)
{
	assert(header->tile_numel % HEADER_UNIT == 0 && header->noffloaded <= header->ntiles);
	assert(header->state != NVS_STATE_SPLIT && header->state <= NVS_STATE_8BIT);
	memcpy(bytes, magic, sizeof(magic));
	put_u32(bytes + AT_VERSION, header->rule != NVS_RULE_ADAM     ? VERSION_RULES
				    : header->state != NVS_STATE_FP32 ? VERSION_STATES
								      : VERSION);
	put_u32(bytes + AT_DYNAMIC, header->dynamic | (uint32_t)header->state << STATE_SHIFT |
					    (uint32_t)header->rule << RULE_SHIFT);
	for (size_t i = 0; i < COUNT_OF(numbers); i++) {
		const char *field = (const char *)header + numbers[i].field;
		uint32_t low;
		uint64_t value;

		memcpy(&low, field, sizeof(low));
		if (numbers[i].nbytes == sizeof(low)) {
			put_u32(bytes + numbers[i].at, low);
			continue;
		}
		memcpy(&value, field, sizeof(value));
		put_u64(bytes + numbers[i].at, value);
	}
}

static int out_of_bounds(const char *name, uint64_t value, uint64_t least, uint64_t most,
			 struct nvs_error *error)
{
	return error_set(error, -EUCLEAN, "%s is %" PRIu64 ": allowed are %" PRIu64 " to %" PRIu64,
			 name, value, least, most);
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
	} reals[] = {
		{"the loss scale", header->scaler.scale, SCALE_MIN, SCALE_MAX},
		/* of an unfinished step: */
		{"the learning rate of the unfinished step", header->lr, 0, (double)FLT_MAX},
		{"the factor of the gradients", header->factor, 0, 1 / SCALE_MIN},
		{"the factor of clipping", header->clip, 0, 1},
	};

	size_t n = header->unfinished ? COUNT_OF(reals) : 1;

	for (size_t i = 0; i < n; i++)
		if (!(reals[i].value >= reals[i].least && reals[i].value <= reals[i].most))
			return error_set(error, -EUCLEAN, "%s is %g: allowed are %g to %g",
					 reals[i].name, reals[i].value, reals[i].least,
					 reals[i].most);
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
	if (get_u32(bytes + AT_VERSION) < VERSION || get_u32(bytes + AT_VERSION) > VERSION_RULES)
		return out_of_bounds("its version", get_u32(bytes + AT_VERSION), VERSION,
				     VERSION_RULES, error);
	for (size_t i = 0; i < COUNT_OF(numbers); i++) {
		char *field = (char *)header + numbers[i].field;
		bool is_short = numbers[i].nbytes == sizeof(uint32_t);
		uint32_t low = get_u32(bytes + numbers[i].at);
		uint64_t value = is_short ? low : get_u64(bytes + numbers[i].at);

		if (value < numbers[i].least || value > numbers[i].most)
			return out_of_bounds(numbers[i].name, value, numbers[i].least,
					     numbers[i].most, error);
		memcpy(field, is_short ? (void *)&low : &value, numbers[i].nbytes);
	}
	rc = check_flags(bytes, error);
	if (rc)
		return rc;
	header->dynamic = get_u32(bytes + AT_DYNAMIC) & 1;
	header->state = (enum nvs_optimizer_state)(get_u32(bytes + AT_DYNAMIC) >> STATE_SHIFT &
						   255);
	header->rule = (enum nvs_rule)(get_u32(bytes + AT_DYNAMIC) >> RULE_SHIFT);
	rc = check_related(header, nbytes, error);
	rc = rc ?: check_reals(header, error);
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
