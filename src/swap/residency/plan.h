/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan: the order in which the last step accessed tensors, and the position of the present
 * step in it. It knows when each tensor is needed next, at what distance, and which unpinned
 * tensor in the pool is needed last. Under the engine's lock.
 */
#ifndef RESIDENCY_PLAN_H
#define RESIDENCY_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nvs_engine;
struct nvs_tensor;

#define PLAN_NONE SIZE_MAX
/* Of plan->idle. */
#define WORD_BITS 64

struct access {
	struct nvs_tensor *tensor;
	bool contents; /* swapped in; false: pinned for new contents */
};

/* Small tensors stay in the pool (stage3_param_persistence_threshold), if half of it holds them. */
enum plan_class {
	PLAN_LARGE,
	PLAN_SMALL,
	PLAN_OUTSIDE, /* not in the plan */
} __attribute__((packed));

_Static_assert(PLAN_LARGE == 0 && PLAN_SMALL == 1, "classes index plan->idle");

struct plan {
	struct access *order; /* the plan, a ring */
	size_t n, order_max;
	size_t *next;	    /* for each access: the position of the tensor's next access */
	uint64_t *before;   /* for each access: elements accessed before; [n]: in all */
	uint64_t *idle[2];  /* by class; bit i: the tensor of access i is unpinned in the pool */
	size_t cursor;	    /* the next access */
	size_t resume;	    /* the next access if the last departure was a jump */
	size_t ready;	    /* accesses from the cursor on whose tensors need no read */
	uint64_t extents;   /* bytes of all tensors in the plan */
	uint64_t resident;  /* of these, bytes in the pool */
	uint64_t lookahead; /* bytes that may be read ahead, plus one tensor */
	uint64_t reach;	    /* elements accessed before the last one that may be read ahead */

	struct access *recording; /* the present step so far */
	size_t nrecorded, recording_max;
	uint64_t step; /* the step's number */
	bool same;     /* so far the step follows the plan */
	bool lost;     /* the recording ran out of memory, or one of its tensors is gone */
};

void plan_free(struct plan *plan);

/* Asserts what must hold of the positions and sums. */
void plan_check(const struct plan *plan);
void plan_clear(struct plan *plan);

/* ---- Asking ---- */
/* How many accesses, and how many elements accessed, come before the position. */
size_t plan_rank(const struct plan *plan, size_t at);
uint64_t plan_distance(const struct plan *plan, size_t at);
/* The access of the class's unpinned tensor that is needed last; and last before `at`. */
size_t plan_last(const struct plan *plan, enum plan_class class);
size_t plan_last_before(const struct plan *plan, enum plan_class class, size_t at);

/* ---- Telling: of tensors in the plan ---- */
bool plan_is_idle(const struct plan *plan, const struct nvs_tensor *tensor);
void plan_mark_idle(struct plan *plan, const struct nvs_tensor *tensor, bool idle);
/* The tensor has left the pool. */
void plan_needs_read(struct plan *plan, const struct nvs_tensor *tensor);

#endif
