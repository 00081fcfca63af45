/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's threads in a program, this one, whose thread-local data exceed the size of their
 * stacks.
 */
#include <pthread.h>
#include <string.h>

#include "aio/aio.h"
#include "base/threads/thread.h"
#include "config/config.h"
#include "optim/pass/threads.h"
#include "support/support.h"
#include "support/tests.h"

#define KIB  1024u
#define LEFT ((size_t)128 * KIB)
/* Used by the frames above and by the C library's thread-local data. */
#define SLACK ((size_t)16 * KIB)

static _Thread_local char of_the_program[900 * KIB];

/* Bytes of stack below this frame. */
static void *measure(void *arg)
{
	pthread_attr_t attr;
	void *end;

	if (!pthread_getattr_np(pthread_self(), &attr)) {
		pthread_attr_getstack(&attr, &end, &(size_t){0});
		*(size_t *)arg = (size_t)((char *)__builtin_frame_address(0) - (char *)end);
		pthread_attr_destroy(&attr);
	}
	return NULL;
}

TEST(a_stack_has_its_size_beside_thread_local_data)
{
	pthread_attr_t attr;
	pthread_t thread;
	size_t left = 0;

	pthread_attr_init(&attr);
	assert_int_equal(pthread_attr_setstacksize(&attr, stack_size(LEFT)), 0);
	assert_int_equal(pthread_create(&thread, &attr, measure, &left), 0);
	pthread_join(thread, NULL);
	pthread_attr_destroy(&attr);
	assert_in_range(left, LEFT - SLACK, LEFT + SLACK);
}

TEST(threads_of_the_posix_engine_start)
{
	struct aio_config config = {.block_size = 64 * KIB,
				    .queue_depth = 4,
				    .thread_count = 2,
				    .overlap_events = true,
				    .ioengine = NVS_IOENGINE_POSIX};
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_aio *aio;

	SUCCEEDS(aio_open_with(&aio, &config, NULL, NULL, NULL, &error), &error);
	nvs_aio_close(aio);
}

static void fill_own(void *arg, unsigned thread)
{
	memset(of_the_program, 1, sizeof(of_the_program));
	((unsigned *)arg)[thread]++;
}

TEST(threads_that_compute_start)
{
	struct threads *threads;
	unsigned visits[2] = {0};
	struct topo *topo;
	struct nvs_error error = {.size = sizeof(error)};

	SUCCEEDS(topo_open(&topo, NULL, &error), &error);
	SUCCEEDS(threads_open(&threads, 2, topo, -1, &error), &error);
	topo_close(topo);
	threads_run(threads, fill_own, visits);
	threads_close(threads);
	assert_int_equal(visits[0], 1);
	assert_int_equal(visits[1], 1);
}

EACH_TEST(NULL, cleanup)
