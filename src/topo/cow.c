/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether space reserved for a file holds: a file system that copies on write puts each overwrite
 * elsewhere, so writing to reserved bytes can still fail for want of space. Reads the file's flags
 * and extents; changes them only in cow_turn_off().
 */
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "topo/topo.h"

/* linux/magic.h lacks these. */
#define MAGIC_ZFS      0x2fc12fc1u
#define MAGIC_BCACHEFS 0xca451a4eu

#define EXTENTS_AT_ONCE 64
#define EXTENTS_MAX	(1u << 16) /* looked at, of a file in many pieces */

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
