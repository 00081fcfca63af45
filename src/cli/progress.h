/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far a phase is: a bar with rate and time left, on standard error where that is a terminal,
 * else nothing; or, in the process of a job, what its parent draws a bar from.
 */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What one process writes and another reads. */
struct progress {
	_Atomic(const char *) phase; /* a constant; NULL: between phases */
	atomic_ullong since_ns, total, done, bytes;
};

/* Begins a phase of `total` units (bytes, or time), with a name that stays valid. */
void progress_begin(const char *phase, uint64_t total);
/* `done` of the total; `bytes` moved so far in this phase. Draws at most ten times a second. */
void progress_update(uint64_t done, uint64_t bytes);
void progress_end(void);

/* From here on phases are told there and not drawn. */
void progress_tell(struct progress *progress);
/* Where processes that share a terminal note whether a bar is on the line. NULL: here alone. */
void progress_share(atomic_bool *on_line);
/* Draws the line: `share` from 0 to 1, what there is to say of rates, and the time left if known,
 * else below 0. */
void progress_draw(const char *phase, double share, const char *rates, double seconds_left);
/* What takes a bar that is on the line off it: "" where there is none. Any thread. */
const char *progress_erase(void);

#endif
