/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pinning tensors: the call gets room for all of them in one attempt, or for none. Between
 * attempts it waits for room, or for write-backs that make some.
 */
#include <assert.h>
#include <errno.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/state_checks.h"
#include "swap/calls/calls.h"
#include "swap/room/shortage.h"

/* ---- Room for a batch ---- */

/* Why the call can't pin its tensors yet. */
enum lack {
	LACKS_NOTHING,
	LACKS_LANDING, /* one of them is in flight, or bytes of it are being copied */
	LACKS_TURN,    /* other calls wait for room, and came earlier */
	LACKS_ROOM,
};

/* A call that pins tensors, across its attempts. */
struct pinning {
	struct nvs_tensor *const *tensors;
	size_t n;
	uint64_t nbytes;	/* that all of them take in the pool */
	bool contents;		/* read them; false: for new ones */
	bool copies;		/* the pins are those of a call that copies bytes into them */
	uint64_t failures;	/* write-backs that failed before the call */
	bool waited;		/* the pool's statistics have counted the wait for room */
	uint64_t waits_from_ns; /* when it began to wait; 0: it did not */
	struct transfer *list;	/* to be launched: the reads, or write-backs to make room */
	bool stuck;		/* nothing more can be started; only other calls can make room */
	enum lack lack;		/* after an attempt that failed */
	bool failed_again;	/* the write-backs that make room failed the last time */
	size_t nabsent;		/* tensors that are not in the pool; engine->scratch has them */
	uint64_t need;		/* their bytes */
	bool moving;		/* one of the tensors is in flight */
	bool finished;		/* one of them has contents that a pin for new ones must spare */
	uint64_t turn_ns;	/* LACKS_TURN: when to look again, if nothing changes */
	struct turn turn;	/* for tensors that others use */
	struct ticket ticket;	/* for room */
	struct shortage shortage;
};

static void pinning_check(const struct nvs_engine *engine, const struct pinning *pinning)
{
	if (!STATE_CHECKS)
		return;
	lock_check(engine);
	assert(pinning->tensors || !pinning->n);
	assert(!pinning->stuck || (!pinning->list && !pinning->failed_again));
	assert(pinning->failures <= engine->write_failures);
	assert(!pinning->waits_from_ns || engine->waiting);
	assert(!pinning->ticket.queued || pinning->waits_from_ns);
	assert(pinning->lack != LACKS_TURN || (pinning->stuck && !pinning->list));
	assert(pinning->need <= pinning->nbytes && pinning->nbytes <= pool_bytes(engine->pool));
}

static void note_wait(struct nvs_engine *engine, struct pinning *pinning)
{
	lock_check(engine);
	assert(pinning->list || pinning->stuck);
	if (!pinning->waited)
		pool_note_wait(engine->pool);
	pinning->waited = true;
	assert(pinning->need <= pool_bytes(engine->pool));
}

/* Makes room for the bytes needed as far as possible without waiting. */
static void make_room(struct nvs_engine *engine, struct pinning *pinning)
{
	struct eviction eviction = eviction_for_batch(engine, pinning->need);
	bool in_pieces = pinning->need <= eviction.reached && !engine->landing;

	/* Enough is free, but fragmented: one more eviction may join two free runs. */
	pinning_check(engine, pinning);
	assert(pinning->need && !pinning->list);
	if (in_pieces)
		eviction.goal = eviction.reached + 1;
	evict_until_enough(engine, &eviction);
	/* Only the batch's own tensors in the pool may fragment its room. */
	if (in_pieces && !eviction.ntaken) {
		eviction.own = true;
		evict_until_enough(engine, &eviction);
	}
	pinning->list = runs_build_own(engine, engine->scratch, eviction.ndirty, NVS_WRITE);
	pinning->stuck = !eviction.ntaken;
	pinning->failed_again = eviction.ntaken && eviction.nfailed == eviction.ntaken;
	if (pinning->list || pinning->stuck)
		note_wait(engine, pinning);
	assert(pinning->stuck || eviction.ntaken);
}

/* ---- Checks of a batch, before anything is changed ---- */

static int check_contents(struct nvs_engine *engine, struct nvs_tensor *tensor,
			  struct nvs_error *error)
{
	/* A read would return older contents than the caller has written. */
	int rc = tensor->unreported ? report_failed_write(engine, tensor, error) : 0;

	if (rc)
		return rc;
	if (tensor_state(tensor) == NVS_EMPTY)
		return no_contents(tensor, error);
	if (!is_unwritten(tensor))
		return 0;
	assert(tensor->pins.count && !engine->read_only);
	return error_about(error, -EBUSY, tensor->rest->name, 0, 0,
			   "%s is pinned for new contents, which are not released yet: "
			   "release it first",
			   tensor->rest->name);
}

/* -EBUSY: callers have pinned one of the tensors, of which bytes are to be copied. */
static int check_copies(const struct pinning *pinning, struct nvs_error *error)
{
	int rc = 0;

	for (size_t i = 0; i < pinning->n && pinning->copies && !rc; i++)
		if (!is_copied(pinning->tensors[i]))
			rc = check_unpinned_one(pinning->tensors[i], error);
	return rc;
}

static int check_pin_one(struct nvs_engine *engine, struct nvs_tensor *tensor, bool contents,
			 struct nvs_error *error)
{
	int rc = check_not_external(tensor, error);

	if (!rc && contents)
		rc = check_contents(engine, tensor, error);
	if (rc)
		return rc;
	if (tensor->extent > pool_bytes(engine->pool))
		return too_large(engine, tensor, error);
	if (!pins_reserve(&tensor->pins))
		return error_set(error, -ENOMEM, "out of memory for the pins of a tensor");
	return 0;
}

/* A pin for new contents would hand out the memory of those that a caller reads. */
static bool has_pinned_contents(const struct nvs_tensor *tensor)
{
	return tensor->pins.count && in_pool(tensor->content);
}

/* Counts a tensor of the batch, and puts it into engine->scratch if it is not in the pool. */
static void count_in_batch(struct nvs_engine *engine, struct pinning *pinning,
			   struct nvs_tensor *tensor)
{
	pinning->nbytes += tensor->extent;
	pinning->moving = pinning->moving || in_flight(tensor);
	pinning->finished = pinning->finished || is_dirty(tensor) || has_pinned_contents(tensor);
	if (!needs_memory(tensor))
		return;
	assert(pinning->nabsent < engine->ntensors && !is_dirty(tensor));
	engine->scratch[pinning->nabsent++] = tensor;
	pinning->need += tensor->extent;
}

/* Checks the batch, counts it and collects what is absent, in one loop: its cache lines may be
 * cold. */
static int check_and_collect(struct nvs_engine *engine, struct pinning *pinning,
			     struct nvs_error *error)
{
	char need[32], have[32];
	size_t n = pinning->n;
	int rc = check_copies(pinning, error);

	begin_batch(engine);
	pinning->nbytes = pinning->need = 0;
	pinning->nabsent = 0;
	pinning->moving = pinning->finished = false;
	for (size_t i = 0; i < n && !rc; i++) {
		struct nvs_tensor *tensor = pinning->tensors[i];

		load_later(pinning->tensors, i, n);
		rc = check_in_batch(engine, tensor, i, error);
		if (!rc)
			rc = check_pin_one(engine, tensor, pinning->contents, error);
		if (!rc)
			count_in_batch(engine, pinning, tensor);
	}
	if (rc)
		return rc;
	assert(n <= engine->ntensors && pinning->need <= pinning->nbytes);
	if (pinning->nbytes <= pool_bytes(engine->pool))
		return 0;
	return error_set(error, -ENOBUFS,
			 "a batch of %zu tensor%s needs %s at once, and the pool has %s (%s): make "
			 "the batch smaller or the pool larger",
			 n, plural(n), size_text(pinning->nbytes, need),
			 size_text(pool_bytes(engine->pool), have), engine->remedy);
}

/* ---- Pinning ---- */

static void add_pin(struct nvs_engine *engine, struct nvs_tensor *tensor, bool copies)
{
	assert(!is_external(tensor));
	tensor_pin(engine, tensor);
	set_on_landing(engine, tensor, LANDING_STAYS);
	set_ahead(engine, tensor, AHEAD_NOT);
	if (!copies && tensor->io != IO_WRITING)
		tensor->origin = ORIGIN_CALL;
	assert(tensor->placement == PLACED_PINNED && tensor->on_landing == LANDING_STAYS);
}

static struct transfer *begin(struct nvs_engine *engine, const struct pinning *pinning)
{
	struct transfer *list = NULL;

	step_access(engine, pinning->tensors, pinning->n, pinning->contents);
	pinning_check(engine, pinning);
	assert(pinning->nabsent <= pinning->n && (pinning->contents || !engine->read_only));
	number_pin(engine);
	for (size_t i = 0; i < pinning->n; i++) {
		struct nvs_tensor *tensor = pinning->tensors[i];

		add_pin(engine, tensor, pinning->copies);
		if (pinning->copies)
			copy_begins(engine, tensor, COPIED_IN);
		if (!pinning->contents)
			forget_pool(tensor);
		if (tensor->io == IO_IDLE)
			tensor->status = 0;
		/* A tensor to be read is checked when its run is built. */
		if (!pinning->contents || in_flight(tensor) || in_pool(tensor->content))
			tensor_check(tensor);
	}
	if (pinning->copies)
		list = runs_build_own(engine, engine->scratch, pinning->nabsent, NVS_READ);
	else if (pinning->contents)
		list = runs_build(engine, engine->scratch, pinning->nabsent, NVS_READ);
	assert(pinning->nabsent || !list);
	return list;
}

static int write_back_failed(const struct nvs_engine *engine, struct nvs_error *error)
{
	const struct nvs_error *why = &engine->failure;

	assert(engine->write_failures && why->code < 0);
	return error_about(error, why->code, why->subject, 0, why->offset,
			   "no room in the pool: a tensor could not be written back and stays in "
			   "it: %.800s",
			   why->text);
}

/* Whether what other calls do with the tensors must end first. */
static bool others_first(struct nvs_engine *engine, const struct pinning *pinning)
{
	bool reads = pinning->contents && !pinning->copies;

	/* The caller writes new contents at once, so nobody may use the old ones. */
	if (!pinning->contents && pinning->moving)
		return true;
	/* Contents that are only read may be copied to others. `copying` is rarely used, and in no
	 * line that load_later() loads. */
	for (size_t i = 0; i < pinning->n && engine->ncopied; i++) {
		enum copying copying = pinning->tensors[i]->rest->copying;

		if (copying == COPIED_IN || (!reads && copying != COPIED_NOT))
			return true;
	}
	return (!reads || pinning->turn.in_line) && turn_is_blocked(engine, &pinning->turn);
}

/*
 * A pin for new contents hands out the memory of the present ones. Those that a caller has pinned
 * are -EBUSY. Contents that are released and not written yet are written first, so that a clean
 * release finds them on the drive: 0 if there are none, or -EAGAIN with the transfers to launch, or
 * an error.
 */
static int write_before_pin(struct nvs_engine *engine, struct pinning *pinning,
			    struct nvs_error *error)
{
	size_t ndirty = 0, nfailed = 0;

	assert(!pinning->contents && !engine->read_only);
	if (!pinning->finished)
		return 0;
	for (size_t i = 0; i < pinning->n; i++) {
		struct nvs_tensor *tensor = pinning->tensors[i];

		if (has_pinned_contents(tensor))
			return error_about(error, -EBUSY, tensor->rest->name, 0, 0,
					   "%s is pinned with its contents by another call: "
					   "release it first",
					   tensor->rest->name);
		if (!is_dirty(tensor) || !tensor->extent)
			continue;
		assert(tensor_state(tensor) == NVS_RESIDENT && !is_external(tensor));
		if (tensor->status && engine->write_failures != pinning->failures)
			return tensor_error(engine, tensor, error);
		nfailed += tensor->status != 0;
		engine->scratch[ndirty++] = tensor;
	}
	assert(nfailed <= ndirty && ndirty <= pinning->n);
	for (size_t i = 0; i < ndirty; i++)
		leave_idle(engine, engine->scratch[i]);
	pinning->list = runs_build_own(engine, engine->scratch, ndirty, NVS_WRITE);
	pinning->failed_again = ndirty && nfailed == ndirty;
	return ndirty ? -EAGAIN : 0;
}

/* Calls that came earlier get room first. */
static int await_turn(struct nvs_engine *engine, struct pinning *pinning)
{
	assert(!pinning->list && !queue_empty(engine));
	assert(pinning->nbytes && pinning->turn_ns);
	pinning->stuck = true;
	pinning->lack = LACKS_TURN;
	pinning_check(engine, pinning);
	note_wait(engine, pinning);
	return -EAGAIN;
}

/* One attempt, under the lock: 0, -EAGAIN with the transfers to launch, or an error. */
static int try_begin(struct nvs_engine *engine, struct pinning *pinning, struct nvs_error *error)
{
	int rc = check_and_collect(engine, pinning, error);

	pinning->list = NULL;
	pinning->stuck = pinning->failed_again = false;
	pinning->lack = LACKS_LANDING;
	if (rc)
		return rc;
	if (others_first(engine, pinning)) {
		pinning->stuck = true;
		return -EAGAIN;
	}
	rc = pinning->contents ? 0 : write_before_pin(engine, pinning, error);
	if (rc)
		return rc;
	if (!queue_lets_pass(engine, &pinning->ticket, pinning->nbytes, &pinning->turn_ns))
		return await_turn(engine, pinning);
	assert(!pinning->nabsent || engine->scratch[0]->batch == engine->batch);
	if (pinning->need <= free_bytes(engine) && lease_all(engine, pinning->nabsent)) {
		queue_passed(engine, &pinning->ticket, pinning->nbytes);
		pinning->list = begin(engine, pinning);
		pinning->lack = LACKS_NOTHING;
		return 0;
	}
	if (engine->write_failures != pinning->failures)
		return write_back_failed(engine, error);
	make_room(engine, pinning);
	pinning->lack = LACKS_ROOM;
	pinning_check(engine, pinning);
	return -EAGAIN;
}

static int no_time_left(const struct nvs_engine *engine, const struct pinning *pinning, int code,
			struct nvs_error *error)
{
	char text[SHORTAGE_TEXT_BYTES];

	assert(code == -ETIMEDOUT || code == -EAGAIN);
	assert(pinning->lack != LACKS_NOTHING);
	if (code == -ETIMEDOUT && pinning->lack == LACKS_ROOM) {
		shortage_text(engine, text);
		return error_set(error, code,
				 "the time limit ran out, and the pool has no room for a batch of "
				 "%zu tensor%s: %s",
				 pinning->n, plural(pinning->n), text);
	}
	if (pinning->lack == LACKS_TURN)
		return error_set(error, code,
				 "the pool has no room for a batch of %zu tensor%s before calls "
				 "that came earlier have theirs: %s",
				 pinning->n, plural(pinning->n), nvs_strerror(code));
	if (pinning->lack == LACKS_LANDING)
		return error_set(error, code,
				 "a batch of %zu tensor%s can't be pinned while one of them is in "
				 "flight or being copied, or an earlier call or a commit goes "
				 "first: %s",
				 pinning->n, plural(pinning->n), nvs_strerror(code));
	return error_set(error, code, "the pool has no room for a batch of %zu tensor%s: %s",
			 pinning->n, plural(pinning->n), nvs_strerror(code));
}

static bool any_overdue(const struct nvs_engine *engine)
{
	return engine->overdue[NVS_READ] || engine->overdue[NVS_WRITE];
}

/*
 * Whether the write-backs in flight will make the room. Until they have, another attempt would
 * fail, and each attempt visits every tensor of the batch.
 */
static bool room_is_coming(const struct nvs_engine *engine, const struct pinning *pinning)
{
	uint64_t free = free_bytes(engine);

	return pinning->lack == LACKS_ROOM && pinning->need > free &&
	       pinning->need <= free + engine->landing &&
	       engine->write_failures == pinning->failures && !any_overdue(engine);
}

/* About how many of the writes in flight make the room, if they are of one length. */
static uint64_t runs_to_wait_for(const struct nvs_engine *engine, const struct pinning *pinning)
{
	double missing;
	uint64_t runs;

	if (!room_is_coming(engine, pinning))
		return 1;
	assert(engine->landing && pinning->need > free_bytes(engine));
	missing = (double)(pinning->need - free_bytes(engine));
	runs = (uint64_t)(missing / (double)engine->landing * (double)engine->inflight[NVS_WRITE]);
	assert(runs <= engine->inflight[NVS_WRITE]);
	return runs;
}

/* An error if waiting is pointless, else 0. */
static int check_waiting(const struct nvs_engine *engine, const struct pinning *pinning,
			 struct nvs_error *error)
{
	int rc = 0;

	lock_check(engine);
	assert(pinning->lack != LACKS_NOTHING);
	if (!any_overdue(engine))
		return 0;
	for (size_t i = 0; i < pinning->n && !rc && !pinning->contents; i++)
		rc = check_overdue(engine, pinning->tensors[i], error);
	return rc ? rc : check_hung(engine, error);
}

/* Non-blocking callers can't observe their write-back failures; report the previous one here. */
static int end_polling(const struct nvs_engine *engine, const struct pinning *pinning,
		       struct nvs_error *error)
{
	/* A call that does not wait is neither timed nor queued. */
	assert(!pinning->waits_from_ns && !pinning->ticket.queued);
	return pinning->failed_again ? write_back_failed(engine, error)
				     : no_time_left(engine, pinning, -EAGAIN, error);
}

static void begin_waiting(struct nvs_engine *engine, struct pinning *pinning)
{
	assert(pinning->list || pinning->stuck);
	if (pinning->lack == LACKS_LANDING)
		turn_await(engine, &pinning->turn);
	else
		turn_end(engine, &pinning->turn);
	if (!pinning->waits_from_ns) {
		pinning->waits_from_ns = clock_ns();
		engine->waiting++;
	}
	assert(engine->waiting && pinning->lack != LACKS_NOTHING);
	if ((pinning->lack != LACKS_LANDING || pinning->ticket.queued) &&
	    queue_join(engine, &pinning->ticket, pinning->need))
		events_wake(engine);
}

static void end_waiting(struct nvs_engine *engine, struct pinning *pinning)
{
	if (!pinning->waits_from_ns)
		return;
	pinning_check(engine, pinning);
	turn_end(engine, &pinning->turn);
	assert(engine->waiting && !(pinning->ticket.queued && queue_empty(engine)));
	engine->waiting--;
	step_stalled(engine, pinning->waits_from_ns);
	trace_wait(engine, NULL, pinning->waits_from_ns);
	if (!pinning->ticket.queued)
		return;
	queue_leave(engine, &pinning->ticket);
	events_wake(engine);
}

/* What the call waits for goes before reading ahead. */
static void promote(struct nvs_engine *engine, const struct pinning *pinning)
{
	lock_check(engine);
	assert(pinning->lack != LACKS_NOTHING && !pinning->list);
	if (pinning->lack == LACKS_ROOM)
		room_promote(engine, pinning->need);
	for (size_t i = 0; i < pinning->n && pinning->lack == LACKS_LANDING; i++)
		tensor_promote(engine, pinning->tensors[i]);
}

/* Until when the call sleeps if nothing changes: its deadline, or earlier to look again or to
 * log. */
static uint64_t sleep_until(const struct nvs_engine *engine, struct pinning *pinning,
			    uint64_t deadline)
{
	assert(pinning->lack != LACKS_NOTHING && deadline);
	if (pinning->lack == LACKS_ROOM)
		return shortage_deadline(engine, &pinning->shortage, deadline);
	if (pinning->lack == LACKS_TURN && pinning->turn_ns < deadline)
		return pinning->turn_ns;
	return deadline;
}

static int wait_for_room(struct nvs_engine *engine, struct pinning *pinning, uint64_t deadline,
			 struct nvs_error *error)
{
	uint64_t until = sleep_until(engine, pinning, deadline);
	int rc;

	pinning_check(engine, pinning);
	assert(deadline && pinning->stuck);
	promote(engine, pinning);
	assert(until && until <= deadline);
	do {
		rc = events_wait_for(engine, runs_to_wait_for(engine, pinning), until);
	} while (!rc && room_is_coming(engine, pinning));
	if (rc == -ETIMEDOUT && until != deadline) {
		if (pinning->lack == LACKS_ROOM)
			shortage_tell(engine, &pinning->shortage, pinning->n);
		rc = 0;
	}
	return rc ? no_time_left(engine, pinning, rc, error) : 0;
}

/* Under the lock, which it releases to launch write-backs and to wait. */
static int begin_in_time(struct nvs_engine *engine, struct pinning *pinning, uint64_t deadline,
			 struct nvs_error *error)
{
	for (;;) {
		int rc = try_begin(engine, pinning, error);

		assert(rc <= 0 && (rc == 0) == (pinning->lack == LACKS_NOTHING));
		if (rc != -EAGAIN)
			return rc;
		if (deadline && (pinning->list || pinning->stuck))
			begin_waiting(engine, pinning);
		if (pinning->list) {
			if (deadline)
				runs_promote_new(engine, pinning->list);
			engine_unlock(engine);
			launch(engine, pinning->list);
			engine_lock(engine);
			pinning_check(engine, pinning);
		}
		/* The write-backs may have landed while the lock was released. */
		if (!pinning->stuck && (deadline || !pinning->list))
			continue;
		rc = check_waiting(engine, pinning, error);
		if (rc)
			return rc;
		if (!deadline)
			return end_polling(engine, pinning, error);
		rc = wait_for_room(engine, pinning, deadline, error);
		if (rc)
			return rc;
	}
}

static int pin_all(struct nvs_engine *engine, struct pinning pinning, int timeout_ms, uint64_t *pin,
		   struct nvs_error *error)
{
	struct transfer *list = NULL;
	uint64_t deadline = deadline_ns(timeout_ms);
	int rc;

	if (!pin)
		return error_set(error, -EINVAL, "there is nowhere to store the pin: pin is NULL");
	*pin = 0;
	rc = check_array(engine, pinning.tensors, pinning.n, error);
	/* New contents could not be written. */
	if (!rc && !pinning.contents)
		rc = check_writable(engine, error);
	if (rc)
		return rc;
	pinning.ticket.pinner = pinner_self();
	pinning.turn = (struct turn){.tensors = pinning.tensors,
				     .n = pinning.n,
				     .copying = pinning.copies ? COPIED_IN : COPIED_NOT};
	engine_lock(engine);
	pinning.failures = engine->write_failures;
	rc = begin_in_time(engine, &pinning, deadline, error);
	end_waiting(engine, &pinning);
	if (!rc) {
		*pin = engine->last_pin;
		trace_calls(engine, pinning.contents ? TRACE_SWAP_IN : TRACE_LEASE, pinning.tensors,
			    pinning.n);
		list = join(pinning.list, keep_to_max_live(engine));
		list = join(list, move_ahead(engine));
	}
	assert((rc == 0) == (*pin != 0) && (!rc || !list));
	engine_unlock(engine);
	launch(engine, list);
	return rc;
}

int batch_pin(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
	      int timeout_ms, uint64_t *pin, struct nvs_error *error)
{
	return pin_all(engine, (struct pinning){.tensors = tensors, .n = n}, timeout_ms, pin,
		       error);
}

int batch_swap_in(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		  int timeout_ms, uint64_t *pin, struct nvs_error *error)
{
	const struct pinning pinning = {.tensors = tensors, .n = n, .contents = true};

	return pin_all(engine, pinning, timeout_ms, pin, error);
}

int pin_to_copy(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		int timeout_ms, uint64_t *pin, struct nvs_error *error)
{
	const struct pinning pinning = {
		.tensors = tensors, .n = n, .contents = true, .copies = true};

	return pin_all(engine, pinning, timeout_ms, pin, error);
}

int engine_pin(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
	       uint64_t *pin, struct nvs_error *error)
{
	int rc;

	unlocked_check(engine);
	rc = batch_swap_in(engine, tensors, n, -1, pin, error);
	if (rc)
		return rc;
	rc = batch_wait(engine, tensors, n, *pin, -1, error);
	if (!rc)
		return 0;
	assert(*pin);
	for (size_t i = 0; i < n; i++)
		engine_unpin(engine, tensors[i], *pin);
	*pin = 0;
	return rc;
}
