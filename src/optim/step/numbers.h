/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bounds of the rules' numbers, which are the same in the configuration, in a call and in a kept
 * store.
 */
#ifndef OPTIM_NUMBERS_H
#define OPTIM_NUMBERS_H

#include "config/config.h"
#include "nvswap.h"

/* Whether gradients and weights may have this type. */
static inline bool is_element(enum nvs_dtype dtype)
{
	return dtype == NVS_F32 || dtype == NVS_BF16 || dtype == NVS_F16;
}

#define STEPS_MAX ((UINT64_C(1) << 53) - 1) /* whole numbers that a double has all of */

/* What an error calls a number. */
enum number_names {
	NAMED_AS_KEYS,	 /* by its key of the configuration */
	NAMED_AS_FIELDS, /* by its field of struct nvs_rule_update */
};

/* -EINVAL unless the numbers are within their bounds, those that the rule does not have too. */
int check_numbers(const struct optimizer_config *config, enum nvs_rule rule,
		  enum number_names names, struct nvs_error *error);
/* -EINVAL unless the value is 0 or above, and below the bound. */
int check_number(const char *name, double value, double below, struct nvs_error *error);

#endif
