/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads accesses into a list that can be repeated, with their tensors as a model, and refuses what
 * an engine would refuse. Two front ends read a line at a time, so that a file can be larger than
 * memory: of text, an access, and of a trace, an event. The first failure stays in reader->rc and
 * turns later calls into no-ops, so a front end checks it once a line.
 */
#include "cli/replay/replay.h"

#include <errno.h>
#include <math.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json/read.h"
#include "base/memory/array.h"

#define LINE_BYTES   4096u
#define EVENT_MEMORY ((size_t)1 << 20)	 /* memory for one parsed event */
#define TIME_MAX     (UINT64_C(1) << 53) /* ns that a double represents exactly */
#define WORDS_MAX    3
#define SIZE_UNKNOWN UINT64_MAX

/* A tensor and its state after the accesses so far. */
struct subject {
	char *name;
	uint64_t offset; /* distinguishes tensors of one name in a trace, which truncates names */
	uint64_t nbytes;
	enum nvs_dtype dtype;
	uint32_t index; /* in the order of the first access */
	uint32_t uses;	/* pins by swap-ins and leases */
	bool written, read_first;
	bool external; /* being read into the program's own memory */
};

/* The begin or end of a wait or a computation in a trace. */
struct edge {
	uint64_t at_ns;
	int waits, computes; /* 1, -1 or 0 */
};

struct reader {
	int rc;
	struct access_list *list;
	struct model *model;
	const char *path;
	FILE *file;
	unsigned line;
	struct nvs_error *error;
	void *subjects;	 /* tsearch tree */
	uint64_t now_ns; /* time of the next access */
	uint64_t in_use; /* bytes of the pool in use */
	bool in_step;
	struct edge *edges;
	size_t nedges, edges_room;
	bool complete; /* the end of a trace has been read */
};

/* The first failure stays. */
#define FAIL(reader, code, format, ...)                                                            \
	((reader)->rc = (reader)->rc ? (reader)->rc                                                \
				     : error_set((reader)->error, code, "%.400s:%u: " format,      \
						 (reader)->path, (reader)->line, ##__VA_ARGS__))

/* Makes room in *array for one more than n elements. Returns false after a failure. */
static bool grow_array(struct reader *reader, void *array, size_t n, size_t *room, size_t element)
{
	void **at = array, *grown = array_room(*at, n, room, element);

	if (grown)
		*at = grown;
	else
		FAIL(reader, -ENOMEM, "out of memory");
	return grown;
}

static int compare_subjects(const void *left, const void *right)
{
	const struct subject *a = left, *b = right;

	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	return strcmp(a->name, b->name);
}

/* Finds the tensor, or makes it at its first access, when its size must be known. NULL: failed. */
static struct subject *find_subject(struct reader *reader, const char *name, uint64_t offset,
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
		FAIL(reader, -EINVAL, "%s has another size than before", name);
	else if (!found && nbytes == SIZE_UNKNOWN)
		FAIL(reader, -EINVAL, "%s is new: give its size in bytes after the name", name);
	else if (!found &&
		 (model->n == MODEL_TENSORS_MAX || nbytes > MODEL_BYTES_MAX - model->nbytes))
		FAIL(reader, -E2BIG, "more than %u tensors, or than %llu bytes of them",
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
		FAIL(reader, -ENOMEM, "out of memory");
		return NULL;
	}
	model->n++;
	model->nbytes += nbytes;
	return made;
}

/* Appends an access that an engine allows in this state, or fails. `subject` is NULL for steps. */
static void add_access(struct reader *reader, enum access_call call, struct subject *subject)
{
	struct access_list *list = reader->list;
	bool begins = call == ACCESS_STEP_BEGIN;

	if (reader->rc)
		return;
	switch (call) {
	case ACCESS_STEP_BEGIN:
	case ACCESS_STEP_END:
		if (reader->in_step == begins)
			FAIL(reader, -EINVAL, "a step %s",
			     begins ? "begins in another" : "ends that has not begun");
		reader->in_step = begins;
		break;
	case ACCESS_SWAP_OUT:
		if (subject->uses)
			FAIL(reader, -EINVAL, "%s is swapped out while in use", subject->name);
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
			FAIL(reader, -EINVAL, "%s is released, and was not in use", subject->name);
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
	    grow_array(reader, &list->accesses, list->n, &list->room, sizeof(*list->accesses)))
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
	if (n < 2 || verb == 4) {
		FAIL(reader, -EINVAL,
		     "a line is swapin, swapout, release or prefetch NAME [BYTES], "
		     "compute TIME, or step");
		return;
	}
	if (n > 2 && !(read_amount(words[2], size_units, &nbytes) && nbytes <= MODEL_BYTES_MAX)) {
		FAIL(reader, -EINVAL, "%s is no size, such as 65536, 64k or 16m", words[2]);
		return;
	}
	subject = find_subject(reader, words[1], 0, nbytes, NVS_U8);
	if (!subject)
		return;
	switch (verb) {
	case 0:
		if (subject->uses)
			FAIL(reader, -EINVAL, "%s is in use: release it or swap it out first",
			     subject->name);
		add_access(reader, ACCESS_SWAP_IN, subject);
		add_access(reader, ACCESS_WAIT, subject);
		break;
	case 1:
		if (!subject->uses)
			add_access(reader, ACCESS_LEASE, subject);
		add_access(reader, ACCESS_RELEASE_DIRTY, subject);
		add_access(reader, ACCESS_SWAP_OUT, subject);
		break;
	default:
		add_access(reader, verb == 2 ? ACCESS_RELEASE_CLEAN : ACCESS_PREFETCH, subject);
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
		FAIL(reader, -EINVAL, "more than three words");
	} else if (n == 1 && !strcmp(words[0], "step")) {
		if (reader->in_step)
			add_access(reader, ACCESS_STEP_END, NULL);
		add_access(reader, ACCESS_STEP_BEGIN, NULL);
	} else if (n == 2 && !strcmp(words[0], "compute")) {
		/* A time has a unit: the first is none. */
		if (!read_amount(words[1], time_units + 1, &ns) || ns > TIME_MAX - reader->now_ns)
			FAIL(reader, -EINVAL, "%s is no time, such as 800us, 2.5ms or 1s",
			     words[1]);
		else
			reader->now_ns += ns;
	} else if (n) {
		read_access(reader, words, n);
	}
}

/* ---- Traces. The program's clock stops while one of its threads waits for the drive and none
 * computes an optimizer's update. */

static const char *text_of(const struct json_value *object, const char *name)
{
	const struct json_value *value = json_member(object, name);

	return value && value->type == JSON_STRING ? value->string : "";
}

static void fail_member(struct reader *reader, const char *name)
{
	FAIL(reader, -EINVAL, "the trace is damaged: an event without a valid \"%s\"", name);
}

static uint64_t count_of(struct reader *reader, const struct json_value *object, const char *name)
{
	const struct json_value *value = json_member(object, name);
	uint64_t count = 0;

	if (!value || value->type != JSON_NUMBER || json_read_whole(value, &count) != JSON_WHOLE ||
	    count > MODEL_BYTES_MAX)
		fail_member(reader, name);
	return count;
}

/* Microseconds with three decimals, in nanoseconds. */
static uint64_t time_of(struct reader *reader, const struct json_value *event, const char *name)
{
	const struct json_value *value = json_member(event, name);
	double us = -1;

	if (!value || value->type != JSON_NUMBER || json_read_real(value, &us) ||
	    !(us >= 0 && us * 1000 < (double)TIME_MAX)) {
		fail_member(reader, name);
		return 0;
	}
	return (uint64_t)llround(us * 1000);
}

static struct subject *subject_of(struct reader *reader, const struct json_value *event)
{
	static const enum nvs_dtype dtypes[] = {
		[1] = NVS_U8, [2] = NVS_BF16, [4] = NVS_F32, [8] = NVS_F64};
	const struct json_value *args = json_member(event, "args");
	const char *name = text_of(event, "name");
	uint64_t offset = count_of(reader, args, "offset");
	uint64_t nbytes = count_of(reader, args, "bytes");
	uint64_t element = count_of(reader, args, "element");

	if (element > 8 || !element || (element & (element - 1)) || nbytes % element)
		fail_member(reader, "element");
	if (strncmp(name, "use ", 4) != 0 || !name[4])
		fail_member(reader, "name");
	if (reader->rc)
		return NULL;
	return find_subject(reader, name + 4, offset, nbytes, dtypes[element]);
}

static void read_call(struct reader *reader, const struct json_value *event)
{
	/* Indexed by enum access_call; the names are those of src/trace/trace.c. */
	static const char *const names[] = {"swapin",	     "lease",	 "wait",    "release",
					    "release-dirty", "prefetch", "swapout", "step-begin",
					    "step-end",	     NULL};
	const char *call = text_of(json_member(event, "args"), "call");
	const struct access_list *list = reader->list;
	uint64_t at_ns = time_of(reader, event, "ts");
	struct subject *subject;
	struct access *last;
	unsigned i = 0;

	if (!strcmp(call, "open")) {
		reader->list->pool_bytes += count_of(reader, json_member(event, "args"), "bytes");
		return;
	}
	/* Calls on two engines can be recorded out of order. */
	if (at_ns > reader->now_ns)
		reader->now_ns = at_ns;
	while (names[i] && strcmp(names[i], call) != 0)
		i++;
	subject = strncmp(call, "step-", 5) ? subject_of(reader, event) : NULL;
	if (reader->rc)
		return;
	/* The next call on the tensor happens after the transfer to the program's memory. */
	if (subject && subject->external) {
		subject->external = false;
		add_access(reader, ACCESS_WAIT, subject);
		add_access(reader, ACCESS_RELEASE_CLEAN, subject);
		add_access(reader, ACCESS_SWAP_OUT, subject);
	}
	if (names[i]) {
		add_access(reader, (enum access_call)i, subject);
		if (reader->rc || list->n < 2)
			return;
		last = &list->accesses[list->n - 1];
		last->joined = last[-1].at_ns == reader->now_ns && last[-1].call == i;
	} else if (!strcmp(call, "swapin-to")) {
		/* Transfers to and from external memory are replayed through the pool. */
		add_access(reader, ACCESS_SWAP_IN, subject);
		subject->external = true;
	} else if (!strcmp(call, "swapout-from")) {
		add_access(reader, ACCESS_LEASE, subject);
		add_access(reader, ACCESS_RELEASE_DIRTY, subject);
		add_access(reader, ACCESS_SWAP_OUT, subject);
	} else if (!strcmp(call, "read-part")) {
		FAIL(reader, -ENOTSUP,
		     "the run read parts of tensors (nvs_tensor_read), which replay can't");
	} else {
		fail_member(reader, "call");
	}
}

static void read_event(struct reader *reader, const struct json_value *event)
{
	const char *category = text_of(event, "cat"), *phase = text_of(event, "ph");
	bool writes = !strncmp(text_of(event, "name"), "write ", 6), waits = *category == 'w';

	if (!*phase) {
		fail_member(reader, "ph");
	} else if (!strcmp(category, "call")) {
		read_call(reader, event);
	} else if (!strcmp(category, "tensor") && *phase == 'b') {
		reader->list->bytes[writes ? NVS_WRITE : NVS_READ] +=
			count_of(reader, json_member(event, "args"), "bytes");
	} else if (!strcmp(category, "wait") || !strcmp(category, "compute")) {
		uint64_t at_ns = time_of(reader, event, "ts"), ns = time_of(reader, event, "dur");

		for (int by = 1; by >= -1; by -= 2, at_ns += ns)
			if (grow_array(reader, &reader->edges, reader->nedges, &reader->edges_room,
				       sizeof(struct edge)))
				reader->edges[reader->nedges++] =
					(struct edge){at_ns, waits ? by : 0, waits ? 0 : by};
	}
}

static void read_event_line(struct reader *reader, char *line)
{
	static const char first[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
	struct json_document *document;
	struct nvs_error error = {.size = sizeof(error)};
	bool ends = *line == ']';
	uint64_t dropped;
	int rc;

	if (reader->line == 1) {
		if (strcmp(line, first) != 0)
			FAIL(reader, -EINVAL,
			     "not a trace as nvswap writes it, with each event on a line");
		return;
	}
	if (!strchr(line, '\n') || reader->complete) {
		FAIL(reader, -EINVAL, "the trace is damaged: no event");
		return;
	}
	/* "],"otherData"...": behind the comma is an object without its opening brace. */
	if (ends && line[1] == ',')
		line[1] = '{';
	line += ends || *line == ',';
	rc = json_parse(&document, line, strlen(line), "event", EVENT_MEMORY, &error);
	if (rc) {
		FAIL(reader, rc, "the trace is damaged: %.400s", error.text);
		return;
	}
	reader->complete = ends;
	if (!ends) {
		read_event(reader, json_root(document));
	} else {
		dropped = count_of(reader, json_member(json_root(document), "otherData"),
				   "dropped");
		if (dropped)
			FAIL(reader, -EINVAL,
			     "the trace had no room for %llu spans, so the run can't be "
			     "repeated: record a shorter one",
			     (unsigned long long)dropped);
	}
	json_free(document);
}

static int by_time(const void *left, const void *right)
{
	const struct edge *a = left, *b = right;

	return (a->at_ns > b->at_ns) - (a->at_ns < b->at_ns);
}

static void take_waits_out(struct reader *reader)
{
	struct access_list *list = reader->list;
	uint64_t first = list->accesses[0].at_ns, last = 0, stalled = 0, stalled_before = 0;
	const struct edge *edge = reader->edges, *end = edge + reader->nedges;
	int waits = 0, computes = 0;

	if (reader->nedges)
		qsort(reader->edges, reader->nedges, sizeof(struct edge), by_time);
	for (size_t i = 0; i < list->n; i++) {
		uint64_t now = list->accesses[i].at_ns;

		for (; edge < end && edge->at_ns <= now; edge++) {
			stalled += waits && !computes ? edge->at_ns - last : 0;
			last = edge->at_ns;
			waits += edge->waits;
			computes += edge->computes;
		}
		stalled += waits && !computes ? now - last : 0;
		last = now;
		if (!i)
			stalled_before = stalled;
		list->accesses[i].at_ns = now - first - (stalled - stalled_before);
	}
	list->wall_ns = last - first;
	list->stall_ns = stalled - stalled_before;
}

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
		add_access(reader, ACCESS_RELEASE_CLEAN, subject);
	reader->list->read_first[subject->index] = subject->read_first;
	*tensor = (struct model_tensor){.dtype = subject->dtype,
					.numel = subject->nbytes / nvs_dtype_size(subject->dtype),
					.nbytes = subject->nbytes};
	/* A trace can have several tensors of one name. */
	if (subject->offset)
		snprintf(at, sizeof(at), "@%llu", (unsigned long long)subject->offset);
	if (asprintf(&tensor->name, "%s%s", subject->name, at) < 0) {
		tensor->name = NULL;
		FAIL(reader, -ENOMEM, "out of memory");
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
	char line[LINE_BYTES];
	bool is_trace;

	*list = (struct access_list){0};
	*model = (struct model){.path = path};
	if (!reader.file)
		return error_set(error, -errno, "%.400s: can't be opened: %s", path,
				 nvs_strerror(-errno));
	is_trace = ungetc(fgetc(reader.file), reader.file) == '{';
	while (!reader.rc && fgets(line, sizeof(line), reader.file)) {
		reader.line++;
		if (is_trace)
			read_event_line(&reader, line);
		else if (!strchr(line, '\n') && !feof(reader.file))
			FAIL(&reader, -EINVAL, "the line is longer than %u bytes", LINE_BYTES - 2);
		else
			read_line(&reader, line);
	}
	if (is_trace && !reader.complete)
		FAIL(&reader, -EINVAL, "the trace is damaged: it was cut off here");
	if (is_trace && !reader.rc && list->n)
		take_waits_out(&reader);
	free(reader.edges);
	if (ferror(reader.file) && !reader.rc)
		reader.rc = error_set(error, -EIO, "%.400s: can't be read: %s", path,
				      nvs_strerror(-EIO));
	fclose(reader.file);
	if (!model->n && reader.rc)
		return reader.rc;
	if (!model->n)
		return error_set(error, -EINVAL,
				 "%.400s: no accesses of tensors: give the trace of a run that "
				 "swapped, or a list of accesses",
				 path);
	model->tensors = calloc(model->n, sizeof(*model->tensors));
	list->read_first = calloc(model->n, sizeof(bool));
	if (!model->tensors || !list->read_first)
		FAIL(&reader, -ENOMEM, "out of memory");
	reader.now_ns = list->n ? list->accesses[list->n - 1].at_ns : 0;
	if (!reader.rc)
		twalk_r(reader.subjects, end_subject, &reader);
	if (reader.in_step)
		add_access(&reader, ACCESS_STEP_END, NULL);
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
