/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens or creates a member and locks it. Below the user's path no symbolic link is followed, and
 * only files that belong to this user are touched. It never writes data.
 */
#include "store/members.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "store/disk.h"

/* A closing owner unlinks the names; start over each time that happens meanwhile. */
#define TRIES 1000
#define GONE  (-ESTALE)

static int refuse(struct nvs_error *error, const char *path, const char *why)
{
	return error_set(error, -EMEDIUMTYPE,
			 "%s %s: nvswap does not touch it; move it away, or choose another path or "
			 "rank",
			 path, why);
}

static int cannot(struct nvs_error *error, const char *what, const char *path, int code)
{
	return error_set(error, code, "cannot %s %s: %s", what, path, nvs_strerror(code));
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static int __attribute__((format(printf, 3, 4)))
compose(char **text, struct nvs_error *error, const char *format, ...)
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
	return error_set(error, -ENOMEM, "out of memory while opening a store");
}

static int same_as_earlier(const struct member *members, unsigned index, struct nvs_error *error)
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

/* ---- Labels ---- */

static int read_label(struct member *member, struct nvs_error *error)
{
	uint8_t bytes[LABEL_BYTES];
	int rc = disk_read(member->fd, member->path, bytes, sizeof(bytes), 0, error);

	if (rc)
		return rc;
	rc = label_decode(bytes, &member->label);
	member->blank = rc == -ENODATA;
	if (rc == 0 || rc == -ENODATA)
		return 0;
	if (rc == -EUCLEAN)
		return error_set(error, rc,
				 "the label of the store at %s is damaged: restore the store from "
				 "a copy, or remove it if it is not needed",
				 member->path);
	if (rc == -EPROTONOSUPPORT)
		return error_set(error, -EMEDIUMTYPE,
				 "the store at %s was made by another version of nvswap, in a "
				 "format unknown to this one: use that version, or, if the "
				 "store is not needed, remove %s",
				 member->path,
				 member->kind == MEMBER_RAW ? "its label (wipe the first 1 MiB)"
							    : member->directory);
	if (member->kind == MEMBER_FILE)
		return refuse(error, member->path, "does not begin with a label of nvswap's");
	return error_set(
		error, rc,
		"%s holds something that is not nvswap's: if nothing on it is needed, wipe "
		"it first: wipefs -a %s && dd if=/dev/zero of=%s bs=1M count=1",
		member->path, member->path, member->path);
}

/* The rest of the bytes behind the label that must be free on a raw device. */
static int check_wiped(struct member *member, struct nvs_error *error)
{
	uint8_t *bytes = malloc(LABEL_AREA_BYTES);
	int rc;

	if (!bytes)
		return error_set(error, -ENOMEM, "out of memory while opening %s", member->path);
	rc = disk_read(member->fd, member->path, bytes, LABEL_AREA_BYTES, 0, error);
	if (!rc && (bytes[0] || memcmp(bytes, bytes + 1, LABEL_AREA_BYTES - 1) != 0))
		rc = error_set(error, -EMEDIUMTYPE,
			       "%s holds something that is not nvswap's (its first 1 MiB is not "
			       "empty): if nothing on it is needed, wipe it first: wipefs -a %s && "
			       "dd if=/dev/zero of=%s bs=1M count=1",
			       member->path, member->path, member->path);
	free(bytes);
	return rc;
}

int member_write_label(struct member *member, struct nvs_error *error)
{
	uint8_t bytes[LABEL_BYTES];
	int rc;

	label_encode(&member->label, bytes);
	rc = disk_write(member->fd, member->path, bytes, sizeof(bytes), 0, error);
	if (!rc)
		rc = disk_sync(member->fd, member->path, error);
	if (!rc)
		member->blank = false;
	return rc;
}

/* ---- A directory ---- */

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
	return cannot(error, "open", path, -errno);
}

/* Removes other users' permissions and logs it. */
static int keep_private(int fd, const char *path, mode_t mode, const struct nvs_log *log,
			struct nvs_error *error)
{
	struct stat st;

	if (fstat(fd, &st))
		return cannot(error, "look at", path, -errno);
	if (st.st_uid != geteuid())
		return refuse(error, path, "belongs to another user");
	if ((st.st_mode & 07777) == mode)
		return 0;
	if (fchmod(fd, mode))
		return cannot(error, "make private", path, -errno);
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
		return errno == ENOENT ? GONE : cannot(error, "make the directory", path, -errno);
	*fd = openat(from_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (*fd >= 0)
		return keep_private(*fd, path, 0700, log, error);
	if (errno == ENOENT)
		return GONE;
	if (errno == ENOTDIR || errno == ELOOP)
		return refuse(error, path, "is a symbolic link or no directory");
	return cannot(error, "open", path, -errno);
}

static int check_plain(int fd, const char *path, struct nvs_error *error)
{
	struct stat st;

	if (fstat(fd, &st))
		return cannot(error, "look at", path, -errno);
	if (!S_ISREG(st.st_mode))
		return refuse(error, path, "is not a plain file");
	if (st.st_nlink > 1)
		return refuse(error, path, "has another name as well (a hard link)");
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
		return refuse(error, path, "is a symbolic link");
	if (errno == EISDIR || errno == ENXIO || errno == ENODEV)
		return refuse(error, path, "is not a plain file");
	return cannot(error, "open", path, -errno);
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
		rc = cannot(error, "open", path, -ENOENT);
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
			return cannot(error, "make durable the name", member->path, -errno);
	return 0;
}

/* The previous owner may have unlinked the file after we opened it and before we locked it. */
static int check_name_still_there(struct member *member, struct nvs_error *error)
{
	struct stat here;

	if (fstatat(member->directory_fd, "data", &here, AT_SYMLINK_NOFOLLOW))
		return errno == ENOENT ? GONE : cannot(error, "look at", member->path, -errno);
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
			return cannot(error, "look for manifests in", member->directory, -errno);
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
		return cannot(error, "look at", member->path, -errno);
	member->dev = st.st_dev;
	member->ino = st.st_ino;
	rc = same_as_earlier(members, index, error);
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
	return read_label(member, error);
}

static int open_below(struct member *members, unsigned index, const char *path, const char *name,
		      const struct nvs_log *log, struct nvs_error *error)
{
	struct member *member = &members[index];
	int rc = compose(&member->path, error, "%s/nvswap", path);

	if (!rc)
		rc = step_down(member->parent_fd, "nvswap", member->path, &member->nvswap_fd,
			       &member->made, log, error);
	if (!rc)
		rc = compose(&member->directory, error, "%s/nvswap/%s", path, name);
	if (rc)
		return rc;
	rc = step_down(member->nvswap_fd, name, member->directory, &member->directory_fd,
		       &member->made, log, error);
	if (!rc)
		rc = compose(&member->path, error, "%s/nvswap/%s/data", path, name);
	return rc ? rc : open_data(members, index, log, error);
}

static int open_in_directory(struct member *members, unsigned index, const char *path,
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
		close_fd(&member->fd);
		close_fd(&member->directory_fd);
		close_fd(&member->nvswap_fd);
		rc = 0;
	}
	return rc ? rc
		  : error_set(error, -EBUSY,
			      "the store at %s is removed each time that it is opened: other "
			      "processes keep opening and closing it; give this process another "
			      "\"nvswap\": {\"rank\": N}",
			      member->path);
}

/* ---- A block device ---- */

static int measure_device(struct member *member, unsigned index, struct nvs_error *error)
{
	uint64_t nbytes;
	char have[32], need[32];

	if (ioctl(member->fd, BLKGETSIZE64, &nbytes))
		return cannot(error, "learn the size of", member->path, -errno);
	member->base = LABEL_AREA_BYTES;
	if (index == 0)
		member->base += MANIFEST_SLOT_COUNT * RAW_MANIFEST_BYTES;
	if (nbytes < member->base + UNIT_MAX)
		return error_set(error, -ENOSPC, "%s has %s, and a store needs more than %s of it",
				 member->path, size_text(nbytes, have),
				 size_text(member->base, need));
	member->capacity = nbytes - member->base;
	return 0;
}

static int open_device(struct member *members, unsigned index, const char *path,
		       const struct stat *st, struct nvs_error *error)
{
	struct member *member = &members[index];
	uint64_t since = clock_ns();
	struct stat opened;
	int rc;

	member->kind = MEMBER_RAW;
	member->dev = st->st_rdev;
	rc = compose(&member->path, error, "%s", path);
	if (!rc)
		rc = same_as_earlier(members, index, error);
	if (rc)
		return rc;
	do
		member->fd = open(path, O_RDWR | O_EXCL | O_CLOEXEC | O_NOCTTY);
	while (member->fd < 0 && errno == EBUSY && member_owner_may_end(since));
	if (member->fd < 0 && errno == EBUSY)
		return error_set(error, -EBUSY,
				 "%s is in use: mounted, part of RAID, LVM or swap, or opened by "
				 "another nvswap; unmount it, or give another device",
				 path);
	if (member->fd < 0)
		return cannot(error, "open", path, -errno);
	if (fstat(member->fd, &opened))
		return cannot(error, "look at", path, -errno);
	if (!S_ISBLK(opened.st_mode) || opened.st_rdev != member->dev)
		return error_set(error, -EBUSY, "%s became something else while it was opened",
				 path);
	rc = member_lock(member, error);
	if (!rc)
		rc = measure_device(member, index, error);
	if (!rc)
		rc = read_label(member, error);
	return rc || !member->blank ? rc : check_wiped(member, error);
}

/* ---- Any ---- */

static void start(struct member *member)
{
	*member = (struct member){
		.parent_fd = -1, .nvswap_fd = -1, .directory_fd = -1, .fd = -1, .direct_fd = -1};
}

int member_open(struct member *members, unsigned index, const char *path, const char *name,
		const struct nvs_log *log, struct nvs_error *error)
{
	struct stat st;

	start(&members[index]);
	if (!stat(path, &st) && S_ISBLK(st.st_mode))
		return open_device(members, index, path, &st, error);
	return open_in_directory(members, index, path, name, log, error);
}

int member_open_memory(struct member *member, struct nvs_error *error)
{
	start(member);
	member->kind = MEMBER_MEMORY;
	member->blank = true;
	member->capacity = UINT64_MAX;
	member->path = strdup("host memory");
	if (!member->path)
		return error_set(error, -ENOMEM, "out of memory while opening a store");
	member->fd = memfd_create("nvswap", MFD_CLOEXEC);
	return member->fd >= 0 ? 0 : cannot(error, "make a file in", member->path, -errno);
}

static void unlink_from(const struct member *member, const char *name, const struct nvs_log *log)
{
	if (unlinkat(member->directory_fd, name, 0) && errno != ENOENT)
		log_say(log, NVS_LOG_WARNING, "cannot remove %s/%s: %s", member->directory, name,
			nvs_strerror(-errno));
}

static void dispose_of_files(struct member *member, const struct nvs_log *log)
{
	char name[32];

	unlink_from(member, "data", log);
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT; i++) {
		snprintf(name, sizeof(name), "manifest.%u", i);
		unlink_from(member, name, log);
	}
}

/* Directories that are not empty stay. */
static void dispose_of_directories(const struct member *member)
{
	if (member->nvswap_fd >= 0 && member->directory)
		unlinkat(member->nvswap_fd, strrchr(member->directory, '/') + 1, AT_REMOVEDIR);
	if (member->parent_fd >= 0)
		unlinkat(member->parent_fd, "nvswap", AT_REMOVEDIR);
}

static void dispose_of_device(struct member *member, const struct nvs_log *log)
{
	static const uint8_t zeros[LABEL_BYTES];
	struct nvs_error error;

	if (disk_write(member->fd, member->path, zeros, sizeof(zeros), 0, &error) ||
	    disk_sync(member->fd, member->path, &error))
		log_say(log, NVS_LOG_WARNING, "the label stays on the device: %s", error.text);
}

void member_dispose(struct member *member, const struct nvs_log *log)
{
	if (member->disposable && member->kind == MEMBER_FILE)
		dispose_of_files(member, log);
	if (member->disposable && member->kind == MEMBER_RAW)
		dispose_of_device(member, log);
	/* A failed open may have created only these. */
	if (member->kind == MEMBER_FILE && (member->disposable || member->made))
		dispose_of_directories(member);
}

void member_close(struct member *member)
{
	if (!member->lent) {
		close_fd(&member->fd);
		close_fd(&member->direct_fd);
	}
	close_fd(&member->directory_fd);
	close_fd(&member->nvswap_fd);
	close_fd(&member->parent_fd);
	free(member->path);
	free(member->directory);
}
