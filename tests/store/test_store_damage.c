/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damage of labels and manifests: a bad byte or an unreadable sector anywhere costs nothing, and
 * whatever is damaged, an opening gives the last commit or an error, never an older commit in
 * silence.
 */
#include <sys/syscall.h>

#include "store/kept_fixture.h"

ONE_STORE

static uint64_t offsets[EXTENTS];

/* ---- Sectors that can't be read ---- */

static struct {
	ino_t ino;
	uint64_t from, end;
} unreadable;

ssize_t pread(int fd, void *data, size_t nbytes, off_t offset)
{
	uint64_t from = (uint64_t)offset, end = from + nbytes;
	struct stat st;

	if (unreadable.end > from && unreadable.from < end && !fstat(fd, &st) &&
	    st.st_ino == unreadable.ino) {
		errno = EIO;
		return -1;
	}
	return syscall(SYS_pread64, fd, data, nbytes, offset);
}

/* ---- Where the metadata lie ---- */

enum { LABELS = LABEL_COPY_COUNT, PLACES = LABELS + MANIFEST_SLOT_COUNT };

struct place_of {
	char path[512];
	uint64_t offset, nbytes;
	uint8_t bytes[LABEL_BYTES];
};

static struct place_of places[PLACES];

static bool is_label(unsigned place)
{
	return place < LABELS;
}

/* Whether the last of three commits is there. */
static bool is_current(unsigned place)
{
	return is_label(place) || (place - LABELS) % MANIFEST_TURN_COUNT == 0;
}

static void find_places(void)
{
	for (unsigned i = 0; i < PLACES; i++) {
		struct place_of *place = &places[i];

		snprintf(place->path, sizeof(place->path), "%s",
			 is_label(i) ? at(DATA) : at(MANIFEST, i - LABELS));
		place->offset = is_label(i) ? i * LABEL_DISTANCE : 0;
		place->nbytes = is_label(i) ? LABEL_BYTES : size_of(place->path);
		assert_true(place->nbytes && place->nbytes <= sizeof(place->bytes));
		read_file(place->path, place->bytes, place->nbytes, place->offset);
	}
}

static void mend(unsigned i)
{
	write_file(places[i].path, places[i].bytes, places[i].nbytes, places[i].offset);
}

static void make_three_versions(void)
{
	store = open_reserved(offsets);
	for (unsigned version = 1; version <= 3; version++)
		commit_version(store, version, offsets);
	shut(&store);
	find_places();
}

static void assert_last_commit(unsigned place)
{
	store = must_open(kept);
	assert_int_equal(version_of(store), 3);
	assert_int_equal(store_generation(store), 3);
	shut(&store);
	assert_int_equal(strstr(log_text, "damaged") != NULL, is_current(place));
	log_text[0] = 0;
}

/* ---- One damage ---- */

TEST(a_flipped_bit_anywhere_in_the_metadata_costs_nothing)
{
	unsigned opened = 0;

	make_three_versions();
	for (unsigned i = 0; i < PLACES; i++) {
		for (uint64_t at_byte = 0; at_byte < places[i].nbytes;
		     at_byte += at_byte < 512 ? at_length(1, 3) : at_length(5, 31)) {
			/* All bits of the fields, and one of each byte behind them. */
			for (unsigned bit = 0; bit < (at_byte < 64 ? 8 : 1); bit++) {
				uint8_t byte = places[i].bytes[at_byte] ^
					       (uint8_t)(1u << (bit + at_byte) % 8);

				write_file(places[i].path, &byte, 1, places[i].offset + at_byte);
				assert_last_commit(i);
				opened++;
			}
			write_file(places[i].path, &places[i].bytes[at_byte], 1,
				   places[i].offset + at_byte);
		}
	}
	print_message("%u damages\n", opened);
	assert_state(3);
	assert_string_equal(log_text, "");
}

TEST(a_lost_sector_of_the_metadata_costs_nothing)
{
	static const uint64_t sizes[] = {512, 4096};
	uint8_t sector[4096];

	make_three_versions();
	for (unsigned i = 0; i < PLACES; i++)
		for (size_t k = 0; k < 2 * LENGTH(sizes); k++)
			for (uint64_t from = 0; from < places[i].nbytes; from += sizes[k / 2]) {
				uint64_t n = places[i].nbytes - from;

				n = n < sizes[k / 2] ? n : sizes[k / 2];
				memset(sector, 0, sizeof(sector));
				if (k % 2)
					fill(sector, sizeof(sector), from + i);
				/* Sectors behind the label's fields are zeros anyway. */
				if (!memcmp(sector, places[i].bytes + from, n))
					continue;
				write_file(places[i].path, sector, n, places[i].offset + from);
				assert_last_commit(i);
				mend(i);
			}
	assert_state(3);
}

TEST(an_unreadable_sector_of_the_metadata_costs_nothing)
{
	static const uint64_t sizes[] = {512, 4096};

	make_three_versions();
	for (unsigned i = 0; i < PLACES; i++)
		for (size_t k = 0; k < LENGTH(sizes); k++)
			for (uint64_t from = 0; from < places[i].nbytes; from += sizes[k]) {
				struct stat st;

				assert_int_equal(stat(places[i].path, &st), 0);
				unreadable.ino = st.st_ino;
				unreadable.from = places[i].offset + from;
				unreadable.end = unreadable.from + sizes[k];
				assert_last_commit(i);
				unreadable.end = 0;
			}
	assert_state(3);
}

/* Nothing else has what a label has, so nothing can write it anew. */
TEST(a_store_neither_label_of_which_can_be_read_is_refused_with_the_remedies_which_work)
{
	struct nvs_store_repairs repairs = {.size = sizeof(repairs)};
	const char *path = root;
	const struct nvs_store_place place = {.size = sizeof(place), .paths = &path, .npaths = 1};
	struct stat st;

	make_three_versions();
	assert_int_equal(stat(places[0].path, &st), 0);
	unreadable.ino = st.st_ino;
	unreadable.from = 0;
	unreadable.end = LABEL_DISTANCE + LABEL_BYTES;
	must_not_open(kept, -EIO, "neither copy of the label");
	assert_non_null(strstr(error.text, "nvswap/rank0/data at offset 0"));
	assert_int_equal(error.cause, NVS_CAUSE_IO);
	assert_true(error.path_nbytes > strlen("/data"));
	assert_memory_equal(error.text + error.path_at + error.path_nbytes - strlen("/data"),
			    "/data", strlen("/data"));
	assert_non_null(strstr(
		error.text, "restore the store from a copy, or remove it (nvswap store remove)"));
	/* Once the drive can be read again. */
	unreadable.end = 0;
	assert_state(3);
	unreadable.end = LABEL_DISTANCE + LABEL_BYTES;
	assert_int_equal(nvs_store_repair(&place, 0, &repairs, &error), -EUCLEAN);
	assert_non_null(strstr(error.text, "remove it (nvswap store remove)"));
	assert_int_equal(nvs_store_remove(&place, &error), 0);
	unreadable.end = 0;
	assert_int_equal(access(places[0].path, F_OK), -1);
}

/* The other copy is damaged next, so only the one that was written anew is left. */
TEST(the_next_commit_writes_damaged_copies_anew)
{
	static const unsigned pairs[][2] = {{0, 1}, {1, 0}, {2, 4}, {4, 2}};

	for (size_t k = 0; k < LENGTH(pairs); k++) {
		unsigned first = pairs[k][0];
		uint8_t byte;

		make_three_versions();
		byte = places[first].bytes[17] ^ 1;
		write_file(places[first].path, &byte, 1, places[first].offset + 17);
		store = must_open(kept);
		assert_non_null(strstr(log_text, "the next commit writes both anew"));
		assert_int_equal(version_of(store), 3);
		found_offsets(store, offsets);
		/* Nothing has changed but for the damage. */
		commit_version(store, 3, offsets);
		shut(&store);
		log_text[0] = 0;
		assert_state(3);
		assert_null(strstr(log_text, "damaged"));
		find_places();
		byte = places[pairs[k][1]].bytes[17] ^ 1;
		write_file(places[pairs[k][1]].path, &byte, 1, places[pairs[k][1]].offset + 17);
		assert_state(3);
		remove_tree(at("nvswap"));
		log_text[0] = 0;
	}
}

TEST(several_damages_never_lead_to_an_older_commit_in_silence)
{
	uint64_t random = 20240229;
	unsigned refused = 0, opened = 0;

	print_message("seed %" PRIu64 "\n", random);
	make_three_versions();
	for (unsigned turn = 0; turn < at_length(3000, 500); turn++) {
		unsigned damages = 2 + (unsigned)(random_next(&random) % 3);
		int rc;

		for (unsigned k = 0; k < damages; k++) {
			unsigned i = (unsigned)(random_next(&random) % PLACES);
			uint64_t where = random_next(&random) %
					 (is_label(i) ? 512 : places[i].nbytes);
			uint8_t byte = places[i].bytes[where] ^
				       (uint8_t)(1 + random_next(&random) % 255);

			write_file(places[i].path, &byte, 1, places[i].offset + where);
		}
		rc = try_open(kept, &store);
		if (!rc) {
			assert_int_equal(version_of(store), 3);
			shut(&store);
			opened++;
		} else {
			assert_int_equal(rc, -EUCLEAN);
			refused++;
		}
		for (unsigned i = 0; i < PLACES; i++)
			mend(i);
	}
	print_message("%u opened, %u refused\n", opened, refused);
	assert_true(opened && refused);
	assert_state(3);
}

TEST(a_lost_commit_is_named_and_rolled_back_only_when_asked)
{
	make_three_versions();
	truncate_manifests(0, 100);
	must_not_open(kept, -EUCLEAN, "the last commit is number 3");
	must_not_open(kept, -EUCLEAN, "manifest.0 0: it is empty or cut off");
	must_not_open(kept, -EUCLEAN, "\"nvswap\": {\"rollback\": true} goes back to number 2");
	assert_lost(2);
	/* Opening alone decides nothing. */
	must_not_open(kept, -EUCLEAN, "the last commit is number 3");
	truncate_manifests(1, 100);
	must_not_open((struct how){.keep = true, .rollback = true}, -EUCLEAN, "restore the store");
}

/* ---- Labels that a manifest proves to be older than the last commit ---- */

static const char older_label[] =
	"is damaged, or older than the manifests: the last commit is number 3";

TEST(a_label_that_lost_its_last_write_beside_a_damaged_copy_is_refused)
{
	for (unsigned lost = 0; lost < LABELS; lost++) {
		struct labels before, now;

		make_two_versions();
		read_labels(&before);
		store = must_open(kept);
		found_offsets(store, offsets);
		commit_version(store, 3, offsets);
		shut(&store);
		read_labels(&now);
		memcpy(now.bytes[lost], before.bytes[lost], LABEL_BYTES);
		now.bytes[!lost][100] ^= 4;
		write_labels(&now);
		assert_lost_as(2, older_label);
		assert_non_null(strstr(error.text, lost ? "(at offset 0: damaged or unreadable; at "
							  "offset 1048576: whole; manifest.0 0: "
							  "number 3; manifest.1 1: number 2"
							: "(at offset 0: whole; at offset 1048576: "
							  "damaged or unreadable; "));
		assert_non_null(strstr(error.text, "{\"rollback\": true} goes back to number 2"));
		/* Opening alone decides nothing; a commit does. */
		must_not_open(kept, -EUCLEAN, older_label);
		store = must_open((struct how){.keep = true, .rollback = true});
		found_offsets(store, offsets);
		commit_version(store, 2, offsets);
		assert_int_equal(store_generation(store), 4);
		shut(&store);
		log_text[0] = 0;
		assert_state(2);
		assert_string_equal(log_text, "");
		remove_tree(at("nvswap"));
	}
}

/* A snapshot of the data that was restored without the manifests, or writes that were lost. */
TEST(data_as_of_an_earlier_commit_is_refused_with_any_copy_of_a_manifest_damaged)
{
	static const uint8_t junk[MANIFEST_HEADER_BYTES] = {1};
	struct labels labels[3];

	store = open_reserved(offsets);
	for (unsigned version = 1; version <= 3; version++) {
		read_labels(&labels[version - 1]);
		commit_version(store, version, offsets);
	}
	shut(&store);
	find_places();
	for (unsigned commit = 0; commit < 3; commit++) {
		write_labels(&labels[commit]);
		must_not_open(kept, -EUCLEAN, older_label);
		for (unsigned i = LABELS; i < PLACES; i++)
			for (unsigned how = 0; how < 4; how++) {
				if (how == 3)
					write_file(places[i].path, junk, sizeof(junk), 0);
				else
					assert_int_equal(truncate(places[i].path, 100 * how), 0);
				must_not_open(kept, -EUCLEAN, older_label);
				mend(i);
			}
		/* A header proves its commit without the rest. */
		truncate_manifests(0, MANIFEST_HEADER_BYTES);
		must_not_open(kept, -EUCLEAN, older_label);
		mend(LABELS);
		mend(LABELS + MANIFEST_TURN_COUNT);
	}
	/* What the label names is not there either. */
	write_labels(&labels[1]);
	must_not_open((struct how){.keep = true, .rollback = true}, -EUCLEAN, "restore the store");
	write_labels(&labels[2]);
	assert_lost_as(2, older_label);
}

TEST(labels_from_before_a_store_was_kept_are_not_taken_for_those_of_a_crash)
{
	struct labels labels;

	make_two_versions();
	read_labels(&labels);
	for (unsigned i = 0; i < LABELS; i++) {
		struct label label;

		assert_int_equal(label_decode(labels.bytes[i], &label), 0);
		label.kept = false;
		label.generation = 0;
		label_encode(&label, labels.bytes[i]);
	}
	write_labels(&labels);
	must_not_open(kept, -EUCLEAN, "manifests are in ");
	must_not_open((struct how){.keep = false}, -EUCLEAN, "a store that is not kept");
}

/* Of a version that did not mark: it opens, and the first run that writes marks it. */
TEST(a_store_without_marks_opens_and_is_marked)
{
	struct labels before;
	uint8_t header[MANIFEST_HEADER_BYTES];

	make_two_versions();
	read_labels(&before);
	unmark_manifests(0);
	unmark_manifests(1);
	read_file(at(MANIFEST, 1u), header, sizeof(header), 0);
	store_close(must_open((struct how){.keep = true, .read_only = true}));
	read_file(at(MANIFEST, 3u), places[0].bytes, sizeof(header), 0);
	assert_memory_equal(places[0].bytes, header, sizeof(header));
	assert_state(2);
	assert_string_equal(log_text, "");
	/* Asserts that both copies are marked. */
	unmark_manifests(1);
	assert_state(2);
}

enum { NAMES = 7 };

static void look_at_names(struct stat found[NAMES])
{
	static const char *const names[NAMES] = {
		"nvswap",
		"nvswap/rank0",
		DATA,
		"nvswap/rank0/manifest.0",
		"nvswap/rank0/manifest.1",
		"nvswap/rank0/manifest.2",
		"nvswap/rank0/manifest.3",
	};

	memset(found, 0, NAMES * sizeof(found[0]));
	for (unsigned i = 0; i < NAMES; i++)
		if (lstat(at("%s", names[i]), &found[i]))
			assert_int_equal(errno, ENOENT);
}

static void must_be_refused_without_a_trace(const char *said)
{
	struct stat before[NAMES], after[NAMES];

	assert_int_equal(chmod(at("nvswap/rank0"), 0755), 0);
	assert_int_equal(chmod(at(DATA), 0644), 0);
	assert_int_equal(chmod(at(MANIFEST, 0u), 0644), 0);
	look_at_names(before);
	must_not_open(kept, -EUCLEAN, said);
	look_at_names(after);
	for (unsigned i = 0; i < NAMES; i++) {
		assert_int_equal(after[i].st_ino, before[i].st_ino);
		assert_int_equal(after[i].st_mode, before[i].st_mode);
		assert_int_equal(after[i].st_size, before[i].st_size);
		/* The time of any other change. */
		assert_int_equal(after[i].st_ctim.tv_sec, before[i].st_ctim.tv_sec);
		assert_int_equal(after[i].st_ctim.tv_nsec, before[i].st_ctim.tv_nsec);
	}
}

TEST(an_open_that_is_refused_changes_nothing)
{
	make_two_versions();
	assert_int_equal(unlink(at(MANIFEST, 3u)), 0);
	assert_int_equal(truncate(at(DATA), LABEL_AREA_BYTES), 0);
	must_be_refused_without_a_trace("is truncated");
	assert_int_equal(unlink(at(MANIFEST, 1u)), 0);
	must_be_refused_without_a_trace("manifest.1 1: it is missing");
}

TEST(both_labels_damaged_from_their_first_byte_are_a_damaged_store)
{
	static const uint8_t zeros[LABEL_BYTES];
	uint8_t junk[LABEL_BYTES];

	make_two_versions();
	fill(junk, sizeof(junk), 1);
	/* Both junk; the first, the second or both zeros. */
	for (unsigned k = 0; k < 4; k++) {
		for (unsigned i = 0; i < LABELS; i++)
			write_file(at(DATA), k >> i & 1 ? zeros : junk, LABEL_BYTES,
				   i * LABEL_DISTANCE);
		must_not_open(kept, -EUCLEAN, "and so is its copy, but manifests are in ");
		must_not_open((struct how){.keep = false}, -EUCLEAN, "manifests are in ");
	}
}

TEST(a_second_path_with_lost_labels_is_a_damaged_store)
{
	static const struct how two = {.paths = {"a", "b"}, .npaths = 2, .keep = true};
	static const uint8_t zeros[LABEL_BYTES];
	uint8_t junk[LABEL_BYTES];

	store_close(must_open(two));
	fill(junk, sizeof(junk), 1);
	for (unsigned k = 0; k < 2; k++) {
		for (unsigned i = 0; i < LABELS; i++)
			write_file(at("b/" DATA), k ? zeros : junk, LABEL_BYTES,
				   i * LABEL_DISTANCE);
		must_not_open(two, -EUCLEAN, "b/" DATA " is damaged or missing");
	}
}

TEST(a_damaged_copy_is_logged_with_its_offset)
{
	static const uint8_t junk[16] = {1, 2, 3};
	char text[128];

	make_two_versions();
	write_file(at(DATA), junk, sizeof(junk), LABEL_DISTANCE + 100);
	write_file(at(MANIFEST, 3u), junk, sizeof(junk), 20);
	log_text[0] = 0;
	assert_state(2);
	snprintf(text, sizeof(text), "%s at offset %" PRIu64 ", is damaged", DATA, LABEL_DISTANCE);
	assert_non_null(strstr(log_text, text));
	assert_null(strstr(log_text, DATA " at offset 0"));
	assert_non_null(strstr(log_text, "manifest.3 at offset 0, is damaged"));
	assert_null(strstr(log_text, "manifest.1 at"));
}

EACH_TEST(make_root, cleanup)
AROUND_TESTS(open_aio, close_aio)
