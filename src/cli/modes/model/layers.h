/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layers of a model, told by the names of its tensors: neighbours whose names agree up to and
 * including the first number between dots ("model.layers.12.", "h.3.") are one layer, and each
 * other tensor is a layer of its own.
 */
#ifndef CLI_MODES_MODEL_LAYERS_H
#define CLI_MODES_MODEL_LAYERS_H

#include <stdbool.h>

#include "cli/modes/model/model.h"

struct layer {
	size_t first, n; /* tensors */
	uint64_t room;	 /* bytes that it takes of the pool, at most */
};

/* Fills layers[], which has room for model->n of them, or is NULL. Returns how many there are. */
size_t layers_cut(const struct model *model, struct layer *layers);
/* The one that takes most of the pool; the first of several. */
struct layer layers_largest(const struct model *model);
/* The layer's name in reports, without a dot at the end; cut where `name` is too short. */
void layer_name(const struct model *model, const struct layer *layer, char *name, size_t nbytes);
/* Finds a name's first number between dots, or at either end, and the bytes before it. */
bool layer_number(const char *name, size_t *prefix, uint64_t *number);

#endif
