/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is constant in an open store, for the layers above; extents for tensors, and their space on
 * the drives. Reserving is all or nothing: after an error extents and files are unchanged. The
 * files grow without the lock, while extents may be released.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "store/internal.h"

#define GROWTH_MAX (UINT64_C(1) << 30) /* bytes reserved ahead of need, at most */

int store_read_only(const struct store *store, struct nvs_error *error)
{
	return error_set(error, -EROFS,
			 "the store at %s is open read-only (\"nvswap\": {\"read_only\": true})",
			 store->members[0].path);
}

struct nvs_file *store_file(struct store *store)
{
	return store->file;
}

uint32_t store_unit(const struct store *store)
{
	return store->unit;
}

bool store_direct(const struct store *store)
{
	return store->direct;
}

const char *store_path(const struct store *store)
{
	return store->sources ? store->sources[0].path : store->members[0].path;
}

/* The space grows in multiples of this: whole rows of stripes. */
static uint64_t row_bytes(const struct store *store)
{
	assert(store->nmembers == 1 || store->stripe % store->unit == 0);
	return store->nmembers == 1 ? store->unit : store->stripe * store->nmembers;
}

static uint64_t size_bytes(const struct store *store)
{
	return extents_size(store->extents) * store->unit;
}

void store_space_check(const struct store *store)
{
	uint64_t size = extents_size(store->extents), unused = extents_free_units(store->extents);

	assert(size <= INT64_MAX / store->unit);
	assert(size * store->unit == store->share * store->nmembers);
	assert(unused <= size);
	assert(extents_largest(store->extents) <= unused);
	assert((extents_largest(store->extents) == 0) == (unused == 0));
	assert(extents_tail(store->extents) <= size);
	/* Without extents everything is free. */
	assert(store->live || unused == size);
}

/* Under the lock: of an extent that is reserved. */
static void store_extent_check(const struct store *store, uint64_t offset, uint64_t nbytes)
{
	assert(offset % store->unit == 0);
	assert(offset <= size_bytes(store));
	assert(align_up(nbytes, store->unit) <= size_bytes(store) - offset);
	assert(nbytes || !offset);
}

/* ---- Opening ---- */

int store_open_space(struct store *store, struct nvs_aio *aio, struct nvs_error *error)
{
	const uint64_t used = member_share(store->found.end, store->nmembers, store->stripe);
	const size_t n = store->found.header.count;
	int rc = members_open_file(store->members, store->nmembers, store->stripe, aio,
				   &store->file, error);

	assert(store->nmembers);
	store->share = UINT64_MAX;
	for (unsigned i = 0; i < store->nmembers && !rc; i++) {
		uint64_t nbytes;

		rc = member_space_of(&store->members[i], used, &nbytes, error);
		if (!rc)
			store->share = min_u64(store->share, nbytes);
	}
	if (rc)
		return rc;
	store->share = align_down(store->share, row_bytes(store) / store->nmembers);
	assert(store->found.end <= store->share * store->nmembers);
	for (unsigned i = 0; i < store->nmembers && store->manifest.generation && !rc; i++)
		rc = member_reserve_again(&store->members[i], store->share, error);
	if (rc)
		return rc;
	store->extents = extents_open(store->share * store->nmembers / store->unit);
	if (!store->extents || extents_prepare(store->extents, 2 * n + 1))
		return error_no_memory(error, "reserving space in the store");
	for (size_t i = 0; i < n && !rc; i++) {
		const struct store_entry *entry = &store->found.entries[i];
		uint64_t units = align_up(entry->nbytes, store->unit) / store->unit;

		/* The decoder has refused extents that overlap, and member_space_of() a late
		 * end. */
		store_extent_check(store, entry->offset, entry->nbytes);
		store_extent_check(store, entry->spare, entry->nbytes);
		store->live += 2;
		if (units)
			rc = extents_take(store->extents, entry->offset / store->unit, units);
		if (units && !rc)
			rc = extents_take(store->extents, entry->spare / store->unit, units);
		assert(rc != -EEXIST);
	}
	return rc ? error_no_memory(error, "reserving space in the store") : 0;
}

/* ---- Growing ---- */

/*
 * After a failure each member has the space that it had before. What could not be undone is told in
 * the error and not logged, because callers may hold locks.
 */
static int grow_members(struct store *store, uint64_t share, struct nvs_error *error)
{
	struct nvs_error why = {.size = sizeof(why)}, shrinking = why;
	unsigned i = 0;

	assert(share > store->share && share % store->unit == 0);
	while (i < store->nmembers && !member_grow(&store->members[i], store->share, share, &why))
		i++;
	if (i == store->nmembers)
		return 0;
	while (i-- > 0)
		if (member_shrink(&store->members[i], store->share, &shrinking))
			return error_cause_of(error, &why,
					      error_set(error, why.code, "%.500s; then %.400s",
							why.text, shrinking.text));
	error_copy(error, &why);
	return why.code;
}

/* Under the lock, which it releases while the files grow. */
static int grow_by(struct store *store, uint64_t nbytes, struct nvs_error *error)
{
	uint64_t row = row_bytes(store);
	char more[32];
	int rc;

	if (nbytes > INT64_MAX - size_bytes(store) - row)
		return error_set(error, -ENOSPC, "no drive has room for another %s",
				 size_text(nbytes, more));
	nbytes = (nbytes + row - 1) / row * row;
	pthread_mutex_unlock(&store->lock);
	rc = grow_members(store, store->share + nbytes / store->nmembers, error);
	/* Others release extents meanwhile, and none reserves. */
	pthread_mutex_lock(&store->lock);
	if (rc)
		return rc;
	store->share += nbytes / store->nmembers;
	rc = extents_grow(store->extents, nbytes / store->unit);
	assert(!rc);
	return 0;
}

/* ---- Reserving ---- */

static uint64_t units_of(const struct store *store, uint64_t nbytes)
{
	return nbytes / store->unit + (nbytes % store->unit != 0);
}

static uint64_t tail_units(const struct store *store)
{
	return extents_size(store->extents) - extents_tail(store->extents);
}

/*
 * Reserves one run for all of them, behind the last extent if necessary. The space doubles then, if
 * the drive allows it; but in host memory, save memory rather than calls.
 */
static int reserve_together(struct store *store, const uint64_t *nbytes, size_t n, uint64_t total,
			    uint64_t *offsets, struct nvs_error *error)
{
	uint64_t ahead = min_u64(size_bytes(store), GROWTH_MAX), more, at;
	int rc;

	/* The free space behind the last extent is a gap like any other. */
	if (extents_largest(store->extents) < total) {
		more = (total - tail_units(store)) * store->unit;
		if (ahead <= more || store->members[0].kind == MEMBER_MEMORY ||
		    grow_by(store, ahead, NULL)) {
			rc = grow_by(store, more, error);
			if (rc)
				return rc;
		}
	}
	rc = extents_alloc(store->extents, total, &at);
	assert(!rc && at + total <= extents_size(store->extents));
	for (size_t i = 0; i < n; i++) {
		offsets[i] = nbytes[i] ? at * store->unit : 0;
		at += units_of(store, nbytes[i]);
	}
	return 0;
}

#define NOWHERE UINT64_MAX

static void give_back(struct store *store, uint64_t offset, uint64_t nbytes)
{
	int rc;

	if (!nbytes || offset == NOWHERE)
		return;
	store_extent_check(store, offset, nbytes);
	rc = extents_free(store->extents, offset / store->unit, units_of(store, nbytes));
	assert(!rc);
}

/* Under the lock, which it releases while the files grow. */
static int reserve_manifest(struct store *store, size_t n, struct nvs_error *error)
{
	/* Each tensor of a kept store has two extents. */
	uint64_t entries = (store->live + n + 1) / 2;
	int rc;

	if (!store->keep || entries <= store->entries_max)
		return 0;
	pthread_mutex_unlock(&store->lock);
	rc = slots_reserve(&store->slots, entries, error);
	pthread_mutex_lock(&store->lock);
	if (!rc)
		store->entries_max = entries;
	return rc;
}

static int reserve_extents(struct store *store, const uint64_t *nbytes, size_t n, uint64_t *offsets,
			   struct nvs_error *error)
{
	uint64_t total = 0;
	bool overflow = false;
	int rc;

	for (size_t i = 0; i < n; i++) {
		offsets[i] = 0;
		overflow |= __builtin_add_overflow(total, units_of(store, nbytes[i]), &total);
	}
	if (overflow || total > INT64_MAX / store->unit)
		return error_set(error, -ENOSPC, "the tensors are more bytes than any drive has");
	/* Allocate now what releasing them will need. */
	if (n > UINT64_MAX - store->live - 2 ||
	    extents_prepare(store->extents, store->live + n + 2))
		return error_no_memory(error, "reserving space in the store");
	rc = reserve_manifest(store, n, error);
	if (!rc && total) {
		rc = reserve_together(store, nbytes, n, total, offsets, error);
		if (rc == -ENOSPC) {
			uint64_t homeless = 0;

			/* Reserves each in a free gap, or behind the last extent if it fits
			 * nowhere. */
			rc = 0;
			for (size_t i = 0; i < n; i++) {
				uint64_t units = units_of(store, nbytes[i]);

				if (units && !extents_alloc(store->extents, units, &offsets[i])) {
					offsets[i] *= store->unit;
				} else if (units) {
					offsets[i] = NOWHERE;
					homeless += units;
				}
			}
			assert(!homeless || homeless > tail_units(store));
			if (homeless)
				rc = grow_by(store, (homeless - tail_units(store)) * store->unit,
					     error);
			for (size_t i = 0; rc && i < n; i++)
				give_back(store, offsets[i], nbytes[i]);
			for (size_t i = 0; !rc && i < n; i++) {
				if (offsets[i] != NOWHERE)
					continue;
				rc = extents_alloc(store->extents, units_of(store, nbytes[i]),
						   &offsets[i]);
				assert(!rc);
				offsets[i] *= store->unit;
			}
		}
	}
	if (!rc)
		store->live += n;
	return rc;
}

int store_reserve(struct store *store, const uint64_t *nbytes, size_t n, uint64_t *offsets,
		  struct nvs_error *error)
{
	int rc;

	if (store->read_only)
		return n ? store_read_only(store, error) : 0;
	pthread_mutex_lock(&store->reserving);
	pthread_mutex_lock(&store->lock);
	rc = reserve_extents(store, nbytes, n, offsets, error);
	for (size_t i = 0; i < n && !rc; i++)
		store_extent_check(store, offsets[i], nbytes[i]);
	store_space_check(store);
	pthread_mutex_unlock(&store->lock);
	pthread_mutex_unlock(&store->reserving);
	return rc;
}

void store_release(struct store *store, uint64_t offset, uint64_t nbytes)
{
	assert(offset % store->unit == 0);
	pthread_mutex_lock(&store->lock);
	assert(store->live > 0);
	give_back(store, offset, nbytes);
	store->live--;
	store_space_check(store);
	pthread_mutex_unlock(&store->lock);
}

uint64_t store_bytes(const struct store *store)
{
	pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&store->lock;
	uint64_t nbytes;

	if (store->sources)
		return 0;
	pthread_mutex_lock(lock);
	nbytes = size_bytes(store);
	pthread_mutex_unlock(lock);
	return nbytes;
}
