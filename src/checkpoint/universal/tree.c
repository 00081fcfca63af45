/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory of a universal checkpoint's files: zero/NAME/PART.pt. It is made as zero.partial
 * and takes the place of `zero` as a whole. Where a file system can't exchange two names, as FUSE
 * and NFS, the old one is zero.before for a moment: if a crash leaves it without a `zero`, it is
 * the checkpoint, and gets its name back from the next export. In writing no link is followed below
 * the checkpoint's path. A file that was removed while it was open, which NFS and FUSE keep under
 * another name, counts as none.
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "checkpoint/universal/universal.h"

#define DIRECTORY (O_RDONLY | O_DIRECTORY | O_CLOEXEC)
#define PARTIAL	  "zero" PARTIAL_SUFFIX
#define BEFORE	  "zero.before"

static int tree_failed(const struct tree *tree, const char *what, const char *name,
		       struct nvs_error *error)
{
	int rc = ended_with(-errno);

	return error_set(error, rc, "can't %s %s of %s: %s", what, name, tree->path,
			 nvs_strerror(rc));
}

/* The same for what is below the files' directory. */
static int file_failed(const struct tree *tree, const char *what, const char *place,
		       struct nvs_error *error)
{
	int rc = ended_with(-errno);

	return error_set(error, rc, "can't %s %s/%s/%s: %s", what, tree->path, tree->name, place,
			 nvs_strerror(rc));
}

/* ---- Removing what an earlier call has left, or what is replaced ---- */

/* Refuses to replace or remove a directory with other files than .pt files, in it or one below. */
static int check_parts(const struct tree *tree, int at, const char *name, unsigned depth,
		       struct nvs_error *error)
{
	const struct dirent *entry;
	struct stat status;
	int rc = 0, fd = openat(at, name, DIRECTORY | O_NOFOLLOW);
	DIR *directory = fd < 0 ? NULL : fdopendir(fd);

	if (fd < 0 && errno == ENOENT)
		return 0;
	if (fd < 0 && (errno == ELOOP || errno == ENOTDIR))
		return error_set(error, -EEXIST, "%s: %s is no directory", tree->path, name);
	if (!directory) {
		rc = tree_failed(tree, "read the directory", name, error);
		if (fd >= 0)
			close(fd);
		return rc;
	}
	while (!rc && (entry = readdir(directory))) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") ||
		    is_name_of_removed(entry->d_name))
			continue;
		if (fstatat(fd, entry->d_name, &status, AT_SYMLINK_NOFOLLOW))
			rc = tree_failed(tree, "look at", entry->d_name, error);
		else if (S_ISDIR(status.st_mode) && depth)
			rc = check_parts(tree, fd, entry->d_name, depth - 1, error);
		else if (!S_ISREG(status.st_mode) ||
			 !(*entry->d_name != '.' &&
			   (text_ends_with(entry->d_name, ".pt") ||
			    text_ends_with(entry->d_name, ".pt" PARTIAL_SUFFIX))))
			rc = error_set(
				error, -EEXIST,
				"%s: %s has \"%s\", which is no part of a universal checkpoint: "
				"move it away, or choose another directory",
				tree->path, name, entry->d_name);
	}
	closedir(directory);
	return rc;
}

#define REMOVED_MAX 64

/* rmdir(2) of what has been emptied; what holds a removed file stays. */
static int remove_empty(int fd, const char *name)
{
	return unlinkat(fd, name, AT_REMOVEDIR) && errno != ENOTEMPTY && errno != EEXIST ? -1 : 0;
}

/* Removes the entries of a directory; with `depth`, those of directories in it too. */
static int empty(int fd, unsigned depth)
{
	const struct dirent *entry;
	unsigned removed = 0;
	int below, rc = 0, own = openat(fd, ".", DIRECTORY);
	DIR *directory = own < 0 ? NULL : fdopendir(own);

	if (!directory) {
		if (own >= 0)
			close(own);
		return -1;
	}
	while (!rc && (entry = readdir(directory))) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		/* One that a crash has left can be removed. FUSE gives one that is open another
		 * such name, which readdir may return again. */
		if (is_name_of_removed(entry->d_name)) {
			if (removed++ < REMOVED_MAX)
				unlinkat(fd, entry->d_name, 0);
			continue;
		}
		rc = unlinkat(fd, entry->d_name, 0);
		if (!rc || (errno != EISDIR && errno != EPERM) || !depth)
			continue;
		below = openat(fd, entry->d_name, DIRECTORY | O_NOFOLLOW);
		rc = below < 0 ? -1 : empty(below, depth - 1);
		if (below >= 0)
			close(below);
		if (!rc)
			rc = remove_empty(fd, entry->d_name);
	}
	closedir(directory);
	return rc;
}

static int remove_made(const struct tree *tree, const char *name, struct nvs_error *error)
{
	struct stat status;
	int rc, fd;

	if (fstatat(tree->top, name, &status, AT_SYMLINK_NOFOLLOW))
		return errno == ENOENT ? 0 : tree_failed(tree, "look at", name, error);
	if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid())
		return error_set(error, -EEXIST, "%s/%s is no directory of this user", tree->path,
				 name);
	fd = openat(tree->top, name, DIRECTORY | O_NOFOLLOW);
	rc = fd < 0 ? -1 : empty(fd, 1);
	if (fd >= 0)
		close(fd);
	if (!rc)
		rc = remove_empty(tree->top, name);
	return rc ? tree_failed(tree, "remove", name, error) : 0;
}

/* ---- Opening ---- */

/* The files' directory, when the top one is open. */
static int open_zero(struct tree *tree, int flags, struct nvs_error *error)
{
	tree->zero = openat(tree->top, tree->name, DIRECTORY | flags);
	return tree->zero < 0 ? tree_failed(tree, "open the directory", tree->name, error) : 0;
}

int tree_create(struct tree *tree, const char *path, struct nvs_error *error)
{
	static const char *const names[] = {"zero", PARTIAL, BEFORE};
	struct stat status;
	int rc = 0;

	*tree = (struct tree){.path = path, .name = PARTIAL, .top = -1, .zero = -1};
	if (mkdir(path, 0700) && errno != EEXIST)
		return tree_failed(tree, "make the directory", ".", error);
	tree->top = open(path, DIRECTORY);
	if (tree->top < 0)
		return tree_failed(tree, "open the directory", ".", error);
	if (flock(tree->top, LOCK_EX | LOCK_NB))
		return errno == EWOULDBLOCK
			       ? error_set(error, -EBUSY, "another process writes to %s", path)
			       : tree_failed(tree, "lock", ".", error);
	for (size_t i = 0; !rc && i < sizeof(names) / sizeof(names[0]); i++)
		rc = check_parts(tree, tree->top, names[i], 1, error);
	if (!rc && fstatat(tree->top, "zero", &status, AT_SYMLINK_NOFOLLOW) &&
	    renameat(tree->top, BEFORE, tree->top, "zero") && errno != ENOENT)
		rc = tree_failed(tree, "rename to zero the directory", BEFORE, error);
	if (!rc)
		rc = remove_made(tree, PARTIAL, error);
	if (!rc)
		rc = remove_made(tree, BEFORE, error);
	if (rc)
		return rc;
	/* It is there if it holds a removed file. */
	if (mkdirat(tree->top, PARTIAL, 0700) && errno != EEXIST)
		return tree_failed(tree, "make the directory", PARTIAL, error);
	tree->created = true;
	return open_zero(tree, O_NOFOLLOW, error);
}

int tree_open(struct tree *tree, const char *path, bool partial, struct nvs_error *error)
{
	*tree = (struct tree){.path = path,
			      .name = partial ? PARTIAL : "zero",
			      .top = open(path, DIRECTORY),
			      .zero = -1};
	if (tree->top < 0)
		return tree_failed(tree, "open the directory", ".", error);
	if (!partial && faccessat(tree->top, "zero", F_OK, 0) &&
	    !faccessat(tree->top, BEFORE, F_OK, 0))
		tree->name = BEFORE;
	return open_zero(tree, partial ? O_NOFOLLOW : 0, error);
}

/* ---- Files ---- */

int tree_add(const struct tree *tree, const char *place, struct nvs_error *error)
{
	return mkdirat(tree->zero, place, 0700) && errno != EEXIST
		       ? file_failed(tree, "make the directory", place, error)
		       : 0;
}

int tree_create_file(const struct tree *tree, const char *place, uint64_t nbytes,
		     struct nvs_error *error)
{
	char *path;
	int rc, fd;

	assert(tree->created && nbytes);
	/* The limit on the size of files, before one is made. */
	if (asprintf(&path, "%s/%s/%s", tree->path, tree->name, place) < 0)
		return error_set(error, -ENOMEM, "no memory for the path of %s", place);
	rc = file_may_grow(path, nbytes, error);
	free(path);
	if (rc)
		return rc;
	fd = openat(tree->zero, place, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return file_failed(tree, "create", place, error);
	if (file_reserve(fd, 0, nbytes) && errno != EOPNOTSUPP)
		rc = file_failed(tree, "reserve space for", place, error);
	else if (ftruncate(fd, (off_t)nbytes))
		rc = file_failed(tree, "extend", place, error);
	close(fd);
	return rc;
}

int tree_open_file(const struct tree *tree, const char *place, int flags, struct nvs_error *error)
{
	int fd;

	if (flags & O_ACCMODE)
		flags |= O_NOFOLLOW;
	fd = openat(tree->zero, place, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return file_failed(tree, "open", place, error);
	return fd;
}

/* ---- Durability ---- */

int tree_sync(const struct tree *tree, const char *place, struct nvs_error *error)
{
	int fd = tree_open_file(tree, place, O_RDONLY | O_NOFOLLOW, error), rc = 0;

	if (fd < 0)
		return fd;
	if (fsync(fd))
		rc = file_failed(tree, "make durable", place, error);
	close(fd);
	return rc;
}

/* Gives zero.partial the name `zero`. One that has it becomes zero.partial or zero.before. */
static int take_name(int top)
{
	int code;

	if (!renameat2(top, PARTIAL, top, "zero", RENAME_EXCHANGE))
		return 0;
	if (errno == ENOENT)
		return renameat(top, PARTIAL, top, "zero");
	if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
		return -1;
	/* A sandbox, such as gVisor, refuses the exchange before it looks for a `zero`. */
	if (renameat(top, "zero", top, BEFORE) && errno != ENOENT)
		return -1;
	if (!renameat(top, PARTIAL, top, "zero"))
		return 0;
	code = errno;
	(void)renameat(top, BEFORE, top, "zero");
	errno = code;
	return -1;
}

int tree_commit(struct tree *tree, struct nvs_error *error)
{
	int rc;

	assert(tree->created);
	if (fsync(tree->zero))
		return tree_failed(tree, "make the names durable in", PARTIAL, error);
	if (take_name(tree->top))
		return tree_failed(tree, "rename to zero the directory " PARTIAL, "files", error);
	tree->created = false;
	if (fsync(tree->top))
		return tree_failed(tree, "make the new names durable in", ".", error);
	rc = remove_made(tree, PARTIAL, error);
	return rc ? rc : remove_made(tree, BEFORE, error);
}

void tree_close(struct tree *tree)
{
	if (tree->created)
		remove_made(tree, PARTIAL, NULL);
	if (tree->zero >= 0)
		close(tree->zero);
	if (tree->top >= 0)
		close(tree->top);
	*tree = (struct tree){.top = -1, .zero = -1};
}
