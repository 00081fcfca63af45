/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The aio layer's internal interface to the layers above it: files striped over several members,
 * transfers that complete on a queue, and binding of workers to a NUMA node.
 */
#ifndef AIO_AIO_H
#define AIO_AIO_H

#include <sys/queue.h>

#include "aio/completions.h"
#include "aio/transfer.h"
#include "base/error.h"
#include "config/config.h"
#include "nvswap.h"
#include "topo/topo.h"

/* One file or block device of an nvs_file, which takes over and closes the descriptors. */
struct file_member {
	char *path;    /* for messages; copied */
	int fd;	       /* opened without O_DIRECT */
	int direct_fd; /* opened with O_DIRECT; -1: buffered I/O only */
	uint64_t base; /* byte offset of the file's data in this member */
	/* Without stripes: the offset in the nvs_file of the member's first byte, ascending. */
	uint64_t first;
	struct dio_caps dio;
	int slot, direct_slot; /* of file_create(): registered-file slots; -1: the table was full */
};

/*
 * A file of `n` members, striped by `stripe` bytes: stripe i lies on member i % n. A single member
 * ignores the stripe. Stripe 0: each member is a range of the file of its own, from its `first` on,
 * and no transfer covers bytes of two. `padded`: users own whole units, so a write is padded with
 * zeros to the direct-I/O alignment instead of sending its unaligned tail through the page cache.
 * On error the descriptors remain the caller's.
 */
int file_create(struct nvs_aio *aio, const struct file_member *members, unsigned n, uint64_t stripe,
		bool writable, bool padded, struct nvs_file **file, struct nvs_error *error);

/* The member that has the byte at an offset of the file. */
unsigned file_member_at(const struct nvs_file *file, uint64_t offset);
/* Bytes that completed I/Os have written to the file's member, with retries and padding. */
uint64_t file_written(const struct nvs_file *file, unsigned member);

/* Fills in direct_fd and dio of a member with an open fd; falls back to buffered I/O. */
int file_member_probe(struct file_member *member, bool writable, bool buffered);

/* Whether a transfer, submitted or not, is overdue, and the file offset of the stalled I/O. */
bool aio_is_overdue(struct nvs_aio *aio, const struct transfer *transfer, uint64_t *offset);
/* Marks the transfers that are overdue at `now_ns` (CLOCK_MONOTONIC). */
void aio_find_overdue(struct nvs_aio *aio, uint64_t now_ns);
/*
 * The same, as the watching thread does. A gap between two looks that is much longer than its
 * period does not count: the process did not run, so it could not see what completed.
 */
void aio_watch(struct nvs_aio *aio, uint64_t now_ns);
/* Describes an overdue transfer: -ETIMEDOUT, with path and offset. Without the lock. */
int aio_describe_overdue(struct nvs_aio *aio, const struct transfer *transfer, const char *subject,
			 struct nvs_error *error);
/* The same under the lock. */
int aio_overdue_error(const struct transfer *transfer, const char *subject,
		      struct nvs_error *error);
/* aio_submit_list() under the aio's lock. Without a queue for transfers that are requests. */
void aio_queue_list(struct nvs_aio *aio, struct completions *queue, struct transfer *list);
/* Submits valid transfers linked by state.next, which complete on `queue`. The queue must stay open
 * until its owner has taken all of them. */
void aio_submit_list(struct nvs_aio *aio, struct completions *queue, struct transfer *list);

/*
 * Call when a wait for the transfer begins: its queued part then precedes all transfers that are
 * not awaited. The transfer may be submitted or not, but no other thread may submit it at the same
 * time.
 */
void aio_promote(struct nvs_aio *aio, struct transfer *transfer);

/* Changes the number of engines that use the aio, and returns it. While any does, nvs_aio_close()
 * refuses. */
unsigned aio_change_holders(struct nvs_aio *aio, int change);

/* Traces all later I/Os to `trace`, which must outlive the aio; NULL stops tracing. */
void aio_trace(struct nvs_aio *aio, struct nvs_trace *trace);

/* Binds the running workers to the cores of a node, unless they are bound to one already. */
void aio_bind_workers(struct nvs_aio *aio, const struct topo *topo, int node);

/*
 * nvs_aio_register_memory of as much of the beginning as the limits allow; *done is how many bytes.
 * Returns 0, or the error for which it is not all.
 */
int aio_register_most(struct nvs_aio *aio, void *data, size_t nbytes, size_t *done);
/* Ends all registrations that begin at memory which is about to be unmapped. */
void aio_unregister_all(struct nvs_aio *aio, const void *data);
/* Memory whose owner may unregister it after the aio was closed. */
struct aio_memory {
	struct nvs_aio *aio; /* NULL: there is none, or it is closed */
	void *data;
	LIST_ENTRY(aio_memory) link;
};
/* Notes where the memory is registered. */
void aio_memory_add(struct nvs_aio *aio, struct aio_memory *memory, void *data);
/* Unregisters it, if the aio is still open; no thread may be closing that. */
void aio_memory_remove(struct aio_memory *memory);

/* The log of the aio's messages. */
const struct nvs_log *aio_log(const struct nvs_aio *aio);
/* What the aio was opened with; constant. */
const struct aio_config *aio_settings(const struct nvs_aio *aio);

struct engine_ops;
/* nvs_aio_open() with the settings and the log by themselves, and with `ops` instead of the
 * configured engine, unless they are NULL. */
int aio_open_with(struct nvs_aio **aio, const struct aio_config *config,
		  const struct engine_ops *ops, void *ops_arg, const struct nvs_log *log,
		  struct nvs_error *error);

#endif
