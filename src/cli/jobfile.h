/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The form of fio's job files, and nothing of what a key means: sections of lines that are
 * "key=value" or a bare key, comments from a ; or # to the end of the line, "include FILE", and in
 * values ${NAME} for what the environment has under that name, and fio's $ncpus, $mb_memory and
 * $pagesize for what the machine has.
 */
#ifndef CLI_JOBFILE_H
#define CLI_JOBFILE_H

#include <stddef.h>

#include "nvswap.h"

struct jobfile_line {
	const char *file; /* as it was named, and */
	unsigned line;	  /* from 1, for errors */
	const char *key;
	const char *value; /* NULL: a bare key. Without blanks around it; quotes stay, as in fio */
};

struct jobfile_section {
	const char *name; /* "global", or that of a job; names may repeat */
	const char *file;
	unsigned line;
	struct jobfile_line *lines;
	size_t n;
};

struct jobfile {
	struct jobfile_section *sections; /* in the order of the file, included ones in place */
	size_t n;
	struct jobfile_line *lines; /* those of all sections */
	void *memory;		    /* that texts lie in */
};

/*
 * Reads a file ("-": standard input) with those it includes, which are looked for beside it first.
 * What an included file says before a section of its own belongs to that of the include; after one
 * that has sections, the next line must begin a section. -EINVAL with file and line: a line in no
 * section or of no form, an unended [ or ${, a variable that is not set, includes that go round or
 * more than 16 deep. -EFBIG above 1 MiB. Errno of opening and reading. After an error there is
 * nothing to free.
 */
int jobfile_read(struct jobfile *jobfile, const char *path, struct nvs_error *error);
/* The same from memory; `name` stands for the file. */
int jobfile_parse(struct jobfile *jobfile, const char *text, size_t nbytes, const char *name,
		  struct nvs_error *error);
void jobfile_free(struct jobfile *jobfile);

#endif
