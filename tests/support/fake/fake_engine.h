/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An I/O engine for aio_open_with() that records what workers submit, holds completions, and fails
 * I/Os and calls on demand. It does the I/Os itself, in order and without threads, or passes them
 * to a real engine. A breach of the contract in aio/engines/engine.h aborts the process. For time,
 * drives and silent faults see sim/sim_drive.h.
 */
#ifndef TESTS_SUPPORT_FAKE_FAKE_ENGINE_H
#define TESTS_SUPPORT_FAKE_FAKE_ENGINE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "aio/aio.h"
#include "aio/engines/engine.h"

extern const struct engine_ops engine_fake;

#define FAKE_QUEUES_MAX 16
#define FAKE_LOG_MAX	65536
#define FAKE_RULES_MAX	256
#define FAKE_ALL	UINT64_MAX

/* An I/O as submitted. */
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
	unsigned in_flight; /* in the queue before the batch */
};

struct fake_rule {
	uint64_t first;	 /* the number of the first such I/O, from 0, or, if `at`, ... */
	uint64_t offset; /* ... a byte that the I/O moves */
	bool at;
	uint64_t times;
	int result; /* bytes moved by a short I/O, or a negative errno */
};

struct fake {
	/* Set before aio_open_with: */
	const struct engine_ops *inner; /* a real engine; NULL: none */
	uint32_t without;		/* enum engine_without, for the real engine */
	bool dry;			/* moves no bytes, and reports success */
	bool newest_first;		/* completes I/Os in reverse order */

	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t allowed; /* completions allowed; FAKE_ALL: no limit */
	uint64_t refusals, take_max;
	int refuse_status, buffer_status;
	unsigned registering; /* workers in set_buffer */
	bool hold_buffers;
	struct fake_rule rules[FAKE_RULES_MAX];
	unsigned nrules;

	/* Submitted I/Os; may be read while nothing is in flight or everything is held. */
	struct fake_io *ios;
	struct fake_batch *batches;
	uint64_t nios, nbatches;
	struct fake_queue *queues[FAKE_QUEUES_MAX];
	unsigned nqueues, closed;
	unsigned least; /* completions that the last wait was for */
};

void fake_init(struct fake *fake, const struct engine_ops *inner);
/* The aio must be closed. */
void fake_destroy(struct fake *fake);
/* Clears records and rules; I/Os are numbered from 0 again. */
void fake_forget(struct fake *fake);

/* Holds completions from now on. Of a real engine, it releases all or none. */
void fake_hold(struct fake *fake);
/* Allows `n` more completions, or, with FAKE_ALL, all from now on. */
void fake_release(struct fake *fake, uint64_t n);

/* I/Os with numbers first to first + times - 1 complete with the result. */
void fake_fail_nth(struct fake *fake, uint64_t first, uint64_t times, int result);
/* The next `times` I/Os that move the byte at the offset complete with the result. */
void fake_fail_at(struct fake *fake, uint64_t offset, uint64_t times, int result);
/* The next `times` calls of submit return the status. */
void fake_refuse(struct fake *fake, uint64_t times, int status);
/* No call of submit takes more than `n` I/Os. */
void fake_take(struct fake *fake, uint64_t n);
/* Registering memory returns the status from now on. */
void fake_refuse_buffers(struct fake *fake, int status);
/* Blocks workers that register memory, or unblocks them. */
void fake_hold_buffers(struct fake *fake, bool hold);

/* Wait until there are `n`; return false after 20 seconds. */
bool fake_await_ios(struct fake *fake, uint64_t n);	    /* I/Os submitted */
bool fake_await_waiting(struct fake *fake, unsigned n);	    /* workers that wait for a completion */
bool fake_await_registering(struct fake *fake, unsigned n); /* workers that register memory */

/* The largest number of I/Os that one queue had in flight. */
unsigned fake_in_flight_max(struct fake *fake);

/* ---- An aio over it, and a file for that; the test closes both ---- */

/* The settings that tests of one worker vary. */
#define FAKE_CONFIG(...)                                                                           \
	(&(const struct aio_config){.thread_count = 1, .overlap_events = true, __VA_ARGS__})

/* `log` may be NULL. The test fails if the aio can't be opened. */
struct nvs_aio *fake_aio_open(struct fake *fake, const struct aio_config *config,
			      const struct nvs_log *log);
/* An empty file below build/tmp that is unlinked already; `flags` of nvs_file_open(). */
struct nvs_file *fake_file_open(struct nvs_aio *aio, unsigned flags);

#endif
