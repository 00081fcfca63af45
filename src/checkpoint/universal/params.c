/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameters of a universal checkpoint: checks what the caller says of them, and lays out the
 * file of each, a tensor alone whose elements come and go in any order.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/shape.h"
#include "base/struct_size.h"
#include "checkpoint/torch/torch.h"
#include "checkpoint/torch/zip.h"
#include "checkpoint/universal/universal.h"

static int check_name(const char *name, size_t i, struct nvs_error *error)
{
	size_t length = name ? strnlen(name, NAME_MAX + 1) : 0;

	if (length && length <= NAME_MAX && !strchr(name, '/') && strcmp(name, ".") != 0 &&
	    strcmp(name, "..") != 0 && strcmp(name, UNIVERSAL_STATE) != 0)
		return 0;
	return error_about(error, -EINVAL, name ? name : "", 0, 0,
			   "params[%zu], \"%s\": the name must be that of a directory: "
			   "1 to %d bytes without '/', and not " UNIVERSAL_STATE,
			   i, name ? name : "", NAME_MAX);
}

static int count_elements(struct param *param, struct nvs_error *error)
{
	uint64_t end;

	if (__builtin_add_overflow(param->fragment.at, param->fragment.numel, &end))
		end = UINT64_MAX;
	param->numel = end;
	if (param->shape && param->ndim <= NVS_NDIM_MAX &&
	    !shape_numel(param->shape, param->ndim, &param->numel))
		param->numel = UINT64_MAX;
	if (param->ndim <= NVS_NDIM_MAX && param->numel <= DATA_MAX / sizeof(float) &&
	    end <= param->numel)
		return 0;
	return error_about(error, -EINVAL, param->name, 0, 0,
			   "%s: its shape has %zu dimensions and %" PRIu64
			   " elements, and elements up to %" PRIu64
			   " are here; allowed are up to %u dimensions and %llu elements",
			   param->name, param->ndim, param->numel, end, NVS_NDIM_MAX,
			   DATA_MAX / (unsigned long long)sizeof(float));
}

/* What all ranks must agree on. */
uint32_t params_sum(const struct params *params)
{
	uint32_t sum = 0;

	for (size_t i = 0; i < params->n; i++) {
		const struct param *param = &params->all[i];
		const uint64_t counts[] = {param->numel, param->ndim};

		sum = zip_crc32_add(sum, param->name, strlen(param->name) + 1);
		sum = zip_crc32_add(sum, counts, sizeof(counts));
		if (param->shape)
			sum = zip_crc32_add(sum, param->shape, param->ndim * sizeof(uint64_t));
	}
	return sum;
}

static int read_param(struct param *param, struct nvs_optimizer *optimizer,
		      const struct nvs_checkpoint_param *from, size_t i, struct nvs_error *error)
{
	struct nvs_checkpoint_param given;
	int rc = struct_in_at(&given, sizeof(given), from, i);

	if (rc)
		return struct_refused(error, rc, "nvs_checkpoint_param", "params[%zu]", i);
	rc = check_name(given.name, i, error);
	if (rc)
		return rc;
	*param = (struct param){.name = given.name,
				.shape = given.shape,
				.ndim = given.shape ? given.ndim : 1,
				.fragment = {.group = given.group,
					     .offset = given.offset,
					     .numel = given.numel,
					     .at = given.first}};
	rc = count_elements(param, error);
	if (rc)
		return rc;

	struct nvs_group_info info = {.size = sizeof(info)};
	const struct fragment *fragment = &param->fragment;

	rc = nvs_optimizer_get_group_info(optimizer, fragment->group, &info, NULL);
	if (rc)
		return error_about(error, -EINVAL, param->name, 0, 0, "%s: there is no group %zu",
				   param->name, fragment->group);
	if (fragment->offset <= info.numel && fragment->numel <= info.numel - fragment->offset)
		return 0;
	return error_about(error, -EINVAL, param->name, 0, 0,
			   "%s: %" PRIu64 " elements from %" PRIu64
			   " on: the group %s has %" PRIu64,
			   param->name, fragment->numel, fragment->offset, info.name, info.numel);
}

static int by_name(const void *a, const void *b, void *arg)
{
	const struct param *all = arg;

	return strcmp(all[*(const size_t *)a].name, all[*(const size_t *)b].name);
}

static int by_place(const void *a, const void *b, void *arg)
{
	const struct param *all = arg;
	const struct fragment *left = &all[*(const size_t *)a].fragment;
	const struct fragment *right = &all[*(const size_t *)b].fragment;

	if (left->group != right->group)
		return left->group < right->group ? -1 : 1;
	return left->offset < right->offset ? -1 : left->offset > right->offset;
}

int params_read(struct params *params, struct nvs_optimizer *optimizer,
		const struct nvs_checkpoint_param *from, size_t n, struct nvs_error *error)
{
	int rc;

	*params = (struct params){0};
	rc = state_rule(&params->rule, optimizer, error);
	if (rc)
		return rc;
	if (!from || !n || n > ENTRIES_MAX)
		return error_set(error, -EINVAL, "%zu params%s; allowed are 1 to %u", n,
				 from ? "" : ", which are NULL", ENTRIES_MAX);
	params->all = calloc(n, sizeof(*params->all));
	params->fragments = calloc(n, sizeof(*params->fragments));
	params->owners = calloc(n, sizeof(*params->owners));
	if (!params->all || !params->fragments || !params->owners)
		return error_set(error, -ENOMEM, "no memory for %zu parameters", n);
	for (; params->n < n && !rc; params->n += !rc)
		rc = read_param(&params->all[params->n], optimizer, from, params->n, error);
	if (rc)
		return rc;
	for (size_t i = 0; i < n; i++)
		params->owners[i] = i;
	qsort_r(params->owners, n, sizeof(*params->owners), by_name, params->all);
	for (size_t i = 1; i < n; i++) {
		const char *name = params->all[params->owners[i]].name;

		if (!strcmp(params->all[params->owners[i - 1]].name, name))
			return error_about(error, -EINVAL, name, 0, 0,
					   "two parameters have the name %s", name);
	}
	/* Sorts the fragments; no two of them may overlap. */
	for (size_t i = 0; i < params->n; i++)
		if (params->all[i].fragment.numel)
			params->owners[params->nfragments++] = i;
	qsort_r(params->owners, params->nfragments, sizeof(*params->owners), by_place, params->all);
	for (size_t i = 0; i < params->nfragments; i++) {
		const struct param *param = &params->all[params->owners[i]];
		const struct fragment *before = i ? &params->fragments[i - 1] : NULL;

		params->fragments[i] = param->fragment;
		if (before && before->group == param->fragment.group &&
		    before->offset + before->numel > param->fragment.offset)
			return error_about(error, -EINVAL, param->name, 0, 0,
					   "%s and %s have elements in common", param->name,
					   params->all[params->owners[i - 1]].name);
	}
	return 0;
}

void params_free(struct params *params)
{
	free(params->all);
	free(params->fragments);
	free(params->owners);
	*params = (struct params){0};
}

const char *universal_part_name(const struct rule *rule, unsigned part)
{
	assert(part < rule->nparts);
	return rule->parts[part] == NVS_SUM ? part_name(NVS_EXP_AVG_SQ)
					    : state_part_name(rule, part);
}

void param_place(const struct params *params, const struct param *param, unsigned part,
		 char place[PLACE_MAX])
{
	int n = snprintf(place, PLACE_MAX, "%s/%s.pt", param->name,
			 universal_part_name(params->rule, part));

	assert(n < PLACE_MAX);
}

int param_lay_out(const struct param *param, struct nvs_checkpoint *plan, struct torch *torch,
		  struct nvs_error *error)
{
	*torch = (struct torch){0};
	*plan = (struct nvs_checkpoint){.entries = calloc(1, sizeof(struct entry))};
	if (!plan->entries || entry_make(plan->entries, param->name, NVS_F32, param->numel,
					 param->shape, param->ndim))
		return error_set(error, -ENOMEM, "no memory for the file of %s", param->name);
	plan->n = 1;
	return torch_place(torch, plan, true, NULL, param->name, error);
}

void sum_add(uint32_t *sums, const struct params *params, const struct state_io *io)
{
	size_t owner = params->owners[io->fragment];

	state_io_sum(io, params->all[owner].numel, &sums[owner * PARTS + io->part]);
}
