/* SPDX-License-Identifier: Apache-2.0 */
/* nvs_machine_get_info(): the topology layer's facts, and which I/O engines work. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "aio/engines/engine.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "topo/topo.h"

/* Picks the first engine that works; `reason` says why the earlier ones don't. */
static void choose(struct nvs_machine_info *info)
{
	char *reason = info->ioengine[NVS_IOENGINE_AUTO].reason;
	const size_t nbytes = sizeof(info->ioengine[NVS_IOENGINE_AUTO].reason);

	assert(!reason[0] && !info->ioengine[NVS_IOENGINE_AUTO].works);
	for (int i = NVS_IOENGINE_IO_URING; i <= NVS_IOENGINE_POSIX; i++) {
		size_t used = strlen(reason);

		if (info->ioengine[i].works) {
			info->auto_ioengine = (enum nvs_ioengine)i;
			info->ioengine[NVS_IOENGINE_AUTO].works = true;
			return;
		}
		assert(info->ioengine[i].reason[0] && used < nbytes);
		snprintf(reason + used, nbytes - used, "%s%s: %s", used ? "; " : "",
			 nvs_ioengine_name((enum nvs_ioengine)i), info->ioengine[i].reason);
	}
	assert(!info->ioengine[NVS_IOENGINE_AUTO].works && reason[0]);
}

int nvs_machine_get_info(struct nvs_machine_info *info, struct nvs_error *error)
{
	struct nvs_machine_info full;

	if (!struct_sized(info))
		return error_set(error, -EINVAL, "info is NULL, or its size is not set");
	/* Each field reports its own failure. */
	machine_facts(&full);
	for (int i = NVS_IOENGINE_IO_URING; i <= NVS_IOENGINE_POSIX; i++) {
		char *reason = full.ioengine[i].reason;

		full.ioengine[i].works = !ioengine_try((enum nvs_ioengine)i, reason,
						       sizeof(full.ioengine[i].reason));
		if (full.ioengine[i].works)
			reason[0] = '\0';
		assert(full.ioengine[i].works || reason[0]);
	}
	choose(&full);
	assert(!full.ioengine[NVS_IOENGINE_AUTO].works || full.ioengine[full.auto_ioengine].works);
	assert(full.size == sizeof(full));
	return struct_out(info, &full, sizeof(full));
}
