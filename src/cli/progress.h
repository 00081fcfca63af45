/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The line of progress: a phase's bar, rates and time left, on standard error if that is a
 * terminal. The process of a job stores its progress in shared memory, and its parent draws it.
 */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Written by one process and read by another. */
struct progress {
	_Atomic(const char *) phase; /* a constant; NULL: between phases */
	atomic_ullong since_ns, total, done, bytes;
};

/* Begins a phase of `total` units (bytes, or time); its name must stay valid. */
void progress_begin(const char *phase, uint64_t total);
/* `done` of the total; `bytes` moved so far in this phase. Draws at most ten times a second. */
void progress_update(uint64_t done, uint64_t bytes);
void progress_end(void);

/* From now on phases are stored in *progress instead of drawn. */
void progress_store_in(struct progress *progress);
/* Processes that share a terminal note in *on_line whether the line is drawn. NULL: this process
 * alone. */
void progress_share(atomic_bool *on_line);

/* Of one moment, more or less: it may be read while it is updated. */
struct progress_now {
	const char *phase; /* NULL: between phases */
	double share, bytes_per_s;
	double seconds_left; /* below 0: unknown */
};
struct progress_now progress_read(const struct progress *progress);
/*
 * Draws the line. `rates` are separated by commas; the last are left out where the terminal is
 * narrow.
 */
void progress_draw(const char *phase, double share, const char *rates, double seconds_left);
/* The escape sequence that erases the line if it is drawn, else "". Any thread. */
const char *progress_erase(void);

#endif
