/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The syntax of fio's job files: sections of lines that are "key=value" or a bare key, comments
 * from a ; or # to the end of the line, and in values ${NAME} for a variable of the environment.
 * Knows no key.
 */
#ifndef CLI_JOBS_JOBFILE_H
#define CLI_JOBS_JOBFILE_H

#include <stddef.h>

#include "nvswap.h"

/* What the reading of `nbytes` takes of memory at most: a value of four bytes, ${X}, may stand for
 * 4 KiB. */
#define JOBFILE_BYTES(nbytes) ((2u << 20) + 640 * (size_t)(nbytes))

struct jobfile_line {
	const char *file;
	unsigned line; /* from 1 */
	const char *key;
	char *value; /* as written, trimmed, with its quotes; NULL: a bare key */
};

struct jobfile_section {
	const char *name; /* "global", or that of a job; names may repeat */
	const char *file;
	unsigned line;
	struct jobfile_line *lines;
	size_t n;
};

struct jobfile {
	struct jobfile_section *sections; /* in the order of the file */
	size_t n;
	struct jobfile_line *lines; /* of all sections */
	size_t nlines;
};

/*
 * Reads a file ("-": standard input), whose name must live as long as the result. What it allocates
 * goes to the chain *memory (first NULL), also after an error. -EINVAL with file and line: a line in
 * no section or of no form, or an unended [. -EFBIG above 1 MiB. Errno of opening and reading.
 */
int jobfile_read(struct jobfile *jobfile, const char *path, void **memory, struct nvs_error *error);
/* Frees the chain. */
void jobfile_forget(void **memory);

/*
 * Replaces each ${NAME} in the line's value. Not done by the reader, because a variable that is
 * missing does not matter where the command line overrides the line. -EINVAL with file and line: an
 * unended ${, a variable that is not set, or a value of 4096 bytes or more.
 */
int jobfile_expand(void **memory, struct jobfile_line *line, struct nvs_error *error);

#endif
