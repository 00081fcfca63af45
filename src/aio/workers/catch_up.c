/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker applies what all workers share to its own ring and thread: files, regions of memory, the
 * binding to a NUMA node. Only its own thread may change a ring of a single issuer.
 */
#include <assert.h>
#include <string.h>

#include "aio/internal.h"

/* Descriptor numbers are reused, so a slot that can't be changed must not seem to hold the new
 * file. */
#define FILE_UNKNOWN (-2)

/* The old memory leaves the slot first: if the ring refuses the new, no I/O may name the slot. */
static void sync_buffer(struct worker *worker, unsigned slot, const struct region *wanted)
{
	const struct engine_ops *ops = worker->aio->ops;
	struct ring_buffer *buffer = &worker->buffers[slot];
	int rc;

	if (buffer->data) {
		*buffer = (struct ring_buffer){.data = NULL};
		(void)ops->set_buffer(worker->queue, slot, NULL, 0);
	}
	if (!wanted->data)
		return;
	rc = ops->set_buffer(worker->queue, slot, wanted->data, wanted->nbytes);
	if (!rc) {
		*buffer = (struct ring_buffer){.data = wanted->data,
					       .nbytes = wanted->nbytes,
					       .generation = wanted->generation};
		if (worker->nbuffers <= slot)
			worker->nbuffers = slot + 1;
	}

	struct region *region = &worker->aio->regions[slot];

	/* Records the result of registering the region, unless its slot has been reused. */
	pthread_mutex_lock(&worker->aio->lock);
	if (region->generation == wanted->generation) {
		region->registered += !rc;
		if (rc && rc != -ENOTSUP)
			region->status = rc;
		region_check(worker->aio, region);
	}
	pthread_mutex_unlock(&worker->aio->lock);
}

void worker_catch_up(struct worker *worker)
{
	struct nvs_aio *aio = worker->aio;
	const struct engine_ops *ops = aio->ops;
	uint64_t epoch = aio->epoch;
	unsigned nregions = aio->nregions;
	const struct topo *topo = aio->topo;
	int node = aio->node, rc;
	int wanted[ENGINE_FILES];

	assert(worker->epoch < epoch);
	memcpy(wanted, aio->files, sizeof(wanted));
	pthread_mutex_unlock(&aio->lock);
	for (unsigned slot = 0; slot < ENGINE_FILES && ops->set_file; slot++)
		if (worker->files[slot] != wanted[slot]) {
			rc = ops->set_file(worker->queue, slot, wanted[slot]);
			worker->files[slot] = rc ? FILE_UNKNOWN : wanted[slot];
		}
	for (unsigned slot = 0; slot < nregions && ops->set_buffer; slot++) {
		struct region region;

		pthread_mutex_lock(&aio->lock);
		region = aio->regions[slot];
		pthread_mutex_unlock(&aio->lock);
		if (region.only && region.only != worker)
			region = (struct region){.data = NULL};
		if (worker->buffers[slot].generation != region.generation)
			sync_buffer(worker, slot, &region);
	}
	if (topo && worker->bound_node != node) {
		worker->bound_node = node;
		rc = topo_bind_thread(topo, node);
		if (rc)
			log_later(&aio->log, NVS_LOG_INFO,
				  "worker %u can't be bound to the cores of NUMA node %d: %s",
				  worker->index, node, nvs_strerror(rc));
	}
	pthread_mutex_lock(&aio->lock);
	worker->epoch = epoch;
	worker_check(worker);
	pthread_cond_broadcast(&aio->synced);
}
