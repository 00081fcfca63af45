/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads and processes that share an engine, a store or an optimizer: owners that are killed,
 * forks and closes during transfers.
 */
#include "optim/optim_fixture.h"

#include <signal.h>

ONE_ENGINE

/* ---- Processes ---- */

#define N    16
#define PART (64 * KIB)

static void register_all(struct nvs_tensor **t)
{
	uint64_t nbytes[N];

	for (size_t i = 0; i < N; i++)
		nbytes[i] = PART;
	tensors_add(f, "t", nbytes, N, t);
}

/* Starts to write all tensors and waits for none. */
static void begin_to_write(struct nvs_tensor **t, uint64_t seed)
{
	uint64_t pin;

	MUST(!nvs_tensor_pin(f->engine, t, N, -1, &pin, NULL));
	for (uint64_t i = 0; i < N; i++)
		fill(nvs_tensor_data(t[i]), PART, seed + i);
	MUST(!nvs_tensor_release(f->engine, t, N, pin, NVS_DIRTY, NULL));
	MUST(!nvs_tensor_swap_out(f->engine, t, N, NULL));
}

static void check_all(struct nvs_tensor **t, uint64_t seed)
{
	for (uint64_t i = 0; i < N; i++)
		tensor_compare(f, t[i], seed + i);
}

TEST(a_store_is_free_once_its_owner_is_killed)
{
	struct nvs_tensor *t[N];
	int status, ready[2];
	char byte;
	pid_t child;

	for (int ioengine = NVS_IOENGINE_POSIX; ioengine >= NVS_IOENGINE_IO_URING; ioengine--) {
		OPEN(f, .place = PLACE_DISK, .keep = true, .ioengine = (enum nvs_ioengine)ioengine);
		fixture_shut(f);
		assert_int_equal(pipe(ready), 0);
		child = fork();
		if (!child) {
			OK(f, fixture_reopen(f));
			register_all(t);
			begin_to_write(t, 1);
			OK(f, nvs_engine_commit(f->engine, &f->error));
			MUST(write(ready[1], "r", 1) == 1);
			for (;;)
				begin_to_write(t, 1);
		}
		close(ready[1]);
		assert_int_equal(read(ready[0], &byte, 1), 1);
		expect_error(f, fixture_reopen(f), -EBUSY, "has locked the store at");
		assert_int_equal(kill(child, SIGKILL), 0);
		assert_int_equal(waitpid(child, &status, 0), child);
		OK(f, fixture_reopen(f));
		/* Every write had the same contents, so these are the committed ones. */
		register_all(t);
		check_all(t, 1);
		close(ready[0]);
		fixture_close(f);
	}
}

static void fork_in_mid_flight(void)
{
	int status, ready[2], done[2];
	struct nvs_tensor *t[N];
	uint64_t pin;
	char byte;
	pid_t child;

	register_all(t);
	begin_to_write(t, 1);
	assert_int_equal(pipe(ready) + pipe(done), 0);
	child = fork();
	if (!child) {
		close(done[1]);
		/* The pool is not mapped in the child, so writes by the parent copy no page. */
		MUST(msync(pool_data(f->engine->pool), 4096, MS_ASYNC) && errno == ENOMEM);
		MUST(write(ready[1], "r", 1) == 1);
		MUST(read(done[0], &byte, 1) == 0);
		_exit(0);
	}
	close(ready[1]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	OK(f, nvs_tensor_wait(f->engine, t, N, 0, -1, &f->error));
	OK(f, nvs_tensor_swap_in(f->engine, t, N, -1, &pin, &f->error));
	OK(f, nvs_tensor_wait(f->engine, t, N, pin, -1, &f->error));
	OK(f, nvs_tensor_release(f->engine, t, N, pin, NVS_CLEAN, &f->error));
	check_all(t, 1);
	begin_to_write(t, 2);
	/* Although the child has the descriptors, the store is free once the parent closes it. */
	fixture_shut(f);
	OK(f, fixture_reopen(f));
	register_all(t);
	check_all(t, 2);
	close(done[1]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	close(done[0]);
	close(ready[0]);
}

TEST(a_fork_during_transfers_harms_neither_pool_nor_store)
{
	for (int ioengine = NVS_IOENGINE_POSIX; ioengine >= NVS_IOENGINE_IO_URING; ioengine--) {
		OPEN(f, .place = PLACE_DISK, .keep = true, .verify = true,
		     .ioengine = (enum nvs_ioengine)ioengine);
		fork_in_mid_flight();
		fixture_close(f);
	}
}

TEST(closing_keeps_the_writes_in_flight)
{
	struct nvs_tensor *t[N];

	OPEN(f, .place = PLACE_DISK, .keep = true, .thread_count = 2, .queue_depth = 2,
	     .block_size = 4096);
	for (uint64_t round = 1; round <= 5; round++) {
		register_all(t);
		if (round > 1)
			check_all(t, (round - 1) * N);
		begin_to_write(t, round * N);
		/* For some tensors, this read is the second transfer. */
		(void)nvs_tensor_prefetch(f->engine, t, N, NULL);
		fixture_shut(f);
		OK(f, fixture_reopen(f));
	}
}

/* ---- One optimizer ---- */

static const struct group groups[] = {{"a", 20000, NVS_BF16}, {"b", 13000, NVS_F32}};

struct onlooker {
	struct optim *o;
	pthread_t thread;
	bool end; /* accessed by __atomic */
	uint64_t calls;
};

static void *look_on(void *arg)
{
	struct onlooker *onlooker = arg;
	struct nvs_optimizer *optimizer = onlooker->o->optimizer;
	struct nvs_gradient_sums sums = {.size = sizeof(sums)};
	float part[64];

	while (!__atomic_load_n(&onlooker->end, __ATOMIC_ACQUIRE))
		switch (onlooker->calls++ % 4) {
		case 0:
			MUST(!nvs_optimizer_commit(optimizer, NULL));
			break;
		case 1:
			MUST(!nvs_optimizer_get_weights(optimizer, NULL));
			break;
		case 2:
			MUST(!nvs_optimizer_sum_gradients(optimizer, &sums, NULL));
			MUST(sums.sum_squares >= 0);
			break;
		default:
			MUST(!nvs_optimizer_get(optimizer, 0, NVS_MASTER, 7000, 64, part, NULL));
			MUST(nvs_optimizer_loss_scale(optimizer) == 1);
		}
	return NULL;
}

TEST(calls_on_an_optimizer_are_serialized)
{
	struct onlooker onlookers[3];
	const struct snapshot *expected = optim_straight(groups, LENGTH(groups), 6);
	struct optim o;

	optim_init(&o, groups, LENGTH(groups));
	o.config.keep = true;
	o.config.offload[NVS_OFFLOAD_OPTIMIZER].ratio = 0.5;
	DONE(&o, optim_open(&o));
	for (unsigned i = 0; i < LENGTH(onlookers); i++) {
		onlookers[i] = (struct onlooker){.o = &o, .calls = i};
		assert_false(pthread_create(&onlookers[i].thread, NULL, look_on, &onlookers[i]));
	}
	optim_run(&o, 1, 6);
	for (unsigned i = 0; i < LENGTH(onlookers); i++) {
		__atomic_store_n(&onlookers[i].end, true, __ATOMIC_RELEASE);
		pthread_join(onlookers[i].thread, NULL);
	}
	IS_AS(&o, expected);
	/* The last commit is a state from which a run can continue. */
	optim_shut(&o);
	DONE(&o, optim_open(&o));
	IS_AS(&o, expected);
	optim_close(&o);
}
