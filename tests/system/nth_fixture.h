/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests that make the n-th I/O, call or allocation fail: a store on a simulated drive
 * with more tensors than its pool has room for, their expected contents, and a count of open files
 * and memory.
 */
#ifndef TESTS_SYSTEM_NTH_FIXTURE_H
#define TESTS_SYSTEM_NTH_FIXTURE_H

#include "support/inject.h"
#include "support/sim/sim_drive.h"
#include "swap/swap_fixture.h"

#define TENSORS 10u
#define PART	(12 * KIB)
#define ROOM	6u /* tensors that fit in the pool */
#define N_LIMIT 2000u
/* Step of n in long runs, which sanitizers make slow. */
#define N_STEP (SANITIZED ? 3u : 1u)

struct world {
	struct fixture f;
	struct nvs_tensor *t[TENSORS];
	uint64_t seed[TENSORS]; /* seed of the expected contents; 0: none */
	uint64_t seeds;		/* seeds used so far */
	int error;		/* errno to inject, positive */
	unsigned failures;	/* calls that failed with it */
};

/* What fails: I/Os of the drive, or system calls. */
struct faulty {
	unsigned ios;	/* SIM_READS, SIM_WRITES or both; 0: the calls of `kinds` */
	unsigned kinds; /* of inject_fail() */
	int error;
	bool lasts; /* all later ones fail, too */
};
/* The n-th of them fails from now on; until nth_disarm(), which returns whether there was one. */
void nth_arm(struct sim *sim, const struct faulty *what, uint64_t n);
bool nth_disarm(struct sim *sim);

/* Performs an operation and undoes it; returns 0 or its error. */
typedef int attempt_fn(void *arg, struct nvs_error *error);
/* Whether an operation may succeed although this call fails (inject_failed_call()). */
typedef bool survives_fn(const char *call);
bool survives_all(const char *call);
/*
 * Makes each call of these kinds fail once with the errno: the operation returns an error with a
 * text, or `survives` (NULL: nothing does), and leaves nothing behind. Returns how often it
 * returned one.
 */
unsigned fail_each(attempt_fn *attempt, void *arg, unsigned kinds, int error,
		   survives_fn *survives);

/* Pool and queues are too small for all tensors at the same time. */
#define SMALL .pool_bytes = ROOM * PART, .block_size = 4 * KIB, .queue_depth = 4

/* Makes directory and drive, without an engine. */
void world_make(struct world *w, const struct setup *setup);
/* Opens the engine on that drive; returns the result of nvs_engine_open. */
int world_try_open(struct world *w);
void world_add_tensors(struct world *w);
/* Makes everything and registers the tensors. */
void world_open(struct world *w, const struct setup *setup);

/*
 * Whether the call failed; then its error must have the injected errno and, but for a failure of
 * memory, the path.
 */
bool world_failed(struct world *w, int rc);
/*
 * Whether the library may survive a failure of `call` (inject_failed_call()) without reporting it,
 * with a store at the path.
 */
bool survives_at(const char *path, const char *call);

/*
 * Writes new contents, which may stay in the pool; false if no room was available, and then the old
 * contents are kept.
 */
bool world_change(struct world *w, unsigned i);
/* Whether the resident contents of tensor i are the expected ones. */
bool world_has_bytes(struct world *w, unsigned i);
/* Waits for the tensors, checks those that were read, and releases them. */
void world_check(struct world *w, unsigned first, unsigned n);
/* Swaps all out, and waits; both may fail. */
void world_swaps_out(struct world *w);
/* Swaps new contents of all tensors out and in; any call may fail. */
void world_swaps(struct world *w);
/* Reads and changes every tensor in one step, in the order of the previous one. */
void world_step(struct world *w);
/*
 * After the faults have ended, every tensor has its contents, and one without reports it and can be
 * written. Leaves all tensors on the drive, committed in a kept store.
 */
void world_check_all(struct world *w);

/*
 * The same files and memory must be held as before; `what` and `n` name the failed call otherwise.
 */
void assert_same_held(const struct inject_held *before, const char *what, uint64_t n);

#endif
