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

static int check_numbers(const struct nvs_universal_options *options, int rc,
			 struct nvs_error *error)
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
			 "rank %u of %u: the ranks differ in their numbers, or one has no memory; "
			 "all pass the same world, and each another rank from 0 to world - 1",
			 options->rank, options->world);
}

int ranks_begin(struct ranks *ranks, const struct nvs_universal_options *options, int rc,
		struct nvs_error *error)
{
	*ranks = (struct ranks){.options = options};
	if (!rc)
		rc = ranks_reserve(ranks, options->world, error);
	return check_numbers(options, rc, error);
}

void ranks_end(struct ranks *ranks)
{
	free(ranks->words);
	*ranks = (struct ranks){0};
}

int ranks_reserve(struct ranks *ranks, size_t n, struct nvs_error *error)
{
	uint32_t *words;

	if (n <= ranks->room)
		return 0;
	words = realloc(ranks->words, (ranks->options->world + n) * sizeof(*words));
	if (!words)
		return error_set(error, -ENOMEM, "no memory for the ranks' words");
	ranks->words = words;
	ranks->room = n;
	return 0;
}

uint32_t *ranks_words(struct ranks *ranks, size_t n)
{
	uint32_t *words = ranks->words + ranks->options->world;

	assert(n <= ranks->room);
	return memset(words, 0, n * sizeof(*words));
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

int ranks_meet(struct ranks *ranks, int rc, size_t n, struct nvs_error *error)
{
	const struct nvs_universal_options *options = ranks->options;
	int met;

	assert(rc <= 0 && options->rank < options->world && n <= ranks->room);
	if (options->world == 1)
		return rc;
	memset(ranks->words, 0, options->world * sizeof(*ranks->words));
	ranks->words[options->rank] = (uint32_t)-rc;
	met = options->exchange(options->exchange_arg, ranks->words, options->world + n);
	if (met && !rc)
		rc = exchange_failed(met, error);
	return met ? rc : judge(options, rc, ranks->words, error);
}

int ranks_agree(struct ranks *ranks, int rc, uint32_t word, struct nvs_error *error)
{
	unsigned world = ranks->options->world;
	uint32_t *words = ranks_words(ranks, world);

	words[ranks->options->rank] = word;
	rc = ranks_meet(ranks, rc, world, error);
	for (unsigned i = 1; i < world && !rc; i++)
		if (words[i] != words[0])
			rc = error_set(
				error, -EINVAL,
				"rank %u has other parameters than rank 0: all ranks pass the "
				"same names and shapes in the same order",
				i);
	return rc;
}
