/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Landing: what becomes of the tensors of a run whose transfer has completed. A read or a write
 * that failed leaves the contents where they were.
 */
#include <stdlib.h>

#include "swap/moves/moves.h"

/* ---- Runs in flight for longer than io_timeout_ms, which land like others ---- */

int check_overdue(const struct nvs_engine *engine, const struct nvs_tensor *tensor,
		  struct nvs_error *error)
{
	if (!is_overdue(tensor))
		return 0;
	return aio_describe_overdue(engine->aio, &tensor->run_first->rest->transfer,
				    tensor->rest->name, error);
}

void runs_overdue(struct nvs_engine *engine)
{
	for (size_t i = 0; i < engine->ntensors; i++) {
		struct nvs_tensor *first = engine->tensors[i];
		struct nvs_error error = {.size = sizeof(error)};
		uint64_t offset;

		if (!in_flight(first) || first->run_first != first || is_overdue(first) ||
		    !aio_is_overdue(engine->aio, &first->rest->transfer, &offset))
			continue;
		for (struct nvs_tensor *tensor = first; tensor; tensor = tensor->run_next)
			tensor->hangs_at = offset;
		engine->moves.overdue[first->rest->transfer.direction]++;
		check_overdue(engine, first, &error);
		log_later(&engine->log, NVS_LOG_ERROR, "%s", error.text);
	}
}

int first_overdue(const struct nvs_engine *engine, bool writes_alone, struct nvs_error *error)
{
	int rc = 0;

	for (size_t i = 0; i < engine->ntensors && !rc; i++)
		if (!writes_alone || tensor_state(engine->tensors[i]) == NVS_WRITING)
			rc = check_overdue(engine, engine->tensors[i], error);
	assert(rc || (!engine->moves.overdue[NVS_WRITE] &&
		      (writes_alone || !engine->moves.overdue[NVS_READ])));
	return rc;
}

int check_hung(const struct nvs_engine *engine, struct nvs_error *error)
{
	uint64_t hung = engine->moves.overdue[NVS_READ] + engine->moves.overdue[NVS_WRITE];

	return hung && hung == runs_in_flight(&engine->moves) ? first_overdue(engine, false, error)
							      : 0;
}

/* ---- Landing ---- */

static void landed_read(struct nvs_engine *engine, struct nvs_tensor *tensor, enum origin origin)
{
	if (!tensor->status && sums_compared(engine, tensor)) {
		if (tensor->rest->new_checksum == tensor->rest->checksum) {
			tensor->checksum_state = CHECKSUM_KNOWN;
		} else {
			tensor->status = -EBADMSG;
			tensor->rest->error_offset = tensor->place + tensor->rest->skip;
			engine->moves.verify_errors++;
			log_later(&engine->log, NVS_LOG_ERROR,
				  "%s: the bytes read from the %s are not those that were "
				  "written",
				  tensor->rest->name, engine->of_files ? "file" : "store");
		}
	} else if (!tensor->status && sum_learned(engine, tensor)) {
		tensor->checksum_state = CHECKSUM_KNOWN;
		tensor->rest->checksum = tensor->rest->new_checksum;
	}
	if (!tensor->status)
		engine->moves.swapped[NVS_READ] += is_external(tensor) ? tensor->rest->part_nbytes
								       : tensor->nbytes;
	if (is_external(tensor)) {
		return_external(tensor);
	} else if (tensor->status) {
		bool unasked = origin == ORIGIN_ENGINE && !tensor->pins.count;

		pins_fail(tensor);
		drop(engine, tensor);
		/* No call has asked for the read, so no call reports its failure. */
		if (unasked) {
			if (!engine->of_files || tensor->status != -ESTALE)
				log_later(&engine->log, NVS_LOG_WARNING,
					  "%s could not be read ahead: %s; it is read again when a "
					  "call asks for it",
					  tensor->rest->name, nvs_strerror(tensor->status));
			else if (store_report_file(engine->store, tensor->place))
				log_later(&engine->log, NVS_LOG_WARNING,
					  "%s was replaced, written to or removed since it was "
					  "opened, and is not read ahead: open it again",
					  store_file_path(engine->store, tensor->place));
			tensor->status = 0;
			tensor->unread = true;
		}
	} else {
		set_clean(tensor);
		stay_or_leave(engine, tensor);
	}
}

static void landed_write(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	assert(tensor->status || !is_frozen(tensor, tensor->place));
	if (!tensor->status) {
		if (tensor->place != tensor->offset) {
			assert(tensor->place == tensor->rest->spare);
			tensor->rest->spare = tensor->offset;
			tensor->offset = tensor->place;
		}
		tensor->content = is_external(tensor) ? CONTENT_DRIVE : CONTENT_BOTH;
		if (keeps_sums(engine)) {
			tensor->checksum_state = CHECKSUM_KNOWN;
			tensor->rest->checksum = tensor->rest->new_checksum;
		}
		engine->moves.swapped[NVS_WRITE] += tensor->nbytes;
	}
	if (is_external(tensor)) {
		tensor->unreported = tensor->status;
		if (tensor->status)
			tensor->rest->unreported_at = tensor->rest->error_offset;
		return_external(tensor);
		return;
	}
	if (tensor->status) {
		set_on_landing(engine, tensor, LANDING_STAYS);
		engine->moves.write_failures++;
		tensor_error(engine, tensor, &engine->moves.failure);
		log_later(&engine->log, NVS_LOG_ERROR,
			  "%s could not be written back and stays in the pool: %s",
			  tensor->rest->name, nvs_strerror(tensor->status));
		/* A caller that pinned the tensor again has valid data; don't report the failed
		 * write-back to it. */
		if (tensor->pins.count)
			tensor->status = 0;
	}
	stay_or_leave(engine, tensor);
}

/*
 * Starts to load a tensor farther in the run; the tensors of a run were last used when it began.
 * Its address is guessed from the distance of the next one, without following run_next; a wrong
 * guess loads other lines and does no harm.
 */
static ALWAYS_INLINE void load_in_run(const struct nvs_tensor *tensor)
{
	const uintptr_t farther = 8;
	const struct nvs_tensor *next = tensor->run_next;
	uintptr_t at = (uintptr_t)next;

	if (next)
		load_lines((const void *)(at + farther * (at - (uintptr_t)tensor)), sizeof(*next));
}

/* Puts tensors of which more is to be read into engine->scratch; returns how many. */
static size_t land(struct nvs_engine *engine, const struct transfer *run, size_t nparts)
{
	struct nvs_tensor *tensor = run->user;
	enum nvs_direction direction = run->direction;
	int status = run->status;
	uint64_t error_offset = run->error_offset;

	run_members_check(run);
	if (is_overdue(tensor)) {
		engine->moves.overdue[direction]--;
		log_later(&engine->log, NVS_LOG_WARNING, "%s: %s completed late: %s",
			  tensor->rest->name, direction == NVS_WRITE ? "writing" : "reading",
			  nvs_strerror(status));
	}
	run_ends(engine, tensor);
	while (tensor) {
		struct nvs_tensor *next = tensor->run_next;
		enum origin origin = tensor->origin;
		bool external = is_external(tensor);

		load_in_run(tensor);
		tensor->hangs_at = NOWHERE;
		tensor->status = status;
		tensor->status_direction = direction;
		if (status)
			tensor->rest->error_offset = error_offset;
		/* A failed write has spoilt the extent; the other one still has its contents. */
		if (status && tensor->io == IO_WRITING && tensor->place == tensor->offset) {
			assert(tensor->content != CONTENT_BOTH);
			tensor->content = in_pool(tensor->content) ? CONTENT_POOL : CONTENT_NONE;
			tensor->checksum_state = CHECKSUM_NONE;
		}
		tensor->io = IO_IDLE;
		tensor->origin = ORIGIN_CALL;
		if (direction == NVS_READ)
			landed_read(engine, tensor, origin);
		else
			landed_write(engine, tensor);
		/* When a part failed, the rest of the tensor's parts is left out. */
		if (external && tensor->status) {
			parts_free(tensor->rest->parts);
			tensor->rest->parts = NULL;
		}
		if (external && tensor->rest->parts)
			engine->scratch[nparts++] = tensor;
		else
			tensor_check(tensor);
		tensor = next;
	}
	engine->moves.inflight[direction]--;
	if (!runs_in_flight(&engine->moves))
		engine->moves.busy_ns += clock_ns() - engine->moves.busy_from_ns;
	return nparts;
}

void runs_trace(const struct nvs_engine *engine, const struct transfer *list)
{
	uint64_t now = engine->trace ? clock_ns() : 0;

	for (const struct transfer *run = list; run && engine->trace; run = run->state.next) {
		const struct nvs_tensor *first = run->user;

		for (const struct nvs_tensor *t = first; t; t = t->run_next)
			trace_tensor(engine->trace, run->direction == NVS_WRITE, t->rest->name,
				     first->rest->launched_ns, now,
				     t->place + t->rest->skip +
					     (is_external(t) ? t->rest->part_offset : 0),
				     is_external(t) ? t->rest->part_nbytes : t->nbytes);
	}
}

void runs_check_files(const struct nvs_engine *engine, struct transfer *list)
{
	const struct transfer *before = NULL;
	int status = 0;

	if (!engine->of_files)
		return;
	for (struct transfer *run = list; run; run = run->state.next) {
		if (!before || !store_same_file(engine->store, before->offset, run->offset))
			status = store_check_file(engine->store, run->offset);
		before = run;
		/* Also instead of the error of reading a file that was cut off. */
		if (status && !run->status)
			run->error_offset = run->offset;
		run->status = status ? status : run->status;
	}
}

struct transfer *runs_land(struct nvs_engine *engine, struct transfer *list)
{
	size_t nparts = 0;
	bool awaited = false;

	lock_check(engine);
	while (list) {
		struct transfer *next = list->state.next;
		bool waited_for = list->priority == TRANSFER_AWAITED;
		size_t before = nparts;

		nparts = land(engine, list, nparts);
		awaited = awaited || (waited_for && nparts > before);
		list = next;
	}
	if (!nparts)
		return NULL;
	for (size_t i = 0; i < nparts; i++) {
		struct nvs_tensor *tensor = engine->scratch[i];
		struct part *part = tensor->rest->parts;

		/* A part that failed is the last one. */
		assert(tensor->content == CONTENT_DRIVE && !tensor->status);
		lend(tensor, part->data, part->offset, part->nbytes);
		tensor->rest->parts = part->next;
		free(part);
	}
	list = runs_build(engine, engine->scratch, nparts, NVS_READ);
	if (awaited)
		runs_promote_new(engine, list);
	return list;
}
