/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The line of calls that wait for other calls on their tensors: first come, first served.
 * It decides only, and moves nothing.
 *
 * A call that copies bytes pins its tensors for as long. Calls that pin, copy, swap out or forget
 * one of them wait for the end of such pins, and of transfers that no call has asked for: reads
 * ahead of the plan, and write-backs for room, a budget or a commit. Only what callers have
 * started is -EBUSY. A commit goes before copies that have not begun, and from its second round of
 * write-backs on before those that would make tensors dirty again.
 */
#include "swap/calls/calls.h"

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
