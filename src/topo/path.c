/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts about an open file: direct I/O and its alignments, its mount, the drives below it, and
 * whether space reserved for it holds. Reads /proc/self where no system call gives the answer;
 * changes nothing but the flags of a file in cow_turn_off().
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/files.h"
#include "topo/topo.h"

#ifndef STATX_DIOALIGN
#define STATX_DIOALIGN 0x2000U
#endif

/*
 * Offsets of stx_dio_mem_align and stx_dio_offset_align, because headers that are older than the
 * running kernel lack these fields.
 */
#define STATX_DIO_MEM_ALIGN_AT	  0x98
#define STATX_DIO_OFFSET_ALIGN_AT 0x9c

/* linux/magic.h lacks these. */
#define MAGIC_ZFS      0x2fc12fc1u
#define MAGIC_BCACHEFS 0xca451a4eu

#define EXTENTS_AT_ONCE 64
#define EXTENTS_MAX	(1u << 16) /* looked at, of a file in many pieces */

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
	char path[128];

	snprintf(path, sizeof(path), SYSFS "/block/%s/%s", device, attribute);
	return file_number(path, "", otherwise);
}

/*
 * ---- Whether reserved space holds ----
 *
 * A file system that copies on write puts each overwrite elsewhere, so writing to reserved bytes
 * can still fail for want of space.
 */

/* Whether a copy or snapshot has some of the file's blocks too: reflinks, FIEMAP_EXTENT_SHARED. */
static bool shares_blocks(int fd)
{
	union {
		struct fiemap map;
		char room[sizeof(struct fiemap) + EXTENTS_AT_ONCE * sizeof(struct fiemap_extent)];
	} got;
	uint64_t from = 0;

	for (unsigned seen = 0; seen < EXTENTS_MAX; seen += EXTENTS_AT_ONCE) {
		memset(&got, 0, sizeof(got));
		got.map.fm_start = from;
		got.map.fm_length = FIEMAP_MAX_OFFSET - from;
		got.map.fm_extent_count = EXTENTS_AT_ONCE;
		if (ioctl(fd, FS_IOC_FIEMAP, &got.map))
			return false;
		for (unsigned i = 0; i < got.map.fm_mapped_extents; i++) {
			const struct fiemap_extent *extent = &got.map.fm_extents[i];

			if (extent->fe_flags & FIEMAP_EXTENT_SHARED)
				return true;
			if (extent->fe_flags & FIEMAP_EXTENT_LAST)
				return false;
			from = extent->fe_logical + extent->fe_length;
		}
		if (!got.map.fm_mapped_extents)
			return false;
	}
	return false;
}

const char *cow_reason(uint32_t magic, bool no_cow, bool shared)
{
	if (magic == BTRFS_SUPER_MAGIC && !no_cow)
		return "btrfs copies the file on write (it has no attribute C, see chattr)";
	if (magic == MAGIC_ZFS)
		return "ZFS copies on write";
	if (magic == MAGIC_BCACHEFS)
		return "bcachefs copies on write";
	if (magic == NILFS_SUPER_MAGIC)
		return "NILFS copies on write";
	if (shared)
		return "the file shares blocks with a copy or a snapshot";
	return NULL;
}

const char *space_not_held(int fd)
{
	struct stat st;
	int flags;

	if (fstat(fd, &st) || !S_ISREG(st.st_mode))
		return NULL;
	if (ioctl(fd, FS_IOC_GETFLAGS, &flags))
		flags = 0;
	return cow_reason(magic_of(fd), flags & FS_NOCOW_FL, shares_blocks(fd));
}

void cow_turn_off(int fd)
{
	int flags = 0;

	if (magic_of(fd) != BTRFS_SUPER_MAGIC || ioctl(fd, FS_IOC_GETFLAGS, &flags))
		return;
	flags |= FS_NOCOW_FL;
	/* A file with a byte in it, or a file system that compresses, refuses: space_not_held(). */
	(void)ioctl(fd, FS_IOC_SETFLAGS, &flags);
}
