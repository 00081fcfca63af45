/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements are generated as sign, exponent and mantissa, so that nothing is rounded in any type.
 * Exponents span four powers of two below 2^-6, as weights do.
 */
#include "cli/modes/model/parameters.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/memory/huge_map.h"
#include "base/memory/room.h"
#include "cli/modes/model/random.h"

#define LEAST_EXPONENT (-10)
#define SCALE_LOG2_MAX 20 /* keeps scaled gradients within the range of fp16 */

static const struct format {
	int bias;
	unsigned mantissa_bits, sign_shift;
} formats[NVS_DTYPE_COUNT] = {
	[NVS_F32] = {127, 23, 31}, [NVS_BF16] = {127, 7, 15}, [NVS_F16] = {15, 10, 15}};

/* Integers of a file are not trained; generated tensors have the type of the parameters. */
uint64_t parameters_numel(const struct model *model, enum nvs_dtype dtype)
{
	uint64_t numel = 0;

	for (size_t i = 0; i < model->n; i++) {
		const struct model_tensor *tensor = &model->tensors[i];

		if (!model->path)
			numel += tensor->nbytes / nvs_dtype_size(dtype);
		else if (tensor->dtype <= NVS_F8_E5M2)
			numel += tensor->numel;
	}
	return numel;
}

static inline uint32_t encode(const struct format *format, int least, uint32_t random)
{
	uint32_t exponent = (uint32_t)(format->bias + least) + (random >> 29 & 3);
	uint32_t mantissa = random & ((1u << format->mantissa_bits) - 1);

	return (random >> 31) << format->sign_shift | exponent << format->mantissa_bits | mantissa;
}

static void make(const struct parameters *parameters, void *array, uint32_t salt, int least)
{
	const struct format *format = &formats[parameters->dtype];
	uint32_t seed = mix((uint32_t)parameters->seed ^ mix(salt)) ^
			mix((uint32_t)(parameters->seed >> 32) + salt);
	uint16_t *shorts = array;
	uint32_t *longs = array;

	if (nvs_dtype_size(parameters->dtype) == sizeof(*longs))
		for (uint64_t i = 0; i < parameters->numel; i++)
			longs[i] = encode(format, least, mix((uint32_t)i * 0x9e3779b1u + seed));
	else
		for (uint64_t i = 0; i < parameters->numel; i++)
			shorts[i] = (uint16_t)encode(format, least,
						     mix((uint32_t)i * 0x9e3779b1u + seed));
}

int parameters_open(struct parameters *parameters, const struct model *model, enum nvs_dtype dtype,
		    uint64_t group_numel, uint64_t seed, struct nvs_error *error)
{
	uint64_t numel = parameters_numel(model, dtype), nbytes = numel * nvs_dtype_size(dtype);
	int rc;

	assert(formats[dtype].mantissa_bits && group_numel);
	*parameters = (struct parameters){
		.dtype = dtype, .numel = numel, .group_numel = group_numel, .seed = seed};
	if (!numel)
		return error_set(error, -EINVAL,
				 "the model has no floating-point element, so there is nothing to "
				 "train");
	parameters->ngroups = (size_t)((numel + group_numel - 1) / group_numel);
	rc = memory_room_check(2 * nbytes, "model", "weights and gradients beside the pool",
			       "train a part of the model with --scale, or smaller tensors with "
			       "--tensor-size",
			       error);
	if (rc)
		return rc;
	parameters->nbytes = 2 * nbytes;
	parameters->weights = huge_map(nbytes, NULL);
	parameters->gradients = huge_map(nbytes, NULL);
	if (!parameters->weights || !parameters->gradients)
		return error_set(error, -ENOMEM,
				 "no memory for the weights and gradients of %llu elements, %llu "
				 "bytes beside the pool: train a part of the model with --scale",
				 (unsigned long long)numel, (unsigned long long)parameters->nbytes);
	make(parameters, parameters->weights, 1, LEAST_EXPONENT);
	/* Taken now, so that the check of the pool's memory sees what these take. */
	memset(parameters->gradients, 0, nbytes);
	return 0;
}

void parameters_make_gradients(struct parameters *parameters, double loss_scale)
{
	int shift = loss_scale > 1 ? ilogb(loss_scale) : 0;

	make(parameters, parameters->gradients, 2,
	     LEAST_EXPONENT + (shift < SCALE_LOG2_MAX ? shift : SCALE_LOG2_MAX));
}

void parameters_close(struct parameters *parameters)
{
	if (parameters->weights)
		munmap(parameters->weights, parameters->nbytes / 2);
	if (parameters->gradients)
		munmap(parameters->gradients, parameters->nbytes / 2);
	parameters->weights = parameters->gradients = NULL;
}

uint64_t parameters_group_numel(const struct parameters *parameters, size_t group)
{
	uint64_t from = group * parameters->group_numel, rest = parameters->numel - from;

	assert(group < parameters->ngroups);
	return rest < parameters->group_numel ? rest : parameters->group_numel;
}

void *parameters_at(const struct parameters *parameters, void *array, size_t group)
{
	return (char *)array + group * parameters->group_numel * nvs_dtype_size(parameters->dtype);
}

double parameters_value(const struct parameters *parameters, const void *array, uint64_t index)
{
	const struct format *format = &formats[parameters->dtype];
	uint32_t bits = nvs_dtype_size(parameters->dtype) == 4 ? ((const uint32_t *)array)[index]
							       : ((const uint16_t *)array)[index];
	uint32_t fraction = bits & ((1u << format->mantissa_bits) - 1);
	int exponent = (int)((bits & ((1u << format->sign_shift) - 1)) >> format->mantissa_bits);
	double value = exponent ? fraction + (double)(1u << format->mantissa_bits) : fraction;

	/* Inf and NaN are never within a tolerance. */
	if (exponent == 2 * format->bias + 1)
		return NAN;
	value = ldexp(value, (exponent ? exponent : 1) - format->bias - (int)format->mantissa_bits);
	return bits >> format->sign_shift ? -value : value;
}

double parameters_rounding(const struct parameters *parameters, double value)
{
	const struct format *format = &formats[parameters->dtype];
	int exponent = value != 0 ? ilogb(value) : -format->bias;

	/* Subnormal numbers are evenly spaced. */
	if (exponent < 1 - format->bias)
		exponent = 1 - format->bias;
	return ldexp(1, exponent - (int)format->mantissa_bits - 1);
}
