/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much of the pool the tensors hold that each thread has pinned. A tensor counts for the thread
 * that made the newest of its pins, whichever thread ends them. Under the engine's lock.
 */
#ifndef PINS_PINNERS_H
#define PINS_PINNERS_H

#include <stdbool.h>
#include <stdint.h>

/* More threads than these share entries. */
#define PINNERS 256u

struct pinners {
	uint64_t held[PINNERS]; /* bytes */
	uint64_t all;		/* their sum */
};

struct nvs_engine;
struct nvs_tensor;

/* The calling thread's entry. */
uint32_t pinner_self(void);
/* The calling thread has pinned the tensor, for the first time (`first`) or once more. */
void pinner_takes(struct nvs_engine *engine, struct nvs_tensor *tensor, bool first);
/* One of the tensor's pins has ended, and that thread made the newest of the others; and the last
 * one has. */
void pinner_stays(struct nvs_engine *engine, struct nvs_tensor *tensor, uint32_t pinner);
void pinner_ends(struct nvs_engine *engine, const struct nvs_tensor *tensor);
/* Asserts that the sum is that of the entries. */
void pinners_check(const struct pinners *pinners);

#endif
