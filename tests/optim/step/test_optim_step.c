/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of the optimizer: they follow Adam, compute the same bits however state is tiled, cached
 * and moved, and move no more bytes than necessary. Also refused settings, the caller's update
 * functions, and weights that the caller changes.
 */
#include "config/config.h"
#include "optim/optim_fixture.h"
#include "support/tests.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>

ONE_OPTIMIZER

static const enum nvs_dtype dtypes[] = {NVS_F32, NVS_BF16, NVS_F16};

/* ---- Adam ---- */

static struct {
	double master[4][5001], exp_avg[4][5001], exp_avg_sq[4][5001];
} reference;

static void reference_init(void)
{
	memset(&reference, 0, sizeof(reference));
	for (size_t i = 0; i < o->n; i++)
		for (uint64_t j = 0; j < o->specs[i].numel; j++)
			reference.master[i][j] = element_get(o->specs[i].dtype, o->specs[i].weights,
							     j);
}

static bool decoupled(const struct optimizer_config *adam)
{
	return adam->adam_w_mode || !strcmp(adam->type, "AdamW");
}

/* The formulas of the papers, in double. */
static void reference_step(size_t group, uint64_t step)
{
	const struct optimizer_config *adam = &o->config.adam;
	double lr = optim_lr(step);
	double c1 = adam->bias_correction ? 1 - pow(adam->beta1, (double)step) : 1;
	double c2 = adam->bias_correction ? 1 - pow(adam->beta2, (double)step) : 1;

	for (uint64_t i = 0; i < o->specs[group].numel; i++) {
		double *w = &reference.master[group][i];
		double *m = &reference.exp_avg[group][i], *v = &reference.exp_avg_sq[group][i];
		double g = element_get(o->gradients_dtype, o->gradients[group], i);

		if (decoupled(adam))
			*w *= 1 - lr * adam->weight_decay;
		else
			g += adam->weight_decay * *w;
		*m = adam->beta1 * *m + (1 - adam->beta1) * g;
		*v = adam->beta2 * *v + (1 - adam->beta2) * g * g;
		*w -= lr * (*m / c1) / (sqrt(*v / c2) + adam->eps);
	}
}

/*
 * Compares within the rounding errors of `steps` fp32 steps; the weights must be the rounded master
 * weights exactly.
 */
static void is_near(unsigned steps)
{
	double bits = 0x1p-23 * steps;
	struct snapshot now;

	snapshot_take(o, &now);
	for (size_t i = 0; i < o->n; i++)
		for (uint64_t j = 0; j < now.numel[i]; j++) {
			enum nvs_dtype dtype = o->specs[i].dtype;
			double w = (double)now.parts[i][NVS_MASTER][j];
			double m = reference.exp_avg[i][j], v = reference.exp_avg_sq[i][j];

			element_near(w, reference.master[i][j], bits * (fabs(w) + 1e-3 * 32),
				     "master", j);
			element_near((double)now.parts[i][NVS_EXP_AVG][j], m, bits * (1 + fabs(m)),
				     "exp_avg", j);
			element_near((double)now.parts[i][NVS_EXP_AVG_SQ][j], v,
				     4 * bits * (v + 0.01 * sqrt(v)), "exp_avg_sq", j);
			element_near(element_get(dtype, now.weights[i], j),
				     element_rounded(dtype, w), 0, "weight", j);
		}
	snapshot_free(&now);
}

static double reference_norm(void)
{
	double sum = 0;

	for (size_t i = 0; i < o->n; i++)
		for (uint64_t j = 0; j < o->specs[i].numel; j++) {
			double g = element_get(o->gradients_dtype, o->gradients[i], j);

			sum += g * g;
		}
	return sqrt(sum);
}

static void follow(unsigned steps)
{
	reference_init();
	DONE(o, optim_open(o));
	for (uint64_t step = 1; step <= steps; step++) {
		optim_lend(o, step, 1);
		for (size_t i = 0; i < o->n; i++)
			reference_step(i, step);
		DONE(o, optim_step(o, step));
		element_near(o->result.norm, reference_norm(), 1e-12 * o->result.norm, "norm",
			     step);
		assert_true(o->result.clip == 1 && o->result.loss_scale == 1);
		assert_true(!o->result.skipped && o->result.step == step);
	}
	is_near(steps);
}

TEST(every_type_follows_adam_in_double)
{
	static const uint64_t numel[] = {1, 1023, 2500, 4097};

	for (size_t g = 0; g < 3; g++)
		for (size_t w = 0; w < 3; w++) {
			struct group groups[4];

			for (size_t i = 0; i < 4; i++)
				groups[i] = (struct group){(const char *[]){"a", "b", "c", "d"}[i],
							   numel[i], dtypes[(w + i) % 3]};
			optim_renew(o, groups, 4);
			o->offload->device = NVS_DEVICE_CPU;
			o->gradients_dtype = dtypes[g];
			follow(4);
		}
}

TEST(every_kind_of_adam_is_followed)
{
	static const struct group groups[] = {{"a", 3001, NVS_F32}, {"b", 777, NVS_BF16}};

	for (unsigned kind = 0; kind < 8; kind++) {
		optim_renew(o, groups, 2);
		o->offload->device = NVS_DEVICE_CPU;
		snprintf(o->config.adam.type, sizeof(o->config.adam.type), "%s",
			 kind & 1 ? "AdamW" : "Adam");
		o->config.adam.adam_w_mode = kind & 2;
		o->config.adam.bias_correction = kind & 4;
		o->config.adam.weight_decay = 0.1;
		o->config.adam.beta1 = 0.8;
		o->config.adam.beta2 = 0.95;
		o->config.adam.eps = 1e-6;
		follow(5);
	}
}

TEST(many_steps_stay_near)
{
	static const struct group groups[] = {{"a", 2049, NVS_BF16}};

	optim_renew(o, groups, 1);
	o->offload->device = NVS_DEVICE_CPU;
	o->gradients_dtype = NVS_BF16;
	follow(100);
}

/* ---- The same bits ---- */

#define STEPS 3

static const struct group five[] = {{"layers.0", 20001, NVS_BF16},
				    {"layers.1", 9999, NVS_F16},
				    {"norm", 1, NVS_F32},
				    {"layers.2", 14337, NVS_BF16},
				    {"head", 4096, NVS_F32}};

/* The state that all variants below must compute. */
static const struct snapshot *due(void)
{
	return optim_straight(five, LENGTH(five), STEPS);
}

/* What differs from the settings of optim_init(); 0 of a number leaves it. */
static const struct variant {
	const char *what;
	uint64_t cached; /* elements that stay in memory */
	unsigned buffers, longer_tiles, threads;
	uint32_t block_size;
	double in_memory; /* share that is not offloaded */
	enum nvs_ioengine ioengine;
	unsigned drives; /* directories on a file system with O_DIRECT, mostly */
	bool one_by_one_reads, one_by_one_writes, slow_init, verify, keep, in_order;
} variants[] = {
	{"both pipelines", .threads = 2},
	{"both pipelines, written at the start", .slow_init = true},
	{"reads one by one", .one_by_one_reads = true},
	{"reads one by one, written at the start", .one_by_one_reads = true, .slow_init = true},
	{"writes one by one", .one_by_one_writes = true},
	{"writes one by one, written at the start", .one_by_one_writes = true, .slow_init = true},
	{"no pipeline", .one_by_one_reads = true, .one_by_one_writes = true},
	{"no pipeline, written at the start", .one_by_one_reads = true, .one_by_one_writes = true,
	 .slow_init = true},
	{"a cache of 1", .cached = 1, .slow_init = true},
	{"a cache of 5000", .cached = 5000},
	{"a cache of 20480", .cached = 20480, .slow_init = true, .one_by_one_writes = true},
	{"a cache of all", .cached = 48434},
	{"a cache of more than all", .cached = 1000000, .slow_init = true},
	{"2 buffers", .buffers = 2, .block_size = 1 << 20},
	{"3 buffers", .buffers = 3, .longer_tiles = 1111, .block_size = 4096},
	{"7 buffers", .buffers = 7, .longer_tiles = 2222, .block_size = 1 << 20},
	{"40 buffers", .buffers = 40, .longer_tiles = 3333, .block_size = 4096},
	{"1 thread", .threads = 1},
	{"3 threads", .threads = 3},
	{"4 threads", .threads = 4},
	{"all in memory", .in_memory = 1, .slow_init = true},
	{"0.7 in memory", .in_memory = 0.7},
	{"half in memory, with a cache", .in_memory = 0.5, .cached = 10000, .slow_init = true},
	{"hardly any in memory", .in_memory = 0.001},
	{"in order", .in_order = true},
	{"in order, with a cache", .in_order = true, .cached = 10000, .in_memory = 0.3},
	{"checksums", .verify = true},
	{"checksums, kept", .verify = true, .keep = true},
	{"io_uring", .ioengine = NVS_IOENGINE_IO_URING},
	{"libaio", .ioengine = NVS_IOENGINE_LIBAIO},
	{"posix", .ioengine = NVS_IOENGINE_POSIX},
	{"a drive", .drives = 1},
	{"stripes", .drives = 2},
};

static void vary(const struct variant *variant, char *drives[2])
{
	struct nvs_config *config = &o->config;
	struct offload_config *offload = &config->offload[NVS_OFFLOAD_OPTIMIZER];

	offload->pipeline_read = !variant->one_by_one_reads;
	offload->pipeline_write = !variant->one_by_one_writes;
	offload->fast_init = !variant->slow_init;
	offload->ratio = 1 - variant->in_memory;
	offload->buffer_count = variant->buffers ? variant->buffers : offload->buffer_count;
	config->sub_group_size += variant->longer_tiles;
	config->optimizer_max_in_cpu = variant->cached;
	config->overlap_step = variant->in_order;
	config->optimizer_threads = variant->threads ? variant->threads : 2;
	config->aio.thread_count = variant->threads > 2 ? 2 : 1;
	config->aio.ioengine = variant->ioengine;
	if (variant->block_size)
		config->aio.block_size = variant->block_size;
	config->verify = variant->verify;
	config->keep = variant->keep;
	if (variant->drives > 1)
		config->stripe_size = 8192;
	for (unsigned i = 0; i < variant->drives; i++)
		assert_non_null(drives[i] = place_make(PLACE_DISK));
	if (variant->drives)
		DONE(o, nvs_config_set_paths(config, NVS_OFFLOAD_OPTIMIZER,
					     (const char *const *)(uintptr_t)drives,
					     variant->drives, &o->error));
}

TEST(every_setting_computes_the_same_bits)
{
	for (size_t i = 0; i < LENGTH(variants); i++) {
		char *drives[2] = {NULL};
		int rc;

		print_message("%s\n", variants[i].what);
		optim_renew(o, five, LENGTH(five));
		vary(&variants[i], drives);
		rc = optim_open(o);
		if (rc == -ENOTSUP && variants[i].ioengine) {
			print_message("%s\n", o->error.text);
			optim_close(o);
			continue;
		}
		DONE(o, rc);
		optim_run(o, 1, STEPS);
		IS_AS(o, due());
		assert_int_equal(o->result.threads, o->config.optimizer_threads);
		assert_true(o->result.cpu_ns > 0);
		assert_true(!strcmp(o->result.kernel, "avx512") ||
			    !strcmp(o->result.kernel, "avx2") ||
			    !strcmp(o->result.kernel, "plain"));
		optim_close(o);
		place_leave(drives[0]);
		place_leave(drives[1]);
	}
}

/* ---- Bytes moved ---- */

#define STATE_BYTES 12 /* of each element */

/* Multiples of all tile lengths of the pools below. */
static const struct group even[] = {
	{"a", 32768, NVS_BF16}, {"b", 20480, NVS_F32}, {"c", 14336, NVS_BF16}};
#define EVEN 67584

static void moved_since(const struct nvs_engine_stats *before, uint64_t read, uint64_t written)
{
	struct nvs_engine_stats after = {.size = sizeof(after)};

	nvs_engine_get_stats(nvs_optimizer_engine(o->optimizer), &after);
	assert_int_equal(after.swapped_in - before->swapped_in, read);
	assert_int_equal(after.swapped_out - before->swapped_out, written);
}

/*
 * A step with gradients of the groups in `mask` must read and write the state of that many
 * elements.
 */
static void step_moves(uint64_t step, unsigned mask, uint64_t read, uint64_t written)
{
	struct nvs_engine_stats before = {.size = sizeof(before)};

	nvs_engine_get_stats(nvs_optimizer_engine(o->optimizer), &before);
	optim_lend(o, step, 1);
	if (mask != UINT32_MAX)
		DOES(o, clear_gradients);
	for (size_t i = 0; mask != UINT32_MAX && i < o->n; i++)
		if (mask & 1u << i)
			DOES(o, lend_gradients, i, o->gradients_dtype, o->gradients[i]);
	DONE(o, optim_step(o, step));
	assert_int_equal(o->result.io.read_bytes, read * STATE_BYTES);
	assert_int_equal(o->result.io.written_bytes, written * STATE_BYTES);
	moved_since(&before, read * STATE_BYTES, written * STATE_BYTES);
	assert_true(o->result.io.io_ns <= o->result.io.wall_ns);
	assert_true(o->result.io.hidden_ns <= o->result.io.io_ns);
	assert_true(o->result.io.hidden_ns <= o->result.io.compute_ns);
}

TEST(a_step_moves_the_state_once)
{
	for (unsigned way = 0; way < 4; way++) {
		optim_renew(o, even, 3);
		o->offload->pipeline_read = way & 1;
		o->offload->pipeline_write = way & 2;
		DONE(o, optim_open(o));
		step_moves(1, UINT32_MAX, 0, EVEN);
		for (uint64_t step = 2; step <= 3; step++) {
			step_moves(step, UINT32_MAX, EVEN, EVEN);
			assert_int_equal(o->result.tiles, EVEN / 1024);
			assert_int_equal(o->result.io.hits, 0);
			assert_int_equal(o->result.io.misses, EVEN / 1024);
		}
	}
}

TEST(fast_init_writes_nothing_at_the_start)
{
	const struct nvs_engine_stats none = {.size = sizeof(none)};

	for (int fast = 0; fast < 2; fast++) {
		optim_renew(o, even, 3);
		o->offload->fast_init = fast;
		DONE(o, optim_open(o));
		moved_since(&none, 0, fast ? 0 : EVEN * STATE_BYTES);
		step_moves(1, UINT32_MAX, fast ? 0 : EVEN, EVEN);
	}
}

TEST(resident_state_is_not_moved)
{
	static const uint64_t cached[] = {16384, 33792, EVEN, 4 * EVEN};

	for (size_t i = 0; i < 4 * LENGTH(cached); i++) {
		uint64_t resident = cached[i / 4] < EVEN ? cached[i / 4] : EVEN;
		uint64_t moved = EVEN - resident;

		optim_renew(o, even, 3);
		o->config.optimizer_max_in_cpu = cached[i / 4];
		o->config.overlap_step = i & 2;
		o->offload->pipeline_read = o->offload->pipeline_write = i % 2;
		DONE(o, optim_open(o));
		step_moves(1, UINT32_MAX, 0, moved);
		for (uint64_t step = 2; step <= 5; step++) {
			step_moves(step, UINT32_MAX, moved, moved);
			assert_int_equal(o->result.io.hits + o->result.io.misses, o->result.tiles);
			assert_int_equal(o->result.io.hits * EVEN, resident * o->result.tiles);
		}
	}
}

static void see_group(void *arg, size_t group, uint64_t offset, uint64_t numel,
		      enum nvs_dtype dtype, const void *data)
{
	static const uint64_t begins[] = {0, 32768, 53248};
	uint64_t *next = arg; /* the place of an element among those of all groups */

	(void)dtype;
	(void)data;
	if (*next == begins[group] + offset)
		*next += numel;
}

TEST(with_overlap_step_weights_are_final_in_the_order_of_the_groups)
{
	for (unsigned i = 0; i < 4; i++) {
		uint64_t next;

		optim_renew(o, even, 3);
		o->config.overlap_step = true;
		o->config.optimizer_threads = 1;
		o->config.optimizer_max_in_cpu = i & 1 ? 16384 : 0;
		o->config.keep = i & 2;
		o->options.weights_final = see_group;
		o->options.weights_final_arg = &next;
		DONE(o, optim_open(o));
		for (uint64_t step = 1; step <= 4; step++) {
			next = 0;
			optim_run(o, step, step);
			assert_int_equal(next, EVEN);
		}
	}
}

/* Groups end within tiles: less than a tile is not cached, and the ends of groups are moved too. */
#define SLACK (4096 + 5 * 1024)

TEST(odd_groups_are_cached_to_the_tile)
{
	static const uint64_t cached = 30000, all = 48434;

	optim_renew(o, five, LENGTH(five));
	o->config.optimizer_max_in_cpu = cached;
	optim_open_run(o, 2);
	for (uint64_t step = 3; step <= 4; step++) {
		optim_run(o, step, step);
		assert_true(o->result.io.read_bytes >= (all - cached) * STATE_BYTES);
		assert_true(o->result.io.read_bytes <= (all - cached + SLACK) * STATE_BYTES);
		assert_true(o->result.io.written_bytes >= (all - cached) * STATE_BYTES);
		assert_true(o->result.io.written_bytes <= (all - cached + SLACK) * STATE_BYTES);
	}
}

TEST(state_that_is_not_offloaded_is_not_moved)
{
	static const struct group equal[] = {{"a", 8192, NVS_F32},
					     {"b", 8192, NVS_F32},
					     {"c", 8192, NVS_F32},
					     {"d", 8192, NVS_F32}};
	const struct nvs_engine_stats none = {.size = sizeof(none)};

	for (uint64_t groups = 0; groups <= 4; groups++) {
		optim_renew(o, equal, 4);
		o->offload->ratio = (double)groups / 4;
		o->offload->fast_init = false;
		DONE(o, optim_open(o));
		moved_since(&none, 0, 8192 * groups * STATE_BYTES);
		for (uint64_t step = 1; step <= 2; step++)
			step_moves(step, UINT32_MAX, 8192 * groups, 8192 * groups);
	}
}

TEST(groups_without_gradients_cost_nothing)
{
	struct snapshot before, after;

	optim_begin(o, even, 3);
	step_moves(1, UINT32_MAX, 0, EVEN);
	snapshot_take(o, &before);
	step_moves(2, 1u << 0 | 1u << 2, 32768 + 14336, 32768 + 14336);
	snapshot_take(o, &after);
	assert_memory_equal(before.weights[1], after.weights[1], 20480 * 4);
	for (int part = 0; part < 3; part++) {
		assert_memory_equal(before.parts[1][part], after.parts[1][part], 20480 * 4);
		assert_memory_not_equal(before.parts[0][part], after.parts[0][part], 32768 * 4);
	}
	snapshot_free(&before);
	snapshot_free(&after);
	step_moves(3, 1u << 1, 20480, 20480);
}

struct order {
	size_t first, last;
	unsigned runs;
};

static void take_order(void *arg, const struct nvs_update *update)
{
	struct order *order = arg;

	if (!order->runs++)
		order->first = update->group;
	order->last = update->group;
}

TEST(steps_alternate_their_direction)
{
	struct order order;

	optim_renew(o, even, 3);
	o->config.optimizer_threads = 1;
	o->config.optimizer_max_in_cpu = 16384;
	o->options = (struct nvs_optimizer_options){.size = sizeof(struct nvs_optimizer_options),
						    .update = take_order,
						    .update_arg = &order};
	DONE(o, optim_open(o));
	for (uint64_t step = 1; step <= 4; step++) {
		order = (struct order){0};
		optim_run(o, step, step);
		assert_int_equal(order.first, step % 2 ? 0 : 2);
		assert_int_equal(order.last, step % 2 ? 2 : 0);
	}
}

struct taken {
	struct nvs_update last;
	unsigned char times[20001]; /* that each element was updated */
};

static void take_update(void *arg, const struct nvs_update *update)
{
	struct taken *taken = arg;
	const float *lent = (const float *)o->gradients[update->group] + update->offset;

	MUST(update->numel <= sizeof(taken->times) - update->offset);
	MUST(!memcmp(update->gradients, lent, update->numel * sizeof(*lent)));
	for (uint64_t i = 0; i < update->numel; i++)
		taken->times[update->offset + i]++;
	taken->last = *update;
}

TEST(the_callers_update_has_each_element_once_and_the_rate_of_the_step_or_the_configured_one)
{
	static const struct group one[] = {{"a", 20001, NVS_F32}};
	struct nvs_step_options options = {.size = sizeof(options)};
	static struct taken taken;

	optim_renew(o, one, 1);
	o->config.adam.lr = 0.25;
	o->config.optimizer_threads = 1;
	o->options.update = take_update;
	o->options.update_arg = &taken;
	DONE(o, optim_open(o));
	for (uint64_t step = 1; step <= 3; step++) {
		options.lr = step == 3 ? 0.0625 : -1;
		optim_lend(o, step, 1);
		DOES(o, step, step == 1 ? NULL : &options, &o->result);
		assert_true(taken.last.step == step);
		assert_true(taken.last.lr == (step == 3 ? 0.0625 : 0.25));
		assert_string_equal(o->result.kernel, "caller");
		for (size_t i = 0; i < sizeof(taken.times); i++)
			assert_int_equal(taken.times[i], step);
	}
}

/* ---- Weights that the caller changes ---- */

static void change_weights(struct optim *taking, struct optim *set, uint64_t step)
{
	float masters[20001];

	for (size_t i = 0; i < set->n; i++) {
		const struct nvs_group_spec *spec = &taking->specs[i];

		DOES(set, get, i, NVS_MASTER, 0, spec->numel, masters);
		for (uint64_t j = 0; j < spec->numel; j += 3) {
			double value = (double)(j % 7) * 0.25 + (double)step;

			if (element_get(spec->dtype, spec->weights, j) != value)
				masters[j] = (float)value;
			element_put(spec->dtype, spec->weights, j, value);
		}
		DOES(set, set, i, NVS_MASTER, 0, spec->numel, masters);
	}
}

static void subtract_gradients(void *arg, const struct nvs_update *update)
{
	(void)arg;
	for (uint64_t i = 0; i < update->numel; i++)
		update->master[i] -= update->gradients[i] / 8;
}

static void are_taken(const struct group *groups, size_t n, const char *type,
		      enum nvs_optimizer_state format, nvs_update_fn *update)
{
	struct optim taking, set;

	optim_init(&taking, groups, n);
	optim_init(&set, groups, n);
	taking.options.take_weights = true;
	strcpy(taking.config.adam.type, type);
	strcpy(set.config.adam.type, type);
	taking.options.update = set.options.update = update;
	taking.config.optimizer_state = set.config.optimizer_state = format;
	DONE(&taking, optim_open(&taking));
	DONE(&set, optim_open(&set));
	for (uint64_t step = 1; step <= 3; step++) {
		optim_run(&taking, step, step);
		optim_run(&set, step, step);
		IS_LIKE(&taking, &set);
		change_weights(&taking, &set, step);
	}
	optim_close(&taking);
	optim_close(&set);
}

/* Those that are as the last step wrote them leave their masters the bits that a weight has not. */
TEST(weights_that_the_caller_has_changed_become_masters_with_take_weights)
{
	static const char *const types[] = {"AdamW", "SGD", "Adagrad", "Lion"};

	for (size_t i = 0; i < LENGTH(types); i++)
		are_taken(five, LENGTH(five), types[i], NVS_STATE_FP32, NULL);
	are_taken(five, LENGTH(five), "", NVS_STATE_FP32, subtract_gradients);
	/* Groups of F16 and F32, whose masters are whole. */
	are_taken(five + 1, 2, "AdamW", NVS_STATE_BF16, NULL);
	are_taken(five + 1, 2, "AdamW", NVS_STATE_BF16, subtract_gradients);
}

TEST(state_begins_with_the_weights_and_zeros)
{
	struct snapshot now;

	for (int fast = 0; fast < 2; fast++) {
		void *left_out;

		optim_renew(o, five, LENGTH(five));
		o->offload->fast_init = fast;
		left_out = o->specs[3].weights;
		o->specs[3].weights = NULL;
		DONE(o, optim_open(o));
		snapshot_take(o, &now);
		for (size_t i = 0; i < o->n; i++)
			for (uint64_t j = 0; j < now.numel[i]; j++) {
				double w = i == 3 ? 0
						  : element_rounded(five[i].dtype,
								    element_value(1000 + i, j));

				assert_true((double)now.parts[i][NVS_MASTER][j] == w);
				assert_true(now.parts[i][NVS_EXP_AVG][j] == 0);
				assert_true(now.parts[i][NVS_EXP_AVG_SQ][j] == 0);
			}
		snapshot_free(&now);
		optim_run(o, 1, 2);
		o->specs[3].weights = left_out;
	}
}

TEST(state_outside_a_group_is_refused)
{
	static float data[4096];

	optim_begin(o, five, LENGTH(five));
	for (int set = 0; set < 2; set++) {
		static const struct {
			size_t group;
			int part;
			uint64_t offset, numel;
		} wrong[] = {{5, NVS_MASTER, 0, 1},
			     {SIZE_MAX, NVS_MASTER, 0, 1},
			     {4, 3, 0, 1},
			     {4, NVS_EXP_AVG, 4096, 1},
			     {4, NVS_EXP_AVG, 1, 4096},
			     {4, NVS_EXP_AVG_SQ, UINT64_MAX, 2},
			     {4, NVS_EXP_AVG_SQ, 2, UINT64_MAX}};

		for (size_t i = 0; i < LENGTH(wrong); i++) {
			enum nvs_optimizer_part part = (enum nvs_optimizer_part)wrong[i].part;
			int rc = set ? CALL(o, set, wrong[i].group, part, wrong[i].offset,
					    wrong[i].numel, data)
				     : CALL(o, get, wrong[i].group, part, wrong[i].offset,
					    wrong[i].numel, data);

			REFUSED(o, rc, -EINVAL, "");
		}
	}
}

/* ---- Opening ---- */

enum unusable {
	UNKNOWN_TYPE,
	SHORT_GROUPS,
	SAME_NAMES,
	NO_NAME,
	WRONG_DTYPE,
	NO_ELEMENTS,
	ODD_WEIGHTS,
	NO_DEVICE,
	GPU,
	/* A file cannot contain most of these, but the functions that set a configuration can. */
	WRONG_SUMS,
	NEGATIVE_RATIO,
	NO_RATIO,
	NEGATIVE_CLIPPING,
	TINY_SCALE,
	NO_HYSTERESIS,
	AMSGRAD
};

TEST(unusable_settings_are_refused)
{
	static const struct group two[] = {{"first", 9000, NVS_F32}, {"second", 5000, NVS_BF16}};
	static const struct {
		int code;
		const char *words;
	} due[] = {{-ENOTSUP, "Muon"},	    {-E2BIG, "first"},
		   {-EEXIST, "first"},	    {-EINVAL, ""},
		   {-EINVAL, "second"},	    {-EINVAL, "second"},
		   {-EINVAL, "second"},	    {-EINVAL, "offload_optimizer"},
		   {-ENOTSUP, "use_gds"},   {-EINVAL, "F64"},
		   {-EINVAL, "ratio"},	    {-EINVAL, "ratio"},
		   {-EINVAL, "clipping"},   {-EINVAL, "loss_scale"},
		   {-EINVAL, "hysteresis"}, {-ENOTSUP, "amsgrad"}};

	for (enum unusable which = 0; which <= AMSGRAD; which++) {
		struct nvs_config *config = &o->config;

		optim_renew(o, two, 2);
		config->fp16.enabled = true;
		strcpy(config->adam.type, which == UNKNOWN_TYPE ? "Muon" : "AdamW");
		config->sub_group_size = which == SHORT_GROUPS ? 8999 : 9000;
		o->specs[1].name = which == SAME_NAMES ? "first" : which == NO_NAME ? "" : "second";
		o->specs[1].dtype = which == WRONG_DTYPE ? NVS_F64 : NVS_BF16;
		o->specs[1].numel = which == NO_ELEMENTS ? 0 : 5000;
		o->specs[1].weights = (char *)o->specs[1].weights + (which == ODD_WEIGHTS);
		if (which == NO_DEVICE)
			o->offload->device = NVS_DEVICE_NONE;
		config->aio.use_gds = which == GPU;
		config->grad_accum_dtype = which == WRONG_SUMS ? NVS_F64 : NVS_F32;
		o->offload->ratio = which == NEGATIVE_RATIO ? -5 : which == NO_RATIO ? NAN : 1;
		config->gradient_clipping = which == NEGATIVE_CLIPPING ? -1 : 0;
		config->fp16.loss_scale = which == TINY_SCALE ? 1e-30 : 0;
		config->fp16.hysteresis = which == NO_HYSTERESIS ? 0 : 2;
		config->adam.amsgrad = which == AMSGRAD;
		REFUSED(o, optim_open(o), due[which].code, due[which].words);
		assert_null(o->optimizer);
		o->specs[1].weights = (char *)o->specs[1].weights - (which == ODD_WEIGHTS);
	}
	o->config.adam.amsgrad = false;
	o->n = 0;
	REFUSED(o, optim_open(o), -EINVAL, "");
	o->n = 2;
}

TEST(state_in_fewer_bits_is_refused_by_the_name_of_its_key)
{
	static const struct group one[] = {{"a", 5000, NVS_BF16}};
	static const char *const keys[] = {"fp16.fp16_master_weights_and_grads",
					   "bf16.bf16_master_weights_and_grads",
					   "bf16.bf16_optimizer_states"};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		optim_renew(o, one, 1);
		assert_int_equal(nvs_config_set(&o->config, keys[i], "true", NULL), 0);
		REFUSED(o, optim_open(o), -ENOTSUP, keys[i]);
	}
}

/* Although the tiles have slightly more elements than the groups. */
TEST(a_cache_for_all_elements_holds_all_of_them)
{
	static const struct group odd[] = {{"a", 50001, NVS_F32}, {"b", 7, NVS_BF16}};

	optim_renew(o, odd, 2);
	o->config.optimizer_max_in_cpu = 50008;
	optim_open_run(o, 3);
	assert_int_equal(o->result.io.read_bytes + o->result.io.written_bytes, 0);
	assert_int_equal(o->result.io.hits, o->result.tiles);
}

/* Two tiles of 1024 elements take 24 KiB. */
TEST(a_pool_without_room_for_two_tiles_is_refused)
{
	static const struct group small[] = {{"a", 5000, NVS_F32}};

	optim_renew(o, small, 1);
	o->config.sub_group_size = 5000;
	REFUSED(o, optim_open(o), -EINVAL, "buffer_count");
	o->offload->buffer_count = 2;
	optim_open_run(o, 2);
}
