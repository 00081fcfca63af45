/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tensor and its state: where its contents and its memory are, what moves between them, and what
 * keeps it in the pool or lets it go. tensor_check() asserts what must hold among these, after each
 * change. Under the engine's lock.
 *
 * The usual ways of contents (enum content); a pin without new contents (NVS_CLEAN) goes back:
 *
 *	NONE --released dirty--> POOL --written--> BOTH --evicted--> DRIVE --read--> BOTH
 *	BOTH --released dirty--> NEWER --written--> BOTH
 *
 * A pinned tensor stays where it is. Room is reclaimed from `idle` first, clean tensors at once
 * and dirty ones by a write-back, then from the far end of `ahead`, then from `planned`, the
 * tensor needed last first. A write that fails leaves its tensor in the pool, dirty; it is retried
 * when a call needs room, swaps the tensor out or commits.
 */
#ifndef RESIDENCY_TENSOR_H
#define RESIDENCY_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aio/aio.h"
#include "base/memory/cache.h"
#include "base/state_checks.h"

#define NOWHERE UINT64_MAX

/*
 * The pins of a tensor. Each successful nvs_tensor_swap_in or nvs_tensor_pin makes one pin of all
 * its tensors and numbers it, from 1 in each engine. A release ends it, or the failure of the read
 * that it waits for; a failed read ends no pin that is made after it.
 */
/* Memory for more pins of one tensor is allocated, and stays until the tensor is freed. */
#define PINS_FEW 2

struct pins {
	uint32_t count;
	uint32_t max; /* entries in `many` */
	union {
		uint64_t few[PINS_FEW];
		uint64_t *many; /* if `max` is not 0 */
	};
	uint64_t since_ns; /* when the present pins began: the first of them, if any was released */
	uint64_t failed;   /* the highest pin that a failed read may have ended; or 0 */
	int status;	   /* of that read */
	uint64_t error_offset;
};

/* Where the contents are. A transfer changes it when it lands. */
enum content {
	CONTENT_NONE,  /* nowhere: never written, or a write to the drive failed */
	CONTENT_DRIVE, /* on the drive alone */
	CONTENT_BOTH,  /* in the pool, and the same on the drive: clean */
	CONTENT_NEWER, /* in the pool, and older contents on the drive: dirty */
	CONTENT_POOL,  /* in the pool alone: dirty */
} __attribute__((packed));

_Static_assert(CONTENT_DRIVE < CONTENT_BOTH && CONTENT_BOTH < CONTENT_NEWER &&
		       CONTENT_NEWER < CONTENT_POOL,
	       "in_pool() and is_dirty() compare");

/*
 * What `data` points to. A tensor that is pinned for new contents has memory in the pool, and its
 * contents stay NONE or DRIVE until it is released dirty: it is *unwritten*.
 */
enum memory {
	MEMORY_NONE,
	MEMORY_POOL,	 /* a lease */
	MEMORY_EXTERNAL, /* the caller's, while it is read or written */
} __attribute__((packed));

/* What is in flight between that memory and the drive. */
enum tensor_io {
	IO_IDLE,
	IO_READING,
	IO_WRITING,
} __attribute__((packed));

/* What started the transfer in flight. */
enum origin {
	ORIGIN_CALL,
	ORIGIN_ENGINE, /* no call has asked for it: a read ahead of the plan, a write-back for room,
			  a budget or a commit; or a call that copies bytes, which may end before
			  its read */
} __attribute__((packed));

/* What becomes of the tensor's memory in the pool when its transfer lands and it is not pinned. */
enum on_landing {
	LANDING_STAYS,
	LANDING_EVICTS, /* counts for engine->room.landing */
} __attribute__((packed));

/* What keeps it in the pool; of an unpinned tensor, the list of engine->room that has it. */
enum placement {
	PLACED_NOWHERE, /* not in the pool, or in flight */
	PLACED_PINNED,
	PLACED_IDLE,	/* outside the plan, least recently used first */
	PLACED_AHEAD,	/* read ahead by the caller and not pinned yet, outside the plan */
	PLACED_PLANNED, /* in the plan, read ahead or not */
	PLACEMENTS,
} __attribute__((packed));

_Static_assert(PLACED_PINNED < PLACED_IDLE && PLACED_AHEAD < PLACED_PLANNED,
	       "is_listed() compares");

/* Small tensors stay in the pool (stage3_param_persistence_threshold), if half of it holds them. */
enum plan_class {
	PLAN_LARGE,
	PLAN_SMALL,
	PLAN_OUTSIDE, /* not in the plan */
} __attribute__((packed));

_Static_assert(PLAN_LARGE == 0 && PLAN_SMALL == 1, "classes index plan->idle");

/* Read ahead and not pinned since. */
enum read_ahead {
	AHEAD_NOT,
	AHEAD_FOR_CALLER,
	AHEAD_FOR_PLAN, /* means nothing while the tensor is outside the plan */
} __attribute__((packed));

/* The direction in which a call copies bytes of the tensor, which it has pinned; one at a time. */
enum copying {
	COPIED_NOT,
	COPIED_OUT, /* from the pool to the caller */
	COPIED_IN,  /* from the caller to the pool, also while it waits for the tensor's read */
};

/* The checksum of the contents on the drive. */
enum checksum_state {
	CHECKSUM_NONE,
	CHECKSUM_KNOWN,
	CHECKSUM_UNVERIFIED, /* of an earlier run and not compared since, or the scrub found other
				bytes: the next read compares it */
} __attribute__((packed));

enum registration {
	REGISTRATION_NONE, /* known only from the kept store's manifest */
	REGISTRATION_NEW,  /* being registered; has no extent yet */
	REGISTRATION_DONE,
} __attribute__((packed));

/* Bytes of a tensor to be read into external memory. */
struct part {
	struct part *next;
	void *data;
	uint64_t offset, nbytes;
};

/* The checksum of a run that is being written, kept in its first tensor. */
enum run_sum {
	SUM_NONE,   /* none is needed, or the run is being read */
	SUM_QUEUED, /* in sums->writing or sums->completed */
	SUM_BEGUN,  /* a thread computes it */
	SUM_DONE,
};

/* A name that a tensor has or had. */
struct tensor_name {
	struct tensor_name *earlier;
	char text[];
};

/* What is needed once for a run, in kept stores, in plans and for errors. */
struct tensor_rest {
	/* The other extent of a tensor in a kept store, and those that manifests name. */
	uint64_t spare;	    /* offset of the extent for the next version */
	uint64_t committed; /* the one of the two that the manifest names; or NOWHERE */
	uint64_t snapshot;  /* the one that the manifest being written names; or NOWHERE */
	uint64_t checksum, new_checksum; /* of its contents; of the bytes in flight */
	size_t next_use;		 /* in the plan: its next access */
	uint64_t recorded;		 /* the last step that accessed it */
	uint64_t error_offset; /* of the last transfer that failed; NOWHERE: it was refused, since a
				  failed commit is not settled */

	uint64_t unreported_at; /* the offset in the store of the failed write */
	uint64_t copy_pin;	/* pins it while it is copied to external memory; or 0 */
	enum copying copying;	/* set by copy_begins() and copy_ends() */
	uint32_t in_line;	/* calls in engine->turns.line for it */
	uint64_t line_walk;	/* the last walk along engine->turns.line that met it */
	/* Renaming changes it under the lock. It is also read without the lock, so earlier names
	 * stay allocated. */
	const char *_Atomic name;
	struct tensor_name *names; /* the present one and the earlier ones */
	enum nvs_dtype dtype;
	uint64_t *shape; /* `ndim` dimensions whose product is numel; NULL: one dimension */
	size_t ndim;
	size_t index; /* in engine->tensors */
	/* Of an engine of files, what is read into the pool: the tensor is `skip` bytes behind its
	 * first byte; tensors that are `small` are read together, each to its segment. */
	uint64_t loaded;
	uint32_t skip; /* 0 in other engines */
	bool small;
	bool rows; /* of another tensor: the caller may forget it */
	struct segment segment;
	/* With external memory: the bytes of the tensor that `data` has. */
	uint64_t part_offset, part_nbytes;
	struct part *parts; /* read after that one */

	/* The first tensor of a run has the run's transfer, and how many bytes of the pool come
	 * free when it lands: of its tensors whose on_landing is LANDING_EVICTS. */
	struct transfer transfer;
	uint64_t room;
	TAILQ_ENTRY(nvs_tensor) launched; /* in engine->moves.runs */
	enum run_sum sum;		  /* of the run */
	TAILQ_ENTRY(nvs_tensor) to_sum;
	uint64_t launched_ns; /* for the trace; of a run's first tensor */
};

/*
 * What calls and landings need of each tensor, in three cache lines: a call may name thousands.
 * Tensors that are registered together follow one another in memory, unless they get the slots of
 * forgotten ones.
 */
struct nvs_tensor {
	_Alignas(CACHE_LINE) struct nvs_engine *engine;
	char *data;	 /* or NULL */
	uint64_t extent; /* length in the store and in the pool: nbytes in whole units */
	uint64_t offset; /* of its contents in the store */
	uint64_t place;	 /* the offset that its transfer reads or writes */
	uint64_t batch;	 /* the last call that named it */
	enum content content;
	enum memory memory;
	enum tensor_io io;
	enum origin origin;
	enum on_landing on_landing; /* set by set_on_landing() */
	enum placement placement;
	enum read_ahead ahead; /* set by set_ahead() */
	enum plan_class class;
	enum checksum_state checksum_state;
	enum registration registration;
	bool counted; /* in a list, and counted for max_in_cpu */
	bool unread;  /* the plan failed to read it ahead, and nothing was moved since */
	int status;   /* of the last transfer */

	uint64_t numel, nbytes;
	uint64_t hangs_at; /* overdue: the offset in the store; else NOWHERE */
	struct nvs_tensor *run_first, *run_next;
	TAILQ_ENTRY(nvs_tensor) idle;
	enum nvs_direction status_direction;
	int unreported; /* of a failed write from external memory that no call returned; or 0 */

	struct pins pins;
	struct tensor_rest *rest;
};

_Static_assert(offsetof(struct nvs_tensor, numel) == CACHE_LINE, "the state fills one line");
_Static_assert(offsetof(struct nvs_tensor, pins) == 2 * CACHE_LINE, "the run fills one line");
_Static_assert(sizeof(struct nvs_tensor) == 3 * CACHE_LINE, "pins and `rest` fill one line");

/* ---- What follows from the state ---- */

static inline bool in_flight(const struct nvs_tensor *tensor)
{
	return tensor->io != IO_IDLE;
}

static inline bool is_external(const struct nvs_tensor *tensor)
{
	return tensor->memory == MEMORY_EXTERNAL;
}

/* Less than all of it is read into external memory. */
static inline bool is_part(const struct nvs_tensor *tensor)
{
	return is_external(tensor) && tensor->rest->part_nbytes != tensor->nbytes;
}

/* Its first byte in memory. */
static inline char *first_byte(const struct nvs_tensor *tensor)
{
	return is_external(tensor) ? tensor->data : tensor->data + tensor->rest->skip;
}

/* It has no memory, and none is moved. */
static inline bool needs_memory(const struct nvs_tensor *tensor)
{
	return tensor->memory == MEMORY_NONE;
}

static inline bool in_pool(enum content content)
{
	return content >= CONTENT_BOTH;
}

static inline bool on_drive(enum content content)
{
	return content != CONTENT_NONE && content != CONTENT_POOL;
}

/* The drive lacks its contents, and no write is on the way. */
static inline bool is_dirty(const struct nvs_tensor *tensor)
{
	return tensor->content >= CONTENT_NEWER && tensor->io != IO_WRITING;
}

/* Pinned for new contents, and not released yet. */
static inline bool is_unwritten(const struct nvs_tensor *tensor)
{
	return tensor->memory == MEMORY_POOL && tensor->io == IO_IDLE && !in_pool(tensor->content);
}

/* In one of the lists of unpinned tensors. */
static inline bool is_listed(const struct nvs_tensor *tensor)
{
	return tensor->placement >= PLACED_IDLE;
}

static inline bool in_plan(const struct nvs_tensor *tensor)
{
	return tensor->class != PLAN_OUTSIDE;
}

static inline bool is_ahead(const struct nvs_tensor *tensor)
{
	return tensor->ahead == AHEAD_FOR_CALLER ||
	       (tensor->ahead == AHEAD_FOR_PLAN && in_plan(tensor));
}

static inline bool is_overdue(const struct nvs_tensor *tensor)
{
	return tensor->hangs_at != NOWHERE;
}

/* A call copies bytes of it, and no other has it pinned: a failed read may have ended its pin. */
static inline bool is_copied(const struct nvs_tensor *tensor)
{
	return tensor->rest->copying != COPIED_NOT && tensor->pins.count <= 1;
}

/* In use without a call of the caller's to wait for: calls wait for the end by themselves. */
static inline bool is_used_by_engine(const struct nvs_tensor *tensor)
{
	return tensor->origin == ORIGIN_ENGINE || is_copied(tensor);
}

/* Bytes of the pool that come free when its transfer lands. */
static inline uint64_t room_of(const struct nvs_tensor *tensor)
{
	return tensor->on_landing == LANDING_EVICTS ? tensor->extent : 0;
}

/* A write that begins when the commit ends; its transfer has no file until then. */
static inline bool is_held(const struct nvs_tensor *tensor)
{
	return !tensor->run_first->rest->transfer.file;
}

/* Whether a failed read ended the pin. */
static inline bool pin_failed(const struct nvs_tensor *tensor, uint64_t pin)
{
	return pin && pin <= tensor->pins.failed;
}

/* ---- tensor.c: pins ---- */
/* Makes room for one more pin; false: out of memory. */
bool pins_reserve(struct pins *pins);
/* `now_ns` is the time of clock_ns(). */
void pins_add(struct nvs_tensor *tensor, uint64_t pin, uint64_t now_ns);
void pins_remove(struct nvs_tensor *tensor, uint64_t pin);
bool pins_have(const struct nvs_tensor *tensor, uint64_t pin);
/* Stores up to `max` pins, the oldest first, and returns how many. */
size_t pins_list(const struct nvs_tensor *tensor, uint64_t *list, size_t max);
/* Ends all pins: the read whose status the tensor has failed. */
void pins_fail(struct nvs_tensor *tensor);
/* -EINVAL: the pin is not one of the tensor, and no failed read ended it. */
int pin_check(const struct nvs_tensor *tensor, uint64_t pin, struct nvs_error *error);

/* ---- tensor.c ---- */
enum nvs_tensor_state tensor_state(const struct nvs_tensor *tensor);
/* Its memory in the pool has the same contents as the drive. */
void set_clean(struct nvs_tensor *tensor);
/* What it has in the pool is no longer its contents. */
void forget_pool(struct nvs_tensor *tensor);

/* ---- invariants.c, with STATE_CHECKS ---- */
void tensor_check_state(const struct nvs_tensor *tensor);
/* Asserts what must hold of the tensor between two changes. */
static inline void tensor_check(const struct nvs_tensor *tensor)
{
	if (STATE_CHECKS)
		tensor_check_state(tensor);
}
/* Asserts what must hold of all tensors together. Takes as long as there are tensors. */
void engine_check(const struct nvs_engine *engine);

#endif
