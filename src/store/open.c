/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens and closes a store. All members are opened, locked and checked to be free or one store
 * before any of them is changed.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "aio/aio.h"
#include "store/internal.h"

static int open_members(struct store *store, const struct store_options *options,
			struct nvs_error *error)
{
	char name[64];
	int rc = 0;

	snprintf(name, sizeof(name), "rank%" PRIu32 "%s", options->rank,
		 options->optimizer ? "-optimizer" : "");
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
	if (!rc)
		rc = members_open_file(store->members, store->nmembers, store->stripe, aio,
				       &store->file, error);
	rc = rc ?: store_open_space(store, error);
	if (rc || store->read_only)
		return rc;
	rc = make_private(store, error);
	return rc ?: store_begin_writing(store, error);
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
	store->stripe = round_to_unit(options->stripe_size ? options->stripe_size
							   : aio_settings(aio)->block_size,
				      store->unit);
	rc = rc ?: store_begin(store, options, error);
	if (!rc)
		rc = members_open_file(store->members, store->nmembers, store->stripe, aio,
				       &store->file, error);
	rc = rc ?: store_open_space(store, error);
	return rc || !store->keep ? rc : store_begin_keeping(store, error);
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
	rc = rc ?: store_identify(store, options, &found, error);
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
	sources_free(store->sources);
	manifest_free(&store->found);
	pthread_mutex_destroy(&store->lock);
	pthread_mutex_destroy(&store->reserving);
	pthread_mutex_destroy(&store->committing);
	free(store);
}
