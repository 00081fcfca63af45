/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the workers of an aio busy with the I/Os of a sequence, each a transfer of one block, out
 * of memory that is registered once. Twice as many are handed over as are to be in flight, so that
 * the queues never wait for this thread.
 */
#ifndef CLI_IO_LOAD_H
#define CLI_IO_LOAD_H

#include "io_contents.h"
#include "io_file.h"
#include "io_sequence.h"
#include "job_watch.h"

struct io_load {
	struct nvs_aio *aio;
	struct io_file *file;
	struct io_contents *contents;
	const struct bench_options *options;
	struct job_watch *watch;
	struct bench_result *result; /* verification is counted in it */
	struct nvs_error difference; /* the first that comparing found */
	uint64_t data_us;	     /* processor time for making and comparing contents */
	uint64_t moved[2];	     /* bytes, by enum nvs_direction */
	bool hangs;		     /* transfers stay in flight: nothing can be closed */

	char *memory;
	uint64_t memory_bytes;
	struct nvs_transfer *slots;
	struct nvs_transfer **ring; /* the slots in turn */
	uint32_t nslots;
};

/* One way through a sequence, until the first of these ends it, or a signal. */
struct io_pass {
	const char *name;
	struct io_sequence *sequence;
	uint64_t nbytes;     /* UINT64_MAX: without limit */
	uint64_t runtime_ns; /* 0: without limit */
	uint64_t longest;    /* bytes of an I/O */
	bool make;	     /* new contents before a write */
	bool compare;	     /* after a read */
	bool paced;	     /* by the job's rate */
	bool cold;	     /* the page cache forgets the file each time through the sequence */
};

/* Makes room for `depth` I/Os of up to `longest` bytes in flight. -ENOMEM with *error. */
int io_load_open(struct io_load *load, uint64_t depth, uint64_t longest, struct nvs_error *error);
void io_load_close(struct io_load *load);
/* Returns with nothing in flight, but for load->hangs. Differences are counted, and no error. */
int io_load_run(struct io_load *load, const struct io_pass *pass);

#endif
