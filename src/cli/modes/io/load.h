/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the workers of an aio busy with the I/Os of a sequence, each a transfer of one block in
 * memory that is registered once. Submits twice as many as may be in flight, so the queues never
 * wait for this thread.
 */
#ifndef CLI_MODES_IO_LOAD_H
#define CLI_MODES_IO_LOAD_H

#include "cli/jobs/watch.h"
#include "cli/modes/io/contents.h"
#include "cli/modes/io/file.h"
#include "cli/modes/io/sequence.h"

struct io_load {
	struct nvs_aio *aio;
	struct io_file *file;
	struct io_contents *contents;
	const struct bench_options *options;
	struct job_watch *watch;
	struct bench_result *result; /* counts what was verified */
	struct nvs_error difference; /* the first difference found */
	uint64_t data_us;	     /* processor time for generating and comparing contents */
	uint64_t moved[2];	     /* bytes, by enum nvs_direction */
	bool hangs;		     /* transfers are stuck in flight: nothing can be closed */

	char *memory;
	uint64_t memory_bytes;
	struct nvs_transfer *slots;
	struct nvs_request **requests; /* indexed by slot; requests of the submitted ones */
	uint64_t depth; /* maximum number of I/Os in flight, of all workers together */
	uint32_t nslots;
};

/* One run over a sequence, until a limit or a signal ends it. */
struct io_pass {
	const char *name;
	struct io_sequence *sequence;
	uint64_t nbytes;     /* UINT64_MAX: no limit */
	uint64_t runtime_ns; /* 0: no limit */
	uint64_t longest;    /* bytes of the longest I/O */
	bool make;	     /* generate new contents before a write */
	bool compare;	     /* compare after a read */
	bool paced;	     /* limited by the job's rate */
};

/* Allocates memory for `depth` I/Os of up to `longest` bytes. -ENOMEM with *error. */
int io_load_open(struct io_load *load, uint64_t depth, uint64_t longest, struct nvs_error *error);
void io_load_close(struct io_load *load);
/*
 * Returns with no I/O in flight, unless load->hangs. Differences are counted and are not an error.
 */
int io_load_run(struct io_load *load, const struct io_pass *pass);

#endif
