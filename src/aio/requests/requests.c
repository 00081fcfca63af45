/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a request: free, in flight, ready, seen, and free again. Chunks grow ahead, so
 * nothing is allocated once as many requests exist as a program ever has.
 *
 * A closed request is distinguishable from an open one, since chunks are freed only when the aio
 * is closed. A wait counts itself in the requests that it names: these are not taken, and their
 * memory serves no later request, even if another thread closes them, which makes the wait
 * -EINVAL. Closing pushes a seen request on a stack without a lock, which the next submission
 * empties, so nothing of a request is read once its state is REQUEST_SEEN. Errors are formatted
 * under the lock, because they name a file that another thread may close.
 */
#include "aio/requests/requests.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "aio/internal.h"
#include "base/threads/cancel.h"

/* Requests of the first chunk; each further chunk doubles their number. */
#define CHUNK_MIN 256u

struct request_chunk {
	struct request_chunk *next;
	size_t n;
	struct nvs_request requests[];
};

enum request_state request_state(const struct nvs_request *request)
{
	return __atomic_load_n(&request->state, __ATOMIC_ACQUIRE);
}

static void set_state(struct nvs_request *request, enum request_state state)
{
	__atomic_store_n(&request->state, state, __ATOMIC_RELEASE);
}

void request_check(const struct nvs_request *request)
{
	if (!STATE_CHECKS)
		return;

	const struct requests *requests = request->transfer.requests;

	switch (request_state(request)) {
	case REQUEST_READY:
		assert(*request->ready.tqe_prev == request);
		break;
	case REQUEST_IN_FLIGHT:
		assert(!request->next && requests->in_flight);
		break;
	case REQUEST_SEEN_NAMED:
		assert(request->naming);
		break;
	case REQUEST_FREE:
	case REQUEST_SEEN:
		break; /* Another thread may be closing it. */
	}
}

void requests_check(const struct requests *requests)
{
	if (!STATE_CHECKS)
		return;
	assert(requests->in_flight <= requests->total && requests->chunks);
	assert(TAILQ_EMPTY(&requests->ready) ||
	       (request_state(TAILQ_FIRST(&requests->ready)) == REQUEST_READY &&
		request_state(TAILQ_LAST(&requests->ready, ready_list)) == REQUEST_READY));
	assert(!requests->takeable || !TAILQ_EMPTY(&requests->ready));
	assert(requests->failed.status <= 0);
	assert(requests->eventfd < 0
		       ? !requests->readable
		       : requests->readable == (requests->takeable || requests->overdue));
}

/* ---- Memory ---- */

static struct request_chunk *chunk_new(size_t n)
{
	struct request_chunk *chunk = calloc(1, sizeof(*chunk) + n * sizeof(chunk->requests[0]));

	if (!chunk)
		return NULL;
	chunk->n = n;
	for (size_t i = 0; i + 1 < n; i++)
		chunk->requests[i].next = &chunk->requests[i + 1];
	return chunk;
}

static void chunk_add(struct requests *requests, struct request_chunk *chunk)
{
	assert(chunk->n && !chunk->requests[chunk->n - 1].next);
	chunk->requests[chunk->n - 1].next = requests->free;
	requests->free = chunk->requests;
	chunk->next = requests->chunks;
	requests->chunks = chunk;
	requests->total += chunk->n;
}

struct requests *requests_open(struct nvs_aio *aio)
{
	struct requests *requests = calloc(1, sizeof(*requests));
	struct request_chunk *chunk = chunk_new(CHUNK_MIN);

	if (!requests || !chunk) {
		free(requests);
		free(chunk);
		return NULL;
	}
	requests->aio = aio;
	requests->eventfd = -1;
	TAILQ_INIT(&requests->ready);
	chunk_add(requests, chunk);
	requests_check(requests);
	return requests;
}

void requests_close(struct requests *requests)
{
	if (!requests)
		return;
	assert(!requests->in_flight && !requests->awaiting_all);
	requests_check(requests);
	while (requests->chunks) {
		struct request_chunk *chunk = requests->chunks;

		requests->chunks = chunk->next;
		free(chunk);
	}
	if (requests->eventfd >= 0)
		close(requests->eventfd);
	free(requests);
}

/* Pushes a request whose state is FREE. Needs no lock: only requests_reserve(), under it, removes
 * any. */
static void push_freed(struct requests *requests, struct nvs_request *request)
{
	struct nvs_request *top = __atomic_load_n(&requests->freed, __ATOMIC_RELAXED);

	assert(request_state(request) == REQUEST_FREE);
	do
		request->next = top;
	while (!__atomic_compare_exchange_n(&requests->freed, &top, request, true, __ATOMIC_RELEASE,
					    __ATOMIC_RELAXED));
}

int requests_reserve(struct requests *requests, size_t n, struct nvs_request **list)
{
	struct nvs_aio *aio = requests->aio;
	size_t taken = 0;

	*list = NULL;
	while (taken < n) {
		struct nvs_request *request = requests->free;
		uint64_t more = max_u64(requests->total, n - taken);
		struct request_chunk *chunk;

		if (!request)
			request = __atomic_exchange_n(&requests->freed, NULL, __ATOMIC_ACQUIRE);
		if (request) {
			assert(request_state(request) == REQUEST_FREE);
			requests->free = request->next;
			request->next = *list;
			*list = request;
			taken++;
			continue;
		}
		pthread_mutex_unlock(&aio->lock);
		chunk = chunk_new(more);
		pthread_mutex_lock(&aio->lock);
		if (chunk)
			chunk_add(requests, chunk);
		for (; !chunk && *list; *list = request) {
			request = (*list)->next;
			push_freed(requests, *list);
		}
		if (!chunk)
			return -ENOMEM;
	}
	requests->in_flight += n;
	requests->submitted += n;
	requests_check(requests);
	return 0;
}

/* ---- Under the lock ---- */

void requests_set_eventfd(struct requests *requests)
{
	bool readable = requests->takeable || requests->overdue;
	uint64_t count = 1;

	if (requests->eventfd < 0 || readable == requests->readable)
		return;
	requests->readable = readable;
	/* Neither can fail or block: the count is 0 or 1. */
	if (readable)
		(void)!write(requests->eventfd, &count, sizeof(count));
	else
		(void)!read(requests->eventfd, &count, sizeof(count));
	requests_check(requests);
}

bool requests_completed(struct transfer *transfer)
{
	struct nvs_request *request = (struct nvs_request *)transfer;
	struct requests *requests = transfer->requests;

	_Static_assert(!offsetof(struct nvs_request, transfer), "the cast finds the request");
	assert(request_state(request) == REQUEST_IN_FLIGHT && requests->in_flight);
	request_check(request);
	requests->in_flight--;
	if (transfer->status && !requests->failed.status)
		requests->failed = *transfer;
	TAILQ_INSERT_TAIL(&requests->ready, request, ready);
	requests->takeable += !request->naming;
	set_state(request, REQUEST_READY);
	requests_set_eventfd(requests);
	request_check(request);
	requests_check(requests);
	return transfer->state.awaited || (requests->awaiting_all && !requests->in_flight);
}

const struct transfer *requests_find_overdue(const struct requests *requests)
{
	const struct request_chunk *chunk = requests->chunks;

	for (; chunk && requests->aio->config.io_timeout_ms; chunk = chunk->next)
		for (size_t i = 0; i < chunk->n; i++) {
			const struct nvs_request *request = &chunk->requests[i];

			if (request_state(request) == REQUEST_IN_FLIGHT &&
			    request->transfer.state.overdue)
				return &request->transfer;
		}
	return NULL;
}

/* Without the lock. False: the request is not seen, or named by a wait. */
static bool close_seen(struct nvs_request *request)
{
	enum request_state seen = REQUEST_SEEN;

	if (!__atomic_compare_exchange_n(&request->state, &seen, REQUEST_FREE, false,
					 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return false;
	push_freed(request->transfer.requests, request);
	return true;
}

bool request_name(struct nvs_request *request)
{
	enum request_state state = REQUEST_SEEN;

	/* From SEEN another thread may close it at any time. */
	if (!__atomic_compare_exchange_n(&request->state, &state, REQUEST_SEEN_NAMED, false,
					 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) &&
	    state == REQUEST_FREE)
		return false;
	if (state == REQUEST_READY && !request->naming)
		request->transfer.requests->takeable--;
	request->naming++;
	assert(request->naming);
	return true;
}

void request_unname(struct nvs_request *request)
{
	struct requests *requests = request->transfer.requests;

	request_check(request);
	assert(request->naming);
	if (--request->naming)
		return;
	switch (request_state(request)) {
	case REQUEST_READY:
		requests->takeable++;
		break;
	case REQUEST_SEEN_NAMED:
		set_state(request, REQUEST_SEEN);
		break;
	case REQUEST_FREE:
		push_freed(requests, request);
		break;
	case REQUEST_IN_FLIGHT:
	case REQUEST_SEEN:
		break;
	}
}

static void unlink_ready(struct requests *requests, struct nvs_request *request)
{
	request_check(request);
	assert(request_state(request) == REQUEST_READY);
	TAILQ_REMOVE(&requests->ready, request, ready);
	if (!request->naming) {
		assert(requests->takeable);
		requests->takeable--;
	}
}

void request_see(struct nvs_request *request)
{
	struct requests *requests = request->transfer.requests;

	assert(request_state(request) == REQUEST_READY ||
	       request_state(request) == REQUEST_SEEN_NAMED);
	if (request_state(request) == REQUEST_SEEN_NAMED)
		return;
	unlink_ready(requests, request);
	set_state(request, request->naming ? REQUEST_SEEN_NAMED : REQUEST_SEEN);
	requests_set_eventfd(requests);
	requests_check(requests);
}

int request_end(struct nvs_request *request)
{
	struct requests *requests = request->transfer.requests;

	switch (request_state(request)) {
	case REQUEST_FREE:
	case REQUEST_IN_FLIGHT:
		return -EINVAL;
	case REQUEST_SEEN:
		return close_seen(request) ? 0 : -EINVAL;
	case REQUEST_READY:
		unlink_ready(requests, request);
		break;
	case REQUEST_SEEN_NAMED:
		break;
	}
	set_state(request, REQUEST_FREE);
	if (!request->naming)
		push_freed(requests, request);
	requests_set_eventfd(requests);
	requests_check(requests);
	return 0;
}

void requests_forget_file(struct nvs_aio *aio, const struct nvs_file *file)
{
	struct requests *requests = aio->requests;

	for (struct request_chunk *chunk = requests->chunks; chunk; chunk = chunk->next)
		for (size_t i = 0; i < chunk->n; i++) {
			struct nvs_request *request = &chunk->requests[i];

			if (request->transfer.file == file &&
			    request_state(request) != REQUEST_IN_FLIGHT)
				request->transfer.file = NULL;
		}
	if (requests->failed.file == file)
		requests->failed.file = NULL;
	requests_check(requests);
}

/* ---- One request ---- */

int nvs_request_close(struct nvs_request *request)
{
	HOLD_CANCEL;
	enum request_state state;
	struct nvs_aio *aio;
	int rc;

	if (!request || close_seen(request))
		return 0;
	state = request_state(request);
	if (state == REQUEST_FREE || state == REQUEST_IN_FLIGHT)
		return -EINVAL;
	aio = request->transfer.requests->aio;
	pthread_mutex_lock(&aio->lock);
	assert(request->transfer.requests == aio->requests);
	rc = request_end(request);
	pthread_mutex_unlock(&aio->lock);
	return rc;
}

int nvs_request_status(const struct nvs_request *request, struct nvs_error *error)
{
	enum request_state state = request ? request_state(request) : REQUEST_FREE;
	const struct transfer *transfer;
	struct nvs_aio *aio;
	int rc = 0;

	if (state == REQUEST_FREE)
		return error_set(error, -EINVAL, "the request is NULL or closed");
	transfer = &request->transfer;
	if (state != REQUEST_IN_FLIGHT && !transfer->status)
		return 0;
	aio = transfer->requests->aio;
	/* The lock keeps the file that an error names open. */
	pthread_mutex_lock(&aio->lock);
	request_check(request);
	state = request_state(request);
	if (state == REQUEST_FREE)
		rc = error_set(error, -EINVAL, "the request is NULL or closed");
	else if (state == REQUEST_IN_FLIGHT && !transfer->state.overdue)
		rc = error_set(error, -EINPROGRESS, "the transfer is in flight");
	else if (state == REQUEST_IN_FLIGHT)
		rc = aio_overdue_error(transfer, NULL, error);
	else if (transfer->status)
		rc = transfer_error(transfer, NULL, error);
	pthread_mutex_unlock(&aio->lock);
	return rc;
}

void *nvs_request_user(const struct nvs_request *request)
{
	return request ? request->transfer.user : NULL;
}
