/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients between two steps: lent ones stay in the caller's memory; added ones are summed in
 * tensors of the engine, which keeps them in the pool while it has room. Also the pass over the
 * gradients that computes their norm.
 *
 * Squares are summed over blocks of 1024 elements, and the blocks' sums in order, so the norm has
 * the same bits for all lengths of tiles, numbers of threads and kernels. Before a step the
 * gradients that its walk needs last make room for its first tiles; a gradient tensor is
 * discarded, not written, when the last tile that needs it is done.
 */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "base/threads/cancel.h"
#include "optim/internal.h"

/* ---- Checks ---- */

static int check_gradients(const struct nvs_optimizer *optimizer, size_t group, uint64_t offset,
			   uint64_t numel, enum nvs_dtype dtype, const void *data,
			   struct nvs_error *error)
{
	int rc = check_range(optimizer, group, offset, numel, error);

	if (!rc && !is_element(dtype))
		rc = error_about(error, -EINVAL, optimizer->groups[group].name, 0, 0,
				 "gradients are F32, BF16 or F16, not %s", nvs_dtype_name(dtype));
	if (rc || !numel)
		return rc;
	if (!data)
		return error_about(error, -EINVAL, optimizer->groups[group].name, 0, 0,
				   "no gradients are given for group %s",
				   optimizer->groups[group].name);
	if ((uintptr_t)data % nvs_dtype_size(dtype))
		return error_about(error, -EINVAL, optimizer->groups[group].name, 0, 0,
				   "the gradients for group %s are not aligned to an element of "
				   "%zu bytes",
				   optimizer->groups[group].name, nvs_dtype_size(dtype));
	return 0;
}

static int other_kind(const struct group *group, struct nvs_error *error)
{
	return error_about(error, -EBUSY, group->name, 0, 0,
			   "gradients of group %s have been %s already: a group's gradients are "
			   "either lent or added between two steps",
			   group->name, group->gradients == NVS_GRADIENTS_LENT ? "lent" : "added");
}

/* ---- Lending ---- */

int nvs_optimizer_lend_gradients(struct nvs_optimizer *optimizer, size_t group,
				 enum nvs_dtype dtype, const void *data, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct group *which;
	int rc = call_begin(optimizer, CALL_CHANGES, error);

	if (rc)
		return rc;
	which = optimizer->groups + (group < optimizer->ngroups ? group : 0);
	rc = check_gradients(optimizer, group, 0, 1, dtype, data, error);
	if (!rc && which->gradients != NVS_GRADIENTS_OWED)
		rc = refuse_unfinished(optimizer, error);
	if (!rc && which->gradients == NVS_GRADIENTS_ADDED)
		rc = other_kind(which, error);
	if (!rc) {
		which->lent = data;
		which->lent_dtype = dtype;
		group_set_gradients(optimizer, which, NVS_GRADIENTS_LENT);
	}
	call_end(optimizer);
	return rc;
}

/* ---- Adding ---- */

/* Pins the gradient tile; one to which nothing was added becomes zeros. */
static int pin_tile(struct nvs_optimizer *optimizer, struct gradient_tile *tile,
		    struct nvs_error *error)
{
	int rc;

	/* No pass is under way, whose tiles would share another pin. */
	assert(tile->tensor && !tile->sharers);
	if (!tile->valid) {
		rc = pin_in_room(optimizer, NULL, NO_TILE, &tile->tensor, 1, false, &tile->pin,
				 error);
		if (!rc)
			memset(nvs_tensor_data(tile->tensor), 0, gradients_nbytes(optimizer));
		return rc;
	}
	return pin_and_read(optimizer, NO_TILE, &tile->tensor, 1, &tile->pin, error);
}

int nvs_optimizer_add_gradients(struct nvs_optimizer *optimizer, size_t group, uint64_t offset,
				uint64_t numel, enum nvs_dtype dtype, const void *data,
				uint64_t *added, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct group *which;
	uint64_t done = 0;
	int rc = call_begin(optimizer, CALL_CHANGES | CALL_BETWEEN_STEPS, error);

	if (added)
		*added = 0;
	if (rc)
		return rc;
	which = optimizer->groups + (group < optimizer->ngroups ? group : 0);
	rc = check_gradients(optimizer, group, offset, numel, dtype, data, error);
	if (!rc && which->gradients == NVS_GRADIENTS_LENT)
		rc = other_kind(which, error);
	if (!rc && numel)
		rc = register_gradients(optimizer, error);
	while (!rc && done < numel) {
		uint64_t from = which->at + offset + done,
			 within = from % optimizer->gradient_numel;
		uint64_t n = min_u64(numel - done, optimizer->gradient_numel - within);
		struct gradient_tile *tile =
			&optimizer->gradients[from / optimizer->gradient_numel];

		rc = pin_tile(optimizer, tile, error);
		if (rc)
			break;
		optimizer->kernel->add((char *)nvs_tensor_data(tile->tensor) +
					       within * nvs_dtype_size(optimizer->gradient_dtype),
				       optimizer->gradient_dtype,
				       (const char *)data + done * nvs_dtype_size(dtype), dtype, n);
		tile->valid = true;
		done += n;
		rc = batch_release(optimizer->engine, &tile->tensor, 1, tile->pin, NVS_DIRTY,
				   error);
	}
	which->added = min_u64(which->added + done, HEADER_COUNTS_MAX);
	if (done)
		group_set_gradients(optimizer, which, NVS_GRADIENTS_ADDED);
	call_end(optimizer);
	if (added)
		*added = done;
	return rc;
}

/* ---- Discarding ---- */

void gradients_discard(struct nvs_optimizer *optimizer, struct gradient_tile *gradients)
{
	assert(gradients->valid && gradients->pin);
	assert(!gradients->users);
	engine_discard(optimizer->engine, gradients->tensor, gradients->pin);
	gradients->valid = false;
}

void gradients_clear(struct nvs_optimizer *optimizer)
{
	for (size_t i = 0; i < optimizer->ngradients; i++) {
		struct gradient_tile *tile = &optimizer->gradients[i];

		if (tile->valid) {
			tile->valid = false;
			engine_discard(optimizer->engine, tile->tensor, 0);
		}
	}
	for (size_t i = 0; i < optimizer->ngroups; i++) {
		optimizer->groups[i].lent = NULL;
		optimizer->groups[i].added = 0;
		group_set_gradients(optimizer, &optimizer->groups[i], NVS_GRADIENTS_NONE);
	}
}

int nvs_optimizer_clear_gradients(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	HOLD_CANCEL;
	int rc = call_begin(optimizer, CALL_CHANGES | CALL_BETWEEN_STEPS, error);

	if (rc)
		return rc;
	gradients_clear(optimizer);
	call_end(optimizer);
	return 0;
}

/* ---- Sums ---- */

const char *gradients_at(const struct nvs_optimizer *optimizer, const struct segment *segment,
			 enum nvs_dtype *dtype)
{
	const struct group *group = &optimizer->groups[segment->group];
	const struct gradient_tile *tile;
	uint64_t within = segment->at % optimizer->gradient_numel;
	const char *added;

	assert(has_gradients(group) && segment->offset + segment->numel <= group->numel);
	if (group->gradients == NVS_GRADIENTS_LENT) {
		*dtype = group->lent_dtype;
		return group->lent + segment->offset * nvs_dtype_size(*dtype);
	}
	*dtype = optimizer->gradient_dtype;
	tile = &optimizer->gradients[segment->at / optimizer->gradient_numel];
	assert(within + segment->numel <= optimizer->gradient_numel);
	if (!tile->valid)
		return (const char *)optimizer->zeros;
	added = nvs_tensor_data(tile->tensor);
	return added + within * nvs_dtype_size(*dtype);
}

/* The threads sum blocks [first, first + n) of the flat space into optimizer->sums. */
struct sum_task {
	struct nvs_optimizer *optimizer;
	uint64_t first, n;
	uint64_t taken;
	uint64_t ns, cpu_ns;
};

#define BLOCKS_TAKEN 64u

static double sum_block(const struct nvs_optimizer *optimizer, uint64_t block)
{
	uint64_t from = block * SUM_BLOCK, end = from + SUM_BLOCK;
	struct segment segment;
	enum nvs_dtype dtype;
	const char *gradients;

	/* Groups begin at block boundaries, so a block has one group or padding. */
	if (!next_segment(optimizer, &from, end, &segment) ||
	    !has_gradients(&optimizer->groups[segment.group]))
		return 0;
	gradients = gradients_at(optimizer, &segment, &dtype);
	return gradients == (const char *)optimizer->zeros
		       ? 0
		       : optimizer->kernel->sum_squares(gradients, dtype, segment.numel);
}

static void sum_blocks(void *arg, unsigned thread)
{
	struct sum_task *task = arg;
	uint64_t begun = clock_ns(), cpu_begun = thread_cpu_ns(), from;

	(void)thread;
	while ((from = __atomic_fetch_add(&task->taken, BLOCKS_TAKEN, __ATOMIC_RELAXED)) < task->n)
		for (uint64_t i = from; i < from + BLOCKS_TAKEN && i < task->n; i++)
			task->optimizer->sums[i] = sum_block(task->optimizer, task->first + i);
	__atomic_add_fetch(&task->ns, clock_ns() - begun, __ATOMIC_RELAXED);
	__atomic_add_fetch(&task->cpu_ns, thread_cpu_ns() - cpu_begun, __ATOMIC_RELAXED);
}

static void sum_range(struct nvs_optimizer *optimizer, uint64_t from, uint64_t end, double *sum,
		      double *groups)
{
	struct segment segment = {0};

	assert(from % SUM_BLOCK == 0 && from < end && end <= optimizer->flat);
	while (from < end) {
		struct sum_task task = {.optimizer = optimizer,
					.first = from / SUM_BLOCK,
					.n = (end - from + SUM_BLOCK - 1) / SUM_BLOCK};

		if (task.n > SUM_BLOCKS)
			task.n = SUM_BLOCKS;
		threads_run(optimizer->threads, sum_blocks, &task);
		optimizer->sum_ns += task.ns;
		optimizer->sum_cpu_ns += task.cpu_ns;
		/* In order, so that the sum does not depend on the threads. */
		for (uint64_t i = 0; i < task.n; i++) {
			uint64_t at = (task.first + i) * SUM_BLOCK;

			*sum += optimizer->sums[i];
			if (groups && next_segment(optimizer, &at, at + SUM_BLOCK, &segment))
				groups[segment.group] += optimizer->sums[i];
		}
		from += task.n * SUM_BLOCK;
	}
}

int gradients_sum(struct nvs_optimizer *optimizer, double *sum, double *groups,
		  struct nvs_error *error)
{
	uint64_t numel = optimizer->gradient_numel;

	*sum = 0;
	for (size_t i = 0; groups && i < optimizer->ngroups; i++)
		groups[i] = 0;
	for (size_t i = 0; i < optimizer->ngradients; i++) {
		struct gradient_tile *tile = &optimizer->gradients[i];
		uint64_t from = i * numel, end = from + numel;
		bool valid = tile->valid;
		int rc = 0;

		/* A run of tiles without added gradients is summed at once. */
		while (!valid && i + 1 < optimizer->ngradients && !tile[1].valid) {
			tile++;
			i++;
			end += numel;
		}
		if (valid)
			rc = pin_tile(optimizer, tile, error);
		if (rc)
			return rc;
		if (i + 1 < optimizer->ngradients && optimizer->gradients[i + 1].valid)
			batch_prefetch(optimizer->engine, &optimizer->gradients[i + 1].tensor, 1,
				       NULL);
		sum_range(optimizer, from, end < optimizer->flat ? end : optimizer->flat, sum,
			  groups);
		if (valid)
			rc = batch_release(optimizer->engine, &tile->tensor, 1, tile->pin,
					   NVS_CLEAN, error);
		if (rc)
			return rc;
	}
	return 0;
}

int nvs_optimizer_sum_gradients(struct nvs_optimizer *optimizer, struct nvs_gradient_sums *sums,
				struct nvs_error *error)
{
	HOLD_CANCEL;
	struct nvs_gradient_sums full = {.size = sizeof(full)};
	int rc = check_given(sums, "sums", error);

	rc = rc ?: call_begin(optimizer, CALL_BETWEEN_STEPS, error);
	if (rc)
		return rc;
	rc = gradients_sum(optimizer, &full.sum_squares, NULL, error);
	call_end(optimizer);
	if (!rc && struct_out(sums, &full, sizeof(full)))
		rc = error_set(error, -EINVAL, "sums->size is not set");
	return rc;
}

int nvs_optimizer_sum_groups(struct nvs_optimizer *optimizer, double *sum_squares, size_t n,
			     struct nvs_error *error)
{
	HOLD_CANCEL;
	double sum;
	int rc = check_given(sum_squares, "sum_squares", error);

	rc = rc ?: call_begin(optimizer, CALL_BETWEEN_STEPS, error);
	if (rc)
		return rc;
	rc = check_ngroups(optimizer, n, error);
	rc = rc ?: gradients_sum(optimizer, &sum, sum_squares, error);
	call_end(optimizer);
	return rc;
}
