/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the readers of both formats share: finds tensors by name, appends accesses to the list, and
 * refuses what an engine would refuse.
 */
#include "cli/replay/reader.h"

#include <errno.h>
#include <search.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory/array.h"

void reader_fail(struct reader *reader, int code, const char *format, ...)
{
	struct nvs_error *error = reader->error;
	va_list args;
	int n;

	if (reader->rc)
		return;
	n = snprintf(error->text, sizeof(error->text), "%.400s:", reader->path);
	if (reader->line)
		n += snprintf(error->text + n, sizeof(error->text) - (size_t)n,
			      "%u:", reader->line);
	error->text[n++] = ' ';
	va_start(args, format);
	vsnprintf(error->text + n, sizeof(error->text) - (size_t)n, format, args);
	va_end(args);
	reader->rc = code;
}

bool reader_grow(struct reader *reader, void *array, size_t n, size_t *room, size_t element)
{
	void **at = array, *grown = array_room(*at, n, room, element);

	if (grown)
		*at = grown;
	else
		reader_fail(reader, -ENOMEM, "out of memory");
	return grown;
}

/* ---- Tensors ---- */

static int compare_subjects(const void *left, const void *right)
{
	const struct subject *a = left, *b = right;

	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	return strcmp(a->name, b->name);
}

static void free_subject(void *node)
{
	struct subject *subject = node;

	free(subject->name);
	free(subject);
}

static struct subject *make_subject(struct reader *reader, const struct subject *key)
{
	struct model *model = reader->model;
	struct subject *made;

	if (key->nbytes == SIZE_UNKNOWN)
		reader_fail(reader, -EINVAL, "%s is new: give its size in bytes after the name",
			    key->name);
	else if (model->n == MODEL_TENSORS_MAX || key->nbytes > MODEL_BYTES_MAX - model->nbytes)
		reader_fail(reader, -E2BIG, "more than %u tensors, or than %llu bytes of them",
			    MODEL_TENSORS_MAX, MODEL_BYTES_MAX);
	if (reader->rc)
		return NULL;
	made = malloc(sizeof(*made));
	if (made) {
		*made = *key;
		made->name = strdup(key->name);
		made->index = (uint32_t)model->n;
	}
	if (!made || !made->name || !tsearch(made, &reader->subjects, compare_subjects)) {
		if (made)
			free_subject(made);
		reader_fail(reader, -ENOMEM, "out of memory");
		return NULL;
	}
	model->n++;
	model->nbytes += key->nbytes;
	return made;
}

struct subject *reader_subject(struct reader *reader, const char *name, uint64_t offset,
			       uint64_t nbytes, enum nvs_dtype dtype)
{
	struct subject key = {.name = (char *)(uintptr_t)name,
			      .offset = offset,
			      .nbytes = nbytes,
			      .dtype = dtype};
	struct subject **found = tfind(&key, &reader->subjects, compare_subjects);

	if (!found)
		return make_subject(reader, &key);
	if (nbytes != SIZE_UNKNOWN && nbytes != (*found)->nbytes)
		reader_fail(reader, -EINVAL, "%s has another size than before", name);
	return reader->rc ? NULL : *found;
}

void reader_free_subjects(struct reader *reader)
{
	tdestroy(reader->subjects, free_subject);
	reader->subjects = NULL;
}

/* ---- Accesses ---- */

static void begin_use(struct reader *reader, struct subject *subject)
{
	struct access_list *list = reader->list;

	if (!subject->uses++)
		reader->in_use += model_pages(subject->nbytes);
	if (reader->in_use > list->in_use_max)
		list->in_use_max = reader->in_use;
}

static void end_use(struct reader *reader, struct subject *subject)
{
	if (!subject->uses)
		reader_fail(reader, -EINVAL, "%s is released, and was not in use", subject->name);
	else if (!--subject->uses)
		reader->in_use -= model_pages(subject->nbytes);
}

static void check_step(struct reader *reader, bool begins)
{
	if (reader->in_step == begins)
		reader_fail(reader, -EINVAL, "a step %s",
			    begins ? "begins in another" : "ends that has not begun");
	reader->in_step = begins;
}

static void follow(struct reader *reader, enum access_call call, struct subject *subject)
{
	if (call == ACCESS_STEP_BEGIN || call == ACCESS_STEP_END)
		check_step(reader, call == ACCESS_STEP_BEGIN);
	else if (call == ACCESS_SWAP_OUT && subject->uses)
		reader_fail(reader, -EINVAL, "%s is swapped out while in use", subject->name);
	else if (call == ACCESS_SWAP_IN || call == ACCESS_LEASE)
		begin_use(reader, subject);
	else if (call == ACCESS_RELEASE_CLEAN || call == ACCESS_RELEASE_DIRTY)
		end_use(reader, subject);
	if (call == ACCESS_SWAP_IN || call == ACCESS_PREFETCH)
		subject->read_first |= !subject->written;
	if (call == ACCESS_RELEASE_DIRTY)
		subject->written = true;
}

void reader_add(struct reader *reader, enum access_call call, struct subject *subject)
{
	struct access_list *list = reader->list;

	if (!reader->rc)
		follow(reader, call, subject);
	if (!reader->rc &&
	    reader_grow(reader, &list->accesses, list->n, &list->room, sizeof(*list->accesses)))
		list->accesses[list->n++] = (struct access){
			.at_ns = reader->now_ns,
			.call = (uint8_t)call,
			.tensor = subject ? subject->index : 0,
		};
}
