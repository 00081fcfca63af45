/* SPDX-License-Identifier: Apache-2.0 */
#include "support/submit.h"

#include <assert.h>
#include <sched.h>

#include "aio/internal.h"
#include "aio/requests/requests.h"

int submit_all(struct nvs_aio *aio, struct transfer *const *transfers, size_t n,
	       struct nvs_error *error)
{
	struct nvs_transfer described[SUBMIT_MAX] = {{0}};
	struct nvs_request *requests[SUBMIT_MAX] = {NULL};
	int rc;

	assert(n <= SUBMIT_MAX);
	for (size_t i = 0; i < n; i++)
		described[i] = (struct nvs_transfer){.size = sizeof(described[i]),
						     .file = transfers[i]->file,
						     .direction = transfers[i]->direction,
						     .data = transfers[i]->data,
						     .nbytes = transfers[i]->nbytes,
						     .offset = transfers[i]->offset};
	rc = nvs_aio_submit(aio, described, n, requests, error);
	for (size_t i = 0; i < n && !rc; i++)
		transfers[i]->user = requests[i];
	return rc;
}

int await_all(struct nvs_aio *aio, struct transfer *const *transfers, size_t n, int timeout_ms,
	      struct nvs_error *error)
{
	struct nvs_request *requests[SUBMIT_MAX] = {NULL};
	size_t left = 0;
	int rc;

	assert(n <= SUBMIT_MAX);
	for (size_t i = 0; i < n; i++)
		if (transfers[i]->user)
			requests[left++] = transfers[i]->user;
	rc = nvs_aio_wait(aio, requests, left, timeout_ms, error);
	for (size_t i = 0; i < n; i++) {
		struct nvs_request *request = transfers[i]->user;

		if (!request || request_state(request) != REQUEST_SEEN)
			continue;
		transfers[i]->status = request->transfer.status;
		transfers[i]->error_offset = request->transfer.error_offset;
		__atomic_store_n(&transfers[i]->state.phase, TRANSFER_COMPLETED, __ATOMIC_RELEASE);
		__atomic_store_n(&transfers[i]->user, NULL, __ATOMIC_RELEASE);
		if (nvs_request_close(request))
			assert(!"the request can be closed");
	}
	return rc;
}

bool is_completed(const struct transfer *transfer)
{
	const struct nvs_request *request = __atomic_load_n(&transfer->user, __ATOMIC_ACQUIRE);

	if (request)
		return request_state(request) != REQUEST_IN_FLIGHT;
	return __atomic_load_n(&transfer->state.phase, __ATOMIC_ACQUIRE) == TRANSFER_COMPLETED;
}

void await_awaited_reads(struct nvs_aio *aio, uint64_t n)
{
	uint64_t reads;

	do {
		sched_yield();
		pthread_mutex_lock(&aio->lock);
		reads = aio->awaited_reads;
		pthread_mutex_unlock(&aio->lock);
	} while (reads < n);
}

void aio_await_told(struct nvs_aio *aio)
{
	log_await_told(&aio->log);
}
