/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The members of a store, one file or block device per path: opened or created, locked, and checked
 * before any of them is changed.
 */
#ifndef STORE_MEMBER_MEMBER_H
#define STORE_MEMBER_MEMBER_H

#include <inttypes.h>
#include <stdio.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/numbers.h"
#include "store/label.h"
#include "topo/topo.h"

/* Each member has two copies of its label, which no bad sector has in common. */
#define LABEL_COPY_COUNT 2
#define LABEL_DISTANCE	 (UINT64_C(1) << 20) /* bytes from one copy to the next */
/* Before the data; on a raw device all zeros but for a store's labels. */
#define LABEL_AREA_BYTES (LABEL_COPY_COUNT * LABEL_DISTANCE)
/* Two manifests take turns, and each has two copies. Manifest i is in the slots i and i + 2. */
#define MANIFEST_TURN_COUNT 2
#define MANIFEST_SLOT_COUNT 4
/* <path>/nvswap/written: see store/member/count.c */
#define MEMBER_COUNT_NAME  "written"
#define RAW_MANIFEST_BYTES (UINT64_C(16) << 20) /* of a slot; they follow on a raw member 0 */

enum label_copy {
	LABEL_ABSENT,  /* there is none yet */
	LABEL_WHOLE,   /* the newest */
	LABEL_STALE,   /* an older one: a commit was cut off between the copies */
	LABEL_DAMAGED, /* or unreadable */
};

enum member_kind { MEMBER_FILE, MEMBER_RAW, MEMBER_MEMORY };

struct member {
	enum member_kind kind;
	char *path;				/* of the file or device */
	char *directory;			/* a file's: <path>/nvswap/<name> */
	char *parent;				/* a file's: <path>, absolute */
	int parent_fd, nvswap_fd, directory_fd; /* <path>, <path>/nvswap, directory; else -1 */
	int fd, direct_fd;			/* of the data */
	int count_fd; /* of the bytes written below <path>; -1: not opened */
	int lock_fd; /* the named file, if that of the data has no name; else -1, and the lock is on fd */
	bool read_only;	 /* nothing of it is ever written */
	bool beside;	 /* read-only: a lock of another process is no error */
	bool in_use;	 /* `beside`, and another process has locked it */
	bool lent;	 /* an nvs_file owns these two */
	bool disposable; /* removed on close: new, or not kept */
	bool made;	 /* one of its directories is new */
	bool blank;	 /* has no label yet */
	bool has_manifests;
	bool expected; /* a label: there are manifests, or the first member's label counts it */
	struct dio_caps dio;
	uint32_t unit_needed; /* a store's unit must be a multiple of it, for direct I/O */
	uint32_t unit;	      /* best for a new store; bytes, powers of two */
	dev_t dev;	      /* the file's device, or the device itself */
	ino_t ino;
	uint64_t base;	    /* bytes; where the data begins */
	uint64_t capacity;  /* of a device: bytes from base; of a file: UINT64_MAX */
	struct label label; /* the newest valid copy */
	enum label_copy copies[LABEL_COPY_COUNT]; /* what the drive has */
	uint64_t written;			  /* bytes of labels; atomic */
	/* With a write budget: the bytes of this run in the path's file `written`, ahead of the
	 * writes; and how many are written when more is to be added, atomic. */
	uint64_t counted, count_next;
};

/* The name of a store's directory below each path. */
static inline void member_name(uint32_t rank, bool optimizer, char name[64])
{
	snprintf(name, 64, "rank%" PRIu32 "%s", rank, optimizer ? "-optimizer" : "");
}

/* The file or device that has the member's name, and the lock. */
static inline int member_named_fd(const struct member *member)
{
	return member->lock_fd >= 0 ? member->lock_fd : member->fd;
}

/*
 * Opens and locks member `index` of `members` (the ones before it are open, the ones after it
 * zeroed) and reads its label. Data that is not nvswap's is refused and left unchanged.
 * Errors as nvs_engine_open; call member_close after an error too.
 */
enum member_access {
	MEMBER_WRITES,
	MEMBER_READS, /* nothing is made, and readers share the lock; -ENODATA: nothing is there */
	MEMBER_READS_BESIDE, /* and if the store is in use, labels and manifests alone may be read */
};
int member_open(struct member *members, unsigned index, const char *path, const char *name,
		enum member_access access, struct nvs_error *error);
/*
 * Removes other users' permissions from a member's directories and file, and logs it. To be called
 * when all members are known to be one store's, or free for one.
 */
int member_make_private(const struct member *member, const struct nvs_log *log,
			struct nvs_error *error);
/*
 * For a store that is not kept: puts the data into a file without a name, which the kernel removes
 * however the process ends; the named file, empty, keeps the lock by which others find the store.
 * Does nothing if the file system can't, or the member is a device or host memory.
 */
int member_make_nameless(struct member *member, struct nvs_error *error);
/* A member in host memory. */
int member_open_memory(struct member *member, struct nvs_error *error);
/* Waits a second for a process that was just killed, then -EBUSY. */
int member_lock(struct member *member, struct nvs_error *error);
void member_unlock(const struct member *member);
/* Sleeps a little; false once a second has passed since `since`, a time of clock_ns(). */
bool member_owner_may_end(uint64_t since);
/*
 * The first half of closing: removes a disposable member's files while it is locked. The second
 * half frees the rest, after the nvs_file was closed, and removes the directories: before, FUSE and
 * NFS hold the open files in them.
 */
void member_dispose(struct member *member, const struct nvs_log *log);
void member_close(struct member *member);

/*
 * Probes direct I/O, and sets the units. `unit` is that of a kept store, 0 for a new one: I/O is
 * buffered if direct I/O needs larger units.
 */
int member_probe(struct member *member, uint32_t unit, const struct nvs_log *log,
		 struct nvs_error *error);

/* Opens an nvs_file over `n` members that were probed, which then owns their descriptors. */
int members_open_file(struct member *members, unsigned n, uint64_t stripe, struct nvs_aio *aio,
		      struct nvs_file **file, struct nvs_error *error);

/* Raises a unit, up to UNIT_MAX, to whole physical blocks of the drives below the open file: a
 * drive moves a part of a block by reading all of it. */
void unit_cover_blocks(uint32_t *unit, int fd);

/* Logs why the member's reserved space may not suffice, if so. */
void member_report_space(const struct member *member, const struct nvs_log *log);

/* Asserts what must hold of a member from the reading of its label on, until it is closed. */
void member_open_check(const struct member *member);
/* Of one that was also probed. */
void member_check(const struct member *member);

/*
 * Writes all copies of the label, one durable before the next is begun, so that a crash damages at
 * most one of them. Damaged ones come first.
 */
int member_write_label(struct member *member, struct nvs_error *error);
/* Whether any copy is in this state. */
bool member_has_copy(const struct member *member, enum label_copy state);
/* Empties the member and makes room for a label. On a device, only the label is written. */
int member_begin(struct member *member, struct nvs_error *error);
/*
 * Opens the file of a manifest in the member's directory, unless it is open, which must be a
 * regular file of this user. -ENOENT: there is none. `create`: makes it, and removes other users'
 * permissions from it.
 */
int member_open_manifest(const struct member *member, unsigned i, bool create, int *fd,
			 struct nvs_error *error);
/* The name of that file. */
#define MANIFEST_NAME 16
static inline void manifest_name(unsigned i, char name[MANIFEST_NAME])
{
	snprintf(name, MANIFEST_NAME, "manifest.%u", i);
}

/* Makes the directory entries durable, from the member's up to the user's path. */
int member_sync_names(const struct member *member, struct nvs_error *error);

/*
 * Adds `change` to the count of bytes written below the member's path; *count is the sum.
 * -EDQUOT: it has reached `limit`, and stays. -EUCLEAN: the file has no count. -EBUSY: another
 * process holds its lock for long. Errors of the drive.
 */
int member_change_count(struct member *member, int64_t change, uint64_t limit, uint64_t *count,
			struct nvs_error *error);

/*
 * -ESTALE: the path no longer leads to the open file, as after rm -r, mv or umount -l, so that a
 * later run would not find it. member_check_name is for another open file in the member's
 * directory.
 */
int member_check_place(const struct member *member, struct nvs_error *error);
int member_check_name(const struct member *member, const char *name, int fd,
		      struct nvs_error *error);

/* *nbytes: the bytes of data for which it has space. */
int member_space(const struct member *member, uint64_t *nbytes, struct nvs_error *error);
/*
 * The bytes of data on each of `n` members of a store whose last extent ends at `end`: it grows by
 * whole rows of stripes.
 */
uint64_t member_share(uint64_t end, unsigned n, uint64_t stripe);
/* The same as member_space. -EUCLEAN: it is less than `share`, so the kept store is truncated. */
int member_space_of(const struct member *member, uint64_t share, uint64_t *nbytes,
		    struct nvs_error *error);
/* Reserves data space from `from` to `to` bytes; on an error it has the same space as before. */
int member_grow(struct member *member, uint64_t from, uint64_t to, struct nvs_error *error);
/* Undoes member_grow. */
int member_shrink(struct member *member, uint64_t to, struct nvs_error *error);
/* Reserves the space that the file's size promises; a copy of a store may be sparse. */
int member_reserve_again(struct member *member, uint64_t nbytes, struct nvs_error *error);

#endif
