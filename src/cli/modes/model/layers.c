/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layers of a model. Names alone decide which tensors belong to a series of layers, in any order of
 * the file.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/modes/model/model.h"

#define DIGITS_MAX 18 /* a number of that many digits fits in 64 bits */

/*
 * A tensor and the first number in its name, between dots or at either end: "model.layers.12.norm" is
 * number 12 of the series "model.layers.".
 */
struct numbered {
	struct model_tensor *tensor;
	bool has_number;
	size_t prefix; /* length of the series' name */
	uint64_t number;
};

static struct numbered find_number(struct model_tensor *tensor)
{
	for (const char *at = tensor->name, *dot; at; at = dot ? dot + 1 : NULL) {
		size_t digits = strspn(at, "0123456789");

		dot = strchr(at, '.');
		if (digits && digits <= DIGITS_MAX && (!at[digits] || at + digits == dot))
			return (struct numbered){.tensor = tensor,
						 .has_number = true,
						 .prefix = (size_t)(at - tensor->name),
						 .number = strtoull(at, NULL, 10)};
	}
	return (struct numbered){.tensor = tensor};
}

/* Bytes of the name before the dot behind its first number; 0: there is no such dot. */
static size_t layer_prefix(struct model_tensor *tensor)
{
	struct numbered found = find_number(tensor);
	const char *dot = found.has_number ? strchr(tensor->name + found.prefix, '.') : NULL;

	return dot ? (size_t)(dot - tensor->name) : 0;
}

struct layer model_layer(const struct model *model, size_t first)
{
	struct layer layer = {.first = first};
	struct model_tensor *tensors = model->tensors;
	size_t prefix = layer_prefix(&tensors[first]), i = first;

	do {
		layer.n++;
		layer.nbytes += tensors[i].nbytes;
		layer.room += model_room(&tensors[i]);
	} while (++i < model->n && prefix &&
		 !strncmp(tensors[first].name, tensors[i].name, prefix + 1));
	return layer;
}

void model_layer_name(const struct model *model, const struct layer *layer, char *name,
		      size_t nbytes)
{
	struct model_tensor *first = &model->tensors[layer->first];
	size_t prefix = layer_prefix(first);

	snprintf(name, nbytes, "%.*s", (int)(prefix ? prefix : strlen(first->name)), first->name);
}

/* Those without a number come first. */
static int order_series(const struct numbered *left, const struct numbered *right)
{
	if (left->has_number != right->has_number)
		return left->has_number ? 1 : -1;
	if (left->prefix != right->prefix)
		return left->prefix < right->prefix ? -1 : 1;
	return memcmp(left->tensor->name, right->tensor->name, left->prefix);
}

static int by_series(const void *a, const void *b)
{
	const struct numbered *left = a, *right = b;
	int order = order_series(left, right);

	return order ? order : (left->number > right->number) - (left->number < right->number);
}

static uint64_t share_of(uint64_t n, double share)
{
	uint64_t kept = (uint64_t)round((double)n * share);

	return kept < 1 ? 1 : kept < n ? kept : n;
}

int model_scale(struct model *model, double share)
{
	struct numbered *all = calloc(model->n, sizeof(*all));
	size_t n = 0;

	if (!all)
		return -ENOMEM;
	for (size_t i = 0; i < model->n; i++)
		all[i] = find_number(&model->tensors[i]);
	qsort(all, model->n, sizeof(*all), by_series);
	for (size_t first = 0, end; first < model->n; first = end) {
		uint64_t from = all[first].number, kept;

		for (end = first + 1; end < model->n && !order_series(&all[first], &all[end]);)
			end++;
		kept = share_of(all[end - 1].number - from + 1, share);
		for (size_t i = first; i < end; i++) {
			struct model_tensor *tensor = all[i].tensor;

			if (!all[i].has_number && tensor->rows) {
				uint64_t rows = share_of(tensor->rows, share);

				tensor->numel = tensor->numel / tensor->rows * rows;
				tensor->nbytes = tensor->nbytes / tensor->rows * rows;
				tensor->rows = rows;
			} else if (all[i].number - from >= kept) {
				free(tensor->name);
				tensor->name = NULL;
			}
		}
	}
	free(all);
	model->nbytes = 0;
	for (size_t i = 0; i < model->n; i++)
		if (model->tensors[i].name) {
			model->nbytes += model->tensors[i].nbytes;
			model->tensors[n++] = model->tensors[i];
		}
	model->n = n;
	return 0;
}
