/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests of the optimizer: groups with reproducible weights and gradients, element
 * types rounded in double arithmetic, and snapshots of all state to compare bit by bit.
 */
#ifndef TESTS_OPTIM_OPTIM_FIXTURE_H
#define TESTS_OPTIM_OPTIM_FIXTURE_H

#include "config/config.h"
#include "swap/swap_fixture.h"

/* ---- Elements ---- */

/* Rounds to nearest, ties to even; overflows to infinity. */
double element_rounded(enum nvs_dtype dtype, double value);
/* The type must be able to represent `value`. */
void element_put(enum nvs_dtype dtype, void *array, uint64_t index, double value);
double element_get(enum nvs_dtype dtype, const void *array, uint64_t index);
/* Element i of the series, between -1 and 1, of varying magnitude. */
double element_value(uint64_t series, uint64_t i);
/* Element i of `what` must be within the tolerance. */
void element_near(double is, double due, double tolerance, const char *what, uint64_t i);

/* ---- Optimizers ---- */

#define OPTIM_GROUPS_MAX 8

struct group {
	const char *name;
	uint64_t numel;
	enum nvs_dtype dtype;
};

struct optim {
	char *path;
	struct nvs_config config;	/* may be changed before each open */
	struct offload_config *offload; /* its block of the optimizer */
	size_t n;
	struct nvs_group_spec specs[OPTIM_GROUPS_MAX];
	void *gradients[OPTIM_GROUPS_MAX]; /* lent gradients, of gradients_dtype */
	enum nvs_dtype gradients_dtype;
	struct nvs_optimizer_options options;
	struct sim *sim; /* the simulated drive of optim_simulate(), or NULL */
	struct nvs_optimizer *optimizer;
	struct nvs_step_result result; /* result of the last step */
	struct nvs_error error;
	bool made; /* by optim_init(), until optim_close() */
};

/* For a file whose tests have one optimizer at a time: `o`, closed after each test that passes. */
#define ONE_OPTIMIZER                                                                              \
	static struct optim one_optimizer, *const o = &one_optimizer;                              \
	static void close_one_optimizer(void)                                                      \
	{                                                                                          \
		if (o->made)                                                                       \
			optim_close(o);                                                            \
	}                                                                                          \
	AFTER_SUCCESS(close_one_optimizer)

/* For one whose tests have a second one beside it: `optim` and `other`. */
#define TWO_OPTIMIZERS                                                                             \
	static struct optim optim, other;                                                          \
	static void close_two_optimizers(void)                                                     \
	{                                                                                          \
		if (optim.made)                                                                    \
			optim_close(&optim);                                                       \
		if (other.made)                                                                    \
			optim_close(&other);                                                       \
	}                                                                                          \
	AFTER_SUCCESS(close_two_optimizers)

/*
 * Makes a new directory (in memory if possible) and configures AdamW and one buffer for the longest
 * group, with the initial weights.
 */
void optim_init(struct optim *optim, const struct group *groups, size_t n);
/* The same of one that was made before, and may still be open: it is closed first. */
void optim_renew(struct optim *optim, const struct group *groups, size_t n);
/* Opens it on a simulated drive from now on. */
void optim_simulate(struct optim *optim);
int optim_open(struct optim *optim);
/* Opens it and performs the first steps, so many. */
void optim_open_run(struct optim *optim, uint64_t steps);
/* optim_renew() and optim_open(), where nothing else is to be set. */
void optim_begin(struct optim *optim, const struct group *groups, size_t n);
/* Closes the optimizer, which must succeed. */
void optim_shut(struct optim *optim);
void optim_reopen(struct optim *optim);
/* Closes the optimizer if it is open, and frees and removes everything. */
void optim_close(struct optim *optim);
/* Resets the weights to the initial ones. */
void optim_first_weights(struct optim *optim);
/* Makes them meaningless. */
void optim_spoil_weights(struct optim *optim);

/* The call must return 0; otherwise prints the error. */
#define DONE(optim, call) optim_done(optim, call, __FILE__, __LINE__)
void optim_done(struct optim *optim, int rc, const char *file, int line);
/* The call must return `code`; its error must have the same code, and `words` in its text. */
#define REFUSED(optim, call, code, words)                                                          \
	optim_refused(optim, call, code, words, __FILE__, __LINE__)
void optim_refused(struct optim *optim, int rc, int code, const char *words, const char *file,
		   int line);

/* A call nvs_optimizer_FUNCTION() on the optimizer, with its error. */
#define CALL(optim, function, ...)                                                                 \
	nvs_optimizer_##function((optim)->optimizer, ##__VA_ARGS__, &(optim)->error)
#define DOES(optim, ...)		 DONE(optim, CALL(optim, __VA_ARGS__))
#define REFUSES(optim, code, words, ...) REFUSED(optim, CALL(optim, __VA_ARGS__), code, words)

/* Makes the gradients of a step, times `scale`, and lends all of them. */
void optim_lend(struct optim *optim, uint64_t step, double scale);
/* Makes the same and adds them to those that were added. */
void optim_add(struct optim *optim, uint64_t step, double scale);
/* The learning rate of a step; each has a different one. */
double optim_lr(uint64_t step);
/* Performs the step with that rate, computing the norm; the result is in optim->result. */
int optim_step(struct optim *optim, uint64_t step);
/* Performs steps `first` to `last` with lent gradients. */
void optim_run(struct optim *optim, uint64_t first, uint64_t last);
/* The step with lent gradients fails after so many I/Os of the simulated drive, which stays bad. */
void optim_fail(struct optim *optim, uint64_t step, enum nvs_direction direction, unsigned after);

/* ---- Snapshots ---- */

struct snapshot {
	size_t n;
	uint64_t numel[OPTIM_GROUPS_MAX];
	size_t width[OPTIM_GROUPS_MAX];	   /* bytes of a weight */
	float *parts[OPTIM_GROUPS_MAX][3]; /* in the order of the rule */
	void *weights[OPTIM_GROUPS_MAX];
	double norm;
};

void snapshot_take(struct optim *optim, struct snapshot *snapshot);
void snapshot_free(struct snapshot *snapshot);
/* All bits must be equal; otherwise prints the first difference. */
#define SAME(a, b) snapshot_same(a, b, __FILE__, __LINE__)
void snapshot_same(const struct snapshot *a, const struct snapshot *b, const char *file, int line);
/* The optimizer's present state must equal the snapshot. */
#define IS_AS(optim, snapshot) optim_is_as(optim, snapshot, __FILE__, __LINE__)
void optim_is_as(struct optim *optim, const struct snapshot *snapshot, const char *file, int line);
/* The state of two optimizers must be equal. */
#define IS_LIKE(optim, other) optim_is_like(optim, other, __FILE__, __LINE__)
void optim_is_like(struct optim *optim, struct optim *other, const char *file, int line);
/* One snapshot is saved here until the next one is, for tests that need no other. */
void optim_save(struct optim *optim);
#define IS_AS_SAVED(optim) optim_is_as(optim, &optim_saved, __FILE__, __LINE__)
extern struct snapshot optim_saved;
/* The state after so many steps without offload and with one thread; kept for the next call. */
const struct snapshot *optim_straight(const struct group *groups, size_t n, uint64_t steps);

#endif
