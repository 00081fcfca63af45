/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's lock, and what must hold of the engine and its tensors: of a tensor between two
 * changes, of the engine's sums where the lock is taken and released. Which thread holds the lock
 * is read without it, so it says nothing about other threads.
 */
#include "base/shape.h"
#include "swap/residency/internal.h"

void tensor_check_state(const struct nvs_tensor *tensor)
{
	const struct nvs_engine *engine = tensor->engine;
	const struct plan *plan = &engine->plan;
	bool pool = tensor->memory == MEMORY_POOL;

	/* Memory. */
	assert((tensor->memory == MEMORY_NONE) == !tensor->data);
	if (pool) {
		assert(pool_has(engine->pool, tensor->data, tensor->extent));
		assert(in_flight(tensor) || tensor->placement != PLACED_NOWHERE);
	} else {
		assert(in_flight(tensor) == is_external(tensor) && !in_pool(tensor->content));
		assert(tensor->placement == PLACED_NOWHERE && tensor->ahead == AHEAD_NOT);
	}
	if (is_external(tensor)) {
		assert(tensor->rest->part_offset <= tensor->nbytes);
		assert(tensor->rest->part_nbytes <= tensor->nbytes - tensor->rest->part_offset);
	}
	/* Transfers. */
	switch (tensor->io) {
	case IO_IDLE:
		assert(tensor->origin == ORIGIN_CALL && !is_overdue(tensor));
		assert(tensor->on_landing == LANDING_STAYS);
		break;
	case IO_READING:
		assert(tensor->content == CONTENT_DRIVE && tensor->place == tensor->offset);
		assert(tensor->run_first->rest->transfer.direction == NVS_READ);
		break;
	case IO_WRITING:
		assert(pool ? tensor->content >= CONTENT_NEWER : !in_pool(tensor->content));
		assert(tensor->run_first->rest->transfer.direction == NVS_WRITE);
		assert(is_held(tensor) || !is_frozen(tensor, tensor->place));
		break;
	}
	if (in_flight(tensor)) {
		assert(tensor->nbytes && tensor->extent >= tensor->nbytes && !is_listed(tensor));
		assert(!tensor->status &&
		       tensor->run_first->rest->transfer.user == tensor->run_first);
	}
	/* Placement. Memory without contents is the caller's that pinned it. */
	assert((tensor->pins.count > 0) == (tensor->placement == PLACED_PINNED));
	assert(!is_unwritten(tensor) || tensor->placement == PLACED_PINNED);
	assert(is_listed(tensor) || !tensor->counted);
	if (is_listed(tensor)) {
		assert(pool && in_pool(tensor->content));
		assert((tensor->placement == PLACED_PLANNED) == in_plan(tensor));
		assert(in_plan(tensor) || (tensor->placement == PLACED_AHEAD) == is_ahead(tensor));
	}
	if (in_plan(tensor)) {
		assert(tensor->rest->next_use < plan->n);
		assert(plan->order[tensor->rest->next_use].tensor == tensor);
		assert(plan_is_idle(plan, tensor) == is_listed(tensor));
	}
	/* The store. */
	assert(tensor->registration != REGISTRATION_NEW);
	assert(on_drive(tensor->content) || tensor->checksum_state == CHECKSUM_NONE);
	assert(engine->keep || tensor->checksum_state != CHECKSUM_UNVERIFIED);
	if (!engine->keep)
		return;
	assert(!tensor->nbytes || tensor->rest->spare != tensor->offset);
	assert(tensor->rest->committed == NOWHERE || tensor->rest->committed == tensor->offset ||
	       tensor->rest->committed == tensor->rest->spare);
	assert(tensor->rest->snapshot == NOWHERE || engine->commit.writing ||
	       engine->commit.unsettled);
}

/* What holds among the sums whenever the lock is taken or released. */
static void engine_sums_check(const struct nvs_engine *engine)
{
	const struct room_state *room = &engine->room;
	const struct move_state *moves = &engine->moves;
	const struct step *step = &engine->step;
	bool any = runs_in_flight(moves);

	assert(room->counted_numel <= room->live_numel && room->ahead_numel <= room->live_numel);
	assert(room->landing_numel <= room->live_numel);
	assert(room->landing <= pool_bytes(engine->pool));
	assert((room->landing == 0) == (room->landing_numel == 0));
	assert(engine->plan.resident <= pool_bytes(engine->pool));
	assert(moves->overdue[NVS_READ] <= moves->inflight[NVS_READ]);
	assert(moves->overdue[NVS_WRITE] <= moves->inflight[NVS_WRITE]);
	assert(any ? moves->busy_from_ns > 0 : !room->landing);
	assert(!moves->held_writes || (engine->commit.writing && moves->inflight[NVS_WRITE]));
	assert(!engine->read_only || !moves->inflight[NVS_WRITE]);
	assert(runs_in_flight(moves) <= engine->ntensors);
	assert(room->waiting || TAILQ_EMPTY(&engine->queue.tickets) ||
	       TAILQ_FIRST(&engine->queue.tickets)->away);
	assert(engine->nregistered <= engine->ntensors && engine->ntensors <= engine->ntensors_max);
	assert(engine->keep || (!engine->commit.writing && !engine->commit.forgotten));
	assert(engine->keep ||
	       (engine->read_only == engine->of_files && !engine->commit.unsettled));
	assert((engine->ntensors == 0) == (engine->names == NULL));
	plan_check(&engine->plan);
	assert((engine->last_pin == 0) == (engine->last_pin_ns == 0));
	assert((moves->write_failures == 0) == (moves->failure.code == 0));
	assert(moves->transfers >= moves->inflight[NVS_READ]);
	assert(engine->verify || engine->keep || !moves->verify_errors);
	assert(engine->events.helped || !engine->events.patient);
	assert(!step->begun || (step->from_ns && engine->plan.step));
	assert(step->stalls || !step->stall_ns);
	assert(step->swapped[NVS_READ] <= moves->swapped[NVS_READ]);
	assert(step->swapped[NVS_WRITE] <= moves->swapped[NVS_WRITE]);
	assert(!step->begun || engine->plan.lost ||
	       step->hits + step->misses <= engine->plan.nrecorded);
}

static void runs_check_lists(const struct nvs_engine *engine)
{
	uint64_t n[2] = {0};
	const struct nvs_tensor *tensor = NULL;

	for (int i = 0; i < 2 * TRANSFER_PRIORITIES; i++) {
		tensor = TAILQ_FIRST(&engine->moves.runs[i % 2][i / 2]);
		for (; tensor; tensor = TAILQ_NEXT(tensor, rest->launched)) {
			uint64_t room = 0;

			assert(tensor->run_first == tensor && !is_held(tensor));
			assert((int)tensor->rest->transfer.direction == i % 2);
			assert((int)tensor->rest->transfer.priority == i / 2);
			for (const struct nvs_tensor *t = tensor; t; t = t->run_next)
				room += room_of(t);
			assert(room == tensor->rest->room);
			n[i % 2]++;
		}
	}
	for (tensor = engine->moves.held_writes; tensor; tensor = tensor->run_next) {
		assert(tensor->io == IO_WRITING && is_held(tensor));
		n[NVS_WRITE]++;
	}
	assert(n[NVS_READ] == engine->moves.inflight[NVS_READ]);
	assert(n[NVS_WRITE] == engine->moves.inflight[NVS_WRITE]);
}

void engine_check(const struct nvs_engine *engine)
{
	if (!STATE_CHECKS)
		return;

	uint64_t live = 0, counted = 0, ahead = 0, landing = 0, resident = 0, registered = 0;
	uint64_t landing_numel = 0, copied = 0, nbytes = 0, listed = 0;
	const struct nvs_tensor *tensor = NULL;

	for (size_t i = 0; i < engine->ntensors; i++) {
		tensor = engine->tensors[i];
		tensor_check(tensor);
		/* What moving a tensor leaves alone, so that it is not checked after each move. */
		assert(tensor->rest->ndim <= NVS_NDIM_MAX);
		assert(shape_has(tensor->rest->shape, tensor->rest->ndim, tensor->numel));
		assert(!tensor->rest->parts || is_external(tensor));
		assert((tensor->extent == 0) == (tensor->nbytes == 0));
		assert(tensor->rest->names && tensor->rest->name == tensor->rest->names->text);
		assert(!tensor->rest->copy_pin || tensor->rest->copying == COPIED_OUT);
		assert(tensor->rest->line_walk <= engine->turns.walk);
		assert(tensor->rest->recorded <= engine->plan.step);
		assert(tensor->rest->index == i);
		copied += tensor->rest->copying != COPIED_NOT;
		live += tensor->memory == MEMORY_POOL ? tensor->numel : 0;
		counted += tensor->counted ? tensor->numel : 0;
		ahead += in_plan(tensor) && is_ahead(tensor) ? tensor->numel : 0;
		landing += room_of(tensor);
		landing_numel += tensor->on_landing == LANDING_EVICTS ? tensor->numel : 0;
		if (in_plan(tensor) && tensor->memory == MEMORY_POOL)
			resident += tensor->extent;
		registered += tensor->registration == REGISTRATION_DONE;
		nbytes += tensor->registration == REGISTRATION_DONE ? tensor->nbytes : 0;
		listed += is_listed(tensor);
	}
	assert(live == engine->room.live_numel && counted == engine->room.counted_numel);
	assert(ahead == engine->room.ahead_numel && landing == engine->room.landing);
	assert(resident == engine->plan.resident);
	assert(landing_numel == engine->room.landing_numel && copied == engine->turns.ncopied);
	assert(registered == engine->nregistered && nbytes == engine->tensor_bytes);
	/* Each unpinned tensor in the pool is in one of the lists. */
	for (unsigned i = PLACED_NOWHERE; i < PLACEMENTS; i++)
		TAILQ_FOREACH(tensor, &engine->room.lists[i], idle)
		{
			assert(tensor->placement == i && is_listed(tensor) && !tensor->pins.count);
			listed--;
		}
	assert(!listed);
	runs_check_lists(engine);
	engine_sums_check(engine);
}

/* ---- The lock ---- */

static void set_held(struct nvs_engine *engine)
{
	if (!STATE_CHECKS)
		return;
	assert(!atomic_load_explicit(&engine->holder, memory_order_relaxed));
	atomic_store_explicit(&engine->holder, (uintptr_t)pthread_self(), memory_order_relaxed);
	engine_sums_check(engine);
}

static void set_released(struct nvs_engine *engine)
{
	if (!STATE_CHECKS)
		return;
	lock_check(engine);
	engine_sums_check(engine);
	atomic_store_explicit(&engine->holder, 0, memory_order_relaxed);
}

void engine_lock(struct nvs_engine *engine)
{
	unlocked_check(engine);
	pthread_mutex_lock(&engine->lock);
	set_held(engine);
}

void engine_unlock(struct nvs_engine *engine)
{
	set_released(engine);
	pthread_mutex_unlock(&engine->lock);
}

int engine_sleep(struct nvs_engine *engine, pthread_cond_t *cond, uint64_t deadline)
{
	int rc;

	set_released(engine);
	rc = cond_wait_until(cond, &engine->lock, deadline);
	set_held(engine);
	return rc;
}
