/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and replaces the manifest. Both copies of a turn are overwritten in place and made durable
 * before the label names them; checksums detect a torn one. Then they are marked as committed,
 * which changes only the header, within a sector. Nothing else of the current turn's is ever
 * written.
 *
 * A crash never leaves a marked manifest whose number is above the label's. A label below a marked
 * manifest has therefore lost a write, or is of an earlier commit.
 */
#include "store/slots.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/files.h"
#include "store/disk.h"
#include "store/member/internal.h"

int slots_open(struct slots *slots, const struct member *member, struct nvs_error *error)
{
	int rc = 0;

	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT; i++)
		slots->slot[i] = (struct slot){.fd = -1};
	slots->current = MANIFEST_TURN_COUNT;
	for (unsigned i = 0; !rc && i < MANIFEST_SLOT_COUNT; i++) {
		struct slot *slot = &slots->slot[i];
		bool owned = member->kind == MEMBER_FILE;
		char name[MANIFEST_NAME + 1] = "/";

		manifest_name(i, name + 1);
		if (member_compose(&slot->path, error, "%s%s",
				   owned ? member->directory : member->path, owned ? name : ""))
			return -ENOMEM;
		slot->owned = owned;
		slot->capacity = owned ? MANIFEST_BYTES_MAX : RAW_MANIFEST_BYTES;
		slot->base = owned ? 0 : LABEL_AREA_BYTES + i * RAW_MANIFEST_BYTES;
		if (!owned)
			slot->fd = member->fd;
		else
			rc = member_open_manifest(member, i, false, &slot->fd, error);
		rc = rc == -ENOENT ? 0 : rc;
	}
	if (!rc)
		slots_check(slots);
	return rc;
}

int slots_complete(struct slots *slots, const struct member *member, bool fresh,
		   struct nvs_error *error)
{
	int rc = 0;

	slots_check(slots);
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT && !rc; i++) {
		struct slot *slot = &slots->slot[i];

		if (!slot->owned)
			continue;
		rc = member_open_manifest(member, i, true, &slot->fd, error);
		if (!rc && fresh && ftruncate(slot->fd, 0))
			rc = error_set(error, -errno, "cannot empty %s: %s", slot->path,
				       nvs_strerror(-errno));
		/* Of no effect unless the file is empty. */
		if (!rc)
			cow_turn_off(slot->fd);
	}
	return rc;
}

void slots_close(struct slots *slots)
{
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT; i++) {
		if (slots->slot[i].owned && slots->slot[i].fd >= 0)
			close(slots->slot[i].fd);
		free(slots->slot[i].path);
		slots->slot[i] = (struct slot){.fd = -1};
	}
}

void slots_check(const struct slots *slots)
{
	assert(slots->current <= MANIFEST_TURN_COUNT);
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT; i++) {
		const struct slot *slot = &slots->slot[i];

		assert(slot->path);
		assert(slot->generation <= slots->highest);
		assert(memchr(slot->why, 0, sizeof(slot->why)));
		assert(slot->owned ? !slot->base && slot->capacity == MANIFEST_BYTES_MAX
				   : slot->base >= LABEL_AREA_BYTES);
		assert(slot->owned == slots->slot[0].owned);
		assert(slot->owned || slot->capacity == RAW_MANIFEST_BYTES);
		/* Regions follow each other. */
		assert(slot->owned || !i ||
		       slots->slot[i - 1].base + RAW_MANIFEST_BYTES == slot->base);
	}
	assert(slots->current == MANIFEST_TURN_COUNT || slots->slot[slots->current].fd >= 0 ||
	       slots->slot[slots->current + MANIFEST_TURN_COUNT].fd >= 0);
	assert(slots->current == MANIFEST_TURN_COUNT || slots->highest);
}

/* ---- Reading ---- */

/* What a slot holds, beside its generation and why it does not count. */
struct found_slot {
	struct manifest manifest;
	bool headed; /* the header is valid, and the file is long enough for it */
	bool whole;  /* the body is valid too */
};

static void refuse_slot(struct slot *slot, const char *why)
{
	snprintf(slot->why, sizeof(slot->why), "%s", why);
}

/* An unreadable sector is damage like any other. */
static void refuse_unreadable(struct slot *slot, int code)
{
	snprintf(slot->why, sizeof(slot->why), "it can't be read (%s)", nvs_strerror(code));
}

static void read_header(struct slot *slot, const uint8_t id[STORE_ID_SIZE],
			struct found_slot *found)
{
	struct manifest_header *header = &found->manifest.header;
	struct nvs_error error = {.size = sizeof(error)};
	uint8_t bytes[MANIFEST_HEADER_BYTES];
	uint64_t there = slot->capacity;
	const char *why;
	struct stat st;

	if (slot->fd < 0) {
		refuse_slot(slot, "it is missing");
		return;
	}
	if (slot->owned && fstat(slot->fd, &st)) {
		refuse_unreadable(slot, -errno);
		return;
	}
	/* A manifest that claims more than can be read from the slot is not read. */
	if (slot->owned)
		there = min_u64(there, (uint64_t)st.st_size);
	if (disk_read(slot->fd, slot->path, bytes, sizeof(bytes), slot->base, &error)) {
		refuse_unreadable(slot, error.code);
		return;
	}
	why = there < sizeof(bytes)		      ? "it is empty or cut off"
	      : manifest_decode_header(bytes, header) ? "its header is damaged"
	      : memcmp(header->id, id, STORE_ID_SIZE) ? "it is another store's"
						      : NULL;
	if (why)
		*header = (struct manifest_header){.generation = 0};
	else if (header->body_bytes > there - sizeof(bytes))
		why = "it is cut off";
	found->headed = !why;
	slot->generation = why ? 0 : header->generation;
	if (why)
		refuse_slot(slot, why);
}

/* -ENOMEM; damage is in *found. */
static int read_body(struct slot *slot, uint32_t unit, struct found_slot *found)
{
	struct manifest *manifest = &found->manifest;
	struct nvs_error error = {.size = sizeof(error)};
	const char *why = NULL;
	int rc;

	assert(manifest->header.body_bytes <= slot->capacity - MANIFEST_HEADER_BYTES);
	manifest->body = malloc(manifest->header.body_bytes ? manifest->header.body_bytes : 1);
	if (!manifest->body)
		return -ENOMEM;
	if (disk_read(slot->fd, slot->path, manifest->body, manifest->header.body_bytes,
		      slot->base + MANIFEST_HEADER_BYTES, &error)) {
		refuse_unreadable(slot, error.code);
		return 0;
	}
	rc = manifest_decode_body(manifest, unit, &why);
	if (rc == -ENOMEM)
		return rc;
	found->whole = !rc;
	if (why)
		refuse_slot(slot, why);
	return 0;
}

/*
 * Reads the slots with manifest number `generation`, and returns the first that is whole;
 * MANIFEST_SLOT_COUNT: there is none. -ENOMEM.
 */
static int find_generation(struct slots *slots, uint64_t generation, uint32_t unit,
			   struct found_slot *found)
{
	int slot = MANIFEST_SLOT_COUNT;

	for (int i = MANIFEST_SLOT_COUNT; i-- > 0;) {
		if (!found[i].headed || slots->slot[i].generation != generation)
			continue;
		if (read_body(&slots->slot[i], unit, &found[i]))
			return -ENOMEM;
		slot = found[i].whole ? i : slot;
	}
	return slot;
}

/*
 * `older`: what rollback goes back to; 0: nothing. The label names the lost commit, or an earlier
 * one than a manifest proves.
 */
static int last_is_lost(const struct slots *slots, const struct member *first,
			const struct found_slot *found, uint64_t older, struct nvs_error *error)
{
	static const char *const copy_states[] = {[LABEL_ABSENT] = "none",
						  [LABEL_WHOLE] = "whole",
						  [LABEL_STALE] = "an older one",
						  [LABEL_DAMAGED] = "damaged or unreadable"};
	char text[512], number[64], remedy[128] = "restore the store from a copy";
	size_t used = 0;

	/* What is there of each. */
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT && used < sizeof(text); i++) {
		const struct slot *slot = &slots->slot[i];
		const char *name = slot->owned ? strrchr(slot->path, '/') + 1 : "slot";

		snprintf(number, sizeof(number), "number %" PRIu64 "%s", slot->generation,
			 slot->why[0] ? ", " : "");
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s %u: %s%s",
					 i ? "; " : "", name, i, found[i].headed ? number : "",
					 slot->why);
	}
	if (older)
		snprintf(remedy, sizeof(remedy),
			 "\"nvswap\": {\"rollback\": true} goes back to number %" PRIu64, older);
	if (slots->last > first->label.generation)
		return error_set(error, -EUCLEAN,
				 "the label of the kept store at %s is damaged, or older than the "
				 "manifests: the last commit is number %" PRIu64
				 ", as a manifest says, and the label names number %" PRIu64
				 " (at offset 0: %s; at offset %" PRIu64
				 ": %s; %s); %s, or remove the store if it is not needed",
				 first->path, slots->last, first->label.generation,
				 copy_states[first->copies[0]], LABEL_DISTANCE,
				 copy_states[first->copies[1]], text, remedy);
	return error_set(error, -EUCLEAN,
			 "the manifests of the kept store at %s are damaged: the last commit is "
			 "number %" PRIu64 ", and no copy of it is valid (%s); %s, or remove the "
			 "store if it is not needed",
			 slots->slot[0].path, slots->last, text, remedy);
}

/* The slot of the manifest to use. -ENOMEM, -EUCLEAN. */
static int find_manifest(struct slots *slots, const struct member *first, bool rollback,
			 struct found_slot *found, struct nvs_error *error)
{
	const struct label *label = &first->label;
	uint64_t older = label->generation;
	int slot = find_generation(slots, older, label->unit, found);

	if (slot >= 0 && slot < MANIFEST_SLOT_COUNT && slots->last == older)
		return slot;
	if (slot == MANIFEST_SLOT_COUNT) {
		/* The highest number below that a header has. */
		older = 0;
		for (unsigned i = 0; i < MANIFEST_SLOT_COUNT; i++)
			if (found[i].headed && slots->slot[i].generation < label->generation)
				older = max_u64(older, slots->slot[i].generation);
		if (older)
			slot = find_generation(slots, older, label->unit, found);
	}
	if (slot < 0)
		return error_no_memory(error, "reading or writing the manifest");
	if (slot == MANIFEST_SLOT_COUNT || !rollback)
		return last_is_lost(slots, first, found, slot < MANIFEST_SLOT_COUNT ? older : 0,
				    error);
	slots->damaged = true;
	return slot;
}

int slots_read(struct slots *slots, const struct member *first, bool rollback,
	       struct manifest *manifest, const struct nvs_log *log, struct nvs_error *error)
{
	struct found_slot found[MANIFEST_SLOT_COUNT] = {{.headed = false}};
	int slot = 0;

	label_check(&first->label);
	slots->current = MANIFEST_TURN_COUNT;
	slots->last = first->label.generation;
	slots->damaged = false;
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT; i++) {
		const struct manifest_header *header = &found[i].manifest.header;

		slots->slot[i].generation = 0;
		slots->slot[i].why[0] = '\0';
		/* A header proves its commit even if the rest is damaged. */
		read_header(&slots->slot[i], first->label.id, &found[i]);
		slots->highest = max_u64(slots->highest, header->generation);
		slots->slot[i].committed = header->committed;
		if (header->committed)
			slots->last = max_u64(slots->last, header->generation);
	}
	if (slots->last)
		slot = find_manifest(slots, first, rollback, found, error);
	if (slots->last && slot >= 0) {
		/* Takes the manifest over, and reports which copies are damaged. */
		*manifest = found[slot].manifest;
		found[slot].manifest = (struct manifest){.end = 0};
		slots->current = (unsigned)slot % MANIFEST_TURN_COUNT;
		for (unsigned i = slots->current; i < MANIFEST_SLOT_COUNT;
		     i += MANIFEST_TURN_COUNT) {
			if ((int)i == slot ||
			    (found[i].whole &&
			     slots->slot[i].generation == manifest->header.generation))
				continue;
			slots->damaged = true;
			log_say(log, NVS_LOG_WARNING,
				"a copy of the manifest, %s at offset %" PRIu64
				", is damaged (%s): the other copy is used, and the next commit "
				"writes both anew",
				slots->slot[i].path, slots->slot[i].base,
				slots->slot[i].why[0] ? slots->slot[i].why
						      : "it is of another commit");
		}
		manifest_check(manifest);
		slots_check(slots);
	}
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT; i++)
		manifest_free(&found[i].manifest);
	return slot < 0 ? slot : 0;
}

/* ---- Writing ---- */

/* The turn that is written next: its slots are this one and the one MANIFEST_TURN_COUNT later. */
static unsigned not_current(const struct slots *slots)
{
	return slots->current == 0 ? 1 : 0;
}

int slots_write(struct slots *slots, const uint8_t *bytes, uint64_t nbytes, struct nvs_error *error)
{
	struct manifest_header header;
	int rc = 0;

	/* What is written is what a later run accepts, and later than all that is there. */
	assert(!manifest_decode_header(bytes, &header));
	assert(MANIFEST_HEADER_BYTES + header.body_bytes == nbytes);
	assert(header.generation == slots->highest);
	for (unsigned i = not_current(slots); i < MANIFEST_SLOT_COUNT && !rc;
	     i += MANIFEST_TURN_COUNT) {
		struct slot *slot = &slots->slot[i];

		rc = disk_write(slot->fd, slot->path, bytes, nbytes, slot->base, error);
		disk_count(&slots->written, nbytes);
		slot->generation = rc ? 0 : slots->highest;
		slot->committed = false;
		slot->why[0] = 0;
	}
	/* On a device all slots are one file. */
	for (unsigned i = not_current(slots); i < MANIFEST_SLOT_COUNT && !rc;
	     i += MANIFEST_TURN_COUNT)
		if (slots->slot[i].owned || i < MANIFEST_TURN_COUNT)
			rc = disk_sync(slots->slot[i].fd, slots->slot[i].path, error);
	return rc;
}

int slots_check_places(const struct slots *slots, const struct member *member,
		       struct nvs_error *error)
{
	int rc = 0;

	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT && !rc; i++) {
		const struct slot *slot = &slots->slot[i];

		if (slot->owned)
			rc = member_check_name(member, strrchr(slot->path, '/') + 1, slot->fd,
					       error);
	}
	return rc;
}

void slots_turn(struct slots *slots)
{
	slots->current = not_current(slots);
	slots->damaged = false;
	slots->last = slots->highest;
	slots_check(slots);
}

void slots_mark(struct slots *slots, const struct manifest_header *header,
		const struct nvs_log *log)
{
	struct manifest_header marked = *header;
	struct nvs_error error = {.size = sizeof(error)};
	uint8_t bytes[MANIFEST_HEADER_BYTES];

	marked.committed = true;
	manifest_encode_header(&marked, bytes);
	for (unsigned i = slots->current; i < MANIFEST_SLOT_COUNT; i += MANIFEST_TURN_COUNT) {
		struct slot *slot = &slots->slot[i];
		int rc;

		/* A damaged copy is the next commit's to write. */
		if (slot->generation != header->generation || slot->why[0] || slot->committed)
			continue;
		rc = disk_write(slot->fd, slot->path, bytes, sizeof(bytes), slot->base, &error);
		disk_count(&slots->written, sizeof(bytes));
		rc = rc ?: disk_sync(slot->fd, slot->path, &error);
		slot->committed = !rc;
		if (!rc)
			continue;
		slots->damaged = true;
		log_say(log, NVS_LOG_WARNING,
			"commit number %" PRIu64 " was made, but a copy of its manifest could not "
			"be marked so (%s): the next commit writes both copies anew",
			header->generation, error.text);
		/* This copy may be torn: the other one stays as it is. */
		break;
	}
}

/*
 * For file systems without fallocate(2). A commit may be writing the file: the kernel appends
 * behind what it has written by then.
 */
static int append_zeros(const struct slot *slot, uint64_t nbytes)
{
	static const uint8_t zeros[64 * 1024];
	struct stat st;

	while (!fstat(slot->fd, &st)) {
		uint64_t left = nbytes - (uint64_t)st.st_size;
		struct iovec piece = {(void *)(uintptr_t)zeros,
				      left < sizeof(zeros) ? left : sizeof(zeros)};
		ssize_t n;

		if ((uint64_t)st.st_size >= nbytes)
			return 0;
		n = pwritev2(slot->fd, &piece, 1, 0, RWF_APPEND);
		if (n == 0 || (n < 0 && errno != EINTR))
			return n ? -errno : -EIO;
	}
	return -errno;
}

int slots_reserve(struct slots *slots, uint64_t count, struct nvs_error *error)
{
	uint64_t nbytes = MANIFEST_HEADER_BYTES + NVS_NOTE_MAX + count * MANIFEST_ENTRY_MAX;
	char need[32];

	assert(count <= (INT64_MAX - MANIFEST_HEADER_BYTES - NVS_NOTE_MAX) / MANIFEST_ENTRY_MAX);
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT; i++) {
		struct slot *slot = &slots->slot[i];
		int rc = slot->owned ? file_may_grow(slot->path, nbytes, error) : 0;

		if (rc)
			return rc;
		if (slot->owned) {
			/* Unwritten bytes are not part of a manifest. */
			rc = file_reserve(slot->fd, FALLOC_FL_KEEP_SIZE, nbytes) ? -errno : 0;
			if (rc == -EOPNOTSUPP)
				rc = append_zeros(slot, nbytes);
		}
		if (rc)
			return error_set(error, rc, "cannot reserve %s for the manifest %s: %s%s",
					 size_text(nbytes, need), slot->path, nvs_strerror(rc),
					 rc == -ENOSPC || rc == -EDQUOT
						 ? "; free some space, or give another nvme_path"
						 : "");
	}
	return 0;
}
