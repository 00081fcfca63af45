/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizers with a kept store: a run that is stopped and resumed computes the bits of an
 * uninterrupted one, a store of other groups is refused, and damage is found.
 */
#include "config/config.h"
#include "optim/optim_fixture.h"
#include "support/tests.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

ONE_OPTIMIZER

#define STOP  2
#define STEPS 5

static const struct group five[] = {{"layers.0", 20001, NVS_BF16},
				    {"layers.1", 9999, NVS_F16},
				    {"norm", 1, NVS_F32},
				    {"layers.2", 14337, NVS_BF16},
				    {"head", 4096, NVS_F32}};

static void begin(void)
{
	optim_renew(o, five, LENGTH(five));
	o->config.keep = true;
}

/* Closes and reopens the optimizer, as another run does, with meaningless weights. */
static void stop_and_go_on(void)
{
	optim_shut(o);
	optim_spoil_weights(o);
	DONE(o, optim_open(o));
}

/* The state after STEPS steps without interruption. */
static const struct snapshot *due(void)
{
	return optim_straight(five, LENGTH(five), STEPS);
}

/* ---- Resumed runs ---- */

static void enlarge(void)
{
	o->offload->buffer_count = 24;
	o->config.optimizer_threads = 3;
	o->config.aio.block_size = 1 << 20;
}

static void reduce(void)
{
	o->offload->buffer_count = 3;
	o->offload->pipeline_read = false;
}

static void cache_some(void)
{
	o->config.optimizer_max_in_cpu = 10000;
}

TEST(a_resumed_run_computes_the_same_bits)
{
	/* Settings of the first run; state is not offloaded, or is in the cache. */
	static const struct {
		bool slow_init, verify, one_by_one_writes;
		double in_memory;
		uint64_t cached;
		unsigned buffers;     /* 0: one */
		void (*change)(void); /* before the second run */
	} ways[] = {{.slow_init = true},
		    {0},
		    {.slow_init = true, .verify = true, .one_by_one_writes = true},
		    {.verify = true},
		    {.in_memory = 1},
		    {.in_memory = 0.5},
		    {.in_memory = 0.3, .cached = 12000},
		    {.cached = 1000000},
		    {.buffers = 8, .change = enlarge},
		    {.buffers = 8, .change = reduce},
		    {.buffers = 8, .change = cache_some}};

	for (size_t i = 0; i < LENGTH(ways); i++) {
		begin();
		o->offload->fast_init = !ways[i].slow_init;
		o->config.verify = ways[i].verify;
		o->offload->pipeline_write = !ways[i].one_by_one_writes;
		o->offload->ratio = 1 - ways[i].in_memory;
		o->config.optimizer_max_in_cpu = ways[i].cached;
		o->offload->buffer_count = ways[i].buffers ? ways[i].buffers : 1;
		optim_open_run(o, STOP);
		optim_save(o);
		optim_shut(o);
		optim_spoil_weights(o);
		if (ways[i].change)
			ways[i].change();
		DONE(o, optim_open(o));
		DOES(o, get_weights);
		IS_AS_SAVED(o);
		optim_run(o, STOP + 1, STEPS);
		IS_AS(o, due());
	}
}

static uint64_t commits_of(void)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};

	DOES(o, get_info, &info);
	return info.generation;
}

TEST(what_has_not_changed_is_not_committed)
{
	static const double ratios[] = {0, 0.5, 1};
	uint64_t commits;

	for (size_t i = 0; i < LENGTH(ratios); i++) {
		begin();
		o->offload->ratio = ratios[i];
		o->config.optimizer_max_in_cpu = i * 12000;
		optim_open_run(o, 2);
		DOES(o, commit);
		commits = commits_of();
		DOES(o, commit);
		assert_int_equal(commits_of(), commits);
		for (unsigned k = 0; k < 2; k++) {
			stop_and_go_on();
			assert_int_equal(commits_of(), commits);
		}
		optim_run(o, 3, 3);
		DOES(o, commit);
		assert_int_equal(commits_of(), commits + 1);
	}
}

/* ---- The loss scale, other groups and settings ---- */

/* The scale doubles after three steps; the second overflow halves it. */
TEST(the_loss_scale_is_kept)
{
	static const char attempts[] = "..#..#...#.##..";
	double scales[2][sizeof(attempts)];

	for (int stop = 0; stop < 2; stop++) {
		begin();
		o->config.keep = stop;
		o->config.fp16 = (struct fp16_config){.enabled = true,
						      .initial_scale_power = 8,
						      .loss_scale_window = 3,
						      .hysteresis = 2,
						      .min_loss_scale = 1};
		DONE(o, optim_open(o));
		for (unsigned i = 0; attempts[i]; i++) {
			scales[stop][i] = nvs_optimizer_loss_scale(o->optimizer);
			optim_lend(o, i, scales[stop][i]);
			if (attempts[i] == '#')
				element_put(NVS_F32, o->gradients[3], 14336, INFINITY);
			DONE(o, optim_step(o, i + 1));
			assert_int_equal(o->result.skipped, attempts[i] == '#');
			if (stop && i % 2 == 0)
				stop_and_go_on();
		}
		optim_lend(o, 20, nvs_optimizer_loss_scale(o->optimizer));
		DONE(o, optim_step(o, 20));
		assert_int_equal(o->result.step, 11);
		if (stop)
			IS_AS_SAVED(o);
		else
			optim_save(o);
	}
	for (unsigned i = 0; attempts[i]; i++)
		assert_true(scales[0][i] == scales[1][i]);
	assert_true(scales[0][sizeof(attempts) - 2] != 256);
}

static double scale_after(bool fp16, double loss_scale)
{
	double scale;

	optim_shut(o);
	o->config.fp16.enabled = fp16;
	o->config.fp16.loss_scale = loss_scale;
	DONE(o, optim_open(o));
	scale = nvs_optimizer_loss_scale(o->optimizer);
	DOES(o, commit);
	return scale;
}

/* The kept scale is dynamic; the configuration sets another. */
TEST(a_configured_loss_scale_replaces_the_kept_one)
{
	begin();
	DONE(o, optim_open(o));
	assert_true(scale_after(false, 0) == 1);
	assert_true(scale_after(true, 0) == 65536);
	assert_true(scale_after(true, 128) == 128);
	assert_true(scale_after(true, 0) == 65536);
	assert_true(scale_after(false, 0) == 1);
}

static off_t store_size(void)
{
	char path[512];
	struct stat facts;

	snprintf(path, sizeof(path), "%s/nvswap/rank0-optimizer/data", o->path);
	MUST(!stat(path, &facts));
	return facts.st_size;
}

TEST(a_refused_open_leaves_the_store_unchanged)
{
	static const struct group large[] = {{"large", 400000, NVS_BF16}};
	off_t size;

	optim_renew(o, large, 1);
	o->config.keep = true;
	optim_open_run(o, 1);
	optim_save(o);
	optim_shut(o);
	size = store_size();
	o->specs[0].name = "another";
	REFUSED(o, optim_open(o), -ESTALE, "other groups");
	o->specs[0].name = large[0].name;
	assert_int_equal(store_size(), size);
	DONE(o, optim_open(o));
	IS_AS_SAVED(o);
}

TEST(other_groups_are_refused)
{
	begin();
	optim_open_run(o, STOP);
	optim_shut(o);
	/* Another name, another length, and another order. */
	for (unsigned i = 0; i < 3; i++) {
		struct nvs_group_spec specs[LENGTH(five)];

		memcpy(specs, o->specs, sizeof(specs));
		if (i == 0)
			specs[1].name = "layers.x";
		else if (i == 1)
			specs[1].numel--;
		else
			specs[2] = o->specs[3], specs[3] = o->specs[2];
		REFUSED(o,
			nvs_optimizer_open(&o->optimizer, &o->config, specs, LENGTH(five), NULL,
					   &o->error),
			-ESTALE, "");
		assert_null(o->optimizer);
	}
	/* One group fewer. */
	REFUSED(o, nvs_optimizer_open(&o->optimizer, &o->config, o->specs, 4, NULL, &o->error),
		-ESTALE, "");
	o->config.keep = false;
	REFUSED(o, optim_open(o), -EEXIST, "keep");
	o->config.keep = true;
	/* The refusals changed nothing. */
	DONE(o, optim_open(o));
	optim_run(o, STOP + 1, STEPS);
	IS_AS(o, due());
}

TEST(a_store_of_tensors_without_an_optimizer_is_refused)
{
	const struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = "weight", .dtype = NVS_F32, .numel = 10};
	struct nvs_tensor *tensor;
	struct nvs_engine *engine;

	begin();
	DONE(o, nvs_engine_open(&engine, &o->config, NVS_OFFLOAD_OPTIMIZER, &o->error));
	DONE(o, nvs_tensor_register(engine, &spec, 1, &tensor, &o->error));
	DONE(o, nvs_engine_close(engine, &o->error));
	REFUSED(o, optim_open(o), -ESTALE, "such as weight, and no state of an optimizer");
}

/* Tiles of 8192 elements take 96 KiB; a pool of 78 KiB has no room for one. */
TEST(tiles_that_do_not_fit_are_refused)
{
	begin();
	o->offload->buffer_count = 16;
	optim_open_run(o, STOP);
	optim_shut(o);
	o->offload->buffer_count = 1;
	REFUSED(o, optim_open(o), -ESTALE, "pool");
	assert_null(o->optimizer);
	o->offload->buffer_count = 4;
	DONE(o, optim_open(o));
	optim_run(o, STOP + 1, STEPS);
	IS_AS(o, due());
}

/* Flips a bit of that element's master weight in the store. */
static void turn_bit(const float *near)
{
	char path[512], *bytes, *found;
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%s/nvswap/rank0-optimizer/data", o->path);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0 && !fstat(fd, &st));
	bytes = malloc((size_t)st.st_size);
	assert_non_null(bytes);
	assert_int_equal(pread(fd, bytes, (size_t)st.st_size, 0), st.st_size);
	found = memmem(bytes, (size_t)st.st_size, near, 64);
	assert_non_null(found);
	*found ^= 1;
	assert_int_equal(pwrite(fd, found, 1, found - bytes), 1);
	free(bytes);
	close(fd);
}

TEST(a_flipped_bit_is_detected)
{
	begin();
	optim_open_run(o, STOP);
	optim_save(o);
	optim_shut(o);
	turn_bit(optim_saved.parts[1][NVS_MASTER] + 5000);
	DONE(o, optim_open(o));
	REFUSES(o, -EBADMSG, "", get, 1, NVS_MASTER, 5000, 1, o->gradients[0]);
	optim_lend(o, STOP + 1, 1);
	REFUSED(o, optim_step(o, STOP + 1), -EBADMSG, "layers");
	nvs_optimizer_close(o->optimizer, NULL);
	o->optimizer = NULL;
}
