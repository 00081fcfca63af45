/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of fio's modes: the job's own, which is unlinked once open and so disappears however the
 * run ends, or an existing one, which is only read.
 */
#ifndef CLI_MODES_IO_FILE_H
#define CLI_MODES_IO_FILE_H

#include <limits.h>

#include "cli/jobs/bench.h"

struct io_file {
	struct nvs_file *file; /* NULL: not open */
	int fd;		       /* a plain one */
	bool own;	       /* created here with `nbytes` reserved */
	uint64_t nbytes;       /* bytes used: `size`, or all of an existing file */
	char path[PATH_MAX];
};

/*
 * `place` is a directory, or a block device to read. `name` is the file's name there, or an
 * absolute path. -EEXIST: it exists and would be written; -ENOSPC; -EINVAL; errno of opening; all
 * with *error. Always call io_file_close afterwards.
 */
int io_file_open(struct io_file *file, struct nvs_aio *aio, const struct bench_options *options,
		 const char *place, const char *name, struct nvs_error *error);
void io_file_close(struct io_file *file);
/* Before the run: -EEXIST if the file exists and would be written. */
int io_file_foresee(const struct bench_options *options, const char *place, const char *name,
		    struct nvs_error *error);
/* fio's name for the file of a job: JOB.N.0. */
void io_file_name(const char *job_name, unsigned clone, char name[NAME_MAX + 1]);
/* Makes written data durable. */
int io_file_sync(const struct io_file *file, struct nvs_error *error);

/* Sets rc and a text in *error. Returns rc. */
int io_refuse(struct nvs_error *error, int rc, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
