/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tuning may do on a machine and a path, decided before anything is written.
 */
#ifndef CLI_TUNE_BOUNDS_H
#define CLI_TUNE_BOUNDS_H

#include "cli/tune/tune.h"

/* Looks at the machine and the directory, and refuses what can't be tuned for. */
int tune_look(const struct tune_options *options, struct tune_drive *drive,
	      struct nvs_error *error);
/* Sets drive->working_set, as asked for or by the free space and the limit of writes. -ENOSPC;
 * -EINVAL: it is above that limit. */
int tune_choose_working_set(const struct tune_options *options, struct tune_drive *drive,
			    struct nvs_error *error);
/* The size of the memory that data is moved to and from. */
uint64_t tune_memory_bytes(const struct tune_drive *drive);
/* The points that may be tried. -EINVAL: the options leave none; -ENOTSUP: the engine asked for
 * does not work here. */
int tune_space_make(const struct tune_options *options, const struct tune_drive *drive,
		    struct tune_space *space, struct nvs_error *error);

#endif
