/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's lock, and what must hold of the engine and its tensors: of a tensor between two
 * changes, of the engine's sums where the lock is taken and released. Which thread holds the lock
 * is read without it, so it says nothing about other threads.
 */
#include <assert.h>

#include "base/clock.h"
#include "base/shape.h"
#include "swap/residency/internal.h"

static void check_memory(const struct nvs_tensor *tensor)
{
	switch (tensor->memory) {
	case MEMORY_NONE:
		assert(!tensor->data && tensor->io == IO_IDLE);
		assert(tensor->placement == PLACED_NOWHERE && tensor->ahead == AHEAD_NOT);
		assert(!in_pool(tensor->content));
		break;
	case MEMORY_EXTERNAL:
		assert(tensor->data && tensor->io != IO_IDLE);
		assert(tensor->rest->part_offset <= tensor->nbytes);
		assert(tensor->rest->part_nbytes <= tensor->nbytes - tensor->rest->part_offset);
		assert(tensor->placement == PLACED_NOWHERE && tensor->ahead == AHEAD_NOT);
		assert(!in_pool(tensor->content));
		break;
	case MEMORY_POOL:
		assert(pool_has(tensor->engine->pool, tensor->data, tensor->extent));
		assert(in_flight(tensor) || tensor->placement != PLACED_NOWHERE);
		break;
	}
}

static void check_io(const struct nvs_tensor *tensor)
{
	bool pool = tensor->memory == MEMORY_POOL;

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
	if (!in_flight(tensor))
		return;
	assert(tensor->nbytes && tensor->extent >= tensor->nbytes && !is_listed(tensor));
	assert(!tensor->status && tensor->run_first->rest->transfer.user == tensor->run_first);
}

static void check_placement(const struct nvs_tensor *tensor)
{
	assert((tensor->pins.count > 0) == (tensor->placement == PLACED_PINNED));
	if (is_listed(tensor)) {
		assert(tensor->memory == MEMORY_POOL && in_pool(tensor->content));
		assert((tensor->placement == PLACED_PLANNED) == in_plan(tensor));
		assert(in_plan(tensor) || (tensor->placement == PLACED_AHEAD) == is_ahead(tensor));
	} else {
		assert(!tensor->counted);
	}
	/* Memory without contents is the caller's that pinned it. */
	assert(!is_unwritten(tensor) || tensor->placement == PLACED_PINNED);
}

static void check_plan(const struct nvs_tensor *tensor)
{
	const struct plan *plan = &tensor->engine->plan;

	if (!in_plan(tensor))
		return;
	assert(tensor->rest->next_use < plan->n);
	assert(plan->order[tensor->rest->next_use].tensor == tensor);
	assert(plan_is_idle(plan, tensor) == is_listed(tensor));
}

static void check_store(const struct nvs_tensor *tensor)
{
	assert(tensor->registration != REGISTRATION_NEW);
	assert(on_drive(tensor->content) || tensor->checksum_state == CHECKSUM_NONE);
	if (!tensor->engine->keep) {
		assert(tensor->checksum_state != CHECKSUM_UNVERIFIED);
		return;
	}
	assert(!tensor->nbytes || tensor->rest->spare != tensor->offset);
	assert(tensor->rest->committed == NOWHERE || tensor->rest->committed == tensor->offset ||
	       tensor->rest->committed == tensor->rest->spare);
	assert(tensor->rest->snapshot == NOWHERE || tensor->engine->commit.writing ||
	       tensor->engine->commit.unsettled);
}

/* What moving a tensor leaves alone, so that it is not checked after each move. */
static void check_unmoved(const struct nvs_tensor *tensor)
{
	assert(tensor->rest->ndim <= NVS_NDIM_MAX);
	assert(shape_has(tensor->rest->shape, tensor->rest->ndim, tensor->numel));
	assert(!tensor->rest->parts || is_external(tensor));
	assert((tensor->extent == 0) == (tensor->nbytes == 0));
	assert(tensor->rest->names && tensor->rest->name == tensor->rest->names->text);
	assert(!tensor->rest->copy_pin || tensor->rest->copying == COPIED_OUT);
	assert(tensor->rest->line_walk <= tensor->engine->turns.walk);
	assert(tensor->rest->recorded <= tensor->engine->plan.step);
}

void tensor_check_state(const struct nvs_tensor *tensor)
{
	check_memory(tensor);
	check_io(tensor);
	check_placement(tensor);
	check_plan(tensor);
	check_store(tensor);
}

static void run_room_check(const struct nvs_tensor *first)
{
	uint64_t room = 0;

	for (const struct nvs_tensor *tensor = first; tensor; tensor = tensor->run_next)
		room += room_of(tensor);
	assert(room == first->rest->room);
}

static void runs_check_lists(const struct nvs_engine *engine)
{
	uint64_t n[2] = {0};
	const struct nvs_tensor *tensor = NULL;

	for (int i = 0; i < 2 * TRANSFER_PRIORITIES; i++) {
		tensor = TAILQ_FIRST(&engine->moves.runs[i % 2][i / 2]);
		for (; tensor; tensor = TAILQ_NEXT(tensor, rest->launched)) {
			assert(tensor->run_first == tensor && !is_held(tensor));
			assert((int)tensor->rest->transfer.direction == i % 2);
			assert((int)tensor->rest->transfer.priority == i / 2);
			run_room_check(tensor);
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

static size_t list_check(const struct tensor_list *list, enum placement placement)
{
	const struct nvs_tensor *tensor = TAILQ_FIRST(list);
	size_t n = 0;

	for (; tensor; tensor = TAILQ_NEXT(tensor, idle)) {
		assert(tensor->placement == placement && !tensor->pins.count);
		n++;
	}
	return n;
}

/* Each unpinned tensor in the pool is in one of the lists. */
static void lists_check(const struct nvs_engine *engine)
{
	size_t listed = 0;

	for (size_t i = 0; i < engine->ntensors; i++)
		listed += is_listed(engine->tensors[i]);
	listed -= list_check(&engine->room.idle, PLACED_IDLE);
	listed -= list_check(&engine->room.ahead, PLACED_AHEAD);
	listed -= list_check(&engine->room.planned, PLACED_PLANNED);
	assert(!listed);
}

static void registered_check(const struct nvs_engine *engine)
{
	uint64_t n = 0, nbytes = 0;

	for (size_t i = 0; i < engine->ntensors; i++) {
		const struct nvs_tensor *tensor = engine->tensors[i];

		n += tensor->registration == REGISTRATION_DONE;
		nbytes += tensor->registration == REGISTRATION_DONE ? tensor->nbytes : 0;
	}
	assert(n == engine->nregistered && nbytes == engine->tensor_bytes);
}

void engine_check(const struct nvs_engine *engine)
{
	if (!STATE_CHECKS)
		return;

	uint64_t live = 0, counted = 0, ahead = 0, landing = 0, resident = 0;
	uint64_t pinned = 0, landing_numel = 0, copied = 0;

	for (size_t i = 0; i < engine->ntensors; i++) {
		const struct nvs_tensor *tensor = engine->tensors[i];

		tensor_check(tensor);
		check_unmoved(tensor);
		assert(tensor->rest->index == i);
		copied += tensor->rest->copying != COPIED_NOT;
		live += tensor->memory == MEMORY_POOL ? tensor->numel : 0;
		counted += tensor->counted ? tensor->numel : 0;
		ahead += in_plan(tensor) && is_ahead(tensor) ? tensor->numel : 0;
		landing += tensor->on_landing == LANDING_EVICTS ? tensor->extent : 0;
		landing_numel += tensor->on_landing == LANDING_EVICTS ? tensor->numel : 0;
		if (in_plan(tensor) && tensor->memory == MEMORY_POOL)
			resident += tensor->extent;
		pinned += tensor->pins.count ? tensor->extent : 0;
	}
	assert(live == engine->room.live_numel && counted == engine->room.counted_numel);
	assert(ahead == engine->room.ahead_numel && landing == engine->room.landing);
	assert(resident == engine->plan.resident && pinned == engine->pinners.all);
	assert(landing_numel == engine->room.landing_numel && copied == engine->turns.ncopied);
	pinners_check(&engine->pinners);
	registered_check(engine);
	lists_check(engine);
	runs_check_lists(engine);
	engine_sums_check(engine);
}

/* ---- Sums ---- */

static void room_check(const struct nvs_engine *engine)
{
	assert(engine->room.counted_numel <= engine->room.live_numel);
	assert(engine->room.ahead_numel <= engine->room.live_numel);
	assert(engine->room.landing_numel <= engine->room.live_numel);
	assert(engine->room.landing <= pool_bytes(engine->pool));
	assert((engine->room.landing == 0) == (engine->room.landing_numel == 0));
	assert(engine->plan.resident <= pool_bytes(engine->pool));
	assert(engine->plan.resident <= engine->plan.extents);
	assert(engine->pinners.all <= pool_bytes(engine->pool));
}

static void inflight_check(const struct nvs_engine *engine)
{
	bool any = engine->moves.inflight[NVS_READ] || engine->moves.inflight[NVS_WRITE];

	assert(engine->moves.overdue[NVS_READ] <= engine->moves.inflight[NVS_READ]);
	assert(engine->moves.overdue[NVS_WRITE] <= engine->moves.inflight[NVS_WRITE]);
	assert(any || !engine->room.landing);
	assert(!any || engine->moves.busy_from_ns);
	assert(!engine->moves.held_writes ||
	       (engine->commit.writing && engine->moves.inflight[NVS_WRITE]));
	assert(!engine->read_only || !engine->moves.inflight[NVS_WRITE]);
	assert(engine->moves.inflight[NVS_READ] + engine->moves.inflight[NVS_WRITE] <=
	       engine->ntensors);
	assert(engine->room.waiting || TAILQ_EMPTY(&engine->queue.tickets));
}

static void kept_check(const struct nvs_engine *engine)
{
	assert(engine->nregistered <= engine->ntensors);
	assert(engine->ntensors <= engine->ntensors_max);
	assert(engine->keep || (!engine->commit.writing && !engine->commit.forgotten));
	assert(engine->keep || (!engine->read_only && !engine->commit.unsettled));
	assert((engine->ntensors == 0) == (engine->names == NULL));
	assert(engine->nregistered || !engine->tensor_bytes);
}

void engine_sums_check(const struct nvs_engine *engine)
{
	lock_check(engine);
	room_check(engine);
	inflight_check(engine);
	kept_check(engine);
	plan_check(&engine->plan);
	assert((engine->last_pin == 0) == (engine->last_pin_ns == 0));
	assert((engine->moves.write_failures == 0) == (engine->moves.failure.code == 0));
	assert(engine->moves.transfers >= engine->moves.inflight[NVS_READ]);
	assert(engine->verify || engine->keep || !engine->moves.verify_errors);
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
