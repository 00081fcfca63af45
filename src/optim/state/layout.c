/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layout: groups in the flat space, tiles over it, and which tiles are offloaded. Fixed when
 * the optimizer is opened.
 *
 * Groups lie in one flat space of elements, each from a multiple of 1024 on. A tile is a
 * tensor for each part, side by side in the store: one transfer each way. Its length is
 * the smaller of a twelfth of the pool without the cache and 1/256 of all elements (256 Ki if that
 * is more), down to a multiple of 1024, so the pool holds twelve and does not fragment. A tile at
 * the end of a group has the beginning of the next; a step with gradients of one leaves the
 * other's elements as they are.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/text.h"
#include "base/threads/cancel.h"
#include "optim/internal.h"

/* ---- Groups ---- */

static int check_alignment(const char *name, enum nvs_dtype dtype, const void *weights,
			   struct nvs_error *error)
{
	if ((uintptr_t)weights % nvs_dtype_size(dtype))
		return error_about(
			error, -EINVAL, name, 0, 0,
			"group %s: the weights are not aligned to an element of %zu bytes", name,
			nvs_dtype_size(dtype));
	return 0;
}

static int check_group(const struct nvs_optimizer *optimizer, const struct nvs_group_spec *spec,
		       struct nvs_error *error)
{
	size_t length = spec->name ? strlen(spec->name) : 0;

	if (!length || length > NVS_NAME_MAX)
		return error_set(error, -EINVAL,
				 "a group's name must have 1 to %d bytes; this one has %zu",
				 NVS_NAME_MAX, length);
	if (!optimizer->read_only && !text_is_utf8(spec->name))
		return error_about(error, -EINVAL, spec->name, 0, 0,
				   "the name of group %s is not UTF-8", spec->name);
	if (!spec->numel)
		return error_about(error, -EINVAL, spec->name, 0, 0,
				   "group %s has no elements: leave it out", spec->name);
	if (spec->numel > HEADER_NUMEL_MAX)
		return error_about(error, -EINVAL, spec->name, 0, 0,
				   "group %s has %" PRIu64 " elements: allowed are up to 2^56",
				   spec->name, spec->numel);
	if (spec->numel > optimizer->config.sub_group_size)
		return error_about(error, -E2BIG, spec->name, 0, 0,
				   "group %s has %" PRIu64
				   " elements, more than zero_optimization.sub_group_size %" PRIu64
				   ": split it, or raise that",
				   spec->name, spec->numel, optimizer->config.sub_group_size);
	if (!is_element(spec->dtype))
		return error_about(error, -EINVAL, spec->name, 0, 0,
				   "group %s: weights are F32, BF16 or F16, not %s", spec->name,
				   nvs_dtype_name(spec->dtype));
	return check_alignment(spec->name, spec->dtype, spec->weights, error);
}

static int by_name(const void *a, const void *b)
{
	return strcmp((*(struct group *const *)a)->name, (*(struct group *const *)b)->name);
}

static int by_weights(const void *a, const void *b)
{
	const struct group *first = *(struct group *const *)a, *second = *(struct group *const *)b;
	uintptr_t x = (uintptr_t)first->weights, y = (uintptr_t)second->weights;

	return (x > y) - (x < y);
}

/* Each group has its own name, and its own weights: a step writes them by several threads. */
static int check_apart(const struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	size_t n = optimizer->ngroups;
	const struct group **groups = calloc(n, sizeof(const struct group *));
	uintptr_t end = 0;
	int rc = 0;

	if (!groups)
		return error_set(error, -ENOMEM, "out of memory for %zu groups", n);
	for (size_t i = 0; i < n; i++)
		groups[i] = &optimizer->groups[i];
	qsort(groups, n, sizeof(const struct group *), by_name);
	for (size_t i = 1; i < n && !rc; i++)
		if (!strcmp(groups[i - 1]->name, groups[i]->name))
			rc = error_about(error, -EEXIST, groups[i]->name, 0, 0,
					 "two groups are named %s: each needs its own name",
					 groups[i]->name);
	qsort(groups, n, sizeof(const struct group *), by_weights);
	for (size_t i = 0; i < n && !rc; i++) {
		const struct group *group = groups[i];

		if (!group->weights)
			continue;
		if ((uintptr_t)group->weights < end)
			rc = error_about(error, -EINVAL, group->name, 0, 0,
					 "the weights of groups %s and %s overlap: each group "
					 "has its own",
					 groups[i - 1]->name, group->name);
		end = (uintptr_t)group->weights + group->numel * nvs_dtype_size(group->dtype);
	}
	free(groups);
	return rc;
}

int layout_groups(struct nvs_optimizer *optimizer, const struct nvs_group_spec *specs, size_t n,
		  struct nvs_error *error)
{
	int rc = 0;

	if (!n)
		return error_set(error, -EINVAL, "there are no groups to optimize");
	optimizer->groups = calloc(n, sizeof(*optimizer->groups));
	if (!optimizer->groups)
		return error_set(error, -ENOMEM, "out of memory for %zu groups", n);
	for (size_t i = 0; i < n && !rc && optimizer->flat <= HEADER_NUMEL_MAX; i++) {
		struct group *group = &optimizer->groups[i];

		rc = check_group(optimizer, &specs[i], error);
		if (rc)
			break;
		*group = (struct group){.name = strdup(specs[i].name),
					.numel = specs[i].numel,
					.dtype = specs[i].dtype,
					.weights = specs[i].weights};
		optimizer->ngroups = i + 1;
		optimizer->flat += align_up(specs[i].numel, TILE_UNIT);
		if (!group->name)
			rc = error_set(error, -ENOMEM, "out of memory for %zu groups", n);
	}
	if (!rc && optimizer->flat > HEADER_NUMEL_MAX)
		rc = error_set(error, -EINVAL, "the groups have more than 2^56 elements together");
	return rc ?: check_apart(optimizer, error);
}

int nvs_optimizer_set_weights(struct nvs_optimizer *optimizer, void *const *weights, size_t n,
			      struct nvs_error *error)
{
	HOLD_CANCEL;
	char **before = NULL;
	int rc = check_given(weights, "weights", error);

	rc = rc ?: call_begin(optimizer, CALL_BETWEEN_STEPS, error);
	if (rc)
		return rc;
	rc = check_ngroups(optimizer, n, error);
	if (!rc && !(before = calloc(n, sizeof(*before))))
		rc = error_set(error, -ENOMEM, "out of memory for %zu groups", n);
	for (size_t i = 0; before && i < n; i++) {
		struct group *group = &optimizer->groups[i];

		before[i] = group->weights;
		if (!weights[i] || rc)
			continue;
		if (!group->weights)
			rc = error_about(error, -EINVAL, group->name, 0, 0,
					 "group %s was opened without weights", group->name);
		else
			rc = check_alignment(group->name, group->dtype, weights[i], error);
		if (!rc)
			group->weights = weights[i];
	}
	rc = rc ?: check_apart(optimizer, error);
	for (size_t i = 0; before && i < n && rc; i++)
		optimizer->groups[i].weights = before[i];
	free(before);
	call_end(optimizer);
	return rc;
}

/* ---- Tiles ---- */

uint64_t layout_tile_numel_max(const struct nvs_optimizer *optimizer)
{
	return max_u64(optimizer->flat / TILES_WANTED, TILE_NUMEL);
}

uint64_t layout_tile_numel(const struct nvs_optimizer *optimizer)
{
	struct nvs_config buffers = optimizer->config;
	uint64_t pool, numel, most = layout_tile_numel_max(optimizer), n;

	buffers.optimizer_max_in_cpu = 0;
	pool = nvs_config_pool_bytes(&buffers, NVS_OFFLOAD_OPTIMIZER) /
	       state_nbytes(optimizer, TILE_UNIT) * TILE_UNIT;
	numel = pool / POOL_TILES;
	/* Each tile needs bookkeeping: with a tiny pool, longer tiles and fewer in flight. */
	if (optimizer->flat / TILES_MAX > numel)
		numel = min_u64(optimizer->flat / TILES_MAX, pool / POOL_TILES_MIN);
	numel = min_u64(numel, most) / TILE_UNIT * TILE_UNIT;
	if (!numel)
		numel = TILE_UNIT;
	/* Spread evenly, so that the last tile is not mostly padding. */
	n = (optimizer->flat + numel - 1) / numel;
	numel = align_up((optimizer->flat + n - 1) / n, TILE_UNIT);
	assert(numel <= most && numel * n >= optimizer->flat);
	return pool / numel < 2 ? 0 : numel;
}

/* Offloads groups from the first on until they have `ratio` of all elements; the others begin a
 * tile of their own. */
static void place_groups(struct nvs_optimizer *optimizer)
{
	uint64_t all = 0, offloaded = 0, at = 0;
	bool host = false;

	for (size_t i = 0; i < optimizer->ngroups; i++)
		all += optimizer->groups[i].numel;
	for (size_t i = 0; i < optimizer->ngroups; i++) {
		struct group *group = &optimizer->groups[i];

		if (!host &&
		    (double)offloaded >=
			    optimizer->config.offload[NVS_OFFLOAD_OPTIMIZER].ratio * (double)all) {
			host = true;
			at = align_up(at, optimizer->tile_numel);
			optimizer->noffloaded = at / optimizer->tile_numel;
		}
		group->at = at;
		at += align_up(group->numel, TILE_UNIT);
		offloaded += group->numel;
	}
	optimizer->flat = at;
	optimizer->ntiles = align_up(at, optimizer->tile_numel) / optimizer->tile_numel;
	if (!host)
		optimizer->noffloaded = optimizer->ntiles;
}

int layout_tiles(struct nvs_optimizer *optimizer, uint64_t tile_numel, struct nvs_error *error)
{
	assert(!optimizer->tiles && tile_numel && tile_numel % TILE_UNIT == 0);
	optimizer->tile_numel = tile_numel;
	optimizer->gradient_numel = gradients_nbytes(optimizer) /
				    nvs_dtype_size(optimizer->gradient_dtype);
	place_groups(optimizer);
	optimizer->ngradients = align_up(optimizer->flat, optimizer->gradient_numel) /
				optimizer->gradient_numel;
	optimizer->ncached = optimizer->config.optimizer_max_in_cpu / tile_numel;
	if (optimizer->ncached > optimizer->noffloaded)
		optimizer->ncached = optimizer->noffloaded;
	optimizer->tiles = calloc(optimizer->ntiles, sizeof(*optimizer->tiles));
	optimizer->queue = calloc(optimizer->ntiles, sizeof(*optimizer->queue));
	optimizer->offloaded = calloc(optimizer->rule->nparts * optimizer->noffloaded + 1,
				      sizeof(struct nvs_tensor *));
	optimizer->gradients = calloc(optimizer->ngradients, sizeof(*optimizer->gradients));
	if (!optimizer->tiles || !optimizer->queue || !optimizer->offloaded ||
	    !optimizer->gradients)
		return error_set(error, -ENOMEM, "out of memory for %zu tiles", optimizer->ntiles);
	layout_check(optimizer);
	/* Those of which all groups may be are split. */
	for (size_t i = 0; i < optimizer->ntiles; i++) {
		uint64_t at = i * tile_numel, end = at + tile_numel, numel = 0;
		bool split = optimizer->splits;
		struct segment segment;

		while (next_segment(optimizer, &at, end, &segment)) {
			numel += segment.numel;
			split &= splits_group(optimizer, &optimizer->groups[segment.group]);
		}
		optimizer->tiles[i].split = split;
		optimizer->numel += numel;
		optimizer->split_numel += split ? numel : 0;
		optimizer->state_bytes += tile_nbytes(optimizer, i);
		if (i >= optimizer->noffloaded)
			optimizer->host_bytes += tile_nbytes(optimizer, i);
	}

	char *host;
	char text[32];

	/* Maps memory whose pages are touched only when the tiles are created. */
	if (!optimizer->host_bytes)
		return 0;
	host = mmap(NULL, optimizer->host_bytes, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (host == MAP_FAILED)
		return error_about(error, -ENOMEM, "ratio", 0, 0,
				   "no memory for the %s of state that offload_optimizer.ratio %g "
				   "leaves in host memory: raise it",
				   size_text(optimizer->host_bytes, text),
				   optimizer->config.offload[NVS_OFFLOAD_OPTIMIZER].ratio);
	madvise(host, optimizer->host_bytes, MADV_HUGEPAGE);
	optimizer->host = host;
	for (size_t i = optimizer->noffloaded; i < optimizer->ntiles; i++) {
		optimizer->tiles[i].host = host;
		host += tile_nbytes(optimizer, i);
	}
	assert(host == optimizer->host + optimizer->host_bytes);
	return 0;
}

void layout_free(struct nvs_optimizer *optimizer)
{
	if (optimizer->host)
		munmap(optimizer->host, optimizer->host_bytes);
	free(optimizer->tiles);
	free(optimizer->queue);
	free(optimizer->offloaded);
	free(optimizer->gradients);
	for (size_t i = 0; i < optimizer->ngroups; i++)
		free(optimizer->groups[i].name);
	free(optimizer->groups);
}

/* ---- Looking up ---- */

bool next_segment(const struct nvs_optimizer *optimizer, uint64_t *from, uint64_t end,
		  struct segment *segment)
{
	uint64_t at = *from;
	size_t low = 0, high = optimizer->ngroups;

	/* The last group that begins at or before `at`. */
	while (high - low > 1) {
		size_t middle = low + (high - low) / 2;

		if (optimizer->groups[middle].at <= at)
			low = middle;
		else
			high = middle;
	}
	assert(low < optimizer->ngroups && optimizer->groups[low].at <= at);

	size_t i = low;
	const struct group *group = &optimizer->groups[i];
	uint64_t last;

	if (*from >= group->at + group->numel) {
		/* In the padding of the group. */
		if (++i == optimizer->ngroups || optimizer->groups[i].at >= end)
			return false;
		group = &optimizer->groups[i];
		*from = group->at;
	}
	if (*from >= end)
		return false;
	last = group->at + group->numel < end ? group->at + group->numel : end;
	*segment = (struct segment){
		.group = i, .offset = *from - group->at, .at = *from, .numel = last - *from};
	*from = last;
	assert(segment->numel && segment->offset + segment->numel <= group->numel);
	return true;
}
