/* SPDX-License-Identifier: Apache-2.0 */
/* The limit on the size of files that the process writes (RLIMIT_FSIZE, ulimit -f). */
#ifndef BASE_FILE_LIMIT_H
#define BASE_FILE_LIMIT_H

#include <stdint.h>

#include "nvswap.h"

/*
 * -ENOSPC if a file of `nbytes` exceeds the limit. Must be called before growing a file, since
 * growing it beyond the limit raises SIGXFSZ, which by default ends the process.
 */
int file_may_grow(const char *path, uint64_t nbytes, struct nvs_error *error);

#endif
