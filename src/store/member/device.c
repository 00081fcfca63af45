/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a member that is a raw block device. One that holds anything but zeros or a label is
 * refused.
 */
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/disk.h"
#include "store/member/internal.h"

/* The rest of the bytes behind the label that must be free on a raw device. */
static int check_wiped(struct member *member, struct nvs_error *error)
{
	uint8_t *bytes = malloc(LABEL_AREA_BYTES);
	int rc;

	assert(member->blank);
	if (!bytes)
		return error_set(error, -ENOMEM, "out of memory while opening %s", member->path);
	rc = disk_read(member->fd, member->path, bytes, LABEL_AREA_BYTES, 0, error);
	if (!rc && (bytes[0] || memcmp(bytes, bytes + 1, LABEL_AREA_BYTES - 1) != 0))
		rc = member_refuse_device(error, member->path, " (its first 2 MiB is not empty)");
	free(bytes);
	return rc;
}

int member_open_device(struct member *members, unsigned index, const char *path,
		       const struct stat *st, struct nvs_error *error)
{
	struct member *member = &members[index];
	uint64_t since = clock_ns();
	const int access = member->read_only ? O_RDONLY : O_RDWR | O_EXCL;
	struct stat opened;
	char have[32], need[32];
	uint64_t nbytes;
	int rc, refuses_writes = 0;

	member->kind = MEMBER_RAW;
	member->dev = st->st_rdev;
	rc = member_compose(&member->path, error, "%s", path);
	rc = rc ?: member_named_twice(members, index, error);
	if (rc)
		return rc;
	do
		member->fd = open(path, access | O_CLOEXEC | O_NOCTTY);
	while (member->fd < 0 && errno == EBUSY && member_owner_may_end(since));
	if (member->fd < 0 && errno == EBUSY)
		return error_set(error, -EBUSY,
				 "%s is in use: mounted, part of RAID, LVM or swap, or opened by "
				 "another nvswap; unmount it, or give another device",
				 path);
	if (member->fd < 0)
		return member_cannot(error, "open", path, -errno);
	if (fstat(member->fd, &opened))
		return member_cannot(error, "look at", path, -errno);
	if (!S_ISBLK(opened.st_mode) || opened.st_rdev != member->dev)
		return error_set(error, -EBUSY, "%s became something else while it was opened",
				 path);
	/* The kernel opens a device that is read-only for writing, and refuses each write. */
	if (!member->read_only && ioctl(member->fd, BLKROGET, &refuses_writes))
		return member_cannot(error, "learn whether writes are allowed to", path, -errno);
	if (refuses_writes)
		return error_set(error, -EROFS,
				 "%s is read-only: allow writes (blockdev --setrw %s), or open the "
				 "kept store on it with \"nvswap\": {\"read_only\": true}",
				 path, path);
	rc = member_lock(member, error);
	if (rc)
		return rc;
	if (ioctl(member->fd, BLKGETSIZE64, &nbytes))
		return member_cannot(error, "learn the size of", path, -errno);
	member->base = LABEL_AREA_BYTES + (index ? 0 : MANIFEST_SLOT_COUNT * RAW_MANIFEST_BYTES);
	if (nbytes < member->base + UNIT_MAX)
		return error_set(error, member->read_only ? -ENODATA : -ENOSPC,
				 "%s has %s, and a store needs more than %s of it", path,
				 size_text(nbytes, have), size_text(member->base, need));
	member->capacity = nbytes - member->base;
	member->expected = index && members[0].label.kept && index < members[0].label.count;
	rc = member_read_label(member, error);
	return rc || !member->blank ? rc : check_wiped(member, error);
}
