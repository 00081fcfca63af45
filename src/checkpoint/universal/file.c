/* SPDX-License-Identifier: Apache-2.0 */
/* One file of a universal checkpoint: a tensor alone, whose elements come and go in any order. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "checkpoint/torch/torch.h"
#include "checkpoint/universal/universal.h"

void part_file(char name[PART_FILE_MAX], unsigned part)
{
	assert(part < PARTS);
	snprintf(name, PART_FILE_MAX, "%s.pt", part_names[part]);
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
	return torch_place_alone(torch, plan, param->name, error);
}

void sum_add(uint32_t *sums, const struct params *params, const struct state_io *io)
{
	size_t owner = params->owners[io->fragment];

	state_io_sum(io, params->all[owner].numel, &sums[owner * PARTS + io->part]);
}
