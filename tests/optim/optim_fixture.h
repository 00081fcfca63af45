/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the optimizer share: groups with weights and gradients that can be told again
 * from their numbers, element types rounded in double arithmetic, snapshots of all state to be
 * compared bit by bit, and an I/O engine that begins to fail in the middle of things.
 */
#ifndef TESTS_OPTIM_FIXTURE_H
#define TESTS_OPTIM_FIXTURE_H

#include "swap_fixture.h"

/* ---- Elements ---- */

/* To nearest, ties to even; too much is infinite. */
double element_rounded(enum nvs_dtype dtype, double value);
/* `value` must be one that the type has. */
void element_put(enum nvs_dtype dtype, void *array, uint64_t index, double value);
double element_get(enum nvs_dtype dtype, const void *array, uint64_t index);
/* Element i of n different series, between -1 and 1, of magnitudes that differ. */
double element_value(uint64_t series, uint64_t i);

/* ---- Optimizers ---- */

#define OPTIM_GROUPS_MAX 8

struct group {
	const char *name;
	uint64_t numel;
	enum nvs_dtype dtype;
};

struct optim {
	char *path;
	struct nvs_config config; /* may be changed until it is opened, and between */
	size_t n;
	struct nvs_group_spec specs[OPTIM_GROUPS_MAX];
	void *gradients[OPTIM_GROUPS_MAX]; /* lent; of gradients_dtype */
	enum nvs_dtype gradients_dtype;
	struct nvs_optimizer_options options;
	struct stumble *stumble; /* this I/O engine instead of the configuration's */
	struct nvs_optimizer *optimizer;
	struct nvs_step_result result; /* of the last step */
	struct nvs_error error;
};

/*
 * A directory of its own (in memory where it can be), AdamW, one buffer in the pool, of as many
 * elements as the longest group has, and the first weights.
 */
void optim_init(struct optim *optim, const struct group *groups, size_t n);
int optim_open(struct optim *optim);
/* Closes the optimizer, which must succeed. */
void optim_shut(struct optim *optim);
/* The same, if it is open, and frees and removes everything. */
void optim_close(struct optim *optim);
/* The weights are again as a run begins with them. */
void optim_first_weights(struct optim *optim);

/* The call returned 0; else prints the error. */
#define DONE(optim, call) optim_done(optim, call, __FILE__, __LINE__)
void optim_done(struct optim *optim, int rc, const char *file, int line);
/* The call returned `code`, and its error says so and has `words` in its text. */
#define REFUSED(optim, call, code, words)                                                          \
	optim_refused(optim, call, code, words, __FILE__, __LINE__)
void optim_refused(struct optim *optim, int rc, int code, const char *words, const char *file,
		   int line);

/* Makes the gradients of a step, times `scale`, and lends all of them. */
void optim_lend(struct optim *optim, uint64_t step, double scale);
/* The learning rate of a step: another one for each. */
double optim_lr(uint64_t step);
/* The step with that rate and its norm; its result is in optim->result. */
int optim_step(struct optim *optim, uint64_t step);
/* Steps first to last, with gradients that are lent. */
void optim_run(struct optim *optim, uint64_t first, uint64_t last);

/* ---- Snapshots ---- */

struct snapshot {
	size_t n;
	uint64_t numel[OPTIM_GROUPS_MAX];
	size_t width[OPTIM_GROUPS_MAX]; /* bytes in a weight */
	float *parts[OPTIM_GROUPS_MAX][3];
	void *weights[OPTIM_GROUPS_MAX];
	double norm;
};

void snapshot_take(struct optim *optim, struct snapshot *snapshot);
void snapshot_free(struct snapshot *snapshot);
/* Every bit is the same, else it is printed which is the first that is not. */
#define SAME(a, b) snapshot_same(a, b, __FILE__, __LINE__)
void snapshot_same(const struct snapshot *a, const struct snapshot *b, const char *file, int line);
/* That of the optimizer, now. */
#define IS_AS(optim, snapshot) optim_is_as(optim, snapshot, __FILE__, __LINE__)
void optim_is_as(struct optim *optim, const struct snapshot *snapshot, const char *file, int line);

/* ---- Faults ---- */

/*
 * Does I/Os as they are reaped, without threads, until so many of a direction have been handed
 * over; from there on the next ones of that direction come back with an error, undone.
 */
struct stumble {
	struct faults faults; /* faults_fail() and faults_hold() work on it at any time */
	uint64_t after[2];    /* by direction; I/Os that still go well before */
	int status[2];	      /* 0: none fails; a negative errno */
	unsigned times[2];    /* so many do */
};
#define STUMBLE_NONE                                                                               \
	{                                                                                          \
		.faults = FAULTS_NONE                                                              \
	}
extern const struct engine_ops engine_stumble;
/* Nothing may be in flight. */
void stumble_set(struct stumble *stumble, enum nvs_direction direction, uint64_t after, int status,
		 unsigned times);
/* Nothing fails any more. */
void stumble_mend(struct stumble *stumble);

#endif
