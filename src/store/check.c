/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold of a store, asserted wherever it changed. These functions read and never fail on
 * input: what comes from the drive is checked where it is decoded.
 */
#include "store/internal.h"

void store_check(const struct store *store)
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

void store_space_check(const struct store *store)
{
	uint64_t size = extents_size(store->extents), unused = extents_free_units(store->extents);

	assert(size <= INT64_MAX / store->unit);
	assert(size * store->unit == store->share * store->nmembers);
	assert(unused <= size);
	assert(extents_largest(store->extents) <= unused);
	assert((extents_count(store->extents) == 0) == (unused == 0));
	assert(extents_tail(store->extents) <= size);
	/* Without extents everything is free. */
	assert(store->live || unused == size);
}

void store_extent_check(const struct store *store, uint64_t offset, uint64_t nbytes)
{
	uint64_t size = extents_size(store->extents) * store->unit;

	assert(offset % store->unit == 0);
	assert(offset <= size);
	assert(round_to_unit(nbytes, store->unit) <= size - offset);
	assert(nbytes || !offset);
}

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

void store_entries_check(const struct store *store, uint64_t size,
			 const struct store_entry *entries, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct store_entry *entry = &entries[i];
		uint64_t length = round_to_unit(entry->nbytes, store->unit);

		entry_check(entry, store->unit);
		assert(length <= size);
		assert(!length || entry->offset <= size - length);
		assert(!length || entry->spare <= size - length);
	}
}
