/* SPDX-License-Identifier: Apache-2.0 */
/* Files of torch.save: written by write.c, a dictionary of tensors; read by read.c. */
#ifndef CHECKPOINT_TORCH_H
#define CHECKPOINT_TORCH_H

#include "checkpoint/checkpoint.h"

/* Places the tensors and makes the records before them. -ENOTSUP: torch has no such type. */
int torch_place(struct torch *torch, struct nvs_checkpoint *plan, const char *path,
		struct nvs_error *error);
/* Writes the headers of all data and the directory, when the CRCs of all data are known. */
int torch_finish(const struct torch *torch, const struct nvs_checkpoint *plan,
		 const struct draft *draft, struct nvs_aio *aio, struct nvs_error *error);
void torch_free(struct torch *torch);

#endif
