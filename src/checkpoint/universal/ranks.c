/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that write one checkpoint together: each learns whether another one has failed, and where
 * the elements of all of them are, of which each must be given exactly once.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/numbers.h"
#include "base/struct_size.h"
#include "checkpoint/universal/universal.h"

#define WORLD_MAX 65536u

/* What a rank tells at each meeting. */
struct report {
	uint32_t rank, world;
	int32_t code;
	uint32_t sum;
};

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
	if (into->world > 1 && !into->gather)
		return error_set(error, -EINVAL, "gather is NULL, and there are %u ranks",
				 into->world);
	return 0;
}

static int numbers_differ(const struct nvs_universal_options *options, struct nvs_error *error)
{
	return error_set(error, -EINVAL,
			 "rank %u of %u: the ranks differ in their numbers; all pass the same "
			 "world, and each another rank from 0 to world - 1",
			 options->rank, options->world);
}

/* The number of ranks that were gathered, or a negative errno. */
static int gather(const struct nvs_universal_options *options, const void *own, size_t nbytes,
		  const void **all, struct nvs_error *error)
{
	int n = options->gather(options->gather_arg, own, nbytes, all);

	n = n ? n : -EINVAL;
	return n > 0 ? n : error_set(error, n, "gather: %s", nvs_strerror(n));
}

int ranks_gather(const struct nvs_universal_options *options, const void *own, size_t nbytes,
		 const void **all, struct nvs_error *error)
{
	int n;

	assert(nbytes && nbytes <= GATHER_MAX);
	*all = own;
	if (options->world < 2)
		return 0;
	n = gather(options, own, nbytes, all, error);
	if (n < 0)
		return n;
	return (unsigned)n == options->world ? 0 : numbers_differ(options, error);
}

/* Judges the reports of n ranks. All of them have the same, and come to the same end. */
static int compare_reports(const struct nvs_universal_options *options, const struct report *all,
			   unsigned n, struct nvs_error *error)
{
	for (unsigned i = 0; i < n; i++)
		if (all[i].rank != i || all[i].world != n)
			return numbers_differ(options, error);
	for (unsigned i = 0; i < n; i++)
		if (all[i].code)
			return error_set(error, -ECANCELED, "rank %u has failed: %s", i,
					 nvs_strerror(all[i].code));
	for (unsigned i = 1; i < n; i++)
		if (all[i].sum != all[0].sum)
			return error_set(
				error, -EINVAL,
				"rank %u has other parameters than rank 0: all ranks pass the "
				"same names and shapes in the same order",
				i);
	return 0;
}

int ranks_meet(const struct nvs_universal_options *options, int rc, uint32_t sum,
	       struct nvs_error *error)
{
	const struct report own = {options->rank, options->world, rc, sum};
	struct nvs_error other = {.size = sizeof(other)};
	const void *all;
	int n;

	assert(rc <= 0);
	if (options->world < 2 || !options->gather)
		return rc;
	n = gather(options, &own, sizeof(own), &all, rc ? &other : error);
	if (rc || n < 0)
		return rc ? rc : n;
	return compare_reports(options, all, (unsigned)n, error);
}

/* A rank's elements of a parameter. */
struct elements {
	uint64_t first, numel;
};

#define BATCH (GATHER_MAX / sizeof(struct elements)) /* parameters */

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
			return error_about(error, -EINVAL, param->name, 0, 0,
					   "%s: ranks %u and %u both have the %" PRIu64
					   " elements from %" PRIu64 " on",
					   param->name, last->rank, runs[i].rank,
					   min_u64(end, runs[i].end) - runs[i].first,
					   runs[i].first);
		last = &runs[i];
	}
	if ((last ? last->end : 0) < param->numel)
		return missing(param, last ? last->end : 0, param->numel, last, NULL, error);
	return 0;
}

int cover_check(const struct params *params, const struct nvs_universal_options *options,
		struct run *runs, struct nvs_error *error)
{
	struct elements own[BATCH];
	int rc = 0;

	for (size_t i = 0; i < params->n && !rc; i += BATCH) {
		size_t n = params->n - i < BATCH ? params->n - i : BATCH;
		const void *gathered;

		for (size_t j = 0; j < n; j++)
			own[j] = (struct elements){params->all[i + j].fragment.at,
						   params->all[i + j].fragment.numel};
		rc = ranks_gather(options, own, n * sizeof(*own), &gathered, error);
		for (size_t j = 0; j < n && !rc; j++) {
			const struct elements *elements = (const struct elements *)gathered + j;
			size_t nruns = 0;

			for (unsigned rank = 0; rank < options->world; rank++, elements += n)
				if (elements->numel)
					runs[nruns++] =
						(struct run){rank, elements->first,
							     elements->first + elements->numel};
			qsort(runs, nruns, sizeof(*runs), by_first);
			rc = check_runs(&params->all[i + j], runs, nruns, error);
		}
	}
	return rc;
}
