/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool: one arena of host memory and the leases on it. The arena is mapped once, with huge
 * pages if available, bound to a NUMA node and locked as far as the limits allow. A lease has any
 * length, and any part of it may be released by itself. The owner serializes calls and does all
 * waiting.
 */
#ifndef POOL_POOL_H
#define POOL_POOL_H

#include "base/error.h"
#include "nvswap.h"
#include "topo/topo.h"

struct pool;

/* The words of errors and messages about an arena: what it is for, and what to change. */
struct arena_words {
	const char *subject;				   /* "the pool" */
	const char *size_key, *size_remedy;		   /* if there is too little memory */
	const char *lock_key, *lock_subject, *lock_remedy; /* if it can't be locked */
};

struct pool_options {
	uint64_t nbytes; /* rounded up to whole units */
	uint32_t unit;	 /* bytes; leases begin and end at multiples of it; a power of two */
	bool pin;	 /* lock all of it, or fail to open */
	const struct topo *topo;
	int node; /* the NUMA node to bind it to; -1: none */
	const struct nvs_log *log;
	const struct arena_words *words; /* for arena_open(); pool_open() sets it */
};

/* ---- arena.c: the memory, mapped, bound to a node and locked ---- */
struct arena {
	char *data;
	uint64_t nbytes; /* bytes of the mapping */
	uint64_t used;	 /* bytes of the pool, in whole pages; the rest is never touched */
	uint64_t locked; /* bytes locked, from the start */
	bool huge;	 /* explicit huge pages */
	bool transparent_huge;
	int node;
};

int arena_open(struct arena *arena, const struct pool_options *options, struct nvs_error *error);
void arena_close(struct arena *arena);
/* Asserts what must hold of an open arena. */
void arena_check(const struct arena *arena);

/* ---- pool.c ---- */
/* -ENOMEM: the error has the need, the limit and how to raise it. */
int pool_open(struct pool **pool, const struct pool_options *options, struct nvs_error *error);
void pool_close(struct pool *pool);

/* Allocates the bookkeeping for `n` more runs, so that lease and release never allocate. */
int pool_prepare(struct pool *pool, uint64_t n);
/* Leases `nbytes` > 0 (rounded up to the unit); NULL if no free run is long enough. */
void *pool_lease(struct pool *pool, uint64_t nbytes);
/* Releases a lease, or a part of one that begins at a multiple of the unit. */
void pool_release(struct pool *pool, void *data, uint64_t nbytes);
/* Counts a lease that has to wait, for the statistics. */
void pool_note_wait(struct pool *pool);

void *pool_data(const struct pool *pool);
uint64_t pool_bytes(const struct pool *pool);
/* Whether these bytes are the pool's. */
bool pool_has(const struct pool *pool, const char *data, uint64_t nbytes);
uint64_t pool_free_bytes(const struct pool *pool);
uint64_t pool_largest_free(struct pool *pool); /* bytes */
void pool_get_stats(struct pool *pool, struct nvs_pool_stats *stats);

#endif
