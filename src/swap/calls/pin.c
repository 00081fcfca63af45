/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pinning tensors: the call gets room for all of them in one attempt, or for none. Between attempts
 * it waits: for tensors in flight, for its turn, or for room, which write-backs or releases make.
 *
 * An attempt ends in one of these:
 *	LACKS_NOTHING	the tensors are pinned
 *	LACKS_LANDING	one of them is in flight or being copied, or another call goes first
 *	LACKS_TURN	calls that came earlier wait for room
 *	LACKS_ROOM	the pool is full; `list` has the write-backs that make room
 * It is *stuck* if it has nothing to launch and evicted nothing: only a change by other calls or a
 * landing lets the next attempt succeed.
 */
#include <inttypes.h>

#include "base/threads/cancel.h"
#include "swap/calls/calls.h"

enum lack {
	LACKS_NOTHING,
	LACKS_LANDING,
	LACKS_TURN,
	LACKS_ROOM,
};

struct request {
	struct nvs_tensor *const *tensors;
	size_t n;
	bool contents; /* read them; false: for new ones */
	bool copies;   /* the pins are those of a call that copies bytes into them */
};

struct attempt {
	uint64_t nbytes; /* that all tensors take in the pool */
	uint64_t need;	 /* those of them that are not in the pool */
	size_t nabsent;	 /* such tensors; engine->scratch has them */
	bool moving;	 /* one of the tensors is in flight */
	bool finished;	 /* one of them has contents that a pin for new ones must spare */
	enum lack lack;
	bool stuck;
	struct transfer *list; /* to be launched: the reads, or write-backs to make room */
	bool failed_again;     /* the write-backs that make room failed the last time */
};

/* The call's wait, across its attempts. */
struct waiting {
	uint64_t from_ns;  /* 0: it has not waited */
	uint64_t failures; /* write-backs that failed before the call */
	bool counted;	   /* by the pool's statistics */
	struct turn turn;  /* for tensors that others use */
	struct ticket own;
	struct ticket *ticket; /* for room: its own, or the one that its thread keeps */
};

/* ---- Checks of a batch, before anything is changed ---- */

/* A pin for new contents would hand out the memory of those that a caller reads. */
static bool has_pinned_contents(const struct nvs_tensor *tensor)
{
	return tensor->pins.count && in_pool(tensor->content);
}

/* Checks the batch, counts it and collects what is absent, in one loop: its cache lines may be
 * cold. */
static int check_and_collect(struct nvs_engine *engine, const struct request *request,
			     struct attempt *attempt, struct nvs_error *error)
{
	char need[32], have[32];
	int rc = 0;

	/* -EBUSY: callers have pinned one of the tensors, of which bytes are to be copied. */
	for (size_t i = 0; i < request->n && request->copies && !rc; i++)
		if (!is_copied(request->tensors[i]))
			rc = check_unpinned_one(request->tensors[i], error);
	begin_batch(engine);
	for (size_t i = 0; i < request->n && !rc; i++) {
		struct nvs_tensor *tensor = request->tensors[i];

		load_later(request->tensors, i, request->n);
		rc = check_in_batch(engine, tensor, i, error) ?: check_not_external(tensor, error);
		/* After a failed write, a read would return older contents than the caller's. */
		if (request->contents)
			rc = rc ?: report_failed_write(engine, tensor, error)
				?: check_readable(tensor, error);
		if (rc)
			break;
		if (request->contents && is_unwritten(tensor))
			return error_named(error, -EBUSY, tensor->rest->name,
					   " is pinned for new contents, which are not released "
					   "yet: release it first");
		if (tensor->extent > pool_bytes(engine->pool))
			return error_named(
				error, -E2BIG, tensor->rest->name,
				" has %s (%" PRIu64 " bytes), more than the whole pool of %s "
				"(%s): set %s to %" PRIu64 " elements or more",
				size_text(tensor->nbytes, need), tensor->nbytes,
				size_text(pool_bytes(engine->pool), have), engine->remedy,
				engine->pool_key,
				(tensor->extent + engine->pool_step - 1) / engine->pool_step);
		if (!pins_reserve(&tensor->pins))
			return error_set(error, -ENOMEM, "out of memory for the pins of a tensor");
		attempt->nbytes += tensor->extent;
		attempt->moving |= in_flight(tensor);
		attempt->finished |= is_dirty(tensor) || has_pinned_contents(tensor);
		if (needs_memory(tensor)) {
			engine->scratch[attempt->nabsent++] = tensor;
			attempt->need += tensor->extent;
		}
	}
	if (rc || attempt->nbytes <= pool_bytes(engine->pool))
		return rc;
	return error_set(error, -ENOBUFS,
			 "a batch of %zu tensor%s needs %s at once, and the pool has %s (%s): make "
			 "the batch smaller or the pool larger",
			 request->n, plural(request->n), size_text(attempt->nbytes, need),
			 size_text(pool_bytes(engine->pool), have), engine->remedy);
}

/* ---- An attempt ---- */

/* Whether what other calls do with the tensors must end first. */
static bool others_first(struct nvs_engine *engine, const struct request *request,
			 const struct attempt *attempt, const struct turn *turn)
{
	bool reads = request->contents && !request->copies;

	/* The caller writes new contents at once, so nobody may use the old ones. */
	if (!request->contents && attempt->moving)
		return true;
	/* Contents that are only read may be copied to others. `copying` is rarely used, and in no
	 * line that load_later() loads. */
	for (size_t i = 0; i < request->n && engine->turns.ncopied; i++) {
		enum copying copying = request->tensors[i]->rest->copying;

		if (copying == COPIED_IN || (!reads && copying != COPIED_NOT))
			return true;
	}
	return (!reads || turn->in_line) && turn_is_blocked(engine, turn);
}

/*
 * A pin for new contents hands out the memory of the present ones. Those that a caller has pinned
 * are -EBUSY. Contents that are released and not written yet are written first, so that a clean
 * release finds them on the drive: -EAGAIN with the transfers to launch; 0 if there are none.
 */
static int write_before_pin(struct nvs_engine *engine, const struct request *request,
			    struct attempt *attempt, uint64_t failures, struct nvs_error *error)
{
	size_t ndirty = 0, nfailed = 0;

	assert(!engine->read_only);
	for (size_t i = 0; i < request->n; i++) {
		struct nvs_tensor *tensor = request->tensors[i];

		if (has_pinned_contents(tensor))
			return error_named(error, -EBUSY, tensor->rest->name,
					   " is pinned with its contents by another call: "
					   "release it first");
		if (!is_dirty(tensor) || !tensor->extent)
			continue;
		if (tensor->status && engine->moves.write_failures != failures)
			return tensor_error(engine, tensor, error);
		nfailed += tensor->status != 0;
		engine->scratch[ndirty++] = tensor;
	}
	for (size_t i = 0; i < ndirty; i++)
		leave_idle(engine, engine->scratch[i]);
	attempt->list = runs_build_own(engine, engine->scratch, ndirty, NVS_WRITE);
	attempt->failed_again = ndirty && nfailed == ndirty;
	return ndirty ? -EAGAIN : 0;
}

/* Makes room for the bytes needed as far as possible without waiting. */
static void make_room(struct nvs_engine *engine, struct attempt *attempt)
{
	struct eviction eviction = eviction_for_batch(engine, attempt->need);
	bool in_pieces = attempt->need <= eviction.reached && !engine->room.landing;

	/* Enough is free, but fragmented: one more eviction may join two free runs. */
	assert(attempt->need && !attempt->list);
	if (in_pieces)
		eviction.goal = eviction.reached + 1;
	evict_until_enough(engine, &eviction);
	/* Only the batch's own tensors in the pool may fragment its room. */
	if (in_pieces && !eviction.ntaken) {
		eviction.own = true;
		evict_until_enough(engine, &eviction);
	}
	attempt->list = runs_build_own(engine, engine->scratch, eviction.ndirty, NVS_WRITE);
	attempt->stuck = !eviction.ntaken;
	attempt->failed_again = eviction.ntaken && eviction.nfailed == eviction.ntaken;
}

/* Pins the tensors, all of which have memory now. Returns the reads to launch. */
static struct transfer *pin_batch(struct nvs_engine *engine, const struct request *request,
				  size_t nabsent)
{
	step_access(engine, request->tensors, request->n, request->contents);
	assert(request->contents || !engine->read_only);
	number_pin(engine);
	for (size_t i = 0; i < request->n; i++) {
		struct nvs_tensor *tensor = request->tensors[i];

		tensor_pin(engine, tensor);
		set_on_landing(engine, tensor, LANDING_STAYS);
		set_ahead(engine, tensor, AHEAD_NOT);
		if (request->copies)
			copy_begins(engine, tensor, COPIED_IN);
		else if (tensor->io != IO_WRITING)
			tensor->origin = ORIGIN_CALL;
		if (!request->contents)
			forget_pool(tensor);
		if (tensor->io == IO_IDLE)
			tensor->status = 0;
		/* A tensor to be read is checked when its run is built. */
		if (!request->contents || in_flight(tensor) || in_pool(tensor->content))
			tensor_check(tensor);
	}
	if (!request->contents)
		return NULL;
	return request->copies ? runs_build_own(engine, engine->scratch, nabsent, NVS_READ)
			       : runs_build(engine, engine->scratch, nabsent, NVS_READ);
}

static int write_back_failed(const struct nvs_engine *engine, struct nvs_error *error)
{
	const struct nvs_error *why = &engine->moves.failure;

	assert(engine->moves.write_failures && why->code < 0);
	return error_cause_of(
		error, why,
		error_about(error, why->code, why->subject, 0, why->offset,
			    "no room in the pool: a tensor could not be written back and stays in "
			    "it: %.800s",
			    why->text));
}

/* Under the lock: 0, -EAGAIN with what is lacking and the transfers to launch, or an error. */
static int try_to_pin(struct nvs_engine *engine, const struct request *request,
		      struct attempt *attempt, struct waiting *waiting, struct nvs_error *error)
{
	int rc;

	*attempt = (struct attempt){.lack = LACKS_LANDING};
	rc = check_and_collect(engine, request, attempt, error);
	if (rc)
		return rc;
	if (others_first(engine, request, attempt, &waiting->turn)) {
		attempt->stuck = true;
		return -EAGAIN;
	}
	if (!request->contents && attempt->finished)
		rc = write_before_pin(engine, request, attempt, waiting->failures, error);
	if (rc)
		return rc;
	if (!queue_lets_pass(engine, waiting->ticket, attempt->nbytes)) {
		attempt->lack = LACKS_TURN;
		attempt->stuck = true;
	} else if (attempt->need <= pool_free_bytes(engine->pool) &&
		   lease_all(engine, attempt->nabsent)) {
		queue_passed(engine, waiting->ticket, attempt->nbytes);
		attempt->list = pin_batch(engine, request, attempt->nabsent);
		attempt->lack = LACKS_NOTHING;
		return 0;
	} else if (engine->moves.write_failures != waiting->failures) {
		return write_back_failed(engine, error);
	} else {
		make_room(engine, attempt);
		attempt->lack = LACKS_ROOM;
	}
	if ((attempt->list || attempt->stuck) && !waiting->counted) {
		pool_note_wait(engine->pool);
		waiting->counted = true;
	}
	return -EAGAIN;
}

/* ---- Waiting ---- */

/* Why the call ends without its pin: `code` is -ETIMEDOUT, or -EAGAIN if it does not wait. */
static int report_lack(const struct nvs_engine *engine, const struct request *request,
		       enum lack lack, int code, struct nvs_error *error)
{
	bool late = code == -ETIMEDOUT;
	char text[SHORTAGE_TEXT_BYTES];
	size_t n = request->n;

	if (lack == LACKS_LANDING)
		return error_set(error, code,
				 "a batch of %zu tensor%s can't be pinned while one of them is in "
				 "flight or being copied, or an earlier call or a commit goes "
				 "first: %s",
				 n, plural(n), nvs_strerror(code));
	if (lack == LACKS_TURN)
		return error_set(error, code,
				 "the pool has no room for a batch of %zu tensor%s before calls "
				 "that came earlier have theirs: %s",
				 n, plural(n), nvs_strerror(code));
	assert(lack == LACKS_ROOM);
	if (late)
		shortage_text(engine, text);
	return error_cause(
		error, NVS_CAUSE_ROOM, NULL,
		error_set(error, code, "the pool has no room%s for a batch of %zu tensor%s: %s",
			  late ? " in time" : "", n, plural(n), late ? text : nvs_strerror(code)));
}

/*
 * About how many writes in flight make the room, if they are of one length; 0: they don't. Until
 * they have, another attempt would fail, and each attempt visits every tensor of the batch.
 */
static uint64_t writes_to_wait_for(const struct nvs_engine *engine, const struct attempt *attempt,
				   const struct waiting *waiting)
{
	uint64_t free = pool_free_bytes(engine->pool);
	double missing;

	if (attempt->lack != LACKS_ROOM || attempt->need <= free ||
	    attempt->need > free + engine->room.landing ||
	    engine->moves.write_failures != waiting->failures || engine->moves.overdue[NVS_READ] ||
	    engine->moves.overdue[NVS_WRITE])
		return 0;
	missing = (double)(attempt->need - free) / (double)engine->room.landing;
	return max_u64((uint64_t)(missing * (double)engine->moves.inflight[NVS_WRITE]), 1);
}

static void begin_waiting(struct nvs_engine *engine, const struct attempt *attempt,
			  struct waiting *waiting)
{
	if (attempt->lack == LACKS_LANDING)
		turn_await(engine, &waiting->turn);
	else
		turn_end(engine, &waiting->turn);
	if (!waiting->from_ns) {
		waiting->from_ns = clock_ns();
		engine->room.waiting++;
	}
	if ((attempt->lack != LACKS_LANDING || waiting->ticket->queued) &&
	    queue_join(engine, waiting->ticket,
		       attempt->stuck && !writes_to_wait_for(engine, attempt, waiting)))
		events_wake(engine);
}

/* `rc` is what the call returns. */
static void end_waiting(struct nvs_engine *engine, struct waiting *waiting, int rc)
{
	struct ticket *ticket = waiting->ticket;

	if (waiting->from_ns) {
		turn_end(engine, &waiting->turn);
		engine->room.waiting--;
		step_stalled(engine, waiting->from_ns);
		trace_wait(engine, NULL, waiting->from_ns);
	}
	if (!ticket->queued)
		return;
	if (ticket != &waiting->own && (rc == -ETIMEDOUT || rc == -EAGAIN)) {
		ticket->away = true;
		events_wake(engine);
	} else if (queue_leave(engine, ticket)) {
		events_changed(engine);
	}
}

/* Sleeps until another attempt may succeed: 0, or an error at the deadline. */
static int wait_for_change(struct nvs_engine *engine, const struct request *request,
			   const struct attempt *attempt, struct waiting *waiting,
			   uint64_t deadline, struct nvs_error *error)
{
	uint64_t until = deadline, writes;
	int rc;

	/* What the call waits for goes before reading ahead. */
	if (attempt->lack == LACKS_ROOM) {
		room_promote(engine, attempt->need);
		if (!waiting->ticket->log_ns)
			waiting->ticket->log_ns = clock_ns() + engine->room.shortage_after_ns;
		until = min_u64(deadline, waiting->ticket->log_ns);
	}
	for (size_t i = 0; i < request->n && attempt->lack == LACKS_LANDING; i++)
		tensor_promote(engine, request->tensors[i]);
	if (attempt->lack == LACKS_TURN)
		until = min_u64(deadline, queue_quiet_until(engine));
	writes = writes_to_wait_for(engine, attempt, waiting);
	do {
		rc = events_wait(engine, max_u64(writes, 1), until);
		writes = writes_to_wait_for(engine, attempt, waiting);
	} while (!rc && writes);
	if (rc != -ETIMEDOUT || until == deadline)
		return rc ? report_lack(engine, request, attempt->lack, rc, error) : 0;
	if (attempt->lack == LACKS_TURN)
		queue_was_quiet(engine, until);
	else
		waiting->ticket->log_ns = shortage_log(engine, request->n) ? UINT64_MAX : 0;
	return 0;
}

static int pin_all(struct nvs_engine *engine, const struct request *request, uint64_t deadline,
		   uint64_t *pin, struct nvs_error *error)
{
	struct waiting waiting = {.turn = {.tensors = request->tensors,
					   .n = request->n,
					   .copying = request->copies ? COPIED_IN : COPIED_NOT}};
	struct attempt attempt;
	struct transfer *list = NULL;
	struct kept_place *place;
	int rc;

	if (!pin)
		return error_set(error, -EINVAL, "there is nowhere to store the pin: pin is NULL");
	*pin = 0;
	rc = check_array(engine, request->tensors, request->n, error);
	/* New contents could not be written. */
	if (!request->contents)
		rc = rc ?: check_writable(engine, error);
	if (rc)
		return rc;
	engine_lock(engine);
	waiting.failures = engine->moves.write_failures;
	place = queue_kept_place(engine);
	waiting.ticket = place ? &place->ticket : &waiting.own;
	while ((rc = try_to_pin(engine, request, &attempt, &waiting, error)) == -EAGAIN) {
		if (deadline && (attempt.list || attempt.stuck))
			begin_waiting(engine, &attempt, &waiting);
		if (attempt.list) {
			if (deadline)
				runs_promote_new(engine, attempt.list);
			engine_unlock(engine);
			launch(engine, attempt.list);
			engine_lock(engine);
		}
		/* The write-backs may have landed while the lock was released. */
		if (!attempt.stuck && (deadline || !attempt.list))
			continue;
		/* A drive that hangs makes waiting pointless. */
		rc = 0;
		for (size_t i = 0; i < request->n && !rc && !request->contents; i++)
			rc = check_overdue(engine, request->tensors[i], error);
		rc = rc ?: check_hung(engine, error);
		/* A call that does not wait can't observe the failure of its write-backs: the next
		 * one reports it. */
		if (!rc && !deadline)
			rc = attempt.failed_again
				     ? write_back_failed(engine, error)
				     : report_lack(engine, request, attempt.lack, -EAGAIN, error);
		rc = rc ?: wait_for_change(engine, request, &attempt, &waiting, deadline, error);
		if (rc)
			break;
	}
	end_waiting(engine, &waiting, rc);
	if (!rc) {
		*pin = engine->last_pin;
		trace_calls(engine, request->contents ? TRACE_SWAP_IN : TRACE_LEASE,
			    request->tensors, request->n);
		list = join(join(attempt.list, keep_to_budget(engine, false)), move_ahead(engine));
	}
	engine_unlock(engine);
	launch(engine, list);
	return rc;
}

int batch_pin(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
	      int timeout_ms, uint64_t *pin, struct nvs_error *error)
{
	const struct request request = {.tensors = tensors, .n = n};

	return pin_all(engine, &request, deadline_ns(timeout_ms), pin, error);
}

int nvs_tensor_pin(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		   int timeout_ms, uint64_t *pin, struct nvs_error *error)
{
	HOLD_CANCEL;
	int rc = check_unowned(engine, WRITE_STATE, error);

	if (rc && pin)
		*pin = 0;
	return rc ?: batch_pin(engine, tensors, n, timeout_ms, pin, error);
}

int batch_swap_in(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		  int timeout_ms, uint64_t *pin, struct nvs_error *error)
{
	const struct request request = {.tensors = tensors, .n = n, .contents = true};

	return pin_all(engine, &request, deadline_ns(timeout_ms), pin, error);
}

int nvs_tensor_swap_in(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		       int timeout_ms, uint64_t *pin, struct nvs_error *error)
{
	HOLD_CANCEL;
	int rc = check_unowned(engine, READ_STATE, error);

	if (rc && pin)
		*pin = 0;
	return rc ?: batch_swap_in(engine, tensors, n, timeout_ms, pin, error);
}

int pin_to_copy(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		uint64_t deadline, uint64_t *pin, struct nvs_error *error)
{
	const struct request request = {
		.tensors = tensors, .n = n, .contents = true, .copies = true};

	return pin_all(engine, &request, deadline, pin, error);
}

int engine_pin(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
	       uint64_t *pin, struct nvs_error *error)
{
	int rc = batch_swap_in(engine, tensors, n, -1, pin, error)
			 ?: batch_wait(engine, tensors, n, *pin, -1, error);

	for (size_t i = 0; i < n && rc && *pin; i++)
		engine_unpin(engine, tensors[i], *pin);
	*pin = rc ? 0 : *pin;
	return rc;
}
