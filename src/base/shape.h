/* SPDX-License-Identifier: Apache-2.0 */
/* The shape of a tensor: the lengths of its dimensions, of which there may be none. */
#ifndef BASE_SHAPE_H
#define BASE_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Stores the product of the dimensions in *numel; 1 if there are none. False: a product of the
 * first ones exceeds 64 bits, even if a later one is 0.
 */
static inline bool shape_numel(const uint64_t *shape, size_t ndim, uint64_t *numel)
{
	*numel = 1;
	for (size_t i = 0; i < ndim; i++)
		if (__builtin_mul_overflow(*numel, shape[i], numel))
			return false;
	return true;
}

/* Whether the product of the dimensions is numel; a shape that is NULL has one dimension, numel. */
static inline bool shape_has(const uint64_t *shape, size_t ndim, uint64_t numel)
{
	uint64_t product;

	return !shape || (shape_numel(shape, ndim, &product) && product == numel);
}

/* The dimensions, of which there are *n; of a shape that is NULL likewise. */
static inline const uint64_t *shape_dimensions(const uint64_t *shape, size_t ndim,
					       const uint64_t *numel, size_t *n)
{
	*n = shape ? ndim : 1;
	return shape ? shape : numel;
}

bool shapes_equal(const uint64_t *a, size_t a_ndim, const uint64_t *b, size_t b_ndim);

#define SHAPE_TEXT 128
/* Writes a shape as "[2, 3]", and of many dimensions the first ones. Returns the text. */
const char *shape_text(const uint64_t *shape, size_t ndim, char text[SHAPE_TEXT]);

struct nvs_error;

/* Of a caller's shape for a tensor of numel elements: 0, or -EINVAL with an error that names it. */
int shape_check(const char *name, const uint64_t *shape, size_t ndim, uint64_t numel,
		struct nvs_error *error);

#endif
