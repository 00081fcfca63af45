/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of the scrub, whose thread is in moves/scrub.c, and what others tell it.
 */
#ifndef RESIDENCY_SCRUB_H
#define RESIDENCY_SCRUB_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct XXH3_state_s;
struct completions;
struct nvs_tensor;

struct scrub {
	bool wanted; /* by the configuration; constant */
	bool started;
	pthread_t thread;

	/* Under the engine's lock: */
	pthread_cond_t wake; /* `closing` or `next_ns` has changed */
	bool closing, ended;
	bool overdue;			 /* its I/O */
	uint64_t next_ns;		 /* when the next round begins */
	uint64_t rounds, nbytes, errors; /* since the engine was opened */
	uint64_t transfers;		 /* engine->moves.transfers when it was last looked at */
	size_t left;			 /* tensors that the round has not come to */
	/* The one that is being read; NULL: its bytes on the drive are no longer its contents. */
	const struct nvs_tensor *tensor;

	/* The thread's own: */
	struct completions *completions;
	struct XXH3_state_s *state;
	void *block;
	uint64_t block_nbytes;
};

/* Under the lock: the tensor's bytes on the drive are about to change. */
static inline void scrub_forgets(struct scrub *scrub, const struct nvs_tensor *tensor)
{
	if (scrub->tensor == tensor)
		scrub->tensor = NULL;
}

#endif
