/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which I/O comes next: the order of fio's modes over the bytes of a file, drawn from a seed.
 */
#ifndef CLI_IO_SEQUENCE_H
#define CLI_IO_SEQUENCE_H

#include "options.h"

struct io_step {
	enum nvs_direction direction;
	uint64_t offset, nbytes;
};

/*
 * A pass moves as many bytes as the file has, in reads and writes together, and then the next one
 * begins. The first group is the caller's, who leaves the rest zero.
 */
struct io_sequence {
	bool random;
	bool alike;		      /* all I/Os are of one length */
	unsigned read_percent;	      /* of the I/Os, drawn for each */
	const struct option_mix *mix; /* how long they are, by enum nvs_direction */
	uint64_t grain;		      /* what all offsets and lengths are multiples of */
	uint64_t align[2];	      /* random offsets, by enum nvs_direction; of the grain */
	uint64_t run;	 /* random: I/Os that follow each other from each place; 0: one */
	uint64_t gap;	 /* in sequence: bytes between them, a multiple of the grain */
	uint64_t nbytes; /* of the file; whole blocks where all are of one length */
	uint64_t seed;

	uint64_t left;	/* bytes of the pass */
	uint64_t at[2]; /* where the last ended, by enum nvs_direction; 0: there was none */
	uint64_t nth;	/* of a random order */
	uint64_t of_run;
	uint64_t keys[4];
};

/*
 * In sequence, reads and writes have a place each, from the start of the file on, as in fio. Random
 * blocks of one length come each once in a pass; of several lengths, anywhere. Of a run from a
 * random place, I/Os follow the last in their direction, and those that find the end of the file
 * have a random place again; with a gap they find the start of it.
 */
void io_sequence_next(struct io_sequence *sequence, struct io_step *step);
/* The next I/O is the first of a pass. */
void io_sequence_restart(struct io_sequence *sequence);
/* Whether it is. */
bool io_sequence_at_start(const struct io_sequence *sequence);

#endif
