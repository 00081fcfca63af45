/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a kept optimizer's store, which docs/store-format.md describes: encoded
 * little-endian, and checked when it is decoded. No I/O here.
 */
#ifndef OPTIM_HEADER_H
#define OPTIM_HEADER_H

#include "optim/step/numbers.h"

#define HEADER_BYTES	 144u
#define HEADER_UNIT	 1024u		     /* tiles are a multiple of it, in elements */
#define HEADER_NUMEL_MAX (UINT64_C(1) << 56) /* elements of a tile */
#define HEADER_COUNTS_MAX                                                                          \
	(UINT64_C(1) << 53) /* elements that were added, updates of the loss scale */

/* What a header holds before the marks. */
struct header {
	bool unfinished, dynamic; /* dynamic: the loss scale */
	uint64_t layout;	  /* checksum of the groups' names and places */
	uint64_t tile_numel, ntiles, noffloaded, ngradients, ngroups;
	enum nvs_dtype gradient_dtype;
	/* of the moments: NVS_STATE_FP32, NVS_STATE_BF16 or NVS_STATE_8BIT; the master weights are
	 * whole */
	enum nvs_optimizer_state state;
	enum nvs_rule rule; /* whose states there are */
	uint64_t step;
	struct scaler scaler;
	/* of an unfinished step: */
	double lr, factor, norm, clip;
};

/* The marks behind it: a byte for each tile (1: done) and gradient tile (1: valid), and 8 bytes for
 * each group: the elements that were added, or this. */
#define GROUP_LENT  UINT64_MAX
#define GROUP_BYTES 8u

/* The bytes of a header with its marks. */
static inline uint64_t header_nbytes(const struct header *header)
{
	return HEADER_BYTES + header->ntiles + header->ngradients + GROUP_BYTES * header->ngroups;
}

/* Writes the first HEADER_BYTES; the marks are the caller's. */
void header_encode(const struct header *header, uint8_t *bytes);
/* Decodes and checks a header with its marks. -EUCLEAN: it is invalid; the error says which number
 * is wrong, and its bounds. */
int header_decode(const uint8_t *bytes, uint64_t nbytes, struct header *header,
		  struct nvs_error *error);

#endif
