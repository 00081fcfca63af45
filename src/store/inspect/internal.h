/* SPDX-License-Identifier: Apache-2.0 */
/* A store that is inspected: its members, read-only, and what they say. */
#ifndef STORE_INSPECT_INTERNAL_H
#define STORE_INSPECT_INTERNAL_H

#include "store/manifest.h"
#include "store/member/member.h"
#include "store/slots.h"

/* How opening a member ended. */
struct open_result {
	int rc;
	struct nvs_error why; /* an error, if there is one */
};

struct nvs_store {
	unsigned npaths;
	struct member members[NVS_PATHS_MAX];
	struct open_result open_results[NVS_PATHS_MAX];
	struct slots slots;
	bool has_slots;	       /* they are open */
	struct manifest found; /* of the last commit; no entries: none */
	struct nvs_store_info info;
	bool locked;
	struct nvs_aio *aio; /* of `file`, for reading the data */
	struct nvs_file *file;
};

/* ---- open.c ---- */
/* A place of the caller with its paths checked. -EINVAL, -E2BIG. */
int place_in(struct nvs_store_place *place, const struct nvs_store_place *from,
	     struct nvs_error *error);

/* ---- read.c ---- */
/* Reads labels and manifests of the open members, and says in store->info what they are. */
int inspect_read(struct nvs_store *store, struct nvs_error *error);
/* Asserts what must hold of a store from nvs_store_open to nvs_store_close. */
void inspect_check(const struct nvs_store *store);
/* -EUCLEAN: a member is truncated, so that the manifest names more than it has. */
int inspect_check_data(const struct nvs_store *store, struct nvs_error *error);

/* Whether nothing of the store is on the path, or there is no such path. */
static inline bool inspect_missing(const struct nvs_store *store, unsigned i)
{
	return store->open_results[i].rc == -ENODATA || store->open_results[i].rc == -ENOENT;
}

/* Whether its manifests are there, and its data file is not. */
static inline bool lacks_data(const struct member *member)
{
	return member->fd < 0 && member->directory_fd >= 0 && member->has_manifests;
}

/* Where a byte of the data lies. */
static inline unsigned member_of(const struct nvs_store *store, uint64_t offset, uint64_t *at)
{
	const struct label *label = &store->members[0].label;
	uint64_t stripe = label->count > 1 ? offset / label->stripe : 0;
	unsigned member = (unsigned)(stripe % label->count);

	*at = label->count > 1 ? stripe / label->count * label->stripe + offset % label->stripe
			       : offset;
	*at += member < store->npaths ? store->members[member].base : LABEL_AREA_BYTES;
	return member;
}

#endif
