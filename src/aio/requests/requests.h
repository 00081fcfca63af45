/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests: the transfers of the public interface, in memory of the library. Their chunks are never
 * freed before the aio, so a closed request is recognized. All is under the aio's lock, which a
 * worker holds anyway when a transfer completes, except that nvs_request_close() takes none for a
 * request that was seen: nothing of such a request may be read once its state is stored.
 */
#ifndef AIO_REQUESTS_REQUESTS_H
#define AIO_REQUESTS_REQUESTS_H

#include <sys/queue.h>

#include "aio/transfer.h"

enum request_state {
	REQUEST_FREE, /* never used, or closed; in a list of free ones unless it is named */
	REQUEST_IN_FLIGHT,
	REQUEST_READY,	    /* completed, and in the list of nvs_aio_take() */
	REQUEST_SEEN_NAMED, /* completed, waited for or taken, and named by a wait that goes on */
	REQUEST_SEEN,	    /* completed, waited for or taken; closed without the lock */
};

struct nvs_request {
	struct transfer transfer;
	enum request_state state; /* atomic */
	bool detached;		  /* submitted without an array: nvs_aio_wait_all() closes it */
	unsigned naming;	  /* waits that name it; the last one frees it if it was closed */
	uint64_t visit;		  /* of the last call that named it */
	struct nvs_request *next; /* of a free one */
	TAILQ_ENTRY(nvs_request) ready;
};

struct request_chunk;

struct requests {
	struct nvs_aio *aio;
	struct request_chunk *chunks;
	size_t total;		   /* requests in all chunks */
	struct nvs_request *free;  /* linked by next */
	struct nvs_request *freed; /* atomic: those that are closed and not yet in `free` */
	TAILQ_HEAD(ready_list, nvs_request) ready;
	size_t takeable; /* ready ones that no wait names */
	uint64_t in_flight;
	uint64_t submitted;	/* since the last nvs_aio_wait_all() */
	struct transfer failed; /* the first of these that failed; status 0: none */
	unsigned awaiting_all;	/* threads in nvs_aio_wait_all() */
	uint64_t visit;
	int eventfd; /* -1: nobody has asked for it */
	bool readable, overdue;
};

/* NULL: out of memory. */
struct requests *requests_open(struct nvs_aio *aio);
/* Nothing may be in flight. Frees all requests. `requests` may be NULL. */
void requests_close(struct requests *requests);

enum request_state request_state(const struct nvs_request *request);

/* ---- Under the aio's lock ---- */

/* Asserts that the request is in the list of completed ones exactly while it is ready. */
void request_check(const struct nvs_request *request);
/* Asserts the counts, the ends of the list and the eventfd's state. */
void requests_check(const struct requests *requests);

/* Removes `n` free requests, linked by next, and counts them as in flight. Drops the lock while it
 * allocates. -ENOMEM. */
int requests_reserve(struct requests *requests, size_t n, struct nvs_request **list);
/* A request in flight that is overdue, or NULL. */
const struct transfer *requests_find_overdue(const struct requests *requests);

/* transfer->requests names one that has completed. Returns whether a thread waits for it on
 * aio->done. */
bool requests_completed(struct transfer *transfer);
/* A wait names a request: it is not taken, and its memory serves no later one, until
 * request_unname(). False: it is closed. */
bool request_name(struct nvs_request *request);
/* The caller calls requests_set_eventfd(). */
void request_unname(struct nvs_request *request);
/* A completed request has been waited for or taken. */
void request_see(struct nvs_request *request);
/* -EINVAL: it is in flight or closed. */
int request_end(struct nvs_request *request);
/* Makes the eventfd readable while there is something to take, or a request became overdue. */
void requests_set_eventfd(struct requests *requests);
/* Completed requests no longer name the file, which is about to be freed. */
void requests_forget_file(struct nvs_aio *aio, const struct nvs_file *file);

#endif
