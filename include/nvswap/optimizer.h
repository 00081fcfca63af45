/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer: Adam, SGD, Adagrad or Lion over state that lies on the drive.
 *
 * Gradients that come in pieces, with the norm over all ranks:
 *
 *	struct nvs_gradient_sums sums = {.size = sizeof(sums)};
 *	struct nvs_step_options options = {.size = sizeof(options), .lr = -1, .sums = &sums};
 *
 *	rc = nvs_optimizer_add_gradients(optimizer, 0, offset, numel, NVS_BF16, data, NULL, &error) ||
 *	     nvs_optimizer_sum_gradients(optimizer, &sums, &error);
 *	... // add up sums.sum_squares over the ranks
 *	if (!rc)
 *		rc = nvs_optimizer_step(optimizer, &options, NULL, &error);
 *
 * With "nvswap": {"keep": true}, continue where an earlier run ended, and commit:
 *
 *	struct nvs_optimizer_info info = {.size = sizeof(info)};
 *
 *	rc = nvs_optimizer_open(&optimizer, config, groups, n, NULL, &error) ||
 *	     nvs_optimizer_get_info(optimizer, &info, &error) ||
 *	     nvs_optimizer_get_weights(optimizer, &error);
 *	if (!rc && info.unfinished)
 *		rc = nvs_optimizer_step(optimizer, NULL, NULL, &error);
 *	...
 *	rc = nvs_optimizer_set_note(optimizer, note, nbytes, &error) ||
 *	     nvs_optimizer_commit(optimizer, &error);
 *
 * Look at a group, and set its state:
 *
 *	struct nvs_group_info group = {.size = sizeof(group)};
 *
 *	rc = nvs_optimizer_get_group_info(optimizer, 0, &group, &error) ||
 *	     nvs_optimizer_get(optimizer, 0, NVS_MASTER, 0, numel, values, &error) ||
 *	     nvs_optimizer_set(optimizer, 0, NVS_MASTER, 0, numel, values, &error) ||
 *	     nvs_optimizer_set_step(optimizer, 100, &error);
 *
 * The squares of each group's gradients, and weights that have moved:
 *
 *	rc = nvs_optimizer_sum_groups(optimizer, squares, n, &error) ||
 *	     nvs_optimizer_set_weights(optimizer, weights, n, &error);
 *
 * A loss that is scaled, and a step that is not taken:
 *
 *	struct nvs_engine_stats stats = {.size = sizeof(stats)};
 *
 *	loss *= nvs_optimizer_loss_scale(optimizer);
 *	... // backward, and lend or add gradients
 *	rc = nvs_optimizer_clear_gradients(optimizer, &error);
 *	nvs_engine_get_stats(nvs_optimizer_engine(optimizer), &stats);
 *	nvs_optimizer_abandon(optimizer, &error);
 *
 * All state through a function of the program's own, which several threads call:
 *
 *	rc = nvs_optimizer_export(optimizer, write_run, NULL, &error) ||
 *	     nvs_optimizer_import(optimizer, read_run, NULL, &error);
 *
 * The state of a kept store in fewer bytes:
 *
 *	struct nvs_state_conversion done = {.size = sizeof(done)};
 *
 *	rc = nvs_optimizer_convert(config, NVS_STATE_8BIT, &done, &error);
 *
 * One update of arrays in memory:
 *
 *	struct nvs_adam_update update = {
 *		.size = sizeof(update), .numel = numel, .step = 1, .lr = 1e-3, .beta1 = 0.9,
 *		.beta2 = 0.999, .eps = 1e-8, .adam_w_mode = true, .bias_correction = true,
 *		.gradients = data, .gradients_dtype = NVS_F32,
 *		.master = master, .exp_avg = exp_avg, .exp_avg_sq = exp_avg_sq};
 *
 *	rc = nvs_adam_update(&update, &error);
 *
 * The same by another rule:
 *
 *	struct nvs_rule_update lion = {
 *		.size = sizeof(lion), .rule = NVS_RULE_LION, .numel = numel, .step = 1, .lr = 1e-4,
 *		.beta1 = 0.9, .beta2 = 0.99, .gradients = data, .gradients_dtype = NVS_F32,
 *		.master = master, .exp_avg = exp_avg};
 *
 *	rc = nvs_rule_update(&lion, &error);
 */
#ifndef NVSWAP_OPTIMIZER_H
#define NVSWAP_OPTIMIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvswap/config.h"
#include "nvswap/step.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Groups of parameters (DeepSpeed's sub-groups) have master weights and the states of the rule
 * (of Adam exp_avg and exp_avg_sq), in fp32 or in another format, in the store of the
 * offload_optimizer block. A step reads, updates and writes them back tile by tile, all parts
 * concurrently. The caller owns weights and gradients; a caller that accumulates gradients, or has
 * no room for them, adds them piece by piece instead.
 * Calls on one optimizer are serialized: a second thread's call waits for the first, and so does
 * one by the log function, which has a thread of its own. One that is made within another on the
 * same optimizer, by the update, weights_final or state function that this one calls, would wait
 * for itself: it is -EDEADLK and has no effect. This holds for every function here but
 * nvs_optimizer_loss_scale, nvs_optimizer_engine, nvs_optimizer_set_note and
 * nvs_optimizer_get_note, which work there. Such a function must not wait for a call on this
 * optimizer by another thread, as that call waits for the function to return.
 * Calls that change the state, gradients or the store of an optimizer that is open read-only are
 * -EROFS.
 * An argument that is NULL where that is not allowed is -EINVAL.
 */

struct nvs_optimizer;

/*
 * The rules by which a step updates weights, as optimizer.type names them. g is the gradient,
 * unscaled and clipped, and its negative with optimizer.params.maximize.
 */
enum nvs_rule {
	/* "Adam" and "AdamW": exp_avg and exp_avg_sq. */
	NVS_RULE_ADAM,
	/* "SGD", as torch.optim.SGD: momentum_buffer. g += weight_decay * w; with momentum
	 * b = momentum * b + (1 - dampening) * g, in the first step b = g, and then
	 * g = nesterov ? g + momentum * b : b; w -= lr * g. The first step is the optimizer's: a
	 * group without gradients in it begins with b = (1 - dampening) * g, where torch's
	 * parameters, and nvswap.torch's, each begin with b = g. */
	NVS_RULE_SGD,
	/* "Adagrad", as torch.optim.Adagrad: sum, first initial_accumulator_value.
	 * g += weight_decay * w; s += g * g;
	 * w -= lr / (1 + (step - 1) * lr_decay) * g / (sqrt(s) + eps). */
	NVS_RULE_ADAGRAD,
	/* "Lion" (Chen et al., arXiv 2302.06675): exp_avg. w -= lr * weight_decay * w;
	 * w -= lr * sign(beta1 * m + (1 - beta1) * g); m = beta2 * m + (1 - beta2) * g. The sign of
	 * 0 is 0, as torch's; DeepSpeed's Lion takes it for 1. */
	NVS_RULE_LION,
};

struct nvs_group_spec {
	size_t size;	      /* of this structure in bytes; all of an array have the same */
	const char *name;     /* 1 to NVS_NAME_MAX bytes of UTF-8, unique; copied */
	uint64_t numel;	      /* 1 to sub_group_size */
	enum nvs_dtype dtype; /* of the weights: NVS_F32, NVS_BF16 or NVS_F16 */
	void *weights;	      /* numel elements, owned by the caller and aligned to an element, or
				 NULL. The initial master weights (NULL: zeros); every step writes
				 the updated weights here, and reads them first only with
				 `take_weights` */
};

/* A run of a group's elements to update. Each array has numel elements. */
struct nvs_update {
	size_t size; /* of this structure in bytes, set by the library: fields beyond it are not
			there */
	size_t group;
	uint64_t offset; /* the first element's index in the group */
	uint64_t numel;
	uint64_t step; /* from 1 */
	double lr;
	const float *gradients;		      /* unscaled and clipped */
	float *master, *exp_avg, *exp_avg_sq; /* read and updated; NULL: the rule has no such */
	float *momentum_buffer, *sum;	      /* the same */
};
/* Called from several threads concurrently, for runs that do not overlap. Calls on the optimizer
 * are -EDEADLK there. */
typedef void nvs_update_fn(void *arg, const struct nvs_update *update);

/* Receives numel new weights of a group, from its element `offset` on, in the group's dtype. The
 * memory is valid during the call. */
typedef void nvs_weights_final_fn(void *arg, size_t group, uint64_t offset, uint64_t numel,
				  enum nvs_dtype dtype, const void *data);

struct nvs_optimizer_options {
	size_t size;	       /* of this structure in bytes; the caller sets it, see nvs_error */
	nvs_update_fn *update; /* replaces the configured optimizer; NULL: use the configured one */
	void *update_arg;
	/*
	 * Called in a step when new weights are final, also where the group's `weights` is NULL:
	 * for every updated element exactly once before the step returns 0, in runs that do not
	 * overlap, by several threads concurrently and in no order. With nvswap.overlap_step
	 * they begin them from the first group to the last, but for groups that are not
	 * offloaded (`ratio`), which come while the drive is busy. A step that is finished by a
	 * second call, or by the next run, does not repeat the runs of the first. The function
	 * may use other engines and optimizers; calls on this one are -EDEADLK. NULL: none.
	 */
	nvs_weights_final_fn *weights_final;
	void *weights_final_arg;
	/* Share the workers and rings of this aio, which must outlive the optimizer, as
	 * nvs_engine_open_on does. NULL: open others. */
	struct nvs_aio *aio;
	/* With `update`: whose states the optimizer has. Without, optimizer.type chooses. */
	enum nvs_rule rule;
	/* The format of the state, read while the optimizer is opened. NULL: that of
	 * nvswap.optimizer_state. */
	const enum nvs_optimizer_state *state;
	/* A step takes the contents of `weights` for what the caller may have changed: where they
	 * are not the master weight rounded to the group's dtype, they become the master weight
	 * first. Groups without gradients keep theirs. So before the first step of a kept store
	 * that has state, and after nvs_optimizer_set of master weights, which leaves `weights` as
	 * they are, nvs_optimizer_get_weights must be called. False: what the caller writes there
	 * is lost, unless the master weights of a bf16 group are split (docs/state-formats.md), and
	 * then counts. */
	bool take_weights;
};

/*
 * Opens an optimizer: the store of the offload_optimizer block, with space for all groups. The
 * layout is fixed from then on. `ratio` of all elements are offloaded, in whole groups from the
 * first on; the others stay in host memory. State that was never written is created in the first
 * step (fast_init) or here. A kept store keeps its state: the contents of `weights` are ignored,
 * and nvs_optimizer_get_weights fills them. `options` may be NULL. With `groups` NULL and n 0 the
 * groups are those of a kept store, without weights and of any number of elements; ratio,
 * grad_accum_dtype, the format of the state and, if optimizer.type is "", the rule are its own too.
 * nvs_optimizer_get_group_info has their names and sizes.
 *
 * With "nvswap": {"read_only": true} the state of a kept store is only read, by any number of
 * optimizers at once, and nothing of the store changes. nvs_optimizer_get, nvs_optimizer_export,
 * nvs_optimizer_get_weights, nvs_optimizer_set_weights, nvs_optimizer_sum_gradients,
 * nvs_optimizer_sum_groups and calls that return information work; the others are -EROFS, and
 * nvs_optimizer_close commits nothing. The groups, `ratio`, grad_accum_dtype and format must be
 * those of the store; optimizer.type may be any, and the rule is the store's.
 *
 * With another format than fp32, of options->state or nvswap.optimizer_state, the state takes fewer
 * bytes, and is float32 in all calls: see docs/state-formats.md. Unless the store is kept, the
 * master weights of a bf16 group with `weights` are then these and a remainder of 16 bits: to
 * change such weights between steps changes the master weights as much, and to set these changes
 * the weights.
 * Errors: those of nvs_engine_open and nvs_tensor_register, with options->aio those of
 * nvs_engine_open_on, and
 * -E2BIG      a group has more than sub_group_size elements
 * -EINVAL     a value of the configuration is out of range: a ratio, a loss scale, buffer_count 0,
 *             a number of optimizer.params not finite or negative, betas of 1 or more; nesterov
 *             of SGD without momentum or with dampening; options->rule is no rule, or
 *             options->state no format; there are no groups, without them no kept store is
 *             configured, or they have more than 2^56 elements; a group has no name, no elements,
 *             another dtype or weights that are not aligned to an element or overlap those of
 *             another group; the pool (buffer_count x sub_group_size) does not hold two tiles
 * -EEXIST     two groups have the same name
 * -ENOTSUP    optimizer.type is not Adam, AdamW, SGD, Adagrad, Lion or "" (Adam) and no update
 *             function is given, or it is Adam with optimizer.params.amsgrad true; the format is
 *             not fp32 and the rule is not Adam; or fp16_master_weights_and_grads,
 *             bf16_master_weights_and_grads or bf16_optimizer_states is true:
 *             nvswap.optimizer_state chooses the format
 * -ENODATA    nvswap.read_only is true or `groups` is NULL, and there is no kept store or no
 *             optimizer's state in it, or no table of groups
 * -EUCLEAN    the store's metadata, the optimizer's header or the table of groups is damaged
 * -ESTALE     the kept store has other groups, another ratio, grad_accum_dtype, rule or format of
 *             the state, or tensors and no state of an optimizer; or its tiles do not fit the pool
 * -EBADMSG    the drive lost bytes of the state that is read here
 * -ETIMEDOUT  the drive hangs (io_timeout_ms). Memory that it may still write to, and the lock of
 *             the store, are released when the process ends
 */
NVS_API int nvs_optimizer_open(struct nvs_optimizer **optimizer, const struct nvs_config *config,
			       const struct nvs_group_spec *groups, size_t n,
			       const struct nvs_optimizer_options *options,
			       struct nvs_error *error);
/*
 * Closes an optimizer: commits a kept store (see nvs_optimizer_commit) and frees the optimizer,
 * which may be NULL. Waits for the log function: see nvs_log_fn.
 * Errors:
 * -EBUSY      other engines are open on the aio of the optimizer's engine, and nothing is closed:
 *             close them first
 * -ETIMEDOUT  a transfer is overdue (io_timeout_ms) and nothing is closed: call it again or end the
 *             process
 * -EDEADLK    it is called within a call on the optimizer, see above: nothing is closed
 * Others      those of nvs_optimizer_commit: the optimizer is closed, and a kept store is as last
 *             committed
 */
NVS_API int nvs_optimizer_close(struct nvs_optimizer *optimizer, struct nvs_error *error);
/*
 * Closes an optimizer without a commit: a kept store stays as last committed, and steps since are
 * lost. Waits for the log function too. `optimizer` may be NULL.
 * Errors:
 * -EBUSY      as nvs_optimizer_close: nothing is closed
 * -ETIMEDOUT  likewise
 * -EDEADLK    likewise
 */
NVS_API int nvs_optimizer_abandon(struct nvs_optimizer *optimizer, struct nvs_error *error);
/*
 * Returns the optimizer's engine, to look at: its statistics, its pool and aio, the note and number
 * of the last commit, what the store held, and the state of tensors (nvs_tensor_find,
 * nvs_tensor_get_info). It is closed with the optimizer. NULL if `optimizer` is NULL. Calls that
 * would change it, register tensors or move, pin or await them are -EBUSY, with an error that names
 * the optimizer's own call.
 */
NVS_API struct nvs_engine *nvs_optimizer_engine(struct nvs_optimizer *optimizer);

/*
 * Lend and add gradients of the next step, scaled by nvs_optimizer_loss_scale. `dtype` is NVS_F32,
 * NVS_BF16 or NVS_F16; `data` is aligned to an element. The step leaves a group without gradients
 * unchanged, and reads and writes only the tile that it shares with a neighbour.
 *
 * nvs_optimizer_lend_gradients: all gradients of a group, in the caller's memory, which must not
 * change until a step or nvs_optimizer_clear_gradients has returned 0.
 * nvs_optimizer_add_gradients: numel elements from the group's element `offset` on. They are summed
 * with those added since the last step, in data_types.grad_accum_dtype, and kept in the pool, and
 * in the store if the pool has no room. Elements that are never added are zero. *added (may be
 * NULL) is the number of elements that were added, also on an error. Adding 0 elements does
 * nothing, and `data` may be NULL.
 * Errors:
 * -EBUSY   the group has gradients of the other kind, or a step has failed and is not finished
 * -EINVAL  no such group or dtype, elements beyond the group's end, or `data` is NULL or not
 *          aligned
 * Others   those of nvs_tensor_pin and nvs_tensor_swap_in; of the first addition also those of
 *          nvs_tensor_register, such as -ENOSPC
 */
NVS_API int nvs_optimizer_lend_gradients(struct nvs_optimizer *optimizer, size_t group,
					 enum nvs_dtype dtype, const void *data,
					 struct nvs_error *error);
NVS_API int nvs_optimizer_add_gradients(struct nvs_optimizer *optimizer, size_t group,
					uint64_t offset, uint64_t numel, enum nvs_dtype dtype,
					const void *data, uint64_t *added, struct nvs_error *error);
/*
 * Discards all gradients, as a step does at its end.
 * Errors:
 * -EBUSY   a step has failed and is not finished
 * -EINVAL  `optimizer` is NULL
 */
NVS_API int nvs_optimizer_clear_gradients(struct nvs_optimizer *optimizer, struct nvs_error *error);

/* Sums over the gradients of one rank; the caller adds them up over all ranks. */
struct nvs_gradient_sums {
	size_t size;	    /* of this structure in bytes; the caller sets it, see nvs_error */
	double sum_squares; /* of the scaled gradients, 0 or more; inf or nan if one of them is */
};
/*
 * Computes the sums over this optimizer's gradients in one pass. The result does not depend on
 * tiles, threads or kernels.
 * Errors:
 * -EBUSY   a step has failed and is not finished
 * -EINVAL  an argument is NULL, or the structure's size is not set
 */
NVS_API int nvs_optimizer_sum_gradients(struct nvs_optimizer *optimizer,
					struct nvs_gradient_sums *sums, struct nvs_error *error);
/*
 * The same for each group: sum_squares[i], of n, is that of group i; 0 without gradients.
 * Errors:
 * -EBUSY   a step has failed and is not finished
 * -EINVAL  an argument is NULL, or n is not the number of groups
 */
NVS_API int nvs_optimizer_sum_groups(struct nvs_optimizer *optimizer, double *sum_squares, size_t n,
				     struct nvs_error *error);

struct nvs_step_options {
	size_t size; /* of this structure in bytes; the caller sets it, see nvs_error */
	double lr;   /* the learning rate, finite; below 0: the configured one */
	/* the sums over all ranks; NULL: this optimizer has all gradients */
	const struct nvs_gradient_sums *sums;
	bool norm; /* compute the norm for the result even if clipping does not need it */
};

struct nvs_step_result {
	size_t size;	     /* of this structure in bytes; the caller sets it, see nvs_error */
	uint64_t step;	     /* steps so far, without skipped ones */
	bool skipped;	     /* fp16: a gradient was inf or nan; nothing was changed */
	double loss_scale;   /* the loss scale of these gradients */
	double norm;	     /* of the unscaled gradients before clipping; -1: not computed */
	double clip;	     /* the factor of clipping; 1: not clipped */
	uint64_t tiles;	     /* tiles updated */
	uint64_t cpu_ns;     /* processor time of the updates and the norm, all threads */
	uint64_t host_bytes; /* state in host memory, outside the pool (`ratio` below 1) */
	unsigned threads;
	const char *kernel;    /* "avx512", "avx2", "plain" or "caller"; static */
	uint64_t reserved[8];  /* 0; for fields to come */
	struct nvs_step_io io; /* last, so that it can grow */
};

/*
 * Takes one step of all groups that have gradients, and discards these. Returns when everything is
 * computed and written. Gradients are divided by the loss scale. If gradient_clipping is above 0
 * and the norm exceeds it, they are multiplied by gradient_clipping / (norm + 1e-6), as in
 * DeepSpeed. With fp16, a gradient that is inf or nan skips the step, and the loss scale follows
 * DeepSpeed's rules. `options` and `result` may be NULL.
 * Without gradients the call returns 0 and changes nothing, the step count included: as in PyTorch,
 * a parameter without gradients is not stepped. If `sums` are given, the loss scale follows them,
 * so that it stays the same on all ranks.
 * Errors:
 * -EINVAL  lr is not finite in fp32; sum_squares is negative, or not finite without fp16; or a step
 *          was begun by an earlier run with gradients lent (NVS_GRADIENTS_OWED): lend them again
 *          and call again; nothing was changed
 * -EOVERFLOW  2^53 - 1 steps have been taken, the most that are counted; nothing was changed
 * -ERANGE  the step was skipped and the loss scale is at its minimum
 * -EIO and other errors of the drive
 * -ETIMEDOUT  a transfer is overdue (io_timeout_ms)
 * -EBADMSG    the drive lost bytes of the state
 * With one of the last three the step is not finished, and nothing that was computed is lost. Call
 * it again to finish it, with the first call's lr and scale; gradients must still be there. Until
 * then every other call that would change gradients or state returns -EBUSY.
 */
NVS_API int nvs_optimizer_step(struct nvs_optimizer *optimizer,
			       const struct nvs_step_options *options,
			       struct nvs_step_result *result, struct nvs_error *error);
/* Returns the factor to multiply the next step's loss by: 1 without fp16, 0 if `optimizer` is NULL.
 */
NVS_API double nvs_optimizer_loss_scale(struct nvs_optimizer *optimizer);

struct nvs_optimizer_info {
	size_t size;	   /* of this structure in bytes; the caller sets it, see nvs_error */
	uint64_t step;	   /* steps so far, also of the runs before; without skipped ones */
	double loss_scale; /* the factor to multiply the next step's loss by; 1 without fp16 */
	size_t ngroups;
	bool kept;	     /* the store outlives the optimizer */
	bool unfinished;     /* a step has failed, maybe of a run before: call nvs_optimizer_step */
	uint64_t generation; /* number of the store's last commit (nvs_engine_generation) */
	enum nvs_optimizer_state state; /* the format of the state */
	uint64_t numel;			/* elements of all groups */
	uint64_t split_numel;		/* those of them whose master weight is the bf16 weight and
					   a remainder of 16 bits; the others have 4 bytes */
	double step_bytes;		/* read and written by a step for each element that is
					   offloaded and not in the cache: 24 with fp32 and
					   Adam, 16 with a rule of one state */
	enum nvs_rule rule;
};
enum nvs_gradients {
	NVS_GRADIENTS_NONE,
	NVS_GRADIENTS_LENT,
	NVS_GRADIENTS_ADDED,
	NVS_GRADIENTS_OWED, /* lent to the unfinished step of an earlier run: lend them again */
};
struct nvs_group_info {
	size_t size;	  /* of this structure in bytes; the caller sets it, see nvs_error */
	const char *name; /* valid while the optimizer is open */
	uint64_t numel;
	enum nvs_dtype dtype;
	enum nvs_gradients gradients; /* of the next step */
	uint64_t gradients_numel;     /* elements lent, or added since the last step, counted each
					 time; kept by a commit */
};
/*
 * Describe an optimizer, and one of its groups.
 * Errors:
 * -EINVAL  no such group, an argument is NULL, or the structure's size is not set
 */
NVS_API int nvs_optimizer_get_info(struct nvs_optimizer *optimizer, struct nvs_optimizer_info *info,
				   struct nvs_error *error);
NVS_API int nvs_optimizer_get_group_info(struct nvs_optimizer *optimizer, size_t group,
					 struct nvs_group_info *info, struct nvs_error *error);

/* The master weights, and the states that rules have; see enum nvs_rule. */
enum nvs_optimizer_part {
	NVS_MASTER,
	NVS_EXP_AVG,
	NVS_EXP_AVG_SQ,
	NVS_MOMENTUM_BUFFER,
	NVS_SUM,
};
/*
 * Read and write state of a group: numel elements from the group's element `offset` on. `data` has
 * numel elements of the caller's. Only the part that is asked for is read. Calls that walk through
 * a part from one element to the next, in pieces of any length, read each byte once and find the
 * next ones read ahead; walks through all parts may alternate. With another format than fp32
 * what is set is rounded to nearest; in 8 bits that may round the others of its 128 elements again,
 * and master weights that are remainders are read and written with exp_avg_sq. nvs_optimizer_set
 * writes behind: a failed write is reported by this or a later nvs_optimizer_set, by the next pass
 * or by the next commit, and what was set stays in the pool.
 * Errors:
 * -EBUSY   nvs_optimizer_set: a step has failed and is not finished
 * -EINVAL  no such group, a part that the optimizer's rule does not have, elements beyond the
 *          group's end, or a NULL argument
 * Others   those of nvs_tensor_swap_in
 */
NVS_API int nvs_optimizer_get(struct nvs_optimizer *optimizer, size_t group,
			      enum nvs_optimizer_part part, uint64_t offset, uint64_t numel,
			      float *data, struct nvs_error *error);
NVS_API int nvs_optimizer_set(struct nvs_optimizer *optimizer, size_t group,
			      enum nvs_optimizer_part part, uint64_t offset, uint64_t numel,
			      const float *data, struct nvs_error *error);

/* A run of a group's state. The arrays have numel elements and are valid during the call. */
struct nvs_state_run {
	size_t size; /* of this structure in bytes, set by the library */
	size_t group;
	uint64_t offset, numel;		      /* elements of the group; at most 32768 */
	float *master, *exp_avg, *exp_avg_sq; /* NULL: the rule has no such state */
	float *momentum_buffer, *sum;	      /* the same */
};
/* Returns 0, or a negative errno, which ends the export or import. */
typedef int nvs_state_fn(void *arg, const struct nvs_state_run *run);
/*
 * Export and import all state in one pass: each tile is read or written once, with all its parts,
 * while `fn` works on others. `fn` is called for every element of every group exactly once, in runs
 * that do not overlap, by several threads concurrently and in no order. It may use other engines
 * and optimizers; calls on this one are -EDEADLK.
 *
 * nvs_optimizer_export: `fn` reads the arrays and changes nothing.
 * nvs_optimizer_import: `fn` fills the arrays, whose contents are undefined; nothing is read from
 * the drive. The imported master weights are copied to the groups' `weights`. After an error some
 * tiles are imported and the others are not: import again. The step count is not part of the state:
 * see nvs_optimizer_set_step.
 * Errors:
 * -EBUSY   a step has failed and is not finished
 * -EINVAL  an argument is NULL, or `fn` has returned a positive number
 * Others   the negative errno that `fn` has returned; those of nvs_tensor_swap_in, and of writing
 *          back
 */
NVS_API int nvs_optimizer_export(struct nvs_optimizer *optimizer, nvs_state_fn *fn, void *arg,
				 struct nvs_error *error);
NVS_API int nvs_optimizer_import(struct nvs_optimizer *optimizer, nvs_state_fn *fn, void *arg,
				 struct nvs_error *error);
/*
 * Sets the number of steps taken, 0 to 2^53 - 1, for an imported state: the next step's bias
 * correction, Adagrad's lr_decay and SGD's first momentum_buffer go by it.
 * Errors:
 * -EBUSY   a step has failed and is not finished
 * -EINVAL  `step` is out of bounds, or `optimizer` is NULL
 */
NVS_API int nvs_optimizer_set_step(struct nvs_optimizer *optimizer, uint64_t step,
				   struct nvs_error *error);
/*
 * Copies the master weights of every group to its `weights`, as a step does. After an error some of
 * them are copied and the others are not. Weights that are a part of their master weights
 * (nvs_optimizer_info.split_numel) stay as they are.
 * Errors:
 * -EINVAL  `optimizer` is NULL
 * Others   those of nvs_tensor_swap_in and nvs_tensor_wait; that of a write of nvs_optimizer_set
 */
NVS_API int nvs_optimizer_get_weights(struct nvs_optimizer *optimizer, struct nvs_error *error);
/*
 * Moves groups' `weights`: weights[i], of n, is where those of group i are from now on, with the
 * same elements, or NULL: they stay. The contents are the caller's to copy; they are a part of
 * split master weights.
 * Errors, with which nothing is changed:
 * -EBUSY   a step has failed and is not finished
 * -EINVAL  `optimizer` or `weights` is NULL, n is not the number of groups, a group had no
 *          `weights`, or new ones are not aligned to an element or overlap those of another group
 * -ENOMEM  the system refuses memory
 */
NVS_API int nvs_optimizer_set_weights(struct nvs_optimizer *optimizer, void *const *weights,
				      size_t n, struct nvs_error *error);
/*
 * Commits the state of an optimizer: makes it durable, with step count, loss scale and added
 * gradients, as nvs_engine_commit does. A run that reopens the store, even after a crash in a later
 * step, computes the same bits. Without `keep` the call does nothing.
 * Errors: those of nvs_engine_commit.
 */
NVS_API int nvs_optimizer_commit(struct nvs_optimizer *optimizer, struct nvs_error *error);
/*
 * Set and get the note of the optimizer's commits, as nvs_engine_set_note and nvs_engine_get_note
 * do.
 * Errors: those of nvs_engine_set_note and nvs_engine_get_note, and
 * -EINVAL  `optimizer` is NULL
 */
NVS_API int nvs_optimizer_set_note(struct nvs_optimizer *optimizer, const void *note, size_t nbytes,
				   struct nvs_error *error);
NVS_API int nvs_optimizer_get_note(struct nvs_optimizer *optimizer, void *note, size_t *nbytes);

struct nvs_state_conversion {
	size_t size; /* of this structure in bytes; the caller sets it, see nvs_error */
	enum nvs_optimizer_state from, to; /* NVS_STATE_SPLIT in a kept store is NVS_STATE_FP32 */
	uint64_t numel;			   /* elements of all groups */
	uint64_t rounded;		   /* of their 2 x numel moments of Adam, those that have
					      changed */
	uint64_t step;			   /* steps so far */
	uint64_t generation;		   /* number of the store's last commit */
};
/*
 * Converts the state of a kept store to another format, as nvs_optimizer_open with `groups` NULL
 * finds it, which must not be open, and commits that: a crash at any moment leaves the store in the
 * old format or in the new one, and so does an error. Moments are rounded to nearest; master
 * weights, gradients, the loss scale, the note and a step that is unfinished stay. fp32 has all
 * values of the other formats, so what is converted to it and back has the same bits, but for
 * moments of 8 bits that underflow. The store grows by the new moments, and keeps the room of the
 * old ones for what is written later. *result is set if 0 is returned. If the store has the format,
 * nothing is done.
 * Errors: those of nvs_optimizer_open with `groups` NULL and those of nvs_optimizer_commit, and
 * -EINVAL     `result` is NULL or its size is not set, or `state` is no format
 * -ENOTSUP    the rule is not Adam, and `state` is NVS_STATE_BF16 or NVS_STATE_8BIT
 * -EROFS      nvswap.read_only is true
 * -ENOSPC     the drive has no room for the new moments beside the old ones
 */
NVS_API int nvs_optimizer_convert(const struct nvs_config *config, enum nvs_optimizer_state state,
				  struct nvs_state_conversion *result, struct nvs_error *error);

/* One Adam update of the caller's arrays, which have numel elements and do not overlap. */
struct nvs_adam_update {
	size_t size;	/* of this structure in bytes, set by the caller */
	uint64_t numel; /* up to 2^56; 0: nothing is done */
	uint64_t step;	/* from 1 to 2^53 - 1 */
	double lr, beta1, beta2, eps, weight_decay; /* 0 and above, finite; betas below 1 */
	bool adam_w_mode, bias_correction;
	const void *gradients;
	enum nvs_dtype gradients_dtype;	      /* NVS_F32, NVS_BF16 or NVS_F16 */
	double grad_factor;		      /* gradients are multiplied by it first, such as
						 clipping / loss scale, or -1 to maximize;
						 finite; 0: 1 */
	float *master, *exp_avg, *exp_avg_sq; /* read and updated */
	enum nvs_dtype weights_dtype;	      /* NVS_F32, NVS_BF16 or NVS_F16; without weights
						 any of enum nvs_dtype, such as 0 */
	void *weights;			      /* receives the updated master; NULL: no such array */
};
/*
 * Does one Adam update of the caller's arrays, with the optimizer's best kernels for this
 * processor: the bits are those of nvs_optimizer_step. It is done on the calling thread, allocates
 * nothing and keeps nothing, so any number of threads may call it for different arrays.
 * Errors, with which nothing is changed:
 * -EINVAL  an array is NULL or not aligned to an element, a type is other than named above, or a
 *          number is out of bounds
 * -E2BIG   `size` is larger than this version's, and a field that it does not know is not zero
 */
NVS_API int nvs_adam_update(const struct nvs_adam_update *update, struct nvs_error *error);

/* One update of the caller's arrays, which have numel elements and do not overlap, by any rule. */
struct nvs_rule_update {
	size_t size; /* of this structure in bytes, set by the caller */
	enum nvs_rule rule;
	uint64_t numel; /* up to 2^56; 0: nothing is done */
	uint64_t step;	/* from 1 to 2^53 - 1 */
	/* 0 and above, finite; betas below 1; those that the rule does not have, too. */
	double lr, beta1, beta2, eps, weight_decay;
	double momentum, dampening; /* NVS_RULE_SGD */
	double lr_decay;	    /* NVS_RULE_ADAGRAD */
	bool adam_w_mode, bias_correction;
	bool nesterov; /* NVS_RULE_SGD: needs momentum, and no dampening */
	const void *gradients;
	enum nvs_dtype gradients_dtype;	      /* NVS_F32, NVS_BF16 or NVS_F16 */
	double grad_factor;		      /* as of nvs_adam_update */
	float *master, *exp_avg, *exp_avg_sq; /* read and updated; those of other rules are */
	float *momentum_buffer, *sum;	      /* not looked at */
	enum nvs_dtype weights_dtype;	      /* as of nvs_adam_update */
	void *weights;			      /* receives the updated master; NULL: no such array */
};
/*
 * Does one update of the caller's arrays by a rule, as nvs_adam_update does one of Adam.
 * Errors, with which nothing is changed:
 * -EINVAL  an array is NULL or not aligned to an element, a type or rule is other than named above,
 *          or a number is out of bounds
 * -E2BIG   `size` is larger than this version's, and a field that it does not know is not zero
 */
NVS_API int nvs_rule_update(const struct nvs_rule_update *update, struct nvs_error *error);

#ifdef __cplusplus
}
#endif

#endif
