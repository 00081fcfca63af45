/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file that tuning works on: one in a directory at a time, and gone when the process is, in
 * whatever way that ends.
 */
#ifndef CLI_TUNE_FILE_H
#define CLI_TUNE_FILE_H

#include <limits.h>

#include "guard.h"

struct tune_file {
	char path[PATH_MAX];
	int fd; /* holds the lock */
	struct guard guard;
};

/*
 * Makes it, with room for `nbytes` where the file system can set that aside. -EBUSY: another
 * process tunes in the directory. -EEXIST: its name is taken by something else. -ENOSPC and other
 * errno of making a file.
 */
int tune_file_make(struct tune_file *file, const char *directory, uint64_t nbytes,
		   struct nvs_error *error);
/* Removes it, and waits until it is gone. */
void tune_file_remove(struct tune_file *file);

#endif
