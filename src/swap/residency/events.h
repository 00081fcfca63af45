/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's thread of events, and what waits for it. Workers only queue completed runs; this
 * thread, or a caller that waits anyway, lands them, verifies, plans and starts what follows.
 */
#ifndef RESIDENCY_EVENTS_H
#define RESIDENCY_EVENTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "nvswap.h"

struct XXH3_state_s;
struct completions;
struct message;
struct nvs_engine;
struct nvs_tensor;
struct transfer;

TAILQ_HEAD(sum_list, nvs_tensor);
STAILQ_HEAD(message_list, message);

/* The checksum of a run that is being written, kept in its first tensor. */
enum run_sum {
	SUM_NONE,   /* none is needed, or the run is being read */
	SUM_QUEUED, /* in sums->in_flight or sums->completed */
	SUM_BEGUN,  /* a thread computes it */
	SUM_DONE,
};

/* Checksums to be computed, and messages to be said. One lock, taken last. */
struct sums {
	struct sum_list in_flight;	   /* first tensors of runs being written */
	struct transfer *completed, **end; /* runs that land after their checksum */
	bool computing;			   /* a thread computes a long one */
	struct XXH3_state_s *state;	   /* of that one */
};

struct messages {
	struct message_list list;
	uint64_t lost; /* for which there was no memory */
	bool saying;   /* the thread is in the caller's log function, perhaps for long */
};

struct events {
	struct completions *completions;
	pthread_t thread;
	bool started;

	/* Under the engine's lock: */
	bool helped;	    /* a waiting caller takes completions */
	pthread_t helper;   /* that caller */
	unsigned followers; /* other waiting callers, on engine->changed */

	pthread_mutex_t lock; /* of the following */
	pthread_cond_t quiet; /* `idle` became true */
	struct sums sums;
	struct messages messages;
	bool closing;
	bool idle;		  /* the thread has nothing to do */
	uint64_t asked, answered; /* rounds that events_await_idle() waits for, and those done */
};

/* Starts the thread; the aio is open. -ENOMEM, -EAGAIN */
int events_open(struct nvs_engine *engine, struct nvs_error *error);
/* Ends it when it has said all messages, if it was started. Nothing is in flight. */
void events_stop(struct nvs_engine *engine);
/* After events_stop(), and after the aio, whose threads name the queue, is closed. */
void events_close(struct nvs_engine *engine);

/* ---- Under the engine's lock ---- */
/*
 * Waits for a change: a tensor landed or is overdue, memory came free, or a tensor was unpinned.
 * Releases the lock meanwhile. May return early. 0, -ETIMEDOUT, or -EAGAIN if the deadline is 0.
 */
int events_wait(struct nvs_engine *engine, uint64_t deadline);
/* Wakes the calls that wait for a change. */
void events_changed(struct nvs_engine *engine);

/* ---- Without the lock ---- */
/* Lands runs that have completed, those that need a long checksum later. False: there were none. */
bool events_land_ready(struct nvs_engine *engine);
/* For tests: waits until every completed run has landed and every message was said. */
void events_await_idle(struct nvs_engine *engine);

/* ---- sums.c, without the lock ---- */
int sums_open(struct nvs_engine *engine); /* -ENOMEM */
void sums_close(struct nvs_engine *engine);
/* Before writes of these runs are submitted: computes short checksums, and queues long ones, which
 * are computed while the runs are in flight. */
void sums_begin(struct nvs_engine *engine, struct transfer *list);
/* Completed runs that can land now; keeps those that need a long checksum first. */
struct transfer *sums_filter(struct nvs_engine *engine, struct transfer *list);
/* Computes a long checksum, and lands its run if it has completed. False: there was none. */
bool sums_work(struct nvs_engine *engine);

/* ---- messages.c ---- */
/* Queues a message for the caller's log, with or without the engine's lock. The thread says it with
 * no lock held. */
void say_later(struct nvs_engine *engine, enum nvs_log_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* On the thread: says what is queued. False: there was nothing. */
bool messages_say(struct nvs_engine *engine);

#endif
