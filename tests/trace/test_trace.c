/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trace: each record is in the file with its exact times, on the track of its thread, and
 * nothing else is; the file has the format of Perfetto.
 */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "aio/aio_fixture.h"
#include "aio/internal.h"
#include "base/json/read.h"
#include "trace/trace.h"

/* ---- Reading a trace back ---- */

struct timeline {
	struct json_document *document;
	char *text; /* text of `document` */
	const struct json_value *root;
	const struct json_value **events;
	size_t n;
	uint64_t dropped; /* as returned by nvs_trace_write */
};

/* Of each test, closed at its end. */
static struct nvs_trace *trace;
static struct timeline timeline;
static struct nvs_error error = {.size = sizeof(error)};

static const char *text(const struct json_value *event, const char *name)
{
	const struct json_value *value = json_member(event, name);

	return value && value->type == JSON_STRING ? value->string : "";
}

static uint64_t count(const struct json_value *event, const char *name)
{
	const struct json_value *value = json_member(event, name);
	uint64_t whole = 0;

	if (!value || value->type != JSON_NUMBER || json_read_whole(value, &whole) != JSON_WHOLE)
		fail_msg("no integer \"%s\"", name);
	return whole;
}

/* The file has microseconds with three decimals. */
static uint64_t nanoseconds(const struct json_value *event, const char *name)
{
	const struct json_value *value = json_member(event, name);
	char number[64], end;
	uint64_t us;
	unsigned ns;

	assert_true(value && value->type == JSON_NUMBER);
	snprintf(number, sizeof(number), "%.*s", (int)value->raw_length, value->raw);
	assert_int_equal(sscanf(number, "%" SCNu64 ".%3u%c", &us, &ns, &end), 2);
	assert_int_equal(strlen(strchr(number, '.')), 4);
	return us * 1000 + ns;
}

static uint64_t of_args(const struct json_value *event, const char *name)
{
	return count(json_member(event, "args"), name);
}

static char *contents(const char *path)
{
	FILE *file = fopen(path, "r");
	char *all = NULL;
	size_t n = 0;

	assert_non_null(file);
	assert_true(getdelim(&all, &n, 0, file) > 0);
	fclose(file);
	return all;
}

static void forget_timeline(void)
{
	free(timeline.events);
	json_free(timeline.document);
	free(timeline.text);
	timeline = (struct timeline){0};
}

static void read_back(const char *path)
{
	const struct json_value *events;

	forget_timeline();
	timeline.text = contents(path);
	SUCCEEDS(json_parse(&timeline.document, timeline.text, strlen(timeline.text), path,
			    SIZE_MAX, &error),
		 &error);
	timeline.root = json_root(timeline.document);
	events = json_member(timeline.root, "traceEvents");
	assert_true(events && events->type == JSON_ARRAY);
	timeline.events = calloc(events->count, sizeof(*timeline.events));
	assert_non_null(timeline.events);
	for (const struct json_value *event = events->first; event; event = event->next)
		timeline.events[timeline.n++] = event;
}

static void write_and_read_back(void)
{
	const char *path = path_in(temp_directory(), "trace.json");
	uint64_t dropped;

	SUCCEEDS(nvs_trace_write(trace, path, &dropped, &error), &error);
	read_back(path);
	timeline.dropped = dropped;
}

static bool is_slice(const struct json_value *event)
{
	return !strcmp(text(event, "ph"), "X");
}

/* Counts the events of a phase, and of a category and name unless NULL. */
static size_t matching(const char *phase, const char *category, const char *name,
		       const struct json_value **first)
{
	size_t n = 0;

	for (size_t i = timeline.n; i-- > 0;) {
		const struct json_value *event = timeline.events[i];

		if (strcmp(text(event, "ph"), phase) ||
		    (category && strcmp(text(event, "cat"), category)) ||
		    (name && strcmp(text(event, "name"), name)))
			continue;
		assert_int_equal(count(event, "pid"), 1);
		*first = event;
		n++;
	}
	return n;
}

static const struct json_value *the_only(const char *phase, const char *category, const char *name)
{
	const struct json_value *event = NULL;
	size_t n = matching(phase, category, name, &event);

	if (n != 1)
		fail_msg("%zu events %s %s \"%s\" instead of one", n, phase, category, name);
	return event;
}

/* The track's metadata. */
static const struct json_value *of_track(uint64_t track, const char *what)
{
	for (size_t i = 0; i < timeline.n; i++)
		if (!strcmp(text(timeline.events[i], "ph"), "M") &&
		    !strcmp(text(timeline.events[i], "name"), what) &&
		    count(timeline.events[i], "tid") == track)
			return json_member(timeline.events[i], "args");
	fail_msg("no %s for track %" PRIu64, what, track);
	return NULL;
}

static const char *track_name(const struct json_value *event)
{
	return text(of_track(count(event, "tid"), "thread_name"), "name");
}

static uint64_t track_order(const struct json_value *event)
{
	return count(of_track(count(event, "tid"), "thread_sort_index"), "sort_index");
}

struct slice {
	uint64_t track, from, to;
};

static int by_track_and_time(const void *a, const void *b)
{
	const struct slice *x = a, *y = b;

	return x->track != y->track ? (x->track > y->track) - (x->track < y->track)
	       : x->from != y->from ? (x->from > y->from) - (x->from < y->from)
				    : (x->to < y->to) - (x->to > y->to);
}

static void assert_nested_or_disjoint(void)
{
	struct slice *slices = calloc(timeline.n, sizeof(*slices));
	struct slice *open = calloc(timeline.n, sizeof(*open)); /* stack of open slices */
	size_t n = 0, depth = 0;

	assert_true(slices && open);
	for (size_t i = 0; i < timeline.n; i++) {
		const struct json_value *event = timeline.events[i];

		if (!is_slice(event))
			continue;
		slices[n].track = count(event, "tid");
		slices[n].from = nanoseconds(event, "ts");
		slices[n].to = slices[n].from + nanoseconds(event, "dur");
		n++;
	}
	qsort(slices, n, sizeof(*slices), by_track_and_time);
	for (size_t i = 0; i < n; i++) {
		while (depth && (open[depth - 1].track != slices[i].track ||
				 open[depth - 1].to <= slices[i].from))
			depth--;
		assert_true(!depth || slices[i].to <= open[depth - 1].to);
		open[depth++] = slices[i];
	}
	free(slices);
	free(open);
}

static void open_trace(size_t max_spans)
{
	SUCCEEDS(nvs_trace_open(&trace, max_spans, &error), &error);
}

static void close_trace(void)
{
	rig_close();
	forget_timeline();
	nvs_trace_close(trace);
	trace = NULL;
}
AFTER_SUCCESS(close_trace)

/* ---- Recording ---- */

TEST(without_a_trace_nothing_happens)
{
	trace_io(NULL, true, 0, 0, 1, 2, 0, 1);
	trace_thread(NULL, TRACE_WAIT, "room", 1, 2);
	trace_tensor(NULL, false, "w", 1, 2, 0, 1);
	nvs_trace_span(NULL, "forward", 1, 2);
	nvs_trace_close(NULL);
	assert_int_equal(nvs_trace_write(NULL, "/nowhere/trace.json", NULL, &error), -EINVAL);
	assert_says(error.text, "/nowhere/trace.json");
}

TEST(every_kind_of_span_is_written_with_its_exact_times)
{
	const uint64_t zero = UINT64_C(123456789012345678);
	const struct json_value *event;

	open_trace(16);
	trace_io(trace, true, 3, 17, zero + 1001, zero + 2003, UINT64_C(5) << 40, 1u << 30);
	trace_io(trace, false, 0, 2, zero + 7, zero + 8, 4096, 0);
	trace_thread(trace, TRACE_COMPUTE, "adam", zero, zero + 1000000);
	trace_thread(trace, TRACE_WAIT, "tile", zero + 1000000, zero + 1000001);
	trace_tensor(trace, false, "h.0.w", zero + 10, zero + 30, 1, UINT64_C(6) << 30);
	trace_tensor(trace, true, "h.0.w", zero + 20, zero + 40, 2, 7);
	nvs_trace_span(trace, "forward", zero + 5, zero + 6);
	write_and_read_back();

	event = the_only("X", "io", "write");
	assert_int_equal(nanoseconds(event, "ts"), 1001);
	assert_int_equal(nanoseconds(event, "dur"), 1002);
	assert_int_equal(of_args(event, "offset"), UINT64_C(5) << 40);
	assert_int_equal(of_args(event, "bytes"), 1u << 30);
	assert_string_equal(track_name(event), "worker 3, slot 17");
	event = the_only("X", "io", "read");
	assert_int_equal(of_args(event, "bytes"), 0);
	assert_string_equal(track_name(event), "worker 0, slot 02");
	event = the_only("X", "compute", "adam");
	assert_int_equal(nanoseconds(event, "ts"), 0);
	assert_int_equal(nanoseconds(event, "dur"), 1000000);
	event = the_only("X", "wait", "tile");
	assert_int_equal(nanoseconds(event, "dur"), 1);
	the_only("X", "caller", "forward");
	event = the_only("b", "tensor", "read h.0.w");
	assert_int_equal(nanoseconds(event, "ts"), 10);
	assert_int_equal(of_args(event, "bytes"), UINT64_C(6) << 30);
	assert_int_equal(count(event, "id"), count(the_only("e", "tensor", "read h.0.w"), "id"));
	assert_int_not_equal(count(event, "id"),
			     count(the_only("b", "tensor", "write h.0.w"), "id"));
	event = the_only("e", "tensor", "write h.0.w");
	assert_int_equal(nanoseconds(event, "ts"), 40);
	assert_string_equal(text(of_track(1, "process_name"), "name"), "nvswap");
	assert_string_equal(text(timeline.root, "displayTimeUnit"), "ms");
	assert_nested_or_disjoint();
}

TEST(calls_are_events_in_the_row_of_their_tensor)
{
	const struct trace_subject weight = {"h.0.w", UINT64_C(5) << 40, UINT64_C(6) << 40, 2};
	const struct trace_subject none = {.name = ""}, pool = {.name = "", .nbytes = 1u << 30};
	static const struct {
		const char *phase, *call;
	} calls[] = {
		[TRACE_SWAP_IN] = {"b", "swapin"},
		[TRACE_LEASE] = {"b", "lease"},
		[TRACE_RELEASE_CLEAN] = {"e", "release"},
		[TRACE_RELEASE_DIRTY] = {"e", "release-dirty"},
		[TRACE_PREFETCH] = {"n", "prefetch"},
		[TRACE_WAITED] = {"n", "wait"},
		[TRACE_SWAP_OUT] = {"n", "swapout"},
		[TRACE_SWAP_IN_TO] = {"n", "swapin-to"},
		[TRACE_SWAP_OUT_FROM] = {"n", "swapout-from"},
		[TRACE_READ_PART] = {"n", "read-part"},
	};
	const struct json_value *event;

	for (enum trace_kind call = TRACE_SWAP_IN; call <= TRACE_READ_PART; call++) {
		open_trace(4);
		trace_call(trace, TRACE_OPEN, 1000, &pool);
		trace_call(trace, TRACE_STEP_BEGIN, 2000, &none);
		trace_call(trace, call, 3004, &weight);
		trace_call(trace, TRACE_STEP_END, 4000, &none);
		write_and_read_back();
		event = the_only(calls[call].phase, "call", "use h.0.w");
		assert_int_equal(nanoseconds(event, "ts"), 2004);
		assert_string_equal(text(json_member(event, "args"), "call"), calls[call].call);
		assert_int_equal(of_args(event, "offset"), UINT64_C(5) << 40);
		assert_int_equal(of_args(event, "bytes"), UINT64_C(6) << 40);
		assert_int_equal(of_args(event, "element"), 2);
		event = the_only("n", "call", "engine ");
		assert_int_equal(of_args(event, "bytes"), 1u << 30);
		assert_int_equal(count(the_only("b", "call", "step "), "id"),
				 count(the_only("e", "call", "step "), "id"));
		close_trace();
	}
}

TEST(each_event_has_a_line_of_its_own)
{
	const char *path = path_in(temp_directory(), "trace.json");
	char *json, *line, *rest;
	unsigned n = 0;

	open_trace(4);
	nvs_trace_span(trace, "forward\nbackward", 1, 2);
	trace_tensor(trace, false, "w", 1, 2, 0, 1);
	SUCCEEDS(nvs_trace_write(trace, path, NULL, &error), &error);
	json = contents(path);
	for (line = strtok_r(json, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		line += *line == ',';
		n += !strncmp(line, "{\"ph\":", 6);
	}
	/* A span, both ends of a flow, and three lines of metadata for the process and a track. */
	assert_int_equal(n, 6);
	free(json);
}

TEST(an_empty_trace_and_a_span_that_ends_before_it_begins_are_written)
{
	const struct json_value *event;

	open_trace(4);
	write_and_read_back();
	assert_int_equal(matching("X", NULL, NULL, &event), 0);
	nvs_trace_span(trace, NULL, 20, 10);
	write_and_read_back();
	event = the_only("X", "caller", "");
	assert_int_equal(nanoseconds(event, "ts"), 0);
	assert_int_equal(nanoseconds(event, "dur"), 0);
}

TEST(spans_without_room_are_counted_and_dropped)
{
	const struct json_value *event;

	open_trace(3);
	for (unsigned i = 0; i < 10; i++)
		trace_io(trace, false, 0, 0, i, i + 1, i, 1);
	write_and_read_back();
	assert_int_equal(timeline.dropped, 7);
	assert_int_equal(count(json_member(timeline.root, "otherData"), "dropped"), 7);
	assert_int_equal(matching("X", "io", "read", &event), 3);
}

TEST(a_trace_of_no_events_or_beyond_memory_is_refused)
{
	assert_int_equal(nvs_trace_open(&trace, 0, &error), -EINVAL);
	assert_null(trace);
	assert_int_equal(nvs_trace_open(&trace, SIZE_MAX / 64 + 1, &error), -EINVAL);
	assert_int_equal(nvs_trace_open(&trace, SIZE_MAX / 64 / 2, &error), -ENOMEM);
	assert_says(error.text, "use fewer");
}

#define UMLAUT	   "\u00e4" /* two bytes */
#define UMLAUTS_5  UMLAUT UMLAUT UMLAUT UMLAUT UMLAUT
#define UMLAUTS_15 UMLAUTS_5 UMLAUTS_5 UMLAUTS_5

TEST(names_are_escaped_and_cut_between_characters)
{
	static const struct {
		const char *name, *shown;
	} spans[] = {
		{"a\"b\\c\n\x01", "a\"b\\c\n\x01"},
		{"exactly thirty-one bytes of text", "exactly thirty-one bytes of tex"},
		{"1234567890123456789012345678901", "1234567890123456789012345678901"},
		/* The last character is dropped, not cut in half. */
		{UMLAUTS_15 UMLAUT, UMLAUTS_15},
		{"not \xff UTF-8", "not ? UTF-8"},
	};
	static const char long_name[] = "model.layers.10.self_attn.q_proj.weight";
	static const char odd_name[] = UMLAUTS_15 UMLAUT;

	open_trace(16);
	for (unsigned i = 0; i < COUNT(spans); i++)
		nvs_trace_span(trace, spans[i].name, i, i + 1);
	trace_tensor(trace, false, long_name, 0, 1, 0, 1);
	trace_tensor(trace, true, odd_name, 0, 1, 0, 1);
	write_and_read_back();
	for (unsigned i = 0; i < COUNT(spans); i++)
		the_only("X", "caller", spans[i].shown);
	the_only("b", "tensor", "read yers.10.self_attn.q_proj.weight");
	the_only("e", "tensor", "write " UMLAUTS_15);
}

/* ---- Threads ---- */

struct named {
	const char *name;
	enum trace_kind kind;
	pthread_barrier_t *all_live; /* keeps all threads alive at once, so no thread ID is reused;
					NULL: a single thread */
};

static void *record_one(void *arg)
{
	const struct named *named = arg;

	pthread_setname_np(pthread_self(), named->name);
	if (named->all_live)
		pthread_barrier_wait(named->all_live);
	trace_thread(trace, named->kind, named->name, 10, 20);
	if (named->all_live)
		pthread_barrier_wait(named->all_live);
	return NULL;
}

static void in_thread(const char *name, enum trace_kind kind)
{
	struct named named = {name, kind, NULL};
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, record_one, &named), 0);
	pthread_join(thread, NULL);
}

TEST(each_thread_has_a_named_track_and_the_caller_comes_first)
{
	const struct json_value *opener, *caller, *computes, *io;
	char name[16];

	open_trace(16);
	in_thread("computes", TRACE_COMPUTE);
	in_thread("calls", TRACE_CALLER);
	trace_thread(trace, TRACE_WAIT, "opener", 10, 20);
	trace_io(trace, false, 0, 0, 10, 20, 0, 1);
	write_and_read_back();
	opener = the_only("X", "wait", "opener");
	caller = the_only("X", "caller", "calls");
	computes = the_only("X", "compute", "computes");
	io = the_only("X", "io", "read");
	assert_string_equal(track_name(computes), "computes");
	assert_string_equal(track_name(caller), "calls");
	assert_int_equal(pthread_getname_np(pthread_self(), name, sizeof(name)), 0);
	assert_string_equal(track_name(opener), name);
	assert_true(track_order(opener) < track_order(caller));
	assert_true(track_order(caller) < track_order(computes));
	assert_true(track_order(computes) < track_order(io));
}

TEST(threads_beyond_the_table_share_a_track)
{
	enum { THREADS = 300 };
	pthread_barrier_t all_live;
	struct named named = {"one of many", TRACE_COMPUTE, &all_live};
	pthread_t threads[THREADS];
	unsigned shared = 0;

	open_trace(THREADS);
	pthread_barrier_init(&all_live, NULL, THREADS);
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, record_one, &named), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&all_live);
	write_and_read_back();
	for (size_t i = 0; i < timeline.n; i++)
		shared += is_slice(timeline.events[i]) &&
			  !strcmp(track_name(timeline.events[i]), "other threads");
	assert_int_equal(shared, THREADS - 255);
}

/* ---- Concurrent recording ---- */

#define RECORDERS 4
#define WRITES	  5
#define EACH	  3000 /* spans for each recorder */

/* The limit on the spans of a recorder so far: some are recorded during each write. */
static uint64_t allowed;

/* Every field of a span follows from its begin, so a mix of two spans is detected. */
static void *record_many(void *arg)
{
	for (uint64_t i = 0; i < EACH; i++) {
		uint64_t from = 1 + i * 10;

		while (i >= __atomic_load_n(&allowed, __ATOMIC_RELAXED))
			sched_yield();

		trace_io(trace, false, (unsigned)(uintptr_t)arg, 0, from, from + 1 + i % 8,
			 from * 3, from * 5);
	}
	return NULL;
}

static size_t assert_whole(void)
{
	size_t n = 0;
	uint64_t base = UINT64_MAX;

	for (size_t i = 0; i < timeline.n; i++) {
		const struct json_value *event = timeline.events[i];
		uint64_t from;

		if (!is_slice(event))
			continue;
		from = of_args(event, "offset") / 3;
		if (base == UINT64_MAX)
			base = from - nanoseconds(event, "ts");
		assert_int_equal(from - nanoseconds(event, "ts"), base);
		assert_int_equal(nanoseconds(event, "dur"), 1 + from / 10 % 8);
		assert_int_equal(of_args(event, "bytes"), from * 5);
		n++;
	}
	return n;
}

TEST(a_file_written_during_recording_is_consistent)
{
	pthread_t threads[RECORDERS];
	size_t n = 0, before = 0;

	open_trace(RECORDERS * EACH);
	allowed = 0;
	for (uintptr_t i = 0; i < RECORDERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, record_many, (void *)i), 0);
	for (unsigned i = 0; i < WRITES; i++) {
		__atomic_fetch_add(&allowed, EACH / WRITES, __ATOMIC_RELAXED);
		write_and_read_back();
		n = assert_whole();
		assert_true(n >= before);
		before = n;
	}
	for (unsigned i = 0; i < RECORDERS; i++)
		pthread_join(threads[i], NULL);
	write_and_read_back();
	assert_int_equal(assert_whole(), RECORDERS * EACH);
	assert_int_equal(timeline.dropped, 0);
	assert_nested_or_disjoint();
}

TEST(the_file_is_private_and_replaces_what_was_there)
{
	const char *path = path_in(temp_directory(), "trace.json");
	struct stat was, is;

	open_trace(4);
	write_text(path, "something longer than a trace, which is not JSON");
	assert_int_equal(chmod(path, 0644) | stat(path, &was), 0);
	SUCCEEDS(nvs_trace_write(trace, path, NULL, &error), &error);
	assert_int_equal(stat(path, &is), 0);
	assert_int_equal(is.st_mode & 0777, 0600);
	assert_int_not_equal(is.st_ino, was.st_ino);
	read_back(path);
}

TEST(a_file_that_can_not_be_written_is_an_error_and_leaves_nothing)
{
	const char *directory = temp_directory();
	const char *path = path_in(directory, "trace.json");
	struct rlimit limit, before;
	uint64_t dropped = 0;

	open_trace(100000);
	assert_int_equal(nvs_trace_write(trace, path_in(directory, "none/t.json"), NULL, &error),
			 -ENOENT);
	assert_int_equal(error.code, -ENOENT);
	assert_says(error.text, "none/t.json");
	/* Not regular files, so they are not replaced. */
	assert_int_equal(nvs_trace_write(trace, "/dev/null", NULL, &error), -EINVAL);
	assert_says(error.text, "/dev/null");
	assert_int_equal(nvs_trace_write(trace, directory, NULL, &error), -EINVAL);

	for (unsigned i = 0; i < 1000; i++)
		nvs_trace_span(trace, "long enough to fill", i, i + 1);
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	limit = before;
	limit.rlim_cur = 20000;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	assert_int_equal(nvs_trace_write(trace, path, &dropped, &error), -EFBIG);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_says(error.text, path);
	assert_int_equal(entries_of(directory), 0);
}

/* ---- I/Os ---- */

#define PAGE	   4096u
#define FILE_PAGES (RIG_BYTES / PAGE)

static void open_traced(uint32_t depth, uint32_t workers)
{
	RIG(.part = PAGE, .depth = depth, .workers = workers, .moves = true);
	open_trace(4 * FILE_PAGES);
	aio_trace(rig->aio, trace);
}

static struct transfer transfer_of(enum nvs_direction direction, unsigned page, unsigned pages)
{
	return (struct transfer){.file = rig->file,
				 .direction = direction,
				 .data = rig->data + (size_t)page * PAGE,
				 .nbytes = (uint64_t)pages * PAGE,
				 .offset = (uint64_t)page * PAGE};
}

/* Both halves of the file at once, one read and the other written. */
static int move_all(void)
{
	struct transfer in = transfer_of(NVS_READ, 0, FILE_PAGES / 2);
	struct transfer out = transfer_of(NVS_WRITE, FILE_PAGES / 2, FILE_PAGES / 2);
	struct transfer *both[] = {&in, &out};

	DO(submit_all(rig->aio, both, 2, &rig->error));
	return await_all(rig->aio, both, 2, -1, &rig->error);
}

static int move_page(enum nvs_direction direction, unsigned page)
{
	struct transfer transfer = transfer_of(direction, page, 1), *one = &transfer;

	DO(submit_all(rig->aio, &one, 1, &rig->error));
	return await_all(rig->aio, &one, 1, -1, &rig->error);
}

TEST(every_io_is_a_span_on_the_track_of_its_place_in_the_queue)
{
	enum { DEPTH = 4, WORKERS = 2 };
	bool seen[FILE_PAGES] = {false};
	size_t n = 0;

	open_traced(DEPTH, WORKERS);
	assert_int_equal(move_all(), 0);
	write_and_read_back();
	assert_nested_or_disjoint();
	for (size_t i = 0; i < timeline.n; i++) {
		const struct json_value *event = timeline.events[i];
		unsigned worker, slot;
		uint64_t page;

		if (!is_slice(event))
			continue;
		assert_int_equal(sscanf(track_name(event), "worker %u, slot %u", &worker, &slot),
				 2);
		assert_true(worker < WORKERS && slot < DEPTH);
		page = of_args(event, "offset") / PAGE;
		assert_int_equal(of_args(event, "bytes"), PAGE);
		assert_string_equal(text(event, "name"), page < FILE_PAGES / 2 ? "read" : "write");
		assert_true(page < FILE_PAGES && !seen[page]);
		seen[page] = true;
		n++;
	}
	assert_int_equal(n, FILE_PAGES);
}

TEST(ios_one_at_a_time_stay_on_the_first_track)
{
	open_traced(32, 1);
	for (unsigned i = 0; i < 4; i++)
		DO(move_page(NVS_READ, i));
	write_and_read_back();
	for (size_t i = 0; i < timeline.n; i++)
		if (is_slice(timeline.events[i]))
			assert_string_equal(track_name(timeline.events[i]), "worker 0, slot 00");
}

TEST(a_retried_io_is_one_span_and_a_failed_one_has_no_bytes)
{
	const struct json_value *event;

	open_traced(4, 1);
	fake_fail_nth(&rig->fake, 0, 2, -EAGAIN);
	DO(move_page(NVS_READ, 1));
	fake_fail_at(&rig->fake, 2 * PAGE, 1, -EIO);
	assert_int_equal(move_page(NVS_WRITE, 2), -EIO);

	write_and_read_back();
	event = the_only("X", "io", "read");
	assert_int_equal(of_args(event, "bytes"), PAGE);
	event = the_only("X", "io", "write");
	assert_int_equal(of_args(event, "offset"), 2 * PAGE);
	assert_int_equal(of_args(event, "bytes"), 0);
}

EACH_TEST(NULL, cleanup)
