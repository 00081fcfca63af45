/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The swap engine: tensors between a pinned pool and a store.
 *
 * With "nvswap": {"keep": true}, continue where an earlier run ended:
 *
 *	uint64_t step = 0;
 *	size_t length = sizeof(step);
 *
 *	rc = nvs_engine_open(&engine, config, NVS_OFFLOAD_PARAM, &error) ||
 *	     nvs_engine_get_note(engine, &step, &length);
 *	if (!rc)
 *		printf("step %llu, commit %llu\n", (unsigned long long)step,
 *		       (unsigned long long)nvs_engine_generation(engine));
 *	...
 *	step++;
 *	rc = nvs_engine_set_note(engine, &step, sizeof(step), &error) ||
 *	     nvs_engine_commit(engine, &error);
 *
 * Parameters and a second store on the same workers, with the aio of the first engine:
 *
 *	rc = nvs_engine_open_on(&second, nvs_engine_aio(engine), config, NVS_OFFLOAD_OPTIMIZER, &error);
 *	...
 *	nvs_engine_abandon(second, NULL); // without a commit
 *	nvs_engine_close(engine, &error);
 *
 * The tensors of a model, read where they lie, and one of them in the pool:
 *
 *	const char *model = "/mnt/nvme/Llama-3.1-8B";
 *	uint64_t pin;
 *
 *	rc = nvs_engine_open_files(&engine, config, &model, 1, NULL, &error);
 *	tensor = rc ? NULL : nvs_tensor_find(engine, "model.embed_tokens.weight");
 *	if (tensor)
 *		rc = nvs_tensor_swap_in(engine, &tensor, 1, -1, &pin, &error) ||
 *		     nvs_tensor_wait(engine, &tensor, 1, pin, -1, &error);
 *
 * What a kept store holds, before anything is registered:
 *
 *	struct nvs_stored_tensor stored = {.size = sizeof(stored)};
 *
 *	for (size_t i = 0; !nvs_engine_get_stored(engine, i, &stored); i++)
 *		printf("%s: %llu bytes\n", stored.name, (unsigned long long)stored.nbytes);
 *
 * The pool, for copies to a GPU, and what the engine has done:
 *
 *	struct nvs_engine_stats stats = {.size = sizeof(stats)};
 *
 *	rc = nvs_engine_pool(engine, &data, &nbytes) || nvs_engine_get_stats(engine, &stats);
 *	printf("%zu bytes, %llu evictions\n", nbytes, (unsigned long long)stats.evictions);
 */
#ifndef NVSWAP_ENGINE_H
#define NVSWAP_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvswap/aio.h"

#ifdef __cplusplus
extern "C" {
#endif

struct nvs_engine;

/*
 * The engine of an optimizer (nvs_optimizer_engine) can only be looked at: calls that would change
 * it, register tensors or move, pin or await them are -EBUSY.
 */

/*
 * Opens an engine: workers, pool and store of a configuration block. The configuration may be
 * closed after the call. Device "cpu" keeps the store in host memory instead of on a drive.
 *
 * With "nvswap": {"read_only": true} the kept store is only read, and any number of engines may
 * read it at once. Nothing of it changes, not even modes or times of change. Calls that would
 * write, register a tensor that the store does not have, forget, rename or commit are -EROFS, and
 * nvs_engine_close commits nothing.
 *
 * A process may fork while an engine is open. The child has neither the engine's threads nor its
 * pool: it must not call functions on the engine, and should exec or _exit. If the parent is
 * killed, the store stays locked until the child execs or exits; a store that the parent closes is
 * unlocked.
 * Errors:
 * -EINVAL       an argument is NULL, no such block, device "none", a value out of bounds, the
 *               rank is an environment variable that was not read (nvs_config_read_rank), or
 *               `rollback` is set and neither `keep` nor `read_only`
 * -ENOENT       an nvme_path does not exist: it is never created
 * -ENOTDIR      an nvme_path is neither a directory nor a block device
 * -ENOTSUP      use_gds is set, or the I/O engine does not work on this machine
 * -ENOMEM       the pool can't be mapped or locked; the error has limit, need and remedy
 * -EAGAIN       the limit on threads is reached
 * -ENOSPC       the drive has no room for the store's files, or ulimit -f is too low for them
 * -EBUSY        another engine, of this or another process, has locked the store for more than a
 *               second
 * -EDQUOT       `write_budget` bytes were written below a path: the error has the file that counts
 *               them
 * -EEXIST       the path holds a kept store and neither `keep` nor `read_only` is set
 * -ENODATA      `read_only` is set, and the path holds no kept store, or device is "cpu"
 * -EMEDIUMTYPE  the path holds data that is not nvswap's or another user's, another store's member,
 *               or a store of another version; none of it is changed
 * -EOPNOTSUPP   the path is in a file system that holds no files, such as /proc or /sys; or
 *               `write_budget` is set, and the path is a block device
 * -EUCLEAN      the store is damaged, and its last commit or all its labels are lost, or the labels
 *               are of an earlier commit than a manifest proves: the error has what is there.
 *               "nvswap": {"rollback": true} goes back to the commit before, if only the last one
 *               is lost
 * -EILSEQ       the kept store has a name that is not UTF-8, which an earlier version took: the
 *               error has it. `read_only` opens the store, to read the tensor or export it under
 *               another name, as "nvswap store export" does
 * -EACCES       the caller may not open or create the store's files
 * -EIO          the store's files cannot be read; other errors of open(2) and pread(2) alike
 */
NVS_API int nvs_engine_open(struct nvs_engine **engine, const struct nvs_config *config,
			    enum nvs_block block, struct nvs_error *error);
/*
 * Opens an engine on an aio of the caller, as nvs_engine_open does: its workers and rings all
 * engines and optimizers on it share, with each other and with the caller's own files. So
 * parameters and optimizer state of one drive wait in one queue, in which a read that a call waits
 * for goes first, instead of competing. Give engines of several drives an aio each: on one, a drive
 * that hangs fills the workers' queues, and the I/Os of the others wait behind it.
 *
 * The aio must outlive the engine: nvs_engine_close leaves it open, and nvs_engine_get_stats has
 * its statistics, of all that share it. Engines on it may be opened and closed in any order, also
 * while transfers of others are in flight. What the aio does is as it was opened: block_size,
 * queue_depth, ioengine, io_timeout_ms, and the log and trace of its I/Os. The first engine on it
 * that knows the NUMA node of its drive binds the workers there.
 * Errors: those of nvs_engine_open, and
 * -EINVAL  `aio` is NULL; or the configuration has another value for a setting of the aio than the
 *          aio was opened with: open both with one configuration
 */
NVS_API int nvs_engine_open_on(struct nvs_engine **engine, struct nvs_aio *aio,
			       const struct nvs_config *config, enum nvs_block block,
			       struct nvs_error *error);
struct nvs_files_options {
	size_t size; /* of this structure in bytes; the caller sets it, see nvs_error */
	/* an aio to share, as with nvs_engine_open_on, which must outlive the engine; NULL: the
	 * engine opens one of its own */
	struct nvs_aio *aio;
	/*
	 * the directory of the files' checksums; NULL: they lie beside the files; "": none are read
	 */
	const char *checksums;
};

/*
 * Opens an engine whose tensors are those of .safetensors files, read where they lie: nothing is
 * copied, written or locked. A path is that of a file, of an index of several (".index.json"), or
 * of a folder that has model.safetensors, or that of an adapter or of a part of a diffusion model,
 * or its index; the files may be on several drives. The tensors have the names, element types and
 * shapes of the headers (nvs_tensor_find, nvs_engine_get_stored) and are as registered. The pool
 * and its budgets are those of the configuration's block offload_param, whose device and nvme_path
 * mean nothing here, nor do `keep`, `read_only`, `rank` and `scrub`. `options` may be NULL.
 *
 * All calls that read tensors or read them ahead work as in any engine: nvs_tensor_swap_in,
 * nvs_tensor_prefetch, steps and their plan, nvs_tensor_read of some rows. A tensor is read by
 * direct I/O into the pool with the rest of the units that it begins and ends in, so
 * nvs_tensor_data has the alignment of its place in the file, as a rule 8 bytes. Tensors below 32
 * KiB that lie together are read together. Without direct I/O, as on tmpfs, the page cache is read.
 * Calls that would write, register anew, rename, forget or commit are -EROFS.
 *
 * The files may be on a file system that is mounted read-only, and paths may be symbolic links, as
 * in the cache of the Hugging Face hub. Each read is of the file as it was when the engine was
 * opened: if its size or time of change differs after the read, or its path leads to another file
 * or to none, the read fails with -ESTALE, and the error names the file. So no tensor has bytes of
 * two versions, and none is read of a model that is no longer there, though a file that was
 * replaced or removed could still be read. Tensors in the pool stay as they were read. A program
 * that writes to a file and then sets its time of change back is not noticed.
 *
 * With "nvswap": {"verify": true} each whole tensor that is read is compared with its checksum, and
 * another one is -EBADMSG. The checksums of FILE are in FILE.checksums, which "nvswap store
 * checksum" writes. A tensor that has none there, and rows (nvs_tensor_register_rows), get the
 * checksum of what their first read returns, with which later ones are compared.
 * Errors:
 * -EINVAL   an argument is NULL or n is 0; a header, an index or a file of checksums is wrong; a
 *           tensor is in two files; the configuration has another value for a setting of the aio
 *           than that was opened with
 * -E2BIG    fields of a later version are set in the options
 * -ENOENT   a file does not exist, or a folder has none of the names above; with verify, the
 *           directory of options->checksums lacks the checksums of a file
 * -ESTALE   a file was replaced or written to while the engine was opened; or its checksums are
 *           those of a file of another length or of other tensors
 * -ENODATA  a file was truncated while its header was read
 * -EMFILE   the limit on open files is reached: there are two for each file of the model
 * -EFBIG    the files have more than 2^63 bytes together
 * Others    those of nvs_engine_open for the pool and the workers, of open(2) and of read(2)
 */
NVS_API int nvs_engine_open_files(struct nvs_engine **engine, const struct nvs_config *config,
				  const char *const *paths, size_t n,
				  const struct nvs_files_options *options, struct nvs_error *error);
/*
 * Closes an engine: waits for transfers in flight, commits a kept store (see nvs_engine_commit) or
 * unlinks one that is not kept, and frees the engine and its tensors. Waits for the log function:
 * see nvs_log_fn. `engine` may be NULL.
 * Errors:
 * -EBUSY      other engines are open on the engine's own aio (nvs_engine_aio), or a tensor of a
 *             kept store is pinned for new contents or pinned and dirty, and nothing is closed:
 *             close them first, and release the tensor or call nvs_engine_abandon
 * -ETIMEDOUT  a transfer is overdue (io_timeout_ms) and nothing is closed: call it again or end the
 *             process
 * Others      those of nvs_engine_commit: the engine is closed, and a kept store is as last
 *             committed
 */
NVS_API int nvs_engine_close(struct nvs_engine *engine, struct nvs_error *error);

/*
 * Closes an engine without a commit: a kept store stays as last committed, and what was written
 * since is lost. Waits for the log function too. `engine` may be NULL.
 * Errors:
 * -EBUSY      other engines are open on the engine's own aio, and nothing is closed
 * -ETIMEDOUT  as nvs_engine_close: nothing is closed
 */
NVS_API int nvs_engine_abandon(struct nvs_engine *engine, struct nvs_error *error);

/* A tensor of a kept store, or of files. */
struct nvs_stored_tensor {
	size_t size;	  /* set by the caller: sizeof(struct nvs_stored_tensor) */
	const char *name; /* valid until the engine is closed */
	enum nvs_dtype dtype;
	uint64_t numel, nbytes;
	bool has_contents; /* false: registered when it was committed, and never written */
	bool has_checksum;
	uint64_t checksum;     /* XXH3 (64 bits) of its nbytes, without a seed */
	size_t ndim;	       /* dimensions; 0: a scalar */
	const uint64_t *shape; /* valid as long as the name */
	const char *path;      /* of its file, as long valid; NULL: of a store */
};

/*
 * Lists the tensors that a kept store, or the files of nvs_engine_open_files, held when the engine
 * was opened, registered since or not: fills *stored for those with index 0, 1 and so on. Any
 * thread may call it.
 * Errors:
 * -ENOENT  `index` is not less than the number of tensors, or the store is new, or neither kept nor
 *          of files
 * -EINVAL  `engine` or `stored` is NULL, or its size is not set
 */
NVS_API int nvs_engine_get_stored(struct nvs_engine *engine, size_t index,
				  struct nvs_stored_tensor *stored);
/*
 * Returns the number of the last commit of a kept store, by this engine or an earlier one: it grows
 * with each commit that changes anything. 0: never committed, not kept, or `engine` is NULL. A
 * program that notes it elsewhere sees whether the store it opens is the one it committed. Any
 * thread may call it.
 */
NVS_API uint64_t nvs_engine_generation(struct nvs_engine *engine);

#define NVS_NOTE_MAX 65536u /* bytes of a note, at most */
/*
 * Sets the note of the following commits of a kept store: bytes of the caller's own, such as the
 * step number and the position in the data set, which become durable together with the tensors, or
 * not at all. The bytes are copied, and nothing in them is interpreted. A commit has the note that
 * was last set before it began; without one since opening, that of the commit before. nbytes 0: no
 * note; `note` may then be NULL. Without `keep` the call has no effect. Any thread may call it.
 * Errors:
 * -E2BIG   `nbytes` is more than NVS_NOTE_MAX
 * -EINVAL  the engine or the note is NULL
 * -ENOMEM
 * -EROFS   the store is open read-only
 */
NVS_API int nvs_engine_set_note(struct nvs_engine *engine, const void *note, size_t nbytes,
				struct nvs_error *error);
/*
 * Reads the note of the last successful commit, by this engine or an earlier one, also of a store
 * that is open read-only: copies it to `note`, which has room for *nbytes bytes, and stores its
 * length in
 * *nbytes; 0: none. `note` may be NULL: then only the length is stored. Any thread may call it.
 * Errors:
 * -EINVAL  `engine` or `nbytes` is NULL
 * -ERANGE  the note is longer than the room: *nbytes is its length, and nothing was copied
 */
NVS_API int nvs_engine_get_note(struct nvs_engine *engine, void *note, size_t *nbytes);

/* Returns the engine's aio, for files and other engines of the caller; closed with the engine,
 * unless the engine was opened on it (nvs_engine_open_on). NULL if `engine` is NULL. */
NVS_API struct nvs_aio *nvs_engine_aio(struct nvs_engine *engine);

/*
 * Returns the engine's pool: *data is its base, aligned to a page, and *nbytes its length in whole
 * pages. They are the same from nvs_engine_open until nvs_engine_close, which unmaps the memory. A
 * program with a GPU registers it once, after opening, so that copies between pool and GPU need no
 * bounce buffer and run asynchronously:
 *
 *	nvs_engine_pool(engine, &data, &nbytes);
 *	cudaHostRegister(data, nbytes, cudaHostRegisterPortable);
 *	...
 *	cudaHostUnregister(data);
 *	nvs_engine_close(engine, &error);
 *
 * It must end the registration before nvs_engine_close: the driver keeps the pages, and copies them
 * in place of what is mapped at their address next, without an error. The memory belongs to the
 * engine: only that of pinned tensors (nvs_tensor_data) may be accessed, and an asynchronous copy
 * must have completed before the tensor is released. Any thread may call it.
 * Errors:
 * -EINVAL  an argument is NULL
 */
NVS_API int nvs_engine_pool(struct nvs_engine *engine, void **data, size_t *nbytes);

/*
 * Commits a kept store: writes back every dirty unpinned tensor, makes the data durable and
 * replaces the manifest. After a crash the next run finds every tensor as of the last commit,
 * whatever was written since, and -EBADMSG at the swap-in of a tensor whose bytes the drive lost. A
 * commit is atomic: on an error the previous one stays in effect. Without `keep` the call only
 * writes back. Other threads may read, write, register and forget tensors meanwhile; the commit has
 * the state that it finds once everything is written back. So that this comes to an end,
 * nvs_tensor_write may wait for it, and calls that read bytes in the pool for the copies that are
 * under way. A write of a tensor that was written since the previous commit begins when this one
 * ends.
 * Errors:
 * -EINVAL     the engine is NULL
 * -EBUSY      a tensor is pinned and dirty, or in flight from or to external memory
 * -ETIMEDOUT  a write is overdue (io_timeout_ms)
 * -ESTALE     the store's files, or the directory that an nvme_path names, were removed, moved or
 *             unmounted since it was opened: nothing is committed until they are back
 * -EUCLEAN    the last commit has the highest number that there is: the labels are false
 * -EROFS      the store is open read-only
 * -ENOSPC     the drive has no room for the list of tensors, or it exceeds the 16 MiB of a raw
 *             device
 * -EIO and other errors of the drive: a write failed; another commit may succeed. If the data could
 *             not be made durable, as the error says, every later commit of this engine returns
 *             -EIO. If the failed commit could not be taken back either, the next one tries that
 *             first; until then the drive may have either of the two.
 *             Also, once: the failure of a write from external memory that no other call reported
 */
NVS_API int nvs_engine_commit(struct nvs_engine *engine, struct nvs_error *error);

struct nvs_pool_stats {
	/* bytes: */
	uint64_t bytes;		     /* the size of the pool */
	uint64_t used, used_max;     /* leased now; the maximum since it was opened */
	uint64_t largest_free;	     /* the longest run that can be leased now */
	uint64_t locked;	     /* locked in memory */
	uint64_t huge;		     /* backed by explicit huge pages */
	bool transparent_huge;	     /* backed by transparent huge pages */
	int numa_node;		     /* the node that it is bound to; -1: not bound */
	uint64_t waits;		     /* leases that had to wait */
	uint64_t used_at_first_wait; /* bytes in use then; 0 if none waited */
};

struct nvs_engine_stats {
	size_t size; /* of this structure in bytes; the caller sets it, see nvs_error */
	uint64_t tensors, tensor_bytes;
	uint64_t store_bytes; /* reserved on the drives */
	bool direct;	      /* false: the file system has no O_DIRECT; I/O is buffered */
	uint64_t swapped_in, swapped_out; /* bytes of tensors */
	uint64_t transfers;		  /* runs of adjacent tensors moved by one transfer */
	uint64_t evictions;		  /* tensors evicted from the pool to make room */
	uint64_t busy_ns;		  /* time with at least one transfer in flight */
	uint64_t verify_errors;
	uint64_t scrub_rounds, scrub_bytes; /* what "nvswap": {"scrub": true} has read */
	uint64_t scrub_errors;		    /* tensors that it found damaged or unreadable */
	/* bytes written to the store's drives since the engine was opened: tensors with what rounds
	 * them up to blocks, retries, labels and manifests; 0 with device "cpu" */
	uint64_t drive_written_bytes;
	uint64_t reserved[4];	    /* 0; for fields to come */
	struct nvs_pool_stats pool; /* does not grow */
	/* of the engine's aio, with the I/Os of all that share it (nvs_engine_open_on); last, so
	 * that it can grow */
	struct nvs_aio_stats aio;
};

/*
 * Reads the statistics of an engine, of its pool and of its aio.
 * Errors:
 * -EINVAL  an argument is NULL or stats->size is not set
 */
NVS_API int nvs_engine_get_stats(struct nvs_engine *engine, struct nvs_engine_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
