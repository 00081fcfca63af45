/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of an optimizer: it can be looked at, and public calls that would change it or its
 * tensors are refused with the optimizer's own call.
 */
#include "config/config.h"
#include "optim/optim_fixture.h"
#include "support/tests.h"

#include <errno.h>

ONE_OPTIMIZER

static const struct group pair[] = {{"a", 12345, NVS_BF16}, {"b", 7001, NVS_F32}};

static void begin(void)
{
	optim_renew(o, pair, LENGTH(pair));
	o->config.keep = true;
	DONE(o, optim_open(o));
}

static struct nvs_engine *engine_of(void)
{
	struct nvs_engine *engine = nvs_optimizer_engine(o->optimizer);

	assert_non_null(engine);
	return engine;
}

/* The master weights of the first tile. */
static struct nvs_tensor *tensor_of(void)
{
	struct nvs_tensor *tensor = nvs_tensor_find(engine_of(), "a+0 master 0");

	assert_non_null(tensor);
	return tensor;
}

/* ---- What is refused ---- */

TEST(calls_that_change_the_engine_are_refused)
{
	const struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = "mine", .dtype = NVS_F32, .numel = 5};
	struct nvs_step_io io = {.size = sizeof(io)};
	struct nvs_tensor *tensor, *mine = NULL;
	struct nvs_engine *engine;

	begin();
	optim_run(o, 1, 1);
	engine = engine_of();
	tensor = tensor_of();
	REFUSED(o, nvs_engine_close(engine, &o->error), -EBUSY, "nvs_optimizer_close");
	REFUSED(o, nvs_engine_abandon(engine, &o->error), -EBUSY, "nvs_optimizer_abandon");
	REFUSED(o, nvs_engine_commit(engine, &o->error), -EBUSY, "nvs_optimizer_commit");
	REFUSED(o, nvs_engine_set_note(engine, "n", 1, &o->error), -EBUSY,
		"nvs_optimizer_set_note");
	REFUSED(o, nvs_engine_step_begin(engine, &o->error), -EBUSY, "nvs_optimizer_step");
	REFUSED(o, nvs_engine_step_end(engine, &io, &o->error), -EBUSY, "nvs_optimizer_step");
	REFUSED(o, nvs_tensor_register(engine, &spec, 1, &mine, &o->error), -EBUSY,
		"another engine");
	REFUSED(o, nvs_tensor_forget(engine, &tensor, 1, &o->error), -EBUSY, "another engine");
	REFUSED(o, nvs_tensor_rename(engine, tensor, "mine", &o->error), -EBUSY, "another engine");
	assert_null(mine);
	optim_run(o, 2, 2);
}

TEST(calls_that_move_its_tensors_are_refused)
{
	static float memory[64 * 1024];
	const void *from = memory;
	void *to = memory;
	struct nvs_tensor_range range = {.size = sizeof(range), .nbytes = 4, .data = memory};
	struct nvs_tensor *t;
	struct nvs_engine *engine;
	uint64_t pin = 1;

	begin();
	optim_run(o, 1, 1);
	engine = engine_of();
	range.tensor = t = tensor_of();
	REFUSED(o, nvs_tensor_pin(engine, &t, 1, 0, &pin, &o->error), -EBUSY, "nvs_optimizer_set");
	assert_true(!pin);
	pin = 1;
	REFUSED(o, nvs_tensor_swap_in(engine, &t, 1, 0, &pin, &o->error), -EBUSY,
		"nvs_optimizer_get");
	assert_true(!pin);
	REFUSED(o, (int)nvs_tensor_prefetch(engine, &t, 1, &o->error), -EBUSY, "nvs_optimizer_get");
	REFUSED(o, nvs_tensor_wait(engine, &t, 1, 0, 0, &o->error), -EBUSY, "wait");
	REFUSED(o, nvs_engine_keep_place(engine, true, &o->error), -EBUSY, "wait");
	REFUSED(o, nvs_tensor_release(engine, &t, 1, 1, NVS_CLEAN, &o->error), -EBUSY,
		"nvs_optimizer_set");
	REFUSED(o, nvs_tensor_swap_out(engine, &t, 1, &o->error), -EBUSY, "nvs_optimizer_set");
	REFUSED(o, nvs_tensor_swap_out_from(engine, &t, &from, 1, &o->error), -EBUSY,
		"nvs_optimizer_set");
	REFUSED(o, nvs_tensor_swap_in_to(engine, &t, &to, 1, &o->error), -EBUSY,
		"nvs_optimizer_get");
	REFUSED(o, nvs_tensor_read(engine, &range, 1, &o->error), -EBUSY, "nvs_optimizer_get");
	REFUSED(o, nvs_tensor_write(engine, &range, 1, -1, &o->error), -EBUSY, "nvs_optimizer_set");
	optim_run(o, 2, 2);
}

/* The step count is in a header that only nvs_optimizer_commit writes. */
TEST(a_store_never_has_the_tiles_of_one_step_and_the_count_of_another)
{
	begin();
	optim_run(o, 1, 1);
	DOES(o, commit);
	o->result = (struct nvs_step_result){.size = sizeof(o->result)};
	optim_save(o);
	optim_run(o, 2, 2);
	REFUSED(o, nvs_engine_commit(engine_of(), &o->error), -EBUSY, "nvs_optimizer_commit");
	DOES(o, abandon);
	o->optimizer = NULL;
	DONE(o, optim_open(o));
	DOES(o, get_weights);
	o->result = (struct nvs_step_result){.size = sizeof(o->result)};
	IS_AS_SAVED(o);
}

TEST(the_engine_can_be_looked_at)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};
	struct nvs_tensor_info info = {.size = sizeof(info)};
	struct nvs_stored_tensor stored = {.size = sizeof(stored)};
	struct nvs_engine *engine;
	size_t nbytes = 0;
	char note[4];
	void *pool;

	begin();
	DOES(o, set_note, "abc", 3);
	optim_run(o, 1, 1);
	optim_reopen(o);
	engine = engine_of();
	assert_int_equal(nvs_engine_get_stats(engine, &stats), 0);
	assert_true(stats.tensors >= 3);
	assert_int_equal(nvs_tensor_get_info(engine, tensor_of(), &info), 0);
	assert_string_equal(info.name, "a+0 master 0");
	assert_int_equal(nvs_engine_get_stored(engine, 0, &stored), 0);
	assert_true(nvs_engine_generation(engine) == 1);
	nbytes = sizeof(note);
	assert_int_equal(nvs_engine_get_note(engine, note, &nbytes), 0);
	assert_true(nbytes == 3);
	assert_int_equal(nvs_engine_pool(engine, &pool, &nbytes), 0);
	assert_non_null(nvs_engine_aio(engine));
}
