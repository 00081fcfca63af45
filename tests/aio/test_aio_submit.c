/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the aio layer submits to an engine, and how it treats the results: each option's effect,
 * registered memory, faults, waiting. The fake engine returns the results that a test chooses; for
 * promises that hold on every engine, it sits between the workers and each real engine.
 */
#include <dlfcn.h>
#include <libaio.h>
#include <liburing.h>
#include <sched.h>
#include <sys/resource.h>

#include "aio/internal.h"
#include "aio/requests/requests.h"
#include "base/clock.h"
#include "support/fake/fake_engine.h"
#include "support/inject.h"
#include "support/submit.h"
#include "support/support.h"

#define FILE_BYTES (4u << 20)
#define DATA_BYTES FILE_BYTES
#define PAGE	   4096u
#define AWAIT_MS   20000

/* NULL: the fake engine itself performs the I/O. */
static const struct engine_ops *const inners[] = {NULL, &engine_io_uring, &engine_libaio,
						  &engine_posix};

/* Defaults: one page, 8, 1. */
struct options {
	uint32_t block_size, queue_depth, thread_count;
	bool single_submit, drain; /* drain: overlap_events is false */
	bool buffered;
};
#define OPTIONS(...) (&(const struct options){__VA_ARGS__})

/* An aio over a fake engine, with a file and memory for it. */
struct rig {
	const struct options *options;
	struct fake fake;
	struct nvs_aio *aio;
	struct nvs_file *file;
	struct nvs_error error;
	char *data;
	uint64_t random;
};
static struct rig one_rig, *const rig = &one_rig;
#define DO(call) SUCCEEDS(call, &rig->error)

static bool works(const struct engine_ops *inner)
{
	char reason[192];

	for (int i = NVS_IOENGINE_IO_URING; inner && i < NVS_IOENGINE_COUNT; i++)
		if (!strcmp(nvs_ioengine_name((enum nvs_ioengine)i), inner->name) &&
		    ioengine_try((enum nvs_ioengine)i, reason, sizeof(reason))) {
			print_message("%s does not work here: %s\n", inner->name, reason);
			return false;
		}
	return true;
}

static char *map_pages(size_t nbytes, int protection)
{
	char *data = mmap(NULL, nbytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			  0);

	assert_ptr_not_equal(data, MAP_FAILED);
	return data;
}

/* One file for all tests; a test reads only what it has written. */
static char path[] = "build/tmp/nvswap-test-XXXXXX";

static int make_file(void **state)
{
	static const char zeros[1 << 20];
	int fd;

	(void)state;
	(void)mkdir("build", 0755);
	(void)mkdir("build/tmp", 0755);
	fd = mkstemp(path);
	for (unsigned i = 0; i < FILE_BYTES / sizeof(zeros); i++)
		if (fd < 0 || write(fd, zeros, sizeof(zeros)) != sizeof(zeros))
			return -1;
	return fsync(fd) || close(fd);
}

static int remove_file(void **state)
{
	(void)state;
	return unlink(path);
}

static void open_aio(const struct options *options)
{
	const struct aio_config config = {
		.block_size = options->block_size ? options->block_size : PAGE,
		.queue_depth = options->queue_depth ? options->queue_depth : 8,
		.thread_count = options->thread_count ? options->thread_count : 1,
		.single_submit = options->single_submit,
		.overlap_events = !options->drain,
	};

	rig->aio = fake_aio_open(&rig->fake, &config, NULL);
}

static void open_file(unsigned flags)
{
	DO(nvs_file_open(rig->aio, path, flags, &rig->file, &rig->error));
}

static void rig_open(const struct engine_ops *inner, const struct options *options)
{
	*rig = (struct rig){.options = options, .error = {.size = sizeof(rig->error)}, .random = 1};
	rig->data = map_pages(DATA_BYTES, PROT_READ | PROT_WRITE);
	random_fill(&rig->random, rig->data, DATA_BYTES);
	fake_init(&rig->fake, inner);
	open_aio(options);
	open_file(NVS_FILE_WRITE | (options->buffered ? NVS_FILE_BUFFERED : 0));
}

static void rig_close(void)
{
	if (!rig->data)
		return;
	nvs_file_close(rig->file);
	nvs_aio_close(rig->aio);
	fake_destroy(&rig->fake);
	munmap(rig->data, DATA_BYTES);
	*rig = (struct rig){0};
}
AFTER_SUCCESS(rig_close)

/* Runs `check` on the fake engine alone, and on it in front of each engine that works here. */
static void on_each_engine(const struct options *options, void (*check)(void))
{
	for (size_t i = 0; i < COUNT(inners); i++) {
		if (!works(inners[i]))
			continue;
		rig_open(inners[i], options);
		check();
		rig_close();
	}
}

/* Skips the test unless the file has direct I/O in units of up to `max` bytes. */
static void need_direct(uint32_t max)
{
	if (nvs_file_direct(rig->file) && nvs_file_unit(rig->file) <= max)
		return;
	rig_close();
	SKIP("no direct I/O in units of up to %u bytes in build/tmp", max);
}

static struct transfer transfer_of(enum nvs_direction direction, void *data, uint64_t nbytes,
				   uint64_t offset)
{
	return (struct transfer){.file = rig->file,
				 .direction = direction,
				 .data = data,
				 .nbytes = nbytes,
				 .offset = offset};
}

static void start(struct transfer *transfer)
{
	DO(submit_all(rig->aio, &transfer, 1, &rig->error));
}

static int finish(struct transfer *transfer)
{
	return await_all(rig->aio, &transfer, 1, -1, &rig->error);
}

static int move(enum nvs_direction direction, void *data, uint64_t nbytes, uint64_t offset)
{
	struct transfer transfer = transfer_of(direction, data, nbytes, offset);

	start(&transfer);
	return finish(&transfer);
}

/* Submits the transfer while the fake engine holds all I/Os; returns with its first in flight. */
static void start_held(struct transfer *transfer)
{
	fake_hold(&rig->fake);
	start(transfer);
	assert_true(fake_await_ios(&rig->fake, 1));
}

static void release_and_finish(struct transfer *first, struct transfer *second)
{
	fake_release(&rig->fake, FAKE_ALL);
	DO(finish(first));
	DO(finish(second));
}

/* Submits n transfers in one call: adjacent in `data` and in the file, `nbytes` each. */
static void submit_adjacent(enum nvs_direction direction, char *data, uint64_t nbytes,
			    struct transfer **all, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		*all[i] = transfer_of(direction, data + i * nbytes, nbytes, i * nbytes);
	DO(submit_all(rig->aio, all, n, &rig->error));
}

static void assert_file_holds(const char *data, size_t nbytes, uint64_t offset)
{
	char *got = malloc(nbytes);
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	assert_true(got && fd >= 0);
	assert_int_equal(pread(fd, got, nbytes, (off_t)offset), nbytes);
	assert_memory_equal(got, data, nbytes);
	close(fd);
	free(got);
}

static struct nvs_aio_stats stats_of(void)
{
	struct nvs_aio_stats stats = {.size = sizeof(stats)};

	nvs_aio_get_stats(rig->aio, &stats);
	return stats;
}

/* ---- Options ---- */

static void cut_into_blocks(enum nvs_direction direction)
{
	const uint32_t block = rig->options->block_size;
	const uint64_t nbytes = 3ull * block + PAGE;

	fake_forget(&rig->fake);
	DO(move(direction, rig->data, nbytes, 2 * PAGE));
	assert_int_equal(rig->fake.nios, 4);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(rig->fake.ios[i].nbytes, i < 3 ? block : PAGE);
		assert_int_equal(rig->fake.ios[i].offset, 2 * PAGE + (uint64_t)i * block);
	}
}

static void write_and_read_in_blocks(void)
{
	cut_into_blocks(NVS_WRITE);
	cut_into_blocks(NVS_READ);
}

TEST(block_size_is_the_length_of_an_io)
{
	static const uint32_t sizes[] = {8192, 65536, 1 << 20};

	for (size_t i = 0; i < COUNT(sizes); i++)
		on_each_engine(OPTIONS(.block_size = sizes[i]), write_and_read_in_blocks);
}

TEST(any_multiple_of_512_is_a_block_size_of_a_buffered_file)
{
	static const uint32_t sizes[] = {512, 1536, 4608};

	for (size_t i = 0; i < COUNT(sizes); i++) {
		rig_open(NULL, OPTIONS(.block_size = sizes[i], .buffered = true));
		DO(move(NVS_WRITE, rig->data + 1, 2 * sizes[i] + 1, 7));
		assert_int_equal(rig->fake.nios, 3);
		assert_int_equal(rig->fake.ios[0].nbytes, sizes[i]);
		assert_int_equal(rig->fake.ios[1].nbytes, sizes[i]);
		assert_int_equal(rig->fake.ios[2].nbytes, 1);
		assert_false(rig->fake.ios[2].sync);
		rig_close();
	}
}

/* A block smaller than the file's unit of direct I/O is rounded up to that unit. */
TEST(a_block_below_the_unit_of_direct_io_is_one_unit)
{
	struct nvs_path_info info = {.size = sizeof(info)};
	uint32_t unit;

	rig_open(NULL, OPTIONS(.block_size = 512));
	DO(nvs_path_get_info(path, &info, &rig->error));
	unit = info.dio_offset_align;
	need_direct(PAGE);
	DO(move(NVS_WRITE, rig->data, 4 * PAGE, 0));
	assert_int_equal(rig->fake.nios, 4);
	fake_forget(&rig->fake);
	DO(move(NVS_READ, rig->data, 4 * PAGE, 0));
	assert_int_equal(rig->fake.nios, 4 * PAGE / unit);
}

TEST(a_file_of_units_writes_each_unit_direct)
{
	struct transfer transfers[2];
	uint32_t unit;

	rig_open(NULL, OPTIONS(.block_size = 512));
	nvs_file_close(rig->file);
	open_file(NVS_FILE_WRITE | NVS_FILE_UNITS);
	unit = nvs_file_unit(rig->file);
	need_direct(PAGE - 1);
	DO(move(NVS_WRITE, rig->data, 3 * unit, unit));
	assert_int_equal(rig->fake.nios, 3);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(rig->fake.ios[i].nbytes, unit);
		assert_int_equal(rig->fake.ios[i].offset, (1 + i) * unit);
		assert_false(rig->fake.ios[i].sync);
	}
	transfers[0] = transfer_of(NVS_WRITE, rig->data, unit - 1, 0);
	transfers[1] = transfer_of(NVS_WRITE, rig->data, unit, 1);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(
			submit_all(rig->aio, &(struct transfer *){&transfers[i]}, 1, &rig->error),
			-EINVAL);
	assert_int_equal(rig->fake.nios, 3);
	DO(move(NVS_READ, rig->data, unit - 1, 1));
}

/* Each worker has exactly queue_depth I/Os in flight. */
static void fill_queues(void)
{
	const unsigned depth = rig->options->queue_depth, workers = stats_of().workers;
	struct transfer transfer = transfer_of(NVS_WRITE, rig->data,
					       (uint64_t)PAGE * depth * workers * 3, 0);
	unsigned of_queue[FAKE_QUEUES_MAX] = {0};

	assert_int_equal(workers, rig->options->thread_count ?: 1);
	fake_hold(&rig->fake);
	start(&transfer);
	assert_true(fake_await_ios(&rig->fake, (uint64_t)depth * workers));
	assert_true(fake_await_waiting(&rig->fake, workers));
	assert_int_equal(rig->fake.nios, depth * workers);
	for (uint64_t i = 0; i < rig->fake.nios; i++)
		of_queue[rig->fake.ios[i].queue]++;
	for (unsigned i = 0; i < workers; i++)
		assert_int_equal(of_queue[i], depth);
	fake_release(&rig->fake, FAKE_ALL);
	DO(finish(&transfer));
	assert_int_equal(rig->fake.nios, depth * workers * 3);
	assert_int_equal(fake_in_flight_max(&rig->fake), depth);
	assert_int_equal(stats_of().inflight_max, depth);
}

TEST(queue_depth_bounds_the_ios_in_flight)
{
	static const unsigned depths[] = {1, 2, 9, 128};

	for (size_t i = 0; i < COUNT(depths); i++)
		on_each_engine(OPTIONS(.queue_depth = depths[i]), fill_queues);
	/* One long transfer is spread over all workers. */
	on_each_engine(OPTIONS(.thread_count = 5, .queue_depth = 4), fill_queues);
}

/* ---- I/Os for each system call: these functions shadow the libraries' ---- */

static unsigned handed_max;
static int submit_status; /* result of the next io_uring_submit, which submits nothing */

static void record_submitted(unsigned n)
{
	if (n > __atomic_load_n(&handed_max, __ATOMIC_RELAXED))
		__atomic_store_n(&handed_max, n, __ATOMIC_RELAXED);
}

int io_submit(io_context_t context, long n, struct iocb **iocbs)
{
	int (*real)(io_context_t, long, struct iocb **) = dlsym(RTLD_NEXT, "io_submit");

	record_submitted((unsigned)n);
	return real(context, n, iocbs);
}

int io_uring_submit(struct io_uring *ring)
{
	int (*real)(struct io_uring *) = dlsym(RTLD_NEXT, "io_uring_submit");
	int status = __atomic_exchange_n(&submit_status, 0, __ATOMIC_RELAXED);

	if (status)
		return status;
	record_submitted(io_uring_sq_ready(ring));
	return real(ring);
}

int io_uring_submit_and_wait(struct io_uring *ring, unsigned n)
{
	int (*real)(struct io_uring *, unsigned) = dlsym(RTLD_NEXT, "io_uring_submit_and_wait");

	record_submitted(io_uring_sq_ready(ring));
	return real(ring, n);
}

static void submit_each_io_by_itself(void)
{
	handed_max = 0;
	DO(move(NVS_WRITE, rig->data, 32 * PAGE, 0));
	assert_int_equal(stats_of().io[NVS_WRITE].ios, 32);
	assert_int_equal(stats_of().submit_calls, 32);
	assert_int_equal(stats_of().submit_sizes[1], 32);
	assert_true(handed_max <= 1);
}

TEST(single_submit_makes_one_call_per_io)
{
	on_each_engine(OPTIONS(.single_submit = true), submit_each_io_by_itself);
}

/* The I/O is in the ring already: if the worker dropped it, it could complete later. */
TEST(a_submission_call_that_fails_is_made_again)
{
	if (!works(&engine_io_uring))
		skip();
	rig_open(&engine_io_uring, OPTIONS(.single_submit = true));
	__atomic_store_n(&submit_status, -ENOMEM, __ATOMIC_RELAXED);
	DO(move(NVS_WRITE, rig->data, 5 * PAGE, 0));
	assert_int_equal(__atomic_load_n(&submit_status, __ATOMIC_RELAXED), 0);
	assert_file_holds(rig->data, 5 * PAGE, 0);
}

TEST(without_single_submit_ios_are_submitted_in_batches)
{
	for (size_t i = 0; i < COUNT(inners); i++) {
		if (!works(inners[i]))
			continue;
		/* Long ones, because io_uring submits small I/Os a few at a time. */
		rig_open(inners[i], OPTIONS(.block_size = 16 * PAGE));
		handed_max = 0;
		DO(move(NVS_WRITE, rig->data, 32 * 16 * PAGE, 0));
		assert_true(stats_of().submit_calls < 32);
		assert_int_equal(rig->fake.batches[0].n, 8);
		if (inners[i] == &engine_io_uring || inners[i] == &engine_libaio)
			assert_true(handed_max >= 8);
		rig_close();
	}
}

TEST(io_uring_submits_small_ios_a_few_at_a_time)
{
	if (!works(&engine_io_uring))
		SKIP("io_uring does not work here");
	rig_open(&engine_io_uring, OPTIONS(.queue_depth = 32));
	DO(move(NVS_WRITE, rig->data, 32 * PAGE, 0));
	assert_in_range(stats_of().submit_calls, 8, 31);
}

static void drain_before_each_batch(void)
{
	fake_fail_nth(&rig->fake, 3, 1, -EINTR);
	fake_fail_nth(&rig->fake, 11, 1, PAGE / 2);
	DO(move(NVS_WRITE, rig->data, 64 * PAGE, 0));
	DO(move(NVS_READ, rig->data, 64 * PAGE, 0));
	assert_int_equal(fake_in_flight_max(&rig->fake), 8);
	assert_int_equal(stats_of().retries, 2);
	for (uint64_t i = 0; i < rig->fake.nbatches; i++)
		assert_int_equal(rig->fake.batches[i].in_flight, 0);
}

TEST(without_overlap_events_the_queue_is_drained_before_it_is_filled)
{
	on_each_engine(OPTIONS(.drain = true), drain_before_each_batch);
}

/* Opening a file wakes the worker, which then must not submit the second transfer. */
TEST(without_overlap_events_nothing_joins_an_io_in_flight)
{
	struct transfer first, second;
	struct nvs_file *file;

	rig_open(NULL, OPTIONS(.drain = true));
	first = transfer_of(NVS_WRITE, rig->data, PAGE, 0);
	second = transfer_of(NVS_WRITE, rig->data, PAGE, PAGE);
	start_held(&first);
	assert_true(fake_await_waiting(&rig->fake, 1));
	start(&second);
	DO(nvs_file_open(rig->aio, path, 0, &file, &rig->error));
	assert_true(fake_await_waiting(&rig->fake, 1));
	assert_int_equal(rig->fake.nios, 1);
	release_and_finish(&first, &second);
	nvs_file_close(file);
}

TEST(with_overlap_events_the_queue_is_filled_while_ios_are_in_flight)
{
	struct transfer transfer;

	rig_open(NULL, OPTIONS(.queue_depth = 4));
	transfer = transfer_of(NVS_WRITE, rig->data, 12 * PAGE, 0);
	fake_hold(&rig->fake);
	start(&transfer);
	for (unsigned done = 0; done < 8; done++) {
		assert_true(fake_await_ios(&rig->fake, 4 + done));
		assert_true(fake_await_waiting(&rig->fake, 1));
		assert_int_equal(rig->fake.nios, 4 + done);
		fake_release(&rig->fake, 1);
	}
	assert_true(fake_await_ios(&rig->fake, 12));
	fake_release(&rig->fake, FAKE_ALL);
	DO(finish(&transfer));
	for (uint64_t i = 1; i < rig->fake.nbatches; i++)
		assert_int_equal(rig->fake.batches[i].in_flight, 3);
}

TEST(writes_have_every_fourth_io_while_reads_are_queued)
{
	struct transfer transfers[4], *all[4];

	/* A batch is grouped by direction, so one I/O at a time shows the order of claims. */
	rig_open(NULL, OPTIONS(.queue_depth = 1));
	for (unsigned i = 0; i < 4; i++) {
		transfers[i] = transfer_of(i < 2 ? NVS_WRITE : NVS_READ,
					   rig->data + (size_t)i * 8 * PAGE, 8 * PAGE,
					   8ull * i * PAGE);
		all[i] = &transfers[i];
	}
	DO(submit_all(rig->aio, all, 4, &rig->error));
	/* A wait would promote them one by one. */
	for (unsigned i = 0; i < 4; i++)
		while (!is_completed(all[i]))
			sched_yield();
	DO(await_all(rig->aio, all, 4, -1, &rig->error));
	assert_int_equal(rig->fake.nios, 32);
	for (unsigned i = 0; i < 32; i++)
		assert_int_equal(rig->fake.ios[i].write, i % 4 == 3 || i > 20);
}

/* ---- Registered memory and files ---- */

static int slot_of_io(char *data, size_t nbytes)
{
	fake_forget(&rig->fake);
	DO(move(NVS_WRITE, data, nbytes, 0));
	for (uint64_t i = 1; i < rig->fake.nios; i++)
		assert_int_equal(rig->fake.ios[i].buffer_slot >= 0,
				 rig->fake.ios[0].buffer_slot >= 0);
	return rig->fake.ios[0].buffer_slot;
}

TEST(ios_name_the_slot_of_registered_memory)
{
	uint64_t before;

	for (size_t i = 0; i < COUNT(inners); i++) {
		bool can = !inners[i] || inners[i]->set_buffer;

		if (!works(inners[i]))
			continue;
		/* The kernel may still count the rings of earlier tests against the memlock limit.
		 */
		if (inners[i] && can && memlock_limit() < 64ull << 20) {
			print_message("the memlock limit is too low for %s\n", inners[i]->name);
			continue;
		}
		rig_open(inners[i], OPTIONS(.thread_count = 2));
		before = stats_of().registered_bytes;
		assert_int_equal(slot_of_io(rig->data, 32 * PAGE), -1);
		assert_int_equal(nvs_aio_register_memory(rig->aio, rig->data, DATA_BYTES / 2), 0);
		assert_int_equal(stats_of().registered_bytes - before, can ? DATA_BYTES / 2 : 0);
		assert_int_equal(slot_of_io(rig->data + PAGE, 32 * PAGE) >= 0, can);
		assert_int_equal(slot_of_io(rig->data + DATA_BYTES / 2, 32 * PAGE), -1);
		nvs_aio_unregister_memory(rig->aio, rig->data);
		assert_int_equal(stats_of().registered_bytes, before);
		assert_int_equal(slot_of_io(rig->data, 32 * PAGE), -1);
		rig_close();
	}
}

TEST(each_registration_of_memory_is_ended_by_itself)
{
	/* The longest is ended first. */
	static const unsigned pages[] = {4, 6, 8, 6}, sums[] = {24, 16, 10, 4};
	uint64_t before;

	rig_open(NULL, OPTIONS(.thread_count = 2));
	before = stats_of().registered_bytes;
	for (size_t i = 0; i < COUNT(pages); i++)
		assert_int_equal(nvs_aio_register_memory(rig->aio, rig->data, pages[i] * PAGE), 0);
	fake_refuse_buffers(&rig->fake, -ENOMEM);
	assert_int_equal(nvs_aio_register_memory(rig->aio, rig->data, 9 * PAGE), -ENOMEM);
	fake_refuse_buffers(&rig->fake, 0);
	for (size_t i = 0; i < COUNT(sums); i++) {
		assert_int_equal(stats_of().registered_bytes - before, sums[i] * PAGE);
		assert_true(slot_of_io(rig->data, 4 * PAGE) >= 0);
		nvs_aio_unregister_memory(rig->aio, rig->data);
	}
	assert_int_equal(stats_of().registered_bytes, before);
	assert_int_equal(slot_of_io(rig->data, PAGE), -1);
	nvs_aio_unregister_memory(rig->aio, rig->data);
}

TEST(memory_to_register_is_aligned_and_not_empty_and_ends_within_the_address_space)
{
	void *last_page = (void *)(UINTPTR_MAX - PAGE + 1);
	uint64_t before;

	rig_open(NULL, OPTIONS(.thread_count = 2));
	before = stats_of().registered_bytes;
	assert_int_equal(nvs_aio_register_memory(rig->aio, last_page, (size_t)2 * PAGE), -EINVAL);
	assert_int_equal(nvs_aio_register_memory(rig->aio, rig->data, SIZE_MAX), -EINVAL);
	assert_int_equal(nvs_aio_register_memory(rig->aio, rig->data + 512, PAGE), -EINVAL);
	assert_int_equal(nvs_aio_register_memory(rig->aio, rig->data, 0), -EINVAL);
	assert_int_equal(nvs_aio_register_memory(rig->aio, NULL, PAGE), -EINVAL);
	assert_int_equal(stats_of().registered_bytes, before);
}

/* The fake engine aborts if an I/O leaves the region that it names. */
TEST(no_io_crosses_the_end_of_a_region)
{
	rig_open(NULL, OPTIONS(.block_size = 16 * PAGE));
	assert_int_equal(nvs_aio_register_memory(rig->aio, rig->data, 10 * PAGE), 0);
	assert_int_equal(nvs_aio_register_memory(rig->aio, rig->data + 10 * PAGE, 3 * PAGE), 0);
	DO(move(NVS_WRITE, rig->data + 3 * PAGE, 26 * PAGE, 0));
	assert_int_equal(rig->fake.nios, 3);
	assert_int_equal(rig->fake.ios[0].nbytes, 7 * PAGE);
	assert_int_equal(rig->fake.ios[1].nbytes, 3 * PAGE);
	assert_int_equal(rig->fake.ios[2].nbytes, 16 * PAGE);
	assert_true(rig->fake.ios[0].buffer_slot >= 0 && rig->fake.ios[1].buffer_slot >= 0);
	assert_int_equal(rig->fake.ios[2].buffer_slot, -1);
	assert_file_holds(rig->data + 3 * PAGE, 26 * PAGE, 0);
}

TEST(more_than_a_gib_is_registered_in_parts)
{
	const uint64_t nbytes = 5ull << 29, before_bytes = 48u << 20;
	char *data = map_pages(nbytes, PROT_NONE);
	bool seen[ENGINE_BUFFERS] = {false};
	uint64_t before, sum = 0;
	unsigned slots = 0;

	rig_open(NULL, OPTIONS(.block_size = before_bytes));
	before = stats_of().registered_bytes;
	rig->fake.dry = true;
	assert_int_equal(nvs_aio_register_memory(rig->aio, data, nbytes), 0);
	assert_int_equal(stats_of().registered_bytes - before, nbytes);
	DO(move(NVS_WRITE, data, nbytes, 0));
	for (uint64_t i = 0; i < rig->fake.nios; i++) {
		assert_true(rig->fake.ios[i].buffer_slot >= 0);
		slots += !seen[rig->fake.ios[i].buffer_slot];
		seen[rig->fake.ios[i].buffer_slot] = true;
		sum += rig->fake.ios[i].nbytes;
	}
	assert_int_equal(slots, 3);
	assert_int_equal(sum, nbytes);
	nvs_aio_unregister_memory(rig->aio, data);
	assert_int_equal(stats_of().registered_bytes, before);
	rig_close();
	munmap(data, nbytes);
}

TEST(memory_refused_by_the_engine_moves_unregistered)
{
	uint64_t before;

	rig_open(NULL, OPTIONS(.thread_count = 2));
	before = stats_of().registered_bytes;
	assert_string_equal(stats_of().buffers_reason, "");
	fake_refuse_buffers(&rig->fake, -ENOMEM);
	assert_int_equal(nvs_aio_register_memory(rig->aio, rig->data, DATA_BYTES), -ENOMEM);
	assert_int_equal(stats_of().registered_bytes, before);
	assert_string_not_equal(stats_of().buffers_reason, "");
	assert_int_equal(slot_of_io(rig->data, 32 * PAGE), -1);
	assert_file_holds(rig->data, 32 * PAGE, 0);
	/* If a slot kept the refused region, the next synchronization would register it. */
	fake_refuse_buffers(&rig->fake, 0);
	nvs_file_close(rig->file);
	open_file(NVS_FILE_WRITE);
	assert_int_equal(slot_of_io(rig->data, 32 * PAGE), -1);
	assert_int_equal(nvs_aio_register_memory(rig->aio, rig->data, DATA_BYTES), 0);
	assert_true(slot_of_io(rig->data, 32 * PAGE) >= 0);
}

TEST(a_region_beyond_the_table_is_refused)
{
	unsigned n = 0;
	int rc;

	rig_open(NULL, OPTIONS());
	do
		rc = nvs_aio_register_memory(rig->aio, rig->data + (size_t)n * PAGE, PAGE);
	while (!rc && ++n < DATA_BYTES / PAGE);
	assert_int_equal(rc, -ENOSPC);
	assert_int_equal(n, ENGINE_BUFFERS - 1);
	nvs_aio_unregister_memory(rig->aio, rig->data + 5 * PAGE);
	assert_int_equal(nvs_aio_register_memory(rig->aio, rig->data + (size_t)n * PAGE, PAGE), 0);
	assert_true(slot_of_io(rig->data + (size_t)n * PAGE, PAGE) >= 0);
	assert_int_equal(slot_of_io(rig->data + 5 * PAGE, PAGE), -1);
}

struct registration {
	struct nvs_aio *aio;
	char *data;
	bool add; /* else remove it */
	int rc;
};

static void *do_register(void *arg)
{
	struct registration *one = arg;

	if (one->add)
		one->rc = nvs_aio_register_memory(one->aio, one->data, 8 * PAGE);
	else
		nvs_aio_unregister_memory(one->aio, one->data);
	return NULL;
}

/* Waits until the slot's region begins at `data`; the workers may not have registered it yet. */
static void await_region(struct nvs_aio *aio, unsigned slot, const char *data)
{
	const char *is;

	do {
		sched_yield();
		pthread_mutex_lock(&aio->lock);
		is = aio->regions[slot].data;
		pthread_mutex_unlock(&aio->lock);
	} while (is != data);
}

/*
 * While the worker registers one region, the slot of another is reused for a third. The fake engine
 * aborts if an I/O in the third names the slot before the worker has registered it.
 */
TEST(no_io_names_a_reused_slot_too_early)
{
	pthread_t threads[3];
	struct registration changes[3];
	struct transfer transfer;

	rig_open(NULL, OPTIONS(.queue_depth = 1));
	assert_int_equal(nvs_aio_register_memory(rig->aio, rig->data, 8 * PAGE), 0);
	for (unsigned i = 0; i < 3; i++)
		changes[i] = (struct registration){
			.aio = rig->aio, .data = rig->data + (size_t)i * 8 * PAGE, .add = i > 0};
	fake_hold_buffers(&rig->fake, true);
	pthread_create(&threads[1], NULL, do_register, &changes[1]);
	assert_true(fake_await_registering(&rig->fake, 1));
	pthread_create(&threads[0], NULL, do_register, &changes[0]);
	await_region(rig->aio, 1, NULL);
	pthread_create(&threads[2], NULL, do_register, &changes[2]);
	await_region(rig->aio, 1, changes[2].data);
	transfer = transfer_of(NVS_WRITE, changes[2].data, PAGE, 0);
	start(&transfer);
	fake_hold_buffers(&rig->fake, false);
	for (unsigned i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	DO(finish(&transfer));
	assert_true(changes[1].rc == 0 && changes[2].rc == 0);
}

/* An I/O from `data` that must be retried, while its slot gets `nbytes` of other memory. */
static void retry_beside_another_region(char *other, size_t nbytes, int result)
{
	struct transfer transfer = transfer_of(NVS_WRITE, rig->data, 8 * PAGE, 0);

	fake_forget(&rig->fake);
	fake_fail_nth(&rig->fake, 0, 1, result);
	assert_int_equal(nvs_aio_register_memory(rig->aio, rig->data, 8 * PAGE), 0);
	start_held(&transfer);
	assert_true(rig->fake.ios[0].buffer_slot >= 0);
	nvs_aio_unregister_memory(rig->aio, rig->data);
	assert_int_equal(nvs_aio_register_memory(rig->aio, other, nbytes), 0);
	/* The fake engine aborts if the retried I/O names a slot without its memory. */
	fake_release(&rig->fake, FAKE_ALL);
	DO(finish(&transfer));
	assert_int_equal(rig->fake.nios, 2);
	assert_int_equal(rig->fake.ios[1].buffer_slot, -1);
	assert_file_holds(rig->data, 8 * PAGE, 0);
	nvs_aio_unregister_memory(rig->aio, other);
}

TEST(a_retried_io_names_no_slot_reused_for_other_memory)
{
	rig_open(NULL, OPTIONS(.block_size = 8 * PAGE));
	retry_beside_another_region(rig->data + 8 * PAGE, 8 * PAGE, -EAGAIN);
	retry_beside_another_region(rig->data + 8 * PAGE, 8 * PAGE, -EINTR);
	retry_beside_another_region(rig->data + 8 * PAGE, 8 * PAGE, 2 * PAGE);
	/* The same address, registered again with another length. */
	retry_beside_another_region(rig->data, 4 * PAGE, -EAGAIN);
}

TEST(files_beyond_the_table_work_without_a_slot)
{
	struct nvs_file *files[ENGINE_FILES];

	rig_open(NULL, OPTIONS());
	DO(move(NVS_WRITE, rig->data, PAGE, 0));
	assert_true(rig->fake.ios[0].file_slot >= 0);
	for (unsigned i = 0; i < ENGINE_FILES; i++) {
		files[i] = rig->file;
		open_file(NVS_FILE_WRITE | NVS_FILE_BUFFERED);
	}
	fake_forget(&rig->fake);
	DO(move(NVS_WRITE, rig->data + PAGE, PAGE, PAGE));
	assert_int_equal(rig->fake.ios[0].file_slot, -1);
	assert_file_holds(rig->data, 2 * PAGE, 0);
	/* A free slot is reused. */
	nvs_file_close(files[0]);
	nvs_file_close(rig->file);
	open_file(NVS_FILE_WRITE);
	fake_forget(&rig->fake);
	DO(move(NVS_WRITE, rig->data, PAGE, 0));
	assert_true(rig->fake.ios[0].file_slot >= 0);
	for (unsigned i = 1; i < ENGINE_FILES; i++)
		nvs_file_close(files[i]);
}

/* ---- Faults ---- */

static void assert_failed(const struct transfer *transfer, int rc, int status, uint64_t offset)
{
	char number[32];

	snprintf(number, sizeof(number), "offset %" PRIu64 " ", offset);
	assert_int_equal(rc, status);
	assert_int_equal(transfer->status, status);
	assert_int_equal(transfer->error_offset, offset);
	assert_int_equal(rig->error.code, status);
	assert_int_equal(rig->error.offset, offset);
	assert_says(rig->error.text, path);
	assert_says(rig->error.text, number);
	assert_says(rig->error.text, nvs_strerror(status));
}

TEST(a_failed_io_fails_its_transfer_and_no_other)
{
	static const int statuses[] = {-EIO, -ENOSPC};
	struct transfer transfers[3], *all[3] = {&transfers[0], &transfers[1], &transfers[2]};

	for (size_t i = 0; i < COUNT(inners) * COUNT(statuses); i++) {
		int status = statuses[i % 2];

		if (!works(inners[i / 2]))
			continue;
		rig_open(inners[i / 2], OPTIONS(.queue_depth = 4));
		fake_fail_at(&rig->fake, 37 * PAGE, 1, status);
		submit_adjacent(NVS_WRITE, rig->data + PAGE, 30 * PAGE, all, 3);
		assert_failed(all[1], await_all(rig->aio, all, 3, -1, &rig->error), status,
			      37 * PAGE);
		assert_true(all[0]->status == 0 && all[2]->status == 0);
		assert_file_holds(rig->data + PAGE, 30 * PAGE, 0);
		assert_file_holds(rig->data + 61 * PAGE, 30 * PAGE, 60 * PAGE);
		/* A second submission succeeds. */
		start(all[1]);
		DO(finish(all[1]));
		assert_file_holds(rig->data + PAGE, 90 * PAGE, 0);
		rig_close();
	}
}

TEST(the_rest_of_a_failed_transfer_is_not_submitted)
{
	struct transfer transfer;

	rig_open(NULL, OPTIONS(.queue_depth = 2));
	transfer = transfer_of(NVS_READ, rig->data, 500 * PAGE, 0);
	fake_fail_nth(&rig->fake, 5, 1, -EIO);
	start(&transfer);
	assert_failed(&transfer, finish(&transfer), -EIO, 5 * PAGE);
	assert_true(rig->fake.nios <= 8);
}

TEST(a_short_count_is_continued)
{
	static const int counts[] = {1, 511, 512, 513, 4095, 4096, 4097, 12345};
	char *back = map_pages(64 * PAGE, PROT_READ | PROT_WRITE);

	for (size_t i = 0; i < COUNT(counts) * 2; i++) {
		bool direct = i % 2;
		int count = counts[i / 2];

		/* A direct I/O that ends within its first unit made no progress. */
		if (direct && count < (int)PAGE)
			count += 2 * (int)PAGE;
		rig_open(NULL, OPTIONS(.block_size = 16 * PAGE, .buffered = !direct));
		fake_fail_nth(&rig->fake, 1, 40, count);
		DO(move(NVS_WRITE, rig->data + 3, 50 * PAGE + 5, 77));
		assert_file_holds(rig->data + 3, 50 * PAGE + 5, 77);
		fake_forget(&rig->fake);
		fake_fail_nth(&rig->fake, 1, 40, count);
		DO(move(NVS_READ, back + 9, 50 * PAGE + 5, 77));
		assert_memory_equal(back + 9, rig->data + 3, 50 * PAGE + 5);
		assert_true(stats_of().retries > 0);
		rig_close();
	}
	munmap(back, 64 * PAGE);
}

TEST(progress_in_small_steps_is_not_bounded)
{
	rig_open(NULL, OPTIONS(.block_size = 16 * PAGE, .buffered = true));
	fake_fail_nth(&rig->fake, 0, FAKE_LOG_MAX, 100);
	DO(move(NVS_WRITE, rig->data + PAGE, 16 * PAGE, 0));
	assert_true(rig->fake.nios > 6 * RETRIES_MAX);
	/* The bound is on retries without progress; progress resets it. */
	fake_forget(&rig->fake);
	fake_fail_nth(&rig->fake, 0, RETRIES_MAX, -EINTR);
	fake_fail_nth(&rig->fake, RETRIES_MAX, 1, 100);
	fake_fail_nth(&rig->fake, RETRIES_MAX + 1, RETRIES_MAX, -EAGAIN);
	DO(move(NVS_WRITE, rig->data + PAGE, 16 * PAGE, 0));
	assert_file_holds(rig->data + PAGE, 16 * PAGE, 0);
}

TEST(an_io_without_progress_is_retried_up_to_a_bound)
{
	static const int results[] = {-EINTR, -EAGAIN, 0};
	struct transfer transfer;

	for (size_t i = 0; i < COUNT(results); i++) {
		rig_open(NULL, OPTIONS());
		fake_fail_at(&rig->fake, 2 * PAGE, RETRIES_MAX, results[i]);
		DO(move(NVS_WRITE, rig->data + PAGE, 4 * PAGE, 0));
		assert_file_holds(rig->data + PAGE, 4 * PAGE, 0);
		assert_int_equal(stats_of().retries, RETRIES_MAX);
		fake_fail_at(&rig->fake, 2 * PAGE, RETRIES_MAX + 1, results[i]);
		transfer = transfer_of(NVS_WRITE, rig->data, 4 * PAGE, 0);
		start(&transfer);
		assert_failed(&transfer, finish(&transfer), -EIO, 2 * PAGE);
		DO(move(NVS_WRITE, rig->data, 4 * PAGE, 0));
		rig_close();
	}
}

TEST(a_refused_submission_is_retried_up_to_a_bound)
{
	rig_open(NULL, OPTIONS());
	fake_refuse(&rig->fake, RETRIES_MAX, -EAGAIN);
	DO(move(NVS_WRITE, rig->data + PAGE, 4 * PAGE, 0));
	assert_file_holds(rig->data + PAGE, 4 * PAGE, 0);
	fake_refuse(&rig->fake, RETRIES_MAX + 1, -EAGAIN);
	assert_int_equal(move(NVS_WRITE, rig->data, 4 * PAGE, 0), -EIO);
	fake_refuse(&rig->fake, 1, -EBADF);
	assert_int_equal(move(NVS_WRITE, rig->data, 4 * PAGE, 0), -EBADF);
	assert_says(rig->error.text, path);
	DO(move(NVS_WRITE, rig->data, 4 * PAGE, 0));
	assert_file_holds(rig->data, 4 * PAGE, 0);
}

TEST(a_refused_submission_waits_for_ios_in_flight)
{
	struct transfer first, second;

	rig_open(NULL, OPTIONS());
	first = transfer_of(NVS_WRITE, rig->data, PAGE, 0);
	second = transfer_of(NVS_WRITE, rig->data + PAGE, 20 * PAGE, PAGE);
	start_held(&first);
	fake_refuse(&rig->fake, 1, -EAGAIN);
	start(&second);
	release_and_finish(&first, &second);
	assert_file_holds(rig->data, 21 * PAGE, 0);
}

/* ---- Every transfer completes exactly once ---- */

#define MANY	   80
#define MANY_BYTES (12 * PAGE)

struct count {
	struct transfer transfer;
	unsigned completed;
	uint64_t fault; /* offset of the byte whose I/O fails; UINT64_MAX: none */
};

struct counts {
	struct completions *queue;
	unsigned completed;
	struct count all[MANY];
};

static void count_completed(struct counts *counts)
{
	struct transfer *list = completions_take(counts->queue);

	while (list) {
		struct count *count = list->user;

		list = list->state.next;
		count->completed++;
		counts->completed++;
	}
}

/* At random: a failed I/O, a short count, EINTR, none of these, or several. */
static void plan_faults(struct counts *counts, uint64_t *random)
{
	for (unsigned i = 0; i < MANY; i++) {
		uint64_t at = (uint64_t)i * MANY_BYTES + random_below(random, MANY_BYTES);
		unsigned kind = (unsigned)random_below(random, 6);

		counts->all[i].fault = UINT64_MAX;
		if (kind == 0) {
			fake_fail_at(&rig->fake, at, 1, -EIO);
			counts->all[i].fault = at;
		} else if (kind == 1) {
			fake_fail_at(&rig->fake, at, 1 + random_below(random, 9), -EINTR);
		} else if (kind == 2) {
			fake_fail_at(&rig->fake, at, 1, PAGE);
		}
	}
}

static void submit_many(struct counts *counts, enum nvs_direction direction, char *data)
{
	struct transfer *list = NULL;

	for (unsigned i = 0; i < MANY; i++) {
		struct count *count = &counts->all[i];

		count->completed = 0;
		count->transfer = transfer_of(direction, data + (size_t)i * MANY_BYTES, MANY_BYTES,
					      (uint64_t)i * MANY_BYTES);
		count->transfer.user = count;
		count->transfer.state.next = list;
		list = &count->transfer;
	}
	counts->completed = 0;
	aio_submit_list(rig->aio, counts->queue, list);
	while (counts->completed < MANY) {
		assert_int_equal(completions_wait(counts->queue, COMPLETIONS_THREAD, 1,
						  deadline_ns(AWAIT_MS)),
				 0);
		count_completed(counts);
	}
}

static void assert_as_planned(const struct counts *counts, uint32_t block)
{
	for (unsigned i = 0; i < MANY; i++) {
		const struct count *count = &counts->all[i];
		const struct transfer *transfer = &count->transfer;

		assert_int_equal(count->completed, 1);
		if (count->fault == UINT64_MAX) {
			assert_int_equal(transfer->status, 0);
			assert_file_holds(transfer->data, MANY_BYTES, transfer->offset);
		} else {
			assert_int_equal(transfer->status, -EIO);
			assert_int_equal(transfer->error_offset,
					 count->fault - (count->fault - transfer->offset) % block);
		}
	}
}

TEST(every_transfer_completes_exactly_once)
{
	static struct counts counts;
	uint64_t random = random_seed(__func__);

	assert_int_equal(completions_open(&counts.queue), 0);
	for (unsigned round = 0; round < 24; round++) {
		rig_open(NULL,
			 OPTIONS(.thread_count = 1 + round % 4, .queue_depth = 1 + round * 3 % 32,
				 .block_size = (1 + round % 3) * PAGE, .drain = round % 5 == 4));
		rig->fake.newest_first = round % 2;
		plan_faults(&counts, &random);
		submit_many(&counts, NVS_WRITE, rig->data);
		assert_as_planned(&counts, (1 + round % 3) * PAGE);
		fake_forget(&rig->fake);
		plan_faults(&counts, &random);
		submit_many(&counts, NVS_READ, rig->data);
		assert_as_planned(&counts, (1 + round % 3) * PAGE);
		/* A completion after the last one would be counted here. */
		nvs_file_close(rig->file);
		rig->file = NULL;
		nvs_aio_close(rig->aio);
		rig->aio = NULL;
		count_completed(&counts);
		assert_int_equal(counts.completed, MANY);
		rig_close();
	}
	completions_close(counts.queue);
}

/* ---- Waiting ---- */

#define SLEPT_FOR 64

struct sleeper {
	struct transfer **all;
	long sleeps; /* out: voluntary context switches */
};

static long own_sleeps(void)
{
	struct rusage usage;

	assert_int_equal(getrusage(RUSAGE_THREAD, &usage), 0);
	return usage.ru_nvcsw;
}

static void *sleep_until_completed(void *arg)
{
	struct sleeper *sleeper = arg;
	long before = own_sleeps();

	await_all(rig->aio, sleeper->all, SLEPT_FOR, -1, NULL);
	sleeper->sleeps = own_sleeps() - before;
	return NULL;
}

static bool is_awaited(const struct transfer *transfer)
{
	const struct nvs_request *request = transfer->user;
	bool awaited;

	pthread_mutex_lock(&rig->aio->lock);
	awaited = request->transfer.state.awaited;
	pthread_mutex_unlock(&rig->aio->lock);
	return awaited;
}

TEST(a_wait_for_a_batch_sleeps_once)
{
	struct transfer transfers[SLEPT_FOR], *all[SLEPT_FOR];
	struct sleeper sleeper = {.all = all};
	pthread_t thread;

	rig_open(NULL, OPTIONS(.queue_depth = SLEPT_FOR));
	fake_hold(&rig->fake);
	for (unsigned i = 0; i < SLEPT_FOR; i++)
		all[i] = &transfers[i];
	submit_adjacent(NVS_READ, rig->data, PAGE, all, SLEPT_FOR);
	assert_int_equal(pthread_create(&thread, NULL, sleep_until_completed, &sleeper), 0);
	while (!is_awaited(all[SLEPT_FOR - 1]))
		sched_yield();
	for (unsigned i = 0; i < SLEPT_FOR; i++) {
		fake_release(&rig->fake, 1);
		while (!is_completed(all[i]))
			sched_yield();
	}
	pthread_join(thread, NULL);
	assert_true(sleeper.sleeps < SLEPT_FOR / 4);
}

static void submit_while_the_worker_waits(void)
{
	struct transfer first = transfer_of(NVS_WRITE, rig->data, PAGE, 0);
	struct transfer second = transfer_of(NVS_READ, rig->data + PAGE, 3 * PAGE, PAGE);

	start_held(&first);
	assert_true(fake_await_waiting(&rig->fake, 1));
	start(&second);
	assert_true(fake_await_ios(&rig->fake, 4));
	release_and_finish(&first, &second);
}

TEST(a_worker_that_waits_with_room_takes_more)
{
	on_each_engine(OPTIONS(), submit_while_the_worker_waits);
}

/* The workers wait for several of 32 I/Os each, none of which completes. */
static void register_and_open_beside(void)
{
	const uint64_t ios = rig->options->drain ? 16 : 64;
	char *memory = map_pages(PAGE, PROT_READ | PROT_WRITE);
	struct nvs_file *file;
	struct transfer transfer = transfer_of(NVS_WRITE, rig->data, 3 * ios * PAGE, 0);

	fake_hold(&rig->fake);
	start(&transfer);
	assert_true(fake_await_ios(&rig->fake, ios));
	assert_true(fake_await_waiting(&rig->fake, 2));
	assert_int_equal(nvs_aio_register_memory(rig->aio, memory, PAGE), 0);
	DO(nvs_file_open(rig->aio, path, 0, &file, &rig->error));
	nvs_file_close(file);
	nvs_aio_unregister_memory(rig->aio, memory);
	assert_int_equal(rig->fake.allowed, 0);
	fake_release(&rig->fake, FAKE_ALL);
	DO(finish(&transfer));
	munmap(memory, PAGE);
}

TEST(memory_is_registered_and_files_are_opened_while_a_drive_hangs)
{
	on_each_engine(OPTIONS(.thread_count = 2, .queue_depth = 32), register_and_open_beside);
	on_each_engine(OPTIONS(.thread_count = 2, .drain = true), register_and_open_beside);
}

static void *close_aio(void *arg)
{
	(void)arg;
	nvs_aio_close(rig->aio);
	return NULL;
}

TEST(closing_waits_for_ios_in_flight)
{
	struct completions *queue;
	struct transfer transfers[2];
	pthread_t thread;

	rig_open(NULL, OPTIONS(.thread_count = 2));
	/* More than the queues hold: some I/Os are not submitted to the engine yet. */
	transfers[0] = transfer_of(NVS_WRITE, rig->data + PAGE, 30 * PAGE, 0);
	transfers[1] = transfer_of(NVS_WRITE, rig->data + 31 * PAGE, PAGE, 30 * PAGE);
	fake_hold(&rig->fake);
	assert_int_equal(completions_open(&queue), 0);
	transfers[0].state.next = &transfers[1];
	aio_submit_list(rig->aio, queue, &transfers[0]);
	assert_true(fake_await_ios(&rig->fake, 16));
	assert_int_equal(pthread_create(&thread, NULL, close_aio, NULL), 0);
	fake_release(&rig->fake, 3);
	assert_true(fake_await_ios(&rig->fake, 19));
	assert_int_equal(rig->fake.closed, 0);
	fake_release(&rig->fake, FAKE_ALL);
	pthread_join(thread, NULL);
	assert_int_equal(rig->fake.closed, 2);
	for (unsigned i = 0; i < 2; i++) {
		assert_true(is_completed(&transfers[i]));
		assert_int_equal(transfers[i].status, 0);
	}
	(void)completions_take(queue);
	completions_close(queue);
	assert_file_holds(rig->data + PAGE, 31 * PAGE, 0);
	rig->aio = NULL;
}

/* ---- Many threads ---- */

#define THREADS	       8
#define ENOUGH_MEMLOCK (64ull << 20)

static void *register_and_open(void *arg)
{
	char *data = map_pages(16 * PAGE, PROT_READ | PROT_WRITE);

	for (unsigned round = 0; round < 20; round++) {
		struct nvs_file *file;
		struct transfer transfer, *one = &transfer;
		int rc = nvs_aio_register_memory(rig->aio, data, 16 * PAGE);

		/* A low limit is shared with the user's other processes. */
		MUST(!rc || (rc == -ENOMEM && memlock_limit() < ENOUGH_MEMLOCK));
		MUST(!nvs_file_open(rig->aio, path, 0, &file, NULL));
		transfer = (struct transfer){.file = file, .data = data, .nbytes = 16 * PAGE};
		MUST(!submit_all(rig->aio, &one, 1, NULL));
		MUST(!await_all(rig->aio, &one, 1, -1, NULL));
		MUST(!memcmp(data, rig->data, 16 * PAGE));
		nvs_file_close(file);
		nvs_aio_unregister_memory(rig->aio, data);
	}
	munmap(data, 16 * PAGE);
	return arg;
}

static void threads_register_and_open(void)
{
	pthread_t threads[THREADS];

	DO(move(NVS_WRITE, rig->data, 16 * PAGE, 0));
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, register_and_open, NULL), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

/* Slots are reused constantly; no I/O may use a slot's previous region or file. */
TEST(threads_register_memory_and_open_files_at_once)
{
	on_each_engine(OPTIONS(.thread_count = 3), threads_register_and_open);
}

/* ---- Statistics ---- */

/* Valid until the next call: the structure is too large for the stack. */
static const struct nvs_latency *latency_of(enum nvs_direction direction,
					    enum nvs_latency_kind kind)
{
	static struct nvs_latency latency = {.size = sizeof(latency)};

	assert_int_equal(nvs_aio_get_latency(rig->aio, direction, kind, &latency), 0);
	return &latency;
}

static void assert_latencies_are_those_of(enum nvs_direction direction,
					  const struct nvs_io_stats *io)
{
	const struct nvs_latency *latency = latency_of(direction, NVS_LAT);

	assert_int_equal(latency->count, io->ios);
	assert_int_equal(latency->min_ns, io->latency_min_ns);
	assert_int_equal(latency->max_ns, io->latency_max_ns);
	assert_true(nvs_latency_mean(latency) == io->latency_mean_ns);
	assert_true(nvs_latency_stddev(latency) == io->latency_stddev_ns);
	for (int kind = 0; kind < NVS_LATENCY_KINDS; kind++)
		assert_int_equal(latency_of(direction, kind)->count, io->ios);
}

static double sum_of(enum nvs_latency_kind kind)
{
	return latency_of(NVS_WRITE, kind)->sum_ns;
}

TEST(lat_is_slat_and_clat_and_earlier_tries)
{
	rig_open(NULL, OPTIONS());
	DO(move(NVS_WRITE, rig->data, 100 * PAGE, 0));
	assert_true(sum_of(NVS_SLAT) > 0 && sum_of(NVS_CLAT) > 0);
	/* The sums are of integers, and therefore exact. */
	assert_true(sum_of(NVS_SLAT) + sum_of(NVS_CLAT) == sum_of(NVS_LAT));
	nvs_aio_reset_stats(rig->aio);
	fake_fail_at(&rig->fake, 0, RETRIES_MAX, -EAGAIN);
	DO(move(NVS_WRITE, rig->data, PAGE, 0));
	assert_int_equal(latency_of(NVS_WRITE, NVS_SLAT)->count, 1);
	assert_true(sum_of(NVS_SLAT) + sum_of(NVS_CLAT) < sum_of(NVS_LAT));
}

static void assert_counts(const uint64_t counts[NVS_DEPTHS], const uint64_t expected[NVS_DEPTHS])
{
	for (unsigned i = 0; i < NVS_DEPTHS; i++)
		assert_int_equal(counts[i], expected[i]);
}

static uint64_t sum_of_counts(const uint64_t counts[NVS_DEPTHS])
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < NVS_DEPTHS; i++)
		sum += counts[i];
	return sum;
}

TEST(depths_and_sizes_are_counted_in_fios_groups)
{
	static const unsigned batches[] = {1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 128};
	static const uint64_t depth_ios[] = {1,	      2 + 3,   4 + 5,	     8 + 9,
					     16 + 17, 32 + 33, 64 + 65 + 128};
	static const uint64_t sizes[] = {0, 4, 2, 2, 2, 2, 2};
	struct nvs_aio_stats stats = {.size = sizeof(stats)};

	rig_open(NULL, OPTIONS(.queue_depth = 128));
	for (size_t i = 0; i < COUNT(batches); i++)
		DO(move(NVS_WRITE, rig->data, batches[i] * PAGE, 0));
	stats = stats_of();
	assert_counts(stats.depth_ios, depth_ios);
	assert_counts(stats.submit_sizes, sizes);
	assert_int_equal(sum_of_counts(stats.reap_sizes), stats.reap_calls);
}

TEST(the_rest_of_a_partly_taken_batch_is_submitted_and_counted_by_the_call)
{
	static const uint64_t depth_ios[NVS_DEPTHS] = {0, 3, 3, 2};
	static const uint64_t sizes[NVS_DEPTHS] = {RETRIES_MAX, 3};
	struct nvs_aio_stats stats = {.size = sizeof(stats)};

	rig_open(NULL, OPTIONS());
	fake_take(&rig->fake, 3);
	fake_refuse(&rig->fake, RETRIES_MAX, -EAGAIN);
	DO(move(NVS_WRITE, rig->data, 8 * PAGE, 0));
	stats = stats_of();
	assert_counts(stats.depth_ios, depth_ios);
	assert_counts(stats.submit_sizes, sizes);
	assert_file_holds(rig->data, 8 * PAGE, 0);
}

TEST(statistics_add_up_and_can_be_reset)
{
	struct nvs_aio_stats stats = {.size = sizeof(stats)};

	rig_open(NULL, OPTIONS(.thread_count = 2));
	DO(move(NVS_WRITE, rig->data, 33 * PAGE, 0));
	DO(move(NVS_READ, rig->data, 100 * PAGE, 0));
	stats = stats_of();
	assert_string_equal(stats.ioengine, "fake");
	assert_int_equal(stats.io[NVS_WRITE].bytes, 33 * PAGE);
	assert_int_equal(stats.io[NVS_WRITE].ios, 33);
	assert_int_equal(stats.io[NVS_READ].bytes, 100 * PAGE);
	assert_int_equal(stats.io[NVS_READ].ios, 100);
	assert_int_equal(stats.submit_calls, rig->fake.nbatches);
	assert_true(stats.reap_calls > 0 && stats.retries == 0 && stats.bounced_bytes == 0);
	assert_true(stats.bounce_bytes > 0);
	assert_latencies_are_those_of(NVS_READ, &stats.io[NVS_READ]);
	assert_latencies_are_those_of(NVS_WRITE, &stats.io[NVS_WRITE]);
	assert_true((double)stats.io[NVS_READ].latency_min_ns <=
		    stats.io[NVS_READ].latency_mean_ns);
	assert_true((double)stats.io[NVS_READ].latency_max_ns >=
		    stats.io[NVS_READ].latency_mean_ns);
	nvs_aio_reset_stats(rig->aio);
	stats = stats_of();
	assert_int_equal(stats.io[NVS_WRITE].bytes + stats.io[NVS_READ].ios, 0);
	assert_int_equal(stats.submit_calls + stats.reap_calls + stats.inflight_max, 0);
	assert_int_equal(stats.io[NVS_READ].latency_max_ns, 0);
	for (unsigned i = 0; i < NVS_DEPTHS; i++)
		assert_int_equal(stats.depth_ios[i] + stats.submit_sizes[i] + stats.reap_sizes[i],
				 0);
	for (int kind = 0; kind < NVS_LATENCY_KINDS; kind++)
		assert_int_equal(latency_of(NVS_READ, kind)->count, 0);
	DO(move(NVS_READ, rig->data, PAGE, 0));
	assert_int_equal(stats_of().io[NVS_READ].ios, 1);
	assert_int_equal(stats_of().submit_calls, 1);
}

TEST(unaligned_memory_is_counted_as_bounced)
{
	rig_open(NULL, OPTIONS());
	need_direct(UINT32_MAX);
	DO(move(NVS_WRITE, rig->data + 1, 8 * PAGE, 0));
	assert_int_equal(stats_of().bounced_bytes, 8 * PAGE);
	/* The bounce buffer is registered memory. */
	for (uint64_t i = 0; i < rig->fake.nios; i++)
		assert_true(rig->fake.ios[i].buffer_slot >= 0);
}

TEST(an_unaligned_read_without_a_unit_to_read_directly_is_one_io)
{
	rig_open(NULL, OPTIONS(.block_size = 16 * PAGE));
	need_direct(PAGE);

	const uint64_t unit = nvs_file_unit(rig->file);
	const struct {
		uint64_t memory, offset, nbytes, ios, bounced;
	} reads[] = {
		/* Memory and file are misaligned by different amounts, and by the same. */
		{0, 1, 3 * PAGE, 1, 3 * PAGE + unit},
		{3, 1, 3 * PAGE, 1, 3 * PAGE + unit},
		{1, 1, 3 * PAGE, 3, 2 * unit},
		{1, 1, unit, 1, 2 * unit},
	};

	for (size_t i = 0; i < COUNT(reads); i++) {
		uint64_t bounced = stats_of().bounced_bytes;

		fake_forget(&rig->fake);
		DO(move(NVS_READ, rig->data + reads[i].memory, reads[i].nbytes, reads[i].offset));
		assert_int_equal(rig->fake.nios, reads[i].ios);
		assert_int_equal(stats_of().bounced_bytes - bounced, reads[i].bounced);
	}
}

/* A fork must not make the pages of an I/O in flight copy-on-write. */
static int has_no_bounce_buffer(void *arg)
{
	const struct nvs_aio *aio = arg;

	for (unsigned i = 0; i < aio->nworkers; i++)
		EXPECT(msync(aio->workers[i].bounce.data, 4096, MS_ASYNC) && errno == ENOMEM);
	return CHILD_OK;
}

TEST(a_forked_child_has_no_bounce_buffer)
{
	rig_open(NULL, OPTIONS(.thread_count = 3));
	assert_int_equal(in_child(has_no_bounce_buffer, rig->aio), CHILD_OK);
}

/* Whole pages are written directly; parts of a page are written through the page cache. */
TEST(odd_edges_are_written_durably_through_the_page_cache)
{
	rig_open(NULL, OPTIONS());
	need_direct(UINT32_MAX);
	/* Memory and file are misaligned by the same amount, so the middle is aligned in both. */
	DO(move(NVS_WRITE, rig->data + 1, 3 * PAGE, 1));
	assert_int_equal(rig->fake.nios, 4);
	for (uint64_t i = 0; i < 4; i++) {
		const struct fake_io *io = &rig->fake.ios[i];
		bool edge = io->nbytes % PAGE || io->offset % PAGE;

		assert_int_equal(io->sync, edge);
		assert_int_equal(io->fd,
				 edge ? rig->file->members[0].fd : rig->file->members[0].direct_fd);
	}
	assert_int_equal(stats_of().bounced_bytes, 0);
}

static uint32_t waits_for(uint32_t block_size, uint32_t submitted, unsigned io_timeout_ms)
{
	const struct aio_config config = {.block_size = block_size,
					  .queue_depth = 1024,
					  .overlap_events = true,
					  .io_timeout_ms = io_timeout_ms};

	assert_int_equal(worker_wait_for(&config, submitted, false), 1);
	return worker_wait_for(&config, submitted, true);
}

TEST(the_drive_stays_busy_while_a_worker_waits)
{
	const uint32_t mib = 1 << 20;

	assert_int_equal(waits_for(4096, 7, 0), 1);
	assert_int_equal(waits_for(4096, 32, 0), 4);
	assert_int_equal(waits_for(4096, 1024, 0), 128);
	assert_int_equal(waits_for(mib / 4, 32, 0), 8);
	assert_int_equal(waits_for(mib, 15, 0), 3);
	assert_int_equal(waits_for(mib, 16, 0), 8);
	assert_int_equal(waits_for(mib, 32, 0), 16);
	/* No more than 16 MiB, unless a quarter has as much. */
	assert_int_equal(waits_for(mib, 48, 0), 16);
	assert_int_equal(waits_for(mib, 128, 0), 32);
	assert_int_equal(waits_for(mib / 4, 64, 0), 32);
	assert_int_equal(waits_for(mib, 128, 1000), 1);
}

AROUND_TESTS(make_file, remove_file)
