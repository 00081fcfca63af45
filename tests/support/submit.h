/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers of a test as requests of the public interface. A test describes each by a struct
 * transfer, which gets the outcome of its request.
 */
#ifndef TESTS_SUPPORT_SUBMIT_H
#define TESTS_SUPPORT_SUBMIT_H

#include "aio/transfer.h"

#define SUBMIT_MAX 1024

/* nvs_aio_submit() of up to SUBMIT_MAX transfers; their `user` names the requests. */
int submit_all(struct nvs_aio *aio, struct transfer *const *transfers, size_t n,
	       struct nvs_error *error);
/*
 * nvs_aio_wait() for those that no earlier call has seen complete. Unless the time runs out, it
 * sets status and error_offset of the transfers and closes their requests.
 */
int await_all(struct nvs_aio *aio, struct transfer *const *transfers, size_t n, int timeout_ms,
	      struct nvs_error *error);
/* Whether a submitted transfer has completed: one of submit_all(), or one with a queue. */
bool is_completed(const struct transfer *transfer);
/* Waits until calls wait for at least `n` reads of the aio. */
void await_awaited_reads(struct nvs_aio *aio, uint64_t n);

/* Waits until all messages of the aio are told. */
void aio_await_told(struct nvs_aio *aio);

#endif
