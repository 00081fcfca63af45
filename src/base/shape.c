/* SPDX-License-Identifier: Apache-2.0 */
#include "base/shape.h"

#include <errno.h>
#include <inttypes.h>

#include "base/error.h"

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
