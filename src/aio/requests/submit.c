/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submits the transfers that a caller describes: checks all of them, then makes requests of them.
 */
#include "aio/internal.h"
#include "aio/requests/requests.h"
#include "base/struct_size.h"
#include "base/threads/cancel.h"

/* The i-th of the caller's transfers, as the aio's own. */
static int describe_transfer(const struct nvs_aio *aio, const struct nvs_transfer *transfers,
			     size_t i, struct transfer *transfer, struct nvs_error *error)
{
	struct nvs_transfer theirs;
	int rc = struct_in_at(&theirs, sizeof(theirs), transfers, i);

	if (rc)
		return struct_refused(error, rc, "nvs_transfer", "transfers[%zu]", i);
	*transfer = (struct transfer){
		.file = theirs.file,
		.direction = theirs.direction,
		.data = theirs.data,
		.nbytes = theirs.nbytes,
		.offset = theirs.offset,
		.user = theirs.user,
		.requests = aio->requests,
	};
	return aio_check(aio, transfer, error);
}

int nvs_aio_submit(struct nvs_aio *aio, const struct nvs_transfer *transfers, size_t n,
		   struct nvs_request **requests, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct transfer checked, *first = NULL, **tail = &first;
	struct nvs_request *list;
	int rc = 0;

	if (!aio || (n && !transfers))
		return error_set(error, -EINVAL, "the aio or the array of transfers is NULL");
	for (size_t i = 0; i < n && !rc; i++)
		rc = describe_transfer(aio, transfers, i, &checked, error);
	if (rc || !n)
		return rc;
	pthread_mutex_lock(&aio->lock);
	rc = requests_reserve(aio->requests, n, &list);
	/* Under the lock, because others walk over the chunks. */
	for (size_t i = 0; i < n && !rc; i++) {
		struct nvs_request *request = list;

		assert(request && request_state(request) == REQUEST_FREE);
		list = request->next;
		*request = (struct nvs_request){.state = REQUEST_IN_FLIGHT, .detached = !requests};
		rc = describe_transfer(aio, transfers, i, &request->transfer, NULL);
		assert(!rc);
		request_check(request);
		if (requests)
			requests[i] = request;
		*tail = &request->transfer;
		tail = &request->transfer.state.next;
	}
	if (!rc)
		aio_queue_list(aio, NULL, first);
	requests_check(aio->requests);
	pthread_mutex_unlock(&aio->lock);
	return rc ? error_set(error, rc, "out of memory for %zu requests", n) : 0;
}

static int submit_one(struct nvs_aio *aio, struct nvs_file *file, enum nvs_direction direction,
		      void *data, uint64_t nbytes, uint64_t offset, struct nvs_request **request,
		      struct nvs_error *error)
{
	const struct nvs_transfer transfer = {
		.size = sizeof(transfer),
		.file = file,
		.direction = direction,
		.data = data,
		.nbytes = nbytes,
		.offset = offset,
	};

	if (request)
		*request = NULL;
	return nvs_aio_submit(aio, &transfer, 1, request, error);
}

int nvs_aio_pread(struct nvs_aio *aio, struct nvs_file *file, void *data, uint64_t nbytes,
		  uint64_t offset, struct nvs_request **request, struct nvs_error *error)
{
	return submit_one(aio, file, NVS_READ, data, nbytes, offset, request, error);
}

int nvs_aio_pwrite(struct nvs_aio *aio, struct nvs_file *file, const void *data, uint64_t nbytes,
		   uint64_t offset, struct nvs_request **request, struct nvs_error *error)
{
	return submit_one(aio, file, NVS_WRITE, (void *)(uintptr_t)data, nbytes, offset, request,
			  error);
}
