/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and replaces the manifest. The valid manifest's extents are never overwritten, so the run
 * after a crash finds what it names. A commit is atomic: a failed one revokes its manifest.
 * docs/store-format.md goes through the crashes one by one. One thread commits at a time, without
 * the store's lock.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "store/internal.h"

/* ---- Reading ---- */

int store_read_manifest(struct store *store, struct nvs_error *error)
{
	struct label *label = &store->members[0].label;
	struct nvs_error why = {.size = sizeof(why)};
	int rc = slots_open(&store->slots, &store->members[0], false, error);

	/* A missing manifest file was just created again. */
	if (!rc && !store->read_only)
		rc = member_sync_names(&store->members[0], error);
	if (!rc) {
		rc = slots_read(&store->slots, label->id, label->unit, &store->found, &store->log,
				&why);
		if (rc)
			error_copy(error, &why);
	}
	if (rc == -ENODATA && label->generation)
		return error_set(error, -EUCLEAN,
				 "the manifests of the kept store at %s are damaged (%s): restore "
				 "the store from a copy, or remove it if it is not needed",
				 store->members[0].path, why.text);
	if (rc && rc != -ENODATA)
		return rc;
	store->manifest = store->found.header;
	if (label->generation > store->manifest.generation)
		log_say(&store->log, NVS_LOG_WARNING,
			"the newest manifest of the kept store at %s is damaged: using the "
			"previous "
			"one, number %" PRIu64 "; checksums detect tensors written after it when "
			"they are read",
			store->members[0].path, store->manifest.generation);
	return 0;
}

const struct store_entry *store_entries(const struct store *store, size_t *n)
{
	*n = store->found.header.count;
	return store->found.entries;
}

uint64_t store_generation(struct store *store)
{
	uint64_t generation;

	pthread_mutex_lock(&store->lock);
	generation = store->manifest.generation;
	pthread_mutex_unlock(&store->lock);
	return generation;
}

/* ---- Replacing ---- */

static void enter(struct store *store, enum commit_phase phase)
{
	pthread_mutex_lock(&store->lock);
	if (phase == COMMIT_ENCODE)
		while (store->committing != COMMIT_IDLE)
			pthread_cond_wait(&store->idle, &store->lock);
	assert(phase == COMMIT_IDLE || phase > store->committing);
	store->committing = phase;
	if (phase == COMMIT_IDLE)
		pthread_cond_broadcast(&store->idle);
	pthread_mutex_unlock(&store->lock);
}

/* Writes the label of the first member; on an error it is unchanged, at least in memory. */
static int relabel(struct store *store, uint64_t generation, struct nvs_error *error)
{
	struct label *label = &store->members[0].label, was = *label;

	assert(store->committing >= COMMIT_WRITE_LABEL);
	assert(generation || store->committing == COMMIT_REVOKE);
	label->generation = generation;

	int rc = member_write_label(&store->members[0], error);

	if (rc)
		*label = was;
	return rc;
}

/* A write always moves the tensor's contents, so equal entries have equal contents. */
static bool nothing_changed(const struct store *store, const struct manifest_header *header)
{
	return store->manifest.generation &&
	       store->manifest.generation == store->members[0].label.generation &&
	       header->count == store->manifest.count &&
	       header->body_bytes == store->manifest.body_bytes &&
	       header->body_checksum == store->manifest.body_checksum;
}

static uint64_t next_generation(const struct store *store)
{
	uint64_t label = store->members[0].label.generation;
	uint64_t manifest = store->manifest.generation;

	return (label > manifest ? label : manifest) + 1;
}

/* The kernel reports a failed write-back once and then marks the pages clean. */
static int sync_data(struct store *store, struct nvs_error *error)
{
	int rc = nvs_file_sync(store->file, error);

	assert(store->committing == COMMIT_SYNC_DATA);
	assert(!store->no_commits);
	if (rc)
		store->no_commits = "an earlier attempt to make its data durable failed, so it is "
				    "unknown which data was written: the next run finds the last "
				    "commit before that";
	return rc;
}

/* After a write that failed at an unknown point, in the present phase. */
static void revoke(struct store *store, struct nvs_error *error)
{
	struct nvs_error first = *error, second = {.size = sizeof(second)};
	bool labelled = store->committing == COMMIT_WRITE_LABEL;

	assert(store->committing >= COMMIT_WRITE_MANIFEST);
	enter(store, COMMIT_REVOKE);

	int rc = labelled ? relabel(store, store->members[0].label.generation, &second) : 0;

	if (!rc)
		rc = slots_revoke(&store->slots, &second);
	if (!rc)
		return;
	store->no_commits = "an earlier commit failed, and its manifest could not be revoked: the "
			    "next run may find it instead of the last commit, with damaged tensors "
			    "where they were written since";
	error_about(error, first.code, first.subject, 0, first.offset,
		    "%.400s; the manifest could not be revoked either (%.400s), so no further "
		    "commit is possible",
		    first.text, second.text);
}

/* A commit into files that are gone would be lost in silence. */
static int check_places(struct store *store, struct nvs_error *error)
{
	int rc = 0;

	for (unsigned i = 0; i < store->nmembers && !rc; i++)
		rc = member_check_place(&store->members[i], error);
	return rc ? rc : slots_check_places(&store->slots, &store->members[0], error);
}

static int replace_manifest(struct store *store, const uint8_t *bytes,
			    const struct manifest_header *header, struct nvs_error *error)
{
	uint64_t nbytes = MANIFEST_HEADER_BYTES + header->body_bytes;
	int rc = slots_check_size(&store->slots, nbytes, error);

	assert(header->generation > store->manifest.generation);
	if (rc)
		return rc;
	enter(store, COMMIT_SYNC_DATA);
	rc = sync_data(store, error);
	if (rc)
		return rc;
	enter(store, COMMIT_WRITE_MANIFEST);
	rc = slots_write(&store->slots, bytes, nbytes, error);
	if (!rc) {
		enter(store, COMMIT_SYNC_MANIFEST);
		rc = slots_sync(&store->slots, error);
	}
	/* Again, since syncing may have taken long. */
	if (!rc)
		rc = check_places(store, error);
	if (!rc) {
		enter(store, COMMIT_WRITE_LABEL);
		rc = relabel(store, header->generation, error);
	}
	if (rc) {
		revoke(store, error);
		return rc;
	}
	slots_turn(&store->slots);
	pthread_mutex_lock(&store->lock);
	store->manifest = *header;
	pthread_mutex_unlock(&store->lock);
	assert(store->manifest.generation == store->members[0].label.generation);
	return 0;
}

static int commit(struct store *store, const struct store_entry *entries, size_t n,
		  struct nvs_error *error)
{
	struct manifest_header header;
	int rc = check_places(store, error);

	if (rc)
		return rc;

	uint8_t *bytes = manifest_encode(store->members[0].label.id, next_generation(store),
					 entries, n, &header);

	if (!bytes)
		return error_set(error, -ENOMEM, "out of memory while writing the manifest");
	if (nothing_changed(store, &header))
		rc = 0;
	else if (store->no_commits)
		rc = error_set(error, -EIO, "the store at %s can't be committed: %s",
			       store->members[0].path, store->no_commits);
	else
		rc = replace_manifest(store, bytes, &header, error);
	free(bytes);
	return rc;
}

int store_commit(struct store *store, const struct store_entry *entries, size_t n,
		 struct nvs_error *error)
{
	struct nvs_error why = {.size = sizeof(why)};
	int rc;

	if (!store->keep)
		return 0;
	if (store->read_only)
		return store_read_only(store, error);
	enter(store, COMMIT_ENCODE);
	store_check_commit(store);
	store_check_entries(store, store_bytes(store), entries, n);
	rc = commit(store, entries, n, &why);
	store_check_commit(store);
	enter(store, COMMIT_IDLE);
	if (rc)
		error_copy(error, &why);
	return rc;
}
