/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where in the store the next transfer of a tensor reads or writes, and the order of tensors there.
 * An extent that a manifest names is never overwritten.
 */
#include "swap/residency/internal.h"

/* A run's memory comes free only when all of it has moved, so runs are a few blocks long. */
#define RUN_BLOCKS 8
/* Small tensors of files that are read together have at most so many other bytes between them. */
#define GAP_MAX 4096

/* Empty tensors come before the one at the same offset. */
static bool lies_before(const struct nvs_tensor *left, const struct nvs_tensor *right)
{
	return left->place != right->place ? left->place < right->place
					   : left->extent < right->extent;
}

static void sink(struct nvs_tensor **heap, size_t i, size_t n)
{
	struct nvs_tensor *tensor = heap[i];
	size_t child;

	for (; (child = 2 * i + 1) < n; i = child) {
		if (child + 1 < n && lies_before(heap[child], heap[child + 1]))
			child++;
		if (!lies_before(tensor, heap[child]))
			break;
		heap[i] = heap[child];
	}
	heap[i] = tensor;
}

bool is_frozen(const struct nvs_tensor *tensor, uint64_t offset)
{
	if (!tensor->engine->keep)
		return false;
	/* NOWHERE means that no manifest names an extent. */
	assert(offset != NOWHERE);
	assert(offset == tensor->offset || offset == tensor->rest->spare);
	return tensor->rest->committed == offset || tensor->rest->snapshot == offset;
}

bool must_wait(const struct nvs_tensor *tensor)
{
	return is_frozen(tensor, tensor->offset) && is_frozen(tensor, tensor->rest->spare);
}

/* A heap sort, because qsort(3) may allocate. Most batches are already sorted. */
void sort_by_place(struct nvs_tensor **tensors, size_t n, enum nvs_direction direction)
{
	bool sorted = true;

	for (size_t i = 0; i < n; i++) {
		bool moves = direction == NVS_WRITE && is_frozen(tensors[i], tensors[i]->offset);

		assert(!moves || !tensors[i]->extent || !must_wait(tensors[i]));
		tensors[i]->place = moves ? tensors[i]->rest->spare : tensors[i]->offset;
		sorted = sorted && (!i || !lies_before(tensors[i], tensors[i - 1]));
	}
	if (sorted)
		return;
	for (size_t i = n / 2; i--;)
		sink(tensors, i, n);
	while (n > 1) {
		struct nvs_tensor *last = tensors[0];

		tensors[0] = tensors[--n];
		tensors[n] = last;
		sink(tensors, 0, n);
	}
}

size_t run_length(const struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		  uint64_t nbytes_max, uint64_t *nbytes)
{
	uint64_t limit = (uint64_t)engine->aio_config.block_size * RUN_BLOCKS;
	uint64_t sum = tensors[0]->extent;
	size_t i = 1;

	if (limit > nbytes_max)
		limit = nbytes_max;
	for (; i < n && sum + tensors[i]->extent <= limit; i++) {
		if (tensors[i]->place != tensors[i - 1]->place + tensors[i - 1]->extent)
			break;
		sum += tensors[i]->extent;
	}
	*nbytes = sum;
	return i;
}

size_t gather_length(const struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n)
{
	uint64_t limit = (uint64_t)engine->aio_config.block_size * RUN_BLOCKS;
	const struct nvs_tensor *first = tensors[0];
	uint64_t end = first->place + first->rest->loaded;
	size_t i = 1;

	if (!first->rest->small || is_external(first))
		return 1;
	for (; i < n; i++) {
		const struct nvs_tensor *tensor = tensors[i];
		uint64_t its_end = tensor->place + tensor->rest->loaded;

		/* Ranges of one tensor may overlap. */
		if (!tensor->rest->small || is_external(tensor) || !tensor->extent ||
		    tensor->place > end + GAP_MAX || its_end - first->place > limit ||
		    !store_same_file(engine->store, first->place, tensor->place))
			break;
		end = max_u64(end, its_end);
	}
	return i;
}
