/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting: for the transfers of tensors, for other calls on them, and until nothing is in flight;
 * and the place that a thread keeps among the calls that wait for room.
 */
#include <stdlib.h>

#include "base/threads/cancel.h"
#include "swap/calls/calls.h"

/*
 * Waits until the first of the tensors, all of which the call waits for, has landed or its pin has
 * ended; *from_ns is when the call began to wait.
 */
static int wait_for(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		    uint64_t pin, uint64_t deadline, uint64_t *from_ns, struct nvs_error *error)
{
	const struct nvs_tensor *tensor = tensors[0];
	uint64_t now;
	int rc = 0;

	if (!in_flight(tensor) || pin_failed(tensor, pin))
		return 0;
	now = clock_ns();
	if (!*from_ns && deadline)
		*from_ns = now;
	while (in_flight(tensor) && !pin_failed(tensor, pin) && !is_overdue(tensor) && !rc) {
		uint64_t runs = 0;

		for (size_t i = 0; i < n; i++)
			runs += in_flight(tensors[i]) && tensors[i]->run_first == tensors[i];
		rc = events_wait(engine, runs, deadline);
	}
	if (deadline)
		trace_wait(engine, tensor, now);
	if (pin_failed(tensor, pin))
		return 0;
	if (is_overdue(tensor))
		return check_overdue(engine, tensor, error);
	if (rc)
		error_named(error, rc, tensor->rest->name, " is still in flight: %s",
			    nvs_strerror(rc));
	return rc;
}

int wait_until(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n, uint64_t pin,
	       uint64_t deadline, struct nvs_error *error)
{
	uint64_t from_ns = 0;
	const struct nvs_tensor *promoted = NULL;
	bool moving = false, failed = false;
	int rc = check_array(engine, tensors, n, error);

	if (rc)
		return rc;
	engine_lock(engine);
	for (size_t i = 0; i < n && !rc; i++) {
		load_later(tensors, i, n);
		rc = check_tensor(engine, tensors[i], i, error)
			     ?: (pin ? pin_check(tensors[i], pin, error) : 0);
		if (rc)
			break;
		moving = moving || in_flight(tensors[i]);
		failed = failed || (pin ? pin_failed(tensors[i], pin)
					: tensors[i]->status || tensors[i]->unreported);
	}
	for (size_t i = 0; i < n && !rc && moving && deadline; i++)
		if (in_flight(tensors[i]) && tensors[i]->run_first != promoted) {
			promoted = tensors[i]->run_first;
			tensor_promote(engine, tensors[i]);
		}
	for (size_t i = 0; i < n && !rc && moving; i++)
		rc = wait_for(engine, tensors + i, n - i, pin, deadline, &from_ns, error);
	if (from_ns)
		step_stalled(engine, from_ns);
	/* The first failure of the transfers that have landed; of a pin, of its own read. */
	for (size_t i = 0, count = !rc && (moving || failed) ? n : 0; i < count; i++) {
		if (!rc && pin_failed(tensors[i], pin))
			rc = moving_error(engine, tensors[i], NVS_READ, tensors[i]->pins.status,
					  tensors[i]->pins.error_offset, error);
		else if (!rc && !pin && tensors[i]->status)
			rc = tensor_error(engine, tensors[i], error);
		if (!pin && tensors[i]->unreported) {
			int unreported = report_failed_write(engine, tensors[i], rc ? NULL : error);

			rc = rc ?: unreported;
		}
	}
	if (!rc)
		trace_calls(engine, TRACE_WAITED, tensors, n);
	engine_unlock(engine);
	return rc;
}

int batch_wait(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n, uint64_t pin,
	       int timeout_ms, struct nvs_error *error)
{
	return wait_until(engine, tensors, n, pin, deadline_ns(timeout_ms), error);
}

int nvs_tensor_wait(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		    uint64_t pin, int timeout_ms, struct nvs_error *error)
{
	HOLD_CANCEL;
	return check_unowned(engine, "its calls wait for their transfers", error)
		       ?: batch_wait(engine, tensors, n, pin, timeout_ms, error);
}

int engine_wait_landed(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		       struct nvs_error *error)
{
	uint64_t from_ns = 0;
	int rc = 0;

	engine_lock(engine);
	for (size_t i = 0; i < n && !rc; i++)
		rc = wait_for(engine, tensors + i, n - i, 0, UINT64_MAX, &from_ns, error);
	if (!rc)
		trace_calls(engine, TRACE_WAITED, tensors, n);
	engine_unlock(engine);
	return rc;
}

/*
 * ---- The line of calls that wait for others on their tensors: first come, first served ----
 *
 * A call that copies bytes pins its tensors for as long. Calls that pin, copy, swap out or forget
 * one of them wait for the end of such pins, and of transfers that no call has asked for: reads
 * ahead of the plan, and write-backs for room, a budget or a commit. Only what callers have
 * started is -EBUSY. A commit goes before copies that have not begun, and from its second round of
 * write-backs on before those that would make tensors dirty again.
 */
void turn_await(struct nvs_engine *engine, struct turn *turn)
{
	if (turn->in_line)
		return;
	turn->in_line = true;
	TAILQ_INSERT_TAIL(&engine->turns.line, turn, link);
	for (size_t i = 0; i < turn->n; i++)
		turn->tensors[i]->rest->in_line++;
}

void turn_end(struct nvs_engine *engine, struct turn *turn)
{
	if (!turn->in_line)
		return;
	turn->in_line = false;
	TAILQ_REMOVE(&engine->turns.line, turn, link);
	for (size_t i = 0; i < turn->n; i++) {
		assert(turn->tensors[i]->rest->in_line);
		turn->tensors[i]->rest->in_line--;
	}
	events_wake(engine);
}

bool turn_is_blocked(struct nvs_engine *engine, const struct turn *turn)
{
	const struct turn *earlier = TAILQ_FIRST(&engine->turns.line);
	bool shares = false;

	if (turn->n && engine->turns.held != COPIED_NOT && turn->copying >= engine->turns.held)
		return true;
	/* Whether another call is in line for one of the tensors. */
	for (size_t i = 0; i < turn->n && earlier && !shares; i++)
		shares = turn->tensors[i]->rest->in_line != turn->in_line;
	if (!shares)
		return false;
	/* Time is linear in the tensors of these calls. */
	engine->turns.walk++;
	for (; earlier && earlier != turn; earlier = TAILQ_NEXT(earlier, link))
		for (size_t i = 0; i < earlier->n; i++)
			earlier->tensors[i]->rest->line_walk = engine->turns.walk;
	assert(!turn->in_line || earlier == turn);
	for (size_t i = 0; i < turn->n; i++)
		if (turn->tensors[i]->rest->line_walk == engine->turns.walk)
			return true;
	return false;
}

void commit_hold(struct nvs_engine *engine, enum copying from)
{
	if (engine->turns.held == from)
		return;
	engine->turns.held = from;
	events_wake(engine);
}

void copy_begins(struct nvs_engine *engine, struct nvs_tensor *tensor, enum copying copying)
{
	assert(tensor->rest->copying == COPIED_NOT && tensor->pins.count == 1);
	tensor->rest->copying = copying;
	engine->turns.ncopied++;
}

void copy_ends(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	assert(tensor->rest->copying != COPIED_NOT && engine->turns.ncopied);
	tensor->rest->copying = COPIED_NOT;
	engine->turns.ncopied--;
}

static struct nvs_tensor *first(struct nvs_tensor *const *tensors, size_t n,
				bool (*is)(const struct nvs_tensor *))
{
	for (size_t i = 0; i < n; i++)
		if (is(tensors[i]))
			return tensors[i];
	return NULL;
}

int wait_for_engine(struct nvs_engine *engine, struct turn turn, struct nvs_error *error)
{
	int rc = 0;

	lock_check(engine);
	for (;;) {
		struct nvs_tensor *used = first(turn.tensors, turn.n, is_used_by_engine);

		if (!used && !turn_is_blocked(engine, &turn))
			break;
		if (used) {
			rc = check_overdue(engine, used, error);
			if (rc)
				break;
			tensor_promote(engine, used);
		}
		turn_await(engine, &turn);
		(void)events_wait(engine, 1, UINT64_MAX);
	}
	turn_end(engine, &turn);
	rc = rc ?: check_unpinned(engine, turn.tensors, turn.n, error);
	for (size_t i = 0; i < turn.n && !rc; i++)
		if (in_flight(turn.tensors[i]))
			rc = error_named(error, -EBUSY, turn.tensors[i]->rest->name,
					 " is in flight: wait for it first");
	return rc;
}

void wait_for_copies(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n)
{
	struct turn turn = {.tensors = tensors, .n = n};

	lock_check(engine);
	while ((engine->turns.ncopied && first(tensors, n, is_copied)) ||
	       turn_is_blocked(engine, &turn)) {
		turn_await(engine, &turn);
		(void)events_wait(engine, 1, UINT64_MAX);
	}
	turn_end(engine, &turn);
}

int drain(struct nvs_engine *engine, bool writes_alone, struct nvs_error *error)
{
	const uint64_t *inflight = engine->moves.inflight, *overdue = engine->moves.overdue;

	lock_check(engine);
	while (inflight[NVS_WRITE] || (!writes_alone && inflight[NVS_READ])) {
		if (overdue[NVS_WRITE] || (!writes_alone && overdue[NVS_READ]))
			return first_overdue(engine, writes_alone, error);
		(void)events_wait(engine, 1, UINT64_MAX);
	}
	assert(!engine->moves.held_writes && (writes_alone || !engine->room.landing));
	return 0;
}

/* ---- A thread's place among the calls that wait for room ---- */

int nvs_engine_keep_place(struct nvs_engine *engine, bool keep, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct kept_place *place, *new = NULL;
	int rc = check_unowned(engine, "its calls wait for their transfers", error)
			 ?: check_array(engine, NULL, 0, error);

	if (rc)
		return rc;
	if (keep && !(new = malloc(sizeof(*new))))
		return error_set(error, -ENOMEM, "out of memory for a place among waiting calls");
	engine_lock(engine);
	place = queue_kept_place(engine);
	if (keep && place) {
		rc = error_set(error, -EEXIST, "the thread keeps its place already");
		place = new;
	} else if (keep) {
		*new = (struct kept_place){.thread = pthread_self()};
		LIST_INSERT_HEAD(&engine->queue.places, new, link);
	} else if (place) {
		LIST_REMOVE(place, link);
		if (place->ticket.queued && queue_leave(engine, &place->ticket))
			events_changed(engine);
	}
	engine_unlock(engine);
	free(place);
	return rc;
}
