/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration's fields. The public header leaves struct nvs_config opaque; the layers above
 * read the fields here.
 */
#ifndef CONFIG_CONFIG_H
#define CONFIG_CONFIG_H

#include "base/error.h"
#include "nvswap.h"

/* The "aio" block. */
struct aio_config {
	uint32_t block_size;   /* bytes per I/O: a multiple of 512, up to NVS_BLOCK_SIZE_MAX */
	uint32_t queue_depth;  /* I/Os in flight per worker: 1 to NVS_QUEUE_DEPTH_MAX */
	uint32_t thread_count; /* workers: 1 to NVS_THREAD_COUNT_MAX; also
				  "intra_op_parallelism" */
	bool single_submit;    /* one I/O per submission call */
	bool overlap_events;   /* false: fill the queue, drain it, repeat */
	bool use_gds;	       /* not supported: opening an engine returns -ENOTSUP */
	/* keys of the "nvswap" block: */
	enum nvs_ioengine ioengine;
	uint32_t io_timeout_ms; /* up to NVS_IO_TIMEOUT_MS_MAX; 0: off */
};

/* An "offload_param" or "offload_optimizer" block. */
struct offload_config {
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

/* What of DeepSpeed the Python package replaces; the library itself does not use it. */
enum deepspeed_depth { DEEPSPEED_OPS, DEEPSPEED_SWAPPERS, DEEPSPEED_STEP };

struct optimizer_config {
	char type[32]; /* "" if the file has no optimizer block or no "type" */
	double lr, beta1, beta2, eps, weight_decay;
	double momentum, dampening, lr_decay, initial_accumulator_value;
	bool bias_correction, adam_w_mode, nesterov, maximize;
	bool amsgrad; /* not supported: nvs_optimizer_open returns -ENOTSUP */
};

struct fp16_config {
	bool enabled;
	double loss_scale; /* 0: dynamic */
	uint32_t initial_scale_power, loss_scale_window, hysteresis;
	bool consecutive_hysteresis;
	double min_loss_scale;
	bool master_weights; /* not supported: nvs_optimizer_open returns -ENOTSUP */
};

/* Whether each tensor has a checksum that is compared at every swap-in. */
enum verify {
	VERIFY_IF_KEPT, /* in kept stores */
	VERIFY_ON,
	VERIFY_OFF, /* kept stores have checksums all the same, for the first read of a later run */
};

struct nvs_config {
	struct nvs_log log;
	struct nvs_trace *trace; /* engines and optimizers record here; NULL: no trace */
	struct aio_config aio;
	struct offload_config offload[2]; /* by enum nvs_block */

	/* "zero_optimization", in elements */
	uint64_t sub_group_size;
	uint64_t prefetch_bucket_size;	      /* stage3_prefetch_bucket_size */
	uint64_t max_live_parameters;	      /* stage3_max_live_parameters */
	uint64_t max_reuse_distance;	      /* stage3_max_reuse_distance */
	uint64_t param_persistence_threshold; /* stage3_param_persistence_threshold */

	struct fp16_config fp16;
	bool bf16_enabled;
	bool bf16_master_weights, bf16_optimizer_states; /* not supported, as of fp16 */
	enum nvs_dtype param_dtype;	 /* NVS_F16, NVS_BF16 or NVS_F32, from fp16 and bf16 */
	enum nvs_dtype grad_accum_dtype; /* data_types.grad_accum_dtype; default: param_dtype */
	double gradient_clipping;	 /* 0: none */
	struct optimizer_config adam;

	/* "nvswap" */
	enum verify verify;
	bool keep;	/* the store survives the engine and is reopened; see nvs_engine_commit */
	bool read_only; /* a kept store is only read, and shared with other readers */
	bool scrub;	/* read what is on the drive alone, and compare checksums, while idle */
	bool rollback;	/* a kept store whose last commit is lost opens as of the one before */
	uint32_t rank;	/* the store below nvme_path: rank<N>, the optimizer's rank<N>-optimizer */
	char rank_variable[64]; /* environment variable with the rank; "": `rank` is set */
	uint64_t stripe_size;	/* bytes; 0: one block_size. Matters with several paths */
	uint64_t write_budget;	/* bytes that all runs may write below each path; 0: any number */
	uint64_t optimizer_max_in_cpu; /* elements whose state stays in memory between steps */
	enum nvs_optimizer_state optimizer_state; /* its format; NVS_STATE_FP32 */
	uint32_t optimizer_threads; /* compute threads; 0: one per core near the drive */
	enum deepspeed_depth deepspeed;
	bool overlap_step; /* passes don't alternate their direction */
	bool progress;	   /* for Python: a DeepSpeed job tells of it */
	bool strict;	   /* blocks in the wrong place are errors */
};

bool block_exists(enum nvs_block block);
/* As the key nvswap.optimizer_state has it. */
const char *optimizer_state_name(enum nvs_optimizer_state state);
/* Whether a store of the configuration is verified, if it is on a drive. */
bool config_verifies(const struct nvs_config *config);

/* Sets every default. Free a loaded configuration with config_free() first. */
void config_init(struct nvs_config *config);
/* Frees the paths that the configuration owns. */
void config_free(struct nvs_config *config);

/* nvs_config_set_paths() of the block. Errors: -EINVAL, -ENOMEM. */
int config_set_paths(struct offload_config *offload, const char *const *paths, unsigned n,
		     struct nvs_error *error);

/* -EINVAL: the settings of an aio are others than those that one was opened with. -ENOMEM */
int config_same_aio(const struct nvs_config *config, const struct aio_config *opened,
		    struct nvs_error *error);

#endif
