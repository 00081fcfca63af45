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

static void *register_large(void *arg)
{
	const struct nvs_tensor_spec spec = U8_TENSOR("large", 2 * MIB);
	struct nvs_tensor *large;

	(void)arg;
	MUST(!nvs_tensor_register(f->engine, &spec, 1, &large, NULL));
	return large;
}

TEST(tensors_land_and_commits_end_while_files_grow)
{
	struct nvs_tensor *small;
	pthread_t thread;
	void *large;

	OPEN(f, .place = PLACE_DISK, .keep = true, .simulated = true);
	small = tensor_add(f, "small", 100000);
	tensor_store(f, small, 1);
	sem_init(&held, 0, 0);
	sem_init(&go_on, 0, 0);
	__atomic_store_n(&armed, true, __ATOMIC_RELEASE);
	/* A call that waits for the held one would block forever. */
	alarm(120);
	MUST(!pthread_create(&thread, NULL, register_large, NULL));
	while (sem_wait(&held))
		;
	tensor_compare(f, small, 1);
	tensor_write(f, small, 2);
	assert_null(nvs_tensor_find(f->engine, "large"));
	OK(f, nvs_engine_commit(f->engine, &f->error));
	OK(f, nvs_tensor_forget(f->engine, &small, 1, &f->error));
	sem_post(&go_on);
	MUST(!pthread_join(thread, &large));
	alarm(0);
	assert_ptr_equal(nvs_tensor_find(f->engine, "large"), large);
	tensor_store(f, large, 3);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	fixture_again(f);
	tensor_compare(f, tensor_add(f, "large", 2 * MIB), 3);
}
