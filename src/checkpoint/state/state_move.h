/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves all state of an optimizer by whole tiles: each is read or written once, with all its
 * parts. The transfers of several tiles between pool and files are in flight while the next ones
 * are read from the store, or those before are written to it.
 */
#ifndef CHECKPOINT_STATE_MOVE_H
#define CHECKPOINT_STATE_MOVE_H

#include "checkpoint/checkpoint.h"
#include "optim/optimizer.h"

#define STEPS_MAX ((UINT64_C(1) << 53) - 1) /* of nvs_optimizer_set_step */
/* The rule of an optimizer. */
int state_rule(const struct rule **rule, struct nvs_optimizer *optimizer, struct nvs_error *error);
/* What checkpoints call part i of a rule: "fp32" or the name of the state. */
const char *state_part_name(const struct rule *rule, unsigned i);

/* Elements of a group that lie side by side in a tensor of a checkpoint, in each of the parts. */
struct fragment {
	size_t group;
	uint64_t offset, numel; /* in the group */
	uint64_t at;		/* of the first in the tensor */
};

struct open_file;

/* A transfer between the pool and one file: elements of a part of a fragment. */
struct state_io {
	size_t fragment;
	unsigned part;
	float *data;
	uint64_t numel;
	uint64_t at; /* of the first in the tensor */
	struct nvs_request *requests[WRITES_MAX];
	size_t n;
	struct open_file *file; /* for `submit` and `release` */
};

struct state_move {
	/* Set by the caller. By group and offset; they do not overlap. */
	const struct fragment *fragments;
	size_t nfragments;
	bool importing; /* elements of no fragment become 0 */
	/* Submits the requests of an I/O. Called by several threads, each with I/Os of its own. */
	int (*submit)(struct state_move *move, struct state_io *io, struct nvs_error *error);
	/* Called in the same way when an I/O's transfers have succeeded; NULL: nothing to do. */
	void (*landed)(struct state_move *move, const struct state_io *io);
	/* Called in the same way when an I/O has ended, also after an error; NULL: nothing to
	 * do. */
	void (*release)(struct state_move *move, struct state_io *io);
	void *arg;
	struct nvs_aio *aio; /* of the optimizer */
	const struct rule *rule;

	struct flight *flights;
	struct nvs_error error; /* the first of a transfer */
	int failed;		/* it is set; atomic */
};

/*
 * Adds to *sum what the elements of an I/O contribute to the CRC-32 of a tensor of `numel`
 * elements. When all have been added, in any order and by any thread, *sum, first 0, is the CRC-32.
 */
void state_io_sum(const struct state_io *io, uint64_t numel, uint32_t *sum);

/* -EBUSY: the optimizer has taken another number of steps by now, so its state is not that of
 * `step`. */
int check_step_since(struct nvs_optimizer *optimizer, uint64_t step, struct nvs_error *error);

/* Moves it. Errors: those of submit, -ENOMEM, and those of optimizer_export_tiles and its like. */
int state_move_run(struct state_move *move, struct nvs_optimizer *optimizer,
		   struct nvs_error *error);

#endif
