/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commits: write back everything dirty, make it durable, replace the manifest.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "swap/internal.h"

static bool unfinished(const struct nvs_tensor *tensor)
{
	return tensor->external || (tensor->uses && (tensor->dirty || tensor->leased));
}

static int check_finished(const struct nvs_engine *engine, struct nvs_error *error)
{
	for (size_t i = 0; i < engine->ntensors; i++)
		if (unfinished(engine->tensors[i]))
			return error_about(
				error, -EBUSY, engine->tensors[i]->name, 0, 0,
				"%s is pinned and dirty, or in flight from or to external "
				"memory: release it, or wait for its transfer, before the "
				"commit",
				engine->tensors[i]->name);
	return 0;
}

/* A caller that did not wait would take a failed write to be in the store. */
static int check_reported(const struct nvs_engine *engine, struct nvs_error *error)
{
	int rc = 0;

	for (size_t i = 0; i < engine->ntensors && !rc; i++)
		rc = report_failed_write(engine, engine->tensors[i], error);
	return rc;
}

/* Starts to write back dirty unpinned tensors. */
static struct transfer *write_back(struct nvs_engine *engine)
{
	struct transfer *list;
	size_t n = 0;

	for (size_t i = 0; i < engine->ntensors; i++) {
		struct nvs_tensor *tensor = engine->tensors[i];

		if (tensor->state == NVS_RESIDENT && tensor->dirty && !tensor->uses)
			engine->scratch[n++] = tensor;
	}
	for (size_t i = 0; i < n; i++)
		leave_idle(engine, engine->scratch[i]);
	list = runs_build(engine, engine->scratch, n, NVS_WRITE);
	/* Empty tensors have landed already and keep their place. */
	for (size_t i = 0; i < n; i++)
		if (!engine->scratch[i]->extent)
			make_idle(engine, engine->scratch[i]);
	return list;
}

static bool anything_dirty(const struct nvs_engine *engine)
{
	for (size_t i = 0; i < engine->ntensors; i++)
		if (engine->tensors[i]->dirty && !engine->tensors[i]->uses)
			return true;
	return false;
}

static int write_manifest(struct nvs_engine *engine, struct nvs_error *error)
{
	struct store_entry *entries = calloc(engine->ntensors + 1, sizeof(*entries));
	int rc;

	if (!entries)
		return error_set(error, -ENOMEM, "out of memory while writing the manifest");
	for (size_t i = 0; i < engine->ntensors; i++) {
		const struct nvs_tensor *tensor = engine->tensors[i];

		entries[i] = (struct store_entry){.name = tensor->name,
						  .dtype = tensor->dtype,
						  .numel = tensor->numel,
						  .nbytes = tensor->nbytes,
						  .offset = tensor->offset,
						  .spare = tensor->spare,
						  .written = tensor->has_contents,
						  .has_checksum = tensor->has_checksum,
						  .checksum = tensor->checksum};
	}
	rc = store_commit(engine->store, entries, engine->ntensors, error);
	free(entries);
	if (!rc)
		tensors_committed(engine);
	return rc;
}

static int failure_of(const struct nvs_engine *engine, struct nvs_error *error)
{
	error_copy(error, &engine->failure);
	return engine->failure.code;
}

/*
 * Under the lock, which it releases while the drive works. When it returns 0, everything is on the
 * drive. Tensors that other threads pin or write meanwhile are checked again.
 */
static int write_all(struct nvs_engine *engine, struct nvs_error *error)
{
	uint64_t failures = engine->write_failures;

	for (;;) {
		int rc = check_finished(engine, error);
		struct transfer *list;

		if (!rc)
			rc = check_reported(engine, error);
		if (rc)
			return rc;
		if (!anything_dirty(engine) && !engine->inflight[NVS_WRITE])
			return 0;
		list = write_back(engine);
		pthread_mutex_unlock(&engine->lock);
		launch(engine, list);
		pthread_mutex_lock(&engine->lock);
		rc = drain_writes(engine, error);
		if (rc)
			return rc;
		if (engine->write_failures != failures)
			return failure_of(engine, error);
	}
}

int nvs_engine_commit(struct nvs_engine *engine, struct nvs_error *error)
{
	int rc;

	pthread_mutex_lock(&engine->lock);
	rc = write_all(engine, error);
	if (!rc && engine->keep)
		rc = write_manifest(engine, error);
	pthread_mutex_unlock(&engine->lock);
	return rc;
}
