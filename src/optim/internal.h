/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer's structures. All groups lie in one flat space of elements, which is divided into
 * tiles of equal length. The master weights of a tile's elements and each state of the rule (Adam
 * has exp_avg and exp_avg_sq) are a tensor of the swap engine, side by side in the store, so a tile
 * moves as one run and a part by itself. Added gradients lie in tensors of the same size, so the
 * pool never fragments.
 *
 * The order of the files, from the bottom. Each calls only those before it (test_layers):
 *	kernels: plain avx2 avx512 kernel rule
 *	step: numbers adam
 *	calls: threads state checks
 *	state: format layout tensors walks
 *	pass: room gradients tile pass
 *	state: bulk ranges
 *	step: step
 *	kept: groups header stored_groups keep
 *	optimizer: optimizer convert
 */
#ifndef OPTIM_INTERNAL_H
#define OPTIM_INTERNAL_H

#include <assert.h>
#include <pthread.h>

#include "base/numbers.h"
#include "config/config.h"
#include "nvswap.h"
#include "optim/optimizer.h"
#include "optim/pass/threads.h"
#include "optim/state/header.h"
#include "optim/step/numbers.h"
#include "swap/swap.h"

#define SLICE	       (32u * 1024)  /* elements per task of a thread */
#define SUM_BLOCKS     (16u * 1024)  /* blocks per sum task */
#define TILE_UNIT      SUM_BLOCK     /* elements; groups and tiles begin at multiples of it */
#define POOL_TILES     12u	     /* tiles that fit in the pool, at least */
#define POOL_TILES_MIN 3u	     /* the same if there would be more than TILES_MAX tiles */
#define TILES_MAX      65536u	     /* tiles, if POOL_TILES_MIN allows it */
#define TILE_NUMEL     (256u * 1024) /* elements; tiles are longer only if there would be more */
#define TILES_WANTED   256u	     /* than so many */
#define TILES_AHEAD    16u	     /* read ahead by nvs_optimizer_get, at most */

struct group {
	char *name;
	uint64_t numel, at; /* at: the first element's index in the flat space */
	enum nvs_dtype dtype;
	char *weights; /* the caller's, or NULL */

	enum nvs_gradients gradients; /* of the next step */
	const char *lent;
	enum nvs_dtype lent_dtype;
	uint64_t added; /* elements, counted each time */
};

/* Where a tile's state is between passes. Held tiles are the host cache. */
enum tile_place {
	TILE_FRESH,	   /* nowhere: it is made from the weights when it is first needed */
	TILE_LOOSE,	   /* on the drive, unpinned; or in host memory */
	TILE_HELD,	   /* pinned, and as the engine has it, which may have to write it */
	TILE_HELD_CHANGED, /* pinned, and changed since */
	TILE_SUSPENDED,	   /* held until the present commit and pinned again after it */
};

/* What a step has done with a tile. A step may take several calls, and passes of other kinds may
 * run between them. */
enum tile_progress {
	TILE_PENDING,
	TILE_AHEAD, /* not updated, but read before the pass that updates it */
	TILE_UPDATED,
};

/* What a pass does with a tile. */
enum tile_task {
	TASK_NONE,    /* it is not wanted, or it is finished */
	TASK_AT_HAND, /* wanted; in host memory, as its gradients are */
	TASK_QUEUED,  /* wanted; it or its gradients must be fetched */
	TASK_FETCHED, /* pinned, and maybe being read */
	TASK_LANDED,  /* its reads have ended */
	TASK_COMPUTED,
	TASK_FAILED, /* computed, and one of its slices has failed */
};

struct tile {
	struct nvs_tensor *parts[PARTS]; /* NULL: in host memory, in a store that is not kept */
	char *host;			 /* its state in host memory, part after part; or NULL */
	uint64_t pin;			 /* of all parts, while they are fetched or held */
	uint32_t slices;		 /* slices that the pass has yet to compute */
	enum tile_place place;
	enum tile_progress progress;
	enum tile_task task; /* under the lock of the pass */
	bool split;	     /* its master weights are the caller's weights and remainders */
};

struct gradient_tile {
	struct nvs_tensor *tensor;
	uint64_t pin; /* while it is used, one for all sharers */
	bool valid;   /* gradients were added; otherwise they are zero */
	/* In a pass, under its lock: */
	uint32_t users;	  /* tiles that still need it */
	uint32_t sharers; /* of these, the fetched ones, which share one pin of the tensor */
};

/* A step that has begun and failed is finished by a later call, maybe of a later run. */
enum step_state {
	STEP_NONE,
	STEP_UNFINISHED,
	STEP_INHERITED, /* unfinished, and begun by an earlier run */
};

/* A walk through one part of the state by nvs_optimizer_get and nvs_optimizer_set: that part of the
 * tiles [from, end) is in the pool or being read. The tile `at` was visited last. */
struct walk {
	size_t from, at, end;
};

struct nvs_optimizer {
	struct nvs_config config; /* a copy without paths */
	bool keep;
	bool read_only; /* of a kept store; no state changes */
	struct nvs_engine *engine;
	struct threads *threads; /* compute */
	struct threads *landing; /* one, which waits for the tiles of a pass */
	const struct kernel *kernel;
	const struct rule *rule;
	struct nvs_optimizer_options options; /* the caller's, or zeros */
	pthread_mutex_t lock;		      /* serializes calls */

	struct group *groups;
	size_t ngroups;
	uint64_t flat; /* elements of the flat space */
	uint64_t tile_numel;
	struct tile *tiles;
	size_t ntiles, noffloaded; /* the other tiles are in host memory */
	char *host;
	size_t host_bytes;
	struct nvs_tensor **offloaded; /* the tensors of the offloaded tiles, for waiting */
	size_t *queue;		       /* the tiles of a pass */
	size_t ncached;		       /* tiles held between steps */
	uint64_t passes;	       /* that wrote; see goes_back() */
	struct walk walks_of[PARTS];   /* of nvs_optimizer_get and nvs_optimizer_set */
	size_t tiles_ahead;	       /* that a walk reads ahead */
	bool walking;		       /* there are such walks */
	uint64_t walk_failures;	       /* the engine's failed writes that were reported to them */

	/* The format of the state: see state/format.c. */
	enum nvs_optimizer_state state;
	enum moments moments;
	bool splits;		     /* master weights of bf16 weights are these and remainders */
	bool takes_state;	     /* the format of the kept store, whatever is configured */
	bool takes_rule;	     /* the rule of the kept store */
	uint64_t numel, split_numel; /* of all groups; of these, in split tiles */
	uint64_t state_bytes;	     /* of all tiles */

	enum nvs_dtype gradient_dtype;
	uint64_t gradient_numel; /* of a gradient tile */
	struct gradient_tile *gradients;
	size_t ngradients;
	bool gradients_registered;

	/* Of all threads, one after the other; NULL if they need none: */
	float *floats;		     /* SLICE of each part, for state_open */
	float *scratch;		     /* SLICE gradients for the caller's function */
	uint16_t *lowered;	     /* SLICE weights that have no array, or to compare */
	float *zeros;		     /* SLICE zeros, for gradients that were never added */
	double *sums;		     /* SUM_BLOCKS */
	uint64_t sum_ns, sum_cpu_ns; /* all threads' time in sums since the step was called */

	/* Kept with the state. */
	uint64_t step; /* steps so far */
	struct scaler scaler;
	enum step_state step_state;
	/* of an unfinished step: */
	double step_lr, step_factor, step_norm, step_clip;
	uint8_t *header;      /* as last read or written; NULL: the store is not kept */
	struct header stored; /* the decoded header that the optimizer was opened with */
	struct nvs_tensor *header_tensor;
	size_t header_bytes;
	/* Checksums of the header, and of the parts of tiles in host memory, as the store has them;
	 * 0: not known. */
	uint64_t *stored_sums;
	uint64_t layout_sum; /* checksum of the groups' names and places */
	/* The table of groups, encoded, until the optimizer is closed; NULL: the store has it. */
	uint8_t *table;
	size_t table_bytes;
	struct nvs_tensor *table_tensor;
	uint64_t table_sum; /* as stored_sums */
};

/* A run of one group's elements within a range of the flat space. */
struct segment {
	size_t group;
	uint64_t offset; /* in the group */
	uint64_t at;	 /* in the flat space */
	uint64_t numel;
};

/* ---- checks.c ---- */
/* -ENOTSUP unless the configured optimizer is one of the kernels', or the caller's function, or
 * nothing is updated. */
int check_type(const struct nvs_optimizer *optimizer, struct nvs_error *error);
/* -ENOTSUP unless the rule's state may have the configured format. */
int check_format(const struct nvs_optimizer *optimizer, struct nvs_error *error);
/* Includes values that the parser refuses but a caller may set. */
int check_values(const struct nvs_config *config, enum nvs_rule rule, struct nvs_error *error);
/* -EINVAL if the argument of that name is NULL. */
int check_given(const void *argument, const char *name, struct nvs_error *error);
/* -EINVAL if the learning rate or the sums would make weights nan. */
int check_step(const struct nvs_optimizer *optimizer, const struct nvs_step_options *options,
	       struct nvs_error *error);
/* -EBUSY while a step is unfinished. */
int refuse_unfinished(const struct nvs_optimizer *optimizer, struct nvs_error *error);
/* -EINVAL if there are not n groups. */
int check_ngroups(const struct nvs_optimizer *optimizer, size_t n, struct nvs_error *error);
/* -EINVAL unless the elements lie in the group. */
int check_range(const struct nvs_optimizer *optimizer, size_t group, uint64_t offset,
		uint64_t numel, struct nvs_error *error);
/* What a call needs beside the lock. */
enum call_needs {
	CALL_CHANGES = 1,	/* refused if the store is only read */
	CALL_BETWEEN_STEPS = 2, /* refused while a step is unfinished */
};
/*
 * Begins a call, and waits for calls of other threads.
 * -EINVAL   the optimizer is NULL
 * -EDEADLK  a function of the caller, such as `update`, makes the call within another
 * -EROFS, -EBUSY  it is refused
 */
int call_begin(struct nvs_optimizer *optimizer, unsigned needs, struct nvs_error *error);
void call_end(struct nvs_optimizer *optimizer);

/* ---- format.c ---- */
/* Sets the format of the state, before anything is laid out. */
void format_choose(struct nvs_optimizer *optimizer, enum nvs_optimizer_state state);
/* Ends the choice when the groups are known. */
void format_settle(struct nvs_optimizer *optimizer);
/* Whether the master weights of a group may be its weights and remainders. */
bool splits_group(const struct nvs_optimizer *optimizer, const struct group *group);
/* Whether some part is kept as other than float32. */
bool is_packed(const struct state_run *packed);
/* The bytes of a part of a tile and of all parts, and the type of the elements of its tensor. */
uint64_t part_nbytes(const struct nvs_optimizer *optimizer, size_t tile, unsigned part);
uint64_t tile_nbytes(const struct nvs_optimizer *optimizer, size_t tile);
enum nvs_dtype part_dtype(const struct nvs_optimizer *optimizer, size_t tile, unsigned part);
/* The bytes of the state of numel elements, a multiple of TILE_UNIT, in any tile at most. */
uint64_t state_nbytes(const struct nvs_optimizer *optimizer, uint64_t numel);
/* A part of a tile, whose state must be in memory here and below. */
void *tile_part(const struct nvs_optimizer *optimizer, size_t tile, unsigned part);
/* Makes elements [from, from + n) of a tile 0; of a split one, the remainders. */
void state_clear(const struct nvs_optimizer *optimizer, size_t tile, uint64_t from, uint64_t n);
/* The state of a segment, which lies in the tile, as the kernels take it. */
struct state_run state_packed(const struct nvs_optimizer *optimizer, size_t tile,
			      const struct segment *segment);
/* The caller's weights of a segment, or NULL. */
void *group_weights(const struct nvs_optimizer *optimizer, const struct segment *segment);
/* The random bits with which a step rounds a segment's state. */
struct noise noise_at(const struct nvs_optimizer *optimizer, const struct segment *segment,
		      uint64_t step);
/*
 * Opens the state of a segment of up to SLICE elements as float32: in the tile, or in memory of the
 * thread, where only `read` gives it contents.
 */
struct nvs_state_run state_open(const struct nvs_optimizer *optimizer,
				const struct state_run *packed, const struct segment *segment,
				unsigned thread, bool read);
/* Ends the change of such a state, and copies its master weights to the caller's weights. Rounds as
 * this step does, or with 0 to nearest. */
void state_close(const struct nvs_optimizer *optimizer, const struct state_run *packed,
		 const struct segment *segment, const struct nvs_state_run *run, uint64_t step);
/* Copies a segment's master weights to the caller's weights, if there are any. */
void give_weights(const struct nvs_optimizer *optimizer, const struct segment *segment,
		  const float *master);
/* Whether `other` must be in memory for part_move of a part. */
bool part_needs(const struct nvs_optimizer *optimizer, size_t tile, unsigned part, unsigned other);
/* Copies a part of a segment out of the state (to) or into it (from), rounded to nearest. The
 * master weights of a split tile are copied into the caller's weights too. */
void part_move(const struct nvs_optimizer *optimizer, size_t tile, unsigned part,
	       const struct segment *segment, float *to, const float *from);

/* ---- layout.c ---- */
/* Checks and copies the groups, and computes the length of the flat space. */
int layout_groups(struct nvs_optimizer *optimizer, const struct nvs_group_spec *specs, size_t n,
		  struct nvs_error *error);
/* Assigns groups and tiles their places. */
int layout_tiles(struct nvs_optimizer *optimizer, uint64_t tile_numel, struct nvs_error *error);
void layout_free(struct nvs_optimizer *optimizer);
/* The longest tile for these groups, whatever the pool. */
uint64_t layout_tile_numel_max(const struct nvs_optimizer *optimizer);
/* The tile length for the configured pool; 0: the pool does not hold two tiles. */
uint64_t layout_tile_numel(const struct nvs_optimizer *optimizer);
/* Finds the next segment in [*from, end) of the flat space and moves *from behind it. */
bool next_segment(const struct nvs_optimizer *optimizer, uint64_t *from, uint64_t end,
		  struct segment *segment);
/* The bytes of a tensor of gradients. */
static inline uint64_t gradients_nbytes(const struct nvs_optimizer *optimizer)
{
	return optimizer->tile_numel * sizeof(float);
}
/* ---- tensors.c ---- */
/* Registers the tensors of all tiles, or of the offloaded ones if the store is not kept. */
int register_tiles(struct nvs_optimizer *optimizer, struct nvs_error *error);
/* Registers n parts of all tiles under other names than the tiles have. */
int register_converted(struct nvs_optimizer *optimizer, const unsigned *parts, size_t n,
		       struct nvs_error *error);
/* Registers the tensors of added gradients; called by the first addition. */
int register_gradients(struct nvs_optimizer *optimizer, struct nvs_error *error);

/* ---- state.c ---- */
static inline bool has_gradients(const struct group *group)
{
	return group->gradients == NVS_GRADIENTS_LENT || group->gradients == NVS_GRADIENTS_ADDED;
}
static inline bool is_fresh(const struct tile *tile)
{
	return tile->place == TILE_FRESH;
}
static inline bool is_held(const struct tile *tile)
{
	return tile->place == TILE_HELD || tile->place == TILE_HELD_CHANGED;
}
/* Whether the next pass goes from the last tile to the first: what the one before has left in the
 * pool comes first then. With overlap_step weights are final in the order of the groups. */
static inline bool goes_back(const struct nvs_optimizer *optimizer)
{
	return optimizer->passes & 1 && !optimizer->config.overlap_step;
}
static inline bool is_unfinished(const struct nvs_optimizer *optimizer)
{
	return optimizer->step_state != STEP_NONE;
}
/* These assert what must hold; of a tile that no thread of a pass works on. */
void tile_check(const struct nvs_optimizer *optimizer, const struct tile *tile);
void group_check(const struct nvs_optimizer *optimizer, const struct group *group);
void layout_check(const struct nvs_optimizer *optimizer);
/* All of these, between calls. */
void optimizer_check(const struct nvs_optimizer *optimizer);
void tile_set_place(const struct nvs_optimizer *optimizer, struct tile *tile,
		    enum tile_place place);
void group_set_gradients(const struct nvs_optimizer *optimizer, struct group *group,
			 enum nvs_gradients gradients);

/* ---- walks.c ---- */
/* A call of get or set begins: from here on, failed writes are reported to the walks. */
void walks_begin(struct nvs_optimizer *optimizer);
/* The walk through a part comes to an offloaded tile. */
void walks_visit(struct nvs_optimizer *optimizer, unsigned part, size_t tile);
/*
 * The error of a write, if one has failed since there were *failures, which it counts; or 0. Also
 * of one that a later attempt repeated successfully: the caller must learn of the failure.
 */
int check_writes(const struct nvs_optimizer *optimizer, uint64_t *failures,
		 struct nvs_error *error);
/* Ends the walks, and evicts what they have left in the pool. */
void walks_end(struct nvs_optimizer *optimizer);

/* ---- room.c ---- */
struct pass;
#define NO_TILE SIZE_MAX
/*
 * Pins tensors of the tile `own`, or of none, for new contents or to `read` them; waits for room,
 * for which other tiles may be held no longer. `pass` is that of the caller, or NULL.
 */
int pin_in_room(struct nvs_optimizer *optimizer, struct pass *pass, size_t own,
		struct nvs_tensor *const *tensors, size_t n, bool read, uint64_t *pin,
		struct nvs_error *error);
/* Reads them outside a pass, and waits until they have landed. On an error none is pinned. */
int pin_and_read(struct nvs_optimizer *optimizer, size_t own, struct nvs_tensor *const *tensors,
		 size_t n, uint64_t *pin, struct nvs_error *error);

/* ---- pass.c ---- */
/* What a pass does with every tile that it wants. */
struct pass_kind {
	bool writes;	  /* it changes the tiles */
	bool gradients;	  /* it needs the tiles' added gradients */
	bool overwrites;  /* it changes every element, so nothing is read */
	bool master_only; /* it reads the master weights alone, and writes nothing */
	bool (*wants)(const struct nvs_optimizer *optimizer, size_t tile);
	/* Works on elements [from, from + n) of the tile; called by several threads. An error
	 * ends the pass, and a tile that is overwritten keeps its contents on the drive. */
	int (*slice)(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from,
		     uint64_t n, unsigned thread);
	/*
	 * NULL, or: `slice` begins transfers of a whole tile and returns 0, and this waits for them
	 * and returns their error. The thread begins the next tile in between. In both calls
	 * `thread` is the tile's flight, 0 to optimizer_flights() - 1.
	 */
	int (*complete)(struct nvs_optimizer *optimizer, void *arg, size_t tile, unsigned flight);
};

struct pass_figures {
	uint64_t tiles, hits, misses, stalls;
	uint64_t stall_ns, compute_ns, cpu_ns; /* sums over all threads */
};

/* Waits for all transfers. Returns the error of a write that failed since there were `failures`
 * failures, or 0. */
int wait_landed(struct nvs_optimizer *optimizer, uint64_t failures, struct nvs_error *error);
/* Runs a pass. On an error, tiles that were begun are finished and kept. */
int pass_run(struct nvs_optimizer *optimizer, const struct pass_kind *kind, void *arg,
	     struct pass_figures *figures, struct nvs_error *error);

/* ---- bulk.c ---- */
/* Creates the state of a fresh tile's elements from the weights. */
void init_slice(struct nvs_optimizer *optimizer, size_t tile, uint64_t from, uint64_t n);
/* Creates and writes the state of all fresh tiles. */
int init_tiles(struct nvs_optimizer *optimizer, struct nvs_error *error);

/* ---- gradients.c ---- */
/* The gradients of a segment of a tile, possibly zeros, and their type. */
const char *gradients_at(const struct nvs_optimizer *optimizer, const struct segment *segment,
			 enum nvs_dtype *dtype);
/* Sums squares, and those of each group to `groups`, which may be NULL. */
int gradients_sum(struct nvs_optimizer *optimizer, double *sum, double *groups,
		  struct nvs_error *error);
/* Discards the tile's gradients and releases their memory. The caller is its only user. */
void gradients_discard(struct nvs_optimizer *optimizer, struct gradient_tile *gradients);
void gradients_clear(struct nvs_optimizer *optimizer);

/* ---- keep.c ---- */
/* Reads the header of a kept store. *tile_numel: the length of its tiles; 0: the store is new. */
int header_find(struct nvs_optimizer *optimizer, uint64_t *tile_numel, struct nvs_error *error);
/* Whether the header matches this layout; called before anything is registered. */
int header_check(struct nvs_optimizer *optimizer, struct nvs_error *error);
/* Adopts the header's state or makes a new header; the tiles are registered. */
int header_adopt(struct nvs_optimizer *optimizer, struct nvs_error *error);
int keep_commit(struct nvs_optimizer *optimizer, struct nvs_error *error);
/* Commits the engine with the header that the store has, but for the format of the state. */
int keep_commit_format(struct nvs_optimizer *optimizer, enum nvs_optimizer_state state,
		       struct nvs_error *error);

#endif
