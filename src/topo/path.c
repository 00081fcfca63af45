/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts about an open file: direct I/O and its alignments, its mount, the drives below it. Reads
 * /proc/self where no system call gives the answer; never writes.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/files.h"
#include "topo/sysfs.h"

#ifndef STATX_DIOALIGN
#define STATX_DIOALIGN 0x2000U
#endif

/*
 * Offsets of stx_dio_mem_align and stx_dio_offset_align, because headers that are older than the
 * running kernel lack these fields.
 */
#define STATX_DIO_MEM_ALIGN_AT	  0x98
#define STATX_DIO_OFFSET_ALIGN_AT 0x9c

static uint32_t statx_word(const struct statx *stx, size_t at)
{
	uint32_t word;

	memcpy(&word, (const char *)stx + at, sizeof(word));
	return word;
}

static bool power_of_two(uint32_t n)
{
	return n && !(n & (n - 1));
}

/* f_type is signed, and some of the magic numbers need its top bit. 0: unknown. */
uint32_t magic_of(int fd)
{
	struct statfs fs;

	return fstatfs(fd, &fs) ? 0 : (uint32_t)fs.f_type;
}

int dio_open(int fd, int flags)
{
	char path[32];

	/* By descriptor, because the name may be gone or may name another file. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	fd = open(path, flags | O_DIRECT | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	return fd;
}

int dio_probe(int fd, struct dio_caps *caps)
{
	struct statx stx;
	uint32_t mem, offset, magic = magic_of(fd);
	/* tmpfs accepts O_DIRECT since Linux 6.6, but still copies. */
	bool in_memory = magic == TMPFS_MAGIC || magic == RAMFS_MAGIC || magic == HUGETLBFS_MAGIC;
	int direct;

	*caps = (struct dio_caps){0};
	memset(&stx, 0, sizeof(stx));
	if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_DIOALIGN, &stx))
		return -errno;
	caps->block_bytes = stx.stx_blksize;
	caps->from_statx = stx.stx_mask & STATX_DIOALIGN;
	if (caps->from_statx) {
		mem = statx_word(&stx, STATX_DIO_MEM_ALIGN_AT);
		offset = statx_word(&stx, STATX_DIO_OFFSET_ALIGN_AT);
	} else if (S_ISBLK(stx.stx_mode) || !in_memory) {
		mem = offset = stx.stx_blksize;
	} else {
		return 0;
	}
	if (!power_of_two(mem) || !power_of_two(offset))
		return 0;
	direct = dio_open(fd, (fcntl(fd, F_GETFL) & O_ACCMODE) | O_NONBLOCK);
	/* -EINVAL if the file does not support O_DIRECT. */
	if (direct < 0)
		return direct == -EINVAL || direct == -ENOENT ? 0 : direct;
	close(direct);
	caps->direct = true;
	caps->mem_align = mem;
	caps->offset_align = offset;
	return 0;
}

bool mount_parse(const char *line, struct mount *mount)
{
	/* "ID parent major:minor root point options [optional...] - type source super-options" */
	const char *rest = strstr(line, " - ");

	*mount = (struct mount){0};
	if (!rest || sscanf(rest, " - %31s %255s", mount->type, mount->source) != 2)
		return false;
	unescape_mount(mount->type);
	unescape_mount(mount->source);
	return true;
}

/*
 * By the ID of the mount that fd was opened through. st_dev does not identify it: a btrfs file has
 * the number of its subvolume, which mountinfo does not list.
 */
bool mount_of(int fd, struct mount *mount)
{
	char path[48], *line = NULL;
	size_t capacity = 0;
	bool found = false;
	uint64_t id;
	FILE *file;

	*mount = (struct mount){0};
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	id = file_number(path, "mnt_id:", UINT64_MAX);
	file = id == UINT64_MAX ? NULL : fopen("/proc/self/mountinfo", "re");
	while (file && !found && getline(&line, &capacity, file) > 0)
		found = strtoull(line, NULL, 10) == id && mount_parse(line, mount);
	if (file)
		fclose(file);
	free(line);
	return found;
}

unsigned path_devices(int fd, char names[DEVICES_MAX][64])
{
	struct mount mount;
	struct stat st;
	dev_t device;

	if (fstat(fd, &st))
		return 0;
	device = S_ISBLK(st.st_mode) ? st.st_rdev : st.st_dev;
	if (major(device) == 0) {
		/* An anonymous device number, as of btrfs: look up the drive by the mount. */
		if (!mount_of(fd, &mount) || mount.source[0] != '/' || stat(mount.source, &st) ||
		    !S_ISBLK(st.st_mode))
			return 0;
		device = st.st_rdev;
	}
	return sysfs_disks(SYSFS, major(device), minor(device), names);
}

uint64_t device_attribute(const char *device, const char *attribute, uint64_t otherwise)
{
	int64_t value = sysfs_number(-1, SYSFS "/block/%s/%s", device, attribute);

	return value < 0 ? otherwise : (uint64_t)value;
}
