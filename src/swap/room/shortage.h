/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells which tensors are pinned while a call waits for room. Under the engine's lock.
 */
#ifndef ROOM_SHORTAGE_H
#define ROOM_SHORTAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nvs_engine;

#define SHORTAGE_AFTER_NS   UINT64_C(5000000000)
#define SHORTAGE_TEXT_BYTES 800

/* A call's wait for room; all zeros at its beginning. */
struct shortage {
	uint64_t tell_at_ns; /* 0: not decided yet */
	bool told;	     /* the log has it, once per call */
};

/* Names the largest pinned tensors, their pins and since when. */
void shortage_text(const struct nvs_engine *engine, char text[SHORTAGE_TEXT_BYTES]);
/* Until when to wait: `deadline`, or earlier to call shortage_tell(). */
uint64_t shortage_deadline(const struct nvs_engine *engine, struct shortage *shortage,
			   uint64_t deadline);
/* Logs it, for a batch of n tensors, unless transfers in flight will make room: then later. */
void shortage_tell(struct nvs_engine *engine, struct shortage *shortage, size_t n);

#endif
