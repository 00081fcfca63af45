/* SPDX-License-Identifier: Apache-2.0 */
#include "support/awaited.h"

#include <sched.h>

#include "aio/internal.h"

static uint64_t awaited_reads(struct nvs_aio *aio)
{
	uint64_t n;

	pthread_mutex_lock(&aio->lock);
	n = aio->awaited_reads;
	pthread_mutex_unlock(&aio->lock);
	return n;
}

void await_awaited_reads(struct nvs_aio *aio, uint64_t n)
{
	while (awaited_reads(aio) < n)
		sched_yield();
}
