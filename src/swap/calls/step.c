/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps: beginning and ending one, its statistics, and turning its recorded order into the plan of
 * the next.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/struct_size.h"
#include "base/threads/cancel.h"
#include "swap/calls/calls.h"

void step_access(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		 bool contents)
{
	struct step *step = &engine->step;

	if (!step->begun)
		return;
	for (size_t i = 0; i < n; i++) {
		bool found = in_pool(tensors[i]->content);

		plan_access(engine, tensors[i], contents);
		step->hits += contents && found;
		step->misses += contents && !found;
	}
}

void step_stalled(struct nvs_engine *engine, uint64_t from_ns)
{
	struct step *step = &engine->step;

	if (!step->begun)
		return;
	step->stalls++;
	step->stall_ns += clock_ns() - max_u64(from_ns, step->from_ns);
}

void trace_wait(const struct nvs_engine *engine, const struct nvs_tensor *tensor, uint64_t from_ns)
{
	static const char what[] = "wait for ";
	char name[32] = "room in the pool";
	size_t length, max = sizeof(name) - sizeof(what);

	if (!engine->trace)
		return;
	if (tensor) {
		/* Names differ at their ends. */
		length = strlen(tensor->rest->name);
		snprintf(name, sizeof(name), "%s%s", what,
			 tensor->rest->name + (length > max ? length - max : 0));
	}
	trace_thread(engine->trace, TRACE_WAIT, name, from_ns, clock_ns());
}

static uint64_t above(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

void trace_calls(const struct nvs_engine *engine, enum trace_kind call,
		 struct nvs_tensor *const *tensors, size_t n)
{
	uint64_t now = engine->trace ? clock_ns() : 0;

	for (size_t i = 0; i < n && engine->trace; i++) {
		const struct nvs_tensor *tensor = tensors[i];
		struct trace_subject subject = {
			.name = tensor->rest->name,
			/* The two extents of a kept store swap roles; the lower one identifies the
			 * tensor. */
			.offset = engine->keep ? min_u64(tensor->offset, tensor->rest->spare)
					       : tensor->offset,
			.nbytes = tensor->nbytes,
			/* A replay has elements of whole bytes. */
			.element_bytes = (unsigned)max_u64(nvs_dtype_size(tensor->rest->dtype), 1)};

		trace_call(engine->trace, call, now, &subject);
	}
}

/* ---- Beginning and ending a step ---- */

int nvs_engine_step_begin(struct nvs_engine *engine, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct transfer *list = NULL;
	struct step *step;
	int rc = check_unowned(engine, "nvs_optimizer_step takes a step", error)
			 ?: check_array(engine, NULL, 0, error);

	if (rc)
		return rc;
	step = &engine->step;
	engine_lock(engine);
	if (step->begun) {
		rc = error_set(error, -EBUSY, "a step has begun already: end it first");
	} else {
		*step = (struct step){.begun = true, .from_ns = clock_ns()};
		step->busy_ns = busy_ns(engine, step->from_ns);
		step->swapped[NVS_READ] = engine->moves.swapped[NVS_READ];
		step->swapped[NVS_WRITE] = engine->moves.swapped[NVS_WRITE];
		step->drive_written = store_written(engine->store);
		engine->plan.nrecorded = 0;
		engine->plan.step++;
		engine->plan.same = true;
		engine->plan.lost = false;
		list = move_ahead(engine);
		trace_call(engine->trace, TRACE_STEP_BEGIN, clock_ns(),
			   &(struct trace_subject){.name = ""});
	}
	engine_unlock(engine);
	launch(engine, list);
	return rc;
}

int nvs_engine_step_end(struct nvs_engine *engine, struct nvs_step_io *io, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct nvs_step_io full;
	struct step *step;
	uint64_t now;
	int rc = check_unowned(engine, "nvs_optimizer_step takes a step", error)
			 ?: check_array(engine, NULL, 0, error);

	if (!rc && io && !struct_sized(io))
		rc = error_set(error, -EINVAL, "the size of *io is not set");
	if (rc)
		return rc;
	engine_lock(engine);
	step = &engine->step;
	now = clock_ns();
	if (!step->begun) {
		rc = error_set(error, -EBUSY,
			       "no step has begun: call nvs_engine_step_begin first");
	} else {
		full = (struct nvs_step_io){
			.size = sizeof(full),
			.wall_ns = now - step->from_ns,
			.io_ns = busy_ns(engine, now) - step->busy_ns,
			.read_bytes = engine->moves.swapped[NVS_READ] - step->swapped[NVS_READ],
			.written_bytes = engine->moves.swapped[NVS_WRITE] -
					 step->swapped[NVS_WRITE],
			.hits = step->hits,
			.misses = step->misses,
			.stalls = step->stalls,
			.stall_ns = step->stall_ns,
			.drive_written_bytes = store_written(engine->store) - step->drive_written};
		assert(full.io_ns <= full.wall_ns);
		full.compute_ns = above(full.wall_ns, full.stall_ns);
		full.hidden_ns = min_u64(above(full.io_ns + full.compute_ns, full.wall_ns),
					 min_u64(full.io_ns, full.compute_ns));
		if (io)
			rc = struct_out(io, &full, sizeof(full));
		step->begun = false;
		plan_mend(engine);
		trace_call(engine->trace, TRACE_STEP_END, clock_ns(),
			   &(struct trace_subject){.name = "", .nbytes = full.drive_written_bytes});
	}
	engine_unlock(engine);
	return rc;
}
