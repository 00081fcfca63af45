/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The label at the beginning of every member: which store it is part of, and which manifest is the
 * newest. docs/store-format.md has the layout.
 */
#ifndef STORE_LABEL_H
#define STORE_LABEL_H

#include "nvswap.h"

#define LABEL_BYTES   4096u
#define STORE_ID_SIZE 16

#define UNIT_MIN   512u
#define UNIT_MAX   65536u
#define STRIPE_MAX (UINT64_C(1) << 40)

struct label {
	uint8_t id[STORE_ID_SIZE]; /* random, of the store */
	uint32_t index, count;	   /* which of how many members */
	uint32_t rank;
	bool optimizer;	 /* of the two stores that a rank may have, the optimizer's */
	uint32_t unit;	 /* bytes */
	uint64_t stripe; /* bytes; of no meaning where count is 1 */
	bool kept;
	uint64_t generation; /* of the newest manifest known to be there, on member 0; 0: none */
};

void label_encode(const struct label *label, uint8_t bytes[LABEL_BYTES]);
/*
 * -ENODATA: all zeros. -EMEDIUMTYPE: not a label. -EPROTONOSUPPORT: of another version. -EUCLEAN: a
 * label of ours that was damaged.
 */
int label_decode(const uint8_t bytes[LABEL_BYTES], struct label *label);

#endif
