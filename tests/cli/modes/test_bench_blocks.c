/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of fio's modes: the order of I/Os, the contents of blocks, and the file. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "aio/aio.h"
#include "cli/modes/io/contents.h"
#include "cli/modes/io/file.h"
#include "cli/modes/io/sequence.h"
#include "config/config.h"
#include "support/support.h"

#define KIB 1024u
#define MIB (1024u * 1024u)

/* ---- Order ---- */

static const struct option_mix blocks_4k = {.nbytes = {4 * KIB}, .percent = {100}, .n = 1};

static void order_is_whole(uint64_t blocks, uint64_t seed, uint64_t *order)
{
	struct io_sequence sequence = {.random = true,
				       .read_percent = 50,
				       .mix = &blocks_4k,
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
				       .mix = &blocks_4k,
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
					       .mix = &blocks_4k,
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
	struct io_sequence sequence = {.random = true,
				       .read_percent = 100,
				       .mix = &mix,
				       .grain = 4 * KIB,
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

/* ---- Contents ---- */

#define GRAIN  (96u * KIB) /* longer than a block of the pattern, and not a multiple of it */
#define NGRAIN 8u

static void compares(const struct io_contents *contents, const char *data, int64_t differs_at)
{
	struct nvs_error error = {.size = sizeof(error)};
	uint64_t compared = 0;
	int rc = io_contents_compare(contents, "file", 0, NGRAIN * GRAIN, data, &compared, &error);

	if (differs_at < 0) {
		SUCCEEDS(rc, &error);
		assert_int_equal(compared, NGRAIN * GRAIN);
		return;
	}
	assert_int_equal(rc, -EBADMSG);
	/* The first bytes can be equal by chance. */
	assert_in_range(error.offset, differs_at, differs_at + 8);
	assert_says(error.text, "file: the byte at offset ");
}

/* `sector` was read with the contents of another one, or with older ones. */
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
	SUCCEEDS(io_contents_open(&contents, nbytes, true),
		 &(struct nvs_error){.size = sizeof(struct nvs_error)});
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

static void unwritten_blocks_are_not_compared(void **state)
{
	struct io_contents contents = {.seed = 1, .grain = 512};
	char data[8 * 512];
	struct nvs_error error = {.size = sizeof(error)};
	uint64_t compared = 0;

	(void)state;
	memset(data, 0, sizeof(data));
	SUCCEEDS(io_contents_open(&contents, sizeof(data), true),
		 &(struct nvs_error){.size = sizeof(struct nvs_error)});
	io_contents_make(&contents, 1024, 1024, data + 1024);
	SUCCEEDS(io_contents_compare(&contents, "", 0, sizeof(data), data, &compared, &error),
		 &error);
	assert_int_equal(compared, 1024);
	io_contents_close(&contents);
}

static void overlapping_transfers_are_serialized(void **state)
{
	struct io_contents contents = {.seed = 1, .grain = 512, .writes_over = true};

	(void)state;
	SUCCEEDS(io_contents_open(&contents, 64 * 512, true),
		 &(struct nvs_error){.size = sizeof(struct nvs_error)});
	assert_true(io_contents_hold(&contents, 8 * 512, 8 * 512));
	assert_false(io_contents_hold(&contents, 15 * 512, 512));
	assert_false(io_contents_hold(&contents, 0, 64 * 512));
	assert_true(io_contents_hold(&contents, 16 * 512, 512));
	assert_true(io_contents_hold(&contents, 0, 8 * 512));
	io_contents_release(&contents, 8 * 512, 8 * 512);
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
	config_init(&config);
	o->options = (struct bench_options){.rw = RW_RANDWRITE, .size = MIB};
	o->error.size = sizeof(o->error);
	*state = o;
	return aio_open(&o->aio, &config.aio, NULL, &o->error);
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
	o->error = (struct nvs_error){.size = sizeof(o->error)};
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

static void an_existing_file_is_not_written(void **state)
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
		is_refused(o, "/nowhere", path_in(path, "mine"), -EEXIST,
			   "this mode would overwrite it");
	}
	assert_int_equal(symlink("mine", path_in(directory, "link")), 0);
	is_refused(o, directory, "link", -ELOOP, "symbolic link");
	fd = open(path_in(directory, "mine"), O_RDONLY | O_CLOEXEC);
	assert_int_equal(read(fd, read_back, sizeof(read_back)), sizeof(data));
	assert_memory_equal(data, read_back, sizeof(data));
	close(fd);
	free(path);
}

static void an_existing_file_is_read_and_kept(void **state)
{
	struct opening *o = *state;
	const char *directory = temp_directory();
	static const char data[8192];

	make_file(path_in(directory, "mine"), data, sizeof(data));
	o->options.rw = RW_RANDREAD;
	is_refused(o, directory, "mine", -EINVAL, "fewer than --size");
	o->options.size = 4096;
	SUCCEEDS(file_open(o, directory, "mine"), &o->error);
	assert_int_equal(o->file.nbytes, 4096);
	io_file_close(&o->file);
	o->options.size = 0;
	SUCCEEDS(file_open(o, directory, "mine"), &o->error);
	assert_false(o->file.own);
	assert_int_equal(o->file.nbytes, sizeof(data));
	io_file_close(&o->file);
	assert_int_equal(entries_of(directory), 1);
	o->options.verify = true;
	is_refused(o, directory, "mine", -EINVAL, "leave out --verify");
	make_file(path_in(directory, "empty"), data, 0);
	o->options.rw = RW_WRITE;
	is_refused(o, directory, "empty", -EEXIST, "this mode would overwrite it");
}

static void a_lack_of_space_is_detected_before_the_run(void **state)
{
	struct opening *o = *state;
	const char *why = NULL, *directory;

	if (geteuid())
		SKIP("an ext4 on a loop device needs root");
	directory = loop_ext4(16 * MIB, 512, &why);
	if (!directory)
		SKIP("%s", why);
	o->options.size = 32 * MIB;
	is_refused(o, directory, "job", -ENOSPC, "give a smaller --size");
	o->options.size = 4 * MIB;
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
	is_refused(o, device, "job.0.0", -EEXIST, "this mode would overwrite it: give a directory");
	is_refused(o, "/", device, -EEXIST, "this mode would overwrite it");
	o->options.rw = RW_READ;
	o->options.size = 0;
	SUCCEEDS(file_open(o, device, "job.0.0"), &o->error);
	assert_int_equal(o->file.nbytes, 4 * MIB);
	io_file_close(&o->file);
	o->options.filename = "x";
	is_refused(o, device, "x", -ENOTDIR, "is a block device");
}

static void a_file_system_without_direct_io_is_refused(void **state)
{
	struct opening *o = *state;
	const char *directory = memory_directory();

	if (!directory)
		SKIP("no tmpfs");
	if (file_open(o, directory, "job"))
		assert_says(o->error.text, "this file system has no direct I/O");
	else
		assert_true(nvs_file_direct(o->file.file));
	io_file_close(&o->file);
	assert_int_equal(entries_of(directory), 0);
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
		test(a_stale_misplaced_or_torn_block_is_found),
		test(unwritten_blocks_are_not_compared),
		test(overlapping_transfers_are_serialized),
		opening(a_file_of_its_own_has_no_name),
		opening(an_existing_file_is_not_written),
		opening(an_existing_file_is_read_and_kept),
		opening(a_lack_of_space_is_detected_before_the_run),
		opening(a_block_device_is_read_alone),
		opening(a_file_system_without_direct_io_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
