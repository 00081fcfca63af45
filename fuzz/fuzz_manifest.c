/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first byte of the input selects what the rest is: a label, the header of a manifest, or
 * entries, each as it is or with a corrected checksum. Accepted input is consistent (no two extents
 * overlap, no sum overflows, shapes have as many elements as their tensors), and encoding its
 * contents gives the same bytes.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <xxhash.h>

#include "allocations.h"
#include "store/disk.h"
#include "store/label.h"
#include "store/manifest.h"

/* Offsets from docs/store-format.md. */
enum {
	LABEL_CHECKSUM_AT = 504,
	HEADER_CHECKSUM_AT = MANIFEST_HEADER_BYTES - 8,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

/* Copies as much of the input as there is, and fills up with zeros. */
static void fill(uint8_t *bytes, size_t n, const uint8_t *data, size_t nbytes)
{
	memset(bytes, 0, n);
	memcpy(bytes, data, nbytes < n ? nbytes : n);
}

static void try_label(const uint8_t *data, size_t nbytes, bool repair)
{
	uint8_t bytes[LABEL_BYTES], again[LABEL_BYTES];
	struct label label;
	int rc;

	fill(bytes, sizeof(bytes), data, nbytes);
	if (repair) {
		put_u64(bytes + LABEL_CHECKSUM_AT, 0);
		put_u64(bytes + LABEL_CHECKSUM_AT, XXH3_64bits(bytes, sizeof(bytes)));
	}
	rc = label_decode(bytes, &label);
	assert(rc == 0 || rc == -ENODATA || rc == -EMEDIUMTYPE || rc == -EUCLEAN ||
	       rc == -EPROTONOSUPPORT);
	if (rc)
		return;
	assert(label.index < label.count && label.count <= NVS_PATHS_MAX);
	assert(label.unit >= UNIT_MIN && label.unit <= UNIT_MAX && label.stripe <= STRIPE_MAX);
	label_encode(&label, again);
	assert(!memcmp(bytes, again, sizeof(bytes)));
}

static void try_header(const uint8_t *data, size_t nbytes, bool repair)
{
	uint8_t bytes[MANIFEST_HEADER_BYTES], again[MANIFEST_HEADER_BYTES];
	struct manifest_header header;
	int rc;

	fill(bytes, sizeof(bytes), data, nbytes);
	if (repair)
		put_u64(bytes + HEADER_CHECKSUM_AT, XXH3_64bits(bytes, HEADER_CHECKSUM_AT));
	rc = manifest_decode_header(bytes, &header);
	assert(rc == 0 || rc == -EUCLEAN);
	if (rc)
		return;
	assert(header.generation && header.generation + 1);
	assert(header.body_bytes <= MANIFEST_BYTES_MAX - MANIFEST_HEADER_BYTES);
	assert(header.count <= header.body_bytes);
	assert(header.note_bytes <= NVS_NOTE_MAX && header.note_bytes <= header.body_bytes);
	manifest_encode_header(&header, again);
	assert(!memcmp(bytes, again, sizeof(bytes)));
}

static void check_extent(const struct manifest *manifest, uint64_t offset, uint64_t nbytes,
			 uint32_t unit)
{
	uint64_t end;

	assert(offset % unit == 0);
	assert(!__builtin_add_overflow(offset, align_up(nbytes, unit), &end));
	assert(end > offset && end <= manifest->end);
}

static void check_shape(const struct store_entry *entry)
{
	uint64_t numel = 1;

	assert(!entry->shape || (entry->ndim <= NVS_NDIM_MAX && entry->ndim != 1));
	for (size_t i = 0; entry->shape && i < entry->ndim; i++)
		assert(!__builtin_mul_overflow(numel, entry->shape[i], &numel));
	assert(!entry->shape || numel == entry->numel);
}

static void check_entry(const struct manifest *manifest, const struct store_entry *entry,
			uint32_t unit)
{
	assert(strlen(entry->name) >= 1 && strlen(entry->name) <= NVS_NAME_MAX);
	assert(entry->dtype < NVS_DTYPE_COUNT);
	assert((unsigned __int128)entry->numel * nvs_dtype_size(entry->dtype) == entry->nbytes);
	check_shape(entry);
	if (!entry->nbytes)
		return;
	check_extent(manifest, entry->offset, entry->nbytes, unit);
	check_extent(manifest, entry->spare, entry->nbytes, unit);
}

/* Whether two extents are disjoint; both extents of an entry have the same length. */
static bool apart(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes, uint32_t unit)
{
	return !a_bytes || !b_bytes || a + align_up(a_bytes, unit) <= b ||
	       b + align_up(b_bytes, unit) <= a;
}

static void check_apart(const struct store_entry *a, const struct store_entry *b, uint32_t unit)
{
	assert(strcmp(a->name, b->name) != 0);
	assert(apart(a->offset, a->nbytes, b->offset, b->nbytes, unit));
	assert(apart(a->offset, a->nbytes, b->spare, b->nbytes, unit));
	assert(apart(a->spare, a->nbytes, b->offset, b->nbytes, unit));
	assert(apart(a->spare, a->nbytes, b->spare, b->nbytes, unit));
}

static void check_entries(const struct manifest *manifest, uint32_t unit)
{
	for (size_t i = 0; i < manifest->header.count; i++) {
		const struct store_entry *entry = &manifest->entries[i];

		check_entry(manifest, entry, unit);
		assert(apart(entry->offset, entry->nbytes, entry->spare, entry->nbytes, unit));
		for (size_t j = 0; j < i; j++)
			check_apart(entry, &manifest->entries[j], unit);
	}
}

static void check_same_bytes(const struct manifest *manifest)
{
	const struct manifest_header *header = &manifest->header;
	struct manifest_header again, decoded;
	const struct store_note note = {.data = manifest->body + header->body_bytes -
						note_room(header->note_bytes),
					.nbytes = (uint32_t)header->note_bytes};
	uint8_t *bytes = manifest_encode(header->id, header->generation, manifest->entries,
					 header->count, &note, &again);

	assert(bytes && again.body_bytes == header->body_bytes);
	assert(!memcmp(bytes + MANIFEST_HEADER_BYTES, manifest->body, header->body_bytes));
	assert(!manifest_decode_header(bytes, &decoded));
	assert(decoded.count == header->count && decoded.generation == header->generation &&
	       decoded.body_bytes == header->body_bytes &&
	       decoded.note_bytes == header->note_bytes &&
	       decoded.body_checksum == header->body_checksum);
	free(bytes);
}

/* Two bytes for unit and length of the note, and for the number of entries; the entries, the
 * note. */
static void try_entries(const uint8_t *data, size_t nbytes, bool repair)
{
	if (nbytes < 2)
		return;

	uint32_t unit = UNIT_MIN << data[0] % 8;
	struct manifest manifest = {.header = {.generation = 1,
					       .count = data[1],
					       .body_bytes = nbytes - 2,
					       .note_bytes = data[0] / 8}};
	const char *why = NULL;
	int rc;

	if (manifest.header.count > manifest.header.body_bytes ||
	    note_room(manifest.header.note_bytes) > manifest.header.body_bytes)
		return;
	manifest.body = malloc(nbytes - 1);
	assert(manifest.body);
	memcpy(manifest.body, data + 2, nbytes - 2);
	if (repair)
		manifest.header.body_checksum = XXH3_64bits(manifest.body, nbytes - 2);
	rc = manifest_decode_body(&manifest, unit, &why);
	assert(rc == (why ? -EUCLEAN : 0));
	if (!rc) {
		check_entries(&manifest, unit);
		check_same_bytes(&manifest);
	}
	manifest_free(&manifest);
}

/* Entries, and what they are encoded to again. */
size_t allocated_most(size_t nbytes)
{
	return 64 * nbytes + (64u << 10);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	static void (*const tries[])(const uint8_t *, size_t, bool) = {try_label, try_header,
								       try_entries};

	_Static_assert(UNIT_MIN << 7 == UNIT_MAX, "units of the entries");
	if (nbytes)
		tries[data[0] / 2 % 3](data + 1, nbytes - 1, data[0] % 2);
	return 0;
}
