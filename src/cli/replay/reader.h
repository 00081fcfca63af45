/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Within accesses.c and trace_reader.c, the readers of both formats. The first failure stays in `rc` and turns later calls into
 * no-ops, so a reader checks it once a line.
 */
#ifndef CLI_REPLAY_READER_H
#define CLI_REPLAY_READER_H

#include <stdio.h>

#include "cli/replay/accesses.h"

/* A tensor and its state after the accesses so far. */
struct subject {
	char *name;
	uint64_t offset; /* distinguishes tensors of one name in a trace, which truncates names */
	uint64_t nbytes;
	enum nvs_dtype dtype;
	uint32_t index; /* in the order of the first access */
	uint32_t uses;	/* pins by swap-ins and leases */
	bool written, read_first;
	bool external; /* being read into the program's own memory */
};

struct reader {
	int rc;
	struct access_list *list;
	struct model *model;
	const char *path;
	FILE *file;
	unsigned line;
	struct nvs_error *error;
	void *subjects;	 /* tsearch tree */
	uint64_t now_ns; /* time of the next access */
	uint64_t in_use; /* bytes of the pool in use */
	bool in_step;
};

void reader_fail(struct reader *reader, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#define SIZE_UNKNOWN UINT64_MAX
/*
 * Finds the tensor of that name and offset, or makes it at its first access, when its size must be
 * known. NULL after a failure.
 */
struct subject *reader_subject(struct reader *reader, const char *name, uint64_t offset,
			       uint64_t nbytes, enum nvs_dtype dtype);
/* Appends an access that an engine allows in this state, or fails. `subject` is NULL for steps. */
void reader_add(struct reader *reader, enum access_call call, struct subject *subject);
/* Makes room in *array for one more than n elements. Returns false after a failure. */
bool reader_grow(struct reader *reader, void *array, size_t n, size_t *room, size_t element);

/* ---- trace_reader.c ---- */
void trace_read(struct reader *reader);

#endif
