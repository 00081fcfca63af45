/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and replaces the manifest. The newest label says which manifest counts, and its extents are
 * never overwritten, so the run after a crash finds what it names. A commit is atomic: it counts
 * once a label names it, and a failed one takes its label back. Once all copies of the label name
 * it, its manifest is marked as committed: where labels are lost, this proves it.
 * docs/store-format.md goes through the crashes one by one. One thread commits at a time, without
 * the store's lock.
 *
 * If the label can't be written, it is written as it was, because tensors continue from the
 * previous manifest. If that fails too the drive may name either: the store is unsettled, writes
 * of tensors without a free extent fail, and the next commit settles it first. If the data could
 * not be made durable, no later commit is made. A copy that is damaged is passed over, logged, and
 * written anew by the next commit; without any copy of the last one opening is -EUCLEAN, since the
 * caller may have built upon it, and nvswap.rollback asks for the one before.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "store/disk.h"
#include "store/internal.h"

void store_commit_check(const struct store *store)
{
	const struct label *label = &store->members[0].label;
	uint64_t generation = store->manifest.generation;

	assert(store->keep);
	label_check(label);
	assert(label->kept && !label->index && label->count == store->nmembers);
	assert(label->unit == store->unit);
	assert(store->nmembers == 1 || label->stripe == store->stripe);
	if (generation)
		manifest_header_check(&store->manifest);
	assert(generation || !store->manifest.count);
	/* Commits only add to what was found; after a rollback the label names the lost one. */
	assert(store->found.header.generation <= generation);
	assert(label->generation >= generation);
	assert((generation == 0) == (store->slots.current == MANIFEST_TURN_COUNT));
	slots_check(&store->slots);
}

/* ---- Reading ---- */

int store_read_manifest(struct store *store, bool rollback, struct nvs_error *error)
{
	struct member *first = &store->members[0];
	int rc = slots_open(&store->slots, first, error);

	rc = rc ?: slots_read(&store->slots, first, rollback, &store->found, &store->log, error);
	if (rc)
		return rc;
	store->manifest = store->found.header;
	assert(store->manifest.generation == store->slots.last ||
	       (rollback && store->manifest.generation < store->slots.last));
	if (store->manifest.generation < store->slots.last)
		log_say(&store->log, NVS_LOG_WARNING,
			"the last commit of the kept store at %s, number %" PRIu64 ", is lost: as "
			"\"rollback\" asks, number %" PRIu64 " is used; checksums detect tensors "
			"written after it when they are read",
			first->path, store->slots.last, store->manifest.generation);
	/* Damage that cost nothing; the next commit mends it. */
	for (unsigned i = 0; i < store->nmembers * LABEL_COPY_COUNT; i++) {
		const struct member *member = &store->members[i / LABEL_COPY_COUNT];
		unsigned copy = i % LABEL_COPY_COUNT;

		if (member->copies[copy] != LABEL_DAMAGED)
			continue;
		store->damaged = true;
		log_say(&store->log, NVS_LOG_WARNING,
			"a copy of the label, %s at offset %" PRIu64
			", is damaged or can't be read: the other copy is used, and the next "
			"commit writes both anew",
			member->path, copy * LABEL_DISTANCE);
	}
	return 0;
}

int store_begin_writing(struct store *store, struct nvs_error *error)
{
	int rc = slots_complete(&store->slots, &store->members[0], false, error);

	/* A missing manifest file was just created again. */
	rc = rc ?: member_sync_names(&store->members[0], error);
	if (rc)
		return rc;
	/* The writer of the newest label may have been killed before it was durable on both places.
	 * Nothing is written before that, since an older label would lead to extents that are about
	 * to change. */
	for (unsigned i = 0; i < store->nmembers && !rc; i++) {
		struct member *member = &store->members[i];

		assert(member_has_copy(member, LABEL_WHOLE));
		rc = member_has_copy(member, LABEL_STALE)
			     ? member_write_label(member, error)
			     : disk_sync(member->fd, member->path, error);
	}
	/* Its writer may have been killed before it was marked, or was of a version that did not
	 * mark. After a rollback the next commit settles which one is the last. */
	if (!rc && store->manifest.generation && store->manifest.generation == store->slots.last)
		slots_mark(&store->slots, &store->manifest, &store->log);
	return rc;
}

const struct store_entry *store_entries(const struct store *store, size_t *n)
{
	manifest_check(&store->found);
	*n = store->found.header.count;
	return store->found.entries;
}

struct store_note store_found_note(const struct store *store)
{
	return manifest_note(&store->found);
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

/* Writes the label of the first member; on an error it is unchanged, at least in memory. */
static int relabel(struct store *store, uint64_t generation, struct nvs_error *error)
{
	struct label *label = &store->members[0].label, was = *label;

	/* A new number is that of the manifest that was just written. */
	assert(generation == label->generation ||
	       (generation == store->slots.highest && generation > label->generation));
	assert(label->kept && !label->index);
	label->generation = generation;

	int rc = member_write_label(&store->members[0], error);

	if (rc)
		*label = was;
	return rc;
}

/*
 * Writes the old label again after the new one may or may not have reached the drive. Until that
 * has succeeded either manifest may count, and no extent that either names may be written
 * (store_unsettled).
 */
static int take_back(struct store *store, struct nvs_error *error)
{
	int rc = relabel(store, store->members[0].label.generation, error);

	store->unsettled = rc != 0;
	return rc;
}

/* Before the next commit. */
static int take_back_failed_commit(struct store *store, struct nvs_error *error)
{
	struct nvs_error why = {.size = sizeof(why)};
	int rc;

	if (!store->unsettled)
		return 0;
	rc = take_back(store, &why);
	return rc ? error_set(error, rc,
			      "an earlier commit failed and can't be taken back: %.600s; commit "
			      "again when it can be written to",
			      why.text)
		  : 0;
}

bool store_unsettled(struct store *store)
{
	return store->unsettled;
}

/* A commit into files that are gone would be lost in silence. */
static int check_places(struct store *store, struct nvs_error *error)
{
	int rc = 0;

	for (unsigned i = 0; i < store->nmembers && !rc; i++)
		rc = member_check_place(&store->members[i], error);
	return rc ?: slots_check_places(&store->slots, &store->members[0], error);
}

static int replace_manifest(struct store *store, const uint8_t *bytes,
			    const struct manifest_header *header, struct nvs_error *error)
{
	uint64_t nbytes = MANIFEST_HEADER_BYTES + header->body_bytes;
	int rc;

	assert(header->generation > store->manifest.generation);
	store->slots.highest = header->generation;
	/* The kernel reports a failed write-back once and then marks the pages clean. */
	rc = nvs_file_sync(store->file, error);
	if (rc) {
		store->no_commits =
			"an earlier attempt to make its data durable failed, so it is unknown "
			"which data was written: the next run finds the last commit before that";
		return rc;
	}
	rc = slots_write(&store->slots, bytes, nbytes, error);
	/* Again, since syncing may have taken long. */
	rc = rc ?: check_places(store, error);
	/* Until a label names it, the manifest does not count. */
	if (rc)
		return rc;
	/* The other members' labels have no number; one of them may have a damaged copy. */
	for (unsigned i = store->nmembers; i-- > 1 && !rc;)
		if (member_has_copy(&store->members[i], LABEL_DAMAGED))
			rc = member_write_label(&store->members[i], error);
	rc = rc ?: relabel(store, header->generation, error);
	if (rc) {
		struct nvs_error first = *error, second = {.size = sizeof(second)};

		if (take_back(store, &second))
			error_cause_of(error, &first,
				       error_about(error, first.code, first.subject, 0,
						   first.offset,
						   "%.400s; the commit could not be taken back "
						   "either (%.400s): the next commit tries again, "
						   "and until then tensors written since the last "
						   "commit are not written again",
						   first.text, second.text));
		return rc;
	}
	slots_turn(&store->slots);
	if (store->damaged)
		log_say(&store->log, NVS_LOG_INFO,
			"damaged labels of the store at %s are whole again",
			store->members[0].path);
	store->damaged = false;
	pthread_mutex_lock(&store->lock);
	store->manifest = *header;
	pthread_mutex_unlock(&store->lock);
	assert(store->manifest.generation == store->members[0].label.generation);
	slots_mark(&store->slots, &store->manifest, &store->log);
	return 0;
}

static int write_commit(struct store *store, const struct store_entry *entries, size_t n,
			const struct store_note *note, struct nvs_error *error)
{
	const struct manifest_header *last = &store->manifest;
	const struct slot *slot = &store->slots.slot[0];
	struct manifest_header header;
	uint64_t highest, nbytes;
	char need[32], have[32];
	uint8_t *bytes;
	int rc = check_places(store, error);

	rc = rc ?: take_back_failed_commit(store, error);
	if (rc)
		return rc;
	/* The highest number in any label or manifest, including those of commits that were cut
	 * off. Commits never reach the last one; only a label that was tampered with can have it.
	 */
	highest = max_u64(store->slots.highest, store->members[0].label.generation);
	if (highest >= MANIFEST_GENERATION_MAX)
		return error_set(error, -EUCLEAN,
				 "the kept store at %s can't be committed: number %" PRIu64
				 " of a commit is the last that there can be; the store is "
				 "damaged: restore it from a copy",
				 store->members[0].path, highest);
	nbytes = manifest_bytes(entries, n, note);
	if (nbytes > slot->capacity)
		return error_set(
			error, -ENOSPC,
			"the manifest needs %s, but %s has only %s for it: keep the store in a "
			"directory, or register fewer tensors or shorter names",
			size_text(nbytes, need), slot->path, size_text(slot->capacity, have));
	bytes = manifest_encode(store->members[0].label.id, highest + 1, entries, n, note, &header);
	if (!bytes)
		return error_no_memory(error, "writing the manifest");
	header.made = (uint64_t)time(NULL);
	header.writer = NVS_VERSION_MAJOR << 16 | NVS_VERSION_MINOR << 8 | NVS_VERSION_PATCH;
	manifest_encode_header(&header, bytes);

	/* A write always moves the tensor's contents, so equal entries have equal contents. */
	bool unchanged = last->generation &&
			 last->generation == store->members[0].label.generation &&
			 !store->damaged && !store->slots.damaged && header.count == last->count &&
			 header.body_bytes == last->body_bytes &&
			 header.note_bytes == last->note_bytes &&
			 header.body_checksum == last->body_checksum;

	if (!unchanged && store->no_commits)
		rc = error_set(error, -EIO, "the store at %s can't be committed: %s",
			       store->members[0].path, store->no_commits);
	else if (!unchanged)
		rc = replace_manifest(store, bytes, &header, error);
	free(bytes);
	return rc;
}

int store_commit(struct store *store, const struct store_entry *entries, size_t n,
		 const struct store_note *note, struct nvs_error *error)
{
	struct nvs_error why = {.size = sizeof(why)};
	const uint64_t size = store_bytes(store);
	int rc;

	if (!store->keep)
		return 0;
	if (store->read_only)
		return store_read_only(store, error);
	pthread_mutex_lock(&store->committing);
	store_commit_check(store);
	for (size_t i = 0; i < n; i++) {
		uint64_t length = align_up(entries[i].nbytes, store->unit);

		entry_check(&entries[i], store->unit);
		assert(length <= size);
		assert(!length || entries[i].offset <= size - length);
		assert(!length || entries[i].spare <= size - length);
	}
	rc = write_commit(store, entries, n, note, &why);
	store_commit_check(store);
	pthread_mutex_unlock(&store->committing);
	if (rc)
		error_copy(error, &why);
	return rc;
}

int store_settle(struct store *store, struct nvs_error *error)
{
	int rc;

	pthread_mutex_lock(&store->committing);
	rc = take_back_failed_commit(store, error);
	store_commit_check(store);
	assert(rc || !store->unsettled);
	pthread_mutex_unlock(&store->committing);
	return rc;
}
