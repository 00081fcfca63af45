/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests share that make the n-th I/O, call or allocation fail: a store on a simulated
 * drive with more tensors than its pool holds, which knows what each must hold, and a count of what
 * is held of memory and files.
 */
#ifndef TESTS_SUPPORT_NTH_FIXTURE_H
#define TESTS_SUPPORT_NTH_FIXTURE_H

#include "support/inject.h"
#include "support/sim/sim_drive.h"
#include "swap/swap_fixture.h"

#define TENSORS 10u
#define PART	(12 * KIB)
#define ROOM	6u /* of the TENSORS tensors, in the pool */
#define N_LIMIT 2000u
/* From one n to the next where a run takes long: a sanitizer looks at every third. */
#define N_STEP (SANITIZED ? 3u : 1u)

struct world {
	struct fixture f;
	struct sim *drive;
	struct nvs_tensor *t[TENSORS];
	uint64_t seed[TENSORS]; /* of what it holds; 0: nothing */
	uint64_t seeds;		/* given out */
	int error;		/* what a failure answers: a positive errno */
	unsigned told;		/* calls that returned it */
};

/* A pool and queues that are too small for all of it. */
#define SMALL .pool_bytes = ROOM * PART, .block_size = 4 * KIB, .queue_depth = 4

/* The place and the drive, without an engine. */
void world_make(struct world *w, const struct setup *setup);
/* The engine on that drive: the result of nvs_engine_open. */
int world_try_open(struct world *w);
void world_add_tensors(struct world *w);
/* All of these. */
void world_open(struct world *w, const struct setup *setup);
void world_close(struct world *w);

/* Whether the call failed; then its error must have the injected errno, and the place. */
bool world_told(struct world *w, int rc);
/* Whether a call that failed (inject_failed_call()) may be survived: without it all works, but ...
 */
bool world_survives(const struct world *w, const char *call);

/* New contents, which may stay in the pool; false where no room could be had, and it has the old.
 */
bool world_change(struct world *w, unsigned i);
/* Whether the resident contents of tensor i are the expected ones. */
bool world_has_bytes(struct world *w, unsigned i);
/* Waits for what was read, compares what was, and ends its uses. */
void world_look_at(struct world *w, unsigned first, unsigned n);
/* New contents for all, out to the drive and back again; any of it may fail. */
void world_swaps(struct world *w);
/* A step that reads and changes every tensor, in the order of the one before. */
void world_step(struct world *w);
/*
 * Nothing fails any more: every tensor has its bytes, and what has none says so and can be had
 * again. Leaves all of them on the drive, and committed where that is kept.
 */
void world_is_well(struct world *w);

/* As much is held as before, or else it is told that `what`, the n-th time, kept something. */
void same_held(const struct inject_held *before, const char *what, uint64_t n);

#endif
