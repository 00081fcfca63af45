/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies before the data of a member: the copies of its label, and on a raw device manifests and
 * what another program has written over them. The newest valid copy counts: one that is damaged or
 * unreadable costs nothing.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "store/disk.h"
#include "store/manifest.h"
#include "store/member/internal.h"

/* ---- A raw device ---- */

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

/* The number of the newest valid header of a manifest; 0: there is none. */
static uint64_t newest_on_device(const struct member *member)
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

/*
 * -EMEDIUMTYPE: one copy of a raw device's label is valid, and what lies beside it is recognized as
 * another program's, which has left that copy in place.
 */
static int check_beside_label(const struct member *member, const uint8_t first[LABEL_BYTES],
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

/* ---- Reading a label ---- */

/* What the drive has in place of one copy. */
struct found_label {
	uint8_t bytes[LABEL_BYTES];
	struct label label;
	int rc; /* of label_decode(), or the error of reading */
	struct nvs_error why;
};

/* Another program may have been given a raw device since, and overwritten the first copy alone. */
static bool may_be_overwritten(const struct member *member, const struct found_label *found,
			       const struct label *label)
{
	if (member->kind != MEMBER_RAW || !found->rc || found->rc == -EUCLEAN)
		return false;
	if (found->rc != -EMEDIUMTYPE)
		return true;

	uint8_t whole[LABEL_BYTES];
	unsigned set = 0, same = 0;

	/* A damaged label still has most of what identifies the store; another program's bytes,
	 * which may leave a later copy in place, do not. */
	label_encode(label, whole);
	for (unsigned i = 0; i < 64; i++) {
		set += whole[i] != 0;
		same += whole[i] && whole[i] == found->bytes[i];
	}
	return 2 * same < set;
}

/* What is there of a copy that is not valid, in place of a label. */
static const char *in_place(const struct found_label *found)
{
	switch (found->rc) {
	case 0:
		return "the label of a store that is not kept";
	case -ENODATA:
		return "zeros";
	case -EMEDIUMTYPE:
		return "no label";
	case -EUCLEAN:
		return "a damaged label";
	case -EPROTONOSUPPORT:
		return "another version's label";
	default:
		return "nothing readable";
	}
}

static int lost_labels(const struct member *member, const struct found_label *found,
		       struct nvs_error *error)
{
	uint64_t newest = member->kind == MEMBER_RAW ? newest_on_device(member) : 0;
	char manifests[64] = "";

	static_assert(LABEL_COPY_COUNT == 2, "the error names two copies");
	if (newest)
		snprintf(manifests, sizeof(manifests), ", but there is manifest number %" PRIu64,
			 newest);
	return error_set(
		error, -EUCLEAN,
		"the label of the store at %s is damaged or missing, and so is its copy%s%s%s (at "
		"offset 0: %s; at %" PRIu64 ": %s): if this is the right path, restore the store "
		"from a copy, or remove it (nvswap store remove) if it is not needed",
		member->path, member->has_manifests ? ", but manifests are in " : "",
		member->has_manifests ? member->directory : "", manifests, in_place(&found[0]),
		LABEL_DISTANCE, in_place(&found[1]));
}

/* `found` is the copy that explains most. */
static int refuse_label(const struct member *member, const struct found_label *found,
			struct nvs_error *error)
{
	if (found->rc == -EPROTONOSUPPORT)
		return error_set(error, -EMEDIUMTYPE,
				 "the store at %s was made by another version of nvswap, in a "
				 "format unknown to this one: use that version, or, if the "
				 "store is not needed, remove %s",
				 member->path,
				 member->kind == MEMBER_RAW ? "its labels (wipe the first 2 MiB)"
							    : member->directory);
	/* The reason names path and offset. */
	if (found->rc != -EMEDIUMTYPE)
		return error_cause_of(
			error, &found->why,
			error_about(error, found->rc, found->why.subject, 0, found->why.offset,
				    "%s; neither copy of the label that a store has there can be "
				    "read: try again once the drive can be read (see the kernel's "
				    "log); if it stays so, restore the store from a copy, or "
				    "remove it (nvswap store remove) if it is not needed",
				    found->why.text));
	if (member->kind == MEMBER_FILE)
		return member_refuse(error, member->path,
				     "does not begin with a label of nvswap's");
	return member_refuse_device(error, member->path, "");
}

/* How well each finding explains why no copy is valid; the highest is told. */
static unsigned explains(const struct member *member, const struct found_label *found,
			 unsigned copy)
{
	switch (found->rc) {
	case 0:
	case -ENODATA:
		return 0;
	case -EPROTONOSUPPORT:
		return copy ? 2 : 4;
	case -EMEDIUMTYPE:
		/* A device without a label is looked at as a whole. */
		return copy && member->kind == MEMBER_RAW ? 0 : 1;
	case -EUCLEAN:
		return 3;
	default:
		return 2;
	}
}

/* Of two valid copies the later one was written by a commit that was cut off. */
static bool is_newer(const struct label *label, const struct label *than)
{
	return label->generation != than->generation ? label->generation > than->generation
						     : label->kept && !than->kept;
}

int member_read_label(struct member *member, struct nvs_error *error)
{
	struct found_label found[LABEL_COPY_COUNT], *best = NULL, *most = &found[0];
	unsigned rank = 0;
	int rc;

	member_open_check(member);
	for (unsigned i = 0; i < LABEL_COPY_COUNT; i++) {
		found[i].why = (struct nvs_error){.size = sizeof(found[i].why)};
		found[i].rc = disk_read(member->fd, member->path, found[i].bytes, LABEL_BYTES,
					i * LABEL_DISTANCE, &found[i].why);
		if (found[i].rc)
			memset(found[i].bytes, 0, LABEL_BYTES);
		else
			found[i].rc = label_decode(found[i].bytes, &found[i].label);
		if (!found[i].rc && (!best || is_newer(&found[i].label, &best->label)))
			best = &found[i];
	}
	/* An older version knows only the first place. */
	if (!best || found[0].rc == -EPROTONOSUPPORT) {
		for (unsigned i = 0; i < LABEL_COPY_COUNT; i++) {
			unsigned mine = explains(member, &found[i], i);

			member->copies[i] = LABEL_ABSENT;
			most = mine > rank ? &found[i] : most;
			rank = (unsigned)max_u64(rank, mine);
		}
		/* A store was there if a label is damaged, or others count on it. */
		if (most->rc == -EUCLEAN || ((most->rc == -ENODATA || most->rc == -EMEDIUMTYPE) &&
					     (member->expected || (member->kind == MEMBER_RAW &&
								   newest_on_device(member)))))
			return lost_labels(member, found, error);
		if (rank)
			return refuse_label(member, most, error);
		member->blank = true;
		return 0;
	}
	if (may_be_overwritten(member, &found[0], &best->label)) {
		rc = check_beside_label(member, found[0].bytes, error);
		if (rc)
			return rc;
	}
	/*
	 * Manifests are written once all labels say kept: these have lost what was written since.
	 */
	if (!best->label.kept && !best->label.index &&
	    (member->has_manifests || (member->kind == MEMBER_RAW && newest_on_device(member))))
		return lost_labels(member, found, error);
	member->label = best->label;
	for (unsigned i = 0; i < LABEL_COPY_COUNT; i++)
		member->copies[i] = found[i].rc ? LABEL_DAMAGED
				    : memcmp(found[i].bytes, best->bytes, LABEL_BYTES) != 0
					    ? LABEL_STALE
					    : LABEL_WHOLE;
	member->blank = false;
	return 0;
}

/* ---- Writing ---- */

static int write_copy(struct member *member, unsigned copy, const uint8_t *bytes,
		      struct nvs_error *error)
{
	int rc;

	/* A crash damages this copy, so it must not be the only one that has what it has. */
	assert(member->copies[copy] != LABEL_WHOLE);
	rc = disk_write(member->fd, member->path, bytes, LABEL_BYTES, copy * LABEL_DISTANCE, error);
	disk_count(&member->written, LABEL_BYTES);
	rc = rc ?: disk_sync(member->fd, member->path, error);
	/* After an error it is unknown what the drive has. */
	member->copies[copy] = rc ? LABEL_DAMAGED : LABEL_WHOLE;
	return rc;
}

int member_write_label(struct member *member, struct nvs_error *error)
{
	uint8_t bytes[LABEL_BYTES];
	struct label again;
	int rc = 0;

	member_open_check(member);
	assert(!member->read_only && member->kind != MEMBER_MEMORY);
	label_encode(&member->label, bytes);
	/* A later run reads what is written here. */
	assert(!label_decode(bytes, &again));
	for (unsigned i = 0; i < LABEL_COPY_COUNT; i++)
		if (member->copies[i] == LABEL_WHOLE)
			member->copies[i] = LABEL_STALE;
	for (unsigned i = 0; i < LABEL_COPY_COUNT && !rc; i++)
		if (member->copies[i] == LABEL_DAMAGED)
			rc = write_copy(member, i, bytes, error);
	for (unsigned i = 0; i < LABEL_COPY_COUNT && !rc; i++)
		if (member->copies[i] != LABEL_WHOLE)
			rc = write_copy(member, i, bytes, error);
	if (!rc)
		member->blank = false;
	assert(rc ||
	       (!member_has_copy(member, LABEL_STALE) && !member_has_copy(member, LABEL_DAMAGED)));
	return rc;
}

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
