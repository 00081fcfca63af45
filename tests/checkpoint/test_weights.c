/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines of .safetensors files: tensors read where they lie, of any length at any offset; what
 * would write is refused; files that change, and file systems that can do less.
 */
#include <limits.h>
#include <sys/mount.h>

#include "aio/aio.h"
#include "base/json/read.h"
#include "base/numbers.h"
#include "checkpoint/weights_fixture.h"
#include "support/inject.h"
#include "swap/swap_fixture.h"
#include "topo/topo.h"

ONE_ENGINE

#define N 14u

/* Small and large ones, of whole units and not, and empty ones. */
static const uint64_t lengths[N] = {1,	   0,	   4096,  40000, 13,	 300, MIB + 3,
				    65536, 131071, 32767, 32768, 200000, 0,   7};
static struct nvs_tensor *t[N];

static void write_weights(const char *to_path, size_t from, size_t to, size_t padded)
{
	weights_make(to_path, lengths, from, to, padded);
}

static int open_paths(const char *const *paths, size_t n)
{
	int rc = nvs_engine_open_files(&f->engine, &f->config, paths, n, NULL, &f->error);

	if (!rc)
		weights_find(f->engine, t, N);
	return rc;
}

static int open_path(const char *own)
{
	return open_paths(&own, 1);
}

/* The file of most tests, until cleanup(). */
static const char *path;

static void begin(const struct setup *setup)
{
	fixture_init(f, setup);
	path = path_in(f->paths[0], "model.safetensors");
}
#define BEGIN(...) begin(&(const struct setup){__VA_ARGS__})

static void open_padded(size_t padded)
{
	write_weights(path, 0, N, padded);
	OK(f, open_path(path));
}

/* Opens an engine of all tensors in a file. */
#define BEGIN_FILE(...) (BEGIN(__VA_ARGS__), open_padded(0))

static void begin_file(void)
{
	BEGIN_FILE(.place = PLACE_DISK, .pool_bytes = 4 * MIB);
}

static void compare_all(void)
{
	for (size_t i = 0; i < N; i++)
		tensor_compare(f, t[i], i);
}

static void evict_all(void)
{
	OK(f, nvs_tensor_swap_out(f->engine, t, N, &f->error));
}

/* ---- What is read ---- */

TEST(tensors_of_any_length_at_any_offset_are_read_where_they_lie)
{
	static const enum place places[] = {PLACE_DISK, PLACE_TMPFS};

	for (size_t i = 0; i < COUNT(places); i++)
		for (size_t padded = 4000; padded < 4000 + 120; padded += 17) {
			struct nvs_engine_stats stats;
			uint64_t sum;

			BEGIN(.place = places[i], .pool_bytes = 4 * MIB);
			open_padded(padded);
			sum = sum_of_files(path, true);
			compare_all();
			evict_all();
			OK(f, nvs_tensor_prefetch(f->engine, t, N, &f->error) != N);
			compare_all();
			stats = stats_of(f);
			assert_int_equal(stats.tensors, N);
			assert_int_equal(stats.store_bytes, 0);
			assert_int_equal(stats.swapped_out, 0);
			assert_int_equal(stats.swapped_in, 2 * stats.tensor_bytes);
			fixture_shut(f);
			assert_int_equal(sum_of_files(path, true), sum);
			assert_int_equal(entries_of(f->paths[0]), 1);
			fixture_close(f);
		}
}

TEST(a_tensor_has_the_name_type_and_shape_of_the_header)
{
	static const char header[] =
		"{\"q\":{\"dtype\":\"F4\",\"shape\":[2,3,4],\"data_offsets\":[0,12]},"
		"\"scale\":{\"dtype\":\"F8_E8M0\",\"shape\":[],\"data_offsets\":[12,13]}}";
	struct nvs_stored_tensor stored = {.size = sizeof(stored)};
	struct nvs_tensor_info info;

	BEGIN(.pool_bytes = MIB);
	weights_file(path, header, 0, "0123456789ab!", 13);
	OK(f, open_path(path));
	t[0] = nvs_tensor_find(f->engine, "q");
	info = info_of(f, t[0]);
	assert_int_equal(info.dtype, NVS_F4);
	assert_int_equal(info.numel, 24);
	assert_int_equal(info.nbytes, 12);
	assert_int_equal(info.ndim, 3);
	assert_int_equal(info.shape[2], 4);
	assert_int_equal(info.state, NVS_ON_DRIVE);
	assert_int_equal(nvs_engine_get_stored(f->engine, 1, &stored), 0);
	assert_string_equal(stored.name, "scale");
	assert_int_equal(stored.dtype, NVS_F8_E8M0);
	assert_int_equal(stored.ndim, 0);
	assert_int_equal(nvs_engine_get_stored(f->engine, 2, &stored), -ENOENT);
	tensors_pin(f, t, 1);
	assert_memory_equal(nvs_tensor_data(t[0]), "0123456789ab", 12);
	OK(f, sole_release(f->engine, t, 1, NVS_CLEAN, &f->error));
}

/* All but the last unit of a file, which may end in the middle of it. */
TEST(large_tensors_are_read_directly_into_the_pool)
{
	uint64_t small = 0;

	begin_file();
	if (!stats_of(f).direct)
		SKIP("no direct I/O on this file system");
	for (size_t i = 0; i < N; i++)
		small += lengths[i] < 32768 ? lengths[i] : 0;
	for (size_t i = 0; i < N; i++)
		OK(f, weights_read(f->engine, t[i], &f->error));
	/* Small ones begin in the middle of a unit. */
	assert_true(stats_of(f).aio.bounced_bytes <= small + 65536);
	compare_all();
}

/* Of the drives below a file, the largest, and at least 4096 bytes. */
static uint64_t physical_block(void)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char names[DEVICES_MAX][64];
	unsigned n = path_devices(fd, names);
	uint64_t block = 4096;

	assert_true(fd >= 0);
	for (unsigned i = 0; i < n; i++)
		block = max_u64(block, device_attribute(names[i], "queue/physical_block_size", 1));
	close(fd);
	return block;
}

TEST(a_tensor_is_read_in_whole_physical_blocks_and_by_an_io_for_each_block_size)
{
	/* The last one is longer than what is read behind the one before it. */
	static const uint64_t sizes[] = {100, 65536, 300, 3 * 65536, MIB + 3, 5, 40000, 20000};
	const uint64_t block_size = 65536;
	struct nvs_tensor *tensors[COUNT(sizes)];
	uint64_t at = 8 + 4001, physical;

	BEGIN(.place = PLACE_DISK, .pool_bytes = 4 * MIB, .block_size = block_size);
	weights_make(path, sizes, 0, COUNT(sizes), 4001);
	OK(f, nvs_engine_open_files(&f->engine, &f->config, &path, 1, NULL, &f->error));
	weights_find(f->engine, tensors, COUNT(sizes));
	physical = physical_block();
	if (!stats_of(f).direct || physical > 16384)
		SKIP("no direct I/O in blocks of 16 KiB or less on this drive");
	for (size_t i = 0; i < COUNT(sizes); at += sizes[i++]) {
		struct nvs_io_stats before = stats_of(f).aio.io[NVS_READ], after;

		OK(f, weights_read(f->engine, tensors[i], &f->error));
		after = stats_of(f).aio.io[NVS_READ];
		after.bytes -= before.bytes;
		after.ios -= before.ios;
		if (sizes[i] < 32768) {
			assert_int_equal(after.ios, 1);
			continue;
		}
		assert_true(after.bytes >= sizes[i] && after.bytes < sizes[i] + 2 * 16384);
		assert_int_equal(after.bytes % physical, 0);
		assert_int_equal(((uintptr_t)nvs_tensor_data(tensors[i]) - at) % physical, 0);
		assert_int_equal(after.ios, (after.bytes + block_size - 1) / block_size);
	}
}

#define SMALL 500u

TEST(small_tensors_that_lie_together_are_read_together)
{
	static struct nvs_tensor *small[SMALL];
	uint64_t hundreds[SMALL];
	struct nvs_engine_stats stats;

	BEGIN(.pool_bytes = 4 * MIB, .max_in_cpu = NONE_STAYS);
	for (size_t i = 0; i < SMALL; i++)
		hundreds[i] = 100;
	weights_make(path, hundreds, 0, SMALL, 0);
	OK(f, nvs_engine_open_files(&f->engine, &f->config, &path, 1, NULL, &f->error));
	weights_find(f->engine, small, SMALL);
	tensors_pin(f, small, SMALL);
	for (size_t i = 0; i < SMALL; i++)
		assert_true(filled(nvs_tensor_data(small[i]), 100, i));
	stats = stats_of(f);
	assert_int_equal(stats.transfers, 1);
	assert_int_equal(stats.swapped_in, SMALL * 100);
	OK(f, sole_release(f->engine, small, SMALL, NVS_CLEAN, &f->error));
	/* Every other one. */
	for (size_t i = 0; i < SMALL / 2; i++)
		small[i] = small[2 * i];
	tensors_pin(f, small, SMALL / 2);
	assert_int_equal(stats_of(f).transfers, 2);
	for (size_t i = 0; i < SMALL / 2; i++)
		assert_true(filled(nvs_tensor_data(small[i]), 100, 2 * i));
	OK(f, sole_release(f->engine, small, SMALL / 2, NVS_CLEAN, &f->error));
}

TEST(parts_and_whole_tensors_are_read_to_external_memory)
{
	static char whole[MIB + 3], row[1000], expected[MIB + 3];
	void *to = whole;
	struct nvs_tensor_range range = {.size = sizeof(range),
					 .tensor = t[6],
					 .offset = 12345,
					 .nbytes = 1000,
					 .data = row};

	begin_file();
	fill(expected, MIB + 3, 6);
	range.tensor = t[6];
	for (int resident = 0; resident < 2; resident++) {
		memset(row, 0, sizeof(row));
		memset(whole, 0, sizeof(whole));
		OK(f, nvs_tensor_read(f->engine, &range, 1, &f->error));
		OK(f, nvs_tensor_wait(f->engine, &t[6], 1, 0, -1, &f->error));
		assert_memory_equal(row, expected + 12345, 1000);
		OK(f, nvs_tensor_swap_in_to(f->engine, &t[6], &to, 1, &f->error));
		OK(f, nvs_tensor_wait(f->engine, &t[6], 1, 0, -1, &f->error));
		assert_memory_equal(whole, expected, MIB + 3);
		OK(f, weights_read(f->engine, t[6], &f->error));
	}
}

TEST(a_random_order_in_a_small_pool_reads_the_right_bytes)
{
	uint64_t seed = seed_of_run(), pin;

	BEGIN_FILE(.place = PLACE_DISK, .pool_bytes = MIB + MIB / 2, .thread_count = 2);
	for (unsigned round = 0; round < at_length(2000, 200); round++) {
		struct nvs_tensor *batch[4];
		size_t n = 1 + below(&seed, 4), all[N];

		for (size_t i = 0; i < N; i++)
			all[i] = i;
		for (size_t i = 0; i < n; i++) {
			size_t j = i + below(&seed, N - i), swapped = all[i];

			all[i] = all[j];
			all[j] = swapped;
			batch[i] = t[all[i]];
		}
		if (!below(&seed, 4))
			OK(f, nvs_tensor_prefetch(f->engine, batch, n, &f->error) < 0);
		if (nvs_tensor_swap_in(f->engine, batch, n, -1, &pin, &f->error) == -ENOBUFS)
			continue;
		OK(f, nvs_tensor_wait(f->engine, batch, n, pin, -1, &f->error));
		for (size_t i = 0; i < n; i++)
			assert_true(filled(nvs_tensor_data(batch[i]), lengths[all[i]], all[i]));
		OK(f, nvs_tensor_release(f->engine, batch, n, pin, NVS_CLEAN, &f->error));
	}
}

TEST(the_plan_of_a_step_reads_ahead)
{
	struct nvs_step_io io = {.size = sizeof(io)};
	uint64_t hits = 0;

	BEGIN_FILE(.place = PLACE_DISK, .pool_bytes = MIB + MIB / 2);
	for (unsigned step = 0; step < 3; step++) {
		OK(f, nvs_engine_step_begin(f->engine, &f->error));
		for (size_t i = 0; i < N; i++) {
			events_await_idle(f->engine);
			/* What the plan has begun to read lands before it is needed. */
			for (size_t j = 0; j < N; j++)
				(void)nvs_tensor_wait(f->engine, &t[j], 1, 0, -1, NULL);
			tensor_compare(f, t[i], i);
		}
		OK(f, nvs_engine_step_end(f->engine, &io, &f->error));
		if (step)
			assert_true(io.hits > hits && io.hits >= N - 2);
		else
			hits = io.hits;
		assert_int_equal(io.written_bytes, 0);
	}
}

/* The events of that category whose names begin so, in a trace; *nbytes: their bytes. */
static unsigned events_of(const struct json_value *events, const char *category, const char *name,
			  uint64_t *nbytes)
{
	unsigned n = 0;

	*nbytes = 0;
	for (const struct json_value *event = events->first; event; event = event->next) {
		const struct json_value *called = json_member(event, "name");
		uint64_t more;

		if (!json_is_string(json_member(event, "cat"), category) ||
		    json_is_string(json_member(event, "ph"), "e") ||
		    strncmp(called->string, name, strlen(name)) != 0)
			continue;
		assert_int_equal(
			json_read_whole(json_member(json_member(event, "args"), "bytes"), &more),
			JSON_WHOLE);
		*nbytes += more;
		n++;
	}
	return n;
}

TEST(reads_of_a_plan_are_in_the_trace_and_nothing_is_written)
{
	struct nvs_step_io io = {.size = sizeof(io)};
	struct nvs_engine_stats stats;
	struct json_document *document;
	const struct json_value *events;
	const char *written;
	uint64_t nbytes, dropped;
	char *text;

	INIT(f, .place = PLACE_DISK, .pool_bytes = MIB + MIB / 2, .max_in_cpu = NONE_STAYS);
	OK(f, nvs_trace_open(&f->config.trace, 100000, &f->error));
	path = path_in(f->paths[0], "model.safetensors");
	written = path_in(f->paths[0], "trace.json");
	write_weights(path, 0, N, 0);
	OK(f, open_path(path));
	for (unsigned step = 0; step < 3; step++) {
		OK(f, nvs_engine_step_begin(f->engine, &f->error));
		compare_all();
		OK(f, nvs_engine_step_end(f->engine, &io, &f->error));
		assert_int_equal(io.written_bytes + io.drive_written_bytes, 0);
	}
	events_await_idle(f->engine);
	stats = stats_of(f);
	assert_true(stats.swapped_in > 2 * MIB);
	assert_int_equal(
		stats.swapped_out + stats.drive_written_bytes + stats.aio.io[NVS_WRITE].bytes, 0);
	OK(f, nvs_trace_write(f->config.trace, written, &dropped, &f->error));
	assert_int_equal(dropped, 0);
	text = file_text(written);
	OK(f, json_parse(&document, text, strlen(text), written, SIZE_MAX, &f->error));
	events = json_member(json_root(document), "traceEvents");
	for (size_t i = 0; i < N; i++) {
		char name[24];

		/* t1 is no t10. */
		snprintf(name, sizeof(name), "read t%zu", i);
		if (lengths[i] && i != 1)
			assert_true(events_of(events, "tensor", name, &nbytes) > 0);
	}
	events_of(events, "tensor", "read ", &nbytes);
	assert_int_equal(nbytes, stats.swapped_in);
	assert_true(events_of(events, "io", "read", &nbytes) > 0 && nbytes > 2 * MIB);
	assert_int_equal(events_of(events, "tensor", "write", &nbytes), 0);
	assert_int_equal(events_of(events, "io", "write", &nbytes), 0);
	json_free(document);
	free(text);
	fixture_shut(f);
	nvs_trace_close(f->config.trace);
}

/* ---- Rows ---- */

#define EXPERTS	     16u
#define EXPERT_BYTES (24 * KIB + 4)

/* Opens a file of experts, of 3 x 4 U16 and more, behind a small tensor; and registers rows. */
static struct nvs_tensor *begin_experts(uint64_t expert_bytes)
{
	char *data = malloc(EXPERTS * expert_bytes + 7), header[256];

	assert_non_null(data);
	BEGIN(.place = PLACE_DISK, .pool_bytes = MIB);
	snprintf(header, sizeof(header),
		 "{\"gate\":{\"dtype\":\"U8\",\"shape\":[7],\"data_offsets\":[0,7]},"
		 "\"experts\":{\"dtype\":\"U16\",\"shape\":[%u,2,%" PRIu64
		 "],\"data_offsets\":[7,%" PRIu64 "]}}",
		 EXPERTS, expert_bytes / 4, 7 + EXPERTS * expert_bytes);
	for (size_t i = 0; i < EXPERTS; i++)
		fill(data + 7 + i * expert_bytes, expert_bytes, i);
	weights_file(path, header, 0, data, EXPERTS * expert_bytes + 7);
	free(data);
	OK(f, open_path(path));
	return nvs_tensor_find(f->engine, "experts");
}

static struct nvs_tensor *rows_of(struct nvs_tensor *tensor, uint64_t first, uint64_t count)
{
	const struct nvs_tensor_rows rows = {
		.size = sizeof(rows), .tensor = tensor, .first = first, .count = count};
	struct nvs_tensor *made;

	OK(f, nvs_tensor_register_rows(f->engine, &rows, 1, &made, &f->error));
	return made;
}

TEST(rows_of_a_tensor_are_read_alone)
{
	static const uint64_t sizes[] = {8, EXPERT_BYTES, 96 * KIB + 12};

	for (size_t k = 0; k < COUNT(sizes); k++) {
		struct nvs_tensor *experts = begin_experts(sizes[k]), *three, *last[2];
		struct nvs_tensor_info info;

		three = rows_of(experts, 3, 1);
		info = info_of(f, three);
		assert_string_equal(info.name, "experts[3:4]");
		assert_ptr_equal(nvs_tensor_find(f->engine, "experts[3:4]"), three);
		assert_int_equal(info.ndim, 3);
		assert_int_equal(info.shape[0], 1);
		assert_int_equal(info.shape[2], sizes[k] / 4);
		assert_int_equal(info.nbytes, sizes[k]);
		tensor_compare(f, three, 3);
		assert_int_equal(stats_of(f).swapped_in, sizes[k]);
		STATE(f, experts, NVS_ON_DRIVE, false, 0);
		last[0] = rows_of(experts, 14, 2);
		last[1] = rows_of(last[0], 1, 1);
		tensors_pin(f, last, 2);
		assert_true(filled((char *)nvs_tensor_data(last[0]) + sizes[k], sizes[k], 15));
		assert_true(filled(nvs_tensor_data(last[1]), sizes[k], 15));
		OK(f, sole_release(f->engine, last, 2, NVS_CLEAN, &f->error));
		OK(f, nvs_tensor_forget(f->engine, last, 2, &f->error));
		assert_null(nvs_tensor_find(f->engine, "experts[14:16]"));
		assert_int_equal(stats_of(f).tensors, 3);
		fixture_close(f);
	}
}

TEST(rows_that_a_tensor_has_not_are_refused_and_none_is_registered)
{
	static const char header[] =
		"{\"q\":{\"dtype\":\"F4\",\"shape\":[4,3],\"data_offsets\":[0,6]},"
		"\"s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[6,7]}}";
	struct nvs_tensor *made[2] = {NULL}, *mine;
	struct nvs_tensor_rows rows[2];

	BEGIN(.pool_bytes = MIB);
	weights_file(path, header, 0, "1234567", 7);
	OK(f, open_path(path));
	t[0] = nvs_tensor_find(f->engine, "q");
	rows[0] = rows[1] = (struct nvs_tensor_rows){
		.size = sizeof(rows[0]), .tensor = t[0], .first = 2, .count = 2};
#define REFUSED_ROWS(code, words) FAILS(f, code, words, nvs_tensor_register_rows, rows, 2, made)
	REFUSED_ROWS(-EEXIST, "q[2:4] is registered already");
	rows[1].count = 3;
	REFUSED_ROWS(-EINVAL, "3 rows from row 2");
	rows[1].count = 0;
	REFUSED_ROWS(-EINVAL, "0 rows from row 2");
	rows[1].count = 1;
	REFUSED_ROWS(-EINVAL, "begin or end within a byte");
	rows[1].count = UINT64_MAX;
	REFUSED_ROWS(-EINVAL, "rows from row 2");
	rows[1].tensor = nvs_tensor_find(f->engine, "s");
	REFUSED_ROWS(-EINVAL, "s is a scalar");
	rows[1].tensor = NULL;
	REFUSED_ROWS(-EINVAL, "NULL");
	assert_int_equal(stats_of(f).tensors, 2);
	assert_null(nvs_tensor_find(f->engine, "q[2:4]"));
	rows[0].name = "mine";
	OK(f, nvs_tensor_register_rows(f->engine, rows, 1, made, &f->error));
	mine = nvs_tensor_find(f->engine, "mine");
	assert_ptr_equal(made[0], mine);
	tensors_pin(f, &mine, 1);
	assert_memory_equal(nvs_tensor_data(mine), "456", 3);
	OK(f, sole_release(f->engine, &mine, 1, NVS_CLEAN, &f->error));
	fixture_shut(f);
	OK(f, fixture_reopen(f));
	rows[0].tensor = tensor_add(f, "a", 100);
	FAILS(f, -ENOTSUP, "nvs_engine_open_files", nvs_tensor_register_rows, rows, 1, made);
}

TEST(the_plan_reads_rows_ahead_and_no_others)
{
	struct nvs_tensor *experts = begin_experts(96 * KIB + 12), *used[12];
	struct nvs_step_io io = {.size = sizeof(io)};

	for (size_t i = 0; i < COUNT(used); i++)
		used[i] = rows_of(experts, i, 1);
	for (unsigned step = 0; step < 2; step++) {
		OK(f, nvs_engine_step_begin(f->engine, &f->error));
		for (size_t i = 0; i < COUNT(used); i++) {
			for (size_t j = 0; j < COUNT(used); j++)
				(void)nvs_tensor_wait(f->engine, &used[j], 1, 0, -1, NULL);
			tensor_compare(f, used[i], i);
		}
		OK(f, nvs_engine_step_end(f->engine, &io, &f->error));
		assert_true(step ? io.hits >= 8 : !io.hits);
	}
	STATE(f, experts, NVS_ON_DRIVE, false, 0);
}

/* ---- What is refused ---- */

TEST(what_would_write_is_refused_with_a_remedy)
{
	const struct nvs_tensor_spec spec = U8_TENSOR("new", 10);
	const void *from = lengths;
	struct nvs_tensor_range range = {.size = sizeof(range), .nbytes = 1, .data = &range};
	uint64_t pin, sum;
	struct nvs_tensor *made;

	begin_file();
	sum = sum_of_files(path, true);
#define REFUSED(call) expect_error(f, call, -EROFS, "import them into the store of another engine")
	REFUSED(nvs_tensor_pin(f->engine, t, 1, -1, &pin, &f->error));
	REFUSED(nvs_tensor_register(f->engine, &spec, 1, &made, &f->error));
	REFUSED(nvs_tensor_rename(f->engine, t[0], "new", &f->error));
	REFUSED(nvs_tensor_forget(f->engine, t, 1, &f->error));
	REFUSED(nvs_tensor_swap_out_from(f->engine, t, &from, 1, &f->error));
	range.tensor = t[0];
	REFUSED(nvs_tensor_write(f->engine, &range, 1, -1, &f->error));
	REFUSED(nvs_engine_commit(f->engine, &f->error));
	REFUSED(nvs_engine_set_note(f->engine, "x", 1, &f->error));
	OK(f, nvs_tensor_swap_in(f->engine, t, 1, -1, &pin, &f->error));
	OK(f, nvs_tensor_wait(f->engine, t, 1, pin, -1, &f->error));
	REFUSED(nvs_tensor_release(f->engine, t, 1, pin, NVS_DIRTY, &f->error));
	OK(f, nvs_tensor_release(f->engine, t, 1, pin, NVS_CLEAN, &f->error));
	assert_int_equal(nvs_engine_generation(f->engine), 0);
	compare_all();
	fixture_shut(f);
	assert_int_equal(sum_of_files(path, true), sum);
}

TEST(files_that_are_no_weights_are_refused_when_the_engine_is_opened)
{
	const char *none = NULL, *twice[2];

	BEGIN(.pool_bytes = MIB);
	expect_error(f, open_path(path), -ENOENT, "model.safetensors");
	expect_error(f, open_path(f->paths[0]), -ENOENT, "has no model.safetensors");
	weights_file(path, "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 0,
		     "123", 3);
	expect_error(f, open_path(path), -EINVAL, "tensor a: its data ends 4 bytes");
	write_weights(path, 0, N, 0);
	twice[0] = twice[1] = path;
	expect_error(f, open_paths(twice, 2), -EINVAL, "t0");
	expect_error(f, open_paths(&none, 1), -EINVAL, "paths[0] is NULL");
	expect_error(f, open_paths(twice, 0), -EINVAL, "no paths");
	assert_null(f->engine);
}

TEST(tensors_whose_names_are_refused_are_counted_in_the_log_by_their_file)
{
	BEGIN(.pool_bytes = MIB);
	weights_file(path,
		     "{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
		     "\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]},"
		     "\"c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
		     0, "123", 3);
	OK(f, open_path(path));
	assert_non_null(nvs_tensor_find(f->engine, "c"));
	assert_says(f->log, path);
	assert_says(f->log, "2 of its tensors are left out");
}

/* ---- Several files ---- */

/* Both files have small tensors there. */
#define SPLIT 5

static const char *first, *second, *index_path;

static void write_index(void)
{
	char text[1024], *at = stpcpy(text, "{\"metadata\":{},\"weight_map\":{");

	for (size_t i = 0; i < N; i++)
		at += sprintf(at, "%s\"t%zu\":\"model-0000%d-of-00002.safetensors\"", i ? "," : "",
			      i, i < SPLIT ? 1 : 2);
	strcpy(at, "}}");
	write_text(index_path, text);
}

/* Two files with an index, in a folder. */
static const char *begin_two_files(size_t padded)
{
	INIT(f, .place = PLACE_DISK, .pool_bytes = 4 * MIB);
	first = path_in(f->paths[0], "model-00001-of-00002.safetensors");
	second = path_in(f->paths[0], "model-00002-of-00002.safetensors");
	index_path = path_in(f->paths[0], "model.safetensors.index.json");
	write_weights(first, 0, SPLIT, padded);
	write_weights(second, SPLIT, N, padded);
	write_index();
	return f->paths[0];
}

TEST(a_folder_an_index_or_several_files_of_several_drives_are_one_model)
{
	const char *memory = memory_directory(), *paths[2];

	OK(f, open_path(begin_two_files(0)));
	compare_all();
	fixture_shut(f);
	OK(f, open_path(index_path));
	compare_all();
	fixture_shut(f);
	paths[0] = first;
	paths[1] = second;
	if (memory) {
		paths[1] = path_in(memory, "rest.safetensors");
		write_weights(paths[1], SPLIT, N, 0);
	}
	OK(f, open_paths(paths, 2));
	compare_all();
}

TEST(the_end_of_a_file_and_the_beginning_of_the_next_are_two_reads)
{
	const char *paths[2];

	/* Where units are the shortest. */
	INIT(f, .place = PLACE_TMPFS, .pool_bytes = 4 * MIB);
	paths[0] = path_in(f->paths[0], "first.safetensors");
	paths[1] = path_in(f->paths[0], "second.safetensors");
	write_weights(paths[0], 0, SPLIT, 0);
	write_weights(paths[1], SPLIT, N, 0);
	OK(f, open_paths(paths, 2));
	tensors_pin(f, &t[SPLIT - 1], 2);
	assert_true(filled(nvs_tensor_data(t[SPLIT - 1]), lengths[SPLIT - 1], SPLIT - 1));
	assert_true(filled(nvs_tensor_data(t[SPLIT]), lengths[SPLIT], SPLIT));
	assert_int_equal(stats_of(f).transfers, 2);
	OK(f, sole_release(f->engine, &t[SPLIT - 1], 2, NVS_CLEAN, &f->error));
}

TEST(engines_of_files_and_of_a_store_share_an_aio)
{
	struct nvs_files_options options = {.size = sizeof(options)};
	struct nvs_engine *weights;
	struct nvs_tensor *tensor;
	uint64_t pin;

	OPEN(f, .pool_bytes = 4 * MIB);
	path = path_in(f->paths[0], "model.safetensors");
	write_weights(path, 0, N, 0);
	options.aio = nvs_engine_aio(f->engine);
	OK(f, nvs_engine_open_files(&weights, &f->config, &path, 1, &options, &f->error));
	FAILS(f, -EBUSY, "other engine", nvs_engine_close);
	tensor = nvs_tensor_find(weights, "t6");
	OK(f, nvs_tensor_swap_in(weights, &tensor, 1, -1, &pin, &f->error));
	OK(f, nvs_tensor_wait(weights, &tensor, 1, pin, -1, &f->error));
	assert_true(filled(nvs_tensor_data(tensor), MIB + 3, 6));
	OK(f, nvs_tensor_release(weights, &tensor, 1, pin, NVS_CLEAN, &f->error));
	OK(f, nvs_engine_close(weights, &f->error));
}

/* As the cache of the hub has them: links to blobs, by a path that is relative. */
TEST(symbolic_links_are_followed_and_the_process_may_change_its_directory)
{
	char before[PATH_MAX];
	const char *blob, *link, *folder;

	INIT(f, .place = PLACE_DISK, .pool_bytes = 4 * MIB);
	folder = path_in(f->paths[0], "snapshot");
	blob = path_in(f->paths[0], "blob");
	link = path_in(folder, "model.safetensors");
	assert_int_equal(mkdir(folder, 0700), 0);
	write_weights(blob, 0, N, 0);
	assert_int_equal(symlink("../blob", link), 0);
	assert_non_null(getcwd(before, sizeof(before)));
	assert_int_equal(chdir(f->paths[0]), 0);
	OK(f, open_path("snapshot"));
	assert_int_equal(chdir(before), 0);
	compare_all();
}

static int mount_read_only(const char *folder)
{
	return mount(folder, folder, NULL, MS_BIND, NULL) ||
	       mount(NULL, folder, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL);
}

TEST(files_on_a_file_system_that_is_mounted_read_only_are_read)
{
	const char *folder;

	INIT(f, .place = PLACE_DISK, .pool_bytes = 4 * MIB);
	folder = path_in(f->paths[0], "folder");
	path = path_in(folder, "model.safetensors");
	assert_int_equal(mkdir(folder, 0700), 0);
	write_weights(path, 0, N, 0);
	if (mount_read_only(folder)) {
		umount2(folder, MNT_DETACH);
		SKIP("cannot mount here: %s", strerror(errno));
	}
	assert_int_equal(open(path, O_RDWR | O_CLOEXEC), -1);
	OK(f, open_path(folder));
	compare_all();
	fixture_shut(f);
	assert_int_equal(umount2(folder, MNT_DETACH), 0);
}

/* ---- Files that change ---- */

static void is_stale(struct nvs_tensor *tensor)
{
	void *to = malloc(info_of(f, tensor).nbytes);

	assert_int_equal(weights_read(f->engine, tensor, &f->error), -ESTALE);
	assert_says(f->error.text, "replaced, written to or removed");
	assert_int_equal(f->error.path_nbytes, strlen(path));
	assert_memory_equal(f->error.text + f->error.path_at, path, strlen(path));
	OK(f, nvs_tensor_swap_in_to(f->engine, &tensor, &to, 1, &f->error));
	FAILS(f, -ESTALE, path, nvs_tensor_wait, &tensor, 1, 0, -1);
	free(to);
}

/* The kernel's times have ticks of some milliseconds, so the file was last changed long ago. */
static void write_long_ago(void)
{
	const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1, .tv_nsec = 5}};

	write_weights(path, 0, N, 0);
	assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* For a change to a file whose tensor 6 is in the pool. */
static void begin_change(void)
{
	BEGIN(.place = PLACE_DISK, .pool_bytes = 4 * MIB);
	write_long_ago();
	OK(f, open_path(path));
	OK(f, weights_read(f->engine, t[6], &f->error));
}

static void end_change(void)
{
	is_stale(t[3]);
	is_stale(t[0]);
	/* What was read before stays. */
	tensor_compare(f, t[6], 6);
}

TEST(a_file_that_is_written_to_or_cut_off_is_stale)
{
	int fd;

	begin_change();
	fd = open(path, O_WRONLY | O_CLOEXEC);
	assert_int_equal(pwrite(fd, "x", 1, 5000), 1);
	close(fd);
	end_change();
	fixture_close(f);
	begin_change();
	assert_int_equal(truncate(path, 5000), 0);
	end_change();
}

TEST(a_file_that_another_one_replaces_is_stale)
{
	const char *other;

	begin_change();
	other = path_in(f->paths[0], "other");
	write_weights(other, 0, N, 0);
	assert_int_equal(rename(other, path), 0);
	end_change();
	fixture_shut(f);
	OK(f, open_path(path));
	compare_all();
}

TEST(a_file_that_is_removed_is_stale_until_it_is_back)
{
	const char *other;

	begin_change();
	other = path_in(f->paths[0], "other");
	assert_int_equal(rename(path, other), 0);
	end_change();
	assert_int_equal(rename(other, path), 0);
	compare_all();
}

TEST(a_link_that_leads_to_another_file_is_stale)
{
	BEGIN(.place = PLACE_DISK, .pool_bytes = 4 * MIB);
	write_weights(path_in(f->paths[0], "one"), 0, N, 0);
	write_weights(path_in(f->paths[0], "two"), 0, N, 0);
	assert_int_equal(symlink("one", path), 0);
	OK(f, open_path(path));
	OK(f, weights_read(f->engine, t[6], &f->error));
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink("two", path), 0);
	end_change();
}

/* ---- A drive that fails, on the simulated one ---- */

static struct nvs_aio *sim_aio;

/* As begin_file(), with the file changed long ago. */
static void begin_simulated(void)
{
	struct nvs_files_options options = {.size = sizeof(options)};

	BEGIN(.place = PLACE_DISK, .pool_bytes = 4 * MIB, .simulated = true);
	write_long_ago();
	OK(f,
	   aio_open_with(&sim_aio, &f->config.aio, &engine_sim, f->sim, &f->config.log, &f->error));
	options.aio = sim_aio;
	OK(f, nvs_engine_open_files(&f->engine, &f->config, &path, 1, &options, &f->error));
	weights_find(f->engine, t, N);
}

static void end_simulated(void)
{
	fixture_shut(f);
	OK(f, nvs_aio_close(sim_aio));
}

TEST(reads_ahead_of_a_file_that_has_changed_are_in_the_log_once_by_its_name)
{
	const char *line;

	begin_change();
	OK(f, nvs_engine_step_begin(f->engine, &f->error));
	for (size_t i = 0; i < N; i++)
		OK(f, weights_read(f->engine, t[i], &f->error));
	OK(f, nvs_engine_step_end(f->engine, NULL, &f->error));
	evict_all();
	assert_int_equal(unlink(path), 0);
	OK(f, nvs_engine_step_begin(f->engine, &f->error));
	is_stale(t[0]);
	events_await_idle(f->engine);
	line = strstr(f->log, path);
	assert_non_null(line);
	assert_null(strstr(line + 1, path));
	assert_null(strstr(f->log, "could not be read ahead: "));
	is_stale(t[3]);
	assert_null(strstr(f->error.text, "another type"));
	OK(f, nvs_engine_step_end(f->engine, NULL, &f->error));
}

TEST(a_file_that_is_written_to_in_the_middle_of_a_read_is_stale)
{
	uint64_t pin;
	int fd;

	begin_simulated();
	sim_hold(f->sim, SIM_READS);
	OK(f, nvs_tensor_swap_in(f->engine, &t[6], 1, -1, &pin, &f->error));
	assert_true(sim_await_in_flight(f->sim, 8));
	assert_int_equal(sim_complete(f->sim, 4), 4);
	/* All of it is rewritten, and half of it has been read. */
	fd = open(path, O_WRONLY | O_CLOEXEC);
	for (off_t at = 50000; at < 1100000; at += 7)
		assert_int_equal(pwrite(fd, "x", 1, at), 1);
	close(fd);
	sim_go(f->sim, SIM_READS);
	FAILS(f, -ESTALE, path, nvs_tensor_wait, &t[6], 1, pin, -1);
	STATE(f, t[6], NVS_ON_DRIVE, false, 0);
	assert_null(nvs_tensor_data(t[6]));
	end_simulated();
}

TEST(whichever_read_fails_it_is_reported_and_a_second_try_succeeds)
{
	unsigned nth = 0, failures;
	int rc;

	begin_simulated();
	do {
		failures = 0;
		sim_fail(f->sim, NVS_READ, nth++, EIO, 1);
		OK(f, sole_swap_in(f->engine, t, N, -1, &f->error));
		for (size_t i = 0; i < N; i++) {
			uint64_t pin = info_of(f, t[i]).pins;

			rc = pin ? sole_wait(f->engine, &t[i], 1, -1, &f->error)
				 : nvs_tensor_wait(f->engine, &t[i], 1, 0, -1, &f->error);
			if (rc) {
				failures++;
				expect_error(f, rc, -EIO, path);
			} else {
				OK(f, sole_release(f->engine, &t[i], 1, NVS_CLEAN, &f->error));
			}
		}
		sim_no_faults(f->sim);
		compare_all();
		evict_all();
	} while (failures);
	assert_true(nth > 20);
	end_simulated();
}

TEST(short_and_interrupted_reads_are_continued)
{
	const struct sim_rule rules[] = {
		{.fault = SIM_SHORT, .reads = true, .ppm = 300000},
		{.fault = SIM_ERROR, .error = EINTR, .reads = true, .ppm = 100000}};

	begin_simulated();
	for (size_t i = 0; i < COUNT(rules); i++)
		sim_fault(f->sim, &rules[i]);
	for (unsigned round = 0; round < 20; round++) {
		compare_all();
		evict_all();
		tensors_pin(f, t, N);
		for (size_t i = 0; i < N; i++)
			assert_true(filled(nvs_tensor_data(t[i]), lengths[i], i));
		OK(f, sole_release(f->engine, t, N, NVS_CLEAN, &f->error));
		evict_all();
	}
	end_simulated();
}

TEST(each_failing_call_of_an_opening_is_an_error_and_leaves_nothing)
{
	const char *folder = begin_two_files(0);
	uint64_t failed = 1;

	for (uint64_t nth = 1; failed; nth++) {
		unsigned files = inject_held().files;
		int64_t blocks = inject_held().blocks;
		int rc;

		inject_fail(INJECT_ANY, nth, 1, nth % 2 ? ENOMEM : EMFILE);
		rc = nvs_engine_open_files(&f->engine, &f->config, &folder, 1, NULL, &f->error);
		inject_stop(&failed);
		if (!rc)
			fixture_shut(f);
		else
			assert_true(rc < 0 && *f->error.text && !f->engine);
		assert_int_equal(inject_held().files, files);
		assert_int_equal(inject_held().blocks, blocks);
		/* Some calls have another way, such as registering memory. */
		f->error = (struct nvs_error){.size = sizeof(f->error)};
	}
	OK(f, open_path(folder));
	compare_all();
}

/* A header or an index with some bytes changed is refused, or the engine reads what it says. */
static unsigned damage(const char *damaged, const char *to_open, unsigned rounds, uint64_t *seed)
{
	unsigned opened = 0;

	for (unsigned round = 0; round < rounds; round++) {
		int fd = open(damaged, O_RDWR | O_CLOEXEC), changes = 1 + (int)below(seed, 2);
		uint64_t length = min_u64((uint64_t)lseek(fd, 0, SEEK_END), 600);
		char was[2], now;
		off_t at[2];

		for (int i = 0; i < changes; i++) {
			at[i] = (off_t)below(seed, length);
			assert_int_equal(pread(fd, &was[i], 1, at[i]), 1);
			now = (char)(was[i] >= '0' && was[i] <= '9' ? '0' + below(seed, 10)
				     : below(seed, 2)		    ? below(seed, 256)
						      : (uint64_t) " {}[],:\""[below(seed, 8)]);
			assert_int_equal(pwrite(fd, &now, 1, at[i]), 1);
		}
		if (!open_path(to_open)) {
			opened++;
			for (size_t i = 0; i < N; i++)
				if (t[i])
					OK(f, weights_read(f->engine, t[i], &f->error));
			fixture_shut(f);
		} else {
			assert_true(*f->error.text);
		}
		for (int i = changes; i--;)
			assert_int_equal(pwrite(fd, &was[i], 1, at[i]), 1);
		close(fd);
	}
	return opened;
}

TEST(damaged_headers_and_indexes_are_refused_or_read_as_they_say)
{
	const char *folder = begin_two_files(900);
	uint64_t seed = seed_of_run();
	unsigned opened;

	opened = damage(first, first, 1400, &seed) + damage(index_path, folder, 300, &seed) +
		 damage(second, folder, 300, &seed);
	print_message("%u of 2000 opened\n", opened);
	assert_true(opened > 20 && opened < 1000);
	OK(f, open_path(folder));
	compare_all();
}

EACH_TEST(NULL, cleanup)
