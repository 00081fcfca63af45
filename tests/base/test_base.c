/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The base layer: free extents against a bitmap, latencies against sorted arrays, nearest names,
 * memory on huge pages, queues of messages. Random histories print their seeds.
 */
#include "base/files.h"
#include "base/memory/extents.h"
#include "base/memory/huge_map.h"
#include "base/numbers.h"
#include "base/shape.h"
#include "base/statistics/latency.h"
#include "base/text.h"
#include "base/threads/log.h"
#include "support/inject.h"
#include "support/support.h"

#include <math.h>
#include <signal.h>

/* ---- Extents ---- */

#define MODEL_MAX 2048

/* The reference model: a flag for each unit, searched linearly. */
struct model {
	bool taken[MODEL_MAX];
	uint64_t size;
};

static uint64_t model_run(const struct model *model, uint64_t from)
{
	uint64_t end = from;

	while (end < model->size && !model->taken[end])
		end++;
	return end - from;
}

static bool model_first_fit(const struct model *model, uint64_t length, uint64_t *offset)
{
	for (*offset = 0; *offset < model->size; ++*offset)
		if (model_run(model, *offset) >= length)
			return true;
	return false;
}

static void model_set(struct model *model, uint64_t offset, uint64_t length, bool taken)
{
	for (uint64_t i = offset; i < offset + length; i++) {
		assert_true(model->taken[i] != taken);
		model->taken[i] = taken;
	}
}

static void assert_same(const struct extents *extents, const struct model *model)
{
	uint64_t free_units = 0, largest = 0, tail = model->size;

	for (uint64_t i = 0; i < model->size;) {
		uint64_t run = model_run(model, i);

		if (run) {
			free_units += run;
			largest = max_u64(largest, run);
			tail = i + run == model->size ? i : tail;
		}
		i += run ? run : 1;
	}
	assert_int_equal(extents_size(extents), model->size);
	assert_int_equal(extents_free_units(extents), free_units);
	assert_int_equal(extents_largest(extents), largest);
	assert_int_equal(extents_tail(extents), tail);
}

static void step_alloc(struct extents *extents, struct model *model, uint64_t *random)
{
	uint64_t length = 1 + random_next(random) % (random_next(random) % 8 ? 8 : 200);
	uint64_t expected = 0, offset = 0;
	bool fits = model_first_fit(model, length, &expected);

	assert_int_equal(extents_alloc(extents, length, &offset), fits ? 0 : -ENOSPC);
	if (fits) {
		assert_int_equal(offset, expected);
		model_set(model, offset, length, true);
	}
}

static void step_take(struct extents *extents, struct model *model, uint64_t *random)
{
	if (!model->size)
		return;

	uint64_t offset = random_next(random) % model->size;
	uint64_t length = 1 + random_next(random) % 12;
	bool is_free = model_run(model, offset) >= length;

	assert_int_equal(extents_take(extents, offset, length), is_free ? 0 : -EEXIST);
	if (is_free)
		model_set(model, offset, length, true);
}

/* Frees a part of an allocated run, which may span several allocations. */
static void step_free(struct extents *extents, struct model *model, uint64_t *random)
{
	if (!model->size)
		return;

	uint64_t offset = random_next(random) % model->size;
	uint64_t length = 0, wanted = 1 + random_next(random) % 16;

	while (length < wanted && offset + length < model->size && model->taken[offset + length])
		length++;
	if (!length)
		return;
	assert_int_equal(extents_free(extents, offset, length), 0);
	model_set(model, offset, length, false);
}

static void run_history(uint64_t seed)
{
	uint64_t random = seed;
	struct model model = {.size = random_next(&random) % 300};
	struct extents *extents = extents_open(model.size);

	assert_non_null(extents);
	assert_same(extents, &model);
	for (int i = 0; i < 3000; i++) {
		switch (random_next(&random) % 16) {
		case 0:
			step_take(extents, &model, &random);
			break;
		case 1:
			if (model.size < MODEL_MAX - 40 && random_next(&random) % 8 == 0) {
				uint64_t more = 1 + random_next(&random) % 40;

				assert_int_equal(extents_grow(extents, more), 0);
				model.size += more;
			}
			break;
		case 2 ... 8:
			step_alloc(extents, &model, &random);
			break;
		default:
			step_free(extents, &model, &random);
			break;
		}
		assert_same(extents, &model);
	}
	extents_close(extents);
}

TEST(extents_agree_with_a_bitmap)
{
	for (uint64_t seed = 1; seed <= 60; seed++) {
		print_message("seed %" PRIu64 "\r", seed);
		run_history(seed * 0x9e3779b97f4a7c15u);
	}
	print_message("seeds 1 to 60, times 0x9e3779b97f4a7c15\n");
}

TEST(extents_edges_of_the_space)
{
	struct extents *extents = extents_open(0);
	uint64_t offset;

	assert_non_null(extents);
	assert_int_equal(extents_alloc(extents, 1, &offset), -ENOSPC);
	assert_int_equal(extents_take(extents, 0, 1), -EEXIST);
	assert_int_equal(extents_tail(extents), 0);
	assert_int_equal(extents_grow(extents, UINT64_MAX), 0);
	assert_int_equal(extents_take(extents, UINT64_MAX, 1), -EEXIST);
	assert_int_equal(extents_take(extents, UINT64_MAX - 1, 2), -EEXIST);
	assert_int_equal(extents_take(extents, 1, UINT64_MAX), -EEXIST);
	assert_int_equal(extents_take(extents, UINT64_MAX - 1, 1), 0);
	assert_int_equal(extents_tail(extents), UINT64_MAX);
	assert_int_equal(extents_alloc(extents, UINT64_MAX - 1, &offset), 0);
	assert_int_equal(offset, 0);
	assert_int_equal(extents_free_units(extents), 0);
	extents_close(extents);
	extents_close(NULL);
}

/*
 * More than the doubled memory is reserved at once. Extents are so many that a tree as deep as a
 * list would take all of the stack.
 */
TEST(extents_prepared_are_allocated_without_memory)
{
	enum { N = 500000 };
	struct extents *extents = extents_open(2 * N);
	uint64_t offset;

	assert_non_null(extents);
	assert_int_equal(extents_prepare(extents, N), 0);
	assert_int_equal(extents_alloc(extents, 2 * N, &offset), 0);
	inject_fail(INJECT_MEMORY, 1, INJECT_ALWAYS, ENOMEM);
	for (uint64_t i = 0; i < N; i++)
		assert_int_equal(extents_free(extents, 2 * i, 1), 0);
	assert_int_equal(inject_stop(NULL), 0);
	assert_int_equal(extents_free_units(extents), N);
	assert_int_equal(extents_largest(extents), 1);
	extents_close(extents);
}

/* Frees these extents of a space that is all taken, or all free; the last one must abort. */
static int free_extents(void *arg)
{
	const uint64_t(*freed)[2] = arg;
	struct extents *extents = extents_open(64);
	uint64_t offset;

	signal(SIGABRT, _exit);
	if (!freopen("/dev/null", "w", stderr) ||
	    (freed[0][1] && extents_alloc(extents, 64, &offset)))
		return CHILD_WRONG;
	for (unsigned i = !freed[0][1]; i < 2; i++)
		extents_free(extents, freed[i][0], freed[i][1]);
	return CHILD_OK;
}

TEST(extents_assert_against_freeing_twice)
{
	/* What is free; twice; into the next one; past the end. */
	static uint64_t freed[][2][2] = {
		{{0, 0}, {8, 1}}, {{8, 8}, {15, 2}}, {{8, 8}, {4, 5}}, {{0, 1}, {63, 2}}};

#ifdef LIBRARY_UNASSERTED
	skip();
#endif
	for (size_t i = 0; i < COUNT(freed); i++)
		assert_int_equal(in_child(free_extents, freed[i]), SIGABRT);
}

/* ---- Latencies ---- */

static int compare_ns(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* A value of a random magnitude, so that every group of buckets is used; also 0 and UINT64_MAX. */
static uint64_t any_magnitude(uint64_t *random, size_t i)
{
	uint64_t value = random_next(random) >> (random_next(random) % 64);

	return i == 0 ? 0 : i == 1 ? UINT64_MAX : value;
}

static struct nvs_latency *empty_latencies(size_t n)
{
	struct nvs_latency *latencies = calloc(n, sizeof(*latencies));

	assert_non_null(latencies);
	for (size_t i = 0; i < n; i++)
		latencies[i].size = sizeof(*latencies);
	return latencies;
}

TEST(latency_percentiles_are_within_a_64th)
{
	enum { N = 20000 };
	static const double percentiles[] = {0, 0.01, 1, 5, 25, 50, 75, 90, 99, 99.9, 99.99, 100};
	static uint64_t values[N];
	struct nvs_latency *latency = empty_latencies(1);
	uint64_t random = 7;

	print_message("seed 7\n");
	for (size_t i = 0; i < N; i++) {
		values[i] = any_magnitude(&random, i);
		latency_add(latency, values[i]);
	}
	qsort(values, N, sizeof(values[0]), compare_ns);
	assert_int_equal(latency->count, N);
	assert_int_equal(latency->min_ns, 0);
	assert_true(latency->max_ns == UINT64_MAX);
	for (size_t i = 0; i < COUNT(percentiles); i++) {
		/* N is a multiple of 10000, so the rank is an integer. */
		uint64_t rank = (uint64_t)(percentiles[i] * 100 + 0.5) * N / 10000;
		uint64_t exact = values[rank ? rank - 1 : 0];
		uint64_t got = nvs_latency_percentile(latency, percentiles[i]);

		assert_true(got >= exact);
		assert_true(got - exact <= exact / 64);
	}
	for (size_t i = 0; i < N; i++) {
		uint64_t within = nvs_latency_within(latency, values[i]);

		/* Values in the same bucket differ by at most 1/64. */
		assert_true(within > i);
		assert_true(within == N || values[within] > values[i]);
		assert_true(values[within - 1] - values[i] <= values[i] / 64);
	}
	free(latency);
}

TEST(latency_small_times_are_exact)
{
	struct nvs_latency *latency = empty_latencies(1);

	assert_int_equal(nvs_latency_percentile(latency, 50), 0);
	assert_int_equal(nvs_latency_within(latency, UINT64_MAX), 0);
	assert_true(nvs_latency_mean(latency) == 0 && nvs_latency_stddev(latency) == 0);
	for (uint64_t ns = 1; ns <= 100; ns++)
		latency_add(latency, ns);
	for (uint64_t p = 1; p <= 100; p++)
		assert_int_equal(nvs_latency_percentile(latency, (double)p), p);
	assert_int_equal(nvs_latency_percentile(latency, 0), 1);
	assert_int_equal(nvs_latency_percentile(latency, -1), 1);
	assert_int_equal(nvs_latency_percentile(latency, NAN), 1);
	assert_int_equal(nvs_latency_percentile(latency, 101), 100);
	assert_int_equal(nvs_latency_percentile(latency, INFINITY), 100);
	assert_int_equal(nvs_latency_percentile(latency, 0.5), 1);
	assert_int_equal(nvs_latency_percentile(latency, 1.5), 2);
	assert_int_equal(nvs_latency_within(latency, 0), 0);
	for (uint64_t ns = 1; ns <= 100; ns++)
		assert_int_equal(nvs_latency_within(latency, ns), ns);
	assert_int_equal(nvs_latency_within(latency, UINT64_MAX), 100);
	assert_true(nvs_latency_mean(latency) == 50.5);
	/* (n^2 - 1) / 12 */
	assert_true(nvs_latency_stddev(latency) > 28.866 && nvs_latency_stddev(latency) < 28.867);
	free(latency);
}

TEST(latency_merged_equals_one)
{
	struct nvs_latency *parts = empty_latencies(4), *whole = empty_latencies(1);
	uint64_t random = 99;

	print_message("seed 99\n");
	for (int i = 0; i < 3000; i++) {
		/*
		 * Integers small enough that sums and squares are exact in a double, in any order.
		 */
		uint64_t ns = random_next(&random) % 100000;

		latency_add(&parts[ns % 2], ns);
		latency_add(whole, ns);
	}
	assert_int_equal(nvs_latency_merge(&parts[2], &parts[3]), 0);
	assert_int_equal(parts[2].count, 0);
	nvs_latency_merge(&parts[2], &parts[0]);
	nvs_latency_merge(&parts[2], &parts[1]);
	nvs_latency_merge(&parts[2], &parts[3]);
	assert_memory_equal(&parts[2], whole, sizeof(*whole));
	free(parts);
	free(whole);
}

TEST(a_latency_is_read_within_its_size)
{
	struct nvs_latency *latency = empty_latencies(2);

	latency_add(&latency[0], 7);
	latency_add(&latency[0], 9);
	latency->size = offsetof(struct nvs_latency, buckets);
	assert_true(nvs_latency_mean(latency) == 8);
	assert_int_equal(nvs_latency_percentile(latency, 50), 0);
	assert_int_equal(nvs_latency_within(latency, 9), 0);
	assert_int_equal(nvs_latency_merge(&latency[1], latency), -EINVAL);
	assert_int_equal(nvs_latency_merge(latency, &latency[1]), -EINVAL);
	latency->size = 0;
	assert_true(nvs_latency_mean(latency) == 0 && nvs_latency_stddev(latency) == 0);
	free(latency);
}

TEST(the_nearest_name_differs_by_a_few_letters)
{
	static const char *const names[] = {"rw",	  "bs",
					    "iodepth",	  "queue_depth",
					    "block-size", "stage3_param_persistence_threshold"};
	static const struct {
		const char *text, *nearest;
	} cases[] = {
		{"wr", "rw"},
		{"iodepht", "iodepth"},
		{"io_depth", "iodepth"},
		{"queue-depth", "queue_depth"},
		{"que_dept", NULL},
		{"block_sise", "block-size"},
		{"stage3_parameter_persistence_threshold", "stage3_param_persistence_threshold"},
		{"iodep", "iodepth"},
		{"xy", NULL},
		{"", NULL},
		{"a_name_that_is_longer_than_any_of_the_known_names_is", NULL},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		const char *nearest = nearest_name(cases[i].text, names, COUNT(names));

		if (cases[i].nearest ? !nearest || strcmp(nearest, cases[i].nearest) : !!nearest)
			fail_msg("%s is nearest to %s", cases[i].text, nearest ? nearest : "none");
	}
}

TEST(the_text_of_a_shape_has_its_dimensions_or_the_first_ones)
{
	uint64_t shape[64] = {2, 3};
	char text[SHAPE_TEXT];

	assert_string_equal(shape_text(shape, 0, text), "[]");
	assert_string_equal(shape_text(shape, 2, text), "[2, 3]");
	assert_string_equal(shape_text(shape, 3, text), "[2, 3, 0]");
	for (size_t i = 0; i < COUNT(shape); i++)
		shape[i] = UINT64_MAX - (i > 2);
	assert_string_equal(shape_text(shape, 4, text),
			    "[18446744073709551615, 18446744073709551615, 18446744073709551615, "
			    "18446744073709551614]");
	assert_string_equal(shape_text(shape, 64, text) + strlen(text) - 7, "4, ...]");
	assert_true(shapes_equal(shape, 3, shape, 3) && shapes_equal(NULL, 0, shape, 0));
	assert_false(shapes_equal(shape, 3, shape, 2) || shapes_equal(shape, 3, shape + 1, 3));
}

TEST(memory_begins_with_a_huge_page_and_ends_with_a_page)
{
	const uint64_t sizes[] = {1, page_bytes(), page_bytes() + 1, ((uint64_t)4 << 20) + 1};
	const uint64_t huge = file_number("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "",
					  page_bytes());

	assert_int_equal(page_bytes(), sysconf(_SC_PAGESIZE));
	for (size_t i = 0; i < COUNT(sizes); i++) {
		uint64_t nbytes = round_to_pages(sizes[i]);
		unsigned char in_core;
		char *data = huge_map(sizes[i], NULL);

		assert_non_null(data);
		assert_true(nbytes >= sizes[i] && nbytes < sizes[i] + page_bytes());
		assert_int_equal((uintptr_t)data % huge, 0);
		for (uint64_t at = 0; at < nbytes; at++)
			assert_int_equal(data[at], 0);
		memset(data, 1, nbytes);
		assert_int_equal(mincore(data + nbytes - page_bytes(), page_bytes(), &in_core), 0);
		assert_int_equal(munmap(data, nbytes), 0);
		/* The alignment slack of the mapping is unmapped as well. */
		assert_int_equal(mincore(data, page_bytes(), &in_core), -1);
		assert_int_equal(errno, ENOMEM);
	}
}

/* ---- Messages ---- */

struct told {
	unsigned n;
	char last[256];
};

static void note_told(void *arg, enum nvs_log_level level, const char *text)
{
	struct told *told = arg;

	(void)level;
	told->n++;
	snprintf(told->last, sizeof(told->last), "%s", text);
}

TEST(a_thousand_messages_are_kept_and_the_others_counted)
{
	struct told told = {0};
	const struct nvs_log to = {.fn = note_told, .arg = &told};
	struct log log;

	log_init(&log, &to);
	for (int i = 0; i < 1002; i++)
		log_later(&log, NVS_LOG_INFO, "message %d", i);
	assert_int_equal(log_start(&log), 0);
	log_await_told(&log);
	assert_int_equal(told.n, 1001);
	assert_ptr_equal(strstr(told.last, "2 later messages were lost"), told.last);
	log_later(&log, NVS_LOG_INFO, "one more");
	log_stop(&log);
	assert_int_equal(told.n, 1002);
	assert_string_equal(told.last, "one more");
	log_destroy(&log);
}
