/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a run after a crash finds. The label is marked before data changes, and the mark names the
 * manifest that it makes doubtful; a newer manifest is therefore clean, whether or not the mark
 * could still be taken away. docs/store-format.md goes through the crashes one by one.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "store/internal.h"

/* ---- Finding ---- */

int store_read_manifest(struct store *store, struct nvs_error *error)
{
	struct label *label = &store->members[0].label;
	struct nvs_error why;
	int rc = slots_open(&store->slots, &store->members[0], false, error);

	/* A manifest that was missing has just got its name anew. */
	if (!rc)
		rc = member_sync_names(&store->members[0], error);
	if (!rc) {
		rc = slots_read(&store->slots, label->id, label->unit, &store->found, &store->log,
				&why);
		if (rc && error)
			*error = why;
	}
	if (rc == -ENODATA && label->generation)
		return error_set(error, -EUCLEAN,
				 "the manifests of the kept store at %s are damaged (%s): restore "
				 "the store from a copy, or remove it if it is not needed",
				 store->members[0].path, why.text);
	if (rc && rc != -ENODATA)
		return rc;

	uint64_t generation = store->found.header.generation;

	store->manifest = store->found.header;
	store->unclean = label->generation > generation ||
			 (label->dirty && label->generation == generation);
	store->pending = store->unclean;
	if (label->generation > generation)
		log_say(&store->log, NVS_LOG_WARNING,
			"the newest manifest of the kept store at %s is damaged: the one before it "
			"is used, number %" PRIu64,
			store->members[0].path, generation);
	if (label->generation > store->manifest.generation)
		store->manifest.generation = label->generation;
	atomic_store(&store->noted,
		     label->dirty && label->generation == store->manifest.generation);
	return 0;
}

const struct store_entry *store_entries(const struct store *store, size_t *n)
{
	*n = store->found.header.count;
	return store->found.entries;
}

bool store_unclean(const struct store *store)
{
	return store->unclean;
}

/* ---- Changing ---- */

/* Writes the label of the first member; where that fails it is as it was, in memory at least. */
static int relabel(struct store *store, bool dirty, uint64_t generation, struct nvs_error *error)
{
	struct label *label = &store->members[0].label, was = *label;

	label->dirty = dirty;
	label->generation = generation;

	int rc = member_write_label(&store->members[0], error);

	if (rc)
		*label = was;
	return rc;
}

int store_begin_writes(struct store *store, struct nvs_error *error)
{
	int rc = 0;

	if (!store->keep || atomic_load_explicit(&store->noted, memory_order_acquire))
		return 0;
	pthread_mutex_lock(&store->commit_lock);
	if (!atomic_load(&store->noted)) {
		rc = relabel(store, true, store->manifest.generation, error);
		if (!rc) {
			store->pending = true;
			atomic_store_explicit(&store->noted, true, memory_order_release);
		}
	}
	pthread_mutex_unlock(&store->commit_lock);
	return rc;
}

static bool nothing_changed(const struct store *store, const struct manifest_header *header)
{
	return store->manifest.generation && !store->pending &&
	       header->count == store->manifest.count &&
	       header->body_bytes == store->manifest.body_bytes &&
	       header->body_checksum == store->manifest.body_checksum;
}

/* The kernel reports a failed write-back once, and then calls the pages clean. */
static int sync_data(struct store *store, struct nvs_error *error)
{
	int rc;

	if (store->sync_failed)
		return error_set(error, -EIO,
				 "an earlier attempt to make the data at %s durable failed, so it "
				 "can't be known which of it was written: the last commit before "
				 "that is the state that will be found",
				 store->members[0].path);
	rc = nvs_file_sync(store->file, error);
	store->sync_failed = rc != 0;
	return rc;
}

static int commit(struct store *store, const struct store_entry *entries, size_t n,
		  struct nvs_error *error)
{
	struct manifest_header header;
	uint8_t *bytes = manifest_encode(store->members[0].label.id, store->manifest.generation + 1,
					 entries, n, &header);
	int rc;

	if (!bytes)
		return error_set(error, -ENOMEM, "out of memory while writing the manifest");
	if (nothing_changed(store, &header)) {
		free(bytes);
		return 0;
	}
	rc = sync_data(store, error);
	if (!rc)
		rc = slots_write(&store->slots, bytes, MANIFEST_HEADER_BYTES + header.body_bytes,
				 error);
	free(bytes);
	if (rc)
		return rc;
	/* From here on it is committed, and the mark in the label is one of the past. */
	store->manifest = header;
	store->pending = false;
	atomic_store(&store->noted, false);
	return relabel(store, false, header.generation, error);
}

int store_commit(struct store *store, const struct store_entry *entries, size_t n,
		 struct nvs_error *error)
{
	int rc;

	if (!store->keep)
		return 0;
	pthread_mutex_lock(&store->commit_lock);
	rc = commit(store, entries, n, error);
	pthread_mutex_unlock(&store->commit_lock);
	return rc;
}
