/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pins of a tensor. Each successful nvs_tensor_swap_in or nvs_tensor_pin makes one pin of all
 * its tensors and numbers it, from 1 in each engine. A release ends it, or the failure of the read
 * that it waits for; a failed read ends no pin that is made after it. Under the engine's lock.
 */
#ifndef RESIDENCY_PINS_H
#define RESIDENCY_PINS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Memory for more pins of one tensor is allocated, and stays until the tensor is freed. */
#define PINS_FEW 2

struct pins {
	uint32_t count;
	uint32_t max; /* entries in `many` */
	union {
		uint64_t few[PINS_FEW];
		uint64_t *many; /* if `max` is not 0 */
	};
	uint64_t since_ns; /* when the present pins began: the first of them, if any was released */
	uint64_t failed;   /* the highest pin that a failed read may have ended; or 0 */
	int status;	   /* of that read */
	uint64_t error_offset;
};

struct nvs_engine;
struct nvs_tensor;
struct nvs_error;

/* Doubles the room; false: out of memory. */
bool pins_grow(struct pins *pins);
/* Makes room for one more pin; false: out of memory. */
static inline bool pins_reserve(struct pins *pins)
{
	return pins->count < (pins->max ? pins->max : PINS_FEW) || pins_grow(pins);
}
/* `now_ns` is the time of clock_ns(). */
void pins_add(struct nvs_tensor *tensor, uint64_t pin, uint64_t now_ns);
void pins_remove(struct nvs_tensor *tensor, uint64_t pin);
bool pins_have(const struct nvs_tensor *tensor, uint64_t pin);
/* Stores up to `max` pins, the oldest first, and returns how many. */
size_t pins_list(const struct nvs_tensor *tensor, uint64_t *list, size_t max);
/* Ends all pins: the read whose status the tensor has failed. */
void pins_fail(struct nvs_tensor *tensor);
/* -EINVAL: the pin is not one of the tensor, and no failed read ended it. */
int pin_check(const struct nvs_tensor *tensor, uint64_t pin, struct nvs_error *error);
void pins_free(struct nvs_tensor *tensor);

#endif
