/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens and closes a trace, records its spans from any thread, and writes it as Chrome trace
 * events, also while other threads record. A trace is an array of spans and a table of threads. A
 * recording thread claims the next span by an atomic counter and stores `shown` last. The writer of
 * the file skips spans without it, and spans are never reused, so recorders and the writer need no
 * lock.
 */
#include "trace/trace.h"

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

#include "base/error.h"
#include "base/json/write.h"
#include "base/threads/cancel.h"

#define NAME_BYTES  31
#define THREADS_MAX 256 /* threads with a track each; all others share one */
#define WORKERS_MAX NVS_THREAD_COUNT_MAX

struct span {
	uint64_t from_ns, to_ns;
	union {
		struct {
			uint64_t offset;
			uint32_t nbytes;
			uint16_t worker, slot;
		} io;
		struct {
			uint64_t offset;
			uint64_t nbytes : 56, element_bytes : 8; /* element_bytes: of calls only */
		} tensor;
		unsigned thread; /* index in nvs_trace.threads */
	};
	char name[NAME_BYTES]; /* no NUL if all bytes are used */
	uint8_t shown;	       /* enum trace_kind plus one; 0: incomplete */
};

_Static_assert(sizeof(struct span) == 64, "documented at nvs_trace_open");

struct traced_thread {
	pid_t id; /* 0: free */
	bool named, called;
	char name[16];
};

struct nvs_trace {
	struct span *spans;
	uint64_t room;
	uint64_t claimed; /* includes spans that were dropped for lack of room */
	struct traced_thread threads[THREADS_MAX + 1]; /* [0] opened the trace */
};

#define NBYTES_MAX ((UINT64_C(1) << 56) - 1)

int nvs_trace_open(struct nvs_trace **out, size_t max_spans, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct nvs_trace *trace;

	if (!out)
		return error_set(error, -EINVAL, "trace is NULL");
	*out = NULL;
	if (!max_spans || max_spans > SIZE_MAX / sizeof(struct span))
		return error_set(error, -EINVAL,
				 "a trace of %zu spans was asked for: 1 to %zu are possible",
				 max_spans, SIZE_MAX / sizeof(struct span));
	trace = calloc(1, sizeof(*trace));
	if (!trace)
		return error_set(error, -ENOMEM, "out of memory while opening the trace");
	/* The kernel allocates pages when spans first touch them. */
	trace->spans = mmap(NULL, max_spans * sizeof(struct span), PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (trace->spans == MAP_FAILED) {
		free(trace);
		return error_set(error, -ENOMEM,
				 "no memory for a trace of %zu spans of 64 bytes each: use fewer",
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

/* Claims the next span; the caller fills it in and calls show(). NULL: no room. */
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

/* Index of the calling thread in the table, which it enters with its first span. */
static unsigned this_thread(struct nvs_trace *trace)
{
	pid_t self = gettid();

	for (unsigned i = 0; i < THREADS_MAX; i++) {
		struct traced_thread *thread = &trace->threads[i];
		pid_t id = __atomic_load_n(&thread->id, __ATOMIC_RELAXED);

		if (!id && __atomic_compare_exchange_n(&thread->id, &id, self, false,
						       __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			id = self;
		if (id != self)
			continue;
		if (!thread->named) {
			if (pthread_getname_np(pthread_self(), thread->name,
					       sizeof(thread->name)) ||
			    !thread->name[0])
				snprintf(thread->name, sizeof(thread->name), "thread %d",
					 (int)self);
			thread->named = true;
		}
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

	size_t n = strnlen(name, NAME_BYTES + 1);

	if (n > NAME_BYTES)
		for (n = NAME_BYTES; n && continues_character(name[n]); n--)
			;
	memcpy(span->name, name, n);
	show(span, kind);
}

static void record_tensor(struct nvs_trace *trace, enum trace_kind kind, uint64_t from_ns,
			  uint64_t to_ns, const struct trace_subject *subject)
{
	struct span *span = trace ? claim(trace, from_ns, to_ns) : NULL;
	const char *name = subject->name;
	size_t n;

	if (!span)
		return;
	span->tensor.offset = subject->offset;
	span->tensor.nbytes = subject->nbytes & NBYTES_MAX;
	span->tensor.element_bytes = subject->element_bytes & 0xff;
	n = strlen(name);
	if (n > NAME_BYTES) {
		name += n - NAME_BYTES;
		for (n = NAME_BYTES; n && continues_character(*name); n--)
			name++;
	}
	memcpy(span->name, name, n);
	show(span, kind);
}

void trace_tensor(struct nvs_trace *trace, bool write, const char *name, uint64_t from_ns,
		  uint64_t to_ns, uint64_t offset, uint64_t nbytes)
{
	record_tensor(trace, write ? TRACE_TENSOR_WRITE : TRACE_TENSOR_READ, from_ns, to_ns,
		      &(struct trace_subject){.name = name, .offset = offset, .nbytes = nbytes});
}

void trace_optimizer_step(struct nvs_trace *trace, uint64_t from_ns, uint64_t to_ns,
			  uint64_t nbytes)
{
	record_tensor(trace, TRACE_OPTIMIZER_STEP, from_ns, to_ns,
		      &(struct trace_subject){.name = "", .nbytes = nbytes});
}

void trace_call(struct nvs_trace *trace, enum trace_kind call, uint64_t at_ns,
		const struct trace_subject *subject)
{
	assert(call >= TRACE_SWAP_IN && call <= TRACE_OPEN);
	record_tensor(trace, call, at_ns, at_ns, subject);
}

void nvs_trace_span(struct nvs_trace *trace, const char *name, uint64_t from_ns, uint64_t to_ns)
{
	trace_thread(trace, TRACE_CALLER, name ? name : "", from_ns, to_ns);
}

/* ---- Writing ---- */

#define TID_WORKERS  1000 /* tracks of I/Os follow those of threads */
#define TID_A_WORKER 10000

struct trace_writer {
	struct nvs_trace *trace;
	struct json_writer json;
	uint64_t n;    /* spans to write */
	uint64_t base; /* the earliest time, written as 0 */
	/* Tracks with at least one event: */
	bool threads[THREADS_MAX + 1];
	unsigned slots[WORKERS_MAX]; /* by worker: the highest slot used, plus one */
};

/* NULL if the span is incomplete. */
static const struct span *shown(const struct trace_writer *writer, uint64_t i,
				enum trace_kind *kind)
{
	const struct span *span = &writer->trace->spans[i];
	uint8_t state = __atomic_load_n(&span->shown, __ATOMIC_ACQUIRE);

	*kind = (enum trace_kind)(state - 1);
	return state ? span : NULL;
}

static void put_time(struct json_writer *json, const char *key, uint64_t ns)
{
	json_number(json, key, "%" PRIu64 ".%03u", ns / 1000, (unsigned)(ns % 1000));
}

/* Each event begins a line, so a reader needs memory for one event only. */
static void open_event(struct trace_writer *writer, const char *phase, const char *category,
		       const char *name)
{
	struct json_writer *json = &writer->json;

	(void)fputc('\n', json->file);
	json_open_object(json, NULL);
	json_text(json, "ph", phase);
	if (category)
		json_text(json, "cat", category);
	json_text(json, "name", name);
	json_count(json, "pid", 1);
}

static void put_place(struct json_writer *json, uint64_t offset, uint64_t nbytes)
{
	json_open_object(json, "args");
	json_count(json, "offset", offset);
	json_count(json, "bytes", nbytes);
	json_close_object(json);
}

static void put_times(struct trace_writer *writer, const struct span *span)
{
	put_time(&writer->json, "ts", span->from_ns - writer->base);
	put_time(&writer->json, "dur", span->to_ns - span->from_ns);
}

static unsigned io_track(unsigned worker, unsigned slot)
{
	return TID_WORKERS + worker * TID_A_WORKER + slot;
}

/* A tensor's calls share an id, so viewers draw them in one row, "use NAME". */
static void put_call(struct trace_writer *writer, const struct span *span, enum trace_kind kind)
{
	static const struct {
		const char *phase, *name, *row;
	} calls[] = {
		[TRACE_SWAP_IN] = {"b", "swapin", "use"},
		[TRACE_LEASE] = {"b", "lease", "use"},
		[TRACE_RELEASE_CLEAN] = {"e", "release", "use"},
		[TRACE_RELEASE_DIRTY] = {"e", "release-dirty", "use"},
		[TRACE_PREFETCH] = {"n", "prefetch", "use"},
		[TRACE_WAITED] = {"n", "wait", "use"},
		[TRACE_SWAP_OUT] = {"n", "swapout", "use"},
		[TRACE_SWAP_IN_TO] = {"n", "swapin-to", "use"},
		[TRACE_SWAP_OUT_FROM] = {"n", "swapout-from", "use"},
		[TRACE_READ_PART] = {"n", "read-part", "use"},
		[TRACE_STEP_BEGIN] = {"b", "step-begin", "step"},
		[TRACE_STEP_END] = {"e", "step-end", "step"},
		[TRACE_OPEN] = {"n", "open", "engine"},
	};

	struct json_writer *json = &writer->json;
	char name[48];

	snprintf(name, sizeof(name), "%s %.*s", calls[kind].row, NAME_BYTES, span->name);
	open_event(writer, calls[kind].phase, "call", name);
	json_count(json, "tid", 1);
	json_count(json, "id", span->tensor.offset);
	put_time(json, "ts", span->from_ns - writer->base);
	json_open_object(json, "args");
	json_text(json, "call", calls[kind].name);
	json_count(json, "offset", span->tensor.offset);
	json_count(json, "bytes", span->tensor.nbytes);
	json_count(json, "element", span->tensor.element_bytes);
	json_close_object(json);
	json_close_object(json);
}

static void put_span(struct trace_writer *writer, const struct span *span, enum trace_kind kind,
		     uint64_t i)
{
	struct json_writer *json = &writer->json;
	unsigned *slots;
	char name[48] = "optimizer step";
	bool of_tensor;

	switch (kind) {
	case TRACE_READ:
	case TRACE_WRITE:
		open_event(writer, "X", "io", kind == TRACE_WRITE ? "write" : "read");
		json_count(json, "tid", io_track(span->io.worker, span->io.slot));
		put_times(writer, span);
		put_place(json, span->io.offset, span->io.nbytes);
		json_close_object(json);
		slots = &writer->slots[span->io.worker];
		if (*slots <= span->io.slot)
			*slots = span->io.slot + 1u;
		break;
	case TRACE_COMPUTE:
	case TRACE_WAIT:
	case TRACE_CALLER:
		snprintf(name, sizeof(name), "%.*s", NAME_BYTES, span->name);
		open_event(writer, "X",
			   kind == TRACE_COMPUTE ? "compute"
			   : kind == TRACE_WAIT	 ? "wait"
						 : "caller",
			   name);
		json_count(json, "tid", span->thread + 1);
		put_times(writer, span);
		json_close_object(json);
		writer->threads[span->thread] = true;
		break;
	case TRACE_TENSOR_READ:
	case TRACE_TENSOR_WRITE:
	case TRACE_OPTIMIZER_STEP:
		of_tensor = kind != TRACE_OPTIMIZER_STEP;
		/* Perfetto draws one row per name: a tensor has a row of reads and a row of writes.
		 */
		if (of_tensor)
			snprintf(name, sizeof(name), "%s %.*s",
				 kind == TRACE_TENSOR_WRITE ? "write" : "read", NAME_BYTES,
				 span->name);
		for (int end = 0; end < 2; end++) {
			open_event(writer, end ? "e" : "b", of_tensor ? "tensor" : "optimizer",
				   name);
			json_count(json, "tid", 1);
			json_count(json, "id", i + 1);
			put_time(json, "ts", (end ? span->to_ns : span->from_ns) - writer->base);
			if (!end)
				put_place(json, span->tensor.offset, span->tensor.nbytes);
			json_close_object(json);
		}
		break;
	default:
		put_call(writer, span, kind);
	}
}

/* ---- Tracks ---- */

static void put_metadata(struct trace_writer *writer, const char *what, unsigned track,
			 const char *name, uint64_t sort_index)
{
	struct json_writer *json = &writer->json;

	open_event(writer, "M", NULL, what);
	json_count(json, "tid", track);
	json_open_object(json, "args");
	if (name)
		json_text(json, "name", name);
	else
		json_count(json, "sort_index", sort_index);
	json_close_object(json);
	json_close_object(json);
}

static void put_track(struct trace_writer *writer, unsigned track, const char *name,
		      uint64_t sort_index)
{
	put_metadata(writer, "thread_name", track, name, 0);
	put_metadata(writer, "thread_sort_index", track, NULL, sort_index);
}

/* ---- The file ---- */

static uint64_t put_trace(struct trace_writer *writer)
{
	struct json_writer *json = &writer->json;
	uint64_t claimed = __atomic_load_n(&writer->trace->claimed, __ATOMIC_RELAXED);
	uint64_t room = writer->trace->room;
	uint64_t dropped = claimed > room ? claimed - room : 0;

	writer->n = claimed - dropped;
	json_open_object(json, NULL);
	json_text(json, "displayTimeUnit", "ms");
	json_open_list(json, "traceEvents");

	enum trace_kind kind;

	writer->base = UINT64_MAX;
	for (uint64_t i = 0; i < writer->n; i++) {
		const struct span *span = shown(writer, i, &kind);

		if (span && span->from_ns < writer->base)
			writer->base = span->from_ns;
	}
	for (uint64_t i = 0; i < writer->n; i++) {
		const struct span *span = shown(writer, i, &kind);

		/* A span completed since then may be earlier than base; the next write has it. */
		if (span && span->from_ns >= writer->base)
			put_span(writer, span, kind, i);
	}

	char name[64];

	put_metadata(writer, "process_name", 1, "nvswap", 0);
	for (unsigned i = 0; i <= THREADS_MAX; i++) {
		const struct traced_thread *thread = &writer->trace->threads[i];
		unsigned rank = __atomic_load_n(&thread->called, __ATOMIC_RELAXED) ? 1 : 2;

		/* The thread that opened the trace is first, then callers of nvs_trace_span, then
		 * others. A thread stores its name before it completes its first span. */
		if (writer->threads[i])
			put_track(writer, i + 1, i < THREADS_MAX ? thread->name : "other threads",
				  i ? rank * (THREADS_MAX + 1u) + i : 0);
	}
	for (unsigned worker = 0; worker < WORKERS_MAX; worker++) {
		for (unsigned slot = 0; slot < writer->slots[worker]; slot++) {
			unsigned track = io_track(worker, slot);

			snprintf(name, sizeof(name), "worker %u, slot %02u", worker, slot);
			put_track(writer, track, name, track);
		}
	}
	(void)fputc('\n', writer->json.file);
	json_close_list(json);
	json_open_object(json, "otherData");
	json_text(json, "version", "nvswap " NVS_VERSION);
	json_count(json, "dropped", dropped);
	json_close_object(json);
	json_close_object(json);
	(void)fputc('\n', writer->json.file);
	return dropped;
}

int nvs_trace_write(struct nvs_trace *trace, const char *path, uint64_t *dropped,
		    struct nvs_error *error)
{
	HOLD_CANCEL;
	struct stat there;
	uint64_t none;
	char *beside;
	FILE *file;
	int fd, rc;

	if (!trace || !path)
		return error_set(error, -EINVAL, "the trace can't be written to %s: %s",
				 path ? path : "a file",
				 trace ? "path is NULL" : "no trace was opened");
	/* rename() would replace a device or a pipe. */
	if (!lstat(path, &there) && !S_ISREG(there.st_mode))
		return error_set(error, -EINVAL,
				 "the trace can't be written to %s, which exists and is not "
				 "a regular file: name another path",
				 path);
	if (asprintf(&beside, "%s.XXXXXX", path) < 0)
		return error_set(error, -ENOMEM, "out of memory while writing the trace %s", path);
	/* Renaming the temporary file lets readers see the old file or the complete new one. */
	fd = mkostemp(beside, O_CLOEXEC);
	file = fd < 0 ? NULL : fdopen(fd, "w");
	rc = file ? 0 : -errno;
	if (file) {
		struct trace_writer writer = {.trace = trace, .json = json_to(file, 0)};

		errno = 0;
		*(dropped ? dropped : &none) = put_trace(&writer);
		rc = fflush(file) || ferror(file) ? errno ? -errno : -EIO : 0;
		if (fclose(file) && !rc)
			rc = -errno;
		if (!rc && rename(beside, path))
			rc = -errno;
	} else if (fd >= 0) {
		close(fd);
	}
	if (fd >= 0 && rc)
		unlink(beside);
	free(beside);
	if (rc)
		return error_set(error, rc, "the trace can't be written to %s: %s", path,
				 nvs_strerror(rc));
	return 0;
}
