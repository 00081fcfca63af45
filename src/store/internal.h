/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store's structure, shared by the files of this layer. One lock guards what changes after
 * opening; no system call runs under it. Reserving and committing are slow and are done by one
 * thread at a time each, which has a lock for that: what they work on is theirs without the first.
 *
 * The order of the files, from the bottom. Each calls only those before it (test_layers):
 *	bytes: disk label manifest
 *	member: member count label_io device member/open space
 *	store: slots budget reserve commit open files
 *	inspect: read inspect/open verify change
 */
#ifndef STORE_INTERNAL_H
#define STORE_INTERNAL_H

#include <pthread.h>

#include "base/memory/extents.h"
#include "store/manifest.h"
#include "store/member/member.h"
#include "store/slots.h"
#include "store/store.h"

/* A file of others. */
struct source {
	char *path; /* as the caller names it */
	char *full; /* the same, wherever the process goes */
	struct stamp stamp;
	int fd;		/* of the nvs_file */
	uint64_t first; /* the offset of its first byte there */
	bool reported;	/* by store_report_file() */
};

struct store {
	struct nvs_log log;
	unsigned nmembers;
	struct member members[NVS_PATHS_MAX];
	uint32_t unit;
	uint64_t stripe;
	bool keep, read_only, direct;
	struct nvs_file *file;
	struct source *sources; /* of a store of files of others, which has no members; or NULL */
	size_t nsources;

	pthread_mutex_t lock;	 /* of the following; taken behind the other two */
	struct extents *extents; /* in units */
	uint64_t live;		 /* reserved extents, including those of length 0 */

	pthread_mutex_t reserving; /* of the following */
	uint64_t share;		   /* bytes of data space in each member */
	uint64_t entries_max;	   /* entries for which the drive has manifest space */

	pthread_mutex_t committing; /* of the following; `manifest` changes under `lock` too */
	struct slots slots;
	struct manifest found;		 /* as read on open */
	struct manifest_header manifest; /* the current one */
	const char *no_commits;		 /* why no commit is possible any more; or NULL */
	bool damaged;			 /* a copy of a label must be written anew */
	bool unsettled;			 /* the drive may name either of two manifests */

	/* Of the thread that opens, counts or closes: the write budget in bytes, 0: none; and
	 * whether a message about it was logged. */
	uint64_t budget;
	bool budget_warned, budget_failed;
};

/* ---- open.c ---- */
/* A store to be opened, which store_close() frees. NULL: out of memory. */
struct store *store_new(void);

/* ---- budget.c ---- */
/*
 * Refuses to start where a path has had `limit` bytes, -EDQUOT, and counts ahead what this run will
 * write. 0: no limit. -EOPNOTSUPP: a member is a block device. -EUCLEAN: the count is no count.
 * -EBUSY, and errors of the drive.
 */
int budget_open(struct store *store, uint64_t limit, struct nvs_error *error);
/* Makes the counts those of what was written. */
void budget_close(struct store *store);

/* ---- reserve.c ---- */
/* -EROFS */
int store_read_only(const struct store *store, struct nvs_error *error);
/* Under the lock: asserts what must hold of the extents. */
void store_space_check(const struct store *store);
/* Opens the nvs_file over the members, and the allocator, without the manifest's extents. */
int store_open_space(struct store *store, struct nvs_aio *aio, struct nvs_error *error);

/* ---- commit.c ---- */
/* Asserts what must hold of a kept store, by the thread that opens it or commits. */
void store_commit_check(const struct store *store);
/* Reads the manifest of a reopened store; `rollback`: the one before it will do. */
int store_read_manifest(struct store *store, bool rollback, struct nvs_error *error);
/* The last step of reopening a store that is not read-only, and the first that changes it. */
int store_begin_writing(struct store *store, struct nvs_error *error);

#endif
