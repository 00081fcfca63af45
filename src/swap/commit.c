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
#include <stdlib.h>
#include <string.h>

#include "base/threads/cancel.h"
#include "swap/calls/calls.h"

/* ---- Notes ---- */

/* The note of the caller that a commit carries. It never changes. */
struct note {
	size_t nbytes;
	uint8_t bytes[];
};

/* NULL: out of memory. */
static struct note *note_new(const void *data, size_t nbytes)
{
	struct note *note = malloc(sizeof(*note) + nbytes);

	if (!note)
		return NULL;
	note->nbytes = nbytes;
	if (nbytes)
		memcpy(note->bytes, data, nbytes);
	return note;
}

int notes_open(struct nvs_engine *engine, struct nvs_error *error)
{
	struct store_note found = store_found_note(engine->store);

	engine->commit.note = note_new(found.data, found.nbytes);
	engine->commit.last_note = note_new(found.data, found.nbytes);
	return engine->commit.note && engine->commit.last_note
		       ? 0
		       : error_no_memory(error, "reading the manifest");
}

static void note_replace(struct nvs_engine *engine, struct note **note, struct note *by)
{
	struct note *old;

	pthread_mutex_lock(&engine->commit.notes);
	old = *note;
	*note = by;
	pthread_mutex_unlock(&engine->commit.notes);
	free(old);
}

int engine_set_note(struct nvs_engine *engine, const void *note, size_t nbytes,
		    struct nvs_error *error)
{
	struct note *made;
	int rc;

	if (!engine || (!note && nbytes))
		return error_set(error, -EINVAL, "nvs_engine_set_note: the %s is NULL",
				 engine ? "note" : "engine");
	if (nbytes > NVS_NOTE_MAX)
		return error_set(error, -E2BIG, "a note has at most %u bytes; this one has %zu",
				 NVS_NOTE_MAX, nbytes);
	rc = check_writable(engine, error);
	if (rc || !engine->keep)
		return rc;
	made = note_new(note, nbytes);
	if (!made)
		return error_no_memory(error, "copying a note");
	note_replace(engine, &engine->commit.note, made);
	return 0;
}

int nvs_engine_set_note(struct nvs_engine *engine, const void *note, size_t nbytes,
			struct nvs_error *error)
{
	HOLD_CANCEL;
	return check_unowned(engine, "nvs_optimizer_set_note sets the note", error)
		       ?: engine_set_note(engine, note, nbytes, error);
}

int nvs_engine_get_note(struct nvs_engine *engine, void *note, size_t *nbytes)
{
	const struct note *committed;
	int rc = 0;

	if (!engine || !nbytes)
		return -EINVAL;
	pthread_mutex_lock(&engine->commit.notes);
	committed = engine->commit.last_note;
	if (note && *nbytes < committed->nbytes)
		rc = -ERANGE;
	else if (note && committed->nbytes)
		memcpy(note, committed->bytes, committed->nbytes);
	*nbytes = committed->nbytes;
	pthread_mutex_unlock(&engine->commit.notes);
	return rc;
}

/* ---- What is committed ---- */

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

/* Waits for calls that copy bytes of tensors; what they have pinned is unpinned soon. */
static void await_copies(struct nvs_engine *engine)
{
	enum copying held = engine->turns.held;

	for (size_t i = 0; i < engine->ntensors && engine->turns.ncopied;) {
		if (!is_copied(engine->tensors[i]) || !unfinished(engine->tensors[i])) {
			i++;
			continue;
		}
		commit_hold(engine, COPIED_OUT);
		(void)events_wait(engine, 1, UINT64_MAX);
		i = 0;
	}
	commit_hold(engine, held);
}

static int refuse_unfinished(const struct nvs_tensor *tensor, const char *before,
			     struct nvs_error *error)
{
	return error_named(error, -EBUSY, tensor->rest->name, " is %s before %s",
			   unfinished(tensor), before);
}

int engine_check_pins(struct nvs_engine *engine, struct nvs_error *error)
{
	int rc = 0;

	assert(engine->keep && !engine->read_only);
	engine_lock(engine);
	for (size_t i = 0; i < engine->ntensors && !rc; i++)
		if (engine->tensors[i]->pins.count && unfinished(engine->tensors[i]))
			rc = refuse_unfinished(engine->tensors[i],
					       "closing the engine, or abandon it", error);
	engine_unlock(engine);
	return rc;
}

/*
 * Under the lock, which it releases while the drive works. When it returns 0, everything is on the
 * drive. Tensors that other threads pin or write meanwhile are checked again.
 */
static int write_all(struct nvs_engine *engine, struct nvs_error *error)
{
	uint64_t failures = engine->moves.write_failures;

	assert(!engine->commit.unsettled && !engine->moves.held_writes);
	for (;;) {
		struct transfer *list;
		size_t ndirty = 0;
		int rc = 0;

		await_copies(engine);
		for (size_t i = 0; i < engine->ntensors && !rc; i++)
			if (unfinished(engine->tensors[i]))
				rc = refuse_unfinished(engine->tensors[i], "the commit", error);
		/* A caller that did not wait would take a failed write to be in the store. */
		for (size_t i = 0; i < engine->ntensors && !rc; i++) {
			rc = report_failed_write(engine, engine->tensors[i], error);
			if (is_dirty(engine->tensors[i]))
				engine->scratch[ndirty++] = engine->tensors[i];
		}
		if (rc || (!ndirty && !engine->moves.inflight[NVS_WRITE]))
			return rc;
		for (size_t i = 0; i < ndirty; i++)
			leave_idle(engine, engine->scratch[i]);
		list = runs_build_own(engine, engine->scratch, ndirty, NVS_WRITE);
		engine_unlock(engine);
		launch(engine, list);
		engine_lock(engine);
		rc = drain(engine, true, error);
		if (rc)
			return rc;
		if (engine->moves.write_failures != failures) {
			error_copy(error, &engine->moves.failure);
			return engine->moves.failure.code;
		}
		/* Tensors that became dirty meanwhile are the last ones. */
		commit_hold(engine, COPIED_IN);
	}
}

/* ---- The manifest ---- */

/* The tensors as a commit finds them, with names and shapes of their own: tensors may be forgotten,
 * and get other shapes by registration, while the manifest is written. */
struct snapshot {
	struct store_entry *entries; /* and behind them the shapes and names */
	size_t n;
	struct nvs_tensor *forgotten; /* since the last commit */
	struct note *note;
};

/* With everything on the drive. -ENOMEM: nothing has changed. */
static int snapshot_take(struct nvs_engine *engine, struct snapshot *snapshot)
{
	size_t nbytes = 0, ndims = 0;
	uint64_t *shape;
	char *name;

	assert(!engine->moves.held_writes && !engine->moves.inflight[NVS_WRITE]);
	engine_check(engine);
	for (size_t i = 0; i < engine->ntensors; i++) {
		nbytes += strlen(engine->tensors[i]->rest->name) + 1;
		ndims += engine->tensors[i]->rest->ndim;
	}
	pthread_mutex_lock(&engine->commit.notes);
	snapshot->note = note_new(engine->commit.note->bytes, engine->commit.note->nbytes);
	pthread_mutex_unlock(&engine->commit.notes);
	snapshot->n = engine->ntensors;
	snapshot->entries = malloc(snapshot->n * sizeof(*snapshot->entries) +
				   ndims * sizeof(*shape) + nbytes + 1);
	if (!snapshot->entries || !snapshot->note)
		return -ENOMEM;
	shape = (uint64_t *)(snapshot->entries + snapshot->n);
	name = (char *)(shape + ndims);
	for (size_t i = 0; i < engine->ntensors; i++) {
		struct nvs_tensor *tensor = engine->tensors[i];
		bool written = on_drive(tensor->content);

		/* What the manifest names is on the drive, and nothing writes there. */
		assert(!is_dirty(tensor) && tensor->io != IO_WRITING && !is_external(tensor));
		tensor->rest->snapshot = written ? tensor->offset : NOWHERE;
		snapshot->entries[i] = (struct store_entry){
			.name = name,
			.dtype = tensor->rest->dtype,
			.numel = tensor->numel,
			.nbytes = tensor->nbytes,
			.offset = tensor->offset,
			.spare = tensor->rest->spare,
			.written = written,
			.has_checksum = tensor->checksum_state != CHECKSUM_NONE,
			.checksum = tensor->rest->checksum,
			.shape = tensor->rest->shape ? shape : NULL,
			.ndim = tensor->rest->ndim};
		name = stpcpy(name, tensor->rest->name) + 1;
		if (tensor->rest->shape)
			memcpy(shape, tensor->rest->shape, tensor->rest->ndim * sizeof(*shape));
		shape += tensor->rest->ndim;
	}
	assert((char *)shape + nbytes == name);
	snapshot->forgotten = engine->commit.forgotten;
	engine->commit.forgotten = NULL;
	engine->commit.writing = true;
	return 0;
}

/* No commit is in doubt any more: the manifest names what `committed` says, and nothing else. */
static void unfreeze(struct nvs_engine *engine)
{
	for (size_t i = 0; i < engine->ntensors; i++)
		engine->tensors[i]->rest->snapshot = NOWHERE;
}

/* Under the lock, which it releases while the manifest is made durable. */
static int write_manifest(struct nvs_engine *engine, struct nvs_error *error)
{
	struct nvs_tensor **last = &engine->commit.forgotten, *tensor;
	struct snapshot snapshot = {0};
	struct transfer *list = NULL;
	int rc = snapshot_take(engine, &snapshot);

	if (rc) {
		error_set(error, rc, "out of memory while writing the manifest");
	} else {
		const struct store_note note = {.data = snapshot.note->bytes,
						.nbytes = snapshot.note->nbytes};

		engine_unlock(engine);
		rc = store_commit(engine->store, snapshot.entries, snapshot.n, &note, error);
		engine_lock(engine);
		assert(engine->commit.writing && !engine->commit.unsettled);
		engine->commit.writing = false;
		/* If it failed, the previous manifest stays in effect, unless the drive may name
		 * the new one. */
		engine->commit.unsettled = rc && store_unsettled(engine->store);
		if (!rc) {
			for (size_t i = 0; i < engine->ntensors; i++) {
				struct tensor_rest *rest = engine->tensors[i]->rest;

				rest->committed = rest->snapshot;
				rest->snapshot = NOWHERE;
			}
			note_replace(engine, &engine->commit.last_note, snapshot.note);
			snapshot.note = NULL;
			while ((tensor = snapshot.forgotten)) {
				snapshot.forgotten = tensor->run_next;
				extents_release(engine, tensor);
				tensor_free(tensor);
			}
		} else {
			/* Tensors that were forgotten meanwhile stay for the next commit too. */
			while (*last)
				last = &(*last)->run_next;
			*last = snapshot.forgotten;
			if (!engine->commit.unsettled)
				unfreeze(engine);
		}
		list = runs_build_held(engine);
	}
	engine_unlock(engine);
	free(snapshot.entries);
	free(snapshot.note);
	launch(engine, list);
	engine_lock(engine);
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
	pthread_mutex_lock(&engine->commit.lock);
	engine_lock(engine);
	/* What is dirty may need the extents of a commit that failed. */
	if (engine->commit.unsettled) {
		engine_unlock(engine);
		rc = store_settle(engine->store, error);
		engine_lock(engine);
		engine->commit.unsettled = rc != 0;
		if (!rc)
			unfreeze(engine);
	}
	rc = rc ?: write_all(engine, error);
	commit_hold(engine, COPIED_NOT);
	if (engine->keep)
		rc = rc ?: write_manifest(engine, error);
	engine_unlock(engine);
	pthread_mutex_unlock(&engine->commit.lock);
	return rc;
}

int nvs_engine_commit(struct nvs_engine *engine, struct nvs_error *error)
{
	HOLD_CANCEL;
	return check_unowned(engine, "nvs_optimizer_commit commits it", error)
		       ?: engine_commit(engine, error);
}
