/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads accesses into a list that can be repeated, with their tensors as a model, and refuses what
 * an engine would refuse: text, one access a line, here, and traces in trace_reader.c.
 */
#include <errno.h>
#include <search.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory/array.h"
#include "cli/replay/reader.h"

#define LINE_BYTES 1024u
#define TIME_MAX   (UINT64_C(1) << 53) /* ns; maximum of the sum */
#define WORDS_MAX  3

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

struct subject *reader_subject(struct reader *reader, const char *name, uint64_t offset,
			       uint64_t nbytes, enum nvs_dtype dtype)
{
	struct model *model = reader->model;
	struct subject *made, key = {.name = (char *)(uintptr_t)name,
				     .offset = offset,
				     .nbytes = nbytes,
				     .dtype = dtype,
				     .index = (uint32_t)model->n};
	struct subject **found = tfind(&key, &reader->subjects, compare_subjects);

	if (found && nbytes != SIZE_UNKNOWN && nbytes != (*found)->nbytes)
		reader_fail(reader, -EINVAL, "%s has another size than before", name);
	else if (!found && nbytes == SIZE_UNKNOWN)
		reader_fail(reader, -EINVAL, "%s is new: give its size in bytes after the name",
			    name);
	else if (!found &&
		 (model->n == MODEL_TENSORS_MAX || nbytes > MODEL_BYTES_MAX - model->nbytes))
		reader_fail(reader, -E2BIG, "more than %u tensors, or than %llu bytes of them",
			    MODEL_TENSORS_MAX, MODEL_BYTES_MAX);
	if (found || reader->rc)
		return reader->rc ? NULL : *found;
	made = malloc(sizeof(*made) + strlen(name) + 1);
	if (made) {
		*made = key;
		made->name = strcpy((char *)(made + 1), name);
	}
	if (!made || !tsearch(made, &reader->subjects, compare_subjects)) {
		free(made);
		reader_fail(reader, -ENOMEM, "out of memory");
		return NULL;
	}
	model->n++;
	model->nbytes += nbytes;
	return made;
}

/* ---- Accesses ---- */

void reader_add(struct reader *reader, enum access_call call, struct subject *subject)
{
	struct access_list *list = reader->list;
	bool begins = call == ACCESS_STEP_BEGIN;

	if (reader->rc)
		return;
	switch (call) {
	case ACCESS_STEP_BEGIN:
	case ACCESS_STEP_END:
		if (reader->in_step == begins)
			reader_fail(reader, -EINVAL, "a step %s",
				    begins ? "begins in another" : "ends that has not begun");
		reader->in_step = begins;
		break;
	case ACCESS_SWAP_OUT:
		if (subject->uses)
			reader_fail(reader, -EINVAL, "%s is swapped out while in use",
				    subject->name);
		break;
	case ACCESS_SWAP_IN:
	case ACCESS_LEASE:
		if (!subject->uses++)
			reader->in_use += model_pages(subject->nbytes);
		if (reader->in_use > list->in_use_max)
			list->in_use_max = reader->in_use;
		break;
	case ACCESS_RELEASE_CLEAN:
	case ACCESS_RELEASE_DIRTY:
		if (!subject->uses)
			reader_fail(reader, -EINVAL, "%s is released, and was not in use",
				    subject->name);
		else if (!--subject->uses)
			reader->in_use -= model_pages(subject->nbytes);
		break;
	case ACCESS_WAIT:
	case ACCESS_PREFETCH:
		break;
	}
	if (call == ACCESS_SWAP_IN || call == ACCESS_PREFETCH)
		subject->read_first |= !subject->written;
	if (call == ACCESS_RELEASE_DIRTY)
		subject->written = true;
	if (!reader->rc &&
	    reader_grow(reader, &list->accesses, list->n, &list->room, sizeof(*list->accesses)))
		list->accesses[list->n++] = (struct access){
			.at_ns = reader->now_ns,
			.call = (uint8_t)call,
			.tensor = subject ? subject->index : 0,
		};
}

/* ---- Text, in the format of docs/replay.md ---- */

static void read_access(struct reader *reader, char *const *words, unsigned n)
{
	static const char *const verbs[] = {"swapin", "swapout", "release", "prefetch"};
	uint64_t nbytes = SIZE_UNKNOWN;
	struct subject *subject;
	unsigned verb = 0;

	while (verb < 4 && strcmp(words[0], verbs[verb]) != 0)
		verb++;
	if (n < 2 || verb == 4)
		reader_fail(reader, -EINVAL,
			    "a line is swapin, swapout, release or prefetch NAME [BYTES], "
			    "compute TIME, or step");
	else if (n > 2 &&
		 !(read_amount(words[2], size_units, &nbytes) && nbytes <= MODEL_BYTES_MAX))
		reader_fail(reader, -EINVAL, "%s is no size, such as 65536, 64k or 16m", words[2]);
	if (reader->rc)
		return;
	subject = reader_subject(reader, words[1], 0, nbytes, NVS_U8);
	if (!subject)
		return;
	switch (verb) {
	case 0:
		if (subject->uses)
			reader_fail(reader, -EINVAL,
				    "%s is in use: release it or swap it out first", subject->name);
		reader_add(reader, ACCESS_SWAP_IN, subject);
		reader_add(reader, ACCESS_WAIT, subject);
		break;
	case 1:
		if (!subject->uses)
			reader_add(reader, ACCESS_LEASE, subject);
		reader_add(reader, ACCESS_RELEASE_DIRTY, subject);
		reader_add(reader, ACCESS_SWAP_OUT, subject);
		break;
	default:
		reader_add(reader, verb == 2 ? ACCESS_RELEASE_CLEAN : ACCESS_PREFETCH, subject);
	}
}

static void read_line(struct reader *reader, char *line)
{
	char *words[WORDS_MAX + 1], *rest = NULL, *word;
	uint64_t ns;
	unsigned n = 0;

	line[strcspn(line, "#\n")] = '\0';
	for (word = strtok_r(line, " \t\r", &rest); word && n <= WORDS_MAX;
	     word = strtok_r(NULL, " \t\r", &rest))
		words[n++] = word;
	if (n > WORDS_MAX) {
		reader_fail(reader, -EINVAL, "more than three words");
	} else if (n == 1 && !strcmp(words[0], "step")) {
		if (reader->in_step)
			reader_add(reader, ACCESS_STEP_END, NULL);
		reader_add(reader, ACCESS_STEP_BEGIN, NULL);
	} else if (n == 2 && !strcmp(words[0], "compute")) {
		/* A time has a unit: the first is none. */
		if (!read_amount(words[1], time_units + 1, &ns) || ns > TIME_MAX - reader->now_ns)
			reader_fail(reader, -EINVAL, "%s is no time, such as 800us, 2.5ms or 1s",
				    words[1]);
		else
			reader->now_ns += ns;
	} else if (n) {
		read_access(reader, words, n);
	}
}

static void read_text(struct reader *reader)
{
	char line[LINE_BYTES];

	while (!reader->rc && fgets(line, sizeof(line), reader->file)) {
		reader->line++;
		if (!strchr(line, '\n') && !feof(reader->file))
			reader_fail(reader, -EINVAL, "the line is longer than %u bytes",
				    LINE_BYTES - 2);
		else
			read_line(reader, line);
	}
}

/* ---- The list ---- */

static void end_subject(const void *node, VISIT visit, void *arg)
{
	struct subject *subject = *(struct subject *const *)node;
	struct reader *reader = arg;
	struct model_tensor *tensor = &reader->model->tensors[subject->index];
	char at[32] = "";

	if (visit != postorder && visit != leaf)
		return;
	/* Release everything, so that the list can be repeated. */
	while (subject->uses && !reader->rc)
		reader_add(reader, ACCESS_RELEASE_CLEAN, subject);
	reader->list->read_first[subject->index] = subject->read_first;
	*tensor = (struct model_tensor){.dtype = subject->dtype,
					.numel = subject->nbytes / nvs_dtype_size(subject->dtype),
					.nbytes = subject->nbytes};
	/* A trace can have several tensors of one name. */
	if (subject->offset)
		snprintf(at, sizeof(at), "@%llu", (unsigned long long)subject->offset);
	if (asprintf(&tensor->name, "%s%s", subject->name, at) < 0) {
		tensor->name = NULL;
		reader_fail(reader, -ENOMEM, "out of memory");
	}
}

int accesses_load(struct access_list *list, struct model *model, const char *path,
		  struct nvs_error *error)
{
	struct reader reader = {.list = list,
				.model = model,
				.path = path,
				.error = error,
				.file = fopen(path, "re")};

	*list = (struct access_list){0};
	*model = (struct model){.path = path};
	if (!reader.file) {
		reader_fail(&reader, -errno, "can't be opened: %s", nvs_strerror(-errno));
		return reader.rc;
	}
	if (ungetc(fgetc(reader.file), reader.file) == '{')
		trace_read(&reader);
	else
		read_text(&reader);
	if (ferror(reader.file))
		reader_fail(&reader, -EIO, "can't be read: %s", strerror(EIO));
	fclose(reader.file);
	if (!model->n) {
		reader_fail(&reader, -EINVAL,
			    "no accesses of tensors: give the trace of a run that swapped, or a "
			    "list of accesses");
		return reader.rc;
	}
	model->tensors = calloc(model->n, sizeof(*model->tensors));
	list->read_first = calloc(model->n, sizeof(bool));
	if (!model->tensors || !list->read_first)
		reader_fail(&reader, -ENOMEM, "out of memory");
	reader.now_ns = list->n ? list->accesses[list->n - 1].at_ns : 0;
	if (!reader.rc)
		twalk_r(reader.subjects, end_subject, &reader);
	if (reader.in_step)
		reader_add(&reader, ACCESS_STEP_END, NULL);
	model->n_whole = model->n;
	model->nbytes_whole = model->nbytes;
	tdestroy(reader.subjects, free);
	return reader.rc;
}

void accesses_free(struct access_list *list)
{
	free(list->accesses);
	free(list->read_first);
	*list = (struct access_list){0};
}
