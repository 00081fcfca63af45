/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that is cancelled while it waits in a call: the call ends as if it had not been, the
 * engine works on, and the thread ends at its own next cancellation point.
 */
#include "swap/swap_fixture.h"

#include <sched.h>
#include <stdatomic.h>

ONE_ENGINE

#define LARGE (768 * KIB)

static struct nvs_tensor *a, *b;
static struct nvs_file *opened;
static struct nvs_request *request;
static char read_into[4096];
static uint64_t a_pin, b_pin;

enum call {
	PIN,
	SWAP_IN,
	WAIT,
	WRITE,
	COMMIT,
	WAIT_FOR_REQUEST,
	WAIT_FOR_ANY_REQUEST,
	WAIT_FOR_ALL_REQUESTS,
	CLOSE_FILE,
	CLOSE_ENGINE,
};

/* In a frame of its own, which the thread leaves before it ends: ASan marks the variables. */
static __attribute__((noinline)) int make_call(enum call call)
{
	struct nvs_aio *aio = nvs_engine_aio(f->engine);
	const struct nvs_tensor_range range = {sizeof(range), b, 0, 1, read_into};
	size_t index;

	switch (call) {
	case PIN:
		return nvs_tensor_pin(f->engine, &b, 1, -1, &b_pin, &f->error);
	case SWAP_IN:
		return nvs_tensor_swap_in(f->engine, &b, 1, -1, &b_pin, &f->error);
	case WAIT:
		return nvs_tensor_wait(f->engine, &b, 1, b_pin, -1, &f->error);
	case WRITE:
		return nvs_tensor_write(f->engine, &range, 1, -1, &f->error);
	case COMMIT:
		return nvs_engine_commit(f->engine, &f->error);
	case WAIT_FOR_REQUEST:
		return nvs_aio_wait(aio, &request, 1, -1, &f->error);
	case WAIT_FOR_ANY_REQUEST:
		return nvs_aio_wait_any(aio, &request, 1, -1, &index, &f->error);
	case WAIT_FOR_ALL_REQUESTS:
		return nvs_aio_wait_all(aio, -1, NULL, &f->error);
	case CLOSE_FILE:
		nvs_file_close(opened);
		return 0;
	case CLOSE_ENGINE:
		break;
	}
	return nvs_engine_abandon(f->engine, &f->error);
}

enum wait_for { FOR_ROOM, FOR_TENSOR, FOR_READ, FOR_WRITE, FOR_REQUEST };

static const struct wait {
	enum call call;
	enum wait_for what;
} waits[] = {
	{PIN, FOR_ROOM},
	{SWAP_IN, FOR_ROOM},
	{WAIT, FOR_TENSOR},
	{WRITE, FOR_READ},
	{COMMIT, FOR_WRITE},
	{WAIT_FOR_REQUEST, FOR_REQUEST},
	{WAIT_FOR_ANY_REQUEST, FOR_REQUEST},
	{WAIT_FOR_ALL_REQUESTS, FOR_REQUEST},
	{CLOSE_FILE, FOR_REQUEST},
	{CLOSE_ENGINE, FOR_TENSOR},
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
	waiter->rc = make_call(waiter->wait->call);
	pthread_testcancel();
	return NULL;
}

static void cancel_amid(const struct wait *wait)
{
	struct waiter waiter = {.wait = wait};
	bool for_room = wait->what == FOR_ROOM, closes = wait->call == CLOSE_ENGINE;
	void *result;

	OPEN(f, .simulated = true, .keep = true, .pool_bytes = MIB, .block_size = (uint32_t)MIB);
	a = tensor_add(f, "a", LARGE);
	b = tensor_add(f, "b", LARGE);
	tensor_store(f, b, 2);
	if (for_room)
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
			if (wait->call != CLOSE_FILE)
				nvs_file_close(opened);
		}
		if (f->engine && (wait->what == FOR_ROOM || wait->what == FOR_TENSOR)) {
			OK(f, nvs_tensor_wait(f->engine, &b, 1, b_pin, -1, &f->error));
			OK(f, nvs_tensor_release(f->engine, &b, 1, b_pin, NVS_DIRTY, &f->error));
		}
		if (f->engine) {
			tensor_store(f, b, 3);
			tensor_compare(f, b, 3);
			OK(f, nvs_engine_commit(f->engine, &f->error));
		}
		fixture_close(f);
	}
}
