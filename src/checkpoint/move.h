/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves tensors between the store and files through the pool, several at a time.
 */
#ifndef CHECKPOINT_MOVE_H
#define CHECKPOINT_MOVE_H

#include "checkpoint/checkpoint.h"

/* A tensor and its place in a file. */
struct pair {
	struct nvs_tensor *tensor;
	const struct entry *entry;
};

/*
 * Return when everything is written to the files, or, for the other direction, to the store. After
 * an error the files of `writing` or `reading` are closed, and no tensor stays pinned.
 */
int move_out(struct nvs_engine *engine, const struct pair *pairs, size_t n, struct writing *writing,
	     struct nvs_error *error);
int move_in(struct nvs_engine *engine, const struct pair *pairs, size_t n, struct reading *reading,
	    struct nvs_error *error);

#endif
