/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two places that a manifest can lie in, written by turns: while one is being replaced, the
 * other holds. On a directory they are files, on a raw device two regions behind the label.
 */
#ifndef STORE_SLOTS_H
#define STORE_SLOTS_H

#include "store/manifest.h"
#include "store/members.h"

struct slot {
	int fd;
	char *path;
	uint64_t base, capacity; /* bytes */
	bool owned;		 /* fd is the slot's own to close */
};

struct slots {
	struct slot slot[MANIFEST_SLOT_COUNT];
	unsigned current; /* the one that must not be written; MANIFEST_SLOT_COUNT: none holds */
};

/* Opens or makes both, on member 0; `fresh`: empties them. On error slots_close is due. */
int slots_open(struct slots *slots, const struct member *member, bool fresh,
	       struct nvs_error *error);
void slots_close(struct slots *slots);

/*
 * Reads the newest manifest of the store that is whole, makes sure that it is durable, and makes
 * its slot the current one; what is wrong with the other goes to the log. -ENODATA: there is none;
 * the error says what is wrong with each. -ENOMEM; errno of reading and of fdatasync.
 */
int slots_read(struct slots *slots, const uint8_t id[STORE_ID_SIZE], uint32_t unit,
	       struct manifest *manifest, const struct nvs_log *log, struct nvs_error *error);
/* Whether a manifest of so many bytes fits; -ENOSPC. */
int slots_check_size(const struct slots *slots, uint64_t nbytes, struct nvs_error *error);
/*
 * Writes the slot that is not current, and makes it durable; slots_turn then makes it current. What
 * was written counts for whoever reads the slots, and may do so after an error too: then, and where
 * it is not wanted after all, slots_take_back makes it count no more, durably.
 */
int slots_write(struct slots *slots, const uint8_t *bytes, uint64_t nbytes,
		struct nvs_error *error);
int slots_take_back(struct slots *slots, struct nvs_error *error);
void slots_turn(struct slots *slots);
/* Reserves space on the drive for a manifest of `count` entries, whatever their names. */
int slots_reserve(struct slots *slots, uint64_t count, struct nvs_error *error);

#endif
