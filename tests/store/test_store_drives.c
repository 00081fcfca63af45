/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store on loop devices: a small ext4 that fills up, and raw block devices. Loop devices detach
 * with their last descriptor and mounts end with the process's mount namespace, so nothing remains.
 */
#include <sys/mount.h>

#include "store/store_fixture.h"

ONE_STORE

static const char *device;
static struct how how; /* it is opened so */

/* ---- A file system that fills up ---- */

/* A directory on a new ext4 without a journal, all for files. */
static const char *mount_ext4(const char *on)
{
	return need_ext4_on(on, "-m 0 -O ^has_journal", NULL);
}

static void mount_small(void)
{
	how = (struct how){.paths = {mount_ext4(need_device(MIB(64), 512))}, .absolute = true};
}

TEST(a_full_drive_is_found_when_space_is_reserved)
{
	uint64_t first = MIB(20), much = MIB(60), little = MIB(2), offset, other;

	mount_small();
	store = must_open(how);
	assert_int_equal(store_reserve(store, &first, 1, &offset, &error), 0);
	assert_int_equal(data_bytes(store, 0), MIB(22));
	assert_int_equal(store_reserve(store, &much, 1, &other, &error), -ENOSPC);
	assert_non_null(strstr(error.text, how.paths[0]));
	assert_non_null(strstr(error.text, DATA " has no room for another 60 MiB"));
	assert_non_null(strstr(error.text, "the store has 20 MiB already"));
	assert_int_equal(data_bytes(store, 0), MIB(22));
	assert_int_equal(store_bytes(store), MIB(20));

	/*
	 * The file grows ahead by up to its length, which fails here; then by exactly what is
	 * needed.
	 */
	for (int i = 0; i < 15; i++)
		assert_int_equal(store_reserve(store, &little, 1, &other, &error), 0);
	for (int i = 0; i < 15 && !store_reserve(store, &little, 1, &other, &error); i++)
		;
	assert_int_equal(error.code, -ENOSPC);
	assert_true(store_bytes(store) >= MIB(54));
}

/* A batch that fits neither in one hole nor on the drive is split over several holes. */
TEST(holes_are_filled_when_the_drive_is_full)
{
	enum { PIECES = 40, FREED = 20 };
	uint64_t nbytes[PIECES], offsets[PIECES], again[FREED + 1], before;

	mount_small();
	store = must_open(how);
	for (size_t i = 0; i < PIECES; i++)
		nbytes[i] = MIB(1);
	assert_int_equal(store_reserve(store, nbytes, PIECES, offsets, &error), 0);

	uint64_t rest = MIB(14), tail;

	assert_int_equal(store_reserve(store, &rest, 1, &tail, &error), 0);
	for (size_t i = 0; i < FREED; i++)
		store_release(store, offsets[2 * i], MIB(1));
	before = store_bytes(store);

	/* One extent more than there are holes needs little growth; ten more do not fit. */
	uint64_t too_much[FREED + 1];

	for (size_t i = 0; i <= FREED; i++)
		too_much[i] = MIB(1);
	too_much[FREED / 2] = MIB(10);
	assert_int_equal(store_reserve(store, too_much, FREED + 1, again, &error), -ENOSPC);
	assert_int_equal(store_bytes(store), before);
	assert_int_equal(extents_free_units(store->extents) * store_unit(store),
			 MIB(FREED) + before - MIB(54));
	assert_int_equal(store_reserve(store, nbytes, FREED + 1, again, &error), 0);
	for (size_t i = 0; i < FREED; i++)
		assert_int_equal(again[i], offsets[2 * i]);
	assert_true(again[FREED] >= MIB(54));
}

/* The second member has no room, so the first must shrink back. */
TEST(members_shrink_back_when_one_is_full)
{
	uint64_t nbytes = MIB(8), much = MIB(200), offset;
	const char *full;

	mount_small();
	full = how.paths[0];
	store = must_open((struct how){.paths = {at("a"), full}, .npaths = 2, .absolute = true});
	assert_int_equal(store_reserve(store, &nbytes, 1, &offset, &error), 0);
	assert_int_equal(store_reserve(store, &much, 1, &offset, &error), -ENOSPC);
	assert_non_null(strstr(error.text, full));
	assert_non_null(strstr(error.text, DATA " has no room"));
	assert_int_equal(data_bytes(store, 0), MIB(6));
	assert_int_equal(data_bytes(store, 1), MIB(6));
}

TEST(a_commit_to_a_mount_that_is_gone_is_stale)
{
	mount_small();
	how.keep = true;
	store = must_open(how);
	assert_int_equal(store_commit(store, NULL, 0, NULL, &error), 0);
	assert_int_equal(umount2(how.paths[0], MNT_DETACH), 0);
	assert_int_equal(store_commit(store, NULL, 0, NULL, &error), -ESTALE);
	assert_non_null(strstr(error.text, how.paths[0]));
	assert_non_null(strstr(error.text, " was removed or moved"));
}

/* ---- Raw devices ---- */

static struct how raw(const char *path, bool keep)
{
	return (struct how){.paths = {path}, .absolute = true, .keep = keep};
}

TEST(a_raw_device_is_a_store_and_blank_afterwards)
{
	uint64_t nbytes = MIB(30), much = MIB(64), offset;
	uint8_t wrote[10000], read[10000], label[LABEL_BYTES];

	device = need_device(MIB(128), 512);
	store = must_open(raw(device, false));
	assert_int_equal(store_reserve(store, &nbytes, 1, &offset, &error), 0);
	fill(wrote, sizeof(wrote), 4);
	move(store, NVS_WRITE, wrote, sizeof(wrote), offset);
	move(store, NVS_READ, read, sizeof(read), offset);
	assert_memory_equal(read, wrote, sizeof(read));
	assert_int_equal(store_reserve(store, &much, 1, &offset, &error), -ENOSPC);
	assert_non_null(strstr(error.text, device));
	must_not_open(raw(device, false), -EBUSY, "is in use");
	read_file(device, label, sizeof(label), 0);
	shut(&store);

	/* A label that a crash left is overwritten. */
	write_file(device, label, sizeof(label), 0);
	store_close(must_open(raw(device, false)));
	assert_non_null(strstr(log_text, "left by a crashed run"));
	read_file(device, label, sizeof(label), 0);
	for (size_t i = 0; i < sizeof(label); i++)
		assert_int_equal(label[i], 0);
}

TEST(a_raw_device_with_other_contents_is_refused)
{
	static const uint64_t places[] = {0, 511, 4095, 4096, 65600, LABEL_AREA_BYTES - 1};
	uint8_t byte = 1, zero = 0;

	device = need_device(MIB(80), 512);
	for (size_t i = 0; i < LENGTH(places); i++) {
		write_file(device, &byte, 1, places[i]);
		must_not_open(raw(device, i % 2), -EMEDIUMTYPE, "wipe it first: wipefs -a");
		write_file(device, &zero, 1, places[i]);
	}
	write_file(device, &byte, 1, LABEL_AREA_BYTES);
	store_close(must_open(raw(device, false)));
}

/* ---- Damaged labels of a raw device ---- */

static uint8_t labels[LABEL_COPY_COUNT][LABEL_BYTES];

static void take_labels(void)
{
	for (unsigned i = 0; i < LABEL_COPY_COUNT; i++)
		read_file(device, labels[i], LABEL_BYTES, i * LABEL_DISTANCE);
}

static void put_labels(unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		write_file(device, labels[i], LABEL_BYTES, i * LABEL_DISTANCE);
}

/* Makes a kept store with one commit. */
static void make_kept_device(void)
{
	const struct store_entry entry = {.name = "t", .dtype = NVS_U8};

	device = need_device(MIB(80), 512);
	how = raw(device, true);
	store = must_open(how);
	assert_int_equal(store_commit(store, &entry, 1, NULL, &error), 0);
	shut(&store);
}

static void must_have_its_commit(bool damaged)
{
	size_t n;

	log_text[0] = 0;
	store = must_open(how);
	assert_string_equal(store_entries(store, &n)[0].name, "t");
	assert_int_equal(n, 1);
	assert_int_equal(strstr(log_text, "the next commit writes both anew") != NULL, damaged);
	/* Nothing has changed but for the damage. */
	assert_int_equal(store_commit(store, store_entries(store, &n), 1, NULL, &error), 0);
	shut(&store);
}

TEST(a_damaged_label_of_a_raw_device_costs_nothing)
{
	static const uint64_t sizes[] = {512, 4096};
	uint8_t junk[LABEL_BYTES];

	make_kept_device();
	fill(junk, sizeof(junk), 5);
	for (unsigned copy = 0; copy < LABEL_COPY_COUNT; copy++)
		for (size_t k = 0; k < LENGTH(sizes); k++)
			for (uint64_t from = 0; from < LABEL_BYTES; from += sizes[k]) {
				write_file(device, junk + from, sizes[k],
					   copy * LABEL_DISTANCE + from);
				must_have_its_commit(true);
				must_have_its_commit(false);
			}
}

TEST(a_label_of_a_raw_device_that_is_older_than_its_manifest_is_refused)
{
	const struct store_entry entries[] = {{.name = "t", .dtype = NVS_U8},
					      {.name = "u", .dtype = NVS_U8}};
	size_t n;

	make_kept_device();
	take_labels();
	store = must_open(how);
	assert_int_equal(store_commit(store, entries, 2, NULL, &error), 0);
	shut(&store);
	put_labels(1);
	store = must_open(how);
	store_entries(store, &n);
	assert_int_equal(n, 2);
	shut(&store);
	put_labels(LABEL_COPY_COUNT);
	must_not_open(how, -EUCLEAN, "the last commit is number 2, as a manifest says");
	assert_non_null(strstr(error.text, "goes back to number 1"));
	how.rollback = true;
	must_have_its_commit(false);
	how.rollback = false;
	must_have_its_commit(false);
}

enum in_label { ZEROS, JUNK, HALF, IN_LABEL };

static void spoil_label(unsigned copy, enum in_label in)
{
	uint8_t bytes[LABEL_BYTES] = {0};

	if (in == HALF)
		read_file(device, bytes, 8, copy * LABEL_DISTANCE);
	if (in != ZEROS)
		fill(bytes + 8 * (in == HALF), LABEL_BYTES / 2, 1 + copy);
	write_file(device, bytes, sizeof(bytes), copy * LABEL_DISTANCE);
}

static void must_be_refused_unwiped(int code, const char *said)
{
	static uint8_t before[4 << 20], after[sizeof(before)];

	read_file(device, before, sizeof(before), 0);
	must_not_open(how, code, said);
	assert_null(strstr(error.text, "wipe"));
	assert_null(strstr(error.text, "dd if="));
	must_not_open(raw(device, false), code, said);
	read_file(device, after, sizeof(after), 0);
	assert_memory_equal(after, before, sizeof(after));
}

TEST(a_device_whose_labels_are_lost_is_refused_and_not_overwritten)
{
	make_kept_device();
	take_labels();
	for (unsigned k = 0; k < IN_LABEL * IN_LABEL; k++) {
		put_labels(LABEL_COPY_COUNT);
		spoil_label(0, k % IN_LABEL);
		spoil_label(1, k / IN_LABEL);
		must_be_refused_unwiped(-EUCLEAN, "there is manifest number 1");
	}
	put_labels(LABEL_COPY_COUNT);
	must_have_its_commit(false);
}

TEST(a_damaged_label_without_a_manifest_is_a_damaged_store)
{
	device = need_device(MIB(80), 512);
	how = raw(device, true);
	store_close(must_open(how));
	spoil_label(0, HALF);
	spoil_label(1, JUNK);
	must_be_refused_unwiped(-EUCLEAN, "at offset 0: a damaged label; at 1048576: no label");
	/* Nothing of a store. */
	spoil_label(0, JUNK);
	must_not_open(how, -EMEDIUMTYPE, "wipe it first: wipefs -a");
}

TEST(a_second_device_with_lost_labels_is_a_damaged_store)
{
	device = need_device(MIB(80), 512);
	how = (struct how){.paths = {root, device}, .npaths = 2, .keep = true, .absolute = true};
	store_close(must_open(how));
	for (enum in_label in = ZEROS; in < IN_LABEL; in++) {
		spoil_label(1, in);
		spoil_label(0, in == HALF ? JUNK : in);
		must_not_open(how, -EUCLEAN, device);
		assert_null(strstr(error.text, "wipe"));
	}
}

/* mkfs and its like may leave the second copy, and even manifests, in place. */
TEST(what_another_program_wrote_over_a_store_is_not_touched)
{
	static const struct {
		uint64_t at;
		const char *bytes;
		size_t nbytes;
		const char *said;
	} written[] = {
		{0, "\xfc\x4e\x2b\xa9", 4, "a RAID member"},
		{510, "\x55\xaa", 2, "a boot sector or partition table"},
		{512, "EFI PART", 8, "a partition table"},
		{4086, "SWAPSPACE2", 10, "swap space"},
		{4096, "LABELONE", 8, "data where a store has zeros"},
		{65600, "_BHRfS_M", 8, "data where a store has zeros"},
		{LABEL_DISTANCE + LABEL_BYTES, "x", 1, "data where a store has zeros"},
	};
	uint8_t label[LABEL_BYTES];

	make_kept_device();
	read_file(device, label, sizeof(label), 0);
	for (size_t i = 0; i < LENGTH(written); i++) {
		static const uint8_t zeros[16];

		spoil_label(0, ZEROS);
		write_file(device, written[i].bytes, written[i].nbytes, written[i].at);
		must_be_refused_unwiped(-EMEDIUMTYPE, written[i].said);
		write_file(device, zeros, written[i].nbytes, written[i].at);
	}
	write_file(device, label, sizeof(label), 0);
	must_have_its_commit(false);
}

TEST(a_raw_device_that_is_mounted_or_too_small_is_refused)
{
	const char *directory;

	must_not_open(raw(need_device(MIB(66), 512), false), -ENOSPC,
		      "has 66 MiB, and a store needs more");
	device = need_device(MIB(80), 512);
	directory = mount_ext4(device);
	must_not_open(raw(device, false), -EBUSY, "mounted");
	assert_int_equal(umount2(directory, 0), 0);
	must_not_open(raw(device, false), -EMEDIUMTYPE, "not nvswap's");
}

TEST(a_kept_raw_device_is_found_again)
{
	uint64_t nbytes = 100000, offset, end;
	struct store_entry entry;
	uint8_t wrote[100000], read[100000];
	size_t n;

	device = need_device(MIB(128), 512);
	how = raw(device, true);
	store = must_open(how);
	entry = reserve_entry(store, nbytes);
	end = entry.spare + nbytes;
	fill(wrote, sizeof(wrote), 8);
	for (int i = 0; i < 3; i++) {
		offset = entry.offset;
		entry.offset = entry.spare;
		entry.spare = offset;
		move(store, NVS_WRITE, wrote, sizeof(wrote), entry.offset);
		entry.checksum = (uint64_t)i;
		entry.has_checksum = true;
		assert_int_equal(store_commit(store, &entry, 1, NULL, &error), 0);
	}
	shut(&store);
	must_not_open(raw(device, false), -EEXIST, "kept store");
	how.rank = 1;
	must_not_open(how, -EMEDIUMTYPE, "of rank 0");
	how.rank = 0;
	how.optimizer = true;
	must_not_open(how, -EMEDIUMTYPE, "the kept store of offload_param");
	how.optimizer = false;
	store = must_open(how);
	assert_string_equal(store_entries(store, &n)[0].name, "weight");
	assert_int_equal(store_entries(store, &n)[0].checksum, 2);
	assert_int_equal(n, 1);
	move(store, NVS_READ, read, sizeof(read), store_entries(store, &n)[0].offset);
	assert_memory_equal(read, wrote, sizeof(read));
	assert_int_equal(store_reserve(store, &nbytes, 1, &offset, &error), 0);
	assert_true(offset >= end);
}

TEST(a_manifest_too_large_for_its_place_on_a_device_is_refused)
{
	enum { FITTING = 29537 }; /* see docs/store-format.md */
	static struct store_entry entries[FITTING + 1];
	static char names[FITTING + 1][NVS_NAME_MAX + 1];
	size_t n;

	device = need_device(MIB(80), 512);
	store = must_open(raw(device, true));
	for (size_t i = 0; i <= FITTING; i++) {
		memset(names[i], 'n', NVS_NAME_MAX);
		names[i][snprintf(names[i], NVS_NAME_MAX, "%zu", i)] = 'n';
		entries[i] = (struct store_entry){.name = names[i], .dtype = NVS_U8};
	}
	assert_int_equal(store_commit(store, entries, FITTING, NULL, &error), 0);
	assert_int_equal(store_commit(store, entries, FITTING + 1, NULL, &error), -ENOSPC);
	assert_non_null(strstr(error.text, "for it: keep the store in a directory"));
	shut(&store);
	store = must_open(raw(device, true));
	store_entries(store, &n);
	assert_int_equal(n, FITTING);
}

TEST(a_directory_and_a_device_make_one_store)
{
	uint64_t nbytes = MIB(10), much = MIB(200), offset;
	static uint8_t wrote[10 << 20], read[10 << 20];

	device = need_device(MIB(80), 512);
	how = (struct how){.paths = {root, device}, .npaths = 2, .keep = true, .absolute = true};
	fill(wrote, nbytes, 6);
	for (int run = 0; run < 2; run++) {
		store = must_open(how);
		if (run == 0) {
			assert_int_equal(store_reserve(store, &nbytes, 1, &offset, &error), 0);
			move(store, NVS_WRITE, wrote, nbytes, offset);
			assert_int_equal(store_reserve(store, &much, 1, &offset, &error), -ENOSPC);
			assert_int_equal(size_of(at(DATA)), MIB(7));
		}
		move(store, NVS_READ, read, nbytes, 0);
		assert_memory_equal(read, wrote, nbytes);
		shut(&store);
	}
}

EACH_TEST(make_root, cleanup)
AROUND_TESTS(open_aio, close_aio)
