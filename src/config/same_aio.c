/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the settings of an open aio with those of a configuration that is to share it.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/numbers.h"
#include "config/config.h"

static const char *const keys[] = {"aio.block_size",	"aio.queue_depth",     "aio.thread_count",
				   "aio.single_submit", "aio.overlap_events",  "aio.use_gds",
				   "nvswap.ioengine",	"nvswap.io_timeout_ms"};

int config_same_aio(const struct nvs_config *config, const struct aio_config *opened,
		    struct nvs_error *error)
{
	struct nvs_config other = *config;
	char wanted[64], present[64];

	other.aio = *opened;
	for (size_t i = 0; i < COUNT_OF(keys); i++) {
		int rc = nvs_config_get(config, keys[i], wanted, sizeof(wanted), error);

		if (!rc)
			rc = nvs_config_get(&other, keys[i], present, sizeof(present), error);
		if (rc)
			return rc;
		if (strcmp(wanted, present))
			return error_about(error, -EINVAL, keys[i], 0, 0,
					   "%s is %s, but the aio to share was opened with %s: "
					   "open both with one configuration",
					   keys[i], wanted, present);
	}
	return 0;
}
