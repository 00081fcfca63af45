/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random histories: a world calls the library and a reference model of it, and compares them. The
 * seed determines everything: the operations, the drive, and the order in which all threads run
 * (turns.h). An operation's randomness comes from the seed and the operation's number, so any
 * subset of a history is a history, and one that fails can be reduced until it is readable.
 */
#ifndef TESTS_SUPPORT_HISTORY_HISTORY_H
#define TESTS_SUPPORT_HISTORY_HISTORY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "support/sim/sim_drive.h"

struct history_model {
	const char *name; /* one word */
	/* Makes a new world from the seed, in an empty directory. */
	void *(*begin)(const struct history_model *model, const char *directory, uint64_t seed);
	/* Performs one operation, chosen by the seed among those that the state allows. */
	void (*operation)(void *world, uint64_t seed);
	/* Repairs the drive, checks all contents, and frees the world. */
	void (*end)(void *world);
	/*
	 * On a real drive: the directory is on an ext4 if there can be one, and threads take no
	 * turns.
	 */
	bool real;
};

/* ---- For worlds, which run in a child process ---- */

/*
 * Logs a line about the operation and counts it; history_log_more() continues the line. Nothing is
 * formatted unless the log is printed.
 */
void history_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
void history_log_more(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Fails the history and ends the process. */
_Noreturn void history_fail(const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#define HOLDS(condition)                                                                           \
	do {                                                                                       \
		if (!(condition))                                                                  \
			history_fail(__FILE__, __LINE__, "%s does not hold", #condition);          \
	} while (0)

/* Totals over all histories of a run. */
struct history_counts {
	uint64_t histories, operations;
	uint64_t ios, faults; /* I/Os and faults of the drive */
	uint64_t errors;      /* errors returned because of the drive */
};
/* Totals since the first history_play() or the last history_forget_counts(). */
struct history_counts *history_counts(void);
void history_forget_counts(void);

/* ---- For tests ---- */

struct history {
	const struct history_model *model;
	uint64_t seed;
	uint32_t length;      /* operations */
	const bool *left_out; /* one flag for each operation; NULL: none is left out */
};

/*
 * Plays `n` histories, of this seed and the next ones, in child processes. If one fails or hangs,
 * it is reduced and the function returns false; `found` is the reduced history (its left_out is
 * valid until the next call), and `text` describes the failure.
 */
bool history_play(const struct history *first, uint32_t n, struct history *found, char *text,
		  size_t text_bytes);
/* Plays one history and prints each operation on standard output; returns false if it fails. */
bool history_play_aloud(const struct history *history);
/* The same, with the output in `text`. */
bool history_play_into(const struct history *history, char *text, size_t text_bytes);
/* Returns the number of operations that are not left out. */
uint32_t history_remaining(const struct history *history);

/*
 * Convert operation numbers to and from text such as "1,4-7"; history_parse returns false if the
 * text is invalid.
 */
void history_format(const struct history *history, char *text, size_t text_bytes);
bool history_parse(const char *text, uint32_t length, bool *left_out);

/* ---- Models ---- */

extern const struct history_model history_aio, history_optim, history_room, history_swap;
/* The same as history_swap, on real I/O engines and in host memory. */
extern const struct history_model history_swap_real;
/* The same with a mistake in the model, which a test has it find. */
extern const struct history_model history_swap_mistaken;

/* ---- The drive of a history ---- */

struct history_drive {
	struct sim *sim;
	uint64_t seed;
	bool held;	/* no I/O completes */
	bool faulty;	/* rules of faults are in effect */
	bool silent[2]; /* by direction: I/Os can go wrong and report success */
	bool misplaces; /* writes can damage other sectors */
	bool stormy;	/* all I/Os of one direction fail */
};

/*
 * Opens a drive with random properties. Silent faults occur only if `verified`, so that they are
 * found.
 */
void history_drive_open(struct history_drive *drive, uint64_t seed, bool verified, bool misplaces);
void history_drive_close(struct history_drive *drive);
void history_drive_hold(struct history_drive *drive);
void history_drive_go(struct history_drive *drive);
/* Makes all I/Os of one direction fail from now on, or ends that. */
void history_drive_storm(struct history_drive *drive, bool writes, int error);
void history_drive_calm(struct history_drive *drive);
/* Does one of both, by chance, to a drive with faults. */
void history_drive_change(struct history_drive *drive, uint64_t *random);
/* Ends all faults. */
void history_drive_mend(struct history_drive *drive);
/* Whether the drive can have caused the error (a negative errno). */
bool history_drive_caused(const struct history_drive *drive, int rc);

#endif
