/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a store writes to its drives, and the write budget: what all runs may write below a path
 * together.
 *
 * A run adds a thousandth of the budget to the path's count (member/count.c) before it writes as
 * much, and takes back at its end what it did not write. So the count of a run that is killed is
 * too high by a thousandth at most. More is added when half of the last addition is left, on the
 * engine's thread of events: what is written while the file is being replaced comes out of the
 * other half. A run that writes more than that half meanwhile, and is killed before the file is
 * replaced, has a count that is too low.
 *
 * A count that can't be replaced never stops a run: it is logged once, and tried again with the
 * next addition.
 */
#include "aio/aio.h"
#include "store/internal.h"

#define AHEAD_PART 1000
#define AHEAD_MIN  (UINT64_C(1) << 20)

static uint64_t member_written(const struct store *store, unsigned i)
{
	const struct member *member = &store->members[i];
	uint64_t written = __atomic_load_n(&member->written, __ATOMIC_RELAXED);

	if (member->kind == MEMBER_MEMORY)
		return 0;
	if (!i)
		written += __atomic_load_n(&store->slots.written, __ATOMIC_RELAXED);
	return written + (store->file ? file_written(store->file, i) : 0);
}

uint64_t store_written(const struct store *store)
{
	uint64_t written = 0;

	for (unsigned i = 0; i < store->nmembers; i++)
		written += member_written(store, i);
	return written;
}

/* ---- The budget ---- */

static uint64_t ahead_bytes(const struct store *store)
{
	return max_u64(store->budget / AHEAD_PART, AHEAD_MIN);
}

static void warn_of_count(struct store *store, unsigned i, uint64_t count)
{
	const char *parent = store->members[i].parent;
	char had[32], may[32];

	if (store->budget_warned || count < store->budget - store->budget / 10)
		return;
	store->budget_warned = true;
	log_say(&store->log, NVS_LOG_WARNING,
		"%s of the %s that nvswap.write_budget allows were written below %s: beyond it no "
		"run starts there until the budget is raised, or %s/nvswap/" MEMBER_COUNT_NAME
		" is removed",
		size_text(count, had), size_text(store->budget, may), parent, parent);
}

int budget_open(struct store *store, uint64_t limit, struct nvs_error *error)
{
	uint64_t count;
	int rc = 0;

	assert(!store->budget && !store->read_only);
	if (!limit || store->members[0].kind == MEMBER_MEMORY)
		return 0;
	for (unsigned i = 0; i < store->nmembers; i++)
		if (store->members[i].kind == MEMBER_RAW)
			return error_about(
				error, -EOPNOTSUPP, "nvswap.write_budget", 0, 0,
				"%s is a block device, and what nvswap.write_budget counts is in a "
				"file beside the store: leave the key out, or give a directory on "
				"a file system of the device",
				store->members[i].path);
	store->budget = limit;
	for (unsigned i = 0; i < store->nmembers && !rc; i++) {
		struct member *member = &store->members[i];
		uint64_t ahead = ahead_bytes(store);

		rc = member_change_count(member, (int64_t)ahead, limit, &count, error);
		if (rc)
			break;
		member->counted = ahead;
		member->count_next = ahead / 2;
		warn_of_count(store, i, count - ahead);
	}
	return rc;
}

/* Has the path's file count `nbytes` for this run, of which it has written all but `ahead`. */
static void count_run(struct store *store, unsigned i, uint64_t nbytes, uint64_t ahead)
{
	struct member *member = &store->members[i];
	struct nvs_error error = {.size = sizeof(error)};
	uint64_t count;

	if (!member_change_count(member, (int64_t)(nbytes - member->counted), UINT64_MAX, &count,
				 &error)) {
		member->counted = nbytes;
		warn_of_count(store, i, count - min_u64(ahead, count));
	} else if (!store->budget_failed) {
		store->budget_failed = true;
		log_say(&store->log, NVS_LOG_WARNING,
			"what this run writes can't be counted for nvswap.write_budget: %s",
			error.text);
	}
}

bool store_budget_due(const struct store *store)
{
	for (unsigned i = 0; i < store->nmembers && store->budget; i++)
		if (member_written(store, i) >=
		    __atomic_load_n(&store->members[i].count_next, __ATOMIC_RELAXED))
			return true;
	return false;
}

void store_budget_count(struct store *store)
{
	for (unsigned i = 0; i < store->nmembers; i++) {
		uint64_t written = member_written(store, i), ahead = ahead_bytes(store);

		if (written < store->members[i].count_next)
			continue;
		count_run(store, i, written + ahead, ahead);
		__atomic_store_n(&store->members[i].count_next, written + ahead / 2,
				 __ATOMIC_RELAXED);
	}
}

void budget_close(struct store *store)
{
	for (unsigned i = 0; i < store->nmembers; i++)
		if (store->members[i].counted)
			count_run(store, i, member_written(store, i), 0);
}
