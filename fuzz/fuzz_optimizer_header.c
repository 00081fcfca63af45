/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input is the header of a kept optimizer with its marks. The first byte says whether its
 * counts are made to match its length, so that more of them get past that check. What is accepted
 * is within its bounds, and is written as the same bytes.
 */
#include <assert.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "allocations.h"
#include "base/little_endian.h"
#include "optim/state/header.h"
#include "optim/step/numbers.h"

/* Where things lie, by docs/store-format.md. */
enum {
	NTILES_AT = 32,
	NGRADIENTS_AT = 48,
	NGROUPS_AT = 56,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

/* One group; the rest of the marks are tiles and gradient tensors, in a ratio that the input has.
 */
static void match_counts(uint8_t *bytes, size_t nbytes)
{
	uint64_t marks = nbytes - HEADER_BYTES, ngradients;

	if (marks < GROUP_BYTES + 1)
		return;
	marks -= GROUP_BYTES;
	ngradients = bytes[NGRADIENTS_AT] % marks;
	put_u64(bytes + NTILES_AT, marks - ngradients);
	put_u64(bytes + NGRADIENTS_AT, ngradients);
	put_u64(bytes + NGROUPS_AT, 1);
}

static void check_marks(const struct header *header, const uint8_t *mark)
{
	for (uint64_t i = 0; i < header->ntiles + header->ngradients; i++)
		assert(mark[i] <= 1);
	mark += header->ntiles + header->ngradients;
	for (uint64_t i = 0; i < header->ngroups; i++) {
		uint64_t added = get_u64(mark + i * GROUP_BYTES);

		assert(added <= HEADER_COUNTS_MAX || added == GROUP_LENT);
	}
}

static void check_scaler(const struct scaler *scaler)
{
	assert(is_scale(scaler->scale));
	assert(scaler->iteration >= 0 && (uint64_t)scaler->iteration <= HEADER_COUNTS_MAX);
	assert(scaler->last_overflow >= -1 && scaler->last_overflow <= scaler->iteration);
	assert(scaler->hysteresis && scaler->hysteresis <= UINT32_MAX);
}

static void check_accepted(const struct header *header, const uint8_t *bytes, size_t nbytes)
{
	uint8_t again[HEADER_BYTES];

	assert(nbytes >= HEADER_BYTES && header_nbytes(header) == nbytes);
	assert(header->tile_numel && header->tile_numel % HEADER_UNIT == 0);
	assert(header->tile_numel <= HEADER_NUMEL_MAX);
	assert(header->ntiles && header->ntiles <= nbytes && header->noffloaded <= header->ntiles);
	assert(header->ngroups && header->ngroups <= nbytes && header->ngradients <= nbytes);
	assert(header->rule <= NVS_RULE_LION);
	assert(header->rule == NVS_RULE_ADAM || header->state == NVS_STATE_FP32);
	assert(header->gradient_dtype == NVS_F32 || header->gradient_dtype == NVS_BF16 ||
	       header->gradient_dtype == NVS_F16);
	assert(header->step <= STEPS_MAX - header->unfinished);
	if (header->unfinished) {
		assert(header->lr >= 0 && header->lr <= (double)FLT_MAX);
		assert(header->factor >= 0 && header->factor <= 0x1p24);
		assert(header->clip >= 0 && header->clip <= 1);
	}
	check_scaler(&header->scaler);
	check_marks(header, bytes + HEADER_BYTES);
	header_encode(header, again);
	assert(!memcmp(bytes, again, sizeof(again)));
}

/* The target's copies. */
size_t allocated_most(size_t nbytes)
{
	return 2 * nbytes + 4096;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	struct header header;
	uint8_t *bytes;

	if (!nbytes)
		return 0;
	/* Of exactly this length, so that a read behind it is found. */
	bytes = malloc(nbytes);
	assert(bytes);
	memcpy(bytes, data + 1, --nbytes);
	if (data[0] % 2 && nbytes > HEADER_BYTES)
		match_counts(bytes, nbytes);
	if (!header_decode(bytes, nbytes, &header, NULL))
		check_accepted(&header, bytes, nbytes);
	free(bytes);
	return 0;
}
