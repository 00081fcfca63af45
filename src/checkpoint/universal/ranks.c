/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that write one checkpoint together: each learns whether another one has failed. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "checkpoint/universal/universal.h"

#define WORLD_MAX 65536u

int universal_options_in(struct nvs_universal_options *into,
			 const struct nvs_universal_options *options, struct nvs_error *error)
{
	int rc = 0;

	*into = (struct nvs_universal_options){.size = sizeof(*into)};
	if (options)
		rc = struct_in(into, sizeof(*into), options);
	if (rc)
		return struct_refused(error, rc, "nvs_universal_options", "the options");
	into->world += !into->world;
	if (into->world > WORLD_MAX || into->rank >= into->world)
		return error_set(
			error, -EINVAL,
			"rank %u of %u; allowed are 0 to world - 1, and a world of up to %u",
			into->rank, into->world, WORLD_MAX);
	if (into->world > 1 && !into->exchange)
		return error_set(error, -EINVAL, "exchange is NULL, and there are %u ranks",
				 into->world);
	if (!into->optimizer_state != !into->optimizer_state_bytes)
		return error_set(error, -EINVAL,
				 "optimizer_state and its number of bytes: one is not set");
	return 0;
}

/* Reports the first rank that has failed. */
static int judge(const struct nvs_universal_options *options, int rc, const uint32_t *codes,
		 struct nvs_error *error)
{
	for (unsigned i = 0; i < options->world && !rc; i++)
		if (codes[i])
			rc = error_set(error, -ECANCELED, "rank %u has failed: %s", i,
				       nvs_strerror(-(int)codes[i]));
	return rc;
}

int ranks_meet(const struct nvs_universal_options *options, int rc, uint32_t *words, size_t n,
	       struct nvs_error *error)
{
	uint32_t *all;
	int met;

	assert(rc <= 0 && options->rank < options->world);
	if (options->world == 1)
		return rc;
	all = calloc(options->world + n, sizeof(*all));
	if (!all)
		return error_set(error, -ENOMEM, "no memory for the ranks' words");
	all[options->rank] = (uint32_t)-rc;
	if (n)
		memcpy(all + options->world, words, n * sizeof(*words));
	met = options->exchange(options->exchange_arg, all, options->world + n);
	if (met && !rc)
		rc = error_set(error, met < 0 ? met : -EINVAL, "the exchange of the ranks: %s",
			       nvs_strerror(met < 0 ? met : -EINVAL));
	if (!met)
		rc = judge(options, rc, all, error);
	if (n)
		memcpy(words, all + options->world, n * sizeof(*words));
	free(all);
	return rc;
}

int ranks_agree(const struct nvs_universal_options *options, int rc, uint32_t word,
		struct nvs_error *error)
{
	uint32_t *words = calloc(options->world, sizeof(*words));

	if (!words)
		return error_set(error, -ENOMEM, "no memory for the ranks' words");
	words[options->rank] = word;
	rc = ranks_meet(options, rc, words, options->world, error);
	for (unsigned i = 1; i < options->world && !rc; i++)
		if (words[i] != words[0])
			rc = error_set(
				error, -EINVAL,
				"rank %u has other parameters than rank 0: all ranks pass the "
				"same names and shapes in the same order",
				i);
	free(words);
	return rc;
}
