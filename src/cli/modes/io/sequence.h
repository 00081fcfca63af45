/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of I/Os in fio's modes, drawn from a seed.
 */
#ifndef CLI_MODES_IO_SEQUENCE_H
#define CLI_MODES_IO_SEQUENCE_H

#include "cli/options/options.h"

struct io_step {
	enum nvs_direction direction;
	uint64_t offset, nbytes;
};

/*
 * A pass moves as many bytes as the file has, reads and writes together; then the next begins. The
 * caller sets the first group and zeroes the rest.
 */
struct io_sequence {
	bool random;
	unsigned read_percent;	      /* share of reads, drawn for each I/O */
	const struct option_mix *mix; /* lengths of the I/Os */
	uint64_t grain;		      /* unit of all offsets and lengths */
	uint64_t nbytes; /* size of the file; a multiple of the length if there is one */
	uint64_t seed;

	uint64_t left;	/* bytes left of the pass */
	uint64_t at[2]; /* end of the last I/O, by enum nvs_direction; 0: none yet */
	uint64_t nth;	/* position in a random order */
	uint64_t keys[4];
};

/*
 * In sequence, reads and writes each have their own position from the start of the file, as in fio.
 * Random blocks of one length come once each per pass; of several lengths, anywhere.
 */
void io_sequence_next(struct io_sequence *sequence, struct io_step *step);
/* Starts a pass. */
void io_sequence_restart(struct io_sequence *sequence);

#endif
