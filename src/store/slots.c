/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and replaces the manifest. A slot is overwritten in place and made durable before it
 * counts; checksums detect a torn one. The current slot is never written.
 */
#include "store/slots.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "store/disk.h"

static int no_memory(struct nvs_error *error)
{
	return error_set(error, -ENOMEM, "out of memory while reading or writing the manifest");
}

static int open_region(struct slot *slot, unsigned i, const struct member *member,
		       struct nvs_error *error)
{
	assert(i < MANIFEST_SLOT_COUNT);
	assert(member->kind == MEMBER_RAW && member->fd >= 0);
	slot->fd = member->fd;
	slot->base = LABEL_AREA_BYTES + i * RAW_MANIFEST_BYTES;
	slot->capacity = RAW_MANIFEST_BYTES;
	slot->path = strdup(member->path);
	return slot->path ? 0 : no_memory(error);
}

static int open_file(struct slot *slot, unsigned i, const struct member *member, bool fresh,
		     struct nvs_error *error)
{
	char name[32];
	int rc;

	assert(i < MANIFEST_SLOT_COUNT);
	assert(member->kind == MEMBER_FILE);
	assert(!(fresh && member->read_only));
	snprintf(name, sizeof(name), "manifest.%u", i);
	slot->owned = true;
	slot->capacity = MANIFEST_BYTES_MAX;
	if (asprintf(&slot->path, "%s/%s", member->directory, name) < 0) {
		slot->path = NULL;
		return no_memory(error);
	}
	rc = member_open_file(member, name, &slot->fd, error);
	if (rc == -ENOENT && member->read_only)
		return 0;
	if (rc || !fresh)
		return rc;
	return ftruncate(slot->fd, 0) ? error_set(error, -errno, "cannot empty %s: %s", slot->path,
						  nvs_strerror(-errno))
				      : 0;
}

int slots_open(struct slots *slots, const struct member *member, bool fresh,
	       struct nvs_error *error)
{
	int rc = 0;

	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT; i++)
		slots->slot[i] = (struct slot){.fd = -1};
	slots->current = MANIFEST_SLOT_COUNT;
	slots->read_only = member->read_only;
	for (unsigned i = 0; !rc && i < MANIFEST_SLOT_COUNT; i++)
		rc = member->kind == MEMBER_RAW
			     ? open_region(&slots->slot[i], i, member, error)
			     : open_file(&slots->slot[i], i, member, fresh, error);
	if (!rc)
		slots_check(slots);
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
	assert(slots->current <= MANIFEST_SLOT_COUNT);
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT; i++) {
		const struct slot *slot = &slots->slot[i];

		assert(slot->path && (slot->fd >= 0 || slots->read_only));
		assert(slot->owned ? !slot->base && slot->capacity == MANIFEST_BYTES_MAX
				   : slot->base >= LABEL_AREA_BYTES);
		assert(slot->owned == slots->slot[0].owned);
		assert(slot->owned || slot->capacity == RAW_MANIFEST_BYTES);
		/* Regions follow each other. */
		assert(slot->owned || !i ||
		       slots->slot[i - 1].base + RAW_MANIFEST_BYTES == slot->base);
	}
	assert(slots->current == MANIFEST_SLOT_COUNT || slots->slot[slots->current].fd >= 0);
}

/* ---- Reading ---- */

/* The bytes that can be read from the slot; a manifest that claims more is not read. */
static int bytes_there(const struct slot *slot, uint64_t *nbytes, struct nvs_error *error)
{
	struct stat st;

	assert(slot->fd >= 0);
	assert(slot->capacity);
	*nbytes = slot->capacity;
	if (!slot->owned)
		return 0;
	if (fstat(slot->fd, &st)) {
		int rc = -errno;

		return error_set(error, rc, "cannot look at %s: %s", slot->path, nvs_strerror(rc));
	}
	if ((uint64_t)st.st_size < *nbytes)
		*nbytes = (uint64_t)st.st_size;
	return 0;
}

static int read_header(const struct slot *slot, const uint8_t id[STORE_ID_SIZE],
		       struct manifest_header *header, const char **why, struct nvs_error *error)
{
	uint8_t bytes[MANIFEST_HEADER_BYTES];
	uint64_t there;

	if (slot->fd < 0) {
		*why = "it is missing";
		return -EUCLEAN;
	}

	int rc = bytes_there(slot, &there, error);

	if (!rc)
		rc = disk_read(slot->fd, slot->path, bytes, sizeof(bytes), slot->base, error);
	if (rc)
		return rc;
	*why = there < sizeof(bytes)			    ? "it is empty or cut off"
	       : manifest_decode_header(bytes, header)	    ? "its header is damaged"
	       : memcmp(header->id, id, STORE_ID_SIZE) != 0 ? "it is another store's"
	       : header->body_bytes > there - sizeof(bytes) ? "it is cut off"
							    : NULL;
	assert(*why || MANIFEST_HEADER_BYTES + header->body_bytes <= slot->capacity);
	return *why ? -EUCLEAN : 0;
}

/* -EUCLEAN: the slot does not count; *why says why. Anything else is an error. */
static int read_slot(const struct slot *slot, const uint8_t id[STORE_ID_SIZE], uint32_t unit,
		     struct manifest *manifest, const char **why, struct nvs_error *error)
{
	int rc = read_header(slot, id, &manifest->header, why, error);

	if (rc)
		return rc;
	manifest->body = malloc(manifest->header.body_bytes ? manifest->header.body_bytes : 1);
	if (!manifest->body)
		return no_memory(error);
	rc = disk_read(slot->fd, slot->path, manifest->body, manifest->header.body_bytes,
		       slot->base + MANIFEST_HEADER_BYTES, error);
	if (rc)
		return rc;
	rc = manifest_decode_body(manifest, unit, why);
	assert((rc == -EUCLEAN) == (*why != NULL));
	return rc == -ENOMEM ? no_memory(error) : rc;
}

static int newest(const struct manifest *found, const bool *whole)
{
	int best = -1;

	for (int i = 0; i < MANIFEST_SLOT_COUNT; i++)
		if (whole[i] &&
		    (best < 0 || found[i].header.generation > found[best].header.generation))
			best = i;
	return best;
}

int slots_read(struct slots *slots, const uint8_t id[STORE_ID_SIZE], uint32_t unit,
	       struct manifest *manifest, const struct nvs_log *log, struct nvs_error *error)
{
	struct manifest found[MANIFEST_SLOT_COUNT] = {{.end = 0}};
	const char *why[MANIFEST_SLOT_COUNT] = {NULL};
	bool whole[MANIFEST_SLOT_COUNT] = {false};
	int rc = 0;

	for (unsigned i = 0; (!rc || rc == -EUCLEAN) && i < MANIFEST_SLOT_COUNT; i++) {
		rc = read_slot(&slots->slot[i], id, unit, &found[i], &why[i], error);
		whole[i] = !rc;
	}

	int best = !rc || rc == -EUCLEAN ? newest(found, whole) : -1;

	if (best >= 0) {
		const struct slot *slot = &slots->slot[best];

		*manifest = found[best];
		found[best] = (struct manifest){0};
		slots->current = (unsigned)best;
		assert(manifest->header.generation);
		slots_check(slots);
		if (!whole[!best])
			log_say(log, NVS_LOG_DEBUG, "manifest %d of %s does not count: %s", !best,
				slots->slot[!best].path, why[!best]);
		/* Its writer may have been killed before it was durable. */
		rc = slots->read_only ? 0 : disk_sync(slot->fd, slot->path, error);
	} else if (rc == -EUCLEAN) {
		rc = error_set(error, -ENODATA, "%s: %s; the other one: %s", slots->slot[0].path,
			       why[0], why[1]);
	}
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT; i++)
		manifest_free(&found[i]);
	return rc;
}

/* ---- Writing ---- */

static unsigned not_current(const struct slots *slots)
{
	assert(slots->current <= MANIFEST_SLOT_COUNT);
	assert(!slots->read_only);
	return slots->current == 0 ? 1 : 0;
}

int slots_check_size(const struct slots *slots, uint64_t nbytes, struct nvs_error *error)
{
	const struct slot *slot = &slots->slot[not_current(slots)];
	char need[32], have[32];

	assert(nbytes >= MANIFEST_HEADER_BYTES);
	assert(slot->capacity >= MANIFEST_HEADER_BYTES);
	if (nbytes <= slot->capacity)
		return 0;
	return error_set(error, -ENOSPC,
			 "the manifest needs %s, but %s has only %s for it: keep the store in a "
			 "directory, or register fewer tensors or shorter names",
			 size_text(nbytes, need), slot->path, size_text(slot->capacity, have));
}

int slots_write(struct slots *slots, const uint8_t *bytes, uint64_t nbytes, struct nvs_error *error)
{
	const struct slot *slot = &slots->slot[not_current(slots)];

	assert(slot != &slots->slot[slots->current]);
	assert(nbytes >= MANIFEST_HEADER_BYTES && nbytes <= slot->capacity);
	return disk_write(slot->fd, slot->path, bytes, nbytes, slot->base, error);
}

int slots_sync(struct slots *slots, struct nvs_error *error)
{
	const struct slot *slot = &slots->slot[not_current(slots)];

	assert(slot != &slots->slot[slots->current]);
	assert(slot->fd >= 0);
	return disk_sync(slot->fd, slot->path, error);
}

int slots_revoke(struct slots *slots, struct nvs_error *error)
{
	static const uint8_t none[MANIFEST_HEADER_BYTES];

	int rc = slots_write(slots, none, sizeof(none), error);

	return rc ? rc : slots_sync(slots, error);
}

int slots_check_places(const struct slots *slots, const struct member *member,
		       struct nvs_error *error)
{
	int rc = 0;

	assert(!slots->read_only);
	assert(member->fd >= 0);
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
	assert(slots->current < MANIFEST_SLOT_COUNT);
	slots_check(slots);
}

int slots_reserve(struct slots *slots, uint64_t count, struct nvs_error *error)
{
	uint64_t nbytes = MANIFEST_HEADER_BYTES + count * MANIFEST_ENTRY_MAX;
	char need[32];

	assert(!slots->read_only);
	assert(count <= (INT64_MAX - MANIFEST_HEADER_BYTES) / MANIFEST_ENTRY_MAX);
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT; i++) {
		struct slot *slot = &slots->slot[i];
		int rc = slot->owned ? disk_may_grow(slot->path, nbytes, error) : 0;

		if (rc)
			return rc;
		/* KEEP_SIZE: unwritten bytes are not part of a manifest. */
		while (slot->owned &&
		       (rc = fallocate(slot->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)nbytes)) &&
		       errno == EINTR)
			;
		if (rc && errno != EOPNOTSUPP) {
			rc = -errno;
			return error_set(error, rc,
					 "cannot reserve %s for the manifest %s: %s; free some "
					 "space, or give another nvme_path",
					 size_text(nbytes, need), slot->path, nvs_strerror(rc));
		}
	}
	return 0;
}
