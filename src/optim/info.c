/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an optimizer tells about itself: how far it is, and which gradients it has.
 */
#include <errno.h>
#include <inttypes.h>

#include "base/error.h"
#include "optim/internal.h"

int nvs_optimizer_set_step(struct nvs_optimizer *optimizer, uint64_t step, struct nvs_error *error)
{
	int rc = check_given(optimizer, "optimizer", error);

	if (rc)
		return rc;
	if (step >= HEADER_COUNTS_MAX)
		return error_about(error, -EINVAL, "step", 0, 0,
				   "step is %" PRIu64 ": allowed are 0 to 2^53 - 1", step);
	pthread_mutex_lock(&optimizer->lock);
	rc = refuse_unfinished(optimizer, error);
	if (!rc)
		optimizer->step = step;
	pthread_mutex_unlock(&optimizer->lock);
	return rc;
}
