/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of tuning on a machine and a path, determined before anything is written. */
#ifndef CLI_TUNE_BOUNDS_H
#define CLI_TUNE_BOUNDS_H

#include "cli/tune/tune.h"

/* Examines the machine and the directory; refuses those that cannot be tuned. */
int tune_look(const struct tune_options *options, struct tune_drive *drive,
	      struct nvs_error *error);
/*
 * Sets drive->working_set: the requested size, or one derived from the free space and the write
 * limit. -ENOSPC; -EINVAL: above that limit.
 */
int tune_choose_working_set(const struct tune_options *options, struct tune_drive *drive,
			    struct nvs_error *error);
/* The size of the memory used for transfers. */
uint64_t tune_memory_bytes(const struct tune_drive *drive);
/*
 * Determines the points to consider. -EINVAL: the options leave none; -ENOTSUP: the requested
 * engine does not work here.
 */
int tune_space_make(const struct tune_options *options, const struct tune_drive *drive,
		    struct tune_space *space, struct nvs_error *error);

#endif
