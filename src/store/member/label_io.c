/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and writes the copies of a member's label. The newest valid copy counts: one that is
 * damaged or unreadable costs nothing.
 */
#include <inttypes.h>
#include <stdio.h>

#include "store/disk.h"
#include "store/member/internal.h"

/* What the drive has in place of one copy. */
struct found_label {
	uint8_t bytes[LABEL_BYTES];
	struct label label;
	int rc; /* of label_decode(), or the error of reading */
	struct nvs_error why;
};

static void read_copy(const struct member *member, unsigned copy, struct found_label *found)
{
	found->why = (struct nvs_error){.size = sizeof(found->why)};
	found->rc = disk_read(member->fd, member->path, found->bytes, LABEL_BYTES,
			      copy * LABEL_DISTANCE, &found->why);
	if (found->rc)
		memset(found->bytes, 0, LABEL_BYTES);
	else
		found->rc = label_decode(found->bytes, &found->label);
	/* What was accepted is safe to use as it is. */
	if (!found->rc)
		label_check(&found->label);
}

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
	uint64_t newest = member->kind == MEMBER_RAW ? member_newest_on_device(member) : 0;
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
	return error_set(
		error, -EMEDIUMTYPE,
		"%s holds something that is not nvswap's: if nothing on it is needed, wipe "
		"it first: wipefs -a %s && dd if=/dev/zero of=%s bs=1M count=2",
		member->path, member->path, member->path);
}

/* How well each finding explains why no copy is valid; the highest is told. */
static unsigned explains(const struct member *member, const struct found_label *found,
			 unsigned copy)
{
	switch (found->rc) {
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
		read_copy(member, i, &found[i]);
		if (!found[i].rc && (!best || is_newer(&found[i].label, &best->label)))
			best = &found[i];
	}
	/* An older version knows only the first place. */
	if (!best || found[0].rc == -EPROTONOSUPPORT) {
		for (unsigned i = 0; i < LABEL_COPY_COUNT; i++) {
			unsigned mine = found[i].rc ? explains(member, &found[i], i) : 0;

			member->copies[i] = LABEL_ABSENT;
			if (mine > rank) {
				most = &found[i];
				rank = mine;
			}
		}
		/* A store was there if a label is damaged, or others count on it. */
		if (most->rc == -EUCLEAN ||
		    ((most->rc == -ENODATA || most->rc == -EMEDIUMTYPE) &&
		     (member->expected ||
		      (member->kind == MEMBER_RAW && member_newest_on_device(member)))))
			return lost_labels(member, found, error);
		if (rank)
			return refuse_label(member, most, error);
		member->blank = true;
		return 0;
	}
	if (may_be_overwritten(member, &found[0], &best->label)) {
		rc = member_check_beside_label(member, found[0].bytes, error);
		if (rc)
			return rc;
	}
	/*
	 * Manifests are written once all labels say kept: these have lost what was written since.
	 */
	if (!best->label.kept && !best->label.index &&
	    (member->has_manifests ||
	     (member->kind == MEMBER_RAW && member_newest_on_device(member))))
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
