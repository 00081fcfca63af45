/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a pass does while the drive is busy.
 */
#include "optim/optim_fixture.h"
#include "support/tests.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

#define NUMEL	8192
#define PATIENT 20 /* s; the limit for events that must happen */

static const struct group four[] = {
	{"a", NUMEL, NVS_F32}, {"b", NUMEL, NVS_F32}, {"c", NUMEL, NVS_F32}, {"d", NUMEL, NVS_F32}};

/* A step on a thread of its own. The first two groups are offloaded. */
struct stepping {
	struct optim o;
	pthread_t thread;
	int rc;
	atomic_ulong offloaded, host; /* elements updated */
	sem_t host_done;
};

static void count(void *arg, const struct nvs_update *update)
{
	struct stepping *s = arg;

	if (update->group < 2)
		s->offloaded += update->numel;
	else if (atomic_fetch_add(&s->host, update->numel) + update->numel == 2 * NUMEL)
		sem_post(&s->host_done);
}

static void *take_step(void *arg)
{
	struct stepping *s = arg;

	s->rc = optim_step(&s->o, 1);
	return NULL;
}

static void await(sem_t *sem)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENT;
	assert_int_equal(sem_timedwait(sem, &until), 0);
}

/* Also by the only compute thread: none is spent on waiting for the tile that is being read. */
TEST(state_in_host_memory_is_updated_while_the_drive_reads)
{
	static struct stepping s;

	optim_init(&s.o, four, LENGTH(four));
	optim_simulate(&s.o);
	s.o.offload->ratio = 0.5;
	s.o.config.optimizer_threads = 1;
	s.o.offload->fast_init = false;
	s.o.options = (struct nvs_optimizer_options){
		.size = sizeof(s.o.options), .update = count, .update_arg = &s};
	sem_init(&s.host_done, 0, 0);
	DONE(&s.o, optim_open(&s.o));
	optim_lend(&s.o, 1, 1);
	sim_hold(s.o.sim, SIM_READS);
	assert_int_equal(pthread_create(&s.thread, NULL, take_step, &s), 0);
	await(&s.host_done);
	assert_int_equal(s.offloaded, 0);
	sim_go(s.o.sim, SIM_READS);
	pthread_join(s.thread, NULL);
	assert_int_equal(s.rc, 0);
	assert_int_equal(s.offloaded, 2 * NUMEL);
	sem_destroy(&s.host_done);
	optim_close(&s.o);
}
