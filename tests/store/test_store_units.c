/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The unit of a store where pages and blocks have other sizes than here: sysconf(3) and statx(2)
 * return what a test asks for. A kept store opens on machines of either kind.
 */
#include <sys/syscall.h>

#include "store/store_fixture.h"

static long said_page;		 /* 0: the machine's */
static uint32_t said_block;	 /* preferred I/O size of regular files; 0: as it is */
static uint32_t said_direct = 1; /* their direct-I/O alignment; 0: none; 1: as it is */

/* The C library's own; its header may declare it. */
long real_sysconf(int name) __asm__("__sysconf");

long sysconf(int name)
{
	return name == _SC_PAGESIZE && said_page ? said_page : real_sysconf(name);
}

int statx(int from, const char *path, int flags, unsigned mask, struct statx *st)
{
	int rc = (int)syscall(SYS_statx, from, path, flags, mask, st);

	if (rc || !S_ISREG(st->stx_mode))
		return rc;
	if (said_block)
		st->stx_blksize = said_block;
	if (said_direct != 1) {
		st->stx_mask |= STATX_DIOALIGN;
		st->stx_dio_mem_align = st->stx_dio_offset_align = said_direct;
	}
	return 0;
}

static int as_it_is(void **state)
{
	said_page = 0;
	said_block = 0;
	said_direct = 1;
	return cleanup(state);
}

enum { NBYTES = 200000 };

static struct store *must_open_kept(void)
{
	return must_open((struct how){.keep = true});
}

/* A kept store with one tensor, which has the bytes of seed 1. */
static void keep_one(uint32_t unit)
{
	static uint8_t data[1 << 18];
	struct store *store = must_open_kept();
	const struct store_entry entry = reserve_entry(store, NBYTES);

	assert_int_equal(store_unit(store), unit);
	assert_int_equal(entry.offset % unit, 0);
	assert_int_equal(entry.spare % unit, 0);
	fill(data, NBYTES, 1);
	move(store, NVS_WRITE, data, align_up(NBYTES, unit), entry.offset);
	assert_int_equal(store_commit(store, &entry, 1, NULL, &error), 0);
	store_close(store);
}

/* Opens it, finds the bytes, writes the other extent and commits that. */
static void find_one(uint32_t unit)
{
	static uint8_t read[1 << 18], wrote[1 << 18];
	struct store *store = must_open_kept();
	size_t n;
	struct store_entry entry = store_entries(store, &n)[0];
	uint64_t spare = entry.spare;

	assert_int_equal(n, 1);
	assert_int_equal(store_unit(store), unit);
	fill(wrote, NBYTES, 1);
	move(store, NVS_READ, read, align_up(NBYTES, unit), entry.offset);
	assert_memory_equal(read, wrote, NBYTES);
	move(store, NVS_WRITE, read, align_up(NBYTES, unit), spare);
	entry.spare = entry.offset;
	entry.offset = spare;
	assert_int_equal(store_commit(store, &entry, 1, NULL, &error), 0);
	store_close(store);
}

TEST(extents_of_a_buffered_store_are_whole_pages_and_blocks_and_in_host_memory_pages)
{
	struct store *store;

	said_direct = 0;
	for (uint32_t page = 4096; page <= 65536; page *= 4)
		for (uint32_t block = 4096; block <= 65536; block *= 4) {
			said_page = (long)page;
			said_block = block;
			store = must_open((struct how){.rank = 0});
			assert_int_equal(store_unit(store), page > block ? page : block);
			store_close(store);
		}
	/* NFS prefers a megabyte, which no extent needs. */
	said_page = 4096;
	said_block = 1 << 20;
	store_close(must_open((struct how){.rank = 0}));
	said_page = 65536;
	store = must_open((struct how){.in_memory = true});
	assert_int_equal(store_unit(store), 65536);
	store_close(store);
}

TEST(a_kept_store_opens_on_machines_of_other_page_sizes)
{
	said_direct = 0;
	said_page = 4096;
	said_block = 4096;
	keep_one(4096);
	said_page = 65536;
	said_block = 65536;
	find_one(4096);
	find_one(4096);
	remove_tree(at("nvswap"));
	keep_one(65536);
	said_page = 4096;
	said_block = 4096;
	find_one(65536);
	find_one(65536);
}

/* As on a drive with sectors of 512 bytes, copied to a file system without direct I/O. */
TEST(a_kept_store_of_small_units_opens_with_buffered_io)
{
	struct label label;
	uint8_t bytes[LABEL_BYTES];

	said_direct = 0;
	said_page = said_block = 4096;
	store_close(must_open_kept());
	assert_int_equal(read_file(at(DATA), bytes, sizeof(bytes), 0), sizeof(bytes));
	assert_int_equal(label_decode(bytes, &label), 0);
	label.unit = 512;
	label_encode(&label, bytes);
	write_file(at(DATA), bytes, sizeof(bytes), 0);
	keep_one(512);
	find_one(512);
	find_one(512);
}

/* As on xfs once a copy by reflink shares its blocks, or on a drive with larger sectors. */
TEST(a_kept_store_whose_unit_direct_io_cannot_use_opens_with_buffered_io)
{
	struct store *store;

	said_direct = 0;
	said_page = said_block = 4096;
	keep_one(4096);
	said_direct = 16384;
	log_text[0] = 0;
	store = must_open_kept();
	assert_false(store_direct(store));
	store_close(store);
	assert_non_null(strstr(log_text, "is in units of 16384 bytes, but the kept store there was "
					 "made in units of 4096: I/O is buffered"));
	find_one(4096);
	find_one(4096);
	said_direct = 0;
	find_one(4096);
	remove_tree(at("nvswap"));
	said_page = said_block = 65536;
	keep_one(65536);
	said_direct = 4096;
	store = must_open_kept();
	assert_int_equal(store_unit(store), 65536);
	store_close(store);
}

EACH_TEST(make_root, as_it_is)
AROUND_TESTS(open_aio, close_aio)
