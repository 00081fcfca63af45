/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens and closes a trace, and records its spans from any thread. write.c makes a file of them.
 */
#include "trace/trace.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/threads/cancel.h"
#include "trace/spans.h"

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
