/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store: one flat range of bytes over one preallocated file (or raw block device) per path,
 * striped when there are several; the extents in it; its lock; and, if it is kept, its manifest.
 * It moves no tensor data itself: store_file() is what transfers are made to.
 */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include "nvswap.h"

struct store;

struct store_options {
	const char *const *paths; /* directories or block devices */
	unsigned npaths;	  /* 0: the store is in host memory (memfd), for device "cpu" */
	uint32_t rank;		  /* which store under the paths: rank<N> */
	bool optimizer;		  /* the rank's other store: rank<N>-optimizer */
	uint64_t stripe_size;	  /* bytes; rounded up to a multiple of the unit */
	bool keep;
	const struct nvs_log *log; /* outlives the store */
};

/*
 * Makes or finds the store and locks it. A directory gets nvswap/rank<N>/ (0700) with the file
 * `data` and, if kept, the two manifests (0600), opened without following links. Errors as
 * nvs_open.
 */
int store_open(struct store **store, struct nvs_aio *aio, const struct store_options *options,
	       struct nvs_error *error);
/* Closes it; unlinks it unless it is kept. No transfer may be in flight. Does not commit. */
void store_close(struct store *store);

struct nvs_file *store_file(struct store *store); /* offset 0 is the first byte for tensors */
uint32_t store_unit(
	const struct store *store); /* extents begin and end at multiples of it, bytes */
uint64_t store_bytes(const struct store *store); /* reserved on the drives */
bool store_direct(const struct store *store);
const char *store_path(const struct store *store); /* of the first member, for messages */

/*
 * Reserves an extent (rounded up to the unit) for each of nbytes[0..n-1], side by side and in order
 * wherever the space allows, and the space on the drives: offsets[i]. A length of 0 takes no space.
 * All or none. -ENOSPC with how much is needed and how much there is.
 */
int store_reserve(struct store *store, const uint64_t *nbytes, size_t n, uint64_t *offsets,
		  struct nvs_error *error);
/* Gives back an extent that store_reserve gave or the manifest named; those of length 0 too. */
void store_release(struct store *store, uint64_t offset, uint64_t nbytes);

/* One tensor as the manifest knows it. */
struct store_entry {
	const char *name;
	enum nvs_dtype dtype;
	uint64_t numel, nbytes;
	uint64_t offset; /* of the extent with its contents */
	uint64_t spare;	 /* of its other one, as long, which the next contents go to */
	bool written;	 /* it has contents */
	bool has_checksum;
	uint64_t checksum; /* XXH3, 64 bits, of its nbytes */
};

/* What the kept store held when it was opened; none in a new one. Valid until store_close. */
const struct store_entry *store_entries(const struct store *store, size_t *n);
/*
 * Makes all completed writes durable, then replaces the manifest by these entries, of which either
 * the old or the new one is found after a crash. Without `keep`: does nothing. Nothing may be
 * written meanwhile. Where the entries are those of the last commit nothing is written here either.
 * On error the old manifest holds. Where that can't be known any more (making the data durable has
 * failed, so that what had been written may be lost, or a manifest was neither written nor taken
 * back) every later commit is -EIO.
 */
int store_commit(struct store *store, const struct store_entry *entries, size_t n,
		 struct nvs_error *error);

#endif
