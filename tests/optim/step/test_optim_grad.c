/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients: lent, or added in pieces, also beyond the size of the pool; their norm, clipping and
 * loss scale. The expected numbers come from double arithmetic without the library.
 */
#include "config/config.h"
#include "optim/optim_fixture.h"
#include "support/tests.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>

ONE_OPTIMIZER

static const enum nvs_dtype dtypes[] = {NVS_F32, NVS_BF16, NVS_F16};

/* ---- Added gradients ---- */

static const struct group pair[] = {{"a", 12345, NVS_BF16}, {"b", 7001, NVS_F32}};

/* A range of a group to which elements are added. */
struct piece {
	size_t group;
	uint64_t offset, numel;
};

static struct piece random_piece(uint64_t *random)
{
	struct piece piece = {.group = below(random, o->n)};
	uint64_t numel = o->specs[piece.group].numel;

	piece.offset = below(random, numel);
	piece.numel = 1 + below(random, numel - piece.offset);
	return piece;
}

static void make_elements(enum nvs_dtype dtype, void *data, uint64_t series, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		element_put(dtype, data, i, element_rounded(dtype, element_value(series, i)));
}

static void add(struct optim *on, struct piece piece, enum nvs_dtype dtype, const void *data)
{
	uint64_t added = 0;

	DOES(on, add_gradients, piece.group, piece.offset, piece.numel, dtype, data, &added);
	assert_int_equal(added, piece.numel);
}

/* Sums in fp32 and rounds to the accumulating type. */
static void accumulate(enum nvs_dtype to, void *sums, struct piece piece, enum nvs_dtype from,
		       const void *data)
{
	for (uint64_t i = 0; i < piece.numel; i++) {
		float sum = (float)element_get(to, sums, piece.offset + i) +
			    (float)element_get(from, data, i);

		element_put(to, sums, piece.offset + i, element_rounded(to, (double)sum));
	}
}

/* Adds random, overlapping pieces, and accumulates the same in o->gradients. */
static void add_pieces(enum nvs_dtype from, uint64_t seed, unsigned n)
{
	enum nvs_dtype to = o->config.grad_accum_dtype;
	static float data[30000];

	o->gradients_dtype = to;
	for (size_t i = 0; i < o->n; i++)
		memset(o->gradients[i], 0, o->specs[i].numel * 4);
	for (unsigned k = 0; k < n + o->n; k++) {
		struct piece piece = random_piece(&seed);

		if (k >= n) /* finally each group as a whole */
			piece = (struct piece){k - n, 0, o->specs[k - n].numel};
		assert_true(piece.numel <= LENGTH(data));
		make_elements(from, data, seed, piece.numel);
		add(o, piece, from, data);
		accumulate(to, o->gradients[piece.group], piece, from, data);
	}
}

static void lend_again(struct optim *on)
{
	for (size_t i = 0; i < on->n; i++)
		DOES(on, lend_gradients, i, on->gradients_dtype, on->gradients[i]);
}

/* Compares a step with the gradients added to `o` with a step that lends the same ones. */
static void comes_to_the_same_as_lent(const struct group *groups)
{
	struct optim lent;

	DONE(o, optim_step(o, 1));
	optim_save(o);
	optim_init(&lent, groups, o->n);
	lent.offload->device = NVS_DEVICE_CPU;
	lent.config.gradient_clipping = o->config.gradient_clipping;
	lent.gradients_dtype = o->gradients_dtype;
	DONE(&lent, optim_open(&lent));
	for (size_t i = 0; i < o->n; i++)
		memcpy(lent.gradients[i], o->gradients[i], groups[i].numel * 4);
	lend_again(&lent);
	DONE(&lent, optim_step(&lent, 1));
	IS_AS_SAVED(&lent);
	optim_close(&lent);
}

TEST(gradients_beyond_the_pool_are_swapped)
{
	static const struct group groups[] = {
		{"a", 30000, NVS_BF16}, {"b", 29999, NVS_F32}, {"c", 25001, NVS_F16}};
	uint64_t seed = seed_of_run();

	for (unsigned way = 0; way < 4; way++) {
		struct nvs_engine_stats stats = {.size = sizeof(stats)};

		optim_renew(o, groups, 3);
		o->offload->pipeline_read = o->offload->pipeline_write = way & 1;
		o->config.gradient_clipping = way & 2 ? 0.5 : 0;
		o->config.verify = way == 3;
		DONE(o, optim_open(o));
		/* A pool of 120 kB for gradients of 340 kB. */
		add_pieces(NVS_BF16, seed + way, 20);
		nvs_engine_get_stats(nvs_optimizer_engine(o->optimizer), &stats);
		assert_true(stats.swapped_out > 100000);
		assert_true(stats.swapped_in > 0);
		comes_to_the_same_as_lent(groups);
		assert_true(o->result.io.read_bytes > 200000);
	}
}

static void nothing_added(struct piece piece, enum nvs_dtype dtype, int code)
{
	static float data[16];
	uint64_t added = 99;

	REFUSES(o, code, "", add_gradients, piece.group, piece.offset, piece.numel, dtype, data,
		&added);
	assert_int_equal(added, 0);
}

TEST(lent_and_added_gradients_are_not_mixed)
{
	static const struct piece first = {0, 5, 16};
	static float data[16];

	optim_begin(o, pair, 2);
	optim_run(o, 1, 1);
	optim_save(o);
	optim_lend(o, 2, 1);
	nothing_added(first, NVS_F32, -EBUSY);
	DOES(o, clear_gradients);
	add(o, first, NVS_F32, data);
	REFUSES(o, -EBUSY, "", lend_gradients, 0, NVS_F32, o->gradients[0]);
	/* Gradients of the other group can be lent. */
	DOES(o, lend_gradients, 1, NVS_F32, o->gradients[1]);
	/* After clearing, a step changes nothing. */
	DOES(o, clear_gradients);
	DONE(o, optim_step(o, 2));
	assert_int_equal(o->result.tiles, 0);
	assert_int_equal(o->result.io.read_bytes, 0);
	assert_int_equal(o->result.io.written_bytes, 0);
	optim_saved.norm = 0;
	IS_AS_SAVED(o);
}

TEST(gradients_outside_a_group_are_refused)
{
	static const struct piece outside[] = {{2, 0, 1},    {SIZE_MAX, 0, 1},	 {1, 7001, 1},
					       {1, 6999, 3}, {1, UINT64_MAX, 2}, {1, 3, UINT64_MAX},
					       {0, 0, 12346}};
	static const enum nvs_dtype wrong[] = {NVS_F64, NVS_I32, NVS_F8_E5M2, NVS_DTYPE_COUNT};

	optim_begin(o, pair, 2);
	for (size_t i = 0; i < LENGTH(outside); i++)
		nothing_added(outside[i], NVS_F32, -EINVAL);
	for (size_t i = 0; i < LENGTH(wrong); i++) {
		nothing_added((struct piece){0, 0, 1}, wrong[i], -EINVAL);
		REFUSES(o, -EINVAL, "", lend_gradients, 0, wrong[i], o->gradients[0]);
	}
	REFUSES(o, -EINVAL, "", lend_gradients, 2, NVS_F32, o->gradients[0]);
	/* The refused calls had no effect. */
	optim_run(o, 1, 1);
}

TEST(adding_nothing_needs_no_data)
{
	struct nvs_group_info info = {.size = sizeof(info)};
	uint64_t added = 99;

	optim_begin(o, pair, 2);
	DOES(o, add_gradients, 0, 12345, 0, NVS_F32, NULL, &added);
	assert_int_equal(added, 0);
	DOES(o, get_group_info, 0, &info);
	assert_int_equal(info.gradients, NVS_GRADIENTS_NONE);
	DONE(o, optim_step(o, 1));
	assert_int_equal(o->result.step, 0);
	/* Elements and the lent array are still needed. */
	REFUSES(o, -EINVAL, "no gradients", add_gradients, 0, 0, 1, NVS_F32, NULL, NULL);
	REFUSES(o, -EINVAL, "no gradients", lend_gradients, 0, NVS_F32, NULL);
	nothing_added((struct piece){0, 12346, 0}, NVS_F32, -EINVAL);
	/* A group without gradients accepts all ways to give them. */
	DOES(o, add_gradients, 0, 0, 0, NVS_F32, o->gradients[0], NULL);
	optim_run(o, 1, 1);
}

TEST(gradients_that_are_not_aligned_are_refused)
{
	const char *odd;

	optim_begin(o, pair, 2);
	odd = (const char *)o->gradients[0] + 1;
	REFUSES(o, -EINVAL, "aligned", lend_gradients, 0, NVS_BF16, odd);
	REFUSES(o, -EINVAL, "aligned", add_gradients, 0, 0, 1, NVS_F32, odd + 1, NULL);
}

/* ---- Norm and clipping ---- */

static const struct group small[] = {{"a", 3, NVS_F32}, {"b", 5, NVS_F32}};
#define SMALL 8

/* AdamW of lr 0.01, betas 0.9 and 0.95, eps 1e-8, weight_decay 0.1; clipped to 1.5. */
static const struct {
	double gradients[SMALL], norm, clip, state[3][SMALL];
} clipped[] = {
	{{0.5, -1.25, 2, -3, 0.125, 0, 1.5, -0.75},
	 4.2000744041028604,
	 0.35713644534446193,
	 {{0.489500001, -0.23975, 0.989, 0.00999999991, -1.5085, 1.998, 0.114875, -0.73925},
	  {0.0178568223, -0.0446420557, 0.0714272891, -0.107140934, 0.00446420557, 0, 0.0535704668,
	   -0.0267852334},
	  {0.00159433051, 0.00996456567, 0.0255092881, 0.0573958983, 9.96456567e-05, 0,
	   0.0143489746, 0.00358724364}}},
	{{-0.25, 0.5, 1, 2, -4, 8, 0.5, 0.25},
	 9.2533777616608734,
	 0.16210295056924348,
	 {{0.484067559, -0.234184432, 0.979734609, 0.0142921683, -1.50011278, 1.9886524,
	   0.106926592, -0.73293196},
	  {0.0120185663, -0.0320727026, 0.0804948552, -0.0640062501, -0.0608233952, 0.12968236,
	   0.0563185676, -0.0200541363},
	  {0.00159673075, 0.00979480447, 0.025547692, 0.0597815767, 0.0211165566, 0.0840875731,
	   0.0139599929, 0.00348999823}}},
	{{0.0625, -0.125, 0.25, 0.03125, -0.25, 0.125, 0.5, -0.5},
	 0.8131007394536055,
	 1,
	 {{0.47783571, -0.228210407, 0.970550384, 0.017462356, -1.49131472, 1.98032363,
	   0.0980776623, -0.724658408},
	  {0.0170667096, -0.0413654323, 0.0974453697, -0.0544806251, -0.0797410557, 0.129214124,
	   0.100686711, -0.0680487227},
	  {0.00171220671, 0.0100863142, 0.0273953074, 0.056841326, 0.0231857288, 0.0806644444,
	   0.0257619933, 0.0158154983}}},
};
static const double small_weights[SMALL] = {0.5, -0.25, 1, 0, -1.5, 2, 0.125, -0.75};

static size_t group_of(unsigned i, uint64_t *at)
{
	*at = i < 3 ? i : i - 3;
	return i < 3 ? 0 : 1;
}

static void small_init(void)
{
	optim_renew(o, small, 2);
	o->offload->device = NVS_DEVICE_CPU;
	o->config.adam.weight_decay = 0.1;
	o->config.adam.beta2 = 0.95;
	o->config.gradient_clipping = 1.5;
	for (unsigned i = 0; i < SMALL; i++) {
		uint64_t at;
		size_t group = group_of(i, &at);

		element_put(NVS_F32, o->specs[group].weights, at, small_weights[i]);
	}
}

static void small_lend(const double *gradients, double scale)
{
	for (unsigned i = 0; i < SMALL; i++) {
		uint64_t at;
		size_t group = group_of(i, &at);

		element_put(o->gradients_dtype, o->gradients[group], at, gradients[i] * scale);
	}
	lend_again(o);
}

static void small_is(const double due[3][SMALL])
{
	struct snapshot now;

	snapshot_take(o, &now);
	for (unsigned i = 0; i < SMALL; i++)
		for (int part = 0; part < 3; part++) {
			uint64_t at;
			size_t group = group_of(i, &at);

			element_near((double)now.parts[group][part][at], due[part][i],
				     1e-8 + 1e-6 * fabs(due[part][i]), "element", i);
		}
	snapshot_free(&now);
}

TEST(clipping_follows_the_table)
{
	const struct nvs_step_options options = {.size = sizeof(options), .lr = 0.01};

	for (int half = 0; half < 2; half++) { /* also with fp16 and a scale of 512 */
		small_init();
		o->gradients_dtype = half ? NVS_F16 : NVS_F32;
		o->config.fp16.enabled = half;
		o->config.fp16.loss_scale = 512;
		DONE(o, optim_open(o));
		assert_true(nvs_optimizer_loss_scale(o->optimizer) == (half ? 512 : 1));
		for (size_t i = 0; i < LENGTH(clipped); i++) {
			small_lend(clipped[i].gradients, half ? 512 : 1);
			DOES(o, step, &options, &o->result);
			element_near(o->result.norm, clipped[i].norm, 1e-13, "norm", i);
			element_near(o->result.clip, clipped[i].clip, 1e-13, "clip", i);
			assert_true(o->result.loss_scale == (half ? 512 : 1));
			small_is(clipped[i].state);
		}
	}
}

/* Lent to some groups, added to others, of lengths that leave a block part empty. */
TEST(each_groups_squares_are_summed)
{
	static const struct group groups[] = {
		{"a", 3, NVS_F32}, {"b", 5000, NVS_BF16}, {"c", 40000, NVS_F32}, {"d", 1, NVS_F32}};
	const float added = 0.5f;
	double sums[4], expected[4] = {0};

	optim_begin(o, groups, 4);
	for (size_t i = 0; i < 3; i++) {
		for (uint64_t k = 0; k < groups[i].numel; k++) {
			float value = (float)(k % 7 + i);

			element_put(NVS_F32, o->gradients[i], k, value);
			expected[i] += (double)value * value;
		}
		if (i == 1)
			DOES(o, lend_gradients, i, NVS_F32, o->gradients[i]);
		else
			DOES(o, add_gradients, i, 0, groups[i].numel, NVS_F32, o->gradients[i],
			     NULL);
	}
	DOES(o, sum_groups, sums, 4);
	for (size_t i = 0; i < 4; i++)
		assert_true(sums[i] == expected[i]);
	/* The first element of `c` is 2. */
	DOES(o, add_gradients, 2, 0, 1, NVS_F32, &added, NULL);
	DOES(o, sum_groups, sums, 4);
	assert_true(sums[2] == expected[2] - 4 + 6.25);
	REFUSES(o, -EINVAL, "there are 4 groups", sum_groups, sums, 3);
}

TEST(the_norm_is_computed_on_request)
{
	struct nvs_step_options options = {.size = sizeof(options), .lr = 0.01, .norm = true};
	struct nvs_gradient_sums sums = {.size = sizeof(sums)};

	small_init();
	o->config.gradient_clipping = 0;
	DONE(o, optim_open(o));
	small_lend(clipped[0].gradients, 1);
	DOES(o, sum_gradients, &sums);
	assert_true(sums.sum_squares == 17.640625);
	DOES(o, step, &options, &o->result);
	element_near(o->result.norm, clipped[0].norm, 1e-13, "norm", 0);
	assert_true(o->result.clip == 1);
	small_lend(clipped[1].gradients, 1);
	options.norm = false;
	DOES(o, step, &options, &o->result);
	assert_true(o->result.norm == -1);
	assert_true(o->result.clip == 1);
	/* Without gradients. */
	DOES(o, sum_gradients, &sums);
	assert_true(sums.sum_squares == 0);
}

/* Multiples of 1/8, whose squares add up exactly in any order. */
static void lend_eighths(struct optim *on, size_t first, uint64_t step)
{
	for (size_t i = 0; i < on->n; i++)
		for (uint64_t j = 0; j < on->specs[i].numel; j++)
			element_put(NVS_F32, on->gradients[i], j,
				    rint(64 * element_value(step * 16 + first + i, j)) / 8);
	lend_again(on);
}

TEST(sums_of_all_ranks_clip_as_one)
{
	struct optim whole, ranks[2];
	struct nvs_gradient_sums sums = {.size = sizeof(sums)};

	optim_init(&whole, pair, 2);
	whole.config.gradient_clipping = 3;
	DONE(&whole, optim_open(&whole));
	for (unsigned r = 0; r < 2; r++) {
		optim_init(&ranks[r], &pair[r], 1);
		ranks[r].config.gradient_clipping = 3;
		ranks[r].config.rank = r;
		memcpy(ranks[r].specs[0].weights, whole.specs[r].weights,
		       pair[r].numel * nvs_dtype_size(pair[r].dtype));
		DONE(&ranks[r], optim_open(&ranks[r]));
	}
	for (uint64_t step = 1; step <= 2; step++) {
		double sum = 0;
		struct nvs_step_options options = {
			.size = sizeof(options), .lr = 1e-3, .sums = &sums};

		lend_eighths(&whole, 0, step);
		DOES(&whole, step,
		     &(struct nvs_step_options){.size = sizeof(struct nvs_step_options),
						.lr = 1e-3},
		     &whole.result);
		for (unsigned r = 0; r < 2; r++) {
			lend_eighths(&ranks[r], r, step);
			DOES(&ranks[r], sum_gradients, &sums);
			sum += sums.sum_squares;
		}
		sums.sum_squares = sum;
		for (unsigned r = 0; r < 2; r++) {
			DOES(&ranks[r], step, &options, &ranks[r].result);
			assert_true(ranks[r].result.norm == whole.result.norm);
			assert_true(ranks[r].result.clip == whole.result.clip);
		}
		assert_true(whole.result.norm == sqrt(sum));
		assert_true(whole.result.clip < 1);
	}
	for (unsigned r = 0; r < 2; r++) {
		struct snapshot all, one;

		snapshot_take(&whole, &all);
		snapshot_take(&ranks[r], &one);
		for (int part = 0; part < 3; part++)
			assert_memory_equal(all.parts[r][part], one.parts[0][part],
					    pair[r].numel * 4);
		assert_memory_equal(all.weights[r], one.weights[0], pair[r].numel * one.width[0]);
		snapshot_free(&all);
		snapshot_free(&one);
		optim_close(&ranks[r]);
	}
	optim_close(&whole);
}

/* ---- Loss scale ---- */

TEST(scale_by_two_changes_no_bit)
{
	for (int fp16 = 0; fp16 < 2; fp16++) {
		optim_renew(o, pair, 2);
		o->config.fp16.enabled = fp16;
		o->config.fp16.loss_scale = 4096;
		DONE(o, optim_open(o));
		for (uint64_t step = 1; step <= 2; step++) {
			optim_lend(o, step, nvs_optimizer_loss_scale(o->optimizer));
			DONE(o, optim_step(o, step));
			assert_true(o->result.loss_scale == (fp16 ? 4096 : 1));
		}
		if (fp16)
			IS_AS_SAVED(o);
		else
			optim_save(o);
	}
}

/* In an odd group and others: at the ends, at borders of tiles and vectors, at the last element. */
TEST(a_gradient_that_is_not_finite_skips_the_step)
{
	static const struct group groups[] = {
		{"a", 4099, NVS_F16}, {"b", 1, NVS_F32}, {"c", 2050, NVS_BF16}};
	static const struct {
		size_t group;
		uint64_t at;
	} places[] = {{0, 0},	 {0, 7}, {0, 1023}, {0, 1024}, {0, 4095},
		      {0, 4098}, {1, 0}, {2, 0},    {2, 2047}, {2, 2049}};
	static const double values[] = {INFINITY, -INFINITY, NAN};
	struct nvs_engine_stats before = {.size = sizeof(before)}, after = {.size = sizeof(after)};

	optim_renew(o, groups, 3);
	o->config.fp16.enabled = true;
	o->config.fp16.loss_scale = 8;
	o->config.optimizer_max_in_cpu = 1024;
	o->offload->ratio = 0.9;
	optim_open_run(o, 1);
	optim_save(o);
	nvs_engine_get_stats(nvs_optimizer_engine(o->optimizer), &before);
	for (size_t i = 0; i < 3 * LENGTH(places); i++) {
		size_t group = places[i / 3].group;

		o->gradients_dtype = dtypes[(i + i / 3) % 3];
		optim_lend(o, 2, 1);
		element_put(o->gradients_dtype, o->gradients[group], places[i / 3].at,
			    values[i % 3]);
		DONE(o, optim_step(o, 2));
		assert_true(o->result.skipped && !isfinite(o->result.norm));
		assert_int_equal(o->result.step, 1);
		assert_int_equal(o->result.tiles, 0);
		assert_int_equal(o->result.io.written_bytes, 0);
		assert_true(o->result.loss_scale == 8);
		assert_true(nvs_optimizer_loss_scale(o->optimizer) == 8);
		o->result.norm = optim_saved.norm;
		if (i % 5 == 0 || i == 29)
			IS_AS_SAVED(o);
	}
	nvs_engine_get_stats(nvs_optimizer_engine(o->optimizer), &after);
	assert_int_equal(after.swapped_out, before.swapped_out);
}

/* 60000 + 60000 overflows fp16, although each number fits. */
TEST(a_sum_that_overflows_skips_the_step)
{
	float much = 60000;

	optim_renew(o, pair, 2);
	o->config.fp16.enabled = true;
	o->config.fp16.loss_scale = 1;
	o->config.grad_accum_dtype = NVS_F16;
	DONE(o, optim_open(o));
	for (int micro = 0; micro < 2; micro++)
		add(o, (struct piece){0, 12344, 1}, NVS_F32, &much);
	DONE(o, optim_step(o, 1));
	assert_true(o->result.skipped);
	add(o, (struct piece){0, 12344, 1}, NVS_F32, &much);
	DONE(o, optim_step(o, 1));
	assert_false(o->result.skipped);
	element_near(o->result.norm, 60000, 32, "norm", 0);
}

TEST(an_overflow_of_another_rank_skips_the_step)
{
	static const double values[] = {INFINITY, NAN};

	optim_renew(o, pair, 2);
	o->config.fp16.enabled = true;
	o->config.fp16.initial_scale_power = 5;
	o->config.fp16.hysteresis = 1;
	optim_open_run(o, 1);
	optim_save(o);
	for (int i = 0; i < 2; i++) {
		struct nvs_gradient_sums sums = {sizeof(sums), values[i]};
		struct nvs_step_options options = {
			.size = sizeof(options), .lr = 1e-3, .sums = &sums};

		optim_lend(o, 2, 1);
		DOES(o, step, &options, &o->result);
		assert_true(o->result.skipped);
		assert_true(nvs_optimizer_loss_scale(o->optimizer) == (i ? 8 : 16));
		o->result.norm = optim_saved.norm;
		IS_AS_SAVED(o);
	}
}
