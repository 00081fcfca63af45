/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encodes and decodes manifests; docs/store-format.md has the layout. Decoding allocates in
 * proportion to the bytes actually read. No I/O here.
 */
#include "store/manifest.h"

#include <stdlib.h>
#include <xxhash.h>

#include "base/shape.h"
#include "store/disk.h"

/* Offsets and lengths up to here can be added and rounded without overflow. */
#define RANGE_MAX (UINT64_C(1) << 60)

static const uint8_t magic[8] = {'N', 'V', 'S', 'W', 'A', 'P', 0, 'M'};

enum {
	VERSION = 3,
	AT_VERSION = 8,
	AT_COMMITTED = 12,
	AT_ID = 16,
	AT_GENERATION = 32,
	AT_COUNT = 40,
	AT_BODY_BYTES = 48,
	AT_BODY_CHECKSUM = 56,
	AT_NOTE_BYTES = 64,
	AT_MADE = 72,
	AT_WRITER = 80,
	AT_HEADER_CHECKSUM = MANIFEST_HEADER_BYTES - 8,

	/*
	 * Offsets in an entry. The name and its 0 follow, padded with zeros to a multiple of 8, and
	 * behind them the dimensions. AT_SHAPE is 0 for one dimension, which is not written out,
	 * else the number of dimensions plus 1.
	 */
	AT_NUMEL = 0,
	AT_NBYTES = 8,
	AT_OFFSET = 16,
	AT_SPARE = 24,
	AT_CHECKSUM = 32,
	AT_DTYPE = 40,
	AT_FLAGS = 44,
	AT_NAME_LENGTH = 48,
	AT_SHAPE = 52,
	AT_NAME = 56,

	FLAG_WRITTEN = 1,
	FLAG_CHECKSUM = 2,
	FLAGS = FLAG_WRITTEN | FLAG_CHECKSUM,
};

_Static_assert(MANIFEST_ENTRY_MAX >= AT_NAME + ((NVS_NAME_MAX + 8) & ~7) + 8 * NVS_NDIM_MAX,
	       "room for any name and shape");

/* `shape` is the field at AT_SHAPE. */
static uint64_t entry_bytes(size_t name_length, uint32_t shape)
{
	assert(name_length && name_length <= NVS_NAME_MAX);
	assert(shape <= NVS_NDIM_MAX + 1);
	return AT_NAME + ((name_length + 8) & ~(uint64_t)7) + (shape ? 8 * (shape - 1) : 0);
}

/* The shortest one. */
#define ENTRY_MIN entry_bytes(1, 0)

static uint32_t shape_field(const struct store_entry *entry)
{
	assert(entry->ndim <= NVS_NDIM_MAX);
	return !entry->shape || entry->ndim == 1 ? 0 : (uint32_t)entry->ndim + 1;
}

void entry_check(const struct store_entry *entry, uint32_t unit)
{
	assert(shape_has(entry->shape, entry->ndim, entry->numel));
	assert(entry->name && *entry->name && strlen(entry->name) <= NVS_NAME_MAX);
	assert(entry->dtype < NVS_DTYPE_COUNT);
	assert(entry->nbytes == entry->numel * nvs_dtype_size(entry->dtype));
	assert(entry->nbytes <= RANGE_MAX);
	if (!entry->nbytes)
		return;
	assert(entry->offset % unit == 0 && entry->offset <= RANGE_MAX);
	assert(entry->spare % unit == 0 && entry->spare <= RANGE_MAX);
	assert(entry->offset + align_up(entry->nbytes, unit) <= entry->spare ||
	       entry->spare + align_up(entry->nbytes, unit) <= entry->offset);
}

/* The note and the shortest entries for so many tensors fit. */
static bool is_consistent(const struct manifest_header *header)
{
	return header->generation && header->generation <= MANIFEST_GENERATION_MAX &&
	       header->body_bytes <= MANIFEST_BYTES_MAX - MANIFEST_HEADER_BYTES &&
	       header->note_bytes <= NVS_NOTE_MAX &&
	       note_room(header->note_bytes) <= header->body_bytes &&
	       header->count <= (header->body_bytes - note_room(header->note_bytes)) / ENTRY_MIN;
}

void manifest_header_check(const struct manifest_header *header)
{
	assert(is_consistent(header));
}

void manifest_check(const struct manifest *manifest)
{
	if (!manifest->header.generation) {
		assert(!manifest->body && !manifest->entries && !manifest->shapes);
		assert(!manifest->header.count && !manifest->header.note_bytes);
		assert(!manifest->end);
		return;
	}
	manifest_header_check(&manifest->header);
	assert(manifest->body && manifest->entries && manifest->shapes);
	assert(manifest->header.body_bytes % 8 == 0);
	assert(manifest->end % UNIT_MIN == 0);
	assert(manifest->header.count || !manifest->end);
}

/* ---- Encoding ---- */

void manifest_encode_header(const struct manifest_header *header,
			    uint8_t bytes[MANIFEST_HEADER_BYTES])
{
	manifest_header_check(header);
	memset(bytes, 0, MANIFEST_HEADER_BYTES);
	memcpy(bytes, magic, sizeof(magic));
	put_u32(bytes + AT_VERSION, VERSION);
	put_u32(bytes + AT_COMMITTED, header->committed);
	memcpy(bytes + AT_ID, header->id, STORE_ID_SIZE);
	put_u64(bytes + AT_GENERATION, header->generation);
	put_u64(bytes + AT_COUNT, header->count);
	put_u64(bytes + AT_BODY_BYTES, header->body_bytes);
	put_u64(bytes + AT_BODY_CHECKSUM, header->body_checksum);
	put_u64(bytes + AT_NOTE_BYTES, header->note_bytes);
	put_u64(bytes + AT_MADE, header->made);
	put_u32(bytes + AT_WRITER, header->writer);
	put_u64(bytes + AT_HEADER_CHECKSUM, XXH3_64bits(bytes, AT_HEADER_CHECKSUM));
}

static uint8_t *encode_entry(const struct store_entry *entry, uint8_t *at)
{
	size_t length = strlen(entry->name);
	uint32_t shape = shape_field(entry);
	uint32_t flags = (entry->written ? FLAG_WRITTEN : 0) |
			 (entry->has_checksum ? FLAG_CHECKSUM : 0);

	put_u64(at + AT_NUMEL, entry->numel);
	put_u64(at + AT_NBYTES, entry->nbytes);
	put_u64(at + AT_OFFSET, entry->nbytes ? entry->offset : 0);
	put_u64(at + AT_SPARE, entry->nbytes ? entry->spare : 0);
	put_u64(at + AT_CHECKSUM, entry->has_checksum ? entry->checksum : 0);
	put_u32(at + AT_DTYPE, (uint32_t)entry->dtype);
	put_u32(at + AT_FLAGS, flags);
	put_u32(at + AT_NAME_LENGTH, (uint32_t)length);
	put_u32(at + AT_SHAPE, shape);
	memcpy(at + AT_NAME, entry->name, length);
	for (size_t i = 0; shape && i < entry->ndim; i++)
		put_u64(at + entry_bytes(length, 0) + 8 * i, entry->shape[i]);
	return at + entry_bytes(length, shape);
}

uint64_t manifest_bytes(const struct store_entry *entries, size_t n, const struct store_note *note)
{
	uint64_t nbytes = MANIFEST_HEADER_BYTES + (note ? note_room(note->nbytes) : 0);

	for (size_t i = 0; i < n; i++)
		nbytes += entry_bytes(strlen(entries[i].name), shape_field(&entries[i]));
	/* Entries and note are padded, so all that stands in it is aligned. */
	return nbytes;
}

uint8_t *manifest_encode(const uint8_t id[STORE_ID_SIZE], uint64_t generation,
			 const struct store_entry *entries, size_t n, const struct store_note *note,
			 struct manifest_header *header)
{
	const uint64_t nbytes = manifest_bytes(entries, n, note);
	const uint64_t body_bytes = nbytes - MANIFEST_HEADER_BYTES;
	const uint64_t note_bytes = note ? note->nbytes : 0;
	uint8_t *bytes = calloc(1, nbytes), *body, *at;

	if (!bytes)
		return NULL;
	body = at = bytes + MANIFEST_HEADER_BYTES;
	for (size_t i = 0; i < n; i++)
		at = encode_entry(&entries[i], at);
	if (note_bytes)
		memcpy(at, note->data, note_bytes);
	*header = (struct manifest_header){.generation = generation,
					   .count = n,
					   .body_bytes = body_bytes,
					   .body_checksum = XXH3_64bits(body, body_bytes),
					   .note_bytes = note_bytes};
	memcpy(header->id, id, STORE_ID_SIZE);
	manifest_encode_header(header, bytes);
	return bytes;
}

/* ---- Decoding ---- */

int manifest_decode_header(const uint8_t bytes[MANIFEST_HEADER_BYTES],
			   struct manifest_header *header)
{
	uint8_t written[MANIFEST_HEADER_BYTES];

	if (memcmp(bytes, magic, sizeof(magic)) != 0 || get_u32(bytes + AT_VERSION) != VERSION ||
	    get_u64(bytes + AT_HEADER_CHECKSUM) != XXH3_64bits(bytes, AT_HEADER_CHECKSUM))
		return -EUCLEAN;
	memcpy(header->id, bytes + AT_ID, STORE_ID_SIZE);
	header->generation = get_u64(bytes + AT_GENERATION);
	header->count = get_u64(bytes + AT_COUNT);
	header->body_bytes = get_u64(bytes + AT_BODY_BYTES);
	header->body_checksum = get_u64(bytes + AT_BODY_CHECKSUM);
	header->note_bytes = get_u64(bytes + AT_NOTE_BYTES);
	header->made = get_u64(bytes + AT_MADE);
	header->writer = get_u32(bytes + AT_WRITER);
	header->committed = get_u32(bytes + AT_COMMITTED) == 1;
	if (!is_consistent(header))
		return -EUCLEAN;
	manifest_encode_header(header, written);
	return memcmp(bytes, written, sizeof(written)) != 0 ? -EUCLEAN : 0;
}

/*
 * Decodes the entry at *at and moves behind it, and its dimensions to *shapes likewise; returns
 * what is wrong with it, or NULL. The name stays in the body; it must be a string of the entry's
 * length.
 */
static const char *decode_entry(uint8_t **at, uint64_t left, uint32_t unit,
				struct store_entry *entry, uint64_t **shapes)
{
	uint8_t *bytes = *at, written[MANIFEST_ENTRY_MAX] = {0};
	uint32_t length, dtype, flags, shape;
	uint64_t nbytes;

	if (left < ENTRY_MIN)
		return "it holds fewer entries than it says";
	length = get_u32(bytes + AT_NAME_LENGTH);
	dtype = get_u32(bytes + AT_DTYPE);
	flags = get_u32(bytes + AT_FLAGS);
	shape = get_u32(bytes + AT_SHAPE);
	if (length == 0 || length > NVS_NAME_MAX)
		return "the length of a name is out of range";
	if (entry_bytes(length, 0) > left)
		return "an entry goes past the end";
	if (bytes[AT_NAME + length] != 0 || memchr(bytes + AT_NAME, 0, length))
		return "a name does not end where it should";
	if (flags & ~(uint32_t)FLAGS)
		return "an entry has a flag that is unknown";
	*entry = (struct store_entry){
		.name = (const char *)bytes + AT_NAME,
		.dtype = (enum nvs_dtype)dtype,
		.numel = get_u64(bytes + AT_NUMEL),
		.nbytes = get_u64(bytes + AT_NBYTES),
		.offset = get_u64(bytes + AT_OFFSET),
		.spare = get_u64(bytes + AT_SPARE),
		.written = flags & FLAG_WRITTEN,
		.has_checksum = flags & FLAG_CHECKSUM,
		.checksum = get_u64(bytes + AT_CHECKSUM),
	};
	if (shape > NVS_NDIM_MAX + 1)
		return "a shape has too many dimensions";
	if (shape == 2)
		return "a shape of one dimension is written out";
	if (entry_bytes(length, shape) > left)
		return "an entry goes past the end";
	if (shape) {
		entry->shape = *shapes;
		entry->ndim = shape - 1;
		for (size_t i = 0; i < entry->ndim; i++)
			*(*shapes)++ = get_u64(bytes + entry_bytes(length, 0) + 8 * i);
		if (!shape_has(entry->shape, entry->ndim, entry->numel))
			return "the product of a shape is not its tensor's number of elements";
	}
	*at = bytes + entry_bytes(length, shape);
	if (dtype >= NVS_DTYPE_COUNT || !nvs_dtype_size(entry->dtype))
		return "an element type is unknown";
	if (__builtin_mul_overflow(entry->numel, nvs_dtype_size(entry->dtype), &nbytes) ||
	    nbytes != entry->nbytes)
		return "a tensor's bytes are not its elements times their size";
	if (entry->offset % unit || entry->spare % unit)
		return "an extent does not begin at a multiple of the unit";
	if (nbytes > RANGE_MAX || entry->offset > RANGE_MAX || entry->spare > RANGE_MAX)
		return "an extent is out of range";
	/* Unused bytes must be zero: anything else is damage, or a later version's field. */
	encode_entry(entry, written);
	return memcmp(bytes, written, entry_bytes(length, shape)) != 0
		       ? "an entry has something where zeros are due"
		       : NULL;
}

struct range {
	uint64_t from, end;
};

static int by_place(const void *a, const void *b)
{
	const struct range *x = a, *y = b;

	return x->from < y->from ? -1 : x->from > y->from;
}

/* Checks both extents of all tensors for overlaps; `ranges` has room for all of them. */
static const char *check_overlaps(struct manifest *manifest, struct range *ranges, uint32_t unit)
{
	size_t n = 0;

	for (size_t i = 0; i < manifest->header.count; i++) {
		const struct store_entry *entry = &manifest->entries[i];
		uint64_t nbytes = align_up(entry->nbytes, unit);

		if (!nbytes)
			continue;
		ranges[n++] = (struct range){entry->offset, entry->offset + nbytes};
		ranges[n++] = (struct range){entry->spare, entry->spare + nbytes};
	}
	qsort(ranges, n, sizeof(*ranges), by_place);
	manifest->end = 0;
	for (size_t i = 0; i < n; i++) {
		if (ranges[i].from < manifest->end)
			return "two extents overlap";
		manifest->end = ranges[i].end;
	}
	return NULL;
}

static const char *check_duplicates(const struct manifest *manifest,
				    const struct store_entry **table, size_t size)
{
	for (size_t i = 0; i < manifest->header.count; i++) {
		const struct store_entry *entry = &manifest->entries[i];
		size_t at = XXH3_64bits_withSeed(entry->name, strlen(entry->name),
						 get_u64(manifest->header.id)) &
			    (size - 1);

		while (table[at] && strcmp(table[at]->name, entry->name) != 0)
			at = (at + 1) & (size - 1);
		if (table[at])
			return "a name stands in it twice";
		table[at] = entry;
	}
	return NULL;
}

/* More dimensions than the body has room for. */
static uint64_t shapes_max(const struct manifest *manifest)
{
	return manifest->header.body_bytes / 8 + 1;
}

static const char *decode_entries(struct manifest *manifest, uint32_t unit)
{
	uint64_t note_bytes = manifest->header.note_bytes;
	uint8_t *at = manifest->body;
	uint8_t *end = at + manifest->header.body_bytes - note_room(note_bytes);
	uint64_t *shapes = manifest->shapes;

	assert(at <= end);
	for (size_t i = 0; i < manifest->header.count; i++) {
		const char *why = decode_entry(&at, (uint64_t)(end - at), unit,
					       &manifest->entries[i], &shapes);

		if (why)
			return why;
		assert((size_t)(shapes - manifest->shapes) < shapes_max(manifest));
	}
	if (at != end)
		return "something stands behind its entries";
	/* Bytes of the padding must be zero. */
	for (uint64_t i = note_bytes; i < note_room(note_bytes); i++)
		if (end[i])
			return "the note has something where zeros are due";
	return NULL;
}

int manifest_decode_body(struct manifest *manifest, uint32_t unit, const char **why)
{
	uint64_t count = manifest->header.count;
	size_t size = 2;

	assert(manifest->body && !manifest->entries);
	if (XXH3_64bits(manifest->body, manifest->header.body_bytes) !=
	    manifest->header.body_checksum) {
		*why = "its checksum differs";
		return -EUCLEAN;
	}
	while (size < count * 2)
		size *= 2;

	const struct store_entry **table = calloc(size, sizeof(const struct store_entry *));
	struct range *ranges = calloc(2 * count + 1, sizeof(*ranges));
	int rc = 0;

	manifest->entries = calloc(count ? count : 1, sizeof(*manifest->entries));
	manifest->shapes = calloc(shapes_max(manifest), sizeof(*manifest->shapes));
	if (!table || !ranges || !manifest->entries || !manifest->shapes) {
		rc = -ENOMEM;
	} else {
		*why = decode_entries(manifest, unit);
		if (!*why)
			*why = check_overlaps(manifest, ranges, unit);
		if (!*why)
			*why = check_duplicates(manifest, table, size);
		for (size_t i = 0; i < count && !*why; i++)
			entry_check(&manifest->entries[i], unit);
		if (!*why)
			manifest_check(manifest);
		rc = *why ? -EUCLEAN : 0;
	}
	free(table);
	free(ranges);
	return rc;
}

struct store_note manifest_note(const struct manifest *manifest)
{
	const struct manifest_header *header = &manifest->header;

	manifest_check(manifest);
	if (!header->note_bytes)
		return (struct store_note){.nbytes = 0};
	return (struct store_note){.data = manifest->body + header->body_bytes -
					   note_room(header->note_bytes),
				   .nbytes = (uint32_t)header->note_bytes};
}

void manifest_free(struct manifest *manifest)
{
	free(manifest->body);
	free(manifest->entries);
	free(manifest->shapes);
	*manifest = (struct manifest){0};
}
