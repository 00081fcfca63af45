/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random histories: a model makes operations on the library and on a plain model of it. The seed
 * determines everything: the operations, the drive, and the order in which all threads run
 * (turns.h). An operation's randomness comes from the seed and its number, so a history without
 * some of its operations is a history too: one that fails is cut down until what is left can be
 * read.
 */
#ifndef TESTS_SUPPORT_HISTORY_HISTORY_H
#define TESTS_SUPPORT_HISTORY_HISTORY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "support/sim/sim_drive.h"

struct history_model {
	const char *name; /* one word */
	/* A world of its own from the seed, in an empty directory. */
	void *(*begin)(const char *directory, uint64_t seed);
	/* One operation, chosen by the seed among what the state of the world allows. */
	void (*operation)(void *world, uint64_t seed);
	/* Mends what can be mended, checks everything that is left, and frees it. */
	void (*end)(void *world);
};

/* ---- For models: they run in a process of their own ---- */

/* A line about the operation, which it counts as, and what came of it; said where somebody listens.
 */
void history_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
void history_tell_more(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The history has failed. */
_Noreturn void history_fail(const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#define HOLDS(condition)                                                                           \
	do {                                                                                       \
		if (!(condition))                                                                  \
			history_fail(__FILE__, __LINE__, "%s does not hold", #condition);          \
	} while (0)

/* What all histories of a run add up to. */
struct history_counts {
	uint64_t histories, operations;
	uint64_t ios, faults; /* of the drive */
	uint64_t errors;      /* that calls returned because of the drive */
};
/* Those since history_play() was first called or history_forget_counts() last. */
struct history_counts *history_counts(void);
void history_forget_counts(void);

/* ---- For tests ---- */

struct history {
	const struct history_model *model;
	uint64_t seed;
	uint32_t length;      /* operations */
	const bool *left_out; /* of them; NULL: none */
};

/*
 * Plays `n` histories, of this seed and those that follow it, in child processes. False where one
 * failed: then it has been cut down, and `found` has what is left of it (its left_out is valid
 * until the next call) and `text` all about it. A hang is a failure too.
 */
bool history_play(const struct history *first, uint32_t n, struct history *found, char *text,
		  size_t text_bytes);
/* Plays one as it is, and says each operation on the standard output; false where it failed. */
bool history_play_aloud(const struct history *history);
/* The same, into a text. */
bool history_play_into(const struct history *history, char *text, size_t text_bytes);
/* How many operations are left in it. */
uint32_t history_remaining(const struct history *history);

/* Numbers of operations as "1,4-7", into and out of text; false where it can't be read. */
void history_format(const struct history *history, char *text, size_t text_bytes);
bool history_parse(const char *text, uint32_t length, bool *left_out);

/* ---- The drive of a history ---- */

struct history_drive {
	struct sim *sim;
	uint64_t seed;
	bool held;	/* nothing completes */
	bool faulty;	/* I/Os fail */
	bool silent[2]; /* by direction: I/Os go wrong and report success */
	bool misplaces; /* writes damage what they are not about */
	bool stormy;	/* one direction fails altogether */
};

/* A drive of any kind; `verified`: what is wrong will be found, so it may go wrong in silence. */
void history_drive_open(struct history_drive *drive, uint64_t seed, bool verified, bool misplaces);
void history_drive_close(struct history_drive *drive);
void history_drive_hold(struct history_drive *drive);
void history_drive_go(struct history_drive *drive);
/* Everything fails in one direction from here on; and does no longer, but as it did before. */
void history_drive_storm(struct history_drive *drive, bool writes, int error);
void history_drive_calm(struct history_drive *drive);
/* Nothing fails from here on. */
void history_drive_mend(struct history_drive *drive);
/* A negative errno that the drive may have caused. */
bool history_drive_caused(const struct history_drive *drive, int rc);

#endif
