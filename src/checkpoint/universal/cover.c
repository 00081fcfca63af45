/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks that the ranks give each element of each parameter exactly once. Each rank adds the hashes
 * of its fragment's ends to an exclusive or: ends that meet cancel out, and if those of the
 * parameter remain, each element is given an odd number of times. That is once if the ranks give as
 * many elements as there are. Only otherwise do they tell their fragments, one parameter after the
 * other, to find the fault.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "checkpoint/universal/universal.h"

#define FRAGMENT_WORDS 4u /* first and number of the elements */

/* The elements of one rank. */
struct run {
	unsigned rank;
	uint64_t first, end;
};

static uint64_t hash_ends(uint64_t first, uint64_t end)
{
	return XXH3_64bits(&first, sizeof(first)) ^ XXH3_64bits(&end, sizeof(end));
}

/* ---- Where the fault is ---- */

static int missing(const struct param *param, uint64_t first, uint64_t end,
		   const struct run *before, const struct run *after, struct nvs_error *error)
{
	char beside[96] = "none has any";

	if (before && after)
		snprintf(beside, sizeof(beside), "rank %u has those before, rank %u those behind",
			 before->rank, after->rank);
	else if (before)
		snprintf(beside, sizeof(beside), "rank %u has those before", before->rank);
	else if (after)
		snprintf(beside, sizeof(beside), "rank %u has those behind", after->rank);
	return error_about(error, -EINVAL, param->name, 0, 0,
			   "%s: no rank has the %" PRIu64 " elements from %" PRIu64
			   " on, of %" PRIu64 "; %s",
			   param->name, end - first, first, param->numel, beside);
}

static int doubled(const struct param *param, const struct run *run, const struct run *other,
		   struct nvs_error *error)
{
	uint64_t end = run->end < other->end ? run->end : other->end;

	return error_about(error, -EINVAL, param->name, 0, 0,
			   "%s: ranks %u and %u both have the %" PRIu64 " elements from %" PRIu64
			   " on",
			   param->name, run->rank, other->rank, end - other->first, other->first);
}

static int by_first(const void *a, const void *b)
{
	const struct run *left = a, *right = b;

	if (left->first != right->first)
		return left->first < right->first ? -1 : 1;
	return left->rank < right->rank ? -1 : left->rank > right->rank;
}

/* The first gap or overlap of runs by `first`, none of which is empty. */
static int check_runs(const struct param *param, const struct run *runs, size_t n,
		      struct nvs_error *error)
{
	const struct run *last = NULL;

	for (size_t i = 0; i < n; i++) {
		uint64_t end = last ? last->end : 0;

		if (runs[i].first > end)
			return missing(param, end, runs[i].first, last, &runs[i], error);
		if (runs[i].first < end)
			return doubled(param, last, &runs[i], error);
		last = &runs[i];
	}
	if ((last ? last->end : 0) < param->numel)
		return missing(param, last ? last->end : 0, param->numel, last, NULL, error);
	return 0;
}

/* All ranks tell their elements of a parameter. */
static int compare_fragments(const struct param *param, struct ranks *ranks, struct run *runs,
			     struct nvs_error *error)
{
	const struct nvs_universal_options *options = ranks->options;
	size_t n = 0, nwords = (size_t)options->world * FRAGMENT_WORDS;
	uint32_t *words = ranks_words(ranks, nwords),
		 *own = words + (size_t)options->rank * FRAGMENT_WORDS;
	int rc;

	words_put(own, param->fragment.at);
	words_put(own + 2, param->fragment.numel);
	rc = ranks_meet(ranks, 0, nwords, error);
	for (unsigned rank = 0; rank < options->world && !rc; rank++) {
		const uint32_t *fragment = words + (size_t)rank * FRAGMENT_WORDS;

		if (words_get(fragment + 2))
			runs[n++] =
				(struct run){.rank = rank,
					     .first = words_get(fragment),
					     .end = words_get(fragment) + words_get(fragment + 2)};
	}
	qsort(runs, n, sizeof(*runs), by_first);
	return rc ? rc : check_runs(param, runs, n, error);
}

/* ---- Whether there is one ---- */

/* What this rank has: the ends of its fragment of each parameter, then the number of its
 * elements. */
static void tell(const struct params *params, unsigned rank, uint32_t *words)
{
	uint64_t numel = 0;

	for (size_t i = 0; i < params->n; i++) {
		const struct fragment *fragment = &params->all[i].fragment;

		words_put(words + 2 * i, hash_ends(fragment->at, fragment->at + fragment->numel));
		numel += fragment->numel;
	}
	words_put(words + 2 * (params->n + rank), numel);
}

/* Of words of all ranks: parameter i, or the number of elements (i = n), is as it must be. */
static bool covered(const struct params *params, size_t i, unsigned world, const uint32_t *words)
{
	uint64_t given = 0, needed = 0;

	if (i < params->n)
		return words_get(words + 2 * i) == hash_ends(0, params->all[i].numel);
	for (unsigned rank = 0; rank < world; rank++)
		given += words_get(words + 2 * (i + rank));
	for (size_t param = 0; param < params->n; param++)
		needed += params->all[param].numel;
	return given == needed;
}

static size_t end_words(const struct params *params, unsigned world)
{
	return 2 * (params->n + world);
}

size_t cover_words(const struct params *params, unsigned world)
{
	size_t ends = end_words(params, world), fragments = (size_t)world * FRAGMENT_WORDS;

	return ends > fragments ? ends : fragments;
}

/* `runs` NULL: this rank has no memory, and tells the others. */
static int check(const struct params *params, struct ranks *ranks, struct run *runs,
		 struct nvs_error *error)
{
	unsigned world = ranks->options->world;
	size_t fault = 0, nwords = end_words(params, world);
	uint32_t *words = ranks_words(ranks, nwords);
	int rc = runs ? 0 : error_set(error, -ENOMEM, "no memory for the ranks' elements");

	tell(params, ranks->options->rank, words);
	rc = ranks_meet(ranks, rc, nwords, error);
	while (!rc && fault <= params->n && covered(params, fault, world, words))
		fault++;
	if (rc || fault > params->n)
		return rc;
	assert(runs);
	/* More elements than there are: of any parameter. */
	for (size_t i = fault % params->n; i < params->n && !rc; i++)
		rc = compare_fragments(&params->all[i], ranks, runs, error);
	return rc ? rc
		  : error_set(error, -EINVAL,
			      "the ranks have some elements of no parameter, or twice");
}

int cover_check(const struct params *params, struct ranks *ranks, struct nvs_error *error)
{
	struct run *runs = calloc(ranks->options->world, sizeof(*runs));
	int rc;

	assert(params->n && ranks->options->rank < ranks->options->world);
	rc = check(params, ranks, runs, error);
	free(runs);
	return rc;
}
