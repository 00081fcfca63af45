/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks and copies lists of nvme_path, from a file or from the caller.
 */
#ifndef CONFIG_PATHS_H
#define CONFIG_PATHS_H

#include "config/config.h"

#define PATH_BYTES_MAX 3840 /* leaves room below PATH_MAX for the names inside the store */

/* Checks paths[i] by itself and against those before it. Returns NULL if it is valid, else the flaw
 * as a predicate: "is empty". */
const char *path_flaw(const char *const *paths, unsigned i);

/* Copies n strings into a block, whose own are not freed. Returns 0, or -ENOMEM and copies none. */
int paths_copy(struct offload_config *into, const char *const *paths, unsigned n);
void paths_free(struct offload_config *offload);

#endif
