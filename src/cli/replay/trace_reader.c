/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads accesses from a trace, one event at a time, so a trace can be larger than memory. The
 * program's clock stops while one of its threads waits for the drive and none computes an
 * optimizer's update.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json/read.h"
#include "cli/replay/reader.h"

#define LINE_BYTES   4096u
#define EVENT_MEMORY ((size_t)1 << 20)	    /* memory for one parsed event */
#define TIME_MAX     ((double)(1ull << 53)) /* ns that a double represents exactly */

/* The begin or end of a wait or a computation. */
struct edge {
	uint64_t at_ns;
	int waits, computes; /* 1, -1 or 0 */
};

struct trace {
	struct reader *reader;
	struct edge *edges;
	size_t n, room;
	bool complete; /* its end has been read */
};

static const char *text_of(const struct json_value *object, const char *name)
{
	const struct json_value *value = json_member(object, name);

	return value && value->type == JSON_STRING ? value->string : "";
}

static void fail_member(struct reader *reader, const char *name)
{
	reader_fail(reader, -EINVAL, "the trace is damaged: an event without a valid \"%s\"", name);
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
	    !(us >= 0 && us * 1000 < TIME_MAX)) {
		fail_member(reader, name);
		return 0;
	}
	return (uint64_t)llround(us * 1000);
}

static void read_span(struct trace *trace, const struct json_value *event, bool waits)
{
	uint64_t at_ns = time_of(trace->reader, event, "ts");

	for (int by = 1; by >= -1; by -= 2) {
		if (!reader_grow(trace->reader, &trace->edges, trace->n, &trace->room,
				 sizeof(struct edge)))
			return;
		trace->edges[trace->n++] = (struct edge){at_ns, waits ? by : 0, waits ? 0 : by};
		at_ns += by > 0 ? time_of(trace->reader, event, "dur") : 0;
	}
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
	return reader_subject(reader, name + 4, offset, nbytes, dtypes[element]);
}

static void read_call(struct reader *reader, const struct json_value *event)
{
	/* Indexed by enum access_call; the names are those of src/trace/write.c. */
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
		reader_add(reader, ACCESS_WAIT, subject);
		reader_add(reader, ACCESS_RELEASE_CLEAN, subject);
		reader_add(reader, ACCESS_SWAP_OUT, subject);
	}
	if (names[i]) {
		reader_add(reader, (enum access_call)i, subject);
		if (reader->rc || list->n < 2)
			return;
		last = &list->accesses[list->n - 1];
		last->joined = last[-1].at_ns == reader->now_ns && last[-1].call == i;
	} else if (!strcmp(call, "swapin-to")) {
		/* Transfers to and from external memory are replayed through the pool. */
		reader_add(reader, ACCESS_SWAP_IN, subject);
		subject->external = true;
	} else if (!strcmp(call, "swapout-from")) {
		reader_add(reader, ACCESS_LEASE, subject);
		reader_add(reader, ACCESS_RELEASE_DIRTY, subject);
		reader_add(reader, ACCESS_SWAP_OUT, subject);
	} else if (!strcmp(call, "read-part")) {
		reader_fail(reader, -ENOTSUP,
			    "the run read parts of tensors (nvs_tensor_read), which replay can't");
	} else {
		fail_member(reader, "call");
	}
}

static void read_event(struct trace *trace, const struct json_value *event)
{
	const char *category = text_of(event, "cat"), *phase = text_of(event, "ph");
	bool writes = !strncmp(text_of(event, "name"), "write ", 6);
	struct reader *reader = trace->reader;

	if (!*phase)
		fail_member(reader, "ph");
	else if (!strcmp(category, "call"))
		read_call(reader, event);
	else if (!strcmp(category, "tensor") && *phase == 'b')
		reader->list->bytes[writes ? NVS_WRITE : NVS_READ] +=
			count_of(reader, json_member(event, "args"), "bytes");
	else if (!strcmp(category, "wait") || !strcmp(category, "compute"))
		read_span(trace, event, *category == 'w');
}

static void read_end(struct trace *trace, const struct json_value *end)
{
	uint64_t dropped = count_of(trace->reader, json_member(end, "otherData"), "dropped");

	trace->complete = true;
	if (dropped)
		reader_fail(trace->reader, -EINVAL,
			    "the trace had no room for %llu spans, so the run can't be repeated: "
			    "record a shorter one",
			    (unsigned long long)dropped);
}

static void read_line(struct trace *trace, char *line)
{
	static const char first[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
	struct json_document *document;
	struct nvs_error error = {.size = sizeof(error)};
	bool ends = *line == ']';
	int rc;

	if (trace->reader->line == 1) {
		if (strcmp(line, first) != 0)
			reader_fail(trace->reader, -EINVAL,
				    "not a trace as nvswap writes it, with each event on a line");
		return;
	}
	if (!strchr(line, '\n') || trace->complete) {
		reader_fail(trace->reader, -EINVAL, "the trace is damaged: no event");
		return;
	}
	/* "],"otherData"...": behind the comma is an object without its opening brace. */
	if (ends && line[1] == ',')
		line[1] = '{';
	line += ends || *line == ',';
	rc = json_parse(&document, line, strlen(line), "event", EVENT_MEMORY, &error);
	if (rc) {
		reader_fail(trace->reader, rc, "the trace is damaged: %.400s", error.text);
		return;
	}
	(ends ? read_end : read_event)(trace, json_root(document));
	json_free(document);
}

static int by_time(const void *left, const void *right)
{
	const struct edge *a = left, *b = right;

	return (a->at_ns > b->at_ns) - (a->at_ns < b->at_ns);
}

/* Converts the accesses' recorded times to the program's clock. */
static void take_waits_out(struct trace *trace)
{
	struct access_list *list = trace->reader->list;
	uint64_t first = list->accesses[0].at_ns, last = 0, stalled = 0, stalled_before = 0;
	int waits = 0, computes = 0;
	size_t e = 0;

	if (trace->n)
		qsort(trace->edges, trace->n, sizeof(struct edge), by_time);
	for (size_t i = 0; i < list->n; i++) {
		uint64_t now = list->accesses[i].at_ns;

		for (; e < trace->n && trace->edges[e].at_ns <= now; e++) {
			stalled += waits && !computes ? trace->edges[e].at_ns - last : 0;
			last = trace->edges[e].at_ns;
			waits += trace->edges[e].waits;
			computes += trace->edges[e].computes;
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

void trace_read(struct reader *reader)
{
	struct trace trace = {.reader = reader};
	char line[LINE_BYTES];

	while (!reader->rc && fgets(line, sizeof(line), reader->file)) {
		reader->line++;
		read_line(&trace, line);
	}
	if (!trace.complete)
		reader_fail(reader, -EINVAL, "the trace is damaged: it was cut off here");
	if (!reader->rc && reader->list->n)
		take_waits_out(&trace);
	free(trace.edges);
}
