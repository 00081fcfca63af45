/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of an optimizer, and its functions for checkpoints and for tests, beside the public
 * ones.
 */
#ifndef OPTIM_OPTIMIZER_H
#define OPTIM_OPTIMIZER_H

#include "optim/kernels/kernel.h"

/*
 * ---- rule.c ----
 *
 * The rules by which a step updates elements. A rule says which states it has beside the master
 * weights, and what the constants of a step are; its arithmetic is a function of each kernel
 * (kernels/body.h). Everything else of the optimizer knows states by their number alone: passes
 * read, hold and write the parts of a tile, part 0 the master weights and part i the rule's state
 * i.
 */

#define PARTS 3u /* of a rule, at most */

struct rule {
	enum nvs_rule id;
	const char *name; /* as optimizer.type */
	bool packs;	  /* its state may have another format than fp32 */
	unsigned nparts;
	enum nvs_optimizer_part parts[PARTS];
	/* The constants of step `step` (from 1) with learning rate lr; computed in double. */
	struct scalars (*scalars)(const struct optimizer_config *config, double lr, uint64_t step,
				  double grad_factor);
};

const struct rule *rule_at(enum nvs_rule id);
/* The rule of an optimizer.type, whose case does not matter; NULL: there is none. */
const struct rule *rule_of_type(const char *type);
/* The number of a part among the rule's; -1: it has no such part. */
int rule_part(const struct rule *rule, enum nvs_optimizer_part part);
/* "exp_avg" */
const char *part_name(enum nvs_optimizer_part part);
/* What part i of a rule is before the first step, but for the master weights. */
float rule_initial(const struct rule *rule, const struct optimizer_config *config, unsigned i);

/* ---- The optimizer ---- */

struct engine_ops;
/* nvs_optimizer_open with this I/O engine instead of the configured one. */
int optimizer_open_with(struct nvs_optimizer **optimizer, const struct nvs_config *config,
			const struct nvs_group_spec *groups, size_t n,
			const struct nvs_optimizer_options *options, const struct engine_ops *ops,
			void *ops_arg, struct nvs_error *error);
/* nvs_optimizer_convert likewise. */
int optimizer_convert_with(const struct nvs_config *config, enum nvs_optimizer_state state,
			   struct nvs_state_conversion *result, const struct engine_ops *ops,
			   void *ops_arg, struct nvs_error *error);

/*
 * Transfers the state of whole tiles. A tile has the number of a flight from its first begin() to
 * the end of complete(); a flight has one tile at a time. Called by several threads concurrently,
 * each for flights of its own.
 */
struct tile_mover {
	/* Begins to transfer a run of a tile; called for each of its runs, of up to a whole tile.
	 * The arrays stay valid until complete() returns, which also returns the errors of this. */
	void (*begin)(void *arg, const struct nvs_state_run *run, unsigned flight);
	/* Waits for the transfers of the flight: 0 or a negative errno, which ends the pass. */
	int (*complete)(void *arg, unsigned flight);
	void *arg;
};

/* The number of flights, which are numbered from 0: what the threads of a pass have at once. */
unsigned optimizer_flights(const struct nvs_optimizer *optimizer);
/* As nvs_optimizer_export and nvs_optimizer_import. */
int optimizer_export_tiles(struct nvs_optimizer *optimizer, const struct tile_mover *mover,
			   struct nvs_error *error);
int optimizer_import_tiles(struct nvs_optimizer *optimizer, const struct tile_mover *mover,
			   struct nvs_error *error);

#endif
