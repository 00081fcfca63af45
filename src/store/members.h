/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The members of a store, one file or block device for each path: found or made, locked, and
 * looked at, before anything of them is changed.
 */
#ifndef STORE_MEMBERS_H
#define STORE_MEMBERS_H

#include <sys/types.h>

#include "store/label.h"
#include "topo/topo.h"

#define LABEL_AREA_BYTES                                                                           \
	(UINT64_C(1) << 20) /* before the data; on a raw device all zeros, or ours */
#define RAW_MANIFEST_BYTES  (UINT64_C(32) << 20) /* each of two, behind it, on a raw member 0 */
#define MANIFEST_SLOT_COUNT 2

enum member_kind { MEMBER_FILE, MEMBER_RAW, MEMBER_MEMORY };

struct member {
	enum member_kind kind;
	char *path;				/* of the file or device, for messages too */
	char *directory;			/* of the file: <path>/nvswap/<name> */
	int parent_fd, nvswap_fd, directory_fd; /* <path>, <path>/nvswap, directory; else -1 */
	int fd, direct_fd;			/* the lock is on fd */
	bool lent;				/* the two belong to an nvs_file */
	bool disposable; /* goes when it is closed: made just now, or not kept */
	bool made;	 /* a directory of it was */
	bool blank;	 /* has no label yet */
	bool has_manifests;
	struct dio_caps dio;
	dev_t dev; /* of the file, or of the device itself */
	ino_t ino;
	uint64_t base;	   /* where the data begins, bytes */
	uint64_t capacity; /* of a device, bytes from base; else UINT64_MAX */
	struct label label;
};

/*
 * Opens and locks member `index` of `members` (those before it are open, those behind zeroed) and
 * reads its label. What is not nvswap's is refused, and nothing is changed in it. Errors as
 * nvs_open; on any, member_close is due all the same.
 */
int member_open(struct member *members, unsigned index, const char *path, const char *name,
		const struct nvs_log *log, struct nvs_error *error);
/* A member in host memory. */
int member_open_memory(struct member *member, struct nvs_error *error);
/*
 * First half of closing: takes a disposable member off the drive, while it is locked. Then, when
 * the nvs_file is closed, the second half frees what is left.
 */
void member_dispose(struct member *member, const struct nvs_log *log);
void member_unlock(const struct member *member);
void member_close(struct member *member);

/* Finds out about direct I/O; the unit that the member needs, bytes. 0 or a negative errno. */
int member_probe(struct member *member, uint32_t *unit, const struct nvs_log *log,
		 struct nvs_error *error);

int member_write_label(struct member *member, struct nvs_error *error);
/* Empties it and makes it large enough for a label. Nothing of a device but the label is written.
 */
int member_begin(struct member *member, struct nvs_error *error);
/* A file of the member's directory, checked to be a plain one of ours; made if it is not there. */
int member_open_file(const struct member *member, const char *name, int *fd,
		     struct nvs_error *error);

/* Makes the names durable, from that of the member up to the path that the user gave. */
int member_sync_names(const struct member *member, struct nvs_error *error);

/* Bytes of data that it has space for now. */
int member_space(const struct member *member, uint64_t *nbytes, struct nvs_error *error);
/* Reserves data space from `from` to `to` bytes; on error it has again what it had. */
int member_grow(struct member *member, uint64_t from, uint64_t to, struct nvs_error *error);
/* Takes back member_grow. */
int member_shrink(struct member *member, uint64_t to, struct nvs_error *error);
/* Makes sure that the space which it shows is really reserved (a copy may be sparse). */
int member_reserve_again(struct member *member, uint64_t nbytes, struct nvs_error *error);

#endif
