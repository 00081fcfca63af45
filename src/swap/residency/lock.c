/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's lock, and which thread holds it: functions that must be called with the lock, or
 * without it, assert that. The thread is read without the lock, so it says nothing about others.
 */
#include <assert.h>

#include "base/clock.h"
#include "swap/residency/internal.h"

static uintptr_t holder(const struct nvs_engine *engine)
{
	return atomic_load_explicit(&engine->holder, memory_order_relaxed);
}

static void set_holder(struct nvs_engine *engine, uintptr_t thread)
{
	atomic_store_explicit(&engine->holder, thread, memory_order_relaxed);
}

void lock_check(const struct nvs_engine *engine)
{
	assert(holder(engine) == (uintptr_t)pthread_self());
}

void unlocked_check(const struct nvs_engine *engine)
{
	assert(holder(engine) != (uintptr_t)pthread_self());
}

void engine_lock(struct nvs_engine *engine)
{
	unlocked_check(engine);
	pthread_mutex_lock(&engine->lock);
	assert(!holder(engine));
	set_holder(engine, (uintptr_t)pthread_self());
}

void engine_unlock(struct nvs_engine *engine)
{
	lock_check(engine);
	set_holder(engine, 0);
	pthread_mutex_unlock(&engine->lock);
}

int engine_sleep(struct nvs_engine *engine, pthread_cond_t *cond, uint64_t deadline)
{
	int rc;

	lock_check(engine);
	set_holder(engine, 0);
	rc = cond_wait_until(cond, &engine->lock, deadline);
	assert(!holder(engine));
	set_holder(engine, (uintptr_t)pthread_self());
	return rc;
}
