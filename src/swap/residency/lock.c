/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's lock. Where it is taken and released, the engine's sums are checked. Which thread
 * holds it is read without the lock, so it says nothing about other threads.
 */
#include <assert.h>

#include "base/clock.h"
#include "swap/residency/internal.h"

static void set_held(struct nvs_engine *engine)
{
	if (!STATE_CHECKS)
		return;
	assert(!atomic_load_explicit(&engine->holder, memory_order_relaxed));
	atomic_store_explicit(&engine->holder, (uintptr_t)pthread_self(), memory_order_relaxed);
	engine_sums_check(engine);
}

static void set_released(struct nvs_engine *engine)
{
	if (!STATE_CHECKS)
		return;
	engine_sums_check(engine);
	atomic_store_explicit(&engine->holder, 0, memory_order_relaxed);
}

void engine_lock(struct nvs_engine *engine)
{
	unlocked_check(engine);
	pthread_mutex_lock(&engine->lock);
	set_held(engine);
}

void engine_unlock(struct nvs_engine *engine)
{
	set_released(engine);
	pthread_mutex_unlock(&engine->lock);
}

int engine_sleep(struct nvs_engine *engine, pthread_cond_t *cond, uint64_t deadline)
{
	int rc;

	set_released(engine);
	rc = cond_wait_until(cond, &engine->lock, deadline);
	set_held(engine);
	return rc;
}
