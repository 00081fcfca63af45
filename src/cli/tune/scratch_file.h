/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file that tuning works on: one per directory at a time, removed when the process ends, even
 * by SIGKILL.
 */
#ifndef CLI_TUNE_SCRATCH_FILE_H
#define CLI_TUNE_SCRATCH_FILE_H

#include <limits.h>

#include "cli/stop.h"

struct scratch_file {
	char path[PATH_MAX];
	int fd; /* holds the lock */
	struct guard guard;
};

/*
 * Makes the file and reserves `nbytes` where the file system can.
 *	-EBUSY	another process tunes in the directory
 *	-EEXIST	something else has the name
 *	-ENOSPC and other errors of making a file
 */
int scratch_file_make(struct scratch_file *file, const char *directory, uint64_t nbytes,
		      struct nvs_error *error);
/* Returns when the file is gone. */
void scratch_file_remove(struct scratch_file *file);

#endif
