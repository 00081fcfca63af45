/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that write one checkpoint together: each learns whether another one has failed. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "checkpoint/universal/universal.h"

#define WORLD_MAX   65536u
#define RANDOM_BITS 32u

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

/* ---- Numbers of the ranks ---- */

static int numbers_differ(const struct nvs_universal_options *options, struct nvs_error *error)
{
	return error_set(error, -EINVAL,
			 "rank %u of %u: the ranks differ in their numbers, or one has no memory; "
			 "all pass the same world, and each another rank from 0 to world - 1",
			 options->rank, options->world);
}

static uint32_t chosen(uint32_t random, unsigned bit, uint32_t world)
{
	return random >> bit & 1 ? world : 0;
}

/*
 * Each rank tells its world in the words that random bits choose. If all have the same one, the
 * combined bits choose the words that have it. Without random bits ranks of another world could
 * cancel out; with them each word shows these in one of two cases.
 */
static int check_world(const struct nvs_universal_options *options, int rc, uint32_t random,
		       struct nvs_error *error)
{
	/* A rank that is refused tells 0, so that the others see that it is missing. */
	uint32_t words[1 + RANDOM_BITS] = {random}, world = rc ? 0 : options->world;
	int met;

	for (unsigned i = 0; i < RANDOM_BITS; i++)
		words[1 + i] = chosen(random, i, world);
	met = options->exchange(options->exchange_arg, words, 1 + RANDOM_BITS);
	if (rc)
		return rc;
	if (met)
		return exchange_failed(met, error);
	for (unsigned i = 0; i < RANDOM_BITS; i++)
		if (words[1 + i] != chosen(words[0], i, world))
			return numbers_differ(options, error);
	return 0;
}

static uint32_t hash(uint32_t random)
{
	return (uint32_t)XXH3_64bits(&random, sizeof(random));
}

/*
 * Each rank tells a random number and its hash in the place of its number: combined with those of
 * another rank they are no number and its hash, nor are they where there is no rank.
 */
static int check_ranks(struct ranks *ranks, uint32_t random, struct nvs_error *error)
{
	const struct nvs_universal_options *options = ranks->options;
	size_t n = 2 * (size_t)options->world;
	uint32_t *words = ranks_words(ranks, n);
	int met;

	words[2 * options->rank] = random;
	words[2 * options->rank + 1] = hash(random);
	met = options->exchange(options->exchange_arg, words, n);
	if (met)
		return exchange_failed(met, error);
	for (size_t i = 0; i < n; i += 2)
		if (words[i + 1] != hash(words[i]))
			return numbers_differ(options, error);
	return 0;
}

int ranks_begin(struct ranks *ranks, const struct nvs_universal_options *options, int rc,
		struct nvs_error *error)
{
	uint32_t random;

	*ranks = (struct ranks){.options = options};
	if (!rc)
		rc = ranks_reserve(ranks, 2 * (size_t)options->world, error);
	if (options->world < 2 || !options->exchange)
		return rc;
	if (getrandom(&random, sizeof(random), 0) != sizeof(random)) {
		random = UINT32_MAX;
		rc = rc ? rc : error_set(error, -EIO, "no random number for the exchange");
	}
	rc = check_world(options, rc, random, error);
	return rc ? rc : check_ranks(ranks, random, error);
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
