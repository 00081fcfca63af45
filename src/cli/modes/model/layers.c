/* SPDX-License-Identifier: Apache-2.0 */
/* Layers are in the order of their tensors in the file. */
#include "cli/modes/model/layers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX 18 /* a number of that many digits fits in 64 bits */

bool layer_number(const char *name, size_t *prefix, uint64_t *number)
{
	for (const char *at = name, *dot; at; at = dot ? dot + 1 : NULL) {
		size_t digits = strspn(at, "0123456789");

		dot = strchr(at, '.');
		if (!digits || digits > DIGITS_MAX || (at[digits] && at + digits != dot))
			continue;
		*number = strtoull(at, NULL, 10);
		*prefix = (size_t)(at - name);
		return true;
	}
	return false;
}

/* Bytes of the name through its first number and the dot behind it; 0: the name has no number. */
static size_t prefix_length(const char *name)
{
	size_t before;
	uint64_t number;
	const char *dot = layer_number(name, &before, &number) ? strchr(name + before, '.') : NULL;

	return dot ? (size_t)(dot + 1 - name) : 0;
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
	struct layer layer;
	size_t n = 0;

	for (size_t at = 0; at < model->n; at += layer.n) {
		layer = cut_layer(model, at);
		if (layers)
			layers[n] = layer;
		n++;
	}
	return n;
}

struct layer layers_largest(const struct model *model)
{
	struct layer largest = cut_layer(model, 0), layer;

	for (size_t at = largest.n; at < model->n; at += layer.n) {
		layer = cut_layer(model, at);
		if (layer.room > largest.room)
			largest = layer;
	}
	return largest;
}

void layer_name(const struct model *model, const struct layer *layer, char *name, size_t nbytes)
{
	const char *whole = model->tensors[layer->first].name;
	size_t length = prefix_length(whole);

	snprintf(name, nbytes, "%.*s", (int)(length ? length - 1 : strlen(whole)), whole);
}
