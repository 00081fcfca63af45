/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all else of a member relies on: what must hold of its fields; the errors of opening one; its
 * lock, which is on its file or device, so the kernel releases it when the process ends; and its
 * names: which are nvswap's, whether they still lead to what is open, and their owners. What
 * belongs to another user is refused and named; modes change only when everything is known to be
 * nvswap's.
 */
#include "store/member/member.h"

#include <ctype.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
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

int member_refuse_device(struct nvs_error *error, const char *path, const char *why)
{
	return error_set(
		error, -EMEDIUMTYPE,
		"%s holds something that is not nvswap's%s: if nothing on it is needed, wipe it "
		"first: wipefs -a %s && dd if=/dev/zero of=%s bs=1M count=2",
		path, why, path, path);
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

/* ---- Names ---- */

bool member_is_store_name(const char *name)
{
	if (strncmp(name, "rank", 4) != 0 || !isdigit((unsigned char)name[4]))
		return false;
	name += 4 + strspn(name + 4, "0123456789");
	return !*name || !strcmp(name, "-optimizer");
}

bool member_is_entry_name(const char *name)
{
	return member_is_store_name(name) || !strcmp(name, MEMBER_COUNT_NAME);
}

bool member_is_file_name(const char *name)
{
	static_assert(MANIFEST_SLOT_COUNT == 4, "names have one digit, from 0 to 3");
	return !strcmp(name, "data") ||
	       (!strncmp(name, "manifest.", 9) && name[9] >= '0' && name[9] <= '3' && !name[10]);
}

DIR *member_list(int from_fd, const char *name)
{
	int fd = openat(from_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
	int code = errno;

	if (fd >= 0 && !directory)
		close(fd);
	errno = code;
	return directory;
}

static bool counts_not(const char *name)
{
	return !strcmp(name, ".") || !strcmp(name, "..") || is_name_of_removed(name);
}

/* A checkout of nvswap has the directory's name, too, but none of its entries. */
int member_check_entries(int fd, const char *path, member_name_fn *ours, struct nvs_error *error)
{
	DIR *directory = member_list(fd, ".");
	char other[NAME_MAX + 1] = "", why[NAME_MAX + 64];
	struct dirent *entry;
	bool any = false;
	int rc;

	if (!directory)
		return errno == ENOENT ? MEMBER_GONE : member_cannot(error, "list", path, -errno);
	/* Looks for an entry of nvswap's, and keeps the first of another name. */
	errno = 0;
	while (!any && (entry = readdir(directory))) {
		if (counts_not(entry->d_name))
			continue;
		any = ours(entry->d_name);
		if (!any && !other[0])
			snprintf(other, NAME_MAX + 1, "%s", entry->d_name);
		errno = 0;
	}
	rc = errno == ENOENT ? 0 : -errno;
	closedir(directory);
	if (rc)
		return member_cannot(error, "list", path, rc);
	if (any || !other[0])
		return 0;
	snprintf(why, sizeof(why), "has an entry \"%s\" and none of nvswap's", other);
	return member_refuse(error, path, why);
}

bool member_counts_as_empty(int from_fd, const char *name)
{
	DIR *directory = member_list(from_fd, name);
	const struct dirent *entry;
	bool empty = directory;

	while (empty && (entry = readdir(directory)))
		empty = counts_not(entry->d_name);
	if (directory)
		closedir(directory);
	return empty;
}

int member_sync_names(const struct member *member, struct nvs_error *error)
{
	const int fds[] = {member->directory_fd, member->nvswap_fd, member->parent_fd};

	member_open_check(member);
	for (unsigned i = 0; i < COUNT_OF(fds); i++)
		if (member->kind == MEMBER_FILE && fsync(fds[i]))
			return member_cannot(error, "make durable the name", member->path, -errno);
	return 0;
}

/* ---- Whether they are still there ---- */

int member_leads_to(int from_fd, const char *name, int fd)
{
	struct stat there, opened;

	if (fstat(fd, &opened))
		return -errno;
	if (fstatat(from_fd, name, &there, AT_SYMLINK_NOFOLLOW))
		return errno == ENOTDIR ? -ENOENT : -errno;
	return there.st_dev == opened.st_dev && there.st_ino == opened.st_ino ? 0 : -ENOENT;
}

static int stale(const char *path, const char *below, struct nvs_error *error)
{
	return error_set(error, -ESTALE,
			 "%s%s was removed or moved while the kept store was open: what is "
			 "committed could not be found there; put it back, or close the engine "
			 "without a commit (nvs_engine_abandon)",
			 path, below);
}

int member_check_name(const struct member *member, const char *name, int fd,
		      struct nvs_error *error)
{
	char below[32];
	int rc = member_leads_to(member->directory_fd, name, fd);

	if (rc == -ENOENT) {
		snprintf(below, sizeof(below), "/%s", name);
		return stale(member->directory, below, error);
	}
	return rc ? member_cannot(error, "look at", member->directory, rc) : 0;
}

int member_check_place(const struct member *member, struct nvs_error *error)
{
	struct stat there, opened;
	int rc;

	member_open_check(member);
	if (member->kind != MEMBER_FILE)
		return 0;
	if (fstat(member->parent_fd, &opened))
		return member_cannot(error, "look at", member->parent, -errno);
	/* Symbolic links in the user's path are followed, as at opening. */
	rc = stat(member->parent, &there) ? -errno : 0;
	if (rc && rc != -ENOENT && rc != -ENOTDIR && rc != -ELOOP)
		return member_cannot(error, "look at", member->parent, rc);
	if (rc || there.st_dev != opened.st_dev || there.st_ino != opened.st_ino)
		return stale(member->parent, "", error);
	rc = member_leads_to(member->parent_fd, "nvswap", member->nvswap_fd);
	if (!rc)
		rc = member_leads_to(member->nvswap_fd, strrchr(member->directory, '/') + 1,
				     member->directory_fd);
	if (rc == -ENOENT)
		return stale(member->directory, "", error);
	if (rc)
		return member_cannot(error, "look at", member->directory, rc);
	return member_check_name(member, "data", member->fd, error);
}

/* ---- Owners and modes ---- */

int member_other_user(const char *path, uid_t uid, struct nvs_error *error)
{
	struct passwd entry, *found = NULL;
	char text[1024];

	if (getpwuid_r(uid, &entry, text, sizeof(text), &found))
		found = NULL;
	return error_set(
		error, -EMEDIUMTYPE,
		"%s belongs to another user, %s (uid %" PRIu32 "): nvswap does not touch "
		"it. Give an nvme_path of your own. It may hold a kept store, which `nvswap "
		"store list` shows that user; if it is not needed, have that user or root "
		"remove it: rm -r '%s'",
		path, found ? found->pw_name : "without a name", (uint32_t)uid, path);
}

int member_check_owner(int fd, const char *path, struct nvs_error *error)
{
	struct stat st;

	if (fstat(fd, &st))
		return member_cannot(error, "look at", path, -errno);
	return st.st_uid == geteuid() ? 0 : member_other_user(path, st.st_uid, error);
}

int member_not_permitted(int from_fd, const char *name, const char *path, struct nvs_error *error)
{
	struct stat st;

	if (!fstatat(from_fd, name, &st, AT_SYMLINK_NOFOLLOW) && st.st_uid != geteuid())
		return member_other_user(path, st.st_uid, error);
	return member_cannot(error, "open", path, -EACCES);
}

int member_make_fd_private(int fd, const char *path, mode_t mode, const struct nvs_log *log,
			   struct nvs_error *error)
{
	struct stat st;

	if (fstat(fd, &st))
		return member_cannot(error, "look at", path, -errno);
	assert(st.st_uid == geteuid());
	if ((st.st_mode & 07777) == mode)
		return 0;
	if (fchmod(fd, mode))
		return member_cannot(error, "make private", path, -errno);
	if (st.st_mode & 077)
		log_say(log, NVS_LOG_WARNING,
			"%s was accessible to other users (mode %04o): its mode is now %04o", path,
			st.st_mode & 07777, mode);
	return 0;
}

int member_make_private(const struct member *member, const struct nvs_log *log,
			struct nvs_error *error)
{
	char *nvswap;
	int rc;

	if (member->kind != MEMBER_FILE || member->read_only)
		return 0;
	/* Only what was found to be nvswap's is changed. */
	nvswap = strndup(member->directory,
			 (size_t)(strrchr(member->directory, '/') - member->directory));
	if (!nvswap)
		return error_no_memory(error, "opening a store");
	rc = member_make_fd_private(member->nvswap_fd, nvswap, 0700, log, error);
	if (!rc)
		rc = member_make_fd_private(member->directory_fd, member->directory, 0700, log,
					    error);
	if (!rc)
		rc = member_make_fd_private(member_named_fd(member), member->path, 0600, log,
					    error);
	free(nvswap);
	return rc;
}
