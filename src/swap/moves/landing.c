/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Landing: what becomes of the tensors of a run whose transfer has completed. A read or a write
 * that failed leaves the contents where they were.
 */
#include <errno.h>

#include "base/clock.h"
#include "base/error.h"
#include "swap/moves/moves.h"
#include "trace/trace.h"

static void landed_read(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	if (!tensor->status && sums_compared(engine, tensor) &&
	    tensor->new_checksum != tensor->checksum) {
		tensor->status = -EBADMSG;
		tensor->error_offset = tensor->place;
		engine->verify_errors++;
		say_later(engine, NVS_LOG_ERROR,
			  "%s: the bytes read from the store are not those that were written",
			  tensor->name);
	}
	if (!tensor->status) {
		engine->swapped[NVS_READ] += tensor->external ? tensor->part_nbytes
							      : tensor->nbytes;
		if (!is_part(tensor))
			tensor->unverified = false;
	}
	if (tensor->external) {
		tensor->external = false;
		tensor->data = NULL;
		tensor->state = NVS_ON_DRIVE;
		return;
	}
	tensor->state = NVS_RESIDENT;
	if (tensor->status) {
		pins_fail(engine, tensor);
		drop(engine, tensor);
	} else if (tensor->drop && !tensor->uses) {
		drop(engine, tensor);
	} else if (!tensor->uses) {
		make_idle(engine, tensor);
	}
}

static void write_failed(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	/* The other extent still has the old contents. */
	if (tensor->place == tensor->offset)
		tensor->has_contents = tensor->has_checksum = false;
	if (tensor->external)
		return;
	tensor->dirty = true;
	set_drop(engine, tensor, false);
	engine->write_failures++;
	tensor_error(engine, tensor, &engine->failure);
	say_later(engine, NVS_LOG_ERROR, "%s could not be written back and stays in the pool: %s",
		  tensor->name, nvs_strerror(tensor->status));
	/* A caller that pinned the tensor again has valid data; don't report the failed write-back
	 * to it. */
	if (tensor->uses)
		tensor->status = 0;
}

static void write_succeeded(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	if (tensor->place != tensor->offset) {
		tensor->spare = tensor->offset;
		tensor->offset = tensor->place;
	}
	tensor->has_contents = true;
	tensor->has_checksum = keeps_sums(engine);
	tensor->checksum = tensor->new_checksum;
	tensor->unverified = false;
	engine->swapped[NVS_WRITE] += tensor->nbytes;
}

static void landed_write(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	if (tensor->status)
		write_failed(engine, tensor);
	else
		write_succeeded(engine, tensor);
	if (tensor->external) {
		tensor->unreported = tensor->status;
		tensor->unreported_at = tensor->error_offset;
		tensor->external = false;
		tensor->data = NULL;
		tensor->state = tensor->has_contents ? NVS_ON_DRIVE : NVS_EMPTY;
		return;
	}
	tensor->state = NVS_RESIDENT;
	if (tensor->uses)
		return;
	if (tensor->drop && !tensor->dirty)
		drop(engine, tensor);
	else
		make_idle(engine, tensor);
}

static void trace_run(const struct nvs_engine *engine, const struct transfer *run, uint64_t now)
{
	const struct nvs_tensor *first = run->user;

	for (const struct nvs_tensor *t = first; t; t = t->run_next)
		trace_tensor(engine->trace, run->direction == NVS_WRITE, t->name,
			     first->launched_ns, now, t->place + (t->external ? t->part_offset : 0),
			     t->external ? t->part_nbytes : t->nbytes);
}

static void land(struct nvs_engine *engine, const struct transfer *run)
{
	struct nvs_tensor *tensor = run->user;
	enum nvs_direction direction = run->direction;
	int status = run->status;
	uint64_t error_offset = run->error_offset;

	landed_late(engine, run);
	while (tensor) {
		struct nvs_tensor *next = tensor->run_next;

		tensor->status = status;
		tensor->status_direction = direction;
		tensor->error_offset = error_offset;
		tensor->by_engine = false;
		if (direction == NVS_READ)
			landed_read(engine, tensor);
		else
			landed_write(engine, tensor);
		tensor = next;
	}
	engine->inflight[direction]--;
	if (!engine->inflight[NVS_READ] && !engine->inflight[NVS_WRITE])
		engine->busy_ns += clock_ns() - engine->busy_from_ns;
}

void runs_trace(const struct nvs_engine *engine, const struct transfer *list)
{
	uint64_t now = engine->trace ? clock_ns() : 0;

	if (!engine->trace)
		return;
	for (const struct transfer *run = list; run; run = run->state.next)
		trace_run(engine, run, now);
}

void runs_land(struct nvs_engine *engine, struct transfer *list)
{
	while (list) {
		struct transfer *next = list->state.next;

		land(engine, list);
		list = next;
	}
}
