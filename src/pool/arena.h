/* SPDX-License-Identifier: Apache-2.0 */
/* The pool's memory: mapping, huge pages, NUMA binding and locking. */
#ifndef POOL_ARENA_H
#define POOL_ARENA_H

#include "pool/pool.h"

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

#endif
