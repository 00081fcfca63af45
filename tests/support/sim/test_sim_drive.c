/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated drive: each fault, each setting and the clock. That a seed decides all of it is
 * shown by test_histories, and that the nth I/O fails by test_every_io_fails.
 */

#include "aio/aio.h"
#include "config/config.h"
#include "support/sim/sim_drive.h"
#include "support/submit.h"
#include "swap/swap.h"
#include "swap/swap_fixture.h"

#define BLOCK	   (64 * KIB)
#define FILE_BYTES (2 * MIB)
#define SECTOR	   512u
#define SECTORS	   (BLOCK / SECTOR)

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
	const char *directory = memory_directory();
	int fd;

	*rig = (struct rig){.error = {.size = sizeof(rig->error)}, .sim = sim_open(drive)};
	rig->path = path_in(directory ? directory : temp_directory(), "file");
	fd = open(rig->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0 && !posix_fallocate(fd, 0, FILE_BYTES));
	close(fd);
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

/* The number of the block's sectors that hold the written contents, or, at `data`, others. */
static unsigned sectors_with(const char *data, uint64_t offset)
{
	unsigned n = 0;

	look(rig->back, BLOCK, offset);
	for (uint64_t i = 0; i < BLOCK; i += SECTOR)
		n += !memcmp(rig->back + i, data + i, SECTOR);
	return n;
}

TEST(a_write_with_a_fault_leaves_the_sectors_of_the_fault)
{
	static const struct {
		struct sim_rule rule;
		unsigned least, most; /* sectors written */
	} cases[] = {{{.fault = SIM_ERROR, .error = EIO, .writes = true}, 0, 0},
		     {{.fault = SIM_ERROR, .error = ENOSPC, .writes = true}, 0, 0},
		     {{.fault = SIM_ERROR, .error = ENODEV, .from = BLOCK, .to = 2 * BLOCK}, 0, 0},
		     {{.fault = SIM_LOST}, 0, 0},
		     {{.fault = SIM_TORN}, 1, SECTORS - 1}};
	static const char zeros[BLOCK];

	for (size_t i = 0; i < COUNT(cases); i++) {
		unsigned n;

		rig_open(&(struct sim_drive){.seed = random_seed(__func__)});
		sim_fault(rig->sim, &cases[i].rule);
		assert_int_equal(move(NVS_WRITE, BLOCK, BLOCK), -cases[i].rule.error);
		n = sectors_with(rig->data + BLOCK, BLOCK);
		assert_in_range(n, cases[i].least, cases[i].most);
		assert_int_equal(n + sectors_with(zeros, BLOCK), SECTORS);
		assert_int_equal(counts_of().faults, 1);
		sim_no_faults(rig->sim);
		assert_int_equal(move(NVS_WRITE, 0, FILE_BYTES), 0);
		assert_int_equal(sectors_with(rig->data + BLOCK, BLOCK), SECTORS);
		rig_close();
	}
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
	for (int writes = 0; writes < 3; writes++) {
		if (writes < 2)
			FAULT(rig, .fault = SIM_FLIP, .writes = writes, .reads = !writes);
		assert_int_equal(move(NVS_WRITE, 0, BLOCK), 0);
		assert_int_equal(move(NVS_READ, 0, BLOCK), 0);
		assert_true(filled(rig->data, FILE_BYTES, 1));
		assert_int_equal(bits_that_differ(rig->data, rig->back, BLOCK), writes < 2);
		sim_no_faults(rig->sim);
	}
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
	assert_int_equal(move(NVS_WRITE, 0, FILE_BYTES), 0);
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
	static char before[FILE_BYTES];

	fill(before, FILE_BYTES, 1);
	for (size_t i = 0; i < COUNT(ways); i++) {
		lose_power(&drive, ways[i]);
		assert_int_equal(sectors_with(before, 0), SECTORS);
		for (unsigned block = 1; block <= 2; block++) {
			unsigned new = sectors_with(rig->data + block * BLOCK, block * BLOCK);
			unsigned old = sectors_with(before + block * BLOCK, block * BLOCK);

			assert_int_equal(old + new, SECTORS);
			if (ways[i] == SIM_TEAR)
				assert_in_range(new, 1, SECTORS - 1);
			else
				assert_int_equal(new, ways[i] == SIM_KEEP ? SECTORS : 0);
		}
		rig_close();
	}
}

/* ---- Names ---- */

/* A drive, and a directory of it. */
static struct sim *sim;
static const char *path;
static int root;

static void open_names(uint64_t seed)
{
	const char *memory = memory_directory();

	sim = sim_open(&(struct sim_drive){.seed = seed});
	path = memory ? memory : temp_directory();
	root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(root >= 0);
}

static void close_names(void)
{
	close(root);
	sim_close(sim);
}

/* A file that has its name as its text. */
static void make_file(const char *name)
{
	int fd = openat(root, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	assert_true(fd >= 0 && pwrite(fd, name, strlen(name), 0) == (ssize_t)strlen(name));
	assert_false(fsync(fd));
	close(fd);
}

/* The file's text, or "" if there is none. */
static const char *text_of(const char *name)
{
	static char text[16];
	int fd = openat(root, name, O_RDONLY | O_CLOEXEC);

	memset(text, 0, sizeof(text));
	if (fd >= 0) {
		assert_true(pread(fd, text, sizeof(text) - 1, 0) >= 0);
		close(fd);
	}
	return text;
}

static bool exists(const char *name)
{
	return !faccessat(root, name, F_OK, 0);
}

TEST(a_power_failure_takes_back_names_without_a_sync_of_their_directory)
{
	for (int i = 0; i < 4; i++) {
		bool sync = i % 2, keep = i / 2, done = keep || sync;

		open_names(0);
		make_file("kept");
		make_file("gone");
		make_file("over");
		assert_false(mkdirat(root, "old", 0700));
		sim_remember(sim, 0);
		/* A change of each kind; all of them are in the directory, except for d/inner. */
		make_file("new");
		assert_false(mkdirat(root, "d", 0700));
		make_file("d/inner");
		assert_false(unlinkat(root, "gone", 0));
		assert_false(unlinkat(root, "old", AT_REMOVEDIR));
		assert_false(renameat(root, "kept", root, "over"));
		if (sync)
			assert_false(fsync(root));
		sim_crashed(sim, keep ? SIM_KEEP : SIM_LOSE);
		assert_string_equal(text_of("new"), done ? "new" : "");
		assert_string_equal(text_of("gone"), done ? "" : "gone");
		assert_string_equal(text_of("kept"), done ? "" : "kept");
		assert_string_equal(text_of("over"), done ? "kept" : "over");
		assert_int_equal(exists("old"), !done);
		assert_int_equal(exists("d"), done);
		/* The sync of a directory says nothing of the names below. */
		assert_string_equal(text_of("d/inner"), keep ? "d/inner" : "");
		close_names();
	}
}

/* A directory that is lost takes along what was durable in it. */
TEST(a_lost_directory_is_lost_with_its_durable_files)
{
	int inner;

	open_names(0);
	sim_remember(sim, 0);
	assert_false(mkdirat(root, "d", 0700));
	make_file("d/inner");
	inner = openat(root, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(inner >= 0 && !fsync(inner));
	close(inner);
	sim_crashed(sim, SIM_LOSE);
	assert_false(exists("d"));
	close_names();
}

/* A bit for each of 16 new files: whether it is there after the failure. */
static unsigned names_left(uint64_t seed)
{
	unsigned left = 0;
	char name[2] = "a";

	open_names(seed);
	sim_remember(sim, 0);
	for (; *name < 'a' + 16; ++*name)
		make_file(name);
	sim_crashed(sim, SIM_ANY);
	while (--*name >= 'a')
		left = left << 1 | exists(name);
	close_names();
	return left;
}

TEST(the_seed_decides_which_names_are_lost)
{
	assert_in_range(names_left(1), 1, 0xfffe);
	assert_int_equal(names_left(1), names_left(1));
	assert_int_not_equal(names_left(1), names_left(2));
}

TEST(no_name_changes_after_the_power_has_failed)
{
	open_names(0);
	make_file("kept");
	sim_remember(sim, 2);
	assert_false(mkdirat(root, "first", 0700));
	assert_false(sim_has_crashed(sim));
	assert_false(mkdirat(root, "second", 0700));
	assert_true(sim_has_crashed(sim));
	assert_int_equal(mkdirat(root, "third", 0700), -1);
	assert_int_equal(errno, EIO);
	assert_int_equal(unlinkat(root, "kept", 0), -1);
	assert_int_equal(openat(root, "new", O_RDWR | O_CREAT | O_CLOEXEC, 0600), -1);
	assert_string_equal(text_of("kept"), "kept");
	sim_crashed(sim, SIM_KEEP);
	assert_true(exists("second"));
	close_names();
}

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

static struct fixture fixture, *const f = &fixture;

TEST(swaps_survive_transient_faults)
{
	static const struct sim_rule rules[] = {
		{.fault = SIM_SHORT, .ppm = 300000},
		{.fault = SIM_ERROR, .error = EINTR, .ppm = 300000},
		{.fault = SIM_ERROR, .error = EAGAIN, .ppm = 300000},
		{.fault = SIM_LATE, .delay_ns = 1000000, .ppm = 300000}};
	struct nvs_tensor *tensors[8];
	uint64_t nbytes[8];

	INIT(f, .pool_bytes = MIB, .max_in_cpu = NONE_STAYS);
	f->sim = sim_open(&(struct sim_drive){.seed = random_seed(__func__), .reorder = true});
	OK(f, fixture_reopen(f));
	for (unsigned i = 0; i < 8; i++)
		nbytes[i] = 10 + i * 90000;
	tensors_add(f, "t", nbytes, 8, tensors);
	for (unsigned i = 0; i < COUNT(rules); i++)
		sim_fault(f->sim, &rules[i]);
	for (unsigned i = 0; i < 8; i++)
		tensor_store(f, tensors[i], i);
	for (unsigned i = 0; i < 8; i++)
		tensor_compare(f, tensors[i], i);
	fixture_close(f);
}

EACH_TEST(NULL, cleanup)
