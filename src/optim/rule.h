/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules by which a step updates elements. A rule says which states it has beside the master
 * weights, and what the constants of a step are; its arithmetic is a function of each kernel
 * (kernels/body.h). Everything else of the optimizer knows states by their number alone: passes
 * read, hold and write the parts of a tile, part 0 the master weights and part i the rule's state i.
 */
#ifndef OPTIM_RULE_H
#define OPTIM_RULE_H

#include "optim/kernels/kernel.h"

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

#endif
