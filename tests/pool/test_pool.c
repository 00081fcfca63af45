/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool: leases of any length against a reference model, and its memory: locked as far as the
 * limits allow, on huge pages if available.
 */
#include "base/files.h"
#include "base/numbers.h"
#include "pool/pool.h"
#include "support/support.h"

#define KIB 1024ull
#define MIB (1024 * KIB)

#define HEARD_BYTES 1024

static void hear(void *arg, enum nvs_log_level level, const char *text)
{
	char *heard = arg;
	size_t used = strlen(heard);

	(void)level;
	snprintf(heard + used, HEARD_BYTES - used, "%s\n", text);
}

static struct pool *open_pool(uint64_t nbytes, uint32_t unit)
{
	const struct pool_options options = {.nbytes = nbytes, .unit = unit, .node = -1};
	struct nvs_error error = {.size = sizeof(error)};
	struct pool *pool = NULL;

	SUCCEEDS(pool_open(&pool, &options, &error), &error);
	return pool;
}

static struct nvs_pool_stats stats_of(struct pool *pool)
{
	struct nvs_pool_stats stats;

	pool_get_stats(pool, &stats);
	return stats;
}

/* ---- Leases ---- */

#define UNIT	   4096u
#define POOL_UNITS 512u
#define LEASES_MAX 64u

struct lease {
	char *data;
	uint64_t nbytes;
	unsigned char mark;
};

/* The number of the lease that holds each unit; 0: free. */
static unsigned owners[POOL_UNITS];

static uint64_t units_of(uint64_t nbytes)
{
	return (nbytes + UNIT - 1) / UNIT;
}

static uint64_t longest_free(void)
{
	uint64_t longest = 0, run = 0;

	for (unsigned i = 0; i < POOL_UNITS; i++) {
		run = owners[i] ? 0 : run + 1;
		longest = max_u64(longest, run);
	}
	return longest;
}

static uint64_t used_units(void)
{
	uint64_t used = 0;

	for (unsigned i = 0; i < POOL_UNITS; i++)
		used += owners[i] != 0;
	return used;
}

static void own(const struct pool *pool, const char *data, uint64_t nbytes, unsigned from,
		unsigned to)
{
	uint64_t first = (uint64_t)(data - (const char *)pool_data(pool)) / UNIT;

	for (uint64_t i = first; i < first + units_of(nbytes); i++) {
		assert_true(i < POOL_UNITS);
		assert_int_equal(owners[i], from);
		owners[i] = to;
	}
}

static uint64_t random_nbytes(uint64_t *random)
{
	static const uint64_t some[] = {
		1, UNIT - 1, UNIT, UNIT + 1, 17 * UNIT - 1, 17 * UNIT + 1, 100 * UNIT, 200 * UNIT};

	if (random_below(random, 2))
		return some[random_below(random, COUNT(some))];
	return 1 + random_below(random, 40 * (uint64_t)UNIT);
}

/* A lease succeeds if and only if a free run is long enough, at a multiple of the unit. */
static bool lease_one(struct pool *pool, struct lease *lease, unsigned number, uint64_t *random)
{
	uint64_t nbytes = random_nbytes(random);
	char *data = pool_lease(pool, nbytes);

	assert_int_equal(data != NULL, longest_free() >= units_of(nbytes));
	if (!data)
		return false;
	*lease = (struct lease){data, nbytes, (unsigned char)random_next(random)};
	assert_int_equal((data - (char *)pool_data(pool)) % UNIT, 0);
	assert_int_equal((uintptr_t)data % UNIT, 0);
	own(pool, data, nbytes, 0, number);
	memset(data, lease->mark, nbytes);
	return true;
}

/* Releases the whole lease, or its head or tail; the rest must keep its contents. */
static void return_some(struct pool *pool, struct lease *lease, unsigned number, uint64_t *random)
{
	uint64_t units = units_of(lease->nbytes), part = 1 + random_below(random, units);

	for (uint64_t i = 0; i < lease->nbytes; i++)
		if ((unsigned char)lease->data[i] != lease->mark)
			fail_msg("another lease has written to lease %u", number);
	if (part == units) {
		own(pool, lease->data, lease->nbytes, number, 0);
		pool_release(pool, lease->data, lease->nbytes);
		lease->data = NULL;
	} else if (random_below(random, 2)) {
		own(pool, lease->data, part * UNIT, number, 0);
		pool_release(pool, lease->data, part * UNIT);
		lease->data += part * UNIT;
		lease->nbytes -= part * UNIT;
	} else {
		uint64_t kept = (units - part) * UNIT;

		own(pool, lease->data + kept, lease->nbytes - kept, number, 0);
		pool_release(pool, lease->data + kept, lease->nbytes - kept);
		lease->nbytes = kept;
	}
}

TEST(leases_never_overlap_and_fit_any_free_run)
{
	uint64_t random = random_seed(__func__), used_max = 0, refused = 0;
	struct pool *pool = open_pool(POOL_UNITS * UNIT, UNIT);
	struct lease leases[LEASES_MAX] = {{0}};

	memset(owners, 0, sizeof(owners));
	for (unsigned step = 0; step < 4000; step++) {
		unsigned i = (unsigned)random_below(&random, LEASES_MAX);
		struct nvs_pool_stats stats;

		if (leases[i].data)
			return_some(pool, &leases[i], i + 1, &random);
		else
			refused += !lease_one(pool, &leases[i], i + 1, &random);
		used_max = max_u64(used_max, used_units());
		stats = stats_of(pool);
		assert_int_equal(stats.used, used_units() * UNIT);
		assert_int_equal(stats.used_max, used_max * UNIT);
		assert_int_equal(stats.largest_free, longest_free() * UNIT);
	}
	assert_true(refused > 100);
	for (unsigned i = 0; i < LEASES_MAX; i++)
		if (leases[i].data)
			pool_release(pool, leases[i].data, leases[i].nbytes);
	assert_int_equal(stats_of(pool).used, 0);
	assert_int_equal(stats_of(pool).largest_free, POOL_UNITS * UNIT);
	pool_close(pool);
}

TEST(the_whole_pool_is_one_lease)
{
	struct pool *pool = open_pool(3 * MIB + 1, UNIT);
	char *data;

	assert_int_equal(pool_bytes(pool), 3 * MIB + UNIT);
	assert_null(pool_lease(pool, 3 * MIB + UNIT + 1));
	data = pool_lease(pool, 3 * MIB + 1);
	assert_ptr_equal(data, pool_data(pool));
	memset(data, 1, pool_bytes(pool));
	assert_null(pool_lease(pool, 1));
	assert_int_equal(stats_of(pool).largest_free, 0);
	/* Any part of a lease can be released separately. */
	pool_release(pool, data + 5 * UNIT, UNIT);
	pool_release(pool, data + 7 * UNIT, UNIT);
	assert_int_equal(stats_of(pool).largest_free, UNIT);
	assert_null(pool_lease(pool, UNIT + 1));
	pool_release(pool, data + 6 * UNIT, UNIT);
	assert_int_equal(stats_of(pool).largest_free, 3 * UNIT);
	assert_ptr_equal(pool_lease(pool, 2 * UNIT + 1), data + 5 * UNIT);
	pool_close(pool);
	pool_close(NULL);
	/* A unit longer than a huge page is backed to its end. */
	pool = open_pool(1, 8u << 20);
	assert_int_equal(pool_bytes(pool), 8 * MIB);
	memset(pool_lease(pool, 1), 1, 8 * MIB);
	pool_close(pool);
}

TEST(statistics_count_waits_and_the_use_at_the_first)
{
	struct pool *pool = open_pool(MIB, UNIT);
	char *data = pool_lease(pool, 5 * UNIT);

	assert_int_equal(stats_of(pool).waits, 0);
	assert_int_equal(stats_of(pool).used_at_first_wait, 0);
	pool_note_wait(pool);
	pool_release(pool, data, UNIT);
	pool_note_wait(pool);
	assert_int_equal(stats_of(pool).waits, 2);
	assert_int_equal(stats_of(pool).used_at_first_wait, 5 * UNIT);
	assert_int_equal(stats_of(pool).used_max, 5 * UNIT);
	assert_int_equal(stats_of(pool).bytes, MIB);
	assert_int_equal(stats_of(pool).numa_node, -1);
	pool_close(pool);
}

/* ---- Memory ---- */

static int open_pinned(uint64_t nbytes, struct nvs_error *error, struct nvs_pool_stats *stats)
{
	const struct pool_options options = {
		.nbytes = nbytes, .unit = UNIT, .pin = true, .node = -1};
	struct pool *pool;
	int rc = pool_open(&pool, &options, error);

	if (rc)
		return rc;
	pool_get_stats(pool, stats);
	pool_close(pool);
	return 0;
}

static int pin_under_a_limit(void *arg)
{
	struct nvs_pool_stats stats;
	struct nvs_error error = {.size = sizeof(error)};

	(void)arg;
	if (limit_memlock(5 * MIB))
		return CHILD_SKIPPED;
	EXPECT(open_pinned(64 * MIB, &error, &stats) == -ENOMEM);
	EXPECT(error.code == -ENOMEM && !strcmp(error.subject, "pin_memory"));
	EXPECT(strstr(error.text, "64 MiB (67108864 bytes)"));
	EXPECT(strstr(error.text, "limit is 5 MiB"));
	EXPECT(strstr(error.text, "ulimit -l unlimited") && strstr(error.text, "LimitMEMLOCK="));
	EXPECT(strstr(error.text, "set pin_memory to false"));
	/* One byte over the limit fails, exactly the limit succeeds. */
	EXPECT(open_pinned(5 * MIB + 1, &error, &stats) == -ENOMEM);
	EXPECT(!open_pinned(5 * MIB, &error, &stats));
	EXPECT(stats.locked == 5 * MIB && stats.bytes == 5 * MIB);
	/* Locks no more than requested, whatever the size of a huge page. */
	EXPECT(!open_pinned(3 * MIB + 1, &error, &stats));
	EXPECT(stats.locked == stats.bytes && stats.bytes == 3 * MIB + UNIT);
	EXPECT(!open_pinned(1, &error, &stats));
	EXPECT(stats.locked == UNIT);
	return CHILD_OK;
}

TEST(pin_memory_locks_the_pool_or_names_limit_need_and_remedy)
{
	if (!mlock_locks())
		SKIP("mlock does nothing here, as under a sanitizer");
	pass_in_child(pin_under_a_limit, NULL, "the memlock limit can't be set here");
}

static int open_under_a_limit(void *arg)
{
	char heard[HEARD_BYTES] = "";
	const struct nvs_log log = {hear, heard};
	const struct pool_options options = {
		.nbytes = 64 * MIB, .unit = UNIT, .node = -1, .log = &log};
	char *other = mmap(NULL, 3 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			   0);
	struct nvs_error error = {.size = sizeof(error)};
	struct pool *pool;
	char *data;

	(void)arg;
	/*
	 * Other memory uses 3 of the 6 MiB. The pool locks the rest, except a remainder too small
	 * for a system call.
	 */
	if (limit_memlock(6 * MIB) || other == MAP_FAILED || mlock(other, 3 * MIB))
		return CHILD_SKIPPED;
	EXPECT(!pool_open(&pool, &options, &error));
	EXPECT(stats_of(pool).locked > 2 * MIB && stats_of(pool).locked <= 3 * MIB);
	EXPECT(file_number("/proc/self/status", "VmLck:", 0) * KIB ==
	       stats_of(pool).locked + 3 * MIB);
	EXPECT(strstr(heard, "of the pool's 64 MiB"));
	EXPECT(strstr(heard, "the memlock limit allows locking only"));
	data = pool_lease(pool, 64 * MIB);
	EXPECT(data);
	memset(data, 1, 64 * MIB);
	pool_close(pool);
	EXPECT(file_number("/proc/self/status", "VmLck:", 0) * KIB == 3 * MIB);
	return CHILD_OK;
}

TEST(without_pin_memory_the_pool_is_locked_up_to_the_limit)
{
	if (!mlock_locks())
		SKIP("mlock does nothing here, as under a sanitizer");
	pass_in_child(open_under_a_limit, NULL, "the memlock limit can't be set here");
}

static int look_at_pages(void *arg)
{
	const uint64_t nbytes = 9 * MIB;
	const struct pool_options options = {.nbytes = nbytes, .unit = UNIT, .node = -1};
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	unsigned char resident[9 * MIB / 4096];
	struct pool *pool;

	(void)arg;
	/* Locking would fault the pages in, too. */
	if (limit_memlock(0))
		return CHILD_SKIPPED;
	EXPECT(!pool_open(&pool, &options, NULL));
	EXPECT(!mlock_locks() || stats_of(pool).locked == 0);
	EXPECT(pool_lease(pool, nbytes));
	EXPECT(!mincore(pool_data(pool), nbytes, resident));
	for (uint64_t i = 0; i < nbytes / page; i++)
		EXPECT(resident[i] & 1);
	pool_close(pool);
	return CHILD_OK;
}

/* No step waits for a page fault; a limit of nothing is no error without pin_memory. */
TEST(the_whole_pool_is_resident_from_the_start)
{
	pass_in_child(look_at_pages, NULL, "the memlock limit can't be set here");
}

TEST(a_pool_larger_than_memory_is_an_error_and_kills_nothing)
{
	const uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) *
				 (uint64_t)sysconf(_SC_PAGESIZE);
	const uint64_t sizes[] = {machine * 2, 1ull << 50, 1ull << 62, 1ull << 63};

	for (size_t i = 0; i < COUNT(sizes); i++) {
		const struct pool_options options = {.nbytes = sizes[i], .unit = UNIT, .node = -1};
		struct nvs_error error = {.size = sizeof(error)};
		struct pool *pool = NULL;
		char number[32];

		snprintf(number, sizeof(number), "(%" PRIu64 " bytes)", sizes[i]);
		assert_int_equal(pool_open(&pool, &options, &error), -ENOMEM);
		assert_string_equal(error.subject, "buffer_size");
		assert_says(error.text, number);
		assert_says(error.text, "lower buffer_count x buffer_size");
		assert_null(pool);
	}
}

TEST(the_pool_is_bound_to_the_node_or_says_why_not)
{
	char heard[HEARD_BYTES] = "";
	const struct nvs_log log = {hear, heard};
	struct pool_options options = {.nbytes = 3 * MIB, .unit = UNIT, .log = &log};
	struct nvs_error error = {.size = sizeof(error)};
	struct topo *topo;
	struct pool *pool;

	SUCCEEDS(topo_open(&topo, NULL, &error), &error);
	options.topo = topo;
	SUCCEEDS(pool_open(&pool, &options, &error), &error);
	if (stats_of(pool).numa_node != 0) {
		assert_int_equal(stats_of(pool).numa_node, -1);
		assert_says(heard, "NUMA node 0");
	}
	assert_non_null(pool_lease(pool, 3 * MIB));
	pool_close(pool);
	/* A node that does not exist is not an error either. */
	options.node = 4095;
	SUCCEEDS(pool_open(&pool, &options, &error), &error);
	assert_int_equal(stats_of(pool).numa_node, -1);
	assert_says(heard, "NUMA node 4095");
	pool_close(pool);
	topo_close(topo);
}

/* ---- Huge pages ---- */

#define NR_HUGEPAGES "/proc/sys/vm/nr_hugepages"

/* As they were before a test; -1: as they are. */
static int64_t hugepages_before = -1;

static int restore_hugepages(void **state)
{
	char text[32];

	(void)state;
	if (hugepages_before >= 0) {
		snprintf(text, sizeof(text), "%" PRId64 "\n", hugepages_before);
		write_text(NR_HUGEPAGES, text);
	}
	hugepages_before = -1;
	return 0;
}

static uint64_t hugepages_free(void)
{
	return file_number("/proc/meminfo", "HugePages_Free:", 0);
}

/* Reserves n more huge pages, or skips the test. */
static void reserve_hugepages(uint64_t n)
{
	uint64_t before = file_number(NR_HUGEPAGES, "", 0);
	FILE *file = fopen(NR_HUGEPAGES, "we");

	if (file) {
		hugepages_before = (int64_t)before;
		fprintf(file, "%" PRIu64 "\n", before + n);
		fclose(file);
	}
	if (file_number("/proc/meminfo", "Hugepagesize:", 0) != 2048 || hugepages_free() < n)
		SKIP("huge pages of 2 MiB cannot be reserved here");
}

static int pin_huge_pages_without_a_limit(void *arg)
{
	struct nvs_pool_stats stats;
	struct nvs_error error = {.size = sizeof(error)};

	(void)arg;
	if (limit_memlock(0))
		return CHILD_SKIPPED;
	EXPECT(!open_pinned(7 * MIB, &error, &stats));
	EXPECT(stats.huge == 7 * MIB && stats.locked == 7 * MIB && !stats.transparent_huge);
	return CHILD_OK;
}

TEST_WITH(explicit_huge_pages_are_used_and_count_as_locked, NULL, restore_hugepages)
{
	struct pool *pool, *second;
	char *data;

	reserve_hugepages(4);
	pool = open_pool(7 * MIB, UNIT);
	assert_int_equal(stats_of(pool).huge, 7 * MIB);
	assert_int_equal(stats_of(pool).locked, 7 * MIB);
	data = pool_lease(pool, 7 * MIB);
	assert_non_null(data);
	memset(data, 1, 7 * MIB);
	/* One huge page too few is left for a second pool, which uses ordinary pages. */
	second = open_pool(7 * MIB, UNIT);
	assert_int_equal(stats_of(second).huge, 0);
	pool_close(second);
	pool_close(pool);
	/* Huge pages are never swapped and do not count towards the limit. */
	assert_int_equal(in_child(pin_huge_pages_without_a_limit, NULL), CHILD_OK);
	assert_true(hugepages_free() >= 4);
}

TEST(without_explicit_huge_pages_transparent_ones_are_requested)
{
	struct pool *pool;

	if (hugepages_free() > 0)
		SKIP("the machine has explicit huge pages free");
	if (access("/sys/kernel/mm/transparent_hugepage/enabled", F_OK))
		SKIP("the kernel has no transparent huge pages");
	pool = open_pool(6 * MIB, UNIT);
	assert_true(stats_of(pool).transparent_huge);
	assert_int_equal(stats_of(pool).huge, 0);
	assert_int_equal((uintptr_t)pool_data(pool) % (2 * MIB), 0);
	pool_close(pool);
}

EACH_TEST(NULL, cleanup)
