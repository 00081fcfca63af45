/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens and closes a store for inspection. Members are opened read-only by the layer's own
 * functions, so what is not nvswap's is refused here as anywhere.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "store/inspect/internal.h"

/* A member that is missing or damaged is described; another error ends the inspection. */
static bool describable(const struct member *member, int rc)
{
	assert(rc <= 0);
	/* Its label was at least looked for, or its manifests were found without data. */
	if (rc == -EUCLEAN || rc == -EIO)
		return (member->fd >= 0 && member->base) || lacks_data(member);
	/* A device without capacity is too small for a store. */
	return (rc == -ENODATA || rc == -ENOENT) && (member->fd < 0 || member->capacity);
}

/* Names the process behind -EBUSY, if it can be found; returns rc. */
static int inspect_busy(const struct member *member, int rc, struct nvs_error *error)
{
	char name[64];
	int pid;

	assert(rc < 0);
	pid = rc == -EBUSY && member->fd >= 0 ? owner_of(member->fd, name) : 0;

	return pid ? error_set(error, rc,
			       "the store at %s is in use by process %d (%s): wait until it ends",
			       member->path, pid, name)
		   : rc;
}

static int open_members(struct nvs_store *store, const struct nvs_store_place *place, bool lock,
			struct nvs_error *error)
{
	struct nvs_store_info *info = &store->info;

	for (unsigned i = 0; i < place->npaths; i++) {
		struct open_result *result = &store->open_results[i];
		char name[64];

		assert(i < place->npaths);
		place_name(place, name);
		result->why = (struct nvs_error){.size = sizeof(result->why)};
		result->rc = lock ? member_open(store->members, i, place->paths[i], name, true,
						&result->why)
				  : member_open_beside(store->members, i, place->paths[i], name,
						       &result->why);
		store->npaths = i + 1;
		if (!result->rc && !i && store->members[i].blank &&
		    store->members[i].kind == MEMBER_RAW)
			result->rc = error_set(&result->why, -ENODATA, "%s holds no store",
					       place->paths[i]);

		int rc = describable(&store->members[i], result->rc) ? 0 : result->rc;

		if (rc) {
			assert(rc == store->open_results[i].rc);
			error_copy(error, &store->open_results[i].why);
			return inspect_busy(&store->members[i], rc, error);
		}
		if (store->members[i].in_use && !info->in_use) {
			info->in_use = true;
			info->owner = owner_of(store->members[i].fd, info->owner_name);
		}
	}
	assert(store->npaths == place->npaths);
	assert(!lock || !info->in_use);

	const struct open_result *first = &store->open_results[0];

	/* A store is partial only if a path has something of it. */
	assert(store->npaths);
	for (unsigned i = 0; i < store->npaths; i++)
		if (!inspect_missing(store, i))
			return 0;
	error_copy(error, &first->why);
	return first->rc;
}

int nvs_store_open(const struct nvs_store_place *asked, unsigned flags, struct nvs_store **out,
		   struct nvs_error *error)
{
	struct nvs_store_place place;
	struct nvs_store *store;
	int rc = 0;

	if (out)
		*out = NULL;
	if (!out || flags & ~(unsigned)NVS_STORE_LOCK)
		return error_set(error, -EINVAL, "store is NULL, or a flag is unknown");
	rc = place_in(&place, asked, error);
	if (rc)
		return rc;
	store = calloc(1, sizeof(*store));
	if (!store)
		return error_set(error, -ENOMEM, "out of memory while opening a store");
	store->locked = flags & NVS_STORE_LOCK;
	store->info.rank = place.rank;
	store->info.optimizer = place.optimizer;
	store->info.nmembers = place.npaths;
	rc = open_members(store, &place, flags & NVS_STORE_LOCK, error);
	if (!rc)
		rc = inspect_read(store, error);
	if (rc) {
		nvs_store_close(store);
		return rc;
	}
	inspect_check(store);
	/* An inspection must not keep an engine waiting. */
	for (unsigned i = 0; i < store->npaths && !(flags & NVS_STORE_LOCK); i++)
		member_unlock(&store->members[i]);
	*out = store;
	return 0;
}

void nvs_store_close(struct nvs_store *store)
{
	if (!store)
		return;
	assert(store->npaths <= NVS_PATHS_MAX);
	assert(!store->file || store->aio);
	nvs_file_close(store->file);
	if (store->has_slots)
		slots_close(&store->slots);
	for (unsigned i = 0; i < store->npaths; i++)
		member_close(&store->members[i]);
	manifest_free(&store->found);
	free(store);
}
