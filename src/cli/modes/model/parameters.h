/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameters that mode step trains: the elements of a model's floating-point tensors end to
 * end, cut into groups, with made-up weights and gradients in the caller's own memory.
 */
#ifndef CLI_PARAMETERS_H
#define CLI_PARAMETERS_H

#include "model.h"

struct parameters {
	enum nvs_dtype dtype; /* of weights and gradients: NVS_F32, NVS_BF16 or NVS_F16 */
	uint64_t numel;
	uint64_t group_numel; /* of every group but the last, which has the rest */
	size_t ngroups;
	uint64_t seed;
	void *weights, *gradients;
	uint64_t nbytes; /* of both arrays together, as they were allocated */
};

/*
 * Elements of the model. Made-up tensors are of `dtype`, whatever their bytes are called; integers
 * of a file are not trained.
 */
uint64_t parameters_numel(const struct model *model, enum nvs_dtype dtype);
/* Allocates both arrays and makes the weights. -ENOMEM. */
int parameters_open(struct parameters *parameters, const struct model *model, enum nvs_dtype dtype,
		    uint64_t group_numel, uint64_t seed, struct nvs_error *error);
/* Gradients as a loss of that scale gives them. */
void parameters_make_gradients(struct parameters *parameters, double loss_scale);
void parameters_close(struct parameters *parameters);

uint64_t parameters_group_numel(const struct parameters *parameters, size_t group);
/* Where the group's part of either array begins. */
void *parameters_at(const struct parameters *parameters, void *array, size_t group);
/* Element `index` of either array, or of what has the same type. */
double parameters_value(const struct parameters *parameters, const void *array, uint64_t index);
/* How far a value may be from what the type makes of it, rounding to nearest. */
double parameters_rounding(const struct parameters *parameters, double value);

#endif
