/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An aio: the workers that do I/O, the memory registered with them, and their statistics.
 *
 * Memory of the program's own, and what its transfers took:
 *
 *	struct nvs_aio_stats stats = {.size = sizeof(stats)};
 *
 *	rc = nvs_aio_register_memory(aio, memory, nbytes);
 *	nvs_aio_reset_stats(aio);
 *	...
 *	nvs_aio_get_stats(aio, &stats);
 *	printf("%s read %llu bytes\n", stats.ioengine, (unsigned long long)stats.io[NVS_READ].bytes);
 *	nvs_aio_unregister_memory(aio, memory);
 *	nvs_file_close(file);
 *	rc = nvs_aio_close(aio);
 */
#ifndef NVSWAP_AIO_H
#define NVSWAP_AIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvswap/config.h"
#include "nvswap/latency.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * For data outside a store: checkpoints, benchmarks, files of other tools. An aio is a set of
 * workers, each with a queue of the I/O engine. It corresponds to DeepSpeed's aio_handle (pread,
 * pwrite, async_pread, async_pwrite, wait).
 */

struct nvs_aio;
enum nvs_direction { NVS_READ, NVS_WRITE };

/*
 * Opens an aio: workers with the "aio" block of the configuration, its "nvswap" keys "ioengine" and
 * "io_timeout_ms", its log and its trace. The configuration may be closed after the call.
 * Errors:
 * -EINVAL   an argument is NULL
 * -ENOTSUP  use_gds is set, or the I/O engine does not work on this machine
 * -ENOMEM
 * -EAGAIN   the limit on threads is reached
 * Others    with ioengine auto, which tries all: why the last one, posix, does not work
 */
NVS_API int nvs_aio_open(struct nvs_aio **aio, const struct nvs_config *config,
			 struct nvs_error *error);
/*
 * Closes an aio: waits for all transfers in flight, including overdue ones, then ends the workers.
 * Files may be closed before or afterwards; afterwards only nvs_file_close, nvs_file_sync,
 * nvs_file_direct and nvs_file_unit work on them. No other call may use the aio or its files at the
 * same time, not even nvs_engine_open_on or nvs_optimizer_open with it: an engine counts once the
 * call that opens it has returned. Ends all requests of the aio, closed or not: no call may name
 * them afterwards, not even nvs_request_close. Waits for the log function: see nvs_log_fn. `aio`
 * may be NULL.
 * Errors, with which the aio is as it was:
 * -EBUSY  an engine or optimizer that uses the aio is open, its own (nvs_engine_aio) included
 */
NVS_API int nvs_aio_close(struct nvs_aio *aio);

/*
 * Registers the caller's memory with the workers' rings, which saves pinning its pages for every
 * I/O. `data` must be aligned to a page, and be mapped for reading and writing until
 * nvs_aio_unregister_memory. An engine without registered buffers ignores the call and returns 0.
 * After an error the call has registered nothing, and transfers still work. Any thread may call it,
 * while transfers are in flight: it interrupts the waits of all workers and returns when each has
 * registered the memory with its ring, so a program registers few and long runs, not each
 * transfer's. Memory may be registered several times, with the same `nbytes` or another; each call
 * takes regions of its own, and each call of nvs_aio_unregister_memory ends one registration.
 * Errors:
 * -EINVAL      `aio` or `data` is NULL, `data` is not aligned to a page, or `nbytes` is 0 or
 *              reaches beyond the end of the address space
 * -ENOMEM      the memlock limit is too low
 * -ENOSPC      all 1024 regions are taken: one per GiB or part thereof, one per bounce buffer
 * -EFAULT      the memory is not mapped, can't be written, or is a shared mapping of a file
 * -EOPNOTSUPP  it is a shared mapping of a file, from older kernels
 */
NVS_API int nvs_aio_register_memory(struct nvs_aio *aio, void *data, size_t nbytes);
/* Ends one registration of memory that begins at `data`: the longest if there are several. It
 * interrupts the waits of all workers as well. Freeing memory of nvs_memory_alloc ends all.
 * Transfers from or to the memory may be in flight; they go on. Both arguments may be NULL. Any
 * thread may call it. */
NVS_API void nvs_aio_unregister_memory(struct nvs_aio *aio, void *data);

/* I/Os of one direction since the aio was opened or its statistics reset. */
struct nvs_io_stats {
	uint64_t bytes, ios;
	uint64_t latency_min_ns, latency_max_ns; /* from submission to completion of one I/O */
	double latency_mean_ns, latency_stddev_ns;
};

#define NVS_DEPTHS 7

struct nvs_aio_stats {
	size_t size;	      /* of this structure in bytes; the caller sets it, see nvs_error */
	const char *ioengine; /* static */
	char ioengine_reason[512]; /* why auto rejected the engines before this one; "" if first */
	char buffers_reason[128];  /* why memory is not registered with the rings; "" if all is */
	bool fixed_buffers, fixed_files, single_issuer,
		defer_taskrun; /* io_uring features in use */
	uint32_t workers;
	uint64_t bounce_bytes;	   /* memory of the bounce buffers for unaligned pieces */
	uint64_t registered_bytes; /* memory registered with every ring */
	uint64_t submit_calls;	   /* submissions to the kernel (posix: to the threads) */
	uint64_t reap_calls;
	uint32_t inflight_max; /* the largest number of I/Os in flight on one worker */
	/* fio's "IO depths": I/Os by their worker's depth at submission, rounded down to 1, 2, 4,
	 * 8, 16, 32 or 64 */
	uint64_t depth_ios[NVS_DEPTHS];
	/* calls by the number of I/Os submitted or reaped: 0, up to 4, 8, 16, 32, 64, more */
	uint64_t submit_sizes[NVS_DEPTHS], reap_sizes[NVS_DEPTHS];
	uint64_t retries; /* I/Os continued after a short count, EINTR or EAGAIN */
	uint64_t bounced_bytes;
	struct nvs_io_stats io[2]; /* by enum nvs_direction */
};

/*
 * Reads the counters of an aio since it was opened or its statistics reset.
 * Errors:
 * -EINVAL  an argument is NULL or stats->size is not set
 */
NVS_API int nvs_aio_get_stats(struct nvs_aio *aio, struct nvs_aio_stats *stats);

/* Latencies of an I/O, by fio's names. */
enum nvs_latency_kind {
	/* Submission: the engine's submit call. io_uring without single_submit passes the batch to
	 * the kernel later, in the call that waits for completions. */
	NVS_SLAT,
	NVS_CLAT, /* completion: from the end of the submission until the worker reaps it */
	NVS_LAT,  /* total: of a resubmitted I/O, from the first submission (slat: of the last) */
	NVS_LATENCY_KINDS
};

/*
 * Copies a histogram of latencies: of one direction, since the aio was opened or its statistics
 * reset.
 * Errors:
 * -EINVAL  an argument is NULL, latency->size is not set, or no such direction or kind
 */
NVS_API int nvs_aio_get_latency(struct nvs_aio *aio, enum nvs_direction direction,
				enum nvs_latency_kind kind, struct nvs_latency *latency);

/* Resets counters and latencies, for a benchmark after its warm-up. No transfer may be in flight.
 * `aio` may be NULL. */
NVS_API void nvs_aio_reset_stats(struct nvs_aio *aio);

#ifdef __cplusplus
}
#endif

#endif
