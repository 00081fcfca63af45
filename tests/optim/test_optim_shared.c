/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An optimizer and an engine of parameters on one aio of the caller.
 */
#include "optim/optim_fixture.h"
#include "support/tests.h"

#include <errno.h>

ONE_OPTIMIZER

#define PARAMETER (200 * KIB)

static const struct group groups[] = {{"a", 70000, NVS_F32}, {"b", 50000, NVS_BF16}};

/* Swaps it in, compares and releases. */
static void expect_contents(struct fixture *f, struct nvs_tensor *t, uint64_t seed)
{
	uint64_t pin;

	OK(f, nvs_tensor_swap_in(f->engine, &t, 1, -1, &pin, &f->error));
	OK(f, nvs_tensor_wait(f->engine, &t, 1, pin, -1, &f->error));
	assert_true(filled(nvs_tensor_data(t), info_of(f, t).nbytes, seed));
	OK(f, nvs_tensor_release(f->engine, &t, 1, pin, NVS_CLEAN, &f->error));
}

/* The state after three steps of an optimizer with an aio of its own. */
static void run_alone(struct snapshot *expected)
{
	optim_begin(o, groups, LENGTH(groups));
	optim_run(o, 1, 3);
	snapshot_take(o, expected);
}

TEST(parameters_and_optimizer_share_an_aio)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};
	struct snapshot expected;
	struct nvs_aio *aio;
	struct nvs_tensor *t;
	struct fixture f;

	run_alone(&expected);
	INIT(&f, .place = PLACE_DISK);
	optim_renew(o, groups, LENGTH(groups));
	f.config.aio = o->config.aio;
	DONE(o, nvs_aio_open(&aio, &o->config, &o->error));
	o->options = (struct nvs_optimizer_options){.size = sizeof(o->options), .aio = aio};
	DONE(o, optim_open(o));
	OK(&f, nvs_engine_open_on(&f.engine, aio, &f.config, NVS_OFFLOAD_PARAM, &f.error));
	t = tensor_add(&f, "t", PARAMETER);
	for (uint64_t step = 1; step <= 3; step++) {
		tensor_write(&f, t, step);
		OK(&f, nvs_tensor_swap_out(f.engine, &t, 1, &f.error));
		optim_run(o, step, step);
		expect_contents(&f, t, step);
	}
	IS_AS(o, &expected);
	assert_ptr_equal(nvs_engine_aio(nvs_optimizer_engine(o->optimizer)), aio);
	assert_int_equal(nvs_engine_get_stats(f.engine, &stats), 0);
	assert_true(stats.aio.io[NVS_WRITE].bytes > stats.swapped_out);
	/* Either may be closed first. */
	optim_shut(o);
	expect_contents(&f, t, 3);
	DONE(o, optim_open(o));
	fixture_shut(&f);
	optim_run(o, 1, 1);
	optim_close(o);
	nvs_aio_close(aio);
	fixture_close(&f);
	snapshot_free(&expected);
}

TEST(an_optimizer_is_not_closed_while_an_engine_uses_its_own_aio)
{
	struct fixture f;

	INIT(&f, .place = PLACE_DISK);
	optim_renew(o, groups, LENGTH(groups));
	f.config.aio = o->config.aio;
	DONE(o, optim_open(o));
	OK(&f, nvs_engine_open_on(&f.engine, nvs_engine_aio(nvs_optimizer_engine(o->optimizer)),
				  &f.config, NVS_OFFLOAD_PARAM, &f.error));
	expect_error(&f, nvs_optimizer_close(o->optimizer, &f.error), -EBUSY, "close it first");
	expect_error(&f, nvs_optimizer_abandon(o->optimizer, &f.error), -EBUSY, "close it first");
	optim_run(o, 1, 2);
	fixture_shut(&f);
	optim_close(o);
	fixture_close(&f);
}

TEST(an_aio_that_the_configuration_contradicts_is_refused)
{
	struct nvs_aio *aio;

	optim_renew(o, groups, LENGTH(groups));
	DONE(o, nvs_aio_open(&aio, &o->config, &o->error));
	o->options = (struct nvs_optimizer_options){.size = sizeof(o->options), .aio = aio};
	o->config.aio.queue_depth++;
	REFUSED(o, optim_open(o), -EINVAL, "aio.queue_depth");
	optim_close(o);
	nvs_aio_close(aio);
}
