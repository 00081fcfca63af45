/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers: any memory, any length, any offset of any file. A submitted transfer is a request,
 * which the library owns, so its memory needs no care and the caller can wait for it in whichever
 * way suits: for several, for any of several, for all, or in an event loop of its own.
 *
 * Two reads; the second is waited for first, whichever completes:
 *
 *	rc = nvs_aio_pread(aio, file, memory, nbytes, 0, &requests[0], &error) ||
 *	     nvs_aio_pread(aio, file, (char *)memory + nbytes, nbytes, nbytes, &requests[1], &error) ||
 *	     nvs_aio_wait_any(aio, requests, 2, -1, &which, &error) ||
 *	     nvs_aio_wait(aio, requests, 2, -1, &error);
 *	nvs_request_close(requests[0]);
 *	nvs_request_close(requests[1]);
 */
#ifndef NVSWAP_REQUEST_H
#define NVSWAP_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvswap/aio.h"
#include "nvswap/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct nvs_file;

/* Describes a transfer; not needed once nvs_aio_submit has returned. */
struct nvs_transfer {
	size_t size; /* sizeof(struct nvs_transfer) */
	struct nvs_file *file;
	enum nvs_direction direction;
	void *data;	 /* any alignment; data aligned to dio_mem_align is not copied */
	uint64_t nbytes; /* any length; 0 completes at once */
	uint64_t offset; /* in bytes from the start of the file; any alignment */
	void *user;	 /* for the caller: nvs_request_user() returns it */
};

/*
 * A submitted transfer. It is in flight until it completes, and the caller's until
 * nvs_request_close, or until nvs_aio_close, which ends all requests of the aio and frees their
 * memory: no call may name one after that, not even nvs_request_close. While the aio is open it is
 * an error (-EINVAL), not undefined, to name a closed request, as long as its memory serves no
 * later one.
 */
struct nvs_request;

/*
 * Submits transfers: `n`, whose `size` fields must be equal. Stores their requests in `requests`,
 * an array of `n` pointers. NULL: the caller takes the requests from nvs_aio_take, or
 * nvs_aio_wait_all closes them. Until a transfer completes, its memory must not be touched.
 * Transfers in flight are not ordered: transfers of overlapping bytes must not be in flight
 * together. After an error nothing is submitted, and `requests` is as it was. With `n` 0 nothing is
 * submitted either, and both arrays may be NULL.
 * Errors:
 * -EINVAL  `aio` is NULL, or `transfers` is; a file, memory, direction, offset or size is invalid;
 *          the file belongs to another aio; a write to a file that is open for reading only, or
 *          not of whole units (NVS_FILE_UNITS)
 * -E2BIG   fields of a later version are set, which this library does not know
 * -ENOMEM  only if more requests exist at the same time than ever before
 */
NVS_API int nvs_aio_submit(struct nvs_aio *aio, const struct nvs_transfer *transfers, size_t n,
			   struct nvs_request **requests, struct nvs_error *error);
/*
 * Submit one transfer, a read or a write, as nvs_aio_submit does. `request` may be NULL; *request
 * is NULL after an error.
 * Errors: those of nvs_aio_submit.
 */
NVS_API int nvs_aio_pread(struct nvs_aio *aio, struct nvs_file *file, void *data, uint64_t nbytes,
			  uint64_t offset, struct nvs_request **request, struct nvs_error *error);
NVS_API int nvs_aio_pwrite(struct nvs_aio *aio, struct nvs_file *file, const void *data,
			   uint64_t nbytes, uint64_t offset, struct nvs_request **request,
			   struct nvs_error *error);

/*
 * Ends a request that has completed, whether it was waited for or not. `request` may be NULL. Wait
 * until no other thread waits for the request: that wait would return -EINVAL.
 * Errors:
 * -EINVAL  it is in flight, or closed already; nothing changes
 */
NVS_API int nvs_request_close(struct nvs_request *request);
/*
 * Returns the status of a request: 0 once it has succeeded, otherwise with *error.
 * Errors:
 * -EINPROGRESS  it is in flight
 * -ETIMEDOUT    it is in flight and overdue (io_timeout_ms)
 * -EINVAL       `request` is NULL or closed
 * -ENODATA      a read past the end of the file
 * -EIO          the drive failed, or an I/O returned EAGAIN or EINTR too often
 * Others        those of the I/O, such as -ENOSPC
 */
NVS_API int nvs_request_status(const struct nvs_request *request, struct nvs_error *error);
/* Returns the `user` of a request's transfer; NULL if `request` is NULL. */
NVS_API void *nvs_request_user(const struct nvs_request *request);

/*
 * Waits until all `n` requests have completed. Returns 0, or the status of the first failed one in
 * array order; *error names path and offset, or the offset alone if the file was closed after the
 * transfer: so do all errors of requests. Requests that have completed already are no error.
 * nvs_aio_take returns none of the requests during the call, and afterwards only if the wait ended
 * before all had completed. With `n` 0, for which `requests` may be NULL, it returns 0.
 * Errors besides a request's status:
 * -EINVAL     `aio` is NULL, or `requests` is; a request is NULL, closed, of another aio, in the
 *             array twice, or closed by another thread during the wait
 * -ETIMEDOUT  timeout_ms has passed, or a request is overdue (io_timeout_ms); wait again
 * -EAGAIN     timeout_ms is 0 and a request is in flight
 */
NVS_API int nvs_aio_wait(struct nvs_aio *aio, struct nvs_request *const *requests, size_t n,
			 int timeout_ms, struct nvs_error *error);
/*
 * Waits until any of `n` requests has completed; stores the index of the first such in array order
 * in
 * *index. NULL entries are skipped, so that a caller can clear those it is done with.
 * nvs_aio_take returns none of the requests during the call; afterwards it returns those that
 * completed and that no call has seen.
 * Returns the status of that request.
 * Errors besides a request's status, with *index = n:
 * -EINVAL     `aio`, `requests`, `index` or every entry is NULL, or `n` is 0; a request is closed,
 *             of another aio, in the array twice, or closed by another thread during the wait
 * -ETIMEDOUT  none has completed, and timeout_ms has passed or one is overdue (io_timeout_ms); wait
 *             again
 * -EAGAIN     timeout_ms is 0 and all are in flight
 */
NVS_API int nvs_aio_wait_any(struct nvs_aio *aio, struct nvs_request *const *requests, size_t n,
			     int timeout_ms, size_t *index, struct nvs_error *error);
/*
 * Waits until no request of the aio is in flight, by whichever thread it was submitted. Stores in
 * *completed (may be NULL) how many were submitted since the last nvs_aio_wait_all that succeeded
 * or returned the status of a request. Returns 0, or the status of the first of them that failed,
 * in the order of completion, also if it was waited for and closed meanwhile. Closes requests that
 * were submitted without an array and not taken. Like nvs_aio_wait, it lets the requests in flight
 * go before transfers that no call waits for. It is wait() of DeepSpeed's aio_handle. A wait that
 * times out does not reset the count.
 * Errors: those of nvs_aio_wait.
 */
NVS_API int nvs_aio_wait_all(struct nvs_aio *aio, int timeout_ms, uint64_t *completed,
			     struct nvs_error *error);

/*
 * Returns a descriptor for the caller's event loop, to be polled and nothing else: readable while
 * nvs_aio_take has requests to return, or if a request became overdue since it was last called. It
 * belongs to the aio and is closed with it.
 * Errors:
 * -EINVAL  `aio` is NULL
 * -EMFILE  the limit on open files of the process is reached
 * -ENFILE  that of the machine
 * -ENOMEM
 */
NVS_API int nvs_aio_eventfd(struct nvs_aio *aio);
/*
 * Takes completed requests: up to `n`, in the order of completion, that no call has waited for or
 * taken, and that nvs_aio_wait or nvs_aio_wait_any of another thread does not wait for. Does not
 * wait. The caller looks at their status and closes them. Returns their number: 0 also if `aio` or
 * `requests` is NULL.
 */
NVS_API size_t nvs_aio_take(struct nvs_aio *aio, struct nvs_request **requests, size_t n);

#ifdef __cplusplus
}
#endif

#endif
