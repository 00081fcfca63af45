/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A target states what an input may take of memory; allocations.c counts it and aborts beyond that.
 */
#ifndef FUZZ_ALLOCATIONS_H
#define FUZZ_ALLOCATIONS_H

#include <stddef.h>

/* Of the target: for an input of `nbytes`, with what the target itself allocates. */
size_t allocated_most(size_t nbytes);

#endif
