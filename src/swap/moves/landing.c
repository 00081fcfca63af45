/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Landing: what becomes of the tensors of a run whose transfer has completed. A read or a write
 * that failed leaves the contents where they were.
 */
#include <assert.h>
#include <errno.h>

#include "base/clock.h"
#include "base/error.h"
#include "swap/moves/moves.h"
#include "trace/trace.h"

static void compare_checksum(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	if (!sums_compared(engine, tensor))
		return;
	assert(tensor->checksum_state != CHECKSUM_NONE && !is_part(tensor));
	assert(keeps_sums(engine));
	assert(tensor->io == IO_IDLE && !tensor->status);
	if (tensor->rest->new_checksum == tensor->rest->checksum) {
		tensor->checksum_state = CHECKSUM_KNOWN;
		return;
	}
	tensor->status = -EBADMSG;
	tensor->rest->error_offset = tensor->place;
	engine->verify_errors++;
	say_later(engine, NVS_LOG_ERROR,
		  "%s: the bytes read from the store are not those that were written",
		  tensor->rest->name);
}

/* No call has asked for the read, so no call reports its failure. */
static void read_ahead_failed(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	assert(tensor->status < 0 && !tensor->pins.count && needs_memory(tensor));
	assert(tensor->content == CONTENT_DRIVE && tensor->status_direction == NVS_READ);
	say_later(engine, NVS_LOG_WARNING,
		  "%s could not be read ahead: %s; it is read again when a call asks for it",
		  tensor->rest->name, nvs_strerror(tensor->status));
	tensor->status = 0;
	tensor->unread = true;
}

static void landed_read(struct nvs_engine *engine, struct nvs_tensor *tensor, enum origin origin)
{
	assert(tensor->content == CONTENT_DRIVE && tensor->place == tensor->offset);
	if (!tensor->status)
		compare_checksum(engine, tensor);
	if (!tensor->status)
		engine->swapped[NVS_READ] += is_external(tensor) ? tensor->rest->part_nbytes
								 : tensor->nbytes;
	if (is_external(tensor)) {
		return_external(tensor);
	} else if (tensor->status) {
		bool unasked = origin == ORIGIN_ENGINE && !tensor->pins.count;

		pins_fail(engine, tensor);
		drop(engine, tensor);
		if (unasked)
			read_ahead_failed(engine, tensor);
	} else {
		set_clean(tensor);
		stay_or_leave(engine, tensor);
	}
	assert(!is_dirty(tensor) && on_drive(tensor->content));
}

static void write_failed(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	assert(tensor->status < 0 && tensor->io == IO_IDLE);
	if (is_external(tensor))
		return;
	assert(is_dirty(tensor) && tensor->status_direction == NVS_WRITE);
	set_on_landing(engine, tensor, LANDING_STAYS);
	engine->write_failures++;
	tensor_error(engine, tensor, &engine->failure);
	say_later(engine, NVS_LOG_ERROR, "%s could not be written back and stays in the pool: %s",
		  tensor->rest->name, nvs_strerror(tensor->status));
	/* A caller that pinned the tensor again has valid data; don't report the failed write-back
	 * to it. */
	if (tensor->pins.count)
		tensor->status = 0;
}

static void write_succeeded(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	if (tensor->place != tensor->offset) {
		assert(engine->keep && tensor->place == tensor->rest->spare);
		tensor->rest->spare = tensor->offset;
		tensor->offset = tensor->place;
	}
	tensor->content = is_external(tensor) ? CONTENT_DRIVE : CONTENT_BOTH;
	if (keeps_sums(engine)) {
		tensor->checksum_state = CHECKSUM_KNOWN;
		tensor->rest->checksum = tensor->rest->new_checksum;
	}
	assert(on_drive(tensor->content) && tensor->offset == tensor->place);
	engine->swapped[NVS_WRITE] += tensor->nbytes;
}

static void landed_write(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	assert(tensor->place == tensor->offset || tensor->place == tensor->rest->spare);
	assert(tensor->status || !is_frozen(tensor, tensor->place));
	assert(!engine->read_only);
	if (tensor->status)
		write_failed(engine, tensor);
	else
		write_succeeded(engine, tensor);
	if (is_external(tensor)) {
		tensor->unreported = tensor->status;
		if (tensor->status)
			tensor->rest->unreported_at = tensor->rest->error_offset;
		return_external(tensor);
		return;
	}
	stay_or_leave(engine, tensor);
}

/* A write that failed has spoilt the extent; the other one still has its contents. */
static void end_io(struct nvs_tensor *tensor, int status)
{
	assert(in_flight(tensor) && status <= 0);
	if (tensor->io == IO_WRITING && status && tensor->place == tensor->offset)
		forget_drive(tensor);
	tensor->io = IO_IDLE;
	tensor->origin = ORIGIN_CALL;
	assert(!is_overdue(tensor) && !is_listed(tensor));
}

static void trace_run(const struct nvs_engine *engine, const struct transfer *run, uint64_t now)
{
	const struct nvs_tensor *first = run->user;

	assert(first->rest->launched_ns <= now);
	for (const struct nvs_tensor *t = first; t; t = t->run_next) {
		assert(t->run_first == first && in_flight(t));
		trace_tensor(engine->trace, run->direction == NVS_WRITE, t->rest->name,
			     first->rest->launched_ns, now,
			     t->place + (is_external(t) ? t->rest->part_offset : 0),
			     is_external(t) ? t->rest->part_nbytes : t->nbytes);
	}
}

/* The rest of a tensor's parts, if one failed, is left out. Returns whether there is one to
 * read. */
static bool parts_follow(struct nvs_tensor *tensor)
{
	if (tensor->rest->parts && tensor->status) {
		parts_free(tensor->rest->parts);
		tensor->rest->parts = NULL;
	}
	assert(!tensor->rest->parts || (needs_memory(tensor) && tensor->content == CONTENT_DRIVE));
	return tensor->rest->parts;
}

/*
 * Starts to load a tensor farther in the run; the tensors of a run were last used when it began. Its
 * address is guessed from the distance of the next one, without following run_next; a wrong guess
 * loads other lines and does no harm.
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
	assert(engine->inflight[direction] && run->state.phase == TRANSFER_COMPLETED);
	assert(direction == NVS_READ || !engine->read_only);
	landed_late(engine, run);
	run_ends(engine, tensor);
	while (tensor) {
		struct nvs_tensor *next = tensor->run_next;
		enum origin origin = tensor->origin;
		bool external = is_external(tensor);

		load_in_run(tensor);
		tensor->status = status;
		tensor->status_direction = direction;
		if (status)
			tensor->rest->error_offset = error_offset;
		end_io(tensor, status);
		if (direction == NVS_READ)
			landed_read(engine, tensor, origin);
		else
			landed_write(engine, tensor);
		if (external && parts_follow(tensor))
			engine->scratch[nparts++] = tensor;
		else
			tensor_check(tensor);
		tensor = next;
	}
	engine->inflight[direction]--;
	if (!engine->inflight[NVS_READ] && !engine->inflight[NVS_WRITE])
		engine->busy_ns += clock_ns() - engine->busy_from_ns;
	return nparts;
}

void runs_trace(const struct nvs_engine *engine, const struct transfer *list)
{
	uint64_t now = engine->trace ? clock_ns() : 0;

	unlocked_check(engine);
	if (!engine->trace)
		return;
	for (const struct transfer *run = list; run; run = run->state.next)
		trace_run(engine, run, now);
}

static struct transfer *read_next_parts(struct nvs_engine *engine, size_t n, bool awaited)
{
	struct transfer *list;

	assert(n && n <= engine->ntensors);
	for (size_t i = 0; i < n; i++)
		lend_next(engine->scratch[i]);
	list = runs_build(engine, engine->scratch, n, NVS_READ);
	assert(list);
	if (awaited)
		runs_promote_new(engine, list);
	return list;
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
	assert(nparts <= engine->ntensors);
	return nparts ? read_next_parts(engine, nparts, awaited) : NULL;
}
