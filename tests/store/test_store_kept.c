/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kept stores: reopened with the committed contents after crashes and bit flips in manifests and
 * labels; refused, and unchanged, if they are damaged or another store's.
 */
#include <sys/syscall.h>

#include "store/kept_fixture.h"

ONE_STORE

static uint64_t offsets[EXTENTS];

/* A bit for each of the next writes and syncs, lowest first; a set bit makes it fail. */
static uint32_t failing_calls;

static bool fails(void)
{
	bool now = failing_calls & 1;

	failing_calls >>= 1;
	if (now)
		errno = EIO;
	return now;
}

ssize_t pwrite(int fd, const void *data, size_t nbytes, off_t offset)
{
	return fails() ? -1 : syscall(SYS_pwrite64, fd, data, nbytes, offset);
}

/* Nothing here needs to be durable. */
int fdatasync(int fd)
{
	(void)fd;
	return fails() ? -1 : 0;
}

int fsync(int fd)
{
	(void)fd;
	return 0;
}

TEST(what_was_committed_is_found_again)
{
	uint64_t again[EXTENTS], more = 100000, offset;
	uint8_t wrote[4000], read[4000];
	size_t n;

	store = open_reserved(offsets);
	store_entries(store, &n);
	assert_int_equal(n, 0);
	fill(wrote, sizeof(wrote), 1);
	move(store, NVS_WRITE, wrote, sizeof(wrote), offsets[ENTRIES]);
	commit_version(store, 1, offsets);
	shut(&store);

	store = must_open(kept);
	assert_int_equal(version_of(store), 1);
	found_offsets(store, again);
	assert_memory_equal(again, offsets, sizeof(again));
	move(store, NVS_READ, read, sizeof(read), entries[0].offset);
	assert_memory_equal(read, wrote, sizeof(read));
	/* Both extents of each entry of the manifest are allocated, and can be released. */
	assert_int_equal(store_reserve(store, &more, 1, &offset, &error), 0);
	assert_true(offset >= offsets[7] + store_unit(store));
	for (size_t i = 0; i < EXTENTS; i++)
		store_release(store, offsets[i], entries[i % ENTRIES].nbytes);
	store_release(store, offset, more);
	assert_int_equal(store_reserve(store, &more, 1, &offset, &error), 0);
	assert_int_equal(offset, 0);
}

TEST(a_store_does_not_grow_from_run_to_run)
{
	uint64_t nbytes = 0;

	make_two_versions();
	for (int run = 0; run < 5; run++) {
		store = must_open(kept);
		found_offsets(store, offsets);
		commit_version(store, 3 + (unsigned)run, offsets);
		if (!nbytes)
			nbytes = size_of(at(DATA));
		assert_int_equal(size_of(at(DATA)), nbytes);
		shut(&store);
	}
	assert_state(7);
}

TEST(a_commit_without_changes_writes_nothing)
{
	uint8_t before[2][4096] = {{0}}, after[2][4096] = {{0}};

	store = open_reserved(offsets);
	commit_version(store, 1, offsets);
	commit_version(store, 2, offsets);
	for (int i = 0; i < 2; i++)
		read_file(at(MANIFEST, (unsigned)i), before[i], 4096, 0);
	assert_int_equal(try_commit(store, 2, offsets), 0);
	shut(&store);
	store = must_open(kept);
	assert_int_equal(try_commit(store, 2, offsets), 0);
	for (int i = 0; i < 2; i++)
		read_file(at(MANIFEST, (unsigned)i), after[i], 4096, 0);
	assert_memory_equal(before, after, sizeof(before));
	assert_int_equal(store->manifest.generation, 2);
	shut(&store);
	assert_state(2);
}

TEST(a_note_alone_is_a_change)
{
	struct store_note note = make_note(7);

	store = open_reserved(offsets);
	commit_version(store, 1, offsets);
	for (uint32_t nbytes = 0; nbytes <= 9; nbytes++) {
		note.nbytes = nbytes;
		assert_int_equal(store_commit(store, entries, ENTRIES, &note, &error), 0);
		assert_int_equal(store->manifest.generation, 2 + nbytes);
		assert_int_equal(store_commit(store, entries, ENTRIES, &note, &error), 0);
		assert_int_equal(store->manifest.generation, 2 + nbytes);
	}
	note.data = (const uint8_t[9]){7, 7, 7, 7, 7, 7, 7, 7, 8};
	assert_int_equal(store_commit(store, entries, ENTRIES, &note, &error), 0);
	assert_int_equal(store->manifest.generation, 12);
	shut(&store);
	store = must_open(kept);
	assert_int_equal(store_found_note(store).nbytes, 9);
	assert_memory_equal(store_found_note(store).data, note.data, 9);
}

TEST(the_longest_note_fits_beside_no_entry_and_many)
{
	static uint8_t bytes[NVS_NOTE_MAX];
	const struct store_note note = {.data = bytes, .nbytes = sizeof(bytes)};

	fill(bytes, sizeof(bytes), 5);
	for (unsigned version = 0; version <= 1; version++) {
		store = open_reserved(offsets);
		make_entries(version, offsets);
		assert_int_equal(store_commit(store, entries, version ? ENTRIES : 0, &note, &error),
				 0);
		shut(&store);
		store = must_open(kept);
		assert_int_equal(store->found.header.count, version ? ENTRIES : 0);
		assert_int_equal(store_found_note(store).nbytes, sizeof(bytes));
		assert_memory_equal(store_found_note(store).data, bytes, sizeof(bytes));
		shut(&store);
	}
}

/* ---- Closing a kept store commits nothing, so it leaves the same state as a crash ---- */

TEST(a_store_without_a_commit_is_a_new_one)
{
	store = open_reserved(offsets);
	shut(&store);
	assert_state(0);
	must_not_open((struct how){.keep = false}, -EEXIST, "kept store");
}

/* The label decides: it names the new manifest on both places, on one of them, or on none. */
TEST(a_commit_counts_once_a_label_names_it)
{
	struct labels before, after, one;

	store = open_reserved(offsets);
	for (unsigned version = 1; version <= 3; version++) {
		read_labels(&before);
		commit_version(store, version, offsets);
		shut(&store);
		read_labels(&after);
		write_labels(&before);
		unmark_manifests(!(version % 2));
		assert_state(version - 1);
		for (unsigned i = 0; i < LABEL_COPY_COUNT; i++) {
			one = before;
			memcpy(one.bytes[i], after.bytes[i], LABEL_BYTES);
			write_labels(&one);
			assert_state(version);
			/* Opening has settled it, so no single damage leads back. */
			read_labels(&one);
			assert_memory_equal(&one, &after, sizeof(one));
		}
		store = must_open(kept);
	}
	shut(&store);
	assert_state(3);
}

/* The number of a commit that was cut off is not used again. */
TEST(the_next_commit_has_a_number_above_all_that_the_drive_has)
{
	struct labels before;

	make_two_versions();
	read_labels(&before);
	store = must_open(kept);
	found_offsets(store, offsets);
	commit_version(store, 3, offsets);
	assert_int_equal(store_generation(store), 3);
	shut(&store);
	write_labels(&before);
	unmark_manifests(0);
	store = must_open(kept);
	assert_int_equal(store_generation(store), 2);
	commit_version(store, 4, offsets);
	assert_int_equal(store_generation(store), 4);
	shut(&store);
	/* Also above that of a commit that was lost. */
	truncate_manifests(0, 0);
	assert_lost(2);
	store = must_open((struct how){.keep = true, .rollback = true});
	assert_int_equal(store_generation(store), 2);
	commit_version(store, 5, offsets);
	assert_int_equal(store_generation(store), 5);
	shut(&store);
	assert_state(5);
}

TEST(truncated_data_is_refused)
{
	uint64_t nbytes;

	store = open_reserved(offsets);
	commit_version(store, 1, offsets);
	shut(&store);
	nbytes = size_of(at(DATA));
	assert_int_equal(truncate(at(DATA), (off_t)nbytes - 1), 0);
	must_not_open(kept, -EUCLEAN, "is truncated");
	assert_int_equal(truncate(at(DATA), 4096), 0);
	must_not_open(kept, -EUCLEAN, "is truncated");
	assert_int_equal(unlink(at(DATA)), 0);
	must_not_open(kept, -EUCLEAN, "has manifests, but");
	must_not_open((struct how){.keep = false}, -EUCLEAN, "has manifests, but");
	assert_int_equal(mode_of(at(DATA)), 0);
}

TEST(a_sparse_copy_is_reserved_again)
{
	uint64_t nbytes = MIB(8), offset;
	struct stat st;
	uint8_t label[LABEL_BYTES];

	store = must_open(kept);
	assert_int_equal(store_reserve(store, &nbytes, 1, &offset, &error), 0);
	assert_int_equal(store_commit(store, NULL, 0, NULL, &error), 0);
	shut(&store);
	read_file(at(DATA), label, sizeof(label), 0);
	assert_int_equal(truncate(at(DATA), 0), 0);
	assert_int_equal(truncate(at(DATA), (off_t)MIB(9)), 0);
	write_file(at(DATA), label, sizeof(label), 0);
	store = must_open(kept);
	assert_int_equal(stat(at(DATA), &st), 0);
	assert_true((uint64_t)st.st_blocks * 512 >= MIB(9));
}

/* ---- Manifests with valid checksums and false contents ---- */

static uint8_t *lie(const struct store_entry *lies, size_t n, struct manifest_header *header)
{
	static const uint8_t id[STORE_ID_SIZE] = {1, 2, 3};
	uint8_t *bytes = manifest_encode(id, 1, lies, n, NULL, header);

	assert_non_null(bytes);
	return bytes;
}

static int decode(const uint8_t *body, struct manifest_header header, const char **why)
{
	struct manifest manifest = {.header = header};
	int rc;

	header.body_checksum = XXH3_64bits(body, header.body_bytes);
	manifest.header = header;
	manifest.body = malloc(header.body_bytes + 1);
	assert_non_null(manifest.body);
	memcpy(manifest.body, body, header.body_bytes);
	rc = manifest_decode_body(&manifest, 512, why);
	/* The last extent is as long as its whole units. */
	assert_true(rc || manifest.end % 512 == 0);
	manifest_free(&manifest);
	return rc;
}

static void assert_lie(const struct store_entry *lies, size_t n, const char *why_not)
{
	struct manifest_header header;
	uint8_t *bytes = lie(lies, n, &header);
	const char *why = "";
	int rc = decode(bytes + MANIFEST_HEADER_BYTES, header, &why);

	free(bytes);
	assert_int_equal(rc, why_not ? -EUCLEAN : 0);
	if (why_not)
		assert_string_equal(why, why_not);
}

#define SECOND(...)                                                                                \
	{                                                                                          \
		.name = "b", .dtype = NVS_F32, .numel = 200, .nbytes = 800, __VA_ARGS__            \
	}

TEST(manifests_with_false_entries_are_refused)
{
	static const char overlap[] = "two extents overlap", range[] = "an extent is out of range",
			  begin[] = "an extent does not begin at a multiple of the unit",
			  bytes[] = "a tensor's bytes are not its elements times their size",
			  type[] = "an element type is unknown";
	static const struct {
		struct store_entry second; /* behind one with extents at 512 and 16384 */
		const char *why;	   /* NULL: it is accepted */
	} cases[] = {
		{SECOND(.offset = 1536, .spare = 15360), NULL},
		{SECOND(.offset = 1536, .spare = 15872), overlap},
		{SECOND(.offset = 1536, .spare = 16384), overlap},
		{SECOND(.offset = 1536, .spare = 512), overlap},
		{SECOND(.offset = 1536, .spare = 1536), overlap},
		{SECOND(.offset = 1536, .spare = 2048), overlap},
		{SECOND(.offset = 1536, .spare = 15361), begin},
		{SECOND(.offset = 1536, .spare = UINT64_C(1) << 61), range},
		{SECOND(.offset = 1024, .spare = 15360), overlap},
		{SECOND(.offset = 512, .spare = 15360), overlap},
		{SECOND(.offset = 1535, .spare = 15360), begin},
		{SECOND(.offset = UINT64_C(1) << 63, .spare = 15360), range},
		{{"a", NVS_F32, .numel = 200, .nbytes = 800, .offset = 4096, .spare = 8192},
		 "a name stands in it twice"},
		{{.name = "b", .dtype = NVS_F32}, NULL},
		{{.name = "b", .dtype = NVS_F32, .numel = 1}, bytes},
		{{.name = "b", .dtype = NVS_F32, .numel = UINT64_C(1) << 62}, bytes},
		{{.name = "b", .dtype = NVS_DTYPE_COUNT}, type},
		{{.name = "b", .dtype = (enum nvs_dtype) - 1}, type},
	};

	for (size_t i = 0; i < LENGTH(cases); i++) {
		const struct store_entry two[] = {{.name = "a",
						   .dtype = NVS_F32,
						   .numel = 200,
						   .nbytes = 800,
						   .offset = 512,
						   .spare = 16384},
						  cases[i].second};

		assert_lie(two, 2, cases[i].why);
	}
}

/* Overwrites a number in the body of a manifest of two entries, and decodes it. */
static void assert_patched(size_t where, uint32_t value, const char *why_not)
{
	const struct store_entry two[2] = {{.name = "abcdefg", .dtype = NVS_U8},
					   {.name = "b", .dtype = NVS_U8}};
	struct manifest_header header;
	uint8_t *bytes = lie(two, 2, &header);
	const char *why = "";

	put_u32(bytes + MANIFEST_HEADER_BYTES + where, value);
	assert_int_equal(decode(bytes + MANIFEST_HEADER_BYTES, header, &why), -EUCLEAN);
	assert_string_equal(why, why_not);
	free(bytes);
}

TEST(entries_with_false_names_or_reserved_bytes_are_refused)
{
	static const size_t zeros[] = {16, 24, 32, 124};

	assert_patched(48, 0, "the length of a name is out of range");
	assert_patched(48, NVS_NAME_MAX + 1, "the length of a name is out of range");
	assert_patched(48, UINT32_MAX, "the length of a name is out of range");
	assert_patched(48, NVS_NAME_MAX, "an entry goes past the end");
	assert_patched(48, 6, "a name does not end where it should");
	assert_patched(48, 8, "a name does not end where it should");
	assert_patched(56, 0x00636261, "a name does not end where it should");
	assert_patched(60, 0x68676665, "a name does not end where it should");
	assert_patched(44, 4, "an entry has a flag that is unknown");
	/* 512 is a valid begin of an extent. */
	for (size_t i = 0; i < LENGTH(zeros); i++)
		assert_patched(zeros[i], 512, "an entry has something where zeros are due");
}

TEST(reserved_bytes_of_headers_and_labels_must_be_zero)
{
	static const struct store_entry one = {.name = "a", .dtype = NVS_U8};
	const struct label label = {.count = 1, .unit = 512};
	struct manifest_header header;
	uint8_t block[LABEL_BYTES], *bytes = lie(&one, 1, &header);
	struct label read;

	bytes[88] = 1;
	seal_header(bytes);
	assert_int_equal(manifest_decode_header(bytes, &header), -EUCLEAN);
	free(bytes);

	label_encode(&label, block);
	assert_int_equal(label_decode(block, &read), 0);
	block[LABEL_BYTES - 1] = 1;
	seal_label(block);
	assert_int_equal(label_decode(block, &read), -EUCLEAN);
}

TEST(notes_with_false_lengths_or_padding_are_refused)
{
	static const struct store_entry one = {.name = "a", .dtype = NVS_U8};
	static const uint8_t id[STORE_ID_SIZE] = {1};
	const struct store_note note = make_note(2);
	const uint64_t lengths[] = {65, NVS_NOTE_MAX + 1, UINT64_MAX - 6, UINT64_MAX};
	struct manifest_header header, read;
	uint8_t *bytes = manifest_encode(id, 1, &one, 1, &note, &header);
	const char *why = "";

	assert_non_null(bytes);
	assert_int_equal(note.nbytes, 42);
	assert_int_equal(header.body_bytes, 64 + 48);
	assert_int_equal(manifest_decode_header(bytes, &read), 0);
	assert_int_equal(read.note_bytes, 42);
	assert_int_equal(decode(bytes + MANIFEST_HEADER_BYTES, header, &why), 0);
	/* The bytes of an entry taken for the note, or of the note for an entry. */
	header.note_bytes = 50;
	assert_int_equal(decode(bytes + MANIFEST_HEADER_BYTES, header, &why), -EUCLEAN);
	header.note_bytes = 40;
	assert_int_equal(decode(bytes + MANIFEST_HEADER_BYTES, header, &why), -EUCLEAN);
	assert_string_equal(why, "something stands behind its entries");
	header.note_bytes = 42;
	bytes[MANIFEST_HEADER_BYTES + header.body_bytes - 1] = 1;
	assert_int_equal(decode(bytes + MANIFEST_HEADER_BYTES, header, &why), -EUCLEAN);
	assert_string_equal(why, "the note has something where zeros are due");
	for (size_t i = 0; i < LENGTH(lengths); i++) {
		put_u64(bytes + 64, lengths[i]);
		seal_header(bytes);
		assert_int_equal(manifest_decode_header(bytes, &read), -EUCLEAN);
	}
	free(bytes);
}

TEST(false_counts_are_refused_before_allocation)
{
	static const struct store_entry one = {.name = "a", .dtype = NVS_U8};
	struct manifest_header header, read;
	uint8_t *bytes = lie(&one, 1, &header);
	static const struct {
		uint64_t count, body_bytes;
		int rc;
	} cases[] = {
		{1, 64, 0},
		{2, 64, -EUCLEAN},
		{UINT64_MAX, 64, -EUCLEAN},
		{0, UINT64_MAX, -EUCLEAN},
		{UINT64_MAX, UINT64_MAX, -EUCLEAN},
	};
	const char *why = "";

	for (size_t i = 0; i < LENGTH(cases); i++) {
		put_u64(bytes + 40, cases[i].count);
		put_u64(bytes + 48, cases[i].body_bytes);
		seal_header(bytes);
		assert_int_equal(manifest_decode_header(bytes, &read), cases[i].rc);
	}
	header.count = 0;
	assert_int_equal(decode(bytes + MANIFEST_HEADER_BYTES, header, &why), -EUCLEAN);
	assert_string_equal(why, "something stands behind its entries");
	free(bytes);
}

/* Both manifests have valid checksums and a length beyond the end of their files. */
TEST(manifests_longer_than_their_file_are_refused)
{
	uint8_t bytes[MANIFEST_HEADER_BYTES];

	make_two_versions();
	for (unsigned slot = 0; slot < MANIFEST_SLOT_COUNT; slot++) {
		read_file(at(MANIFEST, slot), bytes, sizeof(bytes), 0);
		put_u64(bytes + 48, MANIFEST_BYTES_MAX - MANIFEST_HEADER_BYTES);
		seal_header(bytes);
		write_file(at(MANIFEST, slot), bytes, sizeof(bytes), 0);
	}
	must_not_open(kept, -EUCLEAN, "it is cut off");
}

TEST(manifests_of_another_store_are_ignored)
{
	static uint8_t bytes[4096];
	size_t n;

	make_two_versions();
	n = read_file(at(MANIFEST, 1u), bytes, sizeof(bytes), 0);
	remove_tree(at("nvswap"));
	make_two_versions();
	write_file(at(MANIFEST, 1u), bytes, n, 0);
	assert_state(2);
	write_manifests(1, bytes, n);
	assert_lost(1);
	write_manifests(0, bytes, n);
	must_not_open(kept, -EUCLEAN, "it is another store's");
}

/* Labels and manifests with valid checksums that have the highest number of a commit, or name
 * it. */
TEST(a_store_whose_last_number_is_the_highest_refuses_commits)
{
	static const uint64_t numbers[] = {UINT64_MAX - 1, UINT64_MAX};
	const struct how back = {.keep = true, .rollback = true};
	uint8_t header[MANIFEST_HEADER_BYTES];
	struct labels labels;

	for (unsigned i = 0; i < LENGTH(numbers); i++) {
		make_two_versions();
		read_labels(&labels);
		for (unsigned copy = 0; copy < LABEL_COPY_COUNT; copy++) {
			put_u64(labels.bytes[copy] + 56, numbers[i]);
			seal_label(labels.bytes[copy]);
		}
		write_labels(&labels);
		read_file(at(MANIFEST, 1u), header, sizeof(header), 0);
		put_u64(header + 32, UINT64_MAX - 1);
		seal_header(header);
		write_manifests(1, header, sizeof(header));

		store = must_open(back);
		assert_int_equal(store_generation(store), UINT64_MAX - 1);
		found_offsets(store, offsets);
		assert_int_equal(try_commit(store, 3, offsets), -EUCLEAN);
		assert_non_null(strstr(error.text, "the last that there can be"));
		shut(&store);
		store = must_open(back);
		assert_int_equal(version_of(store), 2);
		shut(&store);
		remove_tree(at("nvswap"));
	}
}

TEST(a_manifest_of_any_length_comes_back)
{
	static char names[300][NVS_NAME_MAX + 1];
	static struct store_entry many[300];

	for (size_t n = 0; n <= LENGTH(many); n += n < 3 ? 1 : 99) {
		size_t found;
		const struct store_entry *back;

		store = must_open(kept);
		for (size_t i = 0; i < n; i++) {
			memset(names[i], 'x', NVS_NAME_MAX);
			names[i][0] = (char)('a' + i / 26);
			names[i][1] = (char)('a' + i % 26);
			names[i][i % 7 ? NVS_NAME_MAX - i % 9 : 2] = 0;
			many[i] = (struct store_entry){.name = names[i], .dtype = NVS_I8};
		}
		assert_int_equal(store_commit(store, many, n, NULL, &error), 0);
		shut(&store);
		store = must_open(kept);
		back = store_entries(store, &found);
		assert_int_equal(found, n);
		for (size_t i = 0; i < n; i++)
			assert_string_equal(back[i].name, names[i]);
		shut(&store);
		remove_tree(at("nvswap"));
	}
}

/* ---- Drives that fail ---- */

/*
 * Fails the call number `call`, from 0, of a commit after `before` others, none or one; commits
 * once more if `go_on`. Returns false if the commit made fewer calls.
 */
static bool fail_one_call(unsigned before, unsigned call, bool go_on)
{
	/* The data are synced first; a sync that failed may have lost some, and is not repeated. */
	bool data = call == 0;
	int rc;

	store = open_reserved(offsets);
	if (before)
		commit_version(store, before, offsets);
	failing_calls = UINT32_C(1) << call;
	rc = try_commit(store, before + 1, offsets);
	failing_calls = 0;
	if (go_on)
		assert_int_equal(try_commit(store, before + 2, offsets), data ? -EIO : 0);
	if (go_on && data)
		assert_non_null(strstr(error.text, "earlier attempt"));
	shut(&store);
	assert_true(rc == 0 || rc == -EIO);
	assert_state(!rc && !go_on ? before + 1 : go_on && !data ? before + 2 : before);
	remove_tree(at("nvswap"));
	return rc;
}

TEST(a_failed_commit_leaves_the_previous_one)
{
	for (unsigned before = 0; before < 2; before++) {
		unsigned calls = 0;

		while (fail_one_call(before, calls, false) && fail_one_call(before, calls, true))
			calls++;
		/* A sync of the data; two writes and two syncs each of manifest and label. */
		assert_int_equal(calls, 9);
	}
}

/*
 * The write or the sync of a copy's mark fails: the commit counts, and the next one is not spared.
 */
TEST(a_commit_counts_though_it_can_not_be_marked)
{
	for (unsigned call = 9; call < 13; call++) {
		store = open_reserved(offsets);
		failing_calls = UINT32_C(1) << call;
		commit_version(store, 1, offsets);
		assert_int_equal(failing_calls, 0);
		assert_non_null(strstr(log_text, "commit number 1 was made, but a copy of its "
						 "manifest could not be marked so"));
		log_text[0] = 0;
		commit_version(store, 1, offsets);
		assert_int_equal(store_generation(store), 2);
		commit_version(store, 1, offsets);
		assert_int_equal(store_generation(store), 2);
		shut(&store);
		assert_state(1);
		assert_string_equal(log_text, "");
		remove_tree(at("nvswap"));
	}
}

/*
 * The label can be neither written nor taken back: the drive may name either manifest. The next
 * commit takes it back first.
 */
TEST(a_label_that_cant_be_taken_back_is_taken_back_by_the_next_commit)
{
	static const uint32_t cases[] = {
		/* From bit 5: writes and syncs of the two copies; then those that take them
		 * back. */
		1 << 5 | 1 << 6, 1 << 6 | 1 << 7, 1 << 7 | 1 << 8, 1 << 8 | 1 << 9,
		1 << 8 | 1 << 11};

	for (size_t i = 0; i < LENGTH(cases); i++) {
		store = open_reserved(offsets);
		commit_version(store, 1, offsets);
		failing_calls = cases[i];
		assert_int_equal(try_commit(store, 2, offsets), -EIO);
		assert_non_null(strstr(error.text, "could not be taken back either"));
		assert_true(store_unsettled(store));
		/* As long as that fails, nothing else is tried. */
		failing_calls = 1;
		assert_int_equal(try_commit(store, 2, offsets), -EIO);
		assert_non_null(strstr(error.text, "can't be taken back"));
		assert_int_equal(failing_calls, 0);
		assert_true(store_unsettled(store));
		if (i % 2)
			commit_version(store, 1, offsets);
		else
			commit_version(store, 3, offsets);
		assert_false(store_unsettled(store));
		shut(&store);
		assert_state(i % 2 ? 1 : 3);
		remove_tree(at("nvswap"));
	}
}

/* Without a later commit the drive has either of the two, and both are whole. */
TEST(a_label_that_was_not_taken_back_names_a_whole_manifest)
{
	for (unsigned bit = 5; bit < 9; bit++) {
		unsigned found;

		store = open_reserved(offsets);
		commit_version(store, 1, offsets);
		failing_calls = UINT32_C(3) << bit;
		assert_int_equal(try_commit(store, 2, offsets), -EIO);
		failing_calls = 0;
		shut(&store);
		store = must_open(kept);
		found = version_of(store);
		assert_true(found == 1 || found == 2);
		shut(&store);
		remove_tree(at("nvswap"));
	}
}

TEST(a_label_that_cant_be_made_durable_is_not_opened)
{
	make_two_versions();
	failing_calls = 1;
	must_not_open(kept, -EIO, "durable");
	failing_calls = 0;
	assert_state(2);
}

TEST(a_store_in_host_memory_can_not_be_read_only)
{
	struct nvs_config *config;
	struct nvs_engine *engine;

	assert_int_equal(nvs_config_open(&config, &error), 0);
	assert_int_equal(nvs_config_set(config, "nvswap.read_only", "true", &error), 0);
	assert_int_equal(nvs_config_set(config, "offload_param.device", "cpu", &error), 0);
	assert_int_equal(nvs_config_set(config, "offload_param.buffer_size", "4096", &error), 0);
	assert_int_equal(nvs_engine_open(&engine, config, NVS_OFFLOAD_PARAM, &error), -ENODATA);
	assert_string_equal(error.subject, "read_only");
	assert_null(engine);
	nvs_config_close(config);
}

/* ---- Members ---- */

TEST(a_store_of_another_version_is_refused)
{
	uint8_t label[LABEL_BYTES];

	make_two_versions();
	read_file(at(DATA), label, sizeof(label), 0);
	put_u32(label + 8, 1);
	seal_label(label);
	write_file(at(DATA), label, sizeof(label), 0);
	must_not_open(kept, -EMEDIUMTYPE, "made by another version of nvswap");
	must_not_open((struct how){.keep = false}, -EMEDIUMTYPE, "remove ");
}

static const struct how three = {.paths = {"a", "b", "c"}, .npaths = 3, .keep = true};

TEST(members_are_one_store_in_one_order)
{
	static const struct {
		const char *paths[4], *said;
	} cases[] = {
		{{"b", "a", "c"}, "member 1 of"},
		{{"a", "c", "b"}, "member 2 of"},
		{{"a", "b"}, "on 3 paths"},
		{{"b"}, "member 1 of"},
		{{"a", "b", "c", "d"}, "on 3 paths"},
		{{"a", "d", "c"}, "holds nothing of the kept store"},
		{{"a", "y", "c"}, "different kept stores"},
		{{"d", "b", "c"}, "which stands first"},
	};
	struct how how = three;

	store_close(must_open(three));
	for (int i = 0; i < 3; i++)
		assert_int_equal(mkdir(at("%c", 'x' + i), 0700), 0);
	store_close(must_open((struct how){.paths = {"x", "y", "z"}, .npaths = 3, .keep = true}));
	for (size_t i = 0; i < LENGTH(cases); i++) {
		memcpy(how.paths, cases[i].paths, sizeof(how.paths));
		for (how.npaths = 0; how.npaths < 4 && how.paths[how.npaths];)
			how.npaths++;
		must_not_open(how, -EMEDIUMTYPE, cases[i].said);
	}
	how = three;
	how.stripe_size = 131072;
	must_not_open(how, -EMEDIUMTYPE, "set it to 65536");
	how.keep = false;
	must_not_open(how, -EEXIST, "a/" DATA " holds a kept store");
	must_not_open((struct how){.paths = {"d", "b"}, .npaths = 2}, -EEXIST,
		      "b/" DATA " holds a kept store");
	assert_int_equal(mode_of(at("d/nvswap")), 0);
	store_close(must_open(three));
}

TEST(a_store_opens_with_its_own_stripes_where_no_size_is_set)
{
	const struct how unset = {
		.paths = {"a", "b", "c"}, .npaths = 3, .keep = true, .stripe_unset = true};

	assert_true(aio_settings(aio)->block_size != 65536);
	store_close(must_open(three));
	store = must_open(unset);
	assert_true(store->stripe == 65536);
}

TEST(ranks_are_not_mixed_up)
{
	store_close(must_open(kept));
	assert_int_equal(rename(at("nvswap/rank0"), at("nvswap/rank5")), 0);
	must_not_open((struct how){.keep = true, .rank = 5}, -EMEDIUMTYPE, "of rank 0");
}

TEST(striped_data_is_found_again)
{
	uint64_t nbytes = 1000003;
	uint8_t *wrote = malloc(nbytes), *read = malloc(nbytes);
	struct store_entry entry;
	size_t n;

	store = must_open(three);
	assert_non_null(wrote);
	assert_non_null(read);
	fill(wrote, nbytes, 3);
	entry = reserve_entry(store, nbytes);
	move(store, NVS_WRITE, wrote, nbytes, entry.offset);
	assert_int_equal(store_commit(store, &entry, 1, NULL, &error), 0);
	shut(&store);
	store = must_open(three);
	assert_int_equal(store_entries(store, &n)[0].offset, entry.offset);
	move(store, NVS_READ, read, nbytes, entry.offset);
	assert_memory_equal(read, wrote, nbytes);
	shut(&store);
	assert_int_equal(truncate(at("b/" DATA), (off_t)size_of(at("b/" DATA)) - 1), 0);
	must_not_open(three, -EUCLEAN, "b/nvswap/rank0/data is truncated");
	free(wrote);
	free(read);
}

/* Labels are marked as kept from the last member to the first; the crash comes at any point. */
TEST(a_crash_while_a_store_is_made_allows_a_new_one)
{
	for (unsigned marked = 0; marked < 3; marked++) {
		store = must_open(three);
		for (unsigned i = 0; i < 3 - marked; i++) {
			store->members[i].label.kept = false;
			assert_int_equal(member_write_label(&store->members[i], &error), 0);
		}
		shut(&store);
		store_close(must_open(
			(struct how){.paths = {"a", "b", "c"}, .npaths = 3, .keep = marked % 2}));
		for (int i = 0; i < 3; i++)
			remove_tree(at("%c/nvswap", 'a' + i));
	}
}

EACH_TEST(make_root, cleanup)
AROUND_TESTS(open_aio, close_aio)
