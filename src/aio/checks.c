/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What holds of an aio's counts and of its tables, under the lock.
 */
#include <assert.h>

#include "aio/internal.h"
#include "base/state_checks.h"

void workers_check(const struct nvs_aio *aio)
{
	if (!STATE_CHECKS)
		return;
	assert(aio->nworkers <= aio->config.thread_count && aio->running <= aio->nworkers);
	assert(aio->alive <= aio->nworkers && aio->idle <= aio->nworkers);
	assert(aio->ops && aio->options.depth == aio->config.queue_depth);
	assert(aio->nregions <= ENGINE_BUFFERS && aio->buffers_status <= 0);
	assert(aio->node >= -1 && aio->restrained <= UINT32_MAX / 2);
}

void region_check(const struct nvs_aio *aio, const struct region *region)
{
	if (!STATE_CHECKS)
		return;
	assert(!region->data == !region->nbytes && !region->data == !region->generation);
	assert(region->nbytes <= REGION_BYTES && region->generation <= aio->generation);
	assert(region->registered <= (region->only ? 1 : aio->nworkers) && region->status <= 0);
}
