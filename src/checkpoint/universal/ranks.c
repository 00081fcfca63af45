/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that write one checkpoint together: each learns whether another one has failed. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "checkpoint/universal/universal.h"

#define WORLD_MAX 65536u

static int exchange_failed(int code, struct nvs_error *error)
{
	code = code < 0 ? code : -EINVAL;
	return error_set(error, code, "the exchange of the ranks: %s", nvs_strerror(code));
}

int universal_options_in(struct nvs_universal_options *into,
			 const struct nvs_universal_options *options, struct nvs_error *error)
{
	int rc = 0;

	*into = (struct nvs_universal_options){.size = sizeof(*into)};
	if (options)
		rc = struct_in(into, sizeof(*into), options);
	if (rc) {
		*into = (struct nvs_universal_options){0};
		return struct_refused(error, rc, "nvs_universal_options", "the options");
	}
	into->world += !into->world;
	if (into->world > WORLD_MAX || into->rank >= into->world)
		return error_set(
			error, -EINVAL,
			"rank %u of %u; allowed are 0 to world - 1, and a world of up to %u",
			into->rank, into->world, WORLD_MAX);
	if (into->world > 1 && !into->exchange)
		return error_set(error, -EINVAL, "exchange is NULL, and there are %u ranks",
				 into->world);
	return 0;
}

static uint64_t hash_rank(unsigned rank, unsigned world)
{
	const uint32_t both[] = {rank, world};

	return XXH3_64bits(both, sizeof(both));
}

int ranks_check(const struct nvs_universal_options *options, int rc, struct nvs_error *error)
{
	uint64_t expected = 0;
	uint32_t words[2];
	int met;

	if (options->world < 2 || !options->exchange)
		return rc;
	/* A rank that is refused tells 0, so that the others see that it is missing. */
	words_put(words, rc ? 0 : hash_rank(options->rank, options->world));
	met = options->exchange(options->exchange_arg, words, 2);
	if (rc)
		return rc;
	if (met)
		return exchange_failed(met, error);
	for (unsigned rank = 0; rank < options->world; rank++)
		expected ^= hash_rank(rank, options->world);
	if (words_get(words) == expected)
		return 0;
	return error_set(error, -EINVAL,
			 "rank %u of %u: the ranks differ in their numbers; all pass the same "
			 "world, and each another rank from 0 to world - 1",
			 options->rank, options->world);
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
		rc = exchange_failed(met, error);
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
