/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool: one arena of host memory, mapped once, backed by huge pages where there are some, bound
 * to a NUMA node and locked as far as it may be, and the leases on it. A lease is any length, and
 * any part of it may be given back by itself. Not locked and never waiting: its owner does both.
 */
#ifndef POOL_POOL_H
#define POOL_POOL_H

#include "nvswap.h"
#include "topo/topo.h"

struct pool;

struct pool_options {
	uint64_t nbytes; /* rounded up to whole units */
	uint32_t unit;	 /* leases begin and end at multiples of it, bytes; a power of two */
	bool pin;	 /* all of it is locked, or opening fails */
	const struct topo *topo;
	int node; /* to bind it to; -1: none */
	const struct nvs_log *log;
};

/* 0; -ENOMEM with what was needed, what the limit is and how to raise it. */
int pool_open(struct pool **pool, const struct pool_options *options, struct nvs_error *error);
void pool_close(struct pool *pool);

/* Makes sure that leases and returns of `n` more runs find the memory to keep their books. */
int pool_prepare(struct pool *pool, uint64_t n);
/* Memory for `nbytes` > 0 (rounded up to the unit); NULL where no free run is long enough. */
void *pool_lease(struct pool *pool, uint64_t nbytes);
/* Gives back a lease or a part of one that begins at a multiple of the unit. */
void pool_return(struct pool *pool, void *data, uint64_t nbytes);
/* Notes that a lease has to wait, for the statistics. */
void pool_note_wait(struct pool *pool);

void *pool_data(const struct pool *pool);
uint64_t pool_bytes(const struct pool *pool);
uint64_t pool_locked(const struct pool *pool);	     /* bytes from its start that are locked */
uint64_t pool_largest_free(const struct pool *pool); /* bytes */
void pool_get_stats(const struct pool *pool, struct nvs_pool_stats *stats);

#endif
