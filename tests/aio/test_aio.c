/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The aio layer on real files: memory, lengths and offsets of any alignment, on each engine and on
 * each kind of file system; the choice of the engine where some are blocked; files and their
 * errors. See test_aio_submit.c for what reaches an engine.
 */
#include <semaphore.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

#include "aio/internal.h"
#include "support/fake/fake_engine.h"
#include "support/inject.h"
#include "support/submit.h"
#include "support/support.h"

#define KIB  1024u
#define MIB  (1024u * KIB)
#define PAGE 4096u

static const enum nvs_ioengine engines[] = {NVS_IOENGINE_IO_URING, NVS_IOENGINE_LIBAIO,
					    NVS_IOENGINE_POSIX};

static struct nvs_error error = {.size = sizeof(error)};
#define DO(call) SUCCEEDS(call, &error)

/* Of each test, closed at its end. */
static struct nvs_aio *aio;
static struct nvs_file *file;

static void close_file(void)
{
	nvs_file_close(file);
	file = NULL;
}

static void close_aio(void)
{
	close_file();
	assert_int_equal(nvs_aio_close(aio), 0);
	aio = NULL;
}
AFTER_SUCCESS(close_aio)

static const struct aio_config plain = {
	.block_size = 64 * KIB,
	.queue_depth = 8,
	.thread_count = 1,
	.overlap_events = true,
};

/* Returns false and prints the reason if the engine does not work here. */
static bool open_engine(const struct aio_config *config, enum nvs_ioengine ioengine)
{
	struct aio_config this_one = *config;
	struct nvs_aio_stats stats = {.size = sizeof(stats)};
	int rc;

	close_aio();
	this_one.ioengine = ioengine;
	rc = aio_open_with(&aio, &this_one, NULL, NULL, NULL, &error);
	if (rc == -ENOTSUP) {
		print_message("%s\n", error.text);
		return false;
	}
	DO(rc);
	nvs_aio_get_stats(aio, &stats);
	if (ioengine != NVS_IOENGINE_AUTO)
		assert_string_equal(stats.ioengine, nvs_ioengine_name(ioengine));
	return true;
}

static void need_io_uring(void)
{
	char reason[192];

	if (ioengine_try(NVS_IOENGINE_IO_URING, reason, sizeof(reason)))
		SKIP("io_uring does not work here: %s", reason);
}

static void open_file(const char *path, unsigned flags)
{
	close_file();
	DO(nvs_file_open(aio, path, flags, &file, &error));
}

static int move(enum nvs_direction direction, void *data, uint64_t nbytes, uint64_t offset)
{
	struct transfer transfer = {.file = file,
				    .direction = direction,
				    .data = data,
				    .nbytes = nbytes,
				    .offset = offset};
	struct transfer *one = &transfer;
	int rc = submit_all(aio, &one, 1, &error);

	return rc ? rc : await_all(aio, &one, 1, -1, &error);
}

/* ---- Round trips through a file ---- */

#define IMAGE_BYTES (4u * MIB)
#define BATCH	    6u
#define GUARD	    64u

struct image {
	const char *path;
	bool device;
	uint32_t block;
	char *bytes;	 /* the expected contents, IMAGE_BYTES long */
	uint64_t length; /* of the valid part of `bytes` */
	char *memory;	 /* memory of the transfers, in BATCH parts */
	uint64_t random;
};

#define PART_BYTES (IMAGE_BYTES + 2 * PAGE)

struct one {
	struct transfer transfer;
	char *part;
};

static uint64_t random_length(struct image *image)
{
	const uint64_t block = image->block;
	const uint64_t lengths[] = {0,
				    1,
				    511,
				    512,
				    513,
				    4095,
				    4096,
				    4097,
				    block - 1,
				    block,
				    block + 1,
				    2 * block + 512,
				    3 * block,
				    12345,
				    70001,
				    block + 513,
				    3 * block + 4097,
				    8 * PAGE};

	return lengths[random_below(&image->random, COUNT(lengths))];
}

static uint64_t random_step(struct image *image, uint64_t max)
{
	static const uint64_t steps[] = {0, 0, 1, 511, 512, 513, 4095, 4096, 4097};
	uint64_t step = steps[random_below(&image->random, COUNT(steps))];

	if (random_below(&image->random, 3) == 0)
		step = random_below(&image->random, max);
	return step;
}

/* A write updates the image at once; memory of a read is filled with other bytes first. */
static void fill_in(struct image *image, struct one *one)
{
	struct transfer *transfer = &one->transfer;
	char *data = one->part + GUARD + random_step(image, PAGE) % PAGE;

	memset(data - GUARD, 0xa5, GUARD);
	memset(data + transfer->nbytes, 0xa5, GUARD);
	transfer->data = data;
	if (transfer->direction == NVS_READ) {
		memset(data, 0x5a, transfer->nbytes);
		return;
	}
	random_fill(&image->random, data, transfer->nbytes);
	memcpy(image->bytes + transfer->offset, data, transfer->nbytes);
}

/* Transfers that are adjacent or have gaps, but do not overlap. */
static unsigned make_batch(struct image *image, struct one batch[BATCH])
{
	uint64_t written = image->length;
	uint64_t offset = random_below(&image->random, IMAGE_BYTES / 2);
	unsigned n = 0;

	for (; n < BATCH; n++) {
		struct transfer *transfer = &batch[n].transfer;
		uint64_t nbytes = random_length(image);

		offset += random_step(image, IMAGE_BYTES / 8);
		if (offset + nbytes > IMAGE_BYTES)
			break;
		*transfer = (struct transfer){.file = file, .nbytes = nbytes, .offset = offset};
		transfer->direction = random_below(&image->random, 3) ? NVS_WRITE : NVS_READ;
		if (offset + nbytes > image->length)
			transfer->direction = NVS_WRITE;
		if (transfer->direction == NVS_WRITE && nbytes && offset + nbytes > written)
			written = offset + nbytes;
		batch[n].part = image->memory + (size_t)n * PART_BYTES;
		fill_in(image, &batch[n]);
		offset += nbytes;
	}
	image->length = written;
	return n;
}

static void check_one(const struct image *image, const struct one *one)
{
	const struct transfer *transfer = &one->transfer;
	const char *data = transfer->data;

	assert_int_equal(transfer->status, 0);
	for (unsigned i = 1; i <= GUARD; i++) {
		assert_int_equal((unsigned char)data[-(int)i], 0xa5);
		assert_int_equal((unsigned char)data[transfer->nbytes + i - 1], 0xa5);
	}
	if (memcmp(data, image->bytes + transfer->offset, transfer->nbytes))
		fail_msg("%s of %" PRIu64 " bytes at %" PRIu64 " differs",
			 transfer->direction ? "the write" : "the read", transfer->nbytes,
			 transfer->offset);
}

static void move_batch(struct image *image)
{
	struct one batch[BATCH];
	struct transfer *transfers[BATCH];
	unsigned n = make_batch(image, batch);

	for (unsigned i = 0; i < n; i++)
		transfers[i] = &batch[i].transfer;
	DO(submit_all(aio, transfers, n, &error));
	DO(await_all(aio, transfers, n, -1, &error));
	for (unsigned i = 0; i < n; i++)
		check_one(image, &batch[i]);
}

/* Compares the whole file, and its length, with the image, by pread. */
static void check_file(const struct image *image)
{
	char *got = malloc(IMAGE_BYTES);
	int fd = open(image->path, O_RDONLY | O_CLOEXEC);
	struct stat st;

	assert_true(got && fd >= 0 && !fstat(fd, &st));
	if (!image->device)
		assert_int_equal(st.st_size, image->length);
	assert_int_equal(pread(fd, got, IMAGE_BYTES, 0), image->length);
	for (uint64_t i = 0; i < image->length; i++)
		if (got[i] != image->bytes[i])
			fail_msg("the byte at %" PRIu64 " differs", i);
	close(fd);
	free(got);
}

/* A device starts with random contents, a file empty. */
static bool begin(struct image *image, const struct aio_config *config, enum nvs_ioengine ioengine,
		  unsigned flags)
{
	image->block = config->block_size;
	memset(image->bytes, 0, IMAGE_BYTES);
	image->length = image->device ? IMAGE_BYTES : 0;
	if (image->device) {
		int fd = open(image->path, O_RDWR | O_CLOEXEC);

		random_fill(&image->random, image->bytes, IMAGE_BYTES);
		assert_int_equal(pwrite(fd, image->bytes, IMAGE_BYTES, 0), IMAGE_BYTES);
		assert_int_equal(close(fd), 0);
	}
	if (!open_engine(config, ioengine))
		return false;
	open_file(image->path, flags | NVS_FILE_WRITE |
				       (image->device ? 0 : NVS_FILE_CREATE | NVS_FILE_TRUNCATE));
	return true;
}

static void round_trips(const char *path, bool device, unsigned flags, unsigned rounds)
{
	static const struct {
		uint32_t block, depth, threads;
		bool single, overlap;
	} shapes[] = {
		{4 * KIB, 8, 1, false, true},
		{64 * KIB, 32, 3, false, true},
		{MIB, 2, 2, true, false},
		{512, 1, 1, false, false},
	};
	struct image image = {.path = path, .device = device, .random = random_seed(__func__)};

	image.bytes = malloc(IMAGE_BYTES);
	image.memory = aligned_alloc(PAGE, (size_t)BATCH * PART_BYTES);
	assert_true(image.bytes && image.memory);
	for (size_t i = 0; i < COUNT(engines) * COUNT(shapes); i++) {
		struct aio_config config = plain;
		size_t shape = i % COUNT(shapes);

		config.block_size = shapes[shape].block;
		config.queue_depth = shapes[shape].depth;
		config.thread_count = shapes[shape].threads;
		config.single_submit = shapes[shape].single;
		config.overlap_events = shapes[shape].overlap;
		if (!begin(&image, &config, engines[i / COUNT(shapes)], flags))
			continue;
		for (unsigned round = 0; round < rounds; round++)
			move_batch(&image);
		close_file();
		check_file(&image);
	}
	free(image.bytes);
	free(image.memory);
}

TEST(any_bytes_make_the_round_trip_on_the_build_s_file_system)
{
	round_trips(path_in(temp_directory(), "data"), false, 0, 8);
}

TEST(any_bytes_make_the_round_trip_buffered)
{
	round_trips(path_in(temp_directory(), "data"), false, NVS_FILE_BUFFERED, 16);
}

TEST(any_bytes_make_the_round_trip_on_tmpfs)
{
	const char *directory = memory_directory();

	if (!directory)
		SKIP("there is no tmpfs at /dev/shm");
	round_trips(path_in(directory, "data"), false, 0, 16);
}

TEST(any_bytes_make_the_round_trip_on_a_block_device)
{
	round_trips(need_device(IMAGE_BYTES, 512), true, 0, 12);
}

TEST(any_bytes_make_the_round_trip_on_a_block_device_of_4096_byte_sectors)
{
	round_trips(need_device(IMAGE_BYTES, 4096), true, 0, 12);
}

TEST(any_bytes_make_the_round_trip_on_ext4_of_4096_byte_sectors)
{
	round_trips(path_in(need_ext4(64 * MIB, 4096), "data"), false, 0, 12);
}

/* ---- Adjacent ranges ---- */

#define NEIGHBOURS 8u
#define RANGES	   5u
#define ROUNDS	   12u

/* Each thread owns every eighth range. The lengths are odd, so ranges meet within pages. */
struct neighbours {
	uint64_t begin[NEIGHBOURS * RANGES + 1];
	char *bytes; /* expected contents of the file at the end */
};

struct neighbour {
	struct neighbours *all;
	unsigned index;
	pthread_t thread;
};

static void move_ranges(const struct neighbour *me, enum nvs_direction direction, char *bytes)
{
	struct transfer transfers[RANGES], *list[RANGES];

	for (unsigned i = 0; i < RANGES; i++) {
		const uint64_t *range = &me->all->begin[i * NEIGHBOURS + me->index];

		transfers[i] = (struct transfer){.file = file,
						 .direction = direction,
						 .data = bytes + range[0],
						 .nbytes = range[1] - range[0],
						 .offset = range[0]};
		list[i] = &transfers[i];
	}
	MUST(!submit_all(aio, list, RANGES, NULL) && !await_all(aio, list, RANGES, -1, NULL));
}

static void *write_and_read_own(void *arg)
{
	const struct neighbour *me = arg;
	char *bytes = me->all->bytes, *back = malloc(me->all->begin[NEIGHBOURS * RANGES]);
	const uint64_t *range = &me->all->begin[me->index];
	uint64_t random = me->index;

	MUST(back);
	for (unsigned round = 0; round < ROUNDS; round++) {
		for (unsigned i = 0; i < RANGES * NEIGHBOURS; i += NEIGHBOURS)
			random_fill(&random, bytes + range[i], range[i + 1] - range[i]);
		move_ranges(me, NVS_WRITE, bytes);
		move_ranges(me, NVS_READ, back);
		for (unsigned i = 0; i < RANGES * NEIGHBOURS; i += NEIGHBOURS)
			MUST(!memcmp(back + range[i], bytes + range[i], range[i + 1] - range[i]));
	}
	free(back);
	return NULL;
}

static void run_neighbours(struct neighbours *all)
{
	struct neighbour neighbours[NEIGHBOURS];

	for (unsigned i = 0; i < NEIGHBOURS; i++) {
		neighbours[i] = (struct neighbour){.all = all, .index = i};
		assert_int_equal(pthread_create(&neighbours[i].thread, NULL, write_and_read_own,
						&neighbours[i]),
				 0);
	}
	for (unsigned i = 0; i < NEIGHBOURS; i++)
		pthread_join(neighbours[i].thread, NULL);
}

static void neighbours_keep_their_bytes(const char *path, bool device)
{
	static const uint64_t lengths[] = {1, 100, 511, 513, 3000, 4097, 9001, 20011};
	uint64_t random = random_seed(__func__);
	struct neighbours all = {0};
	struct aio_config config = plain;

	for (unsigned i = 0; i < NEIGHBOURS * RANGES; i++)
		all.begin[i + 1] = all.begin[i] + lengths[random_below(&random, COUNT(lengths))];
	all.bytes = malloc(all.begin[NEIGHBOURS * RANGES]);
	assert_non_null(all.bytes);
	config.thread_count = 3;
	config.block_size = 8 * KIB;
	for (size_t i = 0; i < COUNT(engines); i++) {
		struct image image = {
			.path = path, .device = true, .length = all.begin[NEIGHBOURS * RANGES]};

		if (!open_engine(&config, engines[i]))
			continue;
		open_file(path, NVS_FILE_WRITE | (device ? 0 : NVS_FILE_CREATE));
		run_neighbours(&all);
		close_aio();
		image.bytes = all.bytes;
		if (!device)
			check_file(&image);
	}
	free(all.bytes);
}

TEST(transfers_that_share_pages_keep_each_other_s_bytes)
{
	neighbours_keep_their_bytes(path_in(temp_directory(), "data"), false);
}

TEST(transfers_that_share_sectors_of_a_device_keep_each_other_s_bytes)
{
	neighbours_keep_their_bytes(need_device(IMAGE_BYTES, 512), true);
}

/* ---- Ends of files ---- */

static void reading_past_the_end_is_told(const char *path, unsigned flags)
{
	const uint64_t length = 70001;
	char *data = aligned_alloc(PAGE, 128 * KIB);

	open_file(path, flags | NVS_FILE_WRITE | NVS_FILE_CREATE | NVS_FILE_TRUNCATE);
	memset(data, 1, 128 * KIB);
	DO(move(NVS_WRITE, data, length, 0));
	for (unsigned odd = 0; odd < 2; odd++) {
		DO(move(NVS_READ, data + odd, length, 0));
		DO(move(NVS_READ, data + odd, 1, length - 1));
		assert_int_equal(move(NVS_READ, data + odd, 2, length - 1), -ENODATA);
		assert_int_equal(move(NVS_READ, data + odd, length + 1, 0), -ENODATA);
		assert_int_equal(error.code, -ENODATA);
		assert_says(error.text, path);
		assert_int_equal(error.offset, length);
		assert_int_equal(move(NVS_READ, data + odd, PAGE, length), -ENODATA);
		assert_int_equal(error.offset, length);
		assert_int_equal(move(NVS_READ, data + odd, PAGE, MIB), -ENODATA);
		assert_int_equal(error.offset, MIB);
	}
	free(data);
}

TEST(a_read_past_the_end_is_an_error_and_one_up_to_it_is_not)
{
	const char *directory = temp_directory(), *memory = memory_directory();

	for (size_t i = 0; i < COUNT(engines); i++) {
		if (!open_engine(&plain, engines[i]))
			continue;
		reading_past_the_end_is_told(path_in(directory, "data"), 0);
		reading_past_the_end_is_told(path_in(directory, "data"), NVS_FILE_BUFFERED);
		if (memory)
			reading_past_the_end_is_told(path_in(memory, "data"), 0);
	}
}

TEST(a_device_ends_where_it_ends)
{
	const char *device = need_device(MIB, 512);
	char *data = aligned_alloc(PAGE, MIB);

	memset(data, 1, MIB);
	for (size_t i = 0; i < COUNT(engines); i++) {
		if (!open_engine(&plain, engines[i]))
			continue;
		open_file(device, NVS_FILE_WRITE);
		for (unsigned odd = 0; odd < 2; odd++) {
			uint64_t begin = MIB - 64 * KIB + odd;

			DO(move(NVS_WRITE, data, 64 * KIB - odd, begin));
			assert_int_equal(move(NVS_WRITE, data, 64 * KIB + 1, begin), -ENOSPC);
			assert_int_equal(move(NVS_READ, data, 64 * KIB + 1, begin), -ENODATA);
		}
	}
	free(data);
}

TEST(a_full_drive_fails_the_write_and_leaves_the_engine_usable)
{
	const char *directory = need_ext4(16 * MIB, 512), *path;
	char *data = aligned_alloc(PAGE, 32 * MIB);

	path = path_in(directory, "data");
	memset(data, 1, 32 * MIB);
	for (size_t i = 0; i < COUNT(engines); i++) {
		if (!open_engine(&plain, engines[i]))
			continue;
		open_file(path, NVS_FILE_WRITE | NVS_FILE_CREATE | NVS_FILE_TRUNCATE);
		assert_int_equal(move(NVS_WRITE, data, 32 * MIB, 0), -ENOSPC);
		assert_says(error.text, path);
		assert_says(error.text, "make room");
		assert_true(error.offset < 16 * MIB);
		/* I/Os are in no order: those of any part may have found the drive full. */
		assert_int_equal(truncate(path, 0), 0);
		DO(move(NVS_WRITE, data, MIB, 0));
		DO(move(NVS_READ, data, MIB, 0));
	}
	free(data);
}

/* ---- Files ---- */

TEST(where_a_file_system_has_no_direct_io_the_file_says_so)
{
	const char *memory = memory_directory();

	open_engine(&plain, NVS_IOENGINE_POSIX);
	open_file(path_in(temp_directory(), "data"),
		  NVS_FILE_WRITE | NVS_FILE_CREATE | NVS_FILE_BUFFERED);
	assert_false(nvs_file_direct(file));
	if (memory) {
		open_file(path_in(memory, "data"), NVS_FILE_WRITE | NVS_FILE_CREATE);
		assert_false(nvs_file_direct(file));
	}
}

TEST(alignment_comes_from_the_file_and_not_from_a_constant)
{
	const char *small = need_device(MIB, 512), *large = need_device(MIB, 4096);

	open_engine(&plain, NVS_IOENGINE_POSIX);
	open_file(small, NVS_FILE_WRITE);
	assert_true(nvs_file_direct(file));
	if (file->members[0].dio.from_statx)
		assert_int_equal(file->offset_align, 512);
	open_file(large, NVS_FILE_WRITE);
	assert_true(nvs_file_direct(file));
	assert_int_equal(file->offset_align, 4096);
}

TEST(files_are_private_and_closed_on_exec)
{
	const char *path = path_in(temp_directory(), "data");
	mode_t mask = umask(0);
	struct stat st;

	open_engine(&plain, NVS_IOENGINE_POSIX);
	open_file(path, NVS_FILE_WRITE | NVS_FILE_CREATE);
	umask(mask);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_true(fcntl(file->members[0].fd, F_GETFD) & FD_CLOEXEC);
	if (file->members[0].direct_fd >= 0)
		assert_true(fcntl(file->members[0].direct_fd, F_GETFD) & FD_CLOEXEC);
}

TEST(opening_a_file_says_what_is_wrong_with_it)
{
	const char *directory = temp_directory();
	const char *missing = path_in(directory, "missing"), *link = path_in(directory, "link");
	const char *real = path_in(directory, "real");

	open_engine(&plain, NVS_IOENGINE_POSIX);
	open_file(real, NVS_FILE_WRITE | NVS_FILE_CREATE);
	close_file();
	assert_int_equal(symlink("real", link), 0);
	assert_int_equal(nvs_file_open(aio, link, 0, &file, &error), -ELOOP);
	assert_says(error.text, link);
	assert_says(error.text, "symbolic link");
	assert_int_equal(nvs_file_open(aio, missing, NVS_FILE_WRITE, &file, &error), -ENOENT);
	assert_says(error.text, missing);
	assert_int_equal(nvs_file_open(aio, directory, NVS_FILE_WRITE, &file, &error), -EISDIR);
	assert_int_equal(nvs_file_open(aio, missing, NVS_FILE_CREATE, &file, &error), -EINVAL);
	assert_int_equal(nvs_file_open(aio, real, NVS_FILE_TRUNCATE, &file, &error), -EINVAL);
	assert_int_equal(nvs_file_open(aio, real, 32, &file, NULL), -EINVAL);
	assert_int_equal(access(missing, F_OK), -1);
	nvs_file_close(NULL);
	nvs_aio_close(NULL);
}

TEST(nothing_is_moved_by_a_transfer_of_nothing)
{
	struct transfer nothing = {.direction = NVS_WRITE, .offset = 12345}, *one = &nothing;
	struct stat st;

	open_engine(&plain, NVS_IOENGINE_POSIX);
	open_file(path_in(temp_directory(), "data"), NVS_FILE_WRITE | NVS_FILE_CREATE);
	nothing.file = file;
	DO(submit_all(aio, &one, 1, &error));
	assert_true(is_completed(one));
	DO(await_all(aio, &one, 1, 0, &error));
	DO(submit_all(aio, NULL, 0, &error));
	DO(nvs_file_sync(file, &error));
	assert_int_equal(fstat(file->members[0].fd, &st), 0);
	assert_int_equal(st.st_size, 0);
}

TEST(values_at_their_bounds_work)
{
	static const uint32_t bounds[][3] = {
		{512, 1, 1},
		{NVS_BLOCK_SIZE_MAX, 1, 1},
		{4096, NVS_QUEUE_DEPTH_MAX, 1},
		{4096, 1, NVS_THREAD_COUNT_MAX},
	};
	const char *path = path_in(temp_directory(), "data");
	char *data = aligned_alloc(PAGE, 8 * PAGE);

	memset(data, 1, 8 * PAGE);
	for (size_t i = 0; i < COUNT(bounds) * COUNT(engines); i++) {
		const uint32_t *values = bounds[i / COUNT(engines)];
		struct aio_config config = plain;

		config.block_size = values[0];
		config.queue_depth = values[1];
		config.thread_count = values[2];
		if (!open_engine(&config, engines[i % COUNT(engines)]))
			continue;
		open_file(path, NVS_FILE_WRITE | NVS_FILE_CREATE);
		DO(move(NVS_WRITE, data, 8 * PAGE, 0));
		DO(move(NVS_READ, data, 8 * PAGE, 0));
	}
	free(data);
}

TEST(gpu_memory_is_refused_with_what_to_do)
{
	struct aio_config config = plain;

	config.use_gds = true;
	assert_int_equal(aio_open_with(&aio, &config, NULL, NULL, NULL, &error), -ENOTSUP);
	assert_string_equal(error.subject, "use_gds");
	assert_says(error.text, "set use_gds to false");
}

/* ---- Engines that are blocked ---- */

struct heard {
	pthread_mutex_t lock;
	char text[1024];
};

static void hear(void *arg, enum nvs_log_level level, const char *text)
{
	struct heard *heard = arg;
	size_t used;

	(void)level;
	pthread_mutex_lock(&heard->lock);
	used = strlen(heard->text);
	snprintf(heard->text + used, sizeof(heard->text) - used, "%s\n", text);
	pthread_mutex_unlock(&heard->lock);
}

/* The engine that a process must get if system calls are blocked, and the reasons given. */
struct blocked {
	const char *path;
	int uring, setup; /* errno of io_uring_setup and io_setup; 0: not blocked */
	enum nvs_ioengine takes;
	const char *says[3]; /* fragments of the reason */
	bool only_enter;     /* io_uring_enter rather than io_uring_setup fails */
	bool kills;	     /* or kills the thread */
};

static int moves_bytes(const char *path)
{
	char out[5000], in[5000] = {0};

	memset(out, 7, sizeof(out));
	EXPECT(!nvs_file_open(aio, path, NVS_FILE_WRITE | NVS_FILE_CREATE, &file, &error));
	EXPECT(!move(NVS_WRITE, out, sizeof(out), 100));
	EXPECT(!move(NVS_READ, in, sizeof(in), 100));
	EXPECT(!memcmp(in, out, sizeof(in)));
	close_file();
	return CHILD_OK;
}

static int explicit_engine_is_refused(enum nvs_ioengine ioengine, const char *says)
{
	struct aio_config config = plain;

	config.ioengine = ioengine;
	EXPECT(aio_open_with(&aio, &config, NULL, NULL, NULL, &error) == -ENOTSUP);
	EXPECT(error.code == -ENOTSUP && !strcmp(error.subject, "ioengine"));
	EXPECT(strstr(error.text, nvs_ioengine_name(ioengine)));
	EXPECT(strstr(error.text, says));
	EXPECT(strstr(error.text, "set it to auto"));
	return CHILD_OK;
}

TEST(without_threads_no_engine_opens)
{
	struct aio_config config = plain;
	int rc;

	for (int i = NVS_IOENGINE_AUTO; i < NVS_IOENGINE_COUNT; i++) {
		config.ioengine = (enum nvs_ioengine)i;
		inject_fail(INJECT_THREAD, 1, INJECT_ALWAYS, EAGAIN);
		rc = aio_open_with(&aio, &config, NULL, NULL, NULL, &error);
		inject_stop(NULL);
		assert_int_equal(rc, -EAGAIN);
		assert_int_equal(error.code, -EAGAIN);
		assert_says(error.text, "the limit on threads is reached");
	}
}

static int info_agrees(const struct blocked *blocked)
{
	static struct nvs_machine_info info = {.size = sizeof(info)};

	EXPECT(!nvs_machine_get_info(&info, NULL));
	EXPECT(info.auto_ioengine == blocked->takes);
	EXPECT(info.ioengine[NVS_IOENGINE_IO_URING].works == !blocked->uring);
	EXPECT(info.ioengine[NVS_IOENGINE_LIBAIO].works == !blocked->setup);
	EXPECT(!blocked->uring ||
	       strstr(info.ioengine[NVS_IOENGINE_IO_URING].reason, blocked->says[0]));
	EXPECT(info.ioengine[NVS_IOENGINE_POSIX].works && info.ioengine[NVS_IOENGINE_AUTO].works);
	for (int i = NVS_IOENGINE_IO_URING; i < NVS_IOENGINE_COUNT; i++)
		EXPECT(info.ioengine[i].works == !info.ioengine[i].reason[0]);
	EXPECT(!blocked->uring || info.ioengine[NVS_IOENGINE_AUTO].reason[0]);
	return CHILD_OK;
}

static int block_io_uring(const struct blocked *blocked)
{
	long call = blocked->only_enter ? SYS_io_uring_enter : SYS_io_uring_setup;

	return blocked->kills ? kill_on_syscall(call) : deny_syscall(call, blocked->uring);
}

static int auto_where_blocked(void *arg)
{
	const struct blocked *blocked = arg;
	static struct heard heard = {.lock = PTHREAD_MUTEX_INITIALIZER};
	const struct nvs_log log = {hear, &heard};
	struct aio_config config = plain;
	struct nvs_aio_stats stats = {.size = sizeof(stats)};

	if ((blocked->uring && block_io_uring(blocked)) ||
	    (blocked->setup && deny_syscall(SYS_io_setup, blocked->setup)))
		return CHILD_SKIPPED;
	config.thread_count = 2;
	EXPECT(!aio_open_with(&aio, &config, NULL, NULL, &log, &error));
	nvs_aio_get_stats(aio, &stats);
	EXPECT(!strcmp(stats.ioengine, nvs_ioengine_name(blocked->takes)));
	for (size_t i = 0; i < COUNT(blocked->says) && blocked->says[i]; i++) {
		EXPECT(strstr(stats.ioengine_reason, blocked->says[i]));
		EXPECT(strstr(heard.text, blocked->says[i]));
	}
	EXPECT(blocked->says[0] || (!stats.ioengine_reason[0] && !heard.text[0]));
	EXPECT(!blocked->says[0] || (!strncmp(heard.text, "ioengine auto chose ", 20) &&
				     strchr(heard.text, '\n')[1] == '\0'));
	EXPECT(moves_bytes(blocked->path) == CHILD_OK);
	close_aio();
	if (blocked->uring)
		EXPECT(!explicit_engine_is_refused(NVS_IOENGINE_IO_URING, blocked->says[0]));
	return info_agrees(blocked);
}

static void run_blocked(struct blocked blocked)
{
	char reason[192];

	if (ioengine_try(NVS_IOENGINE_LIBAIO, reason, sizeof(reason)) && !blocked.setup)
		SKIP("libaio does not work here: %s", reason);
	if (ioengine_try(NVS_IOENGINE_IO_URING, reason, sizeof(reason)) && !blocked.uring)
		SKIP("io_uring does not work here: %s", reason);
	blocked.path = path_in(temp_directory(), "data");
	pass_in_child(auto_where_blocked, &blocked, "no seccomp filter can be set here");
}

TEST(auto_takes_io_uring_where_nothing_is_blocked)
{
	run_blocked((struct blocked){.takes = NVS_IOENGINE_IO_URING});
}

TEST(auto_takes_libaio_where_io_uring_is_blocked)
{
	static const struct {
		int error;
		const char *says[2];
	} blocked[] = {{EPERM, {"io_uring is forbidden", "seccomp"}},
		       {ENOSYS, {"this kernel has no io_uring"}}};

	for (unsigned i = 0; i < 3; i++)
		run_blocked(
			(struct blocked){.uring = blocked[i / 2].error,
					 .only_enter = i == 1,
					 .takes = NVS_IOENGINE_LIBAIO,
					 .says = {blocked[i / 2].says[0], blocked[i / 2].says[1]}});
}

TEST(auto_takes_libaio_where_io_uring_kills_the_thread)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	SKIP("the sanitizers can't go on after a thread was killed");
#endif
	for (int i = 0; i < 2; i++)
		run_blocked((struct blocked){.uring = EPERM,
					     .only_enter = i,
					     .kills = true,
					     .takes = NVS_IOENGINE_LIBAIO,
					     .says = {"kills threads"}});
}

/* io_setup fails with EAGAIN if fs.aio-max-nr is exhausted. */
TEST(auto_takes_posix_where_both_are_blocked)
{
	for (int i = 0; i < 2; i++)
		run_blocked((struct blocked){.uring = EPERM,
					     .setup = i ? EAGAIN : ENOSYS,
					     .takes = NVS_IOENGINE_POSIX,
					     .says = {"io_uring is forbidden",
						      "libaio: ", i ? "fs.aio-max-nr" : "no aio"}});
}

static int libaio_is_exhausted(void *arg)
{
	(void)arg;
	if (deny_syscall(SYS_io_setup, EAGAIN))
		return CHILD_SKIPPED;
	return explicit_engine_is_refused(NVS_IOENGINE_LIBAIO, "fs.aio-max-nr");
}

TEST(an_engine_that_is_named_and_blocked_is_an_error_that_says_why)
{
	pass_in_child(libaio_is_exhausted, NULL, "no seccomp filter can be set here");
}

/* The kernel uncharges a closed ring's memory from the user's limit with a delay. */
#define LOCKED_BY_RINGS (64ull * MIB)

static struct nvs_aio_stats stats_without(uint32_t without, const char *path)
{
	struct aio_config config = plain;
	struct nvs_aio_stats stats = {.size = sizeof(stats)};
	struct fake fake;
	char *data = aligned_alloc(PAGE, 64 * KIB);

	fake_init(&fake, &engine_io_uring);
	fake.without = without;
	config.thread_count = 2;
	DO(aio_open_with(&aio, &config, &engine_fake, &fake, NULL, &error));
	assert_int_equal(nvs_aio_register_memory(aio, data, 64 * KIB), 0);
	assert_int_equal(moves_bytes(path), CHILD_OK);
	nvs_aio_get_stats(aio, &stats);
	for (uint64_t i = 0; i < fake.nios; i++)
		assert_true(fake.ios[i].file_slot < 0 || stats.fixed_files);
	assert_int_equal(stats.registered_bytes,
			 stats.fixed_buffers ? 64 * KIB + stats.bounce_bytes : 0);
	close_aio();
	fake_destroy(&fake);
	free(data);
	return stats;
}

TEST(io_uring_works_without_each_of_its_abilities_and_says_so)
{
	const char *path = path_in(temp_directory(), "data");
	struct nvs_aio_stats all = {.size = sizeof(all)};
	unsigned major = 0, minor = 0;
	struct utsname kernel;

	need_io_uring();
	if (memlock_limit() < LOCKED_BY_RINGS)
		SKIP("the memlock limit is too low to register memory again and again");
	all = stats_without(0, path);
	/* It has all that the kernel has. */
	if (!uname(&kernel) && sscanf(kernel.release, "%u.%u", &major, &minor) == 2 &&
	    (major > 6 || (major == 6 && minor >= 1)))
		assert_true(all.fixed_buffers && all.fixed_files && all.single_issuer &&
			    all.defer_taskrun);
	for (uint32_t without = 1; without < 16; without++) {
		struct nvs_aio_stats stats = stats_without(without, path);
		/* The kernel refuses deferred task running without a single issuer. */
		bool single = !(without & WITHOUT_SINGLE_ISSUER);
		bool defer = !(without & WITHOUT_DEFER_TASKRUN);

		assert_int_equal(stats.fixed_buffers,
				 all.fixed_buffers && !(without & WITHOUT_FIXED_BUFFERS));
		assert_int_equal(stats.fixed_files,
				 all.fixed_files && !(without & WITHOUT_FIXED_FILES));
		assert_int_equal(stats.single_issuer, all.single_issuer && single);
		assert_int_equal(stats.defer_taskrun, all.defer_taskrun && single && defer);
	}
}

/* ---- Waking an engine ---- */

#define WAKES 50

struct sleeper {
	const struct engine_ops *ops;
	void *queue;
	unsigned min;
	sem_t opened, reaps, woken;
	int rc;
};

/* With nothing in flight, only a call ends a reap that waits. */
static void *reap_nothing(void *arg)
{
	struct sleeper *sleeper = arg;
	struct engine_facts facts = {0};
	struct engine_options options = {.depth = 4, .wait_max = 4};
	char reason[192];
	struct io *ios[4];

	sleeper->rc = sleeper->ops->open(&sleeper->queue, &options, &facts, reason, sizeof(reason));
	sem_post(&sleeper->opened);
	for (unsigned i = 0; i < WAKES && !sleeper->rc; i++) {
		sem_wait(&sleeper->reaps);
		sleeper->rc = sleeper->ops->reap(sleeper->queue, ios, 4, sleeper->min);
		sem_post(&sleeper->woken);
	}
	sem_wait(&sleeper->reaps);
	if (sleeper->queue)
		sleeper->ops->close(sleeper->queue);
	return NULL;
}

static void await(sem_t *sem)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 20;
	if (sem_timedwait(sem, &until))
		fail_msg("the engine did not wake within 20 seconds");
}

static void end_waits(unsigned min, bool any)
{
	static const struct engine_ops *const tables[] = {&engine_io_uring, &engine_libaio,
							  &engine_posix};
	static struct sleeper sleepers[COUNT(tables)];

	for (size_t i = 0; i < COUNT(tables); i++) {
		struct sleeper *sleeper = &sleepers[i];
		pthread_t thread;

		*sleeper = (struct sleeper){.ops = tables[i], .min = min};
		sem_init(&sleeper->opened, 0, 0);
		sem_init(&sleeper->reaps, 0, 0);
		sem_init(&sleeper->woken, 0, 0);
		assert_int_equal(pthread_create(&thread, NULL, reap_nothing, sleeper), 0);
		await(&sleeper->opened);
		for (unsigned j = 0; j < WAKES && sleeper->queue; j++) {
			/* Wake before the reap begins, or concurrently with it. */
			if (j % 2)
				sem_post(&sleeper->reaps);
			sleeper->ops->wake(sleeper->queue, any);
			if (j % 2 == 0)
				sem_post(&sleeper->reaps);
			await(&sleeper->woken);
		}
		/* No wake is in progress when the queue is closed. */
		sem_post(&sleeper->reaps);
		pthread_join(thread, NULL);
		if (!sleeper->queue)
			print_message("%s does not work here\n", tables[i]->name);
		else
			assert_int_equal(sleeper->rc, 0);
	}
}

TEST(a_wake_ends_the_wait_for_one_io_or_the_next_and_a_wake_of_any_those_for_several)
{
	end_waits(1, false);
	for (unsigned min = 1; min <= 4; min++)
		end_waits(min, true);
}

/* ---- What an engine leaves, and takes ---- */

TEST(trying_an_engine_leaves_nothing_open)
{
	char reason[192];

	for (size_t i = 0; i < COUNT(engines); i++) {
		struct inject_held before = inject_held(), after;

		(void)ioengine_try(engines[i], reason, sizeof(reason));
		after = inject_held();
		assert_int_equal(after.files, before.files);
		assert_int_equal(after.blocks, before.blocks);
	}
}

/* With 32 workers, a thread for each I/O would take all that pid_max of a small machine allows. */
TEST(a_deep_queue_of_the_posix_engine_has_256_threads)
{
	const struct engine_options options = {.depth = NVS_QUEUE_DEPTH_MAX, .wait_max = 1};
	unsigned before = entries_of("/proc/self/task");
	struct engine_facts facts = {0};
	char reason[192];
	void *queue;

	assert_int_equal(engine_posix.open(&queue, &options, &facts, reason, sizeof(reason)), 0);
	assert_int_equal(entries_of("/proc/self/task"), before + 256);
	engine_posix.close(queue);
}

TEST(memory_that_cannot_be_written_is_not_registered)
{
	struct aio_config config = plain;
	struct nvs_aio_stats stats = {.size = sizeof(stats)};
	void *data = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(data, MAP_FAILED);
	need_io_uring();
	config.ioengine = NVS_IOENGINE_IO_URING;
	DO(aio_open_with(&aio, &config, NULL, NULL, NULL, &error));
	assert_int_equal(nvs_aio_register_memory(aio, data, PAGE), -EFAULT);
	assert_int_equal(nvs_aio_get_stats(aio, &stats), 0);
	assert_says(stats.buffers_reason, "not mapped for reading and writing");
	close_aio();
	munmap(data, PAGE);
}

/* ---- The memlock limit ---- */

static int register_beyond_the_limit(void *arg)
{
	const char *path = arg;
	struct aio_config config = plain;
	struct nvs_aio_stats stats = {.size = sizeof(stats)};
	char *data = aligned_alloc(PAGE, 16 * MIB);

	/* The limit covers each worker's bounce buffer of 2 MiB and 1 MiB of each ring. */
	if (limit_memlock(7 * MIB))
		return CHILD_SKIPPED;
	config.thread_count = 2;
	config.ioengine = NVS_IOENGINE_IO_URING;
	EXPECT(data && !aio_open_with(&aio, &config, NULL, NULL, NULL, &error));
	EXPECT(nvs_aio_register_memory(aio, data, 16 * MIB) == -ENOMEM);
	nvs_aio_get_stats(aio, &stats);
	EXPECT(stats.registered_bytes == stats.bounce_bytes);
	EXPECT(moves_bytes(path) == CHILD_OK);
	EXPECT(!nvs_aio_register_memory(aio, data, MIB));
	nvs_aio_get_stats(aio, &stats);
	EXPECT(stats.registered_bytes == stats.bounce_bytes + MIB);
	close_aio();
	free(data);
	return CHILD_OK;
}

TEST(memory_beyond_the_memlock_limit_is_refused_and_moves_all_the_same)
{
	need_io_uring();
	if (memlock_limit() != UINT64_MAX)
		SKIP("the rings of earlier tests may still count towards this user's memlock "
		     "limit");
	pass_in_child(register_beyond_the_limit,
		      (void *)(uintptr_t)path_in(temp_directory(), "data"),
		      "the memlock limit can't be set here");
}

static int open_without_locked_memory(void *arg)
{
	if (limit_memlock(0))
		return CHILD_SKIPPED;
	EXPECT(!aio_open_with(&aio, &plain, NULL, NULL, NULL, &error));
	EXPECT(moves_bytes(arg) == CHILD_OK);
	close_aio();
	return CHILD_OK;
}

TEST(without_any_locked_memory_transfers_work)
{
	pass_in_child(open_without_locked_memory,
		      (void *)(uintptr_t)path_in(temp_directory(), "data"),
		      "the memlock limit can't be set here");
}

/* ---- Striped files ---- */

static void open_member(struct file_member *member, const char *path)
{
	*member = (struct file_member){.path = (char *)(uintptr_t)path, .base = 8 * KIB};
	member->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(member->fd >= 0);
	assert_int_equal(file_member_probe(member, true, false), 0);
}

/* Padding behind the end is zeros, never old contents of the bounce buffer. */
static void check_padding(char *data, uint64_t nbytes, uint64_t offset)
{
	struct location end = file_place(file, offset + nbytes);
	uint64_t padding = (file->write_unit - end.offset % file->write_unit) % file->write_unit;
	char behind[PAGE];

	DO(move(NVS_WRITE, data, nbytes, offset));
	assert_true(padding <= sizeof(behind));
	assert_int_equal(pread(end.member->fd, behind, padding, (off_t)end.offset), padding);
	for (uint64_t i = 0; i < padding; i++)
		assert_int_equal(behind[i], 0);
}

/* Like the store's files: units are whole, so an odd end is padded and written directly. */
TEST(a_striped_file_is_one_run_of_bytes)
{
	static const char *const names[] = {"a", "b", "c"};
	const uint64_t stripe = 64 * KIB, nbytes = 10 * 64 * KIB + 12345;
	const char *directory = temp_directory();
	char *out = aligned_alloc(PAGE, MIB), *in = aligned_alloc(PAGE, MIB);
	uint64_t random = random_seed(__func__);

	random_fill(&random, out, MIB);
	for (size_t i = 0; i < COUNT(engines); i++) {
		struct file_member members[3];

		if (!open_engine(&plain, engines[i]))
			continue;
		for (unsigned j = 0; j < 3; j++)
			open_member(&members[j], path_in(directory, names[j]));
		DO(file_create(aio, members, 3, stripe, true, true, &file, &error));
		DO(move(NVS_WRITE, out, nbytes, 3 * stripe));
		DO(move(NVS_READ, in + 1, nbytes, 3 * stripe));
		assert_memory_equal(in + 1, out, nbytes);
		/* Stripe 3 is the second of the first member, stripe 4 of the second. */
		assert_int_equal(pread(file->members[0].fd, in, stripe, 8 * KIB + (off_t)stripe),
				 stripe);
		assert_memory_equal(in, out, stripe);
		assert_int_equal(pread(file->members[1].fd, in, stripe, 8 * KIB + (off_t)stripe),
				 stripe);
		assert_memory_equal(in, out + stripe, stripe);
		check_padding(out, nbytes, 3 * stripe);
		DO(nvs_file_sync(file, &error));
	}
	free(out);
	free(in);
}

EACH_TEST(NULL, cleanup)
