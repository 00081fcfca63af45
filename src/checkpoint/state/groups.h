/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of an optimizer in .safetensors and .pt files: each part of each group is a tensor,
 * whole.
 */
#ifndef CHECKPOINT_STATE_GROUPS_H
#define CHECKPOINT_STATE_GROUPS_H

#include "checkpoint/state/state_move.h"

#define STEP_NAME	"step"
#define GROUP_PART_ROOM (NVS_NAME_MAX + 16) /* bytes of the name of a tensor */

/* The groups of an optimizer, each with its parts as tensors of a checkpoint. */
struct groups {
	struct nvs_optimizer *optimizer;
	struct nvs_aio *aio;
	struct fragment *fragments; /* each a whole group */
	size_t n;
	uint64_t step;
	/* Of the parts of group 0, of group 1 and so on: */
	const struct entry **entries; /* importing, NULL: the part becomes 0 */
	uint32_t *sums;		      /* CRC-32 of the data that has moved */
	struct writing *writing;      /* NULL: importing */
	struct reading *reading;      /* NULL: exporting */
};

/* -EBUSY: the optimizer has taken another number of steps by now, so its state is not that of
 * `step`. */
int check_step_since(struct nvs_optimizer *optimizer, uint64_t step, struct nvs_error *error);
/* Call groups_end in any case. -ENOMEM, and the errors of nvs_optimizer_get_info. */
int groups_begin(struct groups *groups, struct nvs_optimizer *optimizer, struct nvs_error *error);
void groups_end(struct groups *groups);
/* The name of tensor i and its elements. */
void groups_name(const struct groups *groups, size_t i, char name[GROUP_PART_ROOM],
		 uint64_t *numel);
/* Moves all state between the optimizer and `writing` or `reading`, and sums it up. */
int groups_move(struct groups *groups, struct nvs_error *error);

#endif
