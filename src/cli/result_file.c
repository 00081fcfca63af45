/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks the directories of a path one by one, because O_NOFOLLOW is about the last part alone. Each
 * step is relative to an open directory, so a directory that is renamed meanwhile changes nothing.
 */
#include "cli/result_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <linux/magic.h>

#include "nvswap.h"

#define DIRECTORY (O_PATH | O_DIRECTORY | O_CLOEXEC)

static bool is_ours(uid_t uid)
{
	return uid == 0 || uid == geteuid();
}

/* Whether nobody else can have made or replaced this link in the directory. */
static bool is_trusted(int directory, const char *name)
{
	struct stat link, in;

	if (fstatat(directory, name, &link, AT_SYMLINK_NOFOLLOW) || fstat(directory, &in))
		return false;
	if (!is_ours(link.st_uid) || !is_ours(in.st_uid))
		return false;
	return !(in.st_mode & (S_IWGRP | S_IWOTH)) || in.st_mode & S_ISVTX;
}

static bool is_link(int directory, const char *name)
{
	struct stat st;

	return !fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) && S_ISLNK(st.st_mode);
}

static int open_in(int from, const char *name, int flags)
{
	int directory = openat(from, name, DIRECTORY | flags);

	if (directory >= 0)
		return directory;
	return -errno;
}

/* Closes `from` and returns the directory `name` in it. */
static int enter(int from, const char *name)
{
	int directory = open_in(from, name, O_NOFOLLOW);

	/* O_DIRECTORY makes a link ENOTDIR. */
	if (directory < 0 && is_link(from, name))
		directory = is_trusted(from, name) ? open_in(from, name, 0) : -ELOOP;
	close(from);
	return directory;
}

/*
 * Opens the directory of the path's last part, and copies that part to `name`.
 */
static int open_directory(const char *path, char name[NAME_MAX + 1])
{
	int directory = open(*path == '/' ? "/" : ".", DIRECTORY);
	size_t length;

	if (directory < 0)
		return -errno;
	for (;; path += length) {
		path += strspn(path, "/");
		length = strcspn(path, "/");
		if (length > NAME_MAX) {
			close(directory);
			return -ENAMETOOLONG;
		}
		memcpy(name, path, length);
		name[length] = '\0';
		if (!path[length])
			return directory;
		directory = enter(directory, name);
		if (directory < 0)
			return directory;
	}
}

/* A descriptor of a process in /proc: the kernel's own link. */
static bool is_descriptor(int directory)
{
	struct statfs fs;

	return !fstatfs(directory, &fs) && fs.f_type == PROC_SUPER_MAGIC;
}

/* /dev/stdout and its like are links of root to descriptors. */
static bool is_device_link(int directory, const char *name)
{
	char target[PATH_MAX];
	ssize_t length = readlinkat(directory, name, target, sizeof(target) - 1);

	if (length <= 0 || !is_trusted(directory, name))
		return false;
	target[length] = '\0';
	return !strncmp(target, "/proc/self/fd/", 14);
}

int result_open(const char *path)
{
	char name[NAME_MAX + 1];
	int directory = open_directory(path, name), flags = 0, fd;

	if (directory < 0)
		return directory;
	if (!is_descriptor(directory) && !is_device_link(directory, name))
		flags = O_NOFOLLOW;
	fd = openat(directory, name, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);
	if (fd < 0)
		fd = -errno;
	close(directory);
	return fd;
}

const char *result_strerror(int rc)
{
	return rc == -ELOOP
		       ? "it is, or lies behind, a symbolic link, which is not followed; name the "
			 "file itself"
		       : nvs_strerror(rc);
}
