/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases on the arena: first fit at the lowest address, in units.
 *
 * A lease is contiguous, so one of a third of the pool can find two thirds in use and still have
 * to wait. Any part of it can be freed by itself: a run of tensors is leased at once, and each
 * frees its own. Parts that lie side by side and are released one after another are freed at once,
 * at the latest before the next lease.
 */
#include "pool/pool.h"

#include <assert.h>
#include <stdlib.h>

#include "base/memory/extents.h"
#include "base/numbers.h"
#include "base/state_checks.h"

struct pool {
	struct arena arena;
	struct extents *extents;
	uint32_t unit, unit_shift; /* a power of two */
	uint64_t nbytes, used, used_max;
	/* The units released last, which `extents` does not have yet: leases side by side, released
	 * one after another, are freed at once. */
	uint64_t released_at, released;
	uint64_t waits, used_at_first_wait;
};

static uint64_t units(const struct pool *pool, uint64_t nbytes)
{
	return (nbytes + pool->unit - 1) >> pool->unit_shift;
}

/* What is leased and what is free make up the pool. */
static void leases_check(const struct pool *pool)
{
	if (!STATE_CHECKS)
		return;

	uint64_t unused = (extents_free_units(pool->extents) + pool->released) * pool->unit;

	assert(extents_size(pool->extents) * pool->unit == pool->nbytes);
	assert(pool->used + unused == pool->nbytes);
	assert(pool->used <= pool->used_max && pool->used_max <= pool->nbytes);
	assert(pool->used_at_first_wait <= pool->used_max);
	assert(pool->waits || !pool->used_at_first_wait);
}

static const struct arena_words words = {
	.subject = "the pool",
	.size_key = "buffer_size",
	.size_remedy = "lower buffer_count x buffer_size",
	.lock_key = "pin_memory",
	.lock_subject = "pin_memory",
	.lock_remedy = "lower buffer_count x buffer_size, or set pin_memory to false",
};

int pool_open(struct pool **out, const struct pool_options *options, struct nvs_error *error)
{
	struct pool *pool = calloc(1, sizeof(*pool));
	struct pool_options whole = *options;
	int rc;

	if (!pool)
		return error_no_memory(error, "opening the pool");
	pool->unit = options->unit;
	pool->unit_shift = (uint32_t)__builtin_ctz(options->unit);
	pool->nbytes = whole.nbytes = units(pool, options->nbytes) * options->unit;
	whole.words = &words;
	rc = arena_open(&pool->arena, &whole, error);
	if (rc) {
		free(pool);
		return rc;
	}
	pool->extents = extents_open(pool->nbytes / pool->unit);
	if (!pool->extents) {
		pool_close(pool);
		return error_no_memory(error, "opening the pool");
	}
	leases_check(pool);
	*out = pool;
	return 0;
}

void pool_close(struct pool *pool)
{
	if (!pool)
		return;
	extents_close(pool->extents);
	arena_close(&pool->arena);
	free(pool);
}

int pool_prepare(struct pool *pool, uint64_t n)
{
	return extents_prepare(pool->extents, n);
}

static void free_released(struct pool *pool)
{
	int rc;

	if (!pool->released)
		return;
	rc = extents_free(pool->extents, pool->released_at, pool->released);
	assert(!rc);
	(void)rc;
	pool->released = 0;
	leases_check(pool);
}

void *pool_lease(struct pool *pool, uint64_t nbytes)
{
	uint64_t offset;

	assert(nbytes);
	free_released(pool);
	if (extents_alloc(pool->extents, units(pool, nbytes), &offset))
		return NULL;
	pool->used += units(pool, nbytes) * pool->unit;
	pool->used_max = max_u64(pool->used_max, pool->used);
	assert(offset * pool->unit <= pool->nbytes - nbytes);
	leases_check(pool);
	return pool->arena.data + offset * pool->unit;
}

void pool_release(struct pool *pool, void *data, uint64_t nbytes)
{
	uint64_t offset = (uint64_t)((char *)data - pool->arena.data);
	uint64_t at = offset >> pool->unit_shift, n = units(pool, nbytes);

	assert(at * pool->unit == offset && offset < pool->nbytes);
	assert(nbytes && nbytes <= pool->nbytes - offset);
	assert(n * pool->unit <= pool->used);
	assert(!pool->released || at + n <= pool->released_at ||
	       at >= pool->released_at + pool->released);
	if (at != pool->released_at + pool->released)
		free_released(pool);
	if (!pool->released)
		pool->released_at = at;
	pool->released += n;
	pool->used -= n * pool->unit;
	leases_check(pool);
}

void pool_note_wait(struct pool *pool)
{
	if (!pool->waits++)
		pool->used_at_first_wait = pool->used;
}

void *pool_data(const struct pool *pool)
{
	return pool->arena.data;
}

bool pool_has(const struct pool *pool, const char *data, uint64_t nbytes)
{
	const char *base = pool->arena.data;

	return data >= base && nbytes <= pool->nbytes &&
	       (uint64_t)(data - base) <= pool->nbytes - nbytes;
}

uint64_t pool_bytes(const struct pool *pool)
{
	return pool->nbytes;
}

uint64_t pool_free_bytes(const struct pool *pool)
{
	return pool->nbytes - pool->used;
}

uint64_t pool_largest_free(struct pool *pool)
{
	free_released(pool);
	return extents_largest(pool->extents) * pool->unit;
}

void pool_get_stats(struct pool *pool, struct nvs_pool_stats *stats)
{
	arena_check(&pool->arena);
	*stats = (struct nvs_pool_stats){
		.bytes = pool->nbytes,
		.used = pool->used,
		.used_max = pool->used_max,
		.largest_free = pool_largest_free(pool),
		.locked = min_u64(pool->arena.locked, pool->nbytes),
		.huge = pool->arena.huge ? pool->nbytes : 0,
		.transparent_huge = pool->arena.transparent_huge,
		.numa_node = pool->arena.node,
		.waits = pool->waits,
		.used_at_first_wait = pool->used_at_first_wait,
	};
}
