/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies before the data of a raw block device: manifests, and what another program has written
 * over them or the labels. It is looked at and, where it is nvswap's, cleared.
 */
#include <stdlib.h>
#include <string.h>

#include "store/disk.h"
#include "store/manifest.h"
#include "store/member/internal.h"

static uint64_t manifest_place(unsigned i)
{
	return LABEL_AREA_BYTES + i * RAW_MANIFEST_BYTES;
}

/* 0: there is no valid header in this place, or it can't be read. */
static uint64_t manifest_number(const struct member *member, unsigned i)
{
	struct nvs_error error = {.size = sizeof(error)};
	uint8_t bytes[MANIFEST_HEADER_BYTES];
	struct manifest_header header;

	if (disk_read(member->fd, member->path, bytes, sizeof(bytes), manifest_place(i), &error) ||
	    manifest_decode_header(bytes, &header))
		return 0;
	manifest_header_check(&header);
	return header.generation;
}

uint64_t member_newest_on_device(const struct member *member)
{
	uint64_t newest = 0;

	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT; i++)
		newest = max_u64(newest, manifest_number(member, i));
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

int member_check_beside_label(const struct member *member, const uint8_t first[LABEL_BYTES],
			      struct nvs_error *error)
{
	const size_t rest = LABEL_DISTANCE - LABEL_BYTES;
	const char *other = NULL;
	uint8_t *bytes = malloc(rest);
	int rc = 0;

	if (!bytes)
		return error_set(error, -ENOMEM, "out of memory while opening %s", member->path);
	for (size_t i = 0; i < COUNT_OF(signatures) && !other; i++)
		if (!memcmp(first + signatures[i].at, signatures[i].bytes, signatures[i].nbytes))
			other = signatures[i].of;
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

/*
 * Manifests first: those without a label are a damaged store. Of a member without a valid label
 * only what is recognized is cleared, since the rest may be another program's.
 */
int member_clear_places(const struct member *member, int fd, struct nvs_error *error)
{
	static const uint8_t zeros[LABEL_BYTES];
	const bool known = member_has_copy(member, LABEL_WHOLE);
	struct nvs_error error_of_copy = {.size = sizeof(error_of_copy)};
	uint8_t bytes[LABEL_BYTES];
	struct label label;
	int rc = 0;

	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT && !rc; i++)
		if (manifest_number(member, i))
			rc = disk_write(fd, member->path, zeros, sizeof(zeros), manifest_place(i),
					error);
	rc = rc ?: disk_sync(fd, member->path, error);
	/* The second first: an older version knows only the first. */
	for (unsigned i = LABEL_COPY_COUNT; i-- > 0 && !rc;) {
		int there = disk_read(member->fd, member->path, bytes, sizeof(bytes),
				      i * LABEL_DISTANCE, &error_of_copy);

		there = there ? there : label_decode(bytes, &label);
		if (known || !there || there == -EUCLEAN || there == -EPROTONOSUPPORT)
			rc = disk_write(fd, member->path, zeros, sizeof(zeros), i * LABEL_DISTANCE,
					error);
	}
	return rc ?: disk_sync(fd, member->path, error);
}

void member_clear_device(struct member *member, const struct nvs_log *log)
{
	struct nvs_error error = {.size = sizeof(error)};

	assert(!member->read_only && member->fd >= 0);
	assert(member->disposable);
	if (member_clear_places(member, member->fd, &error))
		log_say(log, NVS_LOG_WARNING, "a label stays on the device: %s", error.text);
}
