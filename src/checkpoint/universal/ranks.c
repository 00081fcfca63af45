/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that write one checkpoint together: each learns whether another one has failed. */
#include <assert.h>
#include <errno.h>

#include "base/error.h"
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
