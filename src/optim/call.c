/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The beginning and the end of every call on an optimizer: one at a time, and none within another.
 * The caller's functions run on the compute threads of the optimizer, within a call that has the
 * lock until they have returned.
 */
#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "optim/internal.h"

void calls_init(struct nvs_optimizer *optimizer)
{
	pthread_mutexattr_t attributes;

	pthread_mutexattr_init(&attributes);
	/* A second call of the thread that has the lock fails, instead of waiting for itself. */
	pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK);
	pthread_mutex_init(&optimizer->lock, &attributes);
	pthread_mutexattr_destroy(&attributes);
}

int call_begin(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	if (threads_have_caller(optimizer->threads) ||
	    pthread_mutex_lock(&optimizer->lock) == EDEADLK)
		return error_set(
			error, -EDEADLK,
			"the optimizer is called within a call on it, by its update, "
			"weights_final or state function: make this call when that one has "
			"returned");
	return 0;
}

void call_end(struct nvs_optimizer *optimizer)
{
	int rc = pthread_mutex_unlock(&optimizer->lock);

	assert(!rc);
	(void)rc;
}
