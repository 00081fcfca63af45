/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer state that is expected: a scalar Adam in double over a sample of the elements, with
 * a bound on the error of one that computes in fp32.
 */
#ifndef CLI_MODES_MODEL_REFERENCE_H
#define CLI_MODES_MODEL_REFERENCE_H

#include "cli/modes/model/parameters.h"
#include "config/config.h"

struct reference {
	const struct parameters *parameters;
	struct optimizer_config adam;
	double clipping;
	double norm; /* of the gradients as they are; where they are clipped */
	uint64_t steps;
	struct sample *samples;
	size_t nsamples;
	uint64_t nbytes; /* of memory */
	uint64_t compared, differences;
	struct nvs_error difference; /* the first */
};

/*
 * Takes the sample from the initial weights: of each group the first elements, the last, and two
 * runs between them that the seed chooses. -ENOMEM.
 */
int reference_open(struct reference *reference, const struct parameters *parameters,
		   const struct nvs_config *config, struct nvs_error *error);
/* Takes the same step, with its loss scale. -EBADMSG: it clipped by another factor. */
int reference_step(struct reference *reference, const struct nvs_step_result *done,
		   struct nvs_error *error);
/*
 * Compares master weights and both moments of the sample, and the caller's weights with the master
 * weights that they were rounded from. -EBADMSG, or an error of nvs_optimizer_get.
 */
int reference_compare(struct reference *reference, struct nvs_optimizer *optimizer,
		      struct nvs_error *error);
void reference_close(struct reference *reference);

#endif
