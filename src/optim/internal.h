/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer's own structures. All groups lie in one flat space of elements, which is cut into
 * tiles of one length. A tile is one tensor of the swap engine: the master weights of its elements,
 * then their exp_avg, then their exp_avg_sq. Gradients that are handed over in pieces lie in
 * tensors of the same number of bytes, so that the pool never falls into pieces that fit nothing.
 */
#ifndef OPTIM_INTERNAL_H
#define OPTIM_INTERNAL_H

#include <pthread.h>

#include "nvswap.h"
#include "optim/kernel.h"
#include "optim/optimizer.h"
#include "optim/scaler.h"
#include "optim/threads.h"
#include "swap/swap.h"

#define PARTS	       3u /* of the state: enum nvs_optimizer_part */
#define STATE_BYTES    (PARTS * sizeof(float))
#define SLICE	       (32u * 1024)  /* elements that a thread takes at a time */
#define SUM_BLOCKS     (16u * 1024)  /* blocks that are summed at a time */
#define TILE_UNIT      SUM_BLOCK     /* groups and tiles begin at multiples of it */
#define POOL_TILES     12u	     /* at least so many fit in the pool, where it is not tiny, */
#define POOL_TILES_MIN 3u	     /* and so many where it is */
#define TILES_MAX      65536u	     /* of a model that is large beside its pool, if that can be */
#define TILE_NUMEL     (256u * 1024) /* no tile need be longer, unless there are */
#define TILES_WANTED   256u	     /* already: more would be books to keep for nothing */

struct group {
	char *name;
	uint64_t numel, at; /* at: its first element in the flat space */
	enum nvs_dtype dtype;
	char *weights; /* the caller's, or NULL */

	/* Gradients of the next step: lent, added, or none. */
	const char *lent;
	enum nvs_dtype lent_dtype;
	bool added;
	bool owed; /* lent to a step that a run before this one began; to be lent again */
};

struct tile {
	struct nvs_tensor *tensor; /* NULL: in host memory, in a store that is not kept */
	uint32_t slices;	   /* still to be computed, in a pass */
	bool fresh;		   /* has no state yet */
	bool held;		   /* in use from one step to the next: the host cache */
	bool changed;		   /* is held, and the drive has something else */
	bool done;		   /* updated in the step that is under way */
	bool ahead;		   /* read before its pass began */
	bool fetched;		   /* not offloaded, but its gradients are: in a pass */
	bool let_go;		   /* was held, and will be when the commit is over */
};

struct gradient_tile {
	struct nvs_tensor *tensor;
	bool valid; /* gradients have been added; else they are zero */
	/* In a pass, under its lock: */
	uint32_t users;	  /* tiles that have yet to be done with it */
	uint32_t sharers; /* of these, the fetched ones, which share one use of the tensor */
};

struct nvs_optimizer {
	struct nvs_config config; /* its paths are not ours */
	bool keep;
	struct nvs_engine *engine;
	struct threads *threads;
	const struct kernel *kernel;
	nvs_update_fn *update; /* NULL: the kernel's Adam */
	void *update_arg;
	pthread_mutex_t lock; /* calls take turns */

	struct group *groups;
	size_t ngroups;
	uint64_t flat; /* elements of the flat space */
	uint64_t tile_numel;
	struct tile *tiles;
	size_t ntiles, noffloaded; /* the rest is in host memory */
	char *host;
	size_t host_bytes;
	struct nvs_tensor **offloaded; /* the tensors of these tiles, for waiting */
	size_t *queue;		       /* room for the tiles of a pass */
	size_t ncached;		       /* tiles that are held from step to step */
	uint64_t walks;		       /* passes that wrote: their direction takes turns */

	enum nvs_dtype gradient_dtype;
	uint64_t gradient_numel; /* of a gradient tile */
	struct gradient_tile *gradients;
	size_t ngradients;
	bool gradients_registered;

	float **scratch;	     /* of each thread: SLICE gradients for the caller's function */
	float *zeros;		     /* SLICE gradients that were never added to */
	double *sums;		     /* SUM_BLOCKS */
	uint64_t sum_ns, sum_cpu_ns; /* of all threads, in sums since the step was called */

	/* Kept with the state. */
	uint64_t step; /* taken so far */
	struct scaler scaler;
	bool unfinished; /* a step has begun that has yet to be finished, with these: */
	double step_lr, step_factor, step_norm, step_clip;
	struct header *header; /* as it was last read or written; NULL: the store is not kept */
	struct nvs_tensor *header_tensor;
	size_t header_bytes;
	uint64_t layout_sum; /* over the groups' names and places */
};

/* A run of one group's elements within a range of the flat space. */
struct segment {
	size_t group;
	uint64_t offset; /* in the group */
	uint64_t at;	 /* in the flat space */
	uint64_t numel;
};

/* ---- optimizer.c ---- */
/* Reserves room for gradients that are added, which takes none on the drive before one is. */
int register_gradients(struct nvs_optimizer *optimizer, struct nvs_error *error);

/* ---- layout.c ---- */
/* Checks and copies the groups, and adds up what they take of the flat space. */
int layout_groups(struct nvs_optimizer *optimizer, const struct nvs_group_spec *specs, size_t n,
		  struct nvs_error *error);
/* Gives groups and tiles their places. */
int layout_tiles(struct nvs_optimizer *optimizer, uint64_t tile_numel, struct nvs_error *error);
void layout_free(struct nvs_optimizer *optimizer);
/* The longest that a tile of these groups may be, whatever the pool. */
uint64_t layout_tile_numel_max(const struct nvs_optimizer *optimizer);
/* The tile that the configured pool asks for; 0: not even two fit in it. */
uint64_t layout_tile_numel(const struct nvs_optimizer *optimizer);
/* Begins a walk over the segments in a range of the flat space; *from moves behind each. */
bool next_segment(const struct nvs_optimizer *optimizer, uint64_t *from, uint64_t end,
		  struct segment *segment);
/* The three parts of a tile's state, whose memory must be there. */
float *tile_part(const struct nvs_optimizer *optimizer, size_t tile, enum nvs_optimizer_part part);
static inline uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline bool has_gradients(const struct group *group)
{
	return group->lent || group->added;
}

/* ---- pass.c ---- */
struct pass;
/* What is done with every tile that is wanted. */
struct pass_kind {
	bool writes;	/* the tiles are changed */
	bool gradients; /* needs the added gradients of the tile */
	bool (*wants)(const struct nvs_optimizer *optimizer, size_t tile);
	/* Works on elements [from, from + n) of the tile; from several threads. */
	void (*slice)(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from,
		      uint64_t n, unsigned thread);
};

struct pass_figures {
	uint64_t tiles, hits, misses, stalls;
	uint64_t stall_ns, compute_ns, cpu_ns; /* of all threads together */
};

/* Waits for all that is in flight. Why a write failed since there were so many failures, or 0. */
int settle(struct nvs_optimizer *optimizer, uint64_t failures, struct nvs_error *error);
/* Runs all of it; on an error tiles that were begun are finished, and what was written is kept. */
int pass_run(struct nvs_optimizer *optimizer, const struct pass_kind *kind, void *arg,
	     struct pass_figures *figures, struct nvs_error *error);

/* ---- state.c ---- */
/* Makes the state of elements of a fresh tile from the weights. */
void init_slice(struct nvs_optimizer *optimizer, size_t tile, uint64_t from, uint64_t n);
/* Hands out the weights of a segment whose master weights these are, if the caller takes any. */
void give_weights(const struct nvs_optimizer *optimizer, const struct segment *segment,
		  const float *master);
/* Writes the state of all tiles that have none. */
int init_tiles(struct nvs_optimizer *optimizer, struct nvs_error *error);

/* ---- gradients.c ---- */
/* Where the gradients of a segment of a tile are, which may be zeros; and their type. */
const char *gradients_at(const struct nvs_optimizer *optimizer, const struct segment *segment,
			 enum nvs_dtype *dtype);
int gradients_sum(struct nvs_optimizer *optimizer, double *sum, struct nvs_error *error);
/* Gives up what was added there: its memory too. The caller is its only user. */
void gradients_discard(struct nvs_optimizer *optimizer, struct gradient_tile *gradients);
void gradients_clear(struct nvs_optimizer *optimizer);
int refuse_unfinished(const struct nvs_optimizer *optimizer, struct nvs_error *error);
int check_range(const struct nvs_optimizer *optimizer, size_t group, uint64_t offset,
		uint64_t numel, struct nvs_error *error);

/* ---- keep.c ---- */
/* Finds the header of a kept store. *tile_numel: of the tiles there; 0: it is new. */
int header_find(struct nvs_optimizer *optimizer, uint64_t *tile_numel, struct nvs_error *error);
/* Whether it is of this layout, before anything is registered by it. */
int header_check(struct nvs_optimizer *optimizer, struct nvs_error *error);
/* Takes over what it says, or makes a new one; the tiles are registered. */
int header_adopt(struct nvs_optimizer *optimizer, struct nvs_error *error);
int keep_commit(struct nvs_optimizer *optimizer, struct nvs_error *error);

#endif
