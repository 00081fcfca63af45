/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens and closes a store. All members are opened and locked, and must be free or one kept store:
 * members that are exchanged, missing or another program's are refused before any of them is
 * changed.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "aio/aio.h"
#include "store/internal.h"

static int open_members(struct store *store, const struct store_options *options,
			struct nvs_error *error)
{
	char name[64];
	int rc = 0;

	member_name(options->rank, options->optimizer, name);
	if (!options->npaths) {
		if (options->read_only)
			return error_about(error, -ENODATA, "read_only", 0, 0,
					   "nvswap.read_only is true, but a store in host memory "
					   "(device cpu) is never kept: there is nothing to read");
		if (options->keep)
			log_say(&store->log, NVS_LOG_WARNING,
				"\"keep\" is ignored: a store in host memory can't be kept");
		store->nmembers = 1;
		return member_open_memory(&store->members[0], error);
	}
	for (unsigned i = 0; i < options->npaths && !rc; i++) {
		store->nmembers = i + 1;
		rc = member_open(store->members, i, options->paths[i], name,
				 store->read_only ? MEMBER_READS : MEMBER_WRITES, error);
	}
	return rc;
}

/* ---- Kept or new ---- */

static bool is_kept(const struct member *member)
{
	return !member->blank && member->label.kept;
}

static bool same_store(const struct member *a, const struct member *b)
{
	return !a->blank && !b->blank && !memcmp(a->label.id, b->label.id, STORE_ID_SIZE);
}

static const char *block_name(bool optimizer)
{
	return optimizer ? "offload_optimizer" : "offload_param";
}

static int check_layout(const struct store *store, const struct store_options *options,
			struct nvs_error *error)
{
	const struct label *label = &store->members[0].label;
	const char *path = store->members[0].path;

	if (label->count != store->nmembers)
		return error_set(error, -EMEDIUMTYPE,
				 "the kept store at %s lies on %" PRIu32
				 " paths, but nvme_path has %u: give all of them, in their order",
				 path, label->count, store->nmembers);
	if (label->rank != options->rank)
		return error_set(error, -EMEDIUMTYPE,
				 "%s holds the kept store of rank %" PRIu32 ", but this is rank "
				 "%" PRIu32 ": give each rank a path of its own",
				 path, label->rank, options->rank);
	if (label->optimizer != options->optimizer)
		return error_set(error, -EMEDIUMTYPE,
				 "%s holds the kept store of %s, but this one is of %s: give each "
				 "of the two its own device",
				 path, block_name(label->optimizer),
				 block_name(options->optimizer));
	if (store->nmembers > 1 && options->stripe_size &&
	    label->stripe != align_up(options->stripe_size, label->unit))
		return error_set(error, -EMEDIUMTYPE,
				 "the kept store at %s has stripes of %" PRIu64
				 " bytes, not of %" PRIu64
				 ": leave \"stripe_size\" of \"nvswap\" out, or set it to %" PRIu64,
				 path, label->stripe, options->stripe_size, label->stripe);
	for (unsigned i = 1; i < store->nmembers; i++) {
		const struct label *other = &store->members[i].label;

		if (other->count != label->count || other->stripe != label->stripe ||
		    other->unit != label->unit || other->rank != label->rank ||
		    other->optimizer != label->optimizer)
			return error_set(error, -EUCLEAN,
					 "the labels of %s and %s contradict each other: the store "
					 "is damaged",
					 path, store->members[i].path);
	}
	return 0;
}

/*
 * Whether the open members hold the kept store to reopen (*found) or are free for a new one.
 * Anything else is refused; the error says what to do.
 */
static int identify(const struct store *store, const struct store_options *options, bool *found,
		    struct nvs_error *error)
{
	const struct member *first = &store->members[0];

	*found = is_kept(first);
	for (unsigned i = 0; i < store->nmembers && !store->keep; i++) {
		const struct member *member = &store->members[i];

		if (is_kept(member) && (i == 0 || is_kept(first) || !same_store(first, member)))
			return error_set(error, -EEXIST,
					 "%s holds a kept store: set \"nvswap\": {\"keep\": true} "
					 "to reopen it, "
					 "or remove %s if it is not needed",
					 member->path,
					 member->kind == MEMBER_RAW ? "it (nvswap store remove)"
								    : member->directory);
	}
	if (!*found) {
		/* Members of a new store may hold remains of crashed runs, but no kept store. */
		for (unsigned i = 0; i < store->nmembers; i++) {
			const struct member *member = &store->members[i];

			/* Labels are marked as kept from the last member to the first: the first is
			 * not, so this store was never finished, and nothing was committed to
			 * it. */
			if (is_kept(member) && !same_store(first, member))
				return error_set(
					error, -EMEDIUMTYPE,
					"%s is member %" PRIu32
					" of a kept store, and %s, which stands first in "
					"nvme_path, is not part of it: give the paths of that "
					"store, in their order, or remove it if it is not needed",
					member->path, member->label.index, first->path);
		}
		return 0;
	}
	/* Check the number of paths first: it explains a missing member better. */
	if (first->label.index == 0 && first->label.count != store->nmembers)
		return check_layout(store, options, error);
	for (unsigned i = 0; i < store->nmembers; i++) {
		const struct member *member = &store->members[i];

		if (!is_kept(member))
			return error_set(error, -EMEDIUMTYPE,
					 "%s holds nothing of the kept store that %s belongs to: "
					 "give all paths of that store, in their order",
					 member->path, first->path);
		if (!same_store(first, member))
			return error_set(error, -EMEDIUMTYPE,
					 "%s and %s belong to different kept stores: give the "
					 "paths of one store, in their order",
					 first->path, member->path);
		if (member->label.index != i)
			return error_set(error, -EMEDIUMTYPE,
					 "%s is member %" PRIu32
					 " of its store (counted from 0), but is at place %u of "
					 "nvme_path: give the paths in their original order",
					 member->path, member->label.index, i);
	}
	return check_layout(store, options, error);
}

/* ---- Reopening and creating ---- */

static int make_private(struct store *store, struct nvs_error *error)
{
	int rc = 0;

	for (unsigned i = 0; i < store->nmembers && !rc; i++)
		rc = member_make_private(&store->members[i], &store->log, error);
	return rc;
}

/*
 * A damaged store is refused before anything of it is changed. A kept store's unit never changes:
 * its extents depend on it.
 */
static int reopen_store(struct store *store, struct nvs_aio *aio,
			const struct store_options *options, struct nvs_error *error)
{
	const struct label *label = &store->members[0].label;
	int rc;

	label_check(label);
	store->unit = label->unit;
	store->stripe = label->stripe;
	rc = store_read_manifest(store, options->rollback, error);
	rc = rc ?: store_open_space(store, aio, error);
	if (rc || store->read_only)
		return rc;
	rc = make_private(store, error);
	return rc ?: store_begin_writing(store, error);
}

/* Writes labels that make the members one store, not kept yet. */
static int begin(struct store *store, const struct store_options *options, struct nvs_error *error)
{
	uint8_t id[STORE_ID_SIZE];
	int rc = 0;

	if (getrandom(id, STORE_ID_SIZE, 0) != STORE_ID_SIZE)
		rc = error_set(error, -EIO, "the kernel gives no random numbers");
	/* What was kept is never begun anew. */
	assert(!store->read_only && !is_kept(&store->members[0]));
	for (unsigned i = 0; i < store->nmembers; i++)
		if (!store->members[i].disposable && !store->members[i].blank)
			log_say(&store->log, NVS_LOG_INFO,
				"%s was left by a crashed run and is reused",
				store->members[i].path);
	for (unsigned i = 0; i < store->nmembers && !rc; i++) {
		struct member *member = &store->members[i];

		member->label = (struct label){.index = i,
					       .count = store->nmembers,
					       .rank = options->rank,
					       .optimizer = options->optimizer,
					       .unit = store->unit,
					       .stripe = store->stripe};
		memcpy(member->label.id, id, sizeof(id));
		member->disposable = true;
		rc = member_begin(member, error);
		if (!rc && member->kind != MEMBER_MEMORY && member->lock_fd < 0)
			rc = member_write_label(member, error);
	}
	return rc;
}

/* The last step of creating a kept store: from here on it can be reopened. */
static int begin_keeping(struct store *store, struct nvs_error *error)
{
	int rc = slots_open(&store->slots, &store->members[0], error);

	rc = rc ?: slots_complete(&store->slots, &store->members[0], true, error);
	/* All is in place but the labels that lead to it. */
	for (unsigned i = 0; i < store->nmembers && !rc; i++)
		rc = member_sync_names(&store->members[i], error);
	/* The first member comes last: its label decides whether the store is kept. */
	for (unsigned i = store->nmembers; i-- > 0 && !rc;) {
		assert(!store->members[i].label.kept && !store->members[i].label.generation);
		assert(store->members[i].disposable);
		store->members[i].label.kept = true;
		rc = member_write_label(&store->members[i], error);
	}
	for (unsigned i = 0; i < store->nmembers && !rc; i++)
		store->members[i].disposable = false;
	return rc;
}

static int create_store(struct store *store, struct nvs_aio *aio,
			const struct store_options *options, struct nvs_error *error)
{
	int rc;

	if (store->read_only)
		return error_set(
			error, -ENODATA,
			"%s holds no kept store to read: give the path and rank of one, or "
			"leave out \"read_only\" to make one",
			store->members[0].path);
	rc = make_private(store, error);
	store->stripe = align_up(options->stripe_size ? options->stripe_size
						      : aio_settings(aio)->block_size,
				 store->unit);
	rc = rc ?: begin(store, options, error);
	rc = rc ?: store_open_space(store, aio, error);
	return rc || !store->keep ? rc : begin_keeping(store, error);
}

/* Asserts what is constant once the store is open. */
static void store_check(const struct store *store)
{
	assert(store->nmembers >= 1 && store->nmembers <= NVS_PATHS_MAX);
	assert(store->unit >= UNIT_MIN && store->unit <= UNIT_MAX);
	assert(!(store->unit & (store->unit - 1)));
	assert(store->stripe % store->unit == 0);
	assert(store->nmembers == 1 || (store->stripe && store->stripe <= STRIPE_MAX));
	assert(!store->read_only || store->keep);
	assert(store->file);
	for (unsigned i = 0; i < store->nmembers; i++) {
		const struct member *member = &store->members[i];

		member_check(member);
		assert(store->unit % member->unit_needed == 0);
		assert(member->read_only == store->read_only);
		assert(!store->direct || member->direct_fd >= 0);
		/* The nvs_file closes the descriptors. */
		assert(member->lent);
		assert(member->label.index == i && member->label.count == store->nmembers);
		assert(member->kind != MEMBER_MEMORY || (store->nmembers == 1 && !store->keep));
	}
}

struct store *store_new(void)
{
	struct store *store = calloc(1, sizeof(*store));

	if (!store)
		return NULL;
	pthread_mutex_init(&store->lock, NULL);
	pthread_mutex_init(&store->reserving, NULL);
	pthread_mutex_init(&store->committing, NULL);
	return store;
}

int store_open(struct store **out, struct nvs_aio *aio, const struct store_options *options,
	       struct nvs_error *error)
{
	struct store *store = store_new();
	bool found = false;
	int rc;

	if (!store)
		return error_no_memory(error, "opening a store");
	if (options->log)
		store->log = *options->log;
	store->read_only = options->read_only && options->npaths;
	store->keep = (options->keep || options->read_only) && options->npaths;
	store->direct = true;
	store->unit = UNIT_MIN;
	rc = open_members(store, options, error);
	rc = rc ?: identify(store, options, &found, error);
	if (!rc && !store->read_only)
		rc = budget_open(store, options->write_budget, error);
	for (unsigned i = 0; i < store->nmembers && !rc; i++) {
		struct member *member = &store->members[i];

		if (!store->keep)
			rc = member_make_nameless(member, error);
		if (!rc)
			rc = member_probe(member, found ? store->members[0].label.unit : 0,
					  &store->log, error);
		store->unit = (uint32_t)max_u64(store->unit, member->unit);
		store->direct &= member->direct_fd >= 0;
	}
	if (!rc)
		rc = found ? reopen_store(store, aio, options, error)
			   : create_store(store, aio, options, error);
	if (rc) {
		store_close(store);
		return rc;
	}
	for (unsigned i = 0; i < store->nmembers && !store->read_only; i++)
		member_report_space(&store->members[i], &store->log);
	store_check(store);
	store_space_check(store);
	if (store->keep)
		store_commit_check(store);
	*out = store;
	return 0;
}

void store_close(struct store *store)
{
	if (!store)
		return;
	assert(!store->extents || store->file);
	if (store->extents)
		store_check(store);
	budget_close(store);
	/* While the locks are held, so that the next owner finds nothing half removed. */
	for (unsigned i = 0; i < store->nmembers; i++)
		member_dispose(&store->members[i], &store->log);
	slots_close(&store->slots);
	/* A forked child may still have the descriptors. */
	for (unsigned i = 0; i < store->nmembers; i++)
		member_unlock(&store->members[i]);
	nvs_file_close(store->file);
	for (unsigned i = 0; i < store->nmembers; i++)
		member_close(&store->members[i]);
	extents_close(store->extents);
	for (size_t i = 0; i < store->nsources; i++) {
		free(store->sources[i].path);
		free(store->sources[i].full);
	}
	free(store->sources);
	manifest_free(&store->found);
	pthread_mutex_destroy(&store->lock);
	pthread_mutex_destroy(&store->reserving);
	pthread_mutex_destroy(&store->committing);
	free(store);
}
