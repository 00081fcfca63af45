/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration.
 */
#ifndef NVSWAP_CONFIG_H
#define NVSWAP_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvswap/dtype.h"
#include "nvswap/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Keys, units and defaults follow DeepSpeed's JSON configuration ("aio",
 * "zero_optimization.offload_param", "zero_optimization.offload_optimizer" and the keys named
 * below). docs/configuration.md has the table.
 *
 * A file, and settings of the program's own:
 *
 *	rc = nvs_config_open(&config, &error) ||
 *	     nvs_config_load(config, "ds_config.json", &error) ||
 *	     nvs_config_read_rank(config, &error) ||
 *	     nvs_config_set(config, "aio.block_size", "1M", &error) ||
 *	     nvs_config_set_number(config, "nvswap.keep", 1, &error);
 *	if (rc)
 *		fprintf(stderr, "%s\n", error.text);
 *	nvs_config_set_log(config, log_line, stderr);
 *	rc = nvs_config_copy(config, &other, &error); // for another store
 *
 * What is in force:
 *
 *	rc = nvs_config_get(config, "nvswap.ioengine", text, sizeof(text), &error) ||
 *	     nvs_config_get_number(config, "aio.queue_depth", &number, &error) ||
 *	     nvs_config_get_real(config, "gradient_clipping", &real, &error) ||
 *	     nvs_ioengine_parse(text, &ioengine);
 *	printf("a pool of %llu bytes, a store at %s\n",
 *	       (unsigned long long)nvs_config_pool_bytes(config, NVS_OFFLOAD_PARAM),
 *	       nvs_config_get_path(config, NVS_OFFLOAD_PARAM, 0));
 */

enum nvs_ioengine {
	NVS_IOENGINE_AUTO, /* the first that works on this machine: io_uring, libaio, posix */
	NVS_IOENGINE_IO_URING,
	NVS_IOENGINE_LIBAIO,
	NVS_IOENGINE_POSIX, /* threads with pread and pwrite */
};

enum nvs_device { NVS_DEVICE_NONE, NVS_DEVICE_CPU, NVS_DEVICE_NVME };

/*
 * The format of an optimizer's state, nvswap.optimizer_state. docs/state-formats.md has the bits.
 */
enum nvs_optimizer_state {
	NVS_STATE_FP32,	 /* "fp32": master weights, exp_avg and exp_avg_sq in float32; the others
			    are of Adam alone */
	NVS_STATE_SPLIT, /* "split": the master weight is the bf16 weight and 16 bits more */
	NVS_STATE_BF16,	 /* "bf16": the same, and exp_avg and exp_avg_sq in bfloat16 */
	NVS_STATE_8BIT,	 /* "8bit": the same, and these in 8 bits, with a scale per 128 elements */
};

#define NVS_PATHS_MAX	      16
#define NVS_BLOCK_SIZE_MIN    512u
#define NVS_BLOCK_SIZE_MAX    (1u << 30)
#define NVS_QUEUE_DEPTH_MAX   4096u
#define NVS_THREAD_COUNT_MAX  256u
#define NVS_IO_TIMEOUT_MS_MAX 86400000u

struct nvs_trace;

/*
 * A drive that hangs. With "io_timeout_ms" above 0, a transfer is overdue when one of its I/Os has
 * been in the kernel for that long, or when it was submitted that long ago and no transfer of the
 * aio has made progress since. A transfer that queues behind others that progress is not overdue.
 * An I/O may wait behind queue_depth others on each worker, so the limit should be seconds.
 *
 * The first overdue transfer is logged. Waits for an overdue transfer return -ETIMEDOUT at once,
 * whatever their timeout_ms, and name tensor, path and offset:
 * - nvs_aio_wait, nvs_tensor_wait, nvs_engine_commit;
 * - nvs_tensor_pin and nvs_tensor_swap_in, if they would wait and everything in flight is overdue;
 * - nvs_tensor_swap_out_from, nvs_tensor_swap_in_to and nvs_tensor_forget, if they would wait;
 * - every call on an optimizer that waits for the drive;
 * - nvs_engine_close and nvs_optimizer_close, which then have closed nothing.
 *
 * No data is lost. The transfer stays in flight and its memory in use until the kernel completes
 * it. A late completion is an ordinary one: it is logged, and waits return its status.
 *
 * An I/O that the kernel completes with ETIMEDOUT, or again and again with EAGAIN, has failed:
 * -EIO. System calls other than transfers (fdatasync in a commit, opening files) are not watched.
 */

/* The blocks that a store belongs to. */
enum nvs_block { NVS_OFFLOAD_PARAM, NVS_OFFLOAD_OPTIMIZER };

/*
 * A configuration. nvs_config_open makes one with every default, nvs_config_load and nvs_config_set
 * change it, and whatever is opened with it copies what it needs. One thread at a time may use it.
 */
struct nvs_config;

/*
 * Opens a configuration with every default.
 * Errors:
 * -EINVAL  `config` is NULL
 * -ENOMEM
 */
NVS_API int nvs_config_open(struct nvs_config **config, struct nvs_error *error);
/*
 * Copies a configuration: opens *copy with the settings, the log and the trace of `config`. Each is
 * closed by itself.
 * Errors:
 * -EINVAL  `config` or `copy` is NULL
 * -ENOMEM
 */
NVS_API int nvs_config_copy(const struct nvs_config *config, struct nvs_config **copy,
			    struct nvs_error *error);
/* Frees a configuration, which may be NULL. */
NVS_API void nvs_config_close(struct nvs_config *config);

/*
 * Reads a DeepSpeed JSON file, or one that has only the blocks that nvswap reads, over *config.
 * Other blocks may hold any JSON, with comments, commas behind the last member, and Infinity and
 * NaN as Python writes them. DeepSpeed keys that have no effect on nvswap are warnings through the
 * log. So are a block in the wrong place and a near miss of a block's name, which are errors with
 * "nvswap": {"strict": true} in the file, or with "nvswap.strict" set before. On error *config is
 * unchanged.
 * Errors:
 * -EINVAL  not JSON; a duplicate, a wrong type, a number that is negative, fractional or out of
 *          range; an unknown key in "aio", "nvswap" or an offload block; with "strict" a block in
 *          the wrong place; two names of one setting with different values. The error has line,
 *          key, value and allowed range. Or an argument is NULL
 * -EFBIG   the file exceeds 64 MiB, or nests more than 512 levels
 * -ENOMEM
 * Others   those of opening and reading the file, such as -ENOENT
 */
NVS_API int nvs_config_load(struct nvs_config *config, const char *path, struct nvs_error *error);
/*
 * Reads JSON from memory as nvs_config_load does from a file: `nbytes` of text. The error's text
 * has `name` as that of the file.
 * Errors: those of nvs_config_load but for those of opening and reading a file.
 */
NVS_API int nvs_config_parse(struct nvs_config *config, const char *text, size_t nbytes,
			     const char *name, struct nvs_error *error);

/*
 * Sets one setting by its key, as in the file with dots between: "aio.block_size",
 * "zero_optimization.offload_param.nvme_path" or "offload_param.nvme_path" for short. The value is
 * written as in the file; quotes may be left out ("nvme"), and a whole number may end in k, m, g or
 * t, or the capital letter, for powers of 1024 ("1M"). null or "" as an nvme_path removes the
 * paths. Unlike in a file, an unknown key of any block is an error, and device "nvme" may be set
 * before nvme_path. On error *config is unchanged.
 * Errors:
 * -EINVAL  an argument is NULL; no such key, the error names the nearest; the key has no effect in
 *          nvswap, such as "offload_optimizer.buffer_size"; the value has a wrong type or is out of
 *          range, the error has the allowed range; or it is not UTF-8, except one bare path
 * -EFBIG   the value nests more than 512 levels
 * -ENOMEM
 */
NVS_API int nvs_config_set(struct nvs_config *config, const char *key, const char *value,
			   struct nvs_error *error);
/*
 * Sets one setting to a number, otherwise as nvs_config_set: to a whole one, to true (1) or false
 * (0), or to a value of enum nvs_ioengine, nvs_device or nvs_optimizer_state.
 * Errors:
 * -EINVAL  `config` or `key` is NULL; no such key, or one that has no effect in nvswap; the number
 *          is out of range; or the setting is of another type, such as text, a path or a list
 * -ENOMEM
 */
NVS_API int nvs_config_set_number(struct nvs_config *config, const char *key, uint64_t number,
				  struct nvs_error *error);
/*
 * Replaces the paths of a block by copies of `n` paths (1 to NVS_PATHS_MAX), and sets device nvme.
 * Errors:
 * -EINVAL  an argument is NULL, no such block, or a path is empty, too long or named twice
 * -ENOMEM
 */
NVS_API int nvs_config_set_paths(struct nvs_config *config, enum nvs_block block,
				 const char *const *paths, unsigned n, struct nvs_error *error);

/*
 * Copies the value of a setting to `text`, which has room for nbytes, as nvs_config_set takes it;
 * "" for no paths. It is the value in force now: that of "nvswap.verify" follows `keep` and
 * `read_only` until it is set, and setting what was returned fixes it.
 * Errors:
 * -EINVAL  an argument is NULL; no such key, or one that has no effect in nvswap
 * -ERANGE  the value with its NUL does not fit; nothing is copied
 * -ENOMEM
 */
NVS_API int nvs_config_get(const struct nvs_config *config, const char *key, char *text,
			   size_t nbytes, struct nvs_error *error);
/*
 * Reads a setting that is a number: a whole one, true (1) or false (0), or a value of enum
 * nvs_ioengine, nvs_device or nvs_optimizer_state.
 * Errors:
 * -EINVAL  an argument is NULL; there is no such key, or it has no effect in nvswap; or its value
 *          is of another type
 */
NVS_API int nvs_config_get_number(const struct nvs_config *config, const char *key,
				  uint64_t *number, struct nvs_error *error);
/*
 * Reads a setting that is any number, such as "gradient_clipping" or "aio.block_size", or one of a
 * list by its index, "optimizer.params.betas.1".
 * Errors:
 * -EINVAL  an argument is NULL; there is no such key, or it has no effect in nvswap; or its value
 *          is of another type
 */
NVS_API int nvs_config_get_real(const struct nvs_config *config, const char *key, double *number,
				struct nvs_error *error);
/* Returns the i-th nvme_path of a block, valid until the paths change; NULL: it has no more. */
NVS_API const char *nvs_config_get_path(const struct nvs_config *config, enum nvs_block block,
					unsigned i);
/*
 * Returns the pool size of a block in bytes: buffer_count x buffer_size x the size of an element;
 * for the optimizer also 12 bytes per element of optimizer_max_in_cpu, of which nvs_optimizer_open
 * takes what the rule and nvswap.optimizer_state need. 0: an argument is NULL or no such block;
 * UINT64_MAX: it exceeds 64 bits.
 */
NVS_API uint64_t nvs_config_pool_bytes(const struct nvs_config *config, enum nvs_block block);

/*
 * Reads the rank from the environment variable that the configuration names, as in "nvswap":
 * {"rank": "LOCAL_RANK"}. Without such a name the call does nothing; with one, opening an engine is
 * -EINVAL until the call has returned 0. No other function reads the environment. No thread may
 * change it during the call.
 * Errors:
 * -EINVAL  the variable is not set or is no whole number from 0 to 4294967295, or `config` is NULL
 */
NVS_API int nvs_config_read_rank(struct nvs_config *config, struct nvs_error *error);
/* Sets the log: messages of the calls on the configuration, and of what is opened with it, go to
 * `fn`, which gets `arg`; NULL discards them. */
NVS_API void nvs_config_set_log(struct nvs_config *config, nvs_log_fn *fn, void *arg);
/* Sets the trace: engines and optimizers that are opened with the configuration record in `trace`,
 * which stays the caller's; NULL: no trace. */
NVS_API void nvs_config_set_trace(struct nvs_config *config, struct nvs_trace *trace);

/* Return the name of a value, as in the configuration: "io_uring", "nvme". */
NVS_API const char *nvs_ioengine_name(enum nvs_ioengine ioengine);
NVS_API const char *nvs_device_name(enum nvs_device device);
/*
 * Converts a name to an I/O engine, stored in *ioengine.
 * Errors, with which *ioengine is as it was:
 * -EINVAL  the name is unknown, or an argument is NULL
 */
NVS_API int nvs_ioengine_parse(const char *name, enum nvs_ioengine *ioengine);

#ifdef __cplusplus
}
#endif

#endif
