/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides whether the members form a kept store or a new one. Members that are exchanged, missing
 * or another program's are refused before any of them is changed.
 */
#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

#include "store/internal.h"

/* ---- Checking ---- */

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
	    label->stripe != round_to_unit(options->stripe_size, label->unit))
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

int store_identify(const struct store *store, const struct store_options *options, bool *found,
		   struct nvs_error *error)
{
	const struct member *first = &store->members[0];

	for (unsigned i = 0; i < store->nmembers; i++)
		if (!store->members[i].blank)
			label_check(&store->members[i].label);
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

/* ---- Creating ---- */

int store_begin(struct store *store, const struct store_options *options, struct nvs_error *error)
{
	uint8_t id[STORE_ID_SIZE];
	ssize_t n;

	do
		n = getrandom(id, STORE_ID_SIZE, 0);
	while (n < 0 && errno == EINTR);

	int rc = n == STORE_ID_SIZE ? 0
				    : error_set(error, -EIO, "the kernel gives no random numbers");

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

int store_begin_keeping(struct store *store, struct nvs_error *error)
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
