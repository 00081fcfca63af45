/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of the public interface on requests. Submitting checks all transfers, then makes
 * requests of them. Waiting is for several, for any, for all, or takes what has completed: a
 * waiting thread is woken when a request completes that it marked, and for no other.
 */
#include <sys/eventfd.h>

#include "aio/internal.h"
#include "aio/requests/requests.h"
#include "base/clock.h"
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

/* ---- Waiting ---- */

/* The error of a wait that ends: a drive hangs, or else the deadline has passed. */
static int still_in_flight(const struct transfer *overdue, int rc, struct nvs_error *error)
{
	if (overdue)
		return aio_overdue_error(overdue, NULL, error);
	return error_set(error, rc, "transfers are still in flight: %s", nvs_strerror(rc));
}

static void unname(struct requests *requests, struct nvs_request *const *array, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (array[i])
			request_unname(array[i]);
	requests_set_eventfd(requests);
	requests_check(requests);
}

/* Names all requests until unname(). Each exists, is of this aio, and is named once. */
static int name(struct requests *requests, struct nvs_request *const *array, size_t n,
		bool skip_null, struct nvs_error *error)
{
	uint64_t visit = ++requests->visit;
	size_t named = 0;

	for (size_t i = 0; i < n; i++) {
		struct nvs_request *request = array[i];

		if (!request && skip_null)
			continue;
		if (!request || request_state(request) == REQUEST_FREE ||
		    request->transfer.requests != requests || request->visit == visit ||
		    !request_name(request)) {
			unname(requests, array, i);
			return error_set(
				error, -EINVAL,
				"requests[%zu] is NULL, closed, of another aio, or named twice", i);
		}
		request->visit = visit;
		named++;
	}
	if (n && !named)
		return error_set(error, -EINVAL,
				 "every entry is NULL: no request is left to wait for");
	requests_set_eventfd(requests);
	requests_check(requests);
	return 0;
}

/* Of a request that completed: its status, unless another thread has closed it. */
static int read_status(struct nvs_request *request, size_t i, struct nvs_error *error)
{
	assert(request->naming);
	if (request_state(request) == REQUEST_FREE)
		return error_set(error, -EINVAL, "requests[%zu] was closed during the wait", i);
	request_see(request);
	return request->transfer.status ? transfer_error(&request->transfer, NULL, error) : 0;
}

static bool in_flight(const struct nvs_request *request)
{
	return request_state(request) == REQUEST_IN_FLIGHT;
}

/* Under the lock. */
static const struct transfer *overdue_of(const struct nvs_aio *aio,
					 struct nvs_request *const *array, size_t n)
{
	for (size_t i = 0; i < n && aio->config.io_timeout_ms; i++)
		if (array[i] && array[i]->transfer.state.overdue)
			return &array[i]->transfer;
	return NULL;
}

/*
 * Begins a wait, which holds the lock until end_wait(): what it waits for goes first. A call that
 * may not wait changes no order.
 */
static int begin_wait(struct nvs_aio *aio, struct nvs_request *const *array, size_t n,
		      bool skip_null, uint64_t deadline, struct nvs_error *error)
{
	int rc;

	if (!aio || (!array && n))
		return error_set(error, -EINVAL, "%s is NULL", aio ? "requests" : "the aio");
	pthread_mutex_lock(&aio->lock);
	rc = name(aio->requests, array, n, skip_null, error);
	if (rc)
		pthread_mutex_unlock(&aio->lock);
	for (size_t i = 0; i < n && deadline && !rc; i++)
		if (array[i] && in_flight(array[i]))
			transfer_promote(aio, &array[i]->transfer);
	return rc;
}

static void end_wait(struct nvs_aio *aio, struct nvs_request *const *array, size_t n)
{
	unname(aio->requests, array, n);
	pthread_mutex_unlock(&aio->lock);
}

/* ---- Several ---- */

int nvs_aio_wait(struct nvs_aio *aio, struct nvs_request *const *requests, size_t n, int timeout_ms,
		 struct nvs_error *error)
{
	HOLD_CANCEL;
	uint64_t deadline = deadline_ns(timeout_ms);
	const struct transfer *overdue = NULL;
	int rc = begin_wait(aio, requests, n, false, deadline, error);

	if (rc)
		return rc;
	/* The last one usually completes last, so start there: a single sleep mostly suffices. */
	for (size_t left = n; left && !rc && !overdue; left--) {
		struct nvs_request *last = requests[left - 1];

		/* The wait drops the lock while it sleeps. */
		request_check(last);
		while (in_flight(last) && !rc && !(overdue = overdue_of(aio, requests, left))) {
			last->transfer.state.awaited = true;
			rc = cond_wait_until(&aio->done, &aio->lock, deadline);
		}
		rc = in_flight(last) ? rc : 0;
	}
	if (overdue || rc) {
		rc = still_in_flight(overdue, rc, error);
	} else {
		/* Sees all of them; the error is that of the first in array order. */
		for (size_t i = 0; i < n; i++) {
			int its = read_status(requests[i], i, rc ? NULL : error);

			rc = rc ?: its;
		}
	}
	end_wait(aio, requests, n);
	return rc;
}

/* ---- Any ---- */

int nvs_aio_wait_any(struct nvs_aio *aio, struct nvs_request *const *requests, size_t n,
		     int timeout_ms, size_t *index, struct nvs_error *error)
{
	HOLD_CANCEL;
	uint64_t deadline = deadline_ns(timeout_ms);
	const struct transfer *overdue = NULL;
	size_t first;
	int rc;

	if (index)
		*index = n;
	if (!index || !n)
		return error_set(error, -EINVAL, "no requests to wait for, or no index");
	rc = begin_wait(aio, requests, n, true, deadline, error);
	if (rc)
		return rc;
	for (;;) {
		for (first = 0; first < n; first++)
			if (requests[first] && !in_flight(requests[first]))
				break;
		if (first < n || rc || (overdue = overdue_of(aio, requests, n)))
			break;
		for (size_t i = 0; i < n; i++)
			if (requests[i])
				requests[i]->transfer.state.awaited = true;
		rc = cond_wait_until(&aio->done, &aio->lock, deadline);
	}
	if (first == n) {
		rc = still_in_flight(overdue, rc, error);
	} else {
		rc = read_status(requests[first], first, error);
		if (request_state(requests[first]) != REQUEST_FREE)
			*index = first;
	}
	end_wait(aio, requests, n);
	return rc;
}

/* ---- All ---- */

/* Promotes all requests with unclaimed bytes, in the order of their submission. */
static void promote_all(struct nvs_aio *aio)
{
	for (int direction = NVS_READ; direction <= NVS_WRITE; direction++) {
		struct transfer *next = TAILQ_FIRST(&aio->todo[TRANSFER_USUAL][direction]);

		while (next) {
			struct transfer *transfer = next;

			next = TAILQ_NEXT(transfer, state.queued);
			if (transfer->requests)
				transfer_promote(aio, transfer);
		}
	}
}

int nvs_aio_wait_all(struct nvs_aio *aio, int timeout_ms, uint64_t *completed,
		     struct nvs_error *error)
{
	HOLD_CANCEL;
	uint64_t deadline = deadline_ns(timeout_ms);
	struct requests *requests = aio ? aio->requests : NULL;
	const struct transfer *overdue = NULL;
	int rc = 0;

	if (!aio)
		return error_set(error, -EINVAL, "the aio is NULL");
	pthread_mutex_lock(&aio->lock);
	if (deadline)
		promote_all(aio);
	while (requests->in_flight && !rc && !(overdue = requests_find_overdue(requests))) {
		requests->awaiting_all++;
		rc = cond_wait_until(&aio->done, &aio->lock, deadline);
		requests->awaiting_all--;
	}
	requests_check(requests);
	if (requests->in_flight) {
		rc = still_in_flight(overdue, rc, error);
	} else {
		rc = 0;
		if (completed)
			*completed = requests->submitted;
		if (requests->failed.status)
			rc = transfer_error(&requests->failed, NULL, error);
		requests->submitted = 0;
		requests->failed = (struct transfer){0};
		/* Requests of an array are seen, others closed. */
		for (struct nvs_request *request; (request = TAILQ_FIRST(&requests->ready));)
			if (!request->detached)
				request_see(request);
			else if (request_end(request))
				assert(!"a request that is ready can be closed");
	}
	pthread_mutex_unlock(&aio->lock);
	return rc;
}

/* ---- The caller's event loop ---- */

size_t nvs_aio_take(struct nvs_aio *aio, struct nvs_request **requests, size_t n)
{
	HOLD_CANCEL;
	struct nvs_request *next;
	size_t taken = 0;

	if (!aio || !requests)
		return 0;
	pthread_mutex_lock(&aio->lock);
	aio->requests->overdue = false;
	next = TAILQ_FIRST(&aio->requests->ready);
	while (taken < n && aio->requests->takeable) {
		struct nvs_request *request = next;

		next = TAILQ_NEXT(request, ready);
		if (request->naming)
			continue;
		requests[taken++] = request;
		request_see(request);
	}
	requests_set_eventfd(aio->requests);
	pthread_mutex_unlock(&aio->lock);
	return taken;
}

int nvs_aio_eventfd(struct nvs_aio *aio)
{
	HOLD_CANCEL;
	struct requests *requests = aio ? aio->requests : NULL;
	int fd;

	if (!aio)
		return -EINVAL;
	pthread_mutex_lock(&aio->lock);
	if (requests->eventfd < 0) {
		fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		requests->eventfd = fd < 0 ? -1 : fd;
		if (fd < 0)
			fd = -errno;
		else
			requests_set_eventfd(requests);
	} else {
		fd = requests->eventfd;
	}
	pthread_mutex_unlock(&aio->lock);
	return fd;
}
