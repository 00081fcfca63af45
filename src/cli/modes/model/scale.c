/* SPDX-License-Identifier: Apache-2.0 */
/* Names alone decide which tensors belong to a series of layers, in any order of the file. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/modes/model/layers.h"

/*
 * A tensor and the number in its name: "model.layers.12.norm" is number 12 of the series
 * "model.layers.".
 */
struct numbered {
	struct model_tensor *tensor;
	bool has_number;
	size_t prefix; /* length of the series' name */
	uint64_t number;
};

static int by_series(const void *a, const void *b)
{
	const struct numbered *left = a, *right = b;
	int order;

	if (left->has_number != right->has_number)
		return left->has_number ? 1 : -1;
	if (left->prefix != right->prefix)
		return left->prefix < right->prefix ? -1 : 1;
	order = memcmp(left->tensor->name, right->tensor->name, left->prefix);
	return order ? order : (left->number > right->number) - (left->number < right->number);
}

static bool same_series(const struct numbered *a, const struct numbered *b)
{
	return a->prefix == b->prefix && !memcmp(a->tensor->name, b->tensor->name, a->prefix);
}

static uint64_t share_of(uint64_t n, double share)
{
	uint64_t kept = (uint64_t)round((double)n * share);

	return kept < 1 ? 1 : kept < n ? kept : n;
}

/* Tensors without a name will be dropped. */
static void drop(struct model_tensor *tensor)
{
	free(tensor->name);
	tensor->name = NULL;
}

static void scale_rows(struct model_tensor *tensor, double share)
{
	uint64_t kept;

	if (!tensor->rows)
		return;
	kept = share_of(tensor->rows, share);
	tensor->numel = tensor->numel / tensor->rows * kept;
	tensor->nbytes = tensor->nbytes / tensor->rows * kept;
	tensor->rows = kept;
}

/* Returns how many of all[0..n) belong to the first one's series. */
static size_t scale_series(struct numbered *all, size_t n, double share)
{
	struct numbered first = all[0];
	size_t count = 1;
	uint64_t kept;

	while (count < n && same_series(&all[0], &all[count]))
		count++;
	kept = share_of(all[count - 1].number - first.number + 1, share);
	for (size_t i = 0; i < count; i++)
		if (all[i].number - first.number >= kept)
			drop(all[i].tensor);
	return count;
}

static void compact(struct model *model)
{
	size_t n = 0;

	model->nbytes = 0;
	for (size_t i = 0; i < model->n; i++) {
		if (!model->tensors[i].name)
			continue;
		model->nbytes += model->tensors[i].nbytes;
		model->tensors[n++] = model->tensors[i];
	}
	model->n = n;
}

int model_scale(struct model *model, double share)
{
	struct numbered *all = calloc(model->n, sizeof(*all));
	size_t at = 0;

	if (!all)
		return -ENOMEM;
	for (size_t i = 0; i < model->n; i++) {
		all[i].tensor = &model->tensors[i];
		all[i].has_number = layer_number(all[i].tensor->name, &all[i].prefix,
						 &all[i].number);
	}
	qsort(all, model->n, sizeof(*all), by_series);
	for (; at < model->n && !all[at].has_number; at++)
		scale_rows(all[at].tensor, share);
	while (at < model->n)
		at += scale_series(&all[at], model->n - at, share);
	free(all);
	compact(model);
	return 0;
}
