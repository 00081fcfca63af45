/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks that the ranks give each element of each parameter exactly once: each rank gathers where
 * the elements of all of them begin and how many they are.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "checkpoint/universal/universal.h"

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
