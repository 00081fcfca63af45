/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file that fio's modes move blocks of: one of their own, which has no name any more as soon as
 * it is open and so leaves nothing behind however the run ends; or one that was there, which is
 * read alone.
 */
#ifndef CLI_IO_FILE_H
#define CLI_IO_FILE_H

#include <limits.h>

#include "bench.h"

struct io_file {
	struct nvs_file *file; /* NULL: it is not open */
	int fd;		       /* a plain one */
	bool own;	       /* made here, with space for `nbytes`, and nothing in it yet */
	uint64_t nbytes;       /* that are used: `size`, or all of a file that was there */
	char path[PATH_MAX];
};

/*
 * `place` is a directory, or a block device to be read. `name` is what the file is called there, or
 * an absolute path. -EEXIST: it is there and would be written; -ENOSPC; -EINVAL and errno of the
 * calls that open, all with *error. io_file_close comes after it, whatever is returned.
 */
int io_file_open(struct io_file *file, struct nvs_aio *aio, const struct bench_options *options,
		 const char *place, const char *name, struct nvs_error *error);
void io_file_close(struct io_file *file);
/* Long before it is opened: -EEXIST where opening would find a file that it would have to write. */
int io_file_foresee(const struct bench_options *options, const char *place, const char *name,
		    struct nvs_error *error);
/* What fio calls the file of a job: JOB.N.0. */
void io_file_name(const char *job_name, unsigned clone, char name[NAME_MAX + 1]);
/* What was written is on the drive, and not in the page cache any more. */
int io_file_settle(const struct io_file *file, struct nvs_error *error);

/* Of a whole of so many bytes; all of it where no amount was given. */
uint64_t io_amount(const struct option_amount *amount, uint64_t whole);

/* Puts rc and a text into *error. Returns rc. */
int io_refuse(struct nvs_error *error, int rc, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
