/* SPDX-License-Identifier: Apache-2.0 */
#include "base/shape.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

bool shapes_equal(const uint64_t *a, size_t a_ndim, const uint64_t *b, size_t b_ndim)
{
	return a_ndim == b_ndim && (!a_ndim || !memcmp(a, b, a_ndim * sizeof(*a)));
}

const char *shape_text(const uint64_t *shape, size_t ndim, char text[SHAPE_TEXT])
{
	/* Room for a dimension of 20 digits and what ends the text. */
	const size_t last = SHAPE_TEXT - sizeof(", 18446744073709551615, ...]");
	size_t at = 1, i = 0;

	text[0] = '[';
	for (; i < ndim && at <= last; i++)
		at += (size_t)snprintf(text + at, SHAPE_TEXT - at, "%s%" PRIu64, i ? ", " : "",
				       shape[i]);
	snprintf(text + at, SHAPE_TEXT - at, i < ndim ? ", ...]" : "]");
	return text;
}

int shape_check(const char *name, const uint64_t *shape, size_t ndim, uint64_t numel,
		struct nvs_error *error)
{
	uint64_t product;

	if (ndim > NVS_NDIM_MAX)
		return error_about(error, -EINVAL, name, 0, 0,
				   "%s: a shape of %zu dimensions; allowed are up to %d", name,
				   ndim, NVS_NDIM_MAX);
	if (!shape_numel(shape, ndim, &product))
		return error_about(error, -EINVAL, name, 0, 0,
				   "%s: its shape has more elements than 64 bits can count", name);
	if (product != numel)
		return error_about(error, -EINVAL, name, 0, 0,
				   "%s: its shape has %" PRIu64 " elements, and numel is %" PRIu64,
				   name, product, numel);
	return 0;
}
