/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A member that is a raw block device. One that holds anything but zeros or a label is refused.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "store/disk.h"
#include "store/manifest.h"
#include "store/member/internal.h"

/* The rest of the bytes behind the label that must be free on a raw device. */
static int check_wiped(struct member *member, struct nvs_error *error)
{
	uint8_t *bytes = malloc(LABEL_AREA_BYTES);
	int rc;

	assert(member->kind == MEMBER_RAW);
	assert(member->blank);
	if (!bytes)
		return error_set(error, -ENOMEM, "out of memory while opening %s", member->path);
	rc = disk_read(member->fd, member->path, bytes, LABEL_AREA_BYTES, 0, error);
	if (!rc && (bytes[0] || memcmp(bytes, bytes + 1, LABEL_AREA_BYTES - 1) != 0))
		rc = error_set(error, -EMEDIUMTYPE,
			       "%s holds something that is not nvswap's (its first 2 MiB is not "
			       "empty): if nothing on it is needed, wipe it first: wipefs -a %s && "
			       "dd if=/dev/zero of=%s bs=1M count=2",
			       member->path, member->path, member->path);
	free(bytes);
	return rc;
}

static int measure_device(struct member *member, unsigned index, struct nvs_error *error)
{
	uint64_t nbytes;
	char have[32], need[32];

	assert(member->kind == MEMBER_RAW && member->fd >= 0);
	assert(index < NVS_PATHS_MAX);
	if (ioctl(member->fd, BLKGETSIZE64, &nbytes))
		return member_cannot(error, "learn the size of", member->path, -errno);
	member->base = LABEL_AREA_BYTES;
	if (index == 0)
		member->base += MANIFEST_SLOT_COUNT * RAW_MANIFEST_BYTES;
	if (nbytes < member->base + UNIT_MAX)
		return error_set(error, member->read_only ? -ENODATA : -ENOSPC,
				 "%s has %s, and a store needs more than %s of it", member->path,
				 size_text(nbytes, have), size_text(member->base, need));
	member->capacity = nbytes - member->base;
	return 0;
}

/* The kernel opens such a device for writing, and refuses each write. */
static int check_writable(const struct member *member, struct nvs_error *error)
{
	int read_only = 0;

	assert(member->kind == MEMBER_RAW && member->fd >= 0);
	if (member->read_only)
		return 0;
	if (ioctl(member->fd, BLKROGET, &read_only))
		return member_cannot(error, "learn whether writes are allowed to", member->path,
				     -errno);
	if (!read_only)
		return 0;
	return error_set(error, -EROFS,
			 "%s is read-only: allow writes (blockdev --setrw %s), or open the kept "
			 "store on it with \"nvswap\": {\"read_only\": true}",
			 member->path, member->path);
}

int member_open_device(struct member *members, unsigned index, const char *path,
		       const struct stat *st, struct nvs_error *error)
{
	struct member *member = &members[index];
	uint64_t since = clock_ns();
	const int access = member->read_only ? O_RDONLY : O_RDWR | O_EXCL;
	struct stat opened;
	int rc;

	assert(S_ISBLK(st->st_mode));
	assert(member->fd < 0 && member->parent_fd < 0);
	member->kind = MEMBER_RAW;
	member->dev = st->st_rdev;
	rc = member_compose(&member->path, error, "%s", path);
	if (!rc)
		rc = member_named_twice(members, index, error);
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
	rc = check_writable(member, error);
	if (!rc)
		rc = member_lock(member, error);
	if (!rc)
		rc = measure_device(member, index, error);
	member->expected = index && members[0].label.kept && index < members[0].label.count;
	if (!rc)
		rc = member_read_label(member, error);
	return rc || !member->blank ? rc : check_wiped(member, error);
}

/* ---- What is there ---- */

static uint64_t manifest_place(unsigned i)
{
	assert(i < MANIFEST_SLOT_COUNT);
	return LABEL_AREA_BYTES + i * RAW_MANIFEST_BYTES;
}

/* 0: there is no valid header in this place, or it can't be read. */
static uint64_t manifest_number(const struct member *member, unsigned i)
{
	struct nvs_error error = {.size = sizeof(error)};
	uint8_t bytes[MANIFEST_HEADER_BYTES];
	struct manifest_header header;

	assert(member->kind == MEMBER_RAW && member->fd >= 0);
	if (disk_read(member->fd, member->path, bytes, sizeof(bytes), manifest_place(i), &error) ||
	    manifest_decode_header(bytes, &header))
		return 0;
	manifest_header_check(&header);
	return header.generation;
}

uint64_t member_newest_on_device(const struct member *member)
{
	uint64_t newest = 0;

	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT; i++) {
		uint64_t number = manifest_number(member, i);

		newest = number > newest ? number : newest;
	}
	return newest;
}

/* What other programs write over the first label, leaving the rest of the labels' area empty. */
static const struct signature {
	unsigned at, nbytes;
	const char *bytes, *of;
} signatures[] = {
	{0, 4, "\xfc\x4e\x2b\xa9", "a RAID member"},
	{510, 2, "\x55\xaa", "a boot sector or partition table"},
	{512, 8, "EFI PART", "a partition table"},
	{4086, 10, "SWAPSPACE2", "swap space"},
};

/* What wrote these bytes; NULL: they have no known signature. */
static const char *signed_by(const uint8_t first[LABEL_BYTES])
{
	for (size_t i = 0; i < sizeof(signatures) / sizeof(signatures[0]); i++) {
		const struct signature *signature = &signatures[i];

		assert(signature->at + signature->nbytes <= LABEL_BYTES);
		if (!memcmp(first + signature->at, signature->bytes, signature->nbytes))
			return signature->of;
	}
	return NULL;
}

int member_check_beside_label(const struct member *member, const uint8_t first[LABEL_BYTES],
			      struct nvs_error *error)
{
	const size_t rest = LABEL_DISTANCE - LABEL_BYTES;
	const char *other = signed_by(first);
	uint8_t *bytes = malloc(rest);
	int rc = 0;

	assert(member->kind == MEMBER_RAW);
	if (!bytes)
		return error_set(error, -ENOMEM, "out of memory while opening %s", member->path);
	for (unsigned i = 0; i < LABEL_COPY_COUNT && !rc && !other; i++) {
		rc = disk_read(member->fd, member->path, bytes, rest,
			       i * LABEL_DISTANCE + LABEL_BYTES, error);
		if (!rc && (bytes[0] || memcmp(bytes, bytes + 1, rest - 1) != 0))
			other = "data where a store has zeros";
	}
	free(bytes);
	if (rc || !other)
		return rc;
	return error_set(error, -EMEDIUMTYPE,
			 "%s has one copy of the label of a store, and beside it %s: another "
			 "program has written to the device since, and nvswap does not touch it; "
			 "restore the store from a copy on another device",
			 member->path, other);
}

/* ---- Clearing ---- */

static bool has_label(const struct member *member, unsigned i)
{
	struct nvs_error error = {.size = sizeof(error)};
	uint8_t bytes[LABEL_BYTES];
	struct label label;
	int rc = disk_read(member->fd, member->path, bytes, sizeof(bytes), i * LABEL_DISTANCE,
			   &error);

	assert(i < LABEL_COPY_COUNT);
	rc = rc ? rc : label_decode(bytes, &label);
	return !rc || rc == -EUCLEAN || rc == -EPROTONOSUPPORT;
}

/*
 * Manifests first: those without a label are a damaged store. Of a member without a valid label
 * only what is recognized is cleared, since the rest may be another program's.
 */
int member_clear_places(const struct member *member, int fd, struct nvs_error *error)
{
	static const uint8_t zeros[LABEL_BYTES];
	const bool known = member_has_copy(member, LABEL_WHOLE);
	int rc = 0;

	assert(member->kind == MEMBER_RAW);
	assert(fd >= 0);
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT && !rc; i++)
		if (manifest_number(member, i))
			rc = disk_write(fd, member->path, zeros, sizeof(zeros), manifest_place(i),
					error);
	if (!rc)
		rc = disk_sync(fd, member->path, error);
	/* The second first: an older version knows only the first. */
	for (unsigned i = LABEL_COPY_COUNT; i-- > 0 && !rc;)
		if (known || has_label(member, i))
			rc = disk_write(fd, member->path, zeros, sizeof(zeros), i * LABEL_DISTANCE,
					error);
	return rc ? rc : disk_sync(fd, member->path, error);
}

void member_clear_device(struct member *member, const struct nvs_log *log)
{
	struct nvs_error error = {.size = sizeof(error)};

	assert(!member->read_only && member->fd >= 0);
	assert(member->disposable);
	if (member_clear_places(member, member->fd, &error))
		log_say(log, NVS_LOG_WARNING, "a label stays on the device: %s", error.text);
}
