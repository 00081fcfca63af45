/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registers the tensors of tiles and of added gradients with the engine, each kind side by side in
 * the order of the flat space.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "optim/internal.h"

/* A kind of tensors: `each` of them for every `numel` elements of the flat space. */
struct tensor_kind {
	const char *const *what;
	size_t each;
	uint64_t numel;
	bool gradients; /* false: parts of tiles */
};

/* Registers tensors side by side, in the order of the flat space. */
static int register_some(struct nvs_optimizer *optimizer, const struct tensor_kind *kind,
			 size_t first, size_t n, struct nvs_tensor **tensors,
			 struct nvs_error *error)
{
	struct nvs_tensor_spec *specs = calloc(n, sizeof(*specs));
	char(*names)[NVS_NAME_MAX + 1] = calloc(n, sizeof(*names));
	int rc = -ENOMEM;

	assert(n);
	for (size_t i = 0; i < n && specs && names; i++) {
		/* Names a tensor by its first group, for errors. */
		size_t place = (first + i) / kind->each;
		unsigned which = (unsigned)((first + i) % kind->each);
		enum nvs_dtype dtype = kind->gradients ? optimizer->gradient_dtype
						       : part_dtype(optimizer, place, which);
		uint64_t nbytes = kind->gradients ? gradients_nbytes(optimizer)
						  : part_nbytes(optimizer, place, which);
		uint64_t from = place * kind->numel;
		struct segment segment = {0};
		bool found = next_segment(optimizer, &from, from + kind->numel, &segment);
		const char *group = optimizer->groups[segment.group].name;
		int length = (int)strnlen(group, 400);

		assert(found && segment.numel);
		/* No character is cut. */
		while ((group[length] & 0xc0) == 0x80)
			length--;
		/* Its number last: a trace keeps the end of a long name. */
		snprintf(names[i], NVS_NAME_MAX + 1, "%.*s+%" PRIu64 " %s %zu", length, group,
			 segment.offset, kind->what[which], place);
		specs[i] = (struct nvs_tensor_spec){.size = sizeof(struct nvs_tensor_spec),
						    .name = names[i],
						    .dtype = dtype,
						    .numel = nbytes / nvs_dtype_size(dtype)};
	}
	if (specs && names)
		rc = batch_register(optimizer->engine, specs, n, tensors, error);
	else
		error_set(error, rc, "out of memory for %zu tiles", optimizer->ntiles);
	free(specs);
	free(names);
	return rc;
}

#define REGISTERED_AT_ONCE 384u

int register_tiles(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	unsigned nparts = optimizer->nparts;
	const char *names[PARTS];
	const struct tensor_kind kind = {names, nparts, optimizer->tile_numel, false};
	size_t n = nparts * (optimizer->keep ? optimizer->ntiles : optimizer->noffloaded);
	struct nvs_tensor *tensors[REGISTERED_AT_ONCE];
	int rc = 0;

	for (unsigned part = 0; part < nparts; part++)
		names[part] = part_name(optimizer->rule->parts[part]);
	for (size_t i = 0; i < n && !rc; i += REGISTERED_AT_ONCE) {
		size_t count = min_u64(n - i, REGISTERED_AT_ONCE);

		rc = register_some(optimizer, &kind, i, count, tensors, error);
		for (size_t k = 0; k < count && !rc; k++)
			optimizer->tiles[(i + k) / nparts].parts[(i + k) % nparts] = tensors[k];
	}
	for (size_t i = 0; i < nparts * optimizer->noffloaded && !rc; i++)
		optimizer->offloaded[i] = optimizer->tiles[i / nparts].parts[i % nparts];
	return rc;
}

int register_gradients(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	static const char *const what[] = {"gradients"};
	const struct tensor_kind kind = {what, 1, optimizer->gradient_numel, true};
	struct nvs_tensor *tensors[REGISTERED_AT_ONCE];
	size_t n = optimizer->gradients_registered ? 0 : optimizer->ngradients;
	int rc = 0;

	for (size_t i = 0; i < n && !rc; i += REGISTERED_AT_ONCE) {
		size_t count = min_u64(n - i, REGISTERED_AT_ONCE);

		rc = register_some(optimizer, &kind, i, count, tensors, error);
		for (size_t k = 0; k < count && !rc; k++)
			optimizer->gradients[i + k].tensor = tensors[k];
	}
	optimizer->gradients_registered = !rc;
	return rc;
}
