/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for requests: for several, for any, for all, or taking what has completed. A waiting
 * thread is woken when a request completes that it marked, and for no other.
 */
#include <assert.h>
#include <errno.h>
#include <sys/eventfd.h>

#include "aio/internal.h"
#include "aio/requests/requests.h"
#include "base/clock.h"
#include "base/error.h"

static int still_in_flight(int rc, struct nvs_error *error)
{
	assert(rc == -EAGAIN || rc == -ETIMEDOUT);
	return error_set(error, rc, "transfers are still in flight: %s", nvs_strerror(rc));
}

/* Under the lock. Each request exists, is of this aio, and is named once; -EINVAL: *wrong is the
 * index of one that is not, or `n` if the array has NULL alone. */
static int check_named(struct requests *requests, struct nvs_request *const *array, size_t n,
		       bool skip_null, size_t *wrong)
{
	uint64_t visit = ++requests->visit;
	size_t named = 0;

	requests_check(requests);
	for (size_t i = 0; i < n; i++) {
		struct nvs_request *request = array[i];

		*wrong = i;
		if (!request && skip_null)
			continue;
		if (!request || request_state(request) == REQUEST_FREE ||
		    request->transfer.requests != requests || request->visit == visit)
			return -EINVAL;
		request_check(request);
		request->visit = visit;
		named++;
	}
	assert(named <= n);
	*wrong = n;
	return n && !named ? -EINVAL : 0;
}

static int check_requests(struct nvs_aio *aio, struct nvs_request *const *array, size_t n,
			  bool skip_null, struct nvs_error *error)
{
	size_t wrong;
	int rc;

	if (!aio || (!array && n))
		return error_set(error, -EINVAL, "%s is NULL", aio ? "requests" : "the aio");
	pthread_mutex_lock(&aio->lock);
	rc = check_named(aio->requests, array, n, skip_null, &wrong);
	pthread_mutex_unlock(&aio->lock);
	assert(rc ? wrong <= n : wrong == n);
	if (rc && wrong == n)
		return error_set(error, rc, "every entry is NULL: no request is left to wait for");
	return rc ? error_set(error, rc,
			      "requests[%zu] is NULL, closed, of another aio, or named twice",
			      wrong)
		  : 0;
}

static bool in_flight(const struct nvs_request *request)
{
	return request_state(request) == REQUEST_IN_FLIGHT;
}

/* Under the lock: what a call waits for goes first. A call that may not wait changes no order. */
static void promote(struct nvs_aio *aio, struct nvs_request *const *array, size_t n,
		    uint64_t deadline)
{
	assert(array || !n);
	for (size_t i = 0; i < n && deadline; i++)
		if (array[i] && in_flight(array[i]))
			transfer_promote(aio, &array[i]->transfer);
}

/* Under the lock. */
static const struct transfer *overdue_of(const struct nvs_aio *aio,
					 struct nvs_request *const *array, size_t n)
{
	assert(array || !n);
	for (size_t i = 0; i < n && aio->config.io_timeout_ms; i++)
		if (array[i] && array[i]->transfer.state.overdue)
			return &array[i]->transfer;
	return NULL;
}

/* ---- Several ---- */

/* Waits for the last of `n`; drops the lock while it sleeps. */
static int wait_for_last(struct nvs_aio *aio, struct nvs_request *const *array, size_t n,
			 uint64_t deadline, struct nvs_error *error)
{
	struct nvs_request *last = array[n - 1];
	int rc = 0;

	assert(n);
	request_check(last);
	while (in_flight(last) && !rc) {
		const struct transfer *overdue = overdue_of(aio, array, n);

		if (overdue)
			return aio_overdue_error(overdue, overdue->state.hangs_at, NULL, error);
		last->transfer.state.awaited = true;
		rc = aio_cond_wait(aio, &aio->done, deadline);
	}
	return in_flight(last) ? still_in_flight(rc, error) : 0;
}

int nvs_aio_wait(struct nvs_aio *aio, struct nvs_request *const *requests, size_t n, int timeout_ms,
		 struct nvs_error *error)
{
	uint64_t deadline = deadline_ns(timeout_ms);
	int rc = check_requests(aio, requests, n, false, error);

	if (rc)
		return rc;
	pthread_mutex_lock(&aio->lock);
	requests_check(aio->requests);
	promote(aio, requests, n, deadline);
	/* The last one usually completes last, so start there: a single sleep mostly suffices. */
	for (size_t left = n; left && !rc; left--)
		rc = wait_for_last(aio, requests, left, deadline, error);
	for (size_t i = 0; i < n && !rc; i++) {
		assert(!in_flight(requests[i]));
		request_see(requests[i]);
	}
	for (size_t i = 0; i < n && !rc; i++)
		if (requests[i]->transfer.status)
			rc = transfer_error(&requests[i]->transfer, NULL, error);
	pthread_mutex_unlock(&aio->lock);
	return rc;
}

/* ---- Any ---- */

static size_t first_completed(struct nvs_request *const *array, size_t n)
{
	assert(array && n);
	for (size_t i = 0; i < n; i++)
		if (array[i] && !in_flight(array[i]))
			return i;
	return n;
}

static int wait_for_first(struct nvs_aio *aio, struct nvs_request *const *array, size_t n,
			  uint64_t deadline, size_t *index, struct nvs_error *error)
{
	int rc = 0;

	assert(n);
	while ((*index = first_completed(array, n)) == n && !rc) {
		const struct transfer *overdue = overdue_of(aio, array, n);

		if (overdue)
			return aio_overdue_error(overdue, overdue->state.hangs_at, NULL, error);
		for (size_t i = 0; i < n; i++)
			if (array[i])
				array[i]->transfer.state.awaited = true;
		rc = aio_cond_wait(aio, &aio->done, deadline);
	}
	assert(*index <= n);
	return *index == n ? still_in_flight(rc, error) : 0;
}

int nvs_aio_wait_any(struct nvs_aio *aio, struct nvs_request *const *requests, size_t n,
		     int timeout_ms, size_t *index, struct nvs_error *error)
{
	uint64_t deadline = deadline_ns(timeout_ms);
	int rc;

	if (!index || !n)
		return error_set(error, -EINVAL, "no requests to wait for, or no index");
	*index = n;
	rc = check_requests(aio, requests, n, true, error);
	if (rc)
		return rc;
	pthread_mutex_lock(&aio->lock);
	requests_check(aio->requests);
	promote(aio, requests, n, deadline);
	rc = wait_for_first(aio, requests, n, deadline, index, error);
	if (!rc)
		request_see(requests[*index]);
	assert(rc || *index < n);
	if (!rc && requests[*index]->transfer.status)
		rc = transfer_error(&requests[*index]->transfer, NULL, error);
	pthread_mutex_unlock(&aio->lock);
	return rc;
}

/* ---- All ---- */

/* Requests of an array are seen, others closed. */
static void see_all(struct requests *requests)
{
	while (requests->ready) {
		struct nvs_request *request = requests->ready;

		request_see(request);
		if (request->detached)
			request_free(request);
	}
	requests_check(requests);
	assert(!requests->ready);
}

static int wait_for_all(struct requests *requests, uint64_t deadline, struct nvs_error *error)
{
	struct nvs_aio *aio = requests->aio;
	int rc = 0;

	while (requests->in_flight && !rc) {
		const struct transfer *overdue = requests_find_overdue(requests);

		if (overdue)
			return aio_overdue_error(overdue, overdue->state.hangs_at, NULL, error);
		requests_check(requests);
		requests->awaiting_all++;
		rc = aio_cond_wait(aio, &aio->done, deadline);
		assert(requests->awaiting_all);
		requests->awaiting_all--;
		requests_check(requests);
	}
	return requests->in_flight ? still_in_flight(rc, error) : 0;
}

int nvs_aio_wait_all(struct nvs_aio *aio, int timeout_ms, uint64_t *completed,
		     struct nvs_error *error)
{
	uint64_t deadline = deadline_ns(timeout_ms);
	struct requests *requests = aio ? aio->requests : NULL;
	int rc;

	if (!aio)
		return error_set(error, -EINVAL, "the aio is NULL");
	pthread_mutex_lock(&aio->lock);
	if (deadline)
		transfers_promote_requests(aio);
	rc = wait_for_all(requests, deadline, error);
	if (!rc) {
		if (completed)
			*completed = requests->submitted;
		assert(!requests->in_flight && requests->failed.status <= 0);
		if (requests->failed.status)
			rc = transfer_error(&requests->failed, NULL, error);
		requests->submitted = 0;
		requests->failed = (struct transfer){0};
		see_all(requests);
	}
	requests_check(requests);
	pthread_mutex_unlock(&aio->lock);
	return rc;
}

/* ---- The caller's event loop ---- */

size_t nvs_aio_take(struct nvs_aio *aio, struct nvs_request **requests, size_t n)
{
	size_t taken = 0;

	if (!aio || !requests)
		return 0;
	pthread_mutex_lock(&aio->lock);
	aio->requests->overdue = false;
	if (!aio->requests->ready)
		workers_look(aio);
	while (taken < n && aio->requests->ready) {
		requests[taken] = aio->requests->ready;
		request_check(requests[taken]);
		request_see(requests[taken++]);
	}
	requests_set_eventfd(aio->requests);
	requests_check(aio->requests);
	assert(taken <= n);
	pthread_mutex_unlock(&aio->lock);
	return taken;
}

int nvs_aio_eventfd(struct nvs_aio *aio)
{
	struct requests *requests = aio ? aio->requests : NULL;
	int fd;

	if (!aio)
		return -EINVAL;
	pthread_mutex_lock(&aio->lock);
	requests_check(requests);
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
	requests_check(requests);
	assert(fd == requests->eventfd || requests->eventfd < 0);
	pthread_mutex_unlock(&aio->lock);
	return fd;
}
