/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a list of nvme_path has to be like, wherever it comes from.
 */
#ifndef CONFIG_PATHS_H
#define CONFIG_PATHS_H

#include "nvswap.h"

#define PATH_BYTES_MAX 3840 /* room is left below PATH_MAX for the store's own names */

/* What is wrong with paths[i], seen with those before it: "is empty". NULL: nothing. */
const char *path_flaw(const char *const *paths, unsigned i);

/* Copies n strings; none or all. 0 or -ENOMEM. */
int paths_copy(char **copies, const char *const *paths, unsigned n);
void paths_free(char **paths, unsigned n);

#endif
