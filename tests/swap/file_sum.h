/* SPDX-License-Identifier: Apache-2.0 */
/* Whether files have changed: a checksum of all that is below a folder. */
#ifndef TESTS_SWAP_FILE_SUM_H
#define TESTS_SWAP_FILE_SUM_H

#include <stdint.h>

/* Of names, modes, times of modification and of change, and contents of all files below the path.
 * The process ends if they can't be listed. */
uint64_t sum_of_files(const char *path);

#endif
