/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/arena.h"

#include <errno.h>
#include <linux/mman.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* What transparent huge pages and the page tables below them are aligned to, on x86-64 and others.
 */
#define HUGE_BYTES (2ull << 20)
/* Less than this is not worth a lock by itself. */
#define LOCK_BYTES_MIN (1ull << 20)

static uint64_t round_up(uint64_t n, uint64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

static uint64_t page_bytes(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

static void *map(uint64_t nbytes, int flags)
{
	void *data = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags,
			  -1, 0);

	if (data == MAP_FAILED)
		return NULL;
	return data;
}

/* Explicit huge pages are reserved by the mapping: it fails where there are too few. */
static bool map_huge(struct arena *arena, uint64_t nbytes)
{
	arena->nbytes = round_up(nbytes, HUGE_BYTES);
	arena->data = map(arena->nbytes, MAP_HUGETLB | MAP_HUGE_2MB);
	arena->huge = arena->data != NULL;
	return arena->huge;
}

/* Begins at a huge page's boundary, so that transparent ones can back all of it. */
static bool map_aligned(struct arena *arena, uint64_t nbytes)
{
	char *data, *begin;
	uint64_t before;

	arena->nbytes = round_up(nbytes, HUGE_BYTES);
	data = map(arena->nbytes + HUGE_BYTES, 0);
	if (!data)
		return false;
	before = round_up((uintptr_t)data, HUGE_BYTES) - (uintptr_t)data;
	begin = data + before;
	if (before)
		munmap(data, before);
	if (before < HUGE_BYTES)
		munmap(begin + arena->nbytes, HUGE_BYTES - before);
	arena->data = begin;
	arena->transparent_huge = !madvise(begin, arena->nbytes, MADV_HUGEPAGE);
	return true;
}

static void bind_to_node(struct arena *arena, const struct pool_options *options)
{
	int rc;

	arena->node = -1;
	if (options->node < 0)
		return;
	rc = topo_bind_memory(options->topo, options->node, arena->data, arena->nbytes);
	if (!rc)
		arena->node = options->node;
	else
		log_say(options->log, NVS_LOG_INFO,
			"the pool can't be bound to the drive's NUMA node %d: %s", options->node,
			nvs_strerror(rc));
}

/* Locks as many bytes from the start as the limit, of which others have had some, still lets it. */
static void lock_what_may_be(struct arena *arena)
{
	uint64_t step = arena->used;

	if (arena->huge) {
		arena->locked = arena->used; /* explicit huge pages are never paged out */
		return;
	}
	do {
		uint64_t left = arena->used - arena->locked;
		uint64_t nbytes = step < left ? step : left;

		if (!mlock(arena->data + arena->locked, nbytes))
			arena->locked += nbytes;
		else
			step = round_up(nbytes / 2, page_bytes());
	} while (arena->locked < arena->used && step >= LOCK_BYTES_MIN);
}

/* Pages are taken now and not in the middle of a step; a kernel without the call touches them. */
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
	return error_about(
		error, -ENOMEM, "pin_memory", 0, 0,
		"pin_memory needs %s (%llu bytes) of locked memory, of which %llu bytes "
		"could be locked: the limit is %s (ulimit -l). Raise it (`ulimit -l "
		"unlimited`, memlock in /etc/security/limits.conf, LimitMEMLOCK= of the "
		"systemd unit, --ulimit memlock=-1 of the container), or lower "
		"buffer_count x buffer_size, or set pin_memory to false",
		need, (unsigned long long)options->nbytes, (unsigned long long)arena->locked,
		limit == UINT64_MAX ? "none, so the machine's memory is what it lacks" : have);
}

static int no_memory(const struct pool_options *options, int rc, struct nvs_error *error)
{
	char need[32];

	return error_about(error, -ENOMEM, "buffer_size", 0, 0,
			   "the pool needs %s (%llu bytes) of memory, which the machine or the "
			   "container's limit has not left (%s): lower buffer_count x buffer_size",
			   size_text(options->nbytes, need), (unsigned long long)options->nbytes,
			   nvs_strerror(rc));
}

int arena_open(struct arena *arena, const struct pool_options *options, struct nvs_error *error)
{
	char locked[32], all[32];
	int rc;

	*arena = (struct arena){.node = -1, .used = round_up(options->nbytes, page_bytes())};
	if (options->nbytes > INT64_MAX - 2 * HUGE_BYTES)
		return no_memory(options, -ENOMEM, error);
	if (!map_huge(arena, options->nbytes) &&
	    (options->nbytes > memory_available() || !map_aligned(arena, options->nbytes)))
		return no_memory(options, -ENOMEM, error);
	/* A child that came to share its pages would have the next writes to them copied away from
	 * under the drive. */
	(void)madvise(arena->data, arena->nbytes, MADV_DONTFORK);
	bind_to_node(arena, options);
	lock_what_may_be(arena);
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
			"of the pool's %s, the memlock limit let %s be "
			"locked",
			size_text(arena->used, all), size_text(arena->locked, locked));
	return 0;
}

void arena_close(struct arena *arena)
{
	if (arena->data)
		munmap(arena->data, arena->nbytes);
	arena->data = NULL;
}
