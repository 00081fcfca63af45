/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layers of a model, as its tensors' names tell them: neighbours whose names agree up to and
 * including the first number between dots ("model.layers.12.", "h.3.") are one layer, and each of
 * the others is a layer of its own.
 */
#ifndef CLI_LAYERS_H
#define CLI_LAYERS_H

#include "model.h"

struct layer {
	size_t first, n; /* tensors */
	uint64_t room;	 /* bytes that it takes of the pool, at most */
};

/* Into layers[0] on, which has room for model->n. Returns how many there are. */
size_t layers_cut(const struct model *model, struct layer *layers);
uint64_t layers_largest(const struct model *model); /* bytes of the pool */
/* What a report calls it, without a dot at the end; cut where it is longer than `name`. */
void layer_name(const struct model *model, const struct layer *layer, char *name, size_t nbytes);

#endif
