/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated drive: each fault, each setting, the clock, and the same behaviour for the same
 * seed.
 */

#include <xxhash.h>

#include "aio/aio.h"
#include "config/config.h"
#include "support/sim/sim_drive.h"
#include "support/submit.h"
#include "swap/swap.h"
#include "swap/swap_fixture.h"

#define BLOCK	   (64 * KIB)
#define FILE_BYTES (2 * MIB)
#define SECTOR	   512u

struct rig {
	struct sim *sim;
	struct nvs_aio *aio;
	struct nvs_file *file;
	struct nvs_error error;
	const char *path;
	char *data, *back;
};
static struct rig one_rig, *const rig = &one_rig;
#define DO(call) SUCCEEDS(call, &rig->error)

static const char *new_file(uint64_t nbytes)
{
	const char *directory = memory_directory();
	const char *path = path_in(directory ? directory : temp_directory(), "file");
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0 && !posix_fallocate(fd, 0, (off_t)nbytes));
	close(fd);
	return path;
}

static void open_aio(uint32_t depth, uint32_t workers)
{
	const struct aio_config config = {.block_size = BLOCK,
					  .queue_depth = depth,
					  .thread_count = workers,
					  .overlap_events = true};

	DO(aio_open_with(&rig->aio, &config, &engine_sim, rig->sim, NULL, &rig->error));
	DO(nvs_file_open(rig->aio, rig->path, NVS_FILE_WRITE, &rig->file, &rig->error));
}

static void rig_open_as(const struct sim_drive *drive, uint32_t depth, uint32_t workers)
{
	*rig = (struct rig){.error = {.size = sizeof(rig->error)}, .path = new_file(FILE_BYTES)};
	rig->sim = sim_open(drive);
	assert_non_null(rig->sim);
	rig->data = aligned_alloc(4096, FILE_BYTES);
	rig->back = aligned_alloc(4096, FILE_BYTES);
	assert_true(rig->data && rig->back);
	fill(rig->data, FILE_BYTES, 1);
	memset(rig->back, 0, FILE_BYTES);
	open_aio(depth, workers);
}

static void rig_open(const struct sim_drive *drive)
{
	rig_open_as(drive, 8, 1);
}

static void rig_shut(void)
{
	nvs_file_close(rig->file);
	nvs_aio_close(rig->aio);
	rig->file = NULL;
	rig->aio = NULL;
}

static void rig_close(void)
{
	if (!rig->sim)
		return;
	rig_shut();
	sim_close(rig->sim);
	free(rig->data);
	free(rig->back);
	*rig = (struct rig){0};
}
AFTER_SUCCESS(rig_close)

static struct transfer transfer_of(enum nvs_direction direction, uint64_t offset, uint64_t nbytes)
{
	char *data = direction == NVS_READ ? rig->back : rig->data;

	return (struct transfer){.file = rig->file,
				 .direction = direction,
				 .data = data + offset,
				 .nbytes = nbytes,
				 .offset = offset};
}

static struct transfer start(struct transfer *transfer, enum nvs_direction direction,
			     uint64_t offset, uint64_t nbytes)
{
	*transfer = transfer_of(direction, offset, nbytes);
	DO(submit_all(rig->aio, &transfer, 1, &rig->error));
	return *transfer;
}

static int finish(struct transfer *transfer)
{
	return await_all(rig->aio, &transfer, 1, -1, &rig->error);
}

static int move(enum nvs_direction direction, uint64_t offset, uint64_t nbytes)
{
	struct transfer transfer;

	start(&transfer, direction, offset, nbytes);
	return finish(&transfer);
}

static int write_all(void)
{
	return move(NVS_WRITE, 0, FILE_BYTES);
}

/* Reads the file itself, past the simulated drive. */
static void look(void *data, uint64_t nbytes, uint64_t offset)
{
	int fd = open(rig->path, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, data, nbytes, (off_t)offset), nbytes);
	close(fd);
}

static struct sim_counts counts_of(void)
{
	struct sim_counts counts;

	sim_get(rig->sim, &counts);
	return counts;
}

#define FAULT(rig, ...) sim_fault((rig)->sim, &(const struct sim_rule){__VA_ARGS__})

/* ---- Faults ---- */

TEST(an_error_is_returned_and_moves_nothing)
{
	static const int errors[] = {EIO, ENOSPC, ENODEV};
	static const char zeros[BLOCK];

	for (size_t i = 0; i < COUNT(errors); i++) {
		rig_open(&(struct sim_drive){0});
		FAULT(rig, .fault = SIM_ERROR, .error = errors[i], .writes = true, .from = BLOCK,
		      .to = 2 * BLOCK);
		assert_int_equal(write_all(), -errors[i]);
		look(rig->back, BLOCK, BLOCK);
		assert_memory_equal(rig->back, zeros, BLOCK);
		assert_int_equal(move(NVS_READ, BLOCK, BLOCK), 0);
		sim_no_faults(rig->sim);
		assert_int_equal(write_all(), 0);
		rig_close();
	}
}

TEST(only_the_nth_matching_io_fails)
{
	rig_open(&(struct sim_drive){0});
	FAULT(rig, .fault = SIM_ERROR, .error = EIO, .writes = true, .first = 3, .times = 2);
	for (unsigned i = 1; i <= 6; i++) {
		assert_int_equal(move(NVS_WRITE, i * BLOCK, BLOCK), i == 3 || i == 4 ? -EIO : 0);
		assert_int_equal(move(NVS_READ, i * BLOCK, BLOCK), 0);
	}
	assert_int_equal(counts_of().faults, 2);
}

TEST(a_short_io_moves_as_much_as_it_reports)
{
	uint64_t n;

	rig_open(&(struct sim_drive){.seed = random_seed(__func__)});
	FAULT(rig, .fault = SIM_SHORT, .times = 1);
	FAULT(rig, .fault = SIM_ERROR, .error = EIO, .times = 1);
	assert_int_equal(move(NVS_WRITE, 0, BLOCK), -EIO);
	look(rig->back, BLOCK, 0);
	for (n = 0; n < BLOCK && rig->back[n] == rig->data[n]; n++)
		;
	assert_in_range(n, SECTOR, BLOCK - SECTOR + 8);
	assert_int_equal(counts_of().bytes[1] % SECTOR, 0);
	assert_in_range(n - counts_of().bytes[1], 0, 8);
}

/* The number of the block's sectors that hold the written contents. */
static unsigned written_sectors(uint64_t offset)
{
	unsigned n = 0;

	look(rig->back, BLOCK, offset);
	for (uint64_t i = 0; i < BLOCK; i += SECTOR)
		n += !memcmp(rig->back + i, rig->data + offset + i, SECTOR);
	return n;
}

TEST(a_torn_write_leaves_some_of_its_sectors)
{
	static const char zeros[SECTOR];
	unsigned n;

	rig_open(&(struct sim_drive){.seed = random_seed(__func__)});
	FAULT(rig, .fault = SIM_TORN);
	assert_int_equal(move(NVS_WRITE, BLOCK, BLOCK), 0);
	n = written_sectors(BLOCK);
	assert_in_range(n, 1, BLOCK / SECTOR - 1);
	for (uint64_t i = 0; i < BLOCK; i += SECTOR)
		n += !memcmp(rig->back + i, zeros, SECTOR);
	assert_int_equal(n, BLOCK / SECTOR);
}

TEST(a_lost_write_changes_nothing)
{
	static const char zeros[BLOCK];

	rig_open(&(struct sim_drive){0});
	FAULT(rig, .fault = SIM_LOST);
	assert_int_equal(move(NVS_WRITE, BLOCK, BLOCK), 0);
	assert_int_equal(move(NVS_READ, BLOCK, BLOCK), 0);
	assert_memory_equal(rig->back + BLOCK, zeros, BLOCK);
	assert_int_equal(counts_of().faults, 1);
}

TEST(a_misplaced_write_goes_to_other_sectors)
{
	uint64_t seed = random_seed(__func__);

	for (unsigned i = 0; i < 8; i++) {
		uint64_t offset = i % 2 ? FILE_BYTES - BLOCK : 0, at = 0;

		rig_open(&(struct sim_drive){.seed = seed + i});
		FAULT(rig, .fault = SIM_MISPLACED);
		assert_int_equal(move(NVS_WRITE, offset, BLOCK), 0);
		look(rig->back, FILE_BYTES, 0);
		while (at + BLOCK < FILE_BYTES &&
		       memcmp(rig->back + at, rig->data + offset, BLOCK) != 0)
			at += SECTOR;
		assert_true(at + BLOCK <= FILE_BYTES && at != offset);
		assert_memory_equal(rig->back + at, rig->data + offset, BLOCK);
		rig_close();
	}
}

static unsigned bits_that_differ(const char *a, const char *b, uint64_t nbytes)
{
	unsigned n = 0;

	for (uint64_t i = 0; i < nbytes; i++)
		n += (unsigned)__builtin_popcount((unsigned char)(a[i] ^ b[i]));
	return n;
}

TEST(a_flip_changes_one_bit)
{
	rig_open(&(struct sim_drive){.seed = random_seed(__func__)});
	FAULT(rig, .fault = SIM_FLIP, .writes = true);
	assert_int_equal(move(NVS_WRITE, 0, BLOCK), 0);
	assert_int_equal(move(NVS_READ, 0, BLOCK), 0);
	assert_true(filled(rig->data, FILE_BYTES, 1));
	assert_int_equal(bits_that_differ(rig->data, rig->back, BLOCK), 1);
	sim_no_faults(rig->sim);
	assert_int_equal(move(NVS_WRITE, 0, BLOCK), 0);
	FAULT(rig, .fault = SIM_FLIP, .reads = true);
	assert_int_equal(move(NVS_READ, 0, BLOCK), 0);
	assert_int_equal(bits_that_differ(rig->data, rig->back, BLOCK), 1);
	sim_no_faults(rig->sim);
	assert_int_equal(move(NVS_READ, 0, BLOCK), 0);
	assert_memory_equal(rig->data, rig->back, BLOCK);
}

TEST(a_late_io_completes_after_later_ones)
{
	struct transfer first, second;

	rig_open(&(struct sim_drive){.latency_ns = 1000});
	FAULT(rig, .fault = SIM_LATE, .delay_ns = 1000000, .times = 1);
	sim_hold(rig->sim, SIM_ALL);
	start(&first, NVS_WRITE, 0, BLOCK);
	assert_true(sim_await_in_flight(rig->sim, 1));
	start(&second, NVS_WRITE, BLOCK, BLOCK);
	assert_true(sim_await_in_flight(rig->sim, 2));
	assert_int_equal(sim_complete(rig->sim, 1), 1);
	assert_int_equal(finish(&second), 0);
	assert_false(is_completed(&first));
	assert_int_equal(counts_of().now_ns, 1000);
	sim_go(rig->sim, SIM_ALL);
	assert_int_equal(finish(&first), 0);
	assert_int_equal(counts_of().now_ns, 1001000);
}

/* ---- Power failures ---- */

#define SECTORS (BLOCK / SECTOR)

/* The number of the block's sectors that hold the contents of that seed, read from the file. */
static unsigned sectors_of(uint64_t seed, unsigned block)
{
	fill(rig->data, FILE_BYTES, seed);
	return written_sectors(block * BLOCK);
}

/*
 * Writes and syncs all blocks; then block 1 is written again, and block 2 is in flight when the
 * power fails.
 */
static void lose_power(const struct sim_drive *drive, enum sim_crash how)
{
	struct transfer last;

	rig_open(drive);
	sim_remember(rig->sim, 0);
	assert_int_equal(write_all(), 0);
	DO(nvs_file_sync(rig->file, &rig->error));
	fill(rig->data, FILE_BYTES, 2);
	assert_int_equal(move(NVS_WRITE, BLOCK, BLOCK), 0);
	sim_hold(rig->sim, SIM_ALL);
	start(&last, NVS_WRITE, 2 * BLOCK, BLOCK);
	assert_true(sim_await_in_flight(rig->sim, 1));
	sim_crash(rig->sim);
	assert_true(sim_has_crashed(rig->sim));
	assert_int_equal(finish(&last), -EIO);
	assert_int_equal(move(NVS_WRITE, 0, BLOCK), -EIO);
	assert_int_equal(move(NVS_READ, 0, BLOCK), -EIO);
	assert_int_equal(nvs_file_sync(rig->file, &rig->error), -EIO);
	rig_shut();
	sim_crashed(rig->sim, how);
	assert_false(sim_has_crashed(rig->sim));
}

TEST(a_power_failure_keeps_synced_writes_and_the_chosen_part_of_others)
{
	static const enum sim_crash ways[] = {SIM_KEEP, SIM_LOSE, SIM_TEAR};
	const struct sim_drive drive = {.seed = random_seed(__func__)};

	for (size_t i = 0; i < COUNT(ways); i++) {
		lose_power(&drive, ways[i]);
		assert_int_equal(sectors_of(1, 0), SECTORS);
		for (unsigned block = 1; block <= 2; block++) {
			unsigned old = sectors_of(1, block);
			unsigned new = sectors_of(2, block);

			assert_int_equal(old + new, SECTORS);
			if (ways[i] == SIM_TEAR)
				assert_in_range(new, 1, SECTORS - 1);
			else
				assert_int_equal(new, ways[i] == SIM_KEEP ? SECTORS : 0);
		}
		rig_close();
	}
}

TEST(a_drive_that_lies_loses_what_was_synced)
{
	lose_power(&(struct sim_drive){.lies = true}, SIM_LOSE);
	for (unsigned block = 0; block <= 2; block++) {
		assert_int_equal(sectors_of(1, block), 0);
		assert_int_equal(sectors_of(2, block), 0);
	}
}

/* ---- Names ---- */

static void make_file(int from, const char *name, const char *text)
{
	int fd = openat(from, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	assert_true(fd >= 0 && pwrite(fd, text, strlen(text), 0) == (ssize_t)strlen(text));
	assert_false(fsync(fd));
	close(fd);
}

/* The file's text, or "" if there is none. */
static const char *text_of(int from, const char *name)
{
	static char text[16];
	int fd = openat(from, name, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? pread(fd, text, sizeof(text) - 1, 0) : 0;

	assert_true(n >= 0);
	text[n] = 0;
	if (fd >= 0)
		close(fd);
	return text;
}

static int new_directory(const char **path)
{
	const char *memory = memory_directory();
	int fd;

	*path = memory ? memory : temp_directory();
	fd = open(*path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

/* A change of each kind; all of them are in `path`, except for d/inner. */
static void change_names(struct sim *sim, int root, const char *path, bool sync)
{
	char from[512], to[512];

	make_file(root, "kept", "kept");
	make_file(root, "gone", "gone");
	make_file(root, "over", "over");
	assert_false(mkdirat(root, "old", 0700));
	sim_remember(sim, 0);
	make_file(root, "new", "new");
	assert_false(mkdirat(root, "d", 0700));
	make_file(root, "d/inner", "inner");
	assert_false(unlinkat(root, "gone", 0));
	assert_false(unlinkat(root, "old", AT_REMOVEDIR));
	snprintf(from, sizeof(from), "%s/kept", path);
	snprintf(to, sizeof(to), "%s/over", path);
	assert_false(rename(from, to));
	if (sync)
		assert_false(fsync(root));
}

TEST(a_power_failure_takes_back_names_without_a_sync_of_their_directory)
{
	static const enum sim_crash ways[] = {SIM_KEEP, SIM_LOSE};

	for (size_t i = 0; i < 2 * COUNT(ways); i++) {
		struct sim *sim = sim_open(&(struct sim_drive){0});
		bool kept = ways[i / 2] == SIM_KEEP, sync = i % 2;
		const char *path;
		int root = new_directory(&path);

		change_names(sim, root, path, sync);
		sim_crashed(sim, ways[i / 2]);
		assert_string_equal(text_of(root, "new"), kept || sync ? "new" : "");
		assert_string_equal(text_of(root, "gone"), kept || sync ? "" : "gone");
		assert_string_equal(text_of(root, "kept"), kept || sync ? "" : "kept");
		assert_string_equal(text_of(root, "over"), kept || sync ? "kept" : "over");
		assert_int_equal(faccessat(root, "old", F_OK, 0), kept || sync ? -1 : 0);
		assert_int_equal(faccessat(root, "d", F_OK, 0), kept || sync ? 0 : -1);
		/* The sync of a directory says nothing of the names below. */
		assert_string_equal(text_of(root, "d/inner"), kept ? "inner" : "");
		close(root);
		sim_close(sim);
	}
}

/* A directory that is lost takes along what was durable in it. */
TEST(a_lost_directory_is_lost_with_its_durable_files)
{
	struct sim *sim = sim_open(&(struct sim_drive){0});
	const char *path;
	int root = new_directory(&path), inner;

	sim_remember(sim, 0);
	assert_false(mkdirat(root, "d", 0700));
	make_file(root, "d/inner", "inner");
	inner = openat(root, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(inner >= 0 && !fsync(inner));
	close(inner);
	sim_crashed(sim, SIM_LOSE);
	assert_int_equal(faccessat(root, "d", F_OK, 0), -1);
	close(root);
	sim_close(sim);
}

/* A bit for each of 16 new files: whether it is there after the failure. */
static unsigned names_left(uint64_t seed)
{
	struct sim *sim = sim_open(&(struct sim_drive){.seed = seed});
	unsigned left = 0;
	const char *path;
	int root = new_directory(&path);
	char name[8];

	sim_remember(sim, 0);
	for (unsigned i = 0; i < 16; i++) {
		snprintf(name, sizeof(name), "f%u", i);
		make_file(root, name, "x");
	}
	sim_crashed(sim, SIM_ANY);
	for (unsigned i = 0; i < 16; i++) {
		snprintf(name, sizeof(name), "f%u", i);
		left |= (unsigned)!faccessat(root, name, F_OK, 0) << i;
	}
	close(root);
	sim_close(sim);
	return left;
}

TEST(the_seed_decides_which_names_are_lost)
{
	assert_in_range(names_left(1), 1, 0xfffe);
	assert_int_equal(names_left(1), names_left(1));
	assert_int_not_equal(names_left(1), names_left(2));
}

/* The files must stay as the failure left them. */
TEST(no_name_changes_after_the_power_has_failed)
{
	struct sim *sim = sim_open(&(struct sim_drive){0});
	const char *path;
	int root = new_directory(&path);

	make_file(root, "kept", "kept");
	sim_remember(sim, 2);
	assert_false(mkdirat(root, "first", 0700));
	assert_false(sim_has_crashed(sim));
	assert_false(mkdirat(root, "second", 0700));
	assert_true(sim_has_crashed(sim));
	assert_int_equal(mkdirat(root, "third", 0700), -1);
	assert_int_equal(errno, EIO);
	assert_int_equal(unlinkat(root, "kept", 0), -1);
	assert_int_equal(openat(root, "new", O_RDWR | O_CREAT | O_CLOEXEC, 0600), -1);
	assert_string_equal(text_of(root, "kept"), "kept");
	sim_crashed(sim, SIM_KEEP);
	assert_int_equal(faccessat(root, "second", F_OK, 0), 0);
	close(root);
	sim_close(sim);
}

/* ---- The clock ---- */

#define LATENCY 100000u

TEST(latency_bandwidth_and_service_take_their_time)
{
	const struct sim_drive bandwidth = {.bytes_per_s = {FILE_BYTES, 2 * FILE_BYTES}};
	const struct sim_drive latency = {.latency_ns = LATENCY};
	const struct sim_drive two = {.latency_ns = LATENCY, .parallel = 2};
	const struct sim_drive jitter = {
		.seed = random_seed(__func__), .latency_ns = LATENCY, .jitter_ns = LATENCY / 2};
	const struct {
		const struct sim_drive *drive;
		enum nvs_direction direction;
		uint32_t depth, workers;
		uint64_t least, most; /* of a file of 32 blocks */
	} cases[] = {
		{&bandwidth, NVS_READ, 1, 1, 1000000000, 1010000000},
		{&bandwidth, NVS_READ, 16, 1, 1000000000, 1010000000},
		{&bandwidth, NVS_WRITE, 4, 1, 500000000, 505000000},
		{&bandwidth, NVS_READ, 4, 3, 1000000000, 1010000000},
		{&latency, NVS_READ, 1, 1, 32 * LATENCY, 32 * LATENCY},
		{&latency, NVS_READ, 8, 1, 4 * LATENCY, 4 * LATENCY},
		{&two, NVS_WRITE, 8, 1, 16 * LATENCY, 16 * LATENCY},
		{&jitter, NVS_WRITE, 1, 1, 35 * LATENCY, 45 * LATENCY},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		rig_open_as(cases[i].drive, cases[i].depth, cases[i].workers);
		assert_int_equal(move(cases[i].direction, 0, FILE_BYTES), 0);
		assert_in_range(counts_of().now_ns, cases[i].least, cases[i].most);
		rig_close();
	}
}

/* ---- Order ---- */

#define DEPTH 16

/* The order in which writes submitted together complete. */
static void order_of(const struct sim_drive *drive, unsigned order[DEPTH])
{
	struct transfer transfers[DEPTH], *done;
	struct completions *queue;
	unsigned n = 0;

	rig_open_as(drive, DEPTH, 1);
	assert_int_equal(completions_open(&queue), 0);
	for (unsigned i = 0; i < DEPTH; i++) {
		transfers[i] = transfer_of(NVS_WRITE, i * SECTOR, SECTOR);
		transfers[i].state.next = i + 1 < DEPTH ? &transfers[i + 1] : NULL;
	}
	aio_submit_list(rig->aio, queue, transfers);
	assert_int_equal(completions_wait(queue, COMPLETIONS_THREAD, DEPTH, UINT64_MAX), 0);
	for (done = completions_take(queue); done; done = done->state.next)
		order[n++] = (unsigned)(done - transfers);
	assert_int_equal(n, DEPTH);
	completions_close(queue);
	rig_close();
}

TEST(completions_keep_their_order_without_reorder)
{
	struct sim_drive drive = {.seed = random_seed(__func__), .latency_ns = 1000};
	unsigned order[DEPTH], again[DEPTH], in_order[DEPTH], seen = 0;

	for (unsigned i = 0; i < DEPTH; i++)
		in_order[i] = i;
	order_of(&drive, order);
	assert_memory_equal(order, in_order, sizeof(order));
	drive.reorder = true;
	order_of(&drive, order);
	assert_memory_not_equal(order, in_order, sizeof(order));
	for (unsigned i = 0; i < DEPTH; i++)
		seen |= 1u << order[i];
	assert_int_equal(seen, (1u << DEPTH) - 1);
	order_of(&drive, again);
	assert_memory_equal(order, again, sizeof(order));
	drive.seed++;
	order_of(&drive, again);
	assert_memory_not_equal(order, again, sizeof(order));
}

/*
 * Another worker has one I/O due at 1000 ns, one due at 5000, and a third that it submits once the
 * first has completed. The clock must not advance to 5000 before.
 */
TEST(the_clock_waits_for_workers_with_something_to_do)
{
	static const uint32_t delays[] = {4000, 0, 4000, 4500};
	struct transfer alone, three[3], *all[] = {&three[0], &three[1], &three[2]};
	struct nvs_aio *first;
	struct nvs_file *file;

	rig_open_as(&(struct sim_drive){.latency_ns = 1000}, 2, 1);
	for (unsigned i = 0; i < COUNT(delays); i++)
		FAULT(rig, .fault = SIM_LATE, .delay_ns = delays[i], .from = i * BLOCK,
		      .to = (i + 1) * BLOCK);
	sim_hold(rig->sim, SIM_ALL);
	start(&alone, NVS_WRITE, 0, BLOCK);
	assert_true(sim_await_in_flight(rig->sim, 1));
	first = rig->aio;
	file = rig->file;
	open_aio(2, 1);
	for (unsigned i = 0; i < 3; i++)
		three[i] = transfer_of(NVS_WRITE, (i + 1) * BLOCK, BLOCK);
	DO(submit_all(rig->aio, all, 3, &rig->error));
	assert_true(sim_await_in_flight(rig->sim, 3));
	sim_go(rig->sim, SIM_ALL);
	DO(await_all(rig->aio, all, 3, -1, &rig->error));
	assert_int_equal(counts_of().now_ns, 1000 + 1000 + 4500);
	nvs_file_close(file);
	nvs_aio_close(first);
}

/* ---- Reproducibility ---- */

/* Returns one number that combines the outcome of many transfers with every kind of fault. */
static uint64_t history(uint64_t seed, uint32_t workers)
{
	const struct sim_drive drive = {.seed = seed, .latency_ns = 1000, .jitter_ns = 5000};
	struct transfer transfers[FILE_BYTES / BLOCK], *all[COUNT(transfers)];
	uint64_t sum = 0;

	rig_open_as(&drive, 8, workers);
	for (int fault = SIM_ERROR; fault <= SIM_FLIP; fault++)
		FAULT(rig, .fault = (enum sim_fault)fault, .error = EIO, .delay_ns = 7000,
		      .ppm = 100000);
	for (int round = 0; round < 4; round++) {
		for (unsigned i = 0; i < COUNT(transfers); i++) {
			transfers[i] = transfer_of(round % 2 ? NVS_READ : NVS_WRITE, i * BLOCK,
						   BLOCK / (1 + (unsigned)round / 2));
			all[i] = &transfers[i];
		}
		DO(submit_all(rig->aio, all, COUNT(all), &rig->error));
		for (unsigned i = 0; i < COUNT(transfers); i++)
			sum = sum * 31 + (uint64_t)finish(&transfers[i]);
	}
	sum = sum * 31 + counts_of().faults;
	/*
	 * The last of two misplaced writes to one place wins. One worker that gets a round's
	 * transfers by one call takes them in one order; several race.
	 */
	if (workers == 1) {
		look(rig->back, FILE_BYTES, 0);
		sum ^= XXH3_64bits(rig->back, FILE_BYTES);
	}
	rig_close();
	return sum;
}

TEST(a_seed_gives_the_same_faults_again)
{
	uint64_t seed = random_seed(__func__);

	for (uint32_t workers = 1; workers <= 3; workers += 2) {
		uint64_t first = history(seed, workers);

		assert_true(first == history(seed, workers));
		assert_true(first != history(seed + 1, workers));
	}
}

/* ---- The layers above ---- */

static struct nvs_engine *open_engine(struct fixture *fixture, struct sim *sim)
{
	INIT(fixture, .verify = true, .pool_bytes = MIB, .max_in_cpu = NONE_STAYS);
	OK(fixture, engine_open_with(&fixture->engine, &fixture->config, NVS_OFFLOAD_PARAM,
				     &engine_sim, sim, &fixture->error));
	return fixture->engine;
}

static struct sim *open_sim(uint64_t seed)
{
	struct sim *sim = sim_open(&(struct sim_drive){
		.seed = seed, .latency_ns = 10000, .jitter_ns = 20000, .reorder = true});

	assert_non_null(sim);
	return sim;
}

static int swap_in(struct fixture *fixture, struct nvs_tensor *tensor)
{
	int rc = sole_swap_in(fixture->engine, &tensor, 1, -1, &fixture->error);

	return rc ? rc : sole_wait(fixture->engine, &tensor, 1, -1, &fixture->error);
}

TEST(swaps_survive_transient_faults)
{
	struct sim *sim = open_sim(random_seed(__func__));
	struct nvs_tensor *tensors[8];
	uint64_t nbytes[8];
	struct fixture fixture;

	open_engine(&fixture, sim);
	for (unsigned i = 0; i < 8; i++)
		nbytes[i] = 10 + i * 90000;
	tensors_add(&fixture, "t", nbytes, 8, tensors);
	sim_fault(sim, &(struct sim_rule){.fault = SIM_SHORT, .ppm = 300000});
	sim_fault(sim, &(struct sim_rule){.fault = SIM_ERROR, .error = EINTR, .ppm = 300000});
	sim_fault(sim, &(struct sim_rule){.fault = SIM_ERROR, .error = EAGAIN, .ppm = 300000});
	sim_fault(sim, &(struct sim_rule){.fault = SIM_LATE, .delay_ns = 1000000, .ppm = 300000});
	for (unsigned i = 0; i < 8; i++)
		tensor_store(&fixture, tensors[i], i);
	for (unsigned i = 0; i < 8; i++)
		tensor_compare(&fixture, tensors[i], i);
	fixture_close(&fixture);
	sim_close(sim);
}

TEST(an_engine_without_its_drive_reports_it_and_closes)
{
	struct sim *sim = open_sim(1);
	struct nvs_tensor *tensors[2];
	struct fixture fixture;
	struct nvs_engine *engine;

	engine = open_engine(&fixture, sim);
	tensors_add(&fixture, "t", (uint64_t[]){300 * KIB, 200 * KIB}, 2, tensors);
	tensor_store(&fixture, tensors[0], 1);
	sim_fault(sim, &(struct sim_rule){.fault = SIM_ERROR, .error = ENODEV});
	expect_error(&fixture, swap_in(&fixture, tensors[0]), -ENODEV, "t0");
	tensor_write(&fixture, tensors[1], 2);
	OK(&fixture, nvs_tensor_swap_out(engine, &tensors[1], 1, &fixture.error));
	expect_error(&fixture, sole_wait(engine, &tensors[1], 1, -1, &fixture.error), -ENODEV,
		     "t1");
	STATE(&fixture, tensors[1], NVS_RESIDENT, true, 0);
	fixture_close(&fixture);
	sim_close(sim);
}

#define ROUNDS at_length(SANITIZED ? 20 : 100, 20)
#define MANY   24

/* A tensor that is swapped in without an error has the contents that were last swapped out. */
TEST(no_silent_fault_goes_undetected)
{
	uint64_t seed = random_seed(__func__), nbytes[MANY], random = seed;
	struct sim *sim = open_sim(seed);
	struct nvs_tensor *tensors[MANY];
	struct fixture fixture;
	unsigned found = 0, right = 0;

	open_engine(&fixture, sim);
	for (unsigned i = 0; i < MANY; i++)
		nbytes[i] = 1 + random_below(&random, 160 * KIB);
	tensors_add(&fixture, "t", nbytes, MANY, tensors);
	for (int fault = SIM_TORN; fault <= SIM_FLIP; fault++)
		sim_fault(sim, &(struct sim_rule){.fault = (enum sim_fault)fault, .ppm = 80000});
	for (unsigned round = 0; round < ROUNDS; round++) {
		for (unsigned i = 0; i < MANY; i++)
			tensor_store(&fixture, tensors[i], round * MANY + i);
		for (unsigned i = 0; i < MANY; i++) {
			int rc = swap_in(&fixture, tensors[i]);

			if (rc) {
				assert_int_equal(rc, -EBADMSG);
				found++;
				continue;
			}
			assert_true(
				filled(nvs_tensor_data(tensors[i]), nbytes[i], round * MANY + i));
			right++;
			OK(&fixture,
			   sole_release(fixture.engine, &tensors[i], 1, NVS_CLEAN, &fixture.error));
		}
	}
	print_message("%u swaps right, %u found wrong\n", right, found);
	assert_true(found > ROUNDS && right > ROUNDS);
	fixture_close(&fixture);
	sim_close(sim);
}

EACH_TEST(NULL, cleanup)
