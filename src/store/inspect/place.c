/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places of stores: checks those of callers, and names their directories.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "store/inspect/internal.h"
#include "store/member/internal.h"

int place_in(struct nvs_store_place *place, const struct nvs_store_place *from,
	     struct nvs_error *error)
{
	int rc = struct_in(place, sizeof(*place), from);

	if (rc)
		return struct_refused(error, rc, "nvs_store_place", "the place");
	if (!place->paths || !place->npaths || place->npaths > NVS_PATHS_MAX)
		return error_set(error, -EINVAL, "a place has 1 to %d paths", NVS_PATHS_MAX);
	for (unsigned i = 0; i < place->npaths; i++)
		if (!place->paths[i] || !*place->paths[i])
			return error_set(error, -EINVAL, "path %u of the place is NULL or empty",
					 i);
	return 0;
}

void place_name(const struct nvs_store_place *place, char name[64])
{
	int n = snprintf(name, 64, "rank%" PRIu32 "%s", place->rank,
			 place->optimizer ? "-optimizer" : "");

	assert(n > 0 && n < 64);
	assert(member_is_store_name(name));
}
