/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the aio layer gives to the layers above it, beside the public transfers: files that are
 * striped over several members, a callback for completions, and binding its workers.
 */
#ifndef AIO_AIO_H
#define AIO_AIO_H

#include "nvswap.h"
#include "topo/topo.h"

/* One file or block device beneath an nvs_file. The descriptors pass to the file, which closes
 * them. */
struct file_member {
	char *path;    /* for messages; copied */
	int fd;	       /* opened without O_DIRECT */
	int direct_fd; /* the same with O_DIRECT; -1: not direct */
	uint64_t base; /* where its share of the file begins in it, bytes */
	struct dio_caps dio;
};

/*
 * A file of `n` members, striped by `stripe` bytes: stripe i lies on member i % n. With one member
 * the stripe is not looked at. `padded`: the file's users own whole units, so a transfer may write
 * up to the next multiple of the direct-I/O alignment behind its end (zeros) instead of going
 * through the page cache for the odd bytes. On error the descriptors stay the caller's.
 */
int file_create(struct nvs_aio *aio, const struct file_member *members, unsigned n, uint64_t stripe,
		bool writable, bool padded, struct nvs_file **file, struct nvs_error *error);

/* Fills in direct_fd and dio of a member whose fd is open; buffered where it can't be direct. */
int file_member_probe(struct file_member *member, bool writable, bool buffered);

/* What the text of an error says of a failed transfer: path and offset of the I/O, and the errno.
 */
int transfer_error(const struct nvs_transfer *transfer, const char *subject,
		   struct nvs_error *error);

/*
 * Completed transfers, linked by state.next, as one worker reaped them together: called in the
 * worker's thread, without locks, instead of waking waiters of nvs_transfer_wait, for transfers
 * that were handed over with submit_quietly.
 */
typedef void aio_completed_fn(void *arg, struct nvs_transfer *list);
/* Some of these have become overdue (io_timeout_ms): called without locks by a thread that does
 * nothing else. aio_is_overdue() tells which; they may have completed since. */
typedef void aio_overdue_fn(void *arg);
void aio_on_completed(struct nvs_aio *aio, aio_completed_fn *completed, aio_overdue_fn *overdue,
		      void *arg);
/* Whether a transfer, handed over or yet to be, is overdue; with the file offset that hangs. */
bool aio_is_overdue(struct nvs_aio *aio, const struct nvs_transfer *transfer, uint64_t *offset);
/* Looks for transfers that are overdue at that time of CLOCK_MONOTONIC. */
void aio_look_for_overdue(struct nvs_aio *aio, uint64_t now_ns);
/* What the text of an error says of one: -ETIMEDOUT, with path and offset. */
int aio_overdue_error(const struct nvs_transfer *transfer, uint64_t offset, const char *subject,
		      struct nvs_error *error);
/* nvs_submit for transfers linked by state.next, which are valid; their completions go to the
 * function. */
void aio_submit_list(struct nvs_aio *aio, struct nvs_transfer *list);

/* Has the workers record their I/Os there from now on; it outlives the aio. NULL: nowhere. */
void aio_trace(struct nvs_aio *aio, struct nvs_trace *trace);

/* Binds the workers, which are running, to the cores of a node. */
void aio_bind_workers(struct nvs_aio *aio, const struct topo *topo, int node);

struct engine_ops;
/* Opens with this table instead of one that the configuration names: for tests. */
int aio_open_with(struct nvs_aio **aio, const struct nvs_aio_config *config,
		  const struct engine_ops *ops, void *ops_arg, const struct nvs_log *log,
		  struct nvs_error *error);
/* Whether an engine works here, by opening it: 0, or a negative errno and the reason. */
int ioengine_try(enum nvs_ioengine ioengine, char *reason, size_t nbytes);

#endif
