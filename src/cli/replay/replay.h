/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The accesses that a replay performs: a program's calls on its tensors, with the time that it
 * computed before each; docs/replay.md has the two file formats. And their performance, a mode of a
 * job like those in modes/.
 */
#ifndef CLI_REPLAY_REPLAY_H
#define CLI_REPLAY_REPLAY_H

#include "cli/jobs/jobs.h"

/* ---- accesses.c ---- */

enum access_call {
	ACCESS_SWAP_IN,
	ACCESS_LEASE,
	ACCESS_WAIT,
	ACCESS_RELEASE_CLEAN,
	ACCESS_RELEASE_DIRTY,
	ACCESS_PREFETCH,
	ACCESS_SWAP_OUT,
	ACCESS_STEP_BEGIN,
	ACCESS_STEP_END,
};

struct access {
	uint64_t at_ns;	 /* program's clock, which stops while it waits for the drive */
	uint32_t tensor; /* index in the model; 0 for steps */
	uint8_t call;	 /* enum access_call */
	bool joined;	 /* part of the same call as the access before */
};

struct access_list {
	struct access *accesses;
	size_t n, room;
	bool *read_first;    /* by tensor: it is read before it is first written */
	uint64_t in_use_max; /* maximum bytes of the pool in use */
	/* Of the recorded run; 0 in a text file: */
	uint64_t pool_bytes;
	uint64_t wall_ns, stall_ns;
	uint64_t bytes[2]; /* by enum nvs_direction */
};

/* What the reading of a trace or text of `nbytes` takes of memory at most. */
#define ACCESSES_BYTES(nbytes) ((2u << 20) + 128 * (size_t)(nbytes))

/* Reads a trace or a text file into *list, and its tensors into *model in the order of their first
 * access. Free both even after an error. -EINVAL (damaged, incomplete, no accesses) and -E2BIG with
 * file and line in *error; -ENOMEM; errno of reading. */
int accesses_load(struct access_list *list, struct model *model, const char *path,
		  struct nvs_error *error);
void accesses_free(struct access_list *list);

/* ---- replay.c ---- */

/* Reads options.replay into job->accesses and job->model, and sets options.pool if neither it nor a
 * configuration is given; replay_release frees them. Errors of accesses_load. */
int replay_load(struct bench_job *job, struct nvs_error *error);
void replay_release(struct bench_job *job);
/* -E2BIG if job->config's pool is smaller than the tensors in use at the same time. */
int replay_check_pool(const struct bench_job *job, struct nvs_error *error);

int bench_replay(const struct bench_job *job, struct job_watch *watch, struct bench_result *result);

#endif
