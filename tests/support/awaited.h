/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What calls wait for, so that a test can go on when they do.
 */
#ifndef TESTS_SUPPORT_AWAITED_H
#define TESTS_SUPPORT_AWAITED_H

#include <stdint.h>

struct nvs_aio;

/* Waits until calls wait for at least `n` reads of the aio. */
void await_awaited_reads(struct nvs_aio *aio, uint64_t n);

#endif
