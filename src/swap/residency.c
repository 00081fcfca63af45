/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pinning and releasing tensors, reading ahead, swapping out, and waiting for transfers.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "swap/internal.h"

bool in_flight(const struct nvs_tensor *tensor)
{
	return tensor->state == NVS_READING || tensor->state == NVS_WRITING;
}

/* ---- Room for a batch ---- */

/* A call that pins tensors, across its attempts. */
struct attempt {
	struct nvs_tensor *const *tensors;
	size_t n;
	bool contents;		/* read them; false: lease */
	uint64_t failures;	/* write-backs that failed before the call */
	bool waited;		/* the pool's statistics have counted the wait for room */
	uint64_t waits_from_ns; /* when it began to wait; 0: it did not */
	struct transfer *list;	/* to be launched: the reads, or write-backs to make room */
	bool stuck;		/* nothing more can be started; only other calls can make room */
	bool failed_again;	/* the write-backs that make room failed the last time */
};

static bool has_room(const struct nvs_engine *engine, const struct eviction *eviction)
{
	(void)engine;
	return eviction->reached >= eviction->goal;
}

/* Makes room for `need` bytes as far as possible without waiting. */
static void make_room(struct nvs_engine *engine, uint64_t need, struct attempt *attempt)
{
	struct eviction eviction = {.enough = has_room,
				    .goal = need,
				    .reached = free_bytes(engine) + engine->landing,
				    .writes = true,
				    .ahead = true,
				    .small = true,
				    .needed_by = PLAN_NONE};
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
	attempt->list = runs_build(engine, engine->scratch, eviction.ndirty, NVS_WRITE);
	attempt->stuck = !eviction.ntaken;
	attempt->failed_again = eviction.ntaken && eviction.nfailed == eviction.ntaken;
	if (attempt->list || attempt->stuck) {
		if (!attempt->waited)
			pool_note_wait(engine->pool);
		attempt->waited = true;
	}
}

/* Puts those of the batch that are not in the pool into engine->scratch. */
static size_t collect(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		      uint64_t *need)
{
	size_t count = 0;

	*need = 0;
	for (size_t i = 0; i < n; i++)
		if (needs_memory(tensors[i])) {
			engine->scratch[count++] = tensors[i];
			*need += tensors[i]->extent;
		}
	return count;
}

/* ---- Checks of a batch, before anything is changed ---- */

static int check_named_once(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			    struct nvs_error *error)
{
	engine->batch++;
	for (size_t i = 0; i < n; i++) {
		if (tensors[i]->batch == engine->batch)
			return error_about(error, -EINVAL, tensors[i]->name, 0, 0,
					   "%s is named twice in one batch", tensors[i]->name);
		tensors[i]->batch = engine->batch;
	}
	return 0;
}

int no_contents(const struct nvs_tensor *tensor, struct nvs_error *error)
{
	return error_about(error, -ENODATA, tensor->name, 0, 0,
			   "%s has no contents to read: it has never been written, or its last "
			   "write failed",
			   tensor->name);
}

static int check_use(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		     bool contents, struct nvs_error *error)
{
	uint64_t sum = 0;
	char need[32], have[32];
	int rc = check_named_once(engine, tensors, n, error);

	for (size_t i = 0; i < n && !rc; i++) {
		if (tensors[i]->external)
			return error_about(error, -EBUSY, tensors[i]->name, 0, 0,
					   "%s is in flight from or to external memory: wait for "
					   "it first",
					   tensors[i]->name);
		/* A read would return older contents than the caller has written. */
		rc = contents ? report_failed_write(engine, tensors[i], error) : 0;
		if (rc)
			return rc;
		if (contents && tensors[i]->state == NVS_EMPTY)
			return no_contents(tensors[i], error);
		if (contents && tensors[i]->leased)
			return error_about(error, -EBUSY, tensors[i]->name, 0, 0,
					   "%s is leased and its new contents are not released "
					   "yet: release it first",
					   tensors[i]->name);
		if (tensors[i]->extent > pool_bytes(engine->pool))
			return too_large(engine, tensors[i], error);
		sum += tensors[i]->extent;
	}
	for (size_t i = 0; i < n && !rc; i++)
		rc = pins_reserve(tensors[i]);
	if (rc == -ENOMEM)
		return error_set(error, rc, "out of memory for the pins of a tensor");
	if (!rc && sum > pool_bytes(engine->pool))
		return error_set(
			error, -ENOBUFS,
			"a batch of %zu tensors needs %s at once, and the pool has %s (%s): "
			"make the batch smaller or the pool larger",
			n, size_text(sum, need), size_text(pool_bytes(engine->pool), have),
			engine->remedy);
	return rc;
}

/* ---- Pinning ---- */

static void use(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	assert(!tensor->external);
	leave_idle(engine, tensor);
	set_drop(engine, tensor, false);
	set_prefetched(engine, tensor, false);
	tensor->by_engine = false;
	pins_add(tensor, engine->last_pin);
}

static struct transfer *begin(struct nvs_engine *engine, const struct attempt *attempt,
			      size_t nleased)
{
	step_access(engine, attempt->tensors, attempt->n, attempt->contents);
	engine->last_pin++;
	for (size_t i = 0; i < attempt->n; i++) {
		struct nvs_tensor *tensor = attempt->tensors[i];

		use(engine, tensor);
		if (!attempt->contents)
			tensor->leased = true;
		if (tensor->state == NVS_RESIDENT)
			tensor->status = 0;
	}
	if (attempt->contents)
		return runs_build(engine, engine->scratch, nleased, NVS_READ);
	for (size_t i = 0; i < nleased; i++) {
		engine->scratch[i]->state = NVS_RESIDENT;
		engine->scratch[i]->status = 0;
	}
	return NULL;
}

static int write_back_failed(const struct nvs_engine *engine, struct nvs_error *error)
{
	const struct nvs_error *why = &engine->failure;

	return error_about(error, why->code, why->subject, 0, why->offset,
			   "no room in the pool: a tensor could not be written back and stays in "
			   "it: %.800s",
			   why->text);
}

static bool any_in_flight(const struct attempt *attempt)
{
	for (size_t i = 0; i < attempt->n; i++)
		if (in_flight(attempt->tensors[i]))
			return true;
	return false;
}

/*
 * A lease hands out the memory of the present contents. Contents that are released and not written
 * yet are written first, so that a clean release finds them on the drive: 0 if there are none, or
 * -EAGAIN with the transfers to launch, or an error.
 */
static int write_before_lease(struct nvs_engine *engine, struct attempt *attempt,
			      struct nvs_error *error)
{
	size_t ndirty = 0, nfailed = 0;

	for (size_t i = 0; i < attempt->n; i++) {
		struct nvs_tensor *tensor = attempt->tensors[i];

		if (!tensor->dirty || !tensor->extent || tensor->leased)
			continue;
		assert(tensor->state == NVS_RESIDENT && !tensor->external);
		if (tensor->uses)
			return error_about(error, -EBUSY, tensor->name, 0, 0,
					   "%s is pinned by another call, and its contents are not "
					   "written yet: release it and swap it out first",
					   tensor->name);
		if (tensor->status && engine->write_failures != attempt->failures)
			return tensor_error(engine, tensor, error);
		nfailed += tensor->status != 0;
		engine->scratch[ndirty++] = tensor;
	}
	for (size_t i = 0; i < ndirty; i++)
		leave_idle(engine, engine->scratch[i]);
	attempt->list = runs_build(engine, engine->scratch, ndirty, NVS_WRITE);
	attempt->failed_again = ndirty && nfailed == ndirty;
	return ndirty ? -EAGAIN : 0;
}

/* One attempt, under the lock: 0, -EAGAIN with the transfers to launch, or an error. */
static int try_begin(struct nvs_engine *engine, struct attempt *attempt, struct nvs_error *error)
{
	uint64_t need;
	size_t count;
	int rc = check_use(engine, attempt->tensors, attempt->n, attempt->contents, error);

	attempt->list = NULL;
	attempt->stuck = attempt->failed_again = false;
	if (rc)
		return rc;
	/* The caller writes new contents at once, so the old ones must have landed. */
	if (!attempt->contents && any_in_flight(attempt)) {
		attempt->stuck = true;
		return -EAGAIN;
	}
	rc = attempt->contents ? 0 : write_before_lease(engine, attempt, error);
	if (rc)
		return rc;
	count = collect(engine, attempt->tensors, attempt->n, &need);
	if (need <= free_bytes(engine) && lease_all(engine, count)) {
		attempt->list = begin(engine, attempt, count);
		return 0;
	}
	if (engine->write_failures != attempt->failures)
		return write_back_failed(engine, error);
	make_room(engine, need, attempt);
	return -EAGAIN;
}

static int no_time_left(const struct attempt *attempt, int code, struct nvs_error *error)
{
	return error_set(error, code,
			 "the pool has no room for a batch of %zu tensors, or one of them is in "
			 "flight: %s",
			 attempt->n, nvs_strerror(code));
}

/* An error if waiting is pointless, else 0. */
static int check_attempt(const struct nvs_engine *engine, const struct attempt *attempt,
			 struct nvs_error *error)
{
	int rc = 0;

	for (size_t i = 0; i < attempt->n && !rc && !attempt->contents; i++)
		rc = check_overdue(engine, attempt->tensors[i], error);
	return rc ? rc : check_hung(engine, error);
}

/* Non-blocking callers can't observe their write-back failures; report the previous one here. */
static int end_polling(const struct nvs_engine *engine, const struct attempt *attempt,
		       struct nvs_error *error)
{
	return attempt->failed_again ? write_back_failed(engine, error)
				     : no_time_left(attempt, -EAGAIN, error);
}

static void begin_waiting(struct nvs_engine *engine, struct attempt *attempt)
{
	if (attempt->waits_from_ns)
		return;
	attempt->waits_from_ns = clock_ns();
	engine->waiting++;
}

/* Under the lock, which it releases to launch write-backs and to wait. */
static int begin_in_time(struct nvs_engine *engine, struct attempt *attempt, uint64_t deadline,
			 struct nvs_error *error)
{
	for (;;) {
		int rc = try_begin(engine, attempt, error);

		if (rc != -EAGAIN)
			return rc;
		if (deadline && (attempt->list || attempt->stuck))
			begin_waiting(engine, attempt);
		if (attempt->list) {
			pthread_mutex_unlock(&engine->lock);
			launch(engine, attempt->list);
			pthread_mutex_lock(&engine->lock);
		}
		/* The write-backs may have landed while the lock was released. */
		if (!attempt->stuck && (deadline || !attempt->list))
			continue;
		rc = check_attempt(engine, attempt, error);
		if (rc)
			return rc;
		if (!deadline)
			return end_polling(engine, attempt, error);
		rc = events_wait(engine, deadline);
		if (rc)
			return no_time_left(attempt, rc, error);
	}
}

static int begin_use(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		     bool contents, int timeout_ms, uint64_t *pin, struct nvs_error *error)
{
	struct attempt attempt = {.tensors = tensors, .n = n, .contents = contents};
	struct transfer *list = NULL;
	uint64_t deadline = deadline_ns(timeout_ms);
	int rc;

	if (!pin)
		return error_set(error, -EINVAL, "there is nowhere to store the pin: pin is NULL");
	*pin = 0;
	rc = check_arguments(engine, tensors, n, error);
	if (rc)
		return rc;
	pthread_mutex_lock(&engine->lock);
	attempt.failures = engine->write_failures;
	rc = begin_in_time(engine, &attempt, deadline, error);
	if (attempt.waits_from_ns) {
		engine->waiting--;
		step_stalled(engine, attempt.waits_from_ns);
		trace_wait(engine, NULL, attempt.waits_from_ns);
	}
	if (!rc) {
		*pin = engine->last_pin;
		trace_calls(engine, contents ? TRACE_SWAP_IN : TRACE_LEASE, tensors, n);
		list = join(attempt.list, keep_to_max_live(engine));
		list = join(list, move_ahead(engine));
	}
	pthread_mutex_unlock(&engine->lock);
	launch(engine, list);
	return rc;
}

int nvs_tensor_pin(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		   int timeout_ms, uint64_t *pin, struct nvs_error *error)
{
	return begin_use(engine, tensors, n, false, timeout_ms, pin, error);
}

int nvs_tensor_swap_in(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		       int timeout_ms, uint64_t *pin, struct nvs_error *error)
{
	return begin_use(engine, tensors, n, true, timeout_ms, pin, error);
}

/* ---- Reading ahead ---- */

/* How many of the tensors, from the first, fit in free or clean memory. */
static size_t fitting(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n)
{
	uint64_t need = 0, have;
	size_t count = 0;

	for (size_t i = 0; i < n; i++)
		need += needs_memory(tensors[i]) ? tensors[i]->extent : 0;
	if (need > free_bytes(engine)) {
		struct eviction eviction = {.enough = has_room,
					    .goal = need,
					    .reached = free_bytes(engine),
					    .needed_by = PLAN_NONE};

		evict_until_enough(engine, &eviction);
	}
	have = free_bytes(engine);
	for (need = 0; count < n; count++) {
		need += needs_memory(tensors[count]) ? tensors[count]->extent : 0;
		if (need > have)
			break;
	}
	return count;
}

static size_t read_ahead(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			 struct transfer **list)
{
	uint64_t need;
	size_t count;

	for (n = fitting(engine, tensors, n); n; n /= 2) {
		count = collect(engine, tensors, n, &need);
		if (!lease_all(engine, count))
			continue;
		for (size_t i = 0; i < count; i++)
			set_prefetched(engine, engine->scratch[i], true);
		/* Cancel the eviction of tensors that are being written. */
		for (size_t i = 0; i < n; i++)
			set_drop(engine, tensors[i], false);
		*list = runs_build(engine, engine->scratch, count, NVS_READ);
		return n;
	}
	return 0;
}

long nvs_tensor_prefetch(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			 struct nvs_error *error)
{
	struct transfer *list = NULL;
	long rc = check_arguments(engine, tensors, n, error);

	if (rc)
		return rc;
	pthread_mutex_lock(&engine->lock);
	rc = check_named_once(engine, tensors, n, error);
	for (size_t i = 0; i < n && !rc; i++)
		if (tensors[i]->state == NVS_EMPTY)
			rc = no_contents(tensors[i], error);
	if (!rc)
		rc = (long)read_ahead(engine, tensors, n, &list);
	if (rc >= 0)
		trace_calls(engine, TRACE_PREFETCH, tensors, n);
	pthread_mutex_unlock(&engine->lock);
	launch(engine, list);
	return rc;
}

/* ---- Releasing ---- */

static int check_release_one(const struct nvs_tensor *tensor, uint64_t pin, enum nvs_how how,
			     struct nvs_error *error)
{
	int rc = pin_check(tensor, pin, error);

	if (rc || pin_failed(tensor, pin))
		return rc;
	if (tensor->state == NVS_READING)
		return error_about(error, -EBUSY, tensor->name, 0, 0,
				   "%s is still being read: wait for it before releasing it",
				   tensor->name);
	if (tensor->state == NVS_WRITING && how == NVS_DIRTY)
		return error_about(error, -EBUSY, tensor->name, 0, 0,
				   "%s is still being written: wait for it before changing it and "
				   "releasing it dirty",
				   tensor->name);
	return 0;
}

static int check_release(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			 uint64_t pin, enum nvs_how how, struct nvs_error *error)
{
	int rc = check_named_once(engine, tensors, n, error);

	for (size_t i = 0; i < n && !rc; i++)
		rc = check_release_one(tensors[i], pin, how, error);
	return rc;
}

/* A tensor whose read failed is not pinned any more. */
static void end_use(struct nvs_engine *engine, struct nvs_tensor *tensor, uint64_t pin,
		    enum nvs_how how)
{
	if (pin_failed(tensor, pin))
		return;
	pins_remove(tensor, pin);
	if (how == NVS_DIRTY) {
		tensor->dirty = true;
		tensor->leased = false;
		tensor->unreported = 0;
	}
	if (tensor->uses || in_flight(tensor))
		return;
	if (tensor->leased)
		drop(engine, tensor);
	else
		make_idle(engine, tensor);
}

/* Transfers to launch after tensors were unpinned. */
static struct transfer *after_release(struct nvs_engine *engine)
{
	struct transfer *list = join(keep_to_max_in_cpu(engine), keep_to_max_live(engine));

	list = join(list, move_ahead(engine));
	events_changed(engine);
	return list;
}

int nvs_tensor_release(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		       uint64_t pin, enum nvs_how how, struct nvs_error *error)
{
	struct transfer *list = NULL;
	int rc = check_arguments(engine, tensors, n, error);

	if (rc)
		return rc;
	if (how != NVS_CLEAN && how != NVS_DIRTY)
		return error_set(error, -EINVAL, "how is %d: neither NVS_CLEAN nor NVS_DIRTY",
				 (int)how);
	if (how == NVS_DIRTY)
		rc = check_writable(engine, error);
	if (rc)
		return rc;
	pthread_mutex_lock(&engine->lock);
	rc = check_release(engine, tensors, n, pin, how, error);
	for (size_t i = 0; i < n && !rc; i++)
		end_use(engine, tensors[i], pin, how);
	if (!rc) {
		trace_calls(engine, how == NVS_DIRTY ? TRACE_RELEASE_DIRTY : TRACE_RELEASE_CLEAN,
			    tensors, n);
		list = after_release(engine);
	}
	pthread_mutex_unlock(&engine->lock);
	launch(engine, list);
	return rc;
}

void engine_unpin(struct nvs_engine *engine, struct nvs_tensor *tensor, uint64_t pin)
{
	struct transfer *list;

	pthread_mutex_lock(&engine->lock);
	if (pins_have(tensor, pin)) {
		trace_calls(engine, TRACE_RELEASE_CLEAN, &tensor, 1);
		end_use(engine, tensor, pin, NVS_CLEAN);
	}
	list = after_release(engine);
	pthread_mutex_unlock(&engine->lock);
	launch(engine, list);
}

void engine_discard(struct nvs_engine *engine, struct nvs_tensor *tensor, uint64_t pin)
{
	struct transfer *list;

	pthread_mutex_lock(&engine->lock);
	if (pins_have(tensor, pin)) {
		trace_calls(engine, TRACE_RELEASE_CLEAN, &tensor, 1);
		end_use(engine, tensor, pin, NVS_CLEAN);
	}
	if (tensor->state == NVS_RESIDENT && !tensor->uses)
		drop(engine, tensor);
	list = after_release(engine);
	pthread_mutex_unlock(&engine->lock);
	launch(engine, list);
}

/* ---- Swapping out ---- */

int check_unpinned(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		   struct nvs_error *error)
{
	int rc = check_named_once(engine, tensors, n, error);

	for (size_t i = 0; i < n && !rc; i++)
		if (tensors[i]->uses || tensors[i]->external)
			rc = error_about(error, -EBUSY, tensors[i]->name, 0, 0, "%s is pinned: %s",
					 tensors[i]->name,
					 tensors[i]->external ? "wait for its transfer first"
							      : "release it first");
	return rc;
}

static struct transfer *swap_out(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
				 size_t n)
{
	size_t ndirty = 0;

	for (size_t i = 0; i < n; i++) {
		struct nvs_tensor *tensor = tensors[i];

		if (needs_memory(tensor))
			continue;
		if (in_flight(tensor)) {
			set_drop(engine, tensor, true);
		} else if (tensor->dirty) {
			leave_idle(engine, tensor);
			set_prefetched(engine, tensor, false);
			set_drop(engine, tensor, true);
			engine->scratch[ndirty++] = tensor;
		} else {
			drop(engine, tensor);
			tensor->status = 0;
		}
	}
	return runs_build(engine, engine->scratch, ndirty, NVS_WRITE);
}

int nvs_tensor_swap_out(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			struct nvs_error *error)
{
	struct transfer *list = NULL;
	int rc = check_arguments(engine, tensors, n, error);

	if (rc)
		return rc;
	pthread_mutex_lock(&engine->lock);
	rc = check_unpinned(engine, tensors, n, error);
	if (!rc) {
		trace_calls(engine, TRACE_SWAP_OUT, tensors, n);
		list = swap_out(engine, tensors, n);
		events_changed(engine);
	}
	pthread_mutex_unlock(&engine->lock);
	launch(engine, list);
	return rc;
}

/* ---- Waiting ---- */

/* Waits until the tensor has landed or its pin has ended; *from_ns is when the call began to wait.
 */
static int wait_for(struct nvs_engine *engine, const struct nvs_tensor *tensor, uint64_t pin,
		    uint64_t deadline, uint64_t *from_ns, struct nvs_error *error)
{
	uint64_t now;
	int rc = 0;

	if (!in_flight(tensor) || pin_failed(tensor, pin))
		return 0;
	now = clock_ns();
	if (!*from_ns && deadline)
		*from_ns = now;
	while (in_flight(tensor) && !pin_failed(tensor, pin) && !tensor->overdue && !rc)
		rc = events_wait(engine, deadline);
	if (deadline)
		trace_wait(engine, tensor, now);
	if (pin_failed(tensor, pin))
		return 0;
	if (tensor->overdue)
		return check_overdue(engine, tensor, error);
	if (rc)
		error_about(error, rc, tensor->name, 0, 0, "%s is still in flight: %s",
			    tensor->name, nvs_strerror(rc));
	return rc;
}

/* A call waits for the tensor: its transfer goes first. */
static void promote(struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	struct transfer *transfer;

	if (!in_flight(tensor))
		return;
	transfer = &tensor->run_first->transfer;
	if (transfer->priority != TRANSFER_AWAITED)
		aio_promote(engine->aio, transfer);
}

static int wait_for_all(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			uint64_t pin, uint64_t deadline, struct nvs_error *error)
{
	uint64_t from_ns = 0;
	int rc = 0;

	for (size_t i = 0; i < n && deadline; i++)
		promote(engine, tensors[i]);
	for (size_t i = 0; i < n && !rc; i++)
		rc = wait_for(engine, tensors[i], pin, deadline, &from_ns, error);
	if (from_ns)
		step_stalled(engine, from_ns);
	return rc;
}

/* The first failure of transfers that have landed. A pin hears of its own read alone. */
static int first_failure(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			 uint64_t pin, struct nvs_error *error)
{
	int rc = 0;

	for (size_t i = 0; i < n && !rc; i++) {
		if (pin_failed(tensors[i], pin))
			rc = pin_error(engine, tensors[i], error);
		else if (!pin && tensors[i]->status)
			rc = tensor_error(engine, tensors[i], error);
		else if (!pin)
			rc = report_failed_write(engine, tensors[i], error);
	}
	for (size_t i = 0; i < n && !pin; i++)
		report_failed_write(engine, tensors[i], NULL);
	return rc;
}

int nvs_tensor_wait(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		    uint64_t pin, int timeout_ms, struct nvs_error *error)
{
	uint64_t deadline = deadline_ns(timeout_ms);
	int rc = check_arguments(engine, tensors, n, error);

	if (rc)
		return rc;
	pthread_mutex_lock(&engine->lock);
	for (size_t i = 0; i < n && !rc && pin; i++)
		rc = pin_check(tensors[i], pin, error);
	if (!rc)
		rc = wait_for_all(engine, tensors, n, pin, deadline, error);
	if (!rc)
		rc = first_failure(engine, tensors, n, pin, error);
	if (!rc)
		trace_calls(engine, TRACE_WAITED, tensors, n);
	pthread_mutex_unlock(&engine->lock);
	return rc;
}

int engine_wait_landed(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		       struct nvs_error *error)
{
	uint64_t from_ns = 0;
	int rc = 0;

	pthread_mutex_lock(&engine->lock);
	for (size_t i = 0; i < n && !rc; i++)
		rc = wait_for(engine, tensors[i], 0, UINT64_MAX, &from_ns, error);
	if (!rc)
		trace_calls(engine, TRACE_WAITED, tensors, n);
	pthread_mutex_unlock(&engine->lock);
	return rc;
}

int engine_pin(struct nvs_engine *engine, struct nvs_tensor *tensor, uint64_t *pin,
	       struct nvs_error *error)
{
	int rc = nvs_tensor_swap_in(engine, &tensor, 1, -1, pin, error);

	if (rc)
		return rc;
	rc = nvs_tensor_wait(engine, &tensor, 1, *pin, -1, error);
	if (rc) {
		engine_unpin(engine, tensor, *pin);
		*pin = 0;
	}
	return rc;
}

void *nvs_tensor_data(const struct nvs_tensor *tensor)
{
	void *data;

	if (!tensor)
		return NULL;
	pthread_mutex_lock(&tensor->engine->lock);
	data = tensor->external ? NULL : tensor->data;
	pthread_mutex_unlock(&tensor->engine->lock);
	return data;
}
