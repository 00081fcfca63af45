/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of a member's directories and files: which are nvswap's, whether they still lead to
 * what is open, and making them durable; and their owners. What belongs to another user is refused
 * and named; modes change only when everything is known to be nvswap's.
 */
#include <ctype.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "store/member/internal.h"

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
	static const char *const names[1 + MANIFEST_SLOT_COUNT] = {
		"data", "manifest.0", "manifest.1", "manifest.2", "manifest.3"};

	for (unsigned i = 0; i < COUNT_OF(names); i++)
		if (!strcmp(name, names[i]))
			return true;
	return false;
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
