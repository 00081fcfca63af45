/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An I/O engine: a constant table of functions over a queue owned by one worker. All calls come
 * from the worker's thread, except wake(). The worker splits, retries and checks I/Os; the engine
 * only performs them.
 */
#ifndef AIO_ENGINES_ENGINE_H
#define AIO_ENGINES_ENGINE_H

#include "nvswap.h"

/* Registration slots of a queue for descriptors and memory regions. */
#define ENGINE_FILES   256
#define ENGINE_BUFFERS 1024

struct io {
	void *data;
	uint32_t nbytes;
	uint32_t index; /* unique among the worker's I/Os, below the queue depth */
	uint64_t offset;
	int fd;
	int file_slot;	 /* slot of the registered fd; -1: not registered */
	int buffer_slot; /* slot of the registered region with the data; -1: none */
	bool write;
	bool sync;   /* durable on completion (RWF_DSYNC) */
	int result;  /* bytes transferred, or a negative errno */
	void *owner; /* for the worker */
};

/* Features and counters of a queue; written by the engine, read by its worker. */
struct engine_facts {
	bool fixed_buffers, fixed_files, single_issuer, defer_taskrun;
	int buffers_status; /* why there are no fixed buffers: 0 or a negative errno */
	uint64_t submit_calls, reap_calls;
};

/* For tests: kernel features that a queue must not use. */
enum engine_without {
	WITHOUT_FIXED_BUFFERS = 1,
	WITHOUT_FIXED_FILES = 2,
	WITHOUT_SINGLE_ISSUER = 4,
	WITHOUT_DEFER_TASKRUN = 8,
};

struct engine_options {
	uint32_t depth;	    /* maximum I/Os in flight */
	bool single_submit; /* one submission call per I/O */
	uint32_t wait_max;  /* most completions that a reap waits for */
	uint32_t without;   /* enum engine_without */
	void *arg;	    /* ops_arg of aio_open_with() */
};

struct engine_ops {
	const char *name;
	/* 0, or a negative errno and its reason as text. `facts` stays valid until close. */
	int (*open)(void **queue, const struct engine_options *options, struct engine_facts *facts,
		    char *reason, size_t reason_bytes);
	/*
	 * Accepts up to `n` I/Os, which reach the kernel by the next reap. The caller never
	 * exceeds the depth, counting those in flight. Returns the number accepted, at least one,
	 * or a negative errno if none was (-EAGAIN: reap first). An individually invalid I/O is
	 * accepted and completes with its error.
	 */
	int (*submit)(void *queue, struct io *const *ios, unsigned n);
	/*
	 * Stores completed I/Os in ios[] and returns their number. Waits for `min` completions (0:
	 * does not wait) or until wake(). A negative errno means
	 * that completions can't be retrieved now.
	 */
	int (*reap)(void *queue, struct io **ios, unsigned max, unsigned min);
	/* From any thread: ends the current, or else the next, reap with a `min` of 1; `any`, which
	 * costs more: one that waits for several, too. */
	void (*wake)(void *queue, bool any);
	/* Optional: register a descriptor or region in a slot, or clear it (-1, NULL). */
	int (*set_file)(void *queue, unsigned slot, int fd);
	int (*set_buffer)(void *queue, unsigned slot, void *data, size_t nbytes);
	void (*close)(void *queue); /* with nothing in flight */
};

/* Why an engine does not work, if its thread did not survive opening a queue. */
#define ENGINE_KILLED "a seccomp filter kills threads that use it"

extern const struct engine_ops engine_io_uring, engine_libaio, engine_posix;

/* NULL for NVS_IOENGINE_AUTO. */
extern const struct engine_ops *const ioengines[NVS_IOENGINE_COUNT];
/* Opens and closes a queue, on a thread of its own, to see if the engine works: 0, or a negative
 * errno and the reason. */
int ioengine_try(enum nvs_ioengine ioengine, char *reason, size_t nbytes);

#endif
