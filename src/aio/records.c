/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Per-I/O records: a ring per worker, under its stats lock. A full ring drops new records, so a
 * worker never waits for the reader.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "aio/internal.h"

void records_add(struct records *records, const struct nvs_io_record *record)
{
	if (!records->room)
		return;
	if (records->n == records->room)
		records->lost++;
	else
		records->ring[(records->first + records->n++) % records->room] = *record;
}

static void replace(struct worker *worker, struct nvs_io_record *ring, size_t room)
{
	struct nvs_io_record *old;

	pthread_mutex_lock(&worker->stats_lock);
	old = worker->records.ring;
	worker->records = (struct records){.ring = ring, .room = room};
	pthread_mutex_unlock(&worker->stats_lock);
	free(old);
}

int nvs_aio_record(struct nvs_aio *aio, size_t max_records)
{
	size_t room = max_records / aio->nworkers + (max_records % aio->nworkers != 0);

	for (unsigned i = 0; i < aio->nworkers; i++) {
		struct nvs_io_record *ring = room ? calloc(room, sizeof(*ring)) : NULL;

		if (room && !ring) {
			nvs_aio_record(aio, 0);
			return -ENOMEM;
		}
		/* Fault in all pages now, not while I/Os are timed. */
		if (room)
			memset(ring, 1, room * sizeof(*ring));
		replace(&aio->workers[i], ring, room);
	}
	return 0;
}

static size_t take(struct records *records, struct nvs_io_record *into, size_t n)
{
	size_t taken = records->n < n ? records->n : n;

	for (size_t i = 0; i < taken; i++)
		into[i] = records->ring[(records->first + i) % records->room];
	if (taken)
		records->first = (records->first + taken) % records->room;
	records->n -= taken;
	return taken;
}

size_t nvs_aio_take_records(struct nvs_aio *aio, struct nvs_io_record *into, size_t n,
			    uint64_t *lost)
{
	size_t taken = 0;

	if (lost)
		*lost = 0;
	for (unsigned i = 0; i < aio->nworkers; i++) {
		struct worker *worker = &aio->workers[i];
		/* An equal share for each worker, so that a busy one does not starve the rest. */
		size_t left = aio->nworkers - i, share = (n - taken + left - 1) / left;

		pthread_mutex_lock(&worker->stats_lock);
		taken += take(&worker->records, into + taken, share);
		if (lost)
			*lost += worker->records.lost;
		pthread_mutex_unlock(&worker->stats_lock);
	}
	return taken;
}
