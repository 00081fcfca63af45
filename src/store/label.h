/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The label of a member, of which each has two copies: its store, and the newest manifest.
 * docs/store-format.md has the layout.
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
	uint8_t id[STORE_ID_SIZE]; /* the store's random id */
	uint32_t index, count;	   /* the member's index, and the number of members */
	uint32_t rank;
	bool optimizer;	 /* the store is of the optimizer, not of parameters */
	uint32_t unit;	 /* bytes */
	uint64_t stripe; /* bytes; ignored if count is 1 */
	bool kept;
	uint64_t generation; /* of the newest manifest on member 0; 0: none */
};

/* Asserts what must hold of a label that was made here, or decoded. */
void label_check(const struct label *label);
void label_encode(const struct label *label, uint8_t bytes[LABEL_BYTES]);
/*
 * -ENODATA: all zeros. -EMEDIUMTYPE: not a label. -EPROTONOSUPPORT: a label of another version.
 * -EUCLEAN: a damaged label.
 */
int label_decode(const uint8_t bytes[LABEL_BYTES], struct label *label);

#endif
