/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two slots of the manifest, written alternately: while one is replaced, the other is valid. In
 * a directory they are files, on a raw device two regions behind the label.
 */
#ifndef STORE_SLOTS_H
#define STORE_SLOTS_H

#include "store/manifest.h"
#include "store/member/member.h"

struct slot {
	int fd;
	char *path;
	uint64_t base, capacity; /* bytes */
	bool owned;		 /* the slot closes fd */
};

struct slots {
	struct slot slot[MANIFEST_SLOT_COUNT];
	bool read_only;
	unsigned current; /* the valid slot, never written; MANIFEST_SLOT_COUNT: none */
};

/*
 * Opens or creates both, on member 0; `fresh`: empties them. A read-only member may lack one. After
 * an error call slots_close.
 */
int slots_open(struct slots *slots, const struct member *member, bool fresh,
	       struct nvs_error *error);
void slots_close(struct slots *slots);
/* Asserts what must hold of open slots. */
void slots_check(const struct slots *slots);

/*
 * Reads the store's newest intact manifest, makes it durable unless the slots are read-only, and
 * makes its slot the current one;
 * logs what is wrong with the other. -ENODATA: neither is intact; the error says why. -ENOMEM;
 * errors of reading and fdatasync.
 */
int slots_read(struct slots *slots, const uint8_t id[STORE_ID_SIZE], uint32_t unit,
	       struct manifest *manifest, const struct nvs_log *log, struct nvs_error *error);
/* -ENOSPC if a manifest of `nbytes` does not fit. */
int slots_check_size(const struct slots *slots, uint64_t nbytes, struct nvs_error *error);
/*
 * slots_write writes the slot that is not current, slots_sync makes it durable, and slots_turn
 * makes it current. From slots_write on, even a failed one, a reader of the slots may find the new
 * manifest. slots_revoke invalidates it durably.
 */
int slots_write(struct slots *slots, const uint8_t *bytes, uint64_t nbytes,
		struct nvs_error *error);
int slots_sync(struct slots *slots, struct nvs_error *error);
int slots_revoke(struct slots *slots, struct nvs_error *error);
void slots_turn(struct slots *slots);
/* -ESTALE: a manifest's file was removed or moved. */
int slots_check_places(const struct slots *slots, const struct member *member,
		       struct nvs_error *error);
/* Reserves space on the drive for a manifest of `count` entries, whatever their names. */
int slots_reserve(struct slots *slots, uint64_t count, struct nvs_error *error);

#endif
