/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An I/O engine for aio_open_with() that writes down what it is handed, holds completions back
 * until it is told to let them go, and fails as it is told. It does the I/Os itself, in order and
 * without threads, or passes them on to a real engine. What it is handed against the contract of
 * aio/engine.h ends the process.
 */
#ifndef TESTS_FAKE_ENGINE_H
#define TESTS_FAKE_ENGINE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "aio/engine.h"

extern const struct engine_ops engine_fake;

#define FAKE_QUEUES_MAX 16
#define FAKE_LOG_MAX	65536
#define FAKE_RULES_MAX	256
#define FAKE_ALL	UINT64_MAX

/* An I/O as it was handed over. */
struct fake_io {
	unsigned queue; /* in the order in which they were opened */
	unsigned batch; /* index in fake->batches */
	char *data;
	uint32_t nbytes;
	uint64_t offset;
	int fd, file_slot, buffer_slot;
	bool write, sync;
};

struct fake_batch {
	unsigned queue, n;
	unsigned in_flight; /* of the queue, before the batch */
};

struct fake_rule {
	uint64_t first;	 /* the number of the I/O, counted from 0, or ... */
	uint64_t offset; /* ... a byte that it moves, where `at` is true */
	bool at;
	uint64_t times;
	int result; /* bytes that it stops after, or a negative errno */
};

struct fake {
	/* Set before aio_open_with: */
	const struct engine_ops *inner; /* a real engine; NULL: none */
	uint32_t without;		/* enum engine_without, for it */
	bool dry;			/* touches no memory and no file, and says it did */
	bool newest_first;		/* completes in the reverse order */
	int open_status;		/* what opening a queue answers */

	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t allowed; /* completions; FAKE_ALL: any number */
	uint64_t refusals, take_max;
	int refuse_status, buffer_status;
	unsigned registering; /* workers that wait to register memory */
	bool hold_buffers;
	struct fake_rule rules[FAKE_RULES_MAX];
	unsigned nrules;

	/* What was handed over; may be read when nothing is in flight or all of it is held. */
	struct fake_io *ios;
	struct fake_batch *batches;
	uint64_t nios, nbatches;
	struct fake_queue *queues[FAKE_QUEUES_MAX]; /* its own */
	unsigned nqueues, closed;
};

void fake_init(struct fake *fake, const struct engine_ops *inner);
/* The aio has been closed. */
void fake_destroy(struct fake *fake);
/* Forgets what was handed over; rules count their I/Os from here again. */
void fake_forget(struct fake *fake);

/* Keeps completions back, beginning now; of a real engine, all or none. */
void fake_hold(struct fake *fake);
/* Lets `n` more go, or FAKE_ALL from now on. */
void fake_release(struct fake *fake, uint64_t n);

/* I/Os first to first + times - 1 since the start come back with the result. */
void fake_fail_nth(struct fake *fake, uint64_t first, uint64_t times, int result);
/* The next `times` I/Os that move the byte at the offset do. */
void fake_fail_at(struct fake *fake, uint64_t offset, uint64_t times, int result);
/* The next `times` calls of submit return the status. */
void fake_refuse(struct fake *fake, uint64_t times, int status);
/* No call of submit takes more than `n`. */
void fake_take(struct fake *fake, uint64_t n);
/* Registering memory returns the status from here on. */
void fake_refuse_buffers(struct fake *fake, int status);
/* Keeps workers in the registering of memory, and lets them go on. */
void fake_hold_buffers(struct fake *fake, bool hold);

/* Wait until so much has come about: false where it has not within 20 seconds. */
bool fake_await_ios(struct fake *fake, uint64_t n);	    /* I/Os handed over */
bool fake_await_waiting(struct fake *fake, unsigned n);	    /* workers that wait for a completion */
bool fake_await_registering(struct fake *fake, unsigned n); /* workers held in it */

/* The most that one queue had in flight. */
unsigned fake_in_flight_max(struct fake *fake);

#endif
