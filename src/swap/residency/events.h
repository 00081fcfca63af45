/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine's thread of events works on: completed runs and checksums. Its functions are in
 * moves/.
 */
#ifndef RESIDENCY_EVENTS_H
#define RESIDENCY_EVENTS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct XXH3_state_s;
struct completions;
struct nvs_engine;
struct nvs_tensor;
struct transfer;

TAILQ_HEAD(sum_list, nvs_tensor);

/* The checksum of a run that is being written, kept in its first tensor. */
enum run_sum {
	SUM_NONE,   /* none is needed, or the run is being read */
	SUM_QUEUED, /* in sums->writing or sums->completed */
	SUM_BEGUN,  /* a thread computes it */
	SUM_DONE,
};

/* Checksums to be computed. */
struct sums {
	struct sum_list writing;	   /* first tensors of runs being written */
	struct transfer *completed, **end; /* runs that land after their checksum */
	/* A long checksum in progress, which only the thread of events continues. */
	struct transfer *run;	   /* or NULL */
	bool has_completed;	   /* the run */
	struct nvs_tensor *tensor; /* the present one of the run */
	uint64_t at;		   /* bytes of the tensor that are done */
	struct XXH3_state_s *state;
};

struct events {
	struct completions *completions;
	pthread_t thread;
	bool started;

	/* Under the engine's lock: */
	bool helped;	    /* a waiting caller takes completions */
	pthread_t helper;   /* that caller */
	bool patient;	    /* it sleeps until several runs have completed */
	unsigned followers; /* other waiting callers, on engine->changed */

	pthread_mutex_t lock; /* of `sums`, taken last */
	struct sums sums;
	atomic_bool counting_due; /* store_budget_count() is to be called */
	atomic_bool closing;
};

#endif
