/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine's thread of events works on: completed runs, checksums and messages. Its
 * functions are in moves/; each file can have it log a message.
 */
#ifndef RESIDENCY_EVENTS_H
#define RESIDENCY_EVENTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/threads/messages.h"

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

/* Checksums to be computed, and messages to be said. One lock, taken last. */
struct sums {
	struct sum_list writing;	   /* first tensors of runs being written */
	struct transfer *completed, **end; /* runs that land after their checksum */
	/* A long checksum in progress; only the thread that set `computing` continues it. */
	struct transfer *run;	   /* or NULL */
	bool has_completed;	   /* the run */
	struct nvs_tensor *tensor; /* the present one of the run */
	uint64_t at;		   /* bytes of the tensor that are done */
	bool computing;
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

	pthread_mutex_t lock; /* of the following */
	pthread_cond_t quiet; /* `idle` became true */
	struct sums sums;
	struct messages messages;
	bool saying; /* the thread is in the caller's log function, perhaps for long */
	bool closing;
	bool counting_due;	  /* store_budget_count() is to be called */
	bool idle;		  /* the thread has nothing to do */
	uint64_t asked, answered; /* rounds that events_await_idle() waits for, and those done */
};

/* ---- errors.c ---- */
/* Queues a message for the caller's log, with or without the engine's lock. The thread says it with
 * no lock held. */
void say_later(struct nvs_engine *engine, enum nvs_log_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
