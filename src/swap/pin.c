/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pinning tensors: the call gets room for all of them in one attempt, or for none. Between
 * attempts it waits for room, or for write-backs that make some.
 */
#include <assert.h>
#include <errno.h>

#include "base/clock.h"
#include "base/error.h"
#include "swap/calls.h"
#include "swap/residency/shortage.h"

/* ---- Room for a batch ---- */

/* A call that pins tensors, across its attempts. */
struct pinning {
	struct nvs_tensor *const *tensors;
	size_t n;
	bool contents;		/* read them; false: for new ones */
	uint64_t failures;	/* write-backs that failed before the call */
	bool waited;		/* the pool's statistics have counted the wait for room */
	uint64_t waits_from_ns; /* when it began to wait; 0: it did not */
	struct transfer *list;	/* to be launched: the reads, or write-backs to make room */
	bool stuck;		/* nothing more can be started; only other calls can make room */
	bool failed_again;	/* the write-backs that make room failed the last time */
	uint64_t need;		/* bytes that had no room; 0: room is not what was missing */
	struct shortage shortage;
};

static void pinning_check(const struct nvs_engine *engine, const struct pinning *pinning)
{
	assert(pinning->tensors || !pinning->n);
	assert(!pinning->stuck || (!pinning->list && !pinning->failed_again));
	assert(pinning->failures <= engine->write_failures);
	assert(!pinning->waits_from_ns || engine->waiting);
	assert(pinning->need <= pool_bytes(engine->pool));
}

/* Makes room for `need` bytes as far as possible without waiting. */
static void make_room(struct nvs_engine *engine, uint64_t need, struct pinning *pinning)
{
	struct eviction eviction = eviction_for_batch(engine, need);
	bool in_pieces = need <= eviction.reached && !engine->landing;

	/* Enough is free, but fragmented: one more eviction may join two free runs. */
	if (in_pieces)
		eviction.goal = eviction.reached + 1;
	evict_until_enough(engine, &eviction);
	/* Only the batch's own tensors in the pool may fragment its room. */
	if (in_pieces && !eviction.ntaken) {
		eviction.own = true;
		evict_until_enough(engine, &eviction);
	}
	pinning->list = runs_build(engine, engine->scratch, eviction.ndirty, NVS_WRITE);
	pinning->stuck = !eviction.ntaken;
	pinning->failed_again = eviction.ntaken && eviction.nfailed == eviction.ntaken;
	if (pinning->list || pinning->stuck) {
		if (!pinning->waited)
			pool_note_wait(engine->pool);
		pinning->waited = true;
	}
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
	if (is_unwritten(tensor))
		return error_about(error, -EBUSY, tensor->name, 0, 0,
				   "%s is pinned for new contents, which are not released yet: "
				   "release it first",
				   tensor->name);
	return 0;
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

static int check_pin(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		     bool contents, struct nvs_error *error)
{
	uint64_t sum = 0;
	char need[32], have[32];
	int rc = 0;

	begin_batch(engine);
	for (size_t i = 0; i < n && !rc; i++) {
		rc = check_in_batch(engine, tensors[i], i, error);
		if (!rc)
			rc = check_pin_one(engine, tensors[i], contents, error);
		sum += rc ? 0 : tensors[i]->extent;
	}
	if (rc || sum <= pool_bytes(engine->pool))
		return rc;
	return error_set(error, -ENOBUFS,
			 "a batch of %zu tensors needs %s at once, and the pool has %s (%s): make "
			 "the batch smaller or the pool larger",
			 n, size_text(sum, need), size_text(pool_bytes(engine->pool), have),
			 engine->remedy);
}

/* ---- Pinning ---- */

static void add_pin(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	assert(!is_external(tensor));
	tensor_pin(engine, tensor);
	set_on_landing(engine, tensor, LANDING_STAYS);
	set_ahead(engine, tensor, AHEAD_NOT);
	tensor->origin = ORIGIN_CALL;
	assert(tensor->placement == PLACED_PINNED && tensor->on_landing == LANDING_STAYS);
}

static struct transfer *begin(struct nvs_engine *engine, const struct pinning *pinning,
			      size_t nread)
{
	struct transfer *list = NULL;

	step_access(engine, pinning->tensors, pinning->n, pinning->contents);
	pinning_check(engine, pinning);
	number_pin(engine);
	for (size_t i = 0; i < pinning->n; i++) {
		struct nvs_tensor *tensor = pinning->tensors[i];

		add_pin(engine, tensor);
		if (!pinning->contents)
			forget_pool(tensor);
		if (tensor->io == IO_IDLE)
			tensor->status = 0;
		tensor_check(tensor);
	}
	if (pinning->contents)
		list = runs_build(engine, engine->scratch, nread, NVS_READ);
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

static bool any_in_flight(const struct pinning *pinning)
{
	for (size_t i = 0; i < pinning->n; i++)
		if (in_flight(pinning->tensors[i]))
			return true;
	return false;
}

/*
 * A pin for new contents hands out the memory of the present ones. Contents that are released and
 * not written yet are written first, so that a clean release finds them on the drive: 0 if there
 * are none, or -EAGAIN with the transfers to launch, or an error.
 */
static int write_before_pin(struct nvs_engine *engine, struct pinning *pinning,
			    struct nvs_error *error)
{
	size_t ndirty = 0, nfailed = 0;

	for (size_t i = 0; i < pinning->n; i++) {
		struct nvs_tensor *tensor = pinning->tensors[i];

		if (!is_dirty(tensor) || !tensor->extent)
			continue;
		assert(tensor_state(tensor) == NVS_RESIDENT && !is_external(tensor));
		if (tensor->pins.count)
			return error_about(error, -EBUSY, tensor->name, 0, 0,
					   "%s is pinned by another call, and its contents are not "
					   "written yet: release it and swap it out first",
					   tensor->name);
		if (tensor->status && engine->write_failures != pinning->failures)
			return tensor_error(engine, tensor, error);
		nfailed += tensor->status != 0;
		engine->scratch[ndirty++] = tensor;
	}
	for (size_t i = 0; i < ndirty; i++)
		leave_idle(engine, engine->scratch[i]);
	pinning->list = runs_build(engine, engine->scratch, ndirty, NVS_WRITE);
	pinning->failed_again = ndirty && nfailed == ndirty;
	return ndirty ? -EAGAIN : 0;
}

/* One attempt, under the lock: 0, -EAGAIN with the transfers to launch, or an error. */
static int try_begin(struct nvs_engine *engine, struct pinning *pinning, struct nvs_error *error)
{
	uint64_t need;
	size_t count;
	int rc = check_pin(engine, pinning->tensors, pinning->n, pinning->contents, error);

	pinning->list = NULL;
	pinning->stuck = pinning->failed_again = false;
	pinning->need = 0;
	if (rc)
		return rc;
	/* The caller writes new contents at once, so the old ones must have landed. */
	if (!pinning->contents && any_in_flight(pinning)) {
		pinning->stuck = true;
		return -EAGAIN;
	}
	rc = pinning->contents ? 0 : write_before_pin(engine, pinning, error);
	if (rc)
		return rc;
	count = collect(engine, pinning->tensors, pinning->n, &need);
	if (need <= free_bytes(engine) && lease_all(engine, count)) {
		pinning->list = begin(engine, pinning, count);
		return 0;
	}
	if (engine->write_failures != pinning->failures)
		return write_back_failed(engine, error);
	make_room(engine, need, pinning);
	pinning->need = need;
	pinning_check(engine, pinning);
	return -EAGAIN;
}

static int no_time_left(const struct nvs_engine *engine, const struct pinning *pinning, int code,
			struct nvs_error *error)
{
	char text[SHORTAGE_TEXT_BYTES];

	if (code == -ETIMEDOUT && pinning->need) {
		shortage_text(engine, text);
		return error_set(error, code,
				 "the time limit ran out, and the pool has no room for a batch of "
				 "%zu tensors: %s",
				 pinning->n, text);
	}
	return error_set(error, code,
			 "the pool has no room for a batch of %zu tensors, or one of them is in "
			 "flight: %s",
			 pinning->n, nvs_strerror(code));
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

	return pinning->need > free && pinning->need <= free + engine->landing &&
	       engine->write_failures == pinning->failures && !any_overdue(engine);
}

/* About how many of the writes in flight make the room, if they are of one length. */
static uint64_t runs_to_wait_for(const struct nvs_engine *engine, const struct pinning *pinning)
{
	double missing;

	if (!room_is_coming(engine, pinning))
		return 1;
	assert(engine->landing && pinning->need > free_bytes(engine));
	missing = (double)(pinning->need - free_bytes(engine));
	return (uint64_t)(missing / (double)engine->landing * (double)engine->inflight[NVS_WRITE]);
}

/* An error if waiting is pointless, else 0. */
static int check_waiting(const struct nvs_engine *engine, const struct pinning *pinning,
			 struct nvs_error *error)
{
	int rc = 0;

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
	return pinning->failed_again ? write_back_failed(engine, error)
				     : no_time_left(engine, pinning, -EAGAIN, error);
}

static void begin_waiting(struct nvs_engine *engine, struct pinning *pinning)
{
	if (pinning->waits_from_ns)
		return;
	pinning->waits_from_ns = clock_ns();
	engine->waiting++;
	assert(engine->waiting);
}

/* The call waits for these write-backs, so they go before reading ahead. */
static void promote_all(struct transfer *list)
{
	for (struct transfer *run = list; run; run = run->state.next) {
		assert(run->direction == NVS_WRITE);
		run->priority = TRANSFER_AWAITED;
	}
}

static int wait_for_room(struct nvs_engine *engine, struct pinning *pinning, uint64_t deadline,
			 struct nvs_error *error)
{
	uint64_t until = deadline;
	int rc;

	pinning_check(engine, pinning);
	assert(deadline && pinning->stuck);
	if (pinning->need)
		until = shortage_deadline(engine, &pinning->shortage, deadline);
	do {
		rc = events_wait_for(engine, runs_to_wait_for(engine, pinning), until);
	} while (!rc && room_is_coming(engine, pinning));
	if (rc == -ETIMEDOUT && until != deadline) {
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

		if (rc != -EAGAIN)
			return rc;
		if (deadline && (pinning->list || pinning->stuck))
			begin_waiting(engine, pinning);
		if (pinning->list) {
			if (deadline)
				promote_all(pinning->list);
			engine_sums_check(engine);
			pthread_mutex_unlock(&engine->lock);
			launch(engine, pinning->list);
			pthread_mutex_lock(&engine->lock);
			engine_sums_check(engine);
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

static int pin_all(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		   bool contents, int timeout_ms, uint64_t *pin, struct nvs_error *error)
{
	struct pinning pinning = {.tensors = tensors, .n = n, .contents = contents};
	struct transfer *list = NULL;
	uint64_t deadline = deadline_ns(timeout_ms);
	int rc;

	if (!pin)
		return error_set(error, -EINVAL, "there is nowhere to store the pin: pin is NULL");
	*pin = 0;
	rc = check_array(engine, tensors, n, error);
	/* New contents could not be written. */
	if (!rc && !contents)
		rc = check_writable(engine, error);
	if (rc)
		return rc;
	pthread_mutex_lock(&engine->lock);
	engine_sums_check(engine);
	pinning.failures = engine->write_failures;
	rc = begin_in_time(engine, &pinning, deadline, error);
	if (pinning.waits_from_ns) {
		assert(engine->waiting);
		engine->waiting--;
		step_stalled(engine, pinning.waits_from_ns);
		trace_wait(engine, NULL, pinning.waits_from_ns);
	}
	if (!rc) {
		*pin = engine->last_pin;
		trace_calls(engine, contents ? TRACE_SWAP_IN : TRACE_LEASE, tensors, n);
		list = join(pinning.list, keep_to_max_live(engine));
		list = join(list, move_ahead(engine));
	}
	engine_sums_check(engine);
	pthread_mutex_unlock(&engine->lock);
	launch(engine, list);
	return rc;
}

int nvs_tensor_pin(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		   int timeout_ms, uint64_t *pin, struct nvs_error *error)
{
	return pin_all(engine, tensors, n, false, timeout_ms, pin, error);
}

int nvs_tensor_swap_in(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		       int timeout_ms, uint64_t *pin, struct nvs_error *error)
{
	return pin_all(engine, tensors, n, true, timeout_ms, pin, error);
}

int engine_pin(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
	       uint64_t *pin, struct nvs_error *error)
{
	int rc = nvs_tensor_swap_in(engine, tensors, n, -1, pin, error);

	if (rc)
		return rc;
	rc = nvs_tensor_wait(engine, tensors, n, *pin, -1, error);
	if (!rc)
		return 0;
	for (size_t i = 0; i < n; i++)
		engine_unpin(engine, tensors[i], *pin);
	*pin = 0;
	return rc;
}
