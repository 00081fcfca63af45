/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tuning may do on a machine and a path, and what it may not: before anything is written.
 */
#ifndef CLI_TUNE_BOUNDS_H
#define CLI_TUNE_BOUNDS_H

#include "tune.h"

/* Looks at the machine and the directory. Whatever can't be tuned for is refused, with why. */
int tune_look(const struct tune_options *options, struct tune_drive *drive,
	      struct nvs_error *error);
/* Sets drive->working_set to what was asked for, or to what suits the space. -ENOSPC. */
int tune_choose_working_set(const struct tune_options *options, struct tune_drive *drive,
			    struct nvs_error *error);
/* Bytes of memory to move data to and from. */
uint64_t tune_memory_bytes(const struct tune_drive *drive);
/* All settings that may be tried. -EINVAL: the options leave none. */
int tune_space_make(const struct tune_options *options, const struct tune_drive *drive,
		    struct tune_space *space, struct nvs_error *error);

#endif
