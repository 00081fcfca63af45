/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sets of functions that there are, for kernel.c to choose from. A set that this target has no
 * instructions for is NULL; one that is not may still be more than the processor has.
 */
#ifndef OPTIM_KERNEL_SETS_H
#define OPTIM_KERNEL_SETS_H

#include "optim/kernel.h"

extern const struct kernel *const kernel_avx512;
extern const struct kernel *const kernel_avx2;
extern const struct kernel *const kernel_plain;

#endif
