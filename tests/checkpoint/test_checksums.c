/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines of .safetensors files that verify: tensors are compared with the checksums beside their
 * files, or with those of their first read; files of checksums that are wrong, or of other files,
 * are refused.
 */
#include <xxhash.h>

#include "checkpoint/weights_fixture.h"
#include "swap/swap_fixture.h"

ONE_ENGINE

#define N      6u
#define PADDED 700u

/* Small ones, one whose checksum is computed in slices, one of whole units, and an empty one. */
static const uint64_t lengths[N] = {300, 0, 5 * MIB + 3, 65536, 13, 40000};
static struct nvs_tensor *t[N];
static const char *path, *sums;

/* Writes the file of checksums, of `nbytes` of the file and all tensors but one (N: none). */
static void write_sums(const char *to, uint64_t nbytes, size_t without)
{
	char *data = malloc(6 * MIB);
	FILE *file = fopen(to, "we");
	const char *comma = "";

	assert_non_null(data);
	assert_non_null(file);
	fprintf(file, "{\"format\": \"nvswap checksums 1\", \"bytes\": %" PRIu64 ", \"xxh3\": {",
		nbytes);
	for (size_t i = 0; i < N; i++) {
		if (i == without || !lengths[i])
			continue;
		fill(data, lengths[i], i);
		fprintf(file, "%s\"t%zu\": \"%016" PRIx64 "\"", comma, i,
			(uint64_t)XXH3_64bits(data, lengths[i]));
		comma = ", ";
	}
	fprintf(file, "}}\n");
	assert_int_equal(fclose(file), 0);
	free(data);
}

static uint64_t bytes_of(const char *file)
{
	struct stat status;

	assert_int_equal(stat(file, &status), 0);
	return (uint64_t)status.st_size;
}

/* A model with its checksums. */
static void make(bool verify)
{
	INIT(f, .place = PLACE_DISK, .pool_bytes = 8 * MIB, .verify = verify);
	path = path_in(f->paths[0], "model.safetensors");
	sums = path_in(f->paths[0], "model.safetensors.checksums");
	weights_make(path, lengths, 0, N, PADDED);
	write_sums(sums, bytes_of(path), N);
}

static int open_from(const char *checksums)
{
	struct nvs_files_options options = {.size = sizeof(options), .checksums = checksums};
	int rc = nvs_engine_open_files(&f->engine, &f->config, &path, 1, &options, &f->error);

	if (!rc)
		weights_find(f->engine, t, N);
	return rc;
}

static int read_one(struct nvs_tensor *tensor)
{
	int rc = weights_read(f->engine, tensor, &f->error);

	return rc ? rc : nvs_tensor_swap_out(f->engine, &tensor, 1, &f->error);
}

/* Changes the last byte of a tensor in the file, which keeps its time of change. */
static void flip_last(size_t tensor)
{
	uint64_t at = 8 + PADDED - 1;
	struct stat status;

	for (size_t i = 0; i <= tensor; i++)
		at += lengths[i];
	assert_int_equal(stat(path, &status), 0);
	flip(path, (off_t)at, 1);
	assert_int_equal(
		utimensat(AT_FDCWD, path,
			  (const struct timespec[2]){{.tv_nsec = UTIME_OMIT}, status.st_mtim}, 0),
		0);
}

static bool has_checksum(size_t tensor)
{
	struct nvs_stored_tensor stored = {.size = sizeof(stored)};

	assert_int_equal(nvs_engine_get_stored(f->engine, tensor, &stored), 0);
	assert_string_equal(stored.path, path);
	return stored.has_checksum;
}

TEST(tensors_are_compared_with_the_checksums_beside_their_files)
{
	const size_t damaged[] = {2, 4};

	make(true);
	flip_last(2);
	flip_last(4);
	OK(f, open_from(NULL));
	for (size_t i = 0; i < N; i++)
		assert_true(has_checksum(i) == !!lengths[i]);
	for (size_t i = 0; i < 2; i++) {
		struct nvs_tensor *tensor = t[damaged[i]];

		assert_int_equal(read_one(tensor), -EBADMSG);
		assert_string_equal(f->error.subject, info_of(f, tensor).name);
		assert_int_equal(f->error.cause, NVS_CAUSE_IO);
		assert_says(f->error.text, path);
		expect_error(f, read_one(tensor), -EBADMSG, "nvswap store checksum");
		STATE(f, tensor, NVS_ON_DRIVE, false, 0);
	}
	for (size_t i = 0; i < N; i++)
		if (i != 2 && i != 4)
			tensor_compare(f, t[i], i);
	assert_int_equal(stats_of(f).verify_errors, 4);
	/* As it was. */
	flip_last(2);
	tensor_compare(f, t[2], 2);
}

TEST(without_verify_nothing_is_compared)
{
	make(false);
	flip_last(2);
	OK(f, open_from(NULL));
	assert_false(has_checksum(2));
	OK(f, read_one(t[2]));
	assert_false(has_checksum(2));
}

TEST(checksums_lie_in_another_directory_or_are_left_out)
{
	make(true);
	flip_last(2);
	assert_int_equal(mkdir(path_in(f->paths[0], "sums"), 0700), 0);
	assert_int_equal(rename(sums, path_in(f->paths[0], "sums/model.safetensors.checksums")), 0);
	OK(f, open_from(path_in(f->paths[0], "sums")));
	expect_error(f, read_one(t[2]), -EBADMSG, path);
	fixture_shut(f);
	OK(f, open_from(NULL));
	OK(f, read_one(t[2]));
	fixture_shut(f);
	write_sums(sums, bytes_of(path), N);
	OK(f, open_from(""));
	OK(f, read_one(t[2]));
}

TEST(a_directory_that_is_given_and_has_no_checksums_is_refused_by_name)
{
	const char *directory;

	make(true);
	directory = path_in(f->paths[0], "sums");
	for (int exists = 0; exists < 2; exists++) {
		expect_error(f, open_from(directory), -ENOENT,
			     path_in(directory, "model.safetensors.checksums"));
		assert_int_equal(mkdir(directory, 0700), exists ? -1 : 0);
	}
	f->config.verify = VERIFY_OFF;
	OK(f, open_from(directory));
}

TEST(a_tensor_without_a_checksum_gets_that_of_its_first_read)
{
	struct nvs_tensor_rows rows = {
		.size = sizeof(rows), .first = 3 * MIB, .count = 2 * MIB + 3};
	struct nvs_tensor *last;

	make(true);
	assert_int_equal(unlink(sums), 0);
	OK(f, open_from(NULL));
	rows.tensor = t[2];
	OK(f, nvs_tensor_register_rows(f->engine, &rows, 1, &last, &f->error));
	for (size_t i = 0; i < N; i++)
		assert_false(has_checksum(i));
	for (int round = 0; round < 2; round++) {
		OK(f, read_one(last));
		for (size_t i = 0; i < N; i++) {
			OK(f, read_one(t[i]));
			assert_true(has_checksum(i) == !!lengths[i]);
		}
	}
	flip_last(2);
	flip_last(3);
	expect_error(f, read_one(t[2]), -EBADMSG, path);
	expect_error(f, read_one(t[3]), -EBADMSG, path);
	expect_error(f, read_one(last), -EBADMSG, path);
	tensor_compare(f, t[5], 5);
}

TEST(checksums_of_another_form_or_of_other_files_are_refused_with_a_remedy)
{
	static const char *const wrong[] = {
		"{}",
		"{\"format\": \"nvswap checksums 2\", \"bytes\": 1, \"xxh3\": {}}",
		"{\"format\": \"nvswap checksums 1\", \"xxh3\": {}}",
		"{\"format\": \"nvswap checksums 1\", \"bytes\": -1, \"xxh3\": {}}",
		"[1]",
	};
	char text[256];

	make(true);
	for (size_t i = 0; i < COUNT(wrong); i++) {
		write_text(sums, wrong[i]);
		expect_error(f, open_from(NULL), -EINVAL, "nvswap store checksum");
	}
	write_text(sums, "{\"format\"");
	expect_error(f, open_from(NULL), -EINVAL, "checksums");
	for (int i = 0; i < 3; i++) {
		static const char *const sum[] = {
			"\"0123\"", "\"012345678901234G\"",
			"\"0123456789abcdef\", \"t0\": \"0123456789abcdef\""};

		snprintf(text, sizeof(text),
			 "{\"format\": \"nvswap checksums 1\", \"bytes\": %" PRIu64
			 ", \"xxh3\": {\"t0\": %s}}",
			 bytes_of(path), sum[i]);
		write_text(sums, text);
		assert_int_equal(open_from(NULL), -EINVAL);
		assert_string_equal(f->error.subject, "t0");
		assert_says(f->error.text, sums);
	}
	write_sums(sums, bytes_of(path) + 1, N);
	expect_error(f, open_from(NULL), -ESTALE, "nvswap store checksum");
	write_sums(sums, bytes_of(path), 3);
	assert_int_equal(open_from(NULL), -ESTALE);
	assert_string_equal(f->error.subject, "t3");
	assert_says(f->error.text, "nvswap store checksum");
	assert_int_equal(unlink(sums), 0);
	assert_int_equal(mkdir(sums, 0700), 0);
	expect_error(f, open_from(NULL), -EINVAL, "regular file");
}

TEST(damaged_checksums_are_refused_or_read_as_they_say)
{
	uint64_t seed = seed_of_run(), nbytes;
	unsigned opened = 0, differed = 0;

	make(true);
	nbytes = bytes_of(sums);
	for (int i = 0; i < 500; i++) {
		off_t at = (off_t)below(&seed, nbytes);
		uint8_t bits = (uint8_t)below(&seed, 256);

		flip(sums, at, bits);
		if (!open_from(NULL)) {
			opened++;
			for (size_t k = 0; k < N; k++) {
				int rc = read_one(t[k]);

				assert_true(!rc || rc == -EBADMSG);
				differed += rc != 0;
			}
			fixture_shut(f);
		} else {
			assert_true(*f->error.text);
		}
		flip(sums, at, bits);
	}
	print_message("%u of 500 opened, %u tensors differed\n", opened, differed);
	assert_true(opened < 250 && differed <= opened);
	OK(f, open_from(NULL));
	for (size_t i = 0; i < N; i++)
		tensor_compare(f, t[i], i);
}

EACH_TEST(NULL, cleanup)
