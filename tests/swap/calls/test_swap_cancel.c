/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that is cancelled while it waits in a call: the call ends as if it had not been, the
 * engine works on, and the thread ends at its own next cancellation point.
 */
#include "swap/swap_fixture.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

ONE_ENGINE

#define LARGE (768 * KIB)

static struct nvs_tensor *a, *b;
static struct nvs_file *opened;
static struct nvs_request *request;
static char read_into[4096];
static uint64_t a_pin, b_pin;

static int pin_waits_for_room(void)
{
	return nvs_tensor_pin(f->engine, &b, 1, -1, &b_pin, &f->error);
}

static int swap_in_waits_for_room(void)
{
	return nvs_tensor_swap_in(f->engine, &b, 1, -1, &b_pin, &f->error);
}

static int wait_for_tensor(void)
{
	return nvs_tensor_wait(f->engine, &b, 1, b_pin, -1, &f->error);
}

static int write_waits_for_read(void)
{
	const struct nvs_tensor_range range = {sizeof(range), b, 0, 1, nvs_tensor_data(a)};

	return nvs_tensor_write(f->engine, &range, 1, -1, &f->error);
}

static int commit(void)
{
	return nvs_engine_commit(f->engine, &f->error);
}

static int wait_for_request(void)
{
	return nvs_aio_wait(nvs_engine_aio(f->engine), &request, 1, -1, &f->error);
}

static int wait_for_any_request(void)
{
	size_t index;

	return nvs_aio_wait_any(nvs_engine_aio(f->engine), &request, 1, -1, &index, &f->error);
}

static int wait_for_all_requests(void)
{
	return nvs_aio_wait_all(nvs_engine_aio(f->engine), -1, NULL, &f->error);
}

static int close_file(void)
{
	nvs_file_close(opened);
	return 0;
}

static int close_engine(void)
{
	return nvs_engine_abandon(f->engine, &f->error);
}

enum wait_for { FOR_ROOM, FOR_TENSOR, FOR_READ, FOR_WRITE, FOR_REQUEST };

static const struct wait {
	int (*call)(void);
	enum wait_for what;
} waits[] = {
	{pin_waits_for_room, FOR_ROOM},
	{swap_in_waits_for_room, FOR_ROOM},
	{wait_for_tensor, FOR_TENSOR},
	{write_waits_for_read, FOR_READ},
	{commit, FOR_WRITE},
	{wait_for_request, FOR_REQUEST},
	{wait_for_any_request, FOR_REQUEST},
	{wait_for_all_requests, FOR_REQUEST},
	{close_file, FOR_REQUEST},
	{close_engine, FOR_TENSOR},
};

struct waiter {
	pthread_t thread;
	const struct wait *wait;
	atomic_int tid;
	int rc;
};

static void *wait_in_call(void *arg)
{
	struct waiter *waiter = arg;

	waiter->rc = 1;
	atomic_store(&waiter->tid, gettid());
	waiter->rc = waiter->wait->call();
	pthread_testcancel();
	return NULL;
}

static void cancel_amid(const struct wait *wait)
{
	struct waiter waiter = {.wait = wait};
	bool for_room = wait->what == FOR_ROOM, closes = wait->call == close_engine;
	void *result;

	OPEN(f, .simulated = true, .keep = true, .pool_bytes = MIB, .block_size = (uint32_t)MIB);
	a = tensor_add(f, "a", wait->what == FOR_READ ? 4096 : LARGE);
	b = tensor_add(f, "b", LARGE);
	tensor_store(f, b, 2);
	if (for_room || wait->what == FOR_READ)
		OK(f, nvs_tensor_pin(f->engine, &a, 1, -1, &a_pin, &f->error));
	if (wait->what == FOR_WRITE)
		tensor_write(f, a, 1);
	if (!for_room)
		sim_hold(f->sim, wait->what == FOR_WRITE ? SIM_WRITES : SIM_READS);
	if (wait->what == FOR_TENSOR)
		OK(f, nvs_tensor_swap_in(f->engine, &b, 1, -1, &b_pin, &f->error));
	if (wait->what == FOR_REQUEST) {
		char path[512];

		fixture_store_file(f, "data", path);
		OK(f, nvs_file_open(nvs_engine_aio(f->engine), path, 0, &opened, &f->error));
		OK(f, nvs_aio_pread(nvs_engine_aio(f->engine), opened, read_into, 4096, 0, &request,
				    &f->error));
	}

	assert_int_equal(pthread_create(&waiter.thread, NULL, wait_in_call, &waiter), 0);
	while (!atomic_load(&waiter.tid) || !thread_sleeps(atomic_load(&waiter.tid)))
		sched_yield();
	assert_int_equal(pthread_cancel(waiter.thread), 0);
	sim_go(f->sim, SIM_ALL);
	if (for_room)
		OK(f, nvs_tensor_release(f->engine, &a, 1, a_pin, NVS_DIRTY, &f->error));
	assert_int_equal(pthread_join(waiter.thread, &result), 0);
	assert_ptr_equal(result, PTHREAD_CANCELED);
	OK(f, waiter.rc);
	if (closes)
		f->engine = NULL;
}

TEST(a_thread_cancelled_amid_a_wait_returns_from_the_call)
{
	for (size_t i = 0; i < COUNT(waits); i++) {
		const struct wait *wait = &waits[i];

		cancel_amid(wait);
		/* The engine works on. */
		if (wait->what == FOR_REQUEST) {
			OK(f, nvs_request_close(request));
			if (wait->call != close_file)
				nvs_file_close(opened);
		}
		if (f->engine && (wait->what == FOR_ROOM || wait->what == FOR_TENSOR)) {
			OK(f, nvs_tensor_wait(f->engine, &b, 1, b_pin, -1, &f->error));
			OK(f, nvs_tensor_release(f->engine, &b, 1, b_pin, NVS_DIRTY, &f->error));
		}
		if (wait->what == FOR_READ)
			OK(f, nvs_tensor_release(f->engine, &a, 1, a_pin, NVS_DIRTY, &f->error));
		if (f->engine) {
			tensor_store(f, b, 3);
			tensor_compare(f, b, 3);
			OK(f, nvs_engine_commit(f->engine, &f->error));
		}
		fixture_close(f);
	}
}
