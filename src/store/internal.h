/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store as the files of this layer share it. Two locks that are never held together: one for
 * the space, one for the label and the manifest.
 */
#ifndef STORE_INTERNAL_H
#define STORE_INTERNAL_H

#include <pthread.h>

#include "base/extents.h"
#include "store/manifest.h"
#include "store/members.h"
#include "store/slots.h"
#include "store/store.h"

struct store {
	struct nvs_log log;
	unsigned nmembers;
	struct member members[NVS_PATHS_MAX];
	uint32_t unit;
	uint64_t stripe;
	bool keep, direct;
	struct nvs_file *file;

	pthread_mutex_t space_lock;
	struct extents *extents; /* in units */
	uint64_t live;		 /* extents that were given out, those of length 0 too */
	uint64_t share;		 /* bytes of data space in each member */
	uint64_t entries_max;	 /* that the manifest has space for on the drive */

	pthread_mutex_t commit_lock;
	struct slots slots;
	struct manifest found;		 /* when it was opened */
	struct manifest_header manifest; /* now */
	const char *no_commits;		 /* why there can be none any more; NULL: there can */
};

/*
 * Whether the members, which are open, hold a kept store that is to be found again (*found), or
 * are free for a new one. What belongs to anything else is refused, with what to do about it.
 */
int store_identify(const struct store *store, const struct store_options *options, bool *found,
		   struct nvs_error *error);
/* Writes labels that mark all members as one store, which is not kept. */
int store_begin(struct store *store, const struct store_options *options, struct nvs_error *error);
/* The last step of a new store that is kept: from here on it is found again. */
int store_begin_keeping(struct store *store, struct nvs_error *error);
/* Reads the manifest of a store that was found. */
int store_read_manifest(struct store *store, struct nvs_error *error);

/* Sets up the extents over the space that the members show, less what the manifest names. */
int store_open_space(struct store *store, struct nvs_error *error);

#endif
