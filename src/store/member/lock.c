/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lock that keeps two engines from using one store. It is on the member's file or device, so
 * the kernel releases it when the process ends.
 */
#include <assert.h>
#include <sys/file.h>
#include <time.h>

#include "base/clock.h"
#include "store/member/member.h"

/*
 * The kernel closes a killed process's files only after it has torn down its rings, asynchronously.
 * Until then writes of the dead process may still arrive, so wait for the lock: a run that starts
 * right after a kill must open its store.
 */
#define PATIENCE_NS UINT64_C(1000000000)

bool member_owner_may_end(uint64_t since)
{
	uint64_t now = clock_ns();

	assert(since && since <= now);
	if (now - since >= PATIENCE_NS)
		return false;
	nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
	return true;
}

int member_lock(struct member *member, struct nvs_error *error)
{
	uint64_t since = clock_ns();
	int rc;

	do
		rc = flock(member->fd, (member->read_only ? LOCK_SH : LOCK_EX) | LOCK_NB);
	while (rc && errno == EWOULDBLOCK && !member->beside && member_owner_may_end(since));
	if (!rc)
		return 0;
	member->in_use = member->beside && errno == EWOULDBLOCK;
	if (member->in_use)
		return 0;
	if (errno != EWOULDBLOCK)
		return error_set(error, -errno, "cannot lock %s: %s", member->path,
				 nvs_strerror(-errno));
	/* A reader wants this store, and no other one. */
	return error_set(error, -EBUSY,
			 "another engine, of this process or another, has locked the store at %s: "
			 "wait until it is closed%s",
			 member->path,
			 member->read_only	      ? ""
			 : member->kind == MEMBER_RAW ? ", or give this one another device"
						      : ", or give this one another "
							"\"nvswap\": {\"rank\": N}");
}

void member_unlock(const struct member *member)
{
	if (member->fd >= 0)
		(void)flock(member_named_fd(member), LOCK_UN);
}
