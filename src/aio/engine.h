/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An I/O engine: a constant table of functions over one queue, which belongs to one worker. The
 * worker opens, feeds, reaps and closes it from one thread; only wake() comes from others. An
 * engine does I/Os as it is told: cutting, retrying and checking are the worker's.
 */
#ifndef AIO_ENGINE_H
#define AIO_ENGINE_H

#include "nvswap.h"

/* Descriptors and regions of memory that a ring can have registered at a time. */
#define ENGINE_FILES   256
#define ENGINE_BUFFERS 1024

struct io {
	void *data;
	uint32_t nbytes;
	uint32_t index; /* of this io among the worker's, below the queue's depth */
	uint64_t offset;
	int fd;
	int file_slot;	 /* where fd is registered; -1: it is not */
	int buffer_slot; /* the registered region that data lies in; -1: none */
	bool write;
	bool sync;   /* a write that completes when it is durable (RWF_DSYNC) */
	int result;  /* bytes moved, or a negative errno */
	void *owner; /* the worker's */
};

/* What a queue has and has done; written by the engine, read by its worker. */
struct engine_facts {
	bool fixed_buffers, fixed_files, single_issuer, defer_taskrun;
	uint64_t submit_calls, reap_calls;
};

/* Abilities of the kernel's that a queue is to do without, for tests. */
enum engine_without {
	WITHOUT_FIXED_BUFFERS = 1,
	WITHOUT_FIXED_FILES = 2,
	WITHOUT_SINGLE_ISSUER = 4,
	WITHOUT_DEFER_TASKRUN = 8,
};

struct engine_options {
	uint32_t depth;	    /* I/Os in flight at most */
	bool single_submit; /* every I/O has a submission call of its own */
	uint32_t without;   /* enum engine_without */
	void *arg;	    /* of aio_open_with */
};

struct engine_ops {
	const char *name;
	/* 0, or a negative errno and the reason in words. `facts` stays valid until close. */
	int (*open)(void **queue, const struct engine_options *options, struct engine_facts *facts,
		    char *reason, size_t reason_bytes);
	/*
	 * Takes `n` I/Os, which together with those in flight never exceed the depth. They are with
	 * the kernel no later than in the next reap. Returns how many were taken, at least one, or
	 * a negative errno with none taken (-EAGAIN: reap first). One that can't be submitted by
	 * itself is taken and comes back from reap with its error.
	 */
	int (*submit)(void *queue, struct io *const *ios, unsigned n);
	/*
	 * Puts completed I/Os into ios[] and returns how many, waiting until `min` have completed
	 * (0: not at all) or, where min is 1, until wake() is called. A negative errno means that
	 * the queue is beyond use.
	 */
	int (*reap)(void *queue, struct io **ios, unsigned max, unsigned min);
	/* Ends a reap that waits for one I/O, or the next such reap. From any thread. */
	void (*wake)(void *queue);
	/* Registers a descriptor (-1: none) or region (NULL: none) in a slot; NULL where it can't.
	 */
	int (*set_file)(void *queue, unsigned slot, int fd);
	int (*set_buffer)(void *queue, unsigned slot, void *data, size_t nbytes);
	void (*close)(void *queue); /* nothing is in flight */
};

extern const struct engine_ops engine_io_uring, engine_libaio, engine_posix;

#endif
