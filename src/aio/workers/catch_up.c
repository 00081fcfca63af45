/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker applies what all workers share to its own ring and thread: files, regions of memory, the
 * binding to a NUMA node. Only its own thread may change a ring of a single issuer.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "aio/internal.h"
#include "aio/workers/worker.h"

/* Descriptor numbers are reused, so a slot that can't be changed must not seem to hold the new
 * file. */
#define FILE_UNKNOWN (-2)

static void sync_files(struct worker *worker, const int wanted[ENGINE_FILES])
{
	assert(worker->queue);
	for (unsigned slot = 0; slot < ENGINE_FILES && worker->aio->ops->set_file; slot++) {
		int rc;

		if (worker->files[slot] == wanted[slot])
			continue;
		rc = worker->aio->ops->set_file(worker->queue, slot, wanted[slot]);
		assert(rc <= 0 && wanted[slot] >= -1);
		worker->files[slot] = rc ? FILE_UNKNOWN : wanted[slot];
	}
}

/* The old memory leaves the slot first: if the ring refuses the new, no I/O may name the slot. */
static void sync_buffer(struct worker *worker, unsigned slot, const struct region *wanted)
{
	const struct engine_ops *ops = worker->aio->ops;
	struct ring_buffer *buffer = &worker->buffers[slot];
	int rc;

	assert(slot < ENGINE_BUFFERS && ops->set_buffer);
	assert(!wanted->data == !wanted->nbytes);
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
	assert(worker->nbuffers <= ENGINE_BUFFERS);

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
	uint64_t epoch = aio->epoch;
	unsigned nregions = aio->nregions;
	const struct topo *topo = aio->topo;
	int node = aio->node;
	int wanted[ENGINE_FILES];

	assert(worker->epoch < epoch);
	memcpy(wanted, aio->files, sizeof(wanted));
	pthread_mutex_unlock(&aio->lock);
	sync_files(worker, wanted);
	assert(nregions <= ENGINE_BUFFERS);
	for (unsigned slot = 0; slot < nregions && aio->ops->set_buffer; slot++) {
		struct region region;

		pthread_mutex_lock(&aio->lock);
		region = aio->regions[slot];
		pthread_mutex_unlock(&aio->lock);
		if (region.only && region.only != worker)
			region = (struct region){.data = NULL};
		if (worker->buffers[slot].generation != region.generation)
			sync_buffer(worker, slot, &region);
	}
	assert(worker->nbuffers <= ENGINE_BUFFERS);

	int rc;

	if (topo && worker->bound_node != node) {
		assert(node >= 0);
		worker->bound_node = node;
		rc = topo_bind_thread(topo, node);
		if (rc)
			aio_say(worker->aio, NVS_LOG_INFO,
				"worker %u can't be bound to the cores of NUMA node %d: %s",
				worker->index, node, nvs_strerror(rc));
	}
	pthread_mutex_lock(&aio->lock);
	worker->epoch = epoch;
	worker_check(worker);
	pthread_cond_broadcast(&aio->synced);
}
