/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The swap engine against a reference model: the contents of each tensor, the results that each
 * call may return, and nvs_tensor_get_info of every tensor. The model holds and releases the drive.
 * It does not know the progress of other threads, so it allows a transfer to be in flight or landed
 * in calls that do not wait.
 */
#include "config/config.h"
#include "support/history/history.h"
#include "support/inject.h"
#include "swap/swap_fixture.h"

#define TENSORS 20
#define BATCH	6

/*
 * One of the versions from `oldest` to `newest`, or, if `none`, possibly no contents; newest 0:
 * certainly none.
 */
struct value {
	uint64_t oldest, newest;
	bool none;
};
static const struct value nothing = {0, 0, true};

struct modelled {
	char name[24], committed_name[24];
	uint64_t nbytes, extent;
	struct nvs_tensor *handle; /* NULL: not registered */
	uint64_t versions;	   /* versions of its contents so far */
	struct value value;	   /* present contents */
	struct value drive;	   /* contents on the drive, if they can differ */
	struct value stored;	   /* contents when it is registered */
	struct value committed;
	uint32_t uses;
	bool pending;	  /* its pins are unconfirmed: reads can have failed */
	bool leased;	  /* its only pin asked for new contents */
	bool changed;	  /* pinned, written, and not yet released dirty */
	bool external;	  /* in flight to or from `memory` */
	bool writing;	  /* with `external`: from `memory` */
	bool asked_for;	  /* a call since then may have found it landed */
	unsigned changes; /* for history_swap_mistaken */
	char *memory;
};

struct world {
	struct history_drive drive;
	struct nvs_config config;
	struct nvs_engine *engine;
	struct nvs_error error;
	struct modelled t[TENSORS];
	uint64_t random, unit, pool;
	bool step, mistaken;
	bool real;	 /* on a real I/O engine, and no call fails */
	bool undurable;	 /* a call of a commit has failed, so every later one may */
	bool unreported; /* an external write may have failed unreported */
	/* The batch of the current operation. */
	struct nvs_tensor *batch[BATCH];
	struct modelled *which[BATCH];
	size_t n;
};

/* ---- Contents ---- */

static uint64_t contents_of(const struct modelled *t, uint64_t version)
{
	return (uint64_t)(unsigned char)t->name[1] << 56 ^ t->nbytes << 32 ^ version;
}

static struct value exactly(uint64_t version)
{
	return (struct value){version, version, false};
}

/* The data must match the tensor's possible versions; narrows these to the version found. */
static bool agrees(const struct modelled *t, const void *data, struct value *value)
{
	for (uint64_t v = value->newest; v && v >= value->oldest; v--)
		if (filled(data, t->nbytes, contents_of(t, v))) {
			/* Short contents of different versions can be equal. */
			if (t->nbytes >= 8)
				*value = exactly(v);
			return true;
		}
	return false;
}

static void check_contents(struct modelled *t, const void *data)
{
	if (!agrees(t, data, &t->value))
		history_fail(__FILE__, __LINE__,
			     "%s holds something else than its contents %" PRIu64 " to %" PRIu64,
			     t->name, t->value.oldest, t->value.newest);
}

static void make_contents(struct world *w, struct modelled *t, void *data)
{
	fill(data, t->nbytes, contents_of(t, ++t->versions));
	t->value = exactly(t->versions);
	if (w->mistaken && ++t->changes == 2 && t->nbytes >= 8)
		t->value = exactly(t->versions + 1);
}

/* Dirty contents in the pool can be written back at any time. */
static void drive_may_have(struct world *w, struct modelled *t)
{
	if (!t->drive.newest)
		t->drive = (struct value){t->value.oldest, 0, true};
	t->drive.newest = t->value.newest;
	t->drive.none |= w->drive.faulty || w->drive.stormy;
}

/* ---- What nvs_tensor_get_info may report ---- */

static bool caused(const struct world *w, int rc)
{
	return history_drive_caused(&w->drive, rc) ||
	       (w->unreported && (rc == -EIO || rc == -ENOSPC));
}

static struct nvs_tensor_info info_of_tensor(const struct world *w, const struct modelled *t)
{
	struct nvs_tensor_info info = {.size = sizeof(info)};

	nvs_tensor_get_info(w->engine, t->handle, &info);
	return info;
}

static bool flying(const struct nvs_tensor_info *info)
{
	return info->state == NVS_READING || info->state == NVS_WRITING;
}

static void landed(struct world *w, struct modelled *t, const struct nvs_tensor_info *info)
{
	t->external = false;
	HOLDS(!info->status || caused(w, info->status));
	if (!t->writing && !info->status && !t->asked_for)
		check_contents(t, t->memory);
	if (!t->writing)
		return;
	if (info->status && info->state == NVS_EMPTY)
		t->value = nothing;
	else if ((info->status || t->asked_for) && t->drive.newest)
		t->value.oldest = t->drive.oldest;
	t->drive = t->value;
}

static void look_at(struct world *w, struct modelled *t)
{
	struct nvs_tensor_info info = info_of_tensor(w, t);

	HOLDS(!strcmp(info.name, t->name) && info.nbytes == t->nbytes);
	HOLDS(!info.dirty || info.state == NVS_RESIDENT);
	HOLDS(!info.status || caused(w, info.status));
	if (t->external) {
		HOLDS(!info.pins || t->asked_for);
		if (flying(&info) && !info.pins)
			return;
		landed(w, t, &info);
	}
	HOLDS(info.pins == t->uses ||
	      (t->pending && info.pins < t->uses && (w->drive.faulty || w->drive.stormy)));
	/* A failed read ended the pins that waited for it. */
	if (t->pending && (!info.pins || info.state != NVS_READING))
		t->uses = info.pins;
	t->pending &= t->uses != 0;
	if (t->uses) {
		HOLDS(t->pending || info.state == NVS_RESIDENT || info.state == NVS_WRITING);
		return;
	}
	HOLDS(!t->leased && !t->changed);
	HOLDS(info.state == NVS_EMPTY ? t->value.none : t->value.newest > 0);
	if (info.state == NVS_EMPTY)
		t->value = nothing;
	t->value.none = info.state == NVS_EMPTY;
	if (!info.dirty && info.state != NVS_WRITING)
		t->drive = t->value;
}

static void look(struct world *w)
{
	for (size_t i = 0; i < TENSORS; i++)
		if (w->t[i].handle)
			look_at(w, &w->t[i]);
}

/* ---- Batches ---- */

typedef bool choice(const struct modelled *t);

#define CHOICE(name, condition)                                                                    \
	static bool name(const struct modelled *t)                                                 \
	{                                                                                          \
		return condition;                                                                  \
	}

CHOICE(whichever, t != NULL)
CHOICE(absent, !t->handle)
CHOICE(registered, t->handle)
CHOICE(unused, t->handle && !t->uses && !t->external)
CHOICE(not_leased, t->handle && !t->leased && !t->external)
CHOICE(has_contents, t->handle && t->value.newest && !t->leased && !t->external)
CHOICE(has_bytes, t->handle && t->nbytes)
CHOICE(has_bytes_and_contents, has_contents(t) && t->nbytes)
CHOICE(in_use, t->handle && t->uses && !t->pending)
CHOICE(has_changes, in_use(t) && !t->leased)
CHOICE(clean_in_use, in_use(t) && !t->changed)
CHOICE(unwaited, t->handle && (t->pending || t->external))
CHOICE(empty, !t->value.newest && !t->leased && !t->external)
CHOICE(maybe_empty, (t->value.none && !t->leased) || t->external)
CHOICE(external, t->external)
CHOICE(leased, t->leased)

static bool any(const struct world *w, choice *is)
{
	for (size_t k = 0; k < w->n; k++)
		if (is(w->which[k]))
			return true;
	return false;
}

static bool anywhere(const struct world *w, choice *is)
{
	for (size_t i = 0; i < TENSORS; i++)
		if (is(&w->t[i]))
			return true;
	return false;
}

/* Chooses up to `most` different tensors, mostly neighbours. */
static bool choose(struct world *w, choice *good, size_t most)
{
	size_t at = below(&w->random, TENSORS), step = below(&w->random, 2) ? 1 : 7;

	most = 1 + below(&w->random, most);
	w->n = 0;
	for (size_t k = 0; k < TENSORS && w->n < most; k++, at = (at + step) % TENSORS)
		if (good(&w->t[at])) {
			w->batch[w->n] = w->t[at].handle;
			w->which[w->n++] = &w->t[at];
		}
	return w->n;
}

/* Logs a call before it is made. */
static void log_call(const struct world *w, const char *call)
{
	history_log("%s", call);
	for (size_t k = 0; k < w->n; k++)
		history_log_more(" %s", w->which[k]->name);
}

/* Logs its result; an error must have a text. */
static void log_result(struct world *w, int rc)
{
	history_log_more(": %s%s%s\n", rc ? nvs_strerror(rc) : "ok",
			 rc && caused(w, rc) ? ": " : "", rc && caused(w, rc) ? w->error.text : "");
	if (rc && caused(w, rc)) {
		/* The error has its code and a text. */
		HOLDS(w->error.code == rc && w->error.text[0]);
		history_counts()->errors++;
	}
	HOLDS(rc != -ENOMEM || (w->error.code == rc && w->error.text[0]));
	w->error = (struct nvs_error){.size = sizeof(w->error)};
}

/* ---- Waiting ---- */

/* After a wait: pins are confirmed, or have failed. */
static void finish(struct world *w, struct modelled *t)
{
	look_at(w, t);
	if (!t->pending)
		return;
	HOLDS(sole_wait(w->engine, &t->handle, 1, 0, &w->error) == 0);
	t->pending = false;
	HOLDS(nvs_tensor_data(t->handle) && (uintptr_t)nvs_tensor_data(t->handle) % 512 == 0);
	check_contents(t, nvs_tensor_data(t->handle));
}

static int limit_of(struct world *w)
{
	uint64_t kind = below(&w->random, 32);

	if (kind == 0)
		return 1;
	if (kind < 12)
		return 0;
	history_drive_go(&w->drive);
	return -1;
}

static void op_wait(struct world *w)
{
	int timeout_ms = limit_of(w), rc;

	if (!choose(w, below(&w->random, 4) ? unwaited : registered, BATCH))
		return;
	log_call(w, "wait");
	history_log_more(", %d ms", timeout_ms);
	rc = sole_wait(w->engine, w->batch, w->n, timeout_ms, &w->error);
	log_result(w, rc);
	if (rc == -EAGAIN || rc == -ETIMEDOUT) {
		HOLDS(rc == (timeout_ms ? -ETIMEDOUT : -EAGAIN) && timeout_ms >= 0);
		return;
	}
	HOLDS(!rc || caused(w, rc));
	for (size_t k = 0; k < w->n; k++)
		finish(w, w->which[k]);
}

/* A wait for a pin reports the pin's read alone, and leaves the failure of a write for later. */
static void wait_for_all(struct world *w)
{
	bool pinned = false;

	history_drive_go(&w->drive);
	for (size_t i = 0; i < TENSORS; i++) {
		struct modelled *t = &w->t[i];
		int rc;

		if (!t->handle)
			continue;
		rc = sole_wait(w->engine, &t->handle, 1, -1, &w->error);
		HOLDS(!rc || caused(w, rc));
		finish(w, t);
		pinned |= t->uses;
	}
	w->unreported &= pinned;
}

/* ---- Calls that fail ---- */

/* Ends that, and logs the call. False: the call in question made fewer calls. */
static bool call_failed(void)
{
	uint64_t failed;

	inject_stop(&failed);
	history_log_more(" (%s)", failed ? inject_failed_call() : "no call failed");
	return failed;
}

/* In one call of eight, one of its first requests for memory will fail. */
static bool memory_fails(struct world *w)
{
	if (w->real || below(&w->random, 8))
		return false;
	inject_fail(INJECT_MEMORY, 1 + below(&w->random, 3), 1, ENOMEM);
	return true;
}

/*
 * Ends that. Whether the call returned -ENOMEM, which only such a failure causes. Nothing has
 * changed then, as look() finds: its caller leaves the model as it is.
 */
static bool out_of_memory(bool fails, int rc)
{
	bool failed = fails && call_failed();

	HOLDS(rc != -ENOMEM || failed);
	return rc == -ENOMEM;
}

/* ---- Pins ---- */

static bool may_have_to_wait(struct world *w)
{
	for (size_t i = 0; i < TENSORS; i++) {
		const struct modelled *t = &w->t[i];
		struct nvs_tensor_info info = {.size = sizeof(info)};

		if (!t->handle)
			continue;
		info = info_of_tensor(w, t);
		if (info.pins || info.dirty || flying(&info))
			return true;
	}
	return false;
}

/* Whether a call that pins may return `rc`. */
static bool may_begin(const struct world *w, int rc, bool contents, int timeout_ms, bool busy)
{
	uint64_t sum = 0;

	for (size_t k = 0; k < w->n; k++)
		sum += w->which[k]->extent;
	switch (rc) {
	case 0:
		return sum <= w->pool && !(contents && (any(w, empty) || any(w, leased)));
	case -ENODATA:
		return contents && any(w, maybe_empty);
	case -EBUSY:
		return any(w, external) || (contents && any(w, leased));
	case -ENOBUFS:
		return sum > w->pool;
	case -EAGAIN:
		return timeout_ms == 0 && busy;
	case -ETIMEDOUT:
		return timeout_ms > 0 && busy;
	default:
		return caused(w, rc);
	}
}

static void ask_for(struct world *w)
{
	for (size_t k = 0; k < w->n; k++)
		w->which[k]->asked_for |= w->which[k]->external;
}

/* No other thread releases pins, so a call may wait without a limit only if the pool has room. */
static bool pin(struct world *w, bool contents)
{
	int timeout_ms = limit_of(w), rc;
	bool busy = may_have_to_wait(w), fails, without;

	if (timeout_ms < 0 && (anywhere(w, in_use) || anywhere(w, unwaited)))
		timeout_ms = 0;
	ask_for(w);
	log_call(w, contents ? "swap_in" : "lease");
	history_log_more(", %d ms", timeout_ms);
	fails = memory_fails(w);
	rc = contents ? sole_swap_in(w->engine, w->batch, w->n, timeout_ms, &w->error)
		      : sole_pin(w->engine, w->batch, w->n, timeout_ms, &w->error);
	without = out_of_memory(fails, rc);
	log_result(w, rc);
	if (!without && !may_begin(w, rc, contents, timeout_ms, busy))
		history_fail(__FILE__, __LINE__, "the call must not return %d", rc);
	return !rc;
}

static void op_lease(struct world *w)
{
	if (!choose(w, below(&w->random, 16) ? unused : not_leased, BATCH) || any(w, in_use) ||
	    any(w, unwaited) || !pin(w, false))
		return;
	for (size_t k = 0; k < w->n; k++) {
		struct modelled *t = w->which[k];

		HOLDS(nvs_tensor_data(t->handle));
		fill(nvs_tensor_data(t->handle), t->nbytes, 12345);
		t->uses = 1;
		t->leased = true;
	}
}

static void op_swap_in(struct world *w)
{
	if (!choose(w, below(&w->random, 16) ? has_contents : registered, BATCH) || !pin(w, true))
		return;
	for (size_t k = 0; k < w->n; k++) {
		struct modelled *t = w->which[k];

		t->pending |= !t->uses;
		t->uses++;
	}
}

static void op_change(struct world *w)
{
	if (!choose(w, has_changes, 2))
		return;
	log_call(w, "change");
	history_log_more("\n");
	for (size_t k = 0; k < w->n; k++) {
		make_contents(w, w->which[k], nvs_tensor_data(w->which[k]->handle));
		w->which[k]->changed = true;
	}
}

static void release(struct world *w, enum nvs_how how)
{
	int rc;

	for (size_t k = 0; k < w->n && how == NVS_DIRTY; k++)
		if (w->which[k]->leased)
			make_contents(w, w->which[k], nvs_tensor_data(w->batch[k]));
	log_call(w, how == NVS_DIRTY ? "release dirty" : "release clean");
	rc = sole_release(w->engine, w->batch, w->n, how, &w->error);
	log_result(w, rc);
	HOLDS(!rc);
	for (size_t k = 0; k < w->n; k++) {
		struct modelled *t = w->which[k];

		t->uses--;
		if (how == NVS_DIRTY)
			drive_may_have(w, t);
		else if (t->leased)
			t->value = t->drive;
		t->leased = t->changed = false;
	}
}

static void op_release_clean(struct world *w)
{
	if (choose(w, clean_in_use, BATCH))
		release(w, NVS_CLEAN);
}

static void op_release_dirty(struct world *w)
{
	if (choose(w, in_use, BATCH))
		release(w, NVS_DIRTY);
}

/* Releases tensors that are not pinned, or are still being read. */
static void op_release_too_soon(struct world *w)
{
	struct modelled *t;
	int rc;

	if (!choose(w, below(&w->random, 2) ? unused : unwaited, 1) || any(w, external))
		return;
	t = w->which[0];
	log_call(w, "release too soon");
	rc = sole_release(w->engine, w->batch, 1, NVS_CLEAN, &w->error);
	log_result(w, rc);
	HOLDS(rc == -EINVAL || (t->pending && (rc == -EBUSY || !rc)));
	if (!rc)
		t->uses--;
	if (!rc && !t->uses)
		t->pending = false;
	look_at(w, t);
}

/* ---- Unpinned tensors ---- */

static void op_prefetch(struct world *w)
{
	long rc;

	if (!choose(w, below(&w->random, 8) ? has_contents : registered, BATCH))
		return;
	ask_for(w);
	log_call(w, "prefetch");
	rc = nvs_tensor_prefetch(w->engine, w->batch, w->n, &w->error);
	log_result(w, rc < 0 ? (int)rc : 0);
	if (rc < 0)
		HOLDS(rc == -ENODATA && any(w, maybe_empty));
	else
		HOLDS(rc <= (long)w->n && !any(w, empty));
}

static void op_swap_out(struct world *w)
{
	bool fails;
	int rc;

	if (!choose(w, below(&w->random, 8) ? unused : registered, BATCH))
		return;
	log_call(w, "swap_out");
	fails = memory_fails(w);
	rc = nvs_tensor_swap_out(w->engine, w->batch, w->n, &w->error);
	(void)out_of_memory(fails, rc);
	log_result(w, rc);
	HOLDS(any(w, in_use) ? rc == -EBUSY : !rc || (rc == -EBUSY && any(w, unwaited)));
}

/* For calls that also need tensors without a transfer in flight. */
static bool any_flying(const struct world *w)
{
	for (size_t k = 0; k < w->n; k++) {
		struct nvs_tensor_info info = info_of_tensor(w, w->which[k]);

		if (flying(&info))
			return true;
	}
	return false;
}

static void op_swap_out_from(struct world *w)
{
	const void *data[BATCH];
	bool may_fly, fails;
	int rc;

	history_drive_go(&w->drive);
	if (!choose(w, below(&w->random, 8) ? unused : registered, BATCH) || any(w, unwaited))
		return;
	for (size_t k = 0; k < w->n; k++) {
		struct modelled *t = w->which[k];

		data[k] = t->memory;
		fill(t->memory, t->nbytes, contents_of(t, t->versions + 1));
	}
	may_fly = any_flying(w);
	log_call(w, "swap_out_from");
	fails = memory_fails(w);
	rc = nvs_tensor_swap_out_from(w->engine, w->batch, data, w->n, &w->error);
	(void)out_of_memory(fails, rc);
	log_result(w, rc);
	HOLDS(any(w, in_use) ? rc == -EBUSY : !rc || (rc == -EBUSY && may_fly));
	for (size_t k = 0; k < w->n && !rc; k++) {
		struct modelled *t = w->which[k];

		drive_may_have(w, t);
		t->value = exactly(++t->versions);
		t->external = t->writing = true;
		t->asked_for = false;
	}
	w->unreported |= !rc && (w->drive.faulty || w->drive.stormy);
}

/*
 * In two ranges that meet at a random place; in one if the drive may change bytes silently, since
 * only a range of all bytes is verified.
 */
static int read_ranges(struct world *w)
{
	bool silent = w->drive.silent[NVS_READ] || w->drive.silent[NVS_WRITE];
	struct nvs_tensor_range ranges[2 * BATCH], *range = ranges;

	for (size_t k = 0; k < w->n; k++) {
		struct modelled *t = w->which[k];
		uint64_t at = silent ? t->nbytes : below(&w->random, t->nbytes + 1);

		*range++ = (struct nvs_tensor_range){sizeof(*range), t->handle, 0, at, t->memory};
		*range++ = (struct nvs_tensor_range){sizeof(*range), t->handle, at, t->nbytes - at,
						     t->memory + at};
	}
	return nvs_tensor_read(w->engine, ranges, 2 * w->n, &w->error);
}

static void op_read(struct world *w)
{
	bool ranges = below(&w->random, 2), may_fly, fails, without;
	void *data[BATCH];
	int rc;

	history_drive_go(&w->drive);
	if (!choose(w,
		    below(&w->random, 8) ? (ranges ? has_bytes_and_contents : has_contents)
					 : (ranges ? has_bytes : registered),
		    BATCH) ||
	    any(w, unwaited))
		return;
	may_fly = any_flying(w);
	for (size_t k = 0; k < w->n; k++)
		fill(w->which[k]->memory, w->which[k]->nbytes, 54321);
	log_call(w, ranges ? "read" : "swap_in_to");
	fails = memory_fails(w);
	for (size_t k = 0; k < w->n; k++)
		data[k] = w->which[k]->memory;
	rc = ranges ? read_ranges(w)
		    : nvs_tensor_swap_in_to(w->engine, w->batch, data, w->n, &w->error);
	without = out_of_memory(fails, rc);
	log_result(w, rc);
	if (rc)
		HOLDS((rc == -EBUSY && (any(w, in_use) || may_fly)) ||
		      (rc == -ENODATA && any(w, maybe_empty)) || (w->unreported && caused(w, rc)) ||
		      (ranges && without));
	else
		HOLDS(!any(w, in_use) && !any(w, empty));
	for (size_t k = 0; k < w->n && !rc; k++) {
		w->which[k]->external = true;
		w->which[k]->writing = w->which[k]->asked_for = false;
	}
}

/*
 * Gives the tensors new contents in three ranges: one whose bytes the next ones replace, and two
 * that meet at a random place.
 */
static int write_ranges(struct world *w, int timeout_ms)
{
	struct nvs_tensor_range ranges[3 * BATCH], *range = ranges;

	for (size_t k = 0; k < w->n; k++) {
		struct modelled *t = w->which[k];
		uint64_t at = below(&w->random, t->nbytes + 1);

		fill(t->memory, t->nbytes, contents_of(t, t->versions + 1));
		*range++ = (struct nvs_tensor_range){sizeof(*range), t->handle, 0, at,
						     t->memory + (t->nbytes - at)};
		*range++ = (struct nvs_tensor_range){sizeof(*range), t->handle, at, t->nbytes - at,
						     t->memory + at};
		*range++ = (struct nvs_tensor_range){sizeof(*range), t->handle, 0, at, t->memory};
	}
	return nvs_tensor_write(w->engine, ranges, 3 * w->n, timeout_ms, &w->error);
}

static void op_write(struct world *w)
{
	int timeout_ms = limit_of(w), rc;
	bool used, fails;

	history_drive_go(&w->drive);
	if (!choose(w, below(&w->random, 8) ? has_bytes_and_contents : has_bytes, BATCH) ||
	    any(w, unwaited) || any(w, external))
		return;
	if (timeout_ms < 0 && (anywhere(w, in_use) || anywhere(w, unwaited)))
		timeout_ms = 0;
	used = any(w, in_use);
	log_call(w, "write");
	history_log_more(", %d ms", timeout_ms);
	fails = memory_fails(w);
	rc = write_ranges(w, timeout_ms);
	if (out_of_memory(fails, rc)) {
		log_result(w, rc);
		return;
	}
	log_result(w, rc);
	if (used ? rc != -EBUSY : !may_begin(w, rc, true, timeout_ms, true))
		history_fail(__FILE__, __LINE__, "the call must not return %d", rc);
	for (size_t k = 0; k < w->n && !rc; k++) {
		struct modelled *t = w->which[k];

		t->value = exactly(++t->versions);
		drive_may_have(w, t);
	}
}

/* ---- Names ---- */

static void add(struct world *w)
{
	struct nvs_tensor_spec specs[BATCH];
	int rc;

	for (size_t k = 0; k < w->n; k++)
		specs[k] = (struct nvs_tensor_spec){.size = sizeof(struct nvs_tensor_spec),
						    .name = w->which[k]->name,
						    .dtype = NVS_U8,
						    .numel = w->which[k]->nbytes};
	log_call(w, "register");
	rc = nvs_tensor_register(w->engine, specs, w->n, w->batch, &w->error);
	log_result(w, rc);
	HOLDS(rc == (any(w, registered) ? -EEXIST : 0));
	for (size_t k = 0; k < w->n && !rc; k++) {
		struct modelled *t = w->which[k];

		t->handle = w->batch[k];
		t->value = t->drive = t->stored;
		t->stored = nothing;
	}
}

static void op_register(struct world *w)
{
	if (choose(w, below(&w->random, 16) ? absent : whichever, BATCH))
		add(w);
}

static void op_register_too_large(struct world *w)
{
	const struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = "too large", .dtype = NVS_U8, .numel = w->pool + 1};
	struct nvs_tensor *tensor;
	uint64_t pin;

	history_log("register too large\n");
	HOLDS(!nvs_tensor_register(w->engine, &spec, 1, &tensor, &w->error));
	HOLDS(nvs_tensor_pin(w->engine, &tensor, 1, 0, &pin, &w->error) == -E2BIG);
	HOLDS(!nvs_tensor_forget(w->engine, &tensor, 1, &w->error));
	HOLDS(!nvs_tensor_find(w->engine, spec.name));
}

/* The name of another registered tensor is refused; its own changes nothing. */
static void op_rename(struct world *w)
{
	const struct modelled *other = &w->t[below(&w->random, TENSORS)];
	char name[sizeof(other->name)];
	bool known, taken, fails, without;
	int rc;

	if (!choose(w, registered, 1))
		return;
	known = other->handle && !below(&w->random, 4);
	taken = known && other != w->which[0];
	if (known)
		memcpy(name, other->name, sizeof(name));
	else
		snprintf(name, sizeof(name), "t%td.%u", w->which[0] - w->t,
			 (unsigned)below(&w->random, 1000000000));
	log_call(w, "rename");
	history_log_more(" to %s", name);
	fails = memory_fails(w);
	rc = nvs_tensor_rename(w->engine, w->batch[0], name, &w->error);
	without = out_of_memory(fails, rc);
	log_result(w, rc);
	HOLDS(without || rc == (taken ? -EEXIST : 0));
	if (!rc)
		memcpy(w->which[0]->name, name, sizeof(name));
	HOLDS(nvs_tensor_find(w->engine, w->which[0]->name) == w->batch[0]);
	HOLDS(!rc || taken || !nvs_tensor_find(w->engine, name));
}

static void op_find(struct world *w)
{
	history_log("find\n");
	for (size_t i = 0; i < TENSORS; i++)
		HOLDS(nvs_tensor_find(w->engine, w->t[i].name) == w->t[i].handle);
}

static void forgotten(struct modelled *t)
{
	t->handle = NULL;
	t->value = t->drive = t->stored = nothing;
	t->uses = 0;
	t->pending = t->leased = t->changed = t->external = false;
}

static void op_forget(struct world *w)
{
	bool may_fly;
	int rc;

	history_drive_go(&w->drive);
	if (!choose(w, below(&w->random, 8) ? unused : registered, 2) || any(w, unwaited))
		return;
	may_fly = any_flying(w);
	log_call(w, "forget");
	rc = nvs_tensor_forget(w->engine, w->batch, w->n, &w->error);
	log_result(w, rc);
	HOLDS(any(w, in_use) ? rc == -EBUSY : !rc || (rc == -EBUSY && may_fly));
	for (size_t k = 0; k < w->n && !rc; k++)
		forgotten(w->which[k]);
}

/* ---- Commits ---- */

/* Whether a pinned tensor has contents that the drive does not have. */
static bool unfinished(const struct world *w)
{
	for (size_t i = 0; i < TENSORS; i++) {
		const struct modelled *t = &w->t[i];

		if (t->handle && t->uses && (t->leased || info_of_tensor(w, t).dirty))
			return true;
	}
	return false;
}

static void committed(struct world *w)
{
	for (size_t i = 0; i < TENSORS && w->config.keep; i++) {
		struct modelled *t = &w->t[i];

		t->committed = !t->handle ? t->stored : t->changed ? t->drive : t->value;
		memcpy(t->committed_name, t->name, sizeof(t->name));
	}
}

/*
 * A commit is refused while external memory is in flight. A transfer in flight after it is one of
 * the plan's, or of a prefetch that found the external transfer landed.
 */
static void externals_have_landed(struct world *w)
{
	for (size_t i = 0; i < TENSORS; i++)
		if (w->t[i].external) {
			struct nvs_tensor_info info = info_of_tensor(w, &w->t[i]);

			HOLDS((w->step || w->t[i].asked_for) && info.state == NVS_READING);
			landed(w, &w->t[i], &info);
		}
}

/*
 * If `failing`, one call on the store's files fails: the previous commit still holds, or this one.
 */
static void op_commit(struct world *w)
{
	bool failing = below(&w->random, 2), file = below(&w->random, 2);
	bool busy, failed = false, may_be_busy = anywhere(w, unwaited);
	int rc;

	history_drive_go(&w->drive);
	busy = unfinished(w) && !may_be_busy;
	may_be_busy |= busy;
	w->n = 0;
	log_call(w, failing ? "commit with a failing call" : "commit");
	if (failing && !w->real)
		inject_fail(file ? INJECT_FILES : INJECT_MEMORY | INJECT_THREAD,
			    1 + below(&w->random, 8), 1, file ? EIO : ENOMEM);
	rc = nvs_engine_commit(w->engine, &w->error);
	if (failing)
		failed = call_failed();
	w->undurable |= failed && rc == -EIO;
	log_result(w, rc);
	look(w);
	if (rc)
		HOLDS(rc == -EBUSY ? may_be_busy
				   : caused(w, rc) || (w->undurable && rc == -EIO) ||
					     (failed && rc == -ENOMEM));
	else
		HOLDS(!busy);
	if (!rc)
		externals_have_landed(w);
	for (size_t i = 0; i < TENSORS && !rc && !w->step; i++)
		if (w->t[i].handle && !w->t[i].uses)
			HOLDS(!info_of_tensor(w, &w->t[i]).dirty);
	if (!rc)
		committed(w);
}

/* ---- Opening and closing ---- */

static void open_engine(struct world *w)
{
	int rc;

	if (w->real)
		rc = nvs_engine_open(&w->engine, &w->config, NVS_OFFLOAD_PARAM, &w->error);
	else
		rc = engine_open_with(&w->engine, &w->config, NVS_OFFLOAD_PARAM, &engine_sim,
				      w->drive.sim, &w->error);
	if (rc)
		history_fail(__FILE__, __LINE__, "open: %s: %s", nvs_strerror(rc), w->error.text);
	w->unit = store_unit(w->engine->store);
	w->pool = pool_bytes(w->engine->pool);
	w->step = w->undurable = false;
	for (size_t i = 0; i < TENSORS; i++)
		w->t[i].extent = (w->t[i].nbytes + w->unit - 1) / w->unit * w->unit;
}

/* Ends all pins; nothing stays in flight. */
static void end_uses(struct world *w)
{
	wait_for_all(w);
	for (size_t i = 0; i < TENSORS; i++) {
		struct modelled *t = &w->t[i];

		w->batch[0] = t->handle;
		w->which[0] = t;
		w->n = 1;
		while (t->handle && t->uses)
			release(w, t->leased || t->changed ? NVS_DIRTY : NVS_CLEAN);
	}
}

/* The engine is closed; only committed contents remain. */
static void gone(struct world *w)
{
	w->engine = NULL;
	for (size_t i = 0; i < TENSORS; i++) {
		struct modelled *t = &w->t[i];

		forgotten(t);
		t->stored = w->config.keep ? t->committed : nothing;
		if (w->config.keep)
			memcpy(t->name, t->committed_name, sizeof(t->name));
	}
}

static void close_well(struct world *w)
{
	int rc;

	history_drive_mend(&w->drive);
	end_uses(w);
	history_log("close");
	rc = nvs_engine_close(w->engine, &w->error);
	log_result(w, rc);
	HOLDS(!rc || (w->undurable && rc == -EIO));
	if (!rc)
		committed(w);
	gone(w);
}

static void abandon(struct world *w)
{
	int rc;

	history_log("crash");
	/* External memory must stay valid until its transfer completes. */
	history_drive_go(&w->drive);
	engine_abandon(w->engine);
	rc = nvs_engine_close(w->engine, &w->error);
	log_result(w, rc);
	HOLDS(!rc);
	gone(w);
}

/* Closes with dirty pinned tensors, on a drive that fails. */
static void close_badly(struct world *w)
{
	bool busy;
	int rc;

	wait_for_all(w);
	busy = unfinished(w);
	history_log("close");
	rc = nvs_engine_close(w->engine, &w->error);
	log_result(w, rc);
	HOLDS((rc == -EBUSY) == (busy && w->config.keep));
	if (rc == -EBUSY) {
		look(w);
		abandon(w);
		return;
	}
	HOLDS(!rc || (w->config.keep && (caused(w, rc) || (w->undurable && rc == -EIO))));
	if (!rc)
		committed(w);
	gone(w);
}

static void op_reopen(struct world *w)
{
	uint64_t how = below(&w->random, 4);

	if (below(&w->random, 4))
		return;
	if (how == 0)
		close_well(w);
	else if (how == 1)
		close_badly(w);
	else
		abandon(w);
	open_engine(w);
	history_drive_calm(&w->drive);
	if (choose(w, absent, BATCH))
		add(w);
}

/* ---- Steps and the drive ---- */

static void op_step(struct world *w)
{
	struct nvs_step_io io = {.size = sizeof(io)};
	bool end = below(&w->random, 8) ? w->step : below(&w->random, 2);
	int rc;

	history_log(end ? "step_end" : "step_begin");
	rc = end ? nvs_engine_step_end(w->engine, &io, &w->error)
		 : nvs_engine_step_begin(w->engine, &w->error);
	log_result(w, rc);
	HOLDS(rc == (end == w->step ? 0 : -EBUSY));
	w->step = !end;
}

static void op_drive(struct world *w)
{
	unsigned n = 1 + (unsigned)below(&w->random, 4);

	switch (below(&w->random, 5)) {
	case 0:
		history_log("hold\n");
		return history_drive_hold(&w->drive);
	case 1:
		history_log("go\n");
		return history_drive_go(&w->drive);
	case 2:
		return history_drive_change(&w->drive, &w->random);
	default:
		if (!w->drive.held || w->real)
			return;
		history_log("complete %u", n);
		history_log_more(": %u\n", sim_complete(w->drive.sim, n));
	}
}

static void op_stats(struct world *w)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};
	uint64_t n = 0, nbytes = 0, used = 0;

	for (size_t i = 0; i < TENSORS; i++)
		if (w->t[i].handle) {
			n++;
			nbytes += w->t[i].nbytes;
		}
	if (!w->step)
		wait_for_all(w);
	history_log("get_stats\n");
	nvs_engine_get_stats(w->engine, &stats);
	HOLDS(stats.tensors == n && stats.tensor_bytes == nbytes && stats.pool.bytes == w->pool);
	HOLDS(!stats.verify_errors || caused(w, -EBADMSG));
	for (size_t i = 0; i < TENSORS && !w->step; i++)
		if (w->t[i].handle && info_of_tensor(w, &w->t[i]).state == NVS_RESIDENT)
			used += w->t[i].extent;
	HOLDS(w->step || stats.pool.used == used);
}

/* ---- Repair ---- */

/* Contents that the drive lost silently must be reported; the tensor then gets new ones. */
static void read_back(struct world *w, struct modelled *t)
{
	int rc;

	w->batch[0] = t->handle;
	w->which[0] = t;
	w->n = 1;
	rc = sole_swap_in(w->engine, w->batch, 1, -1, &w->error);
	if (!rc)
		rc = sole_wait(w->engine, w->batch, 1, -1, &w->error);
	if (rc == -EBADMSG && w->drive.silent[NVS_WRITE]) {
		HOLDS(sole_pin(w->engine, w->batch, 1, -1, &w->error) == 0);
		t->uses = 1;
		t->leased = true;
		release(w, NVS_DIRTY);
		return;
	}
	if (rc)
		history_fail(__FILE__, __LINE__,
			     "%s can't be read from a drive without faults: %s: %s", t->name,
			     nvs_strerror(rc), w->error.text);
	check_contents(t, nvs_tensor_data(t->handle));
	HOLDS(sole_release(w->engine, w->batch, 1, NVS_CLEAN, &w->error) == 0);
}

static void read_all_back(struct world *w)
{
	for (size_t i = 0; i < TENSORS; i++)
		if (w->t[i].handle && w->t[i].value.newest)
			read_back(w, &w->t[i]);
}

/*
 * On a drive without faults, every tensor that was not reported as lost is readable, also from the
 * drive.
 */
static void repair(struct world *w)
{
	history_drive_mend(&w->drive);
	end_uses(w);
	wait_for_all(w);
	look(w);
	read_all_back(w);
	for (size_t i = 0; i < TENSORS; i++)
		if (w->t[i].handle)
			HOLDS(nvs_tensor_swap_out(w->engine, &w->t[i].handle, 1, &w->error) == 0);
	wait_for_all(w);
	read_all_back(w);
}

static void op_repair(struct world *w)
{
	if (below(&w->random, 8))
		return;
	history_log("the drive is repaired, and every tensor is read\n");
	repair(w);
	history_drive_calm(&w->drive);
}

/* The calls, and how often each is made. */
static const struct {
	void (*call)(struct world *w);
	uint64_t weight;
} operations[] = {{op_lease, 3},
		  {op_swap_in, 4},
		  {op_wait, 4},
		  {op_change, 1},
		  {op_release_clean, 2},
		  {op_release_dirty, 3},
		  {op_prefetch, 2},
		  {op_swap_out, 2},
		  {op_swap_out_from, 1},
		  {op_read, 2},
		  {op_write, 1},
		  {op_register, 2},
		  {op_forget, 1},
		  {op_rename, 1},
		  {op_commit, 2},
		  {op_reopen, 1},
		  {op_step, 1},
		  {op_drive, 5},
		  {op_stats, 1},
		  {op_repair, 1},
		  {op_find, 1},
		  {op_release_too_soon, 1},
		  {op_register_too_large, 1}};
#define WEIGHTS 43

static void operation(void *world, uint64_t seed)
{
	struct world *w = world;
	uint64_t before = history_counts()->operations;

	w->random = seed;
	/* Not every operation is possible in every state. */
	for (int i = 0; i < 8 && history_counts()->operations == before; i++) {
		uint64_t left = below(&w->random, WEIGHTS);
		size_t k = 0;

		while (left >= operations[k].weight)
			left -= operations[k++].weight;
		operations[k].call(w);
	}
	look(w);
}

/* ---- Worlds ---- */

static uint64_t one_of(struct world *w, const uint64_t *values, size_t n)
{
	return values[below(&w->random, n)];
}

static void make_tensors(struct world *w)
{
	static const uint64_t edges[] = {0, 1, 511, 4095, 4096, 4097, 65535, 65536, 65537};

	for (size_t i = 0; i < TENSORS; i++) {
		struct modelled *t = &w->t[i];

		snprintf(t->name, sizeof(t->name), "t%zu", i);
		memcpy(t->committed_name, t->name, sizeof(t->name));
		t->nbytes = below(&w->random, 2)
				    ? one_of(w, edges, LENGTH(edges))
				    : below(&w->random, UINT64_C(1) << below(&w->random, 18));
		t->memory = malloc(t->nbytes + 1);
		HOLDS(t->memory);
		t->value = t->drive = t->stored = t->committed = nothing;
	}
}

/* A pool between the size of the longest tensor and that of all tensors. */
static uint64_t choose_pool(struct world *w)
{
	uint64_t sum = 0, longest = 4096;

	for (size_t i = 0; i < TENSORS; i++) {
		uint64_t extent = (w->t[i].nbytes + 65535) / 65536 * 65536;

		sum += w->t[i].nbytes + 4096;
		if (extent > longest)
			longest = extent;
	}
	return longest + below(&w->random, sum);
}

static void set_paths(struct world *w, const char *directory)
{
	char *paths[3];
	unsigned n = 1 + (unsigned)below(&w->random, 3);

	for (unsigned i = 0; i < n; i++) {
		HOLDS(asprintf(&paths[i], "%s/%u", directory, i) > 0);
		HOLDS(!mkdir(paths[i], 0700) || errno == EEXIST);
	}
	HOLDS(!nvs_config_set_paths(&w->config, NVS_OFFLOAD_PARAM,
				    (const char *const *)(uintptr_t)paths, n, &w->error));
	while (n)
		free(paths[--n]);
}

static void configure(struct world *w, const char *directory, uint64_t seed)
{
	static const uint64_t blocks[] = {4096, 8192, 16384, 65536};
	static const uint64_t numels[] = {0, 10000, 100000, UINT64_MAX};
	struct nvs_config *config = &w->config;

	config_init(config);
	config->aio.block_size = (uint32_t)one_of(w, blocks, LENGTH(blocks));
	config->aio.queue_depth = 1 + (uint32_t)below(&w->random, 16);
	config->aio.thread_count = 1 + (uint32_t)below(&w->random, 3);
	config->aio.overlap_events = below(&w->random, 4);
	config->aio.single_submit = below(&w->random, 2);
	config->param_dtype = NVS_F32;
	config->offload[NVS_OFFLOAD_PARAM].buffer_count = 1;
	config->offload[NVS_OFFLOAD_PARAM].buffer_size = choose_pool(w) / 4;
	config->verify = below(&w->random, 2);
	config->keep = below(&w->random, 2);
	config->stripe_size = 4096 * below(&w->random, 5);
	/* Each history of a process has its own stores. */
	config->rank = (uint32_t)(seed % 1000000);
	config->offload[NVS_OFFLOAD_PARAM].max_in_cpu = one_of(w, numels, LENGTH(numels));
	config->prefetch_bucket_size = one_of(w, numels, LENGTH(numels));
	config->max_live_parameters = one_of(w, numels + 2, 2);
	config->max_reuse_distance = one_of(w, numels, LENGTH(numels));
	config->param_persistence_threshold = one_of(w, numels, 2);
	set_paths(w, directory);
}

/* An I/O engine that works here, or host memory. */
static void choose_engine(struct world *w)
{
	struct offload_config *offload = &w->config.offload[NVS_OFFLOAD_PARAM];
	char reason[192];

	do
		w->config.aio.ioengine = (enum nvs_ioengine)below(&w->random, NVS_IOENGINE_COUNT);
	while (w->config.aio.ioengine &&
	       ioengine_try(w->config.aio.ioengine, reason, sizeof(reason)));
	if (!w->config.aio.ioengine) {
		offload->device = NVS_DEVICE_CPU;
		w->config.keep = false;
	}
	history_log("%s\n", w->config.aio.ioengine ? nvs_ioengine_name(w->config.aio.ioengine)
						   : "host memory");
}

static void *begin(const struct history_model *model, const char *directory, uint64_t seed)
{
	struct world *w = calloc(1, sizeof(*w));

	HOLDS(w);
	w->real = model->real;
	w->mistaken = model == &history_swap_mistaken;
	w->error.size = sizeof(w->error);
	w->random = seed;
	make_tensors(w);
	configure(w, directory, seed);
	history_log("a pool of %" PRIu64 " bytes, %u paths, blocks of %u, depth %u%s%s\n",
		    w->config.offload[NVS_OFFLOAD_PARAM].buffer_size * 4,
		    w->config.offload[NVS_OFFLOAD_PARAM].npaths, w->config.aio.block_size,
		    w->config.aio.queue_depth, w->config.verify ? ", verified" : "",
		    w->config.keep ? ", kept" : "");
	if (w->real)
		choose_engine(w);
	history_drive_open(&w->drive, next_random(&w->random), w->config.verify && !w->real,
			   !w->config.keep);
	if (w->real) {
		w->drive.faulty = false;
		history_drive_mend(&w->drive);
	}
	open_engine(w);
	for (size_t i = 0; i < TENSORS; i += BATCH) {
		for (w->n = 0; w->n < BATCH && i + w->n < TENSORS; w->n++)
			w->which[w->n] = &w->t[i + w->n];
		add(w);
	}
	return w;
}

static void end_world(void *world)
{
	struct world *w = world;

	repair(w);
	close_well(w);
	history_drive_close(&w->drive);
	for (size_t i = 0; i < TENSORS; i++)
		free(w->t[i].memory);
	config_free(&w->config);
	free(w);
}

const struct history_model history_swap = {"swap", begin, operation, end_world, false};
const struct history_model history_swap_real = {"swap-real", begin, operation, end_world, true};
const struct history_model history_swap_mistaken = {"swap-mistaken", begin, operation, end_world,
						    false};
