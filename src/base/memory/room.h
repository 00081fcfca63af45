/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory the process may still take: what the machine has available, and what the limits
 * of its memory cgroups leave (v1 and v2, of its own and of all above it). Beyond that the kernel
 * kills, without an error. Reads /proc and the mounts of cgroups, and changes nothing.
 */
#ifndef MEMORY_ROOM_H
#define MEMORY_ROOM_H

#include "nvswap.h"

struct memory_room {
	uint64_t machine; /* bytes available on the machine; UINT64_MAX: unknown */
	uint64_t left;	  /* bytes below the limit that leaves least; UINT64_MAX: there is none */
	uint64_t limit;
	char file[256]; /* that has this limit; "": there is none */
};

void memory_room(struct memory_room *room);
/* The same with `root` in place of /, for tests. */
void memory_room_below(const char *root, struct memory_room *room);

/* The smaller of both. */
static inline uint64_t memory_room_bytes(const struct memory_room *room)
{
	return room->left < room->machine ? room->left : room->machine;
}

/*
 * Has processes under the limit that leaves least take their memory one after the other, so that
 * each finds what the ones before have left: returns a descriptor that holds the turn until it is
 * closed; -1 where there is no limit, no lock, or none within a minute.
 */
int memory_room_turn(void);

/*
 * 0 if the process may take `nbytes` and their page tables. -ENOMEM otherwise, about `key`: "WHAT
 * needs ...", with the limit, its file and the remedy, such as "allocate less".
 */
int memory_room_check(uint64_t nbytes, const char *key, const char *what, const char *remedy,
		      struct nvs_error *error);
int memory_room_judge(const struct memory_room *room, uint64_t nbytes, const char *key,
		      const char *what, const char *remedy, struct nvs_error *error);

#endif
