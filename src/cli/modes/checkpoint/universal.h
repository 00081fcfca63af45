/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A benchmark's state as a universal checkpoint: its parameters are the model's tensors, in two
 * pieces where a group ends within one.
 */
#ifndef CLI_MODES_CHECKPOINT_UNIVERSAL_H
#define CLI_MODES_CHECKPOINT_UNIVERSAL_H

#include <limits.h>

#include "cli/modes/model/parameters.h"

struct universal {
	char directory[PATH_MAX], tag[PATH_MAX]; /* the tag lies in the directory, with its name */
	struct nvs_checkpoint_param *params;
	size_t n;
};

/* Names the parameters, which lie in the groups of `parameters`. -ENOMEM. */
int universal_open(struct universal *universal, const struct model *model,
		   const struct parameters *parameters, struct nvs_error *error);
/* Removes the directory, if it is there. -errno. */
int universal_remove(const struct universal *universal, struct nvs_error *error);
int universal_save(const struct universal *universal, struct nvs_optimizer *optimizer,
		   struct nvs_error *error);
int universal_restore(const struct universal *universal, struct nvs_optimizer *optimizer,
		      struct nvs_error *error);
/* Removes the directory and frees the names. */
void universal_close(struct universal *universal);

#endif
