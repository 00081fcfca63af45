/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encodes and decodes the table of groups. No length is used before it is within the bytes.
 */

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/little_endian.h"
#include "optim/state/header.h"

static const uint8_t magic[8] = {'n', 'v', 's', 'g', 'r', 'o', 'u', 'p'};

enum {
	VERSION = 1,
	AT_VERSION = 8,
	AT_GRADIENT_DTYPE = 12,
	AT_RATIO = 16,
	AT_COUNT = 24,
	/* In a group: */
	AT_NUMEL = 0,
	AT_LENGTH = 8,
	AT_NAME = 12,
};

_Static_assert(AT_COUNT + sizeof(uint64_t) == GROUPS_BYTES, "the groups follow their number");

uint64_t groups_nbytes(const struct group_table *table)
{
	uint64_t nbytes = GROUPS_BYTES;

	for (size_t i = 0; i < table->n; i++)
		nbytes += AT_NAME + strlen(table->specs[i].name);
	return nbytes;
}

void groups_encode(const struct group_table *table, uint8_t *bytes)
{
	uint8_t *at = bytes + GROUPS_BYTES;

	assert(table->n && is_element(table->gradient_dtype));
	memcpy(bytes, magic, sizeof(magic));
	put_u32(bytes + AT_VERSION, VERSION);
	put_u32(bytes + AT_GRADIENT_DTYPE, (uint32_t)table->gradient_dtype);
	put_f64(bytes + AT_RATIO, table->ratio);
	put_u64(bytes + AT_COUNT, table->n);
	for (size_t i = 0; i < table->n; i++) {
		size_t length = strlen(table->specs[i].name);

		assert(length && length <= NVS_NAME_MAX && table->specs[i].numel);
		put_u64(at + AT_NUMEL, table->specs[i].numel);
		put_u32(at + AT_LENGTH, (uint32_t)length);
		memcpy(at + AT_NAME, table->specs[i].name, length);
		at += AT_NAME + length;
	}
	assert(at == bytes + groups_nbytes(table));
}

static int decode_group(const uint8_t **at, const uint8_t *end, struct nvs_group_spec *spec,
			char **name, struct nvs_error *error)
{
	uint64_t left = (uint64_t)(end - *at);
	uint32_t length = left < AT_NAME ? 0 : get_u32(*at + AT_LENGTH);

	if (left < AT_NAME || length > left - AT_NAME)
		return error_set(error, -EUCLEAN, "it ends within a group");
	if (!length || length > NVS_NAME_MAX || memchr(*at + AT_NAME, 0, length))
		return error_set(error, -EUCLEAN, "the name of a group is not 1 to %d bytes long",
				 NVS_NAME_MAX);
	*spec = (struct nvs_group_spec){.size = sizeof(*spec),
					.name = *name,
					.numel = get_u64(*at + AT_NUMEL),
					.dtype = NVS_F32};
	if (!spec->numel || spec->numel > HEADER_NUMEL_MAX)
		return error_set(error, -EUCLEAN,
				 "a group has %" PRIu64 " elements: allowed are 1 to 2^56",
				 spec->numel);
	memcpy(*name, *at + AT_NAME, length);
	(*name)[length] = 0;
	*name += length + 1;
	*at += AT_NAME + length;
	return 0;
}

int groups_decode(const uint8_t *bytes, uint64_t nbytes, struct group_table *table,
		  struct nvs_error *error)
{
	const uint8_t *at = bytes + GROUPS_BYTES, *end = bytes + nbytes;
	uint64_t n;
	char *name;
	int rc = 0;

	*table = (struct group_table){0};
	if (nbytes < GROUPS_BYTES || memcmp(bytes, magic, sizeof(magic)) != 0)
		return error_set(error, -EUCLEAN, "it is no table of groups");
	if (get_u32(bytes + AT_VERSION) != VERSION)
		return error_set(error, -EUCLEAN, "its version is %" PRIu32 ", not %d",
				 get_u32(bytes + AT_VERSION), VERSION);
	table->gradient_dtype = (enum nvs_dtype)get_u32(bytes + AT_GRADIENT_DTYPE);
	if (!is_element(table->gradient_dtype))
		return error_set(
			error, -EUCLEAN,
			"the element type of the gradients is %d: allowed are F32, BF16 and F16",
			(int)table->gradient_dtype);
	table->ratio = get_f64(bytes + AT_RATIO);
	if (!(table->ratio >= 0 && table->ratio <= 1))
		return error_set(error, -EUCLEAN, "the ratio is %g: allowed are 0 to 1",
				 table->ratio);

	n = get_u64(bytes + AT_COUNT);
	if (!n || n > (nbytes - GROUPS_BYTES) / AT_NAME)
		return error_set(error, -EUCLEAN, "it has %" PRIu64 " groups in %" PRIu64 " bytes",
				 n, nbytes);
	table->specs = calloc(n, sizeof(*table->specs));
	/* A name and its zero byte are shorter than its group. */
	table->names = name = malloc(nbytes);
	if (!table->specs || !name) {
		groups_free(table);
		return error_set(error, -ENOMEM, "no memory for the groups");
	}
	for (; table->n < n && !rc; table->n += !rc)
		rc = decode_group(&at, end, &table->specs[table->n], &name, error);
	if (!rc && at != end)
		rc = error_set(error, -EUCLEAN, "%zu bytes follow the last group",
			       (size_t)(end - at));
	if (rc) {
		groups_free(table);
		return rc;
	}
	assert(groups_nbytes(table) == nbytes);
	return 0;
}

void groups_free(struct group_table *table)
{
	free(table->specs);
	free(table->names);
	*table = (struct group_table){0};
}
