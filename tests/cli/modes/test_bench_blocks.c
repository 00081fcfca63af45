/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What fio's modes are made of: the order of their I/Os, the contents of blocks, and the file.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/io_contents.h"
#include "cli/io_file.h"
#include "cli/io_sequence.h"
#include "support.h"

#define KIB 1024u
#define MIB (1024u * 1024u)

/* ---- The order ---- */

static const struct option_mix blocks_4k[2] = {{.nbytes = {4 * KIB}, .percent = {100}, .n = 1},
					       {.nbytes = {4 * KIB}, .percent = {100}, .n = 1}};

static void order_is_whole(uint64_t blocks, uint64_t seed, uint64_t *order)
{
	struct io_sequence sequence = {.random = true,
				       .read_percent = 50,
				       .alike = true,
				       .mix = blocks_4k,
				       .grain = 4 * KIB,
				       .nbytes = blocks * 4 * KIB,
				       .seed = seed};
	unsigned char *seen = calloc(blocks, 1);

	assert_non_null(seen);
	for (unsigned pass = 1; pass <= 3; pass++)
		for (uint64_t i = 0; i < blocks; i++) {
			struct io_step step;

			io_sequence_next(&sequence, &step);
			assert_int_equal(step.nbytes, 4 * KIB);
			assert_int_equal(step.offset % (4 * KIB), 0);
			assert_true(step.offset < sequence.nbytes);
			assert_int_equal(seen[step.offset / (4 * KIB)]++, pass - 1);
			if (order && pass == 1)
				order[i] = step.offset;
		}
	free(seen);
}

static void random_blocks_come_each_once_in_a_pass(void **state)
{
	(void)state;
	for (uint64_t blocks = 1; blocks < 300; blocks++)
		order_is_whole(blocks, blocks, NULL);
	order_is_whole(65536, 1, NULL);
	order_is_whole(65537, 2, NULL);
}

static void random_order_follows_from_the_seed(void **state)
{
	static uint64_t first[1000], again[1000], other[1000];
	unsigned same = 0, in_sequence = 0;

	(void)state;
	order_is_whole(1000, 7, first);
	order_is_whole(1000, 7, again);
	order_is_whole(1000, 8, other);
	assert_memory_equal(first, again, sizeof(first));
	for (unsigned i = 1; i < 1000; i++) {
		same += first[i] == other[i];
		in_sequence += first[i] == first[i - 1] + 4 * KIB;
	}
	assert_true(same < 20);
	assert_true(in_sequence < 20);
}

static void blocks_in_sequence_follow_each_other(void **state)
{
	struct io_sequence sequence = {.read_percent = 40,
				       .alike = true,
				       .mix = blocks_4k,
				       .grain = 4 * KIB,
				       .nbytes = 100 * 4 * KIB,
				       .seed = 3};
	struct io_step step;

	(void)state;
	for (unsigned pass = 0; pass < 3; pass++) {
		uint64_t at[2] = {0};

		for (unsigned i = 0; i < 100; i++) {
			io_sequence_next(&sequence, &step);
			assert_int_equal(step.offset, at[step.direction]);
			at[step.direction] += step.nbytes;
		}
		assert_int_equal(at[NVS_READ] + at[NVS_WRITE], sequence.nbytes);
	}
}

static void reads_have_their_share(void **state)
{
	static const unsigned shares[] = {0, 1, 30, 70, 99, 100};

	(void)state;
	for (unsigned i = 0; i < COUNT(shares); i++) {
		struct io_sequence sequence = {.random = i % 2,
					       .read_percent = shares[i],
					       .alike = true,
					       .mix = blocks_4k,
					       .grain = 4 * KIB,
					       .nbytes = 20000ull * 4 * KIB,
					       .seed = i};
		struct io_step step;
		unsigned nreads = 0;

		for (unsigned n = 0; n < 20000; n++) {
			io_sequence_next(&sequence, &step);
			nreads += step.direction == NVS_READ;
		}
		/* Five standard deviations are below 2 %. */
		assert_in_range(nreads + 400, shares[i] * 200, shares[i] * 200 + 800);
		if (shares[i] == 0 || shares[i] == 100)
			assert_int_equal(nreads, shares[i] * 200);
	}
}

static void lengths_have_their_shares_and_stay_in_the_file(void **state)
{
	const struct option_mix mix = {
		.nbytes = {4 * KIB, 64 * KIB, 12 * KIB}, .percent = {60, 10, 30}, .n = 3};
	const struct option_mix mixes[] = {mix, {.n = 0}};
	struct io_sequence sequence = {.random = true,
				       .read_percent = 100,
				       .mix = mixes,
				       .grain = 4 * KIB,
				       .align = {4 * KIB},
				       .nbytes = 200 * MIB + 4 * KIB,
				       .seed = 5};
	unsigned of[3] = {0}, cut = 0, n = 0;
	uint64_t moved = 0;

	(void)state;
	for (; moved < sequence.nbytes; n++) {
		struct io_step step;
		unsigned which = 0;

		io_sequence_next(&sequence, &step);
		assert_int_equal(step.offset % (4 * KIB), 0);
		assert_true(step.offset + step.nbytes <= sequence.nbytes);
		moved += step.nbytes;
		while (which < 3 && step.nbytes != mix.nbytes[which])
			which++;
		if (which < 3)
			of[which]++;
		else
			cut++;
	}
	assert_int_equal(moved, sequence.nbytes);
	assert_true(cut <= 1);
	for (unsigned i = 0; i < 3; i++)
		assert_in_range(of[i], n * (mix.percent[i] - 4) / 100,
				n * (mix.percent[i] + 4) / 100);
}

/* Where fio 3.33 goes, by its write_iolog. */
static void a_gap_is_left_out_after_each_block(void **state)
{
	static const struct {
		uint64_t block, gap, nbytes, offsets[8];
	} cases[] = {{4, 4, 32, {0, 8, 16, 24, 0, 8, 16, 24}},
		     {8, 4, 36, {0, 12, 24, 0}},
		     {4, 64, 32, {0, 0, 0, 0, 0, 0, 0, 0}}};

	(void)state;
	for (unsigned i = 0; i < COUNT(cases); i++) {
		const struct option_mix mix[] = {
			{.nbytes = {cases[i].block * KIB}, .percent = {100}, .n = 1}};
		struct io_sequence sequence = {.alike = true,
					       .read_percent = 100,
					       .mix = mix,
					       .grain = 4 * KIB,
					       .gap = cases[i].gap * KIB,
					       .nbytes = cases[i].nbytes * KIB};

		for (unsigned n = 0; n < cases[i].nbytes / cases[i].block; n++) {
			struct io_step step;

			io_sequence_next(&sequence, &step);
			assert_int_equal(step.offset, cases[i].offsets[n] * KIB);
		}
	}
}

static void each_direction_has_a_gap_of_its_own(void **state)
{
	struct io_sequence sequence = {.alike = true,
				       .read_percent = 50,
				       .mix = blocks_4k,
				       .grain = 4 * KIB,
				       .gap = 8 * KIB,
				       .nbytes = 120 * KIB,
				       .seed = 4};
	uint64_t n[2] = {0};

	(void)state;
	for (unsigned i = 0; i < 30; i++) {
		struct io_step step;

		io_sequence_next(&sequence, &step);
		assert_int_equal(step.offset, n[step.direction]++ % 10 * 12 * KIB);
	}
	assert_true(n[NVS_READ] && n[NVS_WRITE]);
}

/* As fio counts: of all I/Os each eighth has a new place, and others follow their direction's. */
static void io_follows_from_each_random_place(void **state)
{
	(void)state;
	for (unsigned percent = 50; percent <= 100; percent += 50) {
		struct io_sequence sequence = {.random = true,
					       .alike = true,
					       .read_percent = percent,
					       .mix = blocks_4k,
					       .grain = 4 * KIB,
					       .align = {4 * KIB, 4 * KIB},
					       .run = 8,
					       .nbytes = 64 * MIB,
					       .seed = 6};
		uint64_t at[2] = {0};
		unsigned places = 0, ends = 0;

		for (unsigned i = 0; i < 64 * MIB / (4 * KIB); i++) {
			struct io_step step;

			io_sequence_next(&sequence, &step);
			if (i % 8 == 0)
				places += step.offset != at[step.direction];
			else if (at[step.direction] == sequence.nbytes)
				ends++;
			else
				assert_int_equal(step.offset, at[step.direction]);
			at[step.direction] = step.offset + step.nbytes;
		}
		assert_in_range(places, 2040, 2048);
		assert_in_range(ends, 0, 16);
	}
}

/* As fio aligns them: by the size of their direction, however they lie over each other. */
static void each_direction_has_blocks_of_its_own(void **state)
{
	static const struct option_mix mixes[] = {
		[NVS_READ] = {.nbytes = {4 * KIB}, .percent = {100}, .n = 1},
		[NVS_WRITE] = {.nbytes = {24 * KIB}, .percent = {100}, .n = 1}};

	(void)state;
	for (unsigned random = 0; random < 2; random++) {
		struct io_sequence sequence = {.random = random,
					       .read_percent = 50,
					       .mix = mixes,
					       .grain = 4 * KIB,
					       .align = {4 * KIB, 24 * KIB},
					       .nbytes = 10 * MIB + 4 * KIB,
					       .seed = 9};
		uint64_t left = sequence.nbytes, at[2] = {0};
		unsigned odd_reads = 0;

		while (left) {
			struct io_step step;
			uint64_t whole;

			io_sequence_next(&sequence, &step);
			whole = mixes[step.direction].nbytes[0];
			assert_int_equal(step.nbytes, left < whole ? left : whole);
			assert_true(step.offset + step.nbytes <= sequence.nbytes);
			assert_int_equal(step.offset % whole, 0);
			odd_reads += step.direction == NVS_READ && step.offset % (24 * KIB);
			if (!random)
				assert_int_equal(step.offset, at[step.direction]);
			at[step.direction] += step.nbytes;
			left -= step.nbytes;
		}
		assert_true(odd_reads > 100);
		assert_true(at[NVS_READ] && at[NVS_WRITE] > 4 * at[NVS_READ]);
	}
}

/* ---- Contents ---- */

#define GRAIN  (96u * KIB) /* more than a block of the pattern, and not a multiple of it */
#define NGRAIN 8u

static void compares(const struct io_contents *contents, const char *data, int64_t differs_at)
{
	struct nvs_error error = {0};
	uint64_t compared = 0;
	int rc = io_contents_compare(contents, "file", 0, NGRAIN * GRAIN, data, &compared, &error);

	if (differs_at < 0) {
		SUCCEEDS(rc, &error);
		assert_int_equal(compared, NGRAIN * GRAIN);
		return;
	}
	assert_int_equal(rc, -EBADMSG);
	/* The first bytes may be the same by chance. */
	assert_in_range(error.offset, differs_at, differs_at + 8);
	assert_says(error.text, "file: the byte at offset ");
}

/* `sector` of what was read is another's, or of another time. */
static void sector_is_found(const struct io_contents *contents, char *now, const char *from,
			    uint64_t sector)
{
	char was[512];

	memcpy(was, now + sector * 512, 512);
	memcpy(now + sector * 512, from, 512);
	compares(contents, now, (int64_t)sector * 512);
	memcpy(now + sector * 512, was, 512);
}

static void a_stale_misplaced_or_torn_block_is_found(void **state)
{
	const uint64_t nbytes = (uint64_t)NGRAIN * GRAIN, sectors = nbytes / 512;
	struct io_contents contents = {.seed = 1, .grain = GRAIN};
	char *now = malloc(nbytes), *before = malloc(nbytes);

	(void)state;
	assert_true(now && before);
	SUCCEEDS(io_contents_open(&contents, nbytes, true), &(struct nvs_error){0});
	io_contents_make(&contents, 0, nbytes, before);
	compares(&contents, before, -1);
	io_contents_make(&contents, 0, nbytes, now);
	compares(&contents, now, -1);
	for (uint64_t i = 0; i < sectors; i += 7) {
		sector_is_found(&contents, now, before + i * 512, i);
		sector_is_found(&contents, now, now + (i + 1) % sectors * 512, i);
		sector_is_found(&contents, now, now + (i * 512 + GRAIN) % nbytes, i);
	}
	compares(&contents, now, -1);
	now[5 * GRAIN + 70000] ^= 1;
	compares(&contents, now, 5 * GRAIN + 70000);
	io_contents_close(&contents);
	free(now);
	free(before);
}

static void what_was_never_written_is_not_compared(void **state)
{
	struct io_contents contents = {.seed = 1, .grain = 512};
	char data[8 * 512];
	struct nvs_error error;
	uint64_t compared = 0;

	(void)state;
	memset(data, 0, sizeof(data));
	SUCCEEDS(io_contents_open(&contents, sizeof(data), true), &(struct nvs_error){0});
	io_contents_make(&contents, 1024, 1024, data + 1024);
	SUCCEEDS(io_contents_compare(&contents, "", 0, sizeof(data), data, &compared, &error),
		 &error);
	assert_int_equal(compared, 1024);
	io_contents_close(&contents);
}

static void transfers_that_overlap_are_kept_apart(void **state)
{
	struct io_contents contents = {.seed = 1, .grain = 512, .writes_over = true};

	(void)state;
	SUCCEEDS(io_contents_open(&contents, 64 * 512, true), &(struct nvs_error){0});
	assert_true(io_contents_hold(&contents, 8 * 512, 8 * 512));
	assert_false(io_contents_hold(&contents, 15 * 512, 512));
	assert_false(io_contents_hold(&contents, 0, 64 * 512));
	assert_true(io_contents_hold(&contents, 16 * 512, 512));
	assert_true(io_contents_hold(&contents, 0, 8 * 512));
	io_contents_let_go(&contents, 8 * 512, 8 * 512);
	assert_true(io_contents_hold(&contents, 15 * 512, 512));
	io_contents_close(&contents);
}

/* ---- The file ---- */

struct opening {
	struct nvs_aio *aio;
	struct bench_options options;
	struct io_file file;
	struct nvs_error error;
};

static int opening_begin(void **state)
{
	struct opening *o = calloc(1, sizeof(*o));
	struct nvs_config config;

	if (!o)
		return -1;
	nvs_config_init(&config);
	o->options =
		(struct bench_options){.rw = RW_RANDWRITE, .direct = true, .size = {.nbytes = MIB}};
	*state = o;
	return nvs_aio_open(&o->aio, &config.aio, NULL, &o->error);
}

static int opening_end(void **state)
{
	struct opening *o = *state;

	nvs_aio_close(o->aio);
	free(o);
	return cleanup(state);
}

static int file_open(struct opening *o, const char *place, const char *name)
{
	o->error = (struct nvs_error){0};
	return io_file_open(&o->file, o->aio, &o->options, place, name, &o->error);
}

static void is_refused(struct opening *o, const char *place, const char *name, int rc,
		       const char *says)
{
	assert_int_equal(file_open(o, place, name), rc);
	assert_says(o->error.text, says);
	io_file_close(&o->file);
}

static void make_file(const char *path, const void *data, size_t nbytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, nbytes), nbytes);
	close(fd);
}

static void a_file_of_its_own_has_no_name(void **state)
{
	struct opening *o = *state;
	const char *directory = temp_directory();
	struct stat st;

	SUCCEEDS(file_open(o, directory, "job.0.0"), &o->error);
	assert_true(o->file.own);
	assert_int_equal(entries_of(directory), 0);
	assert_int_equal(fstat(o->file.fd, &st), 0);
	assert_int_equal(st.st_size, MIB);
	assert_true((uint64_t)st.st_blocks * 512 >= MIB);
	io_file_close(&o->file);
}

static void a_file_that_is_there_is_not_written(void **state)
{
	static const unsigned modes[] = {RW_WRITE, RW_RANDWRITE, RW_RW, RW_RANDRW};
	struct opening *o = *state;
	const char *directory = temp_directory();
	char *path = realpath(directory, NULL);
	char data[5000], read_back[5000];
	int fd;

	memset(data, 'x', sizeof(data));
	assert_non_null(path);
	make_file(path_in(directory, "mine"), data, sizeof(data));
	for (unsigned i = 0; i < COUNT(modes); i++) {
		o->options.rw = modes[i];
		is_refused(o, directory, "mine", -EEXIST, "give another --filename, or delete it");
		is_refused(o, "/nowhere", path_in(path, "mine"), -EEXIST, "is there already");
	}
	assert_int_equal(symlink("mine", path_in(directory, "link")), 0);
	is_refused(o, directory, "link", -ELOOP, "symbolic link");
	fd = open(path_in(directory, "mine"), O_RDONLY | O_CLOEXEC);
	assert_int_equal(read(fd, read_back, sizeof(read_back)), sizeof(data));
	assert_memory_equal(data, read_back, sizeof(data));
	close(fd);
	free(path);
}

static void a_file_that_is_there_is_read_and_kept(void **state)
{
	struct opening *o = *state;
	const char *directory = temp_directory();
	static const char data[8192];

	make_file(path_in(directory, "mine"), data, sizeof(data));
	o->options.rw = RW_RANDREAD;
	is_refused(o, directory, "mine", -EINVAL, "fewer than --size");
	o->options.size.nbytes = 4096;
	SUCCEEDS(file_open(o, directory, "mine"), &o->error);
	assert_int_equal(o->file.nbytes, 4096);
	io_file_close(&o->file);
	o->options.size.nbytes = 0;
	SUCCEEDS(file_open(o, directory, "mine"), &o->error);
	assert_false(o->file.own);
	assert_int_equal(o->file.nbytes, sizeof(data));
	io_file_close(&o->file);
	assert_int_equal(entries_of(directory), 1);
	o->options.size.percent = 33;
	SUCCEEDS(file_open(o, directory, "mine"), &o->error);
	assert_int_equal(o->file.nbytes, 2703);
	io_file_close(&o->file);
	is_refused(o, directory, "other", -ENOENT, "no size to take 33% of: give --size in bytes");
	assert_int_equal(entries_of(directory), 1);
	o->options.verify = true;
	is_refused(o, directory, "mine", -EINVAL, "leave out --verify");
	o->options.size.percent = 0;
	make_file(path_in(directory, "empty"), data, 0);
	o->options.rw = RW_WRITE;
	is_refused(o, directory, "empty", -EEXIST, "is there already");
}

static void no_room_is_found_before_the_run(void **state)
{
	struct opening *o = *state;
	const char *why = NULL, *directory;

	if (geteuid())
		SKIP("an ext4 on a loop device needs root");
	directory = loop_ext4(16 * MIB, 512, &why);
	if (!directory)
		SKIP("%s", why);
	o->options.size.nbytes = 32 * MIB;
	is_refused(o, directory, "job", -ENOSPC, "give a smaller --size");
	o->options.size.nbytes = 4 * MIB;
	SUCCEEDS(file_open(o, directory, "job"), &o->error);
	io_file_close(&o->file);
}

static void a_block_device_is_read_alone(void **state)
{
	struct opening *o = *state;
	const char *why = NULL, *device;

	if (geteuid())
		SKIP("a loop device needs root");
	device = loop_device(4 * MIB, 512, &why);
	if (!device)
		SKIP("%s", why);
	is_refused(o, device, "job.0.0", -EEXIST,
		   "this mode would write over it: give a directory");
	is_refused(o, "/", device, -EEXIST, "is there already");
	o->options.rw = RW_READ;
	o->options.size.nbytes = 0;
	SUCCEEDS(file_open(o, device, "job.0.0"), &o->error);
	assert_int_equal(o->file.nbytes, 4 * MIB);
	io_file_close(&o->file);
	o->options.filename = "x";
	is_refused(o, device, "x", -ENOTDIR, "is a block device");
}

static void without_direct_io_it_says_what_to_give(void **state)
{
	struct opening *o = *state;
	const char *directory = memory_directory();

	if (!directory)
		SKIP("no tmpfs");
	if (file_open(o, directory, "job")) {
		assert_says(o->error.text, "give --direct=0");
		io_file_close(&o->file);
		assert_int_equal(entries_of(directory), 0);
		o->options.direct = false;
		SUCCEEDS(file_open(o, directory, "job"), &o->error);
	}
	assert_int_equal(nvs_file_direct(o->file.file), o->options.direct);
	io_file_close(&o->file);
}

int main(void)
{
#define opening(name) cmocka_unit_test_setup_teardown(name, opening_begin, opening_end)
	const struct CMUnitTest tests[] = {
		test(random_blocks_come_each_once_in_a_pass),
		test(random_order_follows_from_the_seed),
		test(blocks_in_sequence_follow_each_other),
		test(reads_have_their_share),
		test(lengths_have_their_shares_and_stay_in_the_file),
		test(each_direction_has_blocks_of_its_own),
		test(a_gap_is_left_out_after_each_block),
		test(each_direction_has_a_gap_of_its_own),
		test(io_follows_from_each_random_place),
		test(a_stale_misplaced_or_torn_block_is_found),
		test(what_was_never_written_is_not_compared),
		test(transfers_that_overlap_are_kept_apart),
		opening(a_file_of_its_own_has_no_name),
		opening(a_file_that_is_there_is_not_written),
		opening(a_file_that_is_there_is_read_and_kept),
		opening(no_room_is_found_before_the_run),
		opening(a_block_device_is_read_alone),
		opening(without_direct_io_it_says_what_to_give),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
