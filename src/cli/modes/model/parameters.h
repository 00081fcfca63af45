/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameters that rw=step trains: the elements of a model's floating-point tensors end to end,
 * cut into groups, with generated weights and gradients in memory beside the pool.
 */
#ifndef CLI_MODES_MODEL_PARAMETERS_H
#define CLI_MODES_MODEL_PARAMETERS_H

#include "cli/modes/model/model.h"

struct parameters {
	enum nvs_dtype dtype; /* type of weights and gradients: NVS_F32, NVS_BF16 or NVS_F16 */
	uint64_t numel;
	uint64_t group_numel; /* numel of every group but the last, which has the rest */
	size_t ngroups;
	uint64_t seed;
	void *weights, *gradients;
	uint64_t nbytes; /* bytes of both arrays together */
};

/* Elements of the model. Generated tensors count as `dtype`; integers of a file are not trained. */
uint64_t parameters_numel(const struct model *model, enum nvs_dtype dtype);
/*
 * Cuts the model into groups, allocates both arrays and generates the weights. -EINVAL: it has no
 * floating-point element. -ENOMEM.
 */
int parameters_open(struct parameters *parameters, const struct model *model, enum nvs_dtype dtype,
		    uint64_t group_numel, uint64_t seed, struct nvs_error *error);
/* Generates gradients of a loss scaled by `loss_scale`. */
void parameters_make_gradients(struct parameters *parameters, double loss_scale);
void parameters_close(struct parameters *parameters);

uint64_t parameters_group_numel(const struct parameters *parameters, size_t group);
/* The first element of the group in either array. */
void *parameters_at(const struct parameters *parameters, void *array, size_t group);
/* Element `index` of an array of this type. */
double parameters_value(const struct parameters *parameters, const void *array, uint64_t index);
/* The largest error of rounding `value` to the type. */
double parameters_rounding(const struct parameters *parameters, double value);

#endif
