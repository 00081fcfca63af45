/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commits: write back everything dirty, take a snapshot under the lock, and make it durable without
 * the lock, so that tensors are read, written and registered meanwhile. Extents that the manifest
 * on the drive or the one being written names are not overwritten.
 *
 * In a kept store a tensor has two extents. The manifest names the one with the contents; the
 * first write after a commit goes to the other, and when it has landed the two swap roles until
 * the next commit. A tensor that was written since the last commit has an extent in each of the
 * two manifests while a commit runs: a write of it counts as in flight and begins when that ends.
 * A forgotten tensor keeps its extents until a commit has left it out.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "swap/calls/calls.h"

/* Why the tensor can't be committed, and what to do; NULL: it can. */
static const char *unfinished(const struct nvs_tensor *tensor)
{
	if (is_external(tensor))
		return "in flight from or to external memory: wait for its transfer";
	if (tensor->pins.count && is_unwritten(tensor))
		return "pinned for new contents, which are not released yet: release it";
	if (tensor->pins.count && is_dirty(tensor))
		return "pinned and dirty: release it";
	return NULL;
}

static bool any_copied(const struct nvs_engine *engine)
{
	assert(engine->ncopied <= engine->ntensors);
	for (size_t i = 0; i < engine->ntensors && engine->ncopied; i++)
		if (is_copied(engine->tensors[i]) && unfinished(engine->tensors[i]))
			return true;
	return false;
}

/* Waits for calls that copy bytes of tensors; what they have pinned is unpinned soon. */
static void await_copies(struct nvs_engine *engine)
{
	enum copying held = engine->commit_holds;

	lock_check(engine);
	while (any_copied(engine)) {
		commit_hold(engine, COPIED_OUT);
		(void)events_wait(engine, UINT64_MAX);
	}
	commit_hold(engine, held);
}

static int refuse_unfinished(const struct nvs_tensor *tensor, const char *before,
			     struct nvs_error *error)
{
	assert(unfinished(tensor) && (tensor->pins.count || is_external(tensor)));
	return error_about(error, -EBUSY, tensor->rest->name, 0, 0, "%s is %s before %s",
			   tensor->rest->name, unfinished(tensor), before);
}

static int check_finished(const struct nvs_engine *engine, struct nvs_error *error)
{
	int rc = 0;

	lock_check(engine);
	for (size_t i = 0; i < engine->ntensors && !rc; i++)
		if (unfinished(engine->tensors[i]))
			rc = refuse_unfinished(engine->tensors[i], "the commit", error);
	return rc;
}

int engine_check_pins(struct nvs_engine *engine, struct nvs_error *error)
{
	int rc = 0;

	assert(engine->keep && !engine->read_only);
	engine_lock(engine);
	engine_sums_check(engine);
	for (size_t i = 0; i < engine->ntensors && !rc; i++)
		if (engine->tensors[i]->pins.count && unfinished(engine->tensors[i]))
			rc = refuse_unfinished(engine->tensors[i],
					       "closing the engine, or abandon it", error);
	engine_unlock(engine);
	return rc;
}

/* A caller that did not wait would take a failed write to be in the store. */
static int check_reported(const struct nvs_engine *engine, struct nvs_error *error)
{
	int rc = 0;

	lock_check(engine);
	assert(!engine->read_only);
	for (size_t i = 0; i < engine->ntensors && !rc; i++)
		rc = report_failed_write(engine, engine->tensors[i], error);
	return rc;
}

/* Starts to write back dirty unpinned tensors. */
static struct transfer *write_back(struct nvs_engine *engine)
{
	size_t n = 0;

	lock_check(engine);
	for (size_t i = 0; i < engine->ntensors; i++) {
		struct nvs_tensor *tensor = engine->tensors[i];

		if (tensor_state(tensor) == NVS_RESIDENT && is_dirty(tensor) && !tensor->pins.count)
			engine->scratch[n++] = tensor;
	}
	assert(n <= engine->ntensors && !engine->committing);
	for (size_t i = 0; i < n; i++) {
		assert(is_listed(engine->scratch[i]));
		leave_idle(engine, engine->scratch[i]);
	}
	return runs_build_own(engine, engine->scratch, n, NVS_WRITE);
}

static bool anything_dirty(const struct nvs_engine *engine)
{
	assert(!engine->read_only);
	for (size_t i = 0; i < engine->ntensors; i++)
		if (is_dirty(engine->tensors[i]) && !engine->tensors[i]->pins.count)
			return true;
	return false;
}

static int failure_of(const struct nvs_engine *engine, struct nvs_error *error)
{
	assert(engine->failure.code < 0 && engine->write_failures);
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

	lock_check(engine);
	assert(!engine->unsettled && !engine->held_writes);
	for (;;) {
		struct transfer *list;
		int rc;

		await_copies(engine);
		rc = check_finished(engine, error);
		if (!rc)
			rc = check_reported(engine, error);
		if (rc)
			return rc;
		assert(!engine->committing);
		if (!anything_dirty(engine) && !engine->inflight[NVS_WRITE])
			return 0;
		list = write_back(engine);
		engine_sums_check(engine);
		engine_unlock(engine);
		launch(engine, list);
		engine_lock(engine);
		engine_sums_check(engine);
		rc = drain_writes(engine, error);
		if (rc)
			return rc;
		if (engine->write_failures != failures)
			return failure_of(engine, error);
		/* Tensors that became dirty meanwhile are the last ones. */
		commit_hold(engine, COPIED_IN);
	}
}

/* ---- The manifest ---- */

/* The tensors as a commit finds them, with names and shapes of their own: tensors may be forgotten,
 * and get other shapes by registration, while the manifest is written. */
struct snapshot {
	struct store_entry *entries;
	char *names;
	size_t names_nbytes;
	uint64_t *shapes;
	size_t ndims; /* dimensions in `shapes` */
	size_t n;
	struct nvs_tensor *forgotten; /* since the last commit */
	struct note *note;
};

static int snapshot_alloc(const struct nvs_engine *engine, struct snapshot *snapshot)
{
	size_t nbytes = 0;

	lock_check(engine);
	assert(!snapshot->entries && !snapshot->names && !snapshot->shapes);
	for (size_t i = 0; i < engine->ntensors; i++) {
		nbytes += strlen(engine->tensors[i]->rest->name) + 1;
		snapshot->ndims += engine->tensors[i]->rest->ndim;
	}
	snapshot->entries = calloc(engine->ntensors + 1, sizeof(*snapshot->entries));
	snapshot->names_nbytes = nbytes + 1;
	snapshot->names = malloc(snapshot->names_nbytes);
	snapshot->shapes = calloc(snapshot->ndims + 1, sizeof(*snapshot->shapes));
	return snapshot->entries && snapshot->names && snapshot->shapes ? 0 : -ENOMEM;
}

static void snapshot_free(struct snapshot *snapshot)
{
	free(snapshot->entries);
	free(snapshot->names);
	free(snapshot->shapes);
}

/* Copies the tensor's shape to *room, and moves behind it; NULL: it has one dimension. */
static const uint64_t *snapshot_shape(const struct nvs_tensor *tensor, uint64_t **room)
{
	const uint64_t *copy = *room;

	assert(tensor->rest->shape || !tensor->rest->ndim);
	if (!tensor->rest->shape)
		return NULL;
	for (size_t i = 0; i < tensor->rest->ndim; i++)
		*(*room)++ = tensor->rest->shape[i];
	return copy;
}

/* Under the lock, with everything on the drive. */
static void snapshot_take(struct nvs_engine *engine, struct snapshot *snapshot)
{
	char *name = snapshot->names;
	uint64_t *shape = snapshot->shapes;

	assert(!engine->committing && !engine->held_writes && !engine->inflight[NVS_WRITE]);
	engine_check(engine);
	for (size_t i = 0; i < engine->ntensors; i++) {
		struct nvs_tensor *tensor = engine->tensors[i];

		/* What the manifest names is on the drive, and nothing writes there. */
		assert(!is_dirty(tensor) && tensor->io != IO_WRITING && !is_external(tensor));
		extents_check(engine, tensor);
		tensor->rest->snapshot = on_drive(tensor->content) ? tensor->offset : NOWHERE;
		snapshot->entries[i] = (struct store_entry){
			.name = name,
			.dtype = tensor->rest->dtype,
			.numel = tensor->numel,
			.nbytes = tensor->nbytes,
			.offset = tensor->offset,
			.spare = tensor->rest->spare,
			.written = on_drive(tensor->content),
			.has_checksum = tensor->checksum_state != CHECKSUM_NONE,
			.checksum = tensor->rest->checksum,
			.shape = snapshot_shape(tensor, &shape),
			.ndim = tensor->rest->ndim};
		assert((size_t)(shape - snapshot->shapes) <= snapshot->ndims);
		name = stpcpy(name, tensor->rest->name) + 1;
		assert((size_t)(name - snapshot->names) < snapshot->names_nbytes);
	}
	assert((size_t)(shape - snapshot->shapes) == snapshot->ndims);
	assert((size_t)(name - snapshot->names) + 1 == snapshot->names_nbytes);
	assert(!snapshot->forgotten);
	snapshot->n = engine->ntensors;
	snapshot->forgotten = engine->forgotten;
	engine->forgotten = NULL;
	snapshot->note = note_hold(engine->note);
	engine->committing = true;
}

/* Under the lock. Tensors that were forgotten meanwhile stay for the next commit: the manifest
 * names them. */
static void snapshot_apply(struct nvs_engine *engine, const struct snapshot *snapshot)
{
	lock_check(engine);
	assert(!engine->committing && snapshot->entries && snapshot->note);
	assert(!engine->unsettled);
	tensors_committed(engine);
	note_committed(engine, snapshot->note);
	tensors_release_forgotten(engine, snapshot->forgotten);
}

static void unfreeze(struct nvs_engine *engine)
{
	lock_check(engine);
	assert(engine->keep && !engine->committing && !engine->unsettled);
	for (size_t i = 0; i < engine->ntensors; i++) {
		struct nvs_tensor *tensor = engine->tensors[i];

		assert(tensor->rest->snapshot == NOWHERE ||
		       tensor->rest->snapshot == tensor->offset ||
		       tensor->rest->snapshot == tensor->rest->spare);
		tensor->rest->snapshot = NOWHERE;
	}
}

/* Under the lock: the previous manifest stays in effect, unless the drive may name the new one. */
static void snapshot_drop(struct nvs_engine *engine, const struct snapshot *snapshot)
{
	struct nvs_tensor **last = &engine->forgotten;

	lock_check(engine);
	assert(!engine->committing && engine->keep);
	engine->unsettled = store_unsettled(engine->store);
	if (!engine->unsettled)
		unfreeze(engine);
	while (*last)
		last = &(*last)->run_next;
	*last = snapshot->forgotten;
}

/* Under the lock, which it releases while the manifest is made durable. */
static int write_manifest(struct nvs_engine *engine, struct nvs_error *error)
{
	struct snapshot snapshot = {0};
	struct store_note note;
	struct transfer *list;
	int rc = snapshot_alloc(engine, &snapshot);

	assert(engine->keep && !engine->unsettled);
	if (rc) {
		snapshot_free(&snapshot);
		return error_set(error, rc, "out of memory while writing the manifest");
	}
	snapshot_take(engine, &snapshot);
	note = note_contents(snapshot.note);
	engine_sums_check(engine);
	engine_unlock(engine);
	rc = store_commit(engine->store, snapshot.entries, snapshot.n, &note, error);
	engine_lock(engine);
	assert(engine->committing && !engine->unsettled);
	engine_sums_check(engine);
	engine->committing = false;
	if (rc)
		snapshot_drop(engine, &snapshot);
	else
		snapshot_apply(engine, &snapshot);
	note_release(snapshot.note);
	list = runs_build_held(engine);
	engine_sums_check(engine);
	engine_unlock(engine);
	snapshot_free(&snapshot);
	launch(engine, list);
	engine_lock(engine);
	engine_sums_check(engine);
	return rc;
}

/* Under the lock, which it releases: what is dirty may need the extents of the failed commit. */
static int settle(struct nvs_engine *engine, struct nvs_error *error)
{
	int rc;

	if (!engine->unsettled)
		return 0;
	engine_sums_check(engine);
	assert(engine->keep && !engine->committing);
	/* Writes that waited for the failed commit were refused. */
	assert(!engine->held_writes);
	engine_unlock(engine);
	rc = store_settle(engine->store, error);
	engine_lock(engine);
	engine_sums_check(engine);
	assert(engine->unsettled && !engine->committing);
	engine->unsettled = rc != 0;
	if (!rc)
		unfreeze(engine);
	return rc;
}

int engine_commit(struct nvs_engine *engine, struct nvs_error *error)
{
	int rc;

	if (!engine)
		return error_set(error, -EINVAL, "nvs_engine_commit: the engine is NULL");
	rc = check_writable(engine, error);
	if (rc)
		return rc;
	unlocked_check(engine);
	assert(engine->opened);
	pthread_mutex_lock(&engine->commit_lock);
	engine_lock(engine);
	engine_sums_check(engine);
	assert(!engine->committing && engine->commit_holds == COPIED_NOT);
	rc = settle(engine, error);
	if (!rc)
		rc = write_all(engine, error);
	commit_hold(engine, COPIED_NOT);
	if (!rc && engine->keep)
		rc = write_manifest(engine, error);
	assert(!engine->committing && (rc || !engine->unsettled));
	engine_sums_check(engine);
	engine_unlock(engine);
	pthread_mutex_unlock(&engine->commit_lock);
	return rc;
}
