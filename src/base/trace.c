/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace is an array of spans that threads fill from the front, each claiming the next one by an
 * atomic count, and a table of the threads that did. A span is seen by the writer once its `shown`
 * is set, which happens last; nothing is ever taken back, so neither side waits for the other.
 */
#include "base/trace.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yajl/yajl_gen.h>

#include "base/error.h"

#define NAME_BYTES   31
#define THREADS_MAX  256 /* with a track of their own; the rest share one more */
#define WORKERS_MAX  NVS_THREAD_COUNT_MAX
#define TID_WORKERS  1000 /* tracks of I/O follow the threads' */
#define TID_A_WORKER 10000

struct span {
	uint64_t from_ns, to_ns;
	union {
		struct {
			uint64_t offset;
			uint32_t nbytes;
			uint16_t worker, slot;
		} io;
		struct {
			uint64_t offset, nbytes;
		} tensor;
		unsigned thread; /* index in the table */
	};
	char name[NAME_BYTES]; /* without a NUL where it fills it */
	uint8_t shown;	       /* the kind plus one; 0: not filled in yet */
};

_Static_assert(sizeof(struct span) == 64, "what nvs_trace_open promises");

struct thread {
	pid_t id; /* 0: free */
	bool named, called;
	char name[16];
};

struct nvs_trace {
	struct span *spans;
	uint64_t room;
	uint64_t claimed;			/* also of those that found no room */
	struct thread threads[THREADS_MAX + 1]; /* the first is the one that opened it */
};

/* ---- Recording ---- */

int nvs_trace_open(struct nvs_trace **out, size_t max_spans, struct nvs_error *error)
{
	struct nvs_trace *trace;

	*out = NULL;
	if (!max_spans || max_spans > SIZE_MAX / sizeof(struct span))
		return error_set(error, -EINVAL, "a trace of %zu spans: it takes 1 to %zu",
				 max_spans, SIZE_MAX / sizeof(struct span));
	trace = calloc(1, sizeof(*trace));
	if (!trace)
		return error_set(error, -ENOMEM, "out of memory while opening the trace");
	/* Pages are taken as spans reach them. */
	trace->spans = mmap(NULL, max_spans * sizeof(struct span), PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (trace->spans == MAP_FAILED) {
		free(trace);
		return error_set(error, -ENOMEM,
				 "no memory for a trace of %zu spans of 64 bytes; use fewer",
				 max_spans);
	}
	trace->room = max_spans;
	trace->threads[0].id = gettid();
	*out = trace;
	return 0;
}

void nvs_trace_close(struct nvs_trace *trace)
{
	if (!trace)
		return;
	munmap(trace->spans, trace->room * sizeof(struct span));
	free(trace);
}

/* The next span with its times, to be filled in and shown; NULL where there is no room. */
static struct span *claim(struct nvs_trace *trace, uint64_t from_ns, uint64_t to_ns)
{
	uint64_t i = __atomic_fetch_add(&trace->claimed, 1, __ATOMIC_RELAXED);
	struct span *span;

	if (i >= trace->room)
		return NULL;
	span = &trace->spans[i];
	span->from_ns = from_ns;
	span->to_ns = to_ns < from_ns ? from_ns : to_ns;
	return span;
}

static void show(struct span *span, enum trace_kind kind)
{
	__atomic_store_n(&span->shown, (uint8_t)(kind + 1), __ATOMIC_RELEASE);
}

static bool continues_character(char c)
{
	return ((unsigned char)c & 0xc0) == 0x80;
}

static void keep_beginning(struct span *span, const char *name)
{
	size_t n = strnlen(name, NAME_BYTES + 1);

	if (n > NAME_BYTES)
		for (n = NAME_BYTES; n && continues_character(name[n]); n--)
			;
	memcpy(span->name, name, n);
}

static void keep_end(struct span *span, const char *name)
{
	size_t n = strlen(name);

	if (n > NAME_BYTES) {
		name += n - NAME_BYTES;
		for (n = NAME_BYTES; n && continues_character(*name); n--)
			name++;
	}
	memcpy(span->name, name, n);
}

static void name_thread(struct thread *thread, pid_t id)
{
	if (pthread_getname_np(pthread_self(), thread->name, sizeof(thread->name)) ||
	    !thread->name[0])
		snprintf(thread->name, sizeof(thread->name), "thread %d", (int)id);
	thread->named = true;
}

/* The calling thread's place in the table. It takes one, and gives its name, with its first span.
 */
static unsigned this_thread(struct nvs_trace *trace)
{
	pid_t self = gettid();

	for (unsigned i = 0; i < THREADS_MAX; i++) {
		struct thread *thread = &trace->threads[i];
		pid_t id = __atomic_load_n(&thread->id, __ATOMIC_RELAXED);

		if (!id && __atomic_compare_exchange_n(&thread->id, &id, self, false,
						       __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			id = self;
		if (id != self)
			continue;
		if (!thread->named)
			name_thread(thread, self);
		return i;
	}
	return THREADS_MAX;
}

void trace_io(struct nvs_trace *trace, bool write, unsigned worker, unsigned slot, uint64_t from_ns,
	      uint64_t to_ns, uint64_t offset, uint64_t nbytes)
{
	struct span *span = trace ? claim(trace, from_ns, to_ns) : NULL;

	if (!span)
		return;
	assert(worker < WORKERS_MAX && slot < NVS_QUEUE_DEPTH_MAX && nbytes <= UINT32_MAX);
	span->io.offset = offset;
	span->io.nbytes = (uint32_t)nbytes;
	span->io.worker = (uint16_t)worker;
	span->io.slot = (uint16_t)slot;
	show(span, write ? TRACE_WRITE : TRACE_READ);
}

void trace_thread(struct nvs_trace *trace, enum trace_kind kind, const char *name, uint64_t from_ns,
		  uint64_t to_ns)
{
	struct span *span = trace ? claim(trace, from_ns, to_ns) : NULL;

	if (!span)
		return;
	span->thread = this_thread(trace);
	if (kind == TRACE_CALLER)
		__atomic_store_n(&trace->threads[span->thread].called, true, __ATOMIC_RELAXED);
	keep_beginning(span, name);
	show(span, kind);
}

void trace_tensor(struct nvs_trace *trace, bool write, const char *name, uint64_t from_ns,
		  uint64_t to_ns, uint64_t offset, uint64_t nbytes)
{
	struct span *span = trace ? claim(trace, from_ns, to_ns) : NULL;

	if (!span)
		return;
	span->tensor.offset = offset;
	span->tensor.nbytes = nbytes;
	keep_end(span, name);
	show(span, write ? TRACE_TENSOR_WRITE : TRACE_TENSOR_READ);
}

void nvs_trace_span(struct nvs_trace *trace, const char *name, uint64_t from_ns, uint64_t to_ns)
{
	trace_thread(trace, TRACE_CALLER, name ? name : "", from_ns, to_ns);
}

/* ---- Events ---- */

struct writing {
	struct nvs_trace *trace;
	yajl_gen gen;
	uint64_t n;    /* spans that are looked at */
	uint64_t base; /* the time that is 0 */
	/* Which tracks have something on them. */
	bool threads[THREADS_MAX + 1];
	unsigned slots[WORKERS_MAX]; /* the highest that was used, plus one */
};

/* A span that has been filled in, and its kind. */
static const struct span *shown(const struct writing *writing, uint64_t i, enum trace_kind *kind)
{
	const struct span *span = &writing->trace->spans[i];
	uint8_t state = __atomic_load_n(&span->shown, __ATOMIC_ACQUIRE);

	*kind = (enum trace_kind)(state - 1);
	return state ? span : NULL;
}

static void put_text(yajl_gen gen, const char *text, size_t n)
{
	char ascii[64];

	if (yajl_gen_string(gen, (const unsigned char *)text, n) != yajl_gen_invalid_string)
		return;
	/* A name need not be UTF-8, and JSON must. */
	assert(n <= sizeof(ascii));
	for (size_t i = 0; i < n; i++)
		ascii[i] = (unsigned char)text[i] < 0x80 ? text[i] : '?';
	yajl_gen_string(gen, (const unsigned char *)ascii, n);
}

static void key(yajl_gen gen, const char *name)
{
	put_text(gen, name, strlen(name));
}

static void text_field(yajl_gen gen, const char *name, const char *text)
{
	key(gen, name);
	put_text(gen, text, strlen(text));
}

static void count_field(yajl_gen gen, const char *name, uint64_t count)
{
	char text[32];
	int n = snprintf(text, sizeof(text), "%" PRIu64, count);

	key(gen, name);
	yajl_gen_number(gen, text, (size_t)n);
}

static void time_field(yajl_gen gen, const char *name, uint64_t ns)
{
	char text[32];
	int n = snprintf(text, sizeof(text), "%" PRIu64 ".%03u", ns / 1000, (unsigned)(ns % 1000));

	key(gen, name);
	yajl_gen_number(gen, text, (size_t)n);
}

static void open_event(yajl_gen gen, const char *phase, const char *category, const char *name,
		       size_t nbytes)
{
	yajl_gen_map_open(gen);
	text_field(gen, "ph", phase);
	if (category)
		text_field(gen, "cat", category);
	key(gen, "name");
	put_text(gen, name, nbytes);
	count_field(gen, "pid", 1);
}

static void put_place(yajl_gen gen, uint64_t offset, uint64_t nbytes)
{
	key(gen, "args");
	yajl_gen_map_open(gen);
	count_field(gen, "offset", offset);
	count_field(gen, "bytes", nbytes);
	yajl_gen_map_close(gen);
}

static void put_times(const struct writing *writing, const struct span *span)
{
	time_field(writing->gen, "ts", span->from_ns - writing->base);
	time_field(writing->gen, "dur", span->to_ns - span->from_ns);
}

static unsigned io_track(unsigned worker, unsigned slot)
{
	return TID_WORKERS + worker * TID_A_WORKER + slot;
}

static void put_io(struct writing *writing, const struct span *span, bool write)
{
	const char *name = write ? "write" : "read";
	unsigned *slots = &writing->slots[span->io.worker];

	open_event(writing->gen, "X", "io", name, strlen(name));
	count_field(writing->gen, "tid", io_track(span->io.worker, span->io.slot));
	put_times(writing, span);
	put_place(writing->gen, span->io.offset, span->io.nbytes);
	yajl_gen_map_close(writing->gen);
	if (*slots <= span->io.slot)
		*slots = span->io.slot + 1u;
}

static void put_of_thread(struct writing *writing, const struct span *span, const char *category)
{
	open_event(writing->gen, "X", category, span->name, strnlen(span->name, NAME_BYTES));
	count_field(writing->gen, "tid", span->thread + 1);
	put_times(writing, span);
	yajl_gen_map_close(writing->gen);
	writing->threads[span->thread] = true;
}

/* Perfetto gives each name a row, so a tensor has one for its reads and one for its writes. */
static void put_end_of_tensor(struct writing *writing, const struct span *span, const char *phase,
			      uint64_t id, bool write)
{
	yajl_gen gen = writing->gen;
	bool begin = *phase == 'b';
	char name[48];
	int n = snprintf(name, sizeof(name), "%s %.*s", write ? "write" : "read", NAME_BYTES,
			 span->name);

	open_event(gen, phase, "tensor", name, (size_t)n);
	count_field(gen, "tid", 1);
	count_field(gen, "id", id);
	time_field(gen, "ts", (begin ? span->from_ns : span->to_ns) - writing->base);
	if (begin)
		put_place(gen, span->tensor.offset, span->tensor.nbytes);
	yajl_gen_map_close(gen);
}

static void put_tensor(struct writing *writing, const struct span *span, uint64_t id, bool write)
{
	put_end_of_tensor(writing, span, "b", id, write);
	put_end_of_tensor(writing, span, "e", id, write);
}

static void put_span(struct writing *writing, const struct span *span, enum trace_kind kind,
		     uint64_t i)
{
	switch (kind) {
	case TRACE_READ:
	case TRACE_WRITE:
		put_io(writing, span, kind == TRACE_WRITE);
		break;
	case TRACE_COMPUTE:
		put_of_thread(writing, span, "compute");
		break;
	case TRACE_WAIT:
		put_of_thread(writing, span, "wait");
		break;
	case TRACE_CALLER:
		put_of_thread(writing, span, "caller");
		break;
	case TRACE_TENSOR_READ:
	case TRACE_TENSOR_WRITE:
		put_tensor(writing, span, i + 1, kind == TRACE_TENSOR_WRITE);
		break;
	}
}

static void put_spans(struct writing *writing)
{
	enum trace_kind kind;

	writing->base = UINT64_MAX;
	for (uint64_t i = 0; i < writing->n; i++) {
		const struct span *span = shown(writing, i, &kind);

		if (span && span->from_ns < writing->base)
			writing->base = span->from_ns;
	}
	for (uint64_t i = 0; i < writing->n; i++) {
		const struct span *span = shown(writing, i, &kind);

		/* One that was shown since, and lies before all others, is for the next time. */
		if (span && span->from_ns >= writing->base)
			put_span(writing, span, kind, i);
	}
}

/* ---- Tracks ---- */

static void put_metadata(yajl_gen gen, const char *what, unsigned track, const char *name,
			 uint64_t sort_index)
{
	open_event(gen, "M", NULL, what, strlen(what));
	count_field(gen, "tid", track);
	key(gen, "args");
	yajl_gen_map_open(gen);
	if (name)
		text_field(gen, "name", name);
	else
		count_field(gen, "sort_index", sort_index);
	yajl_gen_map_close(gen);
	yajl_gen_map_close(gen);
}

static void put_track(yajl_gen gen, unsigned track, const char *name, uint64_t sort_index)
{
	put_metadata(gen, "thread_name", track, name, 0);
	put_metadata(gen, "thread_sort_index", track, NULL, sort_index);
}

/* The caller first: who opened the trace, then those with spans of their own, then the rest. */
static void put_thread(struct writing *writing, unsigned i)
{
	const struct thread *thread = &writing->trace->threads[i];
	const char *name = i < THREADS_MAX ? thread->name : "other threads";
	unsigned rank = __atomic_load_n(&thread->called, __ATOMIC_RELAXED) ? 1 : 2;

	/* Whose spans are seen has left its name before. */
	put_track(writing->gen, i + 1, name, i ? rank * (THREADS_MAX + 1u) + i : 0);
}

static void put_tracks(struct writing *writing)
{
	char name[64];

	put_metadata(writing->gen, "process_name", 1, "nvswap", 0);
	for (unsigned i = 0; i <= THREADS_MAX; i++)
		if (writing->threads[i])
			put_thread(writing, i);
	for (unsigned worker = 0; worker < WORKERS_MAX; worker++) {
		for (unsigned slot = 0; slot < writing->slots[worker]; slot++) {
			unsigned track = io_track(worker, slot);

			snprintf(name, sizeof(name), "worker %u, slot %02u", worker, slot);
			put_track(writing->gen, track, name, track);
		}
	}
}

/* ---- The file ---- */

static void print(void *arg, const char *text, size_t nbytes)
{
	(void)fwrite(text, 1, nbytes, arg);
}

static uint64_t put_trace(struct writing *writing)
{
	yajl_gen gen = writing->gen;
	uint64_t claimed = __atomic_load_n(&writing->trace->claimed, __ATOMIC_RELAXED);
	uint64_t room = writing->trace->room;
	uint64_t dropped = claimed > room ? claimed - room : 0;

	writing->n = claimed - dropped;
	yajl_gen_map_open(gen);
	text_field(gen, "displayTimeUnit", "ms");
	key(gen, "traceEvents");
	yajl_gen_array_open(gen);
	put_spans(writing);
	put_tracks(writing);
	yajl_gen_array_close(gen);
	key(gen, "otherData");
	yajl_gen_map_open(gen);
	text_field(gen, "version", "nvswap " NVS_VERSION);
	count_field(gen, "dropped", dropped);
	yajl_gen_map_close(gen);
	yajl_gen_map_close(gen);
	return dropped;
}

static int write_to(FILE *file, struct nvs_trace *trace, uint64_t *dropped)
{
	struct writing writing = {.trace = trace, .gen = yajl_gen_alloc(NULL)};
	int rc = 0;

	if (!writing.gen)
		return -ENOMEM;
	yajl_gen_config(writing.gen, yajl_gen_validate_utf8, 1);
	yajl_gen_config(writing.gen, yajl_gen_print_callback, print, file);
	errno = 0;
	*dropped = put_trace(&writing);
	if (fflush(file) || ferror(file))
		rc = errno ? -errno : -EIO;
	yajl_gen_free(writing.gen);
	return rc;
}

/* Writes beside the path and moves it there, so that a reader finds the whole or the old one. */
static int write_beside(struct nvs_trace *trace, const char *path, const char *beside, int fd,
			uint64_t *dropped)
{
	FILE *file = fdopen(fd, "w");
	int rc;

	if (!file) {
		rc = -errno;
		close(fd);
		return rc;
	}
	rc = write_to(file, trace, dropped);
	if (fclose(file) && !rc)
		rc = -errno;
	if (!rc && rename(beside, path))
		rc = -errno;
	return rc;
}

int nvs_trace_write(struct nvs_trace *trace, const char *path, uint64_t *dropped,
		    struct nvs_error *error)
{
	struct stat there;
	uint64_t none;
	char *beside;
	int fd, rc;

	if (!trace)
		return error_set(error, -EINVAL, "nothing was traced, so there is no trace for %s",
				 path);
	/* Moving a file there would put it in the place of a device or a pipe. */
	if (!lstat(path, &there) && !S_ISREG(there.st_mode))
		return error_set(error, -EINVAL,
				 "the trace can't be written to %s, which is there and no plain "
				 "file; name another",
				 path);
	if (asprintf(&beside, "%s.XXXXXX", path) < 0)
		return error_set(error, -ENOMEM, "out of memory while writing the trace %s", path);
	fd = mkostemp(beside, O_CLOEXEC);
	if (fd < 0) {
		rc = -errno;
	} else {
		rc = write_beside(trace, path, beside, fd, dropped ? dropped : &none);
		if (rc)
			unlink(beside);
	}
	free(beside);
	if (rc)
		return error_set(error, rc, "the trace can't be written to %s: %s", path,
				 nvs_strerror(rc));
	return 0;
}
