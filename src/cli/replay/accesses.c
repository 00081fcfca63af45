/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a file of either format into a list of accesses that can be repeated, with the tensors as
 * a model.
 */
#include "cli/replay/accesses.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "cli/replay/reader.h"

/* A trace can have several tensors of one name. */
static char *unique_name(const struct subject *subject)
{
	char *name;

	if (!subject->offset)
		return strdup(subject->name);
	return asprintf(&name, "%s@%llu", subject->name, (unsigned long long)subject->offset) < 0
		       ? NULL
		       : name;
}

static void end_subject(const void *node, VISIT visit, void *arg)
{
	struct subject *subject = *(struct subject *const *)node;
	struct reader *reader = arg;
	struct model_tensor *tensor = &reader->model->tensors[subject->index];

	if (visit != postorder && visit != leaf)
		return;
	/* Release everything, so that the list can be repeated. */
	while (subject->uses && !reader->rc)
		reader_add(reader, ACCESS_RELEASE_CLEAN, subject);
	reader->list->read_first[subject->index] = subject->read_first;
	*tensor = (struct model_tensor){.name = unique_name(subject),
					.dtype = subject->dtype,
					.numel = subject->nbytes / nvs_dtype_size(subject->dtype),
					.nbytes = subject->nbytes};
	if (!tensor->name)
		reader_fail(reader, -ENOMEM, "out of memory");
}

static void end_list(struct reader *reader)
{
	const struct access_list *list = reader->list;
	struct model *model = reader->model;

	if (!model->n) {
		reader_fail(reader, -EINVAL,
			    "no accesses of tensors: give the trace of a run that swapped, or a "
			    "list of accesses");
		return;
	}
	model->tensors = calloc(model->n, sizeof(*model->tensors));
	reader->list->read_first = calloc(model->n, sizeof(bool));
	if (!model->tensors || !reader->list->read_first)
		reader_fail(reader, -ENOMEM, "out of memory");
	reader->now_ns = list->n ? list->accesses[list->n - 1].at_ns : 0;
	if (!reader->rc)
		twalk_r(reader->subjects, end_subject, reader);
	if (reader->in_step)
		reader_add(reader, ACCESS_STEP_END, NULL);
	model->n_whole = model->n;
	model->nbytes_whole = model->nbytes;
}

int accesses_load(struct access_list *list, struct model *model, const char *path,
		  struct nvs_error *error)
{
	struct reader reader = {.list = list,
				.model = model,
				.path = path,
				.error = error,
				.file = fopen(path, "re")};
	int first;

	*list = (struct access_list){0};
	*model = (struct model){.path = path};
	if (!reader.file) {
		reader_fail(&reader, -errno, "can't be opened: %s", nvs_strerror(-errno));
		return reader.rc;
	}
	first = ungetc(fgetc(reader.file), reader.file);
	if (first == '{')
		trace_read(&reader);
	else
		text_read(&reader);
	if (ferror(reader.file))
		reader_fail(&reader, -EIO, "can't be read: %s", strerror(EIO));
	fclose(reader.file);
	end_list(&reader);
	reader_free_subjects(&reader);
	return reader.rc;
}

void accesses_free(struct access_list *list)
{
	free(list->accesses);
	free(list->read_first);
	*list = (struct access_list){0};
}
