/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exports and imports tensors of an engine: checks what the caller asks for, and moves it through
 * the pool. A window of tensors slides over all of them. Each has a place in the pool, is filled by
 * one transfer and emptied by another; as many tensors as there is room for are on their way, half
 * of them in each direction. Pinned memory is all that data passes through.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/shape.h"
#include "base/struct_size.h"
#include "base/threads/cancel.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/torch/zip.h"
#include "swap/swap.h"

#define WINDOW 64u

/* A tensor and its place in a file. */
struct pair {
	struct nvs_tensor *tensor;
	const struct entry *entry;
};

/* A tensor on its way. */
struct transit {
	uint64_t pin;
	struct nvs_request *requests[WRITES_MAX];
	size_t n;
};

/* Tensors before `done` are finished; up to `filled` they are being emptied; up to `begun`,
 * filled. */
struct move {
	struct nvs_engine *engine;
	struct nvs_aio *aio;
	const struct pair *pairs;
	size_t n, done, filled, begun;
	uint64_t filling_bytes, emptying_bytes;
	struct writing *writing;       /* out */
	const struct reading *reading; /* in */
	struct transit transits[WINDOW];
};

static struct transit *transit_of(struct move *move, size_t i)
{
	return &move->transits[i % WINDOW];
}

static void check_move(const struct move *move)
{
	assert(move->done <= move->filled && move->filled <= move->begun);
	assert(move->begun <= move->n && move->begun - move->done <= WINDOW);
}

/* Begins to fill the next tensor. -EAGAIN: no room while others are on their way. */
static int begin_tensor(struct move *move, struct nvs_error *error)
{
	const struct pair *pair = &move->pairs[move->begun];
	struct transit *transit = transit_of(move, move->begun);
	int timeout_ms = move->begun == move->done ? -1 : 0, rc;

	transit->n = 0;
	if (move->writing)
		rc = nvs_tensor_swap_in(move->engine, &pair->tensor, 1, timeout_ms, &transit->pin,
					error);
	else
		rc = nvs_tensor_pin(move->engine, &pair->tensor, 1, timeout_ms, &transit->pin,
				    error);
	if (rc)
		return rc;
	move->begun++;
	move->filling_bytes += pair->entry->nbytes;
	if (move->writing || !pair->entry->nbytes)
		return 0;
	rc = nvs_aio_pread(move->aio, move->reading->files[pair->entry->file],
			   nvs_tensor_data(pair->tensor), pair->entry->nbytes, pair->entry->offset,
			   &transit->requests[0], error);
	transit->n = !rc;
	return rc;
}

/* The oldest tensor that is being filled: waits for it, and writes it to its file. */
static int empty_to_file(struct move *move, struct nvs_error *error)
{
	const struct pair *pair = &move->pairs[move->filled];
	struct transit *transit = transit_of(move, move->filled);
	int rc = nvs_tensor_wait(move->engine, &pair->tensor, 1, transit->pin, -1, error);

	if (rc || !pair->entry->nbytes)
		return rc;
	if (move->writing->torch.crcs)
		move->writing->torch.crcs[pair->entry - move->writing->plan.entries] =
			zip_crc32(nvs_tensor_data(pair->tensor), pair->entry->nbytes);
	return sink_write(&move->writing->drafts[pair->entry->file].sink, move->aio,
			  nvs_tensor_data(pair->tensor), pair->entry->nbytes, pair->entry->offset,
			  transit->requests, &transit->n, error);
}

/* The same in the other direction. The engine writes the tensor; finish_tensor waits for that. */
static int empty_to_store(struct move *move, struct nvs_error *error)
{
	const struct pair *pair = &move->pairs[move->filled];
	struct transit *transit = transit_of(move, move->filled);
	size_t n = transit->n;
	int rc;

	transit->n = 0;
	rc = requests_finish(move->aio, transit->requests, n, error);
	if (!rc) {
		const struct entry *entry = pair->entry;

		/* Compares what was read with the checksum that the file has of it. */
		if (entry->has_crc &&
		    zip_crc32(nvs_tensor_data(pair->tensor), entry->nbytes) != entry->crc)
			rc = entry_damaged(move->reading->checkpoint, entry, error);
	}
	if (!rc)
		rc = nvs_tensor_release(move->engine, &pair->tensor, 1, transit->pin, NVS_DIRTY,
					error);
	if (rc)
		return rc;
	transit->pin = 0;
	rc = nvs_tensor_swap_out(move->engine, &pair->tensor, 1, error);
	return rc == -EBUSY ? 0 : rc; /* another caller has pinned it */
}

static int finish_tensor(struct move *move, struct nvs_error *error)
{
	const struct pair *pair = &move->pairs[move->done];
	struct transit *transit = transit_of(move, move->done);
	size_t n = transit->n;
	int rc;

	transit->n = 0;
	rc = requests_finish(move->aio, transit->requests, n, error);
	if (!rc && transit->pin)
		rc = nvs_tensor_release(move->engine, &pair->tensor, 1, transit->pin, NVS_CLEAN,
					error);
	if (!rc && !move->writing)
		rc = nvs_tensor_wait(move->engine, &pair->tensor, 1, 0, -1, error);
	if (rc)
		return rc;
	transit->pin = 0;
	move->done++;
	move->emptying_bytes -= pair->entry->nbytes;
	return 0;
}

static int move_tensors(struct move *move, struct nvs_error *error)
{
	int rc = 0;

	while (!rc && move->done < move->n) {
		while (!rc && move->begun < move->n && move->begun - move->done < WINDOW)
			rc = begin_tensor(move, error);
		check_move(move);
		rc = rc == -EAGAIN && move->begun > move->done ? 0 : rc;
		if (!rc) {
			bool full = move->emptying_bytes > move->filling_bytes ||
				    move->filled == move->begun;

			/* Empties a tensor while at least half of what is on its way is being
			 * filled. */
			if (move->done < move->filled && full)
				rc = finish_tensor(move, error);
			else {
				uint64_t nbytes = move->pairs[move->filled].entry->nbytes;

				rc = move->writing ? empty_to_file(move, error)
						   : empty_to_store(move, error);
				if (!rc) {
					move->filled++;
					move->filling_bytes -= nbytes;
					move->emptying_bytes += nbytes;
				}
			}
		}
		check_move(move);
	}
	return rc;
}

/* Returns when everything is written to the files, or to the store. After an error the files of
 * `writing` or `reading`, whichever is given, are closed, and no tensor stays pinned. */
static int move_all(struct nvs_engine *engine, const struct pair *pairs, size_t n,
		    struct writing *writing, struct reading *reading, struct nvs_error *error)
{
	struct move move = {.engine = engine,
			    .aio = nvs_engine_aio(engine),
			    .pairs = pairs,
			    .n = n,
			    .writing = writing,
			    .reading = reading};
	int rc = 0;

	for (size_t i = 0; i < n && reading && !rc; i++)
		rc = reading_check(reading, pairs[i].entry, error);
	if (!rc)
		rc = move_tensors(&move, error);
	if (!rc)
		return 0;
	if (writing)
		writing_end(writing);
	else
		reading_end(reading);
	/* Unpins what the error has left. No transfer of a file is in flight any more. */
	for (size_t i = move.done; i < move.begun; i++) {
		struct transit *transit = transit_of(&move, i);

		for (size_t j = 0; j < transit->n; j++)
			nvs_request_close(transit->requests[j]);
		if (transit->pin)
			engine_unpin(engine, pairs[i].tensor, transit->pin);
	}
	return rc;
}

/* ---- The calls ---- */

static int read_item(struct nvs_checkpoint_item *item, const struct nvs_checkpoint_item *items,
		     size_t i, struct nvs_tensor_info *info, struct nvs_engine *engine,
		     struct nvs_error *error)
{
	int rc = struct_in_at(item, sizeof(*item), items, i);

	if (rc)
		return struct_refused(error, rc, "nvs_checkpoint_item", "items[%zu]", i);
	if (!item->tensor || nvs_tensor_get_info(engine, item->tensor, info))
		return error_set(error, -EINVAL, "items[%zu]: the tensor is NULL", i);
	if (!item->name)
		item->name = info->name;
	if (!item->shape) {
		item->shape = info->shape;
		item->ndim = info->ndim;
	}
	return 0;
}

static int plan_item(struct nvs_checkpoint *plan, struct nvs_engine *engine,
		     const struct nvs_checkpoint_item *items, size_t i, struct pair *pair,
		     struct nvs_error *error)
{
	struct nvs_checkpoint_item item;
	struct nvs_tensor_info info = {.size = sizeof(info)};
	int rc = read_item(&item, items, i, &info, engine, error);

	if (!rc)
		rc = shape_check(item.name, item.shape, item.ndim, info.numel, error);
	if (rc)
		return rc;
	if (info.nbytes > DATA_MAX - plan->nbytes)
		return error_set(error, -EINVAL, "the tensors have more than %llu bytes", DATA_MAX);
	pair->tensor = item.tensor;
	pair->entry = &plan->entries[i];
	if (entry_make(&plan->entries[i], item.name, info.dtype, info.numel, item.shape, item.ndim))
		return error_set(error, -ENOMEM, "no memory for the names of tensors");
	plan->nbytes += info.nbytes;
	plan->n++;
	return 0;
}

static int check_call(const void *engine, const void *items, size_t n, struct nvs_error *error)
{
	if (!engine)
		return error_set(error, -EINVAL, "engine is NULL");
	if (!items && n)
		return error_set(error, -EINVAL, "items is NULL");
	return n <= ENTRIES_MAX ? 0
				: error_set(error, -EINVAL, "%zu tensors; allowed are up to %u", n,
					    ENTRIES_MAX);
}

int nvs_checkpoint_export(struct nvs_engine *engine, const struct nvs_checkpoint_item *items,
			  size_t n, const char *path, const struct nvs_checkpoint_options *options,
			  struct nvs_error *error)
{
	HOLD_CANCEL;
	struct nvs_checkpoint_options chosen;
	struct writing writing = {0};
	struct pair *pairs;
	int rc = check_call(engine, items, n, error);

	if (!rc && !path)
		rc = error_set(error, -EINVAL, "path is NULL");
	if (!rc)
		rc = options_in(&chosen, options, error);
	if (rc)
		return rc;
	pairs = calloc(n + 1, sizeof(*pairs));
	writing.plan.entries = calloc(n + chosen.nstorages + 1, sizeof(struct entry));
	if (!pairs || !writing.plan.entries)
		rc = error_set(error, -ENOMEM, "no memory for the names of %zu tensors", n);
	assert(rc || pairs);
	for (size_t i = 0; i < n && !rc; i++)
		rc = plan_item(&writing.plan, engine, items, i, &pairs[i], error);
	if (!rc)
		rc = writing_begin(&writing, nvs_engine_aio(engine), path, &chosen, NULL, error);
	if (!rc)
		rc = move_all(engine, pairs, n, &writing, NULL, error);
	if (!rc)
		rc = writing_commit(&writing, error);
	writing_end(&writing);
	free(pairs);
	return rc;
}

static int find_item(struct pair *pair, struct nvs_engine *engine,
		     const struct nvs_checkpoint *checkpoint,
		     const struct nvs_checkpoint_item *items, size_t i, struct nvs_error *error)
{
	char there[SHAPE_TEXT], here[SHAPE_TEXT];
	struct nvs_checkpoint_item item;
	struct nvs_tensor_info info = {.size = sizeof(info)};
	int rc = read_item(&item, items, i, &info, engine, error);

	if (rc)
		return rc;
	pair->tensor = item.tensor;
	pair->entry = checkpoint_find(checkpoint, item.name);
	if (!pair->entry)
		return checkpoint_lacks(checkpoint, item.name, error);
	/* Elements of less than a byte are imported as the bytes that they lie in. */
	if (!nvs_dtype_size(pair->entry->dtype) && info.dtype == NVS_U8 &&
	    info.numel == pair->entry->nbytes)
		return 0;
	if (pair->entry->dtype != info.dtype || pair->entry->numel != info.numel)
		return error_about(error, -ESTALE, item.name, 0, 0,
				   "%s: tensor %s has %llu elements of %s, that of the engine %llu "
				   "of %s",
				   checkpoint->paths[pair->entry->file], item.name,
				   (unsigned long long)pair->entry->numel,
				   nvs_dtype_name(pair->entry->dtype),
				   (unsigned long long)info.numel, nvs_dtype_name(info.dtype));
	/* A shape of one dimension may be the number of elements alone. */
	if (item.ndim < 2 ||
	    shapes_equal(pair->entry->shape, pair->entry->ndim, item.shape, item.ndim))
		return 0;
	return error_about(error, -ESTALE, item.name, 0, 0,
			   "%s: %s has the shape %s there, and %s here",
			   checkpoint->paths[pair->entry->file], item.name,
			   shape_text(pair->entry->shape, pair->entry->ndim, there),
			   shape_text(item.shape, item.ndim, here));
}

int nvs_checkpoint_import(struct nvs_engine *engine, const struct nvs_checkpoint *checkpoint,
			  const struct nvs_checkpoint_item *items, size_t n,
			  struct nvs_error *error)
{
	HOLD_CANCEL;
	struct reading reading = {0};
	struct pair *pairs;
	int rc = check_call(engine, items, n, error);

	if (rc)
		return rc;
	if (!checkpoint)
		return error_set(error, -EINVAL, "checkpoint is NULL");
	pairs = calloc(n + 1, sizeof(*pairs));
	if (!pairs)
		return error_set(error, -ENOMEM, "no memory for the names of %zu tensors", n);
	for (size_t i = 0; i < n && !rc; i++)
		rc = find_item(&pairs[i], engine, checkpoint, items, i, error);
	if (!rc)
		rc = reading_begin(&reading, nvs_engine_aio(engine), checkpoint, error);
	if (!rc)
		rc = move_all(engine, pairs, n, NULL, &reading, error);
	if (reading.checkpoint)
		reading_end(&reading);
	free(pairs);
	return rc;
}
