/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests of kept stores: four entries whose numbers tell the commits apart, and short
 * functions that look at the copies of labels and manifests and change them.
 */
#ifndef TESTS_STORE_KEPT_FIXTURE_H
#define TESTS_STORE_KEPT_FIXTURE_H

#include <xxhash.h>

#include "store/disk.h"
#include "store/store_fixture.h"

#define MANIFEST "nvswap/rank0/manifest.%u"

static const struct how kept = {.keep = true};

/*
 * Entries of four tensors. Their numbers depend on `version`, which distinguishes states, and their
 * two extents alternate. All first extents precede all second ones.
 */
enum { ENTRIES = 4, EXTENTS = 2 * ENTRIES };

static struct store_entry entries[ENTRIES];

static inline void make_entries(unsigned version, const uint64_t offsets[EXTENTS])
{
	unsigned turn = version % 2;

	const struct store_entry made[ENTRIES] = {
		{.name = "a", .dtype = NVS_F32, .numel = 1000, .nbytes = 4000},
		{.name = "model.layers.0.weight", .dtype = NVS_BF16, .numel = 5, .nbytes = 10},
		{.name = "empty", .dtype = NVS_U8, .numel = 0, .nbytes = 0},
		{.name = "\xc3\xa9t\xc3\xa9", .dtype = NVS_F64, .numel = 2, .nbytes = 16},
	};

	for (unsigned i = 0; i < ENTRIES; i++) {
		entries[i] = made[i];
		entries[i].offset = offsets[turn * ENTRIES + i];
		entries[i].spare = offsets[!turn * ENTRIES + i];
		entries[i].written = i != 2;
		entries[i].has_checksum = i != 1;
		entries[i].checksum = i != 1 ? version * 1000 + i : 0;
	}
}

static inline void reserve_entries(struct store *store, uint64_t offsets[EXTENTS])
{
	const uint64_t nbytes[EXTENTS] = {4000, 10, 0, 16, 4000, 10, 0, 16};

	assert_int_equal(store_reserve(store, nbytes, EXTENTS, offsets, &error), 0);
}

/* A new store that has the extents of its entries. */
static inline struct store *open_reserved(uint64_t offsets[EXTENTS])
{
	struct store *store = must_open(kept);

	reserve_entries(store, offsets);
	return store;
}

static inline void found_offsets(const struct store *store, uint64_t offsets[EXTENTS])
{
	const struct store_entry *found = store->found.entries;
	unsigned turn = found[0].checksum / 1000 % 2;

	for (unsigned i = 0; i < ENTRIES; i++) {
		offsets[turn * ENTRIES + i] = found[i].offset;
		offsets[!turn * ENTRIES + i] = found[i].spare;
	}
}

/* Each version has a note of another length, and all of them carry the version. */
static uint8_t note_bytes[64];

static inline struct store_note make_note(unsigned version)
{
	memset(note_bytes, (int)version, sizeof(note_bytes));
	return (struct store_note){.data = note_bytes, .nbytes = 40 + version % 16};
}

static inline int try_commit(struct store *store, unsigned version, const uint64_t *offsets)
{
	struct store_note note = make_note(version);

	make_entries(version, offsets);
	return store_commit(store, entries, ENTRIES, &note, &error);
}

static inline void commit_version(struct store *store, unsigned version, const uint64_t *offsets)
{
	assert_int_equal(try_commit(store, version, offsets), 0);
}

static inline void assert_note(const struct store *store, unsigned version)
{
	struct store_note found = store_found_note(store), wanted = make_note(version);

	assert_int_equal(found.nbytes, wanted.nbytes);
	assert_memory_equal(found.data, wanted.data, wanted.nbytes);
}

/* The version of all entries; 0: there are none. */
static inline unsigned version_of(const struct store *store)
{
	size_t n;
	const struct store_entry *found = store_entries(store, &n);
	uint64_t offsets[EXTENTS];
	unsigned version;

	if (!n)
		return 0;
	assert_int_equal(n, ENTRIES);
	version = (unsigned)(found[0].checksum / 1000);
	found_offsets(store, offsets);
	make_entries(version, offsets);
	assert_note(store, version);
	for (size_t i = 0; i < n; i++) {
		assert_string_equal(found[i].name, entries[i].name);
		assert_int_equal(found[i].dtype, entries[i].dtype);
		assert_int_equal(found[i].numel, entries[i].numel);
		assert_int_equal(found[i].nbytes, entries[i].nbytes);
		assert_int_equal(found[i].offset, entries[i].offset);
		assert_int_equal(found[i].spare, entries[i].spare);
		assert_int_equal(found[i].written, entries[i].written);
		assert_int_equal(found[i].has_checksum, entries[i].has_checksum);
		assert_int_equal(found[i].checksum, entries[i].checksum);
	}
	return version;
}

static inline void assert_state(unsigned version)
{
	struct store *store = must_open(kept);

	assert_int_equal(version_of(store), version);
	store_close(store);
}

/* The last commit is lost: the store opens only as of the one before, when asked to. */
static inline void assert_lost_as(unsigned older, const char *said)
{
	struct how back = kept;
	struct store *store;

	must_not_open(kept, -EUCLEAN, said);
	back.rollback = true;
	log_text[0] = 0;
	store = must_open(back);
	assert_int_equal(version_of(store), older);
	assert_non_null(strstr(log_text, "as \"rollback\" asks"));
	store_close(store);
}

static inline void assert_lost(unsigned older)
{
	assert_lost_as(older, "are damaged");
}

/* Both copies of the first member's label. */
struct labels {
	uint8_t bytes[LABEL_COPY_COUNT][LABEL_BYTES];
};

static inline void read_labels(struct labels *labels)
{
	for (unsigned i = 0; i < LABEL_COPY_COUNT; i++)
		read_file(at(DATA), labels->bytes[i], LABEL_BYTES, i * LABEL_DISTANCE);
}

static inline void write_labels(const struct labels *labels)
{
	for (unsigned i = 0; i < LABEL_COPY_COUNT; i++)
		write_file(at(DATA), labels->bytes[i], LABEL_BYTES, i * LABEL_DISTANCE);
}

/* Make the checksum of changed bytes valid. */
static inline void seal_label(uint8_t bytes[LABEL_BYTES])
{
	put_u64(bytes + 504, 0);
	put_u64(bytes + 504, XXH3_64bits(bytes, LABEL_BYTES));
}

static inline void seal_header(uint8_t bytes[MANIFEST_HEADER_BYTES])
{
	put_u64(bytes + 120, XXH3_64bits(bytes, 120));
}

/* Writes both copies of manifest `turn`. */
static inline void write_manifests(unsigned turn, const void *bytes, size_t nbytes)
{
	for (unsigned i = turn; i < MANIFEST_SLOT_COUNT; i += MANIFEST_TURN_COUNT)
		write_file(at(MANIFEST, i), bytes, nbytes, 0);
}

static inline void truncate_manifests(unsigned turn, uint64_t nbytes)
{
	for (unsigned i = turn; i < MANIFEST_SLOT_COUNT; i += MANIFEST_TURN_COUNT)
		assert_int_equal(truncate(at(MANIFEST, i), (off_t)nbytes), 0);
}

/* As a crash before the label was written leaves both copies of manifest `turn`. */
static inline void unmark_manifests(unsigned turn)
{
	uint8_t bytes[MANIFEST_HEADER_BYTES];
	struct manifest_header header;

	for (unsigned i = turn; i < MANIFEST_SLOT_COUNT; i += MANIFEST_TURN_COUNT) {
		read_file(at(MANIFEST, i), bytes, sizeof(bytes), 0);
		assert_int_equal(manifest_decode_header(bytes, &header), 0);
		assert_true(header.committed);
		header.committed = false;
		manifest_encode_header(&header, bytes);
		write_file(at(MANIFEST, i), bytes, sizeof(bytes), 0);
	}
}

/* Two commits: manifest.0 and its copy manifest.2 hold version 1, manifest.1 and .3 version 2. */
static inline void make_two_versions(void)
{
	uint64_t offsets[EXTENTS];
	struct store *store = open_reserved(offsets);

	commit_version(store, 1, offsets);
	commit_version(store, 2, offsets);
	store_close(store);
}

#endif
