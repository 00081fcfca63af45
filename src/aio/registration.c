/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all workers share and each applies to its own ring: registered memory, registered files, the
 * binding to a NUMA node. A change raises the epoch, and aio_sync() waits until every worker has
 * applied it.
 *
 * Registering waits for no I/O: a worker that waits for completions ends its wait (`wake` of the
 * engine), even if the drive hangs. A region has at most 1 GiB, the kernel's limit. An I/O
 * uses descriptor and address directly where a ring could not register them: slower, but correct.
 * A worker chooses slots at every submission, retries included, by what its own ring holds then.
 */
#include "aio/internal.h"
#include "base/memory/huge_map.h"
#include "base/threads/cancel.h"

void aio_sync(struct nvs_aio *aio)
{
	uint64_t epoch = ++aio->epoch;

	workers_check(aio);
	/* Wakes idle workers and those in reap; under the lock. */
	pthread_cond_broadcast(&aio->work);
	for (unsigned i = 0; i < aio->nworkers; i++)
		aio->ops->wake(aio->workers[i].queue, true);
	for (unsigned i = 0; i < aio->nworkers; i++)
		while (aio->workers[i].epoch < epoch)
			pthread_cond_wait(&aio->synced, &aio->lock);
}

static void registration_end(struct nvs_aio *aio, uint64_t registration)
{
	for (unsigned i = 0; i < aio->nregions; i++)
		if (aio->regions[i].registration == registration)
			aio->regions[i] = (struct region){0};
	aio_sync(aio);
}

int nvs_aio_register_memory(struct nvs_aio *aio, void *data, size_t nbytes)
{
	HOLD_CANCEL;
	uint64_t registration;
	int rc = 0;

	if (!aio || !data || !nbytes || (uintptr_t)data % page_bytes() ||
	    nbytes > UINTPTR_MAX - (uintptr_t)data)
		return -EINVAL;
	pthread_mutex_lock(&aio->lock);
	registration = aio->generation + 1;
	for (size_t done = 0; done < nbytes && !rc; done += REGION_BYTES) {
		unsigned slot = 0;

		while (slot < ENGINE_BUFFERS && aio->regions[slot].data)
			slot++;
		if (slot == ENGINE_BUFFERS) {
			rc = -ENOSPC;
			break;
		}
		aio->regions[slot] = (struct region){.data = (char *)data + done,
						     .nbytes = min_u64(nbytes - done, REGION_BYTES),
						     .generation = ++aio->generation,
						     .owner = data,
						     .registration = registration};
		aio->nregions = (unsigned)max_u64(aio->nregions, slot + 1);
	}
	if (!rc) {
		/* All rings register the regions; one that failed gives its error. */
		aio_sync(aio);
		for (unsigned i = 0; i < aio->nregions; i++)
			if (aio->regions[i].registration == registration && aio->regions[i].status)
				rc = aio->regions[i].status;
		if (rc)
			aio->buffers_status = rc;
	}
	/* Rings that did register the pages must not use them after the caller frees them. */
	if (rc)
		registration_end(aio, registration);
	pthread_mutex_unlock(&aio->lock);
	return rc;
}

/*
 * Ends the longest registration that begins at `data`, so that what is left is within memory that
 * some caller still has registered; or all of them.
 */
static void end_registrations(struct nvs_aio *aio, const void *data, bool all)
{
	uint64_t registration;

	pthread_mutex_lock(&aio->lock);
	do {
		const char *end = data;

		registration = 0;
		for (unsigned i = 0; i < aio->nregions; i++) {
			const struct region *region = &aio->regions[i];

			if (region->owner != data || region->only ||
			    region->data + region->nbytes <= end)
				continue;
			end = region->data + region->nbytes;
			registration = region->registration;
		}
		if (registration)
			registration_end(aio, registration);
	} while (registration && all);
	pthread_mutex_unlock(&aio->lock);
}

void nvs_aio_unregister_memory(struct nvs_aio *aio, void *data)
{
	HOLD_CANCEL;

	if (aio && data)
		end_registrations(aio, data, false);
}

void aio_unregister_all(struct nvs_aio *aio, const void *data)
{
	end_registrations(aio, data, true);
}

/* Registering less than this is not worth a call. */
#define REGISTERED_BYTES_MIN (1u << 20)

int aio_register_most(struct nvs_aio *aio, void *data, size_t nbytes, size_t *done)
{
	int first = nvs_aio_register_memory(aio, data, nbytes), rc = first;

	while (rc == -ENOMEM && nbytes / 2 >= REGISTERED_BYTES_MIN) {
		nbytes = nbytes / 2 / page_bytes() * page_bytes();
		rc = nvs_aio_register_memory(aio, data, nbytes);
	}
	*done = rc ? 0 : nbytes;
	return rc ?: first;
}

void aio_memory_add(struct nvs_aio *aio, struct aio_memory *memory, void *data)
{
	*memory = (struct aio_memory){.aio = aio, .data = data};
	pthread_mutex_lock(&aio->lock);
	LIST_INSERT_HEAD(&aio->memories, memory, link);
	pthread_mutex_unlock(&aio->lock);
}

void aio_memory_remove(struct aio_memory *memory)
{
	struct nvs_aio *aio = memory->aio;

	if (!aio)
		return;
	aio_unregister_all(aio, memory->data);
	pthread_mutex_lock(&aio->lock);
	LIST_REMOVE(memory, link);
	pthread_mutex_unlock(&aio->lock);
	*memory = (struct aio_memory){0};
}

void aio_bind_workers(struct nvs_aio *aio, const struct topo *topo, int node)
{
	pthread_mutex_lock(&aio->lock);
	if (aio->node < 0) {
		aio->topo = topo;
		aio->node = node;
		aio_sync(aio);
		/* All workers are bound; the topology may be closed before the aio. */
		aio->topo = NULL;
	}
	pthread_mutex_unlock(&aio->lock);
}

/* Registers each bounce buffer with its own worker only. Failure is harmless, only slower. */
void register_bounce(struct nvs_aio *aio)
{
	_Static_assert(NVS_THREAD_COUNT_MAX < ENGINE_BUFFERS, "one slot per bounce buffer");
	pthread_mutex_lock(&aio->lock);
	for (unsigned i = 0; i < aio->nworkers; i++) {
		struct worker *worker = &aio->workers[i];

		assert(aio->nregions < ENGINE_BUFFERS && !aio->regions[aio->nregions].data);
		aio->regions[aio->nregions++] = (struct region){
			.data = worker->bounce.data,
			.nbytes = bounce_bytes(&worker->bounce),
			.generation = ++aio->generation,
			.owner = worker->bounce.data,
			.only = worker,
		};
	}
	aio_sync(aio);
	pthread_mutex_unlock(&aio->lock);
}

void aio_trace(struct nvs_aio *aio, struct nvs_trace *trace)
{
	pthread_mutex_lock(&aio->lock);
	aio->trace = trace;
	pthread_mutex_unlock(&aio->lock);
}
