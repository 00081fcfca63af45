/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and checks headers of safetensors. A file may be damaged or lie, so nothing in it is
 * believed before it was checked; data are read with pread, never mapped, so that a file that is
 * cut short meanwhile is an error and not a signal.
 */
#include "model.h"

#include <assert.h>
#include <ctype.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yajl/yajl_parse.h>

/* Where in the JSON the reader is; what it wants there is in wanted[]. */
enum place {
	BEFORE,
	ROOT,
	TENSOR_VALUE,
	TENSOR,
	DTYPE,
	SHAPE,
	SHAPE_ITEMS,
	OFFSETS,
	OFFSETS_ITEMS,
	METADATA_VALUE,
	METADATA,
	METADATA_ITEM,
	BEHIND,
};

static const char *const wanted[] = {
	[BEFORE] = "an object of tensors",
	[ROOT] = "the name of a tensor",
	[TENSOR_VALUE] = "an object with dtype and shape",
	[TENSOR] = "dtype, shape or data_offsets",
	[DTYPE] = "dtype as a string such as \"BF16\"",
	[SHAPE] = "shape as an array of whole numbers",
	[SHAPE_ITEMS] = "a whole number of 0 or more in shape",
	[OFFSETS] = "data_offsets as an array of two whole numbers",
	[OFFSETS_ITEMS] = "a whole number of 0 or more in data_offsets",
	[METADATA_VALUE] = "__metadata__ as an object of strings",
	[METADATA] = "a key of __metadata__",
	[METADATA_ITEM] = "a string in __metadata__",
	[BEHIND] = "the end",
};

struct reader {
	struct model *model;
	struct nvs_error *error;
	const char *json;
	size_t json_bytes;
	uint64_t data_start, data_bytes; /* in the file; of a .safetensors */
	bool metadata_seen;
	enum place place;
	size_t room; /* in model->tensors */
	/* the tensor that is being read */
	struct model_tensor tensor;
	bool has_dtype, has_shape, has_offsets;
	unsigned noffsets;
	uint64_t offsets[2];
};

static int fail(struct nvs_error *error, int code, const char *subject, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

static int fail(struct nvs_error *error, int code, const char *subject, const char *format, ...)
{
	va_list args;

	*error = (struct nvs_error){.code = code};
	snprintf(error->subject, sizeof(error->subject), "%s", subject ? subject : "");
	va_start(args, format);
	vsnprintf(error->text, sizeof(error->text), format, args);
	va_end(args);
	return code;
}

/* For the callbacks of yajl, which end the parsing by 0; the code stays in the error. */
#define REJECT(reader, ...) (fail((reader)->error, -EINVAL, (reader)->tensor.name, __VA_ARGS__), 0)

static int no_memory(const struct model *model, struct nvs_error *error)
{
	return fail(error, -ENOMEM, "", "no memory for the header of %s", model->path);
}

static int unexpected(struct reader *reader, const char *found)
{
	const char *name = reader->tensor.name;

	return REJECT(reader, "%s:%s%s%s found %s where %s is due", reader->model->path,
		      name ? " tensor " : "", name ? name : "", name ? ":" : "", found,
		      wanted[reader->place]);
}

static int on_null(void *arg)
{
	return unexpected(arg, "null");
}

static int on_boolean(void *arg, int value)
{
	return unexpected(arg, value ? "true" : "false");
}

static int add_dimension(struct reader *reader, uint64_t size)
{
	if (__builtin_mul_overflow(reader->tensor.numel, size, &reader->tensor.numel))
		return REJECT(reader,
			      "%s: tensor %s: its shape has more elements than 64 bits can "
			      "count",
			      reader->model->path, reader->tensor.name);
	return 1;
}

static int add_offset(struct reader *reader, uint64_t offset)
{
	if (reader->noffsets == 2)
		return REJECT(reader, "%s: tensor %s: data_offsets has more than two numbers",
			      reader->model->path, reader->tensor.name);
	reader->offsets[reader->noffsets++] = offset;
	return 1;
}

static int on_number(void *arg, const char *text, size_t length)
{
	struct reader *reader = arg;
	char found[48];
	uint64_t value = 0;

	snprintf(found, sizeof(found), "%.*s", (int)(length < 40 ? length : 40), text);
	if (reader->place != SHAPE_ITEMS && reader->place != OFFSETS_ITEMS)
		return unexpected(reader, found);
	for (size_t i = 0; i < length; i++)
		if (!isdigit((unsigned char)text[i]) || __builtin_mul_overflow(value, 10, &value) ||
		    __builtin_add_overflow(value, (unsigned)(text[i] - '0'), &value))
			return unexpected(reader, found);
	return reader->place == SHAPE_ITEMS ? add_dimension(reader, value)
					    : add_offset(reader, value);
}

static int on_string(void *arg, const unsigned char *text, size_t length)
{
	struct reader *reader = arg;
	char name[16];

	if (reader->place == METADATA_ITEM) {
		reader->place = METADATA;
		return 1;
	}
	if (reader->place != DTYPE)
		return unexpected(reader, "a string");
	snprintf(name, sizeof(name), "%.*s", (int)(length < 15 ? length : 15), (const char *)text);
	if (length >= sizeof(name) || nvs_dtype_parse(name, &reader->tensor.dtype))
		return REJECT(reader,
			      "%s: tensor %s: dtype %s is none of those that safetensors "
			      "has, such as F32, F16, BF16, I64 or U8",
			      reader->model->path, reader->tensor.name, name);
	reader->place = TENSOR;
	return 1;
}

static int begin_tensor(struct reader *reader, const char *name, size_t length)
{
	if (!length || length > NVS_NAME_MAX || memchr(name, '\0', length))
		return REJECT(reader,
			      "%s: the name of tensor %zu has %zu bytes%s; allowed are 1 to "
			      "%d, and no NUL",
			      reader->model->path, reader->model->n, length,
			      memchr(name, '\0', length) ? " with a NUL" : "", NVS_NAME_MAX);
	reader->tensor = (struct model_tensor){.name = strndup(name, length), .numel = 1};
	if (!reader->tensor.name)
		return no_memory(reader->model, reader->error), 0;
	reader->has_dtype = reader->has_shape = reader->has_offsets = false;
	reader->noffsets = 0;
	reader->place = TENSOR_VALUE;
	return 1;
}

static int begin_property(struct reader *reader, const char *key, size_t length)
{
	static const struct {
		const char *key;
		enum place place;
	} properties[] = {{"dtype", DTYPE}, {"shape", SHAPE}, {"data_offsets", OFFSETS}};
	bool *const seen[] = {&reader->has_dtype, &reader->has_shape, &reader->has_offsets};

	for (size_t i = 0; i < sizeof(properties) / sizeof(*properties); i++) {
		if (strlen(properties[i].key) != length ||
		    memcmp(properties[i].key, key, length) != 0)
			continue;
		if (*seen[i])
			return REJECT(reader, "%s: tensor %s: %s stands twice", reader->model->path,
				      reader->tensor.name, properties[i].key);
		*seen[i] = true;
		reader->place = properties[i].place;
		return 1;
	}
	return REJECT(reader, "%s: tensor %s: unknown key %.*s; allowed are %s",
		      reader->model->path, reader->tensor.name, (int)(length < 100 ? length : 100),
		      key, wanted[TENSOR]);
}

static int on_key(void *arg, const unsigned char *text, size_t length)
{
	static const char metadata[] = "__metadata__";
	struct reader *reader = arg;
	const char *key = (const char *)text;

	if (reader->place == METADATA) {
		reader->place = METADATA_ITEM;
		return 1;
	}
	if (reader->place == TENSOR)
		return begin_property(reader, key, length);
	assert(reader->place == ROOT);
	if (length != strlen(metadata) || memcmp(key, metadata, length) != 0)
		return begin_tensor(reader, key, length);
	if (reader->metadata_seen)
		return REJECT(reader, "%s: __metadata__ stands twice", reader->model->path);
	reader->metadata_seen = true;
	reader->place = METADATA_VALUE;
	return 1;
}

static int on_map_open(void *arg)
{
	struct reader *reader = arg;

	if (reader->place == BEFORE)
		reader->place = ROOT;
	else if (reader->place == TENSOR_VALUE)
		reader->place = TENSOR;
	else if (reader->place == METADATA_VALUE)
		reader->place = METADATA;
	else
		return unexpected(reader, "an object");
	return 1;
}

/* The range that the header gives to the tensor, against its shape and against the file. */
static int check_offsets(struct reader *reader)
{
	struct model_tensor *tensor = &reader->tensor;
	unsigned long long begin = reader->offsets[0], end = reader->offsets[1];

	if (reader->noffsets != 2 || end < begin)
		return REJECT(reader,
			      "%s: tensor %s: data_offsets must be two numbers, the second "
			      "not less than the first",
			      reader->model->path, tensor->name);
	if (end - begin != tensor->nbytes)
		return REJECT(reader,
			      "%s: tensor %s: data_offsets span %llu bytes, and dtype and "
			      "shape need %llu",
			      reader->model->path, tensor->name, end - begin,
			      (unsigned long long)tensor->nbytes);
	if (reader->model->fd >= 0 && end > reader->data_bytes)
		return REJECT(reader,
			      "%s: tensor %s: its data end %llu bytes behind the header, "
			      "where the file has only %llu: it was cut short, or its "
			      "header is wrong",
			      reader->model->path, tensor->name, end,
			      (unsigned long long)reader->data_bytes);
	tensor->file_offset = reader->data_start + begin;
	return 1;
}

static int grow(struct reader *reader)
{
	size_t room = reader->room ? reader->room * 2 : 256;
	struct model_tensor *tensors = reallocarray(reader->model->tensors, room, sizeof(*tensors));

	if (!tensors)
		return no_memory(reader->model, reader->error), 0;
	reader->model->tensors = tensors;
	reader->room = room;
	return 1;
}

static int end_tensor(struct reader *reader)
{
	struct model *model = reader->model;
	struct model_tensor *tensor = &reader->tensor;
	bool offsets_due = model->fd >= 0;

	if (!reader->has_dtype || !reader->has_shape || (offsets_due && !reader->has_offsets))
		return REJECT(reader, "%s: tensor %s has no %s", model->path, tensor->name,
			      !reader->has_dtype   ? "dtype"
			      : !reader->has_shape ? "shape"
						   : "data_offsets");
	if (__builtin_mul_overflow(tensor->numel, nvs_dtype_size(tensor->dtype), &tensor->nbytes) ||
	    tensor->nbytes > MODEL_BYTES_MAX - model->nbytes)
		return REJECT(reader,
			      "%s: tensor %s: with it the model has more bytes than the %llu that "
			      "are allowed",
			      model->path, tensor->name, MODEL_BYTES_MAX);
	model->nbytes += tensor->nbytes;
	if (reader->has_offsets && !check_offsets(reader))
		return 0;
	if (model->n == reader->room && !grow(reader))
		return 0;
	model->tensors[model->n++] = *tensor;
	*tensor = (struct model_tensor){0};
	reader->place = ROOT;
	return 1;
}

static int on_map_close(void *arg)
{
	struct reader *reader = arg;

	if (reader->place == TENSOR)
		return end_tensor(reader);
	reader->place = reader->place == METADATA ? ROOT : BEHIND;
	return 1;
}

static int on_array_open(void *arg)
{
	struct reader *reader = arg;

	if (reader->place == SHAPE)
		reader->place = SHAPE_ITEMS;
	else if (reader->place == OFFSETS)
		reader->place = OFFSETS_ITEMS;
	else
		return unexpected(reader, "an array");
	return 1;
}

static int on_array_close(void *arg)
{
	struct reader *reader = arg;

	reader->place = TENSOR;
	return 1;
}

static const yajl_callbacks callbacks = {
	.yajl_null = on_null,
	.yajl_boolean = on_boolean,
	.yajl_number = on_number,
	.yajl_string = on_string,
	.yajl_start_map = on_map_open,
	.yajl_map_key = on_key,
	.yajl_end_map = on_map_close,
	.yajl_start_array = on_array_open,
	.yajl_end_array = on_array_close,
};

/* yajl's one line of text for an error, after the place in the file. */
static int syntax_error(struct reader *reader, yajl_handle parser)
{
	unsigned char *text = yajl_get_error(parser, 0, NULL, 0);
	size_t at = yajl_get_bytes_consumed(parser), line = 1;

	for (size_t i = 0; i < at && i < reader->json_bytes; i++)
		line += reader->json[i] == '\n';
	fail(reader->error, -EINVAL, "", "%s: %s, line %zu: not JSON: %.*s", reader->model->path,
	     reader->model->fd >= 0 ? "header" : "file", line,
	     text ? (int)strcspn((const char *)text, "\n") : 0, text ? (const char *)text : "");
	reader->error->line = (unsigned)line;
	if (text)
		yajl_free_error(parser, text);
	return -EINVAL;
}

static int parse(struct reader *reader)
{
	yajl_handle parser = yajl_alloc(&callbacks, NULL, reader);
	yajl_status status;
	int rc = 0;

	if (!parser)
		return no_memory(reader->model, reader->error);
	status = yajl_parse(parser, (const unsigned char *)reader->json, reader->json_bytes);
	if (status == yajl_status_ok)
		status = yajl_complete_parse(parser);
	if (status == yajl_status_client_canceled)
		rc = reader->error->code;
	else if (status != yajl_status_ok)
		rc = syntax_error(reader, parser);
	yajl_free(parser);
	free(reader->tensor.name);
	return rc;
}

static int by_name(const void *a, const void *b)
{
	const struct model_tensor *const *left = a, *const *right = b;

	return strcmp((*left)->name, (*right)->name);
}

static int by_offset(const void *a, const void *b)
{
	const struct model_tensor *const *left = a, *const *right = b;
	uint64_t x = (*left)->file_offset, y = (*right)->file_offset;

	/* An empty tensor lies before one that begins where it does, and overlaps nothing. */
	if (x == y) {
		x = (*left)->nbytes;
		y = (*right)->nbytes;
	}
	return (x > y) - (x < y);
}

static int check_names(const struct model *model, const struct model_tensor **sorted,
		       struct nvs_error *error)
{
	qsort(sorted, model->n, sizeof(const struct model_tensor *), by_name);
	for (size_t i = 1; i < model->n; i++)
		if (!strcmp(sorted[i - 1]->name, sorted[i]->name))
			return fail(error, -EINVAL, sorted[i]->name, "%s: tensor %s stands twice",
				    model->path, sorted[i]->name);
	return 0;
}

/* The tensors lie end to end and fill the file, as the format has it. Offsets in the texts are
 * those of the header: from where the data begin. */
static int check_layout(const struct reader *reader, const struct model_tensor **sorted)
{
	const struct model *model = reader->model;
	const char *before = "the header";
	unsigned long long end = 0;

	qsort(sorted, model->n, sizeof(const struct model_tensor *), by_offset);
	for (size_t i = 0; i < model->n; i++) {
		const struct model_tensor *tensor = sorted[i];
		unsigned long long begin = tensor->file_offset - reader->data_start;

		if (begin != end)
			return fail(
				reader->error, -EINVAL, tensor->name,
				"%s: tensor %s: its data begin at %llu, and must begin at %llu, "
				"where %s ends: %s",
				model->path, tensor->name, begin, end, before,
				begin < end ? "the two overlap"
					    : "a file has no holes between tensors");
		end = begin + tensor->nbytes;
		before = tensor->name;
	}
	if (end != reader->data_bytes)
		return fail(reader->error, -EINVAL, before,
			    "%s: the data end at %llu with tensor %s, and the file has %llu bytes "
			    "of data: nothing may stand behind the last tensor",
			    model->path, end, before, (unsigned long long)reader->data_bytes);
	return 0;
}

/* What can be told only of all the tensors together. */
static int check_all(const struct reader *reader)
{
	const struct model *model = reader->model;
	const struct model_tensor **sorted = calloc(model->n, sizeof(const struct model_tensor *));
	int rc;

	if (!sorted)
		return no_memory(model, reader->error);
	for (size_t i = 0; i < model->n; i++)
		sorted[i] = &model->tensors[i];
	rc = check_names(model, sorted, reader->error);
	if (!rc && model->fd >= 0)
		rc = check_layout(reader, sorted);
	free(sorted);
	return rc;
}

static int read_at(int fd, const char *path, uint64_t offset, void *data, size_t nbytes,
		   struct nvs_error *error)
{
	char *to = data;

	while (nbytes) {
		ssize_t got = pread(fd, to, nbytes, (off_t)offset);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return fail(error, -errno, "", "%s: reading at byte %llu: %s", path,
				    (unsigned long long)offset, strerror(errno));
		if (!got)
			return fail(error, -ENODATA, "",
				    "%s: ends at byte %llu: it was cut short while it was read",
				    path, (unsigned long long)offset);
		to += got;
		offset += (uint64_t)got;
		nbytes -= (size_t)got;
	}
	return 0;
}

static bool has_suffix(const char *text, const char *suffix)
{
	size_t length = strlen(text), n = strlen(suffix);

	return length >= n && !strcmp(text + length - n, suffix);
}

/* By the name; else JSON is text, and the length before a header has zeros in its high bytes. */
static bool looks_like_safetensors(const char *path, const unsigned char *first, size_t n)
{
	return has_suffix(path, ".safetensors") ||
	       (!has_suffix(path, ".json") && n == 8 && memchr(first, 0, n));
}

/* Finds where the JSON lies in the file, and checks that it can. */
static int find_header(struct reader *reader, int fd, uint64_t file_bytes, uint64_t *offset,
		       uint64_t *nbytes)
{
	const char *path = reader->model->path;
	unsigned char first[8] = {0};
	size_t n = file_bytes < sizeof(first) ? (size_t)file_bytes : sizeof(first);
	uint64_t length;
	int rc = read_at(fd, path, 0, first, n, reader->error);

	if (rc)
		return rc;
	*offset = 0;
	*nbytes = file_bytes;
	if (looks_like_safetensors(path, first, n)) {
		memcpy(&length, first, sizeof(length));
		*nbytes = le64toh(length);
		*offset = sizeof(length);
		if (file_bytes < *offset || *nbytes > file_bytes - *offset)
			return fail(reader->error, -EINVAL, "",
				    "%s: its header is to have %llu bytes, but the file has only "
				    "%llu: it was cut short, or is no .safetensors",
				    path, (unsigned long long)*nbytes,
				    (unsigned long long)file_bytes);
		reader->model->fd = fd;
		reader->data_start = *offset + *nbytes;
		reader->data_bytes = file_bytes - reader->data_start;
	}
	if (*nbytes > MODEL_HEADER_MAX)
		return fail(reader->error, -EINVAL, "",
			    "%s: a header of %llu bytes; allowed are up to %u", path,
			    (unsigned long long)*nbytes, MODEL_HEADER_MAX);
	return 0;
}

static int read_header(struct reader *reader, int fd, uint64_t file_bytes)
{
	struct model *model = reader->model;
	uint64_t offset, nbytes;
	char *json;
	int rc = find_header(reader, fd, file_bytes, &offset, &nbytes);

	if (rc)
		return rc;
	json = malloc(nbytes ? nbytes : 1);
	if (!json)
		return no_memory(model, reader->error);
	reader->json = json;
	reader->json_bytes = nbytes;
	rc = read_at(fd, model->path, offset, json, nbytes, reader->error);
	if (!rc)
		rc = parse(reader);
	free(json);
	if (!rc && !model->n)
		rc = fail(reader->error, -EINVAL, "", "%s: holds no tensor", model->path);
	return rc ? rc : check_all(reader);
}

int model_load(struct model *model, const char *path, struct nvs_error *error)
{
	struct reader reader = {.model = model, .error = error};
	struct stat status;
	int rc, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	*model = (struct model){.path = path, .fd = -1};
	if (fd < 0 || fstat(fd, &status))
		rc = fail(error, -errno, "", "can't open the model %s: %s", path, strerror(errno));
	else if (!S_ISREG(status.st_mode))
		rc = fail(error, -EINVAL, "", "the model %s is not a regular file", path);
	else
		rc = read_header(&reader, fd, (uint64_t)status.st_size);
	model->n_whole = model->n;
	model->nbytes_whole = model->nbytes;
	if (fd >= 0 && model->fd < 0)
		close(fd);
	if (rc)
		model_free(model);
	return rc;
}

void model_free(struct model *model)
{
	for (size_t i = 0; i < model->n && model->tensors; i++)
		free(model->tensors[i].name);
	free(model->tensors);
	if (model->fd >= 0)
		close(model->fd);
	*model = (struct model){.fd = -1};
}

void model_limit(struct model *model, uint64_t nbytes)
{
	uint64_t kept = 0;
	size_t n = 0;

	while (n < model->n &&
	       (!n || (kept <= nbytes && model->tensors[n].nbytes <= nbytes - kept)))
		kept += model->tensors[n++].nbytes;
	for (size_t i = n; i < model->n; i++)
		free(model->tensors[i].name);
	model->n = n;
	model->nbytes = kept;
}

uint64_t model_largest(const struct model *model)
{
	uint64_t largest = 0;

	for (size_t i = 0; i < model->n; i++)
		if (model->tensors[i].nbytes > largest)
			largest = model->tensors[i].nbytes;
	return largest;
}

int model_read(const struct model *model, const struct model_tensor *tensor, uint64_t offset,
	       void *data, size_t nbytes, struct nvs_error *error)
{
	assert(model->fd >= 0 && offset + nbytes <= tensor->nbytes);
	return read_at(model->fd, model->path, tensor->file_offset + offset, data, nbytes, error);
}
