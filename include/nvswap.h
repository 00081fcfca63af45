/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvswap: moves the tensors of a model that does not fit in memory between a pinned pool in
 * host memory and NVMe, at the speed of the drive, while the caller computes.
 *
 * Conventions that hold for everything below unless a declaration says otherwise:
 *
 * - A function returns 0 or a negative errno. The `error` argument receives the message for a
 *   person; it may be NULL.
 * - Every function may be called from any thread, concurrently with any other. No function may be
 *   called on an object that another thread is closing, or that is closed.
 * - `timeout_ms` is in milliseconds; -1 waits without a limit, 0 does not wait. A wait that times
 *   out returns -ETIMEDOUT; a call with timeout 0 that would have to wait returns -EAGAIN.
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

/* The version of the linked library, which may differ from this header's: "0.1.0". */
NVS_API const char *nvs_version(void);

/* --------------------------------------------------------------------------------------------
 * Errors and log
 */

/* An error: `text` is the complete message for a person, the other fields are for programs. */
struct nvs_error {
	int code;	   /* the negative errno that the function returned */
	unsigned line;	   /* line in the configuration file, from 1; 0: no file is involved */
	uint64_t offset;   /* failed I/O: byte offset in the file that `text` names */
	char subject[128]; /* the key, tensor or option concerned; "" if none */
	char text[1024];   /* one sentence or more, without a trailing newline */
};

/* Describes a negative errno returned by nvswap, for callers that passed no nvs_error; never NULL.
 */
NVS_API const char *nvs_strerror(int code);

enum nvs_log_level { NVS_LOG_ERROR, NVS_LOG_WARNING, NVS_LOG_INFO, NVS_LOG_DEBUG };

/*
 * Receives one log message, a line without its newline. Called from any thread, including the
 * library's own. It must not call nvswap.
 */
typedef void nvs_log_fn(void *arg, enum nvs_log_level level, const char *text);

struct nvs_log {
	nvs_log_fn *fn; /* NULL: messages are discarded */
	void *arg;
};

/* --------------------------------------------------------------------------------------------
 * Configuration
 *
 * Keys, units and defaults follow DeepSpeed's JSON configuration ("aio",
 * "zero_optimization.offload_param", "zero_optimization.offload_optimizer" and the keys named
 * below). docs/configuration.md has the table.
 */

enum nvs_ioengine {
	NVS_IOENGINE_AUTO, /* the first that works on this machine: io_uring, libaio, posix */
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

struct nvs_trace; /* see "Trace" below */

/* The "aio" block. */
struct nvs_aio_config {
	uint32_t block_size;   /* bytes per I/O: a multiple of 512, up to NVS_BLOCK_SIZE_MAX */
	uint32_t queue_depth;  /* I/Os in flight per worker: 1 to NVS_QUEUE_DEPTH_MAX */
	uint32_t thread_count; /* workers: 1 to NVS_THREAD_COUNT_MAX; also
				  "intra_op_parallelism" */
	bool single_submit;    /* one I/O per submission call */
	bool overlap_events;   /* false: fill the queue, drain it, repeat */
	bool use_gds;	       /* not supported: opening an engine returns -ENOTSUP */
	/* of the "nvswap" block: */
	enum nvs_ioengine ioengine;
	uint32_t io_timeout_ms; /* see below; up to NVS_IO_TIMEOUT_MS_MAX; 0: off */
};

/*
 * A drive that hangs. With io_timeout_ms above 0, a transfer is overdue when one of its I/Os has
 * been in the kernel for that long, or when it was submitted that long ago and no transfer of the
 * aio has made progress since. A transfer that queues behind others that progress is not overdue.
 * An I/O may wait behind queue_depth others on each worker, so the limit should be seconds.
 *
 * The first overdue transfer is logged. Waits for an overdue transfer return -ETIMEDOUT at once,
 * whatever their timeout_ms, and name tensor, path and offset:
 * - nvs_transfer_wait, nvs_wait, nvs_commit;
 * - nvs_lease and nvs_swap_in, if they would wait and everything in flight is overdue;
 * - nvs_swap_out_from, nvs_swap_in_to and nvs_forget, if they would wait;
 * - every call on an optimizer that waits for the drive;
 * - nvs_close and nvs_optimizer_close, which then have closed nothing.
 *
 * No data is lost. The transfer stays in flight and its memory in use until the kernel completes
 * it. A late completion is an ordinary one: it is logged, and waits return its status.
 *
 * An I/O that the kernel completes with ETIMEDOUT, or again and again with EAGAIN, has failed:
 * -EIO. System calls other than transfers (fdatasync in a commit, opening files) are not watched.
 */

/* An "offload_param" or "offload_optimizer" block. */
struct nvs_offload_config {
	enum nvs_device device;
	unsigned npaths;		/* with device nvme: 1 to NVS_PATHS_MAX */
	char *nvme_path[NVS_PATHS_MAX]; /* owned by the configuration */
	bool pin_memory; /* true: lock the whole pool or fail to open; false: lock what the limits
			    allow */
	uint32_t buffer_count;
	uint64_t buffer_size; /* elements per buffer; for the optimizer, sub_group_size */
	uint64_t max_in_cpu;  /* elements that may stay in the pool unpinned */
	/* offload_optimizer only; for nvs_optimizer_open */
	bool fast_init;	     /* create state in the first step instead of writing it on open */
	bool pipeline_read;  /* read tiles ahead of the computation */
	bool pipeline_write; /* write tiles behind the computation */
	double ratio;	     /* 0.0 to 1.0: the share of elements to offload */
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

NVS_API size_t nvs_dtype_size(enum nvs_dtype dtype);	  /* bytes per element; 0 if unknown */
NVS_API const char *nvs_dtype_name(enum nvs_dtype dtype); /* the safetensors name: "BF16" */
/* Stores the dtype of a safetensors name in *dtype; -EINVAL if the name is unknown. */
NVS_API int nvs_dtype_parse(const char *name, enum nvs_dtype *dtype);

struct nvs_optimizer_config {
	char type[32]; /* "" if the file has no optimizer block or no "type" */
	double lr, beta1, beta2, eps, weight_decay;
	bool bias_correction, adam_w_mode;
	bool amsgrad; /* not supported: nvs_optimizer_open returns -ENOTSUP */
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
		log; /* set it before nvs_config_load to receive its warnings; nvs_open copies it */
	struct nvs_trace *trace; /* engines and optimizers record here; NULL: no trace */
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
	enum nvs_dtype param_dtype;	 /* NVS_F16, NVS_BF16 or NVS_F32, from fp16 and bf16 */
	enum nvs_dtype grad_accum_dtype; /* data_types.grad_accum_dtype; default: param_dtype */
	double gradient_clipping;	 /* 0: none */
	struct nvs_optimizer_config adam;

	/* "nvswap" */
	bool verify;   /* checksum each tensor and compare it at every swap-in */
	bool keep;     /* the store survives the engine and is reopened; see nvs_commit */
	uint32_t rank; /* the store below nvme_path: rank<N>, the optimizer's rank<N>-optimizer */
	uint64_t stripe_size;	       /* bytes; 0: one block_size. Matters with several paths */
	uint64_t optimizer_max_in_cpu; /* elements whose state stays in memory between steps */
	uint32_t optimizer_threads;    /* compute threads; 0: one per core near the drive */
};

/* Sets every default. Free a loaded configuration with nvs_config_free first. */
NVS_API void nvs_config_init(struct nvs_config *config);
/* Frees the paths that the configuration owns. */
NVS_API void nvs_config_free(struct nvs_config *config);

/*
 * Reads a DeepSpeed JSON file, or one that has only the blocks that nvswap reads, over *config,
 * which must be initialised. Other blocks may hold any JSON. DeepSpeed keys that have no effect on
 * nvswap are warnings through config->log. On error *config is unchanged.
 * Errors:
 * -EINVAL  not JSON; a duplicate, a wrong type, a number that is negative, fractional or out of
 *          range; an unknown key in "aio", "nvswap" or an offload block; two names of one setting
 *          with different values. The error has line, key, value and allowed range.
 * -EFBIG   the file exceeds 64 MiB, or nests more than 512 levels
 * -ENOMEM
 * any errno of opening and reading the file, such as -ENOENT
 */
NVS_API int nvs_config_load(struct nvs_config *config, const char *path, struct nvs_error *error);
/* The same from memory: `nbytes` of text. Errors name `name` as the file. */
NVS_API int nvs_config_parse(struct nvs_config *config, const char *text, size_t nbytes,
			     const char *name, struct nvs_error *error);
/*
 * Replaces the block's paths by copies of `n` paths (1 to NVS_PATHS_MAX) and sets device nvme.
 * Errors: -EINVAL, -ENOMEM.
 */
NVS_API int nvs_config_set_paths(struct nvs_offload_config *offload, const char *const *paths,
				 unsigned n, struct nvs_error *error);

/* Names as in the configuration: "io_uring", "nvme". Parsing an unknown name returns -EINVAL. */
NVS_API const char *nvs_ioengine_name(enum nvs_ioengine ioengine);
NVS_API int nvs_ioengine_parse(const char *name, enum nvs_ioengine *ioengine);
NVS_API const char *nvs_device_name(enum nvs_device device);

/* --------------------------------------------------------------------------------------------
 * What this machine and a path can do
 */

#define NVS_IOENGINE_COUNT 4 /* indexed by enum nvs_ioengine */

struct nvs_machine_info {
	char kernel[64];
	unsigned cpus, numa_nodes;
	uint64_t memory_bytes;
	uint64_t memlock_bytes; /* RLIMIT_MEMLOCK; UINT64_MAX: unlimited, or CAP_IPC_LOCK is held */
	uint64_t hugepage_bytes; /* size of the default huge page */
	uint64_t hugepages_total, hugepages_free;
	char transparent_hugepages[16]; /* always, madvise, never; "" if unknown */
	uint64_t aio_nr, aio_max_nr;
	int io_uring_disabled; /* kernel.io_uring_disabled: 0 to 2; -1 if the kernel has no such
				  setting */
	struct {
		bool works;
		char reason[192]; /* why it does not work, "" if it does; AUTO: why this engine was
				     chosen */
	} ioengine[NVS_IOENGINE_COUNT];
	enum nvs_ioengine auto_ioengine;
};

struct nvs_path_info {
	char path[512];
	char filesystem[32]; /* "ext4", "tmpfs"; "block device" for a raw one */
	bool block_device;
	bool direct;				  /* O_DIRECT works */
	uint32_t dio_mem_align, dio_offset_align; /* bytes; 0 if not direct */
	bool dio_from_statx; /* false: statx does not report alignments; these are the block size */
	uint64_t free_bytes, total_bytes;
	/* the underlying drive; "" and 0 if there is none (tmpfs) or it is unknown */
	char device[64]; /* "nvme0n1" */
	char model[64];
	char scheduler[32];
	bool rotational;
	uint32_t logical_block_bytes, physical_block_bytes;
	/* limits of the drive's queue; an operator may raise max_io_bytes to max_hw_io_bytes */
	uint32_t max_io_bytes, max_hw_io_bytes, nr_requests, max_segments;
	int numa_node; /* -1: the machine has one node, or the node is unknown */
};

/* Recommended changes, each with the command to make it: line[0] to line[count - 1]. */
struct nvs_advice {
	unsigned count;
	char line[16][256];
};

/* Describes the machine and tries each I/O engine. A property that can't be read has the field's
 * value for "unknown". */
NVS_API int nvs_machine_info(struct nvs_machine_info *info, struct nvs_error *error);
/* Describes a directory, file or block device. Errors: -ENOENT and any other errno of opening it.
 */
NVS_API int nvs_path_info(const char *path, struct nvs_path_info *info, struct nvs_error *error);
/* Lists what an operator should change, most useful first. `path` may be NULL. */
NVS_API void nvs_advise(const struct nvs_machine_info *machine, const struct nvs_path_info *path,
			struct nvs_advice *advice);

/* --------------------------------------------------------------------------------------------
 * Transfers: any memory, any length, any offset of any file
 *
 * For data outside a store: checkpoints, benchmarks, files of other tools. An aio is a set of
 * workers, each with a queue of the I/O engine. It corresponds to DeepSpeed's aio_handle (pread,
 * pwrite, async_pread, async_pwrite, wait).
 */

struct nvs_aio;
struct nvs_file;

/*
 * Opens the workers. `config` may be freed after the call; `log` is copied and may be NULL.
 * Errors:
 * -EINVAL   a setting is out of bounds
 * -ENOTSUP  use_gds is set, or the I/O engine does not work on this machine
 * -ENOMEM
 */
NVS_API int nvs_aio_open(struct nvs_aio **aio, const struct nvs_aio_config *config,
			 const struct nvs_log *log, struct nvs_error *error);
/* Waits for all transfers in flight, including overdue ones, then ends the workers. Files must be
 * closed before. `aio` may be NULL. */
NVS_API void nvs_aio_close(struct nvs_aio *aio);

/*
 * Registers the caller's memory with the workers' rings, which saves pinning its pages for every
 * I/O. `data` must be aligned to 4096 bytes and stay mapped until nvs_aio_unregister_memory. An
 * engine without registered buffers ignores the call and returns 0. After an error nothing is
 * registered, and transfers still work.
 * Errors:
 * -ENOMEM  the memlock limit is too low
 * -ENOSPC  all 1024 regions are taken: one per GiB or part thereof, one per bounce buffer
 */
NVS_API int nvs_aio_register_memory(struct nvs_aio *aio, void *data, size_t nbytes);
/* Ends that. No transfer from or to the memory may be in flight. */
NVS_API void nvs_aio_unregister_memory(struct nvs_aio *aio, void *data);

enum nvs_file_flags {
	NVS_FILE_WRITE = 1,    /* open for reading and writing; otherwise for reading only */
	NVS_FILE_CREATE = 2,   /* create it with mode 0600 if it does not exist */
	NVS_FILE_TRUNCATE = 4, /* truncate it to length 0 */
	NVS_FILE_BUFFERED = 8, /* use the page cache even if O_DIRECT works */
	/*
	 * Every write begins and ends at a multiple of nvs_file_unit(), others are -EINVAL. Then
	 * none passes through the page cache, even where the unit is smaller than a page.
	 */
	NVS_FILE_UNITS = 16,
};

/*
 * Opens a file or block device for transfers, with O_DIRECT if the file system supports it (see
 * nvs_file_direct). A symbolic link as the last component is not followed. Errors: those of
 * open(2).
 */
NVS_API int nvs_file_open(struct nvs_aio *aio, const char *path, unsigned flags,
			  struct nvs_file **file, struct nvs_error *error);
/* No transfer of the file may be in flight. `file` may be NULL. */
NVS_API void nvs_file_close(struct nvs_file *file);
/* Whether the file was opened with O_DIRECT. */
NVS_API bool nvs_file_direct(const struct nvs_file *file);
/* The direct-I/O alignment of offsets and lengths in bytes, 512 for many drives; 1 without
 * O_DIRECT. */
NVS_API uint32_t nvs_file_unit(const struct nvs_file *file);
/* Makes completed writes durable. Errors: those of fdatasync(2). */
NVS_API int nvs_file_sync(struct nvs_file *file, struct nvs_error *error);

enum nvs_direction { NVS_READ, NVS_WRITE };

/*
 * One transfer. The caller owns the structure, zeroes it and fills in the first block of fields.
 * From nvs_submit until the transfer completes, neither the structure nor the memory may be
 * touched. Transfers in flight are not ordered: transfers of overlapping bytes must not be in
 * flight together.
 */
struct nvs_transfer {
	struct nvs_file *file;
	enum nvs_direction direction;
	void *data;	 /* any alignment; data aligned to dio_mem_align is not copied */
	uint64_t nbytes; /* any length; 0 completes at once */
	uint64_t offset; /* in bytes from the start of the file; any alignment */
	void *user;	 /* for the caller; the library ignores it */

	/* Valid after completion: */
	int status; /* 0 or a negative errno. -ENODATA: a read past the end of the file. -EIO also:
		       an I/O that returned EAGAIN or EINTR too often */
	uint64_t error_offset; /* file offset of the failed I/O */

	struct nvs_transfer_state {
		struct nvs_transfer *next;
		uint64_t claimed, pending, since_ns, hangs_at;
		uint32_t flags, completed;
	} state; /* the library's */
};

/* Submits `n` transfers. -EINVAL: a write to a file opened for reading; nothing is submitted. */
NVS_API int nvs_submit(struct nvs_aio *aio, struct nvs_transfer *const *transfers, size_t n,
		       struct nvs_error *error);
/*
 * Waits until all `n` transfers have completed. Returns 0, or the status of the first failed one in
 * array order; *error names path and offset.
 * Errors besides a transfer's status:
 * -ETIMEDOUT  timeout_ms has passed, or a transfer is overdue (io_timeout_ms); wait again
 * -EAGAIN     timeout_ms is 0 and a transfer is in flight
 */
NVS_API int nvs_transfer_wait(struct nvs_aio *aio, struct nvs_transfer *const *transfers, size_t n,
			      int timeout_ms, struct nvs_error *error);
NVS_API bool nvs_transfer_completed(const struct nvs_transfer *transfer);

/* I/Os of one direction since the aio was opened or its statistics reset. */
struct nvs_io_stats {
	uint64_t bytes, ios;
	uint64_t latency_min_ns, latency_max_ns; /* from submission to completion of one I/O */
	double latency_mean_ns, latency_stddev_ns;
};

#define NVS_DEPTHS 7

struct nvs_aio_stats {
	const char *ioengine;	   /* static */
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

NVS_API void nvs_aio_get_stats(struct nvs_aio *aio, struct nvs_aio_stats *stats);

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
 * A histogram with 64 buckets per power of two: a percentile is exact to 1/64 of its value over
 * the whole range of nanoseconds. All zeros is an empty histogram.
 */
#define NVS_LATENCY_BUCKETS 3776
struct nvs_latency {
	uint64_t count, min_ns, max_ns;
	double sum_ns, sum_squares;
	uint64_t buckets[NVS_LATENCY_BUCKETS];
};

/* Copies the histogram of one direction since the aio was opened or its statistics reset. */
NVS_API void nvs_aio_get_latency(struct nvs_aio *aio, enum nvs_direction direction,
				 enum nvs_latency_kind kind, struct nvs_latency *latency);
/* The functions below work on the caller's histograms; no aio is involved. */
/* Adds `from` to `into`. */
NVS_API void nvs_latency_merge(struct nvs_latency *into, const struct nvs_latency *from);
/* The latency in ns that `percentile` per cent (clamped to 0 to 100) did not exceed. Like mean and
 * standard deviation, 0 if the histogram is empty. */
NVS_API uint64_t nvs_latency_percentile(const struct nvs_latency *latency, double percentile);
NVS_API double nvs_latency_mean(const struct nvs_latency *latency);
NVS_API double nvs_latency_stddev(const struct nvs_latency *latency);
/* How many I/Os took `ns` or less, to 1/64 of that time. */
NVS_API uint64_t nvs_latency_within(const struct nvs_latency *latency, uint64_t ns);

/* One completed I/O with its latencies. */
struct nvs_io_record {
	uint64_t completed_ns; /* when the worker reaped it, CLOCK_MONOTONIC */
	uint64_t latency_ns[NVS_LATENCY_KINDS];
	uint32_t nbytes;    /* bytes moved */
	uint32_t direction; /* enum nvs_direction */
};

/*
 * Records every I/O that completes from now on. Memory for `max_records` (40 bytes each) is
 * allocated here and divided evenly among the workers. An I/O without room is counted and dropped;
 * a failed I/O has no record. 0 stops recording. Each call discards records not yet taken. Any
 * thread may call, but not two at a time.
 * Errors: -ENOMEM, nothing is recorded.
 */
NVS_API int nvs_aio_record(struct nvs_aio *aio, size_t max_records);
/*
 * Removes up to `n` records and returns their number, which is below `n` only if some worker has no
 * more. Records of one worker are in completion order. *lost (may be NULL): I/Os dropped since
 * nvs_aio_record.
 */
NVS_API size_t nvs_aio_take_records(struct nvs_aio *aio, struct nvs_io_record *records, size_t n,
				    uint64_t *lost);

/* Resets counters and latencies, for a benchmark after its warm-up. No transfer may be in flight.
 */
NVS_API void nvs_aio_reset_stats(struct nvs_aio *aio);

/* --------------------------------------------------------------------------------------------
 * The swap engine: tensors between a pinned pool and a store
 */

struct nvs_engine;
struct nvs_tensor;

enum nvs_block { NVS_OFFLOAD_PARAM, NVS_OFFLOAD_OPTIMIZER };

/*
 * The pool size of a block, in bytes: buffer_count x buffer_size x the size of an element; for the
 * optimizer also 12 bytes per element of optimizer_max_in_cpu.
 */
NVS_API uint64_t nvs_config_pool_bytes(const struct nvs_config *config, enum nvs_block block);

/*
 * Opens workers, pool and store of a configuration block. The configuration may be freed after the
 * call. Device "cpu" keeps the store in host memory instead of on a drive.
 * Errors:
 * -EINVAL       device "none", or a value out of bounds
 * -ENOENT       an nvme_path does not exist: it is never created
 * -ENOTSUP      use_gds is set, or the I/O engine does not work on this machine
 * -ENOMEM       the pool can't be mapped or locked; the error has limit, need and remedy
 * -EBUSY        another engine, of this or another process, has locked the store for more than a
 *               second
 * -EEXIST       the path holds a kept store and `keep` is false
 * -EMEDIUMTYPE  the path holds data that is not nvswap's, another store's member, or a store of
 *               another version
 * -EUCLEAN      the store is damaged
 *
 * A process may fork while an engine is open. The child has neither the engine's threads nor its
 * pool: it must not call functions on the engine, and should exec or _exit. If the parent is
 * killed, the store stays locked until the child execs or exits; a store that the parent closes is
 * unlocked.
 */
NVS_API int nvs_open(struct nvs_engine **engine, const struct nvs_config *config,
		     enum nvs_block block, struct nvs_error *error);
/*
 * Waits for transfers in flight, commits a kept store (see nvs_commit) or unlinks one that is not
 * kept, and frees the engine and its tensors. `engine` may be NULL.
 * Errors:
 * -ETIMEDOUT  a transfer is overdue (io_timeout_ms) and nothing is closed: call it again or end the
 *             process
 * any error of nvs_commit: the engine is closed, and a kept store is as last committed
 */
NVS_API int nvs_close(struct nvs_engine *engine, struct nvs_error *error);

/* The engine's aio, for the caller's own files; closed with the engine. */
NVS_API struct nvs_aio *nvs_engine_aio(struct nvs_engine *engine);

#define NVS_NAME_MAX 511 /* bytes in the name of a tensor */

struct nvs_tensor_spec {
	const char *name; /* 1 to NVS_NAME_MAX bytes, unique in the engine; copied */
	enum nvs_dtype dtype;
	uint64_t numel; /* elements; 0 is allowed */
};

/*
 * Registers `n` tensors and reserves their space in the store, in array order. Tensors that are
 * used together should be registered together: they lie side by side and move in few I/Os. In a
 * kept store a tensor takes twice its space, since committed data is never overwritten. A tensor
 * that a kept store already holds keeps its data. tensors[0..n-1] receive handles, which are valid
 * until nvs_forget or nvs_close. Either all or none are registered.
 * Errors:
 * -EEXIST  a name is registered twice
 * -ESTALE  the kept store holds a tensor of that name with another dtype or numel
 * -ENOSPC  the drive has no room
 * -E2BIG   a tensor exceeds the pool; the error names the setting to raise
 * -ENOMEM
 */
NVS_API int nvs_register(struct nvs_engine *engine, const struct nvs_tensor_spec *specs, size_t n,
			 struct nvs_tensor **tensors, struct nvs_error *error);
/* The tensor with that name, or NULL. */
NVS_API struct nvs_tensor *nvs_find(struct nvs_engine *engine, const char *name);
/*
 * Removes tensors with their data and space. In a kept store, the next commit removes what was
 * committed of them and frees its space.
 * Errors: -EBUSY, one is pinned or in flight; none is removed.
 */
NVS_API int nvs_forget(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		       struct nvs_error *error);

/*
 * Life of a tensor's data. nvs_swap_in and nvs_lease pin a tensor: it stays in the pool until
 * nvs_release unpins it. A tensor may be pinned several times. Unpinned, it may stay in the pool
 * (max_in_cpu) until the memory is needed; a tensor released dirty is written back before it is
 * evicted.
 *
 * Calls take an array of tensors, which must not name one twice. They start transfers for all of
 * the array or for none, and return; nvs_wait waits for the transfers.
 */

/*
 * Pins tensors whose contents the caller is about to write: pool memory, nothing is read. Waits up
 * to timeout_ms for room, evicting and writing back unpinned tensors, and for transfers in flight
 * of the tensors themselves. The data may be accessed as soon as the call returns 0. Pinned memory
 * is never evicted: with timeout -1 the call waits for other tensors to be released, including the
 * caller's own.
 * Errors:
 * -ENOBUFS    the tensors together exceed the pool
 * -EBUSY      one is in flight from or to external memory
 * -ETIMEDOUT  timeout_ms has passed, or the call would wait and everything in flight is overdue
 *             (io_timeout_ms)
 * -EAGAIN     timeout_ms is 0 and there is no room yet
 * -EIO and other errors of the drive: a write-back to make room failed; its tensor keeps its data.
 *             With timeout_ms 0: only tensors whose last write-back failed could make room; they
 *             are being written again
 */
NVS_API int nvs_lease(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		      int timeout_ms, struct nvs_error *error);
/*
 * Pins tensors with their contents: starts to read those that are not in the pool. The data may be
 * accessed after nvs_wait has returned 0.
 * Errors: those of nvs_lease, and
 * -ENODATA  one was never written, or its last write from external memory failed
 */
NVS_API int nvs_swap_in(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			int timeout_ms, struct nvs_error *error);
/*
 * Reads ahead without pinning: as many of the tensors, in order, as fit without waiting. Returns
 * how many are in the pool or being read, or a negative errno.
 */
NVS_API long nvs_prefetch(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			  struct nvs_error *error);
/*
 * Waits until no transfer of the tensors is in flight. Returns 0, or the status of the first failed
 * tensor in array order; *error names tensor, path and offset. A failed swap-in unpins the tensor
 * for every caller that waited for that read. The next swap-in of the tensor clears the failure:
 * threads that swap in the same tensors must all have waited before one of them swaps in again.
 * Errors:
 * -EIO and other errors of the drive
 * -EBADMSG    a checksum differs
 * -ETIMEDOUT  timeout_ms has passed, or a transfer is overdue (io_timeout_ms); tensors stay pinned
 * -EAGAIN     timeout_ms is 0 and a transfer is in flight; tensors stay pinned
 */
NVS_API int nvs_wait(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		     int timeout_ms, struct nvs_error *error);
/*
 * The tensor's memory, aligned to 512 bytes or more and valid until the tensor is released; NULL if
 * it is not in the pool.
 */
NVS_API void *nvs_data(const struct nvs_tensor *tensor);

enum nvs_how { NVS_CLEAN, NVS_DIRTY };
/*
 * Unpins each tensor once. NVS_DIRTY: the contents were changed. NVS_CLEAN after nvs_lease discards
 * the new contents: the tensor has its contents on the drive again.
 * Errors:
 * -EINVAL  one is not pinned
 * -EBUSY   one is being read, or is released dirty while being written; call nvs_wait first
 */
NVS_API int nvs_release(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			enum nvs_how how, struct nvs_error *error);
/*
 * Starts to write back the dirty ones of the tensors, and evicts each as its write completes. A
 * tensor whose write fails stays in the pool, dirty, and can be swapped out or in again.
 * Errors: -EBUSY, one is pinned.
 */
NVS_API int nvs_swap_out(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			 struct nvs_error *error);

/*
 * Start transfers between the store and external memory, without the pool. data[i] is the whole of
 * tensors[i], at any alignment, and must stay valid until nvs_wait. A failed write leaves the
 * tensor without contents (-ENODATA) or, if it was the first write after a commit of a kept store,
 * with the committed contents. If no nvs_wait reports the failure, the tensor's next swap-in, which
 * then starts nothing, or the next commit returns it.
 * Errors: -EBUSY, one is pinned or in flight.
 */
NVS_API int nvs_swap_out_from(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
			      const void *const *data, size_t n, struct nvs_error *error);
NVS_API int nvs_swap_in_to(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
			   void *const *data, size_t n, struct nvs_error *error);

/*
 * Writes back every dirty unpinned tensor, makes the data durable and replaces the manifest of a
 * kept store: after a crash the next run finds every tensor as of the last commit, whatever was
 * written since, and -EBADMSG at the swap-in of a tensor whose bytes the drive lost. A commit is
 * atomic: on an error the previous one stays in effect. Without `keep` the call only writes back.
 * Errors:
 * -EBUSY      a tensor is pinned and dirty, or in flight from or to external memory
 * -ETIMEDOUT  a write is overdue (io_timeout_ms)
 * -EIO and other errors of the drive: a write failed; another commit may succeed. If the data could
 *             not be made durable, or a failed manifest could not be revoked, as the error says,
 *             every later commit of this engine returns -EIO. In the second case the next run
 *             after a crash may find that manifest, and -EBADMSG for tensors written since.
 *             Also, once: the failure of a write from external memory that no other call reported
 */
NVS_API int nvs_commit(struct nvs_engine *engine, struct nvs_error *error);

enum nvs_state {
	NVS_EMPTY,    /* never written */
	NVS_ON_DRIVE, /* only on the drive */
	NVS_READING,  /* being read into the pool or external memory */
	NVS_RESIDENT, /* in the pool */
	NVS_WRITING,  /* being written from the pool or external memory */
};

struct nvs_tensor_info {
	const char *name; /* valid while the tensor is registered */
	enum nvs_dtype dtype;
	uint64_t numel, nbytes;
	uint64_t store_offset;
	enum nvs_state state;
	bool dirty;
	uint32_t uses; /* how many times it is pinned */
	int status;    /* of the last transfer: 0 or a negative errno */
};

NVS_API void nvs_tensor_get_info(struct nvs_engine *engine, struct nvs_tensor *tensor,
				 struct nvs_tensor_info *info);
NVS_API const char *nvs_state_name(enum nvs_state state);

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
	struct nvs_pool_stats pool;
	struct nvs_aio_stats aio;
	uint64_t tensors, tensor_bytes;
	uint64_t store_bytes; /* reserved on the drives */
	bool direct;	      /* false: the file system has no O_DIRECT; I/O is buffered */
	uint64_t swapped_in, swapped_out; /* bytes of tensors */
	uint64_t transfers;		  /* runs of adjacent tensors moved by one transfer */
	uint64_t evictions;		  /* tensors evicted from the pool to make room */
	uint64_t busy_ns;		  /* time with at least one transfer in flight */
	uint64_t verify_errors;
};

NVS_API void nvs_get_stats(struct nvs_engine *engine, struct nvs_engine_stats *stats);

/* --------------------------------------------------------------------------------------------
 * Steps: the engine learns the order in which tensors are swapped in
 */

/* The I/O of a step, and how much of it overlapped with the caller's work. */
struct nvs_step_io {
	uint64_t wall_ns;    /* from the beginning to the end of the step */
	uint64_t io_ns;	     /* time with at least one transfer in flight */
	uint64_t compute_ns; /* the caller's work: wall - stall; optimizer: the mean time that a
				thread spent in updates */
	uint64_t hidden_ns;  /* the overlap: io + compute - wall */
	uint64_t read_bytes, written_bytes;
	uint64_t hits, misses;	   /* tensors or tiles that were in the pool, or not, when needed */
	uint64_t stalls, stall_ns; /* waits for the drive or for room, and their time */
};

/*
 * Bracket one training step that uses its tensors in the same order as the step before. The first
 * step records the order of nvs_swap_in and nvs_lease calls, the plan. From the second step on the
 * engine follows it (DeepSpeed's stage 3 keys; distances are elements swapped in between two uses):
 * - it reads ahead within stage3_prefetch_bucket_size and stage3_max_live_parameters;
 * - it keeps tensors that are needed again within stage3_max_reuse_distance, those smaller than
 *   stage3_param_persistence_threshold, and max_in_cpu elements beside these;
 * - it evicts the tensor that is needed last;
 * - it writes back dirty tensors that will be evicted while no call waits for the drive.
 * A step that departs from the plan is served correctly, and the next step follows the new order.
 * nvs_prefetch is unaffected. One step at a time.
 * Errors:
 * -EBUSY   begin: a step has begun already; end: none has
 * -ENOMEM
 */
NVS_API int nvs_step_begin(struct nvs_engine *engine, struct nvs_error *error);
/* Transfers in flight stay in flight. `io` may be NULL. */
NVS_API int nvs_step_end(struct nvs_engine *engine, struct nvs_step_io *io,
			 struct nvs_error *error);

/* --------------------------------------------------------------------------------------------
 * The optimizer: Adam over state that lies on the drive
 *
 * Groups of parameters (DeepSpeed's sub-groups) have fp32 master weights, exp_avg and exp_avg_sq in
 * the store of the offload_optimizer block. A step reads, updates and writes them back tile by
 * tile, all three concurrently. The caller owns weights and gradients; a caller that accumulates
 * gradients, or has no room for them, adds them piece by piece instead.
 * Calls on one optimizer are serialized: a second thread's call waits for the first.
 */

struct nvs_optimizer;

struct nvs_group_spec {
	const char *name;     /* 1 to NVS_NAME_MAX bytes, unique; copied */
	uint64_t numel;	      /* 1 to sub_group_size */
	enum nvs_dtype dtype; /* of the weights: NVS_F32, NVS_BF16 or NVS_F16 */
	void *weights;	      /* numel elements, owned by the caller and aligned to an element, or
				 NULL. The initial master weights (NULL: zeros); every step writes
				 the updated weights here */
};

/* A run of a group's elements to update. Each array has numel elements. */
struct nvs_update {
	size_t group;
	uint64_t offset; /* the first element's index in the group */
	uint64_t numel;
	uint64_t step; /* from 1 */
	double lr;
	const float *gradients;		      /* unscaled and clipped */
	float *master, *exp_avg, *exp_avg_sq; /* read and updated */
};
/* Called from several threads concurrently, for runs that do not overlap. */
typedef void nvs_update_fn(void *arg, const struct nvs_update *update);

struct nvs_optimizer_options {
	nvs_update_fn *update; /* replaces the configured optimizer; NULL: use the configured one */
	void *update_arg;
};

/*
 * Opens the store of the offload_optimizer block with space for all groups; the layout is fixed
 * from then on. `ratio` of all elements are offloaded, in whole groups from the first on; the
 * others stay in host memory. State that was never written is created in the first step
 * (fast_init) or here. A kept store keeps its state: the contents of `weights` are ignored, and
 * nvs_optimizer_get_weights fills them. `options` may be NULL.
 * Errors: those of nvs_open and nvs_register, and
 * -E2BIG      a group has more than sub_group_size elements
 * -ENOTSUP    optimizer.type is not Adam, AdamW or "" (Adam) and no update function is given, or
 *             optimizer.params.amsgrad is true
 * -ESTALE     the kept store has other groups, another ratio or grad_accum_dtype, or its tiles do
 *             not fit the pool
 * -EBADMSG    the drive lost bytes of the state that is read here
 * -ETIMEDOUT  the drive hangs (io_timeout_ms). Memory that it may still write to, and the lock of
 *             the store, are released when the process ends
 */
NVS_API int nvs_optimizer_open(struct nvs_optimizer **optimizer, const struct nvs_config *config,
			       const struct nvs_group_spec *groups, size_t n,
			       const struct nvs_optimizer_options *options,
			       struct nvs_error *error);
/*
 * Commits a kept store (see nvs_optimizer_commit) and frees the optimizer, which may be NULL.
 * Errors:
 * -ETIMEDOUT  a transfer is overdue (io_timeout_ms) and nothing is closed: call it again or end the
 *             process
 * any error of nvs_optimizer_commit: the optimizer is closed, and a kept store is as last committed
 */
NVS_API int nvs_optimizer_close(struct nvs_optimizer *optimizer, struct nvs_error *error);
/* The optimizer's engine, for its statistics only; closed with the optimizer. */
NVS_API struct nvs_engine *nvs_optimizer_engine(struct nvs_optimizer *optimizer);

/*
 * Gradients of the next step, scaled by nvs_optimizer_loss_scale. `dtype` is NVS_F32, NVS_BF16 or
 * NVS_F16. The step leaves a group without gradients unchanged, and reads and writes only the tile
 * that it shares with a neighbour.
 *
 * nvs_optimizer_lend_gradients: all gradients of a group, in the caller's memory, which must not
 * change until a step or nvs_optimizer_clear_gradients has returned 0.
 * nvs_optimizer_add_gradients: numel elements from the group's element `offset` on. They are summed
 * with those added since the last step, in data_types.grad_accum_dtype, and kept in the pool, and
 * in the store if the pool has no room. Elements that are never added are zero. *added (may be
 * NULL) is the number of elements that were added, also on an error.
 * Errors:
 * -EBUSY   the group has gradients of the other kind, or a step has failed and is not finished
 * -EINVAL  no such group or dtype, or elements beyond the group's end
 * errors of nvs_lease and nvs_swap_in; the first addition also -ENOSPC and others of nvs_register
 */
NVS_API int nvs_optimizer_lend_gradients(struct nvs_optimizer *optimizer, size_t group,
					 enum nvs_dtype dtype, const void *data,
					 struct nvs_error *error);
NVS_API int nvs_optimizer_add_gradients(struct nvs_optimizer *optimizer, size_t group,
					uint64_t offset, uint64_t numel, enum nvs_dtype dtype,
					const void *data, uint64_t *added, struct nvs_error *error);
/* Discards all gradients, as a step does at its end. Errors: -EBUSY, a step has failed and is not
 * finished. */
NVS_API int nvs_optimizer_clear_gradients(struct nvs_optimizer *optimizer, struct nvs_error *error);

/* Sums over the gradients of one rank; the caller adds them up over all ranks. */
struct nvs_gradient_sums {
	double sum_squares; /* of the scaled gradients; inf or nan if one of them is */
};
/* Computes the sums in one pass over this optimizer's gradients. The result does not depend on
 * tiles, threads or kernels. Errors: -EBUSY, a step has failed and is not finished. */
NVS_API int nvs_optimizer_sum_gradients(struct nvs_optimizer *optimizer,
					struct nvs_gradient_sums *sums, struct nvs_error *error);

struct nvs_step_options {
	double lr; /* the learning rate; below 0: the configured one */
	/* the sums over all ranks; NULL: this optimizer has all gradients */
	const struct nvs_gradient_sums *sums;
	bool norm; /* compute the norm for the result even if clipping does not need it */
};

struct nvs_step_result {
	uint64_t step;	     /* steps so far, without skipped ones */
	bool skipped;	     /* fp16: a gradient was inf or nan; nothing was changed */
	double loss_scale;   /* the loss scale of these gradients */
	double norm;	     /* of the unscaled gradients before clipping; -1: not computed */
	double clip;	     /* the factor of clipping; 1: not clipped */
	uint64_t tiles;	     /* tiles updated */
	uint64_t cpu_ns;     /* processor time of the updates and the norm, all threads */
	uint64_t host_bytes; /* state in host memory, outside the pool (`ratio` below 1) */
	unsigned threads;
	const char *kernel; /* "avx512", "avx2", "plain" or "caller"; static */
	struct nvs_step_io io;
};

/*
 * Takes one step of all groups that have gradients, and discards these. Returns when everything is
 * computed and written. Gradients are divided by the loss scale. If gradient_clipping is above 0
 * and the norm exceeds it, they are multiplied by gradient_clipping / (norm + 1e-6), as in
 * DeepSpeed. With fp16, a gradient that is inf or nan skips the step, and the loss scale follows
 * DeepSpeed's rules. `options` and `result` may be NULL.
 * Errors:
 * -ERANGE  the step was skipped and the loss scale is at its minimum
 * -EIO and other errors of the drive, -ETIMEDOUT, -EBADMSG: the step is not finished, and nothing
 *          that was computed is lost. Call it again to finish it, with the first call's lr and
 *          scale; gradients must still be there. Until then every other call that would change
 *          gradients or state returns -EBUSY
 */
NVS_API int nvs_optimizer_step(struct nvs_optimizer *optimizer,
			       const struct nvs_step_options *options,
			       struct nvs_step_result *result, struct nvs_error *error);
/* The factor to multiply the next step's loss by; 1 without fp16. */
NVS_API double nvs_optimizer_loss_scale(struct nvs_optimizer *optimizer);

enum nvs_optimizer_part { NVS_MASTER, NVS_EXP_AVG, NVS_EXP_AVG_SQ };
/* Read and write state, for checkpoints: numel elements from the group's element `offset` on. */
NVS_API int nvs_optimizer_get(struct nvs_optimizer *optimizer, size_t group,
			      enum nvs_optimizer_part part, uint64_t offset, uint64_t numel,
			      float *data, struct nvs_error *error);
NVS_API int nvs_optimizer_set(struct nvs_optimizer *optimizer, size_t group,
			      enum nvs_optimizer_part part, uint64_t offset, uint64_t numel,
			      const float *data, struct nvs_error *error);
/* Copies the master weights of every group to its `weights`, as a step does. */
NVS_API int nvs_optimizer_get_weights(struct nvs_optimizer *optimizer, struct nvs_error *error);
/*
 * Makes the state durable, with step count, loss scale and added gradients, as nvs_commit does. A
 * run that reopens the store, even after a crash in a later step, computes the same bits. Without
 * `keep` the call does nothing. Errors: those of nvs_commit.
 */
NVS_API int nvs_optimizer_commit(struct nvs_optimizer *optimizer, struct nvs_error *error);

/* --------------------------------------------------------------------------------------------
 * Trace: a timeline of I/Os, transfers, computation and waits
 */

struct nvs_trace;

/*
 * Allocates a trace of `max_spans` (64 bytes each); it never grows. Spans without room are counted
 * and dropped. An engine or optimizer that is opened with it in the configuration's `trace` records
 * until it is closed; the trace must be closed after it.
 */
NVS_API int nvs_trace_open(struct nvs_trace **trace, size_t max_spans, struct nvs_error *error);
NVS_API void nvs_trace_close(struct nvs_trace *trace);
/* Records a span of the caller's work on the calling thread's track, in CLOCK_MONOTONIC
 * nanoseconds. `name` is truncated to 31 bytes. */
NVS_API void nvs_trace_span(struct nvs_trace *trace, const char *name, uint64_t from_ns,
			    uint64_t to_ns);
/*
 * Writes the spans so far as JSON in the Chrome trace event format, for Perfetto and
 * chrome://tracing. An existing file is overwritten. *dropped (may be NULL): spans dropped for want
 * of room. Errors: those of opening and writing the file.
 */
NVS_API int nvs_trace_write(struct nvs_trace *trace, const char *path, uint64_t *dropped,
			    struct nvs_error *error);

#ifdef __cplusplus
}
#endif

#endif
