/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan: the order in which a step asks for tensors, as the last step did, and where in it the
 * present one is. It knows when each tensor is needed next, how far away that is, and which of
 * those out of use in the pool is needed last. Under the engine's lock.
 */
#ifndef SWAP_PLAN_H
#define SWAP_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nvs_engine;
struct nvs_tensor;

#define PLAN_NONE SIZE_MAX

struct access {
	struct nvs_tensor *tensor;
	bool contents; /* they were asked for; false: they were made anew */
};

/* Large tensors, and those so small that they always stay. */
enum plan_class { PLAN_LARGE, PLAN_SMALL };

struct plan {
	struct access *order; /* the plan; it begins again after its end */
	size_t n, order_max;
	size_t *next;	    /* for each access the position of the same tensor's next */
	uint64_t *before;   /* elements asked for before each; [n]: in all */
	uint64_t *idle[2];  /* bit i, by class: the tensor needed next at i is out of use */
	size_t cursor;	    /* of the access that comes next */
	size_t resume;	    /* where the order goes on if a departure was a jump */
	size_t settled;	    /* so many accesses from the cursor on need nothing to be read */
	uint64_t extents;   /* bytes of all its tensors */
	uint64_t resident;  /* of these, in the pool */
	uint64_t lookahead; /* bytes of the elements that may be fetched ahead and one tensor */

	struct access *recording; /* of the present step */
	size_t nrecorded, recording_max;
	uint64_t step; /* counts them */
	bool same;     /* so far it is as planned */
	bool lost;     /* it could not be recorded, or has lost a tensor */
};

void plan_free(struct plan *plan);

/* ---- Recording ---- */
void plan_begin(struct plan *plan);
/* Notes that the tensor was asked for, and moves on. */
void plan_access(struct nvs_engine *engine, struct nvs_tensor *tensor, bool contents);
/*
 * Makes the recording the plan, where there is none. False: there is no memory for that, and still
 * no plan. Its tensors know their next uses then; to be `planned` is given to them, and taken from
 * them before a plan is cleared, by plan_drop and the end of a step.
 */
bool plan_adopt(struct nvs_engine *engine);
void plan_clear(struct plan *plan);
/* The tensor is about to be gone: whether the plan has it. A recording that has it is lost. */
bool plan_has(struct plan *plan, const struct nvs_tensor *tensor);

/* ---- Asking ---- */
/* How many accesses, and how many elements asked for, come before the position. */
size_t plan_rank(const struct plan *plan, size_t at);
uint64_t plan_distance(const struct plan *plan, size_t at);
/* Where the tensor of the class lies that is out of use and needed last; and last before `at`. */
size_t plan_last(const struct plan *plan, enum plan_class class);
size_t plan_last_before(const struct plan *plan, enum plan_class class, size_t at);

/* ---- Telling: of tensors in the plan ---- */
void plan_mark_idle(struct plan *plan, const struct nvs_tensor *tensor, bool idle);
/* It is no longer in the pool. */
void plan_unsettle(struct plan *plan, const struct nvs_tensor *tensor);

#endif
