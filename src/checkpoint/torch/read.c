/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists the tensors of a file of torch.save: a zip with a pickle of values, and a record for the
 * data of each storage. A tensor's name is its path through dictionaries and lists, with dots
 * between. A file may be hostile: reading it takes at most TORCH_BYTES() of memory for the bytes of
 * its pickle and directory, and time in proportion to them.
 */
#include "checkpoint/torch/torch.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/little_endian.h"
#include "base/memory/array.h"
#include "base/shape.h"
#include "base/text.h"
#include "checkpoint/torch/pickle.h"
#include "checkpoint/torch/zip.h"

#define DEPTH_MAX  64u
#define VISITS_MAX ENTRIES_MAX
/*
 * A list that the pickle has once may be in it many times, and lists of such lists hold a tensor
 * millions of times. For each byte of the pickle, at most so many values are visited, and the
 * tensors' entries take at most so many bytes; a short pickle has LISTED_MIN of both. A tensor
 * under several names, of tied weights, takes less than ten.
 */
#define LISTED_MIN	(64u << 10)
#define LISTED_PER_BYTE 64u
#define PICKLE		"/data.pkl"
#define ALONE		"tensor" /* the name of a tensor that was saved alone */

struct torch_reader {
	struct nvs_checkpoint *checkpoint;
	int fd;
	const char *path;
	struct nvs_error *error;
	struct zip zip;
	struct pickle pickle;
	char *prefix;		     /* of all records */
	size_t room, unread_room;    /* entries */
	uint64_t visits, listed;     /* bytes of entries */
	unsigned nameless;	     /* keys on the way to the value that are no text */
	char name[NVS_NAME_MAX + 1]; /* of the value that is visited */
};

#define REJECT(reader, format, ...)                                                                \
	error_about((reader)->error, -EINVAL, (reader)->name, 0, 0, "%s:%s%s%s " format,           \
		    (reader)->path, *(reader)->name ? " tensor " : "", (reader)->name,             \
		    *(reader)->name ? ":" : "", ##__VA_ARGS__)

static int no_memory(const struct torch_reader *reader)
{
	return error_set(reader->error, -ENOMEM, "no memory for the tensors of %s", reader->path);
}

static uint64_t listed_max(const struct torch_reader *reader)
{
	return LISTED_MIN + LISTED_PER_BYTE * (uint64_t)reader->pickle.nbytes;
}

/* ---- A tensor ---- */

static uint64_t number_of(const struct object *tuple, size_t i)
{
	assert(i < tuple->n && tuple->items[i]->kind == OBJECT_INT);
	return (uint64_t)tuple->items[i]->number;
}

/* Whether elements follow one another as those of a safetensors file do. */
static bool is_contiguous(const struct object *shape, const struct object *stride)
{
	uint64_t expected = 1;

	for (size_t i = 0; i < shape->n; i++)
		if (!number_of(shape, i))
			return true;
	for (size_t i = shape->n; i-- > 0;) {
		if (number_of(shape, i) == 1)
			continue;
		if (number_of(stride, i) != expected)
			return false;
		expected *= number_of(shape, i);
	}
	return true;
}

static int read_shape(const struct torch_reader *reader, const struct object *shape,
		      struct entry *entry)
{
	if (shape->n > NVS_NDIM_MAX)
		return REJECT(reader, "it has %zu dimensions; allowed are up to %u", shape->n,
			      NVS_NDIM_MAX);
	entry->shape = calloc(shape->n + 1, sizeof(*entry->shape));
	if (!entry->shape)
		return no_memory(reader);
	entry->ndim = shape->n;
	for (size_t i = 0; i < shape->n; i++)
		entry->shape[i] = number_of(shape, i);
	if (!shape_numel(entry->shape, entry->ndim, &entry->numel))
		return REJECT(reader, "its shape has more elements than 64 bits can count");
	return 0;
}

/* The tensor must lie in its storage, whose record must have the size that the pickle tells. */
static int read_place(const struct torch_reader *reader, const struct object *tensor,
		      struct entry *entry)
{
	const struct object *storage = tensor->tensor.storage;
	const char *key = storage->storage.key;
	/* One without elements may have any offset. */
	uint64_t offset = entry->numel ? tensor->tensor.offset : 0;
	uint64_t begin, end, nbytes, size = nvs_dtype_size(tensor->tensor.dtype);
	const struct zip_record *record;
	char *name;

	if (asprintf(&name, "%s/data/%s", reader->prefix, key) < 0)
		return no_memory(reader);
	record = zip_find(&reader->zip, name);
	free(name);
	if (!record)
		return REJECT(reader, "its data, record data/%.100s, is missing", key);
	if (__builtin_mul_overflow(storage->storage.numel,
				   nvs_dtype_size(storage->storage.type->dtype), &nbytes) ||
	    nbytes != record->nbytes)
		return REJECT(reader,
			      "its storage has %" PRIu64 " elements, but record data/%.100s "
			      "%" PRIu64 " bytes",
			      storage->storage.numel, key, record->nbytes);
	if (__builtin_mul_overflow(entry->numel, size, &entry->nbytes) ||
	    __builtin_mul_overflow(offset, size, &begin) ||
	    __builtin_add_overflow(begin, entry->nbytes, &end) || end > record->nbytes)
		return REJECT(reader, "it ends behind its storage of %" PRIu64 " bytes",
			      record->nbytes);
	if (entry->nbytes > DATA_MAX - reader->checkpoint->nbytes)
		return REJECT(reader, "the tensors have more than the %llu bytes that are allowed",
			      DATA_MAX);
	entry->offset = record->data_at + begin;
	entry->storage = (uint32_t)(record - reader->zip.records);
	entry->crc = record->crc;
	entry->has_crc = entry->nbytes == record->nbytes;
	return 0;
}

static int add_unread(struct torch_reader *reader, const char *why)
{
	struct nvs_checkpoint *checkpoint = reader->checkpoint;
	struct unread *grown = array_room(checkpoint->unread, checkpoint->nunread,
					  &reader->unread_room, sizeof(*grown));

	if (!grown)
		return no_memory(reader);
	checkpoint->unread = grown;
	grown += checkpoint->nunread;
	*grown = (struct unread){strdup(reader->name), why};
	if (!grown->name)
		return no_memory(reader);
	checkpoint->nunread++;
	return 0;
}

static int add_tensor(struct torch_reader *reader, const struct object *tensor)
{
	const struct object *shape = tensor->tensor.shape, *stride = tensor->tensor.stride;
	struct nvs_checkpoint *checkpoint = reader->checkpoint;
	struct entry *entries, *entry;
	int rc;

	if (reader->nameless)
		return REJECT(reader,
			      "a tensor below it has a name that is no text in UTF-8, or more "
			      "than %d bytes",
			      NVS_NAME_MAX);
	if (checkpoint->n + checkpoint->nunread == ENTRIES_MAX)
		return REJECT(reader, "more than %u tensors", ENTRIES_MAX);
	reader->listed += sizeof(*entry) + strlen(reader->name) +
			  (shape ? shape->n * sizeof(uint64_t) : 0);
	if (reader->listed > listed_max(reader))
		return REJECT(reader,
			      "more than %zu tensors, which a pickle of %zu bytes holds by "
			      "holding the same lists many times",
			      checkpoint->n + checkpoint->nunread, reader->pickle.nbytes);
	if (tensor->tensor.unread)
		return add_unread(reader, tensor->tensor.unread);
	assert(shape && stride);
	if (!is_contiguous(shape, stride))
		return add_unread(reader, "its elements do not follow one another: it was "
					  "transposed, sliced or expanded; save it with "
					  ".contiguous()");
	entries = array_room(checkpoint->entries, checkpoint->n, &reader->room, sizeof(*entry));
	if (!entries)
		return no_memory(reader);
	checkpoint->entries = entries;
	entry = &checkpoint->entries[checkpoint->n];
	*entry = (struct entry){.name = strdup(reader->name), .dtype = tensor->tensor.dtype};
	if (!entry->name)
		return no_memory(reader);
	checkpoint->n++;
	rc = read_shape(reader, shape, entry);
	if (!rc)
		rc = read_place(reader, tensor, entry);
	checkpoint->nbytes += rc ? 0 : entry->nbytes;
	return rc;
}

/* ---- The values ---- */

static bool has_items(const struct object *object)
{
	return object->kind == OBJECT_DICT || object->kind == OBJECT_LIST ||
	       object->kind == OBJECT_TUPLE;
}

/* Visits what lies below a value, each under the name of its key or index behind the value's. */
static int visit(struct torch_reader *reader, const struct object *object, unsigned depth)
{
	size_t length = strlen(reader->name), room = sizeof(reader->name) - length;
	size_t step = object->kind == OBJECT_DICT ? 2 : 1;
	const char *dot = length ? "." : "";
	int rc = 0;

	if (object->kind == OBJECT_TENSOR)
		return add_tensor(reader, object);
	if (!has_items(object))
		return 0;
	if (depth > DEPTH_MAX)
		return REJECT(reader, "dictionaries and lists more than %u deep", DEPTH_MAX);
	for (size_t i = 0; i < object->n && !rc; i += step) {
		const struct object *key = step == 2 ? object->items[i] : NULL;
		const struct object *value = object->items[i + step - 1];
		char *name = reader->name + length;
		bool named;
		int n = -1;

		if (++reader->visits > VISITS_MAX || reader->visits > listed_max(reader))
			return REJECT(reader,
				      "more than %" PRIu64 " values, in a pickle of %zu bytes",
				      reader->visits - 1, reader->pickle.nbytes);
		if (value->kind != OBJECT_TENSOR && !has_items(value))
			continue;
		if (!key)
			n = snprintf(name, room, "%s%zu", dot, i);
		else if (key->kind == OBJECT_INT)
			n = snprintf(name, room, "%s%" PRId64, dot, key->number);
		else if (key->kind == OBJECT_STRING && key->length &&
			 strlen(key->text) == key->length && text_is_utf8(key->text))
			n = snprintf(name, room, "%s%s", dot, key->text);
		/* Only a tensor needs its name. */
		named = n >= 0 && (size_t)n < room;
		if (!named)
			*name = '\0';
		reader->nameless += !named;
		rc = visit(reader, value, depth + 1);
		reader->nameless -= !named;
		if (!rc)
			*name = '\0';
	}
	return rc;
}

/* ---- The file ---- */

/* A record's contents, with a NUL behind them. */
static int read_record(const struct torch_reader *reader, const struct zip_record *record,
		       uint8_t **data)
{
	int rc;

	if (record->nbytes > HEADER_MAX)
		return REJECT(reader, "record %s has %" PRIu64 " bytes; allowed are up to %u",
			      record->name, record->nbytes, HEADER_MAX);
	*data = calloc(1, record->nbytes + 1);
	if (!*data)
		return no_memory(reader);
	rc = read_at(reader->fd, reader->path, record->data_at, *data, record->nbytes,
		     reader->error);
	if (!rc && zip_crc32(*data, record->nbytes) != record->crc)
		rc = REJECT(reader, "record %s is damaged: its bytes do not have its checksum",
			    record->name);
	return rc;
}

/* Files of early versions do not say; all are little-endian where nvswap runs. */
static int check_byte_order(const struct torch_reader *reader)
{
	const struct zip_record *record;
	uint8_t *order = NULL;
	char *name;
	int rc;

	if (asprintf(&name, "%s/byteorder", reader->prefix) < 0)
		return no_memory(reader);
	record = zip_find(&reader->zip, name);
	free(name);
	if (!record)
		return 0;
	rc = read_record(reader, record, &order);
	assert(rc || order);
	if (!rc && strcmp((const char *)order, "little") != 0)
		rc = REJECT(reader, "its numbers are %.20s-endian; read is little-endian alone",
			    (const char *)order);
	free(order);
	return rc;
}

static int read_values(struct torch_reader *reader)
{
	const size_t suffix = strlen(PICKLE);
	const struct zip_record *record = NULL;
	uint8_t *bytes = NULL;
	struct stat status;
	int rc = fstat(reader->fd, &status) ? -errno : 0;

	if (rc)
		return error_set(reader->error, rc, "%s: %s", reader->path, nvs_strerror(rc));
	rc = zip_read(&reader->zip, reader->fd, (uint64_t)status.st_size, reader->path,
		      reader->error);
	if (rc)
		return rc;
	/* All records lie in one folder, which the pickle's name tells. */
	for (size_t i = 0; i < reader->zip.n && !reader->prefix; i++) {
		size_t length;

		record = &reader->zip.records[i];
		length = strlen(record->name);
		if (length <= suffix || strcmp(record->name + length - suffix, PICKLE) != 0 ||
		    memchr(record->name, '/', length - suffix))
			continue;
		reader->prefix = strndup(record->name, length - suffix);
		if (!reader->prefix)
			return no_memory(reader);
	}
	if (!reader->prefix)
		return REJECT(reader, "it is a zip without data.pkl, so no file of torch.save");
	assert(record);
	rc = check_byte_order(reader);
	if (!rc)
		rc = read_record(reader, record, &bytes);
	if (!rc)
		rc = pickle_read(&reader->pickle, bytes, record->nbytes, reader->path,
				 reader->error);
	free(bytes);
	return rc;
}

static void torch_reader_free(struct torch_reader *reader)
{
	zip_free(&reader->zip);
	pickle_free(&reader->pickle);
	free(reader->prefix);
}

#define ZIP_BEGIN 0x04034b50u
/* A pickle of protocol 2 with a long integer, as torch.save wrote before version 1.6. */
#define OLD_BEGIN 0x0a8a0280u

/* The first four bytes of a file; 0: it has none, or is no regular file. */
static uint32_t begin_of(int fd)
{
	uint8_t first[4];
	struct stat status;
	bool is_read = !fstat(fd, &status) && S_ISREG(status.st_mode) &&
		       pread(fd, first, sizeof(first), 0) == sizeof(first);

	return is_read ? get_u32(first) : 0;
}

/* Lists the records of the zip as storages, which entries name by their index, and the tensors. */
static int read_file(struct torch_reader *reader)
{
	struct nvs_checkpoint *checkpoint = reader->checkpoint;
	const struct zip *zip = &reader->zip;
	int rc = checkpoint_of_file(checkpoint, reader->path, reader->fd, reader->error);

	checkpoint->has_data = checkpoint->of_torch = true;
	if (!rc)
		rc = read_values(reader);
	if (rc)
		return rc;
	checkpoint->storages = calloc(zip->n + 1, sizeof(*checkpoint->storages));
	if (!checkpoint->storages)
		return no_memory(reader);
	for (; checkpoint->nstorages < zip->n; checkpoint->nstorages++) {
		const struct zip_record *record = &zip->records[checkpoint->nstorages];

		checkpoint->storages[checkpoint->nstorages] = (struct storage){
			.offset = record->data_at, .nbytes = record->nbytes, .crc = record->crc};
	}
	if (reader->pickle.root->kind == OBJECT_TENSOR)
		memcpy(reader->name, ALONE, sizeof(ALONE));
	rc = visit(reader, reader->pickle.root, 0);
	if (rc || checkpoint->n)
		return rc;
	if (!checkpoint->nunread)
		return REJECT(reader, "holds no tensor");
	snprintf(reader->name, sizeof(reader->name), "%s", checkpoint->unread[0].name);
	return REJECT(reader, "it can't be read, and there is no other: %s",
		      checkpoint->unread[0].why);
}

int torch_load(struct nvs_checkpoint *checkpoint, const char *path, bool *is_torch,
	       struct nvs_error *error)
{
	int rc = 0, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct torch_reader reader = {
		.checkpoint = checkpoint, .fd = fd, .path = path, .error = error};
	struct stat status;
	uint32_t begin;

	*is_torch = false;
	if (fd < 0)
		return 0;
	begin = begin_of(fd);
	*is_torch = begin == ZIP_BEGIN || begin == OLD_BEGIN;
	if (begin == OLD_BEGIN)
		rc = REJECT(&reader,
			    "it has the form of torch.save before version 1.6: load it and save it "
			    "again with a newer one");
	else if (*is_torch) {
		rc = read_file(&reader);
		torch_reader_free(&reader);
		if (rc)
			checkpoint_free(checkpoint);
	} else if (text_ends_with(path, ".pt") && !fstat(fd, &status) && S_ISREG(status.st_mode)) {
		/* Only its name takes it for a file of torch.save. What is no regular file is left
		 * to the other readers to refuse. */
		*is_torch = true;
		rc = error_set(error, -EINVAL, "%s: it %s, so no file of torch.save", path,
			       status.st_size ? "does not begin as a zip" : "is empty");
	}
	close(fd);
	return rc;
}

/* ---- A number ---- */

/* The element of a tensor that has one. A negative number becomes one above every bound. */
static int read_element(struct torch_reader *reader, const struct object *tensor, double *value)
{
	struct entry entry = {.dtype = tensor->tensor.dtype};
	bool whole = entry.dtype == NVS_I64 || entry.dtype == NVS_U64;
	const struct zip_record *record;
	uint8_t *data = NULL;
	float real;
	int rc = tensor->tensor.unread ? REJECT(reader, "%s", tensor->tensor.unread)
				       : read_shape(reader, tensor->tensor.shape, &entry);

	if (!rc)
		rc = read_place(reader, tensor, &entry);
	if (!rc && (entry.numel != 1 || (entry.dtype != NVS_F32 && !whole)))
		rc = REJECT(reader, "it must be one element of F32, I64 or U64");
	record = &reader->zip.records[entry.storage];
	if (!rc)
		rc = read_record(reader, record, &data);
	if (!rc) {
		const uint8_t *at;

		assert(data && entry.offset >= record->data_at &&
		       entry.offset - record->data_at <= record->nbytes - entry.nbytes);
		at = data + (entry.offset - record->data_at);
		memcpy(&real, at, sizeof(real));
		*value = whole ? (double)get_u64(at) : (double)real;
	}
	free(data);
	free(entry.shape);
	return rc;
}

static int read_count(struct torch_reader *reader, const char *key, uint64_t *count)
{
	const struct object *root = reader->pickle.root, *object = NULL;
	double value = -1;
	int rc = 0;

	snprintf(reader->name, sizeof(reader->name), "%s", key);
	for (size_t i = 0; root && root->kind == OBJECT_DICT && i + 1 < root->n && !object; i += 2)
		if (root->items[i]->kind == OBJECT_STRING && !strcmp(root->items[i]->text, key))
			object = root->items[i + 1];
	if (!object)
		return REJECT(reader, "it is missing");
	if (object->kind == OBJECT_INT && object->number >= 0) {
		*count = (uint64_t)object->number;
		return 0;
	}
	if (object->kind == OBJECT_FLOAT)
		value = object->real;
	else if (object->kind == OBJECT_TENSOR)
		rc = read_element(reader, object, &value);
	if (rc)
		return rc;
	if (!(value >= 0 && value <= 0x1p53))
		return REJECT(reader, "it must be a whole number of 0 to 2^53");
	*count = (uint64_t)value;
	return (double)*count == value ? 0 : REJECT(reader, "it must be a whole number");
}

int torch_read_count(int fd, const char *path, const char *key, uint64_t *count,
		     struct nvs_error *error)
{
	struct nvs_checkpoint none = {0};
	struct torch_reader reader = {.checkpoint = &none, .fd = fd, .path = path, .error = error};
	int rc = 0;

	if (begin_of(fd) != ZIP_BEGIN)
		rc = REJECT(&reader, "it is no file of torch.save");
	if (!rc)
		rc = read_values(&reader);
	if (!rc)
		rc = read_count(&reader, key, count);
	torch_reader_free(&reader);
	return rc;
}
