/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps the pool's memory on explicit huge pages if enough are free, else on transparent ones, binds
 * it to a node before it is touched, and locks and populates it. Leases are in pool.c.
 */
#include "pool/pool.h"

#include <assert.h>
#include <linux/mman.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory/huge_map.h"
#include "base/memory/room.h"
#include "base/numbers.h"
#include "base/state_checks.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* Locking less than this is not worth a system call. */
#define LOCK_BYTES_MIN (1ull << 20)

/* Mapping explicit huge pages reserves them: it fails if there are too few. */
static bool map_explicit_huge(struct arena *arena)
{
	uint64_t page = huge_page_bytes();
	uint64_t nbytes = align_up(arena->used, page);
	/* The page size is passed as its logarithm. */
	int size = __builtin_ctzll(page) << MAP_HUGE_SHIFT;
	void *data = MAP_FAILED;

	/* A short arena would waste most of a page that others need. */
	if (page > page_bytes() && arena->used >= page / 2)
		data = mmap(NULL, nbytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | size, -1, 0);
	if (data == MAP_FAILED)
		return false;
	arena->data = data;
	arena->nbytes = nbytes;
	arena->huge = true;
	return true;
}

static void bind_to_node(struct arena *arena, const struct pool_options *options)
{
	int rc;

	if (options->node < 0)
		return;
	rc = topo_bind_memory(options->topo, options->node, arena->data, arena->nbytes);
	if (!rc)
		arena->node = options->node;
	else
		log_say(options->log, NVS_LOG_INFO,
			"%s can't be bound to the drive's NUMA node %d: %s",
			options->words->subject, options->node, nvs_strerror(rc));
}

/* Populates the pages now, not amid a step; touches them if the kernel lacks the call. */
static int populate(const struct arena *arena)
{
	if (!madvise(arena->data, arena->used, MADV_POPULATE_WRITE))
		return 0;
	if (errno != EINVAL)
		return -errno;
	for (uint64_t i = 0; i < arena->used; i += page_bytes())
		((volatile char *)arena->data)[i] = 0;
	return 0;
}

static int lock_refused(const struct arena *arena, const struct pool_options *options,
			struct nvs_error *error)
{
	uint64_t limit = memlock_limit();
	char need[32], have[32];

	size_text(options->nbytes, need);
	size_text(limit, have);
	return error_about(error, -ENOMEM, options->words->lock_key, 0, 0,
			   "%s needs %s (%llu bytes) of locked memory, of which %llu bytes "
			   "could be locked: the limit is %s (ulimit -l). Raise it (`ulimit -l "
			   "unlimited`, memlock in /etc/security/limits.conf, LimitMEMLOCK= of the "
			   "systemd unit, --ulimit memlock=-1 of the container), or %s",
			   options->words->lock_subject, need, (unsigned long long)options->nbytes,
			   (unsigned long long)arena->locked,
			   limit == UINT64_MAX ? "none, so the machine lacks memory" : have,
			   options->words->lock_remedy);
}

static int no_memory(const struct pool_options *options, int rc, struct nvs_error *error)
{
	char need[32];

	return error_about(error, -ENOMEM, options->words->size_key, 0, 0,
			   "%s needs %s (%llu bytes) of memory, more than the machine or the "
			   "container has free (%s): %s",
			   options->words->subject, size_text(options->nbytes, need),
			   (unsigned long long)options->nbytes, nvs_strerror(rc),
			   options->words->size_remedy);
}

void arena_check(const struct arena *arena)
{
	if (!STATE_CHECKS)
		return;
	assert(arena->data && (uintptr_t)arena->data % page_bytes() == 0);
	assert(arena->used && arena->used <= arena->nbytes);
	assert(arena->used % page_bytes() == 0);
	assert(arena->locked <= arena->used);
	/* Explicit huge pages are never swapped. */
	assert(!arena->huge || (!arena->transparent_huge && arena->locked == arena->used));
	assert(arena->node >= -1);
}

static int map_and_lock(struct arena *arena, const struct pool_options *options,
			struct nvs_error *error)
{
	char locked[32], all[32];
	int rc;

	*arena = (struct arena){.node = -1, .used = round_to_pages(options->nbytes)};
	if (options->nbytes > INT64_MAX - 2 * huge_page_bytes())
		return no_memory(options, -ENOMEM, error);
	if (!map_explicit_huge(arena)) {
		/* Locking and populating would get the process killed. */
		rc = memory_room_check(options->nbytes, options->words->size_key,
				       options->words->subject, options->words->size_remedy, error);
		if (rc)
			return rc;
		arena->nbytes = arena->used;
		arena->data = huge_map(arena->used, &arena->transparent_huge);
		if (!arena->data)
			return no_memory(options, -ENOMEM, error);
	}
	/* After a fork, the parent's next write would move a shared page away from under the
	 * drive's DMA. */
	(void)madvise(arena->data, arena->nbytes, MADV_DONTFORK);
	bind_to_node(arena, options);

	uint64_t step = arena->used;

	/* Locks as many bytes from the start as the limit still allows. */
	if (arena->huge) {
		arena->locked = arena->used; /* explicit huge pages are never swapped */
	} else {
		do {
			uint64_t nbytes = min_u64(step, arena->used - arena->locked);

			if (!mlock(arena->data + arena->locked, nbytes))
				arena->locked += nbytes;
			else
				step = round_to_pages(nbytes / 2);
		} while (arena->locked < arena->used && step >= LOCK_BYTES_MIN);
	}
	if (options->pin && arena->locked < arena->used) {
		rc = lock_refused(arena, options, error);
		arena_close(arena);
		return rc;
	}
	rc = populate(arena);
	if (rc) {
		arena_close(arena);
		return no_memory(options, rc, error);
	}
	if (arena->locked < arena->used)
		log_say(options->log, NVS_LOG_INFO,
			"the memlock limit allows locking only %s of the pool's %s",
			size_text(arena->locked, locked), size_text(arena->used, all));
	arena_check(arena);
	return 0;
}

int arena_open(struct arena *arena, const struct pool_options *options, struct nvs_error *error)
{
	int turn = memory_room_turn(), rc = map_and_lock(arena, options, error);

	if (turn >= 0)
		close(turn);
	return rc;
}

void arena_close(struct arena *arena)
{
	if (arena->data)
		munmap(arena->data, arena->nbytes);
	arena->data = NULL;
}
