/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The expected optimizer state: a scalar Adam in double over a sample of the elements, with an
 * error bound for computing it in fp32.
 */
#ifndef CLI_MODES_MODEL_REFERENCE_H
#define CLI_MODES_MODEL_REFERENCE_H

#include "cli/modes/model/parameters.h"

/* The optimizer's settings. */
struct reference_adam {
	double lr, beta1, beta2, eps, weight_decay;
	bool bias_correction, adam_w_mode;
};

struct reference {
	const struct parameters *parameters;
	struct reference_adam adam;
	double clipping;
	double norm; /* norm of the unscaled gradients, for clipping */
	uint64_t steps;
	struct sample *samples;
	size_t nsamples;
	uint64_t nbytes; /* of the sample */
	uint64_t compared, differences;
	struct nvs_error difference; /* the first difference */
};

/*
 * Samples the initial weights: the first and last elements of each group, and two runs in between
 * that the seed chooses. -ENOMEM.
 */
int reference_open(struct reference *reference, const struct parameters *parameters,
		   const struct nvs_config *config, struct nvs_error *error);
/*
 * Performs the same step, with its loss scale. -EBADMSG: the optimizer clipped by another factor.
 */
int reference_step(struct reference *reference, const struct nvs_step_result *done,
		   struct nvs_error *error);
/*
 * Compares master weights and both moments of the sample, and the caller's weights with the rounded
 * master weights. -EBADMSG, or an error of nvs_optimizer_get.
 */
int reference_compare(struct reference *reference, struct nvs_optimizer *optimizer,
		      struct nvs_error *error);
void reference_close(struct reference *reference);

#endif
