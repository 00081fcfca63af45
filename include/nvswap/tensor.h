/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of an engine: registering, pinning, and moving them.
 *
 * Whole tensors, and parts of them, in memory of the program's own:
 *
 *	struct nvs_tensor_range range = {
 *		.size = sizeof(range), .tensor = tensor, .offset = 4096, .nbytes = 512, .data = row};
 *
 *	rc = nvs_tensor_swap_out_from(engine, &tensor, &input, 1, &error) ||
 *	     nvs_tensor_write(engine, &range, 1, -1, &error) ||
 *	     nvs_tensor_read(engine, &range, 1, &error) ||
 *	     nvs_tensor_wait(engine, &tensor, 1, 0, -1, &error) ||
 *	     nvs_tensor_swap_in_to(engine, &tensor, &output, 1, &error) ||
 *	     nvs_tensor_wait(engine, &tensor, 1, 0, -1, &error);
 *
 * One expert of many, of a model's files:
 *
 *	struct nvs_tensor_rows rows = {.size = sizeof(rows), .tensor = tensor, .first = 3, .count = 1};
 *	struct nvs_tensor *expert;
 *	uint64_t pin;
 *
 *	rc = nvs_tensor_register_rows(engine, &rows, 1, &expert, &error) ||
 *	     nvs_tensor_swap_in(engine, &expert, 1, -1, &pin, &error);
 *
 * A thread that does something in between waits in short timeouts, and keeps its place:
 *
 *	nvs_engine_keep_place(engine, true, &error);
 *	while (nvs_tensor_swap_in(engine, &tensor, 1, 200, &pin, &error) == -ETIMEDOUT)
 *		handle_signals();
 *	nvs_engine_keep_place(engine, false, NULL);
 *
 * A tensor by its name:
 *
 *	struct nvs_tensor_info info = {.size = sizeof(info)};
 *
 *	tensor = nvs_tensor_find(engine, "layer.0");
 *	if (tensor && !nvs_tensor_get_info(engine, tensor, &info))
 *		printf("%s: %s\n", info.name, nvs_tensor_state_name(info.state));
 *	rc = nvs_tensor_rename(engine, tensor, "block.0", &error) ||
 *	     nvs_tensor_forget(engine, &tensor, 1, &error);
 *
 * A wait for room in which the program does something every 200 ms:
 *
 *	uint64_t pin;
 *
 *	rc = nvs_engine_keep_place(engine, true, &error);
 *	while (!rc && (rc = nvs_tensor_swap_in(engine, &tensor, 1, 200, &pin, &error)) == -ETIMEDOUT)
 *		rc = puts("waiting for room") < 0;
 *	nvs_engine_keep_place(engine, false, NULL);
 */
#ifndef NVSWAP_TENSOR_H
#define NVSWAP_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvswap/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

struct nvs_tensor;

#define NVS_NAME_MAX 511 /* bytes in the name of a tensor */
#define NVS_NDIM_MAX 64	 /* dimensions of a tensor */

struct nvs_tensor_spec {
	size_t size;	  /* of this structure in bytes; all of an array have the same */
	const char *name; /* 1 to NVS_NAME_MAX bytes of UTF-8, unique in the engine; copied */
	enum nvs_dtype dtype;
	uint64_t numel; /* elements; 0 is allowed */
	/*
	 * `ndim` dimensions whose product is numel; ndim 0: a scalar; copied. NULL: one dimension,
	 * or the shape that the kept store holds.
	 */
	const uint64_t *shape;
	size_t ndim; /* up to NVS_NDIM_MAX */
};

/*
 * Registers tensors and reserves their space in the store, in array order. Tensors that are
 * used together should be registered together: they lie side by side and move in few I/Os. In a
 * kept store a tensor takes twice its space, since committed data is never overwritten. A tensor
 * that a kept store already holds keeps its data; another shape of as many elements replaces the
 * one in the store at the next commit. Tensors of stores written without shapes have one dimension.
 * tensors[0..n-1] receive handles, which are valid until nvs_tensor_forget or nvs_engine_close.
 * Either all or none are registered.
 * Errors:
 * -EEXIST  a name is registered twice
 * -ESTALE  the kept store holds a tensor of that name with another dtype or numel
 * -ENOSPC  the drive has no room, or ulimit -f is too low for the store's file
 * -EINVAL  an argument is NULL, a name is too short, too long or not UTF-8, a dtype is unknown, a
 *          shape has another number of elements or more than NVS_NDIM_MAX dimensions, a tensor has
 *          2^63 bytes or more, or those of the call have 2^64 or more together
 * -EROFS   the store is open read-only, and has no such tensor
 * -ENOMEM
 */
NVS_API int nvs_tensor_register(struct nvs_engine *engine, const struct nvs_tensor_spec *specs,
				size_t n, struct nvs_tensor **tensors, struct nvs_error *error);
/* Rows of a tensor: a range along its first dimension. */
struct nvs_tensor_rows {
	size_t size; /* of this structure in bytes; all of an array have the same */
	struct nvs_tensor *tensor;
	uint64_t first, count; /* 1 or more, within its first dimension */
	/* as nvs_tensor_spec; NULL: that of the tensor with the range, such as "experts[3:4]" */
	const char *name;
};

/*
 * Registers rows of tensors of files (nvs_engine_open_files) as tensors of their own: one expert of
 * many, or a part of an embedding, which is read alone, kept, evicted, read ahead and planned by
 * itself. They have the type of the tensor, and its shape with `count` in place of the first
 * dimension. Nothing is read. Rows may overlap, and may be rows of rows; each has memory of its own
 * in the pool. tensors[0..n-1] receive handles, which nvs_tensor_forget takes back. Either all or
 * none are registered.
 * Errors:
 * -EINVAL   an argument or a tensor is NULL or another engine's; the tensor is a scalar; the range
 *           is empty or exceeds it, or begins or ends within a byte of packed elements; a name is
 *           wrong or would be too long; a size is not set, or differs
 * -E2BIG    fields of a later version are set
 * -EEXIST   a name is registered already
 * -ENOTSUP  the engine has a store
 * -ENOMEM
 */
NVS_API int nvs_tensor_register_rows(struct nvs_engine *engine, const struct nvs_tensor_rows *rows,
				     size_t n, struct nvs_tensor **tensors,
				     struct nvs_error *error);
/* Returns the tensor with a name, or NULL. */
NVS_API struct nvs_tensor *nvs_tensor_find(struct nvs_engine *engine, const char *name);
/*
 * Removes tensors with their data and space. In a kept store, the next commit removes what was
 * committed of them and frees its space. Waits for what the engine itself reads ahead or writes
 * back of them.
 * Errors, with which none is removed:
 * -EINVAL     an argument or a tensor is NULL, another engine's, or named twice
 * -EBUSY      one is pinned, or in flight by a call of the caller's
 * -EROFS      the store is open read-only, or one is of files and no rows of another
 * -ETIMEDOUT  the call would wait for a transfer that is overdue (io_timeout_ms)
 */
NVS_API int nvs_tensor_forget(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
			      size_t n, struct nvs_error *error);

/*
 * Renames a tensor, pinned or in flight or not; `name` is copied. Names that nvs_tensor_get_info
 * returned before stay valid: the engine keeps them in memory as long as the tensor is registered.
 * A kept store has the new name from the next commit on, with the same contents.
 * Errors:
 * -EINVAL  an argument is NULL, or the name has no or more than NVS_NAME_MAX bytes, or is not UTF-8
 * -EEXIST  the engine, or its kept store, has another tensor of that name
 * -EROFS   the store is open read-only
 * -ENOMEM
 */
NVS_API int nvs_tensor_rename(struct nvs_engine *engine, struct nvs_tensor *tensor,
			      const char *name, struct nvs_error *error);

/*
 * Life of a tensor's data. nvs_tensor_swap_in and nvs_tensor_pin pin a tensor: it stays in the pool
 * until nvs_tensor_release unpins it. A tensor may be pinned several times. Unpinned, it may stay
 * in the pool (max_in_cpu) until the memory is needed; a tensor released dirty is written back
 * before it is evicted.
 *
 * A pin belongs to the call that makes it. Both functions store its number in *pin, which is not 0
 * and unique in the engine, or 0 with an error; nvs_tensor_wait and nvs_tensor_release take it, for
 * all tensors of that call or for some of them. A failed read ends the pins that wait for it, and
 * no pin that is made later: another caller that reads the tensor again neither hides the failure
 * nor keeps this caller's pin. Tensors that lie side by side are read in one transfer, and fail
 * together.
 *
 * nvs_tensor_read, nvs_tensor_swap_in_to and nvs_tensor_write pin tensors while they copy bytes of
 * them. Calls that would copy bytes of such a tensor too, pin, swap out or forget it wait until
 * that has ended, in the order in which they came: none fails for it, and overlapping calls starve
 * none. nvs_tensor_swap_in need not wait for copies out of the pool.
 *
 * Calls take an array of tensors, which must not name one twice. They start transfers for all of
 * the array or for none, and return; nvs_tensor_wait waits for the transfers.
 */

/*
 * Pins tensors whose contents the caller is about to write: pool memory, nothing is read. Waits up
 * to timeout_ms for room, evicting and writing back unpinned tensors, and for transfers in flight
 * of the tensors themselves. Contents that were released dirty and are not on the drive yet are
 * written first, so that releasing the pin clean loses nothing. The data may be accessed as soon as
 * the call returns 0. Several calls of nvs_tensor_pin may pin a tensor without contents: they share
 * its memory, and one release with NVS_DIRTY keeps the contents. Pinned memory is never evicted:
 * with timeout -1 the call waits for other tensors to be released, including the caller's own, and
 * after five seconds in which nothing in flight would make room the log names the pinned tensors.
 *
 * Calls of nvs_tensor_pin, nvs_tensor_swap_in and nvs_tensor_write get room in the order in which
 * they came. While the first one can't be served before another call acts, batches that fit may
 * pass it: as many bytes as the pool has, in the pool already or not, and as many again each time
 * that nothing was pinned, released or landed for 10 ms, 20 ms, 30 ms and so on, since a thread
 * with pins may wait for one of them.
 * Batches of 0 bytes never wait. A call with timeout_ms 0 does not queue: it returns -EAGAIN if it
 * may not pass. nvs_tensor_prefetch and reading ahead by the plan take no room while a call waits.
 *
 * Errors:
 * -EINVAL     `pin` or a tensor is NULL, or a tensor is named twice or belongs to another engine
 * -ENOMEM
 * -E2BIG      one of them exceeds the pool
 * -ENOBUFS    the tensors together exceed the pool
 * -EBUSY      one is in flight from or to external memory; nvs_tensor_pin: another pin has its
 *             contents; nvs_tensor_swap_in: it is pinned by nvs_tensor_pin, and new contents are
 *             not released yet
 * -ETIMEDOUT  timeout_ms has passed, or the call would wait and everything in flight is overdue
 *             (io_timeout_ms)
 * -EAGAIN     timeout_ms is 0, and there is no room yet or calls that came earlier wait for it; or
 *             bytes of a tensor are being copied; nvs_tensor_pin: or one is in flight, or a call
 *             that came earlier waits for it
 * -EROFS      the store is open read-only (nvs_tensor_pin)
 * -EIO and other errors of the drive: a write-back to make room failed; its tensor keeps its data.
 *             With timeout_ms 0: only tensors whose last write-back failed could make room; they
 *             are being written again. Also after a commit that failed and could not be taken back:
 *             nothing is written before a commit has succeeded, and the text says so
 */
NVS_API int nvs_tensor_pin(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			   int timeout_ms, uint64_t *pin, struct nvs_error *error);
/*
 * Pins tensors with their contents: starts to read those that are not in the pool. The data may be
 * accessed after nvs_tensor_wait has returned 0.
 * Errors: those of nvs_tensor_pin, and
 * -ENODATA  one was never written, or its last write from external memory failed
 */
NVS_API int nvs_tensor_swap_in(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
			       size_t n, int timeout_ms, uint64_t *pin, struct nvs_error *error);
/*
 * Keeps the calling thread's place among the calls that wait for room, for a thread that waits in
 * short timeouts to do something in between. A call of nvs_tensor_pin, nvs_tensor_swap_in or
 * nvs_tensor_write that has queued and runs out of time, or is one that does not wait (-EAGAIN),
 * leaves its place to the thread's next such call, and other calls go on as if it still waited; the
 * log names the pinned tensors after five seconds of all of them together. Any other end of a call
 * gives the place up, except the refusal of its arguments, and so does `keep` false, which ends the
 * keeping; closing the engine ends it too. A thread that ends without `keep` false leaves a place
 * for which later calls wait as for one that can't be served. Any thread may call it, for itself.
 * Errors:
 * -EINVAL  the engine is NULL
 * -EBUSY   the engine belongs to an optimizer
 * -EEXIST  the thread keeps its place already
 * -ENOMEM
 */
NVS_API int nvs_engine_keep_place(struct nvs_engine *engine, bool keep, struct nvs_error *error);
/*
 * Reads ahead without pinning: as many of the tensors, in order, as fit without waiting; none while
 * a call waits for room. Until they are pinned, or copied to external memory, further calls leave
 * them in the pool. Returns how many are in the pool or being read, or an error.
 * Errors:
 * -EINVAL   an argument or a tensor is NULL, another engine's, or named twice
 * -ENODATA  one was never written, or its last write from external memory failed
 */
NVS_API long nvs_tensor_prefetch(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
				 size_t n, struct nvs_error *error);
/*
 * Waits until no transfer of the tensors is in flight. Returns 0, or the status of the first failed
 * tensor in array order; *error names tensor, path and offset. With a pin: the failure of the read
 * that this pin waited for, even if another caller has read the tensor since; the tensor is not
 * pinned any more, the others of the call still are. Any pin that was made before a tensor's read
 * failed counts as one that this ended. With pin 0: the failure of each tensor's last
 * transfer, for transfers that pin nothing: nvs_tensor_prefetch, nvs_tensor_swap_out and those of
 * external memory. Reads that no call has asked for, because the plan started them or the
 * nvs_tensor_write that did has ended, are not among them: the log has their failures, and the
 * tensor is read again when a call asks for it.
 * Errors:
 * -EINVAL     the pin is not one of a tensor, or an argument is NULL
 * -EIO and other errors of the drive
 * -EBADMSG    a checksum differs
 * -ETIMEDOUT  timeout_ms has passed, or a transfer is overdue (io_timeout_ms); tensors stay pinned
 * -EAGAIN     timeout_ms is 0 and a transfer is in flight; tensors stay pinned
 */
NVS_API int nvs_tensor_wait(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			    uint64_t pin, int timeout_ms, struct nvs_error *error);
/*
 * Returns a tensor's memory: aligned to 512 bytes or more, except in an engine of files
 * (nvs_engine_open_files), and valid until the tensor is released; NULL if it is not in the pool.
 */
NVS_API void *nvs_tensor_data(const struct nvs_tensor *tensor);

enum nvs_how { NVS_CLEAN, NVS_DIRTY };
/*
 * Ends a pin of tensors. NVS_DIRTY: the contents were changed. NVS_CLEAN after
 * nvs_tensor_pin discards the new contents: the tensor has the last contents again that were
 * released dirty. A tensor whose read failed is skipped: its pin has ended. So one call with all
 * tensors of a swap-in ends the remaining pins.
 * Errors, with which nothing is released:
 * -EINVAL  the pin is not one of a tensor, an argument is NULL, or `how` is none of the two
 * -EBUSY   one is being read, or is released dirty while being written; call nvs_tensor_wait first
 * -EROFS   NVS_DIRTY, and the store is open read-only
 */
NVS_API int nvs_tensor_release(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
			       size_t n, uint64_t pin, enum nvs_how how, struct nvs_error *error);
/*
 * Starts to write back and evict tensors: the dirty ones are written, and each is evicted as its
 * write completes. A
 * tensor whose write fails stays in the pool, dirty, and can be swapped out or in again.
 * Errors, with which nothing is started:
 * -EINVAL  an argument or a tensor is NULL, another engine's, or named twice
 * -EBUSY   one is pinned, or in flight from or to external memory
 */
NVS_API int nvs_tensor_swap_out(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
				size_t n, struct nvs_error *error);

/*
 * Start transfers between the store and external memory, without the pool. data[i] is the whole of
 * tensors[i], at any alignment, and must stay valid until nvs_tensor_wait. A failed write leaves
 * the tensor without contents (-ENODATA) or, if it was the first write after a commit of a kept
 * store, with the committed contents. If no nvs_tensor_wait reports the failure, the tensor's next
 * swap-in, which then starts nothing, or the next commit returns it.
 * Errors, with which nothing is started:
 * -EINVAL     an argument, a tensor or its data is NULL; a tensor is another engine's, or named
 *             twice
 * -EBUSY      one is pinned, or in flight by a call of the caller's; the calls wait for what the
 *             engine itself reads ahead or writes back
 * -ENODATA    nvs_tensor_swap_in_to: one was never written, or its last write failed
 * -EROFS      nvs_tensor_swap_out_from: the store is open read-only
 * -ETIMEDOUT  the call would wait for a transfer that is overdue (io_timeout_ms)
 * Others      nvs_tensor_swap_in_to: a failed write that no call returned
 */
NVS_API int nvs_tensor_swap_out_from(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
				     const void *const *data, size_t n, struct nvs_error *error);
NVS_API int nvs_tensor_swap_in_to(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
				  void *const *data, size_t n, struct nvs_error *error);

/* Bytes of a tensor, and the caller's memory for them. */
struct nvs_tensor_range {
	size_t size; /* of this structure in bytes; all of an array have the same */
	struct nvs_tensor *tensor;
	uint64_t offset, nbytes; /* within the tensor's bytes; any alignment; 0 bytes are allowed */
	void *data; /* nbytes at any alignment; for reading, valid until nvs_tensor_wait */
};

/*
 * Starts to read parts of tensors into external memory: without the pool, as nvs_tensor_swap_in_to
 * reads whole ones. Of a tensor that is in the pool, the bytes there are copied, newer ones than on
 * the drive included. A range of 0 bytes asks nothing of its tensor. An array may name a tensor
 * more than once: parts of one tensor are read one after another, in the order of the array, and if
 * one fails, those behind it are not read. Little more than the bytes asked for is read. A checksum
 * is that of all bytes of a tensor, so a range of fewer is not verified, not even in a kept store;
 * one of all bytes is, as by nvs_tensor_swap_in_to. nvs_tensor_wait, with pin 0, waits for the
 * reads. After an error nothing is started.
 * Errors:
 * -EINVAL   an argument, a tensor or its data is NULL; a range exceeds its tensor; a size is
 *           not set, or differs
 * -E2BIG    fields of a later version are set, which this library does not know
 * -EBUSY    a tensor is pinned, or in flight by a call of the caller's; what the engine itself
 *           reads ahead or writes back is waited for
 * -ENODATA  a tensor was never written, or its last write from external memory failed
 * -ENOMEM   out of memory
 * -ETIMEDOUT  the call would wait for a transfer that is overdue (io_timeout_ms)
 * Others    a failed write from external memory that no call returned, as nvs_tensor_swap_in
 */
NVS_API int nvs_tensor_read(struct nvs_engine *engine, const struct nvs_tensor_range *ranges,
			    size_t n, struct nvs_error *error);

/*
 * Writes parts of tensors; later ranges win over earlier ones that overlap them, and an array may
 * name a tensor more than once. All tensors of the call are in the pool together while their bytes
 * are copied: those that are not there are read first, which the call waits for, for timeout_ms at
 * most (-1: without limit; 0: not at all, so that only tensors in the pool can be written). Then
 * they are dirty and unpinned, as after nvs_tensor_release; the ranges' memory is the caller's
 * again. After an error no byte has changed. Calls of several threads on one tensor take turns.
 * If its time runs out, a read of the call goes on, as one that the engine itself has started. A
 * whole tensor is written faster, and without the pool, by nvs_tensor_swap_out_from. A range of 0
 * bytes asks nothing of its tensor.
 * Errors:
 * -EINVAL     an argument, a tensor or its data is NULL; a range exceeds its tensor; a size is not
 *             set, or differs
 * -E2BIG      fields of a later version are set, which this library does not know; or a tensor is
 *             larger than the pool
 * -EBUSY      a tensor is pinned, or in flight from or to external memory
 * -ENODATA    a tensor was never written, or its last write from external memory failed: the bytes
 *             beside the range don't exist
 * -EROFS      the store is open read-only
 * -ENOBUFS    the tensors together are larger than the pool
 * -EAGAIN     timeout_ms is 0, and a tensor is not in the pool, is in flight or being copied, or a
 *             call that came earlier waits for it, or a commit goes first
 * -ETIMEDOUT  timeout_ms has passed, or a transfer is overdue (io_timeout_ms)
 * -ENOMEM     out of memory
 * Others      a read or a write-back failed, as nvs_tensor_swap_in and nvs_tensor_wait
 */
NVS_API int nvs_tensor_write(struct nvs_engine *engine, const struct nvs_tensor_range *ranges,
			     size_t n, int timeout_ms, struct nvs_error *error);

enum nvs_tensor_state {
	NVS_EMPTY,    /* never written */
	NVS_ON_DRIVE, /* only on the drive */
	NVS_READING,  /* being read into the pool or external memory */
	NVS_RESIDENT, /* in the pool */
	NVS_WRITING,  /* being written from the pool or external memory */
};

struct nvs_tensor_info {
	size_t size;	  /* of this structure in bytes; the caller sets it, see nvs_error */
	const char *name; /* valid while the tensor is registered, even when renamed */
	enum nvs_dtype dtype;
	uint64_t numel, nbytes;
	uint64_t store_offset; /* in an engine of files: where it lies among all of them */
	enum nvs_tensor_state state;
	bool dirty;
	uint32_t pins;	       /* how many it has */
	int status;	       /* of the last transfer: 0 or a negative errno */
	size_t ndim;	       /* dimensions; 0: a scalar */
	const uint64_t *shape; /* does not change while the tensor is registered */
};

/*
 * Describes a tensor and its state.
 * Errors:
 * -EINVAL  an argument is NULL or info->size is not set
 */
NVS_API int nvs_tensor_get_info(struct nvs_engine *engine, struct nvs_tensor *tensor,
				struct nvs_tensor_info *info);
/* Returns the name of a state, such as "on drive". */
NVS_API const char *nvs_tensor_state_name(enum nvs_tensor_state state);

#ifdef __cplusplus
}
#endif

#endif
