/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step that clips or has a loss scale, and is interrupted by a failure or a power failure: whoever
 * finishes it uses the learning rate, factor, norm and clip that it began with.
 */
#include "optim/optim_fixture.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>

#include "optim/optimizer.h"
#include "support/tests.h"
#include "swap/swap.h"

ONE_OPTIMIZER

static const struct group groups[] = {
	{"layers.0", 20001, NVS_BF16}, {"layers.1", 9999, NVS_F16}, {"layers.2", 14337, NVS_F32}};

/* What a step's factors depend on. */
static const struct way {
	double clipping;
	bool fp16;
	double loss_scale; /* 0: dynamic */
	bool added;	   /* gradients are added, otherwise lent */
} ways[] = {
	{0.5, false, 0, false}, {0.5, false, 0, true},	{0, true, 0, false},
	{0, true, 128, true},	{0.25, true, 0, false}, {0.25, true, 0, true},
};

#define STEPS	  3
#define LOST_STEP 2 /* the one that is interrupted */
#define SCALE	  16

/* What happens when the first weights of a step are final, so that the step has begun. The lock
 * keeps the other threads from finishing their tiles meanwhile. */
static struct {
	struct sim *sim;
	pthread_mutex_t lock;
	bool fails;
} interruption = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void interrupt_step(void *arg, size_t group, uint64_t offset, uint64_t numel,
			   enum nvs_dtype dtype, const void *data)
{
	(void)arg, (void)group, (void)offset, (void)numel, (void)dtype, (void)data;
	pthread_mutex_lock(&interruption.lock);
	if (interruption.fails)
		sim_fail(interruption.sim, NVS_WRITE, 1, EIO, SIM_ALWAYS);
	interruption.fails = false;
	pthread_mutex_unlock(&interruption.lock);
}

static void begin(const struct way *way)
{
	optim_renew(o, groups, LENGTH(groups));
	o->options.weights_final = interrupt_step;
	o->config.keep = true;
	o->config.gradient_clipping = way->clipping;
	o->config.fp16.enabled = way->fp16;
	o->config.fp16.loss_scale = way->loss_scale;
	o->config.fp16.initial_scale_power = 4;
	/* The dynamic scale doubles at the step before the interrupted one, and at that itself. */
	o->config.fp16.loss_scale_window = 1;
}

/* The gradients of a step, times the loss scale. */
static void give_gradients(const struct way *way, uint64_t step)
{
	double scale = nvs_optimizer_loss_scale(o->optimizer);

	if (way->added)
		optim_add(o, step, scale);
	else
		optim_lend(o, step, scale);
}

static void steps(const struct way *way, uint64_t first, uint64_t last)
{
	for (uint64_t step = first; step <= last; step++) {
		give_gradients(way, step);
		DONE(o, optim_step(o, step));
		assert_int_equal(o->result.step, step);
	}
}

/* After the interrupted step and after the last, of a run that nothing interrupts. */
struct course {
	struct snapshot finished, last;
	double clip, scale;
};

static void run_undisturbed(const struct way *way, struct course *course)
{
	begin(way);
	DONE(o, optim_open(o));
	steps(way, 1, LOST_STEP);
	course->clip = o->result.clip;
	course->scale = nvs_optimizer_loss_scale(o->optimizer);
	assert_true(!way->clipping == (course->clip == 1));
	assert_true(course->scale == (!way->fp16 ? 1 : way->loss_scale > 0 ? 128 : 4 * SCALE));
	snapshot_take(o, &course->finished);
	steps(way, LOST_STEP + 1, STEPS);
	snapshot_take(o, &course->last);
}

/* A step that fails between two tiles. */
static void fail_step(void)
{
	interruption.sim = o->sim;
	interruption.fails = true;
	assert_int_equal(optim_step(o, LOST_STEP), -EIO);
	sim_no_faults(o->sim);
}

static void fail_midway(const struct way *way)
{
	steps(way, 1, LOST_STEP - 1);
	give_gradients(way, LOST_STEP);
	fail_step();
}

/* Finishes the step with another learning rate, which it ignores, and goes on. */
static void finish(const struct way *way, const struct course *course)
{
	const struct nvs_step_options options = {.size = sizeof(options), .lr = 12345};

	DOES(o, step, &options, &o->result);
	assert_int_equal(o->result.step, LOST_STEP);
	assert_true(o->result.tiles > 0);
	assert_true(o->result.clip == course->clip);
	assert_true(nvs_optimizer_loss_scale(o->optimizer) == course->scale);
	/* With the norm. */
	IS_AS(o, &course->finished);
	steps(way, LOST_STEP + 1, STEPS);
	IS_AS(o, &course->last);
}

/* The next run, which must lend gradients again. */
static void finish_in_the_next_run(const struct way *way, const struct course *course)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};

	memset(&o->result, 0, sizeof(o->result));
	o->result.size = sizeof(o->result);
	DONE(o, optim_open(o));
	DOES(o, get_weights);
	DOES(o, get_info, &info);
	assert_true(info.unfinished && info.step == LOST_STEP - 1);
	if (!way->added)
		give_gradients(way, LOST_STEP);
	finish(way, course);
}

static void for_every_way(void (*interrupt)(const struct way *way, const struct course *course))
{
	for (size_t i = 0; i < LENGTH(ways); i++) {
		struct course course;

		run_undisturbed(&ways[i], &course);
		begin(&ways[i]);
		interrupt(&ways[i], &course);
		optim_close(o);
		snapshot_free(&course.finished);
		snapshot_free(&course.last);
	}
}

static void by_failure(const struct way *way, const struct course *course)
{
	optim_simulate(o);
	DONE(o, optim_open(o));
	fail_midway(way);
	finish(way, course);
}

TEST(a_failed_step_keeps_its_factors)
{
	for_every_way(by_failure);
}

static void by_closing(const struct way *way, const struct course *course)
{
	optim_simulate(o);
	DONE(o, optim_open(o));
	fail_midway(way);
	optim_shut(o);
	finish_in_the_next_run(way, course);
}

TEST(the_next_run_keeps_the_factors_of_a_failed_step)
{
	for_every_way(by_closing);
}

static void by_power(const struct way *way, const struct course *course)
{
	static const enum sim_crash hows[] = {SIM_KEEP, SIM_LOSE, SIM_TEAR, SIM_ANY};
	struct nvs_optimizer *optimizer;

	optim_simulate(o);
	sim_remember(o->sim, 0);
	DONE(o, optim_open(o));
	fail_midway(way);
	DOES(o, commit);
	/* More of the step is done and written, and not committed. */
	fail_step();
	sim_crash(o->sim);
	optimizer = o->optimizer;
	o->optimizer = NULL;
	assert_true(nvs_optimizer_close(optimizer, &o->error) < 0);
	sim_crashed(o->sim, hows[(size_t)(way - ways) % LENGTH(hows)]);
	finish_in_the_next_run(way, course);
}

TEST(a_power_failure_leaves_the_factors_of_a_committed_step)
{
	for_every_way(by_power);
}
