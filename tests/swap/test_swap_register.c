/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registering while the store's files grow, which may take seconds: the test holds the system call
 * that reserves space, and the engine serves every other call meanwhile.
 */
#include "swap/swap_fixture.h"

#include <semaphore.h>
#include <sys/syscall.h>

ONE_ENGINE

/* Holds the next reservation of space until the test releases it. */
static bool armed;
static sem_t held, go_on;

int posix_fallocate(int fd, off_t offset, off_t nbytes)
{
	if (__atomic_exchange_n(&armed, false, __ATOMIC_ACQ_REL)) {
		sem_post(&held);
		while (sem_wait(&go_on))
			;
	}
	return syscall(SYS_fallocate, fd, 0, offset, nbytes) ? errno : 0;
}

struct held_call {
	struct fixture *f;
	struct nvs_tensor *tensor;
	pthread_t thread;
	int rc;
};

static void *register_large(void *arg)
{
	struct held_call *r = arg;
	const struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = "large", .dtype = NVS_U8, .numel = 2 * MIB};

	r->rc = nvs_tensor_register(r->f->engine, &spec, 1, &r->tensor, NULL);
	return NULL;
}

static void begin_held(struct held_call *r)
{
	sem_init(&held, 0, 0);
	sem_init(&go_on, 0, 0);
	__atomic_store_n(&armed, true, __ATOMIC_RELEASE);
	/* A call that waits for the held one would block forever. */
	alarm(120);
	MUST(!pthread_create(&r->thread, NULL, register_large, r));
	while (sem_wait(&held))
		;
}

static void end_held(struct held_call *r)
{
	sem_post(&go_on);
	MUST(!pthread_join(r->thread, NULL));
	alarm(0);
	assert_int_equal(r->rc, 0);
	assert_ptr_equal(nvs_tensor_find(r->f->engine, "large"), r->tensor);
}

TEST(tensors_land_and_commits_end_while_files_grow)
{
	struct nvs_tensor *small;
	struct held_call r = {.f = f};

	OPEN(f, .place = PLACE_DISK, .keep = true, .simulated = true);
	small = tensor_add(f, "small", 100000);
	tensor_store(f, small, 1);
	begin_held(&r);
	tensor_compare(f, small, 1);
	tensor_write(f, small, 2);
	assert_null(nvs_tensor_find(f->engine, "large"));
	OK(f, nvs_engine_commit(f->engine, &f->error));
	OK(f, nvs_tensor_forget(f->engine, &small, 1, &f->error));
	end_held(&r);
	tensor_store(f, r.tensor, 3);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	fixture_shut(f);
	assert_int_equal(fixture_reopen(f), 0);
	tensor_compare(f, tensor_add(f, "large", 2 * MIB), 3);
}
