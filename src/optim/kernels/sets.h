/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sets of functions that kernel.c chooses from. A set for other targets is NULL; a set that is
 * not NULL may still need instructions that the processor lacks.
 */
#ifndef OPTIM_KERNELS_SETS_H
#define OPTIM_KERNELS_SETS_H

#include "optim/kernels/kernel.h"

extern const struct kernel *const kernel_avx512;
extern const struct kernel *const kernel_avx2;
extern const struct kernel *const kernel_plain;

#endif
