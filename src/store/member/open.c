/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens and removes a member of any kind, mostly one in a directory: <path>/nvswap/<name>/data.
 * Below the user's path no symbolic link is followed. What belongs to another user, or is not
 * nvswap's, is found out before anything is changed, and stays as it is. It never writes data.
 */
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "store/member/internal.h"

/* A closing owner unlinks the names; start over each time that happens meanwhile. */
#define TRIES 1000

/* ---- Opening ---- */

/* Sets the fields of a member that is to be opened. */
static void member_start(struct member *member, bool read_only)
{
	/* Nothing of another member is lost. */
	assert(!member->path && !member->directory && !member->parent);
	*member = (struct member){.parent_fd = -1,
				  .nvswap_fd = -1,
				  .directory_fd = -1,
				  .fd = -1,
				  .direct_fd = -1,
				  .count_fd = -1,
				  .lock_fd = -1,
				  .read_only = read_only};
}

static int open_parent(struct member *member, const char *path, struct nvs_error *error)
{
	member->parent_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* A commit looks where a later run would, whatever the working directory is then. */
	if (member->parent_fd >= 0) {
		member->parent = absolute_path(path);
		if (member->parent && *member->parent == '/')
			return 0;
		return member_cannot(error, "learn the working directory for", path, -errno);
	}
	/* Never created: a path of a drive that is not mounted would lie on the root drive. */
	if (errno == ENOENT)
		return path_missing(path, error);
	if (errno == ENOTDIR)
		return error_set(
			error, -ENOTDIR,
			"%s is neither a directory nor a block device: nvme_path names one "
			"of these",
			path);
	return member_cannot(error, "open", path, -errno);
}

/* ---- Going down ---- */

/* mkdirat(2) fails with ENOENT in a removed directory, and in /proc and the like; in sysfs as if
 * rights were missing. */
static int cannot_make(int from_fd, const char *path, int code, struct nvs_error *error)
{
	struct stat st;

	if (code == -ENOENT && !fstat(from_fd, &st) && st.st_nlink == 0)
		return MEMBER_GONE;
	if (code == -ENOENT || magic_of(from_fd) == SYSFS_MAGIC)
		return error_set(error, -EOPNOTSUPP,
				 "cannot make the directory %s: its file system holds no files of "
				 "users; give an nvme_path on a drive",
				 path);
	if (code == -EACCES)
		return error_set(error, code,
				 "cannot make the directory %s: this user may not write there; "
				 "give an nvme_path of your own",
				 path);
	return member_cannot(error, "make the directory", path, code);
}

static int nothing_there(const char *path, struct nvs_error *error)
{
	return error_set(error, -ENODATA,
			 "%s does not exist, so there is no kept store to read: give the path and "
			 "rank of one",
			 path);
}

/*
 * Opens or creates the directory `name` in a directory, which is of this member; `path` is the
 * whole path, for messages. MEMBER_GONE: start over.
 */
static int step_down(struct member *member, int from_fd, const char *name, const char *path,
		     member_name_fn *ours, int *fd, struct nvs_error *error)
{
	if (!member->read_only && !mkdirat(from_fd, name, 0700))
		member->made = true;
	else if (!member->read_only && errno != EEXIST)
		return cannot_make(from_fd, path, -errno, error);
	*fd = openat(from_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (*fd >= 0) {
		int rc = member_check_owner(*fd, path, error);

		return rc ?: member_check_entries(*fd, path, ours, error);
	}
	if (errno == ENOENT)
		return member->read_only ? nothing_there(path, error) : MEMBER_GONE;
	if (errno == ENOTDIR || errno == ELOOP)
		return member_refuse(error, path, "is a symbolic link or no directory");
	if (errno == EACCES)
		return member_not_permitted(from_fd, name, path, error);
	return member_cannot(error, "open", path, -errno);
}

static int open_plain(const struct member *member, const char *name, const char *path, int create,
		      int *fd, struct nvs_error *error)
{
	const int flags = (member->read_only ? O_RDONLY : O_RDWR | create) | O_NOFOLLOW |
			  O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
	struct stat st;

	*fd = openat(member->directory_fd, name, flags, 0600);
	if (*fd >= 0) {
		if (fstat(*fd, &st))
			return member_cannot(error, "look at", path, -errno);
		if (!S_ISREG(st.st_mode))
			return member_refuse(error, path, "is not a plain file");
		if (st.st_uid != geteuid())
			return member_other_user(path, st.st_uid, error);
		return st.st_nlink > 1 ? member_refuse(error, path,
						       "has another name as well (a hard link)")
				       : 0;
	}
	if (errno == ENOENT)
		return MEMBER_GONE;
	if (errno == ELOOP)
		return member_refuse(error, path, "is a symbolic link");
	if (errno == EISDIR || errno == ENXIO || errno == ENODEV)
		return member_refuse(error, path, "is not a plain file");
	if (errno == EACCES)
		return member_not_permitted(member->directory_fd, name, path, error);
	return member_cannot(error, "open", path, -errno);
}

int member_open_manifest(const struct member *member, unsigned i, bool create, int *fd,
			 struct nvs_error *error)
{
	char *path = NULL, name[MANIFEST_NAME];
	int rc = 0;

	manifest_name(i, name);
	if (asprintf(&path, "%s/%s", member->directory, name) < 0)
		return error_no_memory(error, "opening a manifest");
	if (*fd < 0)
		rc = open_plain(member, name, path, create ? O_CREAT : 0, fd, error);
	if (rc == MEMBER_GONE)
		rc = member_cannot(error, "open", path, -ENOENT);
	if (!rc && create)
		rc = member_make_fd_private(*fd, path, 0600, NULL, error);
	free(path);
	return rc;
}

/* A file that stat can't reach must not count as missing: it would be removed with the rest. */
int member_find_manifests(struct member *member, struct nvs_error *error)
{
	struct stat st;
	char name[MANIFEST_NAME];

	member->has_manifests = false;
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT; i++) {
		manifest_name(i, name);
		if (!fstatat(member->directory_fd, name, &st, AT_SYMLINK_NOFOLLOW))
			member->has_manifests |= st.st_size > 0;
		else if (errno != ENOENT)
			return member_cannot(error, "look for manifests in", member->directory,
					     -errno);
	}
	return 0;
}

static int open_data(struct member *members, unsigned index, struct nvs_error *error)
{
	const struct label *first = &members[0].label;
	struct member *member = &members[index];
	struct stat st;
	int rc = member_find_manifests(member, error);

	/* An empty file must not take the place of a kept store's data. */
	if (!rc)
		rc = open_plain(member, "data", member->path, member->has_manifests ? 0 : O_CREAT,
				&member->fd, error);
	if (rc == MEMBER_GONE) {
		/* A store that is being removed loses its manifests first. */
		rc = member_find_manifests(member, error);
		if (!rc && member->has_manifests)
			rc = error_set(error, -EUCLEAN,
				       "%s has manifests, but %s is missing: the store is damaged; "
				       "put the file back, or remove the store (nvswap store "
				       "remove) if it is not needed",
				       member->directory, member->path);
		else if (!rc)
			rc = member->read_only ? nothing_there(member->path, error) : MEMBER_GONE;
	}
	if (rc)
		return rc;
	if (fstat(member->fd, &st))
		return member_cannot(error, "look at", member->path, -errno);
	member->dev = st.st_dev;
	member->ino = st.st_ino;
	rc = member_named_twice(members, index, error);
	rc = rc ?: member_lock(member, error);
	if (rc)
		return rc;
	/*
	 * The previous owner may have unlinked the file after we opened it and before we locked it.
	 */
	rc = member_leads_to(member->directory_fd, "data", member->fd);
	if (rc)
		return rc == -ENOENT ? MEMBER_GONE
				     : member_cannot(error, "look at", member->path, rc);
	rc = member_find_manifests(member, error);
	if (rc)
		return rc;
	member->disposable = st.st_size == 0 && !member->has_manifests && !member->read_only;
	/* A new file is shorter than the labels' area. */
	member->expected = member->has_manifests || (index && first->kept && index < first->count &&
						     (uint64_t)st.st_size >= LABEL_AREA_BYTES);
	return member_read_label(member, error);
}

int member_open(struct member *members, unsigned index, const char *path, const char *name,
		enum member_access access, struct nvs_error *error)
{
	struct member *member = &members[index];
	struct stat st;
	int rc;

	member_start(member, access != MEMBER_WRITES);
	member->beside = access == MEMBER_READS_BESIDE;
	if (!stat(path, &st) && S_ISBLK(st.st_mode))
		return member_open_device(members, index, path, &st, error);
	member->kind = MEMBER_FILE;
	member->base = LABEL_AREA_BYTES;
	member->capacity = UINT64_MAX;
	rc = open_parent(member, path, error);
	for (int i = 0; !rc && i < TRIES; i++) {
		rc = member_compose(&member->path, error, "%s/nvswap", path);
		if (!rc)
			rc = step_down(member, member->parent_fd, "nvswap", member->path,
				       member_is_entry_name, &member->nvswap_fd, error);
		rc = rc ?: member_compose(&member->directory, error, "%s/nvswap/%s", path, name);
		if (!rc)
			rc = step_down(member, member->nvswap_fd, name, member->directory,
				       member_is_file_name, &member->directory_fd, error);
		rc = rc ?: member_compose(&member->path, error, "%s/nvswap/%s/data", path, name);
		rc = rc ?: open_data(members, index, error);
		if (rc != MEMBER_GONE)
			return rc;
		member_close_fd(&member->fd);
		member_close_fd(&member->directory_fd);
		member_close_fd(&member->nvswap_fd);
		rc = 0;
	}
	if (rc)
		return rc;
	return error_set(error, -EBUSY,
			 "the store at %s is removed each time that it is opened: other processes "
			 "keep opening and closing it; give this process another "
			 "\"nvswap\": {\"rank\": N}",
			 member->path);
}

int member_open_memory(struct member *member, struct nvs_error *error)
{
	member_start(member, false);
	member->kind = MEMBER_MEMORY;
	member->blank = true;
	member->capacity = UINT64_MAX;
	member->path = strdup("host memory");
	if (!member->path)
		return error_no_memory(error, "opening a store");
	member->fd = memfd_create("nvswap", MFD_CLOEXEC);
	return member->fd >= 0 ? 0 : member_cannot(error, "make a file in", member->path, -errno);
}

/* ---- Removing ---- */

int member_unlink(const struct member *member, const char *name, struct nvs_error *error)
{
	assert(member_is_file_name(name));
	if (!unlinkat(member->directory_fd, name, 0) || errno == ENOENT)
		return 0;
	return error_set(error, -errno, "cannot remove %s/%s: %s", member->directory, name,
			 nvs_strerror(-errno));
}

void member_dispose(struct member *member, const struct nvs_log *log)
{
	struct nvs_error error = {.size = sizeof(error)};
	char name[MANIFEST_NAME];

	assert(!member->disposable || (!member->read_only && member->fd >= 0));
	if (member->disposable && member->kind == MEMBER_RAW &&
	    member_clear_places(member, member->fd, &error))
		log_say(log, NVS_LOG_WARNING, "a label stays on the device: %s", error.text);
	if (!member->disposable || member->kind != MEMBER_FILE)
		return;
	for (unsigned i = 0; i <= MANIFEST_SLOT_COUNT; i++) {
		manifest_name(i, name);
		/* The data last: manifests without it are a damaged store. */
		if (member_unlink(member, i < MANIFEST_SLOT_COUNT ? name : "data", &error))
			log_say(log, NVS_LOG_WARNING, "%s", error.text);
	}
}

/*
 * FUSE learns a moment later that a removed file was closed, and until then holds it under another
 * name. A process that opens a store meanwhile starts over.
 */
bool member_remove_empty(int parent_fd, int nvswap_fd, const char *name)
{
	uint64_t since = clock_ns();
	bool removed = false;

	if (nvswap_fd >= 0 && name)
		do
			removed = !unlinkat(nvswap_fd, name, AT_REMOVEDIR);
		while (!removed && (errno == ENOTEMPTY || errno == EEXIST) &&
		       member_counts_as_empty(nvswap_fd, name) && member_owner_may_end(since));
	/* Other stores keep it. */
	if (parent_fd >= 0 && !unlinkat(parent_fd, "nvswap", AT_REMOVEDIR))
		removed = true;
	return removed;
}

int member_make_nameless(struct member *member, struct nvs_error *error)
{
	int fd;

	member_open_check(member);
	if (member->kind != MEMBER_FILE)
		return 0;
	fd = openat(member->directory_fd, ".", O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0 && errno == EOPNOTSUPP)
		return 0;
	if (fd < 0)
		return member_cannot(error, "make a file in", member->directory, -errno);
	member->lock_fd = member->fd;
	member->fd = fd;
	return 0;
}

void member_close(struct member *member)
{
	assert(!member->lent || member->fd >= 0);
	if (!member->lent) {
		member_close_fd(&member->fd);
		member_close_fd(&member->direct_fd);
	}
	member_close_fd(&member->lock_fd);
	member_close_fd(&member->count_fd);
	member_close_fd(&member->directory_fd);
	/* A failed open may have created only these. */
	if (member->kind == MEMBER_FILE && (member->disposable || member->made))
		member_remove_empty(member->parent_fd, member->nvswap_fd,
				    member->directory ? strrchr(member->directory, '/') + 1 : NULL);
	member_close_fd(&member->nvswap_fd);
	member_close_fd(&member->parent_fd);
	free(member->path);
	free(member->directory);
	free(member->parent);
}
