/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvs_path_get_info: facts about a directory, file or block device, and the drive below it. The
 * only file that it creates is an unnamed one in the directory, to probe direct I/O.
 */
#include <fcntl.h>
#include <libgen.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/numbers.h"
#include "base/struct_size.h"
#include "base/text.h"
#include "base/threads/cancel.h"
#include "topo/topo.h"

int path_missing(const char *path, struct nvs_error *error)
{
	char parent[sizeof(((struct nvs_path_info *)0)->path)];
	const char *why = path_stands_for(path);
	struct stat st;

	if (why)
		return error_cause(error, NVS_CAUSE_OTHER, path,
				   error_about(error, -ENOENT, "nvme_path", 0, 0, "nvme_path %s %s",
					       path, why));
	/* Names the part of the path that exists, to show a typing error. */
	snprintf(parent, sizeof(parent), "%s", path);
	do {
		/* dirname cuts its argument or returns a constant string. */
		const char *up = dirname(parent);

		if (up != parent)
			strcpy(parent, up);
	} while (stat(parent, &st) && strcmp(parent, "/") != 0 && strcmp(parent, ".") != 0);
	return error_cause(
		error, NVS_CAUSE_OTHER, path,
		error_about(
			error, -ENOENT, "nvme_path", 0, 0,
			path_has_variable(path)
				? "nvme_path %s does not exist (%s, above it, does): a shell alone "
				  "replaces the variable in it: write the path out"
				: "nvme_path %s does not exist (%s, above it, does): is the drive "
				  "mounted? If it is, create the directory: mkdir -p '%s'",
			path, parent, path));
}

static int unreachable(const char *path, int code, struct nvs_error *error)
{
	const char *remedy = "";

	if (code == -ENOENT)
		return path_missing(path, error);
	if (code == -EACCES || code == -EPERM)
		remedy = "; it must be readable and writable by the user that runs nvswap";
	else if (code == -EROFS)
		remedy = "; remount it for writing or use another path";
	else if (code == -EOPNOTSUPP)
		remedy = "; its file system can't hold files; use a directory on a drive";
	else if (code == -ENOMEDIUM)
		remedy = "; the device has size 0; use one with a medium";
	else if (code == -ENOTDIR)
		remedy = "; a parent of the path is not a directory";
	return error_about(error, code, "nvme_path", 0, 0, "%s: %s%s", path, nvs_strerror(code),
			   remedy);
}

/* Direct I/O is a property of files, so probe a directory with an unnamed file in it. */
static int open_unnamed(const char *directory)
{
	char path[sizeof(((struct nvs_path_info *)0)->path) + 16];
	int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600), rc;

	if (fd >= 0) {
		/* As the store does for its files. */
		cow_turn_off(fd);
		return fd;
	}
	/* A kernel without O_TMPFILE returns EISDIR. */
	if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)
		return -errno;
	snprintf(path, sizeof(path), "%s/.nvswap-XXXXXX", directory);
	fd = mkostemp(path, O_CLOEXEC);
	if (fd >= 0) {
		unlink(path);
		return fd;
	}
	/* The directory exists: ENOENT means a file system that can't create files, such as /proc.
	 * Sysfs answers as if rights were missing. */
	rc = -errno;
	fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (rc == -ENOENT || (fd >= 0 && magic_of(fd) == SYSFS_MAGIC))
		rc = -EOPNOTSUPP;
	if (fd >= 0)
		close(fd);
	return rc;
}

static int inspect_file(int fd, struct nvs_path_info *info)
{
	struct dio_caps caps;
	struct mount mount;
	struct stat st;
	int rc;

	if (fstat(fd, &st))
		return -errno;
	info->block_device = S_ISBLK(st.st_mode);
	if (info->block_device)
		snprintf(info->filesystem, sizeof(info->filesystem), "block device");
	else if (mount_of(fd, &mount))
		snprintf(info->filesystem, sizeof(info->filesystem), "%s", mount.type);
	rc = dio_probe(fd, &caps);
	if (rc)
		return rc;
	if (space_not_held(fd))
		snprintf(info->reserve_fails, sizeof(info->reserve_fails), "%s",
			 space_not_held(fd));
	info->direct = caps.direct;
	info->dio_from_statx = caps.from_statx;
	info->dio_mem_align = caps.mem_align;
	info->dio_offset_align = caps.offset_align;

	struct statvfs fs;

	if (info->block_device) {
		if (ioctl(fd, BLKGETSIZE64, &info->total_bytes))
			return -errno;
		if (!info->total_bytes)
			return -ENOMEDIUM;
		/* A store takes the whole raw device. */
		info->free_bytes = info->total_bytes;
		return 0;
	}
	if (fstatvfs(fd, &fs))
		return -errno;
	info->total_bytes = (uint64_t)fs.f_blocks * fs.f_frsize;
	info->free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
	return 0;
}

/* Sets *limit to the drive's if that is known and lower, or the first one; 0: unknown. */
static void lower_limit(uint32_t *limit, const char *device, const char *attribute, uint64_t unit)
{
	uint64_t own = min_u64(device_attribute(device, attribute, 0), UINT32_MAX / unit) * unit;

	if (own && (!*limit || own < *limit))
		*limit = (uint32_t)own;
}

/* Of several drives, report all names, the tightest limits, and the rest of the first drive. */
static void inspect_drive(const char *device, struct nvs_path_info *info)
{
	size_t used = strlen(info->device), name = strlen(device);

	if (used + (used > 0) + name < sizeof(info->device)) {
		strcat(info->device, used ? "," : "");
		strcat(info->device, device);
	}
	if (!used) {
		sysfs_text(info->model, sizeof(info->model), SYSFS "/block/%s/device/model",
			   device);
		sysfs_text(info->scheduler, sizeof(info->scheduler),
			   SYSFS "/block/%s/queue/scheduler", device);
		sysfs_choice(info->scheduler);
	}
	info->rotational |= device_attribute(device, "queue/rotational", 0) != 0;
	info->logical_block_bytes = max_u64(
		info->logical_block_bytes, device_attribute(device, "queue/logical_block_size", 0));
	info->physical_block_bytes =
		max_u64(info->physical_block_bytes,
			device_attribute(device, "queue/physical_block_size", 0));
	lower_limit(&info->max_io_bytes, device, "queue/max_sectors_kb", 1024);
	lower_limit(&info->max_hw_io_bytes, device, "queue/max_hw_sectors_kb", 1024);
	lower_limit(&info->nr_requests, device, "queue/nr_requests", 1);
	lower_limit(&info->max_segments, device, "queue/max_segments", 1);
}

static int describe_path(const char *path, struct nvs_path_info *info, struct nvs_error *error)
{
	int fd, rc;

	*info = (struct nvs_path_info){.size = sizeof(*info), .numa_node = -1};
	if (!path[0])
		return error_about(error, -EINVAL, "nvme_path", 0, 0,
				   "the path is empty; use a directory, a file or a block device");
	if (strlen(path) >= sizeof(info->path))
		return error_about(error, -ENAMETOOLONG, "nvme_path", 0, 0,
				   "a path of %zu bytes is too long; the limit is %zu",
				   strlen(path), sizeof(info->path) - 1);

	struct stat st;

	/* A descriptor to probe the path with. */
	if (stat(path, &st))
		return unreachable(path, -errno, error);
	if (S_ISDIR(st.st_mode)) {
		fd = open_unnamed(path);
	} else if (S_ISREG(st.st_mode) || S_ISBLK(st.st_mode)) {
		fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		fd = fd < 0 ? -errno : fd;
	} else {
		return error_about(
			error, -EINVAL, "nvme_path", 0, 0,
			"%s is neither a directory nor a file nor a block device; use one of these",
			path);
	}
	fd = fd < 0 ? unreachable(path, fd, error) : fd;
	if (fd < 0)
		return fd;
	strcpy(info->path, path);
	rc = inspect_file(fd, info);
	if (rc)
		unreachable(path, rc, error);
	else {
		char names[DEVICES_MAX][64];
		const char *devices[DEVICES_MAX];
		unsigned n = path_devices(fd, names);
		struct topo *topo;

		for (unsigned i = 0; i < n; i++) {
			devices[i] = names[i];
			inspect_drive(names[i], info);
		}
		if (n && !topo_open(&topo, NULL, NULL)) {
			info->numa_node = topo_node_of_devices(topo, devices, n);
			topo_close(topo);
		}
	}
	close(fd);
	return rc;
}

int nvs_path_get_info(const char *path, struct nvs_path_info *info, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct nvs_path_info full;
	int rc;

	if (!path || !struct_sized(info))
		return error_set(error, -EINVAL, "path or info is NULL, or info->size is not set");
	rc = describe_path(path, &full, error);
	return rc ? rc : struct_out(info, &full, sizeof(full));
}
