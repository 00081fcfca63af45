/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A timeline of I/Os, transfers, computation and waits.
 *
 *	rc = nvs_trace_open(&trace, 1000000, &error); // 64 bytes a span
 *	nvs_config_set_trace(config, trace);
 *	... // open an engine with the configuration, train, and close it
 *	nvs_trace_span(trace, "forward", from_ns, to_ns);
 *	rc = nvs_trace_write(trace, "step.json", NULL, &error);
 *	nvs_trace_close(trace);
 */
#ifndef NVSWAP_TRACE_H
#define NVSWAP_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "nvswap/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct nvs_trace;

/*
 * Opens a trace: reserves memory for `max_spans` of 64 bytes each, which never grows. Spans without
 * room are counted and dropped. An aio, engine or optimizer whose configuration has it
 * (nvs_config_set_trace) records until it is closed; the trace must be closed after it. The I/Os of
 * an engine on an aio of the caller are in the trace of that aio.
 * Errors:
 * -EINVAL  `trace` is NULL, or max_spans is 0 or too many
 * -ENOMEM
 */
NVS_API int nvs_trace_open(struct nvs_trace **trace, size_t max_spans, struct nvs_error *error);
/* Frees a trace, which may be NULL. */
NVS_API void nvs_trace_close(struct nvs_trace *trace);
/* Records a span of the caller's work: on the calling thread's track, in CLOCK_MONOTONIC
 * nanoseconds. `name` is truncated to 31 bytes. */
NVS_API void nvs_trace_span(struct nvs_trace *trace, const char *name, uint64_t from_ns,
			    uint64_t to_ns);
/*
 * Writes the spans so far to a file: as JSON in the Chrome trace event format, for Perfetto and
 * chrome://tracing. An existing file is overwritten. *dropped (may be NULL): spans dropped for want
 * of room.
 * Errors: those of opening and writing the file, and
 * -EINVAL  `trace` is NULL, or the path is not a regular file
 */
NVS_API int nvs_trace_write(struct nvs_trace *trace, const char *path, uint64_t *dropped,
			    struct nvs_error *error);

#ifdef __cplusplus
}
#endif

#endif
