/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registers the tensors of tiles and of added gradients with the engine, each kind side by side in
 * the order of the flat space.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "optim/internal.h"

#define REGISTERED_AT_ONCE 384u

/* A kind of tensors: `each` of them for every `numel` elements of the flat space. */
struct tensor_kind {
	const unsigned *parts; /* of a tile; NULL: gradients */
	size_t each;
	uint64_t numel;
	bool converted; /* they will take the place of others, which still have the names of tiles */
};

static struct nvs_tensor **place_of(struct nvs_optimizer *optimizer, const struct tensor_kind *kind,
				    size_t i)
{
	return kind->parts ? &optimizer->tiles[i / kind->each].parts[kind->parts[i % kind->each]]
			   : &optimizer->gradients[i].tensor;
}

/* Registers tensors `first` to `end` - 1 of a kind, side by side in the order of the flat space. */
static int register_some(struct nvs_optimizer *optimizer, const struct tensor_kind *kind,
			 size_t first, size_t end, struct nvs_error *error)
{
	size_t n = end - first;
	struct nvs_tensor *tensors[REGISTERED_AT_ONCE] = {NULL};
	struct nvs_tensor_spec *specs = calloc(n, sizeof(*specs));
	char(*names)[NVS_NAME_MAX + 1] = calloc(n, sizeof(*names));
	int rc = -ENOMEM;

	for (size_t i = 0; i < n && specs && names; i++) {
		size_t place = (first + i) / kind->each;
		unsigned part = kind->parts ? kind->parts[(first + i) % kind->each] : 0;
		const char *what = kind->parts ? part_name(optimizer->rule->parts[part])
					       : "gradients";
		enum nvs_dtype dtype = kind->parts ? part_dtype(optimizer, place, part)
						   : optimizer->gradient_dtype;
		uint64_t nbytes = kind->parts ? part_nbytes(optimizer, place, part)
					      : gradients_nbytes(optimizer);
		uint64_t from = place * kind->numel;
		struct segment segment = {0};
		bool found = next_segment(optimizer, &from, from + kind->numel, &segment);
		const char *group = optimizer->groups[segment.group].name;
		int length = (int)strnlen(group, 400);

		assert(found && segment.numel);
		/* No character is cut. */
		while ((group[length] & 0xc0) == 0x80)
			length--;
		/*
		 * Named by its first group, for errors. Its number last: a trace keeps the end of a
		 * long name. The names of tiles have a +, so none is that of a converted one.
		 */
		if (kind->converted)
			snprintf(names[i], NVS_NAME_MAX + 1, "converted %s %zu", what, place);
		else
			snprintf(names[i], NVS_NAME_MAX + 1, "%.*s+%" PRIu64 " %s %zu", length,
				 group, segment.offset, what, place);
		specs[i] = (struct nvs_tensor_spec){.size = sizeof(struct nvs_tensor_spec),
						    .name = names[i],
						    .dtype = dtype,
						    .numel = nbytes / nvs_dtype_size(dtype)};
	}
	if (specs && names)
		rc = batch_register(optimizer->engine, specs, n, tensors, error);
	else
		error_set(error, rc, "out of memory for %zu tiles", optimizer->ntiles);
	for (size_t i = 0; i < n && !rc; i++)
		*place_of(optimizer, kind, first + i) = tensors[i];
	free(specs);
	free(names);
	return rc;
}

static int register_all(struct nvs_optimizer *optimizer, const struct tensor_kind *kind, size_t n,
			struct nvs_error *error)
{
	int rc = 0;

	for (size_t i = 0; i < n && !rc; i += REGISTERED_AT_ONCE)
		rc = register_some(optimizer, kind, i, min_u64(n, i + REGISTERED_AT_ONCE), error);
	return rc;
}

int register_tiles(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	static const unsigned all[PARTS] = {0, 1, 2};
	unsigned nparts = optimizer->rule->nparts;
	const struct tensor_kind kind = {all, nparts, optimizer->tile_numel, false};
	size_t ntiles = optimizer->keep ? optimizer->ntiles : optimizer->noffloaded;
	int rc = register_all(optimizer, &kind, nparts * ntiles, error);

	for (size_t i = 0; i < nparts * optimizer->noffloaded && !rc; i++)
		optimizer->offloaded[i] = *place_of(optimizer, &kind, i);
	return rc;
}

int register_converted(struct nvs_optimizer *optimizer, const unsigned *parts, size_t n,
		       struct nvs_error *error)
{
	const struct tensor_kind kind = {parts, n, optimizer->tile_numel, true};

	return register_all(optimizer, &kind, n * optimizer->ntiles, error);
}

int register_gradients(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	const struct tensor_kind kind = {NULL, 1, optimizer->gradient_numel, false};
	int rc = optimizer->gradients_registered
			 ? 0
			 : register_all(optimizer, &kind, optimizer->ngradients, error);

	optimizer->gradients_registered = !rc;
	return rc;
}
