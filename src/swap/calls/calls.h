/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the calls on an engine and its tensors share. A call takes the engine's lock, checks all of
 * its arguments, changes states, releases the lock and launches what it has started.
 */
#ifndef CALLS_CALLS_H
#define CALLS_CALLS_H

#include "swap/moves/moves.h"
#include "swap/swap.h"

/* For the first loop of a call over its tensors: starts to load one that comes soon after the
 * i-th. */
static ALWAYS_INLINE void load_later(struct nvs_tensor *const *tensors, size_t i, size_t n)
{
	const size_t distance = 16;

	if (i + distance < n)
		load_lines(tensors[i + distance], sizeof(struct nvs_tensor));
}

/* ---- checks.c ---- */
/*
 * The tensors of an optimizer's engine, their pins and its commits have to agree with what the
 * optimizer knows of them. So a public call that changes an engine, or takes from it what a
 * transfer reports, is -EBUSY on such an engine: `instead` says what to do. The optimizer makes the
 * same calls by swap.h. 0 also if the engine is NULL.
 */
int check_unowned(const struct nvs_engine *engine, const char *instead, struct nvs_error *error);
#define OTHER_TENSORS                                                                              \
	"open another engine for tensors of your own (nvs_engine_open_on shares its workers)"
#define READ_STATE  "nvs_optimizer_get and nvs_optimizer_export read the state"
#define WRITE_STATE "nvs_optimizer_set and nvs_optimizer_import write the state"
/*
 * -EINVAL: no name for a tensor of the engine. A read-only store may have names that are not UTF-8,
 * which an earlier version took.
 */
int check_name(const struct nvs_engine *engine, const char *name, struct nvs_error *error);
/* -EINVAL: the i-th tensor of a call is NULL or another engine's. */
int not_of_engine(const struct nvs_tensor *tensor, size_t i, struct nvs_error *error);
static inline int check_tensor(const struct nvs_engine *engine, const struct nvs_tensor *tensor,
			       size_t i, struct nvs_error *error)
{
	return tensor && tensor->engine == engine ? 0 : not_of_engine(tensor, i, error);
}
/* -EINVAL: the engine or the array is NULL. */
int check_array(const struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		struct nvs_error *error);
/* -EINVAL: as check_array(), or one of the tensors is NULL or another engine's. */
int check_arguments(const struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		    struct nvs_error *error);
/* 0, also if the engine is NULL, or -EROFS if the store is read-only. */
int check_writable(const struct nvs_engine *engine, struct nvs_error *error);
/*
 * Under the lock: begins a batch, to which check_in_batch() adds the i-th tensor of the call.
 * -EINVAL: it is NULL, another engine's, or in the batch already.
 */
static inline void begin_batch(struct nvs_engine *engine)
{
	engine->batch++;
}
int check_in_batch(const struct nvs_engine *engine, struct nvs_tensor *tensor, size_t i,
		   struct nvs_error *error);
/* Under the lock: -EBUSY: it is in flight from or to external memory; or that, or pinned. */
int check_not_external(const struct nvs_tensor *tensor, struct nvs_error *error);
int check_unpinned_one(const struct nvs_tensor *tensor, struct nvs_error *error);
/* Under the lock: makes the tensors a batch. -EINVAL and -EBUSY as above. */
int check_unpinned(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		   struct nvs_error *error);

/* ---- pin.c and release.c: pins of calls that copy bytes; other calls wait for their end ---- */
/* As batch_swap_in(), until the deadline of deadline_ns(). */
int pin_to_copy(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		uint64_t deadline, uint64_t *pin, struct nvs_error *error);
/* Ends them. NVS_DIRTY: all reads that they waited for succeeded, and contents were changed. */
void end_copies(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		uint64_t pin, enum nvs_how how);

/* ---- step.c: under the lock ---- */
/* Records an access to the tensors, before the call changes their states. */
void step_access(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		 bool contents);
/* Counts a call's wait since from_ns. */
void step_stalled(struct nvs_engine *engine, uint64_t from_ns);
/* Traces that wait: for the tensor, or for room if it is NULL. */
void trace_wait(const struct nvs_engine *engine, const struct nvs_tensor *tensor, uint64_t from_ns);
/* Traces a successful call on these tensors. */
void trace_calls(const struct nvs_engine *engine, enum trace_kind call,
		 struct nvs_tensor *const *tensors, size_t n);

/*
 * ---- wait.c: turns, under the lock ----
 *
 * Calls on a tensor wait for others that copy its bytes, and for what the engine does with it. A
 * call that has to wait gets in line, and those that share a tensor with it and come later wait for
 * it in turn: otherwise overlapping calls could starve it. All that is
 * waited for in line ends by itself, so no call waits for room there.
 */
struct turn {
	struct nvs_tensor *const *tensors; /* valid as long as the call is in line */
	size_t n;
	enum copying copying; /* what the call is going to do with them */
	bool in_line;
	TAILQ_ENTRY(turn) link;
};
/* Gets in line, at its end, if the call is not in it; and leaves it. */
void turn_await(struct nvs_engine *engine, struct turn *turn);
void turn_end(struct nvs_engine *engine, struct turn *turn);
/* Whether a call that is in line before this one shares a tensor with it, or a commit goes
 * first. */
bool turn_is_blocked(struct nvs_engine *engine, const struct turn *turn);
/* Has copies wait for a commit, as engine->turns.held says. */
void commit_hold(struct nvs_engine *engine, enum copying from);
void copy_begins(struct nvs_engine *engine, struct nvs_tensor *tensor, enum copying copying);
void copy_ends(struct nvs_engine *engine, struct nvs_tensor *tensor);

/* ---- wait.c ---- */
/* As batch_wait(), until the deadline of deadline_ns(). */
int wait_until(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n, uint64_t pin,
	       uint64_t deadline, struct nvs_error *error);

/* The following ones under the lock: */
/* Waits for the call's turn, until no transfer of its tensors that the engine started on its own is
 * in flight, and no call copies bytes of them. Makes them a batch. 0, -ETIMEDOUT; -EINVAL and
 * -EBUSY of check_unpinned(); -EBUSY: a transfer that a caller started is in flight. */
int wait_for_engine(struct nvs_engine *engine, struct turn turn, struct nvs_error *error);
/* Waits for the call's turn, until no call copies bytes of the tensors. */
void wait_for_copies(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n);
/* Waits until no write, or nothing at all, is in flight: 0, or -ETIMEDOUT if one is overdue. */
int drain(struct nvs_engine *engine, bool writes_alone, struct nvs_error *error);

/* ---- commit.c ---- */
/* Takes the note of the last commit over from the store. -ENOMEM */
int notes_open(struct nvs_engine *engine, struct nvs_error *error);

/* ---- register.c ---- */
int tensors_from_manifest(struct nvs_engine *engine, struct nvs_error *error);

/* ---- files.c ---- */
/* Registers the tensors of files, which are the engine's store. */
int tensors_from_files(struct nvs_engine *engine, const struct weights *weights,
		       struct nvs_error *error);

#endif
