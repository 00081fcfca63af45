/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encodes and decodes labels. All fields that change lie in the first 512 bytes, which drives write
 * atomically. No I/O here.
 */
#include "store/label.h"

#include <errno.h>
#include <xxhash.h>

#include "store/disk.h"

static const uint8_t magic[8] = {'N', 'V', 'S', 'W', 'A', 'P', 0, 'L'};

enum {
	VERSION = 3,
	AT_VERSION = 8,
	AT_FLAGS = 12,
	AT_ID = 16,
	AT_INDEX = 32,
	AT_COUNT = 36,
	AT_RANK = 40,
	AT_UNIT = 44,
	AT_STRIPE = 48,
	AT_GENERATION = 56,
	AT_CHECKSUM = 504, /* the last of the fields that change */

	FLAG_KEPT = 1,
	FLAG_OPTIMIZER = 2,
	FLAGS = FLAG_KEPT | FLAG_OPTIMIZER,
};

/* The checksum of the block with zeros in place of the checksum. */
static uint64_t checksum_of(const uint8_t bytes[LABEL_BYTES])
{
	uint8_t copy[LABEL_BYTES];

	memcpy(copy, bytes, sizeof(copy));
	put_u64(copy + AT_CHECKSUM, 0);
	return XXH3_64bits(copy, sizeof(copy));
}

static bool is_consistent(const struct label *label)
{
	return label->unit >= UNIT_MIN && label->unit <= UNIT_MAX &&
	       !(label->unit & (label->unit - 1)) && label->count <= NVS_PATHS_MAX &&
	       label->index < label->count && label->stripe % label->unit == 0 &&
	       label->stripe <= STRIPE_MAX && (label->stripe || label->count == 1);
}

void label_check(const struct label *label)
{
	assert(is_consistent(label));
}

void label_encode(const struct label *label, uint8_t bytes[LABEL_BYTES])
{
	uint32_t flags = (label->kept ? FLAG_KEPT : 0) | (label->optimizer ? FLAG_OPTIMIZER : 0);

	label_check(label);
	memset(bytes, 0, LABEL_BYTES);
	memcpy(bytes, magic, sizeof(magic));
	put_u32(bytes + AT_VERSION, VERSION);
	put_u32(bytes + AT_FLAGS, flags);
	memcpy(bytes + AT_ID, label->id, STORE_ID_SIZE);
	put_u32(bytes + AT_INDEX, label->index);
	put_u32(bytes + AT_COUNT, label->count);
	put_u32(bytes + AT_RANK, label->rank);
	put_u32(bytes + AT_UNIT, label->unit);
	put_u64(bytes + AT_STRIPE, label->stripe);
	put_u64(bytes + AT_GENERATION, label->generation);
	put_u64(bytes + AT_CHECKSUM, checksum_of(bytes));
}

int label_decode(const uint8_t bytes[LABEL_BYTES], struct label *label)
{
	if (bytes[0] == 0 && !memcmp(bytes, bytes + 1, LABEL_BYTES - 1))
		return -ENODATA;
	if (memcmp(bytes, magic, sizeof(magic)) != 0)
		return -EMEDIUMTYPE;
	if (get_u64(bytes + AT_CHECKSUM) != checksum_of(bytes))
		return -EUCLEAN;
	if (get_u32(bytes + AT_VERSION) != VERSION)
		return -EPROTONOSUPPORT;

	uint32_t flags = get_u32(bytes + AT_FLAGS);
	uint8_t written[LABEL_BYTES];

	*label = (struct label){
		.index = get_u32(bytes + AT_INDEX),
		.count = get_u32(bytes + AT_COUNT),
		.rank = get_u32(bytes + AT_RANK),
		.unit = get_u32(bytes + AT_UNIT),
		.stripe = get_u64(bytes + AT_STRIPE),
		.kept = flags & FLAG_KEPT,
		.optimizer = flags & FLAG_OPTIMIZER,
		.generation = get_u64(bytes + AT_GENERATION),
	};
	memcpy(label->id, bytes + AT_ID, STORE_ID_SIZE);
	if (!is_consistent(label) || flags & ~(uint32_t)FLAGS)
		return -EUCLEAN;
	/* It encodes what the assertions there accept. */
	label_encode(label, written);
	return memcmp(bytes, written, sizeof(written)) != 0 ? -EUCLEAN : 0;
}
