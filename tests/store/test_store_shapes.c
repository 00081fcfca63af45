/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shapes in manifests: found again, refused if they are false, and one dimension where a manifest
 * that was written without shapes has none.
 */
#include "store/kept_fixture.h"

/* An entry of a manifest that was written before shapes were kept: F32, 6 elements, 24 bytes. */
static const uint8_t without_shape[64] = {
	6,    0,    0,	  0,	0,    0,    0,	  0,	/* numel */
	24,   0,    0,	  0,	0,    0,    0,	  0,	/* nbytes */
	0,    2,    0,	  0,	0,    0,    0,	  0,	/* offset */
	0,    4,    0,	  0,	0,    0,    0,	  0,	/* offset of the other extent */
	0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, /* checksum */
	1,    0,    0,	  0,	3,    0,    0,	  0,	/* type, flags */
	6,    0,    0,	  0,	0,    0,    0,	  0,	/* length of the name */
	'w',  'e',  'i',  'g',	'h',  't',  0,	  0,
};

/* Decodes one entry with a valid checksum, for units of 512 bytes. */
static int decode(const uint8_t *body, size_t nbytes, struct manifest *manifest, const char **why)
{
	*manifest = (struct manifest){.header = {.generation = 1,
						 .count = 1,
						 .body_bytes = nbytes,
						 .body_checksum = XXH3_64bits(body, nbytes)}};
	manifest->body = malloc(nbytes);
	assert_non_null(manifest->body);
	memcpy(manifest->body, body, nbytes);
	*why = NULL;
	return manifest_decode_body(manifest, 512, why);
}

TEST(a_manifest_without_shapes_has_tensors_of_one_dimension)
{
	static const uint8_t id[STORE_ID_SIZE] = {1};
	struct manifest manifest;
	struct manifest_header header;
	const char *why;
	uint8_t *again;

	assert_int_equal(decode(without_shape, sizeof(without_shape), &manifest, &why), 0);
	assert_string_equal(manifest.entries[0].name, "weight");
	assert_null(manifest.entries[0].shape);
	assert_int_equal(manifest.entries[0].numel, 6);
	/* Such tensors have the same bytes in manifests of now, so a commit changes nothing. */
	again = manifest_encode(id, 1, manifest.entries, 1, NULL, &header);
	assert_non_null(again);
	assert_int_equal(header.body_bytes, sizeof(without_shape));
	assert_memory_equal(again + MANIFEST_HEADER_BYTES, without_shape, sizeof(without_shape));
	free(again);
	manifest_free(&manifest);
}

/* The entry above with the dimensions behind it. */
static void assert_shape(uint32_t field, const uint64_t *shape, size_t n, uint64_t numel,
			 const char *why_not)
{
	size_t nbytes = sizeof(without_shape) + 8 * n;
	uint8_t *body = calloc(1, nbytes);
	struct manifest manifest;
	const char *why;
	int rc;

	assert_non_null(body);
	memcpy(body, without_shape, sizeof(without_shape));
	put_u64(body, numel);
	put_u64(body + 8, 4 * numel);
	if (!numel)
		memset(body + 16, 0, 16);
	put_u32(body + 52, field);
	for (size_t i = 0; i < n; i++)
		put_u64(body + sizeof(without_shape) + 8 * i, shape[i]);
	rc = decode(body, nbytes, &manifest, &why);
	assert_int_equal(rc, why_not ? -EUCLEAN : 0);
	if (why_not)
		assert_string_equal(why, why_not);
	else
		assert_memory_equal(manifest.entries[0].shape, shape, n * sizeof(*shape));
	manifest_free(&manifest);
	free(body);
}

TEST(false_shapes_are_refused)
{
	static const char product[] =
		"the product of a shape is not its tensor's number of elements";
	const uint64_t matrix[] = {2, 3}, wraps[] = {UINT64_C(1) << 63, 2, 0};
	const uint64_t wraps_to_6[] = {(UINT64_C(1) << 63) + 3, 2}, padded[] = {2, 3, 0};
	uint64_t ones[NVS_NDIM_MAX + 1];

	for (size_t i = 0; i < NVS_NDIM_MAX + 1; i++)
		ones[i] = 1;
	assert_shape(3, matrix, 2, 6, NULL);
	assert_shape(1, matrix, 0, 1, NULL);
	assert_shape(NVS_NDIM_MAX + 1, ones, NVS_NDIM_MAX, 1, NULL);
	assert_shape(3, matrix, 2, 7, product);
	assert_shape(1, matrix, 0, 6, product);
	assert_shape(1, matrix, 0, 0, product);
	assert_shape(3, wraps_to_6, 2, 6, product);
	assert_shape(4, wraps, 3, 0, product);
	assert_shape(NVS_NDIM_MAX + 2, ones, NVS_NDIM_MAX + 1, 1,
		     "a shape has too many dimensions");
	assert_shape(UINT32_MAX, ones, NVS_NDIM_MAX, 1, "a shape has too many dimensions");
	assert_shape(2, matrix, 1, 2, "a shape of one dimension is written out");
	assert_shape(3, matrix, 1, 6, "an entry goes past the end");
	assert_shape(NVS_NDIM_MAX + 1, ones, NVS_NDIM_MAX - 1, 1, "an entry goes past the end");
	assert_shape(3, padded, 3, 6, "something stands behind its entries");
	assert_shape(0, matrix, 2, 6, "something stands behind its entries");
}

/* Dimensions in the place of later entries leave too little for those. */
TEST(dimensions_in_the_place_of_entries_are_refused)
{
	enum { COUNT = 9 };
	uint64_t body[COUNT * 8] = {0};
	struct manifest manifest = {
		.header = {.generation = 1, .count = COUNT, .body_bytes = sizeof(body)}};
	const char *why = NULL;

	memcpy(body, without_shape, sizeof(without_shape));
	put_u64((uint8_t *)body, 1);
	put_u64((uint8_t *)body + 8, 4);
	put_u32((uint8_t *)body + 52, NVS_NDIM_MAX + 1);
	for (size_t i = 8; i < COUNT * 8; i++)
		put_u64((uint8_t *)&body[i], 1);
	manifest.header.body_checksum = XXH3_64bits(body, sizeof(body));
	manifest.body = malloc(sizeof(body));
	assert_non_null(manifest.body);
	memcpy(manifest.body, body, sizeof(body));
	assert_int_equal(manifest_decode_body(&manifest, 512, &why), -EUCLEAN);
	assert_string_equal(why, "it holds fewer entries than it says");
	manifest_free(&manifest);
}

TEST_WITH(a_store_has_the_shapes_of_its_last_commit, make_root, cleanup)
{
	const uint64_t shapes[][3] = {{10, 20, 5}, {1, 5, 1}, {0, 9, 0}, {2, 1, 1}};
	struct store *store = must_open(kept);
	const struct store_entry *found;
	uint64_t offsets[EXTENTS];
	size_t n;

	reserve_entries(store, offsets);
	commit_version(store, 1, offsets);
	make_entries(2, offsets);
	for (unsigned i = 0; i < ENTRIES; i++) {
		entries[i].shape = shapes[i];
		entries[i].ndim = 3;
	}
	assert_int_equal(store_commit(store, entries, ENTRIES, NULL, &error), 0);
	store_close(store);
	store = must_open(kept);
	found = store_entries(store, &n);
	assert_int_equal(n, ENTRIES);
	for (unsigned i = 0; i < ENTRIES; i++) {
		assert_int_equal(found[i].ndim, 3);
		assert_memory_equal(found[i].shape, shapes[i], sizeof(shapes[i]));
	}
	store_close(store);
}

/* The longest name and shape; the space for it was reserved with the extents. */
TEST(the_longest_entry_has_room)
{
	char name[NVS_NAME_MAX + 1] = "";
	uint64_t ones[NVS_NDIM_MAX];
	struct store_entry entry = {
		.name = name, .dtype = NVS_U8, .numel = 1, .nbytes = 1, .shape = ones};

	memset(name, 'n', NVS_NAME_MAX);
	for (size_t i = 0; i < NVS_NDIM_MAX; i++)
		ones[i] = 1;
	entry.ndim = NVS_NDIM_MAX;
	assert_int_equal(manifest_bytes(&entry, 1, NULL),
			 MANIFEST_HEADER_BYTES + MANIFEST_ENTRY_MAX);
}

AROUND_TESTS(open_aio, close_aio)
