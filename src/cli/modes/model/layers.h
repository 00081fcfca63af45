/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layers of a model, recognized by the names of its tensors: neighbours whose names agree
 * through the first number between dots ("model.layers.12.", "h.3.") form one layer, and every
 * other tensor is its own layer.
 */
#ifndef CLI_MODES_MODEL_LAYERS_H
#define CLI_MODES_MODEL_LAYERS_H

#include <stdbool.h>

#include "cli/modes/model/model.h"

struct layer {
	size_t first, n; /* first tensor and number of tensors */
	uint64_t room;	 /* maximum number of bytes that it takes in the pool */
};

/*
 * Fills layers[], which has room for model->n layers; NULL: only counts. Returns the number of
 * layers.
 */
size_t layers_cut(const struct model *model, struct layer *layers);
/* The layer that takes most of the pool; the first of several. */
struct layer layers_largest(const struct model *model);
/* Writes the layer's name for reports, without the last dot; truncated if `name` is too short. */
void layer_name(const struct model *model, const struct layer *layer, char *name, size_t nbytes);
/* Finds a name's first number between dots, or at either end, and the length before it. */
bool layer_number(const char *name, size_t *prefix, uint64_t *number);

#endif
