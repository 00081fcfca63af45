/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names alone decide: the order of tensors in the file is that of the layers.
 */
#include "layers.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Bytes of the name up to and including its first number and the dot behind it; 0: it has none. */
static size_t prefix_length(const char *name)
{
	for (const char *at = name, *dot; (dot = strchr(at, '.')); at = dot + 1)
		if (dot > at && strspn(at, "0123456789") == (size_t)(dot - at))
			return (size_t)(dot + 1 - name);
	return 0;
}

static bool in_layer(const char *first, const char *name)
{
	size_t length = prefix_length(first);

	return length && strncmp(first, name, length) == 0;
}

static struct layer cut_layer(const struct model *model, size_t first)
{
	struct layer layer = {.first = first};
	const struct model_tensor *tensors = model->tensors;

	for (size_t i = first; i < model->n; i++) {
		if (i > first && !in_layer(tensors[first].name, tensors[i].name))
			break;
		layer.n++;
		layer.room += model_room(&tensors[i]);
	}
	return layer;
}

size_t layers_cut(const struct model *model, struct layer *layers)
{
	size_t n = 0;

	for (size_t at = 0; at < model->n; at += layers[n++].n)
		layers[n] = cut_layer(model, at);
	return n;
}

uint64_t layers_largest(const struct model *model)
{
	uint64_t largest = 0;
	struct layer layer;

	for (size_t at = 0; at < model->n; at += layer.n) {
		layer = cut_layer(model, at);
		if (layer.room > largest)
			largest = layer.room;
	}
	return largest;
}

void layer_name(const struct model *model, const struct layer *layer, char *name, size_t nbytes)
{
	const char *whole = model->tensors[layer->first].name;
	size_t length = prefix_length(whole);

	snprintf(name, nbytes, "%.*s", (int)(length ? length - 1 : strlen(whole)), whole);
}
