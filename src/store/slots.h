/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots of the manifest. Two manifests take turns: while one is replaced, the other is valid.
 * Each has two copies, so that a bad sector in one costs nothing. In a directory the slots are
 * files, on a raw device regions behind the labels.
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
	/* What slots_read found: */
	uint64_t generation; /* of its header; 0: it has no valid one */
	bool committed;	     /* its header says that its commit was made, valid or cut off */
	char why[96];	     /* why it does not count; "" if it does, or was not needed */
};

struct slots {
	struct slot slot[MANIFEST_SLOT_COUNT];
	/* The turn of the valid manifest, never written; MANIFEST_TURN_COUNT: none. */
	unsigned current;
	bool damaged;	  /* a copy of it must be written anew */
	uint64_t highest; /* number of any manifest there, also of commits that were cut off */
	uint64_t last;	  /* number of the last commit that the label, or a manifest, proves */
	uint64_t written; /* bytes of all manifests; atomic */
};

/* Opens those that are there, on member 0, and changes nothing. After an error call slots_close. */
int slots_open(struct slots *slots, const struct member *member, struct nvs_error *error);
/* Creates those that are missing, before anything is written. `fresh`: empties them all. */
int slots_complete(struct slots *slots, const struct member *member, bool fresh,
		   struct nvs_error *error);
void slots_close(struct slots *slots);
/* Asserts what must hold of open slots. */
void slots_check(const struct slots *slots);

/*
 * Reads the manifest that the label of the first member names from any copy that is whole, and
 * makes its turn the current one; a copy that is damaged, or can't be read, is logged. Nothing is
 * read if nothing was committed. `rollback`: if the last commit is lost, the one before it will do.
 * -EUCLEAN: no copy is valid, or a manifest proves a later commit; the error has what is there.
 * -ENOMEM.
 */
int slots_read(struct slots *slots, const struct member *first, bool rollback,
	       struct manifest *manifest, const struct nvs_log *log, struct nvs_error *error);
/*
 * slots_write writes both copies of the turn that is not current and makes them durable;
 * slots_turn makes it current, once a label names it.
 */
int slots_write(struct slots *slots, const uint8_t *bytes, uint64_t nbytes,
		struct nvs_error *error);
void slots_turn(struct slots *slots);
/*
 * Marks the copies of the current manifest as committed, one durable before the next is begun. To
 * be called when the label names it durably. A failure costs only redundancy: it is logged, and the
 * next commit writes both copies anew.
 */
void slots_mark(struct slots *slots, const struct manifest_header *header,
		const struct nvs_log *log);
/* -ESTALE: a manifest's file was removed or moved. */
int slots_check_places(const struct slots *slots, const struct member *member,
		       struct nvs_error *error);
/* Reserves space on the drive for a manifest of `count` entries, whatever their names and the
 * note. */
int slots_reserve(struct slots *slots, uint64_t count, struct nvs_error *error);

#endif
