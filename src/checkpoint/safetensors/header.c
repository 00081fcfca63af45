/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and checks safetensors headers. A file may be damaged or hostile, so every value is checked
 * before it is used.
 */
#include "checkpoint/checkpoint.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json/read.h"
#include "base/little_endian.h"
#include "base/numbers.h"
#include "base/shape.h"
#include "base/text.h"

struct header_reader {
	struct nvs_checkpoint *checkpoint;
	const char *path;
	struct nvs_error *error;
	uint64_t data_start, data_bytes; /* of a .safetensors file: place of the data in the file */
	struct entry *tensor; /* the tensor being read, which is the model's last; or NULL */
};

/* Fails with "PATH: TEXT", or "PATH: tensor NAME: TEXT" while a tensor is read. */
#define REJECT(reader, format, ...)                                                                \
	error_about((reader)->error, -EINVAL, NAME(reader), 0, 0, "%s:%s%s%s " format,             \
		    (reader)->path, *NAME(reader) ? " tensor " : "", NAME(reader),                 \
		    *NAME(reader) ? ":" : "", ##__VA_ARGS__)
#define NAME(reader) ((reader)->tensor ? (reader)->tensor->name : "")

static int no_memory(const struct header_reader *reader)
{
	return error_set(reader->error, -ENOMEM, "no memory for the header of %s", reader->path);
}

static int unexpected(const struct header_reader *reader, const struct json_value *value,
		      const char *expected)
{
	static const char *const kinds[] = {
		[JSON_STRING] = "a string", [JSON_ARRAY] = "an array", [JSON_OBJECT] = "an object"};
	char raw[48];

	snprintf(raw, sizeof(raw), "%.*s", (int)(value->raw_length < 40 ? value->raw_length : 40),
		 value->raw);
	return REJECT(reader, "found %s where %s is expected",
		      value->type >= JSON_STRING ? kinds[value->type] : raw, expected);
}

/* The format allows plain digits only; up to 64 bits. */
static bool read_count(const struct json_value *value, uint64_t *count)
{
	if (value->type != JSON_NUMBER || memchr(value->raw, '.', value->raw_length) ||
	    memchr(value->raw, 'e', value->raw_length) ||
	    memchr(value->raw, 'E', value->raw_length) || *value->raw == '-')
		return false;
	return json_read_whole(value, count) == JSON_WHOLE;
}

static int read_dtype(const struct header_reader *reader, const struct json_value *value)
{
	if (value->type != JSON_STRING)
		return unexpected(reader, value, "dtype as a string such as \"BF16\"");
	if (strlen(value->string) != value->length ||
	    nvs_dtype_parse(value->string, &reader->tensor->dtype))
		return REJECT(reader,
			      "dtype %.15s is not one of safetensors's, such as F32, F16, BF16, "
			      "I64 or U8",
			      value->string);
	return 0;
}

static int read_shape(const struct header_reader *reader, const struct json_value *value)
{
	struct entry *tensor = reader->tensor;

	if (value->type != JSON_ARRAY)
		return unexpected(reader, value, "shape as an array of whole numbers");
	if (value->count > NVS_NDIM_MAX)
		return REJECT(reader, "shape has %u dimensions; allowed are up to %u", value->count,
			      NVS_NDIM_MAX);
	tensor->shape = calloc(value->count + 1u, sizeof(*tensor->shape));
	if (!tensor->shape)
		return no_memory(reader);
	for (const struct json_value *item = value->first; item; item = item->next) {
		assert(tensor->ndim < value->count);
		if (!read_count(item, &tensor->shape[tensor->ndim++]))
			return unexpected(reader, item, "a whole number of 0 or more in shape");
	}
	if (!shape_numel(tensor->shape, tensor->ndim, &tensor->numel))
		return REJECT(reader, "its shape has more elements than 64 bits can count");
	return 0;
}

/* The tensor's range in the file must fit its shape and the file. */
static int read_offsets(const struct header_reader *reader, const struct json_value *value)
{
	const struct json_value *item = value->first;
	struct entry *tensor = reader->tensor;
	uint64_t offsets[2];

	if (value->type != JSON_ARRAY)
		return unexpected(reader, value, "data_offsets as an array of two whole numbers");
	if (value->count != 2)
		return REJECT(reader, "data_offsets has %u numbers, and needs two", value->count);
	for (int i = 0; i < 2; i++, item = item->next)
		if (!read_count(item, &offsets[i]))
			return unexpected(reader, item,
					  "a whole number of 0 or more in data_offsets");
	if (offsets[1] < offsets[0])
		return REJECT(
			reader,
			"data_offsets must be two numbers, the second not less than the first");
	if (offsets[1] - offsets[0] != tensor->nbytes)
		return REJECT(reader, "data_offsets span %llu bytes, but dtype and shape need %llu",
			      (unsigned long long)(offsets[1] - offsets[0]),
			      (unsigned long long)tensor->nbytes);
	if (reader->checkpoint->has_data && offsets[1] > reader->data_bytes)
		return REJECT(reader,
			      "its data ends %llu bytes behind the header, but the file has only "
			      "%llu: it is truncated, or its header is wrong",
			      (unsigned long long)offsets[1],
			      (unsigned long long)reader->data_bytes);
	tensor->offset = reader->data_start + offsets[0];
	return 0;
}

/* Other keys mean nothing to the format's own reader either. */
static int check_keys(const struct header_reader *reader, const struct json_value *object)
{
	static const char *const keys[] = {"dtype", "shape", "data_offsets"};

	for (const struct json_value *member = object->first; member; member = member->next)
		for (size_t i = 0; i < COUNT_OF(keys) && member->earlier; i++)
			if (strlen(keys[i]) == member->key_length && !strcmp(keys[i], member->key))
				return REJECT(reader, "%s appears twice", member->key);
	for (size_t i = 0; i < 2; i++)
		if (!json_member(object, keys[i]))
			return REJECT(reader, "has no %s", keys[i]);
	return 0;
}

/* The bytes of the tensor's elements, which are whole ones. */
static int count_bytes(const struct header_reader *reader, struct entry *tensor)
{
	struct nvs_checkpoint *checkpoint = reader->checkpoint;
	unsigned bits = nvs_dtype_bits(tensor->dtype);
	unsigned __int128 all = (unsigned __int128)tensor->numel * bits;

	if (all % 8)
		return REJECT(reader, "%llu elements of %u bits fill no whole number of bytes",
			      (unsigned long long)tensor->numel, bits);
	if (all / 8 > DATA_MAX - checkpoint->nbytes)
		return REJECT(reader,
			      "the checkpoint has more than the %llu bytes that are allowed",
			      DATA_MAX);
	tensor->nbytes = (uint64_t)(all / 8);
	checkpoint->nbytes += tensor->nbytes;
	return 0;
}

static int add_tensor(struct header_reader *reader, const struct json_value *member)
{
	struct nvs_checkpoint *checkpoint = reader->checkpoint;
	const struct json_value *offsets = json_member(member, "data_offsets");
	struct entry *tensor = &checkpoint->entries[checkpoint->n];
	int rc;

	if (member->earlier)
		return REJECT(reader, "tensor %s appears twice", member->key);
	tensor->name = strdup(member->key);
	if (!tensor->name)
		return no_memory(reader);
	/* Its place counts for the layout; drop_nameless() takes it off the list. */
	tensor->nameless = !member->key_length || member->key_length > NVS_NAME_MAX ||
			   strlen(member->key) != member->key_length;
	reader->tensor = tensor;
	checkpoint->n++;
	if (member->type != JSON_OBJECT)
		return unexpected(reader, member, "an object with dtype and shape");
	rc = check_keys(reader, member);
	if (!rc)
		rc = read_dtype(reader, json_member(member, "dtype"));
	if (!rc)
		rc = read_shape(reader, json_member(member, "shape"));
	if (!rc)
		rc = count_bytes(reader, tensor);
	if (rc)
		return rc;
	if (offsets)
		return read_offsets(reader, offsets);
	return !checkpoint->has_data ? 0 : REJECT(reader, "has no data_offsets");
}

static int read_tensors(struct header_reader *reader, const struct json_value *root)
{
	int rc = 0;

	if (root->type != JSON_OBJECT)
		return unexpected(reader, root, "an object of tensors");
	reader->checkpoint->entries = calloc(root->count + 1u, sizeof(struct entry));
	if (!reader->checkpoint->entries)
		return no_memory(reader);
	for (const struct json_value *member = root->first; member && !rc; member = member->next) {
		reader->tensor = NULL;
		if (strcmp(member->key, "__metadata__") != 0) {
			rc = add_tensor(reader, member);
			continue;
		}
		if (member->earlier)
			return REJECT(reader, "__metadata__ appears twice");
		if (member->type == JSON_NULL)
			continue;
		if (member->type != JSON_OBJECT)
			return unexpected(reader, member, "__metadata__ as an object of strings");
		for (const struct json_value *item = member->first; item; item = item->next)
			if (item->type != JSON_STRING)
				return unexpected(reader, item, "a string in __metadata__");
	}
	return rc;
}

static int by_offset(const void *a, const void *b)
{
	const struct entry *left = *(const struct entry *const *)a;
	const struct entry *right = *(const struct entry *const *)b;

	/* An empty tensor precedes one at the same offset, and overlaps nothing. */
	if (left->offset == right->offset)
		return (left->nbytes > right->nbytes) - (left->nbytes < right->nbytes);
	return left->offset < right->offset ? -1 : 1;
}

/*
 * The format requires tensors to be contiguous and to fill the file. Errors name offsets from the
 * begin of the data, as the header does.
 */
static int check_layout(const struct header_reader *reader)
{
	const struct nvs_checkpoint *checkpoint = reader->checkpoint;
	/* One more than needed, because calloc(0) may return NULL. */
	const struct entry **sorted = calloc(checkpoint->n + 1, sizeof(const struct entry *));
	const char *before = "the header";
	unsigned long long end = 0;
	int rc = 0;

	if (!sorted)
		return no_memory(reader);
	for (size_t i = 0; i < checkpoint->n; i++)
		sorted[i] = &checkpoint->entries[i];
	qsort(sorted, checkpoint->n, sizeof(const struct entry *), by_offset);
	for (size_t i = 0; i < checkpoint->n && !rc; i++) {
		const struct entry *tensor = sorted[i];
		unsigned long long begin = tensor->offset - reader->data_start;

		if (begin != end)
			rc = error_about(reader->error, -EINVAL, tensor->name, 0, 0,
					 "%s: tensor %s: its data begins at %llu, and must begin "
					 "at %llu, where %s ends: %s",
					 reader->path, tensor->name, begin, end, before,
					 begin < end ? "the two overlap"
						     : "there may be no hole between tensors");
		end = begin + tensor->nbytes;
		assert(end <= reader->data_bytes);
		before = tensor->name;
	}
	if (!rc && end != reader->data_bytes)
		rc = error_about(reader->error, -EINVAL, before, 0, 0,
				 "%s: the data ends at %llu with tensor %s, but the file has "
				 "%llu bytes of data: nothing may follow the last tensor",
				 reader->path, end, before, (unsigned long long)reader->data_bytes);
	free(sorted);
	return rc;
}

/*
 * Tensors whose names nvswap can't have: the others of the file are usable. Asking for one of these
 * tells why it isn't listed.
 */
static int drop_nameless(const struct header_reader *reader)
{
	struct nvs_checkpoint *checkpoint = reader->checkpoint;
	size_t n = 0, kept = 0;

	for (size_t i = 0; i < checkpoint->n; i++)
		n += checkpoint->entries[i].nameless;
	if (!n)
		return 0;
	if (n == checkpoint->n)
		return error_set(
			reader->error, -EINVAL,
			"%s: none of its tensors has a name of 1 to %d bytes without a NUL",
			reader->path, NVS_NAME_MAX);
	checkpoint->unread = calloc(n, sizeof(*checkpoint->unread));
	if (!checkpoint->unread)
		return no_memory(reader);
	for (size_t i = 0; i < checkpoint->n; i++) {
		struct entry *entry = &checkpoint->entries[i];

		if (!entry->nameless) {
			checkpoint->entries[kept++] = *entry;
			continue;
		}
		checkpoint->unread[checkpoint->nunread++] = (struct unread){
			entry->name, "its name has no bytes, more than those allowed, or a NUL"};
		checkpoint->nbytes -= entry->nbytes;
		free(entry->shape);
	}
	checkpoint->n = kept;
	return 0;
}

static int read_header(struct header_reader *reader, int fd, uint64_t file_bytes)
{
	struct nvs_checkpoint *checkpoint = reader->checkpoint;
	const char *path = reader->path;
	uint64_t offset = 0, nbytes = file_bytes;
	uint8_t first[8] = {0};
	size_t n = min_u64(file_bytes, sizeof(first));
	struct json_document *document;
	char *text;
	int rc = read_at(fd, path, 0, first, n, reader->error);

	if (rc)
		return rc;
	if (text_ends_with(path, ".safetensors") ||
	    (!text_ends_with(path, ".json") && n == 8 && memchr(first, 0, n))) {
		offset = sizeof(first);
		nbytes = get_u64(first);
		if (file_bytes < offset || nbytes > file_bytes - offset)
			return error_set(reader->error, -EINVAL,
					 "%s: its header should have %llu bytes, but the file has "
					 "only %llu: it is truncated, or not a .safetensors file",
					 path, (unsigned long long)nbytes,
					 (unsigned long long)file_bytes);
		checkpoint->has_data = true;
		reader->data_start = offset + nbytes;
		reader->data_bytes = file_bytes - reader->data_start;
	}
	if (nbytes > HEADER_MAX)
		return error_set(reader->error, -EINVAL,
				 "%s: a header of %llu bytes; allowed are up to %u", path,
				 (unsigned long long)nbytes, HEADER_MAX);
	rc = read_json(fd, path, offset, nbytes, &text, &document, reader->error);
	if (!rc)
		rc = read_tensors(reader, json_root(document));
	json_free(document);
	free(text);
	if (!rc && !checkpoint->n && !checkpoint->has_data)
		rc = error_set(reader->error, -EINVAL, "%s: holds no tensor", path);
	if (!rc && checkpoint->has_data)
		rc = check_layout(reader);
	return rc ? rc : drop_nameless(reader);
}

int safetensors_load(struct nvs_checkpoint *checkpoint, const char *path, struct nvs_error *error)
{
	struct header_reader reader = {.checkpoint = checkpoint, .path = path, .error = error};
	uint64_t nbytes;
	int rc, fd = open_to_read(path, "checkpoint", &nbytes, error);

	*checkpoint = (struct nvs_checkpoint){0};
	if (fd < 0)
		return fd;
	rc = checkpoint_of_file(checkpoint, path, fd, error);
	if (!rc)
		rc = read_header(&reader, fd, nbytes);
	close(fd);
	if (rc)
		checkpoint_free(checkpoint);
	return rc;
}
