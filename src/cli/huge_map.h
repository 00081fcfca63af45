/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the command's own for data: on huge pages where the kernel has some, on ordinary ones
 * elsewhere.
 */
#ifndef CLI_HUGE_MAP_H
#define CLI_HUGE_MAP_H

#include <stdint.h>

#define HUGE_PAGE ((uint64_t)2 << 20)

/* So many bytes of zeros that begin with a huge page, for munmap to give back; NULL: no memory. */
void *huge_map(uint64_t nbytes);

#endif
