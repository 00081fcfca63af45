/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvswap: moves the tensors of a model that does not fit in memory between a pinned pool in
 * host memory and NVMe, at the speed of the drive, while the caller computes.
 *
 * Conventions that hold for everything below unless a declaration says otherwise:
 *
 * - A function returns 0 or a negative errno. The text for a person is in the struct nvs_error
 *   that the caller may pass; NULL is always allowed there.
 * - Every function may be called from any thread, also at the same time as any other, except
 *   that nothing may be called on an object while or after it is closed.
 * - `timeout_ms` is in milliseconds: -1 waits as long as it takes, 0 does not wait. A wait that
 *   runs out returns -ETIMEDOUT; a call with 0 that would have had to wait returns -EAGAIN.
 * - The library never prints, exits, installs signal handlers or reads the environment.
 */
#ifndef NVSWAP_H
#define NVSWAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NVS_VERSION_MAJOR 0
#define NVS_VERSION_MINOR 1
#define NVS_VERSION_PATCH 0
#define NVS_VERSION	  "0.1.0"

#define NVS_API __attribute__((visibility("default")))

/* The version of the library that is linked, which may not be the header's: "0.1.0". */
NVS_API const char *nvs_version(void);

/* --------------------------------------------------------------------------------------------
 * Errors and log
 */

/* What went wrong, for a person (`text`, whole by itself) and for a program (the rest). */
struct nvs_error {
	int code;	   /* the negative errno that the function returned */
	unsigned line;	   /* line in a configuration file, from 1; 0: not about one */
	uint64_t offset;   /* byte offset in the file named in `text`, where an I/O failed */
	char subject[128]; /* the key, tensor or option that it is about; "" if none */
	char text[1024];   /* one sentence or more, without a newline at the end */
};

/* The text of a negative errno as nvswap means it; never NULL. For where no nvs_error was passed.
 */
NVS_API const char *nvs_strerror(int code);

enum nvs_log_level { NVS_LOG_ERROR, NVS_LOG_WARNING, NVS_LOG_INFO, NVS_LOG_DEBUG };

/*
 * Receives what the library has to say, a line without a newline at a time. Called from any
 * thread, the library's own among them; it must not call back into nvswap.
 */
typedef void nvs_log_fn(void *arg, enum nvs_log_level level, const char *text);

struct nvs_log {
	nvs_log_fn *fn; /* NULL: nothing is said */
	void *arg;
};

/* --------------------------------------------------------------------------------------------
 * Configuration
 *
 * Keys, units and defaults are those of DeepSpeed's JSON configuration ("aio",
 * "zero_optimization.offload_param", "zero_optimization.offload_optimizer" and the few others
 * named below); docs/configuration.md has the table.
 */

enum nvs_ioengine {
	NVS_IOENGINE_AUTO, /* the first that works here: io_uring, libaio, posix */
	NVS_IOENGINE_IO_URING,
	NVS_IOENGINE_LIBAIO,
	NVS_IOENGINE_POSIX, /* threads with pread and pwrite */
};

enum nvs_device { NVS_DEVICE_NONE, NVS_DEVICE_CPU, NVS_DEVICE_NVME };

#define NVS_PATHS_MAX	      16
#define NVS_BLOCK_SIZE_MIN    512u
#define NVS_BLOCK_SIZE_MAX    (1u << 30)
#define NVS_QUEUE_DEPTH_MAX   4096u
#define NVS_THREAD_COUNT_MAX  256u
#define NVS_IO_TIMEOUT_MS_MAX 86400000u

struct nvs_trace; /* see the end */

/* The "aio" block. */
struct nvs_aio_config {
	uint32_t block_size;   /* bytes in one I/O; a multiple of 512 */
	uint32_t queue_depth;  /* I/Os in flight on each worker */
	uint32_t thread_count; /* workers; "intra_op_parallelism" is the same setting */
	bool single_submit;    /* one I/O in each submission call */
	bool overlap_events;   /* false: fill the queue, drain it, fill it again */
	bool use_gds;	       /* refused with -ENOTSUP when an engine is opened */
	/* in the "nvswap" block: */
	enum nvs_ioengine ioengine;
	uint32_t io_timeout_ms; /* see below; 0: off */
};

/*
 * A drive that hangs. With io_timeout_ms above 0, a transfer is overdue when one of its I/Os has
 * been with the kernel for that long, or when it was handed over that long ago and no transfer of
 * its aio has moved since: one that merely queues behind others that move is not. (An I/O waits its
 * turn behind up to queue_depth others on each worker: the limit should be seconds.) That is said
 * once through the log, and waits for it return -ETIMEDOUT at once, whatever their timeout_ms, with
 * tensor, path and offset: nvs_transfer_wait, nvs_wait, nvs_commit; nvs_lease and nvs_swap_in where
 * they would wait while nothing else is in flight; nvs_swap_out_from, nvs_swap_in_to and nvs_forget
 * where they would wait; and all calls on an optimizer that wait for the drive. Nothing is lost by
 * it. The transfer stays in flight, and its memory in use, until the kernel gives it back; if it
 * completes after all it ends as any other, which the log is told too, and waits then return 0.
 * nvs_close and nvs_optimizer_close return -ETIMEDOUT with nothing closed. An I/O that the kernel
 * itself ends with ETIMEDOUT or EAGAIN has failed, which is -EIO. System calls that are not
 * transfers (fdatasync in a commit, the opening of files) are not watched.
 */

/* An "offload_param" or "offload_optimizer" block. */
struct nvs_offload_config {
	enum nvs_device device;
	unsigned npaths;		/* 1 to NVS_PATHS_MAX where device is nvme */
	char *nvme_path[NVS_PATHS_MAX]; /* owned by the configuration */
	bool pin_memory; /* true: the whole pool is locked or opening fails; false: as much as may
			    be */
	uint32_t buffer_count;
	uint64_t buffer_size; /* elements in one buffer; of the optimizer: sub_group_size */
	uint64_t max_in_cpu;  /* elements that may stay in the pool while nobody uses them */
	/* offload_optimizer alone; for nvs_optimizer_open */
	bool fast_init;	     /* state is made in the first step, instead of written at the start */
	bool pipeline_read;  /* tiles are read ahead of the computation */
	bool pipeline_write; /* and written behind it */
	double ratio;	     /* 0.0 to 1.0: the share of elements that is offloaded */
};

enum nvs_dtype {
	NVS_F64,
	NVS_F32,
	NVS_F16,
	NVS_BF16,
	NVS_F8_E4M3,
	NVS_F8_E5M2,
	NVS_I64,
	NVS_I32,
	NVS_I16,
	NVS_I8,
	NVS_U64,
	NVS_U32,
	NVS_U16,
	NVS_U8,
	NVS_BOOL,
	NVS_DTYPE_COUNT
};

NVS_API size_t nvs_dtype_size(enum nvs_dtype dtype);	  /* bytes in an element; 0 if unknown */
NVS_API const char *nvs_dtype_name(enum nvs_dtype dtype); /* as safetensors has it: "BF16" */
/* The dtype of a safetensors name, into *dtype; -EINVAL if there is none of that name. */
NVS_API int nvs_dtype_parse(const char *name, enum nvs_dtype *dtype);

struct nvs_optimizer_config {
	char type[32]; /* "" where the file has no optimizer block or "type" */
	double lr, beta1, beta2, eps, weight_decay;
	bool bias_correction, adam_w_mode;
	bool amsgrad; /* refused by nvs_optimizer_open */
};

struct nvs_fp16_config {
	bool enabled;
	double loss_scale; /* 0: dynamic */
	uint32_t initial_scale_power, loss_scale_window, hysteresis;
	bool consecutive_hysteresis;
	double min_loss_scale;
};

struct nvs_config {
	struct nvs_log
		log; /* set it before nvs_config_load to hear its warnings; kept by nvs_open */
	struct nvs_trace *trace; /* what is opened with it records there; NULL: nothing is */
	struct nvs_aio_config aio;
	struct nvs_offload_config param, optimizer;

	/* "zero_optimization", in elements */
	uint64_t sub_group_size;
	uint64_t prefetch_bucket_size;	      /* stage3_prefetch_bucket_size */
	uint64_t max_live_parameters;	      /* stage3_max_live_parameters */
	uint64_t max_reuse_distance;	      /* stage3_max_reuse_distance */
	uint64_t param_persistence_threshold; /* stage3_param_persistence_threshold */

	struct nvs_fp16_config fp16;
	bool bf16_enabled;
	enum nvs_dtype param_dtype;	 /* NVS_F16, NVS_BF16 or NVS_F32, by fp16 and bf16 */
	enum nvs_dtype grad_accum_dtype; /* data_types.grad_accum_dtype; default: param_dtype */
	double gradient_clipping;	 /* 0: none */
	struct nvs_optimizer_config adam;

	/* "nvswap" */
	bool verify; /* a checksum per tensor, compared at each swap-in */
	bool keep;   /* the store outlives the engine, and is found again; see nvs_commit */
	uint32_t
		rank; /* which store under nvme_path: rank<N>, of the optimizer rank<N>-optimizer */
	uint64_t stripe_size;	       /* bytes; 0: one block_size. Of use with several paths */
	uint64_t optimizer_max_in_cpu; /* elements whose state stays in memory from step to step */
	uint32_t optimizer_threads;    /* that compute; 0: one on each core near the drive */
};

/* Sets every default. A configuration that was loaded before is freed first with nvs_config_free.
 */
NVS_API void nvs_config_init(struct nvs_config *config);
NVS_API void nvs_config_free(struct nvs_config *config);

/*
 * Reads a DeepSpeed JSON file, whole or only its blocks, over what *config holds (which must have
 * been initialised). Blocks that nvswap does not read may hold anything that is JSON. In those it
 * reads, a duplicate, a wrong type, a number that is negative, fractional or out of range, and two
 * names of one setting with different values are -EINVAL, with the line, the key, what was found
 * and what is allowed; so is an unknown key in "aio", "nvswap" and the offload blocks. Keys of
 * DeepSpeed's that nvswap has no use for are warnings through config->log. On error *config is as
 * it was. Also -EFBIG (64 MiB, 512 levels), -ENOMEM, and errno of opening and reading: -ENOENT.
 */
NVS_API int nvs_config_load(struct nvs_config *config, const char *path, struct nvs_error *error);
/* The same from memory; `name` stands for the file in errors. */
NVS_API int nvs_config_parse(struct nvs_config *config, const char *text, size_t nbytes,
			     const char *name, struct nvs_error *error);
/* Gives a block `n` paths (copied) in place of those it has, and device nvme. -EINVAL, -ENOMEM. */
NVS_API int nvs_config_set_paths(struct nvs_offload_config *offload, const char *const *paths,
				 unsigned n, struct nvs_error *error);

/* Names as in the configuration: "io_uring", "nvme". The parsers return -EINVAL for other names. */
NVS_API const char *nvs_ioengine_name(enum nvs_ioengine ioengine);
NVS_API int nvs_ioengine_parse(const char *name, enum nvs_ioengine *ioengine);
NVS_API const char *nvs_device_name(enum nvs_device device);

/* --------------------------------------------------------------------------------------------
 * What this machine and a path can do
 */

#define NVS_IOENGINE_COUNT 4 /* the index is enum nvs_ioengine; AUTO is the one it takes */

struct nvs_machine_info {
	char kernel[64];
	unsigned cpus, numa_nodes;
	uint64_t memory_bytes;
	uint64_t
		memlock_bytes; /* RLIMIT_MEMLOCK; UINT64_MAX: no limit, or the right to ignore it */
	uint64_t hugepage_bytes; /* size of the default huge page */
	uint64_t hugepages_total, hugepages_free;
	char transparent_hugepages[16]; /* always, madvise, never; "" where unknown */
	uint64_t aio_nr, aio_max_nr;
	int io_uring_disabled; /* kernel.io_uring_disabled: 0 to 2; -1 where the kernel has none */
	struct {
		bool works;
		char reason[192]; /* why it does not; for AUTO: why this one. "" if it works */
	} ioengine[NVS_IOENGINE_COUNT];
	enum nvs_ioengine auto_ioengine;
};

struct nvs_path_info {
	char path[512];
	char filesystem[32]; /* "ext4", "tmpfs"; "block device" for a raw one */
	bool block_device;
	bool direct;				  /* O_DIRECT works */
	uint32_t dio_mem_align, dio_offset_align; /* bytes; 0 where not direct */
	bool dio_from_statx; /* false: the kernel does not tell, the block size was taken */
	uint64_t free_bytes, total_bytes;
	/* of the drive beneath; "" and 0 where there is none (tmpfs) or it can't be told */
	char device[64]; /* "nvme0n1" */
	char model[64];
	char scheduler[32];
	bool rotational;
	uint32_t logical_block_bytes, physical_block_bytes;
	/* limits of its queue; max_io_bytes may be raised to max_hw_io_bytes */
	uint32_t max_io_bytes, max_hw_io_bytes, nr_requests, max_segments;
	int numa_node; /* -1: the machine has one node, or it can't be told */
};

/* What to change where it hurts: line[0] to line[count - 1], each with its command. */
struct nvs_advice {
	unsigned count;
	char line[16][256];
};

/* Looks at the machine; tries each I/O engine. Errors of the looking are in the fields' "unknown".
 */
NVS_API int nvs_machine_info(struct nvs_machine_info *info, struct nvs_error *error);
/* Looks at a directory, file or block device. -ENOENT and other errno of reaching it. */
NVS_API int nvs_path_info(const char *path, struct nvs_path_info *info, struct nvs_error *error);
/* What an operator should change, most useful first; `path` may be NULL. */
NVS_API void nvs_advise(const struct nvs_machine_info *machine, const struct nvs_path_info *path,
			struct nvs_advice *advice);

/* --------------------------------------------------------------------------------------------
 * Transfers: any memory, any length, any offset of any file
 *
 * For data that is not in a store: a checkpoint, a benchmark, the files of another tool. An aio is
 * a set of workers, each with its own queue of the I/O engine. (DeepSpeed: aio_handle with its
 * pread, pwrite, async_pread, async_pwrite and wait.)
 */

struct nvs_aio;
struct nvs_file;

/* Opens workers. -EINVAL, -ENOTSUP (use_gds; the engine does not work here), -ENOMEM. */
NVS_API int nvs_aio_open(struct nvs_aio **aio, const struct nvs_aio_config *config,
			 const struct nvs_log *log, struct nvs_error *error);
/* Waits for transfers in flight, overdue ones too, then ends the workers. Files must have been
 * closed. NULL is fine. */
NVS_API void nvs_aio_close(struct nvs_aio *aio);

/*
 * Registers memory of the caller's with the workers' rings, so that transfers to and from it need
 * not pin its pages each time. `data` aligned to 4096 bytes. It must stay mapped until
 * nvs_aio_unregister_memory. 0 also where the engine has no use for it; -ENOMEM where the memlock
 * limit does not allow it, -ENOSPC where 1024 regions are there (each begun GiB is one, and so is
 * each worker's bounce buffer): nothing is registered then, and transfers work all the same.
 */
NVS_API int nvs_aio_register_memory(struct nvs_aio *aio, void *data, size_t nbytes);
NVS_API void nvs_aio_unregister_memory(struct nvs_aio *aio, void *data);

enum nvs_file_flags {
	NVS_FILE_WRITE = 1,    /* for reading and writing; else reading alone */
	NVS_FILE_CREATE = 2,   /* made with mode 0600 if it is not there */
	NVS_FILE_TRUNCATE = 4, /* emptied first */
	NVS_FILE_BUFFERED = 8, /* through the page cache even where O_DIRECT works */
};

/*
 * Opens a file or block device for transfers; links are not followed at the last component.
 * It is direct where the file system lets it be; nvs_file_direct tells. Errno of open(2).
 */
NVS_API int nvs_file_open(struct nvs_aio *aio, const char *path, unsigned flags,
			  struct nvs_file **file, struct nvs_error *error);
/* No transfer on it may be in flight. NULL is fine. */
NVS_API void nvs_file_close(struct nvs_file *file);
NVS_API bool nvs_file_direct(const struct nvs_file *file);
/* Makes completed writes durable: fdatasync(2), with its errno. */
NVS_API int nvs_file_sync(struct nvs_file *file, struct nvs_error *error);

enum nvs_direction { NVS_READ, NVS_WRITE };

/*
 * One transfer. The caller owns the structure, zeroes it, fills in the first block, and leaves it
 * and the memory alone from nvs_submit until the transfer has completed. Transfers in flight at
 * the same time are not ordered: the caller keeps those apart whose bytes overlap.
 */
struct nvs_transfer {
	struct nvs_file *file;
	enum nvs_direction direction;
	void *data;	 /* any alignment; aligned to the file's dio_mem_align it is not copied */
	uint64_t nbytes; /* any; 0 completes at once */
	uint64_t offset; /* any; bytes from the start of the file */
	void *user;	 /* the caller's own */

	/* Read after completion: */
	int status; /* 0 or a negative errno; a read past the end of the file: -ENODATA; an I/O that
		       is met with EAGAIN or EINTR again and again: -EIO */
	uint64_t error_offset; /* the file offset of the I/O that failed */

	struct nvs_transfer_state {
		struct nvs_transfer *next;
		uint64_t claimed, pending, since_ns, hangs_at;
		uint32_t flags, completed;
	} state; /* the library's own */
};

/* Hands over `n` transfers at once. -EINVAL (a write to a file opened for reading); none is taken
 * then. */
NVS_API int nvs_submit(struct nvs_aio *aio, struct nvs_transfer *const *transfers, size_t n,
		       struct nvs_error *error);
/*
 * Waits until all `n` have completed, and returns 0 or the status of the first in the array that
 * failed, described in *error with path and offset. -ETIMEDOUT, or -EAGAIN where timeout_ms is 0,
 * if some have not completed: nothing is lost by it, wait again. -ETIMEDOUT also as soon as one is
 * overdue (io_timeout_ms), with its path and offset.
 */
NVS_API int nvs_transfer_wait(struct nvs_aio *aio, struct nvs_transfer *const *transfers, size_t n,
			      int timeout_ms, struct nvs_error *error);
NVS_API bool nvs_transfer_completed(const struct nvs_transfer *transfer);

/* I/Os as the engine saw them, since the aio was opened; one direction. */
struct nvs_io_stats {
	uint64_t bytes, ios;
	uint64_t latency_min_ns, latency_max_ns; /* from submission to completion of one I/O */
	double latency_mean_ns, latency_stddev_ns;
};

#define NVS_DEPTHS 7

struct nvs_aio_stats {
	const char *ioengine;	   /* static */
	char ioengine_reason[512]; /* why not one before it in the order of auto; "" if first */
	bool fixed_buffers, fixed_files, single_issuer, defer_taskrun; /* what io_uring has here */
	uint32_t workers;
	uint64_t bounce_bytes;	   /* memory set aside for unaligned pieces */
	uint64_t registered_bytes; /* memory registered with every ring */
	uint64_t submit_calls;	   /* submissions to the kernel (posix: to the threads) */
	uint64_t reap_calls;
	uint32_t inflight_max; /* the most I/Os that one worker had in flight */
	/* fio's "IO depths": I/Os by how many their worker had in flight with them when they were
	 * submitted (1, 2, 4, 8, 16, 32, 64 or more: the largest that is not above it) */
	uint64_t depth_ios[NVS_DEPTHS];
	/* calls by how many I/Os they submitted or reaped: 0, up to 4, 8, 16, 32, 64, more */
	uint64_t submit_sizes[NVS_DEPTHS], reap_sizes[NVS_DEPTHS];
	uint64_t retries; /* I/Os continued after a short count, EINTR or EAGAIN */
	uint64_t bounced_bytes;
	struct nvs_io_stats io[2]; /* by enum nvs_direction */
};

NVS_API void nvs_aio_get_stats(struct nvs_aio *aio, struct nvs_aio_stats *stats);

/* The times of an I/O, by fio's names. */
enum nvs_latency_kind {
	/* From when it was handed to the engine until that had taken it: to the kernel, but
	 * io_uring does so for a batch in the call that waits for completions, if not
	 * single_submit. */
	NVS_SLAT,
	NVS_CLAT, /* from then until its completion was seen */
	NVS_LAT,  /* both; of an I/O that was submitted again, from the first time (slat: the last)
		   */
	NVS_LATENCY_KINDS
};

/*
 * Times in groups of a power of two with 64 steps each: a percentile is right within 1/64 of
 * itself over the whole range of nanoseconds. All zeros: nothing was counted.
 */
#define NVS_LATENCY_BUCKETS 3776
struct nvs_latency {
	uint64_t count, min_ns, max_ns;
	double sum_ns, sum_squares;
	uint64_t buckets[NVS_LATENCY_BUCKETS];
};

/* What was counted of one direction since the aio was opened or its statistics reset. */
NVS_API void nvs_aio_get_latency(struct nvs_aio *aio, enum nvs_direction direction,
				 enum nvs_latency_kind kind, struct nvs_latency *latency);
/* Arithmetic on the caller's own structures, without an aio. Adds `from` to `into`. */
NVS_API void nvs_latency_merge(struct nvs_latency *into, const struct nvs_latency *from);
/* The least time that `percentile` (0 to 100; others are taken for the nearer of these) per cent
 * stayed within; 0 where nothing was counted, as for the two below. */
NVS_API uint64_t nvs_latency_percentile(const struct nvs_latency *latency, double percentile);
NVS_API double nvs_latency_mean(const struct nvs_latency *latency);
NVS_API double nvs_latency_stddev(const struct nvs_latency *latency);
/* How many took `ns` or less, within 1/64 of that time. */
NVS_API uint64_t nvs_latency_within(const struct nvs_latency *latency, uint64_t ns);

/* One I/O that completed, with its times as above. */
struct nvs_io_record {
	uint64_t completed_ns; /* when that was seen, of CLOCK_MONOTONIC */
	uint64_t latency_ns[NVS_LATENCY_KINDS];
	uint32_t nbytes;    /* that it moved */
	uint32_t direction; /* enum nvs_direction */
};

/*
 * Records each I/O that completes from now on, until it is taken. Room for `max_records` (40 bytes
 * each) is set aside here, shared evenly by the workers; an I/O that finds none is counted and left
 * out, and one that fails has none. 0 ends it; what was not taken is gone then, as it is when this
 * is called again. -ENOMEM, and nothing is recorded. Any thread; not two at once.
 */
NVS_API int nvs_aio_record(struct nvs_aio *aio, size_t max_records);
/*
 * Takes up to `n` records and returns how many; fewer only where there were no more of some worker.
 * Those of one worker are in the order of completion. *lost (may be NULL): I/Os that found no room
 * since nvs_aio_record. Any thread.
 */
NVS_API size_t nvs_aio_take_records(struct nvs_aio *aio, struct nvs_io_record *records, size_t n,
				    uint64_t *lost);

/* Starts counters and latencies afresh; for a benchmark after its warm-up. Nothing may be in
 * flight. */
NVS_API void nvs_aio_reset_stats(struct nvs_aio *aio);

/* --------------------------------------------------------------------------------------------
 * The swap engine: tensors between a pinned pool and a store
 */

struct nvs_engine;
struct nvs_tensor;

enum nvs_block { NVS_OFFLOAD_PARAM, NVS_OFFLOAD_OPTIMIZER };

/*
 * The pool that a block asks for, in bytes: buffer_count x buffer_size x the size of an element; of
 * the optimizer also 12 bytes for each of optimizer_max_in_cpu.
 */
NVS_API uint64_t nvs_config_pool_bytes(const struct nvs_config *config, enum nvs_block block);

/*
 * Opens workers, pool and store as the block of the configuration says; the configuration may be
 * freed afterwards. device "cpu" keeps the store in host memory instead of on a drive.
 * -EINVAL: device "none", a value out of bounds. -ENOTSUP: use_gds, an engine that does not work
 * here. -ENOMEM: pool or lock refused, with limit, need and remedy. -EBUSY: another engine, of
 * this process or another, holds the store, and still does after a second (a process that was
 * killed lets go late). -EEXIST: the path holds a kept store and `keep` is false. -EMEDIUMTYPE: the
 * path holds something that is not nvswap's, belongs to another store, or is a store of another
 * version. -EUCLEAN: the store is damaged.
 *
 * A process that forks while an engine is open goes on as if it had not. The child may do nothing
 * with the engine but leave it alone: it has neither its threads nor its pool, and should exec or
 * _exit. Until then it holds the lock of the store where the parent was killed; one that the parent
 * has closed is free.
 */
NVS_API int nvs_open(struct nvs_engine **engine, const struct nvs_config *config,
		     enum nvs_block block, struct nvs_error *error);
/*
 * Waits for what is in flight; commits a store that is kept, as nvs_commit, and unlinks one that is
 * not; frees everything, the tensors too. -ETIMEDOUT: a transfer is overdue (io_timeout_ms) and
 * nothing is closed: call it again, or end the process. Else the engine is closed whatever is
 * returned: on an error a kept store is as it was last committed. NULL is fine.
 */
NVS_API int nvs_close(struct nvs_engine *engine, struct nvs_error *error);

/* The engine's aio, for files of the caller's own; closed with the engine. */
NVS_API struct nvs_aio *nvs_engine_aio(struct nvs_engine *engine);

#define NVS_NAME_MAX 511 /* bytes in the name of a tensor */

struct nvs_tensor_spec {
	const char *name; /* 1 to NVS_NAME_MAX bytes, unique in the engine; copied */
	enum nvs_dtype dtype;
	uint64_t numel; /* elements; 0 is allowed */
};

/*
 * Registers `n` tensors and reserves their space in the store, in order: tensors that are used
 * together should be registered together, for they will lie side by side and move in few I/Os. In
 * a store that is kept each takes twice its space, so that what was committed is never overwritten.
 * Handles go to tensors[0..n-1] and live until nvs_forget or nvs_close. All or none are registered.
 * A tensor that a kept store holds is found again, with its data; -ESTALE if it has another dtype
 * or numel there. -EEXIST: name registered twice. -ENOSPC: the drive has no room. -E2BIG: a tensor
 * that the pool could never hold; the error names the setting that would make it fit.
 */
NVS_API int nvs_register(struct nvs_engine *engine, const struct nvs_tensor_spec *specs, size_t n,
			 struct nvs_tensor **tensors, struct nvs_error *error);
/* The tensor of that name, or NULL. */
NVS_API struct nvs_tensor *nvs_find(struct nvs_engine *engine, const char *name);
/*
 * Drops tensors, their data and their space; what a kept store has committed of them is gone, and
 * its space is free, with the next commit. -EBUSY if one is in use or in flight; none is dropped
 * then.
 */
NVS_API int nvs_forget(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		       struct nvs_error *error);

/*
 * Life of a tensor's data. It is in the pool while it is in use: nvs_swap_in or nvs_lease begins a
 * use, nvs_release ends it, and uses may overlap. Out of use it may stay in the pool (max_in_cpu)
 * until the memory is needed, and is written back before it is dropped if it was released dirty.
 *
 * Calls take a batch; those that start something return when it is started, and nvs_wait waits for
 * it. A batch is all or nothing in what it starts; `tensors` must not name one twice.
 */

/*
 * Begins a use of tensors whose contents the caller is about to make: pool memory, nothing read.
 * Waits up to timeout_ms for room, dropping and writing back what is out of use, and for what is
 * in flight on the tensors themselves: the data may be touched as soon as it returns 0.
 * Memory in use is not taken away: with -1 it waits until uses have ended that are in the way, also
 * the caller's own. -ENOBUFS: the batch could never fit in the pool. -EBUSY: one is in flight to or
 * from the caller's own memory. -EIO and others: room had to be made and a write-back failed (its
 * data is kept); with timeout_ms 0, where only tensors whose last write-back failed could make
 * room, and they are being written again. -ETIMEDOUT also where it would wait and all that is in
 * flight is overdue (io_timeout_ms).
 */
NVS_API int nvs_lease(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		      int timeout_ms, struct nvs_error *error);
/*
 * Begins a use of tensors with their contents: reads what is not in the pool. Errors as nvs_lease,
 * and -ENODATA: one has never been written, or its last write from caller's memory failed.
 * The data may be touched after nvs_wait has returned 0.
 */
NVS_API int nvs_swap_in(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			int timeout_ms, struct nvs_error *error);
/*
 * As nvs_swap_in, but no use begins: reads ahead as many of the tensors, in order, as find room
 * without waiting. Returns how many are in the pool or on their way, or a negative errno.
 */
NVS_API long nvs_prefetch(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			  struct nvs_error *error);
/*
 * Waits until nothing that was started on the tensors is in flight. 0, or the status of the first
 * that failed, named in *error with its path and offset: -EIO and other errno of the drive,
 * -EBADMSG where a checksum differs. A failed swap-in ends the use that it began, and every other
 * that waited for the same read; the next one of that tensor forgets the failure, so threads that
 * swap in the same tensors all wait before any of them does so again. -ETIMEDOUT,
 * -EAGAIN: in flight yet, and uses go on; -ETIMEDOUT also as soon as one is overdue
 * (io_timeout_ms).
 */
NVS_API int nvs_wait(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		     int timeout_ms, struct nvs_error *error);
/*
 * The tensor's memory, aligned to 512 bytes or more, valid until the use ends; NULL where it is not
 * in the pool.
 */
NVS_API void *nvs_data(const struct nvs_tensor *tensor);

enum nvs_how { NVS_CLEAN, NVS_DIRTY };
/*
 * Ends one use of each tensor; dirty: the contents were changed. Clean after nvs_lease gives up the
 * new contents: the tensor has again those it had on the drive. -EINVAL: one is not in use. -EBUSY:
 * one is still being read, or is dirty and still being written: nvs_wait comes first.
 */
NVS_API int nvs_release(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			enum nvs_how how, struct nvs_error *error);
/*
 * Starts to write back those of the tensors that are dirty, and drops all from the pool as their
 * writes complete. -EBUSY: one is in use. One whose write fails stays in the pool, dirty: it can be
 * swapped out or in again.
 */
NVS_API int nvs_swap_out(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			 struct nvs_error *error);

/*
 * Between the store and the caller's own memory, without the pool: data[i] holds the whole of
 * tensors[i], at any alignment, and must stay until nvs_wait. -EBUSY: one is in use or in flight.
 * A failed write leaves a tensor without contents (-ENODATA), or, if it was the first after a
 * commit of a kept store, with those of the commit; and the data in the caller's hands. Where
 * nobody has waited for it the next swap-in of the tensor is told instead, and begins nothing, or
 * the next commit.
 */
NVS_API int nvs_swap_out_from(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
			      const void *const *data, size_t n, struct nvs_error *error);
NVS_API int nvs_swap_in_to(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
			   void *const *data, size_t n, struct nvs_error *error);

/*
 * Writes back everything dirty that is out of use, makes it durable, and replaces the manifest of a
 * kept store: a run after a crash finds all tensors as they were at the last commit, whatever was
 * written since. A tensor whose bytes the drive has lost is -EBADMSG when it is swapped in. A
 * commit is whole or not at all: on an error the one before it holds. -EBUSY: a tensor is in use
 * dirty or in flight to or from the caller's memory. -ETIMEDOUT: a write is overdue
 * (io_timeout_ms). -EIO, errno of the drive: something could not be written, which another commit
 * may. But where the data could not be made durable, or a manifest that failed could not be taken
 * back, as the error says, every later commit of this engine is -EIO; and in the latter case a run
 * after a crash may find that manifest, with what was written again since as -EBADMSG. Without
 * `keep`: writes back, and no more.
 * A write from the caller's memory that failed, and that nobody has been told of since, is told
 * here, once.
 */
NVS_API int nvs_commit(struct nvs_engine *engine, struct nvs_error *error);

enum nvs_state {
	NVS_EMPTY,    /* never written */
	NVS_ON_DRIVE, /* only on the drive */
	NVS_READING,  /* being read into the pool or the caller's memory */
	NVS_RESIDENT, /* in the pool */
	NVS_WRITING,  /* in the pool or the caller's memory, being written */
};

struct nvs_tensor_info {
	const char *name; /* valid as long as the tensor */
	enum nvs_dtype dtype;
	uint64_t numel, nbytes;
	uint64_t store_offset;
	enum nvs_state state;
	bool dirty;
	uint32_t uses;
	int status; /* of the last transfer: 0 or a negative errno */
};

NVS_API void nvs_tensor_get_info(struct nvs_engine *engine, struct nvs_tensor *tensor,
				 struct nvs_tensor_info *info);
NVS_API const char *nvs_state_name(enum nvs_state state);

struct nvs_pool_stats {
	uint64_t bytes;		     /* the arena */
	uint64_t used, used_max;     /* leased now, and at most since it was opened */
	uint64_t largest_free;	     /* the longest run that could be leased now */
	uint64_t locked;	     /* of the arena, kept from being paged out */
	uint64_t huge;		     /* of the arena, backed by explicit huge pages */
	bool transparent_huge;	     /* transparent huge pages were asked for and taken */
	int numa_node;		     /* that it is bound to; -1: not bound */
	uint64_t waits;		     /* leases that had to wait */
	uint64_t used_at_first_wait; /* bytes; 0 where none waited */
};

struct nvs_engine_stats {
	struct nvs_pool_stats pool;
	struct nvs_aio_stats aio;
	uint64_t tensors, tensor_bytes;
	uint64_t store_bytes; /* reserved on the drives */
	bool direct;	      /* false: the file system has no O_DIRECT and is served buffered */
	uint64_t swapped_in, swapped_out; /* bytes of tensors */
	uint64_t transfers;		  /* runs of neighbouring tensors that moved as one */
	uint64_t evictions;		  /* tensors dropped from the pool to make room */
	uint64_t busy_ns;		  /* time in which a transfer was in flight */
	uint64_t verify_errors;
};

NVS_API void nvs_get_stats(struct nvs_engine *engine, struct nvs_engine_stats *stats);

/* --------------------------------------------------------------------------------------------
 * Steps: what the engine learns from the order in which tensors are asked for
 */

/* What the drive did in a step, and how much of it was hidden behind the caller's work. */
struct nvs_step_io {
	uint64_t wall_ns;    /* from the step's beginning to its end */
	uint64_t io_ns;	     /* of it, time in which a transfer was in flight */
	uint64_t compute_ns; /* the caller's work: params: wall less stalls; optimizer: the
				threads' mean time in updates */
	uint64_t hidden_ns;  /* time in which both went on: io + compute - wall */
	uint64_t read_bytes, written_bytes;
	uint64_t hits, misses;	   /* tensors or tiles found in the pool, or not, when asked for */
	uint64_t stalls, stall_ns; /* waits for the drive or for room; their time */
};

/*
 * Brackets one training step of tensors that are used in the same order each time. The first step
 * records the order of nvs_swap_in and nvs_lease. From the second on the engine acts by it: it
 * fetches ahead within stage3_prefetch_bucket_size and stage3_max_live_parameters; keeps what is
 * needed again within stage3_max_reuse_distance, and always what has fewer elements than
 * stage3_param_persistence_threshold; holds max_in_cpu elements beside these; evicts what is needed
 * last; and writes back what is dirty and will be evicted while nobody waits for the drive. A step
 * that departs from the plan is served all the same, and the next one follows what it did.
 * Distances are counted in elements asked for between two uses. nvs_prefetch stays the caller's.
 * -EBUSY: a step has begun already, or (end) none has. -ENOMEM. One step at a time.
 */
NVS_API int nvs_step_begin(struct nvs_engine *engine, struct nvs_error *error);
/* What is in flight stays so. *io may be NULL. */
NVS_API int nvs_step_end(struct nvs_engine *engine, struct nvs_step_io *io,
			 struct nvs_error *error);

/* --------------------------------------------------------------------------------------------
 * The optimizer: Adam over state that lies on the drive
 *
 * Groups of parameters (DeepSpeed's sub-groups) have fp32 master weights, exp_avg and exp_avg_sq in
 * the store of the offload_optimizer block. A step reads them tile by tile, computes, and writes
 * them back, all at the same time. Gradients and weights are the caller's; a caller that has not
 * the room for gradients, or accumulates them, hands them over in pieces instead.
 * Calls on one optimizer take turns: a second thread's call waits for the first's.
 */

struct nvs_optimizer;

struct nvs_group_spec {
	const char *name;     /* 1 to NVS_NAME_MAX bytes, unique; copied */
	uint64_t numel;	      /* 1 to sub_group_size */
	enum nvs_dtype dtype; /* of the weights: NVS_F32, NVS_BF16 or NVS_F16 */
	void *weights;	      /* numel elements of the caller's, aligned to an element; may be
				 NULL. Master weights begin with these (zeros without them), and
				 every step writes the updated weights here */
};

/* A run of one group's elements, to be updated; the arrays have numel elements each. */
struct nvs_update {
	size_t group;
	uint64_t offset; /* of the first element in its group */
	uint64_t numel;
	uint64_t step; /* from 1 */
	double lr;
	const float *gradients;		      /* unscaled and clipped */
	float *master, *exp_avg, *exp_avg_sq; /* read and updated */
};
/* Called from several threads at a time, for runs that do not overlap. */
typedef void nvs_update_fn(void *arg, const struct nvs_update *update);

struct nvs_optimizer_options {
	nvs_update_fn *update; /* in place of the configuration's optimizer; NULL: that one */
	void *update_arg;
};

/*
 * Opens the store of the offload_optimizer block with room for all groups; the layout is fixed from
 * then on. `ratio` of all elements are offloaded, in whole groups from the first on; the rest stays
 * in host memory. With fast_init state that was never written is made in the first step; else it is
 * written here. In a kept store it is found again, and what `weights` hold is not looked at:
 * nvs_optimizer_get_weights fills them. `options` may be NULL.
 * Errors as nvs_open and nvs_register, and -E2BIG: a group of more than sub_group_size elements.
 * -ENOTSUP: optimizer.type is neither Adam nor AdamW (nor "", which is Adam) and no function takes
 * its place, or optimizer.params.amsgrad is true. -ESTALE: the kept store is that of other groups,
 * another ratio or grad_accum_dtype, or its tiles do not fit the pool. -EBADMSG: the drive has lost
 * bytes of what is read here. -ETIMEDOUT: the drive hangs (io_timeout_ms): memory that it may yet
 * write to, and the lock of the store, are given up when the process ends.
 */
NVS_API int nvs_optimizer_open(struct nvs_optimizer **optimizer, const struct nvs_config *config,
			       const struct nvs_group_spec *groups, size_t n,
			       const struct nvs_optimizer_options *options,
			       struct nvs_error *error);
/*
 * Commits a kept store, as nvs_optimizer_commit, and frees everything. -ETIMEDOUT: a transfer is
 * overdue (io_timeout_ms) and nothing is closed: call it again, or end the process. Else the
 * optimizer is closed whatever is returned: on an error a kept store is as it was last committed.
 * NULL is fine.
 */
NVS_API int nvs_optimizer_close(struct nvs_optimizer *optimizer, struct nvs_error *error);
/* The engine beneath, for its statistics alone; closed with the optimizer. */
NVS_API struct nvs_engine *nvs_optimizer_engine(struct nvs_optimizer *optimizer);

/*
 * Gradients of the next step. A group that has none is left out of it: nothing of it is changed,
 * nor read or written but where it shares a tile with a neighbour. Scaled by
 * nvs_optimizer_loss_scale, if there is a loss scale. `dtype` is NVS_F32, NVS_BF16 or NVS_F16.
 *
 * Lent: all of a group's, in the caller's memory, which must stay as it is until a step has
 * returned 0 (or nvs_optimizer_clear_gradients has).
 * Added: numel elements from element `offset` of the group on, added to what was added since the
 * last step, in data_types.grad_accum_dtype; what is never added to is zero. They are kept in the
 * pool, and in the store where it has no room. *added, if not NULL, is how many elements were taken
 * also where an error is returned.
 * -EBUSY: the group has gradients of the other kind, or a step has begun that has yet to be
 * finished. -EINVAL: outside the group, no such group or dtype. Errors of nvs_lease, nvs_swap_in,
 * and, where the first are added, of nvs_register: -ENOSPC.
 */
NVS_API int nvs_optimizer_lend_gradients(struct nvs_optimizer *optimizer, size_t group,
					 enum nvs_dtype dtype, const void *data,
					 struct nvs_error *error);
NVS_API int nvs_optimizer_add_gradients(struct nvs_optimizer *optimizer, size_t group,
					uint64_t offset, uint64_t numel, enum nvs_dtype dtype,
					const void *data, uint64_t *added, struct nvs_error *error);
/* Forgets all gradients, as after a step. -EBUSY: a step has yet to be finished. */
NVS_API int nvs_optimizer_clear_gradients(struct nvs_optimizer *optimizer, struct nvs_error *error);

/* What needs all gradients, of the ranks together: sums add up. */
struct nvs_gradient_sums {
	double sum_squares; /* of the gradients as they are, scaled; inf or nan where one of them is
			     */
};
/* One pass over this optimizer's gradients. The same bits whatever tiles, threads and kernels.
 * -EBUSY: a step has yet to be finished. */
NVS_API int nvs_optimizer_sum_gradients(struct nvs_optimizer *optimizer,
					struct nvs_gradient_sums *sums, struct nvs_error *error);

struct nvs_step_options {
	double lr; /* below 0: that of the configuration. Zeros ask for a rate of 0 */
	/* Of all ranks, where there are several; NULL: this optimizer's gradients are all. */
	const struct nvs_gradient_sums *sums;
	bool norm; /* the norm is wanted in the result, also where nothing else needs it */
};

struct nvs_step_result {
	uint64_t step;	   /* steps taken so far, without those skipped */
	bool skipped;	   /* fp16: a gradient was inf or nan, so that nothing was changed */
	double loss_scale; /* that these gradients had */
	double norm;	   /* of the unscaled gradients before clipping; -1: nobody asked for it */
	double clip;	   /* that they were multiplied by beside the scale; 1: not clipped */
	uint64_t tiles;	   /* that were updated */
	uint64_t cpu_ns;   /* processor time of the updates and the norm, all threads */
	uint64_t host_bytes; /* of state that `ratio` leaves in host memory, beside the pool */
	unsigned threads;
	const char *kernel; /* "avx512", "avx2", "plain" or "caller"; static */
	struct nvs_step_io io;
};

/*
 * One step of all groups that have gradients, which are then forgotten. Waits until everything is
 * computed and written. The gradients are divided by the loss scale and, where gradient_clipping is
 * above 0 and their norm above it, scaled down to it (DeepSpeed: times clipping / (norm + 1e-6)).
 * With fp16 a gradient that is inf or nan skips the step, and the loss scale follows DeepSpeed's
 * rules; -ERANGE: it can't be lowered any further, and the step was skipped.
 * On any other error (-EIO and others of the drive, -ETIMEDOUT, -EBADMSG) nothing that was computed
 * is lost: called again, it finishes the step that it began, with that one's lr and scale;
 * gradients must still be there. Until then -EBUSY meets every other call that would change
 * gradients or state. `options` and `result` may be NULL.
 */
NVS_API int nvs_optimizer_step(struct nvs_optimizer *optimizer,
			       const struct nvs_step_options *options,
			       struct nvs_step_result *result, struct nvs_error *error);
/* What the loss of the next step is to be multiplied by; 1 without fp16. */
NVS_API double nvs_optimizer_loss_scale(struct nvs_optimizer *optimizer);

enum nvs_optimizer_part { NVS_MASTER, NVS_EXP_AVG, NVS_EXP_AVG_SQ };
/* State out of and into the store, for checkpoints: numel elements from `offset` of a group on. */
NVS_API int nvs_optimizer_get(struct nvs_optimizer *optimizer, size_t group,
			      enum nvs_optimizer_part part, uint64_t offset, uint64_t numel,
			      float *data, struct nvs_error *error);
NVS_API int nvs_optimizer_set(struct nvs_optimizer *optimizer, size_t group,
			      enum nvs_optimizer_part part, uint64_t offset, uint64_t numel,
			      const float *data, struct nvs_error *error);
/* Writes the master weights of every group that has `weights` there, as a step does. */
NVS_API int nvs_optimizer_get_weights(struct nvs_optimizer *optimizer, struct nvs_error *error);
/*
 * Makes all state durable with the step count, the loss scale and gradients that were added, as
 * nvs_commit does. A run that finds it, after a crash in any later step too, continues with the
 * same bits. Without `keep`: does nothing.
 */
NVS_API int nvs_optimizer_commit(struct nvs_optimizer *optimizer, struct nvs_error *error);

/* --------------------------------------------------------------------------------------------
 * Trace: a timeline of I/Os, transfers, computation and waits
 */

struct nvs_trace;

/*
 * Memory for `max_spans` (64 bytes each), which is all that a trace ever takes; spans that find no
 * room are counted and dropped. Given to nvs_open and nvs_optimizer_open in the configuration's
 * `trace`, it records until they are closed, and is closed after them.
 */
NVS_API int nvs_trace_open(struct nvs_trace **trace, size_t max_spans, struct nvs_error *error);
NVS_API void nvs_trace_close(struct nvs_trace *trace);
/* A span of the caller's own work, on the track of the calling thread. Times are of
 * CLOCK_MONOTONIC. `name` (at most 31 bytes are kept) is what it shows. */
NVS_API void nvs_trace_span(struct nvs_trace *trace, const char *name, uint64_t from_ns,
			    uint64_t to_ns);
/*
 * Writes what was recorded so far as JSON in the Chrome trace event format, which Perfetto and
 * chrome://tracing open; over a file that is there. Errno of writing. *dropped (may be NULL): spans
 * that found no room.
 */
NVS_API int nvs_trace_write(struct nvs_trace *trace, const char *path, uint64_t *dropped,
			    struct nvs_error *error);

#ifdef __cplusplus
}
#endif

#endif
