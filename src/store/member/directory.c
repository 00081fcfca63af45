/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A member in a directory: <path>/nvswap/<name>/data. Below the user's path no symbolic link is
 * followed, and only files that belong to this user are touched.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "store/member/internal.h"

/* A closing owner unlinks the names; start over each time that happens meanwhile. */
#define TRIES 1000
#define GONE  (-ESTALE)

/* ---- Opening ---- */

static int open_parent(struct member *member, const char *path, struct nvs_error *error)
{
	member->parent_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (member->parent_fd >= 0)
		return 0;
	/* Never created: a path of a drive that is not mounted would lie on the root drive. */
	if (errno == ENOENT)
		return error_set(error, -ENOENT,
				 "nvme_path %s does not exist: is the drive mounted? If it is, "
				 "create the directory: mkdir -p '%s'",
				 path, path);
	if (errno == ENOTDIR)
		return error_set(
			error, -ENOTDIR,
			"%s is neither a directory nor a block device: nvme_path names one "
			"of these",
			path);
	return member_cannot(error, "open", path, -errno);
}

/* Removes other users' permissions and logs it. */
static int keep_private(int fd, const char *path, mode_t mode, const struct nvs_log *log,
			struct nvs_error *error)
{
	struct stat st;

	if (fstat(fd, &st))
		return member_cannot(error, "look at", path, -errno);
	if (st.st_uid != geteuid())
		return member_refuse(error, path, "belongs to another user");
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

/*
 * Opens or creates the directory `name` in a directory; `path` is the whole path, for messages.
 * *made: it was created. GONE: start over.
 */
static int step_down(int from_fd, const char *name, const char *path, int *fd, bool *made,
		     const struct nvs_log *log, struct nvs_error *error)
{
	if (!mkdirat(from_fd, name, 0700))
		*made = true;
	else if (errno != EEXIST)
		return errno == ENOENT ? GONE
				       : member_cannot(error, "make the directory", path, -errno);
	*fd = openat(from_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (*fd >= 0)
		return keep_private(*fd, path, 0700, log, error);
	if (errno == ENOENT)
		return GONE;
	if (errno == ENOTDIR || errno == ELOOP)
		return member_refuse(error, path, "is a symbolic link or no directory");
	return member_cannot(error, "open", path, -errno);
}

static int check_plain(int fd, const char *path, struct nvs_error *error)
{
	struct stat st;

	if (fstat(fd, &st))
		return member_cannot(error, "look at", path, -errno);
	if (!S_ISREG(st.st_mode))
		return member_refuse(error, path, "is not a plain file");
	if (st.st_nlink > 1)
		return member_refuse(error, path, "has another name as well (a hard link)");
	return 0;
}

static int open_plain(int directory_fd, const char *name, const char *path, int *fd,
		      struct nvs_error *error)
{
	const int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;

	*fd = openat(directory_fd, name, flags, 0600);
	if (*fd >= 0)
		return check_plain(*fd, path, error);
	if (errno == ENOENT)
		return GONE;
	if (errno == ELOOP)
		return member_refuse(error, path, "is a symbolic link");
	if (errno == EISDIR || errno == ENXIO || errno == ENODEV)
		return member_refuse(error, path, "is not a plain file");
	return member_cannot(error, "open", path, -errno);
}

int member_open_file(const struct member *member, const char *name, int *fd,
		     struct nvs_error *error)
{
	char *path = NULL;
	int rc;

	if (asprintf(&path, "%s/%s", member->directory, name) < 0)
		return error_set(error, -ENOMEM, "out of memory while opening a manifest");
	rc = open_plain(member->directory_fd, name, path, fd, error);
	if (rc == GONE)
		rc = member_cannot(error, "open", path, -ENOENT);
	if (!rc)
		rc = keep_private(*fd, path, 0600, NULL, error);
	free(path);
	return rc;
}

int member_sync_names(const struct member *member, struct nvs_error *error)
{
	const int fds[] = {member->directory_fd, member->nvswap_fd, member->parent_fd};

	for (unsigned i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		if (member->kind == MEMBER_FILE && fsync(fds[i]))
			return member_cannot(error, "make durable the name", member->path, -errno);
	return 0;
}

/* The previous owner may have unlinked the file after we opened it and before we locked it. */
static int check_name_still_there(struct member *member, struct nvs_error *error)
{
	struct stat here;

	if (fstatat(member->directory_fd, "data", &here, AT_SYMLINK_NOFOLLOW))
		return errno == ENOENT ? GONE
				       : member_cannot(error, "look at", member->path, -errno);
	return here.st_dev == member->dev && here.st_ino == member->ino ? 0 : GONE;
}

/* A file that stat can't reach must not count as missing: it would be removed with the rest. */
static int find_manifests(struct member *member, struct nvs_error *error)
{
	struct stat st;
	char name[32];

	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT; i++) {
		snprintf(name, sizeof(name), "manifest.%u", i);
		if (!fstatat(member->directory_fd, name, &st, AT_SYMLINK_NOFOLLOW))
			member->has_manifests |= st.st_size > 0;
		else if (errno != ENOENT)
			return member_cannot(error, "look for manifests in", member->directory,
					     -errno);
	}
	return 0;
}

static int open_data(struct member *members, unsigned index, const struct nvs_log *log,
		     struct nvs_error *error)
{
	struct member *member = &members[index];
	struct stat st;
	int rc = open_plain(member->directory_fd, "data", member->path, &member->fd, error);

	if (rc)
		return rc;
	if (fstat(member->fd, &st))
		return member_cannot(error, "look at", member->path, -errno);
	member->dev = st.st_dev;
	member->ino = st.st_ino;
	rc = member_named_twice(members, index, error);
	if (!rc)
		rc = member_lock(member, error);
	if (!rc)
		rc = check_name_still_there(member, error);
	if (!rc)
		rc = keep_private(member->fd, member->path, 0600, log, error);
	if (!rc)
		rc = find_manifests(member, error);
	if (rc)
		return rc;
	member->disposable = st.st_size == 0 && !member->has_manifests;
	return member_read_label(member, error);
}

static int open_below(struct member *members, unsigned index, const char *path, const char *name,
		      const struct nvs_log *log, struct nvs_error *error)
{
	struct member *member = &members[index];
	int rc = member_compose(&member->path, error, "%s/nvswap", path);

	if (!rc)
		rc = step_down(member->parent_fd, "nvswap", member->path, &member->nvswap_fd,
			       &member->made, log, error);
	if (!rc)
		rc = member_compose(&member->directory, error, "%s/nvswap/%s", path, name);
	if (rc)
		return rc;
	rc = step_down(member->nvswap_fd, name, member->directory, &member->directory_fd,
		       &member->made, log, error);
	if (!rc)
		rc = member_compose(&member->path, error, "%s/nvswap/%s/data", path, name);
	return rc ? rc : open_data(members, index, log, error);
}

int member_open_in_directory(struct member *members, unsigned index, const char *path,
			     const char *name, const struct nvs_log *log, struct nvs_error *error)
{
	struct member *member = &members[index];
	int rc = open_parent(member, path, error);

	member->kind = MEMBER_FILE;
	member->base = LABEL_AREA_BYTES;
	member->capacity = UINT64_MAX;
	for (int i = 0; !rc && i < TRIES; i++) {
		rc = open_below(members, index, path, name, log, error);
		if (rc != GONE)
			return rc;
		member_close_fd(&member->fd);
		member_close_fd(&member->directory_fd);
		member_close_fd(&member->nvswap_fd);
		rc = 0;
	}
	return rc ? rc
		  : error_set(error, -EBUSY,
			      "the store at %s is removed each time that it is opened: other "
			      "processes keep opening and closing it; give this process another "
			      "\"nvswap\": {\"rank\": N}",
			      member->path);
}

/* ---- Removing ---- */

static void unlink_from(const struct member *member, const char *name, const struct nvs_log *log)
{
	if (unlinkat(member->directory_fd, name, 0) && errno != ENOENT)
		log_say(log, NVS_LOG_WARNING, "cannot remove %s/%s: %s", member->directory, name,
			nvs_strerror(-errno));
}

void member_unlink_files(struct member *member, const struct nvs_log *log)
{
	char name[32];

	unlink_from(member, "data", log);
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT; i++) {
		snprintf(name, sizeof(name), "manifest.%u", i);
		unlink_from(member, name, log);
	}
}

void member_remove_directories(const struct member *member)
{
	if (member->nvswap_fd >= 0 && member->directory)
		unlinkat(member->nvswap_fd, strrchr(member->directory, '/') + 1, AT_REMOVEDIR);
	if (member->parent_fd >= 0)
		unlinkat(member->parent_fd, "nvswap", AT_REMOVEDIR);
}
