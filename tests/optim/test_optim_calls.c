/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Refusals of the optimizer's functions: numbers that would corrupt the weights, names, and arrays.
 * A refused call changes nothing. Also steps without gradients.
 */
#include "config/config.h"
#include "optim/optim_fixture.h"
#include "support/tests.h"

#include <errno.h>
#include <math.h>

ONE_OPTIMIZER

static const struct group pair[] = {{"a", 12345, NVS_BF16}, {"b", 7001, NVS_F32}};

static void begin(void)
{
	optim_renew(o, pair, LENGTH(pair));
	o->offload->device = NVS_DEVICE_CPU;
	DONE(o, optim_open(o));
}

/* ---- Numbers ---- */

static void refused_with(double lr, const double *sum, const char *words)
{
	struct nvs_gradient_sums sums = {.size = sizeof(sums), .sum_squares = sum ? *sum : 0};
	const struct nvs_step_options options = {
		.size = sizeof(options), .lr = lr, .sums = sum ? &sums : NULL};

	REFUSES(o, -EINVAL, words, step, &options, &o->result);
}

TEST(step_options_that_would_corrupt_weights_are_refused)
{
	static const double rates[] = {NAN, INFINITY, -INFINITY, 1e39};
	static const double sums[] = {NAN, -NAN, INFINITY, -INFINITY, -1, -1e-300};

	begin();
	optim_run(o, 1, 2);
	optim_save(o);
	begin();
	optim_run(o, 1, 1);
	optim_lend(o, 2, 1);
	for (size_t i = 0; i < LENGTH(rates); i++)
		refused_with(rates[i], NULL, "lr");
	for (size_t i = 0; i < LENGTH(sums); i++)
		refused_with(1e-3, &sums[i], "sum_squares");
	DONE(o, optim_step(o, 2));
	IS_AS_SAVED(o);
}

/* With fp16, a sum that is not finite is another rank's overflow; a negative one is an error. */
TEST(with_fp16_a_negative_sum_is_refused)
{
	static const double sums[] = {-1, -INFINITY};

	optim_renew(o, pair, LENGTH(pair));
	o->offload->device = NVS_DEVICE_CPU;
	o->config.fp16.enabled = true;
	DONE(o, optim_open(o));
	optim_lend(o, 1, 1);
	for (size_t i = 0; i < LENGTH(sums); i++)
		refused_with(1e-3, &sums[i], "sum_squares");
	assert_true(nvs_optimizer_loss_scale(o->optimizer) == 65536);
}

static void refused_at_open(const char *words)
{
	REFUSED(o, optim_open(o), -EINVAL, words);
}

/* A buffer count of 0, and groups whose size in bytes overflows. */
TEST(sizes_that_overflow_are_refused)
{
	optim_renew(o, pair, LENGTH(pair));
	o->offload->buffer_count = 0;
	refused_at_open("buffer_count");
	optim_renew(o, pair, LENGTH(pair));
	o->config.sub_group_size = UINT64_MAX;
	o->specs[0].numel = o->specs[1].numel = UINT64_C(1) << 63;
	free(o->specs[0].weights);
	free(o->specs[1].weights);
	o->specs[0].weights = o->specs[1].weights = NULL;
	refused_at_open("elements");
}

TEST(names_that_are_not_utf8_are_refused)
{
	optim_renew(o, pair, LENGTH(pair));
	o->specs[1].name = "\xe9";
	refused_at_open("the name of group \\xe9 is not UTF-8");
}

/* The tensors of its state have the beginning of its name in theirs. */
TEST(a_long_name_is_cut_between_characters)
{
	static char name[NVS_NAME_MAX + 1];

	for (size_t at = 1; at < 4; at++) {
		memset(name, 'n', at);
		for (size_t i = at; i + 3 <= NVS_NAME_MAX; i += 3)
			memcpy(name + i, "\xe2\x82\xac", 4);
		optim_renew(o, pair, LENGTH(pair));
		o->config.offload[NVS_OFFLOAD_OPTIMIZER].device = NVS_DEVICE_CPU;
		o->specs[0].name = name;
		DONE(o, optim_open(o));
	}
}

TEST(groups_whose_weights_overlap_are_refused)
{
	char *first, *second;

	optim_renew(o, pair, LENGTH(pair));
	first = o->specs[0].weights;
	second = o->specs[1].weights;
	o->specs[1].weights = first + 4;
	REFUSED(o, optim_open(o), -EINVAL, "groups a and b overlap");
	o->specs[1].weights = first;
	REFUSED(o, optim_open(o), -EINVAL, "overlap");
	/* Beside each other they are no overlap. */
	o->specs[1].weights = second;
	o->specs[1].numel = 1000;
	o->specs[0] = o->specs[1];
	o->specs[0].name = "a";
	o->specs[0].weights = second + 4000;
	o->offload->device = NVS_DEVICE_CPU;
	DONE(o, optim_open(o));
	DOES(o, close);
	o->optimizer = NULL;
	o->specs[0].weights = first;
}

TEST(weights_that_have_moved_are_written_where_they_are)
{
	void *moved[2] = {NULL}, *first, *second;
	char before[4];

	optim_begin(o, pair, LENGTH(pair));
	first = o->specs[0].weights;
	second = o->specs[1].weights;
	memcpy(before, first, sizeof(before));
	moved[0] = (char *)second + 4;
	REFUSES(o, -EINVAL, "groups b and a overlap", set_weights, moved, 2);
	moved[0] = (char *)first + 1;
	REFUSES(o, -EINVAL, "not aligned", set_weights, moved, 2);
	REFUSES(o, -EINVAL, "there are 2 groups", set_weights, moved, 1);
	/* They change places, and only the new ones are written. */
	moved[0] = calloc(o->specs[0].numel, nvs_dtype_size(o->specs[0].dtype));
	assert_non_null(moved[0]);
	DOES(o, set_weights, moved, 2);
	optim_run(o, 1, 1);
	assert_memory_equal(first, before, sizeof(before));
	assert_memory_not_equal(moved[0], before, sizeof(before));
	DOES(o, get_weights);
	DOES(o, close);
	o->optimizer = NULL;
	free(moved[0]);
	/* A group without weights gets none. */
	o->specs[0].weights = NULL;
	DONE(o, optim_open(o));
	moved[0] = first;
	REFUSES(o, -EINVAL, "without weights", set_weights, moved, 2);
	o->specs[0].weights = first;
}

/* ---- Calls within a call ---- */

#define CALLS 17

struct within {
	struct nvs_optimizer *optimizer;
	unsigned runs; /* atomic */
	int rc[CALLS]; /* of each call of the last run */
	void *moved;
	double loss_scale;
};

/* Every call that waits for others on the same optimizer. */
static void call_all(struct within *within)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	struct nvs_group_info group = {.size = sizeof(group)};
	struct nvs_gradient_sums sums = {.size = sizeof(sums)};
	struct nvs_optimizer *own = within->optimizer;
	struct nvs_error error = {.size = sizeof(error)};
	float data[4] = {0};
	const int rc[CALLS] = {
		nvs_optimizer_lend_gradients(own, 0, NVS_F32, data, &error),
		nvs_optimizer_add_gradients(own, 0, 0, 4, NVS_F32, data, NULL, &error),
		nvs_optimizer_clear_gradients(own, &error),
		nvs_optimizer_sum_gradients(own, &sums, &error),
		nvs_optimizer_sum_groups(own, &sums.sum_squares, 1, &error),
		nvs_optimizer_step(own, NULL, NULL, &error),
		nvs_optimizer_get_info(own, &info, &error),
		nvs_optimizer_get_group_info(own, 0, &group, &error),
		nvs_optimizer_get(own, 0, NVS_MASTER, 0, 4, data, &error),
		nvs_optimizer_set(own, 0, NVS_MASTER, 0, 4, data, &error),
		nvs_optimizer_set_step(own, 7, &error),
		nvs_optimizer_get_weights(own, &error),
		nvs_optimizer_set_weights(own, &within->moved, 1, &error),
		nvs_optimizer_commit(own, &error),
		nvs_optimizer_close(own, &error),
		nvs_optimizer_abandon(own, &error),
		nvs_optimizer_export(own, NULL, NULL, NULL),
	};

	memcpy(within->rc, rc, sizeof(rc));
	within->loss_scale = nvs_optimizer_loss_scale(own);
	__atomic_fetch_add(&within->runs, 1, __ATOMIC_RELAXED);
}

static void update_that_calls(void *arg, const struct nvs_update *update)
{
	(void)update;
	call_all(arg);
}

static void weights_final_that_calls(void *arg, size_t group, uint64_t offset, uint64_t numel,
				     enum nvs_dtype dtype, const void *data)
{
	(void)group, (void)offset, (void)numel, (void)dtype, (void)data;
	call_all(arg);
}

static int state_that_calls(void *arg, const struct nvs_state_run *run)
{
	struct within *within = arg;

	(void)run;
	call_all(within);
	within->rc[CALLS - 1] = nvs_optimizer_export(within->optimizer, state_that_calls, arg,
						     NULL);
	return within->rc[CALLS - 1] ==
			       nvs_optimizer_import(within->optimizer, state_that_calls, arg, NULL)
		       ? 0
		       : -EIO;
}

/* The last call is one with a NULL function unless `all`. */
static void all_were_refused(struct within *within, bool all)
{
	assert_int_not_equal(within->runs, 0);
	for (size_t i = 0; i + !all < CALLS; i++)
		assert_int_equal(within->rc[i], -EDEADLK);
	assert_true(within->loss_scale == 1);
	*within = (struct within){.optimizer = within->optimizer};
}

static void begin_within(struct within *within, bool update)
{
	optim_renew(o, pair, LENGTH(pair));
	o->offload->device = NVS_DEVICE_CPU;
	o->config.optimizer_threads = 1;
	o->options = (struct nvs_optimizer_options){
		.size = sizeof(o->options),
		.update = update ? update_that_calls : NULL,
		.update_arg = within,
		.weights_final = update ? NULL : weights_final_that_calls,
		.weights_final_arg = within,
	};
	DONE(o, optim_open(o));
	*within = (struct within){.optimizer = o->optimizer};
}

TEST(calls_within_a_call_on_the_same_optimizer_are_refused)
{
	struct within within;

	for (unsigned update = 0; update < 2; update++) {
		begin_within(&within, update);
		optim_run(o, 1, 1);
		all_were_refused(&within, false);
		DOES(o, export, state_that_calls, &within);
		all_were_refused(&within, true);
		assert_int_equal(o->result.step, 1);
		/* It can be used as before. */
		optim_run(o, 2, 2);
		assert_int_equal(o->result.step, 2);
	}
}

TEST(a_step_without_gradients_changes_nothing)
{
	begin();
	optim_run(o, 1, 2);
	optim_save(o);
	for (unsigned i = 0; i < 3; i++) {
		DOES(o, step, NULL, &o->result);
		assert_int_equal(o->result.step, 2);
		assert_int_equal(o->result.tiles, 0);
		assert_false(o->result.skipped);
	}
	assert_true(o->result.norm == -1);
	o->result.norm = optim_saved.norm;
	IS_AS_SAVED(o);
	optim_run(o, 3, 3);
}

/* All ranks must use the same next loss scale, including one whose groups have no gradients. */
TEST(the_loss_scale_follows_other_ranks_without_gradients)
{
	struct nvs_gradient_sums sums = {.size = sizeof(sums), .sum_squares = INFINITY};
	const struct nvs_step_options options = {
		.size = sizeof(options), .lr = 1e-3, .sums = &sums};

	optim_renew(o, pair, LENGTH(pair));
	o->offload->device = NVS_DEVICE_CPU;
	o->config.fp16.enabled = true;
	o->config.fp16.hysteresis = 1;
	o->config.fp16.loss_scale_window = 2;
	DONE(o, optim_open(o));
	DOES(o, step, &options, &o->result);
	assert_true(o->result.skipped && o->result.step == 0);
	assert_true(nvs_optimizer_loss_scale(o->optimizer) == 32768);
	sums.sum_squares = 4;
	for (unsigned i = 0; i < 2; i++)
		DOES(o, step, &options, &o->result);
	assert_true(!o->result.skipped && o->result.step == 0);
	assert_true(nvs_optimizer_loss_scale(o->optimizer) == 65536);
}
