/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold of a member's fields, the errors of opening one, and its lock, which is on its file
 * or device, so the kernel releases it when the process ends.
 */
#include "store/member/member.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/member/internal.h"

void member_close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

int member_named_twice(const struct member *members, unsigned index, struct nvs_error *error)
{
	const struct member *member = &members[index];

	for (unsigned i = 0; i < index; i++)
		if (members[i].kind == member->kind && members[i].dev == member->dev &&
		    members[i].ino == member->ino)
			return error_set(
				error, -EINVAL,
				"%s and %s are the same: nvme_path must name every drive once",
				members[i].path, member->path);
	return 0;
}

bool member_has_copy(const struct member *member, enum label_copy state)
{
	for (unsigned i = 0; i < LABEL_COPY_COUNT; i++)
		if (member->copies[i] == state)
			return true;
	return false;
}

/* ---- Checking ---- */

void member_open_check(const struct member *member)
{
	assert(member->path && member->fd >= 0);
	assert(!member->read_only || (!member->disposable && !member->made));
	assert(member->read_only || (!member->beside && !member->in_use));
	assert(member->lock_fd < 0 || (member->kind == MEMBER_FILE && !member->read_only));
	switch (member->kind) {
	case MEMBER_FILE:
		assert(member->base == LABEL_AREA_BYTES && member->capacity == UINT64_MAX);
		assert(member->directory && strrchr(member->directory, '/'));
		assert(member->parent && member->parent[0] == '/');
		break;
	case MEMBER_RAW:
		assert(member->base == LABEL_AREA_BYTES ||
		       member->base == LABEL_AREA_BYTES + MANIFEST_SLOT_COUNT * RAW_MANIFEST_BYTES);
		assert(member->capacity >= UNIT_MAX && member->capacity <= INT64_MAX);
		assert(!member->directory && member->directory_fd < 0);
		assert(!member->has_manifests && !member->made);
		break;
	case MEMBER_MEMORY:
		assert(!member->base && member->capacity == UINT64_MAX);
		assert(!member->directory && member->direct_fd < 0);
		assert(!member->read_only && !member->has_manifests);
		break;
	default:
		assert(false);
	}
}

void member_check(const struct member *member)
{
	member_open_check(member);
	assert(member->dio.direct == (member->direct_fd >= 0));
	assert(member->unit >= UNIT_MIN && member->unit <= UNIT_MAX);
	assert(member->unit_needed && member->unit % member->unit_needed == 0);
	assert(!member->dio.direct || member->unit_needed % member->dio.offset_align == 0);
	if (!member->blank)
		label_check(&member->label);
}

/* ---- Errors ---- */

int member_refuse(struct nvs_error *error, const char *path, const char *why)
{
	return error_set(error, -EMEDIUMTYPE,
			 "%s %s: nvswap does not touch it; move it away, or choose another path or "
			 "rank",
			 path, why);
}

int member_cannot(struct nvs_error *error, const char *what, const char *path, int code)
{
	return error_set(error, code, "cannot %s %s: %s", what, path, nvs_strerror(code));
}

int member_compose(char **text, struct nvs_error *error, const char *format, ...)
{
	va_list args;
	int n;

	free(*text);
	va_start(args, format);
	n = vasprintf(text, format, args);
	va_end(args);
	if (n >= 0)
		return 0;
	*text = NULL;
	return error_no_memory(error, "opening a store");
}

/* ---- The lock that keeps two engines from using one store ---- */

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
