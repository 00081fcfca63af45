/* SPDX-License-Identifier: Apache-2.0 */
/* Files of torch.save: written by write.c, a dictionary of tensors; read by read.c. */
#ifndef CHECKPOINT_TORCH_H
#define CHECKPOINT_TORCH_H

#include "checkpoint/checkpoint.h"

/*
 * Places the tensors and makes the records before them: a dictionary of them, and of `count` unless
 * that is NULL. torch_free follows in any case.
 */
int torch_place(struct torch *torch, struct nvs_checkpoint *plan, const struct torch_count *count,
		const char *path, struct nvs_error *error);
/* The same with a pickle that the caller has made. */
int torch_place_pickle(struct torch *torch, struct nvs_checkpoint *plan, const char *pickle,
		       size_t nbytes, const char *path, struct nvs_error *error);
/* Writes the headers of all data and the directory, when the CRCs of all data are known. */
int torch_finish(const struct torch *torch, const struct nvs_checkpoint *plan,
		 const struct sink *sink, const char *path, struct nvs_aio *aio,
		 struct nvs_error *error);
/*
 * The whole number, or tensor of one element, that a dictionary has for this key. -EINVAL: there is
 * none; the errors of torch_load.
 */
int torch_read_count(int fd, const char *path, const char *key, uint64_t *count,
		     struct nvs_error *error);
void torch_free(struct torch *torch);

#endif
